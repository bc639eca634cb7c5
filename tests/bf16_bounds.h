/* Bounds on the error of bfloat16 activations: 1.5 times the error of PyTorch's autocast against float64, which
 * tests/reference/bf16_bounds.py measured into tests/fixtures/bf16.csv.  tests/fixtures/bf16_beyond.csv lists the
 * tensors that may exceed this, each with its ratio and the reason.  A line for CUDA that the emulated kernels no
 * longer need fails the test, so that the list only shrinks.  Elsewhere an unneeded line is only reported, because CPUs
 * differ in their instructions and a GPU's sums are more accurate than the emulator's. */
#ifndef VIT_TESTS_BF16_BOUNDS_H
#define VIT_TESTS_BF16_BOUNDS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "tests/check.h"

/* Another order of summation, as on another machine, changes a ratio by a few percent: a line of the list counts as
 * needed while its ratio is above BF16_NEEDED. */
#define BF16_RATIO 1.5
#define BF16_NEEDED 1.4

enum { BF16_TEXT = 1 << 19 };

/* Reads a whole file into `text`. */
static inline void bf16_read(char text[BF16_TEXT], const char *path) {
    FILE *file = fopen(path, "r");
    size_t n = file ? fread(text, 1, BF16_TEXT, file) : 0;
    if (n == 0 || n == BF16_TEXT) {
        fprintf(stderr, "%s: cannot be read whole\n", path);
        abort();
    }
    fclose(file);
}

/* The number after `key` at the start of a line; NaN if no line begins with it. */
static inline double bf16_number(const char *text, const char *key) {
    char line[300];
    int n = snprintf(line, sizeof line, "\n%s,", key);
    const char *found = n < (int)sizeof line ? strstr(text, line) : NULL;
    return found ? strtod(found + n, NULL) : NAN;
}

/* Checks rms(got - want) / rms(want) of a tensor; path: the fixture, for example tests/fixtures/smca/type1.safetensors.
 * The bound is at most 0.9, also for a tensor that bf16.csv lacks, because with 1 zeros would pass. */
static inline int check_bf16(const char *path, const char *tensor, const float *got, const double *want, size_t n) {
    static const char folder[] = "tests/fixtures/";
    static char errors[BF16_TEXT], beyond[BF16_TEXT];
    char key[256], listed[sizeof key + 8];
    if (!errors[0]) {
        bf16_read(errors, "tests/fixtures/bf16.csv");
        bf16_read(beyond, "tests/fixtures/bf16_beyond.csv");
    }
    const char *fixture = strstr(path, folder) + sizeof folder - 1;
    snprintf(key, sizeof key, "%.*s,%s", (int)strcspn(fixture, "."), fixture, tensor);
    bool cuda = strncmp(kernels_device(), "CPU", 3) != 0, strict = strstr(kernels_device(), "emulated");
    snprintf(listed, sizeof listed, "%s,%s", cuda ? "cuda" : "cpu", key);
    double error = bf16_number(errors, key), ratio = bf16_number(beyond, listed);
    int ok = check_rms(tensor, got, want, n, fmin((isnan(ratio) ? BF16_RATIO : ratio) * error, 0.9));
    if (isnan(ratio) || relative_rms(got, want, n) > BF16_NEEDED * error) return ok;
    printf("  %s: within %g of PyTorch's error; %s\n", listed, BF16_NEEDED,
           strict ? "take its line out of bf16_beyond.csv  FAILED" : "not needed on this machine");
    return ok && !strict;
}

#endif
