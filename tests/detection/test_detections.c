/* Postprocessing of a detector's outputs, drawing them, and the generated scenes of the data set shapes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/detection/shape_scenes.h"
#include "detection/coco_eval.h"
#include "detection/draw.h"
#include "detection/postprocess.h"
#include "tests/check.h"
#include "tests/ranges.h"
#include "tests/scratch.h"

/* == Postprocessing =============================================================================================== */

typedef struct {
    float score;
    int at;
} Ranked;

static int best_first(const void *left, const void *right) {
    const Ranked *a = left, *b = right;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return a->at - b->at;
}

/* Compares with sorting all pairs; saturated logits make ties. */
static void the_best_pairs_are_kept_in_order(void **state) {
    (void)state;
    enum { Q = 30, C = 7, MOST = 30, W = 640, H = 427 };
    for (uint32_t n = 0; n < 20; n++) {
        float *logits = check_normal(Q * C, n % 2 ? 40 : 2, 100 + n), boxes[Q][4];
        Ranked ranked[Q * C];
        CocoDetection got[MOST];
        for (uint64_t i = 0; i < Q * 4; i++) boxes[i / 4][i % 4] = rng_uniform(check_seed(), RNG_TEST, 1, n, i);
        for (int i = 0; i < Q * C; i++) ranked[i] = (Ranked){1 / (1 + expf(-logits[i])), i};
        qsort(ranked, Q * C, sizeof *ranked, best_first);
        assert_int_equal(postprocess(got, MOST, logits, boxes[0], Q, C, 77, W, H), MOST);
        for (int k = 0; k < MOST; k++) {
            const float *b = boxes[ranked[k].at / C];
            assert_true(got[k].score == ranked[k].score);
            assert_int_equal(got[k].category_id, ranked[k].at % C);
            assert_int_equal(got[k].image_id, 77);
            const double want[4] = {(b[0] - b[2] / 2) * W, (b[1] - b[3] / 2) * H, b[2] * W, b[3] * H};
            for (int j = 0; j < 4; j++) assert_true(fabs(got[k].box[j] - want[j]) < 1e-3);
        }
        free(logits);
    }
}

static void fewer_pairs_than_asked_for_are_all_kept(void **state) {
    (void)state;
    const float logits[3] = {-1, 2, 0}, boxes[4] = {0.5f, 0.5f, 1, 0.5f};
    CocoDetection got[5];
    assert_int_equal(postprocess(got, 5, logits, boxes, 1, 3, 1, 10, 20), 3);
    assert_int_equal(got[0].category_id, 1);
    assert_int_equal(got[1].category_id, 2);
    assert_int_equal(got[2].category_id, 0);
    assert_true(got[0].box[0] == 0 && got[0].box[1] == 5 && got[0].box[2] == 10 && got[0].box[3] == 10);
    assert_int_equal(postprocess(got, 0, logits, boxes, 1, 3, 1, 10, 20), 0);
}

/* == Scenes ======================================================================================================= */

enum { SIDE = SCENES_SIDE, BYTES = SIDE * SIDE * 3 };

static void scenes_are_functions_of_their_index(void **state) {
    (void)state;
    static uint8_t a[BYTES], b[BYTES];
    int label[2][SCENES_MOST], box[2][SCENES_MOST][4];
    for (uint32_t i = 0; i < 20; i++) {
        int count = scenes_draw(check_seed(), 0, i, SIDE, a, NULL, label[0], box[0]);
        assert_int_equal(scenes_draw(check_seed(), 0, i, SIDE, b, NULL, label[1], box[1]), count);
        assert_memory_equal(a, b, BYTES);
        assert_int_equal(scenes_draw(check_seed(), 0, i, SIDE, NULL, NULL, label[1], box[1]), count);
        assert_memory_equal(label[0], label[1], (size_t)count * sizeof(int));
        assert_memory_equal(box[0], box[1], (size_t)count * sizeof *box[0]);
        scenes_draw(check_seed(), 1, i, SIDE, b, NULL, label[1], box[1]);
        assert_memory_not_equal(a, b, BYTES);
        scenes_draw(check_seed(), 0, i + 1, SIDE, b, NULL, label[1], box[1]);
        assert_memory_not_equal(a, b, BYTES);
    }
}

/* The owners of pixels agree with boxes and colours.  Within a figure, except for its edge, the colour varies only by
 * noise of at most 0.08 x 255 in either direction.  Every figure owns at least an eighth of its box.  Of two neighbours
 * with different owners one is marked as an edge, except where the box cuts off the tip of a large hourglass. */
static void owners_follow_the_figures(void **state) {
    (void)state;
    static uint8_t pixels[BYTES], owner[SIDE * SIDE], again[SIDE * SIDE], classes[SIDE * SIDE];
    int edges = 0, inner = 0;
    for (uint32_t i = 0; i < 60; i++) {
        int label[SCENES_MOST], box[SCENES_MOST][4], area[SCENES_MOST + 1] = {0};
        int least[SCENES_MOST + 1][3], most[SCENES_MOST + 1][3] = {{0}};
        memset(least, 127, sizeof least);
        memset(owner, 0xA5, sizeof owner);
        int count = scenes_draw(check_seed(), 0, i, SIDE, pixels, owner, label, box);
        scenes_draw(check_seed(), 0, i, SIDE, NULL, again, label, box);
        assert_memory_equal(owner, again, sizeof owner);
        for (int at = 0; at < SIDE * SIDE; at++) {
            int number = owner[at] & ~SCENES_EDGE, x = at % SIDE, y = at / SIDE;
            bool edge = owner[at] & SCENES_EDGE;
            assert_in_range(number, 0, count);
            area[number]++;
            edges += edge;
            for (int k = 0; k < 3 && !edge; k++) {
                least[number][k] = smaller(least[number][k], pixels[3 * at + k]);
                most[number][k] = larger(most[number][k], pixels[3 * at + k]);
                inner += number > 0;
            }
            for (int n = 0; n < 2 && !edge; n++) { /* the neighbours to the right and below */
                int next = n ? at + SIDE : at + 1;
                if ((n ? y : x) == SIDE - 1 || owner[next] & SCENES_EDGE || owner[next] == owner[at]) continue;
                int later = larger(number, owner[next]) - 1, rim = n ? y + 1 : x + 1;
                if (label[later] == 9 && (box[later][n] == rim || box[later][n + 2] == rim)) continue;
                fail_msg("scene %u, pixel %d, %d: a border without an edge", i, x, y);
            }
            for (int j = 0; j < count && (number || edge); j++) {
                const int *b = box[j];
                if (x >= b[0] && x < b[2] && y >= b[1] && y < b[3]) break;
                assert_true(j < count - 1);
            }
            if (!number) continue;
            const int *b = box[number - 1];
            assert_true(x >= b[0] && x < b[2] && y >= b[1] && y < b[3]);
        }
        for (int j = 0; j < count; j++) {
            int room = (box[j][2] - box[j][0]) * (box[j][3] - box[j][1]);
            assert_in_range(area[j + 1], room / 8, room);
            for (int k = 0; k < 3; k++) assert_true(most[j + 1][k] - least[j + 1][k] <= 41);
        }
        for (int ignore = 0; ignore < 2; ignore++) {
            scenes_classes(classes, owner, sizeof owner, label, ignore);
            for (int at = 0; at < SIDE * SIDE; at++) {
                int number = owner[at] & ~SCENES_EDGE, want = number ? label[number - 1] + 1 : 0;
                if (ignore && owner[at] & SCENES_EDGE) want = SCENES_IGNORED;
                assert_int_equal(classes[at], want);
            }
        }
    }
    assert_true(edges > 60 * 30 && inner > 60 * 100);
}

static void scene_boxes_are_apart_and_of_every_class(void **state) {
    (void)state;
    enum { COUNT = 1500 };
    int classes[SHAPES_CLASSES] = {0}, counts[SCENES_MOST + 1] = {0}, all = 0;
    const int sides[] = {SCENES_LEAST_SIDE, 97, SIDE};
    for (uint32_t i = 0; i < COUNT; i++) {
        int label[SCENES_MOST], box[SCENES_MOST][4], side = sides[i % 3];
        int count = scenes_draw(check_seed(), 0, i, side, NULL, NULL, label, box);
        assert_in_range(count, 1, SCENES_MOST);
        counts[count]++;
        for (int j = 0; j < count; j++) {
            const int *a = box[j];
            assert_true(0 <= a[0] && a[0] + side / 10 < a[2] && a[2] <= side);
            assert_true(0 <= a[1] && a[1] + side / 10 < a[3] && a[3] <= side);
            classes[label[j]]++;
            all++;
            for (int k = 0; k < j; k++) {
                const int *b = box[k];
                int w = (a[2] < b[2] ? a[2] : b[2]) - (a[0] > b[0] ? a[0] : b[0]);
                int h = (a[3] < b[3] ? a[3] : b[3]) - (a[1] > b[1] ? a[1] : b[1]);
                int first = (a[2] - a[0]) * (a[3] - a[1]), second = (b[2] - b[0]) * (b[3] - b[1]);
                assert_true(w <= 0 || h <= 0 || 10 * w * h <= (first < second ? first : second));
            }
        }
    }
    for (int c = 0; c < SHAPES_CLASSES; c++) assert_in_range(classes[c], all / 10 - 130, all / 10 + 130);
    for (int n = 1; n <= SCENES_MOST; n++) assert_true(counts[n] > COUNT / 20);
}

/* Figures are light and the ground is dark: all light pixels lie in boxes, and nearly all boxes have light pixels near
 * each of their edges.  The others have a tip that is faint or covered. */
static void scene_boxes_hold_their_figures_tightly(void **state) {
    (void)state;
    static uint8_t pixels[BYTES];
    int touched = 0, all = 0;
    for (uint32_t i = 0; i < 100; i++) {
        int label[SCENES_MOST], box[SCENES_MOST][4], edges[SCENES_MOST][4] = {{0}}, outside = 0;
        int count = scenes_draw(check_seed(), 1, i, SIDE, pixels, NULL, label, box);
        for (int y = 0; y < SIDE; y++) {
            for (int x = 0; x < SIDE; x++) {
                const uint8_t *p = pixels + (y * SIDE + x) * 3;
                bool held = false;
                if (p[0] + p[1] + p[2] < 3 * 138) continue;
                for (int j = 0; j < count; j++) {
                    const int *b = box[j];
                    if (x < b[0] || x >= b[2] || y < b[1] || y >= b[3]) continue;
                    held = true;
                    edges[j][0] |= x < b[0] + 3;
                    edges[j][1] |= y < b[1] + 3;
                    edges[j][2] |= x >= b[2] - 3;
                    edges[j][3] |= y >= b[3] - 3;
                }
                outside += !held;
            }
        }
        assert_int_equal(outside, 0);
        for (int j = 0; j < count; j++) touched += edges[j][0] + edges[j][1] + edges[j][2] + edges[j][3];
        all += 4 * count;
    }
    printf("  %d of %d edges\n", touched, all);
    assert_true(touched >= 0.97 * all);
}

/* Perfect detections have AP and AR 1, and the annotations agree with the scenes. */
static void scenes_are_evaluated_as_coco(void **state) {
    (void)state;
    enum { COUNT = 60 };
    Coco coco;
    CocoResults results = {.count = 0};
    double numbers[COCO_NUMBERS];
    Error error;
    scenes_coco(&coco, check_seed(), 0, COUNT, SIDE, false);
    assert_int_equal(coco.image_count, COUNT);
    assert_int_equal(coco_num_classes(&coco), SHAPES_CLASSES + 1);
    assert_string_equal(coco.categories[9].name, "hourglass");
    for (uint32_t i = 0; i < COUNT; i++) {
        int label[SCENES_MOST], box[SCENES_MOST][4];
        int count = scenes_draw(check_seed(), 0, i, SIDE, NULL, NULL, label, box);
        assert_int_equal(coco.images[i].id, i + 1);
        assert_int_equal(coco.images[i].count, count);
        for (int j = 0; j < count; j++) {
            CocoDetection d = {.image_id = i + 1, .category_id = label[j] + 1, .score = 0.5};
            for (int k = 0; k < 2; k++) {
                d.box[k] = box[j][k];
                d.box[k + 2] = box[j][k + 2] - box[j][k];
            }
            coco_results_add(&results, d);
        }
    }
    assert_true(coco_eval(numbers, NULL, COCO_EVAL_BOXES, &coco, &results, NULL, &error));
    assert_true(fabs(numbers[COCO_AP] - 1) < 1e-9 && fabs(numbers[COCO_AR100] - 1) < 1e-9);
    coco_results_free(&results);
    coco_close(&coco);
}

/* == Pictures ===================================================================================================== */

static Image grey_image(int width, int height) {
    Image image = {height, width, malloc((size_t)width * (size_t)height * 3)};
    memset(image.pixels, 100, (size_t)width * (size_t)height * 3);
    return image;
}

static bool has_colour(const Image *image, int x, int y, DrawColour colour) {
    return memcmp(image->pixels + ((size_t)y * (size_t)image->width + (size_t)x) * 3, colour.channel, 3) == 0;
}

static void frames_are_drawn_and_cut(void **state) {
    (void)state;
    const DrawColour red = {{255, 0, 0}};
    const int boxes[][4] = {{3, 4, 15, 12}, {-5, -5, 8, 8}, {10, 10, 100, 100},
                            {6, 6, 7, 7},   {9, 9, 9, 12},  {30, 30, 40, 40}};
    for (size_t n = 0; n < sizeof boxes / sizeof *boxes; n++) {
        const int *b = boxes[n];
        Image image = grey_image(20, 17);
        draw_frame(&image, b, 2, red);
        for (int y = 0; y < 17; y++) {
            for (int x = 0; x < 20; x++) {
                bool in = x >= b[0] && x < b[2] && y >= b[1] && y < b[3];
                bool inner = x >= b[0] + 2 && x < b[2] - 2 && y >= b[1] + 2 && y < b[3] - 2;
                assert_int_equal(has_colour(&image, x, y, red), in && !inner);
            }
        }
        free(image.pixels);
    }
}

static void letters_are_drawn_cell_by_cell(void **state) {
    (void)state;
    const DrawColour white = {{255, 255, 255}};
    Image image = grey_image(40, 24);
    draw_text(&image, 1, 2, "t", 1, white);
    static const char *const t[8] = {".#...", ".#...", "####.", ".#...", ".#...", ".#...", "..##.", "....."};
    for (int y = 0; y < 24; y++) {
        for (int x = 0; x < 40; x++) {
            bool cell = x >= 1 && x < 6 && y >= 2 && y < 10 && t[y - 2][x - 1] == '#';
            assert_int_equal(has_colour(&image, x, y, white), cell);
        }
    }
    memset(image.pixels, 100, 40 * 24 * 3);
    draw_text(&image, -3, 5, "t\xc3\xa9", 2, white); /* cut on the left; one question mark for the accented letter */
    for (int y = 0; y < 16; y++) {
        for (int x = 0; x < 7; x++) assert_int_equal(has_colour(&image, x, 5 + y, white), t[y / 2][(x + 3) / 2] == '#');
    }
    assert_true(has_colour(&image, 9 + 2, 5, white)); /* the question mark's upper edge */
    assert_int_equal(draw_text_width("t\xc3\xa9", 2), 22);
    assert_int_equal(draw_text_width("", 3), 0);
    free(image.pixels);
}

static void pixels_become_squares(void **state) {
    (void)state;
    uint8_t pixels[2 * 5 * 3];
    for (int i = 0; i < 30; i++) pixels[i] = (uint8_t)(7 * i);
    Image image = grey_image(15, 6);
    draw_enlarged(&image, pixels, 3);
    for (int y = 0; y < 6; y++)
        for (int x = 0; x < 15; x++)
            assert_memory_equal(image.pixels + 3 * (y * 15 + x), pixels + 3 * (y / 3 * 5 + x / 3), 3);
    free(image.pixels);
}

static void detections_are_framed_and_named(void **state) {
    (void)state;
    Coco coco;
    char path[SCRATCH_PATH];
    Error error = {.text = ""};
    scenes_coco(&coco, 1, 0, 1, SIDE, false);
    const CocoDetection detections[] = {{1, 3, {20, 30, 60, 40}, 0.98},
                                        {1, 99, {60, 50, 60, 70}, 0.51},
                                        {1, 4, {1e300, -1e300, NAN, 1e300}, 0.5}, /* must be harmless */
                                        {1, 5, {5, 5, 100, 100}, 0.2}};
    Image image = grey_image(160, 130), read;
    draw_detections(&image, detections, 4, 0.4, NULL, &coco);
    assert_true(has_colour(&image, 20, 60, draw_colour(3)) && has_colour(&image, 79, 60, draw_colour(3)));
    assert_true(has_colour(&image, 70, 69, draw_colour(3)));    /* the higher score is on top */
    assert_true(has_colour(&image, 119, 100, draw_colour(99)));
    assert_false(has_colour(&image, 5, 80, draw_colour(5)));    /* below the lowest score drawn */
    assert_true(has_colour(&image, 20, 21, draw_colour(3)));    /* the label, above its box */
    assert_true(memcmp(draw_colour(3).channel, draw_colour(4).channel, 3) != 0);
    close(mkstemp(scratch_path(path)));
    assert_true(image_write_png(path, image.pixels, image.height, image.width, &error));
    assert_true(image_read(&read, path, &error));
    assert_memory_equal(read.pixels, image.pixels, 160 * 130 * 3);
    image_free(&read);
    unlink(path);
    free(image.pixels);

    image = grey_image(640, 480); /* in this size a dot of a letter is two pixels wide and a label twenty pixels high */
    const CocoDetection large = {1, 3, {100, 100, 200, 200}, 0.98};
    draw_detections(&image, &large, 1, 0.4, NULL, &coco);
    assert_true(has_colour(&image, 100, 80, draw_colour(3)) && !has_colour(&image, 100, 79, draw_colour(3)));
    free(image.pixels);

    image = grey_image(3, 2); /* smaller than any letter */
    draw_detections(&image, detections, 4, 0, NULL, &coco);
    free(image.pixels);
    coco_close(&coco);
}

/* Each mask over a pixel replaces half of the pixel's colour by its own; other pixels stay, and frames and labels are
 * drawn over the masks. */
static void masks_are_translucent_under_frames(void **state) {
    (void)state;
    enum { W = 60, H = 50, TIMES = 2 };
    static uint8_t ones[3][H * W];
    Coco coco;
    Rle rle = {.count = 0};
    RleTexts masks = {.count = 0};
    const CocoDetection detections[3] = {{1, 3, {5, 30, 50, 20}, 0.9},
                                         {1, 4, {10, 40, 30, 30}, 0.8},
                                         {1, 5, {0, 0, 9, 9}, 0.1}}; /* below the lowest score drawn */
    scenes_coco(&coco, 1, 0, 1, SIDE, false);
    for (int n = 0; n < 3; n++) {
        for (uint64_t i = 0; i < H * W; i++) ones[n][i] = rng_bits(check_seed(), RNG_TEST, 7, (uint32_t)n, i) & 1;
        rle_encode(&rle, ones[n], H, W);
        rle_texts_add(&masks, &rle);
    }
    Image with = grey_image(W * TIMES, H * TIMES), without = grey_image(W * TIMES, H * TIMES);
    draw_detections(&with, detections, 3, 0.4, &masks, &coco);
    draw_detections(&without, detections, 3, 0.4, NULL, &coco);
    int covered = 0;
    for (int y = 0; y < H * TIMES; y++) {
        for (int x = 0; x < W * TIMES; x++) {
            int at = (y * W * TIMES + x) * 3, in_mask = y / TIMES * W + x / TIMES;
            uint8_t want[3] = {100, 100, 100};
            bool drawn = memcmp(without.pixels + at, want, 3) != 0;
            for (int n = 1; n >= 0; n--)
                for (int k = 0; k < 3; k++)
                    if (ones[n][in_mask])
                        want[k] = (uint8_t)((want[k] + draw_colour(detections[n].category_id).channel[k] + 1) / 2);
            assert_memory_equal(with.pixels + at, drawn ? without.pixels + at : want, 3);
            covered += drawn;
        }
    }
    assert_in_range(covered, 1000, W * TIMES * H * TIMES / 2);
    free(with.pixels);
    free(without.pixels);
    rle_free(&rle);
    rle_texts_free(&masks);
    coco_close(&coco);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_pairs_are_kept_in_order),
        cmocka_unit_test(fewer_pairs_than_asked_for_are_all_kept),
        cmocka_unit_test(scenes_are_functions_of_their_index),
        cmocka_unit_test(owners_follow_the_figures),
        cmocka_unit_test(scene_boxes_are_apart_and_of_every_class),
        cmocka_unit_test(scene_boxes_hold_their_figures_tightly),
        cmocka_unit_test(scenes_are_evaluated_as_coco),
        cmocka_unit_test(frames_are_drawn_and_cut),
        cmocka_unit_test(letters_are_drawn_cell_by_cell),
        cmocka_unit_test(pixels_become_squares),
        cmocka_unit_test(detections_are_framed_and_named),
        cmocka_unit_test(masks_are_translucent_under_frames),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
