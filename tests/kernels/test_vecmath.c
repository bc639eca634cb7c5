/* The vector functions of the CPU backend against the C library in double: every 977th float of all 2^32, so that
 * denormals and NaN are among them, a dense sweep where the arguments of a network lie, and the special values. */
#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "kernels/cpu/vecmath.h"

enum { STRIDE = 977 };

typedef void (*Check)(const float x[TILE]);

/* Checks TILE floats at a time: every STRIDE-th bit pattern, and then steps from -limit to limit. */
static void sweep(Check check, float limit) {
    float x[TILE];
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += TILE * STRIDE) {
        for (int i = 0; i < TILE; i++) {
            uint32_t word = (uint32_t)(bits + (uint64_t)i * STRIDE);
            memcpy(x + i, &word, sizeof word);
        }
        check(x);
    }
    const int steps = 1 << 20;
    for (int i = 0; i < steps; i += TILE) {
        for (int j = 0; j < TILE; j++) x[j] = limit * (2.0f * (float)(i + j) / steps - 1);
        check(x);
    }
    const float special[16] = {0, -0.0f, INFINITY, -INFINITY, NAN, 1e-45f, -1e-45f, 1e-38f, 88.72f, 88.73f, -87.3f,
                                 -103.9f, -104.1f, 9999.9f, -10000.1f, 3.4e38f};
    for (int i = 0; i < 16; i += TILE) check(special + i);
}

static double worst;

/* Checks |got - want| in units in the last place; if want is beyond the range of float, got must be infinite. */
static void within_ulp(float x, float got, double want, double ulps) {
    if (isnan(want)) {
        assert_true(isnan(got));
        return;
    }
    float rounded = (float)want;
    if (isinf(rounded)) {
        assert_true(got == rounded);
        return;
    }
    double ulp = fabs(want) < 0x1p-126 ? 0x1p-149 : ldexp(1, ilogb(want) - 23), error = fabs(got - want) / ulp;
    if (error > worst) worst = error;
    if (!(error <= ulps)) fail_msg("at %a: got %a, want %a, %.2f ulp", (double)x, (double)got, want, error);
}

static void within(float x, float got, double want, double absolute) {
    if (isnan(want)) {
        assert_true(isnan(got));
        return;
    }
    double error = fabs(got - want);
    if (error > worst) worst = error;
    if (!(error <= absolute)) fail_msg("at %a: got %.9g, want %.9g", (double)x, (double)got, want);
}

static void check_exp(const float x[TILE]) {
    vec y = vec_exp(vec_load(x));
    for (int i = 0; i < TILE; i++) within_ulp(x[i], y[i], exp(x[i]), 1.5);
}

static void test_exp(void **state) {
    (void)state;
    worst = 0;
    sweep(check_exp, 110);
    printf("  exp within %.2f ulp\n", worst);
}

static void check_exp_floored(const float x[TILE]) {
    vec y = vec_exp_floored(vec_load(x));
    for (int i = 0; i < TILE; i++) {
        if (x[i] > 88) continue;
        if (x[i] < -87.7f) within(x[i], y[i], 0, 0);
        else if (x[i] < -87.3f) within(x[i], y[i], exp(x[i]), FLT_MIN);
        else within_ulp(x[i], y[i], exp(x[i]), 1.5);
    }
}

static void test_exp_floored(void **state) {
    (void)state;
    worst = 0;
    sweep(check_exp_floored, 110);
    printf("  floored exp within %.2f ulp\n", worst);
}

static void check_sincos(const float x[TILE]) {
    float s[TILE], c[TILE];
    sincos_tile(s, c, TILE, x, TILE, 1, TILE);
    for (int i = 0; i < TILE; i++) {
        within(x[i], s[i], sin(x[i]), 1.5e-7);
        within(x[i], c[i], cos(x[i]), 1.5e-7);
        if (fabsf(x[i]) < 1e-4f) assert_true(s[i] == x[i] || fabs(s[i] - sin(x[i])) < 1e-11); /* relative near zero */
    }
}

static void test_sincos(void **state) {
    (void)state;
    worst = 0;
    sweep(check_sincos, 10100);
    sweep(check_sincos, 30);
    printf("  sin, cos within %.2g\n", worst);
}

static void check_normal_distribution(const float x[TILE]) {
    vec density, cdf = vec_normal(vec_load(x), &density);
    for (int i = 0; i < TILE; i++) {
        double v = x[i];
        within(x[i], cdf[i], erfc(-v / sqrt(2)) / 2, 1e-7);
        within(x[i], density[i], exp(-v * v / 2) / sqrt(2 * acos(-1)), 1e-7);
    }
}

static void test_normal_distribution(void **state) {
    (void)state;
    worst = 0;
    sweep(check_normal_distribution, 14);
    printf("  normal distribution within %.2g\n", worst);
}

static void test_largest(void **state) {
    (void)state;
    for (int i = 0; i < TILE; i++) {
        float x[TILE];
        for (int j = 0; j < TILE; j++) x[j] = j == i ? -1 : -2 - (float)j;
        assert_true(vec_largest(vec_load(x)) == -1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),     cmocka_unit_test(test_exp_floored), cmocka_unit_test(test_sincos),
        cmocka_unit_test(test_normal_distribution), cmocka_unit_test(test_largest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
