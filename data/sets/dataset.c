#include "data/sets/dataset.h"

#include <stdio.h>

bool dataset_read(const Dataset *dataset, size_t index, SampleBuffer *buffer, Sample *sample, Error *error) {
    if (dataset->read) return dataset->read(dataset, index, buffer, sample, error);
    *sample = (Sample){.size = (size_t)dataset->height * (size_t)dataset->width * 3,
                       .height = dataset->height,
                       .width = dataset->width};
    if (!sample_buffer_grow(buffer, sample->size)) return refuse_memory(error, sample->size, "an image");
    dataset->get(dataset, index, buffer->bytes, &sample->label);
    sample->bytes = buffer->bytes;
    return true;
}

void dataset_name_image(const Dataset *dataset, size_t index, char *text, size_t size) {
    if (dataset->describe)
        dataset->describe(dataset, index, text, size);
    else
        snprintf(text, size, "image %zu of %s", index, dataset->name);
}

void dataset_close(Dataset *dataset) {
    if (dataset->close) dataset->close(dataset);
    *dataset = (Dataset){.count = 0};
}
