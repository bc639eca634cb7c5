/* libFuzzer target: an annotation file, optionally followed by a zero byte and a file of results.  Every input must
 * either be rejected with a message or give consistent tables; the size of the pieces in which it is parsed must not
 * matter; and it must be possible to evaluate two accepted files.  The annotations are read without segmentations, with
 * polygons and with run lengths: a file that is accepted with segmentations must be accepted without them, and its
 * masks must give targets of a mask head. */
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

/* Checks that masks have the size of their pictures and give targets, which would take too long for large pictures. */
static void check_masks(const Coco *coco) {
    enum { SIDE = 7 };
    uint8_t cells[SIDE * SIDE];
    MaskScratch scratch = {.points = NULL};
    bool polygons = coco->masks.kind == COCO_POLYGONS;
    if (!coco->masks.kind) return;
    for (size_t i = 0; i < coco->annotation_count; i++) {
        const CocoImage *image = &coco->images[coco->annotations[i].image];
        const Rle *rle = coco_annotation_mask(coco, i);
        if (rle && (rle->height != image->height || rle->width != image->width)) abort();
        if (rle && rle_extent(rle).area > (uint64_t)rle->height * (uint64_t)rle->width) abort();
        if (!polygons) continue;
        ObjectMask object = coco_object_mask(coco, i);
        const float box[4] = {(float)image->width / 4, 0, (float)image->width, (float)image->height / 2};
        for (int k = 0, point = 0; k < object.rings; point += object.ring_points[k++])
            for (int n = 2 * point; n < 2 * (point + object.ring_points[k]); n++)
                if (!(object.points[n] >= -1e8f && object.points[n] <= 1e8f)) abort();
        if ((object.rings || object.rle) && image->width < 1000 && image->height < 1000)
            object_mask_target(cells, SIDE, &object, box, &scratch);
    }
    mask_scratch_free(&scratch);
}

static bool read_as(Coco *coco, const uint8_t *bytes, size_t size, CocoMaskKind kind) {
    Error error = {.text = ""}, again = {.text = ""};
    Coco pieces;
    bool ok = coco_parse(coco, bytes, size, 0, kind, &error);
    if (coco_parse(&pieces, bytes, size, 1, kind, &again) != ok) abort();
    if (!ok) {
        if (!*error.text || strchr(error.text, '\n')) abort();
        return false;
    }
    if (pieces.annotation_count != coco->annotation_count || pieces.image_count != coco->image_count) abort();
    if (pieces.masks.number_count != coco->masks.number_count) abort();
    if (pieces.masks.run_count != coco->masks.run_count) abort();
    check_tables(coco);
    check_masks(coco);
    coco_close(&pieces);
    return true;
}

static void evaluate(const Coco *coco, const uint8_t *bytes, size_t size) {
    Error error = {.text = ""}, again = {.text = ""};
    CocoResults results, pieces;
    bool ok = parse_results(&results, bytes, size, 0, &error);
    if (parse_results(&pieces, bytes, size, 3, &again) != ok || (!ok && !*error.text)) abort();
    if (!ok) return;
    double numbers[COCO_NUMBERS];
    size_t table = results.count * sizeof *results.detections;
    if (pieces.count != results.count || (table && memcmp(pieces.detections, results.detections, table) != 0)) abort();
    if (!coco_eval(numbers, NULL, COCO_EVAL_BOXES, coco, &results, NULL, &error) && !*error.text) abort();
    coco_results_free(&results);
    coco_results_free(&pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    const uint8_t *zero = size ? memchr(bytes, 0, size) : NULL;
    size_t first = zero ? (size_t)(zero - bytes) : size;
    Coco coco, polygons, runs;
    bool ok = read_as(&coco, bytes, first, COCO_NO_MASKS), masks = read_as(&polygons, bytes, first, COCO_POLYGONS);
    if (read_as(&runs, bytes, first, COCO_RLE) != masks || (masks && !ok)) abort();
    if (ok && zero) evaluate(&coco, zero + 1, size - first - 1);
    if (masks) {
        coco_close(&polygons);
        coco_close(&runs);
    }
    if (ok) coco_close(&coco);
    return 0;
}
