/* From images to rows of tokens: normalisation, random erasing, mixup and cutmix, patches, and the unfolding of
 * convolution windows (im2col). */
#ifndef VIT_KERNELS_TOKENS_IMAGES_H
#define VIT_KERNELS_TOKENS_IMAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/tokens/grid.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int B, Hi, Wi; /* images, pixels down and across */
} ImageShape;

/* y = (x / 255 - mean) / std.  y [B,3,Hi,Wi] real;  x [B,Hi,Wi,3] uint8;  mean, std host [3]. */
void images_normalize(real *y, const uint8_t *x, const float *mean, const float *std, const ImageShape *shape);

/* y[b,c] = scale[c] x[b,c] + shift[c]: converts one normalisation to another.  x, y [B,3,Hi,Wi] real; host [3]. */
void images_renormalize(real *y, const real *x, const float *scale, const float *shift, const ImageShape *shape);

/* The contents of an erased box: zeros, one normal number per channel, or one per pixel and channel. */
typedef enum { NOISE_CONST, NOISE_RAND, NOISE_PIXEL } ImageNoise;

typedef struct {
    float lam;  /* mixup's weight of the first image of a pair; not used if box is not empty */
    int box[4]; /* cutmix's box: top, left, bottom, right, the last two exclusive; empty for mixup */
    ImageNoise noise;
    uint64_t seed;
    uint32_t epoch;
} ImageMix;

/* images_normalize with random erasing, then mixup or cutmix.  Let e(r) be x[r] normalised, with the pixels inside
 * boxes[r] replaced by noise: element i of the image [3,Hi,Wi] becomes
 * rng_normal_exact(seed, RNG_ERASING_NOISE, epoch, draws[r], i), for NOISE_RAND with the channel in place of i.  With
 * (j, k) = pairs[b],
 *   mixup   y[b] = lam e(j) + (1 - lam) e(k)
 *   cutmix  y[b] = e(k) inside mix's box, and e(j) outside.
 * y [B,3,Hi,Wi] real;  x [rows,Hi,Wi,3] uint8;  pairs [B,2] int: indices into x's rows;  boxes [rows,4] int, in the
 * order of ImageMix.box, and draws [rows]: both NULL if nothing is erased;  mean, std host [3];  mix host.
 * Where real is float, the result has the same bits on every device. */
void images_mix(real *y, const uint8_t *x, const int *pairs, const int *boxes, const uint32_t *draws, const float *mean,
                const float *std, const ImageMix *mix, const ImageShape *shape);

/* Images of different sizes in one batch: y = (x / 255 - mean) / std within the size of each image, 0 in the padding.
 * y [B,Hi,Wi,3] real, channels last;  x [B,Hi,Wi,3] uint8, with any values in the padding;  sizes [B,2] int: height and
 * width of each image;  mean, std host [3]. */
void images_normalize_padded(real *y, const uint8_t *x, const int *sizes, const float *mean, const float *std,
                             const ImageShape *shape);

/* Copies each P x P patch of an image into a row, so that the patch convolution becomes a linear layer.
 * cols [B*(Hi/P)*(Wi/P), 3*P*P] real, columns in the order (channel, row, column) of a weight [M,3,P,P];
 * x [B,3,Hi,Wi] real. */
void patchify(real *cols, const real *x, const ImageShape *shape, int P);

/* The windows of a convolution: each k x k large, `stride` apart, with zero padding of `pad`.  There are Hg x Wg of
 * them (unfold_grid), Hg = (Hi + 2 pad - k) / stride + 1;  of a clip T x Hg x Wg, T = (frames - 1) / stride_t + 1.
 * Requires 1 <= k <= Hi + 2 pad, k <= Wi + 2 pad, stride >= 1 and 0 <= pad < k. */
typedef struct {
    int Hi, Wi, C; /* rows and columns of pixels or tokens; channels */
    int k, stride, pad;
    bool planes; /* true: the input is images [B,C,Hi,Wi]; false: it is tokens [B,Hi*Wi,C] */
    int frames;  /* of a clip [B,frames,C,Hi,Wi] or [B,frames*Hi*Wi,C]; 0: images */
    int kt;      /* a clip's windows are kt frames long, odd, with zero padding of kt/2 ... */
    int stride_t; /* ... and start this many frames apart */
} Unfold;
static inline Grid unfold_grid(const Unfold *s) {
    Grid windows = {s->frames ? (s->frames - 1) / s->stride_t + 1 : 1, (s->Hi + 2 * s->pad - s->k) / s->stride + 1,
                    (s->Wi + 2 * s->pad - s->k) / s->stride + 1};
    return windows;
}
/* The number of values of a channel in a window. */
static inline int unfold_taps(const Unfold *s) { return (s->frames ? s->kt : 1) * s->k * s->k; }

/* Copies each window into a row (im2col), so that the convolution becomes a linear layer.
 * cols [B*Hg*Wg, C*k*k] real, columns in the order (channel, row, column) of a weight [M,C,k,k];  x real, in the layout
 * that shape->planes says.  Of a clip [B*T*Hg*Wg, C*kt*k*k], columns (channel, frame, row, column). */
void unfold_forward(real *cols, const real *x, const Unfold *shape, int B);
/* dx (=), laid out like x: each element is the sum of dcols over the element's copies. */
void unfold_backward(real *dx, const real *dcols, const Unfold *shape, int B);

#ifdef __cplusplus
}
#endif

#endif
