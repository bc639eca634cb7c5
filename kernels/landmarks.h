/* Attention through landmarks: their means, patches and the product of low rank. */
#ifndef VIT_KERNELS_LANDMARKS_H
#define VIT_KERNELS_LANDMARKS_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/grid.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A grid of Lh x Lw cells, L = Lh*Lw: cell (i,j) has rows i Hg/Lh up to (i+1) Hg/Lh of the tokens' grid, rounded down,
 * and columns likewise, so that every token is in one.  1 <= Lh <= Hg, 1 <= Lw <= Wg. */
typedef struct {
    Grid tokens, cells;
} Cells;
/* means [B,L,C] = the mean of each cell.  x [B,N,C], rows x_row apart. */
void cell_means_forward(real *means, const real *x, const Cells *cells, int B, int C, int x_row);
/* dx (+=): an activation's second gradient, so this runs after what wrote the first. */
void cell_means_backward(real *dx, const real *dmeans, const Cells *cells, int B, int C, int x_row);

typedef struct {
    Grid grid;
    int r, H, D;
    int x_row; /* numbers from one token of x to the next, at least H*D */
} HeadPatches;

/* Squares of r x r tokens as rows, so that a convolution of stride r that the heads share is a linear layer; rows and
 * columns beyond the last whole square are left out.  cols [B,(Hg/r)*(Wg/r),H,D*r*r], columns ordered (channel, row,
 * column) as a [.,D,r,r] weight;  x [B,N,H,D], rows x_row apart. */
void head_patches_forward(real *cols, const real *x, const HeadPatches *shape, int B);
/* dx (+=). */
void head_patches_backward(real *dx, const real *dcols, const HeadPatches *shape, int B);

/* y = A(q, b) Z A(a, k) v with landmarks a of the queries and b of the keys; Z is A(a, b)'s pseudo-inverse after six
 * steps of a cubic scheme, Z <- Z/4 (13 - W (15 - W (7 - W))), W = A(a, b) Z, from A(a, b)^T / m,
 * m its largest column sum.
 *   softmax   A(x, z) = softmax of x z^T / sqrt D over its rows (Nystromformer)
 *   gaussian  A(x, z) = exp(-|x - z|^2 / 2), tokens scaled by D^-1/4, k = q, b = a; m squared (SOFT)
 * Gradients are those of the steps as they are taken, m's included.
 * y [B,N,H,D] real;  tokens [B,N,3,H,D]: q, k, v, or [B,N,2,H,D]: q, v;  landmarks [B,L,2,H,D]: a, b,
 * or [B,L,H,D]: a. */
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
