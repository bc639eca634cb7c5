/* Low-rank attention through landmarks (Nystromformer, SOFT): computes the landmarks from the tokens, and the product
 * of the attention matrices. */
#ifndef VIT_KERNELS_LANDMARKS_LANDMARKS_H
#define VIT_KERNELS_LANDMARKS_LANDMARKS_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/tokens/grid.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The token grid divided into Lh x Lw cells, L = Lh*Lw.  Cell (i,j) has the rows from floor(i Hg/Lh) to floor((i+1)
 * Hg/Lh) - 1, and columns likewise, so that every token is in one cell.  Requires 1 <= Lh <= Hg and 1 <= Lw <= Wg. */
typedef struct {
    Grid tokens, cells;
} Cells;
/* The tokens of a cell: rows from `top` to `bottom` - 1, columns from `left` to `right` - 1. */
typedef struct {
    int top, bottom, left, right;
    float share; /* 1 / tokens */
} LandmarkCell;
GRID_INLINE LandmarkCell landmark_cell(Cells c, int i, int j) {
    size_t Hg = (size_t)c.tokens.rows, Wg = (size_t)c.tokens.columns, y = (size_t)i, x = (size_t)j;
    size_t Lh = (size_t)c.cells.rows, Lw = (size_t)c.cells.columns;
    LandmarkCell cell = {(int)(y * Hg / Lh), (int)((y + 1) * Hg / Lh), (int)(x * Wg / Lw), (int)((x + 1) * Wg / Lw), 0};
    cell.share = 1.0f / ((float)(cell.bottom - cell.top) * (float)(cell.right - cell.left));
    return cell;
}
/* means [B,L,C] = the mean of each cell.  x [B,N,C] with row stride x_row. */
void cell_means_forward(real *means, const real *x, const Cells *cells, int B, int C, int x_row);
/* dx (+=), laid out like x: adds to the gradient that x already has from its other use, so it must run after the kernel
 * that wrote that one. */
void cell_means_backward(real *dx, const real *dmeans, const Cells *cells, int B, int C, int x_row);

/* Indices from begin to end - 1. */
typedef struct {
    int begin, end;
} TokenSpan;
/* When the same length is divided evenly into `from` and into `to` parts, the parts of the latter that overlap part `i`
 * of the former: floor(i to / from) to ceil((i+1) to / from) - 1.  The results for neighbouring i share a part where
 * `from` does not divide `to`. */
GRID_INLINE TokenSpan cell_span(int i, int from, int to) {
    TokenSpan span = {(int)((size_t)i * (size_t)to / (size_t)from),
                 (int)((((size_t)i + 1) * (size_t)to + (size_t)from - 1) / (size_t)from)};
    return span;
}
/* 1 / the tokens in these rows and columns. */
GRID_INLINE float span_share(TokenSpan rows, TokenSpan columns) {
    return 1.0f / ((float)(rows.end - rows.begin) * (float)(columns.end - columns.begin));
}
/* means [B,L,C] = the mean over cells that may overlap: cell (i,j) has the rows cell_span(i, Lh, Hg) and the columns
 * cell_span(j, Lw, Wg), as PyTorch's adaptive average pooling.  There may be more cells than tokens.  x [B,N,C]. */
void overlapping_means_forward(real *means, const real *x, const Cells *cells, int B, int C);
/* dx (=). */
void overlapping_means_backward(real *dx, const real *dmeans, const Cells *cells, int B, int C);

typedef struct {
    Grid grid;
    int r, H, D;
    int x_row; /* row stride of x, at least H*D */
} HeadPatches;

/* Copies each square of r x r tokens into a row per head, so that a convolution of size and stride r whose weight all
 * heads share becomes a linear layer.  Tokens beyond the last whole square are left out.
 * cols [B,(Hg/r)*(Wg/r),H,D*r*r] real, columns in the order (channel, row, column) of a weight [.,D,r,r];
 * x [B,N,H,D] real with row stride x_row. */
void head_patches_forward(real *cols, const real *x, const HeadPatches *shape, int B);
/* dx (+=), laid out like x. */
void head_patches_backward(real *dx, const real *dcols, const HeadPatches *shape, int B);

/* y = A(q, b) Z A(a, k) v, with landmarks a of the queries and b of the keys.  Z approximates the pseudo-inverse of
 * A(a, b) by six iterations Z <- Z/4 (13 - W (15 - W (7 - W))), W = A(a, b) Z, which start from Z = A(a, b)^T / m; m is
 * the largest column sum of A(a, b).
 *   softmax   A(x, z) = softmax of x z^T / sqrt D over its rows (Nystromformer)
 *   gaussian  A(x, z) = exp(-|x - z|^2 / 2), with tokens scaled by D^-1/4, k = q, b = a, and m^2 in place of m (SOFT)
 * Backward differentiates the iterations themselves, m included.
 * y [B,N,H,D] real;  softmax: tokens [B,N,3,H,D] is q, k, v and landmarks [B,L,2,H,D] is a, b;
 * gaussian: tokens [B,N,2,H,D] is q, v and landmarks [B,L,H,D] is a. */
typedef struct {
    int N, L, H, D;
    bool gaussian;
} LowRank;
void low_rank_forward(real *y, const real *tokens, const real *landmarks, const LowRank *shape, int B);
/* dtokens, dlandmarks (=). */
void low_rank_backward(real *dtokens, real *dlandmarks, const real *dy, const real *tokens, const real *landmarks,
                       const LowRank *shape, int B);
size_t low_rank_workspace(const LowRank *shape, int B);

#ifdef __cplusplus
}
#endif

#endif
