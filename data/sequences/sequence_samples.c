#include "data/sequences/sequence_samples.h"

#include <stdlib.h>

#include "data/images/image.h"
#include "data/images/sheet.h"

bool sequences_write_sheet(const SequenceSet *set, const char *path, const uint8_t *tokens, int count, Error *error) {
    size_t bytes = (size_t)count * (size_t)set->height * (size_t)set->width * 3;
    if (set->channels == 3 || !tokens)
        return sheet_write(path, tokens, count, 1, set->height, set->width, NULL, NULL, error);
    uint8_t *rgb = malloc(bytes);
    if (!rgb) return refuse_memory(error, bytes, "a sheet of images");
    for (size_t i = 0; i < bytes; i++) rgb[i] = tokens[i / 3];
    bool ok = sheet_write(path, rgb, count, 1, set->height, set->width, NULL, NULL, error);
    free(rgb);
    return ok;
}

bool sequences_read_picture(const SequenceSet *set, const char *path, uint8_t *tokens, int *rows, Error *error) {
    Image image;
    TransformScratch scratch = {0};
    if (!image_read(&image, path, error)) return false;
    bool half = set->height % 2 == 0 && (int64_t)image.width * set->height == (int64_t)image.height * set->width * 2;
    *rows = half ? set->height / 2 : set->height;
    bool ok = sequences_from_pixels(set, tokens, *rows, image.pixels, image.height, image.width, &scratch, error);
    image_free(&image);
    transform_scratch_free(&scratch);
    return ok;
}
