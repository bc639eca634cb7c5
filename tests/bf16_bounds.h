/* What bfloat16 activations may cost a fixture's tensor: half as much again as they cost PyTorch's autocast, whose
 * distance from float64 tests/reference/bf16_bounds.py measured into tests/fixtures/bf16.csv. */
#ifndef VIT_TESTS_BF16_BOUNDS_H
#define VIT_TESTS_BF16_BOUNDS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"

/* The whole file as a text, which lives to the end. */
static inline const char *bf16_text(void) {
    static char text[1 << 19];
    if (text[0]) return text;
    FILE *file = fopen("tests/fixtures/bf16.csv", "r");
    size_t n = file ? fread(text, 1, sizeof text, file) : 0;
    if (n == 0 || n == sizeof text) {
        fprintf(stderr, "tests/fixtures/bf16.csv: cannot be read whole\n");
        abort();
    }
    fclose(file);
    return text;
}

/* The bound on rms(got - want) / rms(want) of a tensor; path: of the fixture, as in tests/fixtures/smca/type1.safetensors.
 * It is below 1, at which zeros would pass.  NaN, which nothing passes, if the file has no such line. */
static inline double bf16_bound(const char *path, const char *tensor) {
    static const char folder[] = "tests/fixtures/";
    char line[256];
    const char *fixture = strstr(path, folder), *suffix = strstr(path, ".safetensors");
    if (!fixture || !suffix) return NAN;
    fixture += sizeof folder - 1;
    int n = snprintf(line, sizeof line, "\n%.*s,%s,", (int)(suffix - fixture), fixture, tensor);
    const char *found = n < (int)sizeof line ? strstr(bf16_text(), line) : NULL;
    if (!found) return NAN;
    return fmin(1.5 * strtod(found + n, NULL), 0.9);
}

/* check_rms with that bound. */
static inline int check_bf16(const char *path, const char *tensor, const float *got, const double *want, size_t n) {
    return check_rms(tensor, got, want, n, bf16_bound(path, tensor));
}

#endif
