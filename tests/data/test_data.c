/* Data sets, images, augmentation and batches: exact bytes against simple reimplementations, and the message for every
 * kind of damage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/results/class_names.h"
#include "core/files.h"
#include "data/images/augment.h"
#include "data/images/webp.h"
#include "data/sets/cifar.h"
#include "data/sets/datasets.h"
#include "data/images/image.h"
#include "data/images/png.h"
#include "data/loading/loader.h"
#include "data/sets/shapes.h"
#include "tests/check.h"
#include "tests/ranges.h"
#include "tests/scratch.h"
#include "tests/whole_batch.h"

/* == Helpers ====================================================================================================== */

static void write_bytes(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* A file of `size` zero bytes, except `value` at `at`. */
static void write_zeros(const char *path, size_t size, size_t at, uint8_t value) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    if (value) assert_int_equal(pwrite(fd, &value, 1, (off_t)at), 1);
    close(fd);
}

typedef struct {
    const char *name, *path;
    bool train;
} Opening;

static void open_it(void *argument) {
    const Opening *opening = argument;
    Dataset dataset;
    dataset_open(&dataset, opening->name, opening->path, opening->train, 0);
}

/* Opening it in a child process ends with this status and with one line on stderr that contains all the words. */
static void opening_dies(Opening opening, int status, const char *const *words) {
    char text[2048];
    int ended = status_of(open_it, &opening, text, sizeof text);
    printf("  %s", text);
    assert_int_equal(ended, status);
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
    assert_words(text, words);
}

static uint8_t *random_bytes(size_t n, uint32_t stream) {
    uint8_t *bytes = malloc(n);
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)rng_bits(check_seed(), RNG_TEST, stream, 0, i);
    return bytes;
}

/* == Shapes ======================================================================================================= */

enum { SHAPE_BYTES = SHAPES_SIDE * SHAPES_SIDE * 3 };

static void shapes_are_functions_of_their_index(void **state) {
    (void)state;
    uint64_t seed = check_seed();
    uint8_t a[SHAPE_BYTES], b[SHAPE_BYTES];
    for (uint32_t i = 0; i < 50; i++) {
        shapes_draw(seed, 0, i, a, NULL, NULL);
        shapes_draw(seed, 0, i, b, NULL, NULL);
        assert_memory_equal(a, b, sizeof a);
        shapes_draw(seed, 1, i, b, NULL, NULL);
        assert_memory_not_equal(a, b, sizeof a);
        shapes_draw(seed + 1, 0, i, b, NULL, NULL);
        assert_memory_not_equal(a, b, sizeof a);
        shapes_draw(seed, 0, i + 10, b, NULL, NULL);
        assert_memory_not_equal(a, b, sizeof a);
    }
}

enum { OUTSIDE, TOUCHED, PARTLY, INSIDE };

/* For each pixel of a training image, whether the shape covers it.  It is TOUCHED where rounding decides. */
static void shape_cover(uint32_t index, uint8_t *cover) {
    ShapesStream s = {check_seed(), 0, index, 0, RNG_SHAPES};
    float radius = shapes_uniform(&s, 7, 12), margin = shapes_reach * radius + 0.5f;
    float x = shapes_uniform(&s, margin, SHAPES_SIDE - margin), y = shapes_uniform(&s, margin, SHAPES_SIDE - margin);
    float turn = shapes_uniform(&s, 0, 6.2831853f), cosine = cosf(turn), sine = sinf(turn);
    for (int p = 0; p < SHAPES_SIDE * SHAPES_SIDE; p++) {
        float u = ((float)(p % SHAPES_SIDE) + 0.5f - x) / radius, v = ((float)(p / SHAPES_SIDE) + 0.5f - y) / radius;
        float distance = shapes_distance((int)(index % SHAPES_CLASSES), cosine * u + sine * v, cosine * v - sine * u);
        float covered = 0.5f - radius * distance;
        cover[p] = covered > 1.001f ? INSIDE : covered > 0.001f ? PARTLY : covered > -0.001f ? TOUCHED : OUTSIDE;
    }
}

static bool in_box(int p, const int box[4]) {
    int x = p % SHAPES_SIDE, y = p / SHAPES_SIDE;
    return x >= box[0] && x < box[2] && y >= box[1] && y < box[3];
}

static void boxes_hold_their_shapes_tightly(void **state) {
    (void)state;
    uint8_t cover[SHAPES_SIDE * SHAPES_SIDE], pixels[SHAPE_BYTES];
    for (uint32_t i = 0; i < 2000; i++) {
        int label, box[4], full = 0, sides = 0;
        shapes_draw(check_seed(), 0, i, pixels, &label, box);
        shape_cover(i, cover);
        assert_int_equal(label, i % SHAPES_CLASSES);
        for (int p = 0; p < SHAPES_SIDE * SHAPES_SIDE; p++) {
            int x = p % SHAPES_SIDE, y = p / SHAPES_SIDE;
            full += cover[p] == INSIDE;
            assert_true(cover[p] <= TOUCHED || in_box(p, box));
            if (cover[p] != OUTSIDE && in_box(p, box)) /* the sides of the box that the shape reaches */
                sides |= (x == box[0]) | (y == box[1]) << 1 | (x == box[2] - 1) << 2 | (y == box[3] - 1) << 3;
        }
        assert_int_equal(sides, 15);
        assert_true(full >= 20);
    }
}

/* The shape is where the picture shows it: within it there is one colour, so that only noise spreads the values of
 * fully covered pixels. */
static void shapes_are_of_one_colour(void **state) {
    (void)state;
    uint8_t cover[SHAPES_SIDE * SHAPES_SIDE], pixels[SHAPE_BYTES];
    double outside_sum = 0;
    int images = 500;
    for (uint32_t i = 0; i < (uint32_t)images; i++) {
        double sum[2] = {0}, squares[2] = {0}, n[2] = {0};
        shapes_draw(check_seed(), 0, i, pixels, NULL, NULL);
        shape_cover(i, cover);
        for (int p = 0; p < SHAPES_SIDE * SHAPES_SIDE; p++) {
            if (cover[p] != INSIDE && cover[p] != OUTSIDE) continue;
            int inside = cover[p] == INSIDE;
            sum[inside] += pixels[p * 3];
            squares[inside] += pixels[p * 3] * pixels[p * 3];
            n[inside]++;
        }
        double spread[2];
        for (int k = 0; k < 2; k++) spread[k] = sqrt(fmax(squares[k] / n[k] - sum[k] / n[k] * sum[k] / n[k], 0));
        assert_true(spread[1] < 20);
        outside_sum += spread[0];
    }
    printf("  mean spread outside the shapes %.1f\n", outside_sum / images);
    assert_true(outside_sum / images > 5);
}

static void shapes_classes_are_balanced(void **state) {
    (void)state;
    Dataset dataset;
    for (int train = 0; train < 2; train++) {
        size_t seen[SHAPES_CLASSES] = {0};
        uint8_t pixels[SHAPE_BYTES];
        dataset_open(&dataset, "shapes", NULL, train, train ? 1000 : 0);
        assert_int_equal(dataset.count, train ? 1000 : SHAPES_TEST);
        for (size_t i = 0; i < dataset.count; i++) {
            int label;
            dataset.get(&dataset, i, pixels, &label);
            assert_in_range(label, 0, SHAPES_CLASSES - 1);
            seen[label]++;
        }
        for (int c = 0; c < SHAPES_CLASSES; c++) assert_int_equal(seen[c], dataset.count / SHAPES_CLASSES);
        assert_string_equal(dataset.class_names[0], "disc");
        dataset_close(&dataset);
    }
    dataset_open(&dataset, "shapes", NULL, true, 0);
    assert_int_equal(dataset.count, SHAPES_TRAIN);
    dataset_close(&dataset);
}

/* Compares the constants in shapes.c with the statistics of 2,000 other images, whose means have an error of 0.004. */
static void shapes_mean_and_std(void **state) {
    (void)state;
    Dataset dataset;
    double sum[3] = {0}, squares[3] = {0}, n = 2000.0 * SHAPES_SIDE * SHAPES_SIDE;
    shapes_open(&dataset, true, check_seed(), 2000);
    for (size_t i = 0; i < dataset.count; i++) {
        uint8_t pixels[SHAPE_BYTES];
        int label;
        dataset.get(&dataset, i, pixels, &label);
        for (int p = 0; p < SHAPE_BYTES; p++) {
            sum[p % 3] += pixels[p] / 255.0;
            squares[p % 3] += pixels[p] / 255.0 * pixels[p] / 255.0;
        }
    }
    for (int c = 0; c < 3; c++) {
        double mean = sum[c] / n, std = sqrt(squares[c] / n - mean * mean);
        printf("  channel %d: mean %.4f (%.4f) std %.4f (%.4f)\n", c, mean, (double)dataset.mean[c], std,
               (double)dataset.std[c]);
        assert_true(fabs(mean - (double)dataset.mean[c]) < 0.02 && fabs(std - (double)dataset.std[c]) < 0.01);
    }
    dataset_close(&dataset);
}

static void unknown_data_sets_are_refused(void **state) {
    (void)state;
    Error error;
    assert_false(dataset_known("shape", &error));
    assert_words(error.text, WORDS("'shape'", "'shapes'"));
    assert_false(dataset_known("mnist-of-fashion", &error));
    assert_words(error.text, WORDS("shapes, cifar10, cifar100, mnist or imagenet", "mnist-of-fashion"));
    assert_true(dataset_known("shapes", &error) && dataset_known("./shape", &error));
    opening_dies((Opening){"./shape", NULL, true}, 1, WORDS("./shape", "no such"));
}

/* == CIFAR ======================================================================================================== */

static void cifar_records_come_apart(void **state) {
    (void)state;
    for (int classes = 10; classes <= 100; classes += 90) {
        enum { N = 7 };
        size_t label_bytes = classes == 10 ? 1 : 2, record = label_bytes + CIFAR_PIXELS;
        uint8_t *bytes = random_bytes(N * record, 21), *pixels = malloc(N * CIFAR_PIXELS), labels[N];
        Error error;
        for (size_t i = 0; i < N; i++) {
            bytes[i * record] = (uint8_t)(i + 3);
            bytes[i * record + label_bytes - 1] = (uint8_t)(i + 1);
        }
        assert_int_equal(cifar_count(N * record, classes, 0, &error), N);
        assert_int_equal(cifar_count(N * record, classes, N, &error), N);
        assert_true(cifar_parse(pixels, labels, bytes, N, classes, &error));
        for (size_t i = 0; i < N; i++) {
            assert_int_equal(labels[i], i + 1);
            for (size_t y = 0; y < 32; y++) {
                for (size_t x = 0; x < 32; x++) {
                    for (size_t c = 0; c < 3; c++) {
                        assert_int_equal(pixels[((i * 32 + y) * 32 + x) * 3 + c],
                                         bytes[i * record + label_bytes + c * 1024 + y * 32 + x]);
                    }
                }
            }
        }
        free(bytes);
        free(pixels);
    }
}

static void cifar_damage_in_memory(void **state) {
    (void)state;
    Error error;
    uint8_t *bytes = calloc(3, 3074), pixels[3 * CIFAR_PIXELS], labels[3];

    assert_int_equal(cifar_count(0, 10, 0, &error), 0);
    assert_string_equal(error.text, "0 records, expected at least 1");
    assert_int_equal(cifar_count(3072, 10, 0, &error), 0);
    assert_string_equal(error.text, "3072 bytes: 0 whole records of 3073 bytes and 3072 bytes left over");
    assert_int_equal(cifar_count(2 * 3074 + 5, 100, 2, &error), 0);
    assert_string_equal(error.text, "6153 bytes: 2 whole records of 3074 bytes and 5 bytes left over");
    assert_int_equal(cifar_count(3 * 3074, 100, 50000, &error), 0);
    assert_string_equal(error.text, "3 records, expected 50000");

    assert_true(cifar_parse(pixels, labels, bytes, 3, 100, &error));
    bytes[2 * 3074 + 1] = 100;
    assert_false(cifar_parse(pixels, labels, bytes, 3, 100, &error));
    assert_string_equal(error.text, "record 2: label 100, expected 0 to 99");
    bytes[1 * 3074] = 20;
    assert_false(cifar_parse(pixels, labels, bytes, 3, 100, &error));
    assert_string_equal(error.text, "record 1: coarse label 20, expected 0 to 19");
    bytes[0] = 10;
    assert_false(cifar_parse(pixels, labels, bytes, 3, 10, &error));
    assert_string_equal(error.text, "record 0: label 10, expected 0 to 9");
    free(bytes);
}

static void cifar100_files(void **state) {
    (void)state;
    const char *test = "cifar-100-binary/test.bin";
    size_t whole = (size_t)10000 * 3074;
    Opening opening = {"cifar100", folder, false};

    opening_dies(opening, 1, WORDS(folder, "test.bin: no such file", "cifar-100-binary", "fetch_cifar.sh cifar100"));
    assert_int_equal(mkdir(in_folder("cifar-100-binary"), 0777), 0);
    write_zeros(in_folder(test), whole - 1, 0, 0);
    opening_dies(opening, 1, WORDS(test, "9999 whole records", "3073 bytes left over", "fetch_cifar.sh cifar100"));
    write_zeros(in_folder(test), whole - 3074, 0, 0);
    opening_dies(opening, 1, WORDS(test, "9999 records, expected 10000", "fetch_cifar.sh cifar100"));
    write_zeros(in_folder(test), 0, 0, 0);
    opening_dies(opening, 1, WORDS(test, "0 records, expected 10000"));
    write_zeros(in_folder(test), whole, (size_t)1234 * 3074 + 1, 100);
    opening_dies(opening, 1, WORDS(test, "record 1234: label 100, expected 0 to 99", "fetch_cifar.sh cifar100"));
    write_zeros(in_folder(test), whole, (size_t)4321 * 3074, 255);
    opening_dies(opening, 1, WORDS(test, "record 4321: coarse label 255, expected 0 to 19"));
    opening_dies((Opening){"cifar100", folder, true}, 1, WORDS("train.bin: no such file"));

    write_zeros(in_folder(test), whole, (size_t)17 * 3074 + 1, 42);
    const char *const paths[] = {folder, in_folder("cifar-100-binary")};
    for (int i = 0; i < 2; i++) {
        Dataset dataset;
        uint8_t pixels[CIFAR_PIXELS];
        int label;
        dataset_open(&dataset, "cifar100", paths[i], false, i ? 100 : 0);
        assert_int_equal(dataset.count, i ? 100 : 10000);
        assert_int_equal(dataset.classes, 100);
        assert_null(dataset.class_names);
        dataset.get(&dataset, 17, pixels, &label);
        assert_int_equal(label, 42);
        dataset_close(&dataset);
    }
}

/* Five files, one of which is first missing and then short; afterwards a file with all ten names and one that lacks a
 * name. */
static void cifar10_files(void **state) {
    (void)state;
    size_t whole = (size_t)10000 * 3073;
    Opening opening = {"cifar10", in_folder("cifar-10-batches-bin"), true};
    char own[256], name[64];
    opening.path = strcpy(own, opening.path);
    assert_int_equal(mkdir(own, 0777), 0);
    for (int i = 1; i <= 5; i++) {
        if (i == 5) opening_dies(opening, 1, WORDS("data_batch_5.bin: cannot open", "fetch_cifar.sh cifar10`"));
        snprintf(name, sizeof name, "cifar-10-batches-bin/data_batch_%d.bin", i);
        write_zeros(in_folder(name), i == 5 ? whole - 3073 : whole, (size_t)7 * 3073, (uint8_t)i);
    }
    opening_dies(opening, 1, WORDS("data_batch_5.bin: 9999 records, expected 10000"));
    write_zeros(in_folder(name), whole, (size_t)7 * 3073, 5);

    const char *ten = "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n";
    for (int missing = 0; missing < 2; missing++) {
        Dataset dataset;
        uint8_t pixels[CIFAR_PIXELS];
        int label;
        const char *names = missing ? strchr(ten, '\n') : ten;
        write_bytes(in_folder("cifar-10-batches-bin/batches.meta.txt"), names, strlen(names));
        dataset_open(&dataset, "cifar10", own, true, 0);
        assert_int_equal(dataset.count, 50000);
        for (size_t i = 0; i < 5; i++) {
            dataset.get(&dataset, i * 10000 + 7, pixels, &label);
            assert_int_equal(label, i + 1);
        }
        if (missing) assert_null(dataset.class_names);
        else assert_string_equal(dataset.class_names[9], "truck");
        dataset_close(&dataset);
    }
}

static void class_names(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t size;
        char ending;
        int count, named;
        const char *last;
    } cases[] = {
        {"", 0, '\n', 0, 0, NULL},          {"\n\r\n", 3, '\n', 0, 0, NULL},  {"cat", 3, '\n', 1, 1, "cat"},
        {"cat\r\ndog\r\n", 10, '\n', 2, 2, "dog"}, {"\n\ncat\n\n", 7, '\n', 3, 1, "cat"},
        {"a b\0\0c\n\0", 8, 0, 3, 2, "c\n"}, {"a\0\0", 3, 0, 2, 1, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ClassNames names, again;
        class_names_parse(&names, cases[i].text, cases[i].size, cases[i].ending);
        assert_int_equal(names.count, cases[i].count);
        assert_int_equal(names.named, cases[i].named);
        assert_int_equal(class_names_complete(&names, names.count), names.count == names.named);
        assert_false(class_names_complete(&names, names.count + 1));
        if (names.count) assert_string_equal(names.at[names.count - 1], cases[i].last);
        if (cases[i].ending == '\n') {
            char *text = class_names_text(names.at, names.count);
            class_names_parse(&again, text, strlen(text), '\n');
            assert_int_equal(again.count, names.count);
            for (int c = 0; c < names.count; c++) assert_string_equal(again.at[c], names.at[c]);
            class_names_free(&again);
            free(text);
        }
        class_names_free(&names);
    }
}

/* == Pictures ===================================================================================================== */

static void png_round_trip(void **state) {
    (void)state;
    static const int sizes[][2] = {{1, 1}, {7, 9}, {33, 64}};
    for (size_t i = 0; i < 3; i++) {
        int height = sizes[i][0], width = sizes[i][1];
        uint8_t *pixels = random_bytes((size_t)(height * width * 3), 31);
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
    write_bytes(in_folder("empty.png"), "", 0);
    assert_false(image_read(&image, in_folder("empty.png"), &error));
    assert_non_null(strstr(error.text, "0 bytes"));
    write_bytes(in_folder("text.png"), "not a picture", 13);
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
    uint8_t *in = random_bytes(13 * 11 * 3, 41), same[13 * 11 * 3], out[40 * 3 * 3];
    image_resize(same, 13, 11, in, 13, 11);
    assert_memory_equal(same, in, sizeof same);
    memset(in, 77, 13 * 11 * 3);
    image_resize(out, 40, 3, in, 13, 11);
    for (size_t i = 0; i < sizeof out; i++) assert_int_equal(out[i], 77);
    image_resize(out, 1, 1, in, 13, 11);
    assert_int_equal(out[0], 77);
    free(in);
}

/* == Augmentation ================================================================================================= */

/* Pads, crops and mirrors pixel by pixel. */
static void reference_augment(uint8_t *out, const uint8_t *in, int height, int width, AugmentDraw draw) {
    for (int y = 0; y < height; y++) {
        for (int x = 0; x < width; x++) {
            int from_y = y + draw.dy, from_x = (draw.mirror ? width - 1 - x : x) + draw.dx;
            bool within = from_y >= 0 && from_y < height && from_x >= 0 && from_x < width;
            for (int c = 0; c < 3; c++) {
                out[(y * width + x) * 3 + c] = within ? in[(from_y * width + from_x) * 3 + c] : 0;
            }
        }
    }
}

static void crop_and_flip_equal_the_plain_reference(void **state) {
    (void)state;
    static const int sizes[][3] = {{32, 32, 4}, {7, 9, 3}, {1, 1, 2}, {5, 3, 8}};
    for (size_t i = 0; i < 4; i++) {
        int height = sizes[i][0], width = sizes[i][1], pad = sizes[i][2];
        size_t n = (size_t)(height * width * 3);
        uint8_t *in = random_bytes(n, 51), *got = malloc(n), *want = malloc(n);
        for (int dy = -pad; dy <= pad; dy++) {
            for (int dx = -pad; dx <= pad; dx++) {
                for (int mirror = 0; mirror < 2; mirror++) {
                    AugmentDraw draw = {.dy = dy, .dx = dx, .mirror = mirror};
                    memset(got, 99, n);
                    augment_apply(got, in, height, width, draw);
                    reference_augment(want, in, height, width, draw);
                    assert_memory_equal(got, want, n);
                }
            }
        }
        free(in);
        free(got);
        free(want);
    }
}

static void draws_are_uniform_and_switchable(void **state) {
    (void)state;
    enum { N = 81000 };
    int seen[9][9] = {{0}}, mirrored = 0, moved = 0;
    for (uint32_t i = 0; i < N; i++) {
        AugmentDraw draw = augment_draw((Augment){.s = {.crop_padding = 4, .flip = true}}, check_seed(), 3, i);
        assert_in_range(draw.dy + 4, 0, 8);
        assert_in_range(draw.dx + 4, 0, 8);
        seen[draw.dy + 4][draw.dx + 4]++;
        mirrored += draw.mirror;
        AugmentDraw other = augment_draw((Augment){.s = {.crop_padding = 4, .flip = true}}, check_seed(), 4, i);
        moved += other.dy != draw.dy || other.dx != draw.dx;
        AugmentDraw none = augment_draw((Augment){.s = {.crop_padding = 0, .flip = false}}, check_seed(), 3, i);
        assert_true(!none.mirror && none.dy == 0 && none.dx == 0);
    }
    /* Five standard deviations of the binomial distributions with N/81 and N/2. */
    for (int k = 0; k < 81; k++) assert_in_range(seen[k / 9][k % 9], 1000 - 158, 1000 + 158);
    assert_in_range(mirrored, N / 2 - 712, N / 2 + 712);
    assert_in_range(moved, N - 1000 - 158, N - 1000 + 158);
}

/* == Batches ====================================================================================================== */

/* A loader without threads for images of one size. */
static void open_plain(Loader *loader, const Dataset *dataset, uint64_t seed, int batch_size, bool train,
                       Augment augment) {
    LoaderConfig config = {.parts = {.seed = seed, .batch_size = batch_size, .train = train},
                           .transform = {.height = dataset->height, .width = dataset->width, .augment = augment}};
    loader_open(loader, dataset, &config);
}

/* A data set whose pixels contain their index. */
static void spelled_get(const Dataset *dataset, size_t index, uint8_t *pixels, int *label) {
    for (int i = 0; i < dataset->height * dataset->width * 3; i++) pixels[i] = (uint8_t)(index >> (i % 3 * 8));
    *label = (int)(index % (size_t)dataset->classes);
}

static const Dataset spelled = {
    .name = "spelled", .count = 1003, .height = 3, .width = 5, .classes = 7, .get = spelled_get};

static size_t spelled_index(const uint8_t *pixels) {
    return pixels[0] | (size_t)pixels[1] << 8 | (size_t)pixels[2] << 16;
}

static void epochs_are_permutations(void **state) {
    (void)state;
    Loader loader;
    uint32_t first[1003];
    open_plain(&loader, &spelled, check_seed(), 100, true, (Augment){.s = {.crop_padding = 0, .flip = false}});
    assert_int_equal(loader.parts.batches, 10);
    for (uint32_t epoch = 0; epoch < 4; epoch++) {
        bool seen[1003] = {0};
        size_t fixed = 0;
        parts_epoch(&loader.parts, epoch);
        for (size_t i = 0; i < spelled.count; i++) {
            assert_in_range(loader.parts.order[i], 0, spelled.count - 1);
            assert_false(seen[loader.parts.order[i]]);
            seen[loader.parts.order[i]] = true;
            if (epoch == 0) first[i] = loader.parts.order[i];
            else fixed += first[i] == loader.parts.order[i];
        }
        assert_true(epoch == 0 || fixed < 12); /* Poisson distribution of mean 1: exceeded once in 1e10 */
    }
    parts_epoch(&loader.parts, 0);
    assert_memory_equal(loader.parts.order, first, sizeof first);
    parts_close(&loader.parts);
    open_plain(&loader, &spelled, check_seed() + 1, 100, true, (Augment){.s = {.crop_padding = 0, .flip = false}});
    assert_memory_not_equal(loader.parts.order, first, sizeof first);
    parts_close(&loader.parts);
}

/* All orders of four images are equally likely: each count of 24,000 epochs is within five standard deviations. */
static void small_permutations_are_equally_likely(void **state) {
    (void)state;
    Dataset four = spelled;
    Loader loader;
    int seen[256] = {0}, orders = 0;
    four.count = 4;
    open_plain(&loader, &four, check_seed(), 1, true, (Augment){.s = {.crop_padding = 0, .flip = false}});
    for (uint32_t epoch = 1; epoch <= 24000; epoch++) {
        parts_epoch(&loader.parts, epoch);
        const uint32_t *order = loader.parts.order;
        seen[order[0] | order[1] << 2 | order[2] << 4 | order[3] << 6]++;
    }
    for (int i = 0; i < 256; i++) {
        if (!seen[i]) continue;
        orders++;
        assert_in_range(seen[i], 1000 - 155, 1000 + 155);
    }
    assert_int_equal(orders, 24);
    parts_close(&loader.parts);
}

static void training_visits_each_image_at_most_once(void **state) {
    (void)state;
    Loader loader;
    uint8_t pixels[100 * 45];
    int labels[100];
    bool seen[1003] = {0};
    open_plain(&loader, &spelled, check_seed(), 100, true, (Augment){.s = {.crop_padding = 0, .flip = true}});
    for (size_t b = 0; b < loader.parts.batches; b++) {
        assert_int_equal(whole_batch(&loader, b, pixels, labels), 100);
        for (int i = 0; i < 100; i++) {
            size_t index = spelled_index(pixels + i * 45);
            assert_int_equal(labels[i], index % 7);
            assert_false(seen[index]);
            seen[index] = true;
        }
    }
    parts_close(&loader.parts);
}

static void evaluation_walks_in_order_to_the_end(void **state) {
    (void)state;
    Loader loader;
    uint8_t pixels[100 * 45];
    int labels[100];
    open_plain(&loader, &spelled, check_seed(), 100, false, (Augment){.s = {.crop_padding = 4, .flip = true}});
    assert_int_equal(loader.parts.batches, 11);
    for (size_t b = loader.parts.batches; b-- > 0;) {
        memset(pixels, 0xAA, sizeof pixels);
        int n = whole_batch(&loader, b, pixels, labels);
        assert_int_equal(n, b == 10 ? 3 : 100);
        for (int i = 0; i < n; i++) assert_int_equal(spelled_index(pixels + i * 45), b * 100 + (size_t)i);
        for (size_t i = (size_t)n * 45; i < sizeof pixels; i++) assert_int_equal(pixels[i], 0xAA);
    }
    parts_close(&loader.parts);
}

static void batches_do_not_depend_on_threads_or_history(void **state) {
    (void)state;
    enum { B = 37 };
    static uint8_t want[B * SHAPE_BYTES], got[B * SHAPE_BYTES];
    int want_labels[B], labels[B], threads = omp_get_max_threads();
    Dataset dataset;
    Loader loader;
    Augment augment = {.s = {.crop_padding = 4, .flip = true}};
    Error error;
    assert_true(randaugment_parse(&augment.randaugment, "rand-m9-mstd0.5-inc1", &error));
    shapes_open(&dataset, true, check_seed(), 300);
    omp_set_num_threads(1);
    open_plain(&loader, &dataset, check_seed(), B, true, augment);
    parts_epoch(&loader.parts, 2);
    whole_batch(&loader, 5, want, want_labels);
    parts_close(&loader.parts);
    for (int t = 2; t <= 7; t += 5) {
        omp_set_num_threads(t);
        open_plain(&loader, &dataset, check_seed(), B, true, augment);
        for (uint32_t epoch = 0; epoch < 3; epoch++) {
            parts_epoch(&loader.parts, epoch);
            for (size_t b = 0; b < (epoch == 2 ? 6 : loader.parts.batches); b++) whole_batch(&loader, b, got, labels);
        }
        assert_memory_equal(got, want, sizeof want);
        assert_memory_equal(labels, want_labels, sizeof labels);
        parts_close(&loader.parts);
    }
    omp_set_num_threads(threads);
    dataset_close(&dataset);
}

static void targets_are_smoothed_as_in_timm(void **state) {
    (void)state;
    float targets[2 * 5];
    int labels[2] = {3, 0};
    loader_targets(targets, labels, 2, 5, 0.1f);
    for (int i = 0; i < 10; i++) {
        float want = i % 5 == labels[i / 5] ? 0.92f : 0.02f;
        assert_true(fabsf(targets[i] - want) < 1e-6f);
    }
    loader_targets(targets, labels, 2, 5, 0);
    for (int i = 0; i < 10; i++) assert_true(targets[i] == (i % 5 == labels[i / 5] ? 1.0f : 0.0f));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_are_functions_of_their_index),
        cmocka_unit_test(boxes_hold_their_shapes_tightly),
        cmocka_unit_test(shapes_are_of_one_colour),
        cmocka_unit_test(shapes_classes_are_balanced),
        cmocka_unit_test(shapes_mean_and_std),
        cmocka_unit_test(unknown_data_sets_are_refused),
        cmocka_unit_test(cifar_records_come_apart),
        cmocka_unit_test(cifar_damage_in_memory),
        cmocka_unit_test(cifar100_files),
        cmocka_unit_test(cifar10_files),
        cmocka_unit_test(class_names),
        cmocka_unit_test(png_round_trip),
        cmocka_unit_test(pictures_become_rgb),
        cmocka_unit_test(webp_pictures),
        cmocka_unit_test(bmp_from_the_top_down),
        cmocka_unit_test(bmp_cut_short),
        cmocka_unit_test(lack_of_descriptors_is_no_damage),
        cmocka_unit_test(damaged_pictures_are_refused),
        cmocka_unit_test(png_with_a_wrong_bit),
        cmocka_unit_test(palettes_may_be_short),
        cmocka_unit_test(hostile_pictures_are_harmless),
        cmocka_unit_test(resize_is_pillows),
        cmocka_unit_test(resize_keeps_what_it_must),
        cmocka_unit_test(crop_and_flip_equal_the_plain_reference),
        cmocka_unit_test(draws_are_uniform_and_switchable),
        cmocka_unit_test(epochs_are_permutations),
        cmocka_unit_test(small_permutations_are_equally_likely),
        cmocka_unit_test(training_visits_each_image_at_most_once),
        cmocka_unit_test(evaluation_walks_in_order_to_the_end),
        cmocka_unit_test(batches_do_not_depend_on_threads_or_history),
        cmocka_unit_test(targets_are_smoothed_as_in_timm),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
