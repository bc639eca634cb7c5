/* Matrix products in plain C:  C [m,n] (= or +=) A [m,k] B [k,n].
 *
 * B is first copied to panels of PANEL columns, [k,PANEL] each, padded with zero columns.  A panel, or KC of its rows,
 * stays in the first-level cache while it is multiplied with rows of A, which are not copied; a few dozen rows of A
 * stay in the second-level cache while they are multiplied with all panels.  The innermost loop is that of tile_micro.
 *
 * The order of an element's sum depends neither on the number of threads nor on the sizes m and n. */
#ifndef VIT_KERNELS_LINEAR_PANELS_H
#define VIT_KERNELS_LINEAR_PANELS_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/cpu/tile.h"
#include "real.h"

/* PANEL_ROWS_MOST: rows of A at a time, a multiple of TILE_ROWS.  PANEL_KC: rows of a panel at a time; with the same part of
 * TILE_ROWS rows of A they take three quarters of a first-level cache of 32 KiB. */
enum { PANEL = TILE_VECS * TILE, PANEL_ROWS_MOST = 96, PANEL_KC = TILE == 16 ? 160 : 4096 / PANEL };

/* The largest number of a panel's rows at a time that divides k evenly, or nearly so. */
static inline int panel_step(size_t k) {
    size_t steps = (k + PANEL_KC - 1) / PANEL_KC;
    return steps ? (int)((k + steps - 1) / steps) : 1;
}

static inline int panels_of(int n) { return (n + PANEL - 1) / PANEL; }
static inline size_t panels_floats(int k, int n) { return (size_t)panels_of(n) * (size_t)k * PANEL; }
/* The columns of panel j of n columns. */
static inline int panel_width(int j, int n) { return n - j * PANEL < PANEL ? n - j * PANEL : PANEL; }

/* A panel [k,PANEL] of `width` columns of B, which lies as rows of numbers ld apart, or of the transpose, as columns. */
void panel_of_rows(float *panel, const float *b, size_t ld, int k, int width);
void panel_of_reals(float *panel, const real *b, size_t ld, int k, int width);
void panel_of_columns(float *panel, const float *b, size_t ld, int k, int width);

/* c [m,width] (=, or += if add) = a [m,k] times a panel, for m <= PANEL_ROWS_MOST; rows are ldc and lda apart.  The
 * columns of c are written in whole vectors. */
void panel_multiply(float *c, size_t ldc, const float *a, size_t lda, const float *panel, int m, int width, int k, bool add);

/* The same with the transpose of a, which panel_turn has copied to `turned`, m rounded up to TILE_ROWS times k floats, and
 * into c [m rounded up, PANEL] (=). */
void panel_turn(float *turned, const real *a, size_t lda, int m, int k);
void panel_multiply_turned(float *c, const float *turned, const float *panel, int m, int width, int k);

/* How the rows and the panels of a product are divided among threads: task t has rows [row, row + rows) and the panels
 * from `panel` on, `panels` of them, both cut off at the end. */
typedef struct {
    int rows, panels, row_tasks, tasks;
} PanelTasks;
PanelTasks panel_tasks(size_t m, int n, int k);

/* A buffer of n floats, allocated by the first calls with a size; its contents are those that the previous caller
 * left. */
float *panels_room(size_t n);

#endif
