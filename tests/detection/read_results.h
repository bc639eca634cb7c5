/* Reads files of results (detection/coco_results.h), which the programs only write. */
#ifndef VIT_TESTS_DETECTION_READ_RESULTS_H
#define VIT_TESTS_DETECTION_READ_RESULTS_H

#include <jansson.h>
#include <string.h>

#include "core/json_lists.h"
#include "data/images/pixels.h"
#include "detection/coco_results.h"

enum { RESULT_IMAGE, RESULT_CATEGORY, RESULT_BOX, RESULT_SCORE, RESULT_MASK, RESULT_FIELDS };

static const JsonField result_fields[] = {[RESULT_IMAGE] = {"image_id", JSON_INT64, false},
                                          [RESULT_CATEGORY] = {"category_id", JSON_INT64, false},
                                          [RESULT_BOX] = {"bbox", JSON_NUMBER4, false},
                                          [RESULT_SCORE] = {"score", JSON_NUMBER, false},
                                          [RESULT_MASK] = {"segmentation", JSON_ANY, true}};

static bool take_mask(CocoResults *results, const json_t *mask, Error *error) {
    Rle rle = {.count = 0};
    int side[2];
    const char *text;
    if (json_unpack((json_t *)mask, "{s[ii]ss}", "size", &side[0], &side[1], "counts", &text) || side[0] < 1 ||
        side[1] < 1 || side[0] > IMAGE_MAX_SIDE || side[1] > IMAGE_MAX_SIDE)
        return refuse(error, "segmentation: expected size and counts");
    bool ok = rle_parse(&rle, text, strlen(text), side[0], side[1], error);
    if (ok) coco_results_add_mask(results, &rle);
    rle_free(&rle);
    return ok;
}

static bool take_detection(void *state, const JsonValue *value, uint32_t present, Error *error) {
    const double *box = value[RESULT_BOX].numbers;
    coco_results_add(state, (CocoDetection){value[RESULT_IMAGE].integer, value[RESULT_CATEGORY].integer,
                                            {box[0], box[1], box[2], box[3]}, value[RESULT_SCORE].number});
    return !(present >> RESULT_MASK & 1) || take_mask(state, value[RESULT_MASK].any, error);
}

static const JsonList results_list = {NULL, result_fields, RESULT_FIELDS, take_detection};

/* Reads results from a file in memory; `piece` has the meaning it has in json_lists_parse.  After an error there is
 * nothing to free. */
static inline bool parse_results(CocoResults *results, const void *bytes, size_t size, size_t piece, Error *error) {
    *results = (CocoResults){.count = 0};
    bool ok = json_lists_parse(bytes, size, piece, &results_list, 1, results, error);
    if (!ok) coco_results_free(results);
    return ok;
}

static inline bool read_results(CocoResults *results, const char *path, Error *error) {
    *results = (CocoResults){.count = 0};
    bool ok = json_lists_read(path, &results_list, 1, results, error);
    if (!ok) coco_results_free(results);
    return ok;
}

#endif
