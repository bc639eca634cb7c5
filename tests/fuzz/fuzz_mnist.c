/* libFuzzer target: idx files of images and of labels. */
#include <stdlib.h>

#include "data/sets/mnist.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error error;
    size_t images = mnist_images(data, size, &error), labels = mnist_labels(data, size, &error);
    if (images && size != MNIST_IMAGES_HEADER + images * MNIST_SIDE * MNIST_SIDE) abort();
    if (labels && size != MNIST_LABELS_HEADER + labels) abort();
    for (size_t i = 0; i < labels; i++)
        if (data[MNIST_LABELS_HEADER + i] >= MNIST_CLASSES) abort();
    return 0;
}
