/* Fourier transforms of TILE complex sequences at once, one in each lane of a vector, so that no butterfly exchanges
 * numbers between lanes.  z [N,2,TILE]: real parts of the TILE lanes, then imaginary ones; kernels/lisa/fft_plan.h has
 * the order.  Neither direction scales.  A half spectrum is [pairs,2,TILE]. */
#ifndef VIT_KERNELS_LISA_FFT_H
#define VIT_KERNELS_LISA_FFT_H

#include <stdbool.h>

#include "kernels/cpu/tile.h"
#include "kernels/lisa/fft_plan.h"
#include "kernels/tokens/grid.h"

/* The plan for these tokens, over their grid or as one sequence, valid until the next call.  It is created by the first
 * call and kept with other recent plans (fft_plan_kept).  Kernels call this in their *_workspace functions, because
 * kernels themselves do not allocate; only for a new grid, where grids change from batch to batch, does the kernel
 * itself create the plan. */
const FftPlan *fft_plan(Grid tokens, bool grid);

/* Floats of scratch that a transform needs. */
size_t fft_spare(const FftPlan *plan);

void fft_forward(const FftPlan *plan, float *z, float *spare);
void fft_backward(const FftPlan *plan, float *z, float *spare);

enum { COMPLEX = 2 * TILE }; /* floats of one element of z */

/* Computes row p of a half spectrum from its entries in z, and the reverse. */
TILE_INLINE void fft_join(float *z, const FftPair *p, vec re1, vec im1, vec re2, vec im2) {
    vec_store(z + (size_t)p->b * COMPLEX, re1 + im2);
    vec_store(z + (size_t)p->b * COMPLEX + TILE, re2 - im1);
    vec_store(z + (size_t)p->a * COMPLEX, re1 - im2);
    vec_store(z + (size_t)p->a * COMPLEX + TILE, im1 + re2);
}

TILE_INLINE void fft_part(vec *re1, vec *im1, vec *re2, vec *im2, const float *z, const FftPair *p) {
    vec are = vec_load(z + (size_t)p->a * COMPLEX), aim = vec_load(z + (size_t)p->a * COMPLEX + TILE);
    vec bre = vec_load(z + (size_t)p->b * COMPLEX), bim = vec_load(z + (size_t)p->b * COMPLEX + TILE);
    *re1 = 0.5f * (are + bre);
    *im1 = 0.5f * (aim - bim);
    *re2 = 0.5f * (aim + bim);
    *im2 = 0.5f * (bre - are);
}

#endif
