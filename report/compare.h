/* A page that compares runs: compare.html. */
#ifndef VIT_REPORT_COMPARE_H
#define VIT_REPORT_COMPARE_H

#include <stdbool.h>

#include "core/error.h"

/* `paths` are run folders, or CSV files of the league's form (docs/reference/league.md), in which each row is a run
 * without curves.  Replaces the file `out` atomically.  On failure returns false with a line that names the file. */
bool compare_write(const char *const *paths, int count, const char *out, Error *error);

#endif
