#include "data/images/picture.h"

#include "core/files.h"
#include "data/images/image.h"

static bool prepare(uint8_t *out, const Sample *sample, const Transform *t, TransformScratch *scratch, Error *error) {
    return transform_sample(scratch, out, sample, false, t, (TransformKey){0}, error);
}

bool picture_of_file(uint8_t *out, const char *path, const Transform *t, bool whole, TransformScratch *scratch,
                     Error *error) {
    if (whole) {
        Image image;
        if (!image_read(&image, path, error)) return false;
        image_resize(out, t->height, t->width, image.pixels, image.height, image.width);
        image_free(&image);
        return true;
    }
    Sample sample = {0};
    SampleBuffer *file = &scratch->bytes;
    if (!file_read_again(path, IMAGE_MAX_BYTES, &file->bytes, &file->room, &sample.size, error)) return false;
    sample.bytes = file->bytes;
    return prepare(out, &sample, t, scratch, error);
}

bool picture_of_pixels(uint8_t *out, const uint8_t *pixels, int height, int width, const Transform *t, bool whole,
                       TransformScratch *scratch, Error *error) {
    if (whole) {
        image_resize(out, t->height, t->width, pixels, height, width);
        return true;
    }
    Sample sample = {.bytes = pixels, .size = (size_t)height * (size_t)width * 3, .height = height, .width = width};
    return prepare(out, &sample, t, scratch, error);
}
