/* libFuzzer target: every input must be rejected with a message, or be a file whose tensors can all be found and read.
 * Each input is tried unchanged, and again with its header length corrected, since random bytes seldom have a correct
 * one. */
#include "core/safetensors.h"

#include <stdlib.h>
#include <string.h>

static void try_file(const void *bytes, size_t size) {
    SafeTensors st;
    Error error = {.text = ""};
    if (!safetensors_parse(&st, bytes, size, "fuzz", &error)) {
        if (!*error.text) abort();
        return;
    }
    size_t covered = 0;
    for (int i = 0; i < st.count; i++) {
        const SafeTensor *t = &st.tensors[i];
        if (safetensors_find(&st, t->name) != t || t->size > t->bytes) abort();
        covered += t->bytes;
        float *x = malloc(t->size * sizeof *x + 1);
        int64_t *n = malloc(t->size * sizeof *n + 1);
        if (safetensors_to_float(t, x, &error) && safetensors_to_int64(t, n, &error)) abort();
        free(x);
        free(n);
    }
    if (covered > size) abort();
    safetensors_metadata(&st, "config");
    safetensors_close(&st);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    try_file(bytes, size);
    if (size < 8) return 0;
    char *copy = malloc(size);
    memcpy(copy, bytes, size);
    const char *last = memrchr(copy + 8, '}', size - 8);
    uint64_t length = last ? (uint64_t)(last + 1 - (copy + 8)) : size - 8;
    memcpy(copy, &length, 8);
    try_file(copy, size);
    free(copy);
    return 0;
}
