/* LiSA and SA over all pairs of tokens; the formulas are those of kernels/cpu/lisa_dense.c.  Every kernel gives a
 * thread its outputs and walks the sum in order: by queries (S, y, dS, dq^), by keys (dv, dk^), by entries of the
 * tables (dwa, dwb).  A long sum is made of the sums of COLUMNS terms, against rounding.  Written for any size and any
 * offsets, not for the matrix units: where a circle or torus is large, fft has the work. */
#include "kernels/cuda/rows.cuh"
#include "kernels/kernels.h"

enum { THREADS = 256, HEADS = 16, PATTERNS = 16, ROWS = 16, COLUMNS = 32 };

struct Shape {
    Offsets offsets;
    int N, H, D, E, T;
    int channels; /* of wa: D or 1 */
    int heads;    /* B H */
    int keys;     /* that the patterns kernel takes at a time */
    unsigned blocks; /* a head's, of ROWS tokens */
};

static Shape shape_of(const Patterns *p, int B) {
    const Offsets *o = &p->offsets;
    int N = grid_tokens(o->grid), H = p->H, D = p->D, keys = D < 128 ? 128 / D : 1;
    return {*o, N, H, D, p->E, offsets_count(o), p->per_channel ? D : 1, B * H, keys, (unsigned)ceil_div(N, ROWS)};
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

/* S of one query and HEADS heads: the products q^ k^ of a few keys meet their entries in shared memory, and a thread
 * sums one head and pattern. */
__global__ void __launch_bounds__(THREADS)
    lisa_dense_patterns_kernel(real *out, const real *qk, const float *wa, Shape s) {
    SHARED(float, products);                  /* [HEADS][keys D] */
    int depth = s.keys * s.D;
    float *entries = products + HEADS * depth; /* [keys D][PATTERNS] */
    int i = blockIdx.x % s.N, first_head = (int)(blockIdx.x / s.N) * HEADS;
    int r = threadIdx.x / PATTERNS, lane = threadIdx.x % PATTERNS;
    for (int first_e = 0; first_e < s.E; first_e += PATTERNS) {
        float sum = 0;
        for (int j = 0; j < s.N; j += s.keys) {
            for (int at = threadIdx.x; at < HEADS * depth; at += THREADS) {
                int head = first_head + at / depth, key = j + at % depth / s.D, c = at % s.D;
                bool there = head < s.heads && key < s.N;
                Head h = head_at(s, there ? head : 0);
                const real *q = qk + h.qk + c;
                products[at] = there ? to_float(q[i * h.qk_row]) * to_float(q[h.y_row + key * h.qk_row]) : 0;
            }
            for (int at = threadIdx.x; at < depth * PATTERNS; at += THREADS) {
                int key = j + at / PATTERNS / s.D, c = at / PATTERNS % s.D, e = first_e + at % PATTERNS;
                int t = key < s.N ? offset_of(&s.offsets, i, key) : -1;
                entries[at] = t >= 0 && e < s.E ? entry_of(wa, t, c, s)[e] : 0;
            }
            block_sync();
            float part = 0;
            for (int k = 0; k < depth; k++) part += products[r * depth + k] * entries[k * PATTERNS + lane];
            sum += part;
            block_sync();
        }
        int head = first_head + r, e = first_e + lane;
        if (head < s.heads && e < s.E) out[((size_t)head * s.E + e) * s.N + i] = to_real(sum);
    }
}

/* tile [rows,columns] = element(row, column) for tokens first + row that are there, else 0. */
template <typename Element>
DEVICE void fill(float *tile, int rows, int columns, int first, int N, Element element) {
    for (int at = threadIdx.x; at < rows * columns; at += THREADS)
        tile[at] = first + at / columns < N ? element(first + at / columns, at % columns) : 0;
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
    fill(own, ROWS, s.E, first, s.N, [&](int i, int e) { return to_float(patterns[h.s + (size_t)e * s.N + i]); });
    block_sync();
    for (int at = threadIdx.x; at < ROWS * s.D; at += THREADS) {
        sum[at] = 0;
        for (int e = 0; e < s.E; e++) sum[at] += own[at / s.D * s.E + e] * b[(size_t)(at % s.D) * s.E + e];
    }
    for (int j = 0; j < s.N; j += COLUMNS) {
        for (int at = threadIdx.x; at < ROWS * COLUMNS; at += THREADS)
            p[at] = weight_of(own + at / COLUMNS * s.E, wb, first + at / COLUMNS, j + at % COLUMNS, s);
        fill(v, COLUMNS, s.D, j, s.N, [&](int key, int c) { return to_float(qkv[h.v + key * h.qkv_row + c]); });
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
    int first = (int)(blockIdx.x % s.blocks) * ROWS;
    Head h = head_at(s, blockIdx.x / s.blocks);
    fill(own, ROWS, s.D, first, s.N, [&](int i, int c) { return to_float(dy[h.y + i * h.y_row + c]); });
    block_sync();
    for (int at = threadIdx.x; at < ROWS * s.E; at += THREADS) {
        sum[at] = 0;
        for (int c = 0; c < s.D; c++) sum[at] += own[at / s.E * s.D + c] * b[(size_t)c * s.E + at % s.E];
    }
    for (int j = 0; j < s.N; j += COLUMNS) {
        fill(v, COLUMNS, s.D, j, s.N, [&](int key, int c) { return to_float(qkv[h.v + key * h.qkv_row + c]); });
        block_sync();
        for (int at = threadIdx.x; at < ROWS * COLUMNS; at += THREADS) {
            t[at] = 0;
            for (int c = 0; c < s.D; c++) t[at] += own[at / COLUMNS * s.D + c] * v[at % COLUMNS * s.D + c];
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
        fill(seen, COLUMNS, s.E, i, s.N, [&](int n, int e) { return to_float(patterns[h.s + (size_t)e * s.N + n]); });
        fill(g, COLUMNS, s.D, i, s.N, [&](int n, int c) { return to_float(dy[h.y + n * h.y_row + c]); });
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

/* sum_e dS[e] wa[t,c,e] */
DEVICE float channel_gradient(const float *ds, const float *wa, int t, int c, const Shape &s) {
    const float *entry = entry_of(wa, t, c, s);
    float sum = 0;
    for (int e = 0; e < s.E; e++) sum += ds[e] * entry[e];
    return sum;
}

/* dq^ and dk^ of ROWS tokens: the token as a query of all keys, then as a key of all queries. */
__global__ void __launch_bounds__(THREADS)
    lisa_dense_queries_keys_kernel(real *dqk, const float *ds, const real *qk, const float *wa, Shape s) {
    int first = (int)(blockIdx.x % s.blocks) * ROWS;
    Head h = head_at(s, blockIdx.x / s.blocks);
    const float *patterns = ds + h.ds;
    for (int at = threadIdx.x; at < ROWS * s.D; at += THREADS) {
        int i = first + at / s.D, c = at % s.D;
        const real *q = qk + h.qk + c, *k = q + h.y_row;
        float dq = 0, dk = 0;
        if (i >= s.N) continue;
        for (int first_j = 0; first_j < s.N; first_j += COLUMNS) {
            float part_q = 0, part_k = 0;
            for (int j = first_j; j < s.N && j < first_j + COLUMNS; j++) {
                int t = offset_of(&s.offsets, i, j), back = offset_of(&s.offsets, j, i);
                if (t >= 0)
                    part_q += channel_gradient(patterns + (size_t)i * s.E, wa, t, c, s) * to_float(k[j * h.qk_row]);
                if (back >= 0)
                    part_k += channel_gradient(patterns + (size_t)j * s.E, wa, back, c, s) * to_float(q[j * h.qk_row]);
            }
            dq += part_q;
            dk += part_k;
        }
        dqk[h.qk + i * h.qk_row + c] = to_real(dq);
        dqk[h.qk + h.y_row + i * h.qk_row + c] = to_real(dk);
    }
}

/* to[n] += the sum over all heads and queries of term(head, i, j, n) for the entry of this block, n < count.  Threads
 * beyond count share the heads, and their sums join in order. */
template <typename Term>
DEVICE void sum_entry(float *to, int count, float *shares, const Shape &s, Term term) {
    int t = blockIdx.x, slices = count < THREADS ? THREADS / count : 1, slice = threadIdx.x / count;
    for (int n = slices > 1 ? threadIdx.x % count : threadIdx.x; n < count; n += slices > 1 ? count : THREADS) {
        float sum = 0;
        for (int head = slices > 1 ? slice : 0; head < s.heads && slice < slices; head += slices)
            for (int first = 0; first < s.N; first += COLUMNS) {
                float part = 0;
                for (int i = first; i < s.N && i < first + COLUMNS; i++) {
                    int j = offset_key(&s.offsets, t, i);
                    if (j >= 0) part += term(head, i, j, n);
                }
                sum += part;
            }
        if (slices == 1) to[n] += sum;
        else shares[threadIdx.x] = sum;
    }
    block_sync();
    for (int n = threadIdx.x; slices > 1 && n < count; n += THREADS) {
        float sum = 0;
        for (int k = 0; k < slices; k++) sum += shares[k * count + n];
        to[n] += sum;
    }
    block_sync();
}

/* dwa and dwb of one entry. */
__global__ void __launch_bounds__(THREADS)
    lisa_dense_tables_kernel(float *dwa, float *dwb, const real *dy, const real *patterns, const float *ds,
                             const real *qk, const real *qkv, Shape s) {
    SHARED(float, shares); /* [THREADS] */
    int count = s.channels * s.E;
    sum_entry(dwa + (size_t)blockIdx.x * count, count, shares, s, [&](int head, int i, int j, int n) {
        Head h = head_at(s, head);
        const real *q = qk + h.qk + i * h.qk_row, *k = qk + h.qk + h.y_row + j * h.qk_row;
        int first = s.channels > 1 ? n / s.E : 0, end = s.channels > 1 ? first + 1 : s.D;
        float sum = 0;
        for (int c = first; c < end; c++) sum += to_float(q[c]) * to_float(k[c]);
        return sum * ds[h.ds + (size_t)i * s.E + n % s.E];
    });
    sum_entry(dwb + (size_t)blockIdx.x * s.E, s.E, shares, s, [&](int head, int i, int j, int e) {
        Head h = head_at(s, head);
        const real *g = dy + h.y + i * h.y_row, *v = qkv + h.v + j * h.qkv_row;
        float sum = 0;
        for (int c = 0; c < s.D; c++) sum += to_float(g[c]) * to_float(v[c]);
        return sum * to_float(patterns[h.s + (size_t)e * s.N + i]);
    });
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

/* dS and the shares of db. */
size_t lisa_dense_workspace(const Patterns *patterns, int B) {
    Shape s = shape_of(patterns, B);
    return (size_t)s.heads * s.E * ((size_t)s.N + s.D) * sizeof(float);
}

LISA_FORWARD(lisa_dense_forward) {
    Shape at = shape_of(&lisa->patterns, B);
    int D = at.D;
    unsigned groups = (unsigned)ceil_div(at.heads, HEADS);
    LAUNCH(lisa_dense_patterns_kernel, groups * at.N, THREADS, (HEADS + PATTERNS) * at.keys * D * sizeof(float), s, qk,
           lisa->wa, at);
    LAUNCH(lisa_dense_mix_kernel, at.heads * at.blocks, THREADS,
           (ROWS * ((size_t)D + at.E + COLUMNS) + COLUMNS * D) * sizeof(float), y, s, qkv, lisa->wb, lisa->b, at);
}

LISA_BACKWARD(lisa_dense_backward) {
    Shape at = shape_of(&lisa->patterns, B);
    int D = at.D;
    unsigned blocks = at.heads * at.blocks;
    float *ds = static_cast<float *>(kernels_workspace(lisa_dense_workspace(&lisa->patterns, B)));
    float *shares = ds + (size_t)at.heads * at.N * at.E;
    LAUNCH(lisa_dense_patterns_backward_kernel, blocks, THREADS,
           (ROWS * ((size_t)D + at.E + COLUMNS) + COLUMNS * D) * sizeof(float), ds, dy, qkv, lisa->wb, lisa->b, at);
    LAUNCH(lisa_dense_values_backward_kernel, blocks, THREADS,
           (ROWS * (size_t)D + COLUMNS * ((size_t)at.E + ROWS + D)) * sizeof(float), dqkv, dy, s, lisa->wb, at);
    LAUNCH(lisa_dense_queries_keys_kernel, blocks, THREADS, 0, dqk, ds, qk, lisa->wa, at);
    LAUNCH(lisa_dense_tables_kernel, (unsigned)at.T, THREADS, THREADS * sizeof(float), d->wa, d->wb, dy, s, ds, qk,
           qkv, at);
    LAUNCH(lisa_dense_bias_kernel, (unsigned)at.heads, THREADS, 0, shares, dy, s, at);
    add_parts(d->b, NULL, shares, at.heads, D * at.E);
}

/* Predicted, not measured: four sums over pairs, channels and patterns at an eighth of the 64 multiply-adds a clock
 * that a multiprocessor has. */
double lisa_dense_cost(const Patterns *patterns) {
    double N = grid_tokens(patterns->offsets.grid), clock = 132 * 1.8e9;
    return 4 * N * N * patterns->D * patterns->E / 8 / clock;
}
