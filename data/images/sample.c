#include "data/images/sample.h"

#include <stdlib.h>

const float imagenet_mean[3] = {0.485f, 0.456f, 0.406f}, imagenet_std[3] = {0.229f, 0.224f, 0.225f};

bool sample_buffer_grow(SampleBuffer *buffer, size_t room) {
    if (room <= buffer->room) return true;
    free(buffer->bytes);
    buffer->bytes = malloc(room);
    buffer->room = buffer->bytes ? room : 0;
    return buffer->bytes != NULL;
}
