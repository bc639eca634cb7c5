/* Convolutions: depthwise ones and a 3 x 3 maximum on the token grid, and those of a ResNet whose batch norms are
 * frozen. */
#ifndef VIT_KERNELS_CONVOLUTION_CONVOLUTION_H
#define VIT_KERNELS_CONVOLUTION_CONVOLUTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/tokens/grid.h"
#include "kernels/tokens/images.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The number of rows or columns of results that are `stride` apart, the first one at 0. */
GRID_INLINE int convolution_side(int side, int stride) { return (side - 1) / stride + 1; }

typedef struct {
    Grid grid;
    int C, k;         /* channels; kernel size, odd and at most 7, with zero padding of k/2 */
    int period;       /* channel c uses the weights of channel c % period: C, or D if all heads share their weights */
    int x_row, y_row; /* row strides of x and y, at least C; 3*M within qkv */
    int kt;           /* size in time, odd, with zero padding of kt/2;  0 is 1: every frame by itself */
} Depthwise;
GRID_INLINE int depthwise_frames(const Depthwise *s) { return s->kt > 1 ? s->kt : 1; }
GRID_INLINE int depthwise_taps(const Depthwise *s) { return depthwise_frames(s) * s->k * s->k; }

/* y_t = add_t + b + sum_o w_o x_(t+o) over the kt x k x k offsets o.
 * y [B,N,C] real with row stride y_row;  x [B,N,C] real with row stride x_row;  w [period,kt,k,k];  b [period] or NULL;
 * add: NULL, or laid out like y, and then it may be y. */
void depthwise_forward(real *y, const real *add, const real *x, const float *w, const float *b, const Depthwise *shape,
                       int B);
/* dx_t = add_t + sum_o w_o dy_(t-o).
 * dx (=), laid out like x;  dw (+=);  db (+=) or NULL;  add: NULL, or laid out like dx, and then it may be dx. */
void depthwise_backward(real *dx, const real *add, float *dw, float *db, const real *dy, const real *x, const float *w,
                        const Depthwise *shape, int B);
size_t depthwise_workspace(const Depthwise *shape);

/* The same without bias and `add`, at every stride-th row and column only: result (i,j) is the one at token (i stride,
 * j stride) of its frame, on a grid of T x Ho x Wo with Ho = convolution_side(rows, stride).  kt is at most 15; all
 * channels have weights of their own: period = C. */
typedef struct {
    Depthwise window;
    int stride;
} StridedDepthwise;
/* y [B,T*Ho*Wo,C] real with row stride y_row. */
void strided_depthwise_forward(real *y, const real *x, const float *w, const StridedDepthwise *shape, int B);
/* dx (=), laid out like x;  dw (+=).  The workspace is depthwise_workspace(&shape->window) or more. */
void strided_depthwise_backward(real *dx, float *dw, const real *dy, const real *x, const float *w,
                                const StridedDepthwise *shape, int B);

typedef struct {
    Grid grid;
    int C, x_row; /* channels; row stride of x, at least C */
} NeighbourMax;

/* y_t = the maximum, per channel, over those of the 3 x 3 tokens around t that lie on the grid.  NaN counts as larger
 * than every number.
 * y [B,N,C] real;  at [B,N,C]: index 0 .. 8 of the maximum within the window in row-major order, the first one of
 * equals (saved);  x [B,N,C] real with row stride x_row. */
void neighbour_max_forward(real *y, uint8_t *at, const real *x, const NeighbourMax *shape, int B);
/* dx (=), laid out like x;  dy [B,N,C]. */
void neighbour_max_backward(real *dx, const real *dy, const uint8_t *at, const NeighbourMax *shape, int B);

/* == Convolution with a frozen batch norm ========================================================================= */

/* Images are channels last, [B,Hi,Wi,C].  The output is [B,Ho,Wo,out] with Ho = ceil(Hi/stride) (convolution_side) and
 * Wo likewise.  Image sizes may change from call to call: only the first call with a size prepares it and may allocate
 * memory.
 *
 * Zero padding of the windows, and permitted algorithms:
 *   CONVOLUTION_CENTRED  k/2 above and to the left
 *   CONVOLUTION_SAME     as TensorFlow does: of the t = max((Ho - 1) stride + k - Hi, 0) rows that the windows need
 * beyond
 *                        the image, floor(t/2) lie above, the others below, and columns alike; equal to CENTRED with
 * stride 1
 *   CONVOLUTION_QUICK    padded as CENTRED; may take an algorithm with fewer multiplications, whose rounding errors are
 *                        some ten times as large */
enum { CONVOLUTION_CENTRED, CONVOLUTION_SAME, CONVOLUTION_QUICK };

typedef struct {
    int in, out;   /* channels */
    int k, stride; /* kernel size, odd */
    int way;       /* one of those above */
} Convolution;

/* Rows above an image of `side` rows, or columns to the left of it, that are padding. */
GRID_INLINE int same_before(int side, int k, int stride) {
    int beyond = (convolution_side(side, stride) - 1) * stride + k - side;
    return beyond > 0 ? beyond / 2 : 0;
}
GRID_INLINE int convolution_before(const Convolution *c, int side) {
    return c->way == CONVOLUTION_SAME ? same_before(side, c->k, c->stride) : c->k / 2;
}

/* A frozen batch norm as y = scale x + shift:  scale = w / sqrt(var + eps), shift = b - mean scale.  All [n] float. */
void batchnorm_fold(float *scale, float *shift, const float *w, const float *b, const float *mean, const float *var,
                    int n, float eps);

/* folded = W' with W'_o = scale_o w_o, in a layout of the backend's own: the weight argument of the calls below.
 * folded: convolution_folded_bytes bytes of memory from device_malloc, aligned to 256 bytes;  w [out,in,k,k] float;
 * scale [out] float.  backward: true if convolution_backward_input will be called too; all calls for one convolution
 * must agree on it. */
size_t convolution_folded_bytes(const Convolution *c, bool backward);
void convolution_fold(void *folded, const float *w, const float *scale, const Convolution *c, bool backward);

/* y = conv(x, W') + shift + add, followed by a ReLU if relu is true.
 * y [B,Ho,Wo,out] real;  x [B,Hi,Wi,in] real;  add [B,Ho,Wo,out] real or NULL, may be y;  shift [out] float. */
void convolution_forward(real *y, const real *x, const real *add, const void *folded, const float *shift,
                         const Convolution *c, bool relu, const ImageShape *images);
/* dx = (add + conv^T(dy, W')) * (below > 0): if `below` is the output of the ReLU that produced this convolution's
 * input, dx is the gradient of that ReLU's input.
 * dx [B,Hi,Wi,in] (=);  add [B,Hi,Wi,in] or NULL for zero, may be dx, must be NULL if stride > 1;
 * below [B,Hi,Wi,in], or NULL if there was no ReLU;  dy [B,Ho,Wo,out]. */
void convolution_backward_input(real *dx, const real *add, const real *dy, const void *folded, const real *below,
                                const Convolution *c, const ImageShape *images);
/* The gradient of the weights before folding:  dw [out,in,k,k] (+=) scale_o times the gradient of W'. */
void convolution_backward_weight(float *dw, const real *dy, const real *x, const float *scale, const Convolution *c,
                                 const ImageShape *images);
/* Bytes of workspace for the calls with images up to this size; convolution_backward_weight is one of them if `weights`
 * is true.  Memory that cuDNN or oneDNN needs in addition is reserved by the first call with an image size. */
size_t convolution_workspace(const Convolution *c, const ImageShape *images, bool weights);

/* dx = dy where y > 0, else 0.  dx [n] (=), may be dy;  y [n] the ReLU's output. */
void relu_gradient(real *dx, const real *dy, const real *y, size_t n);

/* Maximum over 3 x 3 windows with stride 2; pixels beyond the border are ignored.  Windows lie as in a Convolution:
 * around the pixels of even rows and columns, or with `same` as TensorFlow pads.
 * y [B,ceil(Hi/2),ceil(Wi/2),C] real;  at, laid out like y: index 0 .. 8 of the maximum within its window in row-major
 * order, the first one of equals (saved), or NULL where no gradient is wanted;  x [B,Hi,Wi,C] real. */
void max_pool_forward(real *y, uint8_t *at, const real *x, const ImageShape *images, int C, bool same);
/* The same of relu(x), around the pixels of even rows and columns: y = relu(max) and, where no pixel of a window is
 * positive, at is 9, so that max_pool_backward gives the gradient of x and not only that of relu(x). */
void relu_max_pool_forward(real *y, uint8_t *at, const real *x, const ImageShape *images, int C);
/* dx (=), laid out like x. */
void max_pool_backward(real *dx, const real *dy, const uint8_t *at, const ImageShape *images, int C, bool same);

#ifdef __cplusplus
}
#endif

#endif
