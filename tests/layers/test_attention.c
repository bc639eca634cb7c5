/* Softmax attention, linear attention and the learnable feature map against their formulas in double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/on_device.h"

/* Index of element c of head h and token t in [B,N,parts,H,D]; t counts the tokens of all images. */
static size_t at(size_t t, int parts, int part, int H, int h, int D, int c) {
    return ((t * parts + part) * H + h) * D + c;
}

/* == Softmax attention ============================================================================================ */

typedef struct {
    int B, N, H, D;
} SoftmaxCase;

static double dot(const float *a, const float *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

/* The summed absolute values of the terms of a dot product. */
static double dot_size(const float *a, const float *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += fabs((double)a[i] * b[i]);
    return sum;
}

/* y, lse, dqkv and the summed absolute values of dqkv's terms for one image and head, query by query. */
static void softmax_reference(double *y, double *lse, double *dqkv, double *size, const float *dy, const float *qkv,
                              SoftmaxCase k, int b, int h) {
    double *p = calloc(k.N, sizeof *p);
    for (int i = 0; i < k.N; i++) {
        size_t t = (size_t)b * k.N + i, q = at(t, 3, 0, k.H, h, k.D, 0), out = at(t, 1, 0, k.H, h, k.D, 0);
        double max = -INFINITY, sum = 0, delta = 0, delta_size = 0;
        for (int j = 0; j < k.N; j++) {
            p[j] = dot(qkv + q, qkv + at((size_t)b * k.N + j, 3, 1, k.H, h, k.D, 0), k.D) / sqrt(k.D);
            max = fmax(max, p[j]);
        }
        for (int j = 0; j < k.N; j++) sum += p[j] = exp(p[j] - max);
        lse[((size_t)b * k.H + h) * k.N + i] = max + log(sum);
        for (int j = 0; j < k.N; j++) {
            p[j] /= sum;
            for (int c = 0; c < k.D; c++) y[out + c] += p[j] * qkv[at((size_t)b * k.N + j, 3, 2, k.H, h, k.D, c)];
        }
        for (int c = 0; c < k.D; c++) {
            delta += dy[out + c] * y[out + c];
            delta_size += fabs(dy[out + c] * y[out + c]);
        }
        for (int j = 0; j < k.N; j++) {
            size_t key = at((size_t)b * k.N + j, 3, 1, k.H, h, k.D, 0), value = key + (size_t)k.H * k.D;
            double ds = p[j] * (dot(dy + out, qkv + value, k.D) - delta) / sqrt(k.D);
            double ds_size = p[j] * (dot_size(dy + out, qkv + value, k.D) + delta_size) / sqrt(k.D);
            for (int c = 0; c < k.D; c++) {
                dqkv[q + c] += ds * qkv[key + c];
                dqkv[key + c] += ds * qkv[q + c];
                dqkv[value + c] += p[j] * dy[out + c];
                size[q + c] += ds_size * fabsf(qkv[key + c]);
                size[key + c] += ds_size * fabsf(qkv[q + c]);
                size[value + c] += p[j] * fabsf(dy[out + c]);
            }
        }
    }
    free(p);
}

/* Compares dq, dk or dv alone: they differ in size, and the largest must not hide errors of the others.  With a single
 * key dq is zero. */
static int close_third(int part, const real *d_got, const double *want, const double *size, size_t n, size_t M,
                       bool lone) {
    const char *names[] = {"dq", "dk", "dv"};
    float *got = download_real(d_got, 3 * n), *got_part = normals(n, 1);
    double *want_part = zeros(n), *size_part = zeros(n);
    for (size_t i = 0; i < n; i++) {
        size_t from = (i / M * 3 + part) * M + i % M;
        got_part[i] = got[from];
        want_part[i] = want[from];
        size_part[i] = size[from];
    }
    return close_sums(names[part], got_part, want_part, size_part, n, lone);
}

/* q and k are half the size of v: with three standard normal tensors the tails of the gradients are so heavy that even
 * the plain formula in float misses by up to 2e-5 of their root mean square. */
static void softmax_case(SoftmaxCase k) {
    size_t n = (size_t)k.B * k.N * k.H * k.D, rows = (size_t)k.B * k.H * k.N;
    printf("softmax attention B %d N %d H %d D %d\n", k.B, k.N, k.H, k.D);
    float *qkv = normals(3 * n, 1), *dy = normals(n, 1);
    for (size_t i = 0; i < 3 * n; i++)
        if (i / (k.H * k.D) % 3 != 2) qkv[i] /= 2;
    real *d_qkv = upload_real(qkv, 3 * n), *d_dy = upload_real(dy, n), *d_y = poisoned_real(n),
         *d_dqkv = poisoned_real(3 * n);
    float *d_lse = poisoned(rows);
    double *y = zeros(n), *lse = zeros(rows), *dqkv = zeros(3 * n), *size = zeros(3 * n);
    for (int b = 0; b < k.B; b++)
        for (int h = 0; h < k.H; h++) softmax_reference(y, lse, dqkv, size, dy, qkv, k, b, h);
    AttentionShape shape = {k.B, k.N, k.H, k.D};
    kernels_reserve(softmax_attention_workspace(k.N, k.D));
    softmax_attention_forward(d_y, d_lse, d_qkv, &shape);
    assert_true(close_rounded("y", d_y, y, n));
    assert_true(close_logarithms("lse", d_lse, lse, rows));
    softmax_attention_backward(d_dqkv, d_dy, d_y, d_lse, d_qkv, &shape);
    for (int part = 0; part < 3; part++)
        assert_true(close_third(part, d_dqkv, dqkv, size, n, k.H * k.D, k.N == 1 && part < 2));
    real *again = poisoned_real(3 * n);
    softmax_attention_backward(again, d_dy, d_y, d_lse, d_qkv, &shape);
    assert_memory_equal(download_real(again, 3 * n), download_real(d_dqkv, 3 * n), 3 * n * sizeof(float));
    release_all();
}

static void test_softmax_attention(void **state) {
    (void)state;
    const SoftmaxCase cases[] = {{3, 63, 2, 5},   {2, 1, 1, 2},   {5, 2, 3, 1},    {2, 197, 3, 32},
                                 {1, 257, 2, 64}, {1, 256, 1, 10}, {1, 600, 1, 16}, {2, 33, 1, 33},
                                {1, 70, 2, 65},  {1, 131, 1, 128}, {1, 288, 2, 20}, {1, 272, 1, 48},
                                {1, 545, 1, 32}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) softmax_case(cases[i]);
}

/* CUDA has two algorithms for up to 256 tokens (kernels/softmax/softmax_head.cu); other backends have one.  The
 * emulator gives the same bits with both, a GPU agrees to rounding.  With scores far below zero, a nonzero weight of a
 * key past the last one would be infinite. */
static void ways_case(int B, int N, int H, int D, bool low) {
    size_t n = (size_t)B * N * H * D;
    AttentionShape shape = {B, N, H, D};
    static const char *const ways[] = {"rows", "heads"};
    float *qkv = normals(3 * n, 1), *dy = normals(n, 1), *got[2];
    printf("softmax by rows and by heads B %d N %d H %d D %d%s\n", B, N, H, D, low ? ", scores far below zero" : "");
    for (size_t i = 0; low && i < 3 * n; i++)
        if (i / (H * D) % 3 < 2) qkv[i] = qkv[i] / 4 + (i / (H * D) % 3 ? -30 : 30);
    real *d_qkv = upload_real(qkv, 3 * n), *d_dy = upload_real(dy, n), *d_y = poisoned_real(n);
    float *d_lse = poisoned((size_t)B * H * N);
    kernels_reserve(softmax_attention_workspace(N, D));
    softmax_attention_forward(d_y, d_lse, d_qkv, &shape);
    for (int way = 0; way < 2; way++) {
        real *d_dqkv = poisoned_real(3 * n);
        setenv("VIT_FLASH", ways[way], 1);
        softmax_attention_backward(d_dqkv, d_dy, d_y, d_lse, d_qkv, &shape);
        got[way] = download_real(d_dqkv, 3 * n);
    }
    unsetenv("VIT_FLASH");
    for (size_t i = 0; i < 3 * n; i++) assert_true(isfinite(got[0][i]));
    if (strstr(kernels_device(), "emulated") || !strncmp(kernels_device(), "CPU", 3))
        assert_memory_equal(got[0], got[1], 3 * n * sizeof(float));
    double *want = zeros(3 * n);
    for (size_t i = 0; i < 3 * n; i++) want[i] = got[0][i];
    assert_true(check_close_step("by heads", got[1], want, 3 * n, roundings(5), REAL_STEP));
    release_all();
}

static void test_softmax_ways(void **state) {
    (void)state;
    const int sizes[][2] = {{1, 3}, {16, 16}, {17, 32}, {64, 20}, {65, 33}, {197, 32}, {208, 64}, {256, 8}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        ways_case(1, sizes[i][0], 1 + (int)(i % 2), sizes[i][1], i % 2);
    for (int i = 0; i < 3; i++) {
        unsigned drawn = (unsigned)(1e6f * fabsf(*normals(1, 1)));
        ways_case(1, 1 + (int)(drawn % 131), 2, 1 + (int)(drawn / 131 % 64), i == 1);
    }
}

/* Scores that grow by thousands from key to key: the last key gets all the weight, and nothing overflows. */
static void test_softmax_large_scores(void **state) {
    (void)state;
    enum { N = 700, D = 4 };
    float *qkv = normals(N * 3 * D, 1);
    for (int i = 0; i < N; i++)
        for (int c = 0; c < 2 * D; c++) qkv[i * 3 * D + c] = c < D ? 100 : i;
    real *d_qkv = upload_real(qkv, N * 3 * D), *d_y = poisoned_real(N * D);
    float *d_lse = poisoned(N);
    double *y = zeros(N * D);
    int last = N - 1;
    while (last > 0 && qkv[last * 3 * D + D] == qkv[(last - 1) * 3 * D + D]) last--; /* keys that bfloat16 made equal */
    for (int i = 0; i < N; i++)
        for (int j = last; j < N; j++)
            for (int c = 0; c < D; c++) y[i * D + c] += (double)qkv[j * 3 * D + 2 * D + c] / (N - last);
    kernels_reserve(softmax_attention_workspace(N, D));
    softmax_attention_forward(d_y, d_lse, d_qkv, &(AttentionShape){1, N, 1, D});
    assert_true(close_rounded("large scores, y", d_y, y, N * D));
    release_all();
}

/* A NaN in one key reaches all queries of its head and no other head. */
static void test_softmax_nan(void **state) {
    (void)state;
    enum { N = 20, H = 2, D = 3 };
    size_t n = N * H * D;
    float *qkv = normals(3 * n, 1), *y;
    qkv[at(7, 3, 1, H, 1, D, 2)] = NAN;
    real *d_y = poisoned_real(n);
    float *d_lse = poisoned(N * H);
    kernels_reserve(softmax_attention_workspace(N, D));
    softmax_attention_forward(d_y, d_lse, upload_real(qkv, 3 * n), &(AttentionShape){1, N, H, D});
    y = download_real(d_y, n);
    for (int t = 0; t < N; t++)
        for (int h = 0; h < H; h++)
            for (int c = 0; c < D; c++) assert_int_equal(isnan(y[at(t, 1, 0, H, h, D, c)]) != 0, h);
    release_all();
}

/* == Linear attention ============================================================================================= */

typedef struct {
    int B, N, H, D, F;
} LinearCase;

typedef struct {
    double *y, *den, *kv, *dqkv, *dphi, *dphi_size; /* dphi_size: the summed absolute values of dphi's terms */
} LinearReference;

static void linear_reference(LinearReference r, const float *dy, const float *phi, const float *qkv, LinearCase k,
                             int b, int h) {
    int D1 = k.D + 1;
    size_t size = (size_t)k.F * D1;
    double *S = r.kv + ((size_t)b * k.H + h) * size, *S_size = zeros(size), *dS = zeros(size), *dS_size = zeros(size);
    double *g = zeros(D1), *g_size = zeros(D1);
    for (int m = 0; m < k.N; m++) {
        size_t t = (size_t)b * k.N + m;
        for (int f = 0; f < k.F; f++)
            for (int c = 0; c < D1; c++) {
                double term =
                    phi[at(t, 2, 1, k.H, h, k.F, f)] * (c < k.D ? (double)qkv[at(t, 3, 2, k.H, h, k.D, c)] : 1);
                S[f * D1 + c] += term;
                S_size[f * D1 + c] += fabs(term);
            }
    }
    for (int i = 0; i < k.N; i++) {
        size_t t = (size_t)b * k.N + i, q = at(t, 2, 0, k.H, h, k.F, 0), out = at(t, 1, 0, k.H, h, k.D, 0);
        double den = 1e-6;
        for (int f = 0; f < k.F; f++) den += phi[q + f] * S[f * D1 + k.D];
        r.den[t * k.H + h] = den;
        g[k.D] = g_size[k.D] = 0;
        for (int c = 0; c < k.D; c++) {
            for (int f = 0; f < k.F; f++) r.y[out + c] += phi[q + f] * S[f * D1 + c] / den;
            g[c] = dy[out + c] / den;
            g_size[c] = fabs(g[c]);
            g[k.D] -= dy[out + c] * r.y[out + c] / den;
            g_size[k.D] += fabs(dy[out + c] * r.y[out + c] / den);
        }
        for (int f = 0; f < k.F; f++)
            for (int c = 0; c < D1; c++) {
                r.dphi[q + f] += S[f * D1 + c] * g[c];
                r.dphi_size[q + f] += S_size[f * D1 + c] * g_size[c];
                dS[f * D1 + c] += phi[q + f] * g[c];
                dS_size[f * D1 + c] += phi[q + f] * g_size[c];
            }
    }
    for (int m = 0; m < k.N; m++) {
        size_t t = (size_t)b * k.N + m;
        for (int f = 0; f < k.F; f++)
            for (int c = 0; c < D1; c++) {
                size_t v = at(t, 3, 2, k.H, h, k.D, c), key = at(t, 2, 1, k.H, h, k.F, f);
                r.dphi[key] += dS[f * D1 + c] * (c < k.D ? (double)qkv[v] : 1);
                r.dphi_size[key] += dS_size[f * D1 + c] * (c < k.D ? fabs((double)qkv[v]) : 1);
                if (c < k.D) r.dqkv[v] += dS[f * D1 + c] * phi[key];
            }
    }
}

static void linear_case(LinearCase k) {
    size_t tokens = (size_t)k.B * k.N, n = tokens * k.H * k.D, n_phi = tokens * 2 * k.H * k.F;
    size_t n_kv = (size_t)k.B * k.H * k.F * (k.D + 1);
    printf("linear attention B %d N %d H %d D %d F %d\n", k.B, k.N, k.H, k.D, k.F);
    float *qkv = normals(3 * n, 1), *phi = normals(n_phi, 1), *dy = normals(n, 1), *before = normals(3 * n, 1);
    for (size_t i = 0; i < n_phi; i++) phi[i] = k.F > 1 && i % 3 == 1 ? 0 : fabsf(phi[i]) + 0.1f;
    LinearReference r = {zeros(n), zeros(tokens * k.H), zeros(n_kv), zeros(3 * n), zeros(n_phi), zeros(n_phi)};
    real *d_qkv = upload_real(qkv, 3 * n), *d_phi = upload_real(phi, n_phi), *d_dy = upload_real(dy, n),
         *d_y = poisoned_real(n);
    real *d_dqkv = upload_real(before, 3 * n), *d_dphi = poisoned_real(n_phi);
    float *d_den = poisoned(tokens * k.H), *d_kv = poisoned(n_kv);
    for (int b = 0; b < k.B; b++)
        for (int h = 0; h < k.H; h++) linear_reference(r, dy, phi, qkv, k, b, h);
    for (size_t i = 0; i < 3 * n; i++) /* dq and dk must not be written */
        if (i / (k.H * k.D) % 3 != 2) r.dqkv[i] = before[i];
    kernels_reserve(linear_attention_workspace(k.D, k.F));
    LinearAttention shape = {k.B, k.N, k.H, k.D, k.F, DENOMINATOR_EPSILON, {0}};
    linear_attention_forward(d_y, d_den, d_kv, d_phi, d_qkv, &shape);
    assert_true(close_halves("y", d_y, r.y, n));
    assert_true(check_close("den", download(d_den, tokens * k.H), r.den, tokens * k.H, halves()));
    assert_true(close_float("kv", d_kv, r.kv, n_kv));
    linear_attention_backward(d_dqkv, d_dphi, d_dy, d_y, d_den, d_kv, d_phi, d_qkv, &shape);
    assert_true(close_rounded("dqkv", d_dqkv, r.dqkv, 3 * n));
    /* The output of a lone token is its v, whatever the features are. */
    assert_true(close_sums("dphi", download_real(d_dphi, n_phi), r.dphi, r.dphi_size, n_phi, k.N == 1));
    float *after = download_real(d_dqkv, 3 * n);
    for (size_t i = 0; i < 3 * n; i++)
        if (i / (k.H * k.D) % 3 != 2) assert_true(after[i] == before[i]);
    release_all();
}

/* From every `step` rows of `row` numbers, rows first .. first+n-1, without gaps. */
static float *rows_of(const float *x, size_t rows, size_t step, size_t first, size_t n, size_t row) {
    float *out = normals(rows / step * n * row, 1);
    for (size_t i = 0; i < rows / step * n; i++)
        memcpy(out + i * row, x + (i / n * step + first + i % n) * row, row * sizeof *out);
    return out;
}

/* Fewer keys than queries, in separate tensors.  In the reference there are as many keys as queries, and the features
 * of the missing keys are zero. */
static void linear_apart_case(LinearCase k, size_t count) {
    size_t N = (size_t)k.N, tokens = (size_t)k.B * N, keys = (size_t)k.B * count, row = (size_t)k.H * k.D,
           heads = (size_t)k.H * k.F, n = tokens * row, n_phi = tokens * heads, n_kv = k.B * heads * (k.D + 1);
    printf("linear attention B %d N %d H %d D %d F %d, %zu keys\n", k.B, k.N, k.H, k.D, k.F, count);
    float *qkv = normals(3 * n, 1), *phi = normals(2 * n_phi, 1), *dy = normals(n, 1);
    for (size_t i = 0; i < 2 * n_phi; i++) {
        size_t part = i / heads % 2, token = i / (2 * heads) % N;
        phi[i] = part && token >= count ? 0 : fabsf(phi[i]) + 0.1f;
    }
    rounded_real(qkv, 3 * n);
    rounded_real(phi, 2 * n_phi);
    real *d_dy = upload_real(dy, n), *d_y = poisoned_real(n);
    LinearReference r = {zeros(n),     zeros(tokens * k.H), zeros(n_kv),
                         zeros(3 * n), zeros(2 * n_phi),    zeros(2 * n_phi)};
    for (int b = 0; b < k.B; b++)
        for (int h = 0; h < k.H; h++) linear_reference(r, dy, phi, qkv, k, b, h);
    /* Features of the queries; features of the keys; k and v of the keys. */
    float *phi_q = rows_of(phi, 2 * tokens, 2, 0, 1, heads), *all_k = rows_of(phi, 2 * tokens, 2, 1, 1, heads);
    float *phi_k = rows_of(all_k, tokens, N, 0, count, heads);
    float *kv = rows_of(rows_of(qkv, 3 * tokens, 3, 1, 2, row), tokens, N, 0, count, 2 * row);
    real *d_phi_q = upload_real(phi_q, n_phi), *d_phi_k = upload_real(phi_k, keys * heads),
         *d_kv = upload_real(kv, 2 * keys * row), *d_dphi_q = poisoned_real(n_phi),
         *d_dphi_k = poisoned_real(keys * heads), *d_dkv = upload_real(kv, 2 * keys * row);
    float *d_den = poisoned(tokens * k.H), *d_sums = poisoned(n_kv);
    kernels_reserve(linear_attention_workspace(k.D, k.F));
    LinearAttention shape = {k.B, k.N, k.H, k.D, k.F, DENOMINATOR_EPSILON, {(int)count, d_phi_k, d_dphi_k}};
    linear_attention_forward(d_y, d_den, d_sums, d_phi_q, d_kv, &shape);
    assert_true(close_halves("y", d_y, r.y, n));
    assert_true(check_close("den", download(d_den, tokens * k.H), r.den, tokens * k.H, halves()));
    assert_true(close_float("kv", d_sums, r.kv, n_kv));
    linear_attention_backward(d_dkv, d_dphi_q, d_dy, d_y, d_den, d_sums, d_phi_q, d_kv, &shape);
    float *dphi_q = download_real(d_dphi_q, n_phi), *dphi_k = download_real(d_dphi_k, keys * heads),
          *dkv = download_real(d_dkv, 2 * keys * row), *dphi = normals(2 * n_phi, 1), *dv = normals(keys * row, 1);
    double *want_v = zeros(keys * row);
    for (size_t i = 0; i < 2 * n_phi; i++) {
        size_t token = i / (2 * heads), b = token / N, m = token % N;
        bool key = i / heads % 2;
        if (key && m >= count) r.dphi[i] = r.dphi_size[i] = 0;
        dphi[i] = !key ? dphi_q[token * heads + i % heads] : m < count ? dphi_k[(b * count + m) * heads + i % heads] : 0;
    }
    for (size_t i = 0; i < keys * row; i++) {
        size_t token = i / row / count * N + i / row % count;
        want_v[i] = r.dqkv[(3 * token + 2) * row + i % row];
        dv[i] = dkv[(2 * (i / row) + 1) * row + i % row];
        assert_true(dkv[2 * (i / row) * row + i % row] == kv[2 * (i / row) * row + i % row]); /* dk is not written */
    }
    assert_true(close_sums("dphi", dphi, r.dphi, r.dphi_size, 2 * n_phi, false));
    assert_true(check_close_step("dv", dv, want_v, keys * row, roundings(5), REAL_STEP));
    release_all();
}

static void test_linear_keys_apart(void **state) {
    (void)state;
    const LinearCase cases[] = {{3, 63, 2, 5, 7}, {2, 131, 3, 64, 32}, {1, 70, 2, 32, 64}};
    const size_t counts[] = {17, 65, 9};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) linear_apart_case(cases[i], counts[i]);
}

static void test_linear_attention(void **state) {
    (void)state;
    const LinearCase cases[] = {{3, 63, 2, 5, 7},    {1, 1, 1, 1, 1},     {2, 64, 3, 32, 32}, {1, 257, 1, 64, 32},
                                {1, 4099, 1, 10, 7}, {2, 130, 2, 33, 40}, {1, 65, 1, 15, 16}, {1, 9, 2, 16, 64},
                                {2, 131, 3, 32, 96}, {1, 1, 2, 64, 32},  {1, 2050, 1, 32, 32}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) linear_case(cases[i]);
}

/* == Feature map ================================================================================================== */

typedef struct {
    size_t n;
    int H, D, E, F;
} FeatureCase;

typedef struct {
    double *phi, *dqkv, *dw1, *dw2, *db2;
} FeatureReference;

/* One row: from z, its features and gradients.  `phi` is the device's, whose zeros decide where relu passes. */
static void feature_row(FeatureReference r, const float *z, size_t at_z, size_t at_phi, const float *dphi,
                        const float *phi, const float *w1, const float *w2, const float *b2, FeatureCase k) {
    double scale = pow(k.D, -0.25), *f = calloc(4 * (size_t)k.E, sizeof *f), *df = f + 2 * k.E;
    for (int e = 0; e < k.E; e++) {
        double u = 0;
        for (int d = 0; d < k.D; d++) u += w1[e * k.D + d] * scale * z[at_z + d];
        f[e] = sin(u);
        f[k.E + e] = cos(u);
    }
    for (int j = 0; j < k.F; j++) {
        double p = b2[j], dp = phi && phi[at_phi + j] > 0 ? dphi[at_phi + j] : 0;
        for (int e = 0; e < 2 * k.E; e++) {
            p += w2[j * 2 * k.E + e] * f[e];
            df[e] += w2[j * 2 * k.E + e] * dp;
            r.dw2[j * 2 * k.E + e] += dp * f[e];
        }
        r.db2[j] += dp;
        r.phi[at_phi + j] = p > 0 ? p : 0;
    }
    for (int e = 0; e < k.E; e++) {
        double du = df[e] * f[k.E + e] - df[k.E + e] * f[e];
        for (int d = 0; d < k.D; d++) {
            r.dw1[e * k.D + d] += du * scale * z[at_z + d];
            r.dqkv[at_z + d] += scale * w1[e * k.D + d] * du;
        }
    }
    free(f);
}

static void feature_rows(FeatureReference r, const float *dphi, const float *phi, const float *qkv, const float *w1,
                         const float *w2, const float *b2, FeatureCase k) {
    for (size_t t = 0; t < k.n; t++)
        for (int part = 0; part < 2; part++)
            for (int h = 0; h < k.H; h++)
                feature_row(r, qkv, at(t, 3, part, k.H, h, k.D, 0), at(t, 2, part, k.H, h, k.F, 0), dphi, phi, w1, w2,
                            b2, k);
}

static double *widened(const float *x, size_t n) {
    double *wide = zeros(n);
    for (size_t i = 0; i < n; i++) wide[i] = x[i];
    return wide;
}

static int close_rms(const char *what, const real *got, const double *want, size_t n) {
    return check_rms(what, download_real(got, n), want, n, roundings(5));
}

static void feature_case(FeatureCase k) {
    size_t n = k.n * k.H * k.D, n_phi = k.n * 2 * k.H * k.F, n_w1 = (size_t)k.E * k.D, n_w2 = (size_t)k.F * 2 * k.E;
    printf("feature map n %zu H %d D %d E %d F %d\n", k.n, k.H, k.D, k.E, k.F);
    float *qkv = normals(3 * n, 1), *w1 = normals(n_w1, 1), *w2 = normals(n_w2, 0.3f), *b2 = normals(k.F, 0.3f);
    float *dphi = normals(n_phi, 1), *before = normals(3 * n, 1), *dw1 = normals(n_w1, 1), *dw2 = normals(n_w2, 1),
          *db2 = normals(k.F, 1);
    real *d_qkv = upload_real(qkv, 3 * n), *d_dphi = upload_real(dphi, n_phi), *d_phi = poisoned_real(n_phi);
    real *d_dqkv = upload_real(before, 3 * n);
    float *d_w1 = upload(w1, n_w1), *d_w2 = upload(w2, n_w2), *d_b2 = upload(b2, k.F);
    float *d_dw1 = upload(dw1, n_w1), *d_dw2 = upload(dw2, n_w2), *d_db2 = upload(db2, k.F);
    kernels_reserve(feature_mlp_workspace(k.D, k.E, k.F));
    FeatureMlp map = {k.E, false, d_w1, d_w2, d_b2};
    FeatureMlpGradients d = {d_dw1, d_dw2, d_db2};
    FeatureShape shape = {1, (int)k.n, k.H, k.D, k.F};
    feature_mlp_forward(d_phi, d_qkv, &map, &shape);
    feature_mlp_backward(d_dqkv, &d, d_dphi, d_phi, d_qkv, &map, &shape);

    FeatureReference r = {zeros(n_phi), zeros(3 * n), widened(dw1, n_w1), widened(dw2, n_w2), widened(db2, k.F)};
    feature_rows(r, dphi, download_real(d_phi, n_phi), qkv, w1, w2, b2, k);
    float *after = download_real(d_dqkv, 3 * n);
    for (size_t i = 0; i < 3 * n; i++)
        if (i / (k.H * k.D) % 3 == 2) {
            assert_true(after[i] == before[i]);
            r.dqkv[i] = before[i];
        }
    /* In bfloat16 the sines and cosines of the angles, and the gradients of the angles, are rounded before they are
     * summed, and the sum may nearly vanish. */
    int (*close)(const char *, const real *, const double *, size_t) = sizeof(real) == 4 ? close_real : close_rms;
    assert_true(close("phi", d_phi, r.phi, n_phi));
    assert_true(close("dqkv", d_dqkv, r.dqkv, 3 * n));
    assert_true(close_float_rounded("dw1", d_dw1, r.dw1, n_w1));
    assert_true(close_float_rounded("dw2", d_dw2, r.dw2, n_w2));
    assert_true(close_float_rounded("db2", d_db2, r.db2, k.F));
    release_all();
}

static void test_feature_mlp(void **state) {
    (void)state;
    const FeatureCase cases[] = {{63, 2, 5, 3, 7},   {9, 1, 1, 4, 9},     {41, 3, 32, 32, 32}, {33, 1, 64, 64, 32},
                                 {700, 2, 10, 20, 7}, {97, 6, 32, 16, 64}, {5, 2, 17, 33, 49}, {50, 1, 3, 1, 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) feature_case(cases[i]);
}

/* A NaN in q reaches all features of its row, through sine, cosine and relu, and no other row. */
static void test_feature_nan(void **state) {
    (void)state;
    enum { N = 9, H = 2, D = 4, E = 5, F = 6 };
    float *qkv = normals(N * 3 * H * D, 1);
    qkv[at(4, 3, 1, H, 1, D, 2)] = NAN;
    real *d_phi = poisoned_real(N * 2 * H * F);
    kernels_reserve(feature_mlp_workspace(D, E, F));
    FeatureMlp map = {E, false, upload(normals(E * D, 1), E * D), upload(normals(F * 2 * E, 1), F * 2 * E),
                      upload(normals(F, 1), F)};
    feature_mlp_forward(d_phi, upload_real(qkv, N * 3 * H * D), &map, &(FeatureShape){1, N, H, D, F});
    float *phi = download_real(d_phi, N * 2 * H * F);
    for (size_t i = 0; i < N * 2 * H * F; i++) assert_int_equal(isnan(phi[i]) != 0, i / F == at(4, 2, 1, H, 1, 1, 0));
    release_all();
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_softmax_attention), cmocka_unit_test(test_softmax_large_scores),
        cmocka_unit_test(test_softmax_ways),
        cmocka_unit_test(test_softmax_nan),       cmocka_unit_test(test_linear_attention),
        cmocka_unit_test(test_linear_keys_apart),
        cmocka_unit_test(test_feature_mlp),       cmocka_unit_test(test_feature_nan),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
