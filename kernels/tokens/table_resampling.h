/* Resamples tables with numbers for every position from a model's own grid to the grid of a batch. */
#ifndef VIT_KERNELS_TOKENS_TABLE_RESAMPLING_H
#define VIT_KERNELS_TOKENS_TABLE_RESAMPLING_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/tokens/grid.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[Y,X] = sum_yx u[Y,y] v[X,x] x[y,x] for `inner` numbers at every position, u of the rows and v of the columns the
 * bicubic, antialiased weights of core/resampling.h, or its bilinear ones without antialiasing
 * (layers/vit/resample_grid.h resamples the same way on the host).  Sums are in double.  Grids of one frame. */
typedef struct {
    Grid from, to;
    int inner;
    bool bilinear;
} TableResampling;

/* y [to,inner];  x [from,inner]. */
void table_resample_forward(float *y, const float *x, const TableResampling *shape);
/* dx [from,inner] (+=) the adjoint of dy [to,inner]. */
void table_resample_backward(float *dx, const float *dy, const TableResampling *shape);
/* Enough for every `to` with at most as many rows and columns.  Allocates the memory that the host needs for them. */
size_t table_resample_workspace(const TableResampling *shape);

static inline bool table_resamples(const TableResampling *s) {
    return s->from.rows != s->to.rows || s->from.columns != s->to.columns;
}

#ifdef __cplusplus
}
#endif

#endif
