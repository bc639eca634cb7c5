/* Layer norm of each head separately; the formulas are in kernels/norm/heads_norm.c.  Eight lanes share a head, since
 * it is used with heads of 16 channels.  Weight gradients: each block sums its heads in shared memory, in a fixed
 * order, and a second kernel adds the sums of the blocks. */
#include "kernels/cuda/rows.cuh"
#include "kernels/norm/norms.h"

enum { THREADS = 256, LANES = 8, HEADS = THREADS / LANES, PARTS = 512 };

DEVICE float lanes_sum(float x) {
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2) x += warp_shuffle_xor(x, mask);
    return x;
}

struct Statistics {
    float mean, rstd;
};

DEVICE Statistics statistics(const real *x, int lane, int D, float eps) {
    float sum = 0, squares = 0;
    for (int c = lane; c < D; c += LANES) sum += to_float(x[c]);
    float mean = lanes_sum(sum) / D;
    for (int c = lane; c < D; c += LANES) squares += (to_float(x[c]) - mean) * (to_float(x[c]) - mean);
    return {mean, 1 / sqrtf(lanes_sum(squares) / D + eps)};
}

/* The offset of head i. */
DEVICE size_t head_at(size_t i, int row, int H, int D) { return quotient(i, H) * row + (i - quotient(i, H) * H) * D; }

/* Lanes beyond the last head compute that head again and write nothing. */
__global__ void __launch_bounds__(THREADS)
    heads_norm_forward_kernel(real *y, const real *x, const float *__restrict__ w, const float *__restrict__ b,
                              size_t all, int row, int H, int D, float eps) {
    size_t i = (size_t)blockIdx.x * HEADS + threadIdx.x / LANES, at = head_at(i < all ? i : all - 1, row, H, D);
    int lane = threadIdx.x % LANES;
    Statistics s = statistics(x + at, lane, D, eps);
    if (i >= all) return;
    for (int c = lane; c < D; c += LANES)
        y[at + c] = to_real(w[c] * (to_float(x[at + c]) - s.mean) * s.rstd + (b ? b[c] : 0));
}

/* parts [gridDim.x,2,D]: the share of each block's heads in dw and db.  dx may be dy, so both are read before it is
 * written. */
__global__ void __launch_bounds__(THREADS)
    heads_norm_backward_kernel(real *dx, float *parts, const real *dy, const real *x, const float *__restrict__ w,
                               size_t all, int row, int H, int D, float eps) {
    SHARED(float, sums);              /* [2,D] */
    float *own = sums + 2 * D;        /* [2,HEADS,D]: dy xh and dy of the current heads */
    int slot = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    for (int c = threadIdx.x; c < 2 * D; c += THREADS) sums[c] = 0;
    for (size_t first = (size_t)blockIdx.x * HEADS; first < all; first += (size_t)gridDim.x * HEADS) {
        size_t i = first + slot, at = head_at(i < all ? i : all - 1, row, H, D);
        Statistics s = statistics(x + at, lane, D, eps);
        float sum = 0, along = 0;
        for (int c = lane; c < D; c += LANES) {
            float d = to_float(dy[at + c]), xh = (to_float(x[at + c]) - s.mean) * s.rstd;
            sum += w[c] * d;
            along += w[c] * d * xh;
            own[slot * D + c] = i < all ? d * xh : 0;
            own[(HEADS + slot) * D + c] = i < all ? d : 0;
        }
        sum = lanes_sum(sum) / D;
        along = lanes_sum(along) / D;
        block_sync();
        for (int c = threadIdx.x; c < 2 * D; c += THREADS) {
            float total = 0;
            for (int h = 0; h < HEADS; h++) total += own[(c / D * HEADS + h) * D + c % D];
            sums[c] += total;
        }
        for (int c = lane; c < D && i < all; c += LANES) {
            float xh = (to_float(x[at + c]) - s.mean) * s.rstd;
            dx[at + c] = to_real(s.rstd * (w[c] * to_float(dy[at + c]) - sum - xh * along));
        }
        block_sync();
    }
    for (int c = threadIdx.x; c < 2 * D; c += THREADS) parts[(size_t)blockIdx.x * 2 * D + c] = sums[c];
}

__global__ void __launch_bounds__(THREADS)
    heads_norm_join_kernel(float *dw, float *db, const float *__restrict__ parts, int count, int D) {
    for (int c = threadIdx.x; c < 2 * D; c += THREADS) {
        float sum = 0;
        for (int p = 0; p < count; p++) sum += parts[(size_t)p * 2 * D + c];
        if (c < D) dw[c] += sum;
        else if (db) db[c - D] += sum;
    }
}

size_t heads_norm_workspace(int D) { return (size_t)PARTS * 2 * D * sizeof(float); }

void heads_norm_forward(real *y, const real *x, const float *w, const float *b, const HeadsNorm *s) {
    size_t all = s->n * s->H;
    LAUNCH(heads_norm_forward_kernel, (unsigned)ceil_div(all, HEADS), THREADS, 0, y, x, w, b, all, s->row, s->H, s->D,
           s->eps);
}

void heads_norm_backward(real *dx, float *dw, float *db, const real *dy, const real *x, const float *w,
                         const HeadsNorm *s) {
    int D = s->D;
    size_t all = s->n * s->H;
    float *parts = static_cast<float *>(kernels_workspace(heads_norm_workspace(D)));
    unsigned blocks = blocks_for(all, HEADS, PARTS);
    LAUNCH(heads_norm_backward_kernel, blocks, THREADS, (size_t)(2 + 2 * HEADS) * D * sizeof(float), dx, parts, dy, x,
           w, all, s->row, s->H, D, s->eps);
    LAUNCH(heads_norm_join_kernel, 1, THREADS, 0, dw, db, parts, (int)blocks, D);
}
