#include "detection/coco_results.h"

#include <inttypes.h>
#include <stdlib.h>

#include "core/die.h"
#include "core/files.h"

void coco_results_add(CocoResults *results, CocoDetection detection) {
    results->detections = xgrow(results->detections, results->count + 1, &results->room, sizeof *results->detections,
                                "detections");
    results->detections[results->count++] = detection;
}

void coco_results_add_mask(CocoResults *results, const Rle *mask) { rle_texts_add(&results->masks, mask); }

void coco_results_free(CocoResults *results) {
    free(results->detections);
    rle_texts_free(&results->masks);
    *results = (CocoResults){.count = 0};
}

/* JSON needs the backslash among a mask's characters, '0' .. 'o', doubled. */
static void write_mask(FILE *file, const RleTexts *masks, size_t index) {
    RleText mask = rle_texts_at(masks, index);
    fprintf(file, ", \"segmentation\": {\"size\": [%d, %d], \"counts\": \"", mask.height, mask.width);
    for (const char *c = mask.text; *c; c++) {
        if (*c == '\\') putc('\\', file);
        putc(*c, file);
    }
    fputs("\"}", file);
}

static bool write_detections(FILE *file, const void *content) {
    const CocoResults *results = content;
    fputc('[', file);
    for (size_t i = 0; i < results->count && !ferror(file); i++) {
        const CocoDetection *d = &results->detections[i];
        fprintf(file,
                "%s{\"image_id\": %" PRId64 ", \"category_id\": %" PRId64 ", \"bbox\": [%.17g, %.17g, %.17g, %.17g], "
                "\"score\": %.17g",
                i ? ",\n" : "", d->image_id, d->category_id, d->box[0], d->box[1], d->box[2], d->box[3], d->score);
        if (results->masks.count) write_mask(file, &results->masks, i);
        putc('}', file);
    }
    return !ferror(file) && fputs("]\n", file) >= 0;
}

bool coco_results_write(const char *path, const CocoResults *results, Error *error) {
    return file_replace(path, write_detections, results, error);
}
