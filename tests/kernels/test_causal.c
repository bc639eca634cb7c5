/* Causal attention over sets of keys: the sets against a table worked by hand and against the masks in the code of
 * Child et al. 2019; the kernels against the masked formula in double and its slopes; steps with a cache against whole
 * passes; and that nothing depends on later tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/differences.h"

static const char *const NAMES[CAUSAL_SETS] = {"dense", "window", "column", "strided", "block", "summary", "fixed"};

static CausalPattern pattern_of(CausalSet set, int window, int stride, int summary, int subblocks) {
    return (CausalPattern){set, set, 1 << 20, window, stride, summary, subblocks};
}

/* == The sets ===================================================================================================== */

/* The keys of query i as text, for example "0 4-8": a run of three or more keys is written as first-last. */
static const char *keys_text(const CausalPattern *p, int h, int i) {
    static char text[64];
    int n = 0;
    text[0] = 0;
    for (int j = 0; j <= i; j++) {
        if (!causal_sees(p, h, i, j)) continue;
        int last = j;
        while (last < i && causal_sees(p, h, i, last + 1)) last++;
        if (last - j < 2) last = j;
        n += snprintf(text + n, sizeof text - (size_t)n, last > j ? "%s%d-%d" : "%s%d", n ? " " : "", j, last);
        j = last;
    }
    return text;
}

/* Twelve tokens, stride 4, one summary. */
static void test_worked_example(void **state) {
    (void)state;
    const struct {
        CausalSet set;
        int window, subblock;
        const char *keys[12];
        int pairs;
    } rows[] = {
        {CAUSAL_WINDOW, 4, 0, {"0", "0 1", "0-2", "0-3", "1-4", "2-5", "3-6", "4-7", "5-8", "6-9", "7-10", "8-11"}, 42},
        {CAUSAL_WINDOW, 5, 0, {"0", "0 1", "0-2", "0-3", "0-4", "1-5", "2-6", "3-7", "4-8", "5-9", "6-10", "7-11"}, 50},
        {CAUSAL_COLUMN, 1, 0,
         {"0", "1", "2", "3", "0 4", "1 5", "2 6", "3 7", "0 4 8", "1 5 9", "2 6 10", "3 7 11"}, 24},
        {CAUSAL_STRIDED, 1, 0,
         {"0", "0 1", "0-2", "0-3", "0-4", "1-5", "2-6", "3-7", "0 4-8", "1 5-9", "2 6-10", "3 7-11"}, 54},
        {CAUSAL_BLOCK, 1, 0, {"0", "0 1", "0-2", "0-3", "4", "4 5", "4-6", "4-7", "8", "8 9", "8-10", "8-11"}, 30},
        {CAUSAL_SUMMARY, 1, 0, /* with the query itself, which in this set alone is only seen if it is a summary */
         {"0", "1", "2", "3", "3 4", "3 5", "3 6", "3 7", "3 7 8", "3 7 9", "3 7 10", "3 7 11"}, 15 + 12 - 3},
        {CAUSAL_FIXED, 1, 0,
         {"0", "0 1", "0-2", "0-3", "3 4", "3-5", "3-6", "3-7", "3 7 8", "3 7-9", "3 7-10", "3 7-11"}, 42},
        {CAUSAL_FIXED, 1, 1,
         {"0", "0 1", "0-2", "0-3", "2 4", "2 4 5", "2 4-6", "2 4-7", "2 6 8", "2 6 8 9", "2 6 8-10", "2 6 8-11"}, 42},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        CausalPattern p = pattern_of(rows[k].set, rows[k].window, 4, 1, 2);
        for (int i = 0; i < 12; i++) assert_string_equal(keys_text(&p, rows[k].subblock, i), rows[k].keys[i]);
        assert_true(causal_pairs(&p, rows[k].subblock, 12) == rows[k].pairs);
    }
    CausalPattern summary = pattern_of(CAUSAL_SUMMARY, 1, 4, 2, 1), fixed = pattern_of(CAUSAL_FIXED, 1, 4, 2, 1);
    assert_true(causal_pairs(&summary, 0, 12) == 33 + 12 - 6);
    assert_true(causal_pairs(&fixed, 0, 12) == 54);
}

/* The numbers of pairs for the sizes of the paper. */
static void test_pair_counts(void **state) {
    (void)state;
    const struct {
        int n, l;
        double dense, window, wider, column, strided, block, summary, fixed;
    } rows[] = {
        {3072, 96, 4720128, 290352, 293328, 50688, 337968, 148992, 1540608, 1672704},
        {3072, 128, 4720128, 385088, 388032, 38400, 420416, 198144, 1143168, 1328640},
        {12288, 128, 75503616, 1564736, 1576896, 595968, 2148416, 792576, 18728448, 19470336},
        {65536, 128, 2147516416, 8380480, 8445888, 16809984, 25124928, 4227072, 536092672, 540049408},
        {65536, 256, 2147516416, 16744576, 16809856, 8421376, 25100416, 8421376, 267522048, 275808256},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        int n = rows[k].n, l = rows[k].l;
        double own = n - (double)n / l * 32; /* the table's column `summary` does not count the query itself */
        const double want[CAUSAL_SETS] = {rows[k].dense, rows[k].window,        rows[k].column, rows[k].strided,
                                          rows[k].block, rows[k].summary + own, rows[k].fixed};
        for (int set = 0; set < CAUSAL_SETS; set++) {
            CausalPattern p = pattern_of((CausalSet)set, l, l, 32, 1);
            assert_true(causal_pairs(&p, 0, n) == want[set]);
        }
        CausalPattern p = pattern_of(CAUSAL_WINDOW, l + 1, l, 32, 1);
        assert_true(causal_pairs(&p, 0, n) == rows[k].wider);
    }
}

/* causal_keys, causal_summaries and the cache's size agree with causal_sees. */
static void test_counts_agree(void **state) {
    (void)state;
    for (int set = 0; set < CAUSAL_SETS; set++)
        for (int l = 1; l < 9; l++)
            for (int c = 1; c <= l; c++)
                for (int h = 0; h < 3; h++) {
                    CausalPattern p = pattern_of((CausalSet)set, l + h, l, c, l / c);
                    for (int i = 0; i < 30; i++) {
                        int keys = 0, summaries = 0;
                        for (int j = 0; j < 30; j++) keys += causal_sees(&p, h, i, j);
                        for (int j = 0; j < i; j++) summaries += causal_is_summary(&p, h, j);
                        assert_int_equal(causal_keys(&p, h, i), keys);
                        assert_int_equal(causal_summaries(&p, h, i), summaries);
                    }
                }
}

/* == Against the published masks ================================================================================== */

/* The mask of get_blocksparse_obj and its callback in openai/sparse_attention: a layout of blocks, and within these
 * blocks a mask of elements, which removes keys after the query and, for `local`, keys outside of the band. */
typedef struct {
    CausalSet set;
    int n, ctx, block, verts, vertsize; /* ctx: that code's local_attn_ctx */
} Published;

static bool laid_out(const Published *m, int h, int q, int k) {
    int stride = m->ctx / m->block;
    if (k > q) return false;
    if (m->set == CAUSAL_WINDOW) return k + stride >= q;
    if (m->set == CAUSAL_COLUMN) return k + q % (m->n / m->ctx / m->block) >= q;
    if (m->set == CAUSAL_FIXED) { /* columns of `vertsize` blocks, counted from the end of a stride */
        int vertical = (stride - 1 - k % stride) / m->vertsize;
        return q / stride == k / stride || vertical == h % m->verts;
    }
    return true;
}

static bool published_sees(const Published *m, int h, int i, int j) {
    if (m->set == CAUSAL_COLUMN) { /* the code transposes first: token (row, column) moves to column * rows + row */
        int rows = m->n / m->ctx;
        i = i % m->ctx * rows + i / m->ctx;
        j = j % m->ctx * rows + j / m->ctx;
    }
    if (!laid_out(m, h, i / m->block, j / m->block) || j > i) return false;
    return m->set != CAUSAL_WINDOW || j + m->ctx > i;
}

static void published_case(Published m) {
    CausalPattern p = pattern_of(m.set, m.ctx, m.ctx, m.vertsize * m.block, m.verts);
    printf("published %s n %d l %d block %d verticals %d of %d\n", NAMES[m.set], m.n, m.ctx, m.block, m.verts,
           m.vertsize);
    for (int h = 0; h < m.verts; h++)
        for (int i = 0; i < m.n; i++)
            for (int j = 0; j < m.n; j++)
                if (published_sees(&m, h, i, j) != causal_sees(&p, h, i, j))
                    fail_msg("head %d, query %d, key %d", h, i, j);
}

static void test_published_masks(void **state) {
    (void)state;
    const Published cases[] = {
        {CAUSAL_DENSE, 3072, 128, 32, 1, 1},  {CAUSAL_WINDOW, 3072, 128, 32, 1, 1}, {CAUSAL_COLUMN, 3072, 96, 32, 1, 1},
        {CAUSAL_COLUMN, 3072, 128, 8, 1, 1},  {CAUSAL_FIXED, 3072, 128, 32, 1, 1},  {CAUSAL_FIXED, 3072, 128, 32, 4, 1},
        {CAUSAL_FIXED, 3072, 128, 32, 2, 2},  {CAUSAL_FIXED, 280, 40, 8, 3, 1},     {CAUSAL_WINDOW, 264, 24, 8, 1, 1},
        {CAUSAL_COLUMN, 168, 7, 8, 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (cases[i].n < 3072 || full_or_reduced("tokens", 3072, 0)) published_case(cases[i]);
}

/* == Attention ==================================================================================================== */

typedef struct {
    int B, N, H, Dk, Dv, spare; /* spare: unused elements at the end of a token's row */
    CausalPattern p;
} Case;

static int row_of(const Case *k) { return k->H * (2 * k->Dk + k->Dv) + k->spare; }
static size_t rows_of(const Case *k) { return (size_t)k->B * k->N; }

/* The index of element c of q, k or v (part 0, 1, 2). */
static size_t at(const Case *k, int b, int n, int part, int h, int c) {
    int width = part == 2 ? k->Dv : k->Dk;
    return ((size_t)b * k->N + n) * row_of(k) + (size_t)part * k->H * k->Dk + h * width + c;
}
static size_t out_at(const Case *k, int b, int n, int h) { return (((size_t)b * k->N + n) * k->H + h) * k->Dv; }

static CausalShape shape_of(const Case *k) {
    return (CausalShape){k->B, k->N, k->H, k->Dk, k->Dv, row_of(k), row_of(k), row_of(k)};
}
static CausalInputs inputs_of(const Case *k, const real *qkv) {
    return (CausalInputs){qkv, qkv + k->H * k->Dk, qkv + 2 * k->H * k->Dk};
}
static CausalGradients gradients_of(const Case *k, real *dqkv) {
    return (CausalGradients){dqkv, dqkv + k->H * k->Dk, dqkv + 2 * k->H * k->Dk};
}

static void describe(const char *what, const Case *k) {
    printf("%s %s", what, NAMES[k->p.first]);
    if (k->p.split < k->H) printf(" in %d heads, then %s", k->p.split, NAMES[k->p.second]);
    printf(" B %d N %d H %d Dk %d Dv %d window %d stride %d summary %d of %d\n", k->B, k->N, k->H, k->Dk, k->Dv,
           k->p.window, k->p.stride, k->p.summary, k->p.subblocks);
}

/* Normal numbers; queries and keys are halved, so that few weights are near one. */
static float *random_qkv(const Case *k) {
    float *qkv = normals(rows_of(k) * row_of(k), 1);
    for (int b = 0; b < k->B; b++)
        for (int n = 0; n < k->N; n++)
            for (int part = 0; part < 2; part++)
                for (int c = 0; c < k->H * k->Dk; c++) qkv[at(k, b, n, part, 0, c)] /= 2;
    return qkv;
}

/* Computes the weights of query i over all N keys and returns their log-sum-exp. */
static double weigh(double *p, const double *qkv, const Case *k, int b, int h, int i) {
    double largest = -INFINITY, sum = 0;
    for (int j = 0; j < k->N; j++) {
        p[j] = 0;
        for (int c = 0; c < k->Dk; c++) p[j] += qkv[at(k, b, i, 0, h, c)] * qkv[at(k, b, j, 1, h, c)];
        p[j] = causal_sees(&k->p, h, i, j) ? p[j] / sqrt(k->Dk) : -INFINITY;
        largest = fmax(largest, p[j]);
    }
    for (int j = 0; j < k->N; j++) sum += p[j] = exp(p[j] - largest);
    for (int j = 0; j < k->N; j++) p[j] /= sum;
    return largest + log(sum);
}

/* sizes [as y]: for each element, the sum of the absolute values of its terms; may be NULL. */
static void forward_row(double *y, double *sizes, const double *p, const double *qkv, const Case *k, int b, int h,
                        int i) {
    size_t out = out_at(k, b, i, h);
    for (int c = 0; c < k->Dv; c++) {
        double sum = 0, size = 0;
        for (int j = 0; j <= i; j++) add_term(&sum, &size, p[j] * qkv[at(k, b, j, 2, h, c)]);
        y[out + c] = sum;
        if (sizes) sizes[out + c] = size;
    }
}

/* In bfloat16 the error of the first queries, which see few keys, exceeds the size of the other queries' results: each
 * element is then compared relative to its own terms, with a tolerance of `rounded` roundings. */
static int close_y(const float *got, const double *want, const double *sizes, size_t n, int rounded) {
    if (sizeof(real) == 4) return check_close("y", got, want, n, roundings(rounded));
    return close_sums_rounded("y", got, want, sizes, n, false, rounded);
}

/* sizes [as dqkv]: for each element, the sum of the absolute values of its terms. */
typedef struct {
    double *y, *lse, *dqkv, *sizes, *y_sizes;
} Reference;

static void add_product(Reference r, size_t i, double a, double a_size, double b) {
    r.dqkv[i] += a * b;
    r.sizes[i] += a_size * fabs(b);
}

/* y is the device's result, because with few keys the effect of its rounding on dy.y does not average out. */
static void backward_row(Reference r, const double *p, const float *dy, const float *y, const double *qkv,
                         const Case *k, int b, int h, int i) {
    size_t out = out_at(k, b, i, h);
    double delta = 0, size = 0, scale = 1 / sqrt(k->Dk);
    for (int c = 0; c < k->Dv; c++) add_term(&delta, &size, (double)dy[out + c] * y[out + c]);
    for (int j = 0; j <= i; j++) {
        double t = 0, t_size = 0;
        if (p[j] == 0) continue;
        for (int c = 0; c < k->Dv; c++) add_term(&t, &t_size, dy[out + c] * qkv[at(k, b, j, 2, h, c)]);
        double ds = scale * p[j] * (t - delta), ds_size = scale * p[j] * (t_size + size);
        for (int c = 0; c < k->Dk; c++) {
            add_product(r, at(k, b, i, 0, h, c), ds, ds_size, qkv[at(k, b, j, 1, h, c)]);
            add_product(r, at(k, b, j, 1, h, c), ds, ds_size, qkv[at(k, b, i, 0, h, c)]);
        }
        for (int c = 0; c < k->Dv; c++) add_product(r, at(k, b, j, 2, h, c), p[j], p[j], dy[out + c]);
    }
}

/* True if every query sees a single key: its weight is 1 for any score, and the gradient of scores is only rounding. */
static bool alone(const double *want, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (fabs(want[i]) > 1e-9) return false;
    return true;
}

/* Compares dq, dk or dv alone: they differ in size, and the largest must not hide errors in the others. */
static int close_third(int part, const float *got, Reference r, const Case *k) {
    const char *names[] = {"dq", "dk", "dv"};
    size_t width = (size_t)k->H * (part == 2 ? k->Dv : k->Dk), n = rows_of(k) * width;
    float *got_part = normals(n, 1);
    double *want = zeros(n), *sizes = zeros(n);
    for (size_t i = 0; i < n; i++) {
        size_t from = i / width * row_of(k) + (size_t)part * k->H * k->Dk + i % width;
        got_part[i] = got[from];
        want[i] = r.dqkv[from];
        sizes[i] = r.sizes[from];
    }
    return close_sums(names[part], got_part, want, sizes, n, alone(want, n));
}

static void causal_case(Case k) {
    describe("causal", &k);
    size_t n = rows_of(&k) * row_of(&k), out = rows_of(&k) * k.H * k.Dv, rows = rows_of(&k) * k.H;
    float *qkv = random_qkv(&k), *dy = normals(out, 1);
    real *d_qkv = upload_real(qkv, n), *d_dy = upload_real(dy, out), *d_y = poisoned_real(out),
         *d_dqkv = poisoned_real(n), *again = poisoned_real(n);
    float *d_lse = poisoned(rows);
    double *exact = wide(qkv, n), *p = zeros(k.N);
    Reference r = {zeros(out), zeros(rows), zeros(n), zeros(n), zeros(out)};
    CausalShape shape = shape_of(&k);
    CausalInputs in = inputs_of(&k, d_qkv);
    CausalGradients d = gradients_of(&k, d_dqkv), d_again = gradients_of(&k, again);
    kernels_reserve(causal_attention_workspace(&k.p, &shape));
    causal_attention_forward(d_y, d_lse, &in, &k.p, &shape);
    float *y = download_real(d_y, out);
    for (size_t row = 0; row < rows; row++) {
        int b = (int)(row / k.N / k.H), h = (int)(row / k.N % k.H), i = (int)(row % k.N);
        r.lse[row] = weigh(p, exact, &k, b, h, i);
        forward_row(r.y, r.y_sizes, p, exact, &k, b, h, i);
        backward_row(r, p, dy, y, exact, &k, b, h, i);
    }
    assert_true(close_y(y, r.y, r.y_sizes, out, 2));
    assert_true(close_logarithms("lse", d_lse, r.lse, rows));
    causal_attention_backward(&d, d_dy, d_y, d_lse, &in, &k.p, &shape);
    float *got = download_real(d_dqkv, n);
    for (int part = 0; part < 3; part++) assert_true(close_third(part, got, r, &k));
    for (size_t i = 0; i < n; i++) assert_true(!isnan(got[i]) == ((int)(i % row_of(&k)) < row_of(&k) - k.spare));
    causal_attention_backward(&d_again, d_dy, d_y, d_lse, &in, &k.p, &shape);
    assert_memory_equal(download_real(again, n), got, n * sizeof *got);
    release_all();
}

/* Sizes that are and are not multiples of a tile's; rows and columns cut off by the end; a single token; strides of 1,
 * N and more; wide heads, and heads whose queries are half as wide as their values. */
static const Case SIZES[] = {
    {3, 35, 3, 5, 7, 0, {.window = 7, .stride = 7, .summary = 2, .subblocks = 3}},
    {1, 35, 3, 8, 16, 8, {.window = 8, .stride = 6, .summary = 2, .subblocks = 2}},
    {2, 63, 1, 16, 8, 0, {.window = 1, .stride = 4, .summary = 1, .subblocks = 1}},
    {1, 301, 2, 4, 3, 1, {.window = 33, .stride = 17, .summary = 5, .subblocks = 2}},
    {1, 150, 2, 33, 70, 0, {.window = 200, .stride = 60, .summary = 9, .subblocks = 4}},
    {1, 21, 2, 130, 12, 0, {.window = 5, .stride = 5, .summary = 2, .subblocks = 1}},
    {1, 13, 2, 12, 300, 0, {.window = 5, .stride = 5, .summary = 1, .subblocks = 4}},
    {2, 1, 2, 3, 4, 0, {.window = 2, .stride = 3, .summary = 1, .subblocks = 1}},
    {1, 9, 2, 3, 3, 0, {.window = 9, .stride = 9, .summary = 9, .subblocks = 1}},
    {1, 5, 2, 4, 4, 2, {.window = 3, .stride = 1, .summary = 1, .subblocks = 1}},
    {1, 7, 1, 4, 2, 0, {.window = 3, .stride = 20, .summary = 4, .subblocks = 2}},
    {1, 200, 3, 16, 32, 0, {.window = 64, .stride = 64, .summary = 16, .subblocks = 2}},
};

static void test_sets(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++)
        for (int set = 0; set < CAUSAL_SETS; set++) {
            Case k = SIZES[i];
            k.p.first = (CausalSet)set;
            k.p.split = k.H;
            causal_case(k);
        }
}

static void test_split(void **state) {
    (void)state;
    const CausalSet pairs[][2] = {{CAUSAL_WINDOW, CAUSAL_COLUMN}, {CAUSAL_BLOCK, CAUSAL_SUMMARY},
                                  {CAUSAL_FIXED, CAUSAL_DENSE}, {CAUSAL_SUMMARY, CAUSAL_STRIDED}};
    for (size_t i = 0; i < 4; i++)
        for (int split = 0; split < 3; split++) {
            Case k = SIZES[i];
            k.p.first = pairs[i][0];
            k.p.second = pairs[i][1];
            k.p.split = split;
            causal_case(k);
        }
}

/* Long enough for several blocks of keys; the keys of queries begin and end in any block. */
static void test_long(void **state) {
    (void)state;
    int n = full_or_reduced("tokens", 1100, 0);
    for (int set = 0; set < CAUSAL_SETS && n; set++) {
        Case k = {1, n, 1, 6, 5, 0, pattern_of((CausalSet)set, 300, 290, 130, 2)};
        causal_case(k);
        k.p = pattern_of((CausalSet)set, 33, 3, 2, 1);
        causal_case(k);
    }
}

/* == Gradients by differences ===================================================================================== */

typedef struct {
    Case k;
    double *qkv, *p;
} Formula;

static void formula_outputs(double *y, void *context) {
    Formula *f = context;
    for (int b = 0; b < f->k.B; b++)
        for (int h = 0; h < f->k.H; h++)
            for (int i = 0; i < f->k.N; i++) {
                weigh(f->p, f->qkv, &f->k, b, h, i);
                forward_row(y, NULL, f->p, f->qkv, &f->k, b, h, i);
            }
}

static void test_slopes(void **state) {
    (void)state;
    for (int set = 0; set < CAUSAL_SETS; set++) {
        Case k = {1, 19, 2, 5, 3, 0, pattern_of((CausalSet)set, 6, 5, 2, 2)};
        describe("slopes", &k);
        size_t n = rows_of(&k) * row_of(&k), out = rows_of(&k) * k.H * k.Dv, rows = rows_of(&k) * k.H;
        float *qkv = random_qkv(&k), *dy = normals(out, 1);
        real *d_qkv = upload_real(qkv, n), *d_dy = upload_real(dy, out), *d_y = poisoned_real(out),
             *d_dqkv = poisoned_real(n);
        float *d_lse = poisoned(rows);
        CausalShape shape = shape_of(&k);
        CausalInputs in = inputs_of(&k, d_qkv);
        CausalGradients d = gradients_of(&k, d_dqkv);
        kernels_reserve(causal_attention_workspace(&k.p, &shape));
        causal_attention_forward(d_y, d_lse, &in, &k.p, &shape);
        causal_attention_backward(&d, d_dy, d_y, d_lse, &in, &k.p, &shape);
        Formula formula = {k, wide(qkv, n), zeros(k.N)};
        Function f = {formula_outputs, &formula, out, zeros(out), dy, 1e-5};
        assert_true(slopes_agree("dqkv", download_real(d_dqkv, n), NULL, formula.qkv, n, &f));
        release_all();
    }
}

/* == Token by token =============================================================================================== */

/* Compares steps 0 .. N-1, or those from `filled` on after causal_cache_fill, with the rows of a whole pass. */
static void steps_case(Case k, int filled) {
    describe("steps", &k);
    size_t n = rows_of(&k) * row_of(&k), out = rows_of(&k) * k.H * k.Dv, width = (size_t)k.H * k.Dv;
    size_t rows = k.B * causal_cache_first(&k.p, k.H, k.N);
    float *qkv = random_qkv(&k), *y = normals(out, 1);
    real *d_qkv = upload_real(qkv, n), *d_y = poisoned_real(out), *one = poisoned_real(k.B * width);
    real *input = poisoned_real((size_t)k.B * row_of(&k)), *begin = poisoned_real((size_t)k.B * filled * row_of(&k));
    CausalCache cache = {poisoned_real(rows * k.Dk), poisoned_real(rows * k.Dv)};
    float *d_lse = poisoned(rows_of(&k) * k.H);
    CausalShape shape = shape_of(&k);
    CausalInputs all = inputs_of(&k, d_qkv), in = inputs_of(&k, input), prompt = inputs_of(&k, begin);
    kernels_reserve(causal_attention_workspace(&k.p, &shape));
    causal_attention_forward(d_y, d_lse, &all, &k.p, &shape);
    double *want = wide(download_real(d_y, out), out);
    memcpy(y, download_real(d_y, out), out * sizeof *y);
    size_t token = row_of(&k) * sizeof(real);
    for (int b = 0; b < k.B && filled > 0; b++)
        device_copy(begin + (size_t)b * filled * row_of(&k), d_qkv + (size_t)b * k.N * row_of(&k), filled * token);
    if (filled > 0) causal_cache_fill(&cache, &prompt, &k.p, &shape, filled);
    for (int i = filled; i < k.N; i++) {
        for (int b = 0; b < k.B; b++)
            device_copy(input + (size_t)b * row_of(&k), d_qkv + ((size_t)b * k.N + i) * row_of(&k), token);
        causal_attention_step(one, &cache, &in, &k.p, &shape, i);
        float *got = download_real(one, k.B * width);
        for (int b = 0; b < k.B; b++) memcpy(y + out_at(&k, b, i, 0), got + b * width, width * sizeof *y);
        free(got);
        kept_count--;
    }
    double *exact = wide(qkv, n), *p = zeros(k.N), *formula = zeros(out), *sizes = zeros(out);
    for (size_t row = 0; row < rows_of(&k) * k.H; row++) {
        int b = (int)(row / k.N / k.H), h = (int)(row / k.N % k.H), i = (int)(row % k.N);
        weigh(p, exact, &k, b, h, i);
        forward_row(formula, sizes, p, exact, &k, b, h, i);
    }
    assert_true(close_y(y, want, sizes, out, 3)); /* roundings of the weights and of both results */
    release_all();
}

static void test_steps(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++)
        for (int set = 0; set < CAUSAL_SETS; set++) {
            Case k = SIZES[i];
            k.p.first = (CausalSet)set;
            k.p.second = (CausalSet)((set + 3) % CAUSAL_SETS);
            k.p.split = i % 3 ? k.H : 1;
            if (k.N > full_or_reduced("tokens", 301, 40)) continue;
            steps_case(k, i % 2 ? k.N / 2 : 0);
        }
}

/* == Nothing depends on what comes later ========================================================================== */

/* An element of token j or a later one: unchanged, changed, or so large that scores are infinite. */
static float changed(float x, int turn, size_t i) {
    if (turn == 0) return x;
    return turn == 1 ? 1 - 2 * x : i % 3 ? 1e6f * x : -1e30f;
}

/* The rows before token j keep their bits, and with a loss over these rows alone their gradients. */
static void causality_case(Case k, int j) {
    size_t n = rows_of(&k) * row_of(&k), out = rows_of(&k) * k.H * k.Dv, rows = rows_of(&k) * k.H;
    float *drawn = random_qkv(&k), *dy = normals(out, 1), *y[3], *lse[3], *dqkv[3];
    size_t width = (size_t)k.H * k.Dv, first = (size_t)j * row_of(&k);
    memset(dy + j * width, 0, (out - j * width) * sizeof *dy);
    CausalShape shape = shape_of(&k);
    kernels_reserve(causal_attention_workspace(&k.p, &shape));
    for (int turn = 0; turn < 3; turn++) {
        float *qkv = normals(n, 1);
        for (size_t i = 0; i < n; i++) qkv[i] = i < first ? drawn[i] : changed(drawn[i], turn, i);
        real *d_qkv = upload_real(qkv, n), *d_dy = upload_real(dy, out), *d_y = poisoned_real(out),
             *d_dqkv = poisoned_real(n);
        float *d_lse = poisoned(rows);
        CausalInputs in = inputs_of(&k, d_qkv);
        CausalGradients d = gradients_of(&k, d_dqkv);
        causal_attention_forward(d_y, d_lse, &in, &k.p, &shape);
        y[turn] = download_real(d_y, out);
        lse[turn] = download(d_lse, rows);
        causal_attention_backward(&d, d_dy, d_y, d_lse, &in, &k.p, &shape);
        dqkv[turn] = download_real(d_dqkv, n);
        assert_memory_equal(y[0], y[turn], j * width * sizeof(float));
        for (int h = 0; h < k.H; h++) assert_memory_equal(lse[0] + h * k.N, lse[turn] + h * k.N, j * sizeof(float));
        for (size_t i = 0; i < first && turn < 2; i++) assert_true(dqkv[0][i] == dqkv[turn][i]); /* 0 may be -0 */
    }
    assert_true(memcmp(y[0] + j * width, y[1] + j * width, width * sizeof(float)) != 0);
    release_all();
}

static void test_causality(void **state) {
    (void)state;
    for (int set = 0; set < CAUSAL_SETS; set++)
        for (int j = 1; j < 60; j += 7) {
            Case k = {1, 61, 2, 9, 17, 0, pattern_of((CausalSet)set, 10, 8, 3, 2)};
            if (j == 1) describe("causality", &k);
            causality_case(k, j);
        }
}

/* == What bfloat16 may cost ======================================================================================= */

/* Rounds a finite number to the nearest bfloat16, ties to even. */
static double bf16(double x) {
    float rounded = (float)x;
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u;
    memcpy(&rounded, &bits, sizeof bits);
    return rounded;
}

/* Computes the masked formula for a query as PyTorch's autocast does: products of bfloat16 give bfloat16, and the
 * softmax and its gradient are in float.  p [N], ds [N]: workspace. */
static void autocast_row(Reference r, double *p, double *ds, const double *qkv, const float *dy, const Case *k, int b,
                         int h, int i) {
    double largest = -INFINITY, sum = 0, mean = 0, scale = sqrt(k->Dk);
    size_t out = out_at(k, b, i, h);
    for (int j = 0; j <= i; j++) {
        double dot = 0;
        for (int c = 0; c < k->Dk; c++) dot += qkv[at(k, b, i, 0, h, c)] * qkv[at(k, b, j, 1, h, c)];
        p[j] = causal_sees(&k->p, h, i, j) ? bf16(bf16(dot) / scale) : -INFINITY;
        largest = fmax(largest, p[j]);
    }
    for (int j = 0; j <= i; j++) sum += p[j] = exp(p[j] - largest);
    for (int j = 0; j <= i; j++) {
        double dot = 0;
        p[j] /= sum;
        for (int c = 0; c < k->Dv; c++) dot += dy[out + c] * qkv[at(k, b, j, 2, h, c)];
        ds[j] = bf16(dot);
        mean += p[j] * ds[j];
    }
    for (int c = 0; c < k->Dv; c++) {
        double y = 0;
        for (int j = 0; j <= i; j++) y += bf16(p[j]) * qkv[at(k, b, j, 2, h, c)];
        r.y[out + c] = bf16(y);
    }
    for (int j = 0; j <= i; j++) {
        if (p[j] == 0) continue;
        double d = bf16(bf16(p[j] * (ds[j] - mean)) / scale), weight = bf16(p[j]);
        for (int c = 0; c < k->Dk; c++) {
            r.dqkv[at(k, b, i, 0, h, c)] += d * qkv[at(k, b, j, 1, h, c)];
            r.dqkv[at(k, b, j, 1, h, c)] += d * qkv[at(k, b, i, 0, h, c)];
        }
        for (int c = 0; c < k->Dv; c++) r.dqkv[at(k, b, j, 2, h, c)] += weight * dy[out + c];
    }
}

/* Checks that the error in part 0, 1 or 2 of dqkv, or with part 3 in y, is at most 1.5 times the error of autocast. */
static int within_autocast(int part, const float *got, const double *autocast, const double *want, const Case *k) {
    const char *names[] = {"dq, bfloat16", "dk, bfloat16", "dv, bfloat16", "y, bfloat16"};
    size_t width = (size_t)k->H * (part < 2 ? k->Dk : k->Dv), n = rows_of(k) * width;
    size_t row = part < 3 ? (size_t)row_of(k) : width, first = part < 3 ? (size_t)part * k->H * k->Dk : 0;
    float *mine = normals(n, 1), *theirs = normals(n, 1);
    double *exact = zeros(n);
    for (size_t i = 0; i < n; i++) {
        size_t from = i / width * row + first + i % width;
        mine[i] = got[from];
        theirs[i] = (float)bf16(autocast[from]);
        exact[i] = want[from];
    }
    return check_rms(names[part], mine, exact, n, 1.5 * relative_rms(theirs, exact, n));
}

static void test_bfloat16(void **state) {
    (void)state;
    int n = full_or_reduced("tokens", 150, 70);
    for (int set = 0; set < CAUSAL_SETS && sizeof(real) == 2; set++) {
        Case k = {1, n, 2, 16, 32, 0, pattern_of((CausalSet)set, 24, 20, 5, 2)};
        describe("bfloat16", &k);
        size_t size = rows_of(&k) * row_of(&k), out = rows_of(&k) * k.H * k.Dv, rows = rows_of(&k) * k.H;
        float *qkv = random_qkv(&k), *dy = normals(out, 1);
        real *d_qkv = upload_real(qkv, size), *d_dy = upload_real(dy, out), *d_y = poisoned_real(out),
             *d_dqkv = poisoned_real(size);
        float *d_lse = poisoned(rows), *y = normals(out, 0);
        double *exact = wide(qkv, size), *p = zeros(k.N), *ds = zeros(k.N);
        Reference r = {zeros(out), zeros(rows), zeros(size), zeros(size), NULL};
        Reference autocast = {zeros(out), NULL, zeros(size), NULL, NULL};
        CausalShape shape = shape_of(&k);
        CausalInputs in = inputs_of(&k, d_qkv);
        CausalGradients d = gradients_of(&k, d_dqkv);
        kernels_reserve(causal_attention_workspace(&k.p, &shape));
        causal_attention_forward(d_y, d_lse, &in, &k.p, &shape);
        causal_attention_backward(&d, d_dy, d_y, d_lse, &in, &k.p, &shape);
        for (size_t row = 0; row < rows; row++) {
            int b = (int)(row / k.N / k.H), h = (int)(row / k.N % k.H), i = (int)(row % k.N);
            autocast_row(autocast, p, ds, exact, dy, &k, b, h, i);
            weigh(p, exact, &k, b, h, i);
            forward_row(r.y, NULL, p, exact, &k, b, h, i);
            for (int c = 0; c < k.Dv; c++) y[out_at(&k, b, i, h) + c] = (float)r.y[out_at(&k, b, i, h) + c];
            backward_row(r, p, dy, y, exact, &k, b, h, i);
        }
        float *got = download_real(d_dqkv, size);
        for (int part = 0; part < 3; part++) assert_true(within_autocast(part, got, autocast.dqkv, r.dqkv, &k));
        assert_true(within_autocast(3, download_real(d_y, out), autocast.y, r.y, &k));
        release_all();
    }
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worked_example), cmocka_unit_test(test_pair_counts), cmocka_unit_test(test_counts_agree),
        cmocka_unit_test(test_published_masks), cmocka_unit_test(test_sets), cmocka_unit_test(test_split),
        cmocka_unit_test(test_long), cmocka_unit_test(test_slopes), cmocka_unit_test(test_steps),
        cmocka_unit_test(test_causality), cmocka_unit_test(test_bfloat16),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
