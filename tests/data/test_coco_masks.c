/* Segmentations of COCO's annotation files: polygons and run lengths against pycocotools' masks
 * (tests/fixtures/detection/masks.txt), what is kept for training, and the message for every kind of damage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/detection/coco.h"
#include "tests/check.h"

/* A file with images 1 (9 rows x 10 columns) and 2 (50 x 100), categories 3 and 7, and these annotations. */
static const char *file_of(const char *annotations) {
    static char text[1 << 14];
    snprintf(text, sizeof text,
             "{\"images\": [{\"id\": 2, \"file_name\": \"b\", \"width\": 100, \"height\": 50},"
             " {\"id\": 1, \"file_name\": \"a\", \"width\": 10, \"height\": 9}],"
             " \"categories\": [{\"id\": 7, \"name\": \"x\"}, {\"id\": 3, \"name\": \"y\"}], \"annotations\": [%s]}",
             annotations);
    return text;
}

#define MASK(id, image, segmentation)                                                                                  \
    "{\"id\": " #id ", \"image_id\": " #image ", \"category_id\": 7, \"bbox\": [1, 1, 8, 7], \"area\": 20,"           \
    " \"segmentation\": " segmentation "}"

static void parses(Coco *coco, const char *text, CocoMaskKind kind) {
    Error error = {.text = ""};
    if (!coco_parse(coco, text, strlen(text), 0, kind, &error)) fail_msg("%s", error.text);
}

static void expect_text(const Rle *rle, const char *want) {
    char *text = NULL;
    size_t room = 0;
    assert_non_null(rle);
    rle_text(&text, &room, rle);
    assert_string_equal(text, want);
    free(text);
}

/* == What is read ================================================================================================= */

/* Five polygons, a union of two, and the same mask as text and as a list of runs; texts and areas are pycocotools'. */
#define SPECIMENS                                                                                                      \
    MASK(1, 1, "[[1.5,1.5, 8.5,2, 4,7.25]]")                                                                           \
    "," MASK(2, 1, "[[2,2,7,2,7,6,2,6]]")                                                                              \
    "," MASK(3, 1, "[[-2,3,5.5,-1,12,4.5,6,11]]")                                                                      \
    "," MASK(4, 1, "[[1,1,8,7,8,1,1,7]]")                                                                              \
    "," MASK(5, 1, "[[3.4,0,3.4,9,3.5,9,3.5,0]]")                                                                      \
    "," MASK(6, 1, "[[1.5,1.5, 8.5,2, 4,7.25], [1, 2, 3, 4], [2,2,7,2,7,6,2,6], []]")                                  \
    "," MASK(7, 1, "{\"counts\": \"d0272N1ON2O1Oa0\", \"size\": [9, 10]}")                                             \
    "," MASK(8, 1, "{\"size\": [9, 10], \"counts\": [20, 2, 7, 4, 5, 5, 4, 3, 6, 2, 7, 1, 24]}")                       \
    "," MASK(9, 1, "[[1, 2, 3, 4]]")                                                                                   \
    "," MASK(10, 1, "[]")                                                                                              \
    "," MASK(11, 1, "[[100, 100, 200, 100, 200, 200]]")                                                                \
    "," MASK(12, 1, "[[1e300, -1e300, 3, 1e39, -5e38, 4]]")                                                            \
    "," MASK(13, 1, "{\"counts\": [], \"size\": [9, 10]}")

static void polygons_become_pycocotools_masks(void **state) {
    (void)state;
    static const char *const texts[] = {"d0272N1ON2O1Oa0", "d0450000000i0", "2352O1N2Oc00]O1N1OO", ":55O1N:0F2N1a0",
                                        "k09f1"};
    static const uint32_t areas[] = {17, 20, 68, 22, 9, 22, 17, 17};
    Coco coco;
    parses(&coco, file_of(SPECIMENS), COCO_RLE);
    assert_int_equal(coco.annotation_count, 13);
    assert_int_equal(coco.masks.shortened, 2);
    assert_int_equal(coco.maskless, 2);
    for (size_t i = 0; i < 8; i++) {
        const Rle *rle = coco_annotation_mask(&coco, i);
        if (i < 5) expect_text(rle, texts[i]);
        assert_int_equal(rle_extent(rle).area, areas[i]);
        assert_true(rle->height == 9 && rle->width == 10);
    }
    for (size_t i = 6; i < 8; i++) expect_text(coco_annotation_mask(&coco, i), texts[0]);
    for (size_t i = 8; i < 10; i++) assert_null(coco_annotation_mask(&coco, i));
    assert_int_equal(rle_extent(coco_annotation_mask(&coco, 10)).area, 0); /* outside its image */
    assert_in_range(rle_extent(coco_annotation_mask(&coco, 11)).area, 0, 90);
    assert_int_equal(rle_extent(coco_annotation_mask(&coco, 12)).area, 0); /* no runs */
    coco_close(&coco);
}

static void polygons_are_kept_for_training(void **state) {
    (void)state;
    static const float first[] = {1.5f, 1.5f, 8.5f, 2, 4, 7.25f, 2, 2, 7, 2, 7, 6, 2, 6};
    Coco coco;
    parses(&coco, file_of(SPECIMENS), COCO_POLYGONS);
    ObjectMask one = coco_object_mask(&coco, 0), two = coco_object_mask(&coco, 5), runs = coco_object_mask(&coco, 6);
    assert_true(one.rings == 1 && one.ring_points[0] == 3 && !one.rle);
    assert_memory_equal(one.points, first, 6 * sizeof *first);
    assert_true(two.rings == 2 && two.ring_points[0] == 3 && two.ring_points[1] == 4);
    assert_memory_equal(two.points, first, sizeof first);
    assert_true(two.scale[0] == 1 && two.scale[1] == 1 && two.shift[0] == 0 && two.shift[1] == 0);
    assert_true(runs.rings == 0 && runs.rle == coco_annotation_mask(&coco, 6));
    expect_text(runs.rle, "d0272N1ON2O1Oa0");
    assert_null(coco_annotation_mask(&coco, 0));
    ObjectMask far = coco_object_mask(&coco, 11);
    for (int i = 0; i < 6; i++) assert_true(fabsf(far.points[i]) <= 1e8f);
    uint8_t cells[28 * 28];
    MaskScratch scratch = {.points = NULL};
    const float box[4] = {1.25f, 0.5f, 9, 8};
    int count = 0;
    object_mask_target(cells, 28, &one, box, &scratch);
    for (int i = 0; i < 28 * 28; i++) count += cells[i];
    assert_int_equal(count, 260);
    ObjectMask outside = coco_object_mask(&coco, 10);
    object_mask_target(cells, 28, &outside, box, &scratch);
    for (int i = 0; i < 28 * 28; i++) assert_int_equal(cells[i], 0);
    object_mask_target(cells, 28, &far, box, &scratch);
    mask_scratch_free(&scratch);
    coco_close(&coco);
}

/* Without masks a broken segmentation does not matter. */
static void segmentations_are_skipped_unless_asked_for(void **state) {
    (void)state;
    Coco coco;
    parses(&coco, file_of(SPECIMENS "," MASK(14, 1, "[[1, 2, 3]]") "," MASK(15, 2, "7")), COCO_NO_MASKS);
    assert_int_equal(coco.annotation_count, 15);
    assert_null(coco.masks.of);
    assert_true(!coco.maskless && !coco.masks.shortened && !coco.masks.number_room && !coco.masks.run_room);
    coco_close(&coco);
}

/* Reads every polygon of the fixtures as an annotation, with its numbers unchanged. */
static void fixtures_are_pycocotools_masks(void **state) {
    (void)state;
    enum { ROOM = 1 << 20 };
    char *text = malloc(ROOM), line[1 << 14], *lists = malloc(ROOM);
    static char wanted[256][4096];
    int height = 0, width = 0, polygons = 0, groups = 0, used = 0, listed = 0, points, taken;
    FILE *file = fopen("tests/fixtures/detection/masks.txt", "r");
    assert_non_null(file);
    listed += snprintf(lists, ROOM, "{\"categories\": [{\"id\": 3, \"name\": \"y\"}], \"annotations\": [");
    used += snprintf(text, ROOM, "], \"images\": [");
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "group %d %d", &height, &width) == 2) {
            used += snprintf(text + used, (size_t)(ROOM - used),
                             "%s{\"id\": %d, \"file_name\": \"x\", \"height\": %d, \"width\": %d}", groups ? ", " : "",
                             groups + 1, height, width);
            groups++;
        } else if (sscanf(line, "polygon %d%n", &points, &taken) == 1) {
            listed += snprintf(lists + listed, (size_t)(ROOM - listed),
                               "%s{\"id\": %d, \"image_id\": %d, \"category_id\": 3, \"bbox\": [0, 0, 1, 1],"
                               " \"segmentation\": [[",
                               polygons ? ", " : "", polygons + 1, groups);
            char *number = strtok(line + taken, " \n");
            for (int i = 0; number; i++, number = strtok(NULL, " \n"))
                listed += snprintf(lists + listed, (size_t)(ROOM - listed), "%s%s", i ? ", " : "", number);
            listed += snprintf(lists + listed, (size_t)(ROOM - listed), "]]}");
        } else if (!strncmp(line, "mask ", 5)) {
            sscanf(line, "mask %4095s", wanted[polygons++]);
        }
    }
    fclose(file);
    snprintf(lists + listed, (size_t)(ROOM - listed), "%s]}", text);
    assert_int_equal(polygons, 200);
    Coco coco;
    parses(&coco, lists, COCO_RLE);
    for (int i = 0; i < polygons; i++) {
        assert_int_equal(coco.annotations[i].id, i + 1);
        expect_text(coco_annotation_mask(&coco, (size_t)i), wanted[i]);
    }
    coco_close(&coco);
    free(text);
    free(lists);
}

/* Checks that masks stay with their annotations in any order of the file, and if images are left out.  The id of an
 * annotation is the x of its polygon's first corner, or its first run. */
static void expect_marks(const Coco *coco, CocoMaskKind kind) {
    for (size_t i = 0; i < coco->annotation_count; i++) {
        const CocoAnnotation *a = &coco->annotations[i];
        const CocoMask *mask = &coco->masks.of[i];
        int shape = (int)(a->id % 3);
        if (shape == 0) assert_true(!mask->rings && mask->rle < 0);
        if (shape == 1) assert_int_equal(coco_annotation_mask(coco, i)->runs[0], a->id);
        if (shape == 2 && kind == COCO_POLYGONS) {
            ObjectMask object = coco_object_mask(coco, i);
            assert_int_equal(object.rings, 1 + a->id % 2);
            assert_int_equal(object.ring_points[0], 3 + a->id % 5);
            assert_true(object.points[0] == (float)a->id);
        }
        if (shape == 2 && kind == COCO_RLE) { /* a rectangle whose left side is at id / 10 */
            RleExtent extent = rle_extent(coco_annotation_mask(coco, i));
            assert_true(extent.box[0] == (int)(a->id / 10) && extent.box[1] == 1 && extent.box[3] == 3);
        }
    }
}

static void masks_stay_with_their_annotations(void **state) {
    (void)state;
    enum { IMAGE_COUNT = 30, COUNT = 400, ROOM = 1 << 18 };
    char *text = malloc(ROOM);
    for (CocoMaskKind kind = COCO_POLYGONS; kind <= COCO_RLE; kind++) {
        int used = snprintf(text, ROOM, "{\"annotations\": [");
        for (int i = 0; i < COUNT; i++) {
            int id = COUNT - i, image = (int)rng_below(check_seed(), RNG_TEST, 1, 1, (uint64_t)i, IMAGE_COUNT);
            used += snprintf(text + used, (size_t)(ROOM - used),
                             "%s{\"id\": %d, \"image_id\": %d, \"category_id\": 3, \"bbox\": [0, 0, 1, 1], "
                             "\"segmentation\": ",
                             i ? "," : "", id, 7 * image);
            if (id % 3 == 0) used += snprintf(text + used, (size_t)(ROOM - used), "[]}");
            if (id % 3 == 1)
                used += snprintf(text + used, (size_t)(ROOM - used), "{\"size\": [20, 60], \"counts\": [%d, 1]}}", id);
            if (id % 3 != 2) continue;
            if (kind == COCO_RLE) {
                used += snprintf(text + used, (size_t)(ROOM - used), "[[%d, 1, 55, 1, 55, 3, %d, 3]]}", id / 10,
                                 id / 10);
                continue;
            }
            used += snprintf(text + used, (size_t)(ROOM - used), "[[%d, 1", id);
            for (int k = 1; k < 3 + id % 5; k++) used += snprintf(text + used, (size_t)(ROOM - used), ", %d, 2.5", k);
            used += snprintf(text + used, (size_t)(ROOM - used), "]%s]}", id % 2 ? ", [0, 0, 5, 5, 0, 5]" : "");
        }
        used += snprintf(text + used, (size_t)(ROOM - used), "], \"images\": [");
        for (int i = 0; i < IMAGE_COUNT; i++)
            used += snprintf(text + used, (size_t)(ROOM - used),
                             "%s{\"id\": %d, \"width\": 60, \"height\": 20, \"file_name\": \"x\"}", i ? "," : "",
                             7 * (i * 11 % IMAGE_COUNT));
        snprintf(text + used, (size_t)(ROOM - used), "], \"categories\": [{\"id\": 3, \"name\": \"x\"}]}");
        Coco coco;
        Error error;
        bool keep[IMAGE_COUNT];
        for (size_t piece = 0; piece < 8; piece += 7) {
            if (!coco_parse(&coco, text, strlen(text), piece, kind, &error)) fail_msg("%s", error.text);
            assert_int_equal(coco.annotation_count, COUNT);
            expect_marks(&coco, kind);
            size_t kept = 0;
            for (int i = 0; i < IMAGE_COUNT; i++) {
                keep[i] = i == 3 || rng_below(check_seed(), RNG_TEST, 2, (uint32_t)piece, (uint64_t)i, 2);
                kept += keep[i] ? (size_t)coco.images[i].count : 0;
            }
            coco_keep(&coco, keep);
            assert_int_equal(coco.annotation_count, kept);
            expect_marks(&coco, kind);
            for (int i = 0; i < coco.image_count; i++) {
                const CocoImage *image = &coco.images[i];
                assert_true(keep[image->id / 7]);
                for (size_t k = image->first; k < image->first + (size_t)image->count; k++)
                    assert_true(coco.annotations[k].image == i && coco.annotations[k].image_id == image->id);
            }
            coco_close(&coco);
        }
    }
    free(text);
}

/* == Targets for training ========================================================================================== */

#define OBJECT(id, category, box, area, more)                                                                          \
    "{\"id\": " #id ", \"image_id\": 2, \"category_id\": " #category ", \"bbox\": " box ", \"area\": " area            \
    ", \"segmentation\": [[1, 1, 9, 1, 9, 9]]" more "}"

static void targets_are_mmdetections(void **state) {
    (void)state;
    static const char annotations[] = OBJECT(1, 7, "[90, 40, 20, 20]", "12", "") "," OBJECT(
        2, 3, "[5, 5, 0.99, 20]", "12", "") "," OBJECT(3, 3, "[5, 5, 20, 0.99]", "12",
                                                       "") "," OBJECT(4, 3, "[5, 5, 1, 1]", "0.5",
                                                                      "") "," OBJECT(5, 3, "[5, 5, 9, 9]", "0", "")
        "," OBJECT(6, 3, "[5, 5, 9, 9]", "-1", "") "," OBJECT(7, 3, "[5, 5, 9, 9]", "9", ", \"iscrowd\": 1")
        "," OBJECT(8, 3, "[100, 5, 9, 9]", "9", "") "," MASK(9, 2, "[[1, 2, 3, 4]]");
    const float want[2][4] = {{90, 40, 100, 50}, {5, 5, 6, 6}};
    for (CocoMaskKind kind = COCO_NO_MASKS; kind <= COCO_RLE; kind++) {
        Coco coco;
        float box[9][4];
        int label[9];
        size_t place[9];
        parses(&coco, file_of(annotations), kind);
        int count = coco_targets(&coco, 1, box, label, place);
        if (kind == COCO_NO_MASKS) { /* as in DETR: all but the crowd and the one outside */
            assert_int_equal(count, 7);
            assert_true(label[0] == 7 && label[1] == 3);
            assert_int_equal(coco_num_classes(&coco), 8);
            assert_true(coco_category_id(&coco, 7) == 7 && coco_category_id(&coco, 5) == -1);
        } else {
            assert_int_equal(count, 2);
            assert_memory_equal(box, want, sizeof want);
            assert_true(label[0] == 2 && label[1] == 1 && place[0] == 0 && place[1] == 3);
            assert_int_equal(coco_num_classes(&coco), 3);
            assert_true(coco_category_id(&coco, 1) == 3 && coco_category_id(&coco, 2) == 7);
            assert_true(coco_category_id(&coco, 0) == -1 && coco_category_id(&coco, 3) == -1);
        }
        coco_close(&coco);
    }
}

/* == Damage ======================================================================================================= */

static void damaged_segmentations_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *annotations, *line;
    } cases[] = {
        {MASK(5, 1, "7"), "annotations[0]: id 5: segmentation: neither polygons nor run lengths"},
        {MASK(5, 1, "null"), "annotations[0]: id 5: segmentation: neither polygons nor run lengths"},
        {MASK(4, 1, "[]") "," MASK(5, 1, "[1, 2, 3, 4, 5, 6]"),
         "annotations[1]: id 5: segmentation: polygon 0: expected a list of numbers"},
        {MASK(5, 1, "[[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7]]"),
         "annotations[0]: id 5: segmentation: polygon 1: 7 numbers, expected x and y of each corner"},
        {MASK(5, 1, "[[1, 2, 3]]"), "segmentation: polygon 0: 3 numbers, expected x and y of each corner"},
        {MASK(5, 1, "[[1, 2, 3, 4, 5, \"6\"]]"), "id 5: segmentation: polygon 0: expected a list of numbers"},
        {MASK(5, 1, "[[1, 2, 3, 4, 5, [6]]]"), "id 5: segmentation: polygon 0: expected a list of numbers"},
        {MASK(5, 1, "{\"counts\": [90]}"), "id 5: segmentation: \"size\": expected height and width, 1 to 32768 each"},
        {MASK(5, 1, "{\"counts\": [90], \"size\": [9]}"), "\"size\": expected height and width"},
        {MASK(5, 1, "{\"counts\": [90], \"size\": [9, \"10\"]}"), "\"size\": expected height and width"},
        {MASK(5, 1, "{\"counts\": [90], \"size\": [0, 10]}"), "\"size\": expected height and width"},
        {MASK(5, 1, "{\"counts\": [90], \"size\": [9, 32769]}"), "\"size\": expected height and width"},
        {MASK(5, 1, "{\"size\": [9, 10]}"), "id 5: segmentation: \"counts\": expected a list of integers, or a text"},
        {MASK(5, 1, "{\"size\": [9, 10], \"counts\": {}}"), "\"counts\": expected a list of integers, or a text"},
        {MASK(5, 1, "{\"size\": [9, 10], \"counts\": [3, 1.5]}"),
         "id 5: segmentation: \"counts\"[1]: expected a whole number of pixels"},
        {MASK(5, 1, "{\"size\": [9, 10], \"counts\": [-1]}"), "\"counts\"[0]: expected a whole number of pixels"},
        {MASK(5, 1, "{\"size\": [9, 10], \"counts\": [4294967296]}"), "\"counts\"[0]: expected a whole number"},
        {MASK(5, 1, "{\"size\": [9, 10], \"counts\": [89, 2]}"),
         "annotations[0]: id 5: segmentation: the RLE covers more than the 9 x 10 pixels of its size (height x width)"},
        {MASK(5, 1, "{\"size\": [9, 10], \"counts\": [4294967295, 2]}"), "the RLE covers more than the 9 x 10"},
        {MASK(5, 1, "{\"size\": [9, 10], \"counts\": \"d0272N1ON2O1Oa0a0\"}"), "the RLE covers more than the 9 x 10"},
        {MASK(5, 1, "{\"size\": [9, 10], \"counts\": \"d\"}"), "id 5: segmentation: the RLE text is broken"},
        {MASK(5, 1, "{\"size\": [9, 10], \"counts\": \"d0 72\"}"), "id 5: segmentation: the RLE text is broken"},
        {MASK(5, 1, "{\"size\": [9, 10], \"counts\": \"\\u0000\"}"), "id 5: segmentation: the RLE text is broken"},
        {MASK(4, 1, "[]") "," MASK(5, 1, "{\"size\": [10, 9], \"counts\": [3, 1]}"),
         "annotations[1] (id 5): segmentation: run lengths of 9 x 10 pixels, but its image has 10 x 9"},
        {"{\"id\": 5, \"image_id\": 1, \"category_id\": 7, \"bbox\": [1, 1, 8, 7]}",
         "annotations[0]: no \"segmentation\""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (CocoMaskKind kind = COCO_POLYGONS; kind <= COCO_RLE; kind++) {
            for (size_t piece = 0; piece < 4; piece += 3) {
                Error error = {.text = ""};
                Coco coco;
                const char *text = file_of(cases[i].annotations);
                if (coco_parse(&coco, text, strlen(text), piece, kind, &error)) fail_msg("%s is taken", text);
                if (kind == COCO_RLE && !piece) printf("  %s\n", error.text);
                if (!strstr(error.text, cases[i].line)) fail_msg("'%s' is missing in '%s'", cases[i].line, error.text);
                assert_null(strchr(error.text, '\n'));
                assert_true(!coco.images && !coco.masks.of && !coco.masks.runs && !coco.masks.exact);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(polygons_become_pycocotools_masks),
        cmocka_unit_test(polygons_are_kept_for_training),
        cmocka_unit_test(segmentations_are_skipped_unless_asked_for),
        cmocka_unit_test(fixtures_are_pycocotools_masks),
        cmocka_unit_test(masks_stay_with_their_annotations),
        cmocka_unit_test(targets_are_mmdetections),
        cmocka_unit_test(damaged_segmentations_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
