/* Products of pairs of bfloat16, and softmax attention on them, against the plain formulas in double, with every kind
 * of instructions that the CPU supports, including those that the kernels would not choose. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/softmax/causal_pairs.h"
#include "kernels/softmax/softmax_pairs.h"
#include "kernels/kernels.h"
#include "tests/check.h"

#ifdef VIT_PAIRS

static const char *const names[] = {"", "dot products", "AMX"};

static int last_kind(void) { return pairs_kind() == PAIRS_AMX ? PAIRS_AMX : PAIRS_DOTS; }

/* Normal numbers rounded to bfloat16; *x: the rounded numbers as floats. */
static real *rounded_normal(float **x, size_t n, uint32_t stream) {
    real *rounded = device_malloc(n * sizeof *rounded, "test");
    *x = check_normal(n, 1, stream);
    real_upload(rounded, *x, n);
    real_download(*x, rounded, n);
    return rounded;
}

/* == Products ===================================================================================================== */

static int check_product(Pairs kind, int m, int n, int k, bool accumulate) {
    float *a, *b, *c = check_normal((size_t)m * n, accumulate, 3);
    real *left = rounded_normal(&a, (size_t)m * k, 1), *right = rounded_normal(&b, (size_t)k * n, 2);
    double *want = calloc((size_t)m * n, sizeof *want), *size = calloc((size_t)m * n, sizeof *size);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            size_t at = (size_t)i * n + j;
            want[at] = accumulate ? c[at] : 0;
            size[at] = fabs(want[at]);
            for (int p = 0; p < k; p++) {
                double term = (double)a[i * k + p] * b[(p / 2 * n + j) * 2 + p % 2];
                want[at] += term;
                size[at] += fabs(term);
            }
        }
    if (!accumulate)
        for (int i = 0; i < m * n; i++) c[i] = NAN;
    pairs_begin(kind);
    pairs_gemm(kind, c, n, left, k, right, n, m, n, k, accumulate);
    pairs_end(kind);
    int ok = check_sums("c", c, want, size, (size_t)m * n, 1e-6);
    device_free(left);
    device_free(right);
    void *all[] = {a, b, c, want, size};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    return ok;
}

static void test_products(void **state) {
    (void)state;
    static const int sizes[][3] = {{32, 32, 32}, {64, 32, 96}, {32, 96, 64}, {256, 32, 32}, {96, 64, 224}};
    int ok = 1;
    for (int kind = PAIRS_DOTS; kind <= last_kind(); kind++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (int accumulate = 0; accumulate < 2; accumulate++) {
                const int *s = sizes[i];
                printf("%s: m %d n %d k %d%s\n", names[kind], s[0], s[1], s[2], accumulate ? ", added" : "");
                ok &= check_product((Pairs)kind, s[0], s[1], s[2], accumulate);
            }
    assert_true(ok);
}

/* == Attention ==================================================================================================== */

typedef struct {
    double *y, *lse, *d[3]; /* y [N,D], lse [N], dq, dk, dv [N,D] */
    double *y_size, *d_size[3];
} Wanted;

static void add_term(double *sum, double *size, double a, double a_size, double b) {
    *sum += a * b;
    *size += a_size * fabs(b);
}

/* One query of a head.  x [3][N,D]: q, k, v.  y [N,D]: the kernel's result, from which backward computes dy.y. */
static void weigh(Wanted w, const float *const x[3], const float *dy, const float *y, int N, int D, int i) {
    double *p = malloc((size_t)N * sizeof *p), largest = -INFINITY, sum = 0, scale = 1 / sqrt(D), delta = 0, spread = 0;
    for (int j = 0; j < N; j++) {
        p[j] = 0;
        for (int c = 0; c < D; c++) p[j] += scale * x[0][i * D + c] * x[1][j * D + c];
        largest = fmax(largest, p[j]);
    }
    for (int j = 0; j < N; j++) sum += p[j] = exp(p[j] - largest);
    w.lse[i] = largest + log(sum);
    for (int c = 0; c < D; c++) {
        delta += (double)dy[i * D + c] * y[i * D + c];
        spread += fabs((double)dy[i * D + c] * y[i * D + c]);
    }
    for (int j = 0; j < N; j++) {
        double slope = 0, size = 0;
        p[j] /= sum;
        for (int c = 0; c < D; c++) {
            size_t q = (size_t)i * D + c, k = (size_t)j * D + c;
            add_term(&w.y[q], &w.y_size[q], p[j], p[j], x[2][k]);
            add_term(&slope, &size, dy[q], fabs(dy[q]), x[2][k]);
            add_term(&w.d[2][k], &w.d_size[2][k], p[j], p[j], dy[q]);
        }
        double ds = scale * p[j] * (slope - delta), ds_size = scale * p[j] * (size + spread);
        for (int c = 0; c < D; c++) {
            size_t q = (size_t)i * D + c, k = (size_t)j * D + c;
            add_term(&w.d[0][q], &w.d_size[0][q], ds, ds_size, x[1][k]);
            add_term(&w.d[1][k], &w.d_size[1][k], ds, ds_size, x[0][q]);
        }
    }
    free(p);
}

/* A copy of head h in part `part` of x [N,parts,H,D]. */
static float *take_head(const float *x, int N, int parts, int part, int H, int h, int D) {
    float *to = malloc((size_t)N * D * sizeof *to);
    for (int i = 0; i < N; i++)
        for (int c = 0; c < D; c++) to[i * D + c] = x[(((size_t)i * parts + part) * H + h) * D + c];
    return to;
}

/* Checks the second of two heads; the forward pass is computed in two parts. */
static int check_attention(Pairs kind, int N, int D) {
    enum { H = 2, HEAD = 1 };
    size_t M = (size_t)H * D, size = (size_t)N * D, at = (size_t)HEAD * D;
    float *qkv, *dy;
    real *d_qkv = rounded_normal(&qkv, N * 3 * M, 1), *d_dy = rounded_normal(&dy, N * M, 2);
    real *d_y = device_malloc(N * M * sizeof *d_y, "test"), *d_dqkv = device_malloc(N * 3 * M * sizeof *d_dqkv, "test");
    float *lse = check_poison((size_t)N), *y = check_poison(N * M), *dqkv = check_poison(N * 3 * M);
    real_upload(d_y, y, N * M);
    real_upload(d_dqkv, dqkv, N * 3 * M);
    size_t floats = softmax_pairs_forward_floats(N, D) + softmax_pairs_backward_floats(N, D);
    float *slice = device_malloc(floats * sizeof *slice, "test");
    int half = N / 2 / PAIR_BLOCK * PAIR_BLOCK;
    softmax_pairs_forward(kind, d_y + at, lse, d_qkv + at, M, N, D, 0, half, slice);
    softmax_pairs_forward(kind, d_y + at, lse, d_qkv + at, M, N, D, half, N, slice);
    softmax_pairs_backward(kind, d_dqkv + at, d_dy + at, d_y + at, lse, d_qkv + at, M, N, D, slice);
    real_download(y, d_y, N * M);
    real_download(dqkv, d_dqkv, N * 3 * M);

    double *all = calloc((8 * size) + (size_t)N, sizeof *all);
    Wanted w = {.y = all, .y_size = all + size, .lse = all + 8 * size};
    for (int part = 0; part < 3; part++) {
        w.d[part] = all + (2 + 2 * part) * size;
        w.d_size[part] = all + (3 + 2 * part) * size;
    }
    float *x[3], *heads_y = take_head(y, N, 1, 0, H, HEAD, D), *heads_dy = take_head(dy, N, 1, 0, H, HEAD, D);
    for (int part = 0; part < 3; part++) x[part] = take_head(qkv, N, 3, part, H, HEAD, D);
    for (int i = 0; i < N; i++) weigh(w, (const float *const *)x, heads_dy, heads_y, N, D, i);
    printf("%s: N %d D %d\n", names[kind], N, D);
    int ok = check_sums("y", heads_y, w.y, w.y_size, size, 2.0 / 256);
    double *lse_size = malloc((size_t)N * sizeof *lse_size);
    for (int i = 0; i < N; i++) lse_size[i] = 1 + fabs(w.lse[i]);
    ok &= check_sums("lse", lse, w.lse, lse_size, (size_t)N, 1e-6);
    static const char *const gradients[] = {"dq", "dk", "dv"};
    for (int part = 0; part < 3; part++) {
        float *got = take_head(dqkv, N, 3, part, H, HEAD, D);
        ok &= check_sums(gradients[part], got, w.d[part], w.d_size[part], size, 2.0 / 256);
        free(got);
        free(x[part]);
    }
    ok &= isnan(y[0]) && isnan(dqkv[0]); /* the other head is not written */
    void *made[] = {qkv, dy, lse, y, dqkv, all, lse_size, heads_y, heads_dy};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) free(made[i]);
    void *on_device[] = {d_qkv, d_dy, d_y, d_dqkv, slice};
    for (size_t i = 0; i < sizeof on_device / sizeof *on_device; i++) device_free(on_device[i]);
    return ok;
}

static void test_attention(void **state) {
    (void)state;
    static const int sizes[][2] = {{1, 32}, {2, 5}, {31, 33}, {32, 32}, {33, 64}, {65, 48}, {197, 64}, {257, 32},
                                   {288, 20}, {289, 20}, {512, 32}};
    int ok = 1;
    for (int kind = PAIRS_DOTS; kind <= last_kind(); kind++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            ok &= check_attention((Pairs)kind, sizes[i][0], sizes[i][1]);
    assert_true(ok);
}

/* == Causal attention ============================================================================================= */

enum { CAUSAL_N = 150, CAUSAL_DK = 33, CAUSAL_DV = 70, CAUSAL_ROW = 2 * CAUSAL_DK + CAUSAL_DV };
static const CausalShape causal_shape = {1, CAUSAL_N, 1, CAUSAL_DK, CAUSAL_DV, CAUSAL_ROW, CAUSAL_ROW, CAUSAL_ROW};

static CausalInputs parts_of(const real *qkv) { return (CausalInputs){qkv, qkv + CAUSAL_DK, qkv + 2 * CAUSAL_DK}; }

/* Runs both passes of a head with `kind`; PAIRS_SLOW: with the kernels' own choice, which test_causal.c tests. */
static void run_causal(Pairs kind, real *y, float *lse, real *dqkv, const real *dy, const real *qkv,
                       const CausalPattern *p) {
    const CausalShape *s = &causal_shape;
    CausalInputs in = parts_of(qkv);
    if (kind == PAIRS_SLOW) {
        kernels_reserve(causal_attention_workspace(p, s));
        causal_attention_forward(y, lse, &in, p, s);
        CausalGradients d = {dqkv, dqkv + CAUSAL_DK, dqkv + 2 * CAUSAL_DK};
        causal_attention_backward(&d, dy, y, lse, &in, p, s);
        return;
    }
    size_t forward = causal_pairs_forward_floats(s, p, 0), backward = causal_pairs_backward_floats(s, p, 0);
    float *slice = device_malloc((forward > backward ? forward : backward) * sizeof *slice, "test");
    Head a = head_of(s, p, &in, 0);
    a.y = y;
    a.dy = dy;
    a.lse = lse;
    a.dq = dqkv;
    a.dk = dqkv + CAUSAL_DK;
    a.dv = dqkv + 2 * CAUSAL_DK;
    causal_pairs_forward(kind, &a, s, ALONE, slice, slice);
    causal_pairs_backward(kind, &a, s, ALONE, slice, slice, 0);
    device_free(slice);
}

static int close_causal(const char *what, const float *got, const float *want, size_t n, double tolerance) {
    double *wide = malloc(n * sizeof *wide);
    for (size_t i = 0; i < n; i++) wide[i] = want[i];
    int ok = check_rms(what, got, wide, n, tolerance);
    free(wide);
    return ok;
}

static int check_causal(Pairs kind, CausalSet set) {
    enum { Y = CAUSAL_N * CAUSAL_DV, QKV = CAUSAL_N * CAUSAL_ROW };
    CausalPattern p = {set, set, 1, 40, 37, 9, 2};
    float *qkv, *dy, *y[2], *lse[2], *dqkv[2];
    real *d_qkv = rounded_normal(&qkv, QKV, 1), *d_dy = rounded_normal(&dy, Y, 2);
    for (int i = 0; i < 2; i++) {
        y[i] = check_poison(Y);
        lse[i] = check_poison(CAUSAL_N);
        dqkv[i] = check_poison(QKV);
        real *d_y = device_malloc(Y * sizeof *d_y, "test"), *d_dqkv = device_malloc(QKV * sizeof *d_dqkv, "test");
        real_upload(d_y, y[i], Y);
        real_upload(d_dqkv, dqkv[i], QKV);
        run_causal(i ? kind : PAIRS_SLOW, d_y, lse[i], d_dqkv, d_dy, d_qkv, &p);
        real_download(y[i], d_y, Y);
        real_download(dqkv[i], d_dqkv, QKV);
        device_free(d_y);
        device_free(d_dqkv);
    }
    printf("%s: causal set %d\n", names[kind], set);
    int ok = close_causal("y", y[1], y[0], Y, 1.0 / 256);
    ok &= close_causal("lse", lse[1], lse[0], CAUSAL_N, 1e-6);
    ok &= close_causal("dqkv", dqkv[1], dqkv[0], QKV, 2.0 / 256);
    void *made[] = {qkv, dy, y[0], y[1], lse[0], lse[1], dqkv[0], dqkv[1]};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) free(made[i]);
    device_free(d_qkv);
    device_free(d_dy);
    return ok;
}

static void test_causal(void **state) {
    (void)state;
    int ok = 1;
    for (int kind = PAIRS_DOTS; kind <= last_kind(); kind++)
        for (int set = 0; set < CAUSAL_SETS; set++) ok &= check_causal((Pairs)kind, (CausalSet)set);
    assert_true(ok);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_products), cmocka_unit_test(test_attention),
                                       cmocka_unit_test(test_causal)};
    kernels_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

static void test_nothing(void **state) {
    (void)state;
    printf("  not built for products of pairs: PRECISION=BF16 on a processor with avx512_bf16 is\n");
    skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
