/* Normalisation, activation, tokens, loss and optimizer against their formulas in double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "data/sets/dataset.h"
#include "tests/on_device.h"

static double *widened(const float *x, size_t n) {
    double *wide = zeros(n);
    for (size_t i = 0; i < n; i++) wide[i] = x[i];
    return wide;
}

/* == Layer norm =================================================================================================== */

enum { ROWS_PER_SCALE = 5 };

typedef struct {
    size_t n;
    int M;
    bool scaled; /* drop path */
    float offset; /* the inputs' mean */
    float eps;
} NormCase;

typedef struct {
    double *h, *mean, *rstd, *dx, *dw, *db, *dw_size, *db_size; /* the last two: summed absolute values of the terms */
} NormReference;

static void norm_reference(NormReference r, const double *y, const float *dh, const float *w, const float *b, size_t n,
                           int M, float eps) {
    for (int m = 0; m < M; m++) {
        r.dw_size[m] = fabs(r.dw[m]);
        r.db_size[m] = fabs(r.db[m]);
    }
    for (size_t i = 0; i < n; i++) {
        const double *row = y + i * M;
        double mean = 0, var = 0, mean_g = 0, mean_gxh = 0;
        for (int m = 0; m < M; m++) mean += row[m] / M;
        for (int m = 0; m < M; m++) var += (row[m] - mean) * (row[m] - mean) / M;
        double rstd = 1 / sqrt(var + eps);
        r.mean[i] = mean;
        r.rstd[i] = rstd;
        for (int m = 0; m < M; m++) {
            double xh = (row[m] - mean) * rstd, g = w[m] * dh[i * M + m];
            r.h[i * M + m] = w[m] * xh + b[m];
            r.dw[m] += dh[i * M + m] * xh;
            r.db[m] += dh[i * M + m];
            r.dw_size[m] += fabs(dh[i * M + m] * xh);
            r.db_size[m] += fabs(dh[i * M + m]);
            mean_g += g / M;
            mean_gxh += g * xh / M;
        }
        for (int m = 0; m < M; m++)
            r.dx[i * M + m] = rstd * (w[m] * dh[i * M + m] - mean_g - (row[m] - mean) * rstd * mean_gxh);
    }
}

static void norm_case(NormCase k) {
    size_t size = k.n * k.M, scales = k.n / ROWS_PER_SCALE;
    printf("layer norm n %zu M %d%s mean %g\n", k.n, k.M, k.scaled ? ", scaled" : "", (double)k.offset);
    float *x = normals(size, 1), *f = normals(size, 1), *dh = normals(size, 1), *dres = normals(size, 1);
    float *w = normals(k.M, 1), *b = normals(k.M, 1), *scale = normals(scales, 1), *dw = normals(k.M, 1),
          *db = normals(k.M, 1);
    for (size_t i = 0; i < size; i++) x[i] += k.offset;
    for (size_t i = 0; i < scales; i++) scale[i] = i % 3 == 1 ? 0 : 1 + fabsf(scale[i]);
    real *d_x = upload_real(x, size), *d_f = upload_real(f, size), *d_y = poisoned_real(size),
         *d_h = poisoned_real(size);
    float *d_w = upload(w, k.M), *d_b = upload(b, k.M), *d_scale = k.scaled ? upload(scale, scales) : NULL;
    float *d_mean = poisoned(k.n), *d_rstd = poisoned(k.n);

    const LayerNorm norm = {d_w, d_b, d_mean, d_rstd, k.n, k.M, k.eps};
    RowScale s = {d_scale, ROWS_PER_SCALE, NULL};
    add_layernorm_forward(d_y, d_h, d_x, d_f, &s, &norm);
    double *y = zeros(size), *dy = zeros(size), *df = zeros(size);
    for (size_t i = 0; i < size; i++) y[i] = x[i] + (k.scaled ? (double)scale[i / k.M / ROWS_PER_SCALE] : 1) * f[i];
    assert_true(close_real("y", d_y, y, size));
    float *rounded = download_real(d_y, size); /* the norm's input is the rounded sum that was stored */
    NormReference r = {zeros(size), zeros(k.n), zeros(k.n), zeros(size), widened(dw, k.M), widened(db, k.M),
                       zeros(k.M), zeros(k.M)};
    real *d_dh = upload_real(dh, size), *d_dres = upload_real(dres, size);
    norm_reference(r, widened(rounded, size), dh, w, b, k.n, k.M, k.eps);
    assert_true(close_real("h", d_h, r.h, size));
    assert_true(close_float("mean", d_mean, r.mean, k.n));
    assert_true(close_float("rstd", d_rstd, r.rstd, k.n));

    /* Plain forward in place, from the same rows. */
    real *in_place = upload_real(rounded, size);
    float *mean_alone = poisoned(k.n), *rstd_alone = poisoned(k.n);
    layernorm_forward(in_place, in_place, &(LayerNorm){d_w, d_b, mean_alone, rstd_alone, k.n, k.M, k.eps});
    assert_true(close_real("h over x", in_place, r.h, size));
    assert_true(close_float("mean of the norm alone", mean_alone, r.mean, k.n));
    assert_true(close_float("rstd of the norm alone", rstd_alone, r.rstd, k.n));

    /* In place: y overwrites x and h overwrites f. */
    real *y_over_x = upload_real(x, size), *h_over_f = upload_real(f, size);
    add_layernorm_forward(y_over_x, h_over_f, y_over_x, h_over_f, &s, &norm);
    assert_memory_equal(download_real(y_over_x, size), rounded, size * sizeof(float));
    assert_memory_equal(download_real(h_over_f, size), download_real(d_h, size), size * sizeof(float));

    /* Backward plus the gradient of the residual; dy overwrites dres. */
    float *d_dw = upload(dw, k.M), *d_db = upload(db, k.M);
    real *d_df = poisoned_real(size);
    kernels_reserve(layernorm_workspace(k.M));
    for (size_t i = 0; i < size; i++) {
        dy[i] = r.dx[i] + dres[i];
        df[i] = dy[i] * (double)scale[i / k.M / ROWS_PER_SCALE];
    }
    add_layernorm_backward(d_dres, d_df, d_dw, d_db, d_dres, d_dh, d_y, &s, &norm);
    assert_true(close_real("dy", d_dres, dy, size));
    assert_true(close_sums("dw", download(d_dw, k.M), r.dw, r.dw_size, k.M, k.M == 1));
    assert_true(close_sums("db", download(d_db, k.M), r.db, r.db_size, k.M, k.M == 1));
    float *got_df = download_real(d_df, size);
    if (k.scaled) assert_true(close_real("df", d_df, df, size));
    else
        for (size_t i = 0; i < size; i++) assert_true(isnan(got_df[i])); /* not written */

    /* Again, with sums over the rows of the branch. */
    float *sums = normals(k.M, 1), *d_sums = upload(sums, k.M), *plain_dw = download(d_dw, k.M);
    float *again_dw = upload(dw, k.M), *again_db = upload(db, k.M);
    real *again = upload_real(dres, size), *again_df = poisoned_real(size);
    s.sums = d_sums;
    add_layernorm_backward(again, again_df, again_dw, again_db, again, d_dh, d_y, &s, &norm);
    float *got_dy = download_real(again, size), *branch = k.scaled ? download_real(again_df, size) : got_dy;
    assert_memory_equal(got_dy, download_real(d_dres, size), size * sizeof(float));
    assert_memory_equal(download_real(again_df, size), got_df, size * sizeof(float));
    assert_memory_equal(download(again_dw, k.M), plain_dw, k.M * sizeof(float));
    assert_memory_equal(download(again_db, k.M), download(d_db, k.M), k.M * sizeof(float));
    double *want_sums = zeros(k.M), *sums_size = zeros(k.M);
    for (int j = 0; j < k.M; j++) add_term(&want_sums[j], &sums_size[j], sums[j]);
    for (size_t i = 0; i < size; i++) add_term(&want_sums[i % k.M], &sums_size[i % k.M], branch[i]);
    assert_true(check_sums("sums of the branch", download(d_sums, k.M), want_sums, sums_size, k.M, 1e-5));
    s.sums = NULL;
    if (k.M == 1) { /* the norm of a single number is constant */
        release_all();
        return;
    }
    real *alone = poisoned_real(size);
    add_layernorm_backward(alone, NULL, d_dw, d_db, NULL, d_dh, d_y, NULL, &norm);
    assert_true(close_real("dy alone", alone, r.dx, size));
    release_all();
}

static void test_layernorm(void **state) {
    (void)state;
    const NormCase cases[] = {{5, 1, true, 0, 1},         {5, 20, false, 0, 1e-6f},     {1500, 192, true, 0, 1e-6f},
                              {35, 1000, true, 2, 1e-6f}, {205, 20, false, -10, 1e-6f}, {10, 5000, false, 0, 1e-6f}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) norm_case(cases[i]);
}

/* == Linear layer ================================================================================================= */

/* The parameters are numbers that an activation can hold, so that a backend that rounds them loses nothing. */
static void linear_case(size_t n, int in, int out, bool bias) {
    size_t size = (size_t)in * (size_t)out;
    printf("linear n %zu in %d out %d%s\n", n, in, out, bias ? ", bias" : "");
    float *x = normals(n * in, 1), *dy = normals(n * out, 1), *w = rounded_real(normals(size, 1), size),
          *b = rounded_real(normals(out, 1), out), *dw = normals(size, 1), *db = normals(out, 1);
    real *d_x = upload_real(x, n * in), *d_dy = upload_real(dy, n * out), *d_y = poisoned_real(n * out),
         *d_dx = poisoned_real(n * in);
    float *d_w = upload(w, size), *d_b = upload(b, out), *d_dw = upload(dw, size), *d_db = upload(db, out);
    double *y = zeros(n * out), *dx = zeros(n * in), *want_dw = zeros(size), *want_db = zeros(out);
    double *y_size = zeros(n * out), *dx_size = zeros(n * in), *dw_size = zeros(size), *db_size = zeros(out);
    for (size_t i = 0; i < size; i++) add_term(&want_dw[i], &dw_size[i], dw[i]);
    for (int o = 0; o < out; o++) add_term(&want_db[o], &db_size[o], db[o]);
    for (size_t i = 0; i < n; i++)
        for (int o = 0; o < out; o++) {
            size_t at = i * (size_t)out + (size_t)o;
            double g = dy[at];
            if (bias) add_term(&y[at], &y_size[at], b[o]);
            add_term(&want_db[o], &db_size[o], g);
            for (int k = 0; k < in; k++) {
                size_t from = i * (size_t)in + (size_t)k, weight = (size_t)o * (size_t)in + (size_t)k;
                add_term(&y[at], &y_size[at], (double)x[from] * w[weight]);
                add_term(&dx[from], &dx_size[from], g * w[weight]);
                add_term(&want_dw[weight], &dw_size[weight], g * x[from]);
            }
        }
    const LinearShape shape = {n, in, out, 0};
    linear_forward(d_y, d_x, d_w, bias ? d_b : NULL, &shape);
    linear_backward_input(d_dx, d_dy, d_w, &shape);
    linear_backward_weight(d_dw, bias ? d_db : NULL, d_dy, d_x, &shape);
    /* Both gradients in one call, and in memory that is aligned to 16 bytes only: the same bits. */
    enum { REALS = 16 / sizeof(real), FLOATS = 16 / sizeof(float) };
    real *both_dx = poisoned_real(n * in + REALS) + REALS;
    float *both_dw = poisoned(size + FLOATS) + FLOATS, *both_db = upload(db, out);
    device_upload(both_dw, dw, size * sizeof *dw);
    linear_backward(both_dx, both_dw, bias ? both_db : NULL, d_dy, d_x, d_w, &shape);
    assert_memory_equal(download_real(both_dx, n * in), download_real(d_dx, n * in), n * in * sizeof(float));
    assert_memory_equal(download(both_dw, size), download(d_dw, size), size * sizeof *dw);
    assert_memory_equal(download(both_db, out), download(d_db, out), out * sizeof *db);
    float *beside_dw = upload(dw, size), *beside_db = upload(db, out);
    linear_backward_weight_beside(beside_dw, bias ? beside_db : NULL, d_dy, d_x, &shape);
    linear_backward(both_dx, both_dw, NULL, d_dy, d_x, d_w, &shape);
    assert_memory_equal(download(beside_dw, size), download(d_dw, size), size * sizeof *dw);
    assert_memory_equal(download(beside_db, out), download(d_db, out), out * sizeof *db);
    bool few = size < 10; /* all terms may cancel */
    assert_true(close_sums("y", download_real(d_y, n * out), y, y_size, n * out, few));
    assert_true(close_sums("dx", download_real(d_dx, n * in), dx, dx_size, n * in, few));
    assert_true(close_sums("dw", download(d_dw, size), want_dw, dw_size, size, few));
    linear_keep_weights(true);
    for (int call = 0; call < 2; call++) {
        device_zero(d_y, n * (size_t)out * sizeof *d_y);
        linear_forward(d_y, d_x, d_w, bias ? d_b : NULL, &shape);
        assert_true(close_sums("y, weights kept", download_real(d_y, n * out), y, y_size, n * out, few));
    }
    linear_keep_weights(false);
    if (bias) assert_true(close_sums("db", download(d_db, out), want_db, db_size, out, few));
    else assert_memory_equal(download(d_db, out), db, out * sizeof *db);
    release_all();
}

static void test_linear(void **state) {
    (void)state;
    const int sizes[][3] = {{1, 1, 1},    {7, 5, 3},     {33, 20, 17},  {130, 192, 64},
                            {64, 8, 16},  {3, 768, 10},  {1000, 24, 72},
                            {77, 63, 33}, {70, 39, 63}, {63, 43, 80}}; /* 63: see kernels/linear/linear.c */
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int bias = 0; bias < 2; bias++) linear_case((size_t)sizes[i][0], sizes[i][1], sizes[i][2], bias);
}

/* == Graphs ======================================================================================================= */

/* One graph computes products of the same shapes with new inputs, while parameters change before, between and after its
 * runs.  The two gradients of a layer may run in parallel. */
static void test_graph(void **state) {
    (void)state;
    enum { N = 12, IN = 24, OUT = 16, CALLS = 9 };
    const LinearShape shape = {N, IN, OUT, 0};
    DeviceGraph *graph = NULL;
    real *d_x = poisoned_real(N * IN), *d_y = poisoned_real(N * OUT), *d_z = poisoned_real(N * OUT),
         *d_dx = poisoned_real(N * IN);
    float *d_dw = poisoned(OUT * IN), *d_db = poisoned(OUT);
    float *d_w = poisoned(OUT * IN), *pinned = host_malloc(OUT * IN * sizeof *pinned, "test");
    for (int call = 0; call < CALLS; call++) {
        float *x = normals(N * IN, 1), *w = rounded_real(normals(OUT * IN, 1), OUT * IN);
        double *y = zeros(N * OUT), *z = zeros(N * OUT);
        real_upload(d_x, x, N * IN);
        real_download(x, d_x, N * IN);
        device_uploads_wait();
        memcpy(pinned, w, OUT * IN * sizeof *w);
        device_uploads_used();
        device_upload_async(d_w, pinned, OUT * IN * sizeof *w);
        if (call == 6) kernels_reserve((size_t)1 << 20); /* graphs may contain the workspace's address */
        device_zero(d_dw, OUT * IN * sizeof *w);
        device_zero(d_db, OUT * sizeof *w);
        if (device_graph_begin(&graph)) {
            linear_forward(d_y, d_x, d_w, NULL, &shape);
            linear_forward(d_z, d_x, d_w, NULL, &shape);
            linear_backward(d_dx, d_dw, d_db, d_y, d_x, d_w, &shape);
            device_graph_end(&graph);
        }
        for (int i = 0; i < N * OUT; i++)
            for (int k = 0; k < IN; k++) y[i] += (double)x[i / OUT * IN + k] * w[i % OUT * IN + k];
        printf("call %d\n", call);
        assert_true(close_real("in the graph", d_y, y, N * OUT));
        assert_true(close_real("in the graph, again", d_z, y, N * OUT));
        float *dy = download_real(d_y, N * OUT);
        double *dx = zeros(N * IN), *dw = zeros(OUT * IN), *db = zeros(OUT), *dx_size = zeros(N * IN),
               *dw_size = zeros(OUT * IN), *db_size = zeros(OUT);
        for (int i = 0; i < N * OUT; i++) {
            add_term(&db[i % OUT], &db_size[i % OUT], dy[i]);
            for (int k = 0; k < IN; k++) {
                int at = i / OUT * IN + k, weight = i % OUT * IN + k;
                add_term(&dx[at], &dx_size[at], (double)dy[i] * w[weight]);
                add_term(&dw[weight], &dw_size[weight], (double)dy[i] * x[at]);
            }
        }
        assert_true(close_sums("dx", download_real(d_dx, N * IN), dx, dx_size, N * IN, false));
        assert_true(close_sums("dw", download(d_dw, OUT * IN), dw, dw_size, OUT * IN, false));
        assert_true(close_sums("db", download(d_db, OUT), db, db_size, OUT, false));

        /* Parameters change after the graph, and the next product, outside it, must use the new ones. */
        float *changed = rounded_real(normals(OUT * IN, 1), OUT * IN);
        device_upload(d_w, changed, OUT * IN * sizeof *changed);
        linear_forward(d_z, d_x, d_w, NULL, &shape);
        for (int i = 0; i < N * OUT; i++)
            for (int k = 0; k < IN; k++) z[i] += (double)x[i / OUT * IN + k] * changed[i % OUT * IN + k];
        assert_true(close_real("after the graph", d_z, z, N * OUT));
    }
    device_graph_free(&graph);
    assert_null(graph);
    host_free(pinned);
    release_all();
}

/* == Measurements ================================================================================================= */

static void test_memory_peak(void **state) {
    (void)state;
    double rate = memory_peak_gbytes();
    printf("  %.1f GB/s\n", rate);
    assert_true(rate > 0.1 && rate < 1e5);
}

/* == GELU ========================================================================================================= */

static void test_gelu(void **state) {
    (void)state;
    enum { N = 40003 };
    float *x = normals(N, 2), *dy = normals(N, 1);
    x[0] = 0, x[1] = 30, x[2] = -30, x[3] = -5.5f, x[4] = 1e-30f, x[5] = -1e-30f, x[6] = 1e4f, x[7] = -1e4f;
    double *y = zeros(N), *dx = zeros(N);
    real *d_x = upload_real(x, N), *d_dy = upload_real(dy, N), *d_y = poisoned_real(N), *again = poisoned_real(N);
    for (int i = 0; i < N; i++) {
        double v = x[i], cdf = erfc(-v / sqrt(2)) / 2;
        y[i] = v * cdf;
        dx[i] = dy[i] * (cdf + v * exp(-v * v / 2) / sqrt(2 * acos(-1)));
    }
    gelu_forward(d_y, d_x, N);
    assert_true(close_real("gelu", d_y, y, N));
    assert_true(close_real("gelu near zero", d_y + 8, y + 8, N - 8));
    gelu_backward(d_dy, again, d_dy, d_x, N); /* dx overwrites dy */
    assert_true(close_real("gelu dx", d_dy, dx, N));
    assert_memory_equal(download_real(again, N), download_real(d_y, N), N * sizeof(float));
    gelu_forward(d_x, d_x, N);
    assert_memory_equal(download_real(again, N), download_real(d_x, N), N * sizeof(float));
    release_all();
}

/* Backward of GELU and the linear layer that follows it: dy [n,out], w2 [out,in]. */
static void linear_gelu_case(size_t n, int in, int out) {
    size_t hidden = n * (size_t)in, size = (size_t)in * (size_t)out;
    printf("linear and GELU n %zu hidden %d other %d\n", n, in, out);
    float *x = normals(n * out, 1), *w1 = rounded_real(normals(size, 0.3f), size),
          *b1 = rounded_real(normals(in, 1), in), *dy = normals(n * out, 1),
          *w2 = rounded_real(normals(size, 1), size), *before = normals(in, 1), *y_before = normals(out, 1);
    real *d_x = upload_real(x, n * out), *d_dy = upload_real(dy, n * out), *d_a = poisoned_real(hidden),
         *d_g = poisoned_real(hidden), *d_da = poisoned_real(hidden), *again = poisoned_real(hidden);
    float *d_db = upload(before, in), *d_y_db = upload(y_before, out);
    double *a = zeros(hidden), *a_size = zeros(hidden), *g = zeros(hidden), *da = zeros(hidden),
           *g_size = zeros(hidden), *da_size = zeros(hidden), *db = widened(before, in), *db_size = zeros(in);
    for (size_t i = 0; i < n; i++)
        for (int j = 0; j < in; j++) {
            size_t at = i * (size_t)in + (size_t)j;
            add_term(&a[at], &a_size[at], b1[j]);
            for (int k = 0; k < out; k++)
                add_term(&a[at], &a_size[at], (double)x[i * out + k] * w1[(size_t)j * out + k]);
        }
    linear_gelu_forward(d_a, d_g, d_x, upload(w1, size), upload(b1, in), &(LinearShape){n, out, in, 0});
    bool few = size < 10;
    assert_true(close_sums("a", download_real(d_a, hidden), a, a_size, hidden, few));
    float *stored = download_real(d_a, hidden);
    for (size_t i = 0; i < hidden; i++) {
        g[i] = stored[i] * erfc(-stored[i] / sqrt(2)) / 2;
        g_size[i] = fabs((double)stored[i]);
    }
    assert_true(few ? check_sums("g", download_real(d_g, hidden), g, g_size, hidden, roundings(1))
                    : close_real("g", d_g, g, hidden));

    kernels_reserve(linear_gelu_workspace(&(LinearShape){n, in, out, 0}));
    linear_gelu_backward(d_da, again, d_db, d_y_db, d_dy, d_a, upload(w2, size), &(LinearShape){n, in, out, 0});
    for (size_t i = 0; i < n; i++)
        for (int j = 0; j < in; j++) {
            size_t at = i * (size_t)in + (size_t)j;
            double v = stored[at], cdf = erfc(-v / sqrt(2)) / 2, bend = v * exp(-v * v / 2) / sqrt(2 * acos(-1));
            for (int k = 0; k < out; k++) {
                double factor = (double)dy[i * out + k] * w2[(size_t)k * in + j];
                da[at] += (cdf + bend) * factor;
                da_size[at] += (few ? cdf + fabs(bend) : fabs(cdf + bend)) * fabs(factor); /* one may cancel */
            }
            add_term(&db[j], &db_size[j], da[at]);
        }
    assert_true(close_sums("da", download_real(d_da, hidden), da, da_size, hidden, few));
    assert_memory_equal(download_real(again, hidden), download_real(d_g, hidden), hidden * sizeof(float));
    float *rounded = download_real(d_da, hidden), *db_alone = upload(before, in), *y_db_alone = upload(y_before, out);
    real *da_alone = poisoned_real(hidden); /* without recomputing g */
    linear_gelu_backward(da_alone, NULL, db_alone, y_db_alone, d_dy, d_a, upload(w2, size), &(LinearShape){n, in, out, 0});
    assert_memory_equal(download_real(da_alone, hidden), rounded, hidden * sizeof(float));
    assert_memory_equal(download(db_alone, in), download(d_db, in), in * sizeof(float));
    assert_memory_equal(download(y_db_alone, out), download(d_y_db, out), out * sizeof(float));
    double *want = widened(before, in);
    for (size_t i = 0; i < hidden; i++) want[i % (size_t)in] += rounded[i];
    for (int j = 0; j < in; j++) db_size[j] += fabs((double)before[j]);
    assert_true(check_sums("db of what was stored", download(d_db, in), want, db_size, in, 1e-5));
    assert_true(few || check_sums("db", download(d_db, in), db, db_size, in, roundings(2)));
    double *y_db = zeros(out), *y_db_size = zeros(out);
    for (int k = 0; k < out; k++) {
        add_term(&y_db[k], &y_db_size[k], y_before[k]);
        for (size_t i = 0; i < n; i++) add_term(&y_db[k], &y_db_size[k], dy[i * out + k]);
    }
    assert_true(check_sums("db of y", download(d_y_db, out), y_db, y_db_size, out, 1e-5));
    release_all();
}

static void test_linear_gelu(void **state) {
    (void)state;
    const int sizes[][3] = {{1, 1, 1}, {7, 5, 3}, {131, 136, 72}, {300, 96, 24}, {64, 264, 40}, {3, 8, 520}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        linear_gelu_case((size_t)sizes[i][0], sizes[i][1], sizes[i][2]);
}

/* GELU of a norm whose result is not rounded in between: the moments and the gradient dh. */
static void test_norm_gelu(void **state) {
    (void)state;
    enum { ROWS = 37, LONGEST = 45 };
    for (int M = 1; M <= LONGEST; M += 11) {
        size_t n = (size_t)ROWS * M;
        float *x = normals(n, 2), *dy = normals(n, 1), *w = normals(M, 1), *b = normals(M, 1);
        double *y = zeros(n), *y_size = zeros(n), *dh = zeros(n), *dh_size = zeros(n);
        double mean[ROWS] = {0}, rstd[ROWS] = {0};
        real *d_x = upload_real(x, n), *d_dy = upload_real(dy, n), *d_y = poisoned_real(n);
        float *d_mean = poisoned(ROWS), *d_rstd = poisoned(ROWS);
        const LayerNorm norm = {upload(w, M), upload(b, M), d_mean, d_rstd, ROWS, M, 0.1f};
        for (int i = 0; i < ROWS; i++) {
            double square = 0;
            for (int m = 0; m < M; m++) mean[i] += (double)x[i * M + m] / M;
            for (int m = 0; m < M; m++) square += (x[i * M + m] - mean[i]) * (x[i * M + m] - mean[i]) / M;
            rstd[i] = 1 / sqrt(square + (double)norm.eps);
            for (int m = 0; m < M; m++) {
                double h = w[m] * (x[i * M + m] - mean[i]) * rstd[i] + b[m], cdf = erfc(-h / sqrt(2)) / 2;
                y[i * M + m] = h * cdf;
                y_size[i * M + m] = fabs(h);
                /* With a single channel h is b in all rows, and these two terms may cancel. */
                add_term(&dh[i * M + m], &dh_size[i * M + m], dy[i * M + m] * cdf);
                add_term(&dh[i * M + m], &dh_size[i * M + m], dy[i * M + m] * h * exp(-h * h / 2) / sqrt(2 * acos(-1)));
            }
        }
        layernorm_gelu_forward(d_y, d_x, &norm);
        /* All results of a single channel may be small ones of GELU, whose error is relative to h. */
        assert_true(M == 1 ? check_sums("gelu of a norm", download_real(d_y, n), y, y_size, n, roundings(1))
                           : close_real("gelu of a norm", d_y, y, n));
        assert_true(close_float("mean", d_mean, mean, ROWS));
        assert_true(close_float("rstd", d_rstd, rstd, ROWS));
        layernorm_gelu_backward(d_dy, d_dy, d_x, &norm); /* dh overwrites dy */
        assert_true(check_sums("its dh", download_real(d_dy, n), dh, dh_size, n, roundings(1)));
        layernorm_gelu_forward(d_x, d_x, &norm);
        assert_memory_equal(download_real(d_x, n), download_real(d_y, n), n * sizeof(float));
        release_all();
    }
}

static void test_tanh(void **state) {
    (void)state;
    enum { N = 4003 };
    float *x = normals(N, 1), *dy = normals(N, 1);
    x[0] = 0, x[1] = 30, x[2] = -30, x[3] = 1e-6f;
    double *y = zeros(N), *dx = zeros(N);
    real *d_x = upload_real(x, N), *d_dy = upload_real(dy, N), *d_y = poisoned_real(N);
    for (int i = 0; i < N; i++) y[i] = tanh(x[i]);
    tanh_forward(d_y, d_x, N);
    assert_true(close_real("tanh", d_y, y, N));
    float *reached = download_real(d_y, N);
    for (int i = 0; i < N; i++) dx[i] = dy[i] * (1 - (double)reached[i] * reached[i]);
    tanh_backward(d_dy, d_dy, d_y, N); /* dx overwrites dy */
    assert_true(close_real("tanh dx", d_dy, dx, N));
    release_all();
}

static void test_gelu_nan(void **state) {
    (void)state;
    float x[] = {1, NAN, -1}, dy[] = {1, 1, NAN};
    real *d_x = upload_real(x, 3), *d_dy = upload_real(dy, 3), *d_y = poisoned_real(3), *d_dx = poisoned_real(3);
    gelu_backward(d_dx, d_y, d_dy, d_x, 3);
    float *y = download_real(d_y, 3), *dx = download_real(d_dx, 3);
    assert_true(!isnan(y[0]) && isnan(y[1]) && !isnan(y[2]));
    assert_true(!isnan(dx[0]) && isnan(dx[1]) && isnan(dx[2]));
    release_all();
}

/* == Images and tokens ============================================================================================ */

static void test_images(void **state) {
    (void)state;
    enum { B = 3, Hi = 15, Wi = 23, P = 4, Hg = Hi / P, Wg = Wi / P };
    static uint8_t image[B * Hi * Wi * 3];
    const float *mean = imagenet_mean, *std = imagenet_std;
    for (size_t i = 0; i < sizeof image; i++) image[i] = (uint8_t)rng_bits(check_seed(), RNG_TEST, 0, 1, i);
    uint8_t *d_image = keep(device_malloc(sizeof image, "test"), true);
    device_upload(d_image, image, sizeof image);
    real *d_y = poisoned_real(sizeof image), *d_cols = poisoned_real(B * Hg * Wg * 3 * P * P);
    double *y = zeros(sizeof image);
    for (int b = 0; b < B; b++)
        for (int c = 0; c < 3; c++)
            for (int i = 0; i < Hi * Wi; i++)
                y[(b * 3 + c) * Hi * Wi + i] = (image[(b * Hi * Wi + i) * 3 + c] / 255.0 - mean[c]) / std[c];
    images_normalize(d_y, d_image, mean, std, &(ImageShape){B, Hi, Wi});
    assert_true(close_real("images_normalize", d_y, y, sizeof image));

    /* Hi and Wi need not be multiples of P: the rest belongs to no patch. */
    patchify(d_cols, d_y, &(ImageShape){B, Hi, Wi}, P);
    float *x = download_real(d_y, sizeof image), *cols = download_real(d_cols, B * Hg * Wg * 3 * P * P);
    for (int b = 0; b < B; b++)
        for (int t = 0; t < Hg * Wg; t++)
            for (int c = 0; c < 3; c++)
                for (int i = 0; i < P; i++)
                    for (int j = 0; j < P; j++)
                        assert_true(cols[(((b * Hg * Wg + t) * 3 + c) * P + i) * P + j] ==
                                    x[((b * 3 + c) * Hi + t / Wg * P + i) * Wi + t % Wg * P + j]);
    release_all();
}

static void embed_case(int prefix, bool positions) {
    enum { B = 3, T = 63, M = 20 };
    FrontTokens front = {.count = prefix};
    int N = prefix + T;
    size_t n = (size_t)B * N * M, n_patches = B * T * M, n_pos = (size_t)N * M;
    float *patches = normals(n_patches, 1), *cls = normals(2 * M, 1), *pos = normals(n_pos, 1), *dx = normals(n, 1);
    float *dcls = normals(2 * M, 1), *dpos = normals(n_pos, 1);
    real *d_patches = upload_real(patches, n_patches), *d_x = poisoned_real(n), *d_dpatches = poisoned_real(n_patches);
    float *d_cls[2] = {upload(cls, M), upload(cls + M, M)}, *d_dcls[2] = {upload(dcls, M), upload(dcls + M, M)}, *d_dpos = upload(dpos, n_pos);
    real *d_dx = upload_real(dx, n);
    double *x = zeros(n), *want_dcls = widened(dcls, 2 * M), *want_dpos = widened(dpos, n_pos),
           *want_dpatches = zeros(n_patches);
    printf("embed prefix %d%s\n", prefix, positions ? ", positions" : "");
    for (int b = 0; b < B; b++)
        for (int t = 0; t < N; t++)
            for (int m = 0; m < M; m++) {
                size_t i = ((size_t)b * N + t) * M + m, patch = ((size_t)b * T + t - prefix) * M + m;
                x[i] = (t < prefix ? cls[t * M + m] : patches[patch]) + (positions ? (double)pos[t * M + m] : 0);
                if (t < prefix) want_dcls[t * M + m] += dx[i];
                else want_dpatches[patch] = dx[i];
                want_dpos[t * M + m] += dx[i];
            }
    for (int k = 0; k < prefix; k++) front.w[k] = d_cls[k], front.dw[k] = d_dcls[k];
    embed_forward(d_x, d_patches, prefix ? &front : NULL, positions ? upload(pos, n_pos) : NULL,
                  &(TokenShape){B, N, M});
    assert_true(close_real("x", d_x, x, n));
    embed_backward(d_dpatches, prefix ? &front : NULL, positions ? d_dpos : NULL, d_dx, &(TokenShape){B, N, M});
    assert_true(close_real("dpatches", d_dpatches, want_dpatches, n_patches));
    for (int k = 0; k < prefix; k++) assert_true(close_float(k ? "ddist" : "dcls", d_dcls[k], want_dcls + k * M, M));
    if (positions) assert_true(close_float("dpos", d_dpos, want_dpos, n_pos));
    release_all();
}

static void test_embed(void **state) {
    (void)state;
    embed_case(0, false);
    embed_case(0, true);
    embed_case(1, false);
    embed_case(1, true);
    embed_case(2, false);
    embed_case(2, true);
}

static void pool_case(int B, int N, int M, int first, int count) {
    size_t n = (size_t)B * N * M, n_y = (size_t)B * M;
    float *x = normals(n, 1), *dy = normals(n_y, 1);
    real *d_x = upload_real(x, n), *d_dy = upload_real(dy, n_y), *d_y = poisoned_real(n_y), *d_dx = poisoned_real(n);
    double *y = zeros(n_y), *dx = zeros(n);
    printf("pool B %d N %d M %d first %d count %d\n", B, N, M, first, count);
    for (int b = 0; b < B; b++)
        for (int t = first; t < first + count; t++)
            for (int m = 0; m < M; m++) {
                y[b * M + m] += (double)x[((size_t)b * N + t) * M + m] / count;
                dx[((size_t)b * N + t) * M + m] = (double)dy[b * M + m] / count;
            }
    pool_forward(d_y, d_x, &(TokenShape){B, N, M}, first, count);
    assert_true(close_real("y", d_y, y, n_y));
    pool_backward(d_dx, d_dy, &(TokenShape){B, N, M}, first, count);
    assert_true(close_real("dx", d_dx, dx, n));
    release_all();
}

static void test_pool(void **state) {
    (void)state;
    pool_case(3, 64, 20, 1, 63);
    pool_case(3, 64, 192, 0, 1);
    pool_case(1, 4099, 65, 0, 4099);
    pool_case(2, 1, 1, 0, 1);
}

static void sequence_pool_case(int B, int N, int M) {
    size_t n = (size_t)B * N * M, n_y = (size_t)B * M, rows = (size_t)B * N;
    float *x = normals(n, 1), *w = normals(M, 0.5f / sqrtf((float)M)), *dw = normals(M, 1), *dy = normals(n_y, 1);
    real *d_x = upload_real(x, n), *d_dy = upload_real(dy, n_y), *d_y = poisoned_real(n_y), *d_dx = poisoned_real(n);
    float *d_w = upload(w, M), *d_dw = upload(dw, M), *d_a = poisoned(rows), *d_ds = poisoned(rows);
    double *y = zeros(n_y), *dx = zeros(n), *a = zeros(rows), *want_dw = widened(dw, M);
    printf("sequence pool B %d N %d M %d\n", B, N, M);
    for (int b = 0; b < B; b++) {
        const float *xs = x + (size_t)b * N * M, *slope = dy + (size_t)b * M;
        double *weights = a + (size_t)b * N, sum = 0, along = 0;
        for (int t = 0; t < N; t++) {
            double score = 0;
            for (int m = 0; m < M; m++) score += (double)xs[(size_t)t * M + m] * w[m];
            sum += weights[t] = exp(score);
        }
        for (int t = 0; t < N; t++) weights[t] /= sum;
        for (int t = 0; t < N; t++)
            for (int m = 0; m < M; m++) y[b * M + m] += weights[t] * xs[(size_t)t * M + m];
        for (int m = 0; m < M; m++) along += slope[m] * y[b * M + m];
        for (int t = 0; t < N; t++) {
            double da = 0;
            for (int m = 0; m < M; m++) da += (double)slope[m] * xs[(size_t)t * M + m];
            for (int m = 0; m < M; m++) {
                size_t i = ((size_t)b * N + t) * M + m;
                dx[i] = weights[t] * (slope[m] + (da - along) * w[m]);
                want_dw[m] += weights[t] * (da - along) * x[i];
            }
        }
    }
    sequence_pool_forward(d_y, d_a, d_x, d_w, &(TokenShape){B, N, M});
    assert_true(close_real("y", d_y, y, n_y));
    assert_true(close_float("a", d_a, a, rows));
    sequence_pool_backward(d_dx, d_dw, d_ds, d_dy, d_x, d_w, d_a, &(TokenShape){B, N, M});
    assert_true(close_real("dx", d_dx, dx, n));
    assert_true(close_float("dw", d_dw, want_dw, M));
    release_all();
}

static void test_sequence_pool(void **state) {
    (void)state;
    sequence_pool_case(3, 64, 20);
    sequence_pool_case(2, 1, 1);
    sequence_pool_case(5, 37, 129);
    sequence_pool_case(1, 1000, 64);
}

/* == Loss ========================================================================================================= */

static void test_weighed_losses(void **state) {
    (void)state;
    enum { B = 9, C = 37, N = B * C };
    float *loss = normals(B, 1), *weights = normals(B, 1), *dx = normals(N, 1);
    weights[3] = 0;
    real *d_dx = upload_real(dx, N);
    float *d_loss = upload(loss, B), *d_weights = upload(weights, B);
    double *want_loss = zeros(B), *want_dx = zeros(N);
    for (int b = 0; b < B; b++) want_loss[b] = (double)loss[b] * weights[b];
    for (int i = 0; i < N; i++) want_dx[i] = (double)dx[i] * weights[i / C];
    weigh_losses(d_loss, d_dx, d_weights, B, C);
    assert_true(close_float("weighed losses", d_loss, want_loss, B));
    assert_true(close_real("their gradients", d_dx, want_dx, N));
    release_all();
}

static void loss_case(int B, int C, float size) {
    size_t n = (size_t)B * C;
    float *x = normals(n, size), *t = normals(n, 1), scale = 1.0f / B;
    for (int b = 0; b < B; b++) { /* targets: one class with label smoothing */
        for (int c = 0; c < C; c++) t[b * C + c] = 0.1f / C;
        t[b * C + b % C] += 0.9f;
    }
    double *loss = zeros(B), *dx = zeros(n);
    real *d_x = upload_real(x, n), *d_dx = poisoned_real(n);
    float *d_t = upload(t, n), *d_loss = poisoned(B), *d_alone = poisoned(B);
    printf("cross entropy B %d C %d logits of size %g\n", B, C, (double)size);
    for (int b = 0; b < B; b++) {
        double max = -INFINITY, sum = 0;
        for (int c = 0; c < C; c++) max = fmax(max, x[b * C + c]);
        for (int c = 0; c < C; c++) sum += exp(x[b * C + c] - max);
        for (int c = 0; c < C; c++) {
            double log_p = x[b * C + c] - max - log(sum);
            loss[b] -= t[b * C + c] * log_p;
            dx[b * C + c] = scale * (exp(log_p) - t[b * C + c]);
        }
    }
    cross_entropy(d_loss, d_dx, d_x, d_t, scale, B, C);
    assert_true(close_float("loss", d_loss, loss, B));
    assert_true(close_real("dlogits", d_dx, dx, n));
    cross_entropy(d_alone, NULL, d_x, d_t, scale, B, C);
    assert_memory_equal(download(d_alone, B), download(d_loss, B), B * sizeof(float));
    release_all();
}

static void test_cross_entropy(void **state) {
    (void)state;
    loss_case(3, 2, 1);
    loss_case(5, 7, 1);
    loss_case(8, 100, 3);
    loss_case(3, 1000, 1);
    loss_case(4, 33, 1e4f);
}

static void test_cross_entropy_nan(void **state) {
    (void)state;
    enum { B = 3, C = 5 };
    float *x = normals(B * C, 1), *t = normals(B * C, 1);
    for (int i = 0; i < B * C; i++) t[i] = i % C == 0;
    x[1 * C + 3] = NAN;
    real *d_dx = poisoned_real(B * C);
    float *d_loss = poisoned(B), *loss, *dx;
    cross_entropy(d_loss, d_dx, upload_real(x, B * C), upload(t, B * C), 1, B, C);
    loss = download(d_loss, B);
    dx = download_real(d_dx, B * C);
    for (int b = 0; b < B; b++) assert_int_equal(isnan(loss[b]) != 0, b == 1);
    for (int i = 0; i < B * C; i++) assert_int_equal(isnan(dx[i]) != 0, i / C == 1);
    release_all();
}

/* == Optimizer ==================================================================================================== */

static void test_adamw(void **state) {
    (void)state;
    enum { N = 1003, STEPS = 10, PIECES = (N + ARENA_PIECE - 1) / ARENA_PIECE };
    float rates[PIECE_RATES];
    AdamWStep step = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 0.03f, .weight_decay = 0.05f, .scale = 0.37f,
                      .ema_decay = 0.9f, .rate_count = PIECE_RATES, .rates = rates};
    float *start = normals(N, 0.1f), *none = download(upload(normals(N, 0), N), N), *average = normals(N, 0.1f);
    float *d_w = upload(start, N), *d_m = upload(none, N), *d_v = upload(none, N), *d_ema = upload(average, N);
    double *w = widened(start, N), *m = zeros(N), *v = zeros(N), *ema = widened(average, N), *moved = zeros(N);
    uint8_t kinds[PIECES], *d_kinds = device_malloc(PIECES, "test");
    for (int i = 0; i < PIECES; i++) {
        kinds[i] = (uint8_t)(i % 7 == 3 ? PIECE_FROZEN : i % 2 ? PIECE_DECAYED : PIECE_PLAIN);
        kinds[i] += (uint8_t)(PIECE_KINDS * (i % PIECE_RATES));
    }
    for (int r = 0; r < PIECE_RATES; r++) rates[r] = (float)r / 40;
    device_upload(d_kinds, kinds, PIECES);
    for (step.t = 1; step.t <= STEPS; step.t++) {
        float *g = normals(N, 1), *d_g = upload(g, N);
        adamw_update(d_w, d_m, d_v, d_ema, d_g, d_kinds, N, &step);
        assert_memory_equal(download(d_g, N), g, N * sizeof *g);
        for (int i = 0; i < N; i++) {
            int kind = kinds[i / ARENA_PIECE] % PIECE_KINDS, rate = kinds[i / ARENA_PIECE] / PIECE_KINDS;
            double gi = (double)step.scale * g[i], lr = (double)step.lr * rates[rate], decay = step.ema_decay;
            if (kind == PIECE_FROZEN) {
                ema[i] = w[i];
                continue;
            }
            if (kind == PIECE_DECAYED) w[i] -= lr * (double)step.weight_decay * w[i];
            m[i] = step.beta1 * m[i] + (1 - (double)step.beta1) * gi;
            v[i] = step.beta2 * v[i] + (1 - (double)step.beta2) * gi * gi;
            w[i] -= lr / (1 - pow(step.beta1, step.t)) * m[i] /
                    (sqrt(v[i]) / sqrt(1 - pow(step.beta2, step.t)) + (double)step.eps);
            ema[i] = decay * ema[i] + (1 - decay) * w[i];
        }
    }
    float *got = download(d_w, N);
    for (int i = 0; i < N; i++) {
        moved[i] = w[i] - start[i];
        got[i] -= start[i];
    }
    assert_true(close_float("w", d_w, w, N));
    assert_true(check_close("w - w_0", got, moved, N, 1e-5));
    assert_true(close_float("m", d_m, m, N));
    assert_true(close_float("v", d_v, v, N));
    assert_true(close_float("ema", d_ema, ema, N));

    adamw_update(d_w, d_m, d_v, NULL, upload(none, N), d_kinds, N, &step);
    assert_true(close_float("ema", d_ema, ema, N));
    device_free(d_kinds);
    release_all();
}

/* What the device computes for a step: the losses of two micro-batches, and the norm with and without clipping.  If
 * either is not finite, nothing is updated. */
static void test_step_found(void **state) {
    (void)state;
    enum { B = 300, N = 100003 };
    float *loss = normals(B, 1), *g = normals(N, 1), none[] = {0, 0};
    double sum = 0, squares = 0;
    for (int b = 0; b < B; b++) sum += loss[b];
    for (int i = 0; i < N; i++) squares += (double)g[i] * g[i];
    StepStats stats = {0}, *d_stats = keep(device_malloc(sizeof stats, "test"), true);
    float *d_loss = upload(loss, B), *d_g = upload(g, N);
    step_add_losses(d_stats, d_loss, 37);
    step_add_losses(d_stats, d_loss + 37, B - 37);
    for (int k = 0; k < 3; k++) {
        float clip = k == 0 ? 0 : k == 1 ? 1e6f : 1;
        step_measure(d_stats, d_g, N, clip);
        device_download(&stats, d_stats, sizeof stats);
        assert_true(fabs(stats.loss - sum) < 1e-12 * B && fabs(stats.squares - squares) <= 1e-12 * squares);
        assert_true(fabs((double)stats.scale - (k < 2 ? 1 : 1 / sqrt(squares))) < 1e-6);
    }
    const float rate = 1;
    const uint8_t kinds[] = {PIECE_DECAYED};
    uint8_t *d_kinds = keep(device_malloc(sizeof kinds, "test"), true);
    device_upload(d_kinds, kinds, sizeof kinds);
    AdamWStep step = {.lr = 1, .eps = 1e-8f, .weight_decay = 0.5f, .stats = d_stats, .t = 1, .rate_count = 1,
                      .rates = &rate};
    for (int k = 0; k < 3; k++) {
        float w[] = {1, 2}, gradient[] = {k == 1 ? INFINITY : -3, 4}, bad = k == 2 ? NAN : 0;
        float *d_w = upload(w, 2), *d_m = upload(none, 2), *d_v = upload(none, 2), *d_ema = upload(w, 2);
        step_add_losses(d_stats, upload(&bad, 1), 1);
        step_measure(d_stats, upload(gradient, 2), 2, 0);
        adamw_update(d_w, d_m, d_v, d_ema, upload(gradient, 2), d_kinds, 2, &step);
        float *got = download(d_w, 2), *average = download(d_ema, 2), *m = download(d_m, 2);
        if (k == 0) assert_true(fabsf(got[0] - 1.5f) < 1e-6f && fabsf(got[1]) < 1e-6f && m[0] == -3);
        else assert_true(got[0] == 1 && got[1] == 2 && average[1] == 2 && m[0] == 0);
    }
    release_all();
}

/* Asynchronous copies that overlap with kernels, and marks in the queue of calls. */
static void test_uploads(void **state) {
    (void)state;
    enum { N = 70001, CALLS = 5 };
    DeviceMark *marks[2] = {NULL, NULL};
    float *in[2], *out[2], *d_x = poisoned(N);
    real *d_y = poisoned_real(N);
    for (int i = 0; i < 2; i++) {
        in[i] = host_malloc(N * sizeof **in, "test");
        out[i] = host_malloc(N * sizeof **out, "test");
    }
    device_uploads_used();
    for (int call = 0; call < CALLS; call++) {
        int i = call % 2;
        device_uploads_wait();
        for (int k = 0; k < N; k++) in[i][k] = (float)(k % 251 + call);
        device_upload_async(d_x, in[i], N * sizeof **in);
        device_copy(d_y, d_x, N * sizeof(real));
        device_download_async(out[i], d_x, N * sizeof **out);
        device_uploads_used();
        device_mark(&marks[i]);
        if (!call) continue;
        device_wait(marks[1 - i]);
        for (int k = 0; k < N; k++) assert_true(out[1 - i][k] == (float)(k % 251 + call - 1));
    }
    device_wait(marks[(CALLS - 1) % 2]);
    for (int i = 0; i < 2; i++) {
        device_mark_free(&marks[i]);
        assert_null(marks[i]);
        host_free(in[i]);
        host_free(out[i]);
    }
    release_all();
}

static void test_sum_of_squares(void **state) {
    (void)state;
    const size_t sizes[] = {1, 7, 255, 257, 100003};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        size_t n = sizes[k];
        float *x = normals(n, 1), *d_x = upload(x, n);
        double want = 0, got = sum_of_squares(d_x, n);
        for (size_t i = 0; i < n; i++) want += (double)x[i] * x[i];
        assert_true(fabs(got - want) <= 1e-12 * want);
        assert_true(got == sum_of_squares(d_x, n));
    }
    float x[] = {1, NAN};
    assert_true(isnan(sum_of_squares(upload(x, 2), 2)));
    assert_true(sum_of_squares(upload(x, 1), 0) == 0);
    release_all();
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layernorm),          cmocka_unit_test(test_gelu),
        cmocka_unit_test(test_norm_gelu),
        cmocka_unit_test(test_tanh),
        cmocka_unit_test(test_linear),             cmocka_unit_test(test_graph),
        cmocka_unit_test(test_memory_peak),
        cmocka_unit_test(test_gelu_nan),           cmocka_unit_test(test_images),
        cmocka_unit_test(test_embed),              cmocka_unit_test(test_pool), cmocka_unit_test(test_sequence_pool), cmocka_unit_test(test_weighed_losses),
        cmocka_unit_test(test_cross_entropy),      cmocka_unit_test(test_cross_entropy_nan),
        cmocka_unit_test(test_adamw),              cmocka_unit_test(test_sum_of_squares),
        cmocka_unit_test(test_linear_gelu),
        cmocka_unit_test(test_step_found),         cmocka_unit_test(test_uploads),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
