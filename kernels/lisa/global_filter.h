/* The global filter of GFNet (Rao et al. 2021). */
#ifndef VIT_KERNELS_LISA_GLOBAL_FILTER_H
#define VIT_KERNELS_LISA_GLOBAL_FILTER_H

#include <stddef.h>

#include "kernels/tokens/grid.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y = F^-1 (w F x) for every channel, where F is the Fourier transform of real data over the axes of the grid
 * (torch.fft.rfftn and irfftn).  In column 0, and for even Wg in column Wg/2, both a frequency f and its opposite -f
 * have an entry of w; as in irfftn, f is then multiplied by (w[f] + conj w[-f]) / 2.
 * y, x [B,N,M] real;  w [T,Hg,Wg/2+1,M,2] float: real and imaginary parts. */
void global_filter_forward(real *y, const real *x, const float *w, int B, Grid grid, int M);
/* dx [B,N,M] (=);  dw [T,Hg,Wg/2+1,M,2] (+=). */
void global_filter_backward(real *dx, float *dw, const real *dy, const real *x, const float *w, int B, Grid grid,
                            int M);
size_t global_filter_workspace(int B, Grid grid, int M);

#ifdef __cplusplus
}
#endif

#endif
