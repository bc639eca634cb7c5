/* Shared by the two kinds of stochastic positional codes: q' = q C and its gradients.  The codes of a head are computed
 * for a few tokens at a time, used for all images and discarded. */
#ifndef VIT_KERNELS_LINEAR_ATTENTION_SPE_H
#define VIT_KERNELS_LINEAR_ATTENTION_SPE_H

#include <math.h>
#include <stdbool.h>

#include "core/integers.h"
#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"

/* The codes of BLOCK tokens are in memory at a time; a thread processes CHUNK tokens of a head before it takes
 * others. */
enum { SPE_BLOCK = 16, SPE_CHUNK = 64, SPE_IMAGES = 32 };

typedef struct {
    int B, N, H, D, K, Dp, Kp; /* Dp, Kp rounded up to whole vectors */
    int chunks;                /* of a head's tokens */
    float scale;               /* D^-1/2 */
} SpeSizes;

static inline SpeSizes spe_sizes(int B, int N, int H, int D, int K) {
    return (SpeSizes){B, N, H, D, K, tile_round_up(D), tile_round_up(K), (N + SPE_CHUNK - 1) / SPE_CHUNK,
                      1 / sqrtf((float)D)};
}

/* A whole tile may be read beyond the last code. */
typedef struct {
    float *code, *dcode; /* [BLOCK,D,Dp] */
    float *transposed;   /* [Dp,Dp]: one code transposed */
    float *rows;         /* [IMAGES,Dp]: copies of q, or dq */
    float *images;       /* [IMAGES,Dp]: rows of q' or dq' */
} SpeBlock;

static inline size_t spe_block_floats(SpeSizes s) {
    return (2 * (size_t)SPE_BLOCK * s.D + 2 * TILE + s.Dp + 2 * SPE_IMAGES) * s.Dp;
}

static inline SpeBlock spe_block_take(float **next, SpeSizes s) {
    SpeBlock w;
    w.code = workspace_take(next, ((size_t)SPE_BLOCK * s.D + TILE) * s.Dp);
    w.dcode = workspace_take(next, ((size_t)SPE_BLOCK * s.D + TILE) * s.Dp);
    w.transposed = workspace_take(next, (size_t)s.Dp * s.Dp);
    w.rows = workspace_take(next, (size_t)SPE_IMAGES * s.Dp);
    w.images = workspace_take(next, (size_t)SPE_IMAGES * s.Dp);
    return w;
}

/* q (part 0) or k (part 1) of image b, token n, head h in [B,N,3,H,D]. */
static inline size_t spe_at(SpeSizes s, int b, int n, int part, int h) {
    return ((((size_t)b * s.N + n) * 3 + part) * s.H + h) * s.D;
}

/* Prefetches the rows of one token in all images, which are too far apart for the hardware prefetcher. */
TILE_INLINE void spe_prefetch(const real *x, size_t image, int images, int D, bool write) {
    for (int b = 0; b < images; b++)
        for (int j = 0; j < D; j += TILE) {
            if (write) __builtin_prefetch(x + b * image + j, 1);
            else __builtin_prefetch(x + b * image + j, 0);
        }
}

enum { SPE_AHEAD = 2 }; /* tokens from prefetching to reading */

/* q' of every image for tokens first .. first+rows-1. */
static inline void spe_apply(real *coded, const real *qkv, const SpeBlock *w, SpeSizes s, int part, int h, int first,
                             int rows) {
    size_t image = spe_at(s, 1, 0, 0, 0);
    for (int t = 0; t < rows; t++)
        for (int b = 0; b < s.B; b += SPE_IMAGES) {
            int images = smaller(SPE_IMAGES, s.B - b);
            size_t at = spe_at(s, b, first + t, part, h);
            if (t + SPE_AHEAD < rows) {
                size_t next = spe_at(s, b, first + t + SPE_AHEAD, part, h);
                spe_prefetch(qkv + next, image, images, s.D, false);
                spe_prefetch(coded + next, image, images, s.D, true);
            }
            FloatRows q = reals_as_floats(w->rows, s.Dp, qkv + at, image, images, s.D);
            tile_gemm(w->images, s.Dp, q.at, q.row, 1, w->code + (size_t)t * s.D * s.Dp, s.Dp, images, s.Dp, s.D, 0);
            rows_scatter(coded + at, image, w->images, s.Dp, 1, images, s.D);
        }
}

/* dC = sum over images of q^T dq', dq = dq' C^T. */
static inline void spe_apply_backward(real *dqkv, const real *dcoded, const real *qkv, const SpeBlock *w, SpeSizes s,
                                      int part, int h, int first, int rows) {
    size_t image = spe_at(s, 1, 0, 0, 0);
    for (int t = 0; t < rows; t++) {
        const float *code = w->code + (size_t)t * s.D * s.Dp;
        tiles_transpose(w->transposed, s.Dp, code, s.Dp, s.Dp, s.Dp);
        for (int b = 0; b < s.B; b += SPE_IMAGES) {
            int images = smaller(SPE_IMAGES, s.B - b);
            size_t at = spe_at(s, b, first + t, part, h);
            if (t + SPE_AHEAD < rows) {
                size_t next = spe_at(s, b, first + t + SPE_AHEAD, part, h);
                spe_prefetch(qkv + next, image, images, s.D, false);
                spe_prefetch(dcoded + next, image, images, s.D, false);
                spe_prefetch(dqkv + next, image, images, s.D, true);
            }
            rows_gather(w->images, s.Dp, dcoded + at, image, 1, images, s.D);
            FloatRows q = reals_as_floats(w->rows, s.Dp, qkv + at, image, images, s.D);
            tile_gemm(w->dcode + (size_t)t * s.D * s.Dp, s.Dp, q.at, 1, q.row, w->images, s.Dp, s.D, s.Dp, images,
                      b > 0);
            tile_gemm(w->rows, s.Dp, w->images, s.Dp, 1, w->transposed, s.Dp, images, s.Dp, s.D, 0);
            rows_scatter(dqkv + at, image, w->rows, s.Dp, 1, images, s.D);
        }
    }
}

static inline float spe_sigmoid(float x) { return x < 0 ? expf(x) / (1 + expf(x)) : 1 / (1 + expf(-x)); }

/* d += the threads' sums [n], in the order of threads; they are at `offset` floats in the slices. */
static inline void spe_reduce(float *d, size_t n, size_t offset, size_t floats) {
    int threads = omp_get_num_threads();
#pragma omp for schedule(static)
    for (size_t i = 0; i < n; i++) {
        float sum = 0;
        for (int t = 0; t < threads; t++) sum += workspace_of(t, floats)[offset + i];
        d[i] += sum;
    }
}

#endif
