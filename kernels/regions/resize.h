/* Resizing of feature maps, channels last. */
#ifndef VIT_KERNELS_REGIONS_RESIZE_H
#define VIT_KERNELS_REGIONS_RESIZE_H

#include "kernels/tokens/grid.h"
#include "kernels/tokens/images.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* From x [B,rows,columns,C] to y [B,to_rows,to_columns,C], larger or smaller on either side. */
typedef struct {
    int B, C, rows, columns, to_rows, to_columns;
} Resize;

/* y = add + x at the nearest place: row floor(i rows / to_rows), column likewise.  The top-down path of a feature
 * pyramid is one call.
 * y, add [B,to_rows,to_columns,C] real: add NULL for zero, or y;  x [B,rows,columns,C] real. */
void nearest_add_forward(real *y, const real *add, const real *x, const Resize *shape);
/* dx = add + the sum of dy over the places that x was copied to, which is 0 where there are none; the gradient of
 * forward's `add` is dy.
 * dx, add [B,rows,columns,C] real (=): add NULL for zero, or dx;  dy [B,to_rows,to_columns,C] real. */
void nearest_add_backward(real *dx, const real *add, const real *dy, const Resize *shape);

/* y = add + x interpolated bilinearly, torch.nn.functional.interpolate(mode="bilinear", align_corners=False): row i
 * lies at max((i + 1/2) rows / to_rows - 1/2, 0), between its integer part and the next row, or the last one. Shapes
 * and NULL as for nearest_add. */
void bilinear_forward(real *y, const real *add, const real *x, const Resize *shape);
void bilinear_backward(real *dx, const real *add, const real *dy, const Resize *shape);

/* The pixels of even rows and columns: y [B,ceil(Hi/2),ceil(Wi/2),C] real of x [B,Hi,Wi,C] real. */
void subsample_forward(real *y, const real *x, const ImageShape *images, int C);
/* dx [B,Hi,Wi,C] (+=): dy is added to the pixels of even rows and columns, and the others are not touched. */
void subsample_backward(real *dx, const real *dy, const ImageShape *images, int C);

/* == What both backends compute alike ============================================================================= */

GRID_INLINE int nearest_source(int i, int from, int to) { return (int)((long long)i * from / to); }
/* The first place whose source is s or a later one. */
GRID_INLINE int nearest_first(int s, int from, int to) { return (int)(((long long)s * to + from - 1) / from); }

/* The position of place i among the sources 0 .. from - 1, in units of 1 / (2 to): (i + 1/2) from / to - 1/2.  It is an
 * integer, so that weights are equally exact at all places. */
GRID_INLINE long long bilinear_at(int i, int from, int to) {
    long long at = (2LL * i + 1) * from - to, last = 2LL * to * (from - 1);
    return at < 0 ? 0 : at > last ? last : at;
}

typedef struct {
    int low, high;  /* the rows or columns that a place lies between; the same one at the end */
    float fraction; /* the weight of the second */
} Between;

GRID_INLINE Between bilinear_source(int i, int from, int to) {
    long long at = bilinear_at(i, from, to);
    int low = (int)(at / (2LL * to));
    Between b = {low, low + 1 < from ? low + 1 : low, (float)(at - 2LL * to * low) / (float)(2LL * to)};
    return b;
}

/* The weight of source s at place i. */
GRID_INLINE float bilinear_weight(int s, int i, int from, int to) {
    long long away = bilinear_at(i, from, to) - 2LL * to * s;
    float weight = 1 - (float)(away < 0 ? -away : away) / (float)(2LL * to);
    return weight > 0 ? weight : 0;
}

/* The places first .. last - 1 that read a source. */
typedef struct {
    int first, last;
} Places;

GRID_INLINE Places bilinear_places(int s, int from, int to) {
    float ratio = (float)to / (float)from, centre = ((float)s + 0.5f) * ratio - 0.5f;
    int first = s == 0 ? 0 : (int)(centre - ratio) - 1, last = s == from - 1 ? to : (int)(centre + ratio) + 2;
    Places p = {first < 0 ? 0 : first, last > to ? to : last};
    while (p.first < p.last && !(bilinear_weight(s, p.first, from, to) > 0)) p.first++;
    while (p.first < p.last && !(bilinear_weight(s, p.last - 1, from, to) > 0)) p.last--;
    return p;
}

/* The places first .. last - 1 whose source is s. */
GRID_INLINE Places nearest_places(int s, int from, int to) {
    Places p = {nearest_first(s, from, to), nearest_first(s + 1, from, to)};
    return p;
}

#ifdef __cplusplus
}
#endif

#endif
