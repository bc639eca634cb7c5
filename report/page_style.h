/* The style sheet and the script inside every page of a report. */
#ifndef VIT_REPORT_PAGE_STYLE_H
#define VIT_REPORT_PAGE_STYLE_H

extern const char page_style[], page_script[];

#endif
