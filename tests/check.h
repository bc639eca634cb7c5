/* Helpers for numerical tests: random inputs from a printed seed, outputs filled with NaN, and a comparison whose
 * tolerance is relative to the tensor's root mean square.  A comparison prints one line with the property, the worst
 * element, and its error as a share of the tolerance. */
#ifndef VIT_TESTS_CHECK_H
#define VIT_TESTS_CHECK_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/rng.h"

/* The seed of this run: VIT_TEST_SEED, or one from the clock.  The first call prints it. */
static inline uint64_t check_seed(void) {
    static uint64_t seed;
    if (!seed) {
        const char *replay = getenv("VIT_TEST_SEED");
        seed = replay ? strtoull(replay, NULL, 16) : (uint64_t)time(NULL) * 0x9E3779B97F4A7C15u >> 32;
        if (!seed) seed = 1;
        printf("VIT_TEST_SEED=%llx replays this run\n", (unsigned long long)seed);
    }
    return seed;
}

/* n standard normal numbers times `scale`; `stream` distinguishes the tensors of one test. */
static inline float *check_normal(size_t n, float scale, uint32_t stream) {
    float *x = malloc((n ? n : 1) * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = scale * rng_normal(check_seed(), RNG_TEST, stream, 0, i);
    return x;
}

/* n random bytes; `stream` distinguishes the arrays of one test. */
static inline uint8_t *check_bytes(size_t n, uint32_t stream) {
    uint8_t *bytes = malloc(n);
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)rng_bits(check_seed(), RNG_TEST, stream, 0, i);
    return bytes;
}

/* Fills an output with NaN, so that an element that is not written makes the test fail. */
static inline float *check_poison(size_t n) {
    float *x = malloc((n ? n : 1) * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = NAN;
    return x;
}

/* Checks |got - want| <= tolerance * rms(want) + step * |want| for every element.  NaN fails, and so does an all-zero
 * `want`.  step: half the relative spacing of the type the result is stored in, where that is coarser than the
 * tolerance.  Returns 1 if the check holds. */
static inline int check_close_step(const char *what, const float *got, const double *want, size_t n, double tolerance,
                                   double step) {
    double squares = 0, worst = -1;
    size_t at = 0;
    for (size_t i = 0; i < n; i++) squares += want[i] * want[i];
    double rms = sqrt(squares / (double)(n ? n : 1));
    for (size_t i = 0; i < n; i++) {
        double beyond = fabs((double)got[i] - want[i]) - step * fabs(want[i]); /* beyond the last rounding */
        double used = (beyond < 0 ? 0 : beyond) / (tolerance * rms);
        if (!(used <= worst)) {
            worst = used;
            at = i;
            if (isnan(used)) break;
        }
    }
    int ok = rms > 0 && worst <= 1;
    printf("  %-52s worst [%zu] got %-12.6g want %-12.6g %.2f of allowed  %s\n", what, at, (double)got[at], want[at],
           worst, ok ? "ok" : "FAILED");
    return ok;
}

static inline int check_close(const char *what, const float *got, const double *want, size_t n, double tolerance) {
    return check_close_step(what, got, want, n, tolerance, 0);
}

/* Checks sums whose terms may cancel: |got - want| <= tolerance * (size[i] + rms(size)), where size[i] is the sum of
 * the absolute values of element i's terms. */
static inline int check_sums(const char *what, const float *got, const double *want, const double *size, size_t n,
                             double tolerance) {
    double squares = 0, worst = -1;
    size_t at = 0;
    for (size_t i = 0; i < n; i++) squares += size[i] * size[i];
    for (size_t i = 0; i < n && !isnan(worst); i++) {
        double used = fabs((double)got[i] - want[i]) / (tolerance * (size[i] + sqrt(squares / (double)n)));
        if (!(used <= worst)) {
            worst = used;
            at = i;
        }
    }
    int ok = squares > 0 && worst <= 1;
    printf("  %-52s worst [%zu] got %-12.6g want %-12.6g %.2f of allowed  %s\n", what, at, (double)got[at], want[at],
           worst, ok ? "ok" : "FAILED");
    return ok;
}

/* rms(got - want) / rms(want) */
static inline double relative_rms(const float *got, const double *want, size_t n) {
    double error = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    return sqrt(error / size);
}

/* Checks rms(got - want) <= tolerance * rms(want). */
static inline int check_rms(const char *what, const float *got, const double *want, size_t n, double tolerance) {
    double relative = relative_rms(got, want, n);
    int ok = relative <= tolerance;
    printf("  %-52s root mean square of the error %.2g of its own, %.2f of allowed  %s\n", what, relative,
           relative / tolerance, ok ? "ok" : "FAILED");
    return ok;
}

static inline int check_close_float(const char *what, const float *got, const float *want, size_t n, double tolerance) {
    double *wide = calloc(n ? n : 1, sizeof *wide);
    for (size_t i = 0; i < n; i++) wide[i] = want[i];
    int ok = check_close(what, got, wide, n, tolerance);
    free(wide);
    return ok;
}

#endif
