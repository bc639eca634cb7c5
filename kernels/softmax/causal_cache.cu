/* One step of causal attention with a cache of keys and values; kernels/softmax/causal_attention.h has the layout.  A
 * block writes k and v of one sequence's head and reads the keys: each warp has a running softmax over every fourth of
 * them, and the warps' states are combined in order.  The kernel is limited by the memory bandwidth of the cache. */
#include "kernels/softmax/softmax_tiles.cuh"
#include "kernels/softmax/causal_attention.h"

DEVICE void write_token(const CausalCache &cache, size_t first, const real *k, const real *v, int h, int i,
                        const CausalPattern &p, const CausalShape &s) {
    int rows[2], count = causal_cache_slots(rows, &p, h, i, s.N);
    for (int n = 0; n < count; n++) {
        real *to_k = cache.k + (first + rows[n]) * s.Dk, *to_v = cache.v + (first + rows[n]) * s.Dv;
        for (int c = (int)threadIdx.x; c < s.Dk; c += THREADS) to_k[c] = k[c];
        for (int c = (int)threadIdx.x; c < s.Dv; c += THREADS) to_v[c] = v[c];
    }
}

/* The running softmax of a warp over columns first.. of the values. */
struct WarpState {
    float m, l, sum[LANE_COLUMNS];
};

DEVICE void take_key(WarpState &state, const real *q, const real *k, const real *v, int first, const CausalShape &s) {
    float score = warp_dot(q, k, s.Dk) / sqrtf((float)s.Dk), m = fmaxf(state.m, score);
    float shrink = fast_exp2(LOG2_E * (state.m - m)), p = fast_exp2(LOG2_E * (score - m));
    state.m = m;
    state.l = state.l * shrink + p;
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; c++) state.sum[c] *= shrink;
    add_row(state.sum, p, v, first, s.Dv);
}

__global__ void __launch_bounds__(THREADS)
    causal_step_kernel(real *y, CausalCache cache, CausalInputs in, CausalPattern p, CausalShape s, int i) {
    SHARED(float, shared); /* [WARPS][m, l], [WARPS][STRETCH] */
    float *sums = shared + 2 * WARPS;
    int b = (int)blockIdx.x / s.H, h = (int)blockIdx.x % s.H;
    size_t first_row = b * causal_cache_first(&p, s.H, s.N) + causal_cache_first(&p, h, s.N);
    const real *q = in.q + (size_t)b * s.q_row + h * s.Dk, *k = in.k + (size_t)b * s.k_row + h * s.Dk;
    const real *v = in.v + (size_t)b * s.v_row + h * s.Dv;
    write_token(cache, first_row, k, v, h, i, p, s);
    block_sync();
    CausalRows runs[2];
    int count = causal_cache_runs(runs, &p, h, i, s.N);
    for (int first = 0; first < s.Dv; first += STRETCH) {
        WarpState state = {-INFINITY, 0, {}};
        if (warp_id() == 0 && causal_reads_own(&p, h, i)) take_key(state, q, k, v, first, s);
        for (int n = 0; n < count; n++)
            for (int j = warp_id(); j < runs[n].count; j += WARPS) {
                size_t row = first_row + runs[n].first + j;
                take_key(state, q, cache.k + row * s.Dk, cache.v + row * s.Dv, first, s);
            }
        if (lane_id() == 0) {
            shared[2 * warp_id()] = state.m;
            shared[2 * warp_id() + 1] = state.l;
        }
#pragma unroll
        for (int c = 0; c < LANE_COLUMNS; c++) sums[warp_id() * STRETCH + c * WARP + lane_id()] = state.sum[c];
        block_sync();
        float m = -INFINITY, l = 0;
        for (int w = 0; w < WARPS; w++) m = fmaxf(m, shared[2 * w]);
        for (int w = 0; w < WARPS; w++) l += shared[2 * w + 1] * fast_exp2(LOG2_E * (shared[2 * w] - m));
        for (int c = (int)threadIdx.x; c < STRETCH && first + c < s.Dv; c += THREADS) {
            float sum = 0;
            for (int w = 0; w < WARPS; w++) sum += sums[w * STRETCH + c] * fast_exp2(LOG2_E * (shared[2 * w] - m));
            y[((size_t)b * s.H + h) * s.Dv + first + c] = to_real(sum / l);
        }
        block_sync();
    }
}

void causal_attention_step(real *y, const CausalCache *cache, const CausalInputs *in, const CausalPattern *pattern,
                           const CausalShape *shape, int i) {
    size_t bytes = (2 * WARPS + WARPS * STRETCH) * sizeof(float);
    LAUNCH(causal_step_kernel, (unsigned)(shape->B * shape->H), THREADS, bytes, y, *cache, *in, *pattern, *shape, i);
}

/* One block for each token; tokens that a later one replaces in a ring, or in a block, are not written. */
__global__ void __launch_bounds__(THREADS)
    causal_cache_fill_kernel(CausalCache cache, CausalInputs in, CausalPattern p, CausalShape s, int count) {
    int i = (int)(blockIdx.x % count), h = (int)(blockIdx.x / count % s.H), b = (int)(blockIdx.x / count / s.H);
    size_t first = b * causal_cache_first(&p, s.H, s.N) + causal_cache_first(&p, h, s.N), row = (size_t)b * count + i;
    const real *k = in.k + row * s.k_row + h * s.Dk, *v = in.v + row * s.v_row + h * s.Dv;
    int rows[2], slots = causal_cache_slots(rows, &p, h, i, s.N);
    CausalSet set = causal_set(&p, h);
    bool in_blocks = set == CAUSAL_BLOCK || set == CAUSAL_FIXED;
    int ring = set == CAUSAL_WINDOW ? causal_cache_rows(&p, h, s.N) : p.stride;
    for (int n = 0; n < slots; n++) {
        bool turning = set == CAUSAL_STRIDED ? n == 1 : n == 0 && (set == CAUSAL_WINDOW || in_blocks);
        if (turning && i + ring < count) continue;
        real *to_k = cache.k + (first + rows[n]) * s.Dk, *to_v = cache.v + (first + rows[n]) * s.Dv;
        for (int c = (int)threadIdx.x; c < s.Dk; c += THREADS) to_k[c] = k[c];
        for (int c = (int)threadIdx.x; c < s.Dv; c += THREADS) to_v[c] = v[c];
    }
}

void causal_cache_fill(const CausalCache *cache, const CausalInputs *in, const CausalPattern *pattern,
                       const CausalShape *shape, int count) {
    LAUNCH(causal_cache_fill_kernel, (unsigned)((size_t)shape->B * shape->H * count), THREADS, 0, *cache, *in, *pattern,
           *shape, count);
}
