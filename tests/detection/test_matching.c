/* Assignments against all permutations of small matrices and against scipy's costs of large ones
 * (tests/fixtures/detection/matching.txt, made by tests/reference/make_matching_fixtures.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "detection/matching.h"
#include "tests/check.h"
#include "tests/ranges.h"

/* Writes the pairs to column [rows] and returns their cost; checks that they are min(rows, columns) different pairs. */
static double match(int *column, const float *cost, int rows, int columns) {
    void *workspace = malloc(matching_workspace(rows, columns)); /* ASan finds writes beyond its end */
    bool *used = calloc((size_t)columns + 1, sizeof *used);
    int pairs = 0;
    double sum = 0;
    for (int i = 0; i < rows; i++) column[i] = -77;
    assert_true(matching(column, cost, rows, columns, workspace));
    for (int i = 0; i < rows; i++) {
        assert_in_range(column[i] + 1, 0, columns);
        if (column[i] < 0) continue;
        assert_false(used[column[i]]);
        used[column[i]] = true;
        sum += cost[(size_t)i * (size_t)columns + (size_t)column[i]];
        pairs++;
    }
    assert_int_equal(pairs, rows < columns ? rows : columns);
    free(workspace);
    free(used);
    return sum;
}

/* == Small: every assignment ====================================================================================== */

typedef struct {
    const float *cost;
    int rows, columns, skips; /* skips: how many rows may stay without a column */
    int now[8], best[8];
    double cheapest;
    int ties;
} Search;

static void try_rows(Search *s, int row, unsigned used, int skips, double sum) {
    if (row == s->rows) {
        if (sum < s->cheapest - 1e-9) {
            s->cheapest = sum;
            s->ties = 0;
            memcpy(s->best, s->now, sizeof s->now);
        }
        s->ties += sum < s->cheapest + 1e-9;
        return;
    }
    for (int j = 0; j < s->columns; j++) {
        if (used >> j & 1) continue;
        s->now[row] = j;
        try_rows(s, row + 1, used | 1u << j, skips, sum + s->cost[row * s->columns + j]);
    }
    if (!skips) return;
    s->now[row] = -1;
    try_rows(s, row + 1, used, skips - 1, sum);
}

static void small_matrices_equal_all_permutations(void **state) {
    (void)state;
    int unique = 0, tied = 0;
    for (uint32_t n = 0; n < 600; n++) {
        float cost[49];
        int column[7], rows = 1 + (int)rng_below(check_seed(), RNG_TEST, n, 1, 0, 7);
        int columns = 1 + (int)rng_below(check_seed(), RNG_TEST, n, 1, 1, 7);
        bool whole = n % 2;
        for (int i = 0; i < rows * columns; i++) {
            float x = rng_normal(check_seed(), RNG_TEST, n, 2, (uint64_t)i);
            cost[i] = whole ? roundf(x) : x;
        }
        Search s = {.cost = cost, .rows = rows, .columns = columns, .cheapest = INFINITY};
        try_rows(&s, 0, 0, rows > columns ? rows - columns : 0, 0);
        double sum = match(column, cost, rows, columns);
        assert_true(fabs(sum - s.cheapest) < 1e-5);
        if (s.ties == 1) assert_memory_equal(column, s.best, (size_t)rows * sizeof *column);
        unique += s.ties == 1;
        tied += s.ties > 1;
    }
    printf("  %d with one best assignment, %d with several\n", unique, tied);
    assert_true(unique > 200 && tied > 50);
}

/* == Large: scipy's cost ========================================================================================== */

static uint32_t hashed(uint32_t seed, uint32_t i, uint32_t j) {
    uint32_t x = (seed * 0x9E3779B9u) ^ (i * 0x85EBCA6Bu) ^ (j * 0xC2B2AE35u);
    for (int round = 0; round < 2; round++) {
        x = (x ^ (x >> 16)) * 0x7FEB352Du;
        x = (x ^ (x >> 15)) * 0x846CA68Bu;
    }
    return x >> 8;
}

static double cost_of(const char *kind, uint32_t seed, uint32_t i, uint32_t j) {
    double unit = hashed(seed, i, j) / 16777216.0;
    if (strcmp(kind, "uniform") == 0) return unit * 10 - 5;
    if (strcmp(kind, "whole") == 0) return floor(unit * 8);
    if (strcmp(kind, "columns") == 0) return hashed(seed + 1, 0, j) / 1048576.0 + unit / 64;
    return (i + 1.0) * (j + 1.0);
}

static void large_matrices_cost_what_scipy_pays(void **state) {
    (void)state;
    FILE *file = fopen("tests/fixtures/detection/matching.txt", "r");
    char kind[16];
    unsigned seed;
    int rows, columns, cases = 0;
    double want;
    assert_non_null(file);
    for (; fscanf(file, "%15s %u %d %d %lf", kind, &seed, &rows, &columns, &want) == 5; cases++) {
        float *cost = malloc((size_t)rows * (size_t)columns * sizeof *cost);
        int *column = malloc((size_t)rows * sizeof *column);
        for (int i = 0; i < rows; i++) {
            for (int j = 0; j < columns; j++)
                cost[i * columns + j] = (float)cost_of(kind, seed, (uint32_t)i, (uint32_t)j);
        }
        double got = match(column, cost, rows, columns);
        if (!(fabs(got - want) <= 1e-9 * fabs(want))) {
            fail_msg("%s %d x %d: %.17g, scipy %.17g", kind, rows, columns, got, want);
        }
        free(cost);
        free(column);
    }
    fclose(file);
    assert_int_equal(cases, 36);
}

/* == Edges ======================================================================================================== */

static void empty_matrices_have_no_pairs(void **state) {
    (void)state;
    int column[3];
    float none[1] = {0};
    assert_true(match(column, none, 0, 5) == 0);
    assert_true(match(column, none, 3, 0) == 0);
    assert_true(match(column, none, 0, 0) == 0);
}

static void costs_that_are_not_finite_are_refused(void **state) {
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    void *workspace = malloc(matching_workspace(70, 90));
    for (int k = 0; k < 3; k++) {
        for (int place = 0; place < 70 * 90; place += 1 + 70 * 90 / 7) {
            float *cost = check_normal(70 * 90, 1, 1);
            int column[90];
            assert_true(matching(column, cost, 70, 90, workspace));
            cost[place] = bad[k];
            assert_false(matching(column, cost, 70, 90, workspace));
            assert_false(matching(column, cost, 90, 70, workspace));
            free(cost);
        }
    }
    free(workspace);
}

/* Sums of costs near the largest float do not overflow, and denormal differences count. */
static void huge_and_tiny_costs_are_ordered(void **state) {
    (void)state;
    const float huge[] = {3e38f, -3e38f, 3e38f, 3e38f, 3e38f, -3e38f}, tiny[] = {2e-45f, 8e-45f, 3e-45f, 4e-45f};
    int column[2];
    match(column, huge, 2, 3);
    assert_int_equal(column[0], 1);
    assert_int_equal(column[1], 2);
    match(column, tiny, 2, 2);
    assert_int_equal(column[0], 0);
    assert_int_equal(column[1], 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_matrices_equal_all_permutations),
        cmocka_unit_test(large_matrices_cost_what_scipy_pays),
        cmocka_unit_test(empty_matrices_have_no_pairs),
        cmocka_unit_test(costs_that_are_not_finite_are_refused),
        cmocka_unit_test(huge_and_tiny_costs_are_ordered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
