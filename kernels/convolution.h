/* Convolutions: depthwise on the token grid, with the maximum over neighbours; of images, with a frozen batch norm. */
#ifndef VIT_KERNELS_CONVOLUTION_H
#define VIT_KERNELS_CONVOLUTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/grid.h"
#include "kernels/images.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    Grid grid;
    int C, k;         /* k odd, at most 7; zeros k/2 deep around the grid */
    int period;       /* channels c, c + period, ... share their weights: C, or D where all heads have the same */
    int x_row, y_row; /* numbers from one token of x or y to the next, at least C; 3*M within qkv */
} Depthwise;

/* y_t = add_t + b + sum_o w_o x_t+o over the k x k offsets o.  y, x channels last, [B,N,C], rows y_row, x_row
 * apart; add like y, may be y, or NULL;  w [period,k,k];  b [period] or NULL. */
void depthwise_forward(real *y, const real *add, const real *x, const float *w, const float *b, const Depthwise *shape,
                       int B);
/* dx (=) add + sum_o w_o dy_t-o, rows x_row apart;  add like dx, may be dx, or NULL;  dw (+=);  db (+=) or NULL. */
void depthwise_backward(real *dx, const real *add, float *dw, float *db, const real *dy, const real *x, const float *w,
                        const Depthwise *shape, int B);
size_t depthwise_workspace(const Depthwise *shape);

typedef struct {
    Grid grid;
    int C, x_row; /* channels; numbers from one token of x to the next, at least C */
} NeighbourMax;

/* y_t = the largest of the 3 x 3 tokens around t, as far as they are on the grid, channel by channel; NaN is larger
 * than all.  y [B,N,C] real;  at [B,N,C]: which of the nine, row by row, the first of equals (saved);  x rows x_row
 * apart. */
void neighbour_max_forward(real *y, uint8_t *at, const real *x, const NeighbourMax *shape, int B);
/* dx (=), rows x_row apart;  dy [B,N,C]. */
void neighbour_max_backward(real *dx, const real *dy, const uint8_t *at, const NeighbourMax *shape, int B);

/* == Convolution with a frozen batch norm ========================================================================= */

/* Images are channels last, [B,Hi,Wi,C]; zeros k/2 deep lie around them, so the output is [B,Ho,Wo,out],
 * Ho = ceil(Hi/stride).  Shapes may change from call to call: the first call of a shape prepares it and may allocate,
 * the next ones do not. */
typedef struct {
    int in, out;   /* channels */
    int k, stride; /* k odd */
} Convolution;

static inline int convolution_side(int side, int stride) { return (side - 1) / stride + 1; }

/* scale = w / sqrt(var + eps), shift = b - mean scale.  All [n] float. */
void batchnorm_fold(float *scale, float *shift, const float *w, const float *b, const float *mean, const float *var,
                    int n, float eps);

/* W' = scale_o w, ready for the calls below, in a layout that is the backend's secret.  folded:
 * convolution_folded_bytes of memory from device_malloc, at a multiple of 256 bytes;  w [out,in,k,k];  scale [out].
 * backward: also for convolution_backward_input, of all the calls for this convolution the same. */
size_t convolution_folded_bytes(const Convolution *c, bool backward);
void convolution_fold(void *folded, const float *w, const float *scale, const Convolution *c, bool backward);

/* y = conv(x, W') + shift + add, and no less than 0 with relu.  y, add [B,Ho,Wo,out], add may be y or NULL;
 * x [B,Hi,Wi,in];  shift [out]. */
void convolution_forward(real *y, const real *x, const real *add, const void *folded, const float *shift,
                         const Convolution *c, bool relu, const ImageShape *images);
/* dx (=) add + conv^T(dy, W') where below > 0, else 0: the gradient of what `below` was before its ReLU.
 * dx, add, below [B,Hi,Wi,in], below NULL where there was none;  add may be dx, and is NULL for 0 and for strides
 * beyond 1;  dy [B,Ho,Wo,out]. */
void convolution_backward_input(real *dx, const real *add, const real *dy, const void *folded, const real *below,
                                const Convolution *c, const ImageShape *images);
/* dw [out,in,k,k] (+=) scale_o times the gradient of W'. */
void convolution_backward_weight(float *dw, const real *dy, const real *x, const float *scale, const Convolution *c,
                                 const ImageShape *images);
/* For all calls with images up to this size.  What a library wants beside it is reserved at a shape's first call. */
size_t convolution_workspace(const Convolution *c, const ImageShape *images);

/* dx = dy where y > 0, else 0.  dx (=), may be dy;  y [n] what ReLU gave. */
void relu_gradient(real *dx, const real *dy, const real *y, size_t n);

/* Maximum over 3 x 3 windows, stride 2, whatever lies beyond the border left out.
 * y [B,ceil(Hi/2),ceil(Wi/2),C];  x [B,Hi,Wi,C]. */
void max_pool_forward(real *y, const real *x, const ImageShape *images, int C);

#ifdef __cplusplus
}
#endif

#endif
