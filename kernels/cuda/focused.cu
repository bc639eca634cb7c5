/* Focused features; kernels/cpu/focused.c has the formulas.  A block takes a token at a time, a thread every
 * THREADS'th channel; u and t / u stay in shared memory between the passes over them. */
#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/kernels.h"

enum { THREADS = 128, WARPS = THREADS / WARP, PARTS = 512 };

static const float EPSILON = 1e-6f;

DEVICE float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

DEVICE float power_of(float x, int p) {
    float y = 1;
    for (; p > 0; p >>= 1, x *= x)
        if (p & 1) y *= x;
    return y;
}

DEVICE float block_max(float x, float *scratch) {
    x = warp_max(x);
    if (lane_id() == 0) scratch[warp_id()] = x;
    block_sync();
    for (int w = 0; w < WARPS; w++) x = fmaxf(x, scratch[w]);
    block_sync();
    return x;
}

/* q, or k with its position. */
DEVICE float token_part(const real *z, const float *pos, int m) { return to_float(z[m]) + (pos ? pos[m] : 0); }

struct Norms {
    float norm, power_norm; /* |u|, |t| */
};

/* A thread's own channels of u and t / u; the norms are everyone's.  NaN goes through. */
DEVICE Norms focus(float *u, float *power, const real *z, const float *pos, const float *inverse, int M, int p,
                   float *scratch) {
    float squares = 0, largest = 0, power_squares = 0;
    for (int m = (int)threadIdx.x; m < M; m += THREADS) {
        float x = token_part(z, pos, m);
        x = ((x < 0 ? 0 : x) + EPSILON) * inverse[m];
        u[m] = x;
        squares += x * x;
        largest = fmaxf(largest, x);
    }
    float shrink = 1 / block_max(largest, scratch);
    for (int m = (int)threadIdx.x; m < M; m += THREADS) {
        float x = u[m] * shrink, low = power_of(x, p - 1);
        power[m] = low * shrink;
        power_squares += low * x * low * x;
    }
    Norms n;
    n.norm = sqrtf(block_sum(squares, scratch));
    n.power_norm = sqrtf(block_sum(power_squares, scratch));
    return n;
}

DEVICE void inverse_scales(float *inverse, const float *scale, int M) {
    for (int m = (int)threadIdx.x; m < M; m += THREADS) inverse[m] = 1 / softplus(scale[m]);
}

__global__ void __launch_bounds__(THREADS)
    focused_forward_kernel(real *phi, const real *__restrict__ qkv, const float *__restrict__ pos,
                           const float *__restrict__ scale, size_t tokens, int N, int M, int p) {
    SHARED(float, scratch); /* [WARPS], then [M] each */
    float *inverse = scratch + WARPS, *u = inverse + M, *power = u + M;
    inverse_scales(inverse, scale, M);
    for (size_t row = blockIdx.x; row < 2 * tokens; row += gridDim.x) {
        size_t i = row / 2;
        int part = (int)(row % 2);
        Norms n = focus(u, power, qkv + (3 * i + part) * M, part ? pos + i % N * M : NULL, inverse, M, p, scratch);
        float factor = n.norm / n.power_norm / (part ? N : 1);
        for (int m = (int)threadIdx.x; m < M; m += THREADS) phi[row * M + m] = to_real(factor * u[m] * power[m]);
    }
}

/* parts [gridDim.x,M]: each block's share of sum du u. */
__global__ void __launch_bounds__(THREADS)
    focused_backward_kernel(real *dqkv, float *parts, const real *__restrict__ dphi, const real *__restrict__ qkv,
                            const float *__restrict__ pos, const float *__restrict__ scale, size_t tokens, int N, int M,
                            int p) {
    SHARED(float, scratch); /* [WARPS], then [M] each */
    float *inverse = scratch + WARPS, *u = inverse + M, *power = u + M, *sum = power + M;
    inverse_scales(inverse, scale, M);
    for (int m = (int)threadIdx.x; m < M; m += THREADS) sum[m] = 0;
    for (size_t row = blockIdx.x; row < 2 * tokens; row += gridDim.x) {
        size_t i = row / 2, at = (3 * i + row % 2) * M;
        const float *place = row % 2 ? pos + i % N * M : NULL;
        float share = row % 2 ? 1.0f / N : 1, dot = 0;
        Norms n = focus(u, power, qkv + at, place, inverse, M, p, scratch);
        for (int m = (int)threadIdx.x; m < M; m += THREADS) dot += to_float(dphi[row * M + m]) * u[m] * power[m];
        float s = share * block_sum(dot, scratch) / n.power_norm, across = p * n.norm / n.power_norm;
        for (int m = (int)threadIdx.x; m < M; m += THREADS) {
            float g = share * to_float(dphi[row * M + m]) - s / n.power_norm * u[m] * power[m];
            float du = s / n.norm * u[m] + across * g * power[m];
            sum[m] += du * u[m];
            dqkv[at + m] = to_real(token_part(qkv + at, place, m) > 0 ? du * inverse[m] : 0);
        }
    }
    for (int m = (int)threadIdx.x; m < M; m += THREADS) parts[(size_t)blockIdx.x * M + m] = sum[m];
}

/* dscale from the parts: a warp to a channel. */
__global__ void __launch_bounds__(THREADS) focused_scale_kernel(float *dscale, const float *__restrict__ parts,
                                                                const float *__restrict__ scale, int count, int M) {
    int m = (int)blockIdx.x * WARPS + warp_id();
    if (m >= M) return;
    float sum = 0;
    for (int i = lane_id(); i < count; i += WARP) sum += parts[(size_t)i * M + m];
    sum = warp_sum(sum);
    if (lane_id() == 0) dscale[m] -= sum / (softplus(scale[m]) * (1 + expf(-scale[m])));
}

/* dpos: what the keys of all images got, size = N*M. */
__global__ void __launch_bounds__(THREADS)
    focused_position_kernel(float *dpos, const real *__restrict__ dqkv, int B, size_t size, int M) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, n = quotient(i, M);
    if (i >= size) return;
    float sum = 0;
    for (int b = 0; b < B; b++) sum += to_float(dqkv[3 * (b * size + n * M) + M + (i - n * M)]);
    dpos[i] += sum;
}

size_t focused_features_workspace(int M) { return (size_t)PARTS * M * sizeof(float); }

static size_t shared_bytes(int M, int rows) { return (WARPS + (size_t)rows * M) * sizeof(float); }

void focused_features_forward(real *phi, const real *qkv, const float *pos, const float *scale, int p,
                              const AttentionShape *shape) {
    int B = shape->B, N = shape->N, M = shape->H * shape->D;
    size_t tokens = (size_t)B * N;
    LAUNCH(focused_forward_kernel, blocks_for(2 * tokens, 1, (size_t)1 << 16), THREADS, shared_bytes(M, 3), phi, qkv,
           pos, scale, tokens, N, M, p);
}

void focused_features_backward(real *dqkv, float *dpos, float *dscale, const real *dphi, const real *qkv,
                               const float *pos, const float *scale, int p, const AttentionShape *shape) {
    int B = shape->B, N = shape->N, M = shape->H * shape->D;
    size_t tokens = (size_t)B * N, size = (size_t)N * M;
    unsigned blocks = blocks_for(2 * tokens, 1, PARTS);
    float *parts = static_cast<float *>(kernels_workspace(focused_features_workspace(M)));
    LAUNCH(focused_backward_kernel, blocks, THREADS, shared_bytes(M, 4), dqkv, parts, dphi, qkv, pos, scale, tokens, N,
           M, p);
    LAUNCH(focused_scale_kernel, (unsigned)ceil_div(M, WARPS), THREADS, 0, dscale, parts, scale, (int)blocks, M);
    LAUNCH(focused_position_kernel, (unsigned)ceil_div(size, THREADS), THREADS, 0, dpos, dqkv, B, size, M);
}
