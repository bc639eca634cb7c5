/* Sums over keys by relative position, collected into patterns and spread from them; the formulas, and F with its
 * derivatives, are those of kernels/offsets/patterns.c.  Every thread has its own outputs and computes their sums in
 * order.  If the table is the same for all channels, a block of ROWS tokens shares the N x N weights of COLUMNS others
 * in shared memory, and the table's gradient is summed there (pair_tiles.cuh) if it fits.  A table for each channel is
 * larger than the tensors of a head, so blocks iterate over its entries and read each once for ROWS tokens of some
 * heads.  Long sums are computed in blocks of a few terms to limit rounding.  The kernels support any size and any
 * offsets and do not use matrix units. */
#include "kernels/cuda/banks.cuh"
#include "kernels/softmax/pair_tiles.cuh"
#include "kernels/offsets/offsets.h"
#include "kernels/offsets/patterns.h"
#include "kernels/tokens/grid.h"

enum { ROWS = 16, TABLE_ROWS = 64 };
enum { TABLE_BLOCKS = 264 }; /* two for each multiprocessor of an H200 */

/* Sizes of a block that iterates over entries: heads, patterns and channels at a time, and the number of entries whose
 * keys are found together. */
enum { HEADS = 16, HEADS_BACK = 8, PATTERNS = 16, CHANNELS = 32, ENTRIES = 16, ENTRIES_BACK = 8 };

struct PatternShape {
    Offsets offsets;
    int x_row, z_row, k_row; /* from one token of x, z and k to the next */
    int N, H, D, E, T;
    bool per_channel; /* w has a table for each channel */
    int heads;       /* B H */
    unsigned blocks; /* a head's, of ROWS tokens */
    bool float_z;    /* z, or its result, is float, not real */
};

static PatternShape shape_of(const PatternSums *sums, int B) {
    const Patterns *p = &sums->patterns;
    const Offsets *o = &p->offsets;
    int N = grid_tokens(o->grid), H = p->H, D = p->D;
    return {*o, sums->x_row, sums->s_row, sums->k_row, N, H, D, p->E, offsets_count(o), p->per_channel, B * H,
            (unsigned)ceil_div(N, ROWS), false};
}

/* The offsets of a head in x, z and k. */
struct PatternHead {
    size_t x, z, k;
};
DEVICE PatternHead head_at(const PatternShape &s, size_t head) {
    size_t token = head / s.H * s.N, h = head % s.H;
    return {token * s.x_row + h * s.D, token * s.z_row + h * s.E, token * s.k_row + h * s.D};
}

DEVICE float z_at(const void *z, size_t at, const PatternShape &s) {
    return s.float_z ? static_cast<const float *>(z)[at] : to_float(static_cast<const real *>(z)[at]);
}

DEVICE void put_z(void *z, size_t at, float x, const PatternShape &s) {
    if (s.float_z) static_cast<float *>(z)[at] = x;
    else static_cast<real *>(z)[at] = to_real(x);
}

/* tile [rows,columns], rows ld apart, = tokens first .. of `from`, whose rows are `row` apart; zeros beyond the last
 * token. */
DEVICE void fill(float *tile, int rows, int columns, int ld, int first, const real *from, int row, int N) {
    for (int at = threadIdx.x; at < rows * columns; at += THREADS) {
        int i = first + at / columns, c = at % columns;
        tile[at / columns * ld + c] = i < N ? to_float(from[(size_t)i * row + c]) : 0;
    }
}

/* The same for a head's z, which begins at `head`. */
DEVICE void fill_z(float *tile, int rows, int ld, int first, const void *z, size_t head, const PatternShape &s) {
    for (int at = threadIdx.x; at < rows * s.E; at += THREADS) {
        int i = first + at / s.E, e = at % s.E;
        tile[at / s.E * ld + e] = i < s.N ? z_at(z, head + (size_t)i * s.z_row + e, s) : 0;
    }
}

/* == The same table for all channels ============================================================================== */

/* The entry for query i and key j, NULL beyond the tokens. */
DEVICE const float *entry_of(const float *w, int i, int j, const PatternShape &s) {
    int t = i < s.N && j < s.N ? offset_of(&s.offsets, i, j) : -1;
    return t < 0 ? NULL : w + (size_t)t * s.E;
}

/* sum_e z[e] w[t(i,j),e] */
DEVICE float weight_of(const float *z, const float *w, int i, int j, const PatternShape &s) {
    const float *entry = entry_of(w, i, j, s);
    float sum = 0;
    for (int e = 0; entry && e < s.E; e++) sum += z[e] * entry[e];
    return sum;
}

/* Fz of ROWS queries. */
__global__ void __launch_bounds__(THREADS)
    patterns_collect_kernel(void *fz, const real *x, const real *k, const float *__restrict__ w,
                            const float *__restrict__ base, PatternShape s) {
    SHARED(float, sum);                                                                /* [ROWS,E] */
    float *own = sum + ROWS * s.E, *t = own + ROWS * s.D,
          *keys = t + ROWS * COLUMNS; /* [ROWS,D], [ROWS,COLUMNS], [COLUMNS,D] */
    int first = (int)(blockIdx.x % s.blocks) * ROWS, ld = odd_ld(s.D);
    PatternHead h = head_at(s, blockIdx.x / s.blocks);
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
                const float *entry = entry_of(w, first + at / s.E, j + n, s);
                if (entry) part += t[at / s.E * COLUMNS + n] * entry[at % s.E];
            }
            sum[at] += part;
        }
        block_sync();
    }
    for (int at = threadIdx.x; at < ROWS * s.E; at += THREADS)
        if (first + at / s.E < s.N) put_z(fz, h.z + (size_t)(first + at / s.E) * s.z_row + at % s.E, sum[at], s);
}

/* Fx of ROWS queries, or Fk of ROWS keys. */
template <bool KEYS>
__global__ void __launch_bounds__(THREADS)
    patterns_spread_kernel(real *out, const real *add, const real *in, const void *z, const float *__restrict__ w,
                           const float *__restrict__ base, PatternShape s) {
    constexpr int SEEN = KEYS ? (int)COLUMNS : (int)ROWS; /* number of queries whose z the block has at a time */
    int z_ld = odd_ld(s.E);
    SHARED(float, sum);                                                                     /* [ROWS,D] */
    float *zs = sum + ROWS * s.D, *p = zs + SEEN * z_ld,
          *others = p + ROWS * COLUMNS; /* [SEEN,E], [ROWS,COLUMNS], [COLUMNS,D] */
    int first = (int)(blockIdx.x % s.blocks) * ROWS;
    PatternHead h = head_at(s, blockIdx.x / s.blocks);
    size_t from = KEYS ? h.x : h.k, to = KEYS ? h.k : h.x;
    int from_row = KEYS ? s.x_row : s.k_row, to_row = KEYS ? s.k_row : s.x_row;
    if (!KEYS) fill_z(zs, ROWS, z_ld, first, z, h.z, s);
    block_sync();
    for (int at = threadIdx.x; at < ROWS * s.D; at += THREADS) {
        sum[at] = 0;
        for (int e = 0; !KEYS && base && e < s.E; e++)
            sum[at] += zs[at / s.D * z_ld + e] * base[(size_t)(at % s.D) * s.E + e];
    }
    for (int o = 0; o < s.N; o += COLUMNS) {
        if (KEYS) fill_z(zs, COLUMNS, z_ld, o, z, h.z, s);
        fill(others, COLUMNS, s.D, s.D, o, in + from, from_row, s.N);
        block_sync();
        for (int at = threadIdx.x; at < ROWS * COLUMNS; at += THREADS) {
            int row = at / COLUMNS, n = at % COLUMNS;
            p[at] = KEYS ? weight_of(zs + n * z_ld, w, o + n, first + row, s)
                         : weight_of(zs + row * z_ld, w, first + row, o + n, s);
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

/* The query i of key j with that entry, or -1: offset_key with the roles exchanged. */
DEVICE int query_of(const Offsets *o, int e, int j) {
    Grid g = o->grid, box = offsets_box(o);
    int N = grid_tokens(g);
    if (o->kind == OFFSETS_CIRCLE) return j + e < N ? j + e : j + e - N;
    if (o->kind != OFFSETS_TORUS) return offset_key(o, grid_tokens(box) - 1 - e, j);
    GridPlace d = grid_place(g, e);
    int t = offset_around(-d.t, g.frames), y = offset_around(-d.y, g.rows), x = offset_around(-d.x, g.columns);
    return offset_key(o, (t * g.rows + y) * g.columns + x, j);
}

/* others [ENTRIES,ROWS]: the keys of the block's tokens for the entries from `first` on, or the queries whose keys
 * they are; -1 for none.  any [ENTRIES] is set for an entry that has one. */
DEVICE void find_others(int *others, int *any, int first, int token, bool as_keys, const PatternShape &s) {
    block_sync(); /* the previous ones are still read */
    for (int at = threadIdx.x; at < ENTRIES * ROWS; at += THREADS) {
        int t = first + at / ROWS, i = token + at % ROWS, other = -1;
        if (t < s.T && i < s.N) other = as_keys ? query_of(&s.offsets, t, i) : offset_key(&s.offsets, t, i);
        others[at] = other;
    }
    block_sync();
    if (threadIdx.x < ENTRIES) {
        any[threadIdx.x] = 0;
        for (int i = 0; i < ROWS; i++) any[threadIdx.x] |= others[threadIdx.x * ROWS + i] >= 0;
    }
    block_sync();
}

/* entry [CHANNELS,PATTERNS], rows ld apart, = channels and patterns from the first ones on of an entry of the table;
 * zeros beyond D and E. */
DEVICE void load_entry(float *entry, int ld, const float *from, int first_c, int first_e, const PatternShape &s) {
    for (int at = threadIdx.x; at < CHANNELS * PATTERNS; at += THREADS) {
        int c = first_c + at / PATTERNS, e = first_e + at % PATTERNS;
        entry[at / PATTERNS * ld + at % PATTERNS] = c < s.D && e < s.E ? from[(size_t)c * s.E + e] : 0;
    }
}

/* Fz of ROWS queries and HEADS heads.  For every entry, the products x k of the queries and their keys, one row each,
 * are multiplied with it in shared memory; a thread sums four rows and four patterns.  After the entries, x itself is
 * multiplied with the base. */
__global__ void __launch_bounds__(THREADS)
    patterns_channels_collect_kernel(void *fz, const real *x, const real *k, const float *w, const float *base,
                                     PatternShape s) {
    constexpr int PAIRS = ROWS * HEADS, LD = CHANNELS + 1;
    SHARED(float, products);                                       /* [PAIRS][LD], pairs by head */
    float *entry = products + PAIRS * LD;                          /* [CHANNELS][PATTERNS] */
    int *others = reinterpret_cast<int *>(entry + CHANNELS * PATTERNS), *any = others + ENTRIES * ROWS;
    int first_i = (int)(blockIdx.x % s.blocks) * ROWS, first_head = (int)(blockIdx.x / s.blocks) * HEADS;
    int row = threadIdx.x / 4, e0 = threadIdx.x % 4 * 4; /* rows row, row + 64 .. */
    for (int first_e = 0; first_e < s.E; first_e += PATTERNS) {
        float sum[4][4] = {};
        for (int t = 0; t < s.T + (base != NULL); t++) {
            bool of_base = t == s.T;
            if (t % ENTRIES == 0) find_others(others, any, t, first_i, false, s);
            const int *keys = others + t % ENTRIES * ROWS;
            if (!of_base && !any[t % ENTRIES]) continue;
            float part[4][4] = {};
            for (int first_c = 0; first_c < s.D; first_c += CHANNELS) {
                for (int at = threadIdx.x; at < PAIRS * CHANNELS; at += THREADS) {
                    int pair = at / CHANNELS, c = first_c + at % CHANNELS, head = first_head + pair / ROWS;
                    int i = first_i + pair % ROWS, key = keys[pair % ROWS];
                    bool there = (of_base ? i < s.N : key >= 0) && head < s.heads && c < s.D;
                    PatternHead h = head_at(s, there ? head : 0);
                    float own = there ? to_float(x[h.x + (size_t)i * s.x_row + c]) : 0;
                    float other = there && !of_base ? to_float(k[h.k + (size_t)key * s.k_row + c]) : 1;
                    products[pair * LD + at % CHANNELS] = own * other;
                }
                load_entry(entry, PATTERNS, of_base ? base : w + (size_t)t * s.D * s.E, first_c, first_e, s);
                block_sync();
#pragma unroll 4
                for (int c = 0; c < CHANNELS; c++) {
                    float weights[4];
                    load(weights, entry + c * PATTERNS + e0);
#pragma unroll
                    for (int r = 0; r < 4; r++)
#pragma unroll
                        for (int e = 0; e < 4; e++) part[r][e] += products[(row + r * 64) * LD + c] * weights[e];
                }
                block_sync();
            }
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[r][e] += part[r][e];
        }
        for (int r = 0; r < 4; r++) {
            int pair = row + r * 64, i = first_i + pair % ROWS, head = first_head + pair / ROWS;
            if (i >= s.N || head >= s.heads) continue;
            size_t place = head_at(s, head).z + (size_t)i * s.z_row + first_e + e0;
            for (int e = 0; e < 4; e++)
                if (first_e + e0 + e < s.E) put_z(fz, place + e, sum[r][e], s);
        }
    }
}

/* Fx of ROWS queries and HEADS_BACK heads, or Fk of as many keys.  For every entry, the rows of z are multiplied with
 * it in shared memory; a thread sums four rows and four channels of the products, each times its key or query.  After
 * the entries, z itself is multiplied with the base. */
template <bool KEYS>
__global__ void __launch_bounds__(THREADS)
    patterns_channels_spread_kernel(real *out, const real *add, const real *in, const void *z, const float *w,
                                    const float *base, PatternShape s) {
    constexpr int PAIRS = ROWS * HEADS_BACK, LD = PATTERNS + 1;
    SHARED(float, rows);                         /* [PAIRS][LD] of z, pairs by head */
    float *entry = rows + PAIRS * LD;            /* [CHANNELS][LD] */
    int *others = reinterpret_cast<int *>(entry + CHANNELS * LD), *any = others + ENTRIES * ROWS;
    int first_i = (int)(blockIdx.x % s.blocks) * ROWS, first_head = (int)(blockIdx.x / s.blocks) * HEADS_BACK;
    int row = threadIdx.x / 8, c0 = threadIdx.x % 8; /* rows row, row + 32 .., channels c0, c0 + 8 .. */
    for (int first_c = 0; first_c < s.D; first_c += CHANNELS) {
        float sum[4][4] = {};
        for (int t = 0; t < s.T + (!KEYS && base); t++) {
            bool of_base = t == s.T;
            if (t % ENTRIES == 0) find_others(others, any, t, first_i, KEYS, s);
            const int *other = others + t % ENTRIES * ROWS;
            if (!of_base && !any[t % ENTRIES]) continue;
            float part[4][4] = {};
            for (int first_e = 0; first_e < s.E; first_e += PATTERNS) {
                for (int at = threadIdx.x; at < PAIRS * PATTERNS; at += THREADS) {
                    int pair = at / PATTERNS, e = first_e + at % PATTERNS, head = first_head + pair / ROWS;
                    int own = first_i + pair % ROWS, query = KEYS ? other[pair % ROWS] : own;
                    bool there = (of_base ? own < s.N : other[pair % ROWS] >= 0) && head < s.heads && e < s.E;
                    size_t from = there ? head_at(s, head).z + (size_t)query * s.z_row + e : 0;
                    rows[pair * LD + at % PATTERNS] = there ? z_at(z, from, s) : 0;
                }
                load_entry(entry, LD, of_base ? base : w + (size_t)t * s.D * s.E, first_c, first_e, s);
                block_sync();
#pragma unroll 4
                for (int e = 0; e < PATTERNS; e++)
#pragma unroll
                    for (int r = 0; r < 4; r++)
#pragma unroll
                        for (int c = 0; c < 4; c++)
                            part[r][c] += rows[(row + r * 32) * LD + e] * entry[(c0 + c * 8) * LD + e];
                block_sync();
            }
#pragma unroll
            for (int r = 0; r < 4; r++) {
                int pair = row + r * 32, head = first_head + pair / ROWS, place = of_base ? 0 : other[pair % ROWS];
                if (place < 0 || head >= s.heads) continue;
                PatternHead h = head_at(s, head);
                const real *factor =
                    in + (KEYS ? h.x : h.k) + (size_t)place * (KEYS ? s.x_row : s.k_row) + first_c + c0;
#pragma unroll
                for (int c = 0; c < 4; c++)
                    if (first_c + c0 + c * 8 < s.D) sum[r][c] += part[r][c] * (of_base ? 1 : to_float(factor[c * 8]));
            }
        }
        for (int r = 0; r < 4; r++) {
            int pair = row + r * 32, i = first_i + pair % ROWS, head = first_head + pair / ROWS;
            if (i >= s.N || head >= s.heads) continue;
            PatternHead h = head_at(s, head);
            size_t place = (KEYS ? h.k : h.x) + (size_t)i * (KEYS ? s.k_row : s.x_row) + first_c + c0;
            for (int n = 0; n < 4; n++, place += 8)
                if (first_c + c0 + n * 8 < s.D) out[place] = to_real(sum[r][n] + (add ? to_float(add[place]) : 0));
        }
    }
}

/* == Parameters =================================================================================================== */

/* A share of Fw if the table is the same for all channels: parts [blocks][T,E], from the blocks' slices of the tiles of
 * TABLE_ROWS queries.  A query and 32 keys have 32 different entries, and each warp has its own patterns. */
__global__ void __launch_bounds__(THREADS, 2)
    patterns_shared_table_kernel(float *parts, const real *x, const void *z, const real *k, bool wide, PatternShape s) {
    SHARED(real, queries);                                                     /* [TABLE_ROWS,D] */
    int ld = pair_ld(s.D), count = s.T * s.E;
    real *keys = queries + TABLE_ROWS * ld;                                    /* [COLUMNS,D] */
    float *p = reinterpret_cast<float *>(keys + COLUMNS * ld), *table = p + TABLE_ROWS * PAIR_LD; /* [T,E] */
    int tiles = (s.N + TABLE_ROWS - 1) / TABLE_ROWS;
    for (int at = threadIdx.x; at < count; at += THREADS) table[at] = 0;
    for (int item = blockIdx.x; item < s.heads * tiles; item += gridDim.x) {
        int first = item % tiles * TABLE_ROWS;
        PatternHead h = head_at(s, item / tiles);
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
                        p[row * PAIR_LD + lane_id()] * z_at(z, h.z + (size_t)(first + row) * s.z_row + e, s);
                warp_sync();
            }
            block_sync();
        }
    }
    for (int at = threadIdx.x; at < count; at += THREADS) parts[(size_t)blockIdx.x * count + at] = table[at];
}

/* Fw of one entry if the table is the same for all channels and too large for shared memory.  If there are fewer
 * patterns than threads, slices of threads divide the heads, and their sums are added in order. */
__global__ void __launch_bounds__(THREADS)
    patterns_table_kernel(float *fw, const real *x, const void *z, const real *k, PatternShape s) {
    SHARED(float, shares); /* [THREADS] */
    int t = blockIdx.x, slices = s.E < THREADS ? THREADS / s.E : 1, slice = threadIdx.x / s.E, e = threadIdx.x % s.E;
    float sum = 0;
    for (int head = slice; head < s.heads && slice < slices; head += slices) {
        PatternHead h = head_at(s, head);
        for (int first = 0; first < s.N; first += COLUMNS) {
            float part = 0;
            for (int i = first; i < s.N && i < first + COLUMNS; i++) {
                int j = offset_key(&s.offsets, t, i);
                const real *xi = x + h.x + (size_t)i * s.x_row, *kj = k + h.k + (size_t)(j < 0 ? 0 : j) * s.k_row;
                float products = 0;
                for (int c = 0; j >= 0 && c < s.D; c++) products += to_float(xi[c]) * to_float(kj[c]);
                part += products * z_at(z, h.z + (size_t)i * s.z_row + e, s);
            }
            sum += part;
        }
    }
    shares[threadIdx.x] = sum;
    block_sync();
    if ((int)threadIdx.x >= s.E) return;
    for (int i = 1; i < slices; i++) sum += shares[i * s.E + e];
    fw[(size_t)t * s.E + e] += sum;
}

/* A slice's share of Fw for ENTRIES_BACK entries, one for each warp: parts [slices][T,D,E].  The products of ROWS
 * queries and their keys are multiplied with z in shared memory; a lane sums four channels and four patterns. */
__global__ void __launch_bounds__(THREADS) patterns_channels_table_kernel(float *parts, const real *x, const void *z,
                                                                          const real *k, int each, PatternShape s) {
    constexpr int LD = CHANNELS + 1;
    SHARED(float, seen);                                                   /* [ROWS][PATTERNS] of z */
    float *products = seen + ROWS * PATTERNS + warp_id() * ROWS * LD; /* [ROWS][LD], for each warp */
    int t = (int)blockIdx.x * ENTRIES_BACK + warp_id();
    int first_head = (int)blockIdx.y * each, last_head = first_head + each < s.heads ? first_head + each : s.heads;
    float *fw = parts + ((size_t)blockIdx.y * s.T + t) * s.D * s.E;
    int c0 = lane_id() / 4, e0 = lane_id() % 4 * 4; /* channels c0, c0 + 8 .. */
    bool there = t < s.T;
    for (int first_c = 0; first_c < s.D; first_c += CHANNELS)
        for (int first_e = 0; first_e < s.E; first_e += PATTERNS) {
            float sum[4][4] = {};
            for (int head = first_head; head < last_head; head++) {
                PatternHead h = head_at(s, head);
                for (int first = 0; first < s.N; first += ROWS) {
                    for (int at = threadIdx.x; at < ROWS * PATTERNS; at += THREADS) {
                        int i = first + at / PATTERNS, e = first_e + at % PATTERNS;
                        seen[at] = i < s.N && e < s.E ? z_at(z, h.z + (size_t)i * s.z_row + e, s) : 0;
                    }
                    int c = first_c + lane_id();
                    for (int n = 0; n < ROWS; n++) {
                        int i = first + n, j = there && i < s.N ? offset_key(&s.offsets, t, i) : -1;
                        products[n * LD + lane_id()] =
                            j >= 0 && c < s.D ? to_float(x[h.x + (size_t)i * s.x_row + c]) *
                                                    to_float(k[h.k + (size_t)j * s.k_row + c])
                                              : 0;
                    }
                    block_sync();
                    float part[4][4] = {};
#pragma unroll 4
                    for (int n = 0; n < ROWS; n++) {
                        float g[4];
                        load(g, seen + n * PATTERNS + e0);
#pragma unroll
                        for (int r = 0; r < 4; r++)
#pragma unroll
                            for (int e = 0; e < 4; e++) part[r][e] += products[n * LD + c0 + r * 8] * g[e];
                    }
                    block_sync();
#pragma unroll
                    for (int r = 0; r < 4; r++)
#pragma unroll
                        for (int e = 0; e < 4; e++) sum[r][e] += part[r][e];
                }
            }
            for (int r = 0; r < 4; r++)
                for (int e = first_e + e0, n = 0; n < 4; n++, e++) {
                    int c = first_c + c0 + r * 8;
                    if (there && c < s.D && e < s.E) fw[(size_t)c * s.E + e] = sum[r][n];
                }
        }
}

/* parts [heads,D,E]: a head's share of Fbase. */
__global__ void __launch_bounds__(THREADS)
    patterns_base_kernel(float *parts, const real *x, const void *z, PatternShape s) {
    PatternHead h = head_at(s, blockIdx.x);
    for (int at = threadIdx.x; at < s.D * s.E; at += THREADS) {
        float sum = 0;
        for (int i = 0; i < s.N; i++)
            sum += to_float(x[h.x + (size_t)i * s.x_row + at / s.E]) *
                   z_at(z, h.z + (size_t)i * s.z_row + at % s.E, s);
        parts[(size_t)blockIdx.x * s.D * s.E + at] = sum;
    }
}

/* == Launches ===================================================================================================== */

/* Bytes of shared memory for the shared table's gradient, 0 if another kernel has to compute it; and its number of
 * blocks. */
static size_t table_bytes(const Patterns *p) {
    size_t table = (size_t)offsets_count(&p->offsets) * p->E * sizeof(float);
    size_t bytes = pair_bytes(1, 1, 0, 1, TABLE_ROWS, p->D) + table;
    return !p->per_channel && bytes <= launch_shared_most() ? bytes : 0;
}
static unsigned table_blocks(const Patterns *p, int B) {
    return blocks_for((size_t)B * p->H * ceil_div(grid_tokens(p->offsets.grid), TABLE_ROWS), 1, TABLE_BLOCKS);
}

/* The most slices of the heads for the gradient of tables for each channel, and the heads in one. */
static int most_slices(const Patterns *p) {
    int most = TABLE_BLOCKS / (int)ceil_div(offsets_count(&p->offsets), ENTRIES_BACK);
    return most < 1 ? 1 : most;
}
static int heads_in_slice(const Patterns *p, int B) { return (int)ceil_div((size_t)B * p->H, most_slices(p)); }

/* The number of shares of the table's gradient that are added up, 0 if a kernel adds to it directly. */
static unsigned table_shares(const Patterns *p, int B) {
    if (p->per_channel) return (unsigned)ceil_div((size_t)B * p->H, heads_in_slice(p, B));
    return table_bytes(p) ? table_blocks(p, B) : 0;
}

/* Fewer heads may have more slices: this is enough for them, too. */
size_t patterns_workspace(const Patterns *p, int B) {
    size_t heads = (size_t)B * p->H, base = heads * p->D * p->E;
    size_t shares = p->per_channel ? blocks_for(heads, 1, most_slices(p)) : table_shares(p, B);
    size_t tables = shares * offsets_count(&p->offsets) * (p->per_channel ? p->D : 1) * p->E;
    return (tables > base ? tables : base) * sizeof(float);
}

/* Bytes of shared memory that find_others needs. */
enum { OTHERS_BYTES = ENTRIES * (ROWS + 1) * sizeof(int) };

static void launch_fz(void *fz, const real *x, const real *k, const float *w, const float *base,
                      const PatternShape &s) {
    if (s.per_channel) {
        size_t bytes = (ROWS * HEADS * (CHANNELS + 1) + CHANNELS * PATTERNS) * sizeof(float) + OTHERS_BYTES;
        LAUNCH(patterns_channels_collect_kernel, (unsigned)ceil_div(s.heads, HEADS) * s.blocks, THREADS, bytes, fz, x, k,
               w, base, s);
    } else {
        size_t bytes = (ROWS * ((size_t)s.D + s.E + COLUMNS) + COLUMNS * (size_t)odd_ld(s.D)) * sizeof(float);
        LAUNCH(patterns_collect_kernel, s.heads * s.blocks, THREADS, bytes, fz, x, k, w, base, s);
    }
}

template <bool KEYS>
static void launch_spread(real *out, const real *add, const real *in, const void *z, const float *w, const float *base,
                          const PatternShape &s) {
    if (s.per_channel) {
        size_t bytes = (ROWS * HEADS_BACK + CHANNELS) * (PATTERNS + 1) * sizeof(float) + OTHERS_BYTES;
        LAUNCH((patterns_channels_spread_kernel<KEYS>), (unsigned)ceil_div(s.heads, HEADS_BACK) * s.blocks, THREADS, bytes,
               out, add, in, z, w, base, s);
    } else {
        size_t seen = (KEYS ? (int)COLUMNS : (int)ROWS) * (size_t)odd_ld(s.E);
        size_t bytes = ((ROWS + COLUMNS) * (size_t)s.D + seen + ROWS * COLUMNS) * sizeof(float);
        LAUNCH((patterns_spread_kernel<KEYS>), s.heads * s.blocks, THREADS, bytes, out, add, in, z, w, base, s);
    }
}

static void launch_parameters(float *fw, float *fbase, const real *x, const void *z, const real *k,
                              const Patterns *patterns, int B, const PatternShape &s) {
    float *parts = static_cast<float *>(kernels_workspace(patterns_workspace(patterns, B)));
    unsigned shares = table_shares(patterns, B);
    if (s.per_channel) {
        size_t bytes = (ROWS * PATTERNS + ENTRIES_BACK * ROWS * (CHANNELS + 1)) * sizeof(float);
        LAUNCH(patterns_channels_table_kernel, dim3((unsigned)ceil_div(s.T, ENTRIES_BACK), shares), THREADS, bytes, parts,
               x, z, k, heads_in_slice(patterns, B), s);
    } else if (shares) {
        bool wide = is_wide(s.D, x, k) && s.x_row % WIDE == 0 && s.k_row % WIDE == 0;
        LAUNCH(patterns_shared_table_kernel, shares, THREADS, table_bytes(patterns), parts, x, z, k, wide, s);
    } else
        LAUNCH(patterns_table_kernel, (unsigned)s.T, THREADS, THREADS * sizeof(float), fw, x, z, k, s);
    if (shares) add_parts(fw, NULL, parts, (int)shares, s.T * (s.per_channel ? s.D : 1) * s.E);
    if (!fbase) return;
    LAUNCH(patterns_base_kernel, (unsigned)s.heads, THREADS, 0, parts, x, z, s);
    add_parts(fbase, NULL, parts, s.heads, s.D * s.E);
}

void patterns_collect_forward(real *s, const real *q, const real *k, const PatternSums *sums, int B) {
    launch_fz(s, q, k, sums->w, sums->base, shape_of(sums, B));
}

void patterns_collect_backward(real *dq, real *dk, const real *add, const PatternSumsGradients *d, const void *ds,
                               const real *q, const real *k, const PatternSums *sums, int B) {
    PatternShape s = shape_of(sums, B);
    s.float_z = sums->float_ds;
    launch_spread<false>(dq, NULL, k, ds, sums->w, sums->base, s);
    launch_spread<true>(dk, add, q, ds, sums->w, NULL, s);
    launch_parameters(d->w, d->base, q, ds, k, &sums->patterns, B, s);
}

void patterns_spread_forward(real *y, const real *s, const real *v, const PatternSums *sums, int B) {
    launch_spread<false>(y, NULL, v, s, sums->w, sums->base, shape_of(sums, B));
}

void patterns_spread_backward(void *ds, real *dv, const real *add, const PatternSumsGradients *d, const real *dy,
                              const real *s, const real *v, const PatternSums *sums, int B) {
    PatternShape shape = shape_of(sums, B), of_ds = shape;
    of_ds.float_z = sums->float_ds;
    launch_fz(ds, dy, v, sums->w, sums->base, of_ds);
    launch_spread<true>(dv, add, dy, s, sums->w, NULL, shape);
    launch_parameters(d->w, d->base, dy, s, v, &sums->patterns, B, shape);
}

/* == Cost ======================================================================================================== */

/* Predicted, not measured: four sums over pairs, channels and patterns at an eighth of the 64 multiply-adds a clock
 * that a multiprocessor has. */
double patterns_cost(const Patterns *patterns) {
    double N = grid_tokens(patterns->offsets.grid), clock = 132 * 1.8e9;
    return 4 * N * N * patterns->D * patterns->E / 8 / clock;
}
