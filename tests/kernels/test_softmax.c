/* Softmax attention with a relative position bias and over sparse sets of keys, against the dense formula in double:
 * all pairs, the score plus the bias, or minus infinity for a key outside of the query's sets.  Also thresholded
 * attention, whose gradients are compared with differences of its formula. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/differences.h"

typedef struct {
    int B, H, D, N;
    const RelativeBias *bias; /* or */
    const SparsePattern *pattern;
} Case;

/* The table's element for a pair, or -1 if there is none. */
static int bias_at(const RelativeBias *b, int h, int n, int m) {
    int T = b->grid.frames, Hg = b->grid.rows, Wg = b->grid.columns, across = 2 * Wg - 1, down = 2 * Hg - 1;
    int area = Hg * Wg, size = (2 * T - 1) * down * across;
    n -= b->prefix;
    m -= b->prefix;
    if (n < 0 || m < 0) return -1;
    int row = (m / area - n / area + T - 1) * down + m / Wg % Hg - n / Wg % Hg + Hg - 1;
    return (b->tables > 1 ? h * size : 0) + row * across + m % Wg - n % Wg + Wg - 1;
}

static bool sees(const SparsePattern *p, int H, int h, int n, int m) {
    int l = p->stride;
    bool first = p->fixed ? n / l == m / l : abs(n - m) <= l;
    bool second = p->fixed ? m % l >= l - p->summary : (n - m) % l == 0;
    return (h < p->first && first) || (h >= H - p->second && second);
}

/* The index of element c of q, k or v (part 0, 1, 2). */
static size_t at(const Case *k, int b, int n, int part, int h, int c) {
    return ((((size_t)b * k->N + n) * 3 + part) * k->H + h) * k->D + c;
}

/* sizes [as dqkv]: for each element, the sum of the absolute values of its terms. */
typedef struct {
    double *y, *lse, *dqkv, *dtable, *sizes;
} Reference;

static void add_product(Reference r, size_t i, double a, double a_size, double b) {
    r.dqkv[i] += a * b;
    r.sizes[i] += a_size * fabs(b);
}

/* p [N]: the weights of query n. */
static void weigh(double *p, double *lse, const float *qkv, const float *table, const Case *k, int b, int h, int n) {
    double largest = -INFINITY, sum = 0;
    for (int m = 0; m < k->N; m++) {
        p[m] = 0;
        for (int c = 0; c < k->D; c++) p[m] += (double)qkv[at(k, b, n, 0, h, c)] * qkv[at(k, b, m, 1, h, c)];
        p[m] /= sqrt(k->D);
        if (k->bias && bias_at(k->bias, h, n, m) >= 0) p[m] += table[bias_at(k->bias, h, n, m)];
        if (k->pattern && !sees(k->pattern, k->H, h, n, m)) p[m] = -INFINITY;
        largest = fmax(largest, p[m]);
    }
    for (int m = 0; m < k->N; m++) sum += p[m] = exp(p[m] - largest);
    for (int m = 0; m < k->N; m++) p[m] /= sum;
    lse[((size_t)b * k->H + h) * k->N + n] = largest + log(sum);
}

/* The index of a head's row in y. */
static size_t row_at(const Case *k, int b, int h, int n) { return (((size_t)b * k->N + n) * k->H + h) * k->D; }

static void forward_row(Reference r, const double *p, const float *qkv, const Case *k, int b, int h, int n) {
    for (int m = 0; m < k->N; m++)
        for (int c = 0; c < k->D; c++) r.y[row_at(k, b, h, n) + c] += p[m] * qkv[at(k, b, m, 2, h, c)];
}

/* y is the device's result, because with few keys the effect of its rounding on dy.y does not average out. */
static void backward_row(Reference r, const double *p, const float *dy, const float *y, const float *qkv, const Case *k,
                         int b, int h, int n) {
    size_t out = row_at(k, b, h, n);
    double delta = 0, size = 0, scale = 1 / sqrt(k->D);
    for (int c = 0; c < k->D; c++) {
        delta += (double)dy[out + c] * y[out + c];
        size += fabs((double)dy[out + c] * y[out + c]);
    }
    for (int m = 0; m < k->N; m++) {
        double t = 0, t_size = 0;
        for (int c = 0; c < k->D; c++) {
            t += (double)dy[out + c] * qkv[at(k, b, m, 2, h, c)];
            t_size += fabs((double)dy[out + c] * qkv[at(k, b, m, 2, h, c)]);
        }
        double ds = p[m] * (t - delta), ds_size = p[m] * (t_size + size);
        if (k->bias && bias_at(k->bias, h, n, m) >= 0) r.dtable[bias_at(k->bias, h, n, m)] += ds;
        for (int c = 0; c < k->D; c++) {
            add_product(r, at(k, b, n, 0, h, c), scale * ds, scale * ds_size, qkv[at(k, b, m, 1, h, c)]);
            add_product(r, at(k, b, m, 1, h, c), scale * ds, scale * ds_size, qkv[at(k, b, n, 0, h, c)]);
            add_product(r, at(k, b, m, 2, h, c), p[m], p[m], dy[out + c]);
        }
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
    size_t M = (size_t)k->H * k->D, n = (size_t)k->B * k->N * M;
    float *got_part = normals(n, 1);
    double *want = zeros(n), *sizes = zeros(n);
    for (size_t i = 0; i < n; i++) {
        size_t from = (i / M * 3 + part) * M + i % M;
        got_part[i] = got[from];
        want[i] = r.dqkv[from];
        sizes[i] = r.sizes[from];
    }
    return close_sums(names[part], got_part, want, sizes, n, alone(want, n));
}

static void forward(const Case *k, real *y, float *lse, const real *qkv, const float *table) {
    AttentionShape shape = {k->B, k->N, k->H, k->D};
    if (k->bias) biased_attention_forward(y, lse, qkv, table, k->bias, &shape);
    else sparse_attention_forward(y, lse, qkv, k->pattern, &shape);
}

static void backward(const Case *k, real *dqkv, float *dtable, const real *dy, const real *y, const float *lse,
                     const real *qkv, const float *table) {
    AttentionShape shape = {k->B, k->N, k->H, k->D};
    if (k->bias) biased_attention_backward(dqkv, dtable, dy, y, lse, qkv, table, k->bias, &shape);
    else sparse_attention_backward(dqkv, dy, y, lse, qkv, k->pattern, &shape);
}

static void softmax_case(Case k) {
    size_t n = (size_t)k.B * k.N * k.H * k.D, rows = (size_t)k.B * k.H * k.N;
    size_t size = k.bias ? (size_t)k.bias->tables * grid_tokens(grid_offsets(k.bias->grid)) : 1;
    float *qkv = normals(3 * n, 1), *dy = normals(n, 1), *table = normals(size, 1), *dtable = normals(size, 1);
    for (size_t i = 0; i < 3 * n; i++)
        if (i / (k.H * k.D) % 3 != 2) qkv[i] /= 2; /* as in tests/layers/test_attention.c */
    real *d_qkv = upload_real(qkv, 3 * n), *d_dy = upload_real(dy, n), *d_y = poisoned_real(n),
         *d_dqkv = poisoned_real(3 * n), *again = poisoned_real(3 * n);
    float *d_lse = poisoned(rows), *d_table = upload(table, size), *d_dtable = upload(dtable, size);
    Reference r = {zeros(n), zeros(rows), zeros(3 * n), zeros(size), zeros(3 * n)};
    for (size_t i = 0; i < size; i++) r.dtable[i] = dtable[i];
    kernels_reserve(k.bias ? biased_attention_workspace(k.bias, k.D) : sparse_attention_workspace(k.pattern, k.N, k.D));
    forward(&k, d_y, d_lse, d_qkv, d_table);
    float *y = download_real(d_y, n);
    double *p = zeros(k.N);
    for (int row = 0; row < k.B * k.H * k.N; row++) {
        int b = row / k.N / k.H, h = row / k.N % k.H, i = row % k.N;
        weigh(p, r.lse, qkv, table, &k, b, h, i);
        forward_row(r, p, qkv, &k, b, h, i);
        backward_row(r, p, dy, y, qkv, &k, b, h, i);
    }
    assert_true(close_rounded("y", d_y, r.y, n));
    assert_true(close_logarithms("lse", d_lse, r.lse, rows));
    backward(&k, d_dqkv, d_dtable, d_dy, d_y, d_lse, d_qkv, d_table);
    float *got = download_real(d_dqkv, 3 * n);
    for (int part = 0; part < 3; part++) {
        assert_true(close_third(part, got, r, &k));
    }
    if (k.bias) assert_true(close_float("dtable", d_dtable, r.dtable, size));
    float *dtable_again = upload(dtable, size);
    backward(&k, again, dtable_again, d_dy, d_y, d_lse, d_qkv, d_table);
    assert_memory_equal(download_real(again, 3 * n), got, 3 * n * sizeof(float));
    assert_memory_equal(download(dtable_again, size), download(d_dtable, size), size * sizeof(float));
    release_all();
}

static void test_bias(void **state) {
    (void)state;
    const struct {
        int B, H, D;
        RelativeBias bias;
    } cases[] = {
        {3, 3, 5, {{1, 5, 7}, 0, 3}},   {2, 2, 8, {{1, 5, 7}, 1, 1}},   {1, 3, 16, {{1, 3, 23}, 0, 3}},
        {2, 2, 33, {{1, 9, 9}, 1, 2}},  {1, 2, 130, {{1, 4, 3}, 1, 2}}, {2, 1, 4, {{1, 17, 17}, 0, 1}},
        {2, 2, 3, {{1, 1, 6}, 0, 2}},   {1, 2, 65, {{1, 9, 9}, 1, 2}},  {2, 3, 5, {{3, 5, 7}, 0, 3}},
        {1, 2, 33, {{2, 3, 18}, 1, 1}}, {1, 2, 130, {{4, 2, 3}, 1, 2}}, {2, 1, 4, {{3, 1, 1}, 0, 1}},
        {2, 2, 33, {{1, 9, 9}, 2, 2}},  {1, 3, 16, {{1, 5, 7}, 2, 1}},  {1, 2, 8, {{2, 3, 18}, 2, 2}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const RelativeBias *b = &cases[i].bias;
        printf("bias B %d grid %dx%dx%d + %d H %d D %d tables %d\n", cases[i].B, b->grid.frames, b->grid.rows,
               b->grid.columns, b->prefix, cases[i].H, cases[i].D, b->tables);
        softmax_case((Case){cases[i].B, cases[i].H, cases[i].D, b->prefix + grid_tokens(b->grid), b, NULL});
    }
}

/* Strides that do and do not divide N, blocks cut off before, in and after their summary; each set alone, each in
 * some heads, and both in all heads. */
static void test_sparse(void **state) {
    (void)state;
    const struct {
        int B, N, H, D, stride, summary;
    } cases[] = {
        {3, 35, 3, 5, 7, 2},   {1, 35, 2, 8, 6, 4},    {2, 63, 3, 16, 4, 1}, {1, 301, 2, 4, 17, 5},
        {1, 150, 2, 33, 60, 9}, {1, 21, 2, 130, 5, 2}, {1, 9, 2, 3, 9, 9},  {1, 5, 2, 4, 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int fixed = 0; fixed < 2; fixed++)
            for (int way = 0; way < 4; way++) {
                int H = cases[i].H, first = way == 0 ? H : way == 1 ? 0 : way == 2 ? 1 : H;
                SparsePattern pattern = {fixed, cases[i].stride, cases[i].summary, first, way == 3 ? H : H - first};
                printf("sparse %s B %d N %d H %d D %d stride %d summary %d heads %d and %d\n",
                       fixed ? "fixed" : "strided", cases[i].B, cases[i].N, H, cases[i].D, pattern.stride,
                       pattern.summary, first, pattern.second);
                softmax_case((Case){cases[i].B, H, cases[i].D, cases[i].N, NULL, &pattern});
            }
}

/* == Thresholded attention ======================================================================================== */

typedef struct {
    int B, N, H, D;
    double threshold, *qkv, *before;
    bool *left; /* [B,H,N,N], whether a pair remains */
    double closest; /* the smallest |log(weight / threshold)|; negative: `left` is constant */
} Masked;

/* p [N] = the weights of query n of a head whose q begins at q0. */
static void masked_row(double *p, const Masked *k, size_t q0, int n) {
    size_t row = 3 * (size_t)k->H * k->D;
    double sum = 0;
    for (int m = 0; m < k->N; m++) {
        double score = 0;
        for (int c = 0; c < k->D; c++) score += k->qkv[q0 + n * row + c] * k->qkv[q0 + m * row + row / 3 + c];
        sum += p[m] = exp(score / sqrt(k->D));
    }
    for (int m = 0; m < k->N; m++) p[m] /= sum;
}

static void masked_outputs(double *y, void *context) {
    Masked *k = context;
    size_t M = (size_t)k->H * k->D;
    double *p = malloc(k->N * sizeof *p);
    for (size_t i = 0; i < (size_t)k->B * k->N * M; i++) y[i] = k->before[i];
    for (int b = 0; b < k->B; b++)
        for (int h = 0; h < k->H; h++)
            for (int n = 0; n < k->N; n++) {
                size_t q0 = b * k->N * 3 * M + h * k->D, out = (b * k->N + n) * M + h * k->D;
                bool *left = k->left + ((b * k->H + h) * k->N + n) * k->N;
                masked_row(p, k, q0, n);
                for (int m = 0; m < k->N; m++) {
                    if (k->closest >= 0) {
                        left[m] = p[m] > k->threshold;
                        k->closest = fmin(k->closest, fabs(log(p[m] / k->threshold)));
                    }
                    for (int c = 0; c < k->D && left[m]; c++) y[out + c] += p[m] * k->qkv[q0 + m * 3 * M + 2 * M + c];
                }
            }
    free(p);
}

static void masked_case(int B, int N, int H, int D) {
    size_t n = (size_t)B * N * H * D, rows = (size_t)B * H * N, dropped = 0;
    float *qkv = normals(3 * n, 1), *y = normals(n, 1), *dy = normals(n, 1), *before = normals(3 * n, 1);
    real *d_qkv = upload_real(qkv, 3 * n), *d_y = upload_real(y, n), *d_dy = upload_real(dy, n),
         *d_dqkv = upload_real(before, 3 * n), *again = upload_real(before, 3 * n);
    float *d_lse = poisoned(rows), *d_delta = poisoned(rows);
    Masked k = {B, N, H, D, 0.7 / N, wide(qkv, 3 * n), wide(y, n), calloc(rows * N, sizeof(bool)), 0};
    double *want = zeros(n);
    while (k.closest < 1e-5) { /* until no weight is within rounding of the threshold */
        k.closest = INFINITY;
        k.threshold = (float)(k.threshold * 1.001);
        masked_outputs(want, &k);
    }
    k.closest = -1;
    for (size_t i = 0; i < rows * N; i++) dropped += !k.left[i];
    printf("without weights up to %.3g, B %d N %d H %d D %d, %.0f %% of them\n", k.threshold, B, N, H, D,
           100.0 * dropped / (double)(rows * N));
    assert_true(N == 1 || (dropped > 0 && dropped < rows * N));
    AttentionShape shape = {B, N, H, D};
    kernels_reserve(thresholded_attention_workspace(N, D));
    thresholded_attention_forward(d_y, d_lse, d_qkv, (float)k.threshold, &shape);
    assert_true(close_rounded("y", d_y, want, n));
    thresholded_attention_backward(d_dqkv, d_delta, d_dy, d_lse, d_qkv, (float)k.threshold, &shape);
    Function f = {masked_outputs, &k, n, zeros(n), dy, 1e-5};
    assert_true(slopes_agree("dqkv", download_real(d_dqkv, 3 * n), before, k.qkv, 3 * n, &f));
    double *delta = zeros(rows), *size = zeros(rows); /* without the initial y */
    for (size_t i = 0; i < n; i++) {
        size_t row = (i / (H * D) / N * H + i / D % H) * N + i / (H * D) % N;
        add_term(&delta[row], &size[row], dy[i] * (want[i] - y[i]));
    }
    assert_true(close_sums("delta", download(d_delta, rows), delta, size, rows, rows < 10));
    thresholded_attention_backward(again, d_delta, d_dy, d_lse, d_qkv, (float)k.threshold, &shape);
    assert_memory_equal(download_real(again, 3 * n), download_real(d_dqkv, 3 * n), 3 * n * sizeof(float));
    free(k.left);
    release_all();
}

static void test_masked(void **state) {
    (void)state;
    const int cases[][4] = {{2, 35, 3, 5}, {1, 1, 1, 2}, {1, 33, 2, 33}, {2, 16, 1, 16}, {1, 70, 1, 17}, {3, 4, 2, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        masked_case(cases[i][0], cases[i][1], cases[i][2], cases[i][3]);
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bias), cmocka_unit_test(test_sparse),
                                       cmocka_unit_test(test_masked)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
