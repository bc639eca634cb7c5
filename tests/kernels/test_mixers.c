/* The kernels of convolutional and relational mixers against their formulas in double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/on_device.h"

static double *widened(const float *x, size_t n) {
    double *wide = zeros(n);
    for (size_t i = 0; i < n; i++) wide[i] = x[i];
    return wide;
}

/* == Layer norm of heads ========================================================================================== */

static const float EPSILON = 1e-6f;

/* n tokens of H heads with D channels; rows are `row` apart, and the gaps between them must not change. */
static void heads_norm_case(size_t n, int row, int H, int D, bool bias) {
    size_t all = n * (size_t)row;
    printf("layer norm of heads n %zu row %d H %d D %d%s\n", n, row, H, D, bias ? ", bias" : "");
    float *x = normals(all, 1), *dy = normals(all, 1), *before = normals(all, 1), *w = normals(D, 1),
          *b = normals(D, 1);
    float *dw_before = normals(D, 1), *db_before = normals(D, 1);
    real *d_x = upload_real(x, all), *d_dy = upload_real(dy, all), *d_y = upload_real(before, all),
         *d_dx = upload_real(before, all);
    float *d_w = upload(w, D), *d_b = upload(b, D), *d_dw = upload(dw_before, D), *d_db = upload(db_before, D);
    double *y = widened(before, all), *dx = widened(before, all), *dw = widened(dw_before, D),
           *db = widened(db_before, D);
    for (size_t head = 0; head < n * H; head++) {
        size_t at = head / H * row + head % H * D;
        double mean = 0, variance = 0, sum = 0, along = 0;
        for (int c = 0; c < D; c++) mean += x[at + c] / (double)D;
        for (int c = 0; c < D; c++) variance += (x[at + c] - mean) * (x[at + c] - mean) / D;
        double r = 1 / sqrt(variance + EPSILON);
        for (int c = 0; c < D; c++) {
            double xh = (x[at + c] - mean) * r;
            y[at + c] = w[c] * xh + (bias ? b[c] : 0);
            dw[c] += dy[at + c] * xh;
            db[c] += dy[at + c];
            sum += (double)w[c] * dy[at + c] / D;
            along += (double)w[c] * dy[at + c] * xh / D;
        }
        for (int c = 0; c < D; c++) dx[at + c] = r * ((double)w[c] * dy[at + c] - sum - (x[at + c] - mean) * r * along);
    }
    const HeadsNorm shape = {n, row, H, D, EPSILON};
    kernels_reserve(heads_norm_workspace(D));
    heads_norm_forward(d_y, d_x, d_w, bias ? d_b : NULL, &shape);
    heads_norm_backward(d_dx, d_dw, bias ? d_db : NULL, d_dy, d_x, d_w, &shape);
    assert_true(close_real("y", d_y, y, all));
    assert_true(close_real("dx", d_dx, dx, all));
    assert_true(close_float("dw", d_dw, dw, D));
    assert_true(close_float("db", d_db, bias ? db : widened(db_before, D), D));
    float *again = upload(dw_before, D);
    heads_norm_backward(d_dy, again, NULL, d_dy, d_x, d_w, &shape);
    assert_memory_equal(download(again, D), download(d_dw, D), D * sizeof(float));
    release_all();
}

static void test_heads_norm(void **state) {
    (void)state;
    heads_norm_case(35, 45, 3, 5, true);
    heads_norm_case(70, 16, 1, 16, false);
    heads_norm_case(1, 40, 2, 19, true);
    heads_norm_case(131, 101, 3, 33, false);
}

/* == Rows ========================================================================================================= */

static void rows_case(size_t n, int M, int y_row, int a_row, int b_row) {
    printf("sums of rows n %zu M %d rows %d %d %d\n", n, M, y_row, a_row, b_row);
    float *before = normals(n * y_row, 1), *a = normals(n * a_row, 1), *b = normals(n * (b_row ? b_row : 1), 1);
    real *d_y = upload_real(before, n * y_row), *d_a = upload_real(a, n * a_row),
         *d_b = upload_real(b, n * (b_row ? b_row : 1));
    double *y = widened(before, n * y_row);
    for (size_t i = 0; i < n; i++)
        for (int m = 0; m < M; m++) y[i * y_row + m] = (double)a[i * a_row + m] + (b_row ? b[i * b_row + m] : 0);
    rows_add(d_y, d_a, b_row ? d_b : NULL, n, M, y_row, a_row, b_row);
    assert_true(close_real("y", d_y, y, n * y_row));
    release_all();
}

static void test_rows(void **state) {
    (void)state;
    rows_case(37, 15, 15, 45, 15);
    rows_case(9, 64, 128, 64, 192);
    rows_case(5, 24, 72, 24, 0);
    rows_case(1, 1, 1, 3, 0);
}

/* == Maxima ======================================================================================================= */

static void neighbour_max_case(int B, int Hg, int Wg, int C, int row, bool equal) {
    const NeighbourMax shape = {{1, Hg, Wg}, C, row};
    size_t tokens = (size_t)B * Hg * Wg, nx = tokens * row, ny = tokens * C;
    printf("3x3 maxima B %d %dx%d C %d row %d%s\n", B, Hg, Wg, C, row, equal ? ", all equal" : "");
    float *x = normals(nx, 1), *dy = normals(ny, 1), *before = normals(nx, 1);
    for (size_t i = 0; equal && i < nx; i++) x[i] = 1;
    real *d_x = upload_real(x, nx), *d_dy = upload_real(dy, ny), *d_dx = upload_real(before, nx),
         *d_y = poisoned_real(ny);
    uint8_t *at = keep(device_malloc(ny, "test"), true);
    double *y = zeros(ny), *dx = widened(before, nx);
    for (size_t t = 0; t < tokens; t++)
        for (int c = 0; c < C; c++) dx[t * row + c] = 0;
    for (size_t t = 0; t < tokens; t++)
        for (int c = 0; c < C; c++) {
            int line = (int)(t / Wg % Hg), column = (int)(t % Wg);
            size_t largest = SIZE_MAX;
            for (int i = line - 1; i <= line + 1; i++)
                for (int j = column - 1; j <= column + 1; j++) {
                    size_t m = t + (i - line) * Wg + (j - column);
                    if (i < 0 || i >= Hg || j < 0 || j >= Wg) continue;
                    if (largest == SIZE_MAX || x[m * row + c] > x[largest * row + c]) largest = m;
                }
            y[t * C + c] = x[largest * row + c];
            dx[largest * row + c] += dy[t * C + c];
        }
    neighbour_max_forward(d_y, at, d_x, &shape, B);
    neighbour_max_backward(d_dx, d_dy, at, &shape, B);
    assert_true(close_real("y", d_y, y, ny));
    assert_true(close_real("dx", d_dx, dx, nx));
    x[0] = NAN;
    neighbour_max_forward(d_y, at, upload_real(x, nx), &shape, B);
    float *got = download_real(d_y, ny);
    for (size_t t = 0; t < tokens; t++)
        assert_true(isnan(got[t * C]) == (t < (size_t)Hg * Wg && t / Wg < 2 && t % Wg < 2));
    release_all();
}

static void test_neighbour_max(void **state) {
    (void)state;
    neighbour_max_case(3, 5, 7, 5, 15, false);
    neighbour_max_case(2, 1, 6, 33, 33, false);
    neighbour_max_case(1, 1, 1, 1, 4, false);
    neighbour_max_case(2, 4, 3, 2, 3, true);
}

/* == Sums by relative position ==================================================================================== */

typedef struct {
    OffsetKind kind;
    Grid grid;
    int B, H, D, E;
    bool per_channel, base, spread; /* spread: sums from patterns, otherwise into patterns */
    int x_gap, z_gap, k_gap;        /* the gaps between rows */
} Sums;

/* F = sum z[i,e] x[i,c] (base[c,e] + sum_j w[t,c,e] k[j,c]) and all its derivatives, term by term. */
static void sums_reference(double *fx, double *fz, double *fk, double *fw, double *fbase, const float *x,
                           const float *z, const float *k, const float *w, const float *base, const PatternSums *p,
                           Sums m) {
    int N = grid_tokens(m.grid);
    for (int head = 0; head < m.B * m.H; head++)
        for (int i = 0; i < N; i++)
            for (int c = 0; c < m.D; c++)
                for (int e = 0; e < m.E; e++) {
                    size_t token = (size_t)(head / m.H) * N, h = head % m.H;
                    size_t at_x = (token + i) * p->x_row + h * m.D + c, at_z = (token + i) * p->s_row + h * m.E + e;
                    double inner = m.base ? base[c * m.E + e] : 0;
                    if (m.base) fbase[c * m.E + e] += (double)x[at_x] * z[at_z];
                    for (int j = 0; j < N; j++) {
                        size_t at_k = (token + j) * p->k_row + h * m.D + c;
                        size_t t = (size_t)offset_of(&p->patterns.offsets, i, j);
                        size_t at_w = (m.per_channel ? t * m.D + c : t) * m.E + e;
                        inner += (double)w[at_w] * k[at_k];
                        fk[at_k] += (double)x[at_x] * z[at_z] * w[at_w];
                        fw[at_w] += (double)x[at_x] * z[at_z] * k[at_k];
                    }
                    fx[at_x] += z[at_z] * inner;
                    fz[at_z] += x[at_x] * inner;
                }
}

/* The values before the call, with zeros in place of the outputs. */
static double *between_rows(const float *before, size_t tokens, int row, int width) {
    double *wide = widened(before, tokens * row);
    for (size_t i = 0; i < tokens; i++)
        for (int c = 0; c < width; c++) wide[i * row + c] = 0;
    return wide;
}

static void sums_case(Sums m) {
    int N = grid_tokens(m.grid), M = m.H * m.D;
    PatternSums sums = {.patterns = {{m.kind, m.grid, 0, 0}, m.E, m.H, m.D, m.per_channel},
                        .x_row = M + m.x_gap, .s_row = m.H * m.E + m.z_gap, .k_row = M + m.k_gap};
    size_t tokens = (size_t)m.B * N, nx = tokens * sums.x_row, nz = tokens * sums.s_row, nk = tokens * sums.k_row,
           nb = (size_t)m.D * m.E;
    size_t nw = (size_t)offsets_count(&sums.patterns.offsets) * (m.per_channel ? m.D : 1) * m.E;
    printf("%s %dx%dx%d kind %d B %d H %d D %d E %d%s%s gaps %d %d %d\n", m.spread ? "spread" : "collect",
           m.grid.frames, m.grid.rows, m.grid.columns, m.kind, m.B, m.H, m.D, m.E, m.per_channel ? ", per channel" : "",
           m.base ? ", base" : "", m.x_gap, m.z_gap, m.k_gap);
    float *x = normals(nx, 1), *z = normals(nz, 1), *k = normals(nk, 1), *w = normals(nw, 1), *base = normals(nb, 1);
    float *x_before = normals(nx, 1), *z_before = normals(nz, 1), *k_before = normals(nk, 1),
          *w_before = normals(nw, 1), *base_before = normals(nb, 1);
    real *d_x = upload_real(x, nx), *d_z = upload_real(z, nz), *d_k = upload_real(k, nk);
    real *d_fx = upload_real(x_before, nx), *d_fz = upload_real(z_before, nz), *d_fk = upload_real(k_before, nk);
    float *d_w = upload(w, nw), *d_base = m.base ? upload(base, nb) : NULL;
    float *d_fw = upload(w_before, nw), *d_fbase = m.base ? upload(base_before, nb) : NULL;
    double *fx = between_rows(x_before, tokens, sums.x_row, M),
           *fz = between_rows(z_before, tokens, sums.s_row, m.H * m.E);
    double *fk = m.base ? widened(k_before, nk) : between_rows(k_before, tokens, sums.k_row, M);
    double *fw = widened(w_before, nw), *fbase = widened(base_before, nb);
    sums_reference(fx, fz, fk, fw, fbase, x, z, k, w, base, &sums, m);
    real *add = m.base ? d_fk : NULL;
    PatternSumsGradients gradients = {d_fw, d_fbase};
    sums.w = d_w;
    sums.base = d_base;
    kernels_reserve(patterns_workspace(&sums.patterns, m.B));
    if (m.spread) {
        patterns_spread_forward(d_fx, d_z, d_k, &sums, m.B);
        patterns_spread_backward(d_fz, d_fk, add, &gradients, d_x, d_z, d_k, &sums, m.B);
    } else {
        patterns_collect_forward(d_fz, d_x, d_k, &sums, m.B);
        patterns_collect_backward(d_fx, d_fk, add, &gradients, d_z, d_x, d_k, &sums, m.B);
    }
    assert_true(close_real(m.spread ? "y" : "dq", d_fx, fx, nx));
    assert_true(close_real(m.spread ? "ds" : "s", d_fz, fz, nz));
    assert_true(close_real(m.spread ? "dv" : "dk", d_fk, fk, nk));
    assert_true(close_float("dw", d_fw, fw, nw));
    if (m.base) assert_true(close_float("dbase", d_fbase, fbase, nb));
    release_all();
}

static void test_sums(void **state) {
    (void)state;
    const Sums cases[] = {
        {OFFSETS_TOEPLITZ, {1, 5, 7}, 3, 3, 5, 5, true, true, false, 30, 0, 15},
        {OFFSETS_TOEPLITZ, {1, 5, 7}, 3, 3, 5, 4, false, true, false, 0, 2, 30},
        {OFFSETS_TOEPLITZ, {1, 4, 3}, 2, 5, 17, 19, false, true, true, 3, 0, 7},
        {OFFSETS_TOEPLITZ, {1, 7, 3}, 4, 3, 6, 3, false, false, true, 6, 6, 0},
        {OFFSETS_TOEPLITZ, {1, 2, 9}, 1, 2, 3, 18, true, false, true, 0, 0, 0},
        {OFFSETS_TORUS, {1, 3, 6}, 2, 5, 2, 3, true, true, false, 0, 0, 0},
        {OFFSETS_CIRCLE, {1, 5, 4}, 1, 4, 3, 2, false, true, true, 0, 0, 0},
        {OFFSETS_TOEPLITZ, {1, 1, 1}, 2, 1, 2, 2, true, true, true, 0, 0, 0},
        {OFFSETS_TOEPLITZ, {3, 5, 7}, 1, 3, 5, 3, true, true, false, 0, 3, 0},
        {OFFSETS_TOEPLITZ, {4, 3, 2}, 2, 2, 5, 4, false, true, true, 0, 0, 5},
        {OFFSETS_TORUS, {3, 2, 4}, 2, 3, 4, 3, true, false, true, 0, 0, 0},
        {OFFSETS_TORUS, {2, 5, 3}, 2, 2, 5, 2, false, true, false, 4, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) sums_case(cases[i]);
}

/* A lambda convolution of 2 x 3 x 2 tokens of sines, against float64 sums over all pairs. */
static void test_lambda_numbers(void **state) {
    (void)state;
    enum { N = 12, D = 2, T = 45 };
    PatternSums sums = {.patterns = {{OFFSETS_TOEPLITZ, {2, 3, 2}, 0, 0}, D, 1, D, false},
                        .x_row = D, .s_row = D, .k_row = D};
    const Offsets *o = &sums.patterns.offsets;
    float q[N * D], v[N * D], table[T * D];
    double sum = 0, tolerance = sizeof(real) == 4 ? 1e-6 : 1e-2;
    assert_true(offsets_count(o) == T && offset_of(o, 0, 11) == 0 && offset_of(o, 11, 0) == T - 1);
    for (int i = 0; i < N * D; i++) {
        q[i] = (float)sin(0.7 * (i / D) + 1.3 * (i % D) + 0.2);
        v[i] = (float)sin(0.3 * (i / D) + 0.8 * (i % D) - 0.4);
    }
    for (int i = 0; i < T * D; i++) table[i] = (float)(0.1 * cos(0.2 * (i / D) + 0.7 * (i % D)));
    sums.w = upload(table, T * D);
    real *y = poisoned_real(N * D);
    kernels_reserve(patterns_workspace(&sums.patterns, 1));
    patterns_spread_forward(y, upload_real(q, N * D), upload_real(v, N * D), &sums, 1);
    const float *got = download_real(y, N * D);
    for (int i = 0; i < N * D; i++) sum += got[i];
    assert_true(fabs(got[0] + 0.16229595) < tolerance && fabs(got[1] + 0.37541513) < tolerance);
    assert_true(fabs(got[14] - 0.05083073) < tolerance && fabs(got[15] + 0.34133776) < tolerance);
    assert_true(fabs(sum + 0.92055569) < 10 * tolerance);
    release_all();
}

/* On a circle two ranges of pairs use the same entry of the table, where threads could collide.  A collision does not
 * show in every call, so that the test makes many. */
static void test_same_sums_again(void **state) {
    (void)state;
    enum { N = 20, H = 4, D = 3, E = 2, CALLS = 30 };
    PatternSums sums = {.patterns = {{OFFSETS_CIRCLE, {1, 5, 4}, 0, 0}, E, H, D, false},
                        .x_row = H * D, .s_row = H * E, .k_row = H * D, .w = upload(normals(N * E, 1), N * E)};
    const real *x = upload_real(normals(N * H * D, 1), N * H * D), *z = upload_real(normals(N * H * E, 1), N * H * E),
               *k = upload_real(normals(N * H * D, 1), N * H * D);
    real *fz = poisoned_real(N * H * E), *fk = poisoned_real(N * H * D);
    const float *before = normals(N * E, 1);
    float *first = NULL;
    kernels_reserve(patterns_workspace(&sums.patterns, 1));
    for (int i = 0; i < CALLS; i++) {
        float *fw = upload(before, N * E);
        patterns_spread_backward(fz, fk, NULL, &(PatternSumsGradients){fw, NULL}, x, z, k, &sums, 1);
        float *again = download(fw, N * E);
        if (!first) first = again;
        assert_memory_equal(first, again, N * E * sizeof *first);
    }
    release_all();
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_heads_norm), cmocka_unit_test(test_rows),
                                       cmocka_unit_test(test_neighbour_max), cmocka_unit_test(test_lambda_numbers),
                                       cmocka_unit_test(test_sums),
                                       cmocka_unit_test(test_same_sums_again)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
