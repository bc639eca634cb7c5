/* Counts of pixels and the scores of semantic segmentation: the specification's worked case, a plain count of random
 * pictures, classes that do not occur, and the tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "core/results/segmentation.h"
#include "tests/check.h"
#include "tests/scratch.h"

static int below(uint32_t stream, uint64_t i, int n) {
    return (int)rng_below(check_seed(), RNG_TEST, stream, 0, i, (uint32_t)n);
}

/* Bilinear resizing without aligned corners: shared/spec/dense-prediction.md, section 8. */
static double resized(const double *z, int h, int w, int H, int W, int y, int x) {
    double sy = fmax((y + 0.5) * h / H - 0.5, 0), sx = fmax((x + 0.5) * w / W - 0.5, 0);
    int y0 = (int)sy, x0 = (int)sx, y1 = y0 + 1 < h ? y0 + 1 : h - 1, x1 = x0 + 1 < w ? x0 + 1 : w - 1;
    double fy = sy - y0, fx = sx - x0;
    return (1 - fy) * ((1 - fx) * z[y0 * w + x0] + fx * z[y0 * w + x1]) +
           fy * ((1 - fx) * z[y1 * w + x0] + fx * z[y1 * w + x1]);
}

/* Logits 2 sin(0.7 k + 1.1 y + 0.4 x) of three classes on 2 x 3 pixels, labels (2 y + x) mod 4 on 4 x 6, 3: ignored. */
static void the_case_in_figures(void **state) {
    (void)state;
    uint8_t predicted[24], labels[24];
    double z[3][6];
    SegmentationCounts counts;
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 6; i++) z[k][i] = 2 * sin(0.7 * k + 1.1 * (i / 3) + 0.4 * (i % 3));
    for (int i = 0; i < 24; i++) {
        int label = (2 * (i / 6) + i % 6) % 4;
        double best = -INFINITY;
        labels[i] = (uint8_t)(label == 3 ? SEGMENTATION_IGNORED : label);
        for (int k = 0; k < 3; k++) {
            double value = resized(z[k], 2, 3, 4, 6, i / 6, i % 6);
            if (value > best) predicted[i] = (uint8_t)k;
            best = fmax(best, value);
        }
    }
    segmentation_counts_open(&counts, 3);
    segmentation_counts_add(&counts, predicted, 6, labels, 6, 4, 6);
    const uint64_t both[] = {2, 3, 2}, either[] = {9, 12, 8};
    for (int k = 0; k < 3; k++) {
        ClassPixels p = segmentation_pixels_of(&counts, k);
        assert_int_equal(p.both, both[k]);
        assert_int_equal(p.predicted + p.labelled - p.both, either[k]);
    }
    SegmentationScores scores = segmentation_scores(&counts);
    printf("  mIoU %.8f, aAcc %.8f, mAcc %.8f\n", scores.miou, scores.aacc, scores.macc);
    assert_true(fabs(scores.miou - 0.24074074) < 5e-9 && fabs(scores.aacc - 0.38888889) < 5e-9);
    assert_true(scores.present == 3 && scores.pixels == 18);
    segmentation_counts_close(&counts);
}

/* Random pictures with areas and noise, with gaps between rows, and with labels beyond the classes. */
static void counts_are_those_of_every_pixel(void **state) {
    (void)state;
    for (uint32_t n = 0; n < 40; n++) {
        int classes = 1 + below(n, 0, 255), height = 1 + below(n, 1, 40), width = 1 + below(n, 2, 300);
        int strides[2] = {width + below(n, 3, 30), width + below(n, 4, 30)}, run = 1 + below(n, 5, 200);
        uint8_t *predicted = malloc((size_t)(height * strides[0])), *labels = malloc((size_t)(height * strides[1]));
        uint64_t want[3][256] = {{0}};
        SegmentationCounts counts;
        for (int i = 0; i < height * strides[0]; i++)
            predicted[i] = (uint8_t)below(100 + n, (uint64_t)(i / run), classes);
        for (int i = 0; i < height * strides[1]; i++) labels[i] = (uint8_t)below(200 + n, (uint64_t)(i / run), 256);
        for (int i = 0; i < height * width; i += 1 + below(300 + n, (uint64_t)i, 2 * run)) /* single correct pixels */
            labels[i / width * strides[1] + i % width] = predicted[i / width * strides[0] + i % width];
        segmentation_counts_open(&counts, classes);
        for (int twice = 0; twice < 2; twice++)
            segmentation_counts_add(&counts, predicted, (size_t)strides[0], labels, (size_t)strides[1], height, width);
        for (int i = 0; i < height * width; i++) {
            int p = predicted[i / width * strides[0] + i % width], l = labels[i / width * strides[1] + i % width];
            if (l >= classes) continue;
            want[0][l] += 2 * (p == l);
            want[1][p] += 2;
            want[2][l] += 2;
        }
        double miou = 0, macc = 0;
        uint64_t both = 0, labelled = 0, present = 0, seen = 0;
        for (int c = 0; c < classes; c++) {
            ClassPixels p = segmentation_pixels_of(&counts, c);
            assert_int_equal(p.both, want[0][c]);
            assert_int_equal(p.predicted, want[1][c]);
            assert_int_equal(p.labelled, want[2][c]);
            uint64_t either = want[1][c] + want[2][c] - want[0][c];
            assert_int_equal(isnan(segmentation_iou(p)), !either);
            assert_int_equal(isnan(segmentation_accuracy(p)), !want[2][c]);
            if (either) miou += (double)want[0][c] / (double)either, present++;
            if (want[2][c]) macc += (double)want[0][c] / (double)want[2][c], seen++;
            both += want[0][c];
            labelled += want[2][c];
        }
        SegmentationScores scores = segmentation_scores(&counts);
        assert_int_equal(scores.present, present);
        assert_int_equal(scores.pixels, labelled);
        assert_true(fabs(scores.miou - (present ? miou / (double)present : 0)) < 1e-12);
        assert_true(fabs(scores.macc - (seen ? macc / (double)seen : 0)) < 1e-12);
        assert_true(fabs(scores.aacc - (labelled ? (double)both / (double)labelled : 0)) < 1e-12);
        segmentation_counts_close(&counts);
        free(predicted);
        free(labels);
    }
}

/* Counts above 2^32 are exact.  A validation set may have more pixels than that, and a float would round. */
static void counts_may_be_large(void **state) {
    (void)state;
    SegmentationCounts counts;
    segmentation_counts_open(&counts, 2);
    counts.pairs[0] = (1ull << 40) + 1;
    counts.pairs[1] = 1ull << 33;
    segmentation_counts_sum(&counts);
    ClassPixels p = segmentation_pixels_of(&counts, 0);
    assert_int_equal(p.both, (1ull << 40) + 1);
    assert_int_equal(p.labelled, (1ull << 40) + 1 + (1ull << 33));
    segmentation_counts_close(&counts);
}

static void read_back(char *text, size_t size, const char *path) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, size - 1, file)] = 0;
    fclose(file);
}

static void tables_name_classes(void **state) {
    (void)state;
    static const char *const names[] = {"wall", "door, open", "a \"sky\""};
    const uint8_t labels[] = {0, 0, 0, 1, 1, 255, 255, 255}, predicted[] = {0, 0, 1, 1, 1, 2, 0, 1};
    char text[1024];
    Error error;
    SegmentationCounts counts;
    segmentation_counts_open(&counts, 3);
    segmentation_counts_add(&counts, predicted, 8, labels, 8, 1, 8);
    assert_true(segmentation_counts_write(&counts, in_folder("classes.csv"), names, &error));
    read_back(text, sizeof text, in_folder("classes.csv"));
    assert_string_equal(text, "class,name,pixels,iou,accuracy\n0,wall,3,66.667,66.667\n"
                              "1,\"door, open\",2,66.667,100.000\n2,\"a \"\"sky\"\"\",0,,\n");
    assert_true(segmentation_counts_write(&counts, in_folder("classes.csv"), NULL, &error));
    read_back(text, sizeof text, in_folder("classes.csv"));
    assert_non_null(strstr(text, "\n1,,2,66.667,100.000\n"));
    assert_false(segmentation_counts_write(&counts, "no/such/folder.csv", names, &error));
    assert_non_null(strstr(error.text, "No such file"));

    fflush(stdout);
    int kept = dup(1), file = open(in_folder("table.txt"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(file, 1);
    segmentation_counts_print(&counts, names);
    segmentation_counts_print(&counts, NULL);
    fflush(stdout);
    dup2(kept, 1);
    close(kept);
    close(file);
    read_back(text, sizeof text, in_folder("table.txt"));
    assert_string_equal(text, "class                        IoU     Acc    pixels\n"
                              "wall                       66.67   66.67   60.00 %\n"
                              "door, open                 66.67  100.00   40.00 %\n"
                              "a \"sky\"                        -       -    0.00 %\n"
                              "class                        IoU     Acc    pixels\n"
                              "class 0                    66.67   66.67   60.00 %\n"
                              "class 1                    66.67  100.00   40.00 %\n"
                              "class 2                        -       -    0.00 %\n");
    segmentation_counts_close(&counts);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_case_in_figures),
        cmocka_unit_test(counts_are_those_of_every_pixel),
        cmocka_unit_test(counts_may_be_large),
        cmocka_unit_test(tables_name_classes),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
