/* A linear layer fused with GELU: forward writes a and gelu(a), backward multiplies dy w by gelu'(a) and sums the bias
 * gradients of both layers, that of this layer from the tiles of dy.  cuBLASLt has only the tanh form of GELU, which is
 * another function.  As separate kernels, `a` is read or written two more times forward, and the gradient four more
 * times backward.
 *
 * A block computes 128 x 128 numbers of the product on the matrix units, eight warps 64 x 32 each, while the next 2 x
 * 32 terms of the sum are being copied to shared memory.  This reaches about half of the library's speed on Hopper, so
 * it is faster where the layer is limited by memory bandwidth; wider layers are a product and a separate pass.  A float
 * build uses the library's products, because its own fragments are slow.  VIT_GELU=fused or VIT_GELU=apart in the
 * environment chooses one of the two wherever it is possible. */
#include <stdlib.h>
#include <string.h>

#include "kernels/linear/gelu.cuh"
#include "kernels/cuda/tiles.cuh"
#include "kernels/linear/linear.h"
#include "kernels/linear/elementwise.h"

enum { THREADS = 256, ROWS = 128, COLUMNS = 128, DEPTH = 32, STAGES = 3, WARP_ROWS = 64, WARP_COLUMNS = 32 };
enum { PIECES = COLUMNS / WIDE, ROWS_AT_ONCE = THREADS / PIECES };

/* The largest number of terms of a sum with which the fused kernel is expected to be faster: 2 terms / 450 TFLOP/s
 * compared with 2 terms / 700 TFLOP/s plus the saved bytes, 2 for each number forward and 8 backward, at 3 TB/s. */
enum { FORWARD_TERMS = 512, BACKWARD_TERMS = 1024 };

/* A stage holds rows of x and of w: w's are rows of outputs forward, [COLUMNS,DEPTH], or of terms backward,
 * [DEPTH,COLUMNS]. */
template <bool BACKWARD>
struct Stage {
    static constexpr int W_ROWS = BACKWARD ? DEPTH : COLUMNS, W_COLUMNS = BACKWARD ? COLUMNS : DEPTH;
    static constexpr int X = ROWS * tile_ld(DEPTH), SIZE = X + W_ROWS * tile_ld(W_COLUMNS);
};

/* Starts to copy x and w of terms k.. to a stage. */
template <bool BACKWARD>
DEVICE void fetch(real *stage, const real *x, const real *w, size_t first, int column, int k, size_t n, int terms,
                  int width) {
    using S = Stage<BACKWARD>;
    int rows = n - first < ROWS ? (int)(n - first) : ROWS, thread = (int)threadIdx.x;
    tile_load<ROWS, DEPTH, THREADS>(
        stage, tile_ld(DEPTH), [&](int i) { return x + (first + i) * terms + k; }, rows, terms - k, true, thread);
    if (BACKWARD)
        tile_load<S::W_ROWS, S::W_COLUMNS, THREADS>(
            stage + S::X, tile_ld(S::W_COLUMNS), [&](int i) { return w + (size_t)(k + i) * width + column; },
            terms - k, width - column, true, thread);
    else
        tile_load<S::W_ROWS, S::W_COLUMNS, THREADS>(
            stage + S::X, tile_ld(S::W_COLUMNS), [&](int i) { return w + (size_t)(column + i) * terms + k; },
            width - column, terms - k, true, thread);
}

/* The column sums of a stage's part of x, with zeros beyond x: each warp has four columns. */
DEVICE void stage_sums(float *sums, const real *x, int columns) {
    constexpr int EACH = DEPTH * WARP / THREADS;
    int j = warp_id() * EACH;
    float total[EACH] = {};
#pragma unroll
    for (int i = lane_id(); i < ROWS; i += WARP) {
        float v[EACH];
        load(v, x + i * tile_ld(DEPTH) + j);
#pragma unroll
        for (int e = 0; e < EACH; e++) total[e] += v[e];
    }
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        float sum = warp_sum(total[e]);
        if (lane_id() == 0 && j + e < columns) sums[j + e] = sum;
    }
}

/* x [n,terms];  forward: w [width,terms], y = a and g [n,width] (=), b [width];  backward: w [terms,width], y = da and
 * g [n,width] (=), parts [row tiles,width + terms]: sums of da, then of dy. */
template <bool BACKWARD>
__global__ void __launch_bounds__(THREADS, 2)
    linear_gelu_kernel(real *y, real *g, float *parts, const real *x, const real *w, const float *b, const real *a,
                       size_t n, int terms, int width, unsigned tiles) {
    using S = Stage<BACKWARD>;
    SHARED(real, stages); /* [STAGES][SIZE]; then the product [ROWS,COLUMNS]; then sums [ROWS_AT_ONCE,COLUMNS] of float */
    constexpr int LD_X = tile_ld(DEPTH), LD_W = tile_ld(S::W_COLUMNS), LD = tile_ld(COLUMNS);
    static_assert(ROWS * LD <= STAGES * S::SIZE, "the product fits where the factors were");
    size_t first = (size_t)(blockIdx.x / tiles) * ROWS;
    int column = (int)(blockIdx.x % tiles) * COLUMNS;
    int row = warp_id() % 2 * WARP_ROWS, across = warp_id() / 2 * WARP_COLUMNS;
    FragmentC sum[WARP_ROWS / TILE_M][WARP_COLUMNS / TILE_N];
#pragma unroll
    for (int r = 0; r < WARP_ROWS / TILE_M; r++)
#pragma unroll
        for (int c = 0; c < WARP_COLUMNS / TILE_N; c++) fragment_zero(sum[r][c]);

    auto fetch_stage = [&](int k) {
        real *stage = stages + k / DEPTH % STAGES * S::SIZE;
        if (k < terms) fetch<BACKWARD>(stage, x, w, first, column, k, n, terms, width);
        copy_commit();
    };
    for (int s = 0; s < STAGES - 1; s++) fetch_stage(s * DEPTH);
    for (int k = 0; k < terms; k += DEPTH) {
        copy_wait<STAGES - 2>();
        block_sync(); /* all threads have finished with the stage that is filled now */
        fetch_stage(k + (STAGES - 1) * DEPTH);
        const real *left = stages + k / DEPTH % STAGES * S::SIZE, *right = left + S::X;
        if (BACKWARD && column == 0)
            stage_sums(parts + (size_t)(blockIdx.x / tiles) * (width + terms) + width + k, left, terms - k);
        left += row * LD_X;
#pragma unroll
        for (int d = 0; d < DEPTH; d += TILE_K) {
            FragmentA f[WARP_ROWS / TILE_M];
#pragma unroll
            for (int r = 0; r < WARP_ROWS / TILE_M; r++) f[r] = load_a(left + r * TILE_M * LD_X + d, LD_X);
#pragma unroll
            for (int c = 0; c < WARP_COLUMNS / TILE_N; c += 2) {
                FragmentB h[2];
                if (BACKWARD) load_b(h, right + d * LD_W + across + c * TILE_N, LD_W);
                else load_b_transposed(h, right + (across + c * TILE_N) * LD_W + d, LD_W);
#pragma unroll
                for (int r = 0; r < WARP_ROWS / TILE_M; r++) {
                    mma(sum[r][c], f[r], h[0]);
                    mma(sum[r][c + 1], f[r], h[1]);
                }
            }
        }
    }
    block_sync();

#pragma unroll
    for (int c = 0; c < WARP_COLUMNS / TILE_N; c++) {
        int j = across + c * TILE_N;
        float bias[2] = {};
        if (!BACKWARD)
            for (int i = 0; i < 2; i++) {
                int at = column + j + fragment_c_column(i);
                if (at < width) bias[i] = b[at];
            }
#pragma unroll
        for (int r = 0; r < WARP_ROWS / TILE_M; r++) {
            FragmentC t = sum[r][c];
#pragma unroll
            for (int i = 0; i < 4; i++) t.x[i] += bias[i % 2];
            tile_put(stages + (row + r * TILE_M) * LD + j, LD, t, 1);
        }
    }
    block_sync();

    int j = (int)threadIdx.x % PIECES * WIDE, begin = (int)threadIdx.x / PIECES;
    float total[WIDE] = {};
    for (int i = begin; i < ROWS && first + i < n && column + j < width; i += ROWS_AT_ONCE) {
        size_t at = (first + i) * width + column + j;
        float v[WIDE], u[WIDE];
        load(v, stages + i * LD + j);
        if (BACKWARD) {
            load(u, a + at);
#pragma unroll
            for (int e = 0; e < WIDE; e++) {
                gelu_gradient(v[e], u[e], v[e], u[e]);
                total[e] += to_float(to_real(v[e]));
            }
            store(y + at, v);
            if (g) store(g + at, u);
        } else {
            store(y + at, v);
#pragma unroll
            for (int e = 0; e < WIDE; e++) v[e] = gelu(v[e]);
            store(g + at, v);
        }
    }
    if (!BACKWARD) return;
    block_sync();
    float *sums = reinterpret_cast<float *>(stages);
    store(sums + begin * COLUMNS + j, total);
    block_sync();
    int mine = (int)threadIdx.x;
    if (mine >= COLUMNS || column + mine >= width) return;
    float all = 0;
    for (int i = 0; i < ROWS_AT_ONCE; i++) all += sums[i * COLUMNS + mine];
    parts[(size_t)(blockIdx.x / tiles) * (width + terms) + column + mine] = all;
}

template <bool BACKWARD>
static void product(real *y, real *g, float *parts, const real *x, const float *w, const float *b, const real *a,
                    size_t n, int terms, int width) {
    unsigned tiles = (unsigned)ceil_div(width, COLUMNS), blocks = (unsigned)ceil_div(n, ROWS) * tiles;
    const real *rounded = real_copy(w);
    LAUNCH((linear_gelu_kernel<BACKWARD>), blocks, THREADS, STAGES * Stage<BACKWARD>::SIZE * sizeof(real), y, g, parts,
           x, rounded, b, a, n, terms, width, tiles);
}

/* Rows of w and of the activations must be aligned to 16 bytes. */
static bool is_fused(int terms, int most, int width, const real *y, const real *g, const real *x, const real *a,
                     const float *w) {
    static const char *asked = getenv("VIT_GELU");
    bool pays = asked && *asked ? !strcmp(asked, "fused") : sizeof(real) == 2 && terms <= most;
    return pays && terms % WIDE == 0 && is_wide(width, y, g, x, a) && (uintptr_t)real_copy(w) % 16 == 0;
}

void linear_gelu_forward(real *a, real *g, const real *x, const float *w, const float *b, const LinearShape *s) {
    if (is_fused(s->in, FORWARD_TERMS, s->out, a, g, x, NULL, w)) {
        product<false>(a, g, NULL, x, w, b, NULL, s->n, s->in, s->out);
        return;
    }
    linear_forward(a, x, w, b, s);
    gelu_forward(g, a, s->n * (size_t)s->out);
}

/* == Backward ===================================================================================================== */

enum { SUM_ROWS = 256 };

size_t linear_gelu_workspace(const LinearShape *s) {
    return ceil_div(s->n, ROWS) * ((size_t)s->in + (size_t)s->out) * sizeof(float);
}

/* Partial column sums of da [n,width] or dy [n,terms]: a block sums its rows, each thread one column. */
__global__ void __launch_bounds__(THREADS)
    column_parts_kernel(float *parts, const real *da, const real *dy, size_t n, int width, int terms) {
    int j = (int)(blockIdx.y * THREADS + threadIdx.x), row = j < width ? width : terms;
    size_t begin = (size_t)blockIdx.x * SUM_ROWS, end = begin + SUM_ROWS < n ? begin + SUM_ROWS : n;
    float sum = 0;
    if (j >= width + terms) return;
    const real *from = j < width ? da + j : dy + (j - width);
#pragma unroll 8
    for (size_t i = begin; i < end; i++) sum += to_float(from[i * row]);
    parts[(size_t)blockIdx.x * (width + terms) + j] = sum;
}

void linear_gelu_backward(real *da, real *g, float *da_sums, float *db, const real *dy, const real *a, const float *w,
                          const LinearShape *s) {
    float *parts = static_cast<float *>(kernels_workspace(linear_gelu_workspace(s)));
    size_t n = s->n;
    int width = s->in, terms = s->out;
    if (is_fused(terms, BACKWARD_TERMS, width, da, g, dy, a, w)) {
        product<true>(da, g, parts, dy, w, NULL, a, n, terms, width);
        add_parts_to({{da_sums, db}, {width, terms}}, parts, (int)ceil_div(n, ROWS), width + terms);
        return;
    }
    linear_backward_input(da, dy, w, s);
    gelu_backward(da, g, da, a, n * (size_t)width);
    unsigned count = (unsigned)ceil_div(n, SUM_ROWS);
    LAUNCH(column_parts_kernel, dim3(count, (unsigned)ceil_div(width + terms, THREADS)), THREADS, 0, parts, da, dy, n,
           width, terms);
    add_parts_to({{da_sums, db}, {width, terms}}, parts, (int)count, width + terms);
}
