/* The loss of semantic segmentation and the predicted classes, for the pixels of a picture, from class logits on a
 * coarser grid.  Logits are resized as by bilinear_forward (kernels/regions/resize.h), a pixel at a time: no tensor of
 * the picture's size times its classes is ever stored. */
#ifndef VIT_KERNELS_TRAINING_PIXEL_CROSS_ENTROPY_H
#define VIT_KERNELS_TRAINING_PIXEL_CROSS_ENTROPY_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/regions/resize.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LABEL_IGNORED = 255 };

typedef struct {
    int B, K; /* images; classes, below 255 */
    int h, w; /* rows and columns of the logits */
    int H, W; /* of the labels */
} PixelShape;

/* loss[b] = 1 / (H W) sum over the pixels of image b of -log softmax(l)_label, l the logits resized to H x W; a pixel
 * whose label is LABEL_IGNORED adds 0.  dlogits: `scale` times its gradient.
 * loss [B] float;  dlogits [B,h,w,K] real (=), or NULL;  logits [B,h,w,K] real;  labels [B,H,W], each below K or
 * LABEL_IGNORED. */
void pixel_cross_entropy(float *loss, real *dlogits, const real *logits, const uint8_t *labels, float scale,
                         const PixelShape *shape);
size_t pixel_cross_entropy_workspace(const PixelShape *shape);

/* The logits of one picture: of one window that covers it, or of overlapping windows, in rows. */
typedef struct {
    int K, h, w;        /* classes; the grid of each window's logits */
    int height, width;  /* of a window, in pixels of the network's picture */
    int down, across;   /* numbers of windows */
    int stride_y, stride_x; /* pixels from one window to the next; the last of a row or column ends with the picture */
    int H, W;           /* the network's picture */
    int out_H, out_W;   /* the original picture */
} LogitWindows;

/* classes[y,x] = argmax_k of the logits, the first of equal ones.  The logits of each window are resized to its pixels
 * and averaged where windows overlap, and the result is resized to out_H x out_W.
 * classes [out_H,out_W];  logits [down*across,h,w,K] real. */
void pixel_classes(uint8_t *classes, const real *logits, const LogitWindows *windows);

/* Along one axis: where window i begins, of windows that are `size` long and `stride` apart on `side` pixels, and
 * whether it contains pixel `at`. */
GRID_INLINE int window_begin(int i, int size, int stride, int side) {
    return i * stride + size < side ? i * stride : side - size;
}
GRID_INLINE int window_holds(int i, int at, int size, int stride, int side) {
    int begin = window_begin(i, size, stride, side);
    return at >= begin && at < begin + size;
}

#ifdef __cplusplus
}
#endif

#endif
