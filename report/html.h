/* A page of a report: one HTML file with its style sheet and a small script inside, which loads nothing.
 *
 *     html_begin(out, &(HtmlPage){.title = "cifar100-ripple-001", .reload_s = 30});
 *     html_figures(out, figures, 4);
 *     html_section(out, "curves", "Curves");
 *     html_grid_begin(out);           charts and pictures are side by side where the screen is wide enough
 *     svg_lines(out, &chart);         report/svg.h
 *     html_grid_end(out);
 *     html_end(out);
 *
 * All texts are escaped here, and bytes that are not UTF-8 or that XML does not allow become "?".  A page is well-formed
 * XML, too, so that any parser can check it. */
#ifndef VIT_REPORT_HTML_H
#define VIT_REPORT_HTML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
    const char *title;
    const char *subtitle; /* or NULL */
    int reload_s;         /* seconds after which the page reloads itself and keeps its place; 0: never */
} HtmlPage;

void html_begin(FILE *out, const HtmlPage *page);
void html_end(FILE *out);

/* Text as the content of an element or as an attribute between double quotes. */
void html_text(FILE *out, const char *text);

/* A result in large figures: value "61.24 %", label "best top-1", note "epoch 180" or NULL. */
typedef struct {
    const char *value, *label, *note;
} HtmlFigure;
void html_figures(FILE *out, const HtmlFigure *figures, int count);

/* A heading, with an anchor in the page's list of sections. */
void html_section(FILE *out, const char *id, const char *title);
void html_paragraph(FILE *out, const char *text);
/* Text in a fixed-width font, with a button that copies it. */
void html_command(FILE *out, const char *text);

/* A part of a section that is hidden until a reader opens it. */
void html_fold_begin(FILE *out, const char *title);
void html_fold_end(FILE *out);

void html_grid_begin(FILE *out);
void html_grid_end(FILE *out);

/* cells [rows,columns]; NULL cells are empty.  Columns whose cells are numbers are aligned to the right.  A table that
 * is wider than the screen scrolls in its own frame. */
typedef struct {
    const char *caption; /* or NULL */
    int rows, columns;
    const char *const *names; /* [columns], or NULL: the table has no headings */
    const char *const *cells;
    const char *const *titles; /* [rows]: text under the pointer over the first cell of a row, or NULL */
    bool sortable; /* a click on a heading sorts, where scripts run */
} HtmlTable;
void html_table(FILE *out, const HtmlTable *table);

/* An encoded picture inside the page.  type: "image/png" or "image/jpeg"; width: its width on the page in pixels, 0:
 * its own; `pixelated`: enlarged without smoothing. */
typedef struct {
    const char *type;
    const uint8_t *bytes;
    size_t size;
    const char *caption; /* below it, or NULL */
    const char *alt;
    int width;
    bool pixelated;
} HtmlPicture;
void html_picture(FILE *out, const HtmlPicture *picture);

#endif
