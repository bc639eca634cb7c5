/* The set loss and its gradients against float64 PyTorch (tests/fixtures/detection/set_loss_*.safetensors, made by
 * tests/reference/make_set_loss_fixtures.py) and central differences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/safetensors.h"
#include "detection/boxes.h"
#include "detection/set_loss.h"
#include "tests/check.h"

/* == Fixtures ===================================================================================================== */

static const SafeTensor *tensor_of(const SafeTensors *file, const char *name) {
    const SafeTensor *t = safetensors_find(file, name);
    if (!t) fail_msg("no tensor %s", name);
    return t;
}

static float *floats_of(const SafeTensors *file, const char *name) {
    const SafeTensor *t = tensor_of(file, name);
    float *x = malloc((t->size + 1) * sizeof *x);
    Error error;
    if (!safetensors_to_float(t, x, &error)) fail_msg("%s", error.text);
    return x;
}

static double *doubles_of(const SafeTensors *file, const char *name) {
    const SafeTensor *t = tensor_of(file, name);
    double *x = malloc((t->size + 1) * sizeof *x);
    assert_int_equal(t->dtype, SAFE_F64);
    memcpy(x, t->data, t->bytes);
    return x;
}

static int *ints_of(const SafeTensors *file, const char *name) {
    const SafeTensor *t = tensor_of(file, name);
    int64_t *wide = malloc((t->size + 1) * sizeof *wide);
    int *x = malloc((t->size + 1) * sizeof *x);
    Error error;
    if (!safetensors_to_int64(t, wide, &error)) fail_msg("%s", error.text);
    for (size_t i = 0; i < t->size; i++) x[i] = (int)wide[i];
    free(wide);
    return x;
}

static void equals_the_reference(const char *name) {
    char path[128];
    Error error;
    SafeTensors file;
    snprintf(path, sizeof path, "tests/fixtures/detection/set_loss_%s.safetensors", name);
    if (!safetensors_open(&file, path, &error)) fail_msg("%s", error.text);
    const SafeTensor *shape = tensor_of(&file, "logits");
    float *logits = floats_of(&file, "logits"), *boxes = floats_of(&file, "boxes");
    float *target_boxes = floats_of(&file, "target_boxes");
    double *want = doubles_of(&file, "loss"), *want_logits = doubles_of(&file, "dlogits");
    double *want_boxes = doubles_of(&file, "dboxes");
    int *labels = ints_of(&file, "labels"), *first = ints_of(&file, "first"), *want_query = ints_of(&file, "query");
    size_t n = shape->size, m = tensor_of(&file, "boxes")->size;
    int L = (int)shape->shape[0], B = (int)shape->shape[1], most = 0, layer = -1, image = -1;
    for (int b = 0; b < B; b++) most = first[b + 1] - first[b] > most ? first[b + 1] - first[b] : most;

    SetLossWork work;
    SetLoss loss = {.total = NAN};
    float *dlogits = check_poison(n), *dboxes = check_poison(m);
    SetTargets targets = {target_boxes, labels, first};
    set_loss_open(&work, (SetLossSize){L, B, (int)shape->shape[2], (int)shape->shape[3], most}, set_loss_weights);
    assert_true(set_loss(&loss, dlogits, dboxes, &work, logits, boxes, &targets, B,
                         strtod(safetensors_metadata(&file, "box_count"), NULL), &layer, &image));
    for (int l = 0; l < L; l++) {
        for (int b = 0; b < B; b++) {
            const int *query = work.query + (size_t)(l * B + b) * (size_t)most;
            for (int j = first[b]; j < first[b + 1]; j++)
                assert_int_equal(query[j - first[b]], want_query[l * first[B] + j]);
        }
    }
    float got[5] = {(float)loss.total, (float)loss.focal, (float)loss.l1, (float)loss.giou, (float)loss.wrong};
    char what[64];
    snprintf(what, sizeof what, "%s: loss", name);
    assert_true(check_close_step(what, got, want, 5, 1e-7, 2e-6));
    snprintf(what, sizeof what, "%s: dlogits", name);
    assert_true(check_close(what, dlogits, want_logits, n, 2e-6));
    snprintf(what, sizeof what, "%s: dboxes", name);
    assert_true(check_close(what, dboxes, want_boxes, m, 5e-6));

    set_loss_close(&work);
    safetensors_close(&file);
    void *all[] = {logits, boxes, target_boxes, want,    want_logits, want_boxes,
                   labels, first, want_query,   dlogits, dboxes};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static void plain_case(void **state) {
    (void)state;
    equals_the_reference("plain");
}

static void more_targets_than_queries(void **state) {
    (void)state;
    equals_the_reference("crowded");
}

static void saturated_logits(void **state) {
    (void)state;
    equals_the_reference("extreme");
}

static void coinciding_corners(void **state) {
    (void)state;
    equals_the_reference("corners");
}

/* == Random cases ================================================================================================= */

typedef struct {
    SetLossWork work;
    SetTargets targets;
    float *logits, *boxes, *dlogits, *dboxes, *target_boxes;
    int *labels, *first;
    size_t n, m;
} Batch;

static Batch batch_new(SetLossSize size, const int *counts) {
    Batch c = {.n = (size_t)size.layers * (size_t)size.images * (size_t)size.queries};
    c.m = c.n * 4;
    c.n *= (size_t)size.columns;
    c.first = calloc((size_t)size.images + 1, sizeof *c.first);
    for (int b = 0; b < size.images; b++) c.first[b + 1] = c.first[b] + counts[b];
    size_t count = (size_t)c.first[size.images];
    c.logits = check_normal(c.n, 1.5f, 1);
    c.boxes = malloc(c.m * sizeof *c.boxes);
    c.target_boxes = malloc((4 * count + 1) * sizeof *c.target_boxes);
    c.labels = malloc((count + 1) * sizeof *c.labels);
    for (size_t i = 0; i < c.m; i++) c.boxes[i] = 0.1f + 0.7f * rng_uniform(check_seed(), RNG_TEST, 2, 0, i);
    for (size_t i = 0; i < 4 * count; i++)
        c.target_boxes[i] = 0.1f + 0.7f * rng_uniform(check_seed(), RNG_TEST, 3, 0, i);
    for (size_t i = 0; i < count; i++)
        c.labels[i] = (int)rng_below(check_seed(), RNG_TEST, 4, 0, i, (uint32_t)size.columns);
    c.dlogits = check_poison(c.n);
    c.dboxes = check_poison(c.m);
    c.targets = (SetTargets){c.target_boxes, c.labels, c.first};
    set_loss_open(&c.work, size, set_loss_weights);
    return c;
}

static SetLoss batch_loss(Batch *c, double box_count) {
    SetLoss loss = {.total = NAN};
    int layer, image;
    assert_true(set_loss(&loss, c->dlogits, c->dboxes, &c->work, c->logits, c->boxes, &c->targets, c->work.size.images,
                         box_count, &layer, &image));
    return loss;
}

static void batch_free(Batch *c) {
    void *all[] = {c->logits, c->boxes, c->dlogits, c->dboxes, c->target_boxes, c->labels, c->first};
    set_loss_close(&c->work);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* Checks (f(x + hd) - f(x - hd)) / 2h = <f'(x), d> in a random direction d.  Returns false without a check if a step
 * changes the assignment. */
static bool difference_along(Batch *c, float *x, const float *dx, size_t n, uint32_t stream, const char *what) {
    const float h = 2e-4f;
    size_t bytes =
        (size_t)c->work.size.layers * (size_t)c->work.size.images * (size_t)c->work.size.most_targets * sizeof(int);
    int *query = malloc(bytes);
    float *start = malloc(n * sizeof *start), *d = check_normal(n, 1, stream);
    double slope = 0, square = 0, value[2];
    bool same = true;
    batch_loss(c, 3);
    memcpy(query, c->work.query, bytes);
    memcpy(start, x, n * sizeof *start);
    for (size_t i = 0; i < n; i++) {
        slope += (double)dx[i] * d[i];
        square += (double)dx[i] * dx[i];
    }
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < n; i++) x[i] = start[i] + (side ? h : -h) * d[i];
        value[side] = batch_loss(c, 3).total;
        same &= memcmp(query, c->work.query, bytes) == 0;
    }
    double got = (value[1] - value[0]) / (2 * h), allowed = 2e-3 * sqrt(square);
    if (same) {
        printf("  %-8s slope %.6f, differences %.6f, %.2f of allowed\n", what, slope, got, fabs(got - slope) / allowed);
        assert_true(fabs(got - slope) <= allowed);
    }
    memcpy(x, start, n * sizeof *start);
    free(query);
    free(start);
    free(d);
    return same;
}

static void gradients_are_central_differences(void **state) {
    (void)state;
    Batch c = batch_new((SetLossSize){2, 2, 7, 4, 3}, (const int[]){1, 2});
    uint32_t stream = 10;
    while (!difference_along(&c, c.logits, c.dlogits, c.n, stream, "logits")) assert_true(stream++ < 30);
    /* Keeps coordinates away from kinks: one target is apart from every box, and two enclose all of them. */
    for (size_t i = 0; i < c.m; i++) {
        c.boxes[i] = (i % 4 < 2 ? 0.4f : 0.1f) + 0.2f * rng_uniform(check_seed(), RNG_TEST, 6, 0, i);
    }
    for (int b = 0; b < 3; b++) {
        for (int k = 0; k < 4; k++) c.target_boxes[4 * b + k] = b ? (k < 2 ? 0.38f : 1.9f) : (k < 2 ? 0.9f : 0.01f);
    }
    while (!difference_along(&c, c.boxes, c.dboxes, c.m, stream, "boxes")) assert_true(stream++ < 30);
    batch_free(&c);
}

static void threads_change_no_bit(void **state) {
    (void)state;
    int threads = omp_get_max_threads();
    omp_set_num_threads(5);
    Batch c = batch_new((SetLossSize){3, 4, 50, 21, 30}, (const int[]){9, 0, 30, 4});
    omp_set_num_threads(1);
    SetLoss one = batch_loss(&c, 43);
    float *dlogits = malloc(c.n * sizeof *dlogits), *dboxes = malloc(c.m * sizeof *dboxes);
    memcpy(dlogits, c.dlogits, c.n * sizeof *dlogits);
    memcpy(dboxes, c.dboxes, c.m * sizeof *dboxes);
    for (int t = 2; t <= 5; t += 3) {
        omp_set_num_threads(t);
        SetLoss many = batch_loss(&c, 43);
        assert_memory_equal(&one, &many, sizeof one);
        assert_memory_equal(dlogits, c.dlogits, c.n * sizeof *dlogits);
        assert_memory_equal(dboxes, c.dboxes, c.m * sizeof *dboxes);
    }
    omp_set_num_threads(threads);
    free(dlogits);
    free(dboxes);
    batch_free(&c);
}

/* Ranks with half of the images each, and the box count of all, give the losses and gradients of the whole batch. */
static void images_are_independent(void **state) {
    (void)state;
    Batch c = batch_new((SetLossSize){1, 2, 30, 6, 8}, (const int[]){8, 3});
    double total = batch_loss(&c, 11).total, sum = 0;
    float *dlogits = malloc(c.n * sizeof *dlogits);
    memcpy(dlogits, c.dlogits, c.n * sizeof *dlogits);
    for (int b = 0; b < 2; b++) {
        SetTargets own = {c.target_boxes, c.labels, c.first + b};
        SetLoss loss;
        int layer, image;
        assert_true(set_loss(&loss, c.dlogits, c.dboxes, &c.work, c.logits + b * 180, c.boxes + b * 120, &own, 1, 11,
                             &layer, &image));
        sum += loss.total;
        assert_memory_equal(c.dlogits, dlogits + b * 180, 180 * sizeof *dlogits);
    }
    assert_true(fabs(sum - total) < 1e-9 * total);
    free(dlogits);
    batch_free(&c);
}

/* Without targets, boxes have no gradient and every logit is pushed down. */
static void empty_images_are_background(void **state) {
    (void)state;
    Batch c = batch_new((SetLossSize){2, 2, 9, 5, 0}, (const int[]){0, 0});
    SetLoss loss = batch_loss(&c, 1);
    assert_true(loss.total > 0 && loss.l1 == 0 && loss.giou == 0 && loss.wrong == 0);
    for (size_t i = 0; i < c.m; i++) assert_true(c.dboxes[i] == 0);
    for (size_t i = 0; i < c.n; i++) assert_true(c.dlogits[i] > 0);
    batch_free(&c);
}

static void numbers_that_are_not_finite_are_located(void **state) {
    (void)state;
    Batch c = batch_new((SetLossSize){3, 2, 9, 5, 4}, (const int[]){4, 2});
    SetLoss loss;
    int layer = -1, image = -1;
    c.boxes[((2 * 2 + 1) * 9 + 3) * 4 + 2] = NAN; /* layer 2, image 1 */
    assert_false(set_loss(&loss, c.dlogits, c.dboxes, &c.work, c.logits, c.boxes, &c.targets, 2, 6, &layer, &image));
    assert_int_equal(layer, 2);
    assert_int_equal(image, 1);
    c.logits[((1 * 2 + 0) * 9 + 8) * 5 + 4] = INFINITY; /* layer 1, image 0: the first of the two */
    assert_false(set_loss(&loss, c.dlogits, c.dboxes, &c.work, c.logits, c.boxes, &c.targets, 2, 6, &layer, &image));
    assert_int_equal(layer, 1);
    assert_int_equal(image, 0);
    batch_free(&c);
}

/* == Boxes ======================================================================================================== */

static void corners_and_centres_are_inverse(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 100; i++) {
        float box[4], back[4];
        for (uint64_t k = 0; k < 4; k++) box[k] = rng_uniform(check_seed(), RNG_TEST, 5, 0, 4 * i + k);
        box_corners(back, box);
        assert_true(back[0] <= box[0] && box[0] <= back[2] && back[1] <= box[1] && box[1] <= back[3]);
        for (int k = 0; k < 2; k++) {
            assert_true(fabsf((back[k] + back[k + 2]) / 2 - box[k]) < 1e-6f);
            assert_true(fabsf(back[k + 2] - back[k] - box[k + 2]) < 1e-6f);
        }
    }
}

static void giou_has_its_known_values(void **state) {
    (void)state;
    const float unit[4] = {0, 0, 1, 1}, far[4] = {3, 0, 4, 1}, half[4] = {0.5f, 0, 1.5f, 1},
                point[4] = {0.5f, 0.5f, 0.5f, 0.5f};
    assert_true(box_giou(unit, unit) == 1);
    assert_true(box_giou(unit, far) == -0.5f);
    assert_true(fabsf(box_giou(unit, half) - 1.0f / 3) < 1e-7f);
    assert_true(box_giou(point, unit) == 0);
    assert_true(box_giou(half, unit) == box_giou(unit, half));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_case),
        cmocka_unit_test(more_targets_than_queries),
        cmocka_unit_test(saturated_logits),
        cmocka_unit_test(coinciding_corners),
        cmocka_unit_test(gradients_are_central_differences),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(images_are_independent),
        cmocka_unit_test(empty_images_are_background),
        cmocka_unit_test(numbers_that_are_not_finite_are_located),
        cmocka_unit_test(corners_and_centres_are_inverse),
        cmocka_unit_test(giou_has_its_known_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
