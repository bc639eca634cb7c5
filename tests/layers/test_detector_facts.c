/* A detector's report shows each picture with its own boxes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "layers/detection/detector.h"

enum { IMAGES = 9, SHOWN = 8, SIDE = 64, CLASSES = 10 };

typedef struct {
    char *picture[SHOWN], *caption[SHOWN];
} Report;

static char *copy_of(const json_t *picture, const char *key) {
    return xstrdup(json_string_value(json_object_get(picture, key)));
}

/* The pictures and captions of a report after an evaluation with these results. */
static Report report_of(DetectionTask task, const CocoResults *found) {
    static DetectionViewSettings view = {.draw_score = 0.5f};
    double ap[CLASSES] = {0};
    Report report;
    size_t i;
    json_t *section, *picture;
    Facts facts = {0};
    Detector *d = calloc(1, sizeof *d);
    d->view = &view;
    d->task = task;
    d->category_ap = ap;
    detection_set_scenes(&d->val, task, false, 1, SIDE, IMAGES);
    detector_facts(d, &facts, found);
    json_array_foreach(json_object_get(facts.all, "sections"), i, section) {
        const json_t *pictures = json_object_get(section, "pictures");
        if (!pictures) continue;
        assert_int_equal(json_array_size(pictures), SHOWN);
        for (size_t k = 0; k < SHOWN; k++) {
            picture = json_array_get(pictures, k);
            report.picture[k] = copy_of(picture, "data");
            report.caption[k] = copy_of(picture, "caption");
        }
    }
    facts_free(&facts);
    detection_set_close(&d->val);
    free(d);
    return report;
}

static void report_free(Report *report) {
    for (int i = 0; i < SHOWN; i++) free(report->picture[i]);
    for (int i = 0; i < SHOWN; i++) free(report->caption[i]);
}

static void is_drawn_into_its_picture(DetectionTask task) {
    CocoResults found = {0}, weak = {0};
    Rle mask = {0};
    uint8_t pixels[SIDE * SIDE] = {0};
    DetectionSet set = {0};
    memset(pixels + 20 * SIDE, 1, 20 * SIDE);
    rle_encode(&mask, pixels, SIDE, SIDE);
    detection_set_scenes(&set, task, false, 1, SIDE, IMAGES);
    coco_results_add(&found, (CocoDetection){set.coco.images[4].id, set.coco.categories[0].id, {10, 20, 30, 20}, 0.9});
    if (task == DETECTION_MASKS) coco_results_add_mask(&found, &mask);
    coco_results_add(&weak, (CocoDetection){set.coco.images[4].id, set.coco.categories[0].id, {10, 20, 30, 20}, 0.4});
    if (task == DETECTION_MASKS) coco_results_add_mask(&weak, &mask);
    Report nothing = report_of(task, &(CocoResults){0}), below = report_of(task, &weak), one = report_of(task, &found);
    for (int i = 0; i < SHOWN; i++) {
        char index[32];
        int image = i * IMAGES / SHOWN;
        snprintf(index, sizeof index, "image %d: ", image);
        assert_memory_equal(one.caption[i], index, strlen(index));
        assert_int_equal(strcmp(one.picture[i], nothing.picture[i]) != 0, image == 4);
        assert_int_equal(strcmp(below.picture[i], nothing.picture[i]), 0);
    }
    report_free(&nothing);
    report_free(&below);
    report_free(&one);
    coco_results_free(&found);
    coco_results_free(&weak);
    rle_free(&mask);
    detection_set_close(&set);
}

static void boxes_are_drawn_into_their_picture(void **state) {
    (void)state;
    is_drawn_into_its_picture(DETECTION_BOXES);
}

static void masks_are_drawn_into_their_picture(void **state) {
    (void)state;
    is_drawn_into_its_picture(DETECTION_MASKS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boxes_are_drawn_into_their_picture),
        cmocka_unit_test(masks_are_drawn_into_their_picture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
