/* Data sets, augmentation and batches: exact bytes against simple reimplementations, and the message for every
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
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/results/class_names.h"
#include "core/files.h"
#include "data/images/augment.h"
#include "data/sets/cifar.h"
#include "data/sets/datasets.h"
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
        uint8_t *bytes = check_bytes(N * record, 21), *pixels = malloc(N * CIFAR_PIXELS), labels[N];
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
        uint8_t *in = check_bytes(n, 51), *got = malloc(n), *want = malloc(n);
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
