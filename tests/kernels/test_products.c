/* The products of linear layers on a CPU, by oneDNN or in plain C depending on the build, against double: many seeds
 * with odd sizes, gaps between rows, and numbers around the results that must not change.  The plain C of
 * kernels/linear/panels.h is in every build and is compared with double in the same way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include <omp.h>

#include "kernels/cpu/activations.h"
#include "kernels/kernels.h"
#include "kernels/linear/panels.h"
#include "tests/check.h"

enum { SEEDS = 200, GUARDS = 40, TENSORS = 16 };
static const float GUARD = 12345.0f; /* unlike any result, also when it is rounded to bfloat16 */

static void *made[TENSORS];
static int made_count;

static void *own(void *p) { return assert_true(made_count < TENSORS), made[made_count++] = p; }
static void free_all(void) {
    while (made_count) free(made[--made_count]);
}

/* A random number from `low` to `high`, half of the time near `low`. */
static int size_between(int low, int high, uint32_t seed, uint32_t what) {
    float u = rng_uniform(check_seed(), RNG_TEST, seed, what, 0), v = rng_uniform(check_seed(), RNG_TEST, seed, what, 1);
    return low + (int)((float)(high - low) * (u < 0.5f ? 0.1f * v : v));
}

/* Random numbers [rows,columns], rounded to `real`, with rows `row` apart and NaN between them. */
static real *factor(size_t rows, int columns, size_t row, uint32_t stream) {
    size_t n = rows * row;
    float *x = own(check_normal(n, 1, stream));
    real *y = own(malloc(n * sizeof *y));
    for (size_t i = 0; i < n; i++) y[i] = real_of(i % row < (size_t)columns ? x[i] : NAN);
    return y;
}

static real *guarded(size_t n) {
    real *y = own(malloc((n + GUARDS) * sizeof *y));
    for (size_t i = 0; i < n + GUARDS; i++) y[i] = real_of(GUARD);
    return y;
}

static float widened(const void *x, size_t i, bool floats) { return floats ? ((const float *)x)[i] : real_get(((const real *)x)[i]); }

/* The product c = start + a b with c [m,n], whose rows are ldc apart, a(i,p) = a[i*a_row + p*a_col], and b likewise.
 * The numbers between and after the rows of c must still be GUARD. */
typedef struct {
    const void *c;
    bool c_floats;
    const real *a;
    const void *b;
    bool b_floats;
    size_t m, ldc, a_row, a_col, b_row, b_col;
    int n, k;
    const float *bias, *start; /* or NULL */
} Product;

static bool right(const char *what, const Product *p) {
    size_t count = p->m * (size_t)p->n;
    float *got = malloc(count * sizeof *got);
    double *want = calloc(count, sizeof *want), *size = calloc(count, sizeof *size);
    bool ok = true;
    for (size_t i = 0; i < p->m; i++)
        for (size_t j = 0; j < (size_t)p->n; j++) {
            size_t at = i * (size_t)p->n + j;
            double first = p->bias ? p->bias[j] : p->start ? p->start[at] : 0;
            got[at] = widened(p->c, i * p->ldc + j, p->c_floats);
            want[at] = first;
            size[at] = fabs(first);
            for (size_t e = 0; e < (size_t)p->k; e++) {
                double term = (double)real_get(p->a[i * p->a_row + e * p->a_col]) *
                              widened(p->b, e * p->b_row + j * p->b_col, p->b_floats);
                want[at] += term;
                size[at] += fabs(term);
            }
        }
    for (size_t i = 0; i < p->m * p->ldc + GUARDS; i++)
        if (i >= p->m * p->ldc || i % p->ldc >= (size_t)p->n)
            ok = ok && fabsf(widened(p->c, i, p->c_floats) - GUARD) < 64;
    if (!ok) printf("  %s: written outside of its %zu x %d\n", what, p->m, p->n);
    ok = check_sums(what, got, want, size, count, sizeof(real) == 4 ? 2e-6 : 2.0 / 256) && ok;
    free(got);
    free(want);
    free(size);
    return ok;
}

/* Random sizes for a seed. */
static LinearShape shape_of(uint32_t seed) {
    LinearShape s = {.n = (size_t)size_between(1, 420, seed, 0), .in = size_between(1, 180, seed, 1), .out = size_between(1, 180, seed, 2)};
    if (seed % 2) s.y_row = s.out + size_between(0, 30, seed, 3);
    if (seed % 5 == 0) s.in += 300 + (int)(seed % 3) * 150; /* so long that it is cut into pieces */
    if (seed % 5 == 1) s.n += 400;
    return s;
}

static void test_linear_products(void **state) {
    (void)state;
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        LinearShape s = shape_of(seed);
        size_t row = (size_t)(s.y_row ? s.y_row : s.out), in = (size_t)s.in, out = (size_t)s.out;
        printf("seed %u: n %zu in %d out %d row %zu\n", seed, s.n, s.in, s.out, row);
        real *x = factor(s.n, s.in, in, 4 * seed), *dy = factor(s.n, s.out, row, 4 * seed + 1);
        float *w = own(check_normal(in * out + GUARDS, 1, 4 * seed + 2)), *b = own(check_normal(out, 1, 4 * seed + 3));
        real *y = guarded(s.n * row), *kept = guarded(s.n * row), *dx = guarded(s.n * in);
        float *dw = own(malloc((in * out + GUARDS) * sizeof *dw)), *start = own(malloc(in * out * sizeof *start));
        for (size_t i = 0; i < in * out + GUARDS; i++) dw[i] = i < in * out ? w[in * out - 1 - i] : GUARD;
        memcpy(start, dw, in * out * sizeof *start);
        const float *bias = seed % 3 ? b : NULL;

        linear_forward(y, x, w, bias, &s);
        linear_keep_weights(true);
        linear_forward(kept, x, start, NULL, &s); /* other weights, which are kept as well */
        linear_forward(kept, x, w, bias, &s);
        linear_keep_weights(false);
        linear_backward_input(dx, dy, w, &s);
        linear_backward_weight(dw, NULL, dy, x, &s);
        Product forward = {y, false, x, w, true, s.n, row, in, 1, 1, in, s.out, s.in, bias, NULL}, again = forward;
        again.c = kept;
        assert_true(right("y", &forward));
        assert_true(right("y, weights kept", &again));
        assert_true(right("dx", &(Product){dx, false, dy, w, true, s.n, in, row, 1, in, 1, s.in, s.out, NULL, NULL}));
        assert_true(right("dw", &(Product){dw, true, dy, x, false, out, in, 1, row, in, 1, s.in, (int)s.n, NULL, start}));
        free_all();
    }
}

/* Products with panels; A has at most PANEL_ROWS_MOST rows. */
static void test_panels(void **state) {
    (void)state;
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        int m = size_between(1, PANEL_ROWS_MOST, seed, 4), n = size_between(1, 100, seed, 5), k = size_between(1, 900, seed, 6);
        int width = panels_of(n) * PANEL, rows = (m + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
        size_t count = (size_t)m * (size_t)width, lda = (size_t)k + seed % 4;
        printf("seed %u: m %d n %d k %d\n", seed, m, n, k);
        real *a = factor((size_t)m, k, lda, 4 * seed), *columns = factor((size_t)k, m, (size_t)m, 4 * seed + 1);
        float *b = own(check_normal((size_t)(n * k), 1, 4 * seed + 2)), *panels = own(check_poison(panels_floats(k, n)));
        float *wide = own(check_poison(lda * (size_t)m)), *c = own(check_poison(count)), *add = own(check_poison(count));
        float *turned = own(check_poison((size_t)(rows * k))), *tile = own(check_poison((size_t)(rows * width)));
        double *want = own(calloc(count, sizeof *want)), *size = own(calloc(count, sizeof *size));
        double *twice = own(calloc(count, sizeof *twice)), *columns_want = own(calloc(count, sizeof *columns_want));
        reals_widen(wide, a, lda * (size_t)m);
        for (size_t i = 0; i < count; i++) add[i] = (float)(i % 7);
        panel_turn(turned, columns, (size_t)m, m, k);
        for (int j = 0; j < panels_of(n); j++) { /* b [n,k] and its transpose have to give the same panel */
            float *panel = panels + (size_t)j * (size_t)k * PANEL, other[PANEL], *block = tile + (size_t)(j * PANEL * rows);
            panel_of_columns(panel, b + j * PANEL * k, (size_t)k, k, panel_width(j, n));
            for (int p = 0; p < k; p++) {
                float line[PANEL];
                for (int e = 0; e < panel_width(j, n); e++) line[e] = b[(j * PANEL + e) * k + p];
                panel_of_rows(other, line, PANEL, 1, panel_width(j, n));
                assert_memory_equal(other, panel + p * PANEL, sizeof other);
            }
            panel_multiply(c + j * PANEL, (size_t)width, wide, lda, panel, m, panel_width(j, n), k, false);
            panel_multiply(add + j * PANEL, (size_t)width, wide, lda, panel, m, panel_width(j, n), k, true);
            panel_multiply_turned(block, turned, panel, m, panel_width(j, n), k);
        }
        float *got = own(malloc(3 * count * sizeof *got)), *added = got + count, *by_columns = added + count;
        size_t at = 0;
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++, at++) {
                got[at] = c[i * width + j];
                added[at] = add[i * width + j];
                by_columns[at] = tile[j / PANEL * PANEL * rows + i * PANEL + j % PANEL];
                for (int p = 0; p < k; p++) {
                    double term = (double)wide[(size_t)i * lda + (size_t)p] * b[j * k + p];
                    want[at] += term;
                    size[at] += fabs(term);
                    columns_want[at] += (double)real_get(columns[p * m + i]) * b[j * k + p];
                }
                twice[at] = want[at] + (i * width + j) % 7;
                size[at] += 7;
            }
        assert_true(check_sums("c", got, want, size, at, 2e-6));
        assert_true(check_sums("added to", added, twice, size, at, 2e-6));
        assert_true(check_sums("of columns", by_columns, columns_want, size, at, 2e-6));
        free_all();
    }
}

/* Products in plain C have the same bits with any number of threads. */
static void test_threads(void **state) {
    (void)state;
    if (!strstr(kernels_device(), "own products")) skip();
    const int threads[] = {1, 2, 7, 20}, usual = omp_get_max_threads();
    const LinearShape s = {97, 61, 83, 90};
    enum { ROW = 90, IN = 61, OUT = 83, N = 97 };
    real *x = factor(N, IN, IN, 1), *dy = factor(N, OUT, ROW, 2), *y[2], *dx[2];
    float *w = own(check_normal(IN * OUT, 1, 3)), *dw[2];
    for (int i = 0; i < 2; i++) y[i] = guarded(N * ROW), dx[i] = guarded(N * IN), dw[i] = own(malloc(IN * OUT * sizeof(float)));
    for (int t = 0; t < 4; t++) {
        int i = t > 0;
        omp_set_num_threads(threads[t]);
        memset(dw[i], 0, IN * OUT * sizeof(float));
        linear_forward(y[i], x, w, w, &s);
        linear_backward_input(dx[i], dy, w, &s);
        linear_backward_weight(dw[i], NULL, dy, x, &s);
        if (!i) continue;
        assert_memory_equal(y[1], y[0], N * ROW * sizeof(real));
        assert_memory_equal(dx[1], dx[0], N * IN * sizeof(real));
        assert_memory_equal(dw[1], dw[0], IN * OUT * sizeof(float));
    }
    omp_set_num_threads(usual);
    free_all();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_products),
        cmocka_unit_test(test_panels),
        cmocka_unit_test(test_threads),
    };
    kernels_init();
    check_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
