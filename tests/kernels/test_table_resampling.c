/* Resampling of tables to the grid of a batch (kernels/tokens/table_resampling.h): known weights, results against the
 * host's grid_resample, and the adjoint, entry by entry. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <omp.h>

#include "core/resampling.h"
#include "kernels/tokens/table_axis.h"
#include "layers/vit/resample_grid.h"
#include "tests/on_device.h"

static uint64_t drawn;
static int draw(int least, int most) {
    return least + (int)(rng_bits(check_seed(), RNG_TEST, 78, 0, drawn++) % (uint64_t)(most - least + 1));
}

static size_t numbers(Grid grid, int inner) { return (size_t)grid_tokens(grid) * (size_t)inner; }

/* Run both directions on the device and return host copies; dx starts at `before`. */
static float *forward(const float *x, const TableResampling *s) {
    size_t n = numbers(s->to, s->inner);
    float *y = poisoned(n);
    kernels_reserve(table_resample_workspace(s));
    table_resample_forward(y, upload(x, numbers(s->from, s->inner)), s);
    return download(y, n);
}
static float *backward(const float *before, const float *dy, const TableResampling *s) {
    size_t n = numbers(s->from, s->inner);
    float *dx = upload(before, n);
    kernels_reserve(table_resample_workspace(s));
    table_resample_backward(dx, upload(dy, numbers(s->to, s->inner)), s);
    return download(dx, n);
}

static float *one_at(size_t n, size_t at) {
    float *x = keep(calloc(n, sizeof *x), false);
    x[at] = 1;
    return x;
}

/* From 7 rows to 25, the weights of row 0 begin with 1.10967251, -0.10967251, 0, and row 12 is row 3 of the source. */
static void test_digits(void **state) {
    (void)state;
    const TableResampling s = {{1, 7, 1}, {1, 25, 1}, 1, false};
    const double first[7] = {1.10967251, -0.10967251};
    double sums[25] = {0};
    for (int i = 0; i < 7; i++) {
        const float *u = forward(one_at(7, (size_t)i), &s);
        assert_true(fabs(u[0] - first[i]) < 1e-7);
        assert_true(fabs(u[12] - (i == 3)) < 1e-7);
        for (int j = 0; j < 25; j++) sums[j] += (double)u[j];
    }
    for (int j = 0; j < 25; j++) assert_true(fabs(sums[j] - 1) < 1e-6);
    release_all();
}

/* Bilinear resampling from 4 to 8 gives quarters of two neighbouring entries, and copies of the first and last; from 8
 * to 4, without antialiasing, it gives means of two entries. */
static void test_bilinear_digits(void **state) {
    (void)state;
    const TableResampling up = {{1, 4, 1}, {1, 8, 1}, 1, true}, down = {{1, 1, 8}, {1, 1, 4}, 1, true};
    const float four[4] = {1, 2, 4, 8}, wide[8] = {1, 1.25f, 1.75f, 2.5f, 3.5f, 5, 7, 8};
    const float eight[8] = {0, 1, 2, 4, 8, 16, 32, 64}, narrow[4] = {0.5f, 3, 12, 48};
    assert_memory_equal(forward(four, &up), wide, sizeof wide);
    assert_memory_equal(forward(eight, &down), narrow, sizeof narrow);
    release_all();
}

/* <U x, y> = <x, U^T y>, and rows of U sum to one; in double, so that rounding cannot hide a missing term. */
static void test_axis(void **state) {
    (void)state;
    for (int turn = 0; turn < 200; turn++) {
        int in = draw(1, 60), out = draw(1, 90);
        char *memory = keep(check_poison((table_axis_bytes(in, out) + 3) / 4), false);
        TableAxis axis = table_axis_at(memory, in, out, turn % 2);
        table_axis_fill(&axis);
        assert_true((size_t)((char *)(axis.high + in) - memory) <= table_axis_bytes(in, out));
        const float *x = normals((size_t)in, 1), *y = normals((size_t)out, 1);
        double there = 0, back = 0, size = 0;
        for (int j = 0; j < out; j++) {
            double sum = 0;
            for (int i = axis.first[j]; i < axis.end[j]; i++) {
                there += table_weight(&axis, i, j) * x[i] * y[j];
                size += fabs(table_weight(&axis, i, j) * x[i] * y[j]);
                sum += table_weight(&axis, i, j);
            }
            assert_true(fabs(sum - 1) < 1e-14);
        }
        for (int i = 0; i < in; i++)
            for (int j = axis.low[i]; j < axis.high[i]; j++)
                if (i >= axis.first[j] && i < axis.end[j]) back += table_weight(&axis, i, j) * x[i] * y[j];
                else fail_msg("input %d has no share in output %d", i, j);
        assert_true(fabs(there - back) < 1e-14 * size);
        release_all();
    }
}

/* The weight of every x in every y is the same in both directions, bit for bit. */
static void test_adjoint(void **state) {
    (void)state;
    for (int turn = 0; turn < 6; turn++) {
        const TableResampling s = {{1, draw(1, 6), draw(1, 6)}, {1, draw(1, 9), draw(1, 9)}, 1, turn % 2};
        size_t in = numbers(s.from, 1), out = numbers(s.to, 1);
        float *there = keep(check_poison(in * out), false), *zero = keep(calloc(in, sizeof *zero), false);
        for (size_t i = 0; i < in; i++) memcpy(there + i * out, forward(one_at(in, i), &s), out * sizeof *there);
        for (size_t j = 0; j < out; j++) {
            const float *back = backward(zero, one_at(out, j), &s);
            for (size_t i = 0; i < in; i++)
                if (back[i] != there[i * out + j])
                    fail_msg("%zu to %zu: %g there, %g back", i, j, (double)there[i * out + j], (double)back[i]);
        }
        release_all();
    }
}

/* Device and host sum in double, so that they differ at most by the rounding to float. */
static void test_as_on_the_host(void **state) {
    (void)state;
    for (int turn = 0; turn < 20; turn++) {
        const TableResampling s = {{1, draw(1, 14), draw(1, 14)}, {1, draw(1, 40), draw(1, 40)}, draw(1, 37),
                                   turn % 2};
        Param p = {.shape = {grid_tokens(s.to), s.inner}, .ndim = 2, .grid = {0, 1, 0, s.to},
                   .resampled = s.bilinear ? RESAMPLED_BILINEAR : RESAMPLED_ANTIALIASED};
        size_t n = numbers(s.to, s.inner);
        const float *x = normals(numbers(s.from, s.inner), 1);
        float *want = keep(check_poison(n), false), *got = forward(x, &s);
        grid_resample(want, &p, x, &(ParamGrid){0, 1, 0, s.from});
        for (size_t i = 0; i < n; i++)
            if (got[i] != want[i] && got[i] != nextafterf(want[i], got[i]))
                fail_msg("[%zu] is %.9g, not %.9g", i, (double)got[i], (double)want[i]);
        release_all();
    }
}

static void test_own_grid(void **state) {
    (void)state;
    const TableResampling s = {{1, 5, 7}, {1, 5, 7}, 3, false};
    const float *x = normals(105, 1);
    assert_false(table_resamples(&s));
    assert_memory_equal(forward(x, &s), x, 105 * sizeof *x);
    release_all();
}

static void test_threads(void **state) {
    (void)state;
    const int threads = omp_get_max_threads(), counts[] = {1, 2, 7};
    const TableResampling s = {{1, 7, 9}, {1, draw(1, 30), draw(1, 30)}, 19, draw(0, 1)};
    size_t in = numbers(s.from, s.inner), out = numbers(s.to, s.inner);
    const float *x = normals(in, 1), *dy = normals(out, 1), *before = normals(in, 1);
    float *first[2] = {NULL, NULL};
    for (int t = 0; t < 3; t++) {
        omp_set_num_threads(counts[t]);
        float *y = forward(x, &s), *dx = backward(before, dy, &s);
        if (!t) first[0] = y, first[1] = dx;
        assert_memory_equal(y, first[0], out * sizeof *y);
        assert_memory_equal(dx, first[1], in * sizeof *dx);
    }
    omp_set_num_threads(threads);
    release_all();
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digits), cmocka_unit_test(test_bilinear_digits),
        cmocka_unit_test(test_axis), cmocka_unit_test(test_adjoint),
        cmocka_unit_test(test_as_on_the_host), cmocka_unit_test(test_own_grid), cmocka_unit_test(test_threads),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
