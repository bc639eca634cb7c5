/* Windows of a grid: which token stands where in them, and copies of rows into that order. */
#ifndef VIT_KERNELS_WINDOWS_H
#define VIT_KERNELS_WINDOWS_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/grid.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The grid, filled up right and below to whole windows of wh x ww places, is rolled: place (y, x) holds token
 * (y + shift_y, x + shift_x) modulo its sides.  Where rolling brought opposite sides of the grid together, they are
 * different regions. */
typedef struct {
    Grid grid;
    int wh, ww;           /* at most the grid's sides */
    int shift_y, shift_x; /* less than wh and ww; 0: not rolled */
} WindowShape;

typedef struct {
    int token; /* -1: none, the place fills up the grid */
    int region;
} WindowPlace;

/* How many windows there are, above and beside each other. */
GRID_INLINE Grid window_counts(const WindowShape *s) {
    Grid counts = {1, (s->grid.rows + s->wh - 1) / s->wh, (s->grid.columns + s->ww - 1) / s->ww};
    return counts;
}

/* Place i of wh*ww, both they and the windows row-major. */
GRID_INLINE WindowPlace window_place(const WindowShape *s, int window, int i) {
    Grid counts = window_counts(s);
    int rows = counts.rows * s->wh, columns = counts.columns * s->ww;
    int y = window / counts.columns * s->wh + i / s->ww, x = window % counts.columns * s->ww + i % s->ww;
    int region_y = (y >= rows - s->wh) + (y >= rows - s->shift_y);
    int region_x = (x >= columns - s->ww) + (x >= columns - s->shift_x);
    int token_y = (y + s->shift_y) % rows, token_x = (x + s->shift_x) % columns;
    bool inside = token_y < s->grid.rows && token_x < s->grid.columns;
    WindowPlace place = {inside ? token_y * s->grid.columns + token_x : -1, 3 * region_y + region_x};
    return place;
}

/* Rows of tokens [B,N,parts,M], of which each part's first C channels are copied: of qkv, with three parts, those of
 * the first C / D heads, or of others where the pointer begins with their q.  In the order of windows they are
 * [B*windows,places,parts,C], so that a window is to other kernels what an image is. */
typedef struct {
    WindowShape windows;
    int parts, C, M;
} WindowRows;
/* rows (=), zero at places without a token;  x as above. */
void windows_gather(real *rows, const real *x, const WindowRows *shape, int B);
/* The copy back: x (=) in these channels of all tokens, the others are left alone. */
void windows_scatter(real *x, const real *rows, const WindowRows *shape, int B);

#ifdef __cplusplus
}
#endif

#endif
