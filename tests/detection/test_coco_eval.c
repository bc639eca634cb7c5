/* COCO's twelve metrics against those of pycocotools (tests/fixtures/coco_eval, made by
 * tests/reference/check_coco_eval.py), and reading and writing files of results.
 *
 *   test_coco_eval ANNOTATIONS RESULTS [WRITTEN]    for check_coco_eval.py: prints the metrics of boxes; with WRITTEN,
 *                                                   those of masks, and writes the results to that file */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "detection/coco_eval.h"
#include "tests/check.h"
#include "tests/detection/read_results.h"
#include "tests/scratch.h"

static const char *const number_names[COCO_NUMBERS] = {"AP",  "AP50", "AP75",  "APs", "APm", "APl",
                                                       "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"};

typedef struct {
    Coco truth;
    CocoResults results;
    CocoEvalKind kind;
} Case;

static void open_files(Case *c, const char *truth, const char *results, CocoEvalKind kind) {
    Error error = {.text = ""};
    *c = (Case){.kind = kind};
    CocoMaskKind masks = kind == COCO_EVAL_MASKS ? COCO_RLE : COCO_NO_MASKS;
    if (!coco_read(&c->truth, truth, masks, &error)) fail_msg("%s: %s", truth, error.text);
    if (!read_results(&c->results, results, &error)) fail_msg("%s: %s", results, error.text);
}

static void open_case(Case *c, const char *name, CocoEvalKind kind) {
    char truth[128], results[128];
    snprintf(truth, sizeof truth, "tests/fixtures/coco_eval/%s.truth.json", name);
    snprintf(results, sizeof results, "tests/fixtures/coco_eval/%s.results.json", name);
    open_files(c, truth, results, kind);
}

static void close_case(Case *c) {
    coco_close(&c->truth);
    coco_results_free(&c->results);
}

static void evaluate(double numbers[COCO_NUMBERS], double *category_ap, const Case *c, const bool *evaluated) {
    Error error = {.text = ""};
    for (int i = 0; i < COCO_NUMBERS; i++) numbers[i] = NAN;
    if (!coco_eval(numbers, category_ap, c->kind, &c->truth, &c->results, evaluated, &error)) {
        fail_msg("%s", error.text);
    }
}

/* == The numbers ================================================================================================== */

static void the_numbers_are_pycocotools(void **state) {
    (void)state;
    FILE *file = fopen("tests/fixtures/coco_eval/numbers.txt", "r");
    char name[64];
    int cases = 0;
    double worst = 0;
    assert_non_null(file);
    for (; fscanf(file, "%63s", name) == 1; cases++) {
        double want[COCO_NUMBERS], got[COCO_NUMBERS];
        Case c;
        for (int i = 0; i < COCO_NUMBERS; i++) assert_int_equal(fscanf(file, "%lf", &want[i]), 1);
        open_case(&c, name, COCO_EVAL_BOXES);
        evaluate(got, NULL, &c, NULL);
        for (int i = 0; i < COCO_NUMBERS; i++) {
            if (!(fabs(got[i] - want[i]) <= 1e-12)) {
                fail_msg("%s: %s is %.17g, expected %.17g", name, number_names[i], got[i], want[i]);
            }
            worst = fmax(worst, fabs(got[i] - want[i]));
        }
        close_case(&c);
    }
    fclose(file);
    printf("  %d cases, largest difference %.3g\n", cases, worst);
    assert_true(cases >= 14);
}

static void the_numbers_of_masks_are_pycocotools(void **state) {
    (void)state;
    FILE *file = fopen("tests/fixtures/coco_eval/mask_numbers.txt", "r");
    char name[64], kind[8];
    int cases = 0;
    double worst = 0;
    assert_non_null(file);
    for (; fscanf(file, "%63s %7s", name, kind) == 2; cases++) {
        double want[COCO_NUMBERS], got[COCO_NUMBERS];
        Case c;
        for (int i = 0; i < COCO_NUMBERS; i++) assert_int_equal(fscanf(file, "%lf", &want[i]), 1);
        open_case(&c, name, strcmp(kind, "segm") ? COCO_EVAL_BOXES : COCO_EVAL_MASKS);
        evaluate(got, NULL, &c, NULL);
        for (int i = 0; i < COCO_NUMBERS; i++) {
            if (!(fabs(got[i] - want[i]) <= 1e-12))
                fail_msg("%s %s: %s is %.17g, expected %.17g", name, kind, number_names[i], got[i], want[i]);
            worst = fmax(worst, fabs(got[i] - want[i]));
        }
        close_case(&c);
    }
    fclose(file);
    printf("  %d cases, largest difference %.3g\n", cases, worst);
    assert_true(cases >= 8);
}

/* Case 9 of shared/spec/dense-prediction.md, to the digits printed there. */
static void the_worked_masks_have_their_numbers(void **state) {
    (void)state;
    static const double want[2][COCO_NUMBERS] = {
        [COCO_EVAL_BOXES] = {.96666667, 1, 1, .93333333, 1, -1, .7, 1, 1, 1, 1, -1},
        [COCO_EVAL_MASKS] = {.86683168, 1, 1, .83366337, .9, -1, .65, .9, .9, .9, .9, -1}};
    static const struct {
        size_t found, truth;
        double iou;
    } pairs[6] = {{0, 0, .87951807}, {1, 1, .87662338}, {2, 2, 1}, {3, 0, 1}, {4, 3, .92775974}, {5, 3, .608}};
    double got[COCO_NUMBERS];
    Case c;
    open_case(&c, "masks-worked", COCO_EVAL_MASKS);
    for (int n = 0; n < 6; n++) {
        Rle found = {.count = 0};
        const Rle *truth = coco_annotation_mask(&c.truth, pairs[n].truth);
        rle_texts_get(&found, &c.results.masks, pairs[n].found);
        RleExtent f = rle_extent(&found), t = rle_extent(truth);
        double iou = rle_iou(&found, &f, truth, &t, c.truth.annotations[pairs[n].truth].crowd);
        assert_true(fabs(iou - pairs[n].iou) < 5e-9);
        rle_free(&found);
    }
    for (int kind = COCO_EVAL_BOXES; kind <= COCO_EVAL_MASKS; kind++) {
        c.kind = (CocoEvalKind)kind;
        evaluate(got, NULL, &c, NULL);
        for (int i = 0; i < COCO_NUMBERS; i++) assert_true(fabs(got[i] - want[kind][i]) < 5e-9);
    }
    close_case(&c);
}

static void threads_change_no_bit(void **state) {
    (void)state;
    double one[COCO_NUMBERS], many[COCO_NUMBERS];
    int threads = omp_get_max_threads();
    for (int masks = 0; masks < 2; masks++) {
        Case c;
        open_case(&c, masks ? "masks-18" : "drawn-7", masks ? COCO_EVAL_MASKS : COCO_EVAL_BOXES);
        omp_set_num_threads(1);
        evaluate(one, NULL, &c, NULL);
        assert_true(one[COCO_AP] > 0);
        for (int i = 0; i < 3; i++) {
            omp_set_num_threads((int[]){2, 5, 7}[i]);
            evaluate(many, NULL, &c, NULL);
            assert_memory_equal(one, many, sizeof one);
        }
        close_case(&c);
    }
    omp_set_num_threads(threads);
}

static void the_mean_over_categories_is_the_ap(void **state) {
    (void)state;
    Case c;
    open_case(&c, "drawn-7", COCO_EVAL_BOXES);
    double numbers[COCO_NUMBERS], sum = 0, *ap = malloc((size_t)c.truth.category_count * sizeof *ap);
    int counted = 0;
    evaluate(numbers, ap, &c, NULL);
    for (int k = 0; k < c.truth.category_count; k++) {
        bool truths = false;
        for (size_t i = 0; i < c.truth.annotation_count; i++) {
            truths |= c.truth.annotations[i].category == k && !c.truth.annotations[i].crowd;
        }
        assert_true(truths ? ap[k] >= 0 && ap[k] <= 1 : ap[k] == -1);
        counted += truths;
        sum += truths ? ap[k] : 0;
    }
    assert_true(counted > 1 && fabs(sum / counted - numbers[COCO_AP]) < 1e-12);
    free(ap);
    close_case(&c);
}

/* Evaluating some of the images gives the same as evaluating files with only those images. */
static void some_images_are_their_own_files(void **state) {
    (void)state;
    Case c, part = {.truth = {.image_count = 0}, .results = {.count = 0}};
    Error error;
    double want[COCO_NUMBERS], got[COCO_NUMBERS], all[COCO_NUMBERS];
    open_case(&c, "drawn-7", COCO_EVAL_BOXES);
    bool *evaluated = calloc((size_t)c.truth.image_count, sizeof *evaluated);
    for (int k = 0; k < c.truth.category_count; k++) {
        coco_add_category(&part.truth, c.truth.categories[k].id, c.truth.categories[k].name);
    }
    for (int i = 0; i < c.truth.image_count; i += 2) {
        const CocoImage *image = &c.truth.images[i];
        evaluated[i] = true;
        coco_add_image(&part.truth, image->id, image->file_name, image->width, image->height);
        for (size_t j = image->first; j < image->first + (size_t)image->count; j++) {
            const CocoAnnotation *a = &c.truth.annotations[j];
            coco_add_annotation(&part.truth, a->id, a->image_id, a->category_id, a->box, a->area, a->crowd);
        }
    }
    assert_true(coco_finish(&part.truth, &error));
    for (size_t i = 0; i < c.results.count; i++) {
        CocoDetection d = c.results.detections[i];
        if (coco_find_image(&part.truth, d.image_id) >= 0) coco_results_add(&part.results, d);
    }
    evaluate(got, NULL, &c, evaluated);
    evaluate(want, NULL, &part, NULL);
    evaluate(all, NULL, &c, NULL);
    assert_memory_equal(got, want, sizeof got);
    assert_memory_not_equal(got, all, sizeof got);
    free(evaluated);
    close_case(&c);
    close_case(&part);
}

static void detections_of_unknown_images_are_refused(void **state) {
    (void)state;
    Error error = {.text = ""};
    double numbers[COCO_NUMBERS];
    Case c;
    open_case(&c, "drawn-11", COCO_EVAL_BOXES);
    coco_results_add(&c.results, (CocoDetection){.image_id = 123456, .category_id = 1, .score = 0.5});
    assert_false(coco_eval(numbers, NULL, COCO_EVAL_BOXES, &c.truth, &c.results, NULL, &error));
    printf("  %s\n", error.text);
    assert_non_null(strstr(error.text, "image_id 123456 is not among the images"));
    c.results.detections[c.results.count - 1] = (CocoDetection){.image_id = c.truth.images[0].id, .score = NAN};
    assert_false(coco_eval(numbers, NULL, COCO_EVAL_BOXES, &c.truth, &c.results, NULL, &error));
    assert_non_null(strstr(error.text, "score is not finite"));
    close_case(&c);
}

static void masks_that_do_not_fit_are_refused(void **state) {
    (void)state;
    Error error = {.text = ""};
    double numbers[COCO_NUMBERS];
    Rle rle = {.count = 0};
    Case c;
    open_case(&c, "masks-worked", COCO_EVAL_MASKS);
    coco_results_add(&c.results, (CocoDetection){.image_id = 2, .category_id = 1, .score = 0.5});
    assert_false(coco_eval(numbers, NULL, COCO_EVAL_MASKS, &c.truth, &c.results, NULL, &error));
    assert_non_null(strstr(error.text, "have no masks"));
    assert_true(rle_set(&rle, NULL, 0, 41, 50, &error));
    coco_results_add_mask(&c.results, &rle);
    assert_false(coco_eval(numbers, NULL, COCO_EVAL_MASKS, &c.truth, &c.results, NULL, &error));
    printf("  %s\n", error.text);
    assert_non_null(strstr(error.text, "[7].segmentation: its size is [41, 50], but that of image 2 is [40, 50]"));
    rle_free(&rle);
    close_case(&c);
}

static void without_detections_every_number_is_zero_or_none(void **state) {
    (void)state;
    double numbers[COCO_NUMBERS];
    Case c;
    open_case(&c, "drawn-7", COCO_EVAL_BOXES);
    c.results.count = 0;
    evaluate(numbers, NULL, &c, NULL);
    for (int i = 0; i < COCO_NUMBERS; i++) assert_true(numbers[i] == 0);
    close_case(&c);
}

/* == Files of results ============================================================================================= */

static void results_come_back_as_they_were_written(void **state) {
    (void)state;
    enum { COUNT = 5000 }; /* the reader needs several pieces */
    char path[SCRATCH_PATH];
    Error error = {.text = ""};
    CocoResults wrote = {.count = 0}, got;
    Rle mask = {.count = 0};
    close(mkstemp(scratch_path(path)));
    for (uint64_t i = 0; i < COUNT; i++) {
        CocoDetection d = {.image_id = (int64_t)rng_bits(check_seed(), RNG_TEST, 1, 0, i) << 20, .category_id = 17};
        for (uint64_t k = 0; k < 4; k++) d.box[k] = rng_normal(check_seed(), RNG_TEST, 2, 0, 4 * i + k) * 1e3f;
        d.score = rng_uniform(check_seed(), RNG_TEST, 3, 0, i) / 3.0;
        coco_results_add(&wrote, d);
        rle_begin(&mask, 1 + (int)(i % 40), 1 + (int)(i % 37));
        for (uint32_t k = 0, left = (uint32_t)(mask.height * mask.width); left; k++) {
            uint32_t run = 1 + rng_below(check_seed(), RNG_TEST, 4, k, i, left);
            rle_append(&mask, k & 1, run);
            left -= run;
        }
        coco_results_add_mask(&wrote, &mask);
    }
    assert_true(coco_results_write(path, &wrote, &error));
    assert_true(read_results(&got, path, &error));
    assert_int_equal(got.count, COUNT);
    assert_memory_equal(got.detections, wrote.detections, COUNT * sizeof *got.detections);
    assert_int_equal(got.masks.count, COUNT);
    assert_int_equal(got.masks.length, wrote.masks.length);
    assert_memory_equal(got.masks.text, wrote.masks.text, got.masks.length);
    assert_non_null(memchr(got.masks.text, '\\', got.masks.length)); /* a character that JSON escapes */
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(rle_texts_at(&got.masks, i).height, 1 + i % 40);
        assert_int_equal(rle_texts_at(&got.masks, i).width, 1 + i % 37);
    }
    rle_free(&mask);
    coco_results_free(&got);
    assert_true(coco_results_write(path, &(CocoResults){.count = 0}, &error));
    assert_true(read_results(&got, path, &error));
    assert_int_equal(got.count, 0);
    coco_results_free(&got);
    coco_results_free(&wrote);
    unlink(path);
    assert_false(coco_results_write("/nowhere/results.json", &(CocoResults){.count = 0}, &error));
    assert_non_null(strstr(error.text, "cannot open its folder: No such file"));
}

static void damaged_results_are_refused(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{\"image_id\": 1}", "expected an array"},
        {"[1]", "[0]: expected an object"},
        {"[{\"image_id\": 1, \"category_id\": 1, \"bbox\": [1,2,3,4]}]", "[0]: no \"score\""},
        {"[{\"image_id\": 1, \"category_id\": 1, \"bbox\": [1,2,3], \"score\": 1}]",
         "[0].bbox: expected an array of four"},
        {"[{\"image_id\": 1, \"category_id\": 1, \"bbox\": [1,2,3,4], \"score\": \"1\"}]",
         "[0].score: expected a number"},
        {"[{\"image_id\": \"a.jpg\"}]", "[0].image_id: expected an integer"},
        {"[{\"score\": NaN}]", "not JSON at byte"},
        {"[", "cut short"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Error error = {.text = ""};
        CocoResults results;
        assert_false(parse_results(&results, cases[i][0], strlen(cases[i][0]), 0, &error));
        printf("  %s\n", error.text);
        if (!strstr(error.text, cases[i][1])) fail_msg("'%s' is missing in '%s'", cases[i][1], error.text);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_numbers_are_pycocotools),
        cmocka_unit_test(the_numbers_of_masks_are_pycocotools),
        cmocka_unit_test(the_worked_masks_have_their_numbers),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(the_mean_over_categories_is_the_ap),
        cmocka_unit_test(some_images_are_their_own_files),
        cmocka_unit_test(detections_of_unknown_images_are_refused),
        cmocka_unit_test(masks_that_do_not_fit_are_refused),
        cmocka_unit_test(without_detections_every_number_is_zero_or_none),
        cmocka_unit_test(results_come_back_as_they_were_written),
        cmocka_unit_test(damaged_results_are_refused),
    };
    if (argc == 3 || argc == 4) {
        double numbers[COCO_NUMBERS];
        Error error = {.text = ""};
        Case c;
        open_files(&c, argv[1], argv[2], argc == 4 ? COCO_EVAL_MASKS : COCO_EVAL_BOXES);
        if (argc == 4 && !coco_results_write(argv[3], &c.results, &error)) fail_msg("%s: %s", argv[3], error.text);
        evaluate(numbers, NULL, &c, NULL);
        for (int i = 0; i < COCO_NUMBERS; i++) printf("%.17g\n", numbers[i]);
        close_case(&c);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
