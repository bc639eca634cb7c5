/* libFuzzer: any bytes are either refused with a message or a file whose every tensor can be found and read. */
#include "core/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    SafeTensors st;
    char error[64] = "";
    if (!safetensors_parse(&st, bytes, size, "fuzz", error, sizeof error)) {
        if (!*error) abort();
        return 0;
    }
    size_t covered = 0;
    for (int i = 0; i < st.count; i++) {
        const SafeTensor *t = &st.tensors[i];
        if (safetensors_find(&st, t->name) != t || t->size > t->bytes) abort();
        covered += t->bytes;
        float *x = malloc(t->size * sizeof *x + 1);
        int64_t *n = malloc(t->size * sizeof *n + 1);
        if (safetensors_to_float(t, x, error, sizeof error) && safetensors_to_int64(t, n, error, sizeof error)) abort();
        free(x);
        free(n);
    }
    if (covered > size) abort();
    safetensors_metadata(&st, "config");
    safetensors_close(&st);
    return 0;
}
