/* Pasting predicted masks into pictures, against the plain formula at every pixel. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "detection/mask_paste.h"
#include "tests/check.h"

enum { MOST = 28, H = 61, W = 47 };

static double cell(const float *p, int side, int row, int column) {
    return row < 0 || column < 0 || row >= side || column >= side ? 0 : (double)p[row * side + column];
}

static double value_at(const float *p, int side, const double box[4], int x, int y) {
    double u = (x + 0.5 - box[0]) / (box[2] - box[0]) * side - 0.5;
    double v = (y + 0.5 - box[1]) / (box[3] - box[1]) * side - 0.5;
    if (!(u > -1 && u < side && v > -1 && v < side)) return 0;
    int j = (int)floor(u), i = (int)floor(v);
    double fx = u - j, fy = v - i;
    return (1 - fy) * ((1 - fx) * cell(p, side, i, j) + fx * cell(p, side, i, j + 1)) +
           fy * ((1 - fx) * cell(p, side, i + 1, j) + fx * cell(p, side, i + 1, j + 1));
}

/* Pastes and checks a mask; returns its area.  A value within rounding of the limit may give 0 or 1. */
static int expect_paste(const float *p, int side, const double box[4], int height, int width, double least) {
    static uint8_t pixels[H * W];
    Rle rle = {.count = 0};
    int ones = 0;
    mask_paste(&rle, p, side, box, height, width, least);
    memset(pixels, 7, sizeof pixels);
    rle_decode(pixels, &rle);
    assert_true(rle.height == height && rle.width == width);
    for (int i = 0; i < height * width; i++) {
        double value = value_at(p, side, box, i % width, i / width);
        if (fabs(value - least) > 1e-12 && pixels[i] != (value >= least))
            fail_msg("pixel %d, %d: %d for the value %.17g", i % width, i / width, pixels[i], value);
        ones += pixels[i];
    }
    rle_free(&rle);
    return ones;
}

/* Checks a pixel's value by pasting with a limit slightly below and slightly above it.  The specification's digits are
 * for probabilities in double; as floats these are off by up to 2^-25. */
static void the_worked_mask_has_its_runs(void **state) {
    (void)state;
    const float p[9] = {.2f, .9f, .4f, .7f, .95f, .6f, .1f, .8f, .3f};
    const double box[4] = {1.5, 0.75, 7.25, 6};
    static const uint32_t runs[11] = {19, 1, 5, 4, 4, 5, 3, 4, 6, 1, 20};
    static const struct {
        int row, column;
        double value;
    } printed[3] = {{2, 3, 0.70815217}, {0, 1, 0.03571429}, {5, 7, 0.08711180}};
    Rle rle = {.count = 0};
    uint8_t pixels[8 * 9];
    mask_paste(&rle, p, 3, box, 8, 9, 0.5);
    assert_int_equal(rle.count, 11);
    assert_memory_equal(rle.runs, runs, sizeof runs);
    for (int n = 0; n < 3; n++) {
        for (int above = 0; above < 2; above++) {
            double off = 5e-9 + 0x1p-25;
            mask_paste(&rle, p, 3, box, 8, 9, printed[n].value + (above ? off : -off));
            rle_decode(pixels, &rle);
            assert_int_equal(pixels[printed[n].row * 9 + printed[n].column], !above);
        }
    }
    rle_free(&rle);
}

static void pasted_masks_follow_the_formula(void **state) {
    (void)state;
    float p[MOST * MOST];
    long ones = 0;
    for (uint32_t n = 0; n < 600; n++) {
        int side = (int[]){28, 28, 14, 5, 1}[n % 5], height = n % 7 ? H : 1 + (int)(n % 11), width = n % 3 ? W : 9;
        double box[4];
        for (uint64_t i = 0; i < (uint64_t)(side * side); i++) {
            p[i] = rng_uniform(check_seed(), RNG_TEST, 1, n, i);
            if (n % 4 == 1) p[i] = p[i] > 0.5f; /* only 0 and 1, with ties at the limit */
            if (n % 4 == 2) p[i] = (float)(i % (uint64_t)side) / (float)side;
        }
        for (uint64_t i = 0; i < 2; i++) {
            double length = i ? height : width, size = rng_uniform(check_seed(), RNG_TEST, 2, n, i) * 1.5 * length;
            box[i] = (1.4 * (double)rng_uniform(check_seed(), RNG_TEST, 3, n, i) - 0.3) * length;
            if (n % 2) box[i] = floor(box[i]), size = ceil(size); /* some pixels lie on centres of cells */
            box[i + 2] = box[i] + fmax(size, 1e-3);
        }
        ones += expect_paste(p, side, box, height, width, n % 4 ? 0.5 : 0.3);
    }
    printf("  %ld pixels are 1\n", ones);
    assert_true(ones > 20000);
}

static void boxes_anywhere_are_harmless(void **state) {
    (void)state;
    static const double none[][4] = {{5, 5, 5, 9},      {5, 5, 9, 4},           {NAN, 1, 2, 3},    {-INFINITY, 0, 9, 9},
                                     {0, 0, 9, INFINITY}, {-30, 0, -20, 9},     {100, 0, 120, 9},  {0, 1e9, 5, 2e9},
                                     {5, 5, 5 + 1e-9, 6}, {-1e300, 0, -1e299, 5}, {0, 62, 9, 70}};
    float p[MOST * MOST];
    for (int i = 0; i < MOST * MOST; i++) p[i] = 1;
    for (size_t n = 0; n < sizeof none / sizeof *none; n++) {
        Rle rle = {.count = 0};
        mask_paste(&rle, p, MOST, none[n], H, W, 0.5);
        assert_int_equal(rle.count, 1);
        assert_int_equal(rle.runs[0], H * W);
        rle_free(&rle);
    }
    const double all[4] = {-1e6, -1e6, 1e6, 1e6};
    assert_int_equal(expect_paste(p, MOST, all, H, W, 0.5), H * W);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_worked_mask_has_its_runs),
        cmocka_unit_test(pasted_masks_follow_the_formula),
        cmocka_unit_test(boxes_anywhere_are_harmless),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
