/* Sums over keys by relative position, collected into patterns and spread from them; the formulas, and F with its
 * derivatives, are those of kernels/offsets/patterns.c.  Every thread has its own outputs and walks the sum in order; where
 * the table is the same for all channels, a block of ROWS tokens shares the N x N weights of COLUMNS others in shared
 * memory, and the table's gradient is summed there (pair_tiles.cuh) if it fits.  A long sum is made of the sums of COLUMNS terms, against rounding. */
#include "kernels/cuda/banks.cuh"
#include "kernels/softmax/pair_tiles.cuh"
#include "kernels/kernels.h"

enum { ROWS = 16, TABLE_BLOCKS = 264, TABLE_ROWS = 64 };

struct Shape {
    Offsets offsets;
    int x_row, z_row, k_row; /* from one token of x, z and k to the next */
    int N, H, D, E, T;
    int channels;    /* of w: D or 1 */
    int heads;       /* B H */
    unsigned blocks; /* a head's, of ROWS tokens */
};

static Shape shape_of(const PatternSums *sums, int B) {
    const Patterns *p = &sums->patterns;
    const Offsets *o = &p->offsets;
    int N = grid_tokens(o->grid), H = p->H, D = p->D;
    return {*o, sums->x_row, sums->s_row, sums->k_row, N, H, D, p->E, offsets_count(o), p->per_channel ? D : 1, B * H,
            (unsigned)ceil_div(N, ROWS)};
}

/* Where token i of a head begins in x, z and k. */
struct Head {
    size_t x, z, k;
};
DEVICE Head head_at(const Shape &s, size_t head) {
    size_t token = head / s.H * s.N, h = head % s.H;
    return {token * s.x_row + h * s.D, token * s.z_row + h * s.E, token * s.k_row + h * s.D};
}

/* The entry of channel c for query i and key j, NULL where a tile reaches beyond the tokens. */
DEVICE const float *entry_of(const float *w, int i, int j, int c, const Shape &s) {
    int t = i < s.N && j < s.N ? offset_of(&s.offsets, i, j) : -1;
    return t < 0 ? NULL : w + ((size_t)t * s.channels + (s.channels > 1 ? c : 0)) * s.E;
}

/* sum_e z[e] w[t(i,j),c,e] */
template <typename Z>
DEVICE float weight_of(const Z *z, const float *w, int i, int j, int c, const Shape &s) {
    const float *entry = entry_of(w, i, j, c, s);
    float sum = 0;
    for (int e = 0; entry && e < s.E; e++) sum += to_float(z[e]) * entry[e];
    return sum;
}

/* tile [rows,columns], rows ld apart, = tokens first .. of `from`, whose rows lie `row` apart; zeros where there is no
 * token. */
DEVICE void fill(float *tile, int rows, int columns, int ld, int first, const real *from, int row, int N) {
    for (int at = threadIdx.x; at < rows * columns; at += THREADS) {
        int i = first + at / columns, c = at % columns;
        tile[at / columns * ld + c] = i < N ? to_float(from[(size_t)i * row + c]) : 0;
    }
}

/* == The same table for all channels ============================================================================== */

/* Fz of ROWS queries. */
__global__ void __launch_bounds__(THREADS)
    patterns_collect_kernel(real *fz, const real *x, const real *k, const float *__restrict__ w,
                            const float *__restrict__ base, Shape s) {
    SHARED(float, sum);                                                                /* [ROWS,E] */
    float *own = sum + ROWS * s.E, *t = own + ROWS * s.D,
          *keys = t + ROWS * COLUMNS; /* [ROWS,D], [ROWS,COLUMNS], [COLUMNS,D] */
    int first = (int)(blockIdx.x % s.blocks) * ROWS, ld = odd_ld(s.D);
    Head h = head_at(s, blockIdx.x / s.blocks);
    fill(own, ROWS, s.D, s.D, first, x + h.x, s.x_row, s.N);
    block_sync();
    for (int at = threadIdx.x; at < ROWS * s.E; at += THREADS) {
        sum[at] = 0;
        for (int c = 0; base && c < s.D; c++) sum[at] += own[at / s.E * s.D + c] * base[(size_t)c * s.E + at % s.E];
    }
    for (int j = 0; j < s.N; j += COLUMNS) {
        fill(keys, COLUMNS, s.D, ld, j, k + h.k, s.k_row, s.N);
        block_sync();
        for (int at = threadIdx.x; at < ROWS * COLUMNS; at += THREADS) {
            t[at] = 0;
            for (int c = 0; c < s.D; c++) t[at] += own[at / COLUMNS * s.D + c] * keys[at % COLUMNS * ld + c];
        }
        block_sync();
        for (int at = threadIdx.x; at < ROWS * s.E; at += THREADS) {
            float part = 0;
            for (int n = 0; n < COLUMNS; n++) {
                const float *entry = entry_of(w, first + at / s.E, j + n, 0, s);
                if (entry) part += t[at / s.E * COLUMNS + n] * entry[at % s.E];
            }
            sum[at] += part;
        }
        block_sync();
    }
    for (int at = threadIdx.x; at < ROWS * s.E; at += THREADS)
        if (first + at / s.E < s.N) fz[h.z + (size_t)(first + at / s.E) * s.z_row + at % s.E] = to_real(sum[at]);
}

/* Fx of ROWS queries, or Fk of ROWS keys. */
template <bool KEYS>
__global__ void __launch_bounds__(THREADS)
    patterns_spread_kernel(real *out, const real *add, const real *in, const real *z, const float *__restrict__ w,
                           const float *__restrict__ base, Shape s) {
    constexpr int SEEN = KEYS ? (int)COLUMNS : (int)ROWS; /* queries whose z the block holds at a time */
    int z_ld = odd_ld(s.E);
    SHARED(float, sum);                                                                     /* [ROWS,D] */
    float *zs = sum + ROWS * s.D, *p = zs + SEEN * z_ld,
          *others = p + ROWS * COLUMNS; /* [SEEN,E], [ROWS,COLUMNS], [COLUMNS,D] */
    int first = (int)(blockIdx.x % s.blocks) * ROWS;
    Head h = head_at(s, blockIdx.x / s.blocks);
    size_t from = KEYS ? h.x : h.k, to = KEYS ? h.k : h.x;
    int from_row = KEYS ? s.x_row : s.k_row, to_row = KEYS ? s.k_row : s.x_row;
    if (!KEYS) fill(zs, ROWS, s.E, z_ld, first, z + h.z, s.z_row, s.N);
    block_sync();
    for (int at = threadIdx.x; at < ROWS * s.D; at += THREADS) {
        sum[at] = 0;
        for (int e = 0; !KEYS && base && e < s.E; e++)
            sum[at] += zs[at / s.D * z_ld + e] * base[(size_t)(at % s.D) * s.E + e];
    }
    for (int o = 0; o < s.N; o += COLUMNS) {
        if (KEYS) fill(zs, COLUMNS, s.E, z_ld, o, z + h.z, s.z_row, s.N);
        fill(others, COLUMNS, s.D, s.D, o, in + from, from_row, s.N);
        block_sync();
        for (int at = threadIdx.x; at < ROWS * COLUMNS; at += THREADS) {
            int row = at / COLUMNS, n = at % COLUMNS;
            p[at] = KEYS ? weight_of(zs + n * z_ld, w, o + n, first + row, 0, s)
                         : weight_of(zs + row * z_ld, w, first + row, o + n, 0, s);
        }
        block_sync();
        for (int at = threadIdx.x; at < ROWS * s.D; at += THREADS) {
            float part = 0;
            for (int n = 0; n < COLUMNS; n++) part += p[at / s.D * COLUMNS + n] * others[n * s.D + at % s.D];
            sum[at] += part;
        }
        block_sync();
    }
    for (int at = threadIdx.x; at < ROWS * s.D; at += THREADS) {
        size_t place = to + (size_t)(first + at / s.D) * to_row + at % s.D;
        if (first + at / s.D < s.N) out[place] = to_real(sum[at] + (add ? to_float(add[place]) : 0));
    }
}

/* == A table for each channel ===================================================================================== */

/* Fz of ROWS queries: the products x k of COLUMNS keys, channel by channel. */
__global__ void __launch_bounds__(THREADS)
    patterns_channels_collect_kernel(real *fz, const real *x, const real *k, const float *__restrict__ w,
                                     const float *__restrict__ base, Shape s) {
    SHARED(float, own);                /* [ROWS,D] */
    float *keys = own + ROWS * s.D;    /* [COLUMNS,D] */
    int first = (int)(blockIdx.x % s.blocks) * ROWS;
    Head h = head_at(s, blockIdx.x / s.blocks);
    fill(own, ROWS, s.D, s.D, first, x + h.x, s.x_row, s.N);
    for (int begin = 0; begin < ROWS * s.E; begin += THREADS) {
        int at = begin + threadIdx.x, row = at / s.E, e = at % s.E;
        bool mine = at < ROWS * s.E;
        float sum = 0;
        block_sync();
        for (int c = 0; mine && base && c < s.D; c++) sum += own[row * s.D + c] * base[(size_t)c * s.E + e];
        for (int j = 0; j < s.N; j += COLUMNS) {
            float part = 0;
            fill(keys, COLUMNS, s.D, s.D, j, k + h.k, s.k_row, s.N);
            block_sync();
            for (int n = 0; mine && n < COLUMNS; n++) {
                const float *entry = entry_of(w, first + row, j + n, 0, s);
                for (int c = 0; entry && c < s.D; c++)
                    part += own[row * s.D + c] * keys[n * s.D + c] * entry[(size_t)c * s.E + e];
            }
            sum += part;
            block_sync();
        }
        if (mine && first + row < s.N) fz[h.z + (size_t)(first + row) * s.z_row + e] = to_real(sum);
    }
}

/* Fx of ROWS queries, or Fk of ROWS keys. */
template <bool KEYS>
__global__ void __launch_bounds__(THREADS)
    patterns_channels_spread_kernel(real *out, const real *add, const real *in, const real *z,
                                    const float *__restrict__ w, const float *__restrict__ base, Shape s) {
    int first = (int)(blockIdx.x % s.blocks) * ROWS;
    Head h = head_at(s, blockIdx.x / s.blocks);
    size_t from = KEYS ? h.x : h.k, to = KEYS ? h.k : h.x;
    int from_row = KEYS ? s.x_row : s.k_row, to_row = KEYS ? s.k_row : s.x_row;
    for (int at = threadIdx.x; at < ROWS * s.D; at += THREADS) {
        int own = first + at / s.D, c = at % s.D;
        if (own >= s.N) continue;
        float sum = 0;
        for (int e = 0; !KEYS && base && e < s.E; e++)
            sum += to_float(z[h.z + (size_t)own * s.z_row + e]) * base[(size_t)c * s.E + e];
        for (int begin = 0; begin < s.N; begin += COLUMNS) {
            float part = 0;
            for (int o = begin; o < s.N && o < begin + COLUMNS; o++) {
                int i = KEYS ? o : own, j = KEYS ? own : o;
                part += weight_of(z + h.z + (size_t)i * s.z_row, w, i, j, c, s) *
                        to_float(in[from + (size_t)o * from_row + c]);
            }
            sum += part;
        }
        size_t place = to + (size_t)own * to_row + c;
        out[place] = to_real(sum + (add ? to_float(add[place]) : 0));
    }
}

/* == Parameters =================================================================================================== */

/* A share of Fw where the table is the same for all channels: parts [blocks][T,E], from the blocks' slices of the tiles
 * of TABLE_ROWS queries.  A query and 32 keys have 32 different entries, and a warp has patterns of its own. */
__global__ void __launch_bounds__(THREADS, 2)
    patterns_shared_table_kernel(float *parts, const real *x, const real *z, const real *k, bool wide, Shape s) {
    SHARED(real, queries);                                                     /* [TABLE_ROWS,D] */
    int ld = pair_ld(s.D), count = s.T * s.E;
    real *keys = queries + TABLE_ROWS * ld;                                    /* [COLUMNS,D] */
    float *p = reinterpret_cast<float *>(keys + COLUMNS * ld), *table = p + TABLE_ROWS * PAIR_LD; /* [T,E] */
    int tiles = (s.N + TABLE_ROWS - 1) / TABLE_ROWS;
    for (int at = threadIdx.x; at < count; at += THREADS) table[at] = 0;
    for (int item = blockIdx.x; item < s.heads * tiles; item += gridDim.x) {
        int first = item % tiles * TABLE_ROWS;
        Head h = head_at(s, item / tiles);
        pair_load(queries, TABLE_ROWS, x + h.x, s.x_row, first, s.N, s.D, wide);
        for (int j = 0; j < s.N; j += COLUMNS) {
            pair_load(keys, COLUMNS, k + h.k, s.k_row, j, s.N, s.D, wide);
            pair_wait();
            block_sync();
            pair_products(p, queries, keys, TABLE_ROWS, s.D);
            block_sync();
            for (int row = 0; row < TABLE_ROWS && first + row < s.N; row++) {
                int key = j + lane_id(), t = key < s.N ? offset_of(&s.offsets, first + row, key) : -1;
                for (int e = warp_id(); t >= 0 && e < s.E; e += WARPS)
                    table[t * s.E + e] +=
                        p[row * PAIR_LD + lane_id()] * to_float(z[h.z + (size_t)(first + row) * s.z_row + e]);
                warp_sync();
            }
            block_sync();
        }
    }
    for (int at = threadIdx.x; at < count; at += THREADS) parts[(size_t)blockIdx.x * count + at] = table[at];
}

/* Fw of one entry.  Where it has fewer numbers than threads, slices of threads share the heads, and join in order. */
__global__ void __launch_bounds__(THREADS)
    patterns_table_kernel(float *fw, const real *x, const real *z, const real *k, Shape s) {
    SHARED(float, shares); /* [THREADS] */
    int t = blockIdx.x, count = s.channels * s.E, slices = count < THREADS ? THREADS / count : 1;
    int slice = slices > 1 ? threadIdx.x / count : 0;
    for (int at = slices > 1 ? threadIdx.x % count : threadIdx.x; at < count; at += slices > 1 ? count : THREADS) {
        int begin = s.channels > 1 ? at / s.E : 0, end = s.channels > 1 ? begin + 1 : s.D, e = at % s.E;
        float sum = 0;
        for (int head = slice; head < s.heads && slice < slices; head += slices) {
            Head h = head_at(s, head);
            for (int first = 0; first < s.N; first += COLUMNS) {
                float part = 0;
                for (int i = first; i < s.N && i < first + COLUMNS; i++) {
                    int j = offset_key(&s.offsets, t, i);
                    const real *xi = x + h.x + (size_t)i * s.x_row, *kj = k + h.k + (size_t)(j < 0 ? 0 : j) * s.k_row;
                    float products = 0;
                    for (int c = begin; j >= 0 && c < end; c++) products += to_float(xi[c]) * to_float(kj[c]);
                    part += products * to_float(z[h.z + (size_t)i * s.z_row + e]);
                }
                sum += part;
            }
        }
        if (slices == 1) fw[(size_t)t * count + at] += sum;
        else shares[threadIdx.x] = sum;
        if (slices > 1) break;
    }
    block_sync();
    for (int at = threadIdx.x; slices > 1 && at < count; at += THREADS) {
        float sum = 0;
        for (int i = 0; i < slices; i++) sum += shares[i * count + at];
        fw[(size_t)t * count + at] += sum;
    }
}

/* parts [heads,D,E]: a head's share of Fbase. */
__global__ void __launch_bounds__(THREADS) patterns_base_kernel(float *parts, const real *x, const real *z, Shape s) {
    Head h = head_at(s, blockIdx.x);
    for (int at = threadIdx.x; at < s.D * s.E; at += THREADS) {
        float sum = 0;
        for (int i = 0; i < s.N; i++)
            sum += to_float(x[h.x + (size_t)i * s.x_row + at / s.E]) *
                   to_float(z[h.z + (size_t)i * s.z_row + at % s.E]);
        parts[(size_t)blockIdx.x * s.D * s.E + at] = sum;
    }
}

/* == Launches ===================================================================================================== */

/* Bytes of shared memory for the shared table's gradient, 0 where another kernel has to make it; and its blocks. */
static size_t table_bytes(const Patterns *p) {
    size_t table = (size_t)offsets_count(&p->offsets) * p->E * sizeof(float);
    size_t bytes = pair_bytes(1, 1, 0, 1, TABLE_ROWS, p->D) + table;
    return !p->per_channel && bytes <= launch_shared_most() ? bytes : 0;
}
static unsigned table_blocks(const Patterns *p, int B) {
    return blocks_for((size_t)B * p->H * ceil_div(grid_tokens(p->offsets.grid), TABLE_ROWS), 1, TABLE_BLOCKS);
}

size_t patterns_workspace(const Patterns *p, int B) {
    size_t base = (size_t)B * p->H * p->D * p->E;
    size_t tables = table_bytes(p) ? (size_t)table_blocks(p, B) * offsets_count(&p->offsets) * p->E : 0;
    return (tables > base ? tables : base) * sizeof(float);
}

static void launch_fz(real *fz, const real *x, const real *k, const float *w, const float *base, const Shape &s) {
    size_t rows = (ROWS * (size_t)s.D + COLUMNS * (size_t)odd_ld(s.D)) * sizeof(float);
    if (s.channels > 1)
        LAUNCH(patterns_channels_collect_kernel, s.heads * s.blocks, THREADS, rows, fz, x, k, w, base, s);
    else
        LAUNCH(patterns_collect_kernel, s.heads * s.blocks, THREADS,
               rows + ROWS * ((size_t)s.E + COLUMNS) * sizeof(float), fz, x, k, w, base, s);
}

template <bool KEYS>
static void launch_spread(real *out, const real *add, const real *in, const real *z, const float *w, const float *base,
                          const Shape &s) {
    size_t bytes =
        ((ROWS + COLUMNS) * (size_t)s.D + (KEYS ? (int)COLUMNS : (int)ROWS) * (size_t)odd_ld(s.E) + ROWS * COLUMNS) *
        sizeof(float);
    if (s.channels > 1)
        LAUNCH((patterns_channels_spread_kernel<KEYS>), s.heads * s.blocks, THREADS, 0, out, add, in, z, w, base, s);
    else LAUNCH((patterns_spread_kernel<KEYS>), s.heads * s.blocks, THREADS, bytes, out, add, in, z, w, base, s);
}

static void launch_parameters(float *fw, float *fbase, const real *x, const real *z, const real *k,
                              const Patterns *patterns, int B, const Shape &s) {
    float *parts = static_cast<float *>(kernels_workspace(patterns_workspace(patterns, B)));
    if (size_t bytes = table_bytes(patterns)) {
        bool wide = is_wide(s.D, x, k) && s.x_row % WIDE == 0 && s.k_row % WIDE == 0;
        unsigned blocks = table_blocks(patterns, B);
        LAUNCH(patterns_shared_table_kernel, blocks, THREADS, bytes, parts, x, z, k, wide, s);
        add_parts(fw, NULL, parts, (int)blocks, s.T * s.E);
    } else
        LAUNCH(patterns_table_kernel, (unsigned)s.T, THREADS, THREADS * sizeof(float), fw, x, z, k, s);
    if (!fbase) return;
    LAUNCH(patterns_base_kernel, (unsigned)s.heads, THREADS, 0, parts, x, z, s);
    add_parts(fbase, NULL, parts, s.heads, s.D * s.E);
}

void patterns_collect_forward(real *s, const real *q, const real *k, const PatternSums *sums, int B) {
    launch_fz(s, q, k, sums->w, sums->base, shape_of(sums, B));
}

void patterns_collect_backward(real *dq, real *dk, const real *add, const PatternSumsGradients *d, const real *ds,
                               const real *q, const real *k, const PatternSums *sums, int B) {
    Shape s = shape_of(sums, B);
    launch_spread<false>(dq, NULL, k, ds, sums->w, sums->base, s);
    launch_spread<true>(dk, add, q, ds, sums->w, NULL, s);
    launch_parameters(d->w, d->base, q, ds, k, &sums->patterns, B, s);
}

void patterns_spread_forward(real *y, const real *s, const real *v, const PatternSums *sums, int B) {
    launch_spread<false>(y, NULL, v, s, sums->w, sums->base, shape_of(sums, B));
}

void patterns_spread_backward(real *ds, real *dv, const real *add, const PatternSumsGradients *d, const real *dy,
                              const real *s, const real *v, const PatternSums *sums, int B) {
    Shape shape = shape_of(sums, B);
    launch_fz(ds, dy, v, sums->w, sums->base, shape);
    launch_spread<true>(dv, add, dy, s, sums->w, NULL, shape);
    launch_parameters(d->w, d->base, dy, s, v, &sums->patterns, B, shape);
}
