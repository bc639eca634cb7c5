#include "data/sets/dataset.h"

#include <stdio.h>
#include <string.h>

#include "core/text.h"

bool dataset_read(const Dataset *dataset, size_t index, SampleBuffer *buffer, Sample *sample, Error *error) {
    if (dataset->read) return dataset->read(dataset, index, buffer, sample, error);
    *sample = (Sample){.size = (size_t)dataset->height * (size_t)dataset->width * 3, .height = dataset->height,
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

void dataset_key(const Dataset *dataset, size_t index, char *text, size_t size) {
    char name[DATASET_PATH + 512];
    if (dataset->key) {
        dataset->key(dataset, index, text, size);
        return;
    }
    dataset_name_image(dataset, index, name, sizeof name);
    snprintf(text, size, "%s", dataset_last_parts(name));
}

const char *dataset_last_parts(const char *path) {
    const char *last = strrchr(path, '/'), *from = last ? last : path;
    while (from > path && from[-1] != '/') from--;
    return from;
}

void dataset_of_photographs(Dataset *dataset, const char *path, const char *otherwise) {
    *dataset = (Dataset){.count = 0};
    text_name_path(dataset->name, sizeof dataset->name, path, otherwise);
    memcpy(dataset->mean, imagenet_mean, sizeof imagenet_mean);
    memcpy(dataset->std, imagenet_std, sizeof imagenet_std);
}

size_t dataset_limited(size_t count, size_t limit) { return limit && limit < count ? limit : count; }

void dataset_close(Dataset *dataset) {
    if (dataset->close) dataset->close(dataset);
    *dataset = (Dataset){.count = 0};
}
