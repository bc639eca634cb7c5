/* Facts of a run that are not in its log: report.json in its folder.  The training program writes it, and
 * report/run_page.h makes pages from it, at once or years later.
 *
 * Sections are of a few kinds, so that a page can show those of any program.  A section is replaced by the next one
 * with the same id and keeps its position; ids are words of letters, digits and dashes.  Texts may hold any bytes. */
#ifndef VIT_REPORT_FACTS_H
#define VIT_REPORT_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

enum { FACTS_BYTES = 300000 /* of all pictures of a run, encoded as text */ };

struct json_t;

/* An object of zeros has no facts.  Functions end the program if memory runs out.
 *
 * The file's object has "report": 1, the object "values", and two lists, in which each element has the arguments of one
 * call below, under their names: "levels" and "sections".  A section's "kind" is "table" with the list "rows" of lists,
 * "heat", "bars", or "pictures" with a list of that name, in which "data" is base64 of "type". */
typedef struct {
    struct json_t *all;
} Facts;

/* Reads report.json.  A missing file has no facts.  A file of another form is an error, reported without the file's
 * name, and then there are no facts.  After success the data have the form above: lists have the required lengths. */
bool facts_read(Facts *facts, const char *path, Error *error);
/* The same for a file in memory. */
bool facts_parse(Facts *facts, const void *bytes, size_t size, Error *error);
/* Replaces the file atomically. */
bool facts_write(const Facts *facts, const char *path, Error *error);
void facts_free(Facts *facts);

/* Plain values: "program", "state", "sentence", "device", "parameters", "macs", ... (report/run_page.h lists them). */
void facts_set(Facts *facts, const char *name, const char *text); /* NULL: the fact is removed */
void facts_set_number(Facts *facts, const char *name, double value); /* not finite: null */
const char *facts_get(const Facts *facts, const char *name);   /* NULL: there is none */
double facts_number(const Facts *facts, const char *name);     /* NaN: there is none */

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

/* Bars: values, at least 0, with their names. */
void facts_bars(Facts *facts, const char *id, const char *title, const char *unit, const char *const *names,
                const double *values, int count);

/* Horizontal lines in the chart of a column of the log, for comparison with a result ("byte histogram", 7.15).  A level
 * is replaced by the next one of the same column and name. */
void facts_level(Facts *facts, const char *column, const char *name, double value);

#endif
