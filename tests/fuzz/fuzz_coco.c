/* libFuzzer target: an annotation file, optionally followed by a zero byte and a file of results.  Every input must
 * either be rejected with a message or give consistent tables; the size of the pieces in which it is parsed must not
 * matter; and two accepted files must be possible to evaluate. */
#include <stdlib.h>
#include <string.h>

#include "data/detection/coco.h"
#include "detection/coco_eval.h"
#include "tests/detection/read_results.h"

static void check_tables(const Coco *coco) {
    size_t next = 0;
    if (coco->image_count < 1) abort();
    for (int i = 0; i < coco->image_count; i++) {
        const CocoImage *image = &coco->images[i];
        if (i && image[-1].id >= image->id) abort();
        if (image->first != next || !*image->file_name || image->width < 1 || image->height < 1) abort();
        next += (size_t)image->count;
        float (*box)[4] = malloc((size_t)image->count * sizeof *box + 1);
        int *label = malloc((size_t)image->count * sizeof *label + 1), kept = coco_targets(coco, i, box, label, NULL);
        for (int k = 0; k < kept; k++) {
            if (!(box[k][0] >= 0 && box[k][1] >= 0 && box[k][0] < box[k][2] && box[k][1] < box[k][3])) abort();
            if (!(box[k][2] <= (float)image->width && box[k][3] <= (float)image->height)) abort();
            if (label[k] < 0 || label[k] >= coco_num_classes(coco)) abort();
        }
        free(box);
        free(label);
    }
    if (next != coco->annotation_count) abort();
    for (size_t i = 0; i < coco->annotation_count; i++) {
        const CocoAnnotation *a = &coco->annotations[i];
        if (coco->images[a->image].id != a->image_id || coco->categories[a->category].id != a->category_id) abort();
    }
}

static void evaluate(const Coco *coco, const uint8_t *bytes, size_t size) {
    Error error = {""}, again = {""};
    CocoResults results, pieces;
    bool ok = parse_results(&results, bytes, size, 0, &error);
    if (parse_results(&pieces, bytes, size, 3, &again) != ok || (!ok && !*error.text)) abort();
    if (!ok) return;
    double numbers[COCO_NUMBERS];
    size_t table = results.count * sizeof *results.detections;
    if (pieces.count != results.count || (table && memcmp(pieces.detections, results.detections, table) != 0)) abort();
    if (!coco_eval(numbers, NULL, coco, NULL, &results, NULL, &error) && !*error.text) abort();
    coco_results_free(&results);
    coco_results_free(&pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    Error error = {""}, again = {""};
    const uint8_t *zero = size ? memchr(bytes, 0, size) : NULL;
    size_t first = zero ? (size_t)(zero - bytes) : size;
    Coco coco, pieces;
    bool ok = coco_parse(&coco, bytes, first, 0, COCO_NO_MASKS, &error);
    if (coco_parse(&pieces, bytes, first, 1, COCO_NO_MASKS, &again) != ok) abort();
    if (!ok) {
        if (!*error.text || strchr(error.text, '\n')) abort();
        return 0;
    }
    if (pieces.annotation_count != coco.annotation_count || pieces.image_count != coco.image_count) abort();
    check_tables(&coco);
    if (zero) evaluate(&coco, zero + 1, size - first - 1);
    coco_close(&coco);
    coco_close(&pieces);
    return 0;
}
