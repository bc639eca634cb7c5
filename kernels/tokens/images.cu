/* Random erasing, mixup and cutmix of normalised images.  Every multiply-add is an explicit fmaf, so that all devices
 * round in the same way. */
#include "core/rng.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/tokens/images.h"

enum { THREADS = 256 };

struct Source {
    const uint8_t *x;
    const int *boxes;
    const uint32_t *draws;
    float scale[3], shift[3];
    ImageMix mix;
    size_t pixels;
    int Wi;
};

DEVICE bool inside(const int *box, int row, int column) {
    return row >= box[0] && row < box[2] && column >= box[1] && column < box[3];
}

/* W pixels from `i` on of image `row`, normalised and erased. */
template <int W>
DEVICE void load_erased(float (&v)[3][W], const Source &s, int row, size_t i) {
    const uint8_t *image = s.x + (size_t)row * 3 * s.pixels;
    alignas(W) uint8_t in[3 * W];
#pragma unroll
    for (int k = 0; k < 3; k++) copy<W>(in + k * W, image + 3 * i + k * W);
#pragma unroll
    for (int e = 0; e < W; e++)
#pragma unroll
        for (int k = 0; k < 3; k++) v[k][e] = fmaf(in[3 * e + k], s.scale[k], s.shift[k]);
    if (!s.boxes) return;
#pragma unroll
    for (int e = 0; e < W; e++) {
        int y = (int)quotient(i + e, s.Wi), x = (int)(i + e - (size_t)y * s.Wi);
        if (!inside(s.boxes + 4 * (size_t)row, y, x)) continue;
#pragma unroll
        for (int k = 0; k < 3; k++) {
            size_t number = s.mix.noise == NOISE_PIXEL ? k * s.pixels + i + e : (size_t)k;
            v[k][e] = s.mix.noise == NOISE_CONST
                          ? 0
                          : rng_normal_exact(s.mix.seed, RNG_ERASING_NOISE, s.mix.epoch, s.draws[row], number);
        }
    }
}

template <int W>
__global__ void __launch_bounds__(THREADS)
    images_mix_kernel(real *y, const int *__restrict__ pairs, const Source s, unsigned tiles) {
    size_t b = blockIdx.x / tiles, i = ((size_t)(blockIdx.x % tiles) * THREADS + threadIdx.x) * W;
    if (i >= s.pixels) return;
    const int *box = s.mix.box;
    bool cut = box[0] < box[2] && box[1] < box[3];
    float own[3][W], other[3][W], lam = s.mix.lam, rest = 1 - lam;
    load_erased<W>(own, s, pairs[2 * b], i);
    if (cut || lam < 1) load_erased<W>(other, s, pairs[2 * b + 1], i);
#pragma unroll
    for (int e = 0; e < W; e++) {
        int row = (int)quotient(i + e, s.Wi), column = (int)(i + e - (size_t)row * s.Wi);
        bool swap = cut && inside(box, row, column);
#pragma unroll
        for (int k = 0; k < 3; k++) {
            if (swap) own[k][e] = other[k][e];
            else if (!cut && lam < 1) own[k][e] = fmaf(lam, own[k][e], rest * other[k][e]);
        }
    }
#pragma unroll
    for (int k = 0; k < 3; k++) store(y + (b * 3 + k) * s.pixels + i, own[k]);
}

void images_mix(real *y, const uint8_t *x, const int *pairs, const int *boxes, const uint32_t *draws, const float *mean,
                const float *std, const ImageMix *mix, const ImageShape *shape) {
    int B = shape->B, Hi = shape->Hi, Wi = shape->Wi;
    Source s = {x, boxes, draws, {}, {}, *mix, (size_t)Hi * Wi, Wi};
    for (int k = 0; k < 3; k++) {
        s.scale[k] = 1 / (255 * std[k]);
        s.shift[k] = -mean[k] / std[k];
    }
    bool wide = is_wide(s.pixels, y, x);
    unsigned tiles = (unsigned)ceil_div(s.pixels, wide ? THREADS * WIDE : THREADS), blocks = (unsigned)B * tiles;
    if (wide) LAUNCH((images_mix_kernel<WIDE>), blocks, THREADS, 0, y, pairs, s, tiles);
    else LAUNCH((images_mix_kernel<1>), blocks, THREADS, 0, y, pairs, s, tiles);
}
