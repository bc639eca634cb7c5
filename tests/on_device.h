/* Tensors of a test on the device of any backend.  A test frees them at its end by one call of release_all.  An upload
 * also rounds the host's copy to the device's type, so that a reference in double starts from the same numbers.  The
 * tolerance of float results is 1e-5; with bfloat16, one rounding of the result and those within a kernel are added. */
#ifndef VIT_TESTS_ON_DEVICE_H
#define VIT_TESTS_ON_DEVICE_H

#include <stdbool.h>

#include "kernels/kernels.h"
#include "tests/check.h"

/* Rounding to bfloat16, which has eight binary digits, moves a number by at most 1/256 of it. */
#define REAL_STEP (sizeof(real) == 4 ? 0 : 1.0 / 256)

/* The error that a term of a sum may have, relative to its size, after n roundings to the type of activations. */
static inline double roundings(int n) { return 1e-5 + n * REAL_STEP; }

/* The size of a test: `full`, or less if that would take minutes, because kernels are emulated or run under a tool such
 * as compute-sanitizer (VIT_TEST_REDUCED=1).  A test that runs reduced prints that. */
static inline int full_or_reduced(const char *what, int full, int reduced) {
    if (!getenv("VIT_TEST_REDUCED") && !strstr(kernels_device(), "emulated")) return full;
    printf("  reduced: %s %d instead of %d\n", what, reduced, full);
    return reduced;
}

/* Rounds x to the type of activations on the device. */
static inline float *rounded_real(float *x, size_t n) {
    real *d = (real *)device_malloc(n * sizeof *d, "test");
    real_upload(d, x, n);
    real_download(x, d, n);
    device_free(d);
    return x;
}

typedef struct {
    void *p;
    bool device;
} Kept;

static Kept kept[1024];
static int kept_count;

static inline void *keep(void *p, bool device) {
    if (kept_count == 1024) abort();
    kept[kept_count++] = (Kept){p, device};
    return p;
}

static inline void release_all(void) {
    while (kept_count) {
        Kept k = kept[--kept_count];
        if (k.device) device_free(k.p);
        else free(k.p);
    }
}

/* Host memory: normal numbers, from a new stream in each call, and zeroed doubles for a reference. */
static inline float *normals(size_t n, float scale) {
    static uint32_t stream;
    return keep(check_normal(n, scale, ++stream), false);
}

static inline double *zeros(size_t n) { return keep(calloc(n ? n : 1, sizeof(double)), false); }

static inline real *upload_real(float *x, size_t n) {
    real *d = keep(device_malloc(n * sizeof *d, "test"), true);
    real_upload(d, x, n);
    real_download(x, d, n);
    return d;
}

static inline float *upload(const float *x, size_t n) {
    float *d = keep(device_malloc(n * sizeof *d, "test"), true);
    device_upload(d, x, n * sizeof *d);
    return d;
}

static inline real *poisoned_real(size_t n) { return upload_real(keep(check_poison(n), false), n); }
static inline float *poisoned(size_t n) { return upload(keep(check_poison(n), false), n); }

static inline float *download_real(const real *d, size_t n) {
    float *x = keep(malloc((n ? n : 1) * sizeof *x), false);
    device_synchronize();
    real_download(x, d, n);
    return x;
}

static inline float *download(const float *d, size_t n) {
    float *x = keep(malloc((n ? n : 1) * sizeof *x), false);
    device_synchronize();
    device_download(x, d, n * sizeof *x);
    return x;
}

/* Compares got [n] on the device with want: the arithmetic is in float, and only the result is rounded. */
static inline int close_real(const char *what, const real *got, const double *want, size_t n) {
    return check_close_step(what, download_real(got, n), want, n, 1e-5, REAL_STEP);
}

/* Compares sums where a factor of every term is rounded too, such as the weights before they are multiplied with v, or
 * where want is the result of another kernel, which is rounded like this one.  The tolerance is five roundings, because
 * their errors are relative to a row's terms, which may be several times the tensor's root mean square. */
static inline int close_rounded(const char *what, const real *got, const double *want, size_t n) {
    return check_close_step(what, download_real(got, n), want, n, roundings(5), REAL_STEP);
}

/* The error where float factors are multiplied with activations: a GPU represents such a factor as the sum of two
 * bfloat16 numbers, and the error of this sum is again relative to a row's terms. */
static inline double halves(void) { return 1e-5 + 5 * REAL_STEP * REAL_STEP; }
static inline int close_halves(const char *what, const real *got, const double *want, size_t n) {
    return check_close_step(what, download_real(got, n), want, n, halves(), REAL_STEP);
}

static inline int close_float(const char *what, const float *got, const double *want, size_t n) {
    return check_close(what, download(got, n), want, n, 1e-5);
}

/* Compares logarithms of sums of exponentials.  Even if one is near zero, its error is that of scores of order one. */
static inline int close_logarithms(const char *what, const float *got, const double *want, size_t n) {
    double *size = malloc(n * sizeof *size);
    for (size_t i = 0; i < n; i++) size[i] = 1 + fabs(want[i]);
    int ok = check_sums(what, download(got, n), want, size, n, 0.5e-5);
    free(size);
    return ok;
}

/* Compares float sums of rounded terms. */
static inline int close_float_rounded(const char *what, const float *got, const double *want, size_t n) {
    return check_close(what, download(got, n), want, n, roundings(5));
}

/* Adds a term to a sum, and its absolute value to the size that rounding errors are relative to. */
static inline void add_term(double *sum, double *size, double term) {
    *sum += term;
    *size += fabs(term);
}

static inline double root_mean_square(const double *x, size_t n) {
    double squares = 0;
    for (size_t i = 0; i < n; i++) squares += x[i] * x[i];
    return sqrt(squares / (double)n);
}

/* Compares with a tolerance relative to the tensor's root mean square, and to `size`, the sums of the absolute values
 * of the terms, for sums whose terms cancel. */
static inline int close_own(const char *what, const float *got, const double *want, const double *size, size_t n) {
    double rounding = sizeof(real) == 4 ? ldexp(1, -23) : REAL_STEP;
    double cancelled = rounding * root_mean_square(size, n) / root_mean_square(want, n);
    return check_rms(what, got, want, n, roundings(1) + cancelled);
}

/* Compares each element relative to the size of its terms, and the tensor relative to its own size unless all of it may
 * cancel. */
static inline int close_sums_rounded(const char *what, const float *got, const double *want, const double *size,
                                     size_t n, bool all_may_cancel, int rounded) {
    int ok = check_sums(what, got, want, size, n, roundings(rounded));
    return all_may_cancel ? ok : close_own(what, got, want, size, n) && ok;
}

/* Two roundings: of a factor of every term, and of the sum. */
static inline int close_sums(const char *what, const float *got, const double *want, const double *size, size_t n,
                             bool all_may_cancel) {
    return close_sums_rounded(what, got, want, size, n, all_may_cancel, 2);
}

#endif
