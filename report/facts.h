/* What a run knows and its log does not: report.json in its folder.  The program that trains fills it, and pages are made
 * of it (report/run_page.h), at once or years later.
 *
 * Sections are of a few kinds, so that a page can show those of any program without knowing it.  A section is replaced by
 * the next one with the same id and keeps its place; ids are words of letters, digits and dashes.  Texts may hold any
 * bytes. */
#ifndef VIT_REPORT_FACTS_H
#define VIT_REPORT_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

enum { FACTS_BYTES = 300000 /* of the pictures of a run together, encoded as text */ };

struct json_t;

/* Zeros are no facts.  Functions end the program if memory runs out.
 *
 * The file's object has "report": 1, the object "values", and two lists, each of whose elements has what one call below
 * was given, under the names of its arguments: "levels" and "sections".  A section's "kind" is "table" with the list
 * "rows" of lists, "heat", "bars", or "pictures" with a list of that name, in which "data" is base64 of "type". */
typedef struct {
    struct json_t *all;
} Facts;

/* Reads report.json.  A file that is missing gives no facts; one of another form is an error, without the file's
 * name, and then there are no facts.  What was read has the form above: lists are as long as they have to be. */
bool facts_read(Facts *facts, const char *path, Error *error);
/* The same for a file in memory. */
bool facts_parse(Facts *facts, const void *bytes, size_t size, Error *error);
/* Replaces the file atomically. */
bool facts_write(const Facts *facts, const char *path, Error *error);
void facts_free(Facts *facts);

/* Plain values: "program", "state", "sentence", "device", "parameters", "macs", ... (report/run_page.h lists them). */
void facts_set(Facts *facts, const char *name, const char *text); /* NULL: it is a fact no longer */
void facts_set_number(Facts *facts, const char *name, double value); /* not finite: null */
const char *facts_get(const Facts *facts, const char *name);   /* NULL: not there */
double facts_number(const Facts *facts, const char *name);     /* NaN: not there */

/* A table.  cells [rows,columns] of texts; NULL is an empty one. */
void facts_table(Facts *facts, const char *id, const char *title, const char *const *names, int columns,
                 const char *const *cells, int rows);

/* A heat map: values [rows,columns] of counts or weights, at least 0.  names NULL: numbers. */
void facts_heat(Facts *facts, const char *id, const char *title, const char *row_label, const char *column_label,
                const char *const *row_names, int rows, const char *const *column_names, int columns,
                const double *values);

/* Pictures side by side.  facts_pictures begins an empty section (text: a sentence above them, or NULL), and
 * facts_picture adds one to it: pixels [height,width,3], scaled down to at most `side` on the longer side, stored as the
 * smaller of PNG and JPEG.  False: there is no room left within FACTS_BYTES, and it was not added. */
void facts_pictures(Facts *facts, const char *id, const char *title, const char *text);
bool facts_picture(Facts *facts, const char *id, const uint8_t *pixels, int height, int width, int side,
                   const char *caption);

/* Bars: a value each, at least 0, with its name. */
void facts_bars(Facts *facts, const char *id, const char *title, const char *unit, const char *const *names,
                const double *values, int count);

/* Horizontal lines in the chart of a column of the log: what a result is compared with ("byte histogram", 7.15).  A
 * level is replaced by the next one of the same column and name. */
void facts_level(Facts *facts, const char *column, const char *name, double value);

#endif
