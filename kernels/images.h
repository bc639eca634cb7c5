/* Images on their way to tokens: normalisation, mixing, patches, and the windows of a convolution as rows. */
#ifndef VIT_KERNELS_IMAGES_H
#define VIT_KERNELS_IMAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/grid.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int B, Hi, Wi; /* images, pixels down and across */
} ImageShape;

/* y = (x / 255 - mean) / std.  y [B,3,Hi,Wi] real;  x [B,Hi,Wi,3] uint8;  mean, std host [3]. */
void images_normalize(real *y, const uint8_t *x, const float *mean, const float *std, const ImageShape *shape);

/* What fills a box of images_mix: 0, one normal number for each channel, or one for each number of the box. */
typedef enum { NOISE_CONST, NOISE_RAND, NOISE_PIXEL } ImageNoise;

typedef struct {
    float lam;  /* mixup's share of an image itself; where box is not empty, nothing but that counts */
    int box[4]; /* cutmix: top, left, bottom, right, the last two exclusive */
    ImageNoise noise;
    uint64_t seed;
    uint32_t epoch;
} ImageMix;

/* Random erasing, then mixup or cutmix, on the way of images_normalize.  e(r) is x[r] normalised, but noise inside
 * boxes[r]: number i of the image is rng_normal_exact(seed, RNG_ERASING_NOISE, epoch, draws[r], i), with NOISE_RAND its
 * channel for i.  With (j, k) = pairs[b]
 *   y[b] = lam e(j) + (1 - lam) e(k), or, where mix's box is not empty, e(k) inside and e(j) outside.
 * y [B,3,Hi,Wi] real;  x [rows,Hi,Wi,3] uint8;  pairs [B,2] int: rows of x;  boxes [rows,4] int as in ImageMix and
 * draws [rows], or both NULL: nothing is erased;  mean, std host [3];  mix host.
 * In float32 the same bits on every device. */
void images_mix(real *y, const uint8_t *x, const int *pairs, const int *boxes, const uint32_t *draws, const float *mean,
                const float *std, const ImageMix *mix, const ImageShape *shape);

/* Images of different sizes in one batch: y = (x / 255 - mean) / std inside, 0 beyond an image's own size.
 * y [B,Hi,Wi,3] real, channels last;  x [B,Hi,Wi,3] uint8, anything beyond the own size;  sizes [B,2] int: own height
 * and width;  mean, std host [3]. */
void images_normalize_padded(real *y, const uint8_t *x, const int *sizes, const float *mean, const float *std,
                             const ImageShape *shape);

/* The patches of an image as rows, so that the patch convolution is a linear layer.
 * cols [B*(Hi/P)*(Wi/P), 3*P*P] real, columns ordered (channel, row, column) as a [M,3,P,P] weight;
 * x [B,3,Hi,Wi] real. */
void patchify(real *cols, const real *x, const ImageShape *shape, int P);

/* The windows of a convolution, k x k of them `stride` apart with zeros `pad` deep around the input, Hg x Wg of them:
 * Hg = (Hi + 2 pad - k) / stride + 1.  1 <= k <= Hi + 2 pad, Wi + 2 pad;  stride >= 1;  0 <= pad < k. */
typedef struct {
    int Hi, Wi, C; /* pixels, or tokens, down and across; channels */
    int k, stride, pad;
    bool planes; /* the input is [B,C,Hi,Wi], as an image; otherwise [B,Hi*Wi,C], as tokens */
} Unfold;
static inline Grid unfold_grid(const Unfold *s) {
    Grid windows = {1, (s->Hi + 2 * s->pad - s->k) / s->stride + 1, (s->Wi + 2 * s->pad - s->k) / s->stride + 1};
    return windows;
}

/* The windows as rows, so that the convolution is a linear layer.
 * cols [B*Hg*Wg, C*k*k] real, columns ordered (channel, row, column) as a [M,C,k,k] weight;  x as shape says. */
void unfold_forward(real *cols, const real *x, const Unfold *shape, int B);
/* dx (=) the sum of what its copies in dcols got. */
void unfold_backward(real *dx, const real *dcols, const Unfold *shape, int B);

#ifdef __cplusplus
}
#endif

#endif
