/* report/facts: facts are read as they were written, in the same order; a file of another form is refused; pictures
 * have at most FACTS_BYTES together. */
#include "report/facts.h"

#include <jansson.h>
#include <math.h>

#include "core/base64.h"
#include "data/images/image.h"
#include "tests/scratch.h"

static const json_t *section(const Facts *facts, size_t i) {
    return json_array_get(json_object_get(facts->all, "sections"), i);
}

static const char *text_of(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

/* Writes the facts to a file and reads them again. */
static void reread(Facts *facts) {
    Error error;
    const char *path = in_folder("report.json");
    if (!facts_write(facts, path, &error)) fail_msg("%s", error.text);
    facts_free(facts);
    if (!facts_read(facts, path, &error)) fail_msg("%s", error.text);
}

static void test_values(void **state) {
    (void)state;
    Facts facts = {0};
    Error error;
    assert_true(facts_read(&facts, in_folder("missing.json"), &error));
    assert_null(facts_get(&facts, "state"));
    assert_true(isnan(facts_number(&facts, "macs")));
    reread(&facts); /* a file without facts is valid */
    facts_set(&facts, "state", "running");
    facts_set(&facts, "state", "done");
    facts_set(&facts, "name", "a\xff\"<\n");
    facts_set(&facts, "reason", "none");
    facts_set(&facts, "reason", NULL);
    facts_set_number(&facts, "macs", 1234567890123.0);
    facts_set_number(&facts, "loss", 0.1);
    facts_set_number(&facts, "bad", NAN);
    reread(&facts);
    assert_string_equal(facts_get(&facts, "state"), "done");
    assert_string_equal(facts_get(&facts, "name"), "a?\"<\n");
    assert_null(facts_get(&facts, "reason"));
    assert_null(facts_get(&facts, "macs"));
    assert_true(facts_number(&facts, "macs") == 1234567890123.0);
    assert_true(facts_number(&facts, "loss") == 0.1);
    assert_true(isnan(facts_number(&facts, "bad")) && isnan(facts_number(&facts, "state")));
    facts_free(&facts);
}

static void test_sections(void **state) {
    (void)state;
    static const char *const names[] = {"class", "top-1"}, *const cells[] = {"cat", "50", "dog", NULL};
    static const double values[] = {3, 0.5, -1, NAN, 0, 7};
    Facts facts = {0};
    facts_table(&facts, "classes", "old", names, 2, cells, 1);
    facts_heat(&facts, "confusion", "Confusion", "true", "said", NULL, 2, (const char *[]){"a", "b", "c"}, 3, values);
    facts_bars(&facts, "ap", "AP", "%", names, values, 2);
    facts_table(&facts, "classes", "Classes", names, 2, cells, 2);
    facts_level(&facts, "bits", "histogram", 7);
    facts_level(&facts, "bits", "gzip", 5.5);
    facts_level(&facts, "bits", "histogram", 7.25);
    reread(&facts);
    const json_t *table = section(&facts, 0), *heat = section(&facts, 1);
    assert_int_equal(json_array_size(json_object_get(facts.all, "sections")), 3);
    assert_string_equal(text_of(table, "title"), "Classes");
    assert_true(json_is_null(json_array_get(json_array_get(json_object_get(table, "rows"), 1), 1)));
    assert_true(json_is_null(json_object_get(heat, "row_names")));
    assert_int_equal(json_array_size(json_object_get(heat, "values")), 6);
    for (size_t i = 0; i < 6; i++)
        assert_true(json_number_value(json_array_get(json_object_get(heat, "values"), i)) == (values[i] > 0 ? values[i] : 0));
    const json_t *levels = json_object_get(facts.all, "levels");
    assert_int_equal(json_array_size(levels), 2);
    assert_true(json_number_value(json_object_get(json_array_get(levels, 0), "value")) == 7.25);
    facts_free(&facts);
}

/* Noise, which no format compresses well, or a single colour. */
static uint8_t *pixels_of(int height, int width, bool noise) {
    uint8_t *pixels = malloc((size_t)height * (size_t)width * 3);
    uint32_t x = 1;
    for (int i = 0; i < height * width * 3; i++) pixels[i] = noise ? (uint8_t)((x = x * 1664525u + 1013904223u) >> 24) : 200;
    return pixels;
}

static void test_pictures(void **state) {
    (void)state;
    Facts facts = {0};
    Image image;
    Error error;
    size_t size;
    uint8_t *plain = pixels_of(90, 300, false), *noise = pixels_of(64, 64, true);
    facts_pictures(&facts, "batch", "Batch", NULL);
    assert_true(facts_picture(&facts, "batch", plain, 90, 300, 100, "plain"));
    assert_true(facts_picture(&facts, "batch", noise, 64, 64, 100, NULL));
    reread(&facts);
    const json_t *list = json_object_get(section(&facts, 0), "pictures"), *first = json_array_get(list, 0);
    assert_string_equal(text_of(first, "type"), "image/png");
    assert_string_equal(text_of(json_array_get(list, 1), "type"), "image/jpeg");
    uint8_t *bytes = base64_decode(text_of(first, "data"), &size);
    if (!image_decode(&image, bytes, size, IMAGE_MAX_PIXELS, &error)) fail_msg("%s", error.text);
    assert_int_equal(image.height, 30);
    assert_int_equal(image.width, 100);
    assert_int_equal(image.pixels[0], 200);
    image_free(&image);
    free(bytes);
    int count = 2;
    while (facts_picture(&facts, "batch", noise, 64, 64, 100, NULL)) assert_true(count++ < 1000);
    size_t used = 0;
    json_array_foreach(json_object_get(section(&facts, 0), "pictures"), size, first)
        used += strlen(text_of(first, "data"));
    size_t each = strlen(text_of(json_array_get(list, 1), "data"));
    assert_true(used <= FACTS_BYTES && used + each > FACTS_BYTES);
    facts_pictures(&facts, "batch", "Batch", NULL); /* this removes the earlier pictures */
    assert_true(facts_picture(&facts, "batch", noise, 64, 64, 100, NULL));
    facts_free(&facts);
    free(plain);
    free(noise);
}

static void test_refusals(void **state) {
    (void)state;
#define FILE_OF(sections, levels) "{\"report\": 1, \"values\": {}, \"sections\": [" sections "], \"levels\": [" levels "]}"
#define SECTION(kind, rest) FILE_OF("{\"id\": \"x\", \"title\": \"\", \"kind\": \"" kind "\"" rest "}", "")
    static const char *const files[][2] = {
        {"", "not JSON"},
        {"{\"a\": 1", "not JSON"},
        {"[]", "not the facts of a run"},
        {"{\"report\": 2}", "another version"},
        {"{\"report\": 1}", "values"},
        {FILE_OF("3", ""), "sections[0]"},
        {FILE_OF("{\"id\": \"a b\", \"title\": \"\", \"kind\": \"bars\", \"names\": [], \"values\": []}", ""), "sections[0]"},
        {SECTION("film", ""), "sections[0]"},
        {SECTION("table", ", \"names\": [\"a\"], \"rows\": [[\"1\", \"2\"]]"), "sections[0]"},
        {SECTION("table", ", \"names\": [\"a\"], \"rows\": [[1]]"), "sections[0]"},
        {SECTION("heat", ", \"rows\": 2, \"columns\": 2, \"row_names\": null, \"column_names\": null, \"values\": [1, 2, 3]"),
         "sections[0]"},
        {SECTION("heat", ", \"rows\": 1, \"columns\": 1, \"row_names\": [], \"column_names\": null, \"values\": [1]"),
         "sections[0]"},
        {SECTION("heat", ", \"rows\": 1, \"columns\": 1, \"row_names\": null, \"column_names\": null, \"values\": [-1]"),
         "sections[0]"},
        {SECTION("bars", ", \"names\": [\"a\"], \"values\": [\"1\"]"), "sections[0]"},
        {SECTION("pictures", ", \"pictures\": [{\"type\": \"image/svg+xml\", \"width\": 1, \"height\": 1, \"data\": \"AAAA\"}]"),
         "sections[0]"},
        {SECTION("pictures", ", \"pictures\": [{\"type\": \"image/png\", \"width\": 1, \"height\": 1, \"data\": \"A<A=\"}]"),
         "sections[0]"},
        {FILE_OF("", "{\"column\": \"bits\"}"), "levels[0]"},
    };
    Facts facts;
    Error error;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (facts_parse(&facts, files[i][0], strlen(files[i][0]), &error)) fail_msg("%s is taken", files[i][0]);
        assert_words(error.text, WORDS(files[i][1]));
        assert_null(facts.all);
    }
    assert_true(facts_parse(&facts, FILE_OF("", ""), strlen(FILE_OF("", "")), &error));
    assert_false(facts_write(&facts, in_folder("no/report.json"), &error));
    facts_free(&facts);
}

static void test_base64(void **state) {
    (void)state;
    static const char *const pairs[][2] = {{"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foobar", "Zm9vYmFy"},
                                           {"\xff\xfe", "//4="}};
    char *text;
    size_t length, size;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        FILE *out = open_memstream(&text, &length);
        base64_put(out, (const uint8_t *)pairs[i][0], strlen(pairs[i][0]));
        fclose(out);
        assert_string_equal(text, pairs[i][1]);
        assert_int_equal(length, base64_length(strlen(pairs[i][0])));
        uint8_t *bytes = base64_decode(text, &size);
        assert_int_equal(size, strlen(pairs[i][0]));
        assert_memory_equal(bytes, pairs[i][0], size);
        free(bytes);
        free(text);
    }
    static const char *const wrong[] = {"", "Zg", "Zg=a", "Z===", "Zm 9", "Zm9v\n"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert_null(base64_decode(wrong[i], &size));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),   cmocka_unit_test(test_sections), cmocka_unit_test(test_pictures),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_base64),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
