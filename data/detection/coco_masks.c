#include "data/detection/coco_masks.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "data/images/image.h"
#include "data/masks/polygon.h"

void coco_masks_add(CocoMasks *m) {
    m->of = xgrow(m->of, m->count + 1, &m->room, sizeof *m->of, "masks");
    m->of[m->count++] = (CocoMask){.ring = m->ring_count, .number = m->number_count, .rle = -1};
}

static void add_rle(CocoMasks *m, CocoMask *mask, const Rle *rle) {
    m->rles = xgrow(m->rles, m->rle_count + 1, &m->rle_room, sizeof *m->rles, "run lengths");
    m->runs = xgrow(m->runs, m->run_count + rle->count + 1, &m->run_room, sizeof *m->runs, "run lengths");
    if (rle->count) memcpy(m->runs + m->run_count, rle->runs, rle->count * sizeof *m->runs); /* otherwise there are no
                                                                                              * runs */
    m->run_count += rle->count;
    mask->rle = (int)m->rle_count;
    m->rles[m->rle_count++] = (Rle){.height = rle->height, .width = rle->width, .count = rle->count};
}

void coco_masks_set(CocoMasks *m, const Rle *rle) { add_rle(m, &m->of[m->count - 1], rle); }

/* == From JSON ==================================================================================================== */

static bool add_ring(CocoMasks *m, CocoMask *mask, const json_t *ring, Error *error) {
    size_t size = json_array_size(ring), at = m->number_count;
    if (!json_is_array(ring)) return refuse(error, "polygon %d: expected a list of numbers", mask->rings);
    if (size % 2) return refuse(error, "polygon %d: %zu numbers, expected x and y of each corner", mask->rings, size);
    if (size < 6) return true;
    bool exact = m->kind == COCO_RLE;
    if (exact) m->exact = xgrow(m->exact, at + size, &m->number_room, sizeof *m->exact, "polygons");
    else m->points = xgrow(m->points, at + size, &m->number_room, sizeof *m->points, "polygons");
    for (size_t i = 0; i < size; i++) {
        const json_t *item = json_array_get(ring, i);
        if (!json_is_number(item)) return refuse(error, "polygon %d: expected a list of numbers", mask->rings);
        double x = fmin(fmax(json_number_value(item), -1e8), 1e8);
        if (exact) m->exact[at + i] = x;
        else m->points[at + i] = (float)x;
    }
    m->number_count += size;
    m->ring_points = xgrow(m->ring_points, m->ring_count + 1, &m->ring_room, sizeof *m->ring_points, "polygons");
    m->ring_points[m->ring_count++] = (int)(size / 2);
    mask->rings++;
    return true;
}

static bool read_size(const json_t *size, int side[2], Error *error) {
    bool ok = json_array_size(size) == 2;
    for (size_t i = 0; i < 2 && ok; i++) {
        const json_t *item = json_array_get(size, i);
        json_int_t value = json_integer_value(item); /* 0 if it is not an integer */
        ok = value >= 1 && value <= IMAGE_MAX_SIDE;
        side[i] = (int)value;
    }
    return ok || refuse(error, "\"size\": expected height and width, 1 to %d each", IMAGE_MAX_SIDE);
}

/* Reads a list of runs into m->spare[0]. */
static bool read_runs(CocoMasks *m, const json_t *counts, const int side[2], Error *error) {
    Rle *list = &m->spare[1];
    list->runs = xgrow(list->runs, json_array_size(counts), &list->room, sizeof *list->runs, "run lengths");
    for (size_t i = 0; i < json_array_size(counts); i++) {
        const json_t *item = json_array_get(counts, i);
        json_int_t run = json_integer_value(item);
        if (!json_is_integer(item) || run < 0 || run > UINT32_MAX)
            return refuse(error, "\"counts\"[%zu]: expected a whole number of pixels", i);
        list->runs[i] = (uint32_t)run;
    }
    return rle_set(&m->spare[0], list->runs, json_array_size(counts), side[0], side[1], error);
}

static bool read_rle(CocoMasks *m, const json_t *object, Error *error) {
    const json_t *counts = json_object_get(object, "counts");
    int side[2];
    if (!read_size(json_object_get(object, "size"), side, error)) return false;
    if (!json_is_array(counts) && !json_is_string(counts))
        return refuse(error, "\"counts\": expected a list of integers, or a text");
    bool ok = json_is_array(counts) ? read_runs(m, counts, side, error)
                                    : rle_parse(&m->spare[0], json_string_value(counts), json_string_length(counts),
                                                side[0], side[1], error);
    if (ok) coco_masks_set(m, &m->spare[0]);
    return ok;
}

bool coco_masks_read(CocoMasks *m, const json_t *segmentation, Error *error) {
    CocoMask *mask = &m->of[m->count - 1];
    if (json_is_object(segmentation)) return read_rle(m, segmentation, error);
    if (!json_is_array(segmentation)) return refuse(error, "neither polygons nor run lengths");
    for (size_t i = 0; i < json_array_size(segmentation); i++)
        if (!add_ring(m, mask, json_array_get(segmentation, i), error)) return false;
    m->shortened += (size_t)mask->rings < json_array_size(segmentation);
    return true;
}

/* == For use ====================================================================================================== */

bool coco_masks_fit(const CocoMasks *m, size_t i, int height, int width, Error *error) {
    const Rle *rle = m->of[i].rle < 0 ? NULL : &m->rles[m->of[i].rle];
    return !rle || (rle->height == height && rle->width == width) ||
           refuse(error, "run lengths of %d x %d pixels, but its image has %d x %d", rle->width, rle->height, width,
                  height);
}

void coco_masks_rasterise(CocoMasks *m, size_t i, int height, int width) {
    CocoMask *mask = &m->of[i];
    if (m->kind != COCO_RLE || !mask->rings) return;
    polygons_rle(&m->spare[0], m->exact + mask->number, m->ring_points + mask->ring, mask->rings, height, width,
                 m->spare + 1);
    mask->rings = 0;
    add_rle(m, mask, &m->spare[0]);
}

void coco_masks_finish(CocoMasks *m) {
    uint32_t *runs = m->runs;
    for (size_t i = 0; i < m->rle_count; i++) {
        m->rles[i].runs = runs;
        runs += m->rles[i].count;
    }
    for (int i = 0; i < 3; i++) rle_free(&m->spare[i]);
    free(m->exact);
    m->exact = NULL;
}

void coco_masks_free(CocoMasks *m) {
    for (int i = 0; i < 3; i++) rle_free(&m->spare[i]);
    free(m->of);
    free(m->points);
    free(m->exact);
    free(m->ring_points);
    free(m->rles);
    free(m->runs);
    *m = (CocoMasks){.kind = COCO_NO_MASKS};
}
