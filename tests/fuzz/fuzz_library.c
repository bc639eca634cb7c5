/* libFuzzer target: a checkpoint is refused with a message or gives a model.  The model gives probabilities of a
 * picture and attention weights, or refuses these with a message.  Each input is tried unchanged, and again with its
 * header length corrected, since random bytes seldom have a correct one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "library/vit.h"

enum { HEIGHT = 9, WIDTH = 12, MOST_PIXELS = 64 * 64, MOST_CLASSES = 1000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
const char *__asan_default_options(void);

/* A larger allocation fails, which must give an error message. */
const char *__asan_default_options(void) { return "allocator_may_return_null=1:max_allocation_size_mb=256"; }

static void require(bool ok) {
    if (!ok) abort();
}

static void classify(vit_model *model) {
    static uint8_t pixels[HEIGHT * WIDTH * 3];
    vit_error error;
    size_t classes = (size_t)vit_classes(model), tokens = (size_t)vit_rows(model) * (size_t)vit_columns(model);
    float *p = malloc(classes * sizeof *p), *weights = malloc(tokens * sizeof *weights);
    for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (uint8_t)(i * 7);
    if (vit_classify(model, pixels, HEIGHT, WIDTH, p, &error)) {
        double sum = 0;
        for (size_t i = 0; i < classes; i++) sum += (double)p[i];
        require(fabs(sum - 1) < 1e-3 && vit_logits(model, p, &error));
        if (vit_blocks(model)) {
            int block = vit_blocks(model) - 1, head = vit_heads(model) - 1;
            require(vit_attention(model, block, head, (int)tokens - 1, weights, &error) || *error.text);
        }
    } else {
        require(*error.text && !vit_logits(model, p, NULL));
    }
    free(p);
    free(weights);
}

static void try_checkpoint(const uint8_t *data, size_t size) {
    vit_error error;
    vit_model *model = vit_open_memory(data, size, &error);
    require(!model == !!*error.text);
    if (model && vit_height(model) * vit_width(model) <= MOST_PIXELS && vit_classes(model) <= MOST_CLASSES)
        classify(model);
    vit_close(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    try_checkpoint(data, size);
    if (size < 8) return 0;
    const uint8_t *end = data + size;
    while (end > data + 8 && memcmp(end - 3, "]}}", 3)) end--; /* the last tensor's entry ends the header */
    uint8_t *copy = malloc(size);
    uint64_t length = (uint64_t)(end - (data + 8));
    memcpy(copy, data, size);
    memcpy(copy, &length, 8);
    try_checkpoint(copy, size);
    free(copy);
    return 0;
}
