/* Common to the two kinds of stochastic positional encoding.  The codes of a range of tokens are computed in workspace,
 * code [2][tokens][H,D,D], followed in backward by their gradients.  All images share them, so a block applies one
 * token's code of one head to all images.  The formulas are in kernels/cpu/spe_*.c. */
#ifndef VIT_KERNELS_CUDA_SPE_CUH
#define VIT_KERNELS_CUDA_SPE_CUH

#include <math.h>

#include "kernels/cuda/plain.cuh"

enum { SPE_THREADS = 128, SPE_WARPS = SPE_THREADS / WARP, SPE_BLOCK = 16 /* tokens */ };

typedef struct {
    int B, N, H, D, K;
    int first, tokens; /* of this stretch */
    int tile, copied;  /* images in a tile; floats of a code in shared memory, or 0 */
    float scale;       /* D^-1/2 */
} SpeShape;

static inline size_t spe_token_floats(int H, int D) { return (size_t)2 * H * D * D; }

/* Tokens of a stretch: as many as have codes and gradients in 64 MB, but at least one block. */
static inline int spe_stretch(int N, int H, int D) {
    size_t fit = ((size_t)1 << 23) / spe_token_floats(H, D) / SPE_BLOCK * SPE_BLOCK;
    if (fit < SPE_BLOCK) fit = SPE_BLOCK;
    return fit < (size_t)N ? (int)fit : N;
}

static inline size_t spe_workspace(int N, int H, int D) {
    return 2 * spe_stretch(N, H, D) * spe_token_floats(H, D) * sizeof(float);
}

static inline SpeShape spe_shape(int B, int N, int H, int D, int K) {
    return {B, N, H, D, K, 0, 0, plain_rows(2 * D), plain_weights((size_t)D * D), 1 / sqrtf((float)D)};
}

DEVICE float spe_sigmoid(float x) { return x < 0 ? expf(x) / (1 + expf(x)) : 1 / (1 + expf(-x)); }

/* Row d of the code of one token in the stretch. */
DEVICE size_t spe_code_at(const SpeShape &s, int part, int token, int h, int d) {
    return ((((size_t)part * s.tokens + token) * s.H + h) * s.D + d) * s.D;
}

/* This block's head, part and token, and their offset in qkv for image 0. */
typedef struct {
    int h, part, token;
    size_t row, image;
} SpePlace;

DEVICE SpePlace spe_place(const SpeShape &s) {
    SpePlace at = {};
    at.h = (int)(blockIdx.x % s.H);
    at.part = (int)(blockIdx.x / s.H % 2);
    at.token = (int)(blockIdx.x / s.H / 2);
    at.image = (size_t)s.N * 3 * s.H * s.D;
    at.row = (((size_t)(s.first + at.token) * 3 + at.part) * s.H + at.h) * s.D;
    return at;
}

/* q' = q C for all images. */
template <int THREADS>
__global__ void __launch_bounds__(THREADS)
    spe_apply_kernel(real *coded, const real *qkv, const float *code, SpeShape s) {
    SHARED(float, copy); /* [D,D] */
    float *z = copy + s.copied; /* [tile,D] */
    SpePlace at = spe_place(s);
    code += spe_code_at(s, at.part, at.token, at.h, 0);
    if (s.copied) {
        plain_copy(copy, code, s.D, s.D, false);
        code = copy;
    }
    for (int first = 0; first < s.B; first += s.tile) {
        int rows = s.B - first < s.tile ? s.B - first : s.tile;
        block_sync();
        plain_load(z, rows, s.D, [=](int i) { return qkv + at.row + (first + i) * at.image; });
        block_sync();
        for (int i = (int)threadIdx.x; i < rows * s.D; i += THREADS) {
            const float *q = z + i / s.D * s.D;
            int r = i % s.D;
            float sum = 0;
            for (int d = 0; d < s.D; d++) sum += q[d] * code[(size_t)d * s.D + r];
            coded[at.row + (first + i / s.D) * at.image + r] = to_real(sum);
        }
    }
}

/* dq = dq' C^T, dC = sum over images of q^T dq'. */
template <int THREADS>
__global__ void __launch_bounds__(THREADS)
    spe_apply_backward_kernel(real *dqkv, float *dcode, const real *dcoded, const real *qkv, const float *code,
                              SpeShape s) {
    SHARED(float, copy); /* [D,D] transposed */
    float *z = copy + s.copied, *dz = z + s.tile * s.D; /* [tile,D]: q, dq' */
    SpePlace at = spe_place(s);
    code += spe_code_at(s, at.part, at.token, at.h, 0);
    dcode += spe_code_at(s, at.part, at.token, at.h, 0);
    if (s.copied) plain_copy(copy, code, s.D, s.D, true);
    for (int first = 0; first < s.B; first += s.tile) {
        int rows = s.B - first < s.tile ? s.B - first : s.tile;
        block_sync();
        plain_load(z, rows, s.D, [=](int i) { return qkv + at.row + (first + i) * at.image; });
        plain_load(dz, rows, s.D, [=](int i) { return dcoded + at.row + (first + i) * at.image; });
        block_sync();
        for (int i = (int)threadIdx.x; i < rows * s.D; i += THREADS) {
            const float *slope = dz + i / s.D * s.D;
            int d = i % s.D;
            float sum = 0;
            for (int r = 0; r < s.D; r++)
                sum += slope[r] * (s.copied ? copy[r * s.D + d] : code[(size_t)d * s.D + r]);
            dqkv[at.row + (first + i / s.D) * at.image + d] = to_real(sum);
        }
        for (size_t i = threadIdx.x; i < (size_t)s.D * s.D; i += THREADS) {
            float sum = first ? dcode[i] : 0;
            for (int b = 0; b < rows; b++) sum += z[b * s.D + i / s.D] * dz[b * s.D + i % s.D];
            dcode[i] = sum;
        }
    }
}

static inline void spe_apply(real *coded, const real *qkv, const float *code, SpeShape s) {
    LAUNCH((spe_apply_kernel<SPE_THREADS>), (unsigned)s.tokens * 2 * s.H, SPE_THREADS,
           (s.copied + s.tile * s.D) * sizeof(float), coded, qkv, code, s);
}

static inline void spe_apply_backward(real *dqkv, float *dcode, const real *dcoded, const real *qkv, const float *code,
                                      SpeShape s) {
    LAUNCH((spe_apply_backward_kernel<SPE_THREADS>), (unsigned)s.tokens * 2 * s.H, SPE_THREADS,
           (s.copied + 2 * s.tile * s.D) * sizeof(float), dqkv, dcode, dcoded, qkv, code, s);
}

/* Calls visit(stretch) for all stretches of tokens. */
template <typename Visit>
static void spe_stretches(SpeShape s, Visit visit) {
    int most = spe_stretch(s.N, s.H, s.D);
    for (s.first = 0; s.first < s.N; s.first += most) {
        s.tokens = s.N - s.first < most ? s.N - s.first : most;
        visit(s);
    }
}

/* There is a block of SPE_BLOCK tokens for every head and column; the position of this one among them. */
typedef struct {
    int h, d, first, rows; /* first token within the stretch */
    size_t i;              /* h D + d */
} SpeColumn;

DEVICE SpeColumn spe_column(const SpeShape &s, size_t block) {
    SpeColumn c = {};
    c.i = block % ((size_t)s.H * s.D);
    c.h = (int)(c.i / s.D);
    c.d = (int)(c.i % s.D);
    c.first = (int)(block / ((size_t)s.H * s.D)) * SPE_BLOCK;
    c.rows = s.tokens - c.first < SPE_BLOCK ? s.tokens - c.first : SPE_BLOCK;
    return c;
}

#endif
