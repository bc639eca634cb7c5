#include "detection/coco_results.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/files.h"
#include "core/json_lists.h"

void coco_results_add(CocoResults *results, CocoDetection detection) {
    results->detections = xgrow(results->detections, results->count + 1, &results->room, sizeof *results->detections,
                                "detections");
    results->detections[results->count++] = detection;
}

void coco_results_free(CocoResults *results) {
    free(results->detections);
    *results = (CocoResults){.count = 0};
}

/* == Reading ====================================================================================================== */

enum { IMAGE, CATEGORY, BOX, SCORE, FIELDS };

static const JsonField fields[] = {[IMAGE] = {"image_id", JSON_INT64, false},
                                   [CATEGORY] = {"category_id", JSON_INT64, false},
                                   [BOX] = {"bbox", JSON_NUMBER4, false},
                                   [SCORE] = {"score", JSON_NUMBER, false}};

static bool take_detection(void *state, const JsonValue *value, uint32_t present, Error *error) {
    const double *box = value[BOX].numbers;
    (void)present;
    (void)error;
    coco_results_add(state, (CocoDetection){value[IMAGE].integer, value[CATEGORY].integer,
                                            {box[0], box[1], box[2], box[3]}, value[SCORE].number});
    return true;
}

static const JsonList list = {NULL, fields, FIELDS, take_detection};

bool coco_results_parse(CocoResults *results, const void *bytes, size_t size, size_t piece, Error *error) {
    *results = (CocoResults){.count = 0};
    return json_lists_parse(bytes, size, piece, &list, 1, results, error) || (coco_results_free(results), false);
}

bool coco_results_read(CocoResults *results, const char *path, Error *error) {
    *results = (CocoResults){.count = 0};
    return json_lists_read(path, &list, 1, results, error) || (coco_results_free(results), false);
}

/* == Writing ====================================================================================================== */

static bool write_detections(FILE *file, const void *content) {
    const CocoResults *results = content;
    fputc('[', file);
    for (size_t i = 0; i < results->count && !ferror(file); i++) {
        const CocoDetection *d = &results->detections[i];
        fprintf(file,
                "%s{\"image_id\": %" PRId64 ", \"category_id\": %" PRId64 ", \"bbox\": [%.17g, %.17g, %.17g, %.17g], "
                "\"score\": %.17g}",
                i ? ",\n" : "", d->image_id, d->category_id, d->box[0], d->box[1], d->box[2], d->box[3], d->score);
    }
    return !ferror(file) && fputs("]\n", file) >= 0;
}

bool coco_results_write(const char *path, const CocoResults *results, Error *error) {
    return file_replace(path, write_detections, results, error);
}
