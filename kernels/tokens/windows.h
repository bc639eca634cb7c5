/* Windows of a grid: the places of tokens in them, and copies of rows in that order. */
#ifndef VIT_KERNELS_TOKENS_WINDOWS_H
#define VIT_KERNELS_TOKENS_WINDOWS_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/tokens/grid.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The grid is padded on the right and below to whole windows of wh x ww places and then rolled: place (y, x) has token
 * (y + shift_y, x + shift_x) modulo the padded sides.  Opposite sides of the grid that rolling brings together are
 * different regions.  Time is treated likewise: windows are wt frames long and rolled by shift_t. */
typedef struct {
    Grid grid;
    int wh, ww;           /* they may be longer than the grid's sides */
    int shift_y, shift_x; /* less than the sides; 0: not rolled */
    int wt, shift_t;      /* the same for frames; wt 1 for images */
} WindowShape;

typedef struct {
    int token; /* -1: none, the place is padding */
    int region;
} WindowPlace;

/* A window's places as a grid. */
GRID_INLINE Grid window_sides(const WindowShape *s) {
    Grid sides = {s->wt, s->wh, s->ww};
    return sides;
}

/* The number of windows in time, in height and in width. */
GRID_INLINE Grid window_counts(const WindowShape *s) {
    Grid sides = window_sides(s);
    Grid counts = {(s->grid.frames + sides.frames - 1) / sides.frames, (s->grid.rows + s->wh - 1) / s->wh,
                   (s->grid.columns + s->ww - 1) / s->ww};
    return counts;
}

/* Place i of wt*wh*ww; places and windows are in row-major order. */
GRID_INLINE WindowPlace window_place(const WindowShape *s, int window, int i) {
    Grid sides = window_sides(s), counts = window_counts(s);
    GridPlace of = grid_place(counts, window), in = grid_place(sides, i);
    int frames = counts.frames * sides.frames, rows = counts.rows * s->wh, columns = counts.columns * s->ww;
    int t = of.t * sides.frames + in.t, y = of.y * s->wh + in.y, x = of.x * s->ww + in.x;
    int region_t = (t >= frames - sides.frames) + (t >= frames - s->shift_t);
    int region_y = (y >= rows - s->wh) + (y >= rows - s->shift_y);
    int region_x = (x >= columns - s->ww) + (x >= columns - s->shift_x);
    int token_t = t + s->shift_t, token_y = (y + s->shift_y) % rows, token_x = (x + s->shift_x) % columns;
    if (token_t >= frames) token_t -= frames;
    bool inside = token_t < s->grid.frames && token_y < s->grid.rows && token_x < s->grid.columns;
    int token = (token_t * s->grid.rows + token_y) * s->grid.columns + token_x;
    WindowPlace place = {inside ? token : -1, (3 * region_t + region_y) * 3 + region_x};
    return place;
}

/* The entry of a table of offsets for places i and j of a window, a query's and a key's: the grid of all offsets
 * (grid_offsets), where no offset is the middle. */
GRID_INLINE int window_offset(const WindowShape *s, int i, int j) {
    Grid sides = window_sides(s);
    GridPlace query = grid_place(sides, i), key = grid_place(sides, j);
    int t = query.t - key.t + sides.frames - 1, y = query.y - key.y + s->wh - 1, x = query.x - key.x + s->ww - 1;
    return (t * (2 * s->wh - 1) + y) * (2 * s->ww - 1) + x;
}

/* Rows of tokens [B,N,parts,M], of which the first C channels of each part are copied: for qkv, with three parts, those
 * of the first C / D heads, or of other heads if the pointer is to their q.  In the order of windows they are
 * [B*windows,places,parts,C], so that other kernels can treat a window as an image. */
typedef struct {
    WindowShape windows;
    int parts, C, M;
} WindowRows;
/* rows (=), zero at places without a token;  x as above. */
void windows_gather(real *rows, const real *x, const WindowRows *shape, int B);
/* The copy back: x (=) in these channels of all tokens; the others are not changed. */
void windows_scatter(real *x, const real *rows, const WindowRows *shape, int B);

#ifdef __cplusplus
}
#endif

#endif
