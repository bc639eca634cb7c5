/* libFuzzer target: the CIFAR record parser.  The first byte picks the layout (even: 10 classes, odd: 100), the rest
 * is the file.  Buffers are exactly as large as the contract says, so a byte too far is caught. */
#include <stdlib.h>
#include <string.h>

#include "data/sets/cifar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    int classes = data[0] % 2 ? 100 : 10;
    Error error;
    uint8_t *bytes = malloc(size - 1 ? size - 1 : 1);
    memcpy(bytes, data + 1, size - 1);
    size_t count = cifar_count(size - 1, classes, 0, &error);
    if (count) {
        uint8_t *pixels = malloc(count * CIFAR_PIXELS), *labels = malloc(count);
        if (cifar_parse(pixels, labels, bytes, count, classes, &error)) {
            for (size_t i = 0; i < count; i++) {
                if (labels[i] >= classes) abort();
            }
        } else if (!memchr(error.text, 0, sizeof error.text)) {
            abort();
        }
        free(pixels);
        free(labels);
    }
    free(bytes);
    return 0;
}
