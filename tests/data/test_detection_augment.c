/* DETR's resizing of images and boxes against PyTorch's floats, bit for bit (tests/fixtures/detection, made by
 * tests/reference/make_detection_augment_fixtures.py), the distribution of random transforms, and the order of an
 * epoch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/detection/detection_augment.h"
#include "data/detection/size_buckets.h"
#include "tests/check.h"
#include "tests/ranges.h"

/* The settings for COCO: sides of 480, 512, ... 800, at most 1333; 400, 500, 600 before a crop; crops of 384 to 600. */
static const DetectionAugment coco_augment = {.flip = true,
                                              .crop = true,
                                              .scale = {480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800},
                                              .scales = 11,
                                              .max_size = 1333,
                                              .crop_scale = {400, 500, 600},
                                              .crop_scales = 3,
                                              .crop_min = 384,
                                              .crop_max = 600};

/* Transforms the boxes of a picture as the loader does; the result is cx, cy, w, h. */
static int moved_boxes(float (*box)[4], int *label, int count, const DetectionDraw *draw) {
    int kept = detection_corners(box, label, NULL, count, draw);
    detection_relative(box, kept, draw);
    return kept;
}

/* == Sizes and boxes ============================================================================================== */

static void expect_sizes(const char *path, DetectionRule rule) {
    FILE *file = fopen(path, "r");
    int w, h, scale, most, want_w, want_h, cases = 0;
    assert_non_null(file);
    for (; fscanf(file, "%d %d %d %d %d %d", &w, &h, &scale, &most, &want_w, &want_h) == 6; cases++) {
        DetectionDraw draw = detection_resize(rule, w, h, scale, most);
        if (draw.width != want_w || draw.height != want_h) {
            fail_msg("%d x %d to %d, %d: %d x %d, expected %d x %d", w, h, scale, most, draw.width, draw.height, want_w,
                     want_h);
        }
        assert_int_equal(draw.steps, 1);
        assert_int_equal(draw.step[0].width, want_w);
        assert_int_equal(draw.step[0].crop_height, want_h);
    }
    fclose(file);
    assert_true(cases > 350);
}

static void sizes_are_pythons(void **state) {
    (void)state;
    expect_sizes("tests/fixtures/detection/resized.txt", DETECTION_DETR);
    expect_sizes("tests/fixtures/detection/rescaled.txt", DETECTION_MMDETECTION);
    DetectionDraw draw = detection_resize(DETECTION_MMDETECTION, 640, 480, 800, 1333); /* DETR: 1066 x 800 */
    assert_true(draw.width == 1067 && draw.height == 800);
}

static void thin_pictures_keep_a_side(void **state) {
    (void)state;
    DetectionDraw draw = detection_resize(DETECTION_DETR, 32768, 5, 800, 1333);
    assert_int_equal(draw.height, 1);
    assert_in_range(draw.width, 1, 6554);
    draw = detection_resize(DETECTION_MMDETECTION, 32768, 5, 800, 1333);
    assert_true(draw.height == 1 && draw.width == 1333);
}

static void boxes_are_pytorchs(void **state) {
    (void)state;
    FILE *file = fopen("tests/fixtures/detection/moved_boxes.txt", "r");
    DetectionDraw draw;
    int mirror, cases = 0, lost = 0, crops = 0;
    assert_non_null(file);
    while (fscanf(file, "%d %d %d %d", &draw.from_width, &draw.from_height, &mirror, &draw.steps) == 4) {
        float box[8][4], want[8][4];
        int count, kept = 0, label[8], want_label[8];
        draw.mirror = mirror;
        for (int i = 0; i < draw.steps; i++) {
            DetectionStep *s = &draw.step[i];
            assert_int_equal(fscanf(file, "%d %d %d %d %d %d", &s->width, &s->height, &s->left, &s->top, &s->crop_width,
                                    &s->crop_height), 6);
            draw.width = s->crop_width;
            draw.height = s->crop_height;
        }
        assert_int_equal(fscanf(file, "%d", &count), 1);
        for (int i = 0; i < count; i++) {
            int stays;
            label[i] = 10 + i;
            for (int k = 0; k < 4; k++) assert_int_equal(fscanf(file, "%a", &box[i][k]), 1);
            assert_int_equal(fscanf(file, "%d", &stays), 1);
            for (int k = 0; k < 4 * stays; k++) assert_int_equal(fscanf(file, "%a", &want[kept][k]), 1);
            if (stays) want_label[kept++] = label[i];
        }
        assert_int_equal(moved_boxes(box, label, count, &draw), kept);
        assert_memory_equal(box, want, (size_t)kept * sizeof *want);
        assert_memory_equal(label, want_label, (size_t)kept * sizeof *label);
        cases++;
        lost += count - kept;
        crops += draw.steps == 2;
    }
    fclose(file);
    printf("  %d cases, %d with a crop, %d boxes lost\n", cases, crops, lost);
    assert_true(cases == 30 && crops > 5 && lost > 5);
}

/* A picture in which one pixel is bright: the pixel and its box are transformed alike. */
static void boxes_follow_pixels(void **state) {
    (void)state;
    float box[3][4] = {{3, 2, 4, 3}, {0, 0, 2, 1}, {6, 0, 8, 4}};
    int label[3] = {5, 6, 7};
    /* 8 x 4: mirrored, scaled by 2, cropped to columns 6..13 and rows 2..7, scaled by 0.5 */
    DetectionDraw draw = {.from_width = 8, .from_height = 4, .mirror = true, .steps = 2, .width = 4, .height = 3,
                          .step = {{16, 8, 6, 2, 8, 6}, {4, 3, 0, 0, 4, 3}}};
    const float want[1][4] = {{1.5f / 4, 1.5f / 3, 1.0f / 4, 1.0f / 3}};
    /* pixel (3,2) becomes (4,2) mirrored, columns 8..9 and rows 4..5 scaled, 2..3 and 2..3 in the crop, (1,1) in the
     * end */
    assert_int_equal(moved_boxes(box, label, 3, &draw), 1);
    assert_memory_equal(box, want, sizeof want);
    assert_int_equal(label[0], 5);
}

/* detection_map maps the corners of boxes as detection_corners does, except where a crop cuts them. */
static void maps_follow_boxes(void **state) {
    (void)state;
    int compared = 0;
    for (uint32_t i = 0; i < 3000; i++) {
        int w = 200 + (int)rng_below(check_seed(), RNG_TEST, 5, i, 0, 500), label = 0;
        int h = 200 + (int)rng_below(check_seed(), RNG_TEST, 5, i, 1, 500);
        float x = (float)rng_below(check_seed(), RNG_TEST, 5, i, 2, (uint32_t)w - 20);
        float y = (float)rng_below(check_seed(), RNG_TEST, 5, i, 3, (uint32_t)h - 20);
        float box[1][4] = {{x + 0.25f, y + 0.5f, x + 17, y + 9}}, from[4];
        double scale[2], shift[2];
        DetectionAugment augment = coco_augment;
        augment.rule = i % 2 ? DETECTION_DETR : DETECTION_MMDETECTION;
        DetectionDraw d = detection_draw(&augment, w, h, check_seed(), 5, i);
        memcpy(from, box[0], sizeof from);
        if (!detection_corners(box, &label, NULL, 1, &d)) continue;
        detection_map(scale, shift, &d);
        assert_true((scale[0] < 0) == d.mirror && scale[1] > 0);
        for (int k = 0; k < 2; k++) {
            double a = scale[k] * (double)from[k] + shift[k], b = scale[k] * (double)from[k + 2] + shift[k];
            double most = k ? d.height : d.width, low = fmin(a, b), high = fmax(a, b);
            /* A crop cuts at its own sides, which become those of the result. */
            assert_true(fabs(fmax(low, 0) - (double)box[0][k]) < 1e-5 * (1 + most) + 1e-3);
            if (d.steps == 2) high = fmin(high, most);
            assert_true(fabs(high - (double)box[0][k + 2]) < 1e-5 * (1 + most) + 1e-3);
            compared++;
        }
    }
    assert_true(compared > 3000);
}

/* == Random transforms ============================================================================================= */

static void draws_are_detrs(void **state) {
    (void)state;
    enum { COUNT = 22000 };
    int mirrored = 0, crops = 0, scale[11] = {0}, crop_scale[3] = {0}, lefts[2] = {0}, first_sides[2] = {0};
    for (uint32_t i = 0; i < COUNT; i++) {
        DetectionDraw d = detection_draw(&coco_augment, 640, 480, check_seed(), i % 7, i);
        DetectionDraw again = detection_draw(&coco_augment, 640, 480, check_seed(), i % 7, i);
        assert_true(d.mirror == again.mirror && d.steps == again.steps);
        assert_memory_equal(d.step, again.step, (size_t)d.steps * sizeof *d.step);
        const DetectionStep *last = &d.step[d.steps - 1];
        int small = d.width < d.height ? d.width : d.height, large = d.width + d.height - small;
        assert_true(d.width == last->crop_width && d.height == last->crop_height);
        assert_true(last->left == 0 && last->top == 0 && last->width == d.width && last->height == d.height);
        assert_in_range(large, 480, 1333);
        mirrored += d.mirror;
        crops += d.steps == 2;
        if (d.steps == 1) {
            assert_int_equal((small - 480) % 32, 0);
            scale[(small - 480) / 32]++;
            continue;
        }
        const DetectionStep *s = &d.step[0];
        assert_true(s->height == 400 || s->height == 500 || s->height == 600);
        assert_int_equal(s->width, s->height * 4 / 3);
        crop_scale[s->height / 100 - 4]++;
        assert_in_range(s->crop_width, 384, s->width < 600 ? s->width : 600);
        assert_in_range(s->crop_height, 384, s->height < 600 ? s->height : 600);
        assert_in_range(s->left, 0, s->width - s->crop_width);
        assert_in_range(s->top, 0, s->height - s->crop_height);
        if (s->height == 600) {
            first_sides[0] += s->crop_width == 384;
            first_sides[1] += s->crop_width == 600;
        }
        lefts[0] += s->left == 0 && s->height == 400;
        lefts[1] += s->left == s->width - s->crop_width && s->height == 400;
    }
    assert_in_range(mirrored, COUNT / 2 - 370, COUNT / 2 + 370); /* 5 standard deviations */
    assert_in_range(crops, COUNT / 2 - 370, COUNT / 2 + 370);
    for (int i = 0; i < 11; i++) assert_in_range(scale[i], 1000 - 155, 1000 + 155);
    for (int i = 0; i < 3; i++) assert_in_range(crop_scale[i], COUNT / 6 - 260, COUNT / 6 + 260);
    for (int i = 0; i < 2; i++) assert_true(first_sides[i] > 0 && lefts[i] > 0); /* both ends of the ranges occur */
}

static void parts_can_be_switched_off(void **state) {
    (void)state;
    DetectionAugment plain = {.scale = {96, 128}, .scales = 2, .max_size = 0};
    for (uint32_t i = 0; i < 200; i++) {
        DetectionDraw d = detection_draw(&plain, 100, 50, check_seed(), 0, i);
        assert_true(!d.mirror && d.steps == 1 && (d.height == 96 || d.height == 128) && d.width == 2 * d.height);
    }
    /* A picture smaller than crop_min is cropped to at most its own size. */
    DetectionAugment small = {.crop = true, .scale = {20}, .scales = 1, .crop_scale = {30}, .crop_scales = 1,
                              .crop_min = 40, .crop_max = 50};
    for (uint32_t i = 0; i < 200; i++) {
        DetectionDraw d = detection_draw(&small, 60, 30, check_seed(), 0, i);
        if (d.steps == 1) continue;
        assert_int_equal(d.step[0].crop_height, 30);
        assert_in_range(d.step[0].crop_width, 40, 50);
    }
}

/* After any random transform boxes lie inside the picture and keep their labels. */
static void moved_boxes_stay_inside(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 2000; i++) {
        int w = 20 + (int)rng_below(check_seed(), RNG_TEST, 1, i, 0, 900), label[4] = {0, 1, 2, 3};
        int h = 20 + (int)rng_below(check_seed(), RNG_TEST, 1, i, 1, 900);
        float box[4][4];
        for (uint64_t b = 0; b < 4; b++) {
            for (uint64_t k = 0; k < 2; k++) {
                float a = rng_uniform(check_seed(), RNG_TEST, 2, i, 4 * b + 2 * k), side = (float)(k ? h : w);
                float c = rng_uniform(check_seed(), RNG_TEST, 2, i, 4 * b + 2 * k + 1);
                box[b][k] = side * (a < c ? a : c);
                box[b][k + 2] = side * (a < c ? c : a) + 0.01f * side;
                if (box[b][k + 2] > side) box[b][k + 2] = side;
            }
        }
        DetectionDraw d = detection_draw(&coco_augment, w, h, check_seed(), 3, i);
        int kept = moved_boxes(box, label, 4, &d);
        for (int b = 0; b < kept; b++) {
            assert_true(!b || label[b] > label[b - 1]);
            for (int k = 0; k < 2; k++) {
                assert_true(box[b][k + 2] > 0);
                assert_true(box[b][k] - box[b][k + 2] / 2 > -1e-5f && box[b][k] + box[b][k + 2] / 2 < 1 + 1e-5f);
            }
        }
    }
}

/* == Order ======================================================================================================== */

enum { PICTURES = 3217, BATCH = 8 };

static int (*drawn_sizes(void))[2] {
    int(*size)[2] = malloc(PICTURES * sizeof *size);
    for (uint32_t i = 0; i < PICTURES; i++) {
        bool tall = rng_below(check_seed(), RNG_TEST, 7, 0, i, 4) == 0;
        DetectionDraw d =
            detection_draw(&coco_augment, tall ? 480 : 640, tall ? 640 : 480, check_seed(), 0, i);
        size[i][0] = d.width;
        size[i][1] = d.height;
    }
    return size;
}

static void every_picture_has_one_place(void **state) {
    (void)state;
    int(*size)[2] = drawn_sizes();
    uint32_t plain[PICTURES], order[PICTURES], other[PICTURES];
    const int windows[] = {1, 7, 100, 100000};
    bucket_order(plain, (const int(*)[2])size, PICTURES, BATCH, 0, check_seed(), 5);
    for (size_t n = 0; n < sizeof windows / sizeof *windows; n++) {
        bool seen[PICTURES] = {0};
        bucket_order(order, (const int(*)[2])size, PICTURES, BATCH, windows[n], check_seed(), 5);
        for (int i = 0; i < PICTURES; i++) {
            assert_true(order[i] < PICTURES && !seen[order[i]]);
            seen[order[i]] = true;
        }
        /* The pictures that are left out are the same as without buckets. */
        for (int i = PICTURES / BATCH * BATCH; i < PICTURES; i++) assert_int_equal(order[i], plain[i]);
        bucket_order(other, (const int(*)[2])size, PICTURES, BATCH, windows[n], check_seed(), 5);
        assert_memory_equal(order, other, sizeof order);
        bucket_order(other, (const int(*)[2])size, PICTURES, BATCH, windows[n], check_seed(), 6);
        assert_memory_not_equal(order, other, sizeof order);
    }
    free(size);
}

/* A batch has pictures of one window only, so that buckets do not undo the shuffling. */
static void pictures_stay_in_their_window(void **state) {
    (void)state;
    enum { WINDOW = 5 };
    int(*size)[2] = drawn_sizes();
    uint32_t plain[PICTURES], order[PICTURES], place[PICTURES];
    bucket_order(plain, (const int(*)[2])size, PICTURES, BATCH, 0, check_seed(), 5);
    bucket_order(order, (const int(*)[2])size, PICTURES, BATCH, WINDOW, check_seed(), 5);
    for (uint32_t i = 0; i < PICTURES; i++) place[plain[i]] = i;
    int in_order = 0;
    for (int b = 0; b < PICTURES / BATCH; b++) {
        uint32_t window = place[order[b * BATCH]] / (WINDOW * BATCH);
        for (int i = 0; i < BATCH; i++) assert_int_equal(place[order[b * BATCH + i]] / (WINDOW * BATCH), window);
        in_order += window == (uint32_t)(b / WINDOW);
    }
    assert_true(in_order < PICTURES / BATCH / 4); /* the batches are shuffled too */
    free(size);
}

static void padding_is_counted_and_saved(void **state) {
    (void)state;
    const int two[4][2] = {{10, 10}, {20, 5}, {8, 8}, {8, 8}};
    const uint32_t order[4] = {0, 1, 2, 3};
    assert_true(fabs(bucket_padding(order, two, 4, 2) - (1 - 328.0 / 528)) < 1e-12);
    assert_true(bucket_padding(order, two, 4, 1) == 0);

    int(*size)[2] = drawn_sizes();
    uint32_t drawn[PICTURES];
    double share[4];
    const int windows[4] = {0, 8, 32, 128};
    for (int n = 0; n < 4; n++) {
        bucket_order(drawn, (const int(*)[2])size, PICTURES, BATCH, windows[n], check_seed(), 0);
        share[n] = bucket_padding(drawn, (const int(*)[2])size, PICTURES, BATCH);
        printf("  window %3d: %.1f %% padding\n", windows[n], 100 * share[n]);
        assert_true(!n || share[n] < share[n - 1]);
    }
    assert_true(share[2] < 0.5 * share[0]);
    free(size);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_pythons),
        cmocka_unit_test(thin_pictures_keep_a_side),
        cmocka_unit_test(boxes_are_pytorchs),
        cmocka_unit_test(boxes_follow_pixels),
        cmocka_unit_test(maps_follow_boxes),
        cmocka_unit_test(draws_are_detrs),
        cmocka_unit_test(parts_can_be_switched_off),
        cmocka_unit_test(moved_boxes_stay_inside),
        cmocka_unit_test(every_picture_has_one_place),
        cmocka_unit_test(pictures_stay_in_their_window),
        cmocka_unit_test(padding_is_counted_and_saved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
