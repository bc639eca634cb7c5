/* Decoding, resizing and transforms against Pillow's bytes (tests/fixtures/data/pillow.safetensors), parts of pictures
 * against whole ones, and files that must be refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "core/files.h"
#include "core/safetensors.h"
#include "data/images/image.h"
#include "data/images/jpeg.h"
#include "data/images/sheet.h"
#include "data/images/transform.h"
#include "tests/check.h"
#include "tests/scratch.h"

/* == Helpers ====================================================================================================== */

#define CORPUS "tests/corpus/jpeg/"

static const char *const sound[] = {"colour444.jpg", "colour422.jpg", "colour420.jpg", "progressive.jpg",
                                    "grey.jpg",      "cmyk.jpg",      "ycck.jpg",      "arithmetic.jpg",
                                    "exif.jpg",      "trailing.jpg",  "png.JPEG"};
enum { SOUND = sizeof sound / sizeof *sound, JPEGS = SOUND - 1, HEIGHT = 43, WIDTH = 61 };

static SafeTensors fixture;

static int open_fixture(void **state) {
    Error error;
    (void)state;
    if (safetensors_open(&fixture, "tests/fixtures/data/pillow.safetensors", &error)) return 0;
    printf("%s\n", error.text);
    return 1;
}

static const SafeTensor *tensor(const char *format, const char *name, int number, const char *ending) {
    char full[64];
    snprintf(full, sizeof full, format, name, number, ending);
    return safetensors_find(&fixture, full);
}

static void numbers_of(const SafeTensor *t, int64_t *numbers) {
    Error error;
    assert_non_null(t);
    assert_true(safetensors_to_int64(t, numbers, &error));
}

typedef struct {
    uint8_t *bytes;
    size_t size;
} File;

static File read_corpus(const char *name) {
    char path[128];
    Error error;
    File file;
    snprintf(path, sizeof path, CORPUS "%s", name);
    if (!file_read(path, 1 << 20, &file.bytes, &file.size, &error)) fail_msg("%s: %s", path, error.text);
    return file;
}

static uint32_t draw(uint32_t stream, uint64_t i, int n) {
    return rng_below(check_seed(), RNG_TEST, stream, 0, i, (uint32_t)n);
}

static uint8_t *random_pixels(size_t n, uint32_t stream) {
    uint8_t *pixels = malloc(n);
    for (size_t i = 0; i < n; i++) pixels[i] = (uint8_t)rng_bits(check_seed(), RNG_TEST, stream, 0, i);
    return pixels;
}

/* A copy of rows and columns [low,high) of a picture. */
static uint8_t *cut(const uint8_t *pixels, int width, const int rows[2], const int columns[2]) {
    size_t row = (size_t)(columns[1] - columns[0]) * 3;
    uint8_t *part = malloc((size_t)(rows[1] - rows[0]) * row);
    for (int y = rows[0]; y < rows[1]; y++)
        memcpy(part + (size_t)(y - rows[0]) * row, pixels + ((size_t)y * (size_t)width + (size_t)columns[0]) * 3, row);
    return part;
}

/* A random range, low < high <= n. */
static void random_range(int range[2], int n, uint32_t stream, uint64_t i) {
    range[0] = (int)draw(stream, 2 * i, n);
    range[1] = range[0] + 1 + (int)draw(stream, 2 * i + 1, n - range[0]);
}

static void assert_same_pixels(const char *what, const uint8_t *got, const uint8_t *want, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i]) fail_msg("%s: byte %zu is %d, expected %d", what, i, got[i], want[i]);
}

/* == Resizing ===================================================================================================== */

static void resizing_is_pillows_to_the_bit(void **state) {
    (void)state;
    Resampler resampler = {0};
    int cases = 0;
    for (const SafeTensor *want; (want = tensor("%s.%d%s", "resize", cases, "")); cases++) {
        int64_t sizes[3];
        numbers_of(tensor("%s.%d%s", "resize", cases, ".sizes"), sizes);
        int in_h = (int)sizes[0], in_w = (int)sizes[1], h = (int)want->shape[0], w = (int)want->shape[1];
        uint8_t *in = malloc((size_t)(in_h * in_w * 3)), *out = malloc(want->bytes);
        for (int y = 0, i = 0; y < in_h; y++)
            for (int x = 0; x < in_w; x++)
                for (int c = 0; c < 3; c++)
                    in[i++] = (uint8_t)(37 * y + 11 * x * x + 53 * c + 5 * x * y + ((x * y * 7919) >> 5));
        ImagePart part = {.pixels = in, .stride = (size_t)in_w * 3, .height = in_h, .width = in_w};
        ResampleAxis rows = resample_whole(in_h, h), columns = resample_whole(in_w, w);
        memset(out, 0xAA, want->bytes);
        assert_true(resample(&resampler, out, &part, &rows, &columns, (ResampleFilter)sizes[2]));
        char what[64];
        snprintf(what, sizeof what, "%dx%d to %dx%d, filter %d", in_h, in_w, h, w, (int)sizes[2]);
        assert_same_pixels(what, out, want->data, want->bytes);
        free(in);
        free(out);
    }
    assert_int_equal(cases, 33);
    resampler_free(&resampler);
}

/* Any window of the output, mirrored or not, can be computed from the part of the input given by resample_range. */
static void windows_are_parts_of_the_whole(void **state) {
    (void)state;
    Resampler resampler = {0};
    for (uint64_t i = 0; i < 200; i++) {
        int in_h = 1 + (int)draw(1, 8 * i, 70), in_w = 1 + (int)draw(1, 8 * i + 1, 70);
        int h = 1 + (int)draw(1, 8 * i + 2, 70), w = 1 + (int)draw(1, 8 * i + 3, 70);
        ResampleFilter filter = (ResampleFilter)draw(1, 8 * i + 4, RESAMPLE_BOX + 1);
        bool mirror = draw(1, 8 * i + 5, 2);
        int y[2], x[2], need_y[2], need_x[2];
        random_range(y, h, 2, i);
        random_range(x, w, 3, i);
        uint8_t *in = random_pixels((size_t)(in_h * in_w * 3), 4), *whole = malloc((size_t)(h * w * 3));
        ImagePart part = {.pixels = in, .stride = (size_t)in_w * 3, .height = in_h, .width = in_w};
        ResampleAxis rows = resample_whole(in_h, h), columns = resample_whole(in_w, w);
        assert_true(resample(&resampler, whole, &part, &rows, &columns, filter));
        uint8_t *want = cut(whole, w, y, x);

        rows.first = y[0];
        rows.count = y[1] - y[0];
        columns.first = x[0];
        columns.count = x[1] - x[0];
        columns.mirror = mirror;
        resample_range(&rows, filter, need_y);
        resample_range(&columns, filter, need_x);
        uint8_t *needed = cut(in, in_w, need_y, need_x), *got = malloc((size_t)(rows.count * columns.count * 3));
        ImagePart small = {.pixels = needed,
                           .stride = (size_t)(need_x[1] - need_x[0]) * 3,
                           .top = need_y[0],
                           .left = need_x[0],
                           .height = need_y[1] - need_y[0],
                           .width = need_x[1] - need_x[0]};
        assert_true(resample(&resampler, got, &small, &rows, &columns, filter));
        for (int r = 0; r < rows.count; r++)
            for (int c = 0; c < columns.count; c++)
                assert_memory_equal(got + (r * columns.count + c) * 3,
                                    want + (r * columns.count + (mirror ? columns.count - 1 - c : c)) * 3, 3);
        free(in);
        free(whole);
        free(want);
        free(needed);
        free(got);
    }
    resampler_free(&resampler);
}

/* == JPEG ========================================================================================================= */

static void pictures_decode_as_in_pillow(void **state) {
    (void)state;
    for (int i = 0; i < SOUND; i++) {
        File file = read_corpus(sound[i]);
        const SafeTensor *want = tensor("%s.%.0d%s", "decode", 0, sound[i]);
        Error error;
        Image image;
        assert_non_null(want);
        if (!image_decode(&image, file.bytes, file.size, 1 << 20, &error)) fail_msg("%s: %s", sound[i], error.text);
        assert_int_equal(image.height, HEIGHT);
        assert_int_equal(image.width, WIDTH);
        assert_same_pixels(sound[i], image.pixels, want->data, want->bytes);
        image_free(&image);
        free(file.bytes);
    }
}

/* At every scale, decoding a rectangle gives that part of the whole picture. */
static void check_regions(JpegReader *reader, const char *name, File file) {
    Error error;
    int height, width;
    ImagePart part;
    assert_true(jpeg_begin(reader, file.bytes, file.size, 1 << 20, &height, &width, &error));
    for (int m = jpeg_scales(reader) ? 1 : 8; m <= 8; m *= 2) {
        int h = jpeg_scaled(height, m), w = jpeg_scaled(width, m);
        assert_true(jpeg_begin(reader, file.bytes, file.size, 1 << 20, &height, &width, &error));
        assert_true(jpeg_region(reader, m, (int[]){0, h}, (int[]){0, w}, &part, &error));
        assert_int_equal(part.width, w);
        uint8_t *whole = cut(part.pixels, w, (int[]){0, h}, (int[]){0, w});
        for (uint64_t j = 0; j < 60; j++) {
            int rows[2], columns[2];
            random_range(rows, h, 11, 1000 * (uint64_t)m + j);
            random_range(columns, w, 12, 1000 * (uint64_t)m + j);
            assert_true(jpeg_begin(reader, file.bytes, file.size, 1 << 20, &height, &width, &error));
            assert_true(jpeg_region(reader, m, rows, columns, &part, &error));
            assert_true(part.top <= rows[0] && rows[1] <= part.top + part.height);
            assert_true(part.left <= columns[0] && columns[1] <= part.left + part.width);
            for (int y = rows[0]; y < rows[1]; y++) {
                const uint8_t *row = part.pixels + (size_t)(y - part.top) * part.stride;
                assert_same_pixels(name, row + (columns[0] - part.left) * 3, whole + (y * w + columns[0]) * 3,
                                   (size_t)(columns[1] - columns[0]) * 3);
            }
        }
        free(whole);
    }
}

static void regions_are_parts_of_the_whole(void **state) {
    (void)state;
    JpegReader *reader = jpeg_open();
    for (int i = 0; i < JPEGS; i++) {
        File file = read_corpus(sound[i]);
        check_regions(reader, sound[i], file);
        free(file.bytes);
    }
    jpeg_close(reader);
}

/* A picture of waves whose brightness has these sampling factors, and whose colours have 1. */
static File sampled_jpeg(int height, int width, int across, int down) {
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    unsigned char *bytes = NULL;
    unsigned long size = 0;
    uint8_t *row = malloc((size_t)width * 3);
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &bytes, &size);
    jpeg.image_height = (JDIMENSION)height;
    jpeg.image_width = (JDIMENSION)width;
    jpeg.input_components = 3;
    jpeg.in_color_space = JCS_RGB;
    jpeg_set_defaults(&jpeg);
    jpeg.comp_info[0].h_samp_factor = across;
    jpeg.comp_info[0].v_samp_factor = down;
    jpeg_start_compress(&jpeg, TRUE);
    for (int y = 0; y < height; y++) {
        for (int i = 0; i < width * 3; i++)
            row[i] = (uint8_t)(127.5 + 100 * sin(9.0 * (i / 3) / width + i % 3) * cos(7.0 * y / height * (i % 3 + 1)));
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    free(row);
    return (File){bytes, size};
}

/* Pictures with sampling factors of more than 2 have the same pixels, whichever part is needed at which size. */
static void every_sampling_factor(void **state) {
    (void)state;
    enum { H = 203, W = 307, S = 24 };
    static const int factors[][2] = {{1, 1}, {2, 2}, {4, 2}, {2, 4}, {4, 1}, {1, 4}, {3, 1}};
    JpegReader *reader = jpeg_open();
    TransformScratch scratch = {0};
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        char name[32];
        Error error;
        uint8_t fast[S * S * 3], exact[S * S * 3];
        bool scales = factors[i][0] <= 2 && factors[i][1] <= 2;
        File file = sampled_jpeg(H, W, factors[i][0], factors[i][1]);
        Sample sample = {.bytes = file.bytes, .size = file.size};
        snprintf(name, sizeof name, "factors %d x %d", factors[i][0], factors[i][1]);
        check_regions(reader, name, file);
        assert_true(jpeg_scales(reader) == scales);
        for (uint32_t j = 0; j < 60 && !scales; j++) {
            Transform transform = {.height = S, .width = S, .train = j % 4 != 0};
            TransformKey key = {check_seed(), 0, j};
            assert_true(transform_sample(&scratch, fast, &sample, false, &transform, key, &error));
            transform.s.exact_decode = true;
            assert_true(transform_sample(&scratch, exact, &sample, false, &transform, key, &error));
            assert_same_pixels(name, fast, exact, sizeof fast);
        }
        free(file.bytes);
    }
    transform_scratch_free(&scratch);
    jpeg_close(reader);
}

static void the_smallest_scale_that_is_enough(void **state) {
    (void)state;
    static const int cases[][5] = {{448, 448, 224, 224, 4}, {447, 448, 224, 224, 8}, {448, 447, 224, 224, 8},
                                   {896, 900, 224, 224, 2}, {1792, 1792, 224, 224, 1}, {9000, 9000, 224, 224, 1},
                                   {100, 100, 224, 224, 8}, {65500, 3, 1, 3, 8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(jpeg_eighths(cases[i][0], cases[i][1], cases[i][2], cases[i][3]), cases[i][4]);
    assert_int_equal(jpeg_scaled(43, 4), 22);
    assert_int_equal(jpeg_scaled(65500, 8), 65500);
}

/* Each message says what is wrong, and the same reader can read the next picture. */
static void damaged_files_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *name, *words;
    } cases[] = {
        {"empty.jpg", "0 bytes"},           {"cut.jpg", "cut short"},       {"cut_progressive.jpg", "cut short"},
        {"header_only.jpg", "cut short"},   {"bomb.jpg", "65500 x 56540"},  {"twelve_bits.jpg", "12 bits a channel"},
        {"two_channels.jpg", "damaged JPEG"}, {"text.jpg", "not a JPEG, PNG, WebP or BMP"},
        {"bomb.png", "60000 x 60000"},      {"cut.png", "damaged PNG"},
    };
    File good = read_corpus("colour420.jpg");
    TransformScratch scratch = {0};
    Transform transform = {.height = 32, .width = 32, .s.exact_decode = true};
    Sample sample = {.bytes = good.bytes, .size = good.size};
    uint8_t want[32 * 32 * 3], got[32 * 32 * 3];
    Error error;
    assert_true(transform_sample(&scratch, want, &sample, false, &transform, (TransformKey){0}, &error));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        File file = read_corpus(cases[i].name);
        Sample bad = {.bytes = file.bytes, .size = file.size};
        assert_false(transform_sample(&scratch, got, &bad, false, &transform, (TransformKey){0}, &error));
        printf("  %s: %s\n", cases[i].name, error.text);
        if (!strstr(error.text, cases[i].words)) fail_msg("'%s' is missing", cases[i].words);
        memset(got, 0xAA, sizeof got);
        assert_true(transform_sample(&scratch, got, &sample, false, &transform, (TransformKey){0}, &error));
        assert_memory_equal(got, want, sizeof got);
        free(file.bytes);
    }
    /* A file cut at any place is refused, or has all of its pixels if only the end marker is missing. */
    for (size_t size = 0; size < good.size; size++) {
        uint8_t *exact = malloc(size ? size : 1);
        memcpy(exact, good.bytes, size);
        Sample bad = {.bytes = exact, .size = size};
        if (transform_sample(&scratch, got, &bad, false, &transform, (TransformKey){0}, &error))
            assert_memory_equal(got, want, sizeof got);
        else
            assert_true(*error.text != 0);
        free(exact);
    }
    transform_scratch_free(&scratch);
    free(good.bytes);
}

/* Thousands of scans in a small file would occupy a worker for minutes. */
static void many_scans_are_refused(void **state) {
    (void)state;
    File file = read_corpus("progressive.jpg");
    size_t scan = 0, end = 0;
    for (size_t i = 0; i + 1 < file.size && !end; i++) { /* find the last scan, without the end marker */
        if (file.bytes[i] == 0xff && file.bytes[i + 1] == 0xda) scan = i;
        if (file.bytes[i] == 0xff && file.bytes[i + 1] == 0xd9) end = i;
    }
    assert_true(scan && end > scan);
    size_t length = end - scan, times = 600, size = file.size + times * length;
    uint8_t *bytes = malloc(size);
    memcpy(bytes, file.bytes, end);
    for (size_t i = 0; i < times; i++) memcpy(bytes + end + i * length, file.bytes + scan, length);
    memcpy(bytes + end + times * length, file.bytes + end, file.size - end);
    Error error;
    Image image;
    assert_false(image_decode(&image, bytes, size, 1 << 20, &error));
    printf("  %s\n", error.text);
    assert_non_null(strstr(error.text, "more than 500 scans"));
    free(bytes);
    free(file.bytes);
}

static void encoding_keeps_the_picture(void **state) {
    (void)state;
    enum { H = 37, W = 50 };
    uint8_t pixels[H * W * 3], *bytes;
    size_t size;
    Error error;
    for (int i = 0; i < H * W; i++) {
        pixels[3 * i] = (uint8_t)(i / W * 6);
        pixels[3 * i + 1] = (uint8_t)(i % W * 5);
        pixels[3 * i + 2] = 128;
    }
    assert_true(jpeg_encode(pixels, H, W, 95, &bytes, &size, &error));
    assert_true(jpeg_is(bytes, size));
    Image image;
    assert_true(image_decode(&image, bytes, size, 1 << 20, &error));
    double sum = 0;
    for (int i = 0; i < H * W * 3; i++) sum += abs(image.pixels[i] - pixels[i]);
    printf("  mean difference at quality 95: %.2f\n", sum / sizeof pixels);
    assert_true(sum / sizeof pixels < 2);
    image_free(&image);
    free(bytes);
    assert_false(jpeg_encode(pixels, 0, W, 95, &bytes, &size, &error));
}

/* == Transforms =================================================================================================== */

static Image whole_picture(const char *name) {
    File file = read_corpus(name);
    Error error;
    Image image;
    assert_true(image_decode(&image, file.bytes, file.size, 1 << 20, &error));
    free(file.bytes);
    return image;
}

static void crops_resize_as_in_pillow(void **state) {
    (void)state;
    Image image = whole_picture("colour420.jpg");
    int cases = 0;
    for (const SafeTensor *want; (want = tensor("%s.%d%s", "crop", cases, "")); cases++) {
        int64_t box[4];
        numbers_of(tensor("%s.%d%s", "crop", cases, ".box"), box);
        int rows[2] = {(int)box[0], (int)(box[0] + box[2])}, columns[2] = {(int)box[1], (int)(box[1] + box[3])};
        uint8_t *part = cut(image.pixels, WIDTH, rows, columns), *got = malloc(want->bytes);
        image_resize(got, (int)want->shape[0], (int)want->shape[1], part, (int)box[2], (int)box[3]);
        assert_same_pixels("crop", got, want->data, want->bytes);
        free(part);
        free(got);
    }
    assert_int_equal(cases, 4);
    image_free(&image);
}

/* A transform in one pass gives the same as decoding, cropping, resizing and mirroring in turn, for files and for
 * pixels. */
static void training_is_crop_resize_flip(void **state) {
    (void)state;
    TransformScratch scratch = {0};
    Transform transform = {.height = 24, .width = 20, .train = true, .augment.s.flip = true, .s.exact_decode = true};
    size_t n = 24 * 20 * 3;
    uint8_t *want = malloc(n), *got = malloc(n);
    Error error;
    int mirrored = 0;
    for (int i = 0; i < SOUND; i++) {
        File file = read_corpus(sound[i]);
        Image image = whole_picture(sound[i]);
        Sample samples[2] = {{.bytes = file.bytes, .size = file.size},
                             {.bytes = image.pixels, .size = HEIGHT * WIDTH * 3, .height = HEIGHT, .width = WIDTH}};
        for (uint32_t index = 0; index < 40; index++) {
            TransformKey key = {check_seed(), 3, index};
            Crop crop = transform_crop(&transform, key, HEIGHT, WIDTH);
            uint8_t *part = cut(image.pixels, WIDTH, (int[]){crop.top, crop.top + crop.height},
                                (int[]){crop.left, crop.left + crop.width});
            image_resize(want, 24, 20, part, crop.height, crop.width);
            if (augment_draw(transform.augment, key.seed, key.epoch, key.draw).mirror) {
                AugmentDraw flip = {.mirror = true};
                uint8_t *copy = cut(want, 20, (int[]){0, 24}, (int[]){0, 20});
                augment_apply(want, copy, 24, 20, flip);
                free(copy);
                mirrored++;
            }
            for (int s = 0; s < 2; s++) {
                memset(got, 0xAA, n);
                assert_true(transform_sample(&scratch, got, &samples[s], false, &transform, key, &error));
                assert_same_pixels(sound[i], got, want, n);
            }
            free(part);
        }
        image_free(&image);
        free(file.bytes);
    }
    assert_true(mirrored > 0 && mirrored < 40 * SOUND);
    transform_scratch_free(&scratch);
    free(want);
    free(got);
}

/* With short_side_max a training image is a window of the whole picture resized to a random short side, and all sides
 * in the range occur. */
static void short_sides_are_drawn(void **state) {
    (void)state;
    enum { LEAST = 26, MOST = 30, H = 24, W = 20, DRAWS = 300 };
    TransformScratch scratch = {0};
    Transform transform = {.height = H, .width = W, .train = true, .s.short_side_min = LEAST, .s.short_side_max = MOST};
    Image image = whole_picture("colour420.jpg");
    Sample sample = {.bytes = image.pixels, .size = HEIGHT * WIDTH * 3, .height = HEIGHT, .width = WIDTH};
    int shorter = HEIGHT < WIDTH ? HEIGHT : WIDTH, seen[MOST + 1] = {0}, corners[2] = {0};
    uint8_t got[H * W * 3], *whole[MOST + 1];
    Error error;
    for (int side = LEAST; side <= MOST; side++) {
        whole[side] = malloc((size_t)(side * HEIGHT / shorter) * (size_t)(side * WIDTH / shorter) * 3);
        image_resize(whole[side], side * HEIGHT / shorter, side * WIDTH / shorter, image.pixels, HEIGHT, WIDTH);
    }
    for (uint32_t index = 0; index < DRAWS; index++) {
        bool found = false;
        TransformKey key = {check_seed(), 3, index};
        assert_true(transform_sample(&scratch, got, &sample, false, &transform, key, &error));
        for (int side = LEAST; side <= MOST && !found; side++) {
            int height = side * HEIGHT / shorter, width = side * WIDTH / shorter;
            for (int at = 0; at < (height - H + 1) * (width - W + 1) && !found; at++) {
                int top = at / (width - W + 1), left = at % (width - W + 1), row = 0;
                const uint8_t *window = whole[side] + (top * width + left) * 3;
                while (row < H && !memcmp(got + row * W * 3, window + row * width * 3, W * 3)) row++;
                found = row == H;
                seen[side] += found;
                corners[0] += found && top == 0 && left == 0;
                corners[1] += found && top == height - H && left == width - W;
            }
        }
        assert_true(found);
    }
    for (int side = LEAST; side <= MOST; side++) {
        assert_true(seen[side] > 0);
        free(whole[side]);
    }
    printf("  %d of %d in the first corner, %d in the last; short sides %d to %d: %d %d %d %d %d\n", corners[0], DRAWS,
           corners[1], LEAST, MOST, seen[26], seen[27], seen[28], seen[29], seen[30]);
    transform_scratch_free(&scratch);
    image_free(&image);
}

static void evaluation_is_pillows_to_the_bit(void **state) {
    (void)state;
    File file = read_corpus("colour420.jpg");
    Image image = whole_picture("colour420.jpg");
    TransformScratch scratch = {0};
    Sample samples[2] = {{.bytes = file.bytes, .size = file.size},
                         {.bytes = image.pixels, .size = HEIGHT * WIDTH * 3, .height = HEIGHT, .width = WIDTH}};
    Error error;
    int cases = 0;
    for (const SafeTensor *want; (want = tensor("%s.%d%s", "evaluate", cases, "")); cases++) {
        int64_t shorter;
        numbers_of(tensor("%s.%d%s", "evaluate", cases, ".sizes"), &shorter);
        Transform transform = {.height = (int)want->shape[0],
                               .width = (int)want->shape[1],
                               .s.eval_resize = (int)shorter,
                               .s.exact_decode = true};
        uint8_t *got = malloc(want->bytes);
        for (int s = 0; s < 2; s++) {
            assert_true(transform_sample(&scratch, got, &samples[s], false, &transform, (TransformKey){0}, &error));
            assert_same_pixels("evaluation", got, want->data, want->bytes);
        }
        free(got);
    }
    assert_int_equal(cases, 4);
    transform_scratch_free(&scratch);
    image_free(&image);
    free(file.bytes);
}

/* Resized size and corner as computed by torchvision 0.29. */
static void evaluation_sizes_are_torchvisions(void **state) {
    (void)state;
    static const int cases[][8] = {
        {375, 500, 256, 224, 256, 341, 16, 58},  {500, 375, 256, 224, 341, 256, 58, 16},
        {333, 500, 256, 224, 256, 384, 16, 80},  {500, 333, 256, 224, 384, 256, 80, 16},
        {256, 256, 256, 224, 256, 256, 16, 16},  {500, 500, 438, 384, 438, 438, 27, 27},
        {100, 2000, 256, 224, 256, 5120, 16, 2448}, {43, 61, 57, 50, 57, 80, 4, 15},
        {61, 43, 32, 29, 45, 32, 8, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int *c = cases[i];
        for (int automatic = 0; automatic < 2; automatic++) {
            Transform transform = {.height = c[3], .width = c[3], .s.eval_resize = automatic ? 0 : c[2]};
            int h, w;
            Crop crop = transform_centre(&transform, c[0], c[1], &h, &w);
            if (automatic && c[3] * 256 / 224 != c[2]) continue;
            int got[4] = {h, w, crop.top, crop.left};
            assert_memory_equal(got, c + 4, sizeof got);
        }
    }
    /* For a model that is not square the picture covers both sides. */
    Transform wide = {.height = 112, .width = 224};
    for (uint64_t i = 0; i < 200; i++) {
        int h, w, height = 1 + (int)draw(21, 2 * i, 900), width = 1 + (int)draw(21, 2 * i + 1, 900);
        Crop crop = transform_centre(&wide, height, width, &h, &w);
        assert_true(h >= 128 && w >= 256 && (h == 128 || w == 256));
        assert_true(crop.top >= 0 && crop.top + 112 <= h && crop.left >= 0 && crop.left + 224 <= w);
    }
}

static void crops_are_drawn_as_specified(void **state) {
    (void)state;
    enum { N = 20000, H = 375, W = 500 };
    Transform transform = {.height = 224, .width = 224};
    double area_sum = 0, left_sum = 0, squares = 0;
    int wide = 0;
    for (uint32_t i = 0; i < N; i++) {
        Crop crop = transform_crop(&transform, (TransformKey){check_seed(), 1, i}, H, W);
        double area = (double)crop.height * crop.width / (H * W), ratio = (double)crop.width / crop.height;
        assert_true(crop.height > 0 && crop.width > 0 && crop.top >= 0 && crop.left >= 0);
        assert_true(crop.top + crop.height <= H && crop.left + crop.width <= W);
        assert_true(area > 0.079 && area < 1.001 && ratio > 0.74 && ratio < 1.345);
        area_sum += area;
        squares += area * area;
        wide += crop.width > crop.height;
        left_sum += crop.width < W ? (double)crop.left / (W - crop.width) : 0.5;
        Crop again = transform_crop(&transform, (TransformKey){check_seed(), 1, i}, H, W);
        assert_memory_equal(&again, &crop, sizeof crop);
    }
    /* Large areas seldom fit: 60,000 crops by torchvision of such a picture have a mean area of 0.4329 +- 0.0009, and
     * 0.579 of them are wider than high. */
    double mean = area_sum / N, error = sqrt((squares / N - mean * mean) / N);
    printf("  mean area %.4f +- %.4f, wider than high %.3f, mean place %.4f\n", mean, error, (double)wide / N,
           left_sum / N);
    assert_true(fabs(mean - 0.4329) < 5 * (error + 0.0009));
    assert_true(fabs((double)wide / N - 0.579) < 5 * (0.0035 + 0.002));
    assert_true(fabs(left_sum / N - 0.5) < 5 * 0.29 / sqrt(N));

    /* The crops of torchvision 0.29 when no random one fits. */
    static const int cases[][6] = {{10, 1000, 0, 493, 10, 13}, {1000, 10, 493, 0, 13, 10}, {1, 1, 0, 0, 1, 1},
                                   {3, 500, 0, 248, 3, 4}};
    Transform impossible = {.height = 224, .width = 224, .s = {.crop_area_min = 5, .crop_area_max = 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Crop crop = transform_crop(&impossible, (TransformKey){check_seed(), 0, 0}, cases[i][0], cases[i][1]);
        assert_memory_equal(&crop, cases[i] + 2, sizeof crop);
    }
}

/* Decoding at a reduced scale differs little from decoding fully and resizing a smooth picture. */
static void scaled_decoding_stays_close(void **state) {
    (void)state;
    enum { H = 500, W = 700, S = 48 };
    uint8_t *pixels = malloc(H * W * 3), *bytes, fast[S * S * 3], exact[S * S * 3];
    size_t size;
    Error error;
    for (int i = 0; i < H * W; i++) {
        double y = (double)(i / W) / H, x = (double)(i % W) / W;
        for (int c = 0; c < 3; c++) pixels[3 * i + c] = (uint8_t)(127.5 + 100 * sin(9 * x + c) * cos(7 * y * (c + 1)));
    }
    assert_true(jpeg_encode(pixels, H, W, 92, &bytes, &size, &error));
    Sample sample = {.bytes = bytes, .size = size};
    TransformScratch scratch = {0};
    int differ = 0;
    double worst = 0;
    for (uint32_t i = 0; i < 60; i++) {
        Transform transform = {.height = S, .width = S, .train = i % 4 != 0};
        TransformKey key = {check_seed(), 0, i};
        assert_true(transform_sample(&scratch, fast, &sample, false, &transform, key, &error));
        transform.s.exact_decode = true;
        assert_true(transform_sample(&scratch, exact, &sample, false, &transform, key, &error));
        double sum = 0;
        for (int j = 0; j < S * S * 3; j++) sum += abs(fast[j] - exact[j]);
        differ += sum > 0;
        worst = fmax(worst, sum / (S * S * 3));
    }
    printf("  worst mean difference %.2f grey levels, %d of 60 crops differ\n", worst, differ);
    assert_true(differ > 0);
    assert_true(worst < 1);
    transform_scratch_free(&scratch);
    free(bytes);
    free(pixels);
}

/* == Contact sheet ================================================================================================ */

static void sheets_show_images_and_labels(void **state) {
    (void)state;
    char path[SCRATCH_PATH];
    Error error;
    int fd = mkstemp(scratch_path(path)), labels[] = {0, 2, 1}, black = 0;
    assert_true(fd >= 0);
    static const char *const names[] = {"disc", "a_very long name that does not fit", "?!"};
    uint8_t pixels[3 * 8 * 12 * 3];
    memset(pixels, 200, sizeof pixels);
    assert_true(sheet_write(path, pixels, 3, 1, 8, 12, labels, names, &error));
    Image image;
    assert_true(image_read(&image, path, &error));
    assert_int_equal(image.pixels[(4 * image.width + 4) * 3], 200); /* the first image's corner */
    for (int i = 0; i < image.height * image.width; i++) black += image.pixels[3 * i] == 0;
    assert_true(black > 100);
    image_free(&image);
    assert_true(sheet_write(path, pixels, 1, 1, 1, 96, labels, NULL, &error));
    assert_false(sheet_write("no/such/folder.png", pixels, 1, 1, 8, 12, labels, NULL, &error));
    assert_non_null(strstr(error.text, "No such file"));
    remove(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resizing_is_pillows_to_the_bit),
        cmocka_unit_test(windows_are_parts_of_the_whole),
        cmocka_unit_test(pictures_decode_as_in_pillow),
        cmocka_unit_test(regions_are_parts_of_the_whole),
        cmocka_unit_test(every_sampling_factor),
        cmocka_unit_test(the_smallest_scale_that_is_enough),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(many_scans_are_refused),
        cmocka_unit_test(encoding_keeps_the_picture),
        cmocka_unit_test(crops_resize_as_in_pillow),
        cmocka_unit_test(training_is_crop_resize_flip),
        cmocka_unit_test(short_sides_are_drawn),
        cmocka_unit_test(evaluation_is_pillows_to_the_bit),
        cmocka_unit_test(evaluation_sizes_are_torchvisions),
        cmocka_unit_test(crops_are_drawn_as_specified),
        cmocka_unit_test(scaled_decoding_stays_close),
        cmocka_unit_test(sheets_show_images_and_labels),
    };
    return cmocka_run_group_tests(tests, open_fixture, NULL);
}
