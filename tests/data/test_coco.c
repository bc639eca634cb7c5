/* Reading COCO's annotation files: the tables, what is repaired, and the message for every kind of damage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/detection/coco.h"
#include "tests/check.h"
#include "tests/scratch.h"

/* A whole file of three lists; a list that is NULL is left out. */
static const char *file_of(const char *images, const char *annotations, const char *categories) {
    static char text[1 << 14];
    int used = snprintf(text, sizeof text, "{\"info\": {\"year\": 2017, \"x\": [[1], {\"images\": [3]}]}");
    const char *names[] = {"images", "annotations", "categories"}, *lists[] = {images, annotations, categories};
    for (int i = 0; i < 3; i++) {
        if (!lists[i]) continue;
        used += snprintf(text + used, sizeof text - (size_t)used, ", \"%s\": [%s]", names[i], lists[i]);
    }
    snprintf(text + used, sizeof text - (size_t)used, "}");
    return text;
}

#define IMAGES                                                                                          \
    "{\"id\": 30, \"file_name\": \"c.jpg\", \"width\": 100, \"height\": 50, \"license\": 1},"           \
    "{\"height\": 480, \"id\": 10, \"coco_url\": \"http://\\u00e9\", \"file_name\": \"a.jpg\", \"width\": 640}," \
    "{\"id\": 20, \"file_name\": \"b.jpg\", \"width\": 7, \"height\": 9}"
#define CATEGORIES                                                                                                     \
    "{\"id\": 90, \"name\": \"toothbrush\", \"supercategory\": \"indoor\"}, {\"id\": 1, \"name\": \"person\"}"
#define BOX(id, image, category, x, y, w, h)                                                                           \
    "{\"id\": " #id ", \"image_id\": " #image ", \"category_id\": " #category ", \"bbox\": [" #x ", " #y ", " #w       \
    ", " #h "]}"

static void parses(Coco *coco, const char *text) {
    Error error = {.text = ""};
    if (!coco_parse(coco, text, strlen(text), 0, COCO_NO_MASKS, &error)) fail_msg("%s", error.text);
}

static void tables_are_sorted_and_grouped(void **state) {
    (void)state;
    Coco coco;
    parses(&coco, file_of(IMAGES,
                          "{\"segmentation\": [[1.5, 2, 3, 4]], \"area\": 12.25, \"iscrowd\": 1, \"image_id\": 30, "
                          "\"bbox\": [1.5, 2, 3e1, 4.125], \"category_id\": 90, \"id\": 900100581357},"
                          "{\"segmentation\": {\"counts\": [1, 2], \"size\": [3, 4]}, \"image_id\": 10, \"id\": 5, "
                          "\"bbox\": [0, 0, 6, 7], \"category_id\": 1}," BOX(4, 30, 1, 1, 2, 3, 4) "," BOX(
                              3, 10, 90, 5, 5, 5, 5),
                          CATEGORIES));
    assert_int_equal(coco.image_count, 3);
    assert_int_equal(coco.images[0].id, 10);
    assert_string_equal(coco.images[0].file_name, "a.jpg");
    assert_int_equal(coco.images[0].width, 640);
    assert_int_equal(coco.images[0].height, 480);
    assert_int_equal(coco.images[1].count, 0);
    assert_int_equal(coco.category_count, 2);
    assert_int_equal(coco.categories[0].id, 1);
    assert_string_equal(coco.categories[1].name, "toothbrush");
    assert_int_equal(coco_num_classes(&coco), 91);
    assert_int_equal(coco_find_image(&coco, 20), 1);
    assert_int_equal(coco_find_image(&coco, 21), -1);
    assert_int_equal(coco_find_category(&coco, 90), 1);
    assert_int_equal(coco_find_category(&coco, 2), -1);

    const int64_t ids[] = {5, 3, 900100581357, 4};
    assert_int_equal(coco.annotation_count, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(coco.annotations[i].id, ids[i]);
    const CocoAnnotation *crowd = &coco.annotations[2];
    assert_int_equal(crowd->image, 2);
    assert_int_equal(crowd->category, 1);
    assert_true(crowd->crowd && crowd->area == 12.25 && crowd->box[0] == 1.5 && crowd->box[2] == 30);
    assert_true(!coco.annotations[0].crowd && coco.annotations[0].area == 42); /* the file has neither */
    assert_int_equal(coco.outside + coco.degenerate + coco.zero_ids, 0);
    coco_close(&coco);
}

/* Images and annotations in any order give the same tables as a simple computation. */
static void drawn_files_give_the_tables_of_a_plain_reading(void **state) {
    (void)state;
    enum { IMAGE_COUNT = 40, BOX_COUNT = 300, ROOM = 1 << 17 };
    char *text = malloc(ROOM);
    int image_of[BOX_COUNT], turn = (int)rng_below(check_seed(), RNG_TEST, 1, 0, 0, IMAGE_COUNT), used = 0;
    used += snprintf(text, ROOM, "{\"annotations\": [");
    for (int i = 0; i < BOX_COUNT; i++) {
        image_of[i] = (int)rng_below(check_seed(), RNG_TEST, 1, 1, (uint64_t)i, IMAGE_COUNT);
        used += snprintf(text + used, (size_t)(ROOM - used),
                         "%s{\"id\": %d, \"image_id\": %d, \"category_id\": 3, \"bbox\": [%d, 0, 1, 1]}", i ? "," : "",
                         1000 - i, 7 * image_of[i], i);
    }
    used += snprintf(text + used, (size_t)(ROOM - used), "], \"images\": [");
    for (int i = 0; i < IMAGE_COUNT; i++) {
        int image = (i * 11 + turn) % IMAGE_COUNT;
        used += snprintf(text + used, (size_t)(ROOM - used),
                         "%s{\"id\": %d, \"width\": %d, \"height\": 4, \"file_name\": \"%d\"}", i ? "," : "", 7 * image,
                         image + 1, image);
    }
    snprintf(text + used, (size_t)(ROOM - used), "], \"categories\": [{\"id\": 3, \"name\": \"x\"}]}");
    Coco coco;
    parses(&coco, text);
    size_t next = 0;
    for (int image = 0; image < IMAGE_COUNT; image++) {
        assert_int_equal(coco.images[image].id, 7 * image);
        assert_int_equal(coco.images[image].width, image + 1);
        assert_int_equal(atoi(coco.images[image].file_name), image);
        assert_int_equal(coco.images[image].first, next);
        for (int i = 0; i < BOX_COUNT; i++) {
            if (image_of[i] != image) continue;
            assert_int_equal(coco.annotations[next].id, 1000 - i);
            assert_int_equal(coco.annotations[next].image, image);
            assert_true(coco.annotations[next++].box[0] == i);
        }
        assert_int_equal((size_t)coco.images[image].count, next - coco.images[image].first);
    }
    assert_int_equal(next, BOX_COUNT);
    coco_close(&coco);
    free(text);
}

/* == Targets for training ========================================================================================== */

static void targets_are_clipped_and_slivers_kept(void **state) {
    (void)state;
    Coco coco;
    static const char crowd[] =
        "{\"id\": 6, \"image_id\": 30, \"category_id\": 1, \"bbox\": [0, 0, 9, 9], \"iscrowd\": 1}";
    char boxes[2048];
    snprintf(boxes, sizeof boxes, "%s, %s, %s, %s, %s, %s, %s", BOX(1, 30, 90, -5, 10, 20.5, 60),
             BOX(2, 30, 1, 99.5, 49.5, 3, 3), BOX(3, 30, 1, 100, 0, 5, 5), BOX(4, 30, 1, 10, 10, 0, 5),
             BOX(5, 30, 1, 20, 10, -4, 5), crowd, BOX(7, 30, 1, 3, 4, 5, 6));
    parses(&coco, file_of(IMAGES, boxes, CATEGORIES));
    float box[7][4];
    int label[7];
    const float want[3][4] = {{0, 10, 15.5f, 50}, {99.5f, 49.5f, 100, 50}, {3, 4, 8, 10}};
    const int want_label[3] = {90, 1, 1};
    assert_int_equal(coco_targets(&coco, 2, box, label, NULL), 3);
    assert_memory_equal(box, want, sizeof want);
    assert_memory_equal(label, want_label, sizeof want_label);
    assert_int_equal(coco_targets(&coco, 0, box, label, NULL), 0); /* an image without boxes is kept as background */
    assert_int_equal(coco.degenerate, 3);
    assert_int_equal(coco.outside, 3); /* 1, 2 and 3 */
    coco_close(&coco);
}

/* == Damage ======================================================================================================= */

static void refused(const char *text, const char *words) {
    Error error = {.text = ""};
    Coco coco;
    for (size_t piece = 0; piece < 4; piece += 3) {
        assert_false(coco_parse(&coco, text, strlen(text), piece, COCO_NO_MASKS, &error));
        if (!piece) printf("  %s\n", error.text);
        if (!strstr(error.text, words)) fail_msg("'%s' is missing in '%s'", words, error.text);
        assert_null(strchr(error.text, '\n'));
        assert_null(coco.images); /* nothing left to free */
    }
}

static void broken_json_is_refused(void **state) {
    (void)state;
    const char *whole = file_of(IMAGES, BOX(1, 10, 1, 1, 2, 3, 4), CATEGORIES);
    char cut[1 << 13];
    Error error;
    size_t size = strlen(whole);
    assert_true(size < sizeof cut);
    for (size_t length = 0; length < size; length++) { /* every truncation is refused */
        Coco coco;
        memcpy(cut, whole, length);
        assert_false(coco_parse(&coco, cut, length, 0, COCO_NO_MASKS, &error));
        if (!strstr(error.text, "cut short")) fail_msg("cut to %zu bytes: %s", length, error.text);
    }
    refused("", "cut short");
    refused("{\"images\": [{\"id\": 1,}]}", "not JSON at byte 2");
    refused("{\"images\": [{\"id\": 01}]}", "not JSON at byte");
    refused("{\"images\": [], \"a\": \"\xff\"}", "not JSON at byte");
    refused("{\"images\": []} x", "not JSON at byte");
    refused("\xef\xbb\xbf{}", "not JSON at byte");
    char deep[4096];
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"x\":", 5);
    deep[sizeof deep - 1] = 0;
    refused(deep, "maximum parsing depth");
}

static void wrong_types_are_refused(void **state) {
    (void)state;
    static const char image[] = "{\"id\": %s, \"file_name\": %s, \"width\": %s, \"height\": 5}";
    static const char box[] =
        "{\"id\": 1, \"image_id\": 10, \"category_id\": 1, \"bbox\": %s, \"iscrowd\": %s, \"area\": %s}";
    static const struct {
        const char *value[3], *words;
    } images[] = {{{"\"1\"", "\"a\"", "5"}, "images[0].id: expected an integer"},
                  {{"1.5", "\"a\"", "5"}, "images[0].id: expected an integer"},
                  {{"99999999999999999999", "\"a\"", "5"}, "images[0]: refused at byte 92: too big integer"},
                  {{"{}", "\"a\"", "5"}, "images[0].id: expected an integer"},
                  {{"1", "7", "5"}, "images[0].file_name: expected a text"},
                  {{"1", "null", "5"}, "images[0].file_name: expected a text"},
                  {{"1", "\"\"", "5"}, "images[0].file_name: expected a text of 1 to 1023"},
                  {{"1", "\"a\\u0000b\"", "5"}, "images[0].file_name: expected a text of 1 to 1023"},
                  {{"1", "\"a\"", "true"}, "images[0].width: expected an integer"},
                  {{"1", "\"a\"", "0"}, "images[0]: 0 x 5 pixels, expected sides of 1 to 32768"},
                  {{"1", "\"a\"", "32769"}, "32769 x 5 pixels"}},
      boxes[] = {{{"7", "0", "1"}, "annotations[0].bbox: expected an array of four numbers"},
                 {{"[1, 2, 3]", "0", "1"}, "annotations[0].bbox: expected an array of four numbers"},
                 {{"[1, 2, 3, 4, 5]", "0", "1"}, "annotations[0].bbox: expected an array of four numbers"},
                 {{"[1, 2, 3, \"4\"]", "0", "1"}, "annotations[0].bbox: expected an array of four numbers"},
                 {{"[1, [2], 3, 4]", "0", "1"}, "annotations[0].bbox: expected an array of four numbers"},
                 {{"[1, 2, 3, {}]", "0", "1"}, "annotations[0].bbox: expected an array of four numbers"},
                 {{"[1, 2, 3, null]", "0", "1"}, "annotations[0].bbox: expected an array of four numbers"},
                 {{"[1, 2, 3, 1e999]", "0", "1"}, "annotations[0]: refused at byte"},
                 {{"[1, 2, 3, 4]", "2", "1"}, "annotations[0].iscrowd: expected 0 or 1"},
                 {{"[1, 2, 3, 4]", "false", "[1]"}, "annotations[0].area: expected a number"},
                 {{"[1, 2, 3, 4]", "0", "-1e999"}, "annotations[0]: refused at byte"}};
    for (size_t i = 0; i < sizeof images / sizeof *images; i++) {
        char text[512];
        const char *const *v = images[i].value;
        snprintf(text, sizeof text, image, v[0], v[1], v[2]);
        refused(file_of(text, "", ""), images[i].words);
    }
    for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++) {
        char text[512];
        const char *const *v = boxes[i].value;
        snprintf(text, sizeof text, box, v[0], v[1], v[2]);
        refused(file_of(IMAGES, text, CATEGORIES), boxes[i].words);
    }
    refused("[1, 2]", "expected an object");
    refused("7", "expected an object");
    refused("{\"images\": {}}", "images: expected an array");
    refused("{\"images\": null}", "images: expected an array");
    refused("{\"images\": [3]}", "images[0]: expected an object");
    refused("{\"images\": [[]]}", "images[0]: expected an object");
}

static void missing_and_doubled_things_are_refused(void **state) {
    (void)state;
    refused(file_of(IMAGES, NULL, CATEGORIES), "no list \"annotations\"");
    refused(file_of(NULL, "", CATEGORIES), "no list \"images\"");
    refused(file_of(IMAGES, "", NULL), "no list \"categories\"");
    refused(file_of("", "", CATEGORIES), "no images");
    refused("{\"images\": [], \"images\": []}", "images: occurs twice");
    refused(file_of("{\"id\": 1, \"width\": 2, \"height\": 2}", "", ""), "images[0]: no \"file_name\"");
    refused(file_of(IMAGES, "{\"id\": 1, \"image_id\": 10, \"category_id\": 1}", CATEGORIES),
            "annotations[0]: no \"bbox\"");
    refused(file_of(IMAGES "," IMAGES, "", CATEGORIES), "images: the id 10 occurs twice");
    refused(file_of(IMAGES, "", CATEGORIES "," CATEGORIES), "categories: the id 1 occurs twice");
    refused(file_of(IMAGES, BOX(8, 10, 1, 0, 0, 1, 1) "," BOX(9, 10, 1, 0, 0, 1, 1) "," BOX(8, 20, 1, 0, 0, 1, 1),
                    CATEGORIES),
            "annotations: the id 8 occurs twice");
    refused(file_of(IMAGES, BOX(8, 10, 1, 0, 0, 1, 1) "," BOX(9, 11, 1, 0, 0, 1, 1), CATEGORIES),
            "annotations[1] (id 9): image_id 11 is not among the images");
    refused(file_of(IMAGES, BOX(8, 10, 2, 0, 0, 1, 1), CATEGORIES),
            "annotations[0] (id 8): category_id 2 is not among the categories");
    refused(file_of(IMAGES, "", "{\"id\": -1, \"name\": \"x\"}"), "categories[0]: id -1: expected 0 to 65535");
    refused(file_of(IMAGES, "", "{\"id\": 65536, \"name\": \"x\"}"), "categories[0]: id 65536: expected 0 to 65535");
}

static void the_last_of_a_doubled_field_counts(void **state) {
    (void)state;
    Coco coco;
    parses(&coco, file_of(IMAGES,
                          "{\"id\": 0, \"id\": 0, \"image_id\": 10, \"category_id\": 1, \"bbox\": [9, 9, 9, 9], "
                          "\"bbox\": [1, 2, 3, 4]}",
                          CATEGORIES));
    assert_true(coco.annotations[0].box[0] == 1 && coco.annotations[0].area == 12);
    assert_int_equal(coco.zero_ids, 1);
    coco_close(&coco);
}

/* == Files ======================================================================================================== */

static const char *put_file(const char *name, const char *text) {
    const char *path = in_folder(name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
    return path;
}

/* The file is longer than the reader's pieces, so that records cross their borders. */
static void long_files_are_read_in_pieces(void **state) {
    (void)state;
    enum { COUNT = 12000, ROOM = 1 << 21 };
    char *text = malloc(ROOM);
    Error error = {.text = ""};
    int used = snprintf(text, ROOM, "{\"images\": [%s], \"categories\": [%s], \"annotations\": [", IMAGES, CATEGORIES);
    for (int i = 0; i < COUNT; i++) {
        used += snprintf(text + used, (size_t)(ROOM - used),
                         "%s{\"segmentation\": [[%d.5, 7]], \"id\": %d, \"image_id\": 20, \"category_id\": 90, "
                         "\"bbox\": [%d, 0.25, 1, 1]}", i ? ", " : "", i, i + 1, i);
    }
    snprintf(text + used, (size_t)(ROOM - used), "]}");
    Coco coco;
    if (!coco_read(&coco, put_file("long.json", text), COCO_NO_MASKS, &error)) fail_msg("%s", error.text);
    assert_int_equal(coco.images[1].count, COUNT);
    for (int i = 0; i < COUNT; i++) assert_true(coco.annotations[i].id == i + 1 && coco.annotations[i].box[0] == i);
    coco_close(&coco);
    assert_false(coco_read(&coco, in_folder("none.json"), COCO_NO_MASKS, &error));
    assert_non_null(strstr(error.text, "cannot open: No such file"));
    assert_false(coco_read(&coco, folder, COCO_NO_MASKS, &error));
    assert_non_null(strstr(error.text, "a folder, expected a file"));
    free(text);
}

/* Pieces may end within anything: keys, numbers, escapes, characters of several bytes, white space. */
static void pieces_of_any_size_change_nothing(void **state) {
    (void)state;
    static const char text[] =
        "{ \"year\" :2017,\"\xc3\xa9\": -1.5e-3, \"skipped\" : [ 12, {\"a\": [] }, \"\xf0\x9f\x90\xb1\", null ] , \"on\":true,"
        "\"images\":[{\"id\":9007199254740993,\"file_name\":\"\\u00e9\xc3\xa9\\n\",\"width\":5,\"height\":5}]\n,\t"
        "\"categories\":[{\"id\":7,\"name\":\"x\"}],\"empty\":[ ],\"annotations\":[{\"id\":-9223372036854775808,"
        "\"image_id\":9007199254740993,\"category_id\":7,\"bbox\":[0.1,12345678901234567,3e1,4],\"iscrowd\":true}]}  ";
    for (size_t piece = 1; piece <= sizeof text; piece++) {
        Coco coco;
        Error error = {.text = ""};
        if (!coco_parse(&coco, text, sizeof text - 1, piece, COCO_NO_MASKS, &error))
            fail_msg("pieces of %zu: %s", piece, error.text);
        assert_true(coco.images[0].id == 9007199254740993); /* not representable by a double */
        assert_string_equal(coco.images[0].file_name, "\xc3\xa9\xc3\xa9\n");
        assert_true(coco.annotations[0].id == INT64_MIN && coco.annotations[0].crowd);
        assert_true(coco.annotations[0].box[0] == 0.1 && coco.annotations[0].box[1] == 12345678901234567.0);
        coco_close(&coco);
    }
}

static void zero_bytes_are_refused_everywhere(void **state) {
    (void)state;
    const char *whole = file_of(IMAGES, BOX(1, 10, 1, 1, 2, 3, 4), CATEGORIES);
    size_t size = strlen(whole);
    char damaged[1 << 13], words[64];
    Error error;
    assert_true(size < sizeof damaged);
    for (size_t at = 0; at <= size; at++) {
        Coco coco;
        memcpy(damaged, whole, at);
        damaged[at] = 0;
        memcpy(damaged + at + 1, whole + at, size - at);
        assert_false(coco_parse(&coco, damaged, size + 1, 0, COCO_NO_MASKS, &error));
        snprintf(words, sizeof words, "not JSON at byte %zu: zero", at);
        assert_string_equal(error.text, words);
    }
}

/* The length of a record is limited; the length of a file is not. */
static void endless_records_are_refused(void **state) {
    (void)state;
    enum { SIZE = 40 << 20 };
    char *text = malloc(SIZE);
    Error error = {.text = ""};
    Coco coco;
    memset(text, ' ', SIZE);
    int used = sprintf(text, "{\"skipped\": [");
    for (int i = used; i < SIZE - 1000; i += 1000) memcpy(text + i, i > used ? ", 0" : "  0", 3);
    memcpy(text + SIZE - 1000, "], ", 3);
    const char *whole = file_of(IMAGES, "", CATEGORIES);
    memcpy(text + SIZE - 900, whole + 1, strlen(whole + 1));
    if (!coco_parse(&coco, text, SIZE, 4096, COCO_NO_MASKS, &error)) fail_msg("%s", error.text);
    coco_close(&coco);
    memset(text, 'x', SIZE);
    memcpy(text, "{\"images\": [{\"x\": \"", 19);
    assert_false(coco_parse(&coco, text, SIZE, 4096, COCO_NO_MASKS, &error));
    assert_string_equal(error.text, "images[0]: more than 16 MB without an end from byte 12 on");
    free(text);
}

static void missing_pictures_are_named(void **state) {
    (void)state;
    Error error = {.text = ""};
    Coco coco;
    parses(&coco, file_of(IMAGES, "", CATEGORIES));
    put_file("b.jpg", "x");
    assert_false(coco_check_files(&coco, folder, &error));
    assert_string_equal(error.text, "no picture a.jpg, nor 1 more of 3");
    put_file("a.jpg", "x");
    assert_false(coco_check_files(&coco, folder, &error));
    assert_string_equal(error.text, "no picture c.jpg");
    put_file("c.jpg", "x");
    assert_true(coco_check_files(&coco, folder, &error));
    coco_close(&coco);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_sorted_and_grouped),
        cmocka_unit_test(drawn_files_give_the_tables_of_a_plain_reading),
        cmocka_unit_test(targets_are_clipped_and_slivers_kept),
        cmocka_unit_test(broken_json_is_refused),
        cmocka_unit_test(wrong_types_are_refused),
        cmocka_unit_test(missing_and_doubled_things_are_refused),
        cmocka_unit_test(the_last_of_a_doubled_field_counts),
        cmocka_unit_test(long_files_are_read_in_pieces),
        cmocka_unit_test(pieces_of_any_size_change_nothing),
        cmocka_unit_test(zero_bytes_are_refused_everywhere),
        cmocka_unit_test(endless_records_are_refused),
        cmocka_unit_test(missing_pictures_are_named),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
