/* Pictures for semantic segmentation: stored values of PNG files, sizes, labels and colours against mmcv, OpenCV and
 * mmsegmentation (tests/fixtures/segmentation, made by tests/reference/make_segmentation_fixtures.py), random choices
 * in training, sliding windows, and drawings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/files.h"
#include "core/results/segmentation.h"
#include "data/images/image.h"
#include "data/segmentation/segmentation_augment.h"
#include "data/segmentation/segmentation_sheet.h"
#include "data/segmentation/sliding_windows.h"
#include "tests/check.h"
#include "tests/ranges.h"
#include "tests/scratch.h"

#define FIXTURES "tests/fixtures/segmentation/"

static FILE *open_fixture(const char *name) {
    char path[128];
    snprintf(path, sizeof path, FIXTURES "%s", name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    return file;
}

static int below(uint32_t stream, uint64_t i, int n) {
    return (int)rng_below(check_seed(), RNG_TEST, stream, 0, i, (uint32_t)n);
}

/* The checksum that make_segmentation_fixtures.py computes. */
static uint64_t digest(uint64_t sum, uint64_t value, uint64_t i) { return sum + value * (i + 1) * 2654435761u; }

/* == Stored values ================================================================================================= */

static bool decode_file(ImageValues *values, const char *name, Error *error) {
    char path[128];
    uint8_t *bytes;
    size_t size;
    snprintf(path, sizeof path, FIXTURES "%s", name);
    assert_true(file_read(path, IMAGE_MAX_BYTES, &bytes, &size, error));
    bool ok = image_decode_values(values, bytes, size, IMAGE_MAX_PIXELS, error);
    free(bytes);
    return ok;
}

static void values_come_out_as_they_are_stored(void **state) {
    (void)state;
    FILE *file = open_fixture("values.txt");
    char name[64];
    int height, width, files = 0;
    for (; fscanf(file, "%63s %d %d", name, &height, &width) == 3; files++) {
        ImageValues values;
        Error error;
        if (!decode_file(&values, name, &error)) fail_msg("%s: %s", name, error.text);
        assert_true(values.height == height && values.width == width);
        for (int i = 0; i < height * width; i++) {
            unsigned want;
            assert_int_equal(fscanf(file, "%2x", &want), 1);
            if (values.at[i] != want) fail_msg("%s, value %d: %d, expected %u", name, i, values.at[i], want);
        }
        image_values_free(&values);
    }
    fclose(file);
    assert_int_equal(files, 11);
}

static void what_is_no_annotation_is_refused(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"wrong-16.png", "a PNG of grey values of 16 bits, expected 8"},
        {"wrong-1.png", "a PNG of grey values of 1 bits, expected 8"},
        {"wrong-rgb.png", "a PNG of colours, expected one of grey values or of palette indices"},
        {"wrong-rgba.png", "a PNG of colours with alpha"},
        {"wrong-la.png", "a PNG of grey values with alpha"},
        {"wrong-jpeg.png", "not a PNG picture, which keeps values as they were stored"},
        {"values.txt", "not a PNG picture"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ImageValues values;
        Error error = {.text = ""};
        assert_false(decode_file(&values, cases[i][0], &error));
        if (!strstr(error.text, cases[i][1])) fail_msg("%s: %s", cases[i][0], error.text);
    }
}

/* Every prefix is refused with a message, and files with a changed header byte give values or are refused. */
static void damaged_annotations_are_refused(void **state) {
    (void)state;
    uint8_t *bytes, *copy;
    size_t size;
    Error error;
    ImageValues values;
    int refused = 0;
    assert_true(file_read(FIXTURES "values-palette4.png", IMAGE_MAX_BYTES, &bytes, &size, &error));
    copy = malloc(size);
    for (size_t n = 0; n < size - 16; n++) { /* the last 12 bytes are IEND, preceded by a checksum */
        memcpy(copy, bytes, n);
        *error.text = 0;
        assert_false(image_decode_values(&values, copy, n, IMAGE_MAX_PIXELS, &error));
        assert_true(*error.text);
    }
    for (size_t at = 0; at < 40; at++) {
        memcpy(copy, bytes, size);
        copy[at] ^= (uint8_t)(1 + below(1, at, 255));
        if (image_decode_values(&values, copy, size, 1 << 20, &error))
            image_values_free(&values);
        else
            refused++;
    }
    assert_true(refused > 10);
    free(copy);
    free(bytes);
}

/* == Sizes ======================================================================================================== */

static void sizes_are_mmcvs(void **state) {
    (void)state;
    FILE *file = open_fixture("sizes.txt");
    int h, w, longest, shortest, fit[2], aligned[2], cases = 0;
    for (; fscanf(file, "%d %d %d %d %d %d %d %d", &h, &w, &longest, &shortest, &fit[0], &fit[1], &aligned[0],
                  &aligned[1]) == 8;
         cases++) {
        SegmentationAugment augment = {.scale_long = longest, .scale_short = shortest};
        SegmentationDraw draw = segmentation_resize(&augment, h, w);
        if (draw.height != fit[0] || draw.width != fit[1] || draw.out_height != aligned[0] ||
            draw.out_width != aligned[1])
            fail_msg("%d x %d to %d, %d: %d x %d, %d x %d, expected %d x %d, %d x %d", h, w, longest, shortest,
                     draw.height, draw.width, draw.out_height, draw.out_width, fit[0], fit[1], aligned[0], aligned[1]);
        assert_true(!draw.mirror && draw.crop_height == draw.height && draw.crop_width == draw.width);
    }
    fclose(file);
    assert_int_equal(cases, 158);
    /* The shorter side would become 0. */
    SegmentationAugment augment = {.scale_long = 2048, .scale_short = 512};
    assert_int_equal(segmentation_resize(&augment, 1, 30000).height, 1);
}

/* == Labels ======================================================================================================= */

/* Resizes a row of n numbers with segmentation_crop: two rows of bytes, the high and the low byte of each. */
static void resize_numbers(int *out, int m, int n, TransformScratch *scratch) {
    const SegmentationAugment augment = {.crop_most = 1};
    uint8_t *in = malloc((size_t)n), *half = malloc((size_t)m);
    for (int part = 0; part < 2; part++) {
        SegmentationDraw draw = {.from_height = 1, .from_width = n, .height = 1, .width = m, .crop_height = 1,
                                 .crop_width = m};
        for (int i = 0; i < n; i++) in[i] = (uint8_t)(part ? i >> 8 : i & 255);
        assert_true(segmentation_crop(&draw, half, 0, in, &augment, 1, 0, 0, scratch));
        for (int i = 0; i < m; i++) out[i] = part ? out[i] + 256 * half[i] : half[i];
    }
    free(in);
    free(half);
}

static void labels_are_opencvs(void **state) {
    (void)state;
    FILE *file = open_fixture("nearest.txt");
    TransformScratch scratch = {0};
    int n, m, cases = 0;
    uint64_t want;
    for (; fscanf(file, "%d %d %" SCNu64, &n, &m, &want) == 3; cases++) {
        int *index = malloc((size_t)m * sizeof *index);
        uint64_t sum = 0;
        resize_numbers(index, m, n, &scratch);
        for (int i = 0; i < m; i++) sum = digest(sum, (uint64_t)index[i], (uint64_t)i);
        if (sum != want) fail_msg("%d to %d: another sum of indices", n, m);
        free(index);
    }
    fclose(file);
    transform_scratch_free(&scratch);
    assert_int_equal(cases, 258);
}

/* A random picture of a few rectangles on label 0, some of them ignored. */
static void paint_labels(uint8_t *labels, int height, int width, uint32_t stream) {
    memset(labels, 0, (size_t)height * (size_t)width);
    for (uint64_t r = 0; r < 6; r++) {
        int top = below(stream, 8 * r, height), left = below(stream, 8 * r + 1, width);
        int bottom = top + 1 + below(stream, 8 * r + 2, height - top);
        int right = left + 1 + below(stream, 8 * r + 3, width - left);
        uint8_t class = below(stream, 8 * r + 4, 4) ? (uint8_t)below(stream, 8 * r + 5, 5) : SEGMENTATION_IGNORED;
        for (int y = top; y < bottom; y++) memset(labels + y * width + left, class, (size_t)(right - left));
    }
}

/* mmsegmentation's rule, by its definition. */
static bool accepted(const uint8_t *crop, int count, double most) {
    int pixels[256] = {0}, total = 0, largest = 0, present = 0;
    for (int i = 0; i < count; i++) pixels[crop[i]]++;
    for (int c = 0; c < SEGMENTATION_IGNORED; c++) {
        total += pixels[c];
        present += pixels[c] > 0;
        largest = pixels[c] > largest ? pixels[c] : largest;
    }
    return present > 1 && (double)largest / total < most;
}

static int row_of(int y, int out, int in) {
    int row = (int)floor(y * (1 / ((double)out / in)));
    return row < in - 1 ? row : in - 1;
}

/* The crop and its labels equal those of a simple loop over the attempts. */
static void crops_are_drawn_until_they_are_mixed(void **state) {
    (void)state;
    enum { CASES = 300, SIDE = 32, MOST = 120 };
    TransformScratch scratch = {0};
    int attempts[12] = {0};
    for (uint32_t n = 0; n < CASES; n++) {
        static uint8_t labels[MOST * MOST];
        uint8_t got[SIDE * (SIDE + 5)], want[SIDE * SIDE];
        int height = 20 + below(10, 2 * n, MOST - 20), width = 20 + below(10, 2 * n + 1, MOST - 20), tried = 0;
        const SegmentationAugment augment = {.scale_long = 240, .scale_short = 60, .scale_min = 0.5f, .scale_max = 2,
                                             .crop_size = SIDE, .crop_most = 0.75f, .flip = true};
        paint_labels(labels, height, width, 1000 + n);
        SegmentationDraw draw = segmentation_draw(&augment, height, width, check_seed(), 7, n), first = draw;
        memset(got, 0xA5, sizeof got);
        assert_true(segmentation_crop(&draw, got, SIDE + 5, labels, &augment, check_seed(), 7, n, &scratch));
        int h = draw.crop_height, w = draw.crop_width, top, left;
        do {
            uint64_t element = 1 + 2 * (uint64_t)tried;
            top = (int)rng_below(check_seed(), RNG_CROP, 7, n, element, (uint32_t)(draw.height - h) + 1);
            left = (int)rng_below(check_seed(), RNG_CROP, 7, n, element + 1, (uint32_t)(draw.width - w) + 1);
            for (int y = 0; y < h; y++)
                for (int x = 0; x < w; x++)
                    want[y * w + x] = labels[row_of(top + y, draw.height, height) * width +
                                             row_of(left + (draw.mirror ? w - 1 - x : x), draw.width, width)];
        } while (++tried < 11 && !accepted(want, h * w, 0.75));
        assert_true(draw.top == top && draw.left == left);
        if (tried == 1) assert_true(first.top == top && first.left == left);
        for (int y = 0; y < h; y++) {
            assert_memory_equal(got + y * (SIDE + 5), want + y * w, (size_t)w);
            for (int x = w; x < SIDE + 5; x++) assert_int_equal(got[y * (SIDE + 5) + x], 0xA5);
        }
        attempts[tried]++;
    }
    transform_scratch_free(&scratch);
    printf("  of %d crops %d were taken at once, %d after more draws, %d at the last\n", CASES, attempts[1],
           CASES - attempts[1] - attempts[11], attempts[11]);
    assert_true(attempts[1] > 20 && attempts[11] > 5 && CASES - attempts[1] - attempts[11] > 20);
}

/* == Pixels ======================================================================================================= */

/* Scaled, cropped and mirrored pixels equal those of the whole resized picture. */
static void pixels_follow_the_draw(void **state) {
    (void)state;
    enum { SIDE = 32 };
    TransformScratch scratch = {0};
    for (uint32_t n = 0; n < 60; n++) {
        int height = 20 + below(20, 2 * n, 90), width = 20 + below(20, 2 * n + 1, 90);
        uint8_t *in = malloc((size_t)height * (size_t)width * 3), got[SIDE * (SIDE * 3 + 7)];
        for (int i = 0; i < height * width * 3; i++) in[i] = (uint8_t)below(2000 + n, (uint64_t)i, 256);
        const SegmentationAugment augment = {.scale_long = 240, .scale_short = 60, .scale_min = 0.5f, .scale_max = 2,
                                             .crop_size = SIDE, .crop_most = 1, .flip = true, .photometric = n % 2};
        SegmentationDraw draw = segmentation_draw(&augment, height, width, check_seed(), 2, n);
        ImagePart picture = {in, (size_t)width * 3, 0, 0, height, width};
        size_t stride = SIDE * 3 + 7;
        memset(got, 0xA5, sizeof got);
        assert_true(segmentation_pixels(&scratch, got, stride, &picture, &draw));

        ResampleAxis rows = resample_whole(height, draw.height), columns = resample_whole(width, draw.width);
        uint8_t *whole = malloc((size_t)draw.height * (size_t)draw.width * 3);
        assert_true(resample(&scratch.resampler, whole, &picture, &rows, &columns, RESAMPLE_BILINEAR));
        for (int y = 0; y < draw.crop_height; y++) {
            for (int x = 0; x < draw.crop_width; x++) {
                int from = draw.left + (draw.mirror ? draw.crop_width - 1 - x : x);
                uint8_t *want = whole + ((draw.top + y) * draw.width + from) * 3;
                photometric_apply(want, 3, 1, 1, &draw.colours); /* each pixel is used once */
                assert_memory_equal(got + (size_t)y * stride + 3 * (size_t)x, want, 3);
            }
            for (size_t i = (size_t)draw.crop_width * 3; i < stride; i++)
                assert_int_equal(got[(size_t)y * stride + i], 0xA5);
        }
        free(whole);
        free(in);
    }
    transform_scratch_free(&scratch);
}

static void evaluation_resizes_twice(void **state) {
    (void)state;
    TransformScratch scratch = {0};
    uint8_t in[50 * 71 * 3], fit[64 * 91 * 3], want[64 * 96 * 3], got[64 * 96 * 3];
    for (int i = 0; i < 50 * 71 * 3; i++) in[i] = (uint8_t)below(30, (uint64_t)i, 256);
    const SegmentationAugment augment = {.scale_long = 256, .scale_short = 64};
    SegmentationDraw draw = segmentation_resize(&augment, 50, 71);
    ImagePart picture = {in, 71 * 3, 0, 0, 50, 71}, between = {fit, 91 * 3, 0, 0, 64, 91};
    assert_true(draw.height == 64 && draw.width == 91 && draw.out_height == 64 && draw.out_width == 96);
    assert_true(segmentation_pixels(&scratch, got, 96 * 3, &picture, &draw));
    ResampleAxis rows = resample_whole(50, 64), columns = resample_whole(71, 91);
    assert_true(resample(&scratch.resampler, fit, &picture, &rows, &columns, RESAMPLE_BILINEAR));
    rows = resample_whole(64, 64);
    columns = resample_whole(91, 96);
    assert_true(resample(&scratch.resampler, want, &between, &rows, &columns, RESAMPLE_BILINEAR));
    assert_memory_equal(got, want, sizeof want);
    transform_scratch_free(&scratch);
}

/* == Random choices ================================================================================================ */

static void draws_are_mmsegmentations(void **state) {
    (void)state;
    enum { COUNT = 20000 };
    const SegmentationAugment augment = {.scale_long = 2048, .scale_short = 512, .scale_min = 0.5f, .scale_max = 2,
                                         .crop_size = 512, .crop_most = 0.75f, .flip = true, .photometric = true};
    int mirrored = 0, steps[5] = {0}, hues[36] = {0}, short_of = 0, corners[2] = {0}, fits = 0;
    double brightness = 0, contrast = 0, saturation = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        SegmentationDraw d = segmentation_draw(&augment, 512, 683, check_seed(), i % 5, i);
        SegmentationDraw again = segmentation_draw(&augment, 512, 683, check_seed(), i % 5, i);
        assert_memory_equal(&d, &again, sizeof d);
        assert_in_range(d.height, 256, 1023); /* int(512 r), as f = min(2048 r / 683, 512 r / 512) */
        assert_true(d.width == (int)(683 * (d.height / 512.0) + 0.5));
        assert_true(d.crop_height == (d.height < 512 ? d.height : 512));
        assert_in_range(d.top, 0, d.height - d.crop_height);
        assert_in_range(d.left, 0, d.width - d.crop_width);
        short_of += d.height < 512;
        fits += d.height >= 512;
        corners[0] += d.height >= 512 && d.top * 2 < d.height - d.crop_height;
        mirrored += d.mirror;
        const Photometric *p = &d.colours;
        const bool step[5] = {p->brighten, p->contrast_first, p->saturate, p->turn, p->contrast_last};
        assert_false(p->contrast_first && p->contrast_last);
        for (int s = 0; s < 5; s++) steps[s] += step[s];
        assert_true(p->brightness >= -32 && p->brightness < 32);
        assert_true(p->contrast >= 0.5f && p->contrast <= 1.5f); /* 0.5 + (1 - 2^-24) rounds to 1.5 */
        assert_true(p->saturation >= 0.5f && p->saturation <= 1.5f);
        assert_in_range(p->hue + 18, 0, 35);
        hues[p->hue + 18]++;
        brightness += p->brightness;
        contrast += p->contrast;
        saturation += p->saturation;
    }
    /* Five standard deviations; r < 1 in a third of the samples. */
    assert_in_range(short_of, COUNT / 3 - 335, COUNT / 3 + 335);
    assert_in_range(corners[0], fits / 2 - 320, fits / 2 + 320);
    assert_in_range(mirrored, COUNT / 2 - 355, COUNT / 2 + 355);
    for (int s = 0; s < 5; s++) {
        int want = s == 1 || s == 4 ? COUNT / 4 : COUNT / 2;
        assert_in_range(steps[s], want - 355, want + 355);
    }
    for (int h = 0; h < 36; h++) assert_in_range(hues[h], COUNT / 36 - 120, COUNT / 36 + 120);
    assert_true(fabs(brightness / COUNT) < 0.66 && fabs(contrast / COUNT - 1) < 0.0103);
    assert_true(fabs(saturation / COUNT - 1) < 0.0103);
    /* With random choices switched off: */
    const SegmentationAugment plain = {.scale_long = 128, .scale_short = 128, .scale_min = 1, .scale_max = 1,
                                       .crop_size = 128, .crop_most = 1};
    for (uint32_t i = 0; i < 100; i++) {
        SegmentationDraw d = segmentation_draw(&plain, 128, 128, check_seed(), 0, i);
        assert_true(d.height == 128 && d.width == 128 && !d.mirror && !d.top && !d.left && !d.colours.brighten);
        assert_true(!d.colours.contrast_first && !d.colours.contrast_last && !d.colours.saturate && !d.colours.turn);
    }
}

/* == Colours ====================================================================================================== */

static void colours_are_opencvs(void **state) {
    (void)state;
    enum { ROW = 1 << 12, ROWS = 1 << 12 };
    FILE *file = open_fixture("photometric.txt");
    uint8_t *row = malloc(ROW * 3);
    int step[5], cases = 0;
    uint64_t want;
    Photometric p;
    for (; fscanf(file, "%d %d %d %d %d %a %a %a %d %" SCNu64, &step[0], &step[1], &step[2], &step[3], &step[4],
                  &p.brightness, &p.contrast, &p.saturation, &p.hue, &want) == 10;
         cases++) {
        uint64_t sum = 0, i = 0;
        p.brighten = step[0];
        p.contrast_first = step[1];
        p.saturate = step[2];
        p.turn = step[3];
        p.contrast_last = step[4];
        for (uint32_t colour = 0, y = 0; y < ROWS; y++) {
            for (int x = 0; x < ROW; x++, colour++) {
                row[3 * x] = (uint8_t)(colour >> 16);
                row[3 * x + 1] = (uint8_t)(colour >> 8);
                row[3 * x + 2] = (uint8_t)colour;
            }
            photometric_apply(row, 0, 1, ROW, &p);
            for (int k = 0; k < ROW * 3; k++) sum = digest(sum, row[k], i++);
        }
        if (sum != want) fail_msg("case %d: another sum of all colours", cases);
    }
    free(row);
    fclose(file);
    assert_int_equal(cases, 8);
}

/* == Sliding windows ============================================================================================== */

static void windows_are_mmsegmentations(void **state) {
    (void)state;
    FILE *file = open_fixture("windows.txt");
    int h, w, crop, stride, count, cases = 0;
    for (; fscanf(file, "%d %d %d %d %d", &h, &w, &crop, &stride, &count) == 5; cases++) {
        assert_int_equal(sliding_count(h, w, crop, stride), count);
        for (int i = 0; i < count; i++) {
            SlidingWindow got = sliding_window(h, w, crop, stride, i), want;
            assert_int_equal(fscanf(file, "%d %d %d %d", &want.top, &want.left, &want.height, &want.width), 4);
            assert_memory_equal(&got, &want, sizeof got);
        }
    }
    fclose(file);
    assert_int_equal(cases, 45);
}

/* == Drawings ===================================================================================================== */

static int count_colour(const Image *image, const uint8_t rgb[3]) {
    int count = 0;
    for (int i = 0; i < image->height * image->width; i++) count += !memcmp(image->pixels + 3 * i, rgb, 3);
    return count;
}

static void drawings_have_a_legend(void **state) {
    (void)state;
    static const char *const names[] = {"ground", "a very long name of a class, which is cut off", "disc"};
    uint8_t pixels[2][40 * 60 * 3], labels[2][40 * 64], rgb[3], seen[256][3];
    Error error;
    Image image;
    for (int c = 0; c < 256; c++) {
        segmentation_colour(seen[c], c);
        for (int d = 0; d < c; d++) assert_memory_not_equal(seen[c], seen[d], 3);
    }
    memset(pixels, 100, sizeof pixels);
    memset(labels, 0, sizeof labels);
    for (int y = 0; y < 20; y++) memset(labels[0] + y * 64, 2, 60);
    for (int y = 0; y < 10; y++) memset(labels[1] + y * 64, SEGMENTATION_IGNORED, 60);
    const SegmentationView views[] = {{40, 60, pixels[0], 60 * 3, labels[0], 64, NULL},
                                      {30, 50, pixels[1], 60 * 3, labels[1], 64, NULL}};
    for (int named = 0; named < 2; named++) {
        assert_true(segmentation_sheet_write(in_folder("sheet.png"), views, 2, named ? names : NULL, &error));
        assert_true(image_read(&image, in_folder("sheet.png"), &error));
        const uint8_t grey[3] = {100, 100, 100}, black[3] = {0};
        assert_int_equal(count_colour(&image, grey), 25 * (40 * 60 + 30 * 50)); /* scaled by five */
        segmentation_colour(rgb, 2);
        for (int k = 0; k < 3; k++) rgb[k] = (uint8_t)((2 * 100 + 3 * rgb[k]) / 5);
        assert_int_equal(count_colour(&image, rgb), 25 * 20 * 60);
        assert_true(count_colour(&image, black) > 128); /* letters, and the background's colour */
        segmentation_colour(rgb, 2);
        assert_true(count_colour(&image, rgb) >= 64 && count_colour(&image, rgb) % 64 == 0); /* in the legend */
        segmentation_colour(rgb, 1);
        assert_int_equal(count_colour(&image, rgb), 0); /* does not occur */
        image_free(&image);
    }
    SegmentationView predicted = views[0];
    predicted.predicted = labels[1]; /* its upper quarter is ignored, and the rest is class 0 */
    assert_true(segmentation_sheet(&image, &predicted, 1, 1, names, &error));
    assert_int_equal(image.width, 3 * 60 + 4 * 4);
    segmentation_colour(rgb, SEGMENTATION_IGNORED);
    for (int k = 0; k < 3; k++) rgb[k] = (uint8_t)((2 * 100 + 3 * rgb[k]) / 5);
    assert_int_equal(count_colour(&image, rgb), 10 * 60);
    image_free(&image);
    assert_false(segmentation_sheet_write("no/such/folder.png", views, 1, names, &error));
    assert_non_null(strstr(error.text, "No such file"));
    const SegmentationView large = {30000, 30000, pixels[0], 0, labels[0], 0, NULL};
    assert_false(segmentation_sheet_write(in_folder("large.png"), &large, 1, names, &error));
    assert_non_null(strstr(error.text, "too many for one picture"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_come_out_as_they_are_stored),
        cmocka_unit_test(what_is_no_annotation_is_refused),
        cmocka_unit_test(damaged_annotations_are_refused),
        cmocka_unit_test(sizes_are_mmcvs),
        cmocka_unit_test(labels_are_opencvs),
        cmocka_unit_test(crops_are_drawn_until_they_are_mixed),
        cmocka_unit_test(pixels_follow_the_draw),
        cmocka_unit_test(evaluation_resizes_twice),
        cmocka_unit_test(draws_are_mmsegmentations),
        cmocka_unit_test(colours_are_opencvs),
        cmocka_unit_test(windows_are_mmsegmentations),
        cmocka_unit_test(drawings_have_a_legend),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
