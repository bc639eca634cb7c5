/* Held-out validation images, balanced epochs and the weights of classes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "data/loading/loader.h"
#include "data/loading/sampler.h"
#include "data/sets/subset.h"
#include "tests/check.h"

/* == A data set of names ========================================================================================== */

typedef struct {
    int count, classes;
    int labels[400];
    char names[400][32];
    const char *folder;
    int closed;
} Names;

static bool names_read(const Dataset *d, size_t i, SampleBuffer *buffer, Sample *sample, Error *error) {
    (void)buffer, (void)error;
    const Names *n = d->state;
    *sample = (Sample){.bytes = (const uint8_t *)n->names[i], .size = 1, .label = n->labels[i]};
    return true;
}

static void names_describe(const Dataset *d, size_t i, char *text, size_t size) {
    const Names *n = d->state;
    snprintf(text, size, "%s/class%d/%s", n->folder, n->labels[i], n->names[i]);
}

static void names_close(Dataset *d) { ((Names *)d->state)->closed++; }

static Dataset dataset_of(Names *n) {
    return (Dataset){.name = "names", .count = (size_t)n->count, .classes = n->classes, .read = names_read,
                     .describe = names_describe, .close = names_close, .state = n};
}

/* A data set of counts [classes] images, in the order of the classes. */
static Names *names_of(const int *counts, int classes, const char *folder) {
    Names *n = calloc(1, sizeof *n);
    n->folder = folder;
    n->classes = classes;
    for (int c = 0; c < classes; c++)
        for (int i = 0; i < counts[c]; i++, n->count++) {
            n->labels[n->count] = c;
            snprintf(n->names[n->count], sizeof *n->names, "image-%d.png", i);
        }
    return n;
}

/* Whether the data set has this image of this class. */
static bool has(const Dataset *d, int label, const char *name) {
    char wanted[64], text[256];
    snprintf(wanted, sizeof wanted, "/class%d/%s", label, name);
    for (size_t i = 0; i < d->count; i++) {
        dataset_name_image(d, i, text, sizeof text);
        if (strlen(text) >= strlen(wanted) && !strcmp(text + strlen(text) - strlen(wanted), wanted)) return true;
    }
    return false;
}

/* == The split ==================================================================================================== */

static void every_class_gives_its_share(void **state) {
    (void)state;
    const int counts[] = {100, 7, 33, 5};
    Names *n = names_of(counts, 4, "photos");
    Dataset whole = dataset_of(n), rest, held;
    Error error;
    assert_true(subset_divide(&rest, &held, &whole, 0.1, check_seed(), &error));
    assert_int_equal(held.count, 10 + 1 + 3 + 1); /* 0.7 and 0.5 are rounded to 1 */
    assert_int_equal(rest.count + held.count, n->count);
    int of_class[4] = {0}, *labels = dataset_labels(&held), *others = dataset_labels(&rest);
    for (size_t i = 0; i < held.count; i++) of_class[labels[i]]++;
    assert_true(of_class[0] == 10 && of_class[1] == 1 && of_class[2] == 3 && of_class[3] == 1);
    for (size_t i = 1; i < rest.count; i++) assert_true(others[i] >= others[i - 1]); /* the order is kept */
    for (int i = 0; i < n->count; i++)
        assert_true(has(&held, n->labels[i], n->names[i]) != has(&rest, n->labels[i], n->names[i]));
    free(labels);
    free(others);
    dataset_close(&rest);
    assert_int_equal(n->closed, 0);
    dataset_close(&held);
    assert_int_equal(n->closed, 1);
    free(n);
}

/* The split depends neither on the folder's path nor on the order of files, and an image that is added to a class moves
 * few others. */
static void names_and_the_seed_decide(void **state) {
    (void)state;
    const int counts[] = {60, 40}, more[] = {61, 40};
    Names *a = names_of(counts, 2, "photos"), *b = names_of(counts, 2, "elsewhere/photos"), *c = names_of(more, 2, "photos");
    for (int i = 0; i < 30; i++) { /* another order of the first class */
        char swap[32];
        memcpy(swap, b->names[i], sizeof swap);
        memcpy(b->names[i], b->names[59 - i], sizeof swap);
        memcpy(b->names[59 - i], swap, sizeof swap);
    }
    Names *all[] = {a, b, c};
    Dataset whole, rest[3], held[3], other_rest, other;
    Error error;
    for (int i = 0; i < 3; i++) {
        whole = dataset_of(all[i]);
        assert_true(subset_divide(&rest[i], &held[i], &whole, 0.2, 7 + check_seed(), &error));
    }
    int moved = 0, same = 0;
    Names *d = names_of(counts, 2, "photos");
    whole = dataset_of(d);
    assert_true(subset_divide(&other_rest, &other, &whole, 0.2, 8 + check_seed(), &error));
    for (int i = 0; i < a->count; i++) {
        bool is_held = has(&held[0], a->labels[i], a->names[i]);
        assert_true(is_held == has(&held[1], a->labels[i], a->names[i]));
        moved += is_held != has(&held[2], a->labels[i], a->names[i]);
        same += is_held && has(&other, a->labels[i], a->names[i]);
    }
    assert_true(moved <= 1);
    assert_true(same < 16); /* of 20; another seed would share 4 */
    for (int i = 0; i < 3; i++) {
        dataset_close(&rest[i]);
        dataset_close(&held[i]);
        free(all[i]);
    }
    dataset_close(&other_rest);
    dataset_close(&other);
    free(d);
}

static void a_class_without_images_is_refused(void **state) {
    (void)state;
    const int few[] = {50, 4, 60}, one[] = {50, 1, 60}, two[] = {4, 2, 40}, last[] = {4, 40, 1};
    const struct {
        const int *counts;
        double fraction;
        const char *words;
    } cases[] = {{few, 0.1, "0.1 of the 4 images of class 1 leaves none to validate: at least 0.13 is needed"},
                 {few, 0.9, "0.9 of the 4 images of class 1 leaves none to train on"},
                 {one, 0.1, "which has one image"},
                 {two, 0.1, "0.1 of the 2 images of class 1 leaves none to validate: at least 0.25 is needed"},
                 {last, 0.1, "0.1 of class 2, which has one image"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Names *n = names_of(cases[i].counts, 3, "photos");
        Dataset whole = dataset_of(n), rest, held;
        Error error;
        assert_false(subset_divide(&rest, &held, &whole, cases[i].fraction, 1, &error));
        if (!strstr(error.text, cases[i].words)) fail_msg("%s", error.text);
        assert_int_equal(n->closed, 0);
        free(n);
    }
}

/* How many images of a class of `count` images are held; 0 if that is refused. */
static size_t held_of(int count, float fraction) {
    Names *n = names_of(&count, 1, "photos");
    Dataset whole = dataset_of(n), rest, held;
    Error error;
    size_t share = 0;
    if (subset_divide(&rest, &held, &whole, (double)fraction, 1, &error)) {
        share = held.count;
        dataset_close(&rest);
        dataset_close(&held);
    }
    free(n);
    return share;
}

/* A fraction that a message names is accepted, although it is a float; shares that the float rounds otherwise than its
 * decimal do not change for existing runs. */
static void fractions_are_decimals(void **state) {
    (void)state;
    for (int count = 2; count <= 400; count++) assert_true(held_of(count, (float)(ceil(50.0 / count) / 100)) > 0);
    assert_int_equal(held_of(25, 0.02f), 1);
    assert_int_equal(held_of(24, 0.02f), 0);
    assert_int_equal(held_of(75, 0.02f), 1);  /* 1.5 */
    assert_int_equal(held_of(125, 0.02f), 2); /* 2.5 */
    for (int count = 2; count <= 400; count += 37)
        for (int percent = 1; percent <= 90; percent++) {
            float fraction = (float)percent / 100;
            long share = lround((double)fraction * count);
            if (share > 0 && share < count) assert_int_equal(held_of(count, fraction), share);
        }
}

/* == Balanced classes ============================================================================================== */

static void classes_come_equally_often(void **state) {
    (void)state;
    enum { COUNT = 90, CLASSES = 4 };
    const int counts[CLASSES] = {70, 0, 15, 5};
    int labels[COUNT], times[COUNT] = {0}, of_class[CLASSES] = {0};
    uint32_t order[COUNT], again[COUNT], other[COUNT];
    for (int c = 0, i = 0; c < CLASSES; c++)
        for (int k = 0; k < counts[c]; k++) labels[i++] = c;
    sampler_balance(order, labels, COUNT, CLASSES, check_seed(), 3);
    sampler_balance(again, labels, COUNT, CLASSES, check_seed(), 3);
    sampler_balance(other, labels, COUNT, CLASSES, check_seed(), 4);
    assert_memory_equal(order, again, sizeof order);
    assert_true(memcmp(order, other, sizeof order) != 0);
    for (int i = 0; i < COUNT; i++) {
        uint32_t image = order[i] % COUNT, turn = order[i] / COUNT;
        of_class[labels[image]]++;
        times[image]++;
        for (int j = 0; j < i; j++) assert_true(order[j] != order[i]); /* repeats differ in random numbers */
        assert_true(turn < 6 || labels[image] != 3);
    }
    assert_true(of_class[0] == 30 && of_class[1] == 0 && of_class[2] == 30 && of_class[3] == 30);
    for (int i = 0; i < COUNT; i++) assert_true(times[i] == (labels[i] == 3 ? 6 : labels[i] == 2 ? 2 : times[i] <= 1 ? times[i] : -1));
    int runs = 0; /* classes are mixed */
    for (int i = 1; i < COUNT; i++) runs += labels[order[i] % COUNT] == labels[order[i - 1] % COUNT];
    assert_true(runs > 5);
}

/* A class of one image among many is taken so often that its draws no longer fit into 32 bits. */
static void a_single_image_fills_its_class(void **state) {
    (void)state;
    enum { COUNT = 200000 };
    int *labels = calloc(COUNT, sizeof *labels), times = 0;
    uint32_t *order = calloc(COUNT, sizeof *order);
    labels[COUNT - 1] = 1;
    sampler_balance(order, labels, COUNT, 2, check_seed(), 0);
    for (int i = 0; i < COUNT; i++) times += order[i] % COUNT == COUNT - 1;
    assert_int_equal(times, COUNT / 2);
    free(labels);
    free(order);
}

static void weights_have_a_mean_of_one(void **state) {
    (void)state;
    const int counts[] = {100, 25, 1};
    Names *n = names_of(counts, 3, "photos");
    Dataset whole = dataset_of(n);
    float weights[3];
    loader_class_weights(weights, &whole, CLASS_WEIGHTS_INVERSE);
    for (int c = 0; c < 3; c++) assert_true(fabs((double)weights[c] * counts[c] - 42) < 1e-4);
    loader_class_weights(weights, &whole, CLASS_WEIGHTS_SQRT);
    assert_true(fabs((double)(weights[1] / weights[0]) - 2) < 1e-5 && fabs((double)(weights[2] / weights[0]) - 10) < 1e-5);
    assert_true(fabs(100 * (double)weights[0] + 25 * (double)weights[1] + (double)weights[2] - 126) < 1e-3);
    free(n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_class_gives_its_share),        cmocka_unit_test(names_and_the_seed_decide),
        cmocka_unit_test(a_class_without_images_is_refused), cmocka_unit_test(fractions_are_decimals),
        cmocka_unit_test(classes_come_equally_often),
        cmocka_unit_test(a_single_image_fills_its_class),
        cmocka_unit_test(weights_have_a_mean_of_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
