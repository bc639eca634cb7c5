/* LiSA with cuFFT's transforms; the formulas are those of kernels/lisa/lisa_fft.c.  Between two transforms, a spectrum
 * is multiplied by that of every pattern, [heads,E,D,F] in memory; F is the size of the half spectrum of N tokens. A
 * thread computes one number of a result, and its sums in a fixed order.  Heads are processed in chunks, so that
 * workspace does not grow with the batch.  If there are only plans for more heads than a chunk has, the memory after
 * them is transformed as well, and its result is not read. */
#include <device.cuh>

#include "kernels/lisa/lisa.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/lisa/transforms.h"
#include "kernels/lisa/lisa.h"
#include "kernels/offsets/offsets.h"
#include "kernels/offsets/patterns.h"
#include "kernels/tokens/grid.h"

extern "C" {
#include "core/die.h"
}

enum { THREADS = 256 };
static const size_t MOST_HEAD_BYTES = (size_t)256 << 20;

struct CufftShape {
    int N, F, H, D, E;
    int first_head, heads; /* of this launch */
    Divisor by_N, by_F, by_H, by_D, by_E, by_tables; /* tables: D channels' and wb */
};

/* == Plans and workspace ========================================================================================== */

/* The transforms for chunks of `heads` heads. */
struct CufftChunks {
    Patterns patterns;
    int heads;
    const Transform *tables, *values, *products; /* of (D+1) E, 2 D heads, and E D heads tensors */
    CufftChunks *next;
};

static int heads_at_once(const Patterns *p, int B) {
    size_t N = (size_t)grid_tokens(p->offsets.grid);
    size_t F = (size_t)half_of(p->offsets.grid, p->offsets.kind == OFFSETS_TORUS);
    size_t each = (size_t)p->E * p->D * (F * sizeof(Complex) + N * sizeof(float)), heads = (size_t)B * p->H;
    size_t most = MOST_HEAD_BYTES > each ? MOST_HEAD_BYTES / each : 1;
    return (int)(most < heads ? most : heads);
}

/* The plans for a chunk, made when memory is planned.  In a step, the smallest ones that are large enough are used,
 * because nothing may be allocated there unless the grid is new.  The most recent plans are kept, and their transforms
 * are made again if they were freed. */
static const CufftChunks *chunks_for(const Patterns *p, int heads, bool in_step) {
    enum { MOST = 512 };
    static CufftChunks *known;
    CufftChunks *best = NULL, **last = &known;
    int count = 0;
    for (; *last; last = &(*last)->next, count++) {
        CufftChunks *k = *last;
        if (same_patterns(k->patterns, *p) && (in_step ? k->heads >= heads : k->heads == heads) &&
            (!best || k->heads < best->heads))
            best = k;
        if (count == MOST && !best) break; /* the last one is replaced */
    }
    if (!best) {
        best = *last ? *last : static_cast<CufftChunks *>(xcalloc(1, sizeof *best, "transform plan"));
        if (*last) *last = best->next;
        *best = {*p, heads, NULL, NULL, NULL, known};
        known = best;
    }
    Grid g = p->offsets.grid;
    bool grid = p->offsets.kind == OFFSETS_TORUS;
    best->tables = transform_plan(g, grid, (p->D + 1) * p->E);
    best->values = transform_plan(g, grid, best->heads * 2 * p->D);
    best->products = transform_plan(g, grid, best->heads * p->E * p->D);
    return best;
}

static CufftShape shape_of(const Patterns *p, const CufftChunks *k) {
    int N = k->products->N, F = k->products->F;
    return {N, F, p->H, p->D, p->E, 0, k->heads, divisor_of(N), divisor_of(F), divisor_of(p->H), divisor_of(p->D),
            divisor_of(p->E), divisor_of(p->D + 1)};
}

struct CufftBuffers {
    float *tables;       /* [D+1,E,N]: wa of every channel, then wb; at the end their gradients */
    Complex *w, *dw;     /* [D+1,E,F] */
    Complex *dwb;        /* [D,E,F]: wb's gradient from every channel */
    float *values;       /* [heads,2,D,N]: k and v; at the end their gradients */
    Complex *kv, *dkv;   /* [heads,2,D,F] */
    float *y;            /* [heads,E,D,N] */
    Complex *products;   /* [heads,E,D,F] */
    float *ds;           /* [heads,E,N] */
    void *work;
};

static CufftBuffers buffers_of(const CufftShape &s, const CufftChunks *k, void *base, size_t *bytes) {
    size_t next = 0, tables = (size_t)(s.D + 1) * s.E, values = (size_t)k->heads * 2 * s.D;
    size_t products = (size_t)k->heads * s.E * s.D, work = k->products->work_bytes;
    auto take = [&](size_t size) {
        void *at = base ? static_cast<char *>(base) + next : NULL;
        next += ceil_div(size, 256) * 256;
        return at;
    };
    auto reals = [&](size_t n) { return static_cast<float *>(take(n * s.N * sizeof(float))); };
    auto spectra = [&](size_t n) { return static_cast<Complex *>(take(n * s.F * sizeof(Complex))); };
    if (k->values->work_bytes > work) work = k->values->work_bytes;
    if (k->tables->work_bytes > work) work = k->tables->work_bytes;
    CufftBuffers w;
    w.tables = reals(tables);
    w.w = spectra(tables);
    w.dw = spectra(tables);
    w.dwb = spectra((size_t)s.D * s.E);
    w.values = reals(values);
    w.kv = spectra(values);
    w.dkv = spectra(values);
    w.y = reals(products);
    w.products = spectra(products);
    w.ds = reals((size_t)k->heads * s.E);
    w.work = take(work);
    *bytes = next;
    return w;
}

static size_t chunk_bytes(const Patterns *patterns, int heads, bool in_step) {
    const CufftChunks *k = chunks_for(patterns, heads, in_step);
    size_t bytes;
    buffers_of(shape_of(patterns, k), k, NULL, &bytes);
    return bytes;
}

size_t lisa_cufft_workspace(const Patterns *patterns, int B, bool in_step) {
    int heads = heads_at_once(patterns, B), left = B * patterns->H % heads;
    size_t bytes = chunk_bytes(patterns, heads, in_step), last = left ? chunk_bytes(patterns, left, in_step) : 0;
    return last > bytes ? last : bytes;
}

/* == Indices ====================================================================================================== */

/* The number of a thread, in [heads,E,D,...]. */
struct CufftPlace {
    int head, e, c, x;
};

DEVICE int thread_at() { return (int)(blockIdx.x * THREADS + threadIdx.x); }

DEVICE CufftPlace place_of(int n, const Divisor &by_x, const CufftShape &s) {
    CufftPlace p;
    p.head = divided(divided(divided(n, by_x, &p.x), s.by_D, &p.c), s.by_E, &p.e);
    return p;
}

/* The element of x [heads,2,D,size]: k's is part 0, v's 1. */
DEVICE size_t value_at(const CufftPlace &p, int part, int size, const CufftShape &s) {
    return ((size_t)(p.head * 2 + part) * s.D + p.c) * size + p.x;
}
/* The element of x [heads,E,D,size]. */
DEVICE size_t product_at(const CufftPlace &p, int size, const CufftShape &s) {
    return ((size_t)(p.head * s.E + p.e) * s.D + p.c) * size + p.x;
}
/* The element of w [D+1,E,F]: wa's, or wb's, which all channels share. */
DEVICE size_t table_at(const CufftPlace &p, int part, const CufftShape &s) {
    return ((size_t)(part ? s.D : p.c) * s.E + p.e) * s.F + p.x;
}

/* == Before the transforms, and after ============================================================================= */

/* tables [D+1,E,N] from wa [N,D,E] and wb [N,E]; or their gradients, += in the other direction. */
template <bool BACK>
__global__ void __launch_bounds__(THREADS) lisa_tables_kernel(float *wa, float *wb, float *tables, CufftShape s) {
    int n = thread_at(), c, e;
    if (n >= s.N * (s.D + 1) * s.E) return;
    int t = divided(divided(n, s.by_E, &e), s.by_tables, &c);
    float *own = c < s.D ? wa + ((size_t)t * s.D + c) * s.E + e : wb + (size_t)t * s.E + e;
    float *table = tables + ((size_t)c * s.E + e) * s.N + t;
    if (BACK) *own += 1.0f / s.N * *table;
    else *table = *own;
}

__global__ void __launch_bounds__(THREADS)
    lisa_values_kernel(float *values, const real *qk, const real *qkv, CufftShape s) {
    int n = thread_at();
    if (n >= s.heads * s.N * s.D) return;
    CufftPlace p = {};
    p.head = divided(divided(n, s.by_D, &p.c), s.by_N, &p.x);
    LisaHead at = head_at(s, p.head);
    values[value_at(p, 0, s.N, s)] = to_float(qk[at.qk + at.y_row + p.x * at.qk_row + p.c]);
    values[value_at(p, 1, s.N, s)] = to_float(qkv[at.v + p.x * at.qkv_row + p.c]);
}

__global__ void __launch_bounds__(THREADS)
    lisa_values_backward_kernel(real *dqk, real *dqkv, const float *values, CufftShape s) {
    int n = thread_at();
    if (n >= s.heads * s.N * s.D) return;
    CufftPlace p = {};
    p.head = divided(divided(n, s.by_D, &p.c), s.by_N, &p.x);
    LisaHead at = head_at(s, p.head);
    dqk[at.qk + at.y_row + p.x * at.qk_row + p.c] = to_real(values[value_at(p, 0, s.N, s)]);
    dqkv[at.v + p.x * at.qkv_row + p.c] = to_real(values[value_at(p, 1, s.N, s)]);
}

/* == Spectra ====================================================================================================== */

/* Spectra of all convolutions of k (part 0) or v (1). */
__global__ void __launch_bounds__(THREADS)
    lisa_products_kernel(Complex *products, const Complex *kv, const Complex *w, int part, CufftShape s) {
    int n = thread_at();
    if (n >= s.heads * s.E * s.D * s.F) return;
    CufftPlace p = place_of(n, s.by_F, s);
    products[n] = scaled(1.0f / s.N, times(kv[value_at(p, part, s.F, s)], w[table_at(p, part, s)]));
}

/* dkv of one part, with a thread for each number. */
__global__ void __launch_bounds__(THREADS)
    lisa_products_backward_kernel(Complex *dkv, const Complex *products, const Complex *w, int part, CufftShape s) {
    int n = thread_at();
    if (n >= s.heads * s.D * s.F) return;
    CufftPlace p = {};
    p.head = divided(divided(n, s.by_F, &p.x), s.by_D, &p.c);
    Complex sum = complex_of(0, 0);
    for (p.e = 0; p.e < s.E; p.e++)
        sum = plus(sum, correlation(w[table_at(p, part, s)], products[product_at(p, s.F, s)]));
    dkv[value_at(p, part, s.F, s)] = scaled(1.0f / s.N, sum);
}

/* dw [D,E,F] of one part, added to unless `first`.  The products of v's part are spectra of S dy, whose frequency 0 is
 * the sum for db; db is NULL for the part of k. */
__global__ void __launch_bounds__(THREADS)
    lisa_tables_backward_kernel(Complex *dw, float *db, const Complex *products, const Complex *kv, int part,
                                bool first, CufftShape s) {
    int n = thread_at();
    if (n >= s.D * s.E * s.F) return;
    CufftPlace p = {};
    p.c = divided(divided(n, s.by_F, &p.x), s.by_E, &p.e);
    Complex sum = first ? complex_of(0, 0) : dw[n];
    float sums = 0;
    for (p.head = 0; p.head < s.heads; p.head++) {
        Complex product = products[product_at(p, s.F, s)];
        sum = plus(sum, correlation(kv[value_at(p, part, s.F, s)], product));
        sums += product.x;
    }
    dw[n] = sum;
    if (db && p.x == 0) db[p.c * s.E + p.e] += sums;
}

/* The last table of dw [D+1,E,F]: the sum of dwb [D,E,F] over the channels. */
__global__ void __launch_bounds__(THREADS) lisa_shared_table_kernel(Complex *dw, const Complex *dwb, CufftShape s) {
    int n = thread_at(), all = s.E * s.F;
    if (n >= all) return;
    Complex sum = complex_of(0, 0);
    for (int c = 0; c < s.D; c++) sum = plus(sum, dwb[(size_t)c * all + n]);
    dw[(size_t)s.D * all + n] = sum;
}

/* == Sums over channels and patterns ============================================================================== */

/* Patterns [heads,E,N] begin with the launch's first head. */
DEVICE size_t pattern_at(const CufftPlace &p, const CufftShape &s) { return ((size_t)p.head * s.E + p.e) * s.N + p.x; }

/* b[c,e], or 0 without b. */
DEVICE float bias_of(const float *b, const CufftPlace &p, const CufftShape &s) { return b ? b[p.c * s.E + p.e] : 0; }

/* out_e[i] = sum_c left[i,c] (y[e,c,i] + b[c,e]): S from q, or dS from dy. */
template <bool BACK, typename T>
__global__ void __launch_bounds__(THREADS)
    lisa_collect_kernel(T *out, const real *left, const float *y, const float *b, CufftShape s) {
    int n = thread_at();
    if (n >= s.heads * s.E * s.N) return;
    CufftPlace p = {};
    p.head = divided(divided(n, s.by_N, &p.x), s.by_E, &p.e);
    LisaHead at = head_at(s, p.head);
    left += (BACK ? at.y : at.qk) + p.x * (BACK ? at.y_row : at.qk_row);
    float sum = 0;
    for (p.c = 0; p.c < s.D; p.c++) sum += to_float(left[p.c]) * (y[product_at(p, s.N, s)] + bias_of(b, p, s));
    out[n] = rounded(sum, out);
}

/* out[i,c] = sum_e patterns_e[i] (y[e,c,i] + b[c,e]): y from S, or dq^ from dS. */
template <bool BACK, typename T>
__global__ void __launch_bounds__(THREADS)
    lisa_spread_kernel(real *out, const T *patterns, const float *y, const float *b, CufftShape s) {
    int n = thread_at();
    if (n >= s.heads * s.D * s.N) return;
    CufftPlace p = {};
    p.head = divided(divided(n, s.by_N, &p.x), s.by_D, &p.c);
    LisaHead at = head_at(s, p.head);
    float sum = 0;
    for (p.e = 0; p.e < s.E; p.e++)
        sum += to_float(patterns[pattern_at(p, s)]) * (y[product_at(p, s.N, s)] + bias_of(b, p, s));
    out[(BACK ? at.qk : at.y) + p.x * (BACK ? at.qk_row : at.y_row) + p.c] = to_real(sum);
}

/* y[e,c,i] = patterns_e[i] x[i,c]: of S and dy, or of dS and q^. */
template <bool Q, typename T>
__global__ void __launch_bounds__(THREADS) lisa_outer_kernel(float *y, const T *patterns, const real *x, CufftShape s) {
    int n = thread_at();
    if (n >= s.heads * s.E * s.D * s.N) return;
    CufftPlace p = place_of(n, s.by_N, s);
    LisaHead at = head_at(s, p.head);
    x += (Q ? at.qk : at.y) + p.x * (Q ? at.qk_row : at.y_row);
    y[n] = to_float(patterns[pattern_at(p, s)]) * to_float(x[p.c]);
}

/* == Launches ===================================================================================================== */

enum CufftPart { KEYS, VALUES };

static unsigned blocks_of(size_t numbers) { return (unsigned)ceil_div(numbers, THREADS); }
static size_t products_of(const CufftShape &s, int size) { return (size_t)s.heads * s.E * s.D * size; }

/* y = the convolutions of k or v with all patterns. */
static void convolve(const CufftBuffers &w, const CufftChunks *k, CufftPart part, const CufftShape &s) {
    LAUNCH(lisa_products_kernel, blocks_of(products_of(s, s.F)), THREADS, 0, w.products, w.kv, w.w, part, s);
    transform_backward(k->products, w.y, w.products, w.work);
}

/* dkv and the tables' gradients of one part, from y. */
static void correlate(const CufftBuffers &w, const CufftChunks *k, CufftPart part, float *db, const CufftShape &s) {
    transform_forward(k->products, w.products, w.y, w.work);
    LAUNCH(lisa_products_backward_kernel, blocks_of((size_t)s.heads * s.D * s.F), THREADS, 0, w.dkv, w.products, w.w,
           part, s);
    LAUNCH(lisa_tables_backward_kernel, blocks_of((size_t)s.D * s.E * s.F), THREADS, 0, part == KEYS ? w.dw : w.dwb, db,
           w.products, w.kv, part, s.first_head == 0, s);
}

static void spectra(const CufftBuffers &w, const CufftChunks *k, const real *qk, const real *qkv, const CufftShape &s) {
    LAUNCH(lisa_values_kernel, blocks_of((size_t)s.heads * s.N * s.D), THREADS, 0, w.values, qk, qkv, s);
    transform_forward(k->values, w.kv, w.values, w.work);
}

static unsigned tables_blocks(const CufftShape &s) { return blocks_of((size_t)s.N * (s.D + 1) * s.E); }

static CufftBuffers begin(const CufftChunks *k, void *work, const LisaTables *lisa, const CufftShape &s) {
    size_t bytes;
    CufftBuffers w = buffers_of(s, k, work, &bytes);
    LAUNCH((lisa_tables_kernel<false>), tables_blocks(s), THREADS, 0, const_cast<float *>(lisa->wa),
           const_cast<float *>(lisa->wb), w.tables, s);
    transform_forward(k->tables, w.w, w.tables, w.work);
    return w;
}

static const CufftChunks *planned(const LisaTables *lisa, int B) {
    return chunks_for(&lisa->patterns, heads_at_once(&lisa->patterns, B), true);
}

/* Calls visit(plans, buffers, shape of a launch) for each chunk.  All chunks have the tables and their gradients in the
 * same memory. */
template <typename Visit>
static void for_chunks(void *work, CufftShape s, const LisaTables *lisa, int B, Visit visit) {
    int heads = B * s.H, most = heads_at_once(&lisa->patterns, B);
    for (s.first_head = 0; s.first_head < heads; s.first_head += most) {
        s.heads = heads - s.first_head < most ? heads - s.first_head : most;
        const CufftChunks *k = chunks_for(&lisa->patterns, s.heads, true);
        size_t bytes;
        visit(k, buffers_of(s, k, work, &bytes), s);
    }
}

void lisa_cufft_forward(void *work, real *y, real *s, const real *qk, const real *qkv, const LisaTables *lisa, int B) {
    const CufftChunks *whole = planned(lisa, B);
    CufftShape shape = shape_of(&lisa->patterns, whole);
    begin(whole, work, lisa, shape);
    for_chunks(work, shape, lisa, B, [&](const CufftChunks *k, const CufftBuffers &w, const CufftShape &at) {
        real *patterns = s + (size_t)at.first_head * at.E * at.N;
        spectra(w, k, qk, qkv, at);
        convolve(w, k, KEYS, at);
        LAUNCH((lisa_collect_kernel<false, real>), blocks_of((size_t)at.heads * at.E * at.N), THREADS, 0, patterns, qk,
               w.y, NULL, at);
        convolve(w, k, VALUES, at);
        LAUNCH((lisa_spread_kernel<false, real>), blocks_of((size_t)at.heads * at.D * at.N), THREADS, 0, y, patterns,
               w.y, lisa->b, at);
    });
}

void lisa_cufft_backward(void *work, real *dqkv, real *dqk, const LisaGradients *d, const real *dy, const real *s,
                         const real *qk, const real *qkv, const LisaTables *lisa, int B) {
    const CufftChunks *whole = planned(lisa, B);
    CufftShape shape = shape_of(&lisa->patterns, whole);
    CufftBuffers all = begin(whole, work, lisa, shape);
    for_chunks(work, shape, lisa, B, [&](const CufftChunks *k, const CufftBuffers &w, const CufftShape &at) {
        const real *patterns = s + (size_t)at.first_head * at.E * at.N;
        unsigned outer = blocks_of(products_of(at, at.N)), values = blocks_of((size_t)at.heads * at.N * at.D);
        spectra(w, k, qk, qkv, at);
        convolve(w, k, VALUES, at);
        LAUNCH((lisa_collect_kernel<true, float>), blocks_of((size_t)at.heads * at.E * at.N), THREADS, 0, w.ds, dy, w.y,
               lisa->b, at);
        convolve(w, k, KEYS, at);
        LAUNCH((lisa_spread_kernel<true, float>), values, THREADS, 0, dqk, w.ds, w.y, NULL, at);
        LAUNCH((lisa_outer_kernel<false, real>), outer, THREADS, 0, w.y, patterns, dy, at);
        correlate(w, k, VALUES, d->b, at);
        LAUNCH((lisa_outer_kernel<true, float>), outer, THREADS, 0, w.y, w.ds, qk, at);
        correlate(w, k, KEYS, NULL, at);
        transform_backward(k->values, w.values, w.dkv, w.work);
        LAUNCH(lisa_values_backward_kernel, values, THREADS, 0, dqk, dqkv, w.values, at);
    });
    LAUNCH(lisa_shared_table_kernel, blocks_of((size_t)shape.E * shape.F), THREADS, 0, all.dw, all.dwb, shape);
    transform_backward(whole->tables, all.tables, all.dw, all.work);
    LAUNCH((lisa_tables_kernel<true>), tables_blocks(shape), THREADS, 0, d->wa, d->wb, all.tables, shape);
}
