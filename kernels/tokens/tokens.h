/* Token rows: adding the class token and position embedding, mean pooling, and sums of rows. */
#ifndef VIT_KERNELS_TOKENS_TOKENS_H
#define VIT_KERNELS_TOKENS_TOKENS_H

#include <stddef.h>

#include "kernels/tokens/grid.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int B, N, M; /* images, tokens of each, their width */
} TokenShape;

/* The tokens before an image's patches: a class token, which a distillation token may follow. */
enum { MOST_FRONT_TOKENS = 2 };
typedef struct {
    int count;
    float *w[MOST_FRONT_TOKENS], *dw[MOST_FRONT_TOKENS]; /* [M] each */
} FrontTokens;

/* x[b,t + front->count] = patches[b,t], x[b,t] = front->w[t] for the tokens in front; then x[b] += pos.
 * x [B,N,M] real;  patches [B,N-front->count,M] real;  front: NULL is none;  pos [N,M] float or NULL. */
void embed_forward(real *x, const real *patches, const FrontTokens *front, const float *pos, const TokenShape *shape);
/* dpatches [B,N-front->count,M] (=);  front->dw [M] (+=), all or none NULL;  dpos [N,M] (+=) or NULL;  dx [B,N,M]. */
void embed_backward(real *dpatches, const FrontTokens *front, float *dpos, const real *dx, const TokenShape *shape);

/* y[b] = mean of x[b, first .. first+count-1].  y [B,M] real;  x [B,N,M] real. */
void pool_forward(real *y, const real *x, const TokenShape *shape, int first, int count);
/* dx [B,N,M] (=), zero for the tokens outside of the mean;  dy [B,M]. */
void pool_backward(real *dx, const real *dy, const TokenShape *shape, int first, int count);

/* The tokens of each 2 x 2 cell side by side, in the order (row, column) 00, 10, 01, 11 of Swin's patch merging.
 * cells [B,N/4,4,C], the cells row-major;  x [B,N,C];  the grid's rows and columns are even. */
void token_cells_forward(real *cells, const real *x, Grid grid, int B, int C);
/* dx (=): the permutation back. */
void token_cells_backward(real *dx, const real *dcells, Grid grid, int B, int C);

/* Linear interpolation of `from` rows to `to`, as PyTorch's interpolate(mode="linear"): row i is interpolated between
 * row `row` and the next one, which has the weight `next`. */
typedef struct {
    int row;
    float next;
} RowBlend;
GRID_INLINE RowBlend row_blend(int i, int from, int to) {
    long long place = (2LL * i + 1) * from - to, unit = 2LL * to; /* weight of the row in units of 1 / unit */
    if (place < 0) place = 0;
    RowBlend blend = {(int)(place / unit), (float)(place % unit) / (float)unit};
    if (blend.row >= from - 1) {
        blend.row = from - 1;
        blend.next = 0;
    }
    return blend;
}
/* The first of the rows that depend on row j; the last is the one before that of j + 2. */
GRID_INLINE int row_blend_first(int j, int from, int to) {
    long long first = (2LL * j - 1) * to + from - 1;
    return first < 0 ? 0 : first / (2LL * from) > to ? to : (int)(first / (2LL * from));
}
typedef struct {
    int B, from, to, M;
    int x_row; /* elements from one row of x to the next */
} RowStretch;
/* y [B,to,M] real: the rows of each image of x [B,from,M], stretched.  1 <= from <= to. */
void rows_stretch_forward(real *y, const real *x, const RowStretch *shape);
/* dx (+=), laid out like x: adds to the gradient that x already has from its other use. */
void rows_stretch_backward(real *dx, const real *dy, const RowStretch *shape);

/* y = a + b, or y = a if b is NULL.  y, a, b [n,M] real with row strides y_row, a_row and b_row, at least M.  y may be
 * a or b if their row strides are equal. */
void rows_add(real *y, const real *a, const real *b, size_t n, int M, int y_row, int a_row, int b_row);

#ifdef __cplusplus
}
#endif

#endif
