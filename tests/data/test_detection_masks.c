/* Batches with masks: targets agree with the pixels of their batch after mirroring, cropping and resizing; the masks of
 * transformed bitmaps; what Mask R-CNN's training set leaves out; and the same masks for any number of workers, ranks
 * and parts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/detection/detection_loader.h"
#include "data/detection/shape_scenes.h"
#include "data/images/image.h"
#include "data/masks/polygon.h"
#include "tests/check.h"
#include "tests/ranges.h"
#include "tests/scratch.h"

/* == Helpers ====================================================================================================== */

/* Picture EMPTY has no object, SMALL_ONE a side under 32 pixels, and SLIVER an object narrower than a pixel.  Picture 0
 * has crowds and polygons with fewer than three corners. */
enum { IMAGES = 21, EMPTY = 4, SMALL_ONE = 6, SLIVER = 9, KEPT = IMAGES - 3, OBJECTS = 3, CELLS = 28, MOST_SIDE = 180 };

static char json[SCRATCH_PATH + 16];
static uint8_t canvas[MOST_SIDE * MOST_SIDE * 3], bitmap[MOST_SIDE * MOST_SIDE];
static const int categories[OBJECTS] = {5, 9, 70};

static float uniform(uint32_t stream, uint32_t a, uint64_t i) {
    return rng_uniform(check_seed(), RNG_TEST, stream, a, i);
}

/* A random polygon in the k-th third of the longer side; it may extend beyond the picture in the other direction. */
static int draw_object(double *xy, uint32_t image, int k, int height, int width) {
    int corners = 5 + k;
    bool wide = width > height;
    double along = (wide ? width : height) / 3.0, across = wide ? height : width;
    double u = along * (k + 0.5), v = across * (0.2 + 0.6 * (double)uniform(1, image, (uint64_t)k));
    for (int i = 0; i < corners; i++) {
        double angle = 2 * 3.14159265 * i / corners;
        double reach = 0.3 + 0.7 * (double)uniform(2, image, (uint64_t)(9 * k + i));
        double a = u + 0.5 * along * reach * cos(angle), b = v + 0.45 * across * reach * sin(angle);
        xy[2 * i] = rint(100 * (wide ? a : b)) / 100;
        xy[2 * i + 1] = rint(100 * (wide ? b : a)) / 100;
    }
    return corners;
}

static void write_segmentation(FILE *out, const double *xy, int corners, const Rle *rle, uint32_t image) {
    char *text = NULL;
    size_t room = 0;
    if (image % 3 == 0) { /* polygons */
        fprintf(out, "[[");
        for (int i = 0; i < 2 * corners; i++) fprintf(out, "%s%.2f", i ? ", " : "", xy[i]);
        fprintf(out, "]%s]", image ? "" : ", [1, 2, 3, 4]");
    } else if (image % 3 == 1) {
        rle_text(&text, &room, rle);
        fprintf(out, "{\"size\": [%d, %d], \"counts\": \"", rle->height, rle->width);
        for (const char *c = text; *c; c++) fprintf(out, "%s%c", *c == '\\' ? "\\" : "", *c);
        fprintf(out, "\"}");
    } else {
        fprintf(out, "{\"size\": [%d, %d], \"counts\": [", rle->height, rle->width);
        for (size_t i = 0; i < rle->count; i++) fprintf(out, "%s%u", i ? ", " : "", rle->runs[i]);
        fprintf(out, "]}");
    }
    free(text);
}

/* Draws object k into channel k and writes its annotation. */
static void add_object(FILE *out, uint32_t image, int k, int height, int width) {
    double xy[20], low[2] = {1e9, 1e9}, high[2] = {-1e9, -1e9};
    static Rle rle;
    static int id;
    int corners = draw_object(xy, image, k, height, width);
    for (int i = 0; i < 2 * corners; i++) {
        low[i % 2] = fmin(low[i % 2], xy[i]);
        high[i % 2] = fmax(high[i % 2], xy[i]);
    }
    polygon_rle(&rle, xy, corners, height, width);
    rle_decode(bitmap, &rle);
    for (int i = 0; i < height * width; i++) canvas[3 * i + k] = bitmap[i] ? 255 : 0;
    fprintf(out, "%s{\"id\": %d, \"image_id\": %u, \"category_id\": %d, \"bbox\": [%.2f, %.2f, %.2f, %.2f], "
            "\"area\": %u, \"iscrowd\": 0, \"segmentation\": ", id ? ",\n" : "", id + 1, image + 1, categories[k],
            low[0], low[1], image == SLIVER ? 0.5 : high[0] - low[0], high[1] - low[1], rle_extent(&rle).area);
    write_segmentation(out, xy, corners, &rle, image);
    fprintf(out, "}");
    id++;
}

static int make_pictures(void **state) {
    char name[64];
    Error error;
    if (make_folder(state)) return 1;
    snprintf(json, sizeof json, "%s/pictures.json", folder);
    FILE *out = fopen(json, "w"), *images = tmpfile();
    if (!out || !images) return 1;
    fprintf(out, "{\"annotations\": [");
    for (uint32_t i = 0; i < IMAGES; i++) {
        int width = 40 + (int)(140 * uniform(3, i, 1));
        int height = i == SMALL_ONE ? 31 : 40 + (int)(100 * uniform(3, i, 0));
        memset(canvas, 0, sizeof canvas);
        for (int k = 0; k < OBJECTS && i != EMPTY; k++) add_object(out, i, k, height, width);
        snprintf(name, sizeof name, "%u.png", i);
        if (!image_write_png(in_folder(name), canvas, height, width, &error)) return 1;
        fprintf(images, "%s{\"id\": %u, \"file_name\": \"%s\", \"width\": %d, \"height\": %d}", i ? "," : "", i + 1,
                name, width, height);
    }
    fprintf(out, ", {\"id\": 1000, \"image_id\": 1, \"category_id\": 5, \"bbox\": [1, 1, 9, 9], \"iscrowd\": 1, "
            "\"segmentation\": [[1, 1, 9, 1, 9, 9]]}, {\"id\": 1001, \"image_id\": 1, \"category_id\": 5, "
            "\"bbox\": [1, 1, 9, 9], \"segmentation\": [[1, 1, 9, 1]]}], \"images\": [");
    rewind(images);
    for (int c; (c = getc(images)) != EOF;) putc(c, out);
    fprintf(out, "], \"categories\": [{\"id\": 70, \"name\": \"c\"}, {\"id\": 5, \"name\": \"a\"}, "
            "{\"id\": 9, \"name\": \"b\"}]}\n");
    fclose(images);
    return fclose(out);
}

static void open_set(DetectionSet *set, bool train) {
    int kept = quiet_begin();
    detection_set_coco(set, "pictures", json, folder, DETECTION_MASKS, train, 0);
    quiet_end(kept);
}

static const DetectionAugment MIXED = {.rule = DETECTION_MMDETECTION, .flip = true, .crop = true,
                                       .scale = {60, 90, 140}, .scales = 3, .max_size = 220,
                                       .crop_scale = {50, 80}, .crop_scales = 2, .crop_min = 40, .crop_max = 70};

/* == Targets and pixels =========================================================================================== */

typedef struct {
    int inside, outside, wrong; /* cells whose pixel is fully inside or outside the object */
} Agreement;

/* Compares the target of box k of image i with that object's channel at the centres of the cells. */
static void compare_cells(Agreement *sum, const DetectionPart *part, int i, int k, MaskScratch *scratch) {
    uint8_t cells[CELLS * CELLS];
    const float *box = part->corners[k];
    int channel = part->labels[k] - 1;
    assert_in_range(channel, 0, OBJECTS - 1);
    memset(cells, 7, sizeof cells);
    object_mask_target(cells, CELLS, &part->masks[k], box, scratch);
    for (int r = 0; r < CELLS; r++) {
        for (int c = 0; c < CELLS; c++) {
            int x = (int)(box[0] + ((float)c + 0.5f) * (box[2] - box[0]) / CELLS);
            int y = (int)(box[1] + ((float)r + 0.5f) * (box[3] - box[1]) / CELLS);
            assert_true(x >= 0 && y >= 0 && x < part->size[i][1] && y < part->size[i][0]);
            size_t at = ((size_t)i * (size_t)part->height + (size_t)y) * (size_t)part->width + (size_t)x;
            uint8_t value = part->pixels[3 * at + (size_t)channel], cell = cells[r * CELLS + c];
            assert_true(cell <= 1);
            sum->inside += value == 255;
            sum->outside += value == 0;
            sum->wrong += (value == 255 && !cell) || (value == 0 && cell);
        }
    }
}

static void targets_agree_with_pixels(void **state) {
    (void)state;
    DetectionSet set;
    DetectionLoader loader;
    DetectionPart part;
    MaskScratch scratch = {.points = NULL};
    Agreement sum = {0};
    int objects = 0, mirrored = 0, grids = 0;
    open_set(&set, true);
    DetectionLoaderConfig config = {.parts = {.seed = check_seed(), .batch_size = 6, .train = true}, .window = 3,
                                    .augment = MIXED, .multiple = 32};
    detection_open(&loader, &set, &config);
    assert_true(loader.shorter % 32 == 0 && loader.longer % 32 == 0);
    for (uint32_t epoch = 0; epoch < 4; epoch++) {
        parts_start(&loader.parts, epoch, 0);
        while (detection_next(&loader, &part)) {
            assert_true(part.height % 32 == 0 && part.width % 32 == 0);
            assert_true(smaller(part.height, part.width) <= loader.shorter);
            assert_true(larger(part.height, part.width) <= loader.longer);
            grids++;
            for (int i = 0; i < part.n; i++) {
                float height = (float)part.size[i][0], width = (float)part.size[i][1];
                for (int k = part.first[i]; k < part.first[i + 1]; k++) {
                    const float *box = part.corners[k], *relative = part.boxes[k];
                    assert_true(box[0] >= -1e-3f && box[1] >= -1e-3f && box[2] <= width + 1e-3f);
                    assert_true(box[3] <= height + 1e-3f && box[0] < box[2] && box[1] < box[3]);
                    assert_true(relative[0] == (box[0] + box[2]) / 2 / width);
                    assert_true(relative[3] == (box[3] - box[1]) / height);
                    mirrored += part.masks[k].scale[0] < 0;
                    objects++;
                    if (box[2] - box[0] > 8 && box[3] - box[1] > 8) compare_cells(&sum, &part, i, k, &scratch);
                }
            }
        }
    }
    printf("  %d objects, %d mirrored, %d cells inside, %d outside, %d wrong\n", objects, mirrored, sum.inside,
           sum.outside, sum.wrong);
    assert_true(grids >= 12 && objects > 80 && mirrored > objects / 5 && mirrored < objects - objects / 5);
    assert_true(sum.inside > 80 * 100 && sum.outside > 80 * 100);
    assert_true(sum.wrong <= 0.01 * (sum.inside + sum.outside));
    detection_close(&loader);
    detection_set_close(&set);
    mask_scratch_free(&scratch);
}

/* == Transformed bitmaps ========================================================================================== */

static int differing(const ObjectMask *a, const ObjectMask *b, const float box[4]) {
    MaskScratch scratch = {.points = NULL};
    uint8_t cells[2][CELLS * CELLS];
    int count = 0;
    object_mask_target(cells[0], CELLS, a, box, &scratch);
    object_mask_target(cells[1], CELLS, b, box, &scratch);
    for (int i = 0; i < CELLS * CELLS; i++) count += cells[0][i] != cells[1][i];
    mask_scratch_free(&scratch);
    return count;
}

/* Transforms a bitmap `in` [from_height,from_width]; d must not resize, or only by whole factors. */
static void transform_bitmap(uint8_t *out, const uint8_t *in, const DetectionDraw *d) {
    const DetectionStep *s = &d->step[0];
    int across = s->width / d->from_width, down = s->height / d->from_height;
    for (int y = 0; y < d->height; y++)
        for (int x = 0; x < d->width; x++) {
            int u = (x + s->left) / across, v = (y + s->top) / down;
            out[y * d->width + x] = in[v * d->from_width + (d->mirror ? d->from_width - 1 - u : u)];
        }
}

static void transformed_bitmaps_have_the_same_targets(void **state) {
    (void)state;
    enum { W = 90, H = 70 };
    static uint8_t in[W * H], out[4 * W * H];
    const DetectionDraw draws[] = {
        {W, H, true, 1, {{W, H, 0, 0, W, H}}, W, H},
        {W, H, false, 2, {{W, H, 11, 7, 70, 60}, {70, 60, 0, 0, 70, 60}}, 70, 60},
        {W, H, true, 2, {{W, H, 13, 5, 66, 60}, {66, 60, 0, 0, 66, 60}}, 66, 60},
        {W, H, true, 2, {{2 * W, 2 * H, 20, 11, 140, 120}, {140, 120, 0, 0, 140, 120}}, 140, 120}};
    int polygon_wrong = 0, opposite = 0, cases = 0;
    for (uint32_t n = 0; n < 40; n++) {
        const DetectionDraw *d = &draws[n % 4];
        double xy[20];
        float points[20];
        Rle original = {.count = 0}, moved = {.count = 0};
        int corners = draw_object(xy, 1000 + n, 1, H, W);
        for (int i = 0; i < 2 * corners; i++) points[i] = (float)xy[i];
        polygon_rle(&original, xy, corners, H, W);
        rle_decode(in, &original);
        transform_bitmap(out, in, d);
        rle_encode(&moved, out, d->height, d->width);
        RleExtent extent = rle_extent(&moved);
        float box[4];
        for (int k = 0; k < 4; k++) box[k] = (float)extent.box[k] + (k < 2 ? 0.25f : -0.5f);
        for (int k = 0; k < 2; k++) {
            box[k] = fmaxf(box[k], 1);
            box[k + 2] = fminf(box[k + 2], (float)(k ? d->height : d->width) - 1);
        }
        if (box[2] - box[0] > 5 && box[3] - box[1] > 5) {
            ObjectMask runs = {.rle = &original}, polygon = {.points = points, .ring_points = &corners, .rings = 1};
            ObjectMask want = {.rle = &moved, .scale = {1, 1}};
            detection_map(runs.scale, runs.shift, d);
            detection_map(polygon.scale, polygon.shift, d);
            /* The samples lie at the same places up to rounding, except that an enlarged bitmap has more of them. */
            assert_in_range(differing(&runs, &want, box), 0, n % 4 == 3 ? CELLS * CELLS / 25 : 2);
            polygon_wrong += differing(&polygon, &want, box);
            runs.scale[0] = -runs.scale[0];
            runs.shift[0] = d->width - runs.shift[0];
            opposite += differing(&runs, &want, box);
            cases++;
        }
        rle_free(&original);
        rle_free(&moved);
    }
    printf("  %d cases; cells that differ: polygons %.1f, mirrored the other way %.1f of 784\n", cases,
           (double)polygon_wrong / cases, (double)opposite / cases);
    assert_true(cases >= 10 && polygon_wrong < 60 * cases && opposite > 80 * cases);
}

/* == The set ====================================================================================================== */

static void run_open(void *argument) {
    DetectionSet set;
    detection_set_coco(&set, "pictures", json, folder, DETECTION_MASKS, *(const bool *)argument, 0);
    detection_set_close(&set);
}

static void training_leaves_pictures_out(void **state) {
    (void)state;
    DetectionSet set;
    char text[2048];
    open_set(&set, true);
    assert_int_equal(set.coco.image_count, KEPT);
    assert_int_equal(set.classes, OBJECTS + 1);
    assert_int_equal(set.targets, OBJECTS * KEPT);
    for (int i = 0; i < set.coco.image_count; i++) {
        int64_t image = set.coco.images[i].id - 1;
        assert_true(image != EMPTY && image != SMALL_ONE && image != SLIVER);
    }
    detection_set_close(&set);
    open_set(&set, false);
    assert_int_equal(set.coco.image_count, IMAGES);
    assert_int_equal(set.classes, OBJECTS + 1);
    for (size_t i = 0; i < set.coco.annotation_count; i++) {
        const CocoAnnotation *a = &set.coco.annotations[i];
        const Rle *rle = coco_annotation_mask(&set.coco, i);
        if (a->id == 1001) assert_null(rle);
        else if (a->id != 1000) assert_int_equal(rle_extent(rle).area, (uint32_t)a->area);
    }
    detection_set_close(&set);
    for (int train = 0; train < 2; train++) {
        bool flag = train;
        assert_int_equal(status_of(run_open, &flag, text, sizeof text), 77); /* the status after a normal return */
        printf("%s", text);
        assert_words(text, WORDS("1 without a mask, left out of training",
                                 "4 with polygons of fewer than three corners, which are left out"));
    }
}

static void run_nothing(void *argument) {
    DetectionSet set;
    detection_set_coco(&set, "nothing", argument, folder, DETECTION_MASKS, true, 0);
}

static void a_set_without_objects_is_refused(void **state) {
    (void)state;
    char text[2048], path[SCRATCH_PATH + 16];
    snprintf(path, sizeof path, "%s/nothing.json", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "{\"images\": [{\"id\": 1, \"file_name\": \"0.png\", \"width\": 90, \"height\": 90}], "
            "\"annotations\": [], \"categories\": []}");
    assert_int_equal(fclose(file), 0);
    assert_int_equal(status_of(run_nothing, path, text, sizeof text), 1);
    assert_words(text, WORDS(path, "none of its 1 images has an object with a mask and sides of at least 32 pixels"));
}

/* == Workers, ranks and parts ===================================================================================== */

typedef struct {
    int image, count;
    float corners[OBJECTS][4];
    int labels[OBJECTS];
    uint8_t cells[OBJECTS][CELLS * CELLS];
} Got;

static int load_epoch(DetectionLoaderConfig config, const DetectionSet *set, int workers, Got *got) {
    DetectionLoader loader;
    DetectionPart part;
    MaskScratch scratch = {.points = NULL};
    int images = 0;
    config.parts.pool = workers ? loader_pool_open(workers) : NULL;
    detection_open(&loader, set, &config);
    parts_start(&loader.parts, 2, 0);
    int wanted = detection_boxes_of(&loader, 0), boxes = 0;
    while (detection_next(&loader, &part)) {
        size_t place = part.batch * (size_t)config.parts.batch_size + (size_t)part.position;
        boxes += part.batch ? 0 : part.first[part.n];
        for (int i = 0; i < part.n; i++, place++, images++) {
            Got *g = &got[place];
            *g = (Got){.image = part.image[i], .count = part.first[i + 1] - part.first[i]};
            assert_in_range(g->count, 0, OBJECTS);
            for (int k = 0; k < g->count; k++) {
                int at = part.first[i] + k;
                memcpy(g->corners[k], part.corners[at], sizeof g->corners[k]);
                g->labels[k] = part.labels[at];
                object_mask_target(g->cells[k], CELLS, &part.masks[at], part.corners[at], &scratch);
            }
        }
    }
    if (config.parts.ranks < 2) assert_int_equal(boxes, wanted);
    detection_close(&loader);
    loader_pool_close(config.parts.pool);
    mask_scratch_free(&scratch);
    return images;
}

static void masks_do_not_depend_on_workers_or_ranks(void **state) {
    (void)state;
    DetectionSet set;
    static Got want[KEPT], got[KEPT];
    open_set(&set, true);
    DetectionLoaderConfig config = {.parts = {.seed = check_seed(), .batch_size = 6, .train = true}, .window = 2,
                                    .augment = MIXED, .multiple = 32};
    assert_int_equal(load_epoch(config, &set, 0, want), KEPT / 6 * 6);
    for (int ranks = 1; ranks <= 3; ranks++) {
        for (int workers = 0; workers <= 7; workers += workers == 2 ? 5 : 2) {
            for (int part = 0; part <= 2; part++) {
                int images = 0;
                memset(got, 0xA5, sizeof got);
                config.parts.part = part;
                config.parts.ranks = ranks;
                for (config.parts.rank = 0; config.parts.rank < ranks; config.parts.rank++)
                    images += load_epoch(config, &set, workers, got);
                assert_int_equal(images, KEPT / 6 * 6);
                assert_memory_equal(got, want, (size_t)images * sizeof *got);
            }
        }
    }
    detection_set_close(&set);
}

/* Evaluation resizes with the same rule and has no targets. */
static void evaluation_has_no_masks(void **state) {
    (void)state;
    DetectionSet set;
    DetectionLoader loader;
    DetectionPart part;
    int images = 0;
    open_set(&set, false);
    DetectionLoaderConfig config = {.parts = {.batch_size = 1}, .augment = MIXED, .multiple = 32};
    detection_open(&loader, &set, &config);
    parts_start(&loader.parts, 0, 0);
    for (; detection_next(&loader, &part); images++) {
        const CocoImage *image = &set.coco.images[images];
        DetectionDraw d = detection_resize(DETECTION_MMDETECTION, image->width, image->height, 60, 220);
        assert_true(part.image[0] == images && part.size[0][0] == d.height && part.size[0][1] == d.width);
        assert_true(part.height == (d.height + 31) / 32 * 32 && part.width == (d.width + 31) / 32 * 32);
        assert_true(!part.masks && !part.corners && part.first[1] == 0);
    }
    assert_int_equal(images, IMAGES);
    detection_close(&loader);
    detection_set_close(&set);
}

/* == Scenes ======================================================================================================= */

static void scenes_have_masks_where_asked_for(void **state) {
    (void)state;
    enum { COUNT = 40, SIDE = 96 };
    static uint8_t owner[SIDE * SIDE], pixels[SIDE * SIDE];
    DetectionSet boxes, masks;
    detection_set_scenes(&boxes, DETECTION_BOXES, true, check_seed(), SIDE, COUNT);
    detection_set_scenes(&masks, DETECTION_MASKS, true, check_seed(), SIDE, COUNT);
    assert_int_equal(boxes.coco.annotation_count, masks.coco.annotation_count);
    assert_int_equal(masks.coco.image_count, COUNT);
    assert_int_equal(masks.classes, SHAPES_CLASSES + 1);
    for (size_t i = 0; i < masks.coco.annotation_count; i++) {
        const CocoAnnotation *a = &masks.coco.annotations[i], *b = &boxes.coco.annotations[i];
        int label[SCENES_MOST], box[SCENES_MOST][4], area = 0;
        int number = 1 + (int)(i - masks.coco.images[a->image].first);
        scenes_draw(check_seed(), 0, (uint32_t)a->image, SIDE, NULL, owner, label, box);
        rle_decode(pixels, coco_annotation_mask(&masks.coco, i));
        for (int at = 0; at < SIDE * SIDE; at++) {
            assert_int_equal(pixels[at], (owner[at] & ~SCENES_EDGE) == number);
            area += pixels[at];
        }
        assert_true(a->area == area && b->area == b->box[2] * b->box[3]);
        assert_memory_equal(a->box, b->box, sizeof a->box);
        assert_true(a->id == b->id && a->category_id == b->category_id && a->category_id == label[number - 1] + 1);
    }
    detection_set_close(&boxes);
    detection_set_close(&masks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(targets_agree_with_pixels),
        cmocka_unit_test(transformed_bitmaps_have_the_same_targets),
        cmocka_unit_test(training_leaves_pictures_out),
        cmocka_unit_test(a_set_without_objects_is_refused),
        cmocka_unit_test(masks_do_not_depend_on_workers_or_ranks),
        cmocka_unit_test(evaluation_has_no_masks),
        cmocka_unit_test(scenes_have_masks_where_asked_for),
    };
    return cmocka_run_group_tests(tests, make_pictures, remove_folder);
}
