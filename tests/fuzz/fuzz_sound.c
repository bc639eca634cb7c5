/* libFuzzer target: WAV files.  Each input is tried unchanged, and again after the start of a valid header, since
 * random bytes seldom begin with one. */
#include <stdlib.h>
#include <string.h>

#include "data/sequences/sound.h"

static void try_file(const uint8_t *bytes, size_t size) {
    Error error;
    uint8_t *samples;
    size_t count;
    if (!sound_decode(&samples, &count, bytes, size, 12000, &error)) {
        if (!memchr(error.text, 0, sizeof error.text) || !*error.text) abort();
        return;
    }
    volatile uint8_t sum = 0;
    if (!count) abort();
    for (size_t i = 0; i < count; i++) sum = (uint8_t)(sum + samples[i]);
    free(samples);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint8_t head[] = "RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0";
    enum { HEAD = 20 };
    try_file(data, size);
    uint8_t *bytes = malloc(HEAD + size);
    memcpy(bytes, head, HEAD);
    memcpy(bytes + HEAD, data, size);
    try_file(bytes, HEAD + size);
    free(bytes);
    return 0;
}
