/* Files of pictures, PNG, BMP and WebP above all: what they decode to, and the message for every kind of damage; and the
 * resize of a picture.  tests/data/test_pictures.c has parts of JPEGs and the transforms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "core/files.h"
#include "data/images/image.h"
#include "data/images/png.h"
#include "data/images/webp.h"
#include "tests/check.h"
#include "tests/scratch.h"

static void png_round_trip(void **state) {
    (void)state;
    static const int sizes[][2] = {{1, 1}, {7, 9}, {33, 64}};
    for (size_t i = 0; i < 3; i++) {
        int height = sizes[i][0], width = sizes[i][1];
        uint8_t *pixels = check_bytes((size_t)(height * width * 3), 31);
        Error error;
        Image image;
        assert_true(image_write_png(in_folder("round.png"), pixels, height, width, &error));
        assert_true(image_read(&image, in_folder("round.png"), &error));
        assert_int_equal(image.height, height);
        assert_int_equal(image.width, width);
        assert_memory_equal(image.pixels, pixels, (size_t)(height * width * 3));
        image_free(&image);
        free(pixels);
    }
    uint8_t pixel[3] = {0};
    Error error;
    assert_false(image_write_png(in_folder("no/such.png"), pixel, 1, 1, &error));
    assert_non_null(strstr(error.text, "No such file"));
    assert_false(image_write_png(in_folder("huge.png"), pixel, 1 << 16, 1, &error));
    assert_non_null(strstr(error.text, "65536 x 1"));
}

/* One picture in nine formats, made by Pillow, and the pixels that they decode to. */
static void pictures_become_rgb(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint8_t first[3];
        int within;
    } pictures[] = {
        {"tests/corpus/image/grey.png", {64, 64, 64}, 0},     {"tests/corpus/image/grey.jpg", {64, 64, 64}, 3},
        {"tests/corpus/image/alpha.png", {200, 100, 50}, 0},  {"tests/corpus/image/deep.png", {200, 100, 50}, 0},
        {"tests/corpus/image/palette.png", {200, 100, 50}, 0}, {"tests/corpus/image/colour.jpg", {200, 100, 50}, 4},
        {"tests/corpus/image/progressive.jpg", {200, 100, 50}, 4}, {"tests/corpus/image/cmyk.jpg", {200, 100, 50}, 6},
        {"tests/corpus/image/colour.bmp", {200, 100, 50}, 0},
    };
    for (size_t i = 0; i < sizeof pictures / sizeof *pictures; i++) {
        Error error = {.text = ""};
        Image image;
        if (!image_read(&image, pictures[i].name, &error)) fail_msg("%s: %s", pictures[i].name, error.text);
        assert_int_equal(image.height, 5);
        assert_int_equal(image.width, 7);
        for (int c = 0; c < 3; c++) {
            int off = abs(image.pixels[c] - pictures[i].first[c]);
            if (off > pictures[i].within) fail_msg("%s: channel %d is %d", pictures[i].name, c, image.pixels[c]);
        }
        image_free(&image);
    }
}

/* With a negative height the file begins with the picture's first row. */
static void bmp_from_the_top_down(void **state) {
    (void)state;
    enum { HEIGHT = 22, ROW = 7 * 3 };
    Error error;
    Image up, down;
    uint8_t *bytes;
    size_t size;
    assert_true(file_read("tests/corpus/image/colour.bmp", 1 << 20, &bytes, &size, &error));
    assert_true(image_decode(&up, bytes, size, 1 << 20, &error));
    memcpy(bytes + HEIGHT, &(int32_t){-5}, 4);
    if (!image_decode(&down, bytes, size, 1 << 20, &error)) fail_msg("%s", error.text);
    assert_true(down.height == 5 && down.width == 7);
    assert_memory_not_equal(up.pixels, up.pixels + 4 * ROW, ROW);
    for (int y = 0; y < 5; y++) assert_memory_equal(down.pixels + y * ROW, up.pixels + (4 - y) * ROW, ROW);
    image_free(&up);
    image_free(&down);
    assert_false(image_decode(&down, bytes, size, 7 * 5 - 1, &error));
    memcpy(bytes + HEIGHT, &(int32_t){INT32_MIN}, 4);
    assert_false(image_decode(&down, bytes, size, 1 << 20, &error));
    free(bytes);
}

/* Decodes the first `size` bytes; a byte too far is caught. */
static bool decode_beginning(Image *image, const uint8_t *bytes, size_t size, Error *error) {
    uint8_t *exact = malloc(size ? size : 1);
    memcpy(exact, bytes, size);
    bool ok = image_decode(image, exact, size, 1 << 20, error);
    free(exact);
    return ok;
}

/* A BMP cut at any place is refused, or has all of its pixels if only the padding of its last row is missing: with rows
 * from the bottom up and from the top down, and with OS/2's header of 12 bytes. */
static void bmp_cut_short(void **state) {
    (void)state;
    enum { HEADER = 54, HEIGHT = 22, OS2 = 26, PIXELS = 5 * 24 };
    Error error;
    Image whole, part;
    uint8_t *bytes, files[3][HEADER + PIXELS];
    size_t size;
    assert_true(file_read("tests/corpus/image/colour.bmp", 1 << 20, &bytes, &size, &error));
    assert_int_equal(size, HEADER + PIXELS);
    for (int i = 0; i < 3; i++) memcpy(files[i], bytes, size);
    memcpy(files[1] + HEIGHT, &(int32_t){-5}, 4);
    memcpy(files[2] + 10, &(uint32_t){OS2}, 4);
    memcpy(files[2] + 14, (uint8_t[]){12, 0, 0, 0, 7, 0, 5, 0, 1, 0, 24, 0}, 12);
    memcpy(files[2] + OS2, bytes + HEADER, PIXELS);
    for (int i = 0; i < 3; i++) {
        size_t all = i == 2 ? OS2 + PIXELS : HEADER + PIXELS;
        if (!decode_beginning(&whole, files[i], all, &error)) fail_msg("file %d: %s", i, error.text);
        for (size_t cut = 0; cut < all; cut++) {
            if (decode_beginning(&part, files[i], cut, &error)) {
                assert_true(cut >= all - 3);
                assert_memory_equal(part.pixels, whole.pixels, 5 * 7 * 3);
                image_free(&part);
            } else {
                assert_true(cut < all - 3);
                if (cut >= HEADER && !strstr(error.text, "a BMP cut short")) fail_msg("%zu: %s", cut, error.text);
            }
        }
        image_free(&whole);
    }
    memcpy(bytes + 10, &(uint32_t){INT32_MAX}, 4); /* pixels far behind the end */
    assert_false(image_decode(&part, bytes, size, 1 << 20, &error));
    assert_non_null(strstr(error.text, "a BMP cut short"));
    free(bytes);
}

/* A process without free file descriptors must not report a damaged file. */
static void lack_of_descriptors_is_no_damage(void **state) {
    (void)state;
    struct rlimit limit, none;
    Error error;
    Image image;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    bool read = image_read(&image, "tests/corpus/image/colour.bmp", &error);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_true(!read && error.lacking);
    assert_false(image_read(&image, in_folder("none.png"), &error));
    assert_false(error.lacking);
}

static void webp_pictures(void **state) {
    (void)state;
    Error error;
    Image image;
    uint8_t *bytes;
    size_t size;
    assert_true(file_read("tests/corpus/image/rgb.webp", 1 << 20, &bytes, &size, &error));
    if (!webp_supported()) {
        assert_false(image_decode(&image, bytes, size, 1 << 20, &error));
        assert_non_null(strstr(error.text, "libwebp"));
        free(bytes);
        return;
    }
    assert_true(image_decode(&image, bytes, size, 1 << 20, &error));
    assert_int_equal(image.height, 5);
    assert_int_equal(image.width, 7);
    for (int i = 0; i < 5 * 7 * 3; i++) /* lossless */
        assert_int_equal(image.pixels[i], (i / 3 % 7 * 40 + i / 21 * 17 + i % 3 * 90) % 256);
    image_free(&image);
    for (size_t cut = 0; cut < size; cut++) assert_false(image_decode(&image, bytes, cut, 1 << 20, &error));
    assert_false(image_decode(&image, bytes, size, 7 * 5 - 1, &error));
    assert_non_null(strstr(error.text, "5 x 7 pixels"));
    free(bytes);
    assert_true(image_read(&image, "tests/corpus/image/lossy.webp", &error));
    double sum = 0;
    for (int i = 0; i < 30 * 40 * 3; i++) {
        int written = (i / 3 % 40 * 5 + i / 120 * 3 + i % 3 * 60) % 256;
        sum += written < 250 ? fabs((double)image.pixels[i] - written) : 0; /* except where it wraps around */
    }
    assert_true(image.height == 30 && image.width == 40 && sum / (30 * 40 * 3) < 12);
    image_free(&image);
}

static void damaged_pictures_are_refused(void **state) {
    (void)state;
    Error error;
    Image image;
    uint8_t *bytes;
    size_t size;

    assert_false(image_read(&image, in_folder("none.png"), &error));
    assert_non_null(strstr(error.text, "No such file"));
    assert_false(image_read(&image, folder, &error));
    assert_non_null(strstr(error.text, "a folder"));
    assert_true(file_write(in_folder("empty.png"), "", 0, &error));
    assert_false(image_read(&image, in_folder("empty.png"), &error));
    assert_non_null(strstr(error.text, "0 bytes"));
    assert_true(file_write(in_folder("text.png"), "not a picture", 13, &error));
    assert_false(image_read(&image, in_folder("text.png"), &error));
    assert_non_null(strstr(error.text, "not a JPEG, PNG, WebP or BMP"));

    /* PNG: cut short, cut after its header, a broken zlib stream, impossible sizes. */
    assert_true(file_read("tests/corpus/image/alpha.png", 1 << 20, &bytes, &size, &error));
    for (size_t cut = 0; cut < 12; cut++) assert_false(image_decode(&image, bytes, cut, 1 << 20, &error));
    assert_false(image_decode(&image, bytes, 33, 1 << 20, &error));
    assert_false(image_decode(&image, bytes, size / 2, 1 << 20, &error));
    assert_false(image_decode(&image, bytes, size, 7 * 5 - 1, &error));
    assert_non_null(strstr(error.text, "5 x 7 pixels"));
    for (size_t i = 0; i + 8 < size; i++) {
        if (memcmp(bytes + i, "IDAT", 4) == 0) bytes[i + 4] ^= 0xff;
    }
    assert_false(image_decode(&image, bytes, size, 1 << 20, &error));
    assert_non_null(strstr(error.text, "damaged"));
    bytes[16] = 0x7f; /* the width's high byte */
    assert_false(image_decode(&image, bytes, size, 1 << 20, &error));
    free(bytes);

    /* JPEG: without a scan, and 65,535 x 65,535 pixels in a few hundred bytes. */
    assert_true(file_read("tests/corpus/image/colour.jpg", 1 << 20, &bytes, &size, &error));
    for (size_t i = 0; i + 9 < size; i++) {
        if (bytes[i] != 0xff || bytes[i + 1] != 0xda) continue;
        assert_false(image_decode(&image, bytes, i, 1 << 20, &error));
        break;
    }
    for (size_t i = 0; i + 9 < size; i++) {
        if (bytes[i] == 0xff && bytes[i + 1] == 0xc0) memset(bytes + i + 5, 0xff, 4);
    }
    assert_false(image_decode(&image, bytes, size, IMAGE_MAX_PIXELS, &error));
    free(bytes);
}

/* A PNG with one wrong bit is refused, or the bit does not belong to the pixels. */
static void png_with_a_wrong_bit(void **state) {
    (void)state;
    static const char *const names[] = {"grey", "alpha", "deep", "palette", "palette4", "palette2-interlaced"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[64];
        Error error;
        Image whole, image;
        ImageValues values, damaged;
        uint8_t *bytes;
        size_t size, refused = 0;
        snprintf(path, sizeof path, "tests/corpus/image/%s.png", names[i]);
        assert_true(file_read(path, 1 << 20, &bytes, &size, &error));
        if (!image_decode(&whole, bytes, size, 1 << 20, &error)) fail_msg("%s: %s", path, error.text);
        uint8_t *copy = malloc(size);
        memcpy(copy, bytes, size);
        size_t n = (size_t)whole.height * (size_t)whole.width;
        bool palette = image_decode_values(&values, copy, size, 1 << 20, &error);
        for (size_t bit = 0; bit < 8 * size; bit++) {
            bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
            memcpy(copy, bytes, size);
            bool ok = image_decode(&image, bytes, size, 1 << 20, &error);
            if (ok) assert_memory_equal(image.pixels, whole.pixels, n * 3);
            if (ok) image_free(&image);
            refused += !ok;
            ok = palette && image_decode_values(&damaged, copy, size, 1 << 20, &error);
            if (ok) assert_memory_equal(damaged.at, values.at, n);
            if (ok) image_values_free(&damaged);
            bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        printf("  %s.png: %zu of %zu bits refused\n", names[i], refused, 8 * size);
        assert_true(refused > 8 * size * 4 / 5); /* the others are in IEND and in transparency */
        if (palette) image_values_free(&values);
        image_free(&whole);
        free(bytes);
        free(copy);
    }
}

/* Shortens the palette of a PNG to its first `colours`; returns the file's new size, or 0 if it has no more of them. */
static size_t shorten_palette(uint8_t *bytes, size_t size, size_t colours) {
    for (size_t at = PNG_FIRST, length; png_chunk(bytes, size, at, &length); at += PNG_CHUNK + length) {
        if (memcmp(bytes + at + 4, "PLTE", 4)) continue;
        if (length <= 3 * colours) return 0;
        uint8_t *end = bytes + at + 8 + 3 * colours, *crc = bytes + at + 8 + length;
        memmove(end, crc, size - at - 8 - length);
        bytes[at + 2] = (uint8_t)(3 * colours >> 8);
        bytes[at + 3] = (uint8_t)(3 * colours);
        uint32_t sum = png_checksum(bytes + at + 4, 4 + 3 * colours);
        for (int i = 0; i < 4; i++) end[i] = (uint8_t)(sum >> (24 - 8 * i));
        return size - length + 3 * colours;
    }
    return 0;
}

/* An index without a colour is black, as in Pillow; more transparencies than colours are refused. */
static void palettes_may_be_short(void **state) {
    (void)state;
    static const struct {
        const char *name;
        bool transparent; /* all 16 colours */
    } cases[] = {{"palette", false}, {"palette2-interlaced", false}, {"palette4", true}, {"palette8", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[64];
        Error error;
        Image whole, image;
        ImageValues values;
        uint8_t *bytes;
        size_t size, shorter, black = 0;
        snprintf(path, sizeof path, "tests/corpus/image/%s.png", cases[i].name);
        assert_true(file_read(path, 1 << 20, &bytes, &size, &error));
        assert_true(image_decode(&whole, bytes, size, 1 << 20, &error));
        uint8_t *copy = malloc(size);
        memcpy(copy, bytes, size);
        assert_true(image_decode_values(&values, copy, size, 1 << 20, &error));
        for (size_t colours = 1;; colours++) {
            memcpy(copy, bytes, size);
            if (!(shorter = shorten_palette(copy, size, colours))) break;
            bool ok = image_decode(&image, copy, shorter, 1 << 20, &error);
            if (ok == cases[i].transparent) fail_msg("%s, %zu colours: %s", path, colours, error.text);
            for (int k = 0; ok && k < image.height * image.width; k++) {
                bool has = values.at[k] < colours;
                black += !has;
                for (int c = 3 * k; c < 3 * k + 3; c++)
                    assert_int_equal(image.pixels[c], has ? whole.pixels[c] : 0);
            }
            if (ok) image_free(&image);
        }
        printf("  %s: %zu pixels are black\n", path, black);
        assert_true((black > 0) != cases[i].transparent);
        image_values_free(&values);
        image_free(&whole);
        free(bytes);
        free(copy);
    }
}

/* Pictures with which the fuzzer found errors in stb_image: all are harmless, and the first two are refused. */
static void hostile_pictures_are_harmless(void **state) {
    (void)state;
    static const char *const names[] = {"tests/corpus/image/huffman_257.jpg", "tests/corpus/image/chunk_2g.png",
                                        "tests/corpus/image/huffman_undefined.jpg"};
    for (int i = 0; i < 3; i++) {
        Error error = {.text = ""};
        Image image;
        bool ok = image_read(&image, names[i], &error);
        if (ok) image_free(&image);
        else printf("  %s: %s\n", names[i], error.text);
        assert_true(!ok || i == 2);
    }
}

/* Pillow's BICUBIC resizes the 6 x 8 picture (37 y + 11 x^2 + 53 c + 5 x y) mod 256 to 9 x 11 and to 4 x 3. */
static void resize_is_pillows(void **state) {
    (void)state;
    static const uint8_t up[] = {
        0, 50, 103, 1, 54, 107, 16, 69, 122, 43, 96, 149, 82, 134, 220, 147, 210, 119, 147, 215, 24, 17, 70, 116,
        105, 170, 233, 96, 160, 213, 16, 68, 121, 15, 67, 120, 21, 74, 127, 37, 90, 147, 65, 119, 169, 104, 180, 122,
        182, 167, 67, 188, 122, 64, 46, 99, 148, 148, 97, 154, 140, 104, 164, 50, 110, 179, 42, 95, 148, 51, 104,
        156, 70, 124, 187, 101, 154, 203, 146, 188, 27, 197, 97, 23, 192, 39, 122, 92, 147, 201, 162, 33, 88, 162,
        60, 99, 107, 176, 193, 67, 120, 173, 76, 129, 181, 99, 160, 219, 133, 180, 247, 193, 48, 74, 124, 31, 65, 62,
        104, 162, 133, 200, 253, 58, 88, 159, 82, 118, 71, 166, 237, 36, 92, 145, 197, 103, 155, 228, 127, 196, 216,
        165, 226, 136, 245, 43, 82, 142, 50, 121, 62, 120, 171, 189, 100, 152, 70, 100, 176, 103, 116, 120, 234, 134,
        34, 116, 169, 225, 129, 187, 235, 159, 212, 163, 198, 211, 26, 237, 82, 88, 164, 109, 177, 109, 131, 185,
        184, 0, 52, 115, 112, 137, 144, 114, 152, 232, 31, 102, 140, 192, 255, 154, 234, 139, 198, 189, 40, 236, 49,
        73, 100, 76, 127, 102, 163, 219, 121, 183, 240, 32, 52, 110, 112, 168, 29, 122, 173, 71, 74, 91, 160, 168,
        228, 140, 194, 169, 76, 186, 88, 48, 121, 42, 113, 68, 119, 177, 130, 123, 175, 159, 97, 152, 33, 100, 156,
        150, 104, 49, 158, 128, 93, 80, 157, 217, 185, 253, 18, 223, 98, 48, 164, 4, 91, 7, 82, 135, 78, 158, 210,
        172, 70, 123, 189, 5, 58, 77, 129, 182, 184, 31, 97, 197, 72, 136, 131, 199, 251};
    static const uint8_t down[] = {
        29, 85, 137, 125, 147, 110, 102, 109, 158, 93, 140, 186, 144, 101, 125, 120, 120, 129, 159, 183, 161, 151,
        110, 137, 128, 104, 115, 164, 129, 90, 113, 92, 149, 131, 113, 127};
    uint8_t in[6 * 8 * 3], out[9 * 11 * 3];
    for (int i = 0; i < 6 * 8 * 3; i++) {
        int y = i / 24, x = i / 3 % 8, c = i % 3;
        in[i] = (uint8_t)(37 * y + 11 * x * x + 53 * c + 5 * x * y);
    }
    image_resize(out, 9, 11, in, 6, 8);
    for (size_t i = 0; i < sizeof up; i++) assert_in_range(out[i] + 1 - up[i], 0, 2);
    image_resize(out, 4, 3, in, 6, 8);
    for (size_t i = 0; i < sizeof down; i++) assert_in_range(out[i] + 1 - down[i], 0, 2);
}

static void resize_keeps_what_it_must(void **state) {
    (void)state;
    uint8_t *in = check_bytes(13 * 11 * 3, 41), same[13 * 11 * 3], out[40 * 3 * 3];
    image_resize(same, 13, 11, in, 13, 11);
    assert_memory_equal(same, in, sizeof same);
    memset(in, 77, 13 * 11 * 3);
    image_resize(out, 40, 3, in, 13, 11);
    for (size_t i = 0; i < sizeof out; i++) assert_int_equal(out[i], 77);
    image_resize(out, 1, 1, in, 13, 11);
    assert_int_equal(out[0], 77);
    free(in);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(png_round_trip),
        cmocka_unit_test(pictures_become_rgb),
        cmocka_unit_test(bmp_from_the_top_down),
        cmocka_unit_test(bmp_cut_short),
        cmocka_unit_test(lack_of_descriptors_is_no_damage),
        cmocka_unit_test(webp_pictures),
        cmocka_unit_test(damaged_pictures_are_refused),
        cmocka_unit_test(png_with_a_wrong_bit),
        cmocka_unit_test(palettes_may_be_short),
        cmocka_unit_test(hostile_pictures_are_harmless),
        cmocka_unit_test(resize_is_pillows),
        cmocka_unit_test(resize_keeps_what_it_must),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
