/* Bytes as tokens; kernels/tokens/byte_tokens.c has the formulas.  Every sum has one block: its warps add every eighth
 * row, in order, and then their sums, in order, so that every run has the same bits. */
#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/tokens/byte_tokens.h"

enum { THREADS = 256, WARPS = THREADS / WARP };

/* Position in the sequence of the byte in row p of x, -1 for the start vector. */
DEVICE int source_of(const ByteTables &t, const ByteEmbedding &s, int p) { return s.first + p - (t.start ? 1 : 0); }

__global__ void __launch_bounds__(THREADS)
    byte_embedding_forward_kernel(real *x, const uint8_t *__restrict__ bytes, ByteTables tables, ByteEmbedding s,
                                  size_t n) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= n) return;
    size_t row = quotient(at, s.M), b = quotient(row, s.N);
    int m = (int)(at - row * s.M), i = source_of(tables, s, (int)(row - b * s.N));
    float sum = i < 0 ? tables.start[m] : tables.bytes[(size_t)bytes[b * s.row + i] * s.M + m];
    for (int t = 0; t < BYTE_TABLES && i >= 0; t++)
        if (s.entries[t]) sum += tables.positions[t][(size_t)(i / s.divisor[t] % s.entries[t]) * s.M + m];
    x[at] = to_real(sum);
}

void byte_embedding_forward(real *x, const uint8_t *bytes, const ByteTables *tables, const ByteEmbedding *shape) {
    size_t n = (size_t)shape->B * shape->N * shape->M;
    LAUNCH(byte_embedding_forward_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, x, bytes, *tables, *shape, n);
}

/* Block x sums 32 columns of one entry of table t, or of the bytes' (t = -1), whose last entry is the first vector. */
__global__ void __launch_bounds__(THREADS)
    byte_embedding_backward_kernel(float *to, float *start, const real *__restrict__ dx,
                                   const uint8_t *__restrict__ bytes, ByteTables tables, ByteEmbedding s, int t) {
    SHARED(float, sums); /* [WARPS][WARP] */
    int columns = (s.M + WARP - 1) / WARP, entry = (int)blockIdx.x / columns;
    int m = (int)blockIdx.x % columns * WARP + lane_id();
    float sum = 0;
    for (int b = 0; b < s.B; b++)
        for (int p = warp_id(); p < s.N; p += WARPS) {
            int i = source_of(tables, s, p);
            int of = i < 0 ? s.vocabulary : bytes[(size_t)b * s.row + i];
            if (t >= 0) of = i < 0 ? -1 : i / s.divisor[t] % s.entries[t];
            if (of == entry && m < s.M) sum += to_float(dx[((size_t)b * s.N + p) * s.M + m]);
        }
    sums[threadIdx.x] = sum;
    block_sync();
    if (warp_id() || m >= s.M) return;
    for (int w = 1; w < WARPS; w++) sum += sums[w * WARP + lane_id()];
    if (t < 0 && entry == s.vocabulary) start[m] += sum;
    else to[(size_t)entry * s.M + m] += sum;
}

void byte_embedding_backward(const ByteGradients *d, const real *dx, const uint8_t *bytes, const ByteTables *tables,
                             const ByteEmbedding *shape) {
    unsigned columns = (unsigned)ceil_div(shape->M, WARP);
    for (int t = -1; t < BYTE_TABLES; t++) {
        int entries = t >= 0 ? shape->entries[t] : shape->vocabulary + (tables->start ? 1 : 0);
        if (entries == 0) continue;
        LAUNCH(byte_embedding_backward_kernel, (unsigned)entries * columns, THREADS, THREADS * sizeof(float),
               t < 0 ? d->bytes : d->positions[t], d->start, dx, bytes, *tables, *shape, t);
    }
}

/* == Cross-entropy ================================================================================================ */

/* A warp processes one row in three passes. */
__global__ void __launch_bounds__(THREADS)
    byte_cross_entropy_kernel(float *loss, real *dlogits, const real *logits, const uint8_t *__restrict__ targets,
                              float scale, ByteTargets s) {
    size_t row = (size_t)blockIdx.x * WARPS + warp_id();
    if (row >= (size_t)s.B * s.N) return;
    const real *x = logits + row * s.V;
    int target = targets[row / s.N * s.row + row % s.N];
    float max = -INFINITY, sum = 0, hit = to_float(x[target]);
    for (int c = lane_id(); c < s.V; c += WARP) max = fmaxf(max, to_float(x[c]));
    max = warp_max(max);
    for (int c = lane_id(); c < s.V; c += WARP) sum += expf(to_float(x[c]) - max);
    sum = warp_sum(sum);
    if (lane_id() == 0) loss[row] = logf(sum) - (hit - max);
    if (!dlogits) return;
    real *dx = dlogits + row * s.V;
    float factor = scale / sum;
    for (int c = lane_id(); c < s.V; c += WARP)
        dx[c] = to_real(expf(to_float(x[c]) - max) * factor - (c == target ? scale : 0));
}

void byte_cross_entropy(float *loss, real *dlogits, const real *logits, const uint8_t *targets, float scale,
                        const ByteTargets *shape) {
    size_t rows = (size_t)shape->B * shape->N;
    LAUNCH(byte_cross_entropy_kernel, (unsigned)ceil_div(rows, WARPS), THREADS, 0, loss, dlogits, logits, targets,
           scale, *shape);
}

/* One thread for each sequence, because the contract fixes the order. */
__global__ void __launch_bounds__(WARP)
    byte_loss_sums_kernel(float *sums, const float *loss, int first, ByteTargets s) {
    int b = (int)(blockIdx.x * WARP + threadIdx.x);
    if (b >= s.B) return;
    double sum = 0;
    for (int i = first; i < s.N; i++) sum += loss[(size_t)b * s.N + i];
    sums[b] = (float)sum;
}

void byte_loss_sums(float *sums, const float *loss, int first, const ByteTargets *shape) {
    LAUNCH(byte_loss_sums_kernel, (unsigned)ceil_div(shape->B, WARP), WARP, 0, sums, loss, first, *shape);
}
