/* libFuzzer target: a byte of height, a byte of width, and a mask's text, optionally followed by a zero byte and the
 * coordinates of a polygon as doubles.  Every text must either be rejected with a message or give a mask within its
 * picture on which all functions of masks agree.  Every polygon must give such a mask. */
#include <stdlib.h>
#include <string.h>

#include "data/masks/object_mask.h"
#include "data/masks/polygon.h"

static void check(bool holds) {
    if (!holds) abort();
}

static void check_same(const Rle *a, const Rle *b) {
    check(a->count == b->count && (!a->count || !memcmp(a->runs, b->runs, a->count * sizeof *a->runs)));
}

/* Only the first run may be empty, and together the runs cover the picture. */
static void check_canonical(const Rle *rle) {
    uint64_t sum = 0;
    for (size_t i = 0; i < rle->count; i++) {
        check(!i || rle->runs[i]);
        sum += rle->runs[i];
    }
    check(sum == (uint64_t)rle->height * (uint64_t)rle->width);
}

static void check_text(const Rle *rle) {
    Error error = {.text = ""};
    Rle again = {.count = 0};
    char *text = NULL;
    size_t room = 0, length = rle_text(&text, &room, rle);
    check(strlen(text) == length && rle_parse(&again, text, length, rle->height, rle->width, &error));
    check_same(rle, &again);
    rle_free(&again);
    free(text);
}

static void check_pixels(const Rle *rle) {
    size_t pixels = (size_t)rle->height * (size_t)rle->width;
    uint8_t *all = malloc(pixels), *columns = malloc(pixels);
    Rle again = {.count = 0}, same = {.count = 0};
    RleExtent extent = rle_extent(rle);
    uint32_t area = 0;
    rle_decode(all, rle);
    rle_decode_columns(columns, rle, 0, rle->width);
    for (int x = 0; x < rle->width; x++) {
        for (int y = 0; y < rle->height; y++) {
            bool one = all[y * rle->width + x];
            check(one == columns[x * rle->height + y]);
            check(!one || (x >= extent.box[0] && x < extent.box[2] && y >= extent.box[1] && y < extent.box[3]));
            area += one;
        }
    }
    check(area == extent.area);
    rle_encode(&again, all, rle->height, rle->width);
    check_canonical(&again);
    rle_union(&same, rle, rle);
    check_same(&again, &same);
    rle_intersection(&same, rle, &again);
    check_same(&again, &same);
    check(rle_common_area(rle, &again) == area);
    check(rle_iou(rle, &extent, &again, &extent, false) == (area > 0));
    rle_free(&again);
    rle_free(&same);
    free(all);
    free(columns);
}

static void check_target(const Rle *rle) {
    static const float box[4] = {1.5f, 0.25f, 9, 30};
    uint8_t cells[14 * 14];
    MaskScratch scratch = {.points = NULL};
    ObjectMask object = {.rle = rle, .scale = {-1, 2}, .shift = {20, -1}};
    object_mask_target(cells, 14, &object, box, &scratch);
    for (int i = 0; i < 14 * 14; i++) check(cells[i] <= 1);
    mask_scratch_free(&scratch);
}

static void check_polygon(const uint8_t *bytes, size_t size, int height, int width) {
    int points = (int)(size / (2 * sizeof(double)));
    double *xy = malloc(size + 1);
    Rle rle = {.count = 0};
    memcpy(xy, bytes, (size_t)points * 2 * sizeof *xy);
    polygon_rle(&rle, xy, points, height, width);
    check_canonical(&rle);
    check_text(&rle);
    check_pixels(&rle);
    rle_free(&rle);
    free(xy);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    Error error = {.text = ""};
    Rle rle = {.count = 0};
    if (size < 2) return 0;
    int height = bytes[0] + 1, width = bytes[1] + 1;
    const uint8_t *text = bytes + 2, *zero = memchr(text, 0, size - 2);
    size_t length = zero ? (size_t)(zero - text) : size - 2;
    if (rle_parse(&rle, (const char *)text, length, height, width, &error)) {
        check_text(&rle);
        check_pixels(&rle);
        check_target(&rle);
    } else {
        check(*error.text && !strchr(error.text, '\n'));
    }
    rle_free(&rle);
    if (zero) check_polygon(zero + 1, size - 3 - length, height, width);
    return 0;
}
