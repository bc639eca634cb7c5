/* LiSA and SA over all pairs of tokens; the formulas are those of kernels/lisa/lisa_dense.c.  Every kernel gives a
 * thread its outputs and walks the sum in order: y, dS and dv walk keys or queries of a head; S, dq^, dk^ and the tables'
 * gradients walk the tables' entries, which they read once for ROWS tokens of some heads, since wa is larger than what a
 * head has.  A long sum is made of the sums of few terms, against rounding.  Written for any size and any offsets, not
 * for the matrix units: where a circle or torus is large, fft has the work. */
#include "kernels/cuda/banks.cuh"
#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/kernels.h"

enum { THREADS = 256, ROWS = 16, COLUMNS = 32 };

/* A block of those that walk entries: tokens, heads, patterns and channels at a time, and entries whose keys are found
 * together. */
enum { HEADS = 16, HEADS_BACK = 8, PATTERNS = 16, CHANNELS = 32, ENTRIES = 16, ENTRIES_BACK = 8 };
enum { TABLE_BLOCKS = 264 }; /* two for each multiprocessor of an H200 */

struct Shape {
    Offsets offsets;
    int N, H, D, E, T;
    int channels; /* of wa: D or 1 */
    int heads;    /* B H */
    unsigned blocks; /* a head's, of ROWS tokens */
    int slices, each; /* of the heads for the tables' gradients, and heads in a slice */
};

static Shape shape_of(const Patterns *p, int B) {
    const Offsets *o = &p->offsets;
    int N = grid_tokens(o->grid), T = offsets_count(o), heads = B * p->H;
    int wanted = TABLE_BLOCKS / (int)ceil_div(T, ENTRIES_BACK), most = wanted < 1 ? 1 : wanted;
    int each = (int)ceil_div(heads, most);
    return {*o, N, p->H, p->D, p->E, T, p->per_channel ? p->D : 1, heads, (unsigned)ceil_div(N, ROWS),
            (int)ceil_div(heads, each), each};
}

/* Where a head begins in each tensor, and from one token to the next. */
struct Head {
    size_t qk, v, y, s, ds, qk_row, qkv_row, y_row;
};

DEVICE Head head_at(const Shape &s, size_t head) {
    size_t M = (size_t)s.H * s.D, token = head / s.H * s.N, c = head % s.H * s.D, patterns = head * s.E * s.N;
    return {token * 2 * M + c, token * 3 * M + 2 * M + c, token * M + c, patterns, patterns, 2 * M, 3 * M, M};
}

DEVICE const float *entry_of(const float *wa, int t, int c, const Shape &s) {
    return wa + ((size_t)t * s.channels + (s.channels > 1 ? c : 0)) * s.E;
}

/* == Forward ====================================================================================================== */

/* The query i of key j with that entry, or -1: offset_key with the two changed about. */
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
DEVICE void find_others(int *others, int *any, int first, int token, bool as_keys, const Shape &s) {
    block_sync(); /* those before are still read */
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

/* entry [CHANNELS,PATTERNS] = wa[t], zeros beyond D and E. */
DEVICE void load_entry(float *entry, const float *wa, int t, int first_c, int first_e, const Shape &s) {
    for (int at = threadIdx.x; at < CHANNELS * PATTERNS; at += THREADS) {
        int c = first_c + at / PATTERNS, e = first_e + at % PATTERNS;
        entry[at] = c < s.D && e < s.E ? entry_of(wa, t, c, s)[e] : 0;
    }
}

/* S of ROWS queries and HEADS heads.  For every entry the products q^ k^ of the queries and their keys, a row each, meet
 * it in shared memory, and a thread sums four rows and four patterns. */
__global__ void __launch_bounds__(THREADS)
    lisa_dense_patterns_kernel(real *out, const real *qk, const float *wa, Shape s) {
    constexpr int PAIRS = ROWS * HEADS, LD = CHANNELS + 1;
    SHARED(float, products);                                       /* [PAIRS][LD], pairs by head */
    float *entry = products + PAIRS * LD;                          /* [CHANNELS][PATTERNS] */
    int *others = reinterpret_cast<int *>(entry + CHANNELS * PATTERNS), *any = others + ENTRIES * ROWS;
    int first_i = (int)(blockIdx.x % s.blocks) * ROWS, first_head = (int)(blockIdx.x / s.blocks) * HEADS;
    int row = threadIdx.x / 4, e0 = threadIdx.x % 4 * 4; /* rows row, row + 64 .. */
    for (int first_e = 0; first_e < s.E; first_e += PATTERNS) {
        float sum[4][4] = {};
        for (int t = 0; t < s.T; t++) {
            if (t % ENTRIES == 0) find_others(others, any, t, first_i, false, s);
            const int *keys = others + t % ENTRIES * ROWS;
            if (!any[t % ENTRIES]) continue;
            float part[4][4] = {};
            for (int first_c = 0; first_c < s.D; first_c += CHANNELS) {
                for (int at = threadIdx.x; at < PAIRS * CHANNELS; at += THREADS) {
                    int pair = at / CHANNELS, c = first_c + at % CHANNELS, head = first_head + pair / ROWS;
                    int i = first_i + pair % ROWS, key = keys[pair % ROWS];
                    bool there = key >= 0 && head < s.heads && c < s.D;
                    Head h = head_at(s, there ? head : 0);
                    const real *q = qk + h.qk + c;
                    products[pair * LD + at % CHANNELS] =
                        there ? to_float(q[i * h.qk_row]) * to_float(q[h.y_row + key * h.qk_row]) : 0;
                }
                load_entry(entry, wa, t, first_c, first_e, s);
                block_sync();
#pragma unroll 4
                for (int c = 0; c < CHANNELS; c++) {
                    float w[4];
                    load(w, entry + c * PATTERNS + e0);
#pragma unroll
                    for (int r = 0; r < 4; r++)
#pragma unroll
                        for (int e = 0; e < 4; e++) part[r][e] += products[(row + r * 64) * LD + c] * w[e];
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
            for (int e = e0; e < e0 + 4; e++)
                if (i < s.N && head < s.heads && first_e + e < s.E)
                    out[((size_t)head * s.E + first_e + e) * s.N + i] = to_real(sum[r][e - e0]);
        }
    }
}

/* tile [rows,columns], rows ld apart, = element(row, column) for tokens first + row that are there, else 0. */
template <typename Element>
DEVICE void fill(float *tile, int rows, int columns, int ld, int first, int N, Element element) {
    for (int at = threadIdx.x; at < rows * columns; at += THREADS) {
        int i = at / columns, c = at % columns;
        tile[i * ld + c] = first + i < N ? element(first + i, c) : 0;
    }
}

/* P[i][j] = sum_e S[i][e] wb[t(i,j),e] of tile rows; token numbers given, S of token i's row. */
DEVICE float weight_of(const float *patterns, const float *wb, int i, int j, const Shape &s) {
    int t = i < s.N && j < s.N ? offset_of(&s.offsets, i, j) : -1;
    float sum = 0;
    for (int e = 0; t >= 0 && e < s.E; e++) sum += patterns[e] * wb[(size_t)t * s.E + e];
    return sum;
}

/* y of ROWS queries. */
__global__ void __launch_bounds__(THREADS)
    lisa_dense_mix_kernel(real *y, const real *patterns, const real *qkv, const float *wb, const float *b, Shape s) {
    SHARED(float, sum);                                        /* [ROWS,D] */
    float *own = sum + ROWS * s.D, *p = own + ROWS * s.E; /* [ROWS,E], [ROWS,COLUMNS] */
    float *v = p + ROWS * COLUMNS;                        /* [COLUMNS,D] */
    int first = (int)(blockIdx.x % s.blocks) * ROWS;
    Head h = head_at(s, blockIdx.x / s.blocks);
    fill(own, ROWS, s.E, s.E, first, s.N, [&](int i, int e) { return to_float(patterns[h.s + (size_t)e * s.N + i]); });
    block_sync();
    for (int at = threadIdx.x; at < ROWS * s.D; at += THREADS) {
        sum[at] = 0;
        for (int e = 0; e < s.E; e++) sum[at] += own[at / s.D * s.E + e] * b[(size_t)(at % s.D) * s.E + e];
    }
    for (int j = 0; j < s.N; j += COLUMNS) {
        for (int at = threadIdx.x; at < ROWS * COLUMNS; at += THREADS)
            p[at] = weight_of(own + at / COLUMNS * s.E, wb, first + at / COLUMNS, j + at % COLUMNS, s);
        fill(v, COLUMNS, s.D, s.D, j, s.N, [&](int key, int c) { return to_float(qkv[h.v + key * h.qkv_row + c]); });
        block_sync();
        for (int at = threadIdx.x; at < ROWS * s.D; at += THREADS) {
            float part = 0;
            for (int n = 0; n < COLUMNS; n++) part += p[at / s.D * COLUMNS + n] * v[n * s.D + at % s.D];
            sum[at] += part;
        }
        block_sync();
    }
    for (int at = threadIdx.x; at < ROWS * s.D; at += THREADS)
        if (first + at / s.D < s.N) y[h.y + (first + at / s.D) * h.y_row + at % s.D] = to_real(sum[at]);
}

/* == Backward ===================================================================================================== */

/* dS [heads,N,E] of ROWS queries. */
__global__ void __launch_bounds__(THREADS)
    lisa_dense_patterns_backward_kernel(float *ds, const real *dy, const real *qkv, const float *wb, const float *b,
                                        Shape s) {
    SHARED(float, sum);                                         /* [ROWS,E] */
    float *own = sum + ROWS * s.E, *t = own + ROWS * s.D; /* [ROWS,D], [ROWS,COLUMNS] */
    float *v = t + ROWS * COLUMNS;                        /* [COLUMNS,D] */
    int first = (int)(blockIdx.x % s.blocks) * ROWS, ld = odd_ld(s.D);
    Head h = head_at(s, blockIdx.x / s.blocks);
    fill(own, ROWS, s.D, s.D, first, s.N, [&](int i, int c) { return to_float(dy[h.y + i * h.y_row + c]); });
    block_sync();
    for (int at = threadIdx.x; at < ROWS * s.E; at += THREADS) {
        sum[at] = 0;
        for (int c = 0; c < s.D; c++) sum[at] += own[at / s.E * s.D + c] * b[(size_t)c * s.E + at % s.E];
    }
    for (int j = 0; j < s.N; j += COLUMNS) {
        fill(v, COLUMNS, s.D, ld, j, s.N, [&](int key, int c) { return to_float(qkv[h.v + key * h.qkv_row + c]); });
        block_sync();
        for (int at = threadIdx.x; at < ROWS * COLUMNS; at += THREADS) {
            t[at] = 0;
            for (int c = 0; c < s.D; c++) t[at] += own[at / COLUMNS * s.D + c] * v[at % COLUMNS * ld + c];
        }
        block_sync();
        for (int at = threadIdx.x; at < ROWS * s.E; at += THREADS) {
            float part = 0;
            for (int n = 0; n < COLUMNS; n++) {
                int i = first + at / s.E, entry = i < s.N && j + n < s.N ? offset_of(&s.offsets, i, j + n) : -1;
                if (entry >= 0) part += t[at / s.E * COLUMNS + n] * wb[(size_t)entry * s.E + at % s.E];
            }
            sum[at] += part;
        }
        block_sync();
    }
    for (int at = threadIdx.x; at < ROWS * s.E; at += THREADS)
        if (first + at / s.E < s.N) ds[h.ds + (size_t)(first + at / s.E) * s.E + at % s.E] = sum[at];
}

/* dv of ROWS keys. */
__global__ void __launch_bounds__(THREADS)
    lisa_dense_values_backward_kernel(real *dqkv, const real *dy, const real *patterns, const float *wb, Shape s) {
    SHARED(float, sum);                                             /* [ROWS,D] */
    float *seen = sum + ROWS * s.D, *p = seen + COLUMNS * s.E; /* [COLUMNS,E], [COLUMNS,ROWS] */
    float *g = p + COLUMNS * ROWS;                             /* [COLUMNS,D] */
    int first = (int)(blockIdx.x % s.blocks) * ROWS;
    Head h = head_at(s, blockIdx.x / s.blocks);
    for (int at = threadIdx.x; at < ROWS * s.D; at += THREADS) sum[at] = 0;
    for (int i = 0; i < s.N; i += COLUMNS) {
        fill(seen, COLUMNS, s.E, s.E, i, s.N, [&](int n, int e) { return to_float(patterns[h.s + (size_t)e * s.N + n]); });
        fill(g, COLUMNS, s.D, s.D, i, s.N, [&](int n, int c) { return to_float(dy[h.y + n * h.y_row + c]); });
        block_sync();
        for (int at = threadIdx.x; at < COLUMNS * ROWS; at += THREADS)
            p[at] = weight_of(seen + at / ROWS * s.E, wb, i + at / ROWS, first + at % ROWS, s);
        block_sync();
        for (int at = threadIdx.x; at < ROWS * s.D; at += THREADS) {
            float part = 0;
            for (int n = 0; n < COLUMNS; n++) part += p[n * ROWS + at / s.D] * g[n * s.D + at % s.D];
            sum[at] += part;
        }
        block_sync();
    }
    for (int at = threadIdx.x; at < ROWS * s.D; at += THREADS)
        if (first + at / s.D < s.N) dqkv[h.v + (first + at / s.D) * h.qkv_row + at % s.D] = to_real(sum[at]);
}

/* dq^ of ROWS queries and HEADS_BACK heads, or dk^ of as many keys.  For every entry the rows of dS meet it in shared
 * memory, and a thread sums four rows and four channels of their products, each times its key or query. */
__global__ void __launch_bounds__(THREADS)
    lisa_dense_queries_keys_kernel(real *dqk, const float *ds, const real *qk, const float *wa, Shape s) {
    constexpr int PAIRS = ROWS * HEADS_BACK, LD = PATTERNS + 1;
    SHARED(float, rows);                         /* [PAIRS][LD] of dS, pairs by head */
    float *entry = rows + PAIRS * LD;            /* [CHANNELS][LD] */
    int *others = reinterpret_cast<int *>(entry + CHANNELS * LD), *any = others + ENTRIES * ROWS;
    bool as_keys = blockIdx.y;
    int first_i = (int)(blockIdx.x % s.blocks) * ROWS, first_head = (int)(blockIdx.x / s.blocks) * HEADS_BACK;
    int row = threadIdx.x / 8, c0 = threadIdx.x % 8; /* rows row, row + 32 .., channels c0, c0 + 8 .. */
    for (int first_c = 0; first_c < s.D; first_c += CHANNELS) {
        float sum[4][4] = {};
        for (int t = 0; t < s.T; t++) {
            if (t % ENTRIES == 0) find_others(others, any, t, first_i, as_keys, s);
            const int *other = others + t % ENTRIES * ROWS;
            if (!any[t % ENTRIES]) continue;
            float part[4][4] = {};
            for (int first_e = 0; first_e < s.E; first_e += PATTERNS) {
                for (int at = threadIdx.x; at < PAIRS * PATTERNS; at += THREADS) {
                    int pair = at / PATTERNS, e = first_e + at % PATTERNS, head = first_head + pair / ROWS;
                    int query = as_keys ? other[pair % ROWS] : first_i + pair % ROWS;
                    bool there = other[pair % ROWS] >= 0 && head < s.heads && e < s.E;
                    rows[pair * LD + at % PATTERNS] = there ? ds[((size_t)head * s.N + query) * s.E + e] : 0;
                }
                for (int at = threadIdx.x; at < CHANNELS * PATTERNS; at += THREADS) {
                    int c = first_c + at / PATTERNS, e = first_e + at % PATTERNS;
                    entry[at / PATTERNS * LD + at % PATTERNS] = c < s.D && e < s.E ? entry_of(wa, t, c, s)[e] : 0;
                }
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
                int pair = row + r * 32, head = first_head + pair / ROWS, place = other[pair % ROWS];
                if (place < 0 || head >= s.heads) continue;
                Head h = head_at(s, head);
                const real *factor = qk + h.qk + (as_keys ? 0 : h.y_row) + place * h.qk_row + first_c + c0;
#pragma unroll
                for (int c = 0; c < 4; c++)
                    if (first_c + c0 + c * 8 < s.D) sum[r][c] += part[r][c] * to_float(factor[c * 8]);
            }
        }
        for (int r = 0; r < 4; r++) {
            int pair = row + r * 32, i = first_i + pair % ROWS, head = first_head + pair / ROWS;
            if (i >= s.N || head >= s.heads) continue;
            Head h = head_at(s, head);
            real *to = dqk + h.qk + (as_keys ? h.y_row : 0) + i * h.qk_row;
            for (int c = first_c + c0, n = 0; n < 4; n++, c += 8)
                if (c < s.D) to[c] = to_real(sum[r][n]);
        }
    }
}

/* part[e] = the sum over the block's heads and all queries of (x_i z_j) P[i,e], the product one of all channels, for a
 * warp's entry t: x [N,D] from row to row `x_row`, and so on; P[i,e] = pattern(head, i, e).  Lane e has part[e]. */
template <typename Places, typename Pattern>
DEVICE void entry_by_products(float *part, int t, int first_head, int last_head, const Shape &s, Places places,
                              Pattern pattern) {
    for (int first_e = 0; first_e < s.E; first_e += WARP) {
        int e = first_e + lane_id();
        float sum = 0;
        for (int head = first_head; head < last_head; head++)
            for (int first = 0; first < s.N; first += COLUMNS) {
                float few = 0;
                for (int i = first; i < s.N && i < first + COLUMNS; i++) {
                    int j = offset_key(&s.offsets, t, i);
                    if (j < 0) continue;
                    const real *x, *z;
                    places(head, i, j, &x, &z);
                    float product = 0;
                    for (int c = lane_id(); c < s.D; c += WARP) product += to_float(x[c]) * to_float(z[c]);
                    product = warp_sum(product);
                    if (e < s.E) few += product * pattern(head, i, e);
                }
                sum += few;
            }
        if (e < s.E) part[e] = sum;
    }
}

/* A slice's share of dwa and dwb for ENTRIES_BACK entries, one to a warp: parts [slices][dwa, dwb].  For dwa with a weight
 * for each channel the products of ROWS queries and their keys meet dS in shared memory, and a lane sums four channels
 * and four patterns. */
__global__ void __launch_bounds__(THREADS)
    lisa_dense_tables_kernel(float *parts, const real *dy, const real *patterns, const float *ds, const real *qk,
                             const real *qkv, Shape s) {
    constexpr int LD = CHANNELS + 1;
    SHARED(float, seen);                                                   /* [ROWS][PATTERNS] of dS */
    float *products = seen + ROWS * PATTERNS + warp_id() * ROWS * LD; /* [ROWS][LD], for each warp */
    int t = (int)blockIdx.x * ENTRIES_BACK + warp_id(), count = s.channels * s.E;
    int first_head = (int)blockIdx.y * s.each, last_head = first_head + s.each < s.heads ? first_head + s.each : s.heads;
    float *own = parts + (size_t)blockIdx.y * s.T * (count + s.E);
    float *dwa = own + (size_t)t * count, *dwb = own + (size_t)s.T * count + (size_t)t * s.E;
    int c0 = lane_id() / 4, e0 = lane_id() % 4 * 4; /* channels c0, c0 + 8 .. */
    bool there = t < s.T;
    if (there)
        entry_by_products(
            dwb, t, first_head, last_head, s,
            [&](int head, int i, int j, const real **x, const real **z) {
                Head h = head_at(s, head);
                *x = dy + h.y + i * h.y_row;
                *z = qkv + h.v + j * h.qkv_row;
            },
            [&](int head, int i, int e) { return to_float(patterns[((size_t)head * s.E + e) * s.N + i]); });
    if (there && s.channels == 1)
        entry_by_products(
            dwa, t, first_head, last_head, s,
            [&](int head, int i, int j, const real **x, const real **z) {
                Head h = head_at(s, head);
                *x = qk + h.qk + i * h.qk_row;
                *z = qk + h.qk + h.y_row + j * h.qk_row;
            },
            [&](int head, int i, int e) { return ds[((size_t)head * s.N + i) * s.E + e]; });
    if (s.channels == 1) return;
    for (int first_c = 0; first_c < s.D; first_c += CHANNELS)
        for (int first_e = 0; first_e < s.E; first_e += PATTERNS) {
            float sum[4][4] = {};
            for (int head = first_head; head < last_head; head++) {
                Head h = head_at(s, head);
                for (int first = 0; first < s.N; first += ROWS) {
                    for (int at = threadIdx.x; at < ROWS * PATTERNS; at += THREADS) {
                        int i = first + at / PATTERNS, e = first_e + at % PATTERNS;
                        seen[at] = i < s.N && e < s.E ? ds[((size_t)head * s.N + i) * s.E + e] : 0;
                    }
                    int c = first_c + lane_id();
                    for (int n = 0; n < ROWS; n++) {
                        int i = first + n, j = there && i < s.N ? offset_key(&s.offsets, t, i) : -1;
                        const real *q = qk + h.qk + c;
                        products[n * LD + lane_id()] =
                            j >= 0 && c < s.D ? to_float(q[i * h.qk_row]) * to_float(q[h.y_row + j * h.qk_row]) : 0;
                    }
                    block_sync();
                    float part[4][4] = {};
#pragma unroll 4
                    for (int n = 0; n < ROWS; n++) {
                        float g[4];
                        load(g, seen + n * PATTERNS + e0);
#pragma unroll
                        for (int k = 0; k < 4; k++)
#pragma unroll
                            for (int e = 0; e < 4; e++) part[k][e] += products[n * LD + c0 + k * 8] * g[e];
                    }
                    block_sync();
#pragma unroll
                    for (int k = 0; k < 4; k++)
#pragma unroll
                        for (int e = 0; e < 4; e++) sum[k][e] += part[k][e];
                }
            }
            for (int k = 0; k < 4; k++)
                for (int e = first_e + e0, n = 0; n < 4; n++, e++) {
                    int c = first_c + c0 + k * 8;
                    if (there && c < s.D && e < s.E) dwa[(size_t)c * s.E + e] = sum[k][n];
                }
        }
}

/* A head's share of db[c,e] = sum dy[i,c] S[i,e]. */
__global__ void __launch_bounds__(THREADS)
    lisa_dense_bias_kernel(float *db, const real *dy, const real *patterns, Shape s) {
    Head h = head_at(s, blockIdx.x);
    for (int at = threadIdx.x; at < s.D * s.E; at += THREADS) {
        float sum = 0;
        for (int i = 0; i < s.N; i++)
            sum += to_float(dy[h.y + i * h.y_row + at / s.E]) * to_float(patterns[h.s + (size_t)(at % s.E) * s.N + i]);
        db[(size_t)blockIdx.x * s.D * s.E + at] = sum;
    }
}

/* == Launches ===================================================================================================== */

/* Floats that a slice has of dwa and dwb. */
static size_t tables_size(const Shape &s) { return (size_t)s.T * (s.channels + 1) * s.E; }

/* dS, the shares of db, and the slices' of dwa and dwb. */
size_t lisa_dense_workspace(const Patterns *patterns, int B) {
    Shape s = shape_of(patterns, B);
    return ((size_t)s.heads * s.E * ((size_t)s.N + s.D) + s.slices * tables_size(s)) * sizeof(float);
}

LISA_FORWARD(lisa_dense_forward) {
    Shape at = shape_of(&lisa->patterns, B);
    int D = at.D;
    unsigned groups = (unsigned)ceil_div(at.heads, HEADS);
    LAUNCH(lisa_dense_patterns_kernel, groups * at.blocks, THREADS,
           (ROWS * HEADS * (CHANNELS + 1) + CHANNELS * PATTERNS + ENTRIES * (ROWS + 1)) * sizeof(float), s, qk,
           lisa->wa, at);
    LAUNCH(lisa_dense_mix_kernel, at.heads * at.blocks, THREADS,
           (ROWS * ((size_t)D + at.E + COLUMNS) + COLUMNS * D) * sizeof(float), y, s, qkv, lisa->wb, lisa->b, at);
}

LISA_BACKWARD(lisa_dense_backward) {
    Shape at = shape_of(&lisa->patterns, B);
    int D = at.D, E = at.E, count = at.T * at.channels * E;
    unsigned blocks = at.heads * at.blocks, groups = (unsigned)ceil_div(at.heads, HEADS_BACK);
    float *ds = static_cast<float *>(kernels_workspace(lisa_dense_workspace(&lisa->patterns, B)));
    float *shares = ds + (size_t)at.heads * at.N * E, *tables = shares + (size_t)at.heads * D * E;
    LAUNCH(lisa_dense_patterns_backward_kernel, blocks, THREADS,
           (ROWS * ((size_t)D + E + COLUMNS) + COLUMNS * odd_ld(D)) * sizeof(float), ds, dy, qkv, lisa->wb, lisa->b, at);
    LAUNCH(lisa_dense_values_backward_kernel, blocks, THREADS,
           (ROWS * (size_t)D + COLUMNS * ((size_t)E + ROWS + D)) * sizeof(float), dqkv, dy, s, lisa->wb, at);
    LAUNCH(lisa_dense_queries_keys_kernel, dim3(groups * at.blocks, 2), THREADS,
           ((ROWS * HEADS_BACK + CHANNELS) * (PATTERNS + 1) + ENTRIES * (ROWS + 1)) * sizeof(float), dqk, ds, qk,
           lisa->wa, at);
    LAUNCH(lisa_dense_tables_kernel, dim3((unsigned)ceil_div(at.T, ENTRIES_BACK), (unsigned)at.slices), THREADS,
           (ROWS * PATTERNS + ENTRIES_BACK * ROWS * (CHANNELS + 1)) * sizeof(float), tables, dy, s, ds, qk, qkv, at);
    add_parts_to({{d->wa, d->wb}, {count, at.T * E}}, tables, at.slices, (int)tables_size(at));
    LAUNCH(lisa_dense_bias_kernel, (unsigned)at.heads, THREADS, 0, shares, dy, s, at);
    add_parts(d->b, NULL, shares, at.heads, D * E);
}

/* Predicted, not measured: four sums over pairs, channels and patterns at an eighth of the 64 multiply-adds a clock
 * that a multiprocessor has. */
double lisa_dense_cost(const Patterns *patterns) {
    double N = grid_tokens(patterns->offsets.grid), clock = 132 * 1.8e9;
    return 4 * N * N * patterns->D * patterns->E / 8 / clock;
}
