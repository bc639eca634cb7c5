/* The page of a run while it trains: report.json and report.html in its folder (report/run_page.h), which rank 0 keeps
 * up to date.  If a page cannot be written, there is one warning; the run does not depend on it.  If the run dies
 * (core/die.h) in the thread that opened the page, the page says so. */
#ifndef VIT_TRAINING_REPORT_H
#define VIT_TRAINING_REPORT_H

#include "training/training.h"

/* Begins the page of a run whose folder is open; a resumed run continues with the facts in the folder. */
void report_open(Training *t);

/* Writes the page of a running run if it is time: at the first call, after an `evaluation`, otherwise half a minute
 * after the last page, or later if pages took more than a hundredth of the time. */
void report_refresh(const Training *t, bool evaluation);

/* Writes the page of a run that ends in this state, "stopped", "failed" or "done", with the reason for that or the
 * result. */
void report_end(const Training *t, const char *state, const char *words);

/* Makes the page of the run in a folder, in the file `out` or, where that is NULL, in report.html there, and prints its
 * path.  The settings are those that this program knows. */
void report_folder(const Training *t, const char *folder, const char *out);

#endif
