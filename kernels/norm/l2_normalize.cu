/* Scales every head of q and k, and optionally of v, to unit norm; the formulas are in kernels/norm/l2_normalize.c.
 * Eight lanes of a warp share a row, since LiSA's heads have 16 channels. */
#include "kernels/cuda/rows.cuh"
#include "kernels/norm/l2_normalize.h"

enum { THREADS = 256, LANES = 8 };

static const float LARGEST = 1e6f;

DEVICE float lanes_sum(float x) {
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2) x += warp_shuffle_xor(x, mask);
    return x;
}

/* Row i of a token's `heads` rows, those of all parts, in qkv, where a token has M3 numbers. */
DEVICE size_t row_in_qkv(size_t i, int heads, int M3, int D) { return i / heads * M3 + i % heads * D; }

/* Lanes beyond the last row compute that row again and write nothing. */
__global__ void __launch_bounds__(THREADS)
    l2_normalize_forward_kernel(real *unit, float *inverse, const real *qkv, size_t rows, int heads, int M3, int D) {
    size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) / LANES, i = at < rows ? at : rows - 1;
    int lane = threadIdx.x % LANES;
    const real *x = qkv + row_in_qkv(i, heads, M3, D);
    float squares = 0;
    for (int c = lane; c < D; c += LANES) squares += to_float(x[c]) * to_float(x[c]);
    float r = 1 / sqrtf(lanes_sum(squares));
    if (r > LARGEST) r = LARGEST;
    if (at >= rows) return;
    if (lane == 0) inverse[i] = r;
    for (int c = lane; c < D; c += LANES) unit[i * D + c] = to_real(r * to_float(x[c]));
}

__global__ void __launch_bounds__(THREADS)
    l2_normalize_backward_kernel(real *dqkv, const real *dunit, const real *unit, const float *inverse, size_t rows,
                                 int heads, int M3, int D) {
    size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) / LANES, i = at < rows ? at : rows - 1;
    int lane = threadIdx.x % LANES;
    const real *d = dunit + i * D, *x = unit + i * D;
    float r = inverse[i], dot = 0;
    for (int c = lane; c < D; c += LANES) dot += to_float(d[c]) * to_float(x[c]);
    dot = lanes_sum(dot);
    if (r >= LARGEST) dot = 0;
    if (at >= rows) return;
    real *dx = dqkv + row_in_qkv(i, heads, M3, D);
    for (int c = lane; c < D; c += LANES) dx[c] = to_real(r * (to_float(d[c]) - dot * to_float(x[c])));
}

static unsigned blocks_of(size_t rows) { return (unsigned)ceil_div(rows, THREADS / LANES); }

void l2_normalize_forward(real *unit, float *inverse, const real *qkv, const UnitLengths *s) {
    int heads = s->parts * s->H;
    size_t rows = s->n * heads;
    LAUNCH(l2_normalize_forward_kernel, blocks_of(rows), THREADS, 0, unit, inverse, qkv, rows, heads, 3 * s->H * s->D,
           s->D);
}

void l2_normalize_backward(real *dqkv, const real *dunit, const real *unit, const float *inverse,
                           const UnitLengths *s) {
    int heads = s->parts * s->H;
    size_t rows = s->n * heads;
    LAUNCH(l2_normalize_backward_kernel, blocks_of(rows), THREADS, 0, dqkv, dunit, unit, inverse, rows, heads,
           3 * s->H * s->D, s->D);
}
