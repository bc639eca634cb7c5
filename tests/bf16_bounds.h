/* The error that bfloat16 activations may cause in a fixture's tensor: half as much again as they cost PyTorch's
 * autocast, whose distance from float64 tests/reference/bf16_bounds.py measured into tests/fixtures/bf16.csv.  What
 * costs more here is listed in tests/fixtures/bf16_beyond.csv, with the ratio it may have and the reason; a line for CUDA
 * that the emulated kernels no longer need makes the test fail, so that the list only shrinks.  On CPUs a line may be
 * needed by one set of instructions and not by another, and a GPU's sums are better than the emulator's: there it is
 * only told. */
#ifndef VIT_TESTS_BF16_BOUNDS_H
#define VIT_TESTS_BF16_BOUNDS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "tests/check.h"

/* Every sum in another order, as on another machine, moves a ratio by a few parts in a hundred: a line of the list is
 * needed as long as the ratio is above the second. */
#define BF16_RATIO 1.5
#define BF16_NEEDED 1.4

enum { BF16_TEXT = 1 << 19 };

/* A file's text, whole. */
static inline void bf16_read(char text[BF16_TEXT], const char *path) {
    FILE *file = fopen(path, "r");
    size_t n = file ? fread(text, 1, BF16_TEXT, file) : 0;
    if (n == 0 || n == BF16_TEXT) {
        fprintf(stderr, "%s: cannot be read whole\n", path);
        abort();
    }
    fclose(file);
}

/* The number behind `key` at the start of a line; NaN if there is no such line. */
static inline double bf16_number(const char *text, const char *key) {
    char line[300];
    int n = snprintf(line, sizeof line, "\n%s,", key);
    const char *found = n < (int)sizeof line ? strstr(text, line) : NULL;
    return found ? strtod(found + n, NULL) : NAN;
}

/* Checks rms(got - want) / rms(want) of a tensor; path: of the fixture, as in tests/fixtures/smca/type1.safetensors.
 * The bound is 0.9 at most, also of a tensor without a line: at 1 zeros would pass. */
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
