/* Focused features; kernels/linear_attention/focused.c has the formulas.  A block processes one token at a time, and
 * each thread every THREADS-th channel; u and t / u stay in shared memory between the passes over them. */
#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/linear_attention/operator_features.h"

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

/* A thread's own channels of u and t / u; the norms are the same for all threads.  NaN is passed on. */
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

static inline __host__ __device__ size_t tokens_of(FocusedRows rows) { return (size_t)rows.B * rows.N; }

DEVICE const float *place_of(const float *pos, size_t i, FocusedRows rows) {
    return pos ? pos + i % rows.N * rows.M : NULL;
}

/* Keys are divided by their number. */
DEVICE float share_of(const float *pos, FocusedRows rows) { return pos ? 1.0f / rows.N : 1; }

__global__ void __launch_bounds__(THREADS)
    focused_forward_kernel(real *phi, const real *__restrict__ x, const float *__restrict__ pos,
                           const float *__restrict__ scale, FocusedRows rows, int p) {
    SHARED(float, scratch); /* [WARPS], then [M] each */
    int M = rows.M;
    float *inverse = scratch + WARPS, *u = inverse + M, *power = u + M, share = share_of(pos, rows);
    inverse_scales(inverse, scale, M);
    for (size_t i = blockIdx.x; i < tokens_of(rows); i += gridDim.x) {
        real *to = phi + i * rows.phi_row;
        Norms n = focus(u, power, x + i * rows.x_row, place_of(pos, i, rows), inverse, M, p, scratch);
        float factor = share * n.norm / n.power_norm;
        for (int m = (int)threadIdx.x; m < M; m += THREADS) to[m] = to_real(factor * u[m] * power[m]);
    }
}

/* parts [gridDim.x,M]: each block's share of sum du u. */
__global__ void __launch_bounds__(THREADS)
    focused_backward_kernel(real *dx, float *parts, const real *__restrict__ dphi, const real *__restrict__ x,
                            const float *__restrict__ pos, const float *__restrict__ scale, FocusedRows rows, int p) {
    SHARED(float, scratch); /* [WARPS], then [M] each */
    int M = rows.M;
    float *inverse = scratch + WARPS, *u = inverse + M, *power = u + M, *sum = power + M, share = share_of(pos, rows);
    inverse_scales(inverse, scale, M);
    for (int m = (int)threadIdx.x; m < M; m += THREADS) sum[m] = 0;
    for (size_t i = blockIdx.x; i < tokens_of(rows); i += gridDim.x) {
        size_t at = i * rows.x_row, from = i * rows.phi_row;
        const float *place = place_of(pos, i, rows);
        float dot = 0;
        Norms n = focus(u, power, x + at, place, inverse, M, p, scratch);
        for (int m = (int)threadIdx.x; m < M; m += THREADS) dot += to_float(dphi[from + m]) * u[m] * power[m];
        float s = share * block_sum(dot, scratch) / n.power_norm, across = p * n.norm / n.power_norm;
        for (int m = (int)threadIdx.x; m < M; m += THREADS) {
            float g = share * to_float(dphi[from + m]) - s / n.power_norm * u[m] * power[m];
            float du = s / n.norm * u[m] + across * g * power[m];
            sum[m] += du * u[m];
            dx[at + m] = to_real(token_part(x + at, place, m) > 0 ? du * inverse[m] : 0);
        }
    }
    for (int m = (int)threadIdx.x; m < M; m += THREADS) parts[(size_t)blockIdx.x * M + m] = sum[m];
}

/* Computes dscale from the parts, with one warp for each channel. */
__global__ void __launch_bounds__(THREADS) focused_scale_kernel(float *dscale, const float *__restrict__ parts,
                                                                const float *__restrict__ scale, int count, int M) {
    int m = (int)blockIdx.x * WARPS + warp_id();
    if (m >= M) return;
    float sum = 0;
    for (int i = lane_id(); i < count; i += WARP) sum += parts[(size_t)i * M + m];
    sum = warp_sum(sum);
    if (lane_id() == 0) dscale[m] -= sum / (softplus(scale[m]) * (1 + expf(-scale[m])));
}

/* dpos: the gradients of the keys, summed over all images. */
__global__ void __launch_bounds__(THREADS)
    focused_position_kernel(float *dpos, const real *__restrict__ dx, FocusedRows rows) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, n = quotient(i, rows.M), m = i - n * rows.M;
    if (i >= (size_t)rows.N * rows.M) return;
    float sum = 0;
    for (int b = 0; b < rows.B; b++) sum += to_float(dx[((size_t)b * rows.N + n) * rows.x_row + m]);
    dpos[i] += sum;
}

size_t focused_features_workspace(int M) { return (size_t)PARTS * M * sizeof(float); }

static size_t shared_bytes(int M, int rows) { return (WARPS + (size_t)rows * M) * sizeof(float); }

void focused_features_forward(real *phi, const real *x, const float *pos, const float *scale, int p,
                              const FocusedRows *rows) {
    LAUNCH(focused_forward_kernel, blocks_for(tokens_of(*rows), 1, (size_t)1 << 16), THREADS, shared_bytes(rows->M, 3),
           phi, x, pos, scale, *rows, p);
}

void focused_features_backward(real *dx, float *dpos, float *dscale, const real *dphi, const real *x, const float *pos,
                               const float *scale, int p, const FocusedRows *rows) {
    int M = rows->M;
    unsigned blocks = blocks_for(tokens_of(*rows), 1, PARTS);
    float *parts = static_cast<float *>(kernels_workspace(focused_features_workspace(M)));
    LAUNCH(focused_backward_kernel, blocks, THREADS, shared_bytes(M, 4), dx, parts, dphi, x, pos, scale, *rows, p);
    LAUNCH(focused_scale_kernel, (unsigned)ceil_div(M, WARPS), THREADS, 0, dscale, parts, scale, (int)blocks, M);
    if (pos)
        LAUNCH(focused_position_kernel, (unsigned)ceil_div((size_t)rows->N * M, THREADS), THREADS, 0, dpos, dx, *rows);
}
