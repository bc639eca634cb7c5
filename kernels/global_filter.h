/* The global filter (GFNet). */
#ifndef VIT_KERNELS_GLOBAL_FILTER_H
#define VIT_KERNELS_GLOBAL_FILTER_H

#include <stddef.h>

#include "kernels/grid.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y = F' (w F x) over the grid, channel by channel, F the real two-dimensional Fourier transform (GFNet; orthonormal in
 * both directions, which is 1/N in one).  Where a frequency and its conjugate both have an entry, in the columns 0 and
 * Wg/2, the mean of w and its partner's conjugate counts, as in an inverse real transform.
 * y, x [B,N,M] real;  w [Hg,Wg/2+1,M,2] float: real and imaginary parts.  y may not be x. */
void global_filter_forward(real *y, const real *x, const float *w, int B, Grid grid, int M);
/* dx (=);  dw (+=). */
void global_filter_backward(real *dx, float *dw, const real *dy, const real *x, const float *w, int B, Grid grid,
                            int M);
size_t global_filter_workspace(int B, Grid grid, int M);

#ifdef __cplusplus
}
#endif

#endif
