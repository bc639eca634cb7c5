/* Attention of low rank, and the kernels that make landmarks from tokens: outputs against their formulas in double,
 * gradients against central differences of those formulas. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/differences.h"

/* == Cells and squares ============================================================================================ */

typedef struct {
    Cells cells;
    int B, C, x_row;
} CellsCase;

static void cells_case(CellsCase k) {
    const Cells *c = &k.cells;
    int Hg = c->tokens.rows, Wg = c->tokens.columns, Lh = c->cells.rows, Lw = c->cells.columns;
    size_t N = (size_t)Hg * Wg, L = (size_t)Lh * Lw, n = k.B * N * k.x_row, n_means = k.B * L * k.C;
    printf("cell means %d x %d in %d x %d, B %d C %d\n", Lh, Lw, Hg, Wg, k.B, k.C);
    float *x = normals(n, 1), *dmeans = normals(n_means, 1), *before = normals(n, 1);
    real *d_x = upload_real(x, n), *d_dmeans = upload_real(dmeans, n_means), *d_means = poisoned_real(n_means);
    real *d_dx = upload_real(before, n);
    cell_means_forward(d_means, d_x, c, k.B, k.C, k.x_row);
    cell_means_backward(d_dx, d_dmeans, c, k.B, k.C, k.x_row);
    double *means = zeros(n_means), *dx = wide(before, n);
    int seen = 0;
    for (int b = 0; b < k.B; b++)
        for (int i = 0; i < Lh; i++)
            for (int j = 0; j < Lw; j++) {
                int top = i * Hg / Lh, bottom = (i + 1) * Hg / Lh, left = j * Wg / Lw,
                    right = (j + 1) * Wg / Lw, tokens = (bottom - top) * (right - left);
                size_t mean = ((b * L) + (size_t)i * Lw + j) * k.C;
                seen += tokens;
                for (int y = top; y < bottom; y++)
                    for (int z = left; z < right; z++)
                        for (int ch = 0; ch < k.C; ch++) {
                            size_t at = (b * N + (size_t)y * Wg + z) * k.x_row + ch;
                            means[mean + ch] += (double)x[at] / tokens;
                            dx[at] += (double)dmeans[mean + ch] / tokens;
                        }
            }
    assert_int_equal(seen, k.B * (int)N);
    assert_true(close_real("means", d_means, means, n_means));
    assert_true(close_real("dx", d_dx, dx, n));
    release_all();
}

static void test_cell_means(void **state) {
    (void)state;
    const CellsCase cases[] = {{{{1, 14, 14}, {1, 7, 7}}, 2, 10, 15}, {{{1, 5, 7}, {1, 3, 4}}, 2, 33, 40},
                               {{{1, 1, 1}, {1, 1, 1}}, 1, 1, 3},     {{{1, 9, 2}, {1, 7, 2}}, 3, 16, 48},
                               {{{1, 6, 4}, {1, 6, 4}}, 1, 5, 5},     {{{1, 3, 11}, {1, 1, 3}}, 1, 17, 20}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) cells_case(cases[i]);
}

typedef struct {
    int Hg, Wg, r, B, H, D, x_row;
} PatchCase;

static void patch_case(PatchCase k) {
    const HeadPatches shape = {{1, k.Hg, k.Wg}, k.r, k.H, k.D, k.x_row};
    size_t n = (size_t)k.B * k.Hg * k.Wg * k.x_row, rows = k.Hg / k.r, columns = k.Wg / k.r;
    size_t n_cols = k.B * rows * columns * k.H * k.D * k.r * k.r;
    printf("squares of %d in %d x %d, B %d H %d D %d\n", k.r, k.Hg, k.Wg, k.B, k.H, k.D);
    float *x = normals(n, 1), *dcols = normals(n_cols, 1), *before = normals(n, 1);
    real *d_x = upload_real(x, n), *d_dcols = upload_real(dcols, n_cols), *d_cols = poisoned_real(n_cols);
    real *d_dx = upload_real(before, n);
    head_patches_forward(d_cols, d_x, &shape, k.B);
    head_patches_backward(d_dx, d_dcols, &shape, k.B);
    double *cols = zeros(n_cols), *dx = wide(before, n);
    for (size_t b = 0; b < (size_t)k.B; b++)
        for (size_t y = 0; y < rows * k.r; y++)
            for (size_t z = 0; z < columns * k.r; z++)
                for (size_t c = 0; c < (size_t)k.H * k.D; c++) {
                    size_t square = (b * rows + y / k.r) * columns + z / k.r;
                    size_t to = ((square * k.H * k.D + c) * k.r + y % k.r) * k.r + z % k.r;
                    size_t at = ((b * k.Hg + y) * k.Wg + z) * k.x_row + c;
                    cols[to] = x[at];
                    dx[at] += dcols[to];
                }
    assert_true(close_real("cols", d_cols, cols, n_cols));
    assert_true(close_real("dx", d_dx, dx, n));
    release_all();
}

static void test_patches(void **state) {
    (void)state;
    const PatchCase cases[] = {{14, 14, 2, 2, 3, 5, 30}, {5, 7, 2, 2, 1, 4, 9}, {7, 3, 3, 1, 2, 1, 2},
                               {1, 1, 1, 1, 1, 1, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) patch_case(cases[i]);
}

/* == Attention ==================================================================================================== */

typedef struct {
    LowRank shape;
    int B;
    double *tokens, *landmarks, *work;
} LowRankCase;

/* c [m,n] = a [m,k] b [k,n] */
static void times(double *c, const double *a, const double *b, int m, int k, int n) {
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int l = 0; l < k; l++) sum += a[i * k + l] * b[l * n + j];
            c[i * n + j] = sum;
        }
}

/* p [rows,columns] = A(x, z); the rows of x and z are x_row and z_row apart. */
static void similarity(double *p, const double *x, size_t x_row, double x_scale, const double *z, size_t z_row,
                       double z_scale, int rows, int columns, const LowRank *s) {
    for (int i = 0; i < rows; i++) {
        double sum = 0, most = -INFINITY;
        for (int j = 0; j < columns; j++) {
            double score = 0;
            for (int c = 0; c < s->D; c++) {
                double a = x_scale * x[i * x_row + c], b = z_scale * z[j * z_row + c];
                score += s->gaussian ? -(a - b) * (a - b) / 2 : a * b / sqrt(s->D);
            }
            p[i * columns + j] = score;
            most = fmax(most, score);
        }
        if (s->gaussian) most = 0;
        for (int j = 0; j < columns; j++) sum += p[i * columns + j] = exp(p[i * columns + j] - most);
        for (int j = 0; j < columns && !s->gaussian; j++) p[i * columns + j] /= sum;
    }
}

/* z = the pseudo-inverse of a by six iterations; work [3,L,L]: workspace. */
static void pseudo_inverse(double *z, const double *a, double *work, const LowRank *s) {
    int L = s->L;
    double most = 0, *w = work, *c = w + L * L, *next = c + L * L;
    for (int j = 0; j < L; j++) {
        double sum = 0;
        for (int i = 0; i < L; i++) sum += a[i * L + j];
        most = fmax(most, sum);
    }
    for (int i = 0; i < L * L; i++) z[i] = a[i % L * L + i / L] / (s->gaussian ? most * most : most);
    for (int step = 0; step < 6; step++) {
        const double diagonals[] = {15, 13};
        times(w, a, z, L, L, L);
        for (int i = 0; i < L * L; i++) c[i] = 7 * (i / L == i % L) - w[i];
        for (int k = 0; k < 2; k++) {
            times(next, w, c, L, L, L);
            for (int i = 0; i < L * L; i++) c[i] = diagonals[k] * (i / L == i % L) - next[i];
        }
        times(next, z, c, L, L, L);
        for (int i = 0; i < L * L; i++) z[i] = next[i] / 4;
    }
}

static void head_outputs(double *y, const LowRankCase *k, size_t token, size_t landmark) {
    const LowRank *s = &k->shape;
    int N = s->N, L = s->L, D = s->D, M = s->H * D, parts = s->gaussian ? 2 : 3;
    size_t row = (size_t)parts * M, few = row - M;
    double scale = s->gaussian ? pow(D, -0.25) : 1;
    const double *q = k->tokens + token, *keys = s->gaussian ? q : q + M, *v = q + few;
    const double *a = k->landmarks + landmark, *b = s->gaussian ? a : a + M;
    double *a1 = k->work, *a2 = a1 + N * L, *a3 = a2 + L * L, *z = a3 + L * N, *t = z + L * L, *u = t + L * D;
    similarity(a1, q, row, scale, b, few, 1, N, L, s);
    similarity(a2, a, few, 1, b, few, 1, L, L, s);
    similarity(a3, a, few, 1, keys, row, scale, L, N, s);
    pseudo_inverse(z, a2, u + L * D, s);
    for (int l = 0; l < L; l++)
        for (int c = 0; c < D; c++) {
            t[l * D + c] = 0;
            for (int n = 0; n < N; n++) t[l * D + c] += a3[l * N + n] * v[n * row + c];
        }
    times(u, z, t, L, L, D);
    for (int n = 0; n < N; n++) times(y + (size_t)n * M, a1 + n * L, u, 1, L, D);
}

static void low_rank_outputs(double *y, void *context) {
    const LowRankCase *k = context;
    const LowRank *s = &k->shape;
    size_t M = (size_t)s->H * s->D, parts = s->gaussian ? 2 : 3;
    for (int b = 0; b < k->B; b++)
        for (int h = 0; h < s->H; h++) {
            size_t c = (size_t)h * s->D;
            head_outputs(y + b * s->N * M + c, k, b * s->N * parts * M + c, b * s->L * (parts - 1) * M + c);
        }
}

/* Random landmarks: those of queries and keys are pairwise close, and different ones are far enough apart for their
 * matrix to have an inverse, but not so far that rounding dominates the gradients. */
static float *apart(const LowRank *s, size_t rows, int parts) {
    size_t M = (size_t)s->H * s->D;
    float scale = s->gaussian ? 2.5f / sqrtf((float)s->D) : 2.2f / powf((float)s->D, 0.25f);
    float *x = normals(rows * parts * M, scale), *near = normals(rows * M, 0.3f);
    for (size_t i = 0; i < rows * M && parts == 2; i++) {
        size_t at = i / M * 2 * M + i % M;
        x[at + M] = x[at] + near[i];
    }
    return x;
}

static void low_rank_case(LowRank s, int B) {
    LowRankCase k = {.shape = s, .B = B};
    int parts = s.gaussian ? 2 : 3;
    size_t M = (size_t)s.H * s.D, n = (size_t)B * s.N * M, rows = (size_t)B * s.L * (parts - 1);
    size_t n_tokens = parts * n, n_landmarks = rows * M;
    printf("%s B %d N %d L %d H %d D %d\n", s.gaussian ? "gaussian" : "softmax", B, s.N, s.L, s.H, s.D);
    float *tokens = normals(n_tokens, s.gaussian ? 0.7f : 1), *landmarks = apart(&s, (size_t)B * s.L, parts - 1);
    float *dy = normals(n, 1);
    real *d_tokens = upload_real(tokens, n_tokens), *d_landmarks = upload_real(landmarks, n_landmarks),
         *d_dy = upload_real(dy, n), *d_y = poisoned_real(n);
    real *d_dtokens = poisoned_real(n_tokens), *d_dlandmarks = poisoned_real(n_landmarks);
    k.tokens = wide(tokens, n_tokens);
    k.landmarks = wide(landmarks, n_landmarks);
    k.work = zeros(2 * (size_t)s.N * s.L + 5 * (size_t)s.L * s.L + 2 * (size_t)s.L * s.D);
    double *y = zeros(n);
    low_rank_outputs(y, &k);
    kernels_reserve(low_rank_workspace(&s, B));
    low_rank_forward(d_y, d_tokens, d_landmarks, &s, B);
    assert_true(close_real("y", d_y, y, n));
    low_rank_backward(d_dtokens, d_dlandmarks, d_dy, d_tokens, d_landmarks, &s, B);
    Function f = {low_rank_outputs, &k, n, zeros(n), dy, 1e-5};
    assert_true(slopes_agree("dtokens", download_real(d_dtokens, n_tokens), NULL, k.tokens, n_tokens, &f));
    float *dlandmarks = download_real(d_dlandmarks, n_landmarks);
    assert_true(slopes_agree("dlandmarks", dlandmarks, NULL, k.landmarks, n_landmarks, &f));
    real *again = poisoned_real(n_tokens);
    low_rank_backward(again, d_dlandmarks, d_dy, d_tokens, d_landmarks, &s, B);
    assert_memory_equal(download_real(again, n_tokens), download_real(d_dtokens, n_tokens), n_tokens * sizeof(float));
    release_all();
}

static void test_low_rank(void **state) {
    (void)state;
    const LowRank cases[] = {{35, 6, 2, 9, false},  {1, 1, 1, 2, true},    {35, 6, 2, 9, true},  {70, 17, 1, 16, false},
                             {70, 17, 1, 16, true}, {9, 3, 1, 33, false}, {16, 8, 1, 24, true}, {5, 2, 3, 17, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) low_rank_case(cases[i], i % 2 ? 1 : 2);
    if (full_or_reduced("landmarks", 65, 17) < 65) return;
    low_rank_case((LowRank){130, 65, 1, 64, false}, 1);
    low_rank_case((LowRank){130, 33, 1, 64, true}, 1);
}

/* With one landmark every token has the same result, and the gradients of queries and of the key landmark are 0. */
static void test_one_landmark(void **state) {
    (void)state;
    LowRank s = {12, 1, 1, 4, false};
    float *tokens = normals(12 * 12, 1), *landmarks = normals(8, 1), *dy = normals(48, 1);
    real *d_y = poisoned_real(48), *d_tokens = upload_real(tokens, 144), *d_landmarks = upload_real(landmarks, 8);
    real *d_dtokens = poisoned_real(144), *d_dlandmarks = poisoned_real(8);
    kernels_reserve(low_rank_workspace(&s, 1));
    low_rank_forward(d_y, d_tokens, d_landmarks, &s, 1);
    low_rank_backward(d_dtokens, d_dlandmarks, upload_real(dy, 48), d_tokens, d_landmarks, &s, 1);
    float *y = download_real(d_y, 48), *dtokens = download_real(d_dtokens, 144);
    float *dlandmarks = download_real(d_dlandmarks, 8);
    for (int n = 0; n < 12; n++)
        for (int c = 0; c < 4; c++) {
            assert_true(y[n * 4 + c] == y[c]);
            assert_true(fabsf(dtokens[n * 12 + c]) < 1e-4f);
        }
    for (int c = 4; c < 8; c++) assert_true(fabsf(dlandmarks[c]) < 1e-4f);
    release_all();
}

int main(void) {
    kernels_init();
    check_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cell_means),
        cmocka_unit_test(test_patches),
        cmocka_unit_test(test_low_rank),
        cmocka_unit_test(test_one_landmark),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
