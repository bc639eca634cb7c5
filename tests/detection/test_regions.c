/* Anchors, the box coder, suppression, assignment, sampling, proposals and detections: published digits, torchvision's
 * results (tests/fixtures/detection/regions.safetensors, made by tests/reference/make_regions_fixtures.py), and plain
 * implementations on random boxes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/safetensors.h"
#include "detection/best_keys.h"
#include "detection/regions/anchors.h"
#include "detection/regions/assign.h"
#include "detection/regions/box_coder.h"
#include "detection/regions/nms.h"
#include "detection/regions/proposals.h"
#include "detection/regions/region_detections.h"
#include "detection/regions/sample.h"
#include "tests/check.h"

static float uniform(uint32_t stream, uint64_t i) { return rng_uniform(check_seed(), RNG_TEST, stream, 1, i); }

/* == Anchors ====================================================================================================== */

static const AnchorRule mask_rcnn = {5, {4, 8, 16, 32, 64}, 8};

static void anchors_have_their_sides_and_order(void **state) {
    (void)state;
    Anchors a = {0};
    anchors_make(&a, &mask_rcnn, 96, 160);
    assert_int_equal(a.count, 3 * (24 * 40 + 12 * 20 + 6 * 10 + 3 * 5 + 2 * 3));
    const double half_w = 22.62741700, half_h = 11.31370850;
    size_t cell = 3 * (7 * 40 + 5);
    const double want[] = {20 - half_w, 28 - half_h, 20 + half_w, 28 + half_h, 4, 12, 36, 44,
                           20 - half_h, 28 - half_w, 20 + half_h, 28 + half_w};
    assert_true(check_close("three anchors at row 7, column 5", a.boxes[cell], want, 12, 1e-7));
    for (size_t i = 1; i < a.count; i++) assert_true(a.elements[i] > a.elements[i - 1]);
    uint32_t element = a.elements[cell];
    anchors_make(&a, &mask_rcnn, 64, 320);
    assert_int_equal(a.elements[3 * (7 * 80 + 5)], element); /* it does not depend on the image's size */
    anchors_free(&a);
}

static void anchors_beyond_the_image_are_invalid(void **state) {
    (void)state;
    Anchors a = {0};
    anchors_make(&a, &mask_rcnn, 128, 128);
    uint8_t *valid = malloc(a.count);
    memset(valid, 7, a.count);
    anchors_valid(valid, &a, 65, 31); /* padded to 96 x 32 */
    for (int l = 0; l < 5; l++) {
        int s = mask_rcnn.stride[l], rows = (96 + s - 1) / s, columns = (32 + s - 1) / s;
        for (int i = 0; i < a.rows[l]; i++)
            for (int j = 0; j < a.columns[l]; j++)
                for (int r = 0; r < 3; r++)
                    assert_int_equal(valid[a.first[l] + (size_t)(3 * (i * a.columns[l] + j) + r)],
                                     i < rows && j < columns);
    }
    free(valid);
    anchors_free(&a);
}

/* == The box coder ================================================================================================ */

static void the_coder_has_the_published_digits(void **state) {
    (void)state;
    const float from[] = {10, 10, 74, 42}, box[] = {12.5f, 7, 80.25f, 61}, delta[] = {0.3f, -0.2f, 0.5f, -0.4f};
    float got[4];
    box_encode(got, from, box, proposal_weights);
    assert_true(check_close("encoded", got, (double[]){0.06835938, 0.25, 0.05694138, 0.52324814}, 4, 1e-6));
    box_encode(got, from, box, region_weights);
    assert_true(check_close("encoded with 10, 10, 5, 5", got, (double[]){0.68359375, 2.5, 0.28470688, 2.61624072}, 4, 1e-6));
    box_decode(got, from, delta, proposal_weights);
    assert_true(check_close("decoded", got, (double[]){8.44091934, 8.87487926, 113.95908066, 30.32512074}, 4, 1e-6));
    box_decode(got, from, delta, region_weights);
    assert_true(check_close("decoded with 10, 10, 5, 5", got,
                            (double[]){8.55453062, 10.59013846, 79.28546938, 40.12986154}, 4, 1e-6));
    box_decode(got, from, (float[]){0, 0, 30, 0}, proposal_weights);
    assert_true(check_close("a width that is cut", got, (double[]){-1958, 10, 2042, 42}, 4, 1e-6));
    box_decode(got, from, (float[]){0, 0, 30, 0}, region_weights);
    assert_true(check_close("a width that is cut with 5", got, (double[]){-1958, 10, 2042, 42}, 4, 1e-6));
}

/* Sides are from 2 to 100, because decoding limits their ratio to 62.5. */
static void decoding_inverts_encoding(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 100; i++) {
        float box[2][4], delta[4], got[4];
        double want[4];
        for (int k = 0; k < 2; k++)
            for (int c = 0; c < 2; c++) {
                box[k][c] = 200 * uniform(0, 8 * i + (uint32_t)(4 * k + c));
                box[k][2 + c] = box[k][c] + 2 + 98 * uniform(0, 8 * i + (uint32_t)(4 * k + c + 2));
            }
        for (int c = 0; c < 4; c++) want[c] = box[1][c];
        box_encode(delta, box[0], box[1], region_weights);
        box_decode(got, box[0], delta, region_weights);
        for (int c = 0; c < 4; c++) assert_true(fabs(got[c] - want[c]) < 1e-3);
    }
}

/* == Suppression ================================================================================================== */

static void check_nms(float threshold, const int *want, int count) {
    static const float boxes[][4] = {{0, 0, 10, 10},   {0, 0, 10, 20},   {1, 0, 11, 10}, {20, 20, 30, 30},
                                     {0, 0, 10, 10}, {20, 20, 30, 29}, {5, 5, 15, 15}};
    static const float scores[] = {.9f, .9f, .8f, .7f, .9f, .7f, .95f};
    uint64_t keys[7];
    BestKeys best = {.keys = keys, .most = 7};
    float sorted[7][4];
    int keep[7];
    for (uint32_t i = 0; i < 7; i++) best_keys_offer(&best, score_key(scores[i], i));
    best_keys_sort(&best);
    for (int k = 0; k < 7; k++) memcpy(sorted[k], boxes[key_index(keys[k])], sizeof sorted[k]);
    assert_int_equal(nms_sorted(keep, (const float (*)[4])sorted, 7, threshold, 7), count);
    for (int k = 0; k < count; k++) assert_int_equal(key_index(keys[keep[k]]), want[k]);
}

static void suppression_keeps_what_the_threshold_meets(void **state) {
    (void)state;
    check_nms(0.5f, (const int[]){6, 0, 1, 3}, 4); /* boxes 0 and 1 have an IoU of 0.5 */
    check_nms(0.7f, (const int[]){6, 0, 1, 3}, 4);
    check_nms(0.49999f, (const int[]){6, 0, 3}, 3);
    check_nms(0.89f, (const int[]){6, 0, 1, 2, 3}, 5);
}

static void keys_order_scores(void **state) {
    (void)state;
    const float scores[] = {-INFINITY, -3e38f, -1.5f, -1e-45f, 0, 1e-45f, 0.25f, 1, 3e38f, INFINITY};
    for (uint32_t i = 1; i < 10; i++) assert_true(score_key(scores[i], i) > score_key(scores[i - 1], i));
    assert_true(score_key(0, 3) == score_key(-0.0f, 3) && score_key(1, 3) > score_key(1, 4));
    assert_int_equal(key_index(score_key(-2, 12345)), 12345);
}

/* == Assignment =================================================================================================== */

static void assignment_follows_the_published_case(void **state) {
    (void)state;
    const float truth[][4] = {{0, 0, 10, 10}, {4, 4, 12, 12}, {30, 30, 32, 32}};
    const float boxes[][4] = {{0, 0, 10, 9}, {3, 3, 12, 12}, {5, 5, 15, 15}, {28, 28, 36, 36},
                              {0, 0, 8, 8},  {20, 0, 30, 10}, {28, 28, 36, 36}};
    const int rpn[] = {0, 1, ASSIGN_IGNORED, ASSIGN_NONE, ASSIGN_IGNORED, ASSIGN_NONE, ASSIGN_NONE};
    const int rpn_any[] = {0, 1, ASSIGN_IGNORED, 2, ASSIGN_IGNORED, ASSIGN_NONE, 2};
    const int regions[] = {0, 1, ASSIGN_NONE, ASSIGN_NONE, 0, ASSIGN_NONE, ASSIGN_NONE};
    AssignRule any = assign_anchors;
    any.least = 0;
    const struct {
        const AssignRule *rule;
        const int *want;
    } cases[] = {{&assign_anchors, rpn}, {&any, rpn_any}, {&assign_proposals, regions}};
    for (int c = 0; c < 3; c++) {
        int to[7];
        float scratch[10];
        memset(to, 0x55, sizeof to);
        assign_boxes(to, scratch, truth, 3, boxes, NULL, 7, cases[c].rule);
        assert_memory_equal(to, cases[c].want, sizeof to);
    }
}

/* The four rules of assignment in their plain form. */
static void assign_plainly(int *to, const float (*truth)[4], int truths, const float (*boxes)[4], const uint8_t *valid,
                           int n, const AssignRule *rule) {
    for (int j = 0; j < n; j++) {
        float most = 0;
        int first = 0;
        for (int i = truths - 1; i >= 0; i--)
            if (box_iou(truth[i], boxes[j]) >= most) most = box_iou(truth[i], boxes[j]), first = i;
        to[j] = !valid[j] ? ASSIGN_IGNORED : most >= rule->positive ? first : most < rule->negative ? ASSIGN_NONE : ASSIGN_IGNORED;
    }
    for (int i = 0; i < truths; i++) {
        float most = 0;
        for (int j = 0; j < n; j++) most = valid[j] ? fmaxf(most, box_iou(truth[i], boxes[j])) : most;
        for (int j = 0; j < n && most >= rule->least; j++)
            if (valid[j] && box_iou(truth[i], boxes[j]) == most) to[j] = i;
    }
}

static void random_boxes(float (*boxes)[4], int n, int side, uint32_t stream) {
    for (int i = 0; i < n; i++)
        for (int c = 0; c < 2; c++) { /* whole numbers, so that many IoUs are equal */
            boxes[i][c] = floorf((float)side * uniform(stream, (uint64_t)(4 * i + c)));
            boxes[i][2 + c] = boxes[i][c] + 1 + floorf((float)side / 2 * uniform(stream, (uint64_t)(4 * i + c + 2)));
        }
}

static void assignment_equals_the_four_rules(void **state) {
    (void)state;
    enum { N = 400, TRUTHS = 9 };
    static float boxes[N][4], truth[TRUTHS][4], scratch[N + TRUTHS];
    static uint8_t valid[N];
    static int got[N], want[N];
    for (uint32_t round = 0; round < 20; round++) {
        int truths = (int)(round % (TRUTHS + 1));
        random_boxes(boxes, N, 12, 100 + round);
        random_boxes(truth, TRUTHS, 12, 200 + round);
        for (int i = 0; i < N; i++) valid[i] = uniform(300 + round, (uint64_t)i) < 0.9f;
        memset(got, 0x55, sizeof got);
        const AssignRule *rule = round % 2 ? &assign_anchors : &assign_proposals;
        assign_boxes(got, scratch, (const float (*)[4])truth, truths, (const float (*)[4])boxes, valid, N, rule);
        assign_plainly(want, (const float (*)[4])truth, truths, (const float (*)[4])boxes, valid, N, rule);
        assert_memory_equal(got, want, sizeof got);
    }
}

/* == Sampling ===================================================================================================== */

static void a_sample_has_the_smallest_numbers(void **state) {
    (void)state;
    enum { N = 3000 };
    static int to[N], chosen[64], again[64];
    static uint64_t keys[64];
    static uint32_t elements[N];
    const SampleRule rule = {64, 20};
    const SampleDraw draw = {check_seed(), 7, 3, 1};
    for (int i = 0; i < N; i++) {
        to[i] = uniform(400, (uint64_t)i) < 0.05f ? i % 5 : i % 3 ? ASSIGN_NONE : ASSIGN_IGNORED;
        elements[i] = (uint32_t)(3 * i + 11);
    }
    SampleSize size = sample_regions(chosen, keys, to, elements, N, &rule, &draw);
    assert_int_equal(size.count, 64);
    assert_int_equal(size.positives, 20);
    for (int kind = 0; kind < 2; kind++) { /* no region left out has a smaller number than one in the sample */
        uint32_t largest = 0;
        int taken = 0, smaller = 0;
        for (int k = 0; k < size.count; k++) {
            assert_true(!k || chosen[k] > chosen[k - 1]);
            if ((to[chosen[k]] >= 0) != kind) continue;
            assert_true(to[chosen[k]] != ASSIGN_IGNORED);
            uint32_t bits = rng_bits(draw.seed, RNG_REGIONS, draw.step, draw.image << 1 | draw.stage, elements[chosen[k]]);
            largest = bits > largest ? bits : largest;
            taken++;
        }
        for (int i = 0; i < N; i++)
            if (kind ? to[i] >= 0 : to[i] == ASSIGN_NONE)
                smaller += rng_bits(draw.seed, RNG_REGIONS, draw.step, draw.image << 1 | draw.stage, elements[i]) <= largest;
        assert_int_equal(smaller, taken);
    }
    sample_regions(again, keys, to, elements, N, &rule, &draw);
    assert_memory_equal(again, chosen, sizeof chosen);
    SampleDraw other = draw;
    other.step++;
    sample_regions(again, keys, to, elements, N, &rule, &other);
    assert_memory_not_equal(again, chosen, sizeof chosen);
}

static void few_candidates_are_all_taken(void **state) {
    (void)state;
    const int to[] = {ASSIGN_NONE, 2, ASSIGN_IGNORED, ASSIGN_NONE, 0};
    int chosen[10];
    uint64_t keys[10];
    const SampleRule rule = {10, 1};
    SampleSize size = sample_regions(chosen, keys, to, NULL, 5, &rule, &(SampleDraw){.seed = check_seed()});
    assert_int_equal(size.positives, 1);
    assert_int_equal(size.count, 3);
    size = sample_regions(chosen, keys, to, NULL, 0, &rule, &(SampleDraw){.seed = check_seed()});
    assert_int_equal(size.count, 0);
}

/* == Proposals and detections ===================================================================================== */

static float *floats_of(const SafeTensors *file, const char *name, int *count) {
    const SafeTensor *t = safetensors_find(file, name);
    Error error;
    if (!t) fail_msg("no %s", name);
    float *x = malloc((t->size + 1) * sizeof *x);
    if (!safetensors_to_float(t, x, &error)) fail_msg("%s", error.text);
    if (count) *count = (int)t->size;
    return x;
}

static void check_floats(const char *what, const float *got, const float *want, int n, double tolerance) {
    assert_true(check_close_float(what, got, want, (size_t)n, tolerance));
}

static void proposals_are_those_of_torchvision(void **state) {
    (void)state;
    SafeTensors file;
    Error error;
    if (!safetensors_open(&file, "tests/fixtures/detection/regions.safetensors", &error)) fail_msg("%s", error.text);
    Anchors a = {0};
    ProposalScratch scratch = {0};
    const ProposalRule rule = {50, 70, 0.7f};
    float *logits[5], *deltas[5], proposals[70][4];
    int anchors, want;
    anchors_make(&a, &mask_rcnn, 64, 96);
    float *want_anchors = floats_of(&file, "anchors", &anchors), *want_proposals = floats_of(&file, "proposals", &want);
    assert_int_equal(anchors, 4 * a.count);
    check_floats("anchors", a.boxes[0], want_anchors, anchors, 1e-7);
    for (int l = 0; l < 5; l++) {
        char name[32];
        snprintf(name, sizeof name, "logits.%d", l);
        logits[l] = floats_of(&file, name, NULL);
        snprintf(name, sizeof name, "deltas.%d", l);
        deltas[l] = floats_of(&file, name, NULL);
    }
    proposal_scratch_open(&scratch, &rule, 5);
    int found = proposals_find(proposals, (const float *const *)logits, (const float *const *)deltas, &a, 61, 90, &rule,
                               &scratch);
    assert_int_equal(found, want / 4);
    check_floats("proposals", proposals[0], want_proposals, want, 1e-5);
    for (int l = 0; l < 5; l++) {
        free(logits[l]);
        free(deltas[l]);
    }
    free(want_anchors);
    free(want_proposals);
    proposal_scratch_close(&scratch);
    anchors_free(&a);
    safetensors_close(&file);
}

static void detections_are_those_of_torchvision(void **state) {
    (void)state;
    SafeTensors file;
    Error error;
    if (!safetensors_open(&file, "tests/fixtures/detection/regions.safetensors", &error)) fail_msg("%s", error.text);
    DetectionScratch scratch = {0};
    const RegionDetectionRule rule = {0.05f, 0.5f, 25};
    RegionDetection found[25];
    int R, count;
    float *regions = floats_of(&file, "regions", &R), *logits = floats_of(&file, "class_logits", NULL);
    float *deltas = floats_of(&file, "class_deltas", NULL), *boxes = floats_of(&file, "boxes", NULL);
    float *scores = floats_of(&file, "scores", &count), *labels = floats_of(&file, "labels", NULL);
    R /= 4;
    detection_scratch_open(&scratch, R, 6, &rule);
    int n = region_detections(found, (const float (*)[4])regions, logits, deltas, R, 6, 61, 90, &rule, &scratch);
    assert_int_equal(n, count);
    for (int k = 0; k < n; k++) {
        assert_int_equal(found[k].label, (int)labels[k]);
        assert_true(fabsf(found[k].score - scores[k]) < 1e-6f);
        for (int c = 0; c < 4; c++) assert_true(fabsf(found[k].box[c] - boxes[4 * k + c]) < 1e-3f);
    }
    assert_int_equal(region_detections(found, NULL, NULL, NULL, 0, 6, 61, 90, &rule, &scratch), 0);
    detection_scratch_close(&scratch);
    float *all[] = {regions, logits, deltas, boxes, scores, labels};
    for (int i = 0; i < 6; i++) free(all[i]);
    safetensors_close(&file);
}

static void levels_follow_the_published_cases(void **state) {
    (void)state;
    const struct {
        float w, h;
        int level;
    } cases[] = {{112, 112, 3}, {111.9f, 112, 2}, {224, 224, 4}, {223, 224, 3}, {448, 448, 5}, {300, 150, 3},
                 {5000, 5000, 5}, {1, 1, 2}, {447, 447, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const float box[] = {3, 5, 3 + cases[i].w, 5 + cases[i].h};
        assert_int_equal(region_level(box, 224, 4) + 2, cases[i].level);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(anchors_have_their_sides_and_order),
        cmocka_unit_test(anchors_beyond_the_image_are_invalid),
        cmocka_unit_test(the_coder_has_the_published_digits),
        cmocka_unit_test(decoding_inverts_encoding),
        cmocka_unit_test(suppression_keeps_what_the_threshold_meets),
        cmocka_unit_test(keys_order_scores),
        cmocka_unit_test(assignment_follows_the_published_case),
        cmocka_unit_test(assignment_equals_the_four_rules),
        cmocka_unit_test(a_sample_has_the_smallest_numbers),
        cmocka_unit_test(few_candidates_are_all_taken),
        cmocka_unit_test(proposals_are_those_of_torchvision),
        cmocka_unit_test(detections_are_those_of_torchvision),
        cmocka_unit_test(levels_follow_the_published_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
