/* Sets and batches for semantic segmentation: folders in ADE20K's layout and built-in scenes, the same batches for any
 * number of workers, ranks and parts, resuming within an epoch, sizes in evaluation, and files that are missing,
 * damaged or of the wrong kind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/files.h"
#include "data/detection/shape_scenes.h"
#include "data/images/image.h"
#include "data/segmentation/segmentation_loader.h"
#include "tests/check.h"
#include "tests/ranges.h"
#include "tests/scratch.h"

/* == Helpers ====================================================================================================== */

enum { IMAGES = 23, CLASSES = 7, SIDE = 32, MOST = 90 };

static int below(uint32_t stream, uint64_t i, int n) {
    return (int)rng_below(1, RNG_TEST, stream, 0, i, (uint32_t)n);
}

/* Pictures 0 .. 5 have one size, and pictures 6 and 7 another one of the same shape. */
static void size_of(int i, int size[2]) {
    bool alike = i < 6;
    size[0] = alike ? 48 : i < 8 ? 40 : 20 + below(1, (uint64_t)i, MOST - 20);
    size[1] = alike ? 60 : i < 8 ? 50 : 20 + below(2, (uint64_t)i, MOST - 20);
}

/* Rectangles of values 0 .. CLASSES; the channels of a pixel contain its row, its column and its value. */
static void paint(uint8_t *pixels, uint8_t *values, int i, const int size[2]) {
    int h = size[0], w = size[1];
    memset(values, i % 3, (size_t)h * (size_t)w);
    for (uint64_t r = 0; r < 8; r++) {
        uint32_t stream = 100 + (uint32_t)i;
        int top = below(stream, 8 * r, h), left = below(stream, 8 * r + 1, w);
        int bottom = top + 1 + below(stream, 8 * r + 2, h - top), right = left + 1 + below(stream, 8 * r + 3, w - left);
        for (int y = top; y < bottom; y++)
            memset(values + y * w + left, below(stream, 8 * r + 4, CLASSES + 1), (size_t)(right - left));
    }
    for (int k = 0; k < h * w; k++) {
        pixels[3 * k] = (uint8_t)(k / w);
        pixels[3 * k + 1] = (uint8_t)(k % w);
        pixels[3 * k + 2] = (uint8_t)(30 * values[k]);
    }
}

static const char *picture(int i) { return in_folder("images/val/%02d.png", i); }
static const char *annotation(int i) { return in_folder("annotations/val/%02d.png", i); }

static void write_picture(int i) {
    uint8_t pixels[MOST * MOST * 3], values[MOST * MOST];
    int size[2];
    Error error;
    size_of(i, size);
    paint(pixels, values, i, size);
    assert_true(image_write_png(picture(i), pixels, size[0], size[1], &error));
    assert_true(image_write_values(annotation(i), values, size[0], size[1], &error));
}

static int make_pictures(void **state) {
    if (make_folder(state)) return 1;
    static const char *const folders[] = {"images", "images/val", "annotations", "annotations/val"};
    for (int i = 0; i < 4; i++)
        if (mkdir(in_folder("%s", folders[i]), 0700)) return 1;
    for (int i = 0; i < IMAGES; i++) write_picture(i);
    return 0;
}

static SegmentationSetSettings settings(void) {
    return (SegmentationSetSettings){.data = folder, .train_images = "images/val",
                                     .train_annotations = "annotations/val", .val_images = "images/val/",
                                     .val_annotations = "annotations/val", .class_names = "",
                                     .seg_classes = CLASSES, .zero_unlabelled = true};
}

static void open_set(SegmentationSet *set) {
    SegmentationSetSettings s = settings();
    segmentation_set_open(set, &s, false, 1);
}

static void put(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static const SegmentationAugment SMALL = {.scale_long = 120, .scale_short = 40, .scale_min = 0.5f, .scale_max = 2,
                                          .crop_size = SIDE, .crop_most = 0.6f, .flip = true, .photometric = true};

/* == Sets ========================================================================================================= */

static void folders_are_read_as_they_are_published(void **state) {
    (void)state;
    SegmentationSet set;
    TransformScratch scratch = {0};
    Error error;
    for (int zero = 0; zero < 2; zero++) {
        SegmentationSetSettings s = settings();
        s.zero_unlabelled = !zero;
        s.seg_classes = CLASSES + zero;
        s.val_limit = zero ? 9 : 0;
        segmentation_set_open(&set, &s, false, 1);
        assert_int_equal(set.count, zero ? 9 : IMAGES);
        assert_int_equal(set.classes, CLASSES + zero);
        assert_null(set.names.at);
        for (int i = 0; i < set.count; i++) {
            uint8_t pixels[MOST * MOST * 3], values[MOST * MOST], *labels;
            int size[2];
            char name[128];
            ImagePart got;
            size_of(i, size);
            paint(pixels, values, i, size);
            segmentation_set_name_image(&set, (size_t)i, name, sizeof name);
            assert_string_equal(name, picture(i));
            assert_true(segmentation_set_read(&set, i, &scratch, &got, &labels, &error));
            assert_true(got.height == size[0] && got.width == size[1]);
            assert_memory_equal(set.size[i], size, sizeof size);
            for (int k = 0; k < size[0] * size[1]; k++) {
                int want = zero ? values[k] : values[k] ? values[k] - 1 : SEGMENTATION_IGNORED;
                assert_int_equal(labels[k], want);
                assert_memory_equal(got.pixels + 3 * k, pixels + 3 * k, 3);
            }
        }
        segmentation_set_close(&set);
    }
    transform_scratch_free(&scratch);
}

/* In each of the three forms the name is the first one of its class. */
static void names_are_read_in_three_forms(void **state) {
    (void)state;
    static const char *const forms[] = {"Idx\tRatio\tTrain\tVal\tName\n1\t0.1\t5\t1\twall\n2\t0.1\t6\t1\tbuilding, edifice\n"
                                        "3\t0\t8\t9\ttable\r\n",
                                        "Idx,Ratio,Train,Val,Stuff,Name\n1,0.1,5,1,1,wall\n2,0.1,6,1,1,building;edifice\n"
                                        "3,0,8,9,0,table",
                                        "wall\nbuilding\ntable\n"};
    for (int form = 0; form < 3; form++) {
        SegmentationSet set;
        SegmentationSetSettings s = settings();
        put(in_folder(form ? "names.txt" : "objectInfo150.txt"), forms[form]);
        s.class_names = form ? "names.txt" : "";
        s.seg_classes = 0;
        segmentation_set_open(&set, &s, true, 1);
        assert_int_equal(set.classes, 3);
        assert_string_equal(set.names.at[0], "wall");
        assert_string_equal(set.names.at[1], "building");
        assert_string_equal(set.names.at[2], "table");
        segmentation_set_close(&set);
        remove(in_folder("objectInfo150.txt"));
    }
}

static void scenes_have_labels(void **state) {
    (void)state;
    enum { SCENES = 12, SCENE = 64 };
    TransformScratch scratch = {0};
    Error error;
    int edges = 0, figures = 0;
    for (int labelled = 0; labelled < 2; labelled++) {
        SegmentationSet set;
        SegmentationSetSettings s = {.data = "shapes", .scene_size = SCENE, .scene_edges = labelled, .val_limit = SCENES};
        segmentation_set_open(&set, &s, false, 5);
        assert_true(set.count == SCENES && set.classes == SHAPES_CLASSES + 1);
        assert_int_equal(segmentation_set_classes(&s), set.classes);
        assert_int_equal(set.names.count, set.classes);
        assert_string_equal(set.names.at[0], "ground");
        for (int i = 0; i < SCENES; i++) {
            ImagePart got;
            uint8_t *labels, pixels[SCENE * SCENE * 3], owner[SCENE * SCENE];
            int label[SCENES_MOST], box[SCENES_MOST][4];
            assert_true(segmentation_set_read(&set, i, &scratch, &got, &labels, &error));
            scenes_draw(5, 1, (uint32_t)i, SCENE, pixels, owner, label, box);
            assert_memory_equal(got.pixels, pixels, sizeof pixels);
            for (int k = 0; k < SCENE * SCENE; k++) {
                bool edge = owner[k] & SCENES_EDGE;
                int number = owner[k] & ~SCENES_EDGE, want = number ? 1 + label[number - 1] : 0;
                assert_int_equal(labels[k], edge && !labelled ? SEGMENTATION_IGNORED : want);
                edges += edge;
                figures += number > 0;
            }
        }
        segmentation_set_close(&set);
    }
    transform_scratch_free(&scratch);
    assert_true(edges > 1000 && figures > edges);
}

/* == Batches ====================================================================================================== */

/* One picture as the loader returned it. */
typedef struct {
    int image, size[2], label_size[2], network[2];
    uint8_t *pixels, *labels;
} Got;

static uint8_t *rows_of(const uint8_t *from, size_t stride, size_t row, int height) {
    uint8_t *to = malloc(row * (size_t)height + 1);
    for (int y = 0; y < height; y++) memcpy(to + (size_t)y * row, from + (size_t)y * stride, row);
    return to;
}

static void take(Got *got, const SegmentationPart *p, int i) {
    size_t stride = (size_t)p->width * 3, row = (size_t)p->label_width;
    const uint8_t *labels = p->labels + (size_t)i * row * (size_t)p->label_height;
    assert_true(p->size[i][0] <= p->height && p->size[i][1] <= p->width);
    assert_true(p->label_size[i][0] <= p->label_height && p->label_size[i][1] <= p->label_width);
    for (int y = 0; y < p->label_height; y++)
        for (int x = 0; x < p->label_width; x++)
            if (y >= p->label_size[i][0] || x >= p->label_size[i][1])
                assert_int_equal(labels[(size_t)y * row + (size_t)x], SEGMENTATION_IGNORED);
    *got = (Got){.image = p->image[i], .network = {p->height, p->width}};
    memcpy(got->size, p->size[i], sizeof got->size);
    memcpy(got->label_size, p->label_size[i], sizeof got->label_size);
    got->pixels = rows_of(p->pixels + (size_t)i * stride * (size_t)p->height, stride, (size_t)p->size[i][1] * 3,
                          p->size[i][0]);
    got->labels = rows_of(labels, row, (size_t)p->label_size[i][1], p->label_size[i][0]);
}

static void assert_same(const Got *a, const Got *b) {
    assert_int_equal(a->image, b->image);
    assert_memory_equal(a->size, b->size, sizeof a->size);
    assert_memory_equal(a->label_size, b->label_size, sizeof a->label_size);
    assert_memory_equal(a->network, b->network, sizeof a->network);
    assert_memory_equal(a->pixels, b->pixels, (size_t)a->size[0] * (size_t)a->size[1] * 3);
    assert_memory_equal(a->labels, b->labels, (size_t)a->label_size[0] * (size_t)a->label_size[1]);
}

static void release(Got *got, int count) {
    for (int i = 0; i < count; i++) {
        free(got[i].pixels);
        free(got[i].labels);
    }
    memset(got, 0, (size_t)count * sizeof *got);
}

static void check_part(const SegmentationLoader *loader, const SegmentationPart *p) {
    int shorter = p->height < p->width ? p->height : p->width, longer = p->height + p->width - shorter;
    assert_true(p->height % SEGMENTATION_MULTIPLE == 0 && p->width % SEGMENTATION_MULTIPLE == 0);
    assert_true(shorter <= loader->shorter && longer <= loader->longer);
    assert_true((size_t)p->height * (size_t)p->width <= loader->most_pixels);
    assert_true((size_t)p->label_height * (size_t)p->label_width <= loader->most_labels);
    if (loader->config.parts.train) assert_true(p->height == SIDE && p->width == SIDE && p->label_height == SIDE);
}

/* Loads one rank's pictures of an epoch to their places in the global batches and returns their number. */
static int load_epoch(SegmentationLoaderConfig config, const SegmentationSet *set, int workers, uint32_t epoch,
                      size_t from, Got *got) {
    SegmentationLoader loader;
    SegmentationPart part;
    int images = 0;
    config.parts.pool = workers ? loader_pool_open(workers) : NULL;
    segmentation_open(&loader, set, &config);
    parts_start(&loader.parts, epoch, from);
    while (segmentation_next(&loader, &part)) {
        size_t place = part.batch * (size_t)config.parts.batch_size + (size_t)part.position;
        check_part(&loader, &part);
        assert_true(part.batch >= from && (!config.parts.part || part.n <= config.parts.part));
        for (int i = 0; i < part.n; i++, place++, images++) {
            assert_true(place < IMAGES && !got[place].pixels);
            take(&got[place], &part, i);
        }
    }
    segmentation_close(&loader);
    loader_pool_close(config.parts.pool);
    return images;
}

static void pictures_do_not_depend_on_workers_or_ranks(void **state) {
    (void)state;
    SegmentationSet set;
    open_set(&set);
    for (int train = 0; train < 2; train++) {
        Got want[IMAGES] = {{0}}, got[IMAGES] = {{0}};
        SegmentationLoaderConfig config = {.parts = {.seed = check_seed(), .batch_size = train ? 7 : 5, .train = train},
                                           .augment = SMALL};
        int images = train ? IMAGES / 7 * 7 : IMAGES, seen[IMAGES] = {0};
        assert_int_equal(load_epoch(config, &set, 0, 3, 0, want), images);
        for (int i = 0; i < images; i++) assert_int_equal(seen[want[i].image]++, 0); /* none occurs twice */
        for (int ranks = 1; ranks <= 3; ranks++) {
            for (int workers = 0; workers <= 7; workers += workers == 2 ? 5 : 1) {
                for (int part = 0; part <= 4; part += 2) {
                    int loaded = 0;
                    config.parts.part = part;
                    config.parts.ranks = ranks;
                    for (config.parts.rank = 0; config.parts.rank < ranks; config.parts.rank++)
                        loaded += load_epoch(config, &set, workers, 3, 0, got);
                    assert_int_equal(loaded, images);
                    for (int i = 0; i < images; i++) assert_same(&got[i], &want[i]);
                    release(got, IMAGES);
                }
            }
        }
        release(want, IMAGES);
    }
    segmentation_set_close(&set);
}

static void an_epoch_goes_on_and_the_next_differs(void **state) {
    (void)state;
    SegmentationSet set;
    Got whole[IMAGES] = {{0}}, got[IMAGES] = {{0}}, next[IMAGES] = {{0}};
    open_set(&set);
    SegmentationLoaderConfig config = {.parts = {.seed = check_seed(), .batch_size = 5, .train = true, .part = 2},
                                       .augment = SMALL};
    load_epoch(config, &set, 2, 6, 0, whole);
    for (size_t from = 0; from <= 4; from++) {
        assert_int_equal(load_epoch(config, &set, 2, 6, from, got), 20 - 5 * (int)from);
        for (int i = 5 * (int)from; i < 20; i++) assert_same(&got[i], &whole[i]);
        release(got, IMAGES);
    }
    load_epoch(config, &set, 2, 7, 0, next);
    int moved = 0;
    for (int i = 0; i < 20; i++) moved += next[i].image != whole[i].image;
    assert_true(moved > 5);
    release(whole, IMAGES);
    release(next, IMAGES);
    segmentation_set_close(&set);
}

/* A pixel's channels contain its position and value.  Labels agree with them away from edges, where pixels are
 * interpolated: so labels and pixels were scaled, cropped and mirrored alike. */
static void labels_stay_on_their_pixels(void **state) {
    (void)state;
    SegmentationSet set;
    Got got[IMAGES] = {{0}};
    int agree = 0, wrong = 0, mirrored = 0;
    open_set(&set);
    SegmentationAugment augment = SMALL;
    augment.photometric = false;
    SegmentationLoaderConfig config = {.parts = {.seed = check_seed(), .batch_size = IMAGES, .train = true},
                                       .augment = augment};
    for (uint32_t epoch = 0; epoch < 4; epoch++) {
        load_epoch(config, &set, 0, epoch, 0, got);
        for (int i = 0; i < IMAGES; i++) {
            int h = got[i].label_size[0], w = got[i].label_size[1];
            assert_memory_equal(got[i].size, got[i].label_size, sizeof got[i].size);
            for (int y = 1; y < h - 1; y++) {
                for (int x = 1; x < w - 1; x++) {
                    const uint8_t *label = got[i].labels + y * w + x, *pixel = got[i].pixels + 3 * (y * w + x);
                    bool inside = true;
                    for (int k = 0; k < 9; k++) inside &= label[(k / 3 - 1) * w + k % 3 - 1] == *label;
                    int stored = *label == SEGMENTATION_IGNORED ? 0 : *label + 1;
                    if (inside) *(abs(pixel[2] - 30 * stored) < 15 ? &agree : &wrong) += 1;
                }
            }
            mirrored += got[i].pixels[1] > got[i].pixels[3 * (w - 1) + 1];
        }
        release(got, IMAGES);
    }
    printf("  %d labels agree with their pixels, %d do not, %d of %d pictures are mirrored\n", agree, wrong, mirrored,
           4 * IMAGES);
    assert_true(agree > 10000 && wrong < agree / 100);
    assert_in_range(mirrored, 2 * IMAGES - 24, 2 * IMAGES + 24); /* five standard deviations */
    segmentation_set_close(&set);
}

static void evaluation_keeps_labels_and_never_pads(void **state) {
    (void)state;
    SegmentationSet set;
    TransformScratch scratch = {0};
    Got got[IMAGES] = {{0}};
    open_set(&set);
    SegmentationLoaderConfig config = {.parts = {.batch_size = 8}, .augment = SMALL};
    assert_int_equal(load_epoch(config, &set, 2, 0, 0, got), IMAGES);
    for (int i = 0; i < IMAGES; i++) {
        ImagePart whole;
        uint8_t *labels, *pixels;
        Error error;
        assert_true(segmentation_set_read(&set, i, &scratch, &whole, &labels, &error));
        SegmentationDraw draw = segmentation_resize(&SMALL, whole.height, whole.width);
        size_t row = (size_t)draw.out_width * 3;
        pixels = malloc(row * (size_t)draw.out_height);
        assert_true(segmentation_pixels(&scratch, pixels, row, &whole, &draw));
        assert_int_equal(got[i].image, i);
        assert_true(got[i].size[0] == draw.out_height && got[i].size[1] == draw.out_width);
        assert_memory_equal(got[i].network, got[i].size, sizeof got[i].size);
        assert_true(got[i].label_size[0] == whole.height && got[i].label_size[1] == whole.width);
        assert_memory_equal(got[i].labels, labels, (size_t)whole.height * (size_t)whole.width);
        assert_memory_equal(got[i].pixels, pixels, row * (size_t)draw.out_height);
        free(pixels);
    }
    release(got, IMAGES);
    SegmentationLoader loader;
    SegmentationPart part;
    segmentation_open(&loader, &set, &config);
    parts_start(&loader.parts, 0, 0);
    assert_true(segmentation_next(&loader, &part));
    assert_int_equal(part.n, 8); /* two sizes, which have the same size in the network */
    assert_true(part.label_height == 48 && part.label_width == 60);
    segmentation_close(&loader);
    segmentation_set_close(&set);
    transform_scratch_free(&scratch);
}

/* == Invalid files ================================================================================================= */

/* Picture 4 is a text, picture 8 is cut off, and annotation 11 has a value beyond the classes. */
static void damage(void) {
    uint8_t *bytes, pixels[MOST * MOST * 3], values[MOST * MOST];
    size_t size;
    int extent[2];
    Error error;
    put(picture(4), "no picture");
    assert_true(file_read(picture(8), 1 << 20, &bytes, &size, &error));
    assert_true(file_write(picture(8), bytes, 60, &error));
    free(bytes);
    size_of(11, extent);
    paint(pixels, values, 11, extent);
    values[3 * extent[1] + 5] = CLASSES + 1;
    assert_true(image_write_values(annotation(11), values, extent[0], extent[1], &error));
}

static void repair(void) {
    write_picture(4);
    write_picture(8);
    write_picture(11);
}

/* Whether `got` is the training sample of its picture with the random choices of picture `key`. */
static bool drawn_by(const Got *got, const SegmentationSet *set, uint32_t epoch, uint32_t key) {
    TransformScratch scratch = {0};
    ImagePart whole;
    Error error;
    uint8_t *stored, labels[SIDE * SIDE], pixels[SIDE * SIDE * 3];
    assert_true(segmentation_set_read(set, got->image, &scratch, &whole, &stored, &error));
    SegmentationDraw d = segmentation_draw(&SMALL, whole.height, whole.width, check_seed(), epoch, key);
    size_t row = (size_t)d.out_width, count = row * (size_t)d.out_height;
    assert_true(segmentation_crop(&d, labels, row, stored, &SMALL, check_seed(), epoch, key, &scratch));
    assert_true(segmentation_pixels(&scratch, pixels, row * 3, &whole, &d));
    transform_scratch_free(&scratch);
    return got->size[0] == d.out_height && got->size[1] == d.out_width && !memcmp(got->labels, labels, count) &&
           !memcmp(got->pixels, pixels, 3 * count);
}

static void damaged_pictures_are_replaced(void **state) {
    (void)state;
    SegmentationSet set;
    Got want[IMAGES] = {{0}}, got[IMAGES] = {{0}};
    damage();
    open_set(&set);
    SegmentationLoaderConfig config = {.parts = {.seed = check_seed(), .batch_size = IMAGES, .train = true,
                                                 .max_damaged = 0.5f},
                                       .augment = SMALL};
    int kept = quiet_begin();
    load_epoch(config, &set, 0, 1, 0, want);
    for (int ranks = 1; ranks <= 3; ranks += 2) { /* the replacement is the same everywhere */
        config.parts.ranks = ranks;
        config.parts.part = 2;
        for (config.parts.rank = 0; config.parts.rank < ranks; config.parts.rank++)
            load_epoch(config, &set, 2, 1, 0, got);
        for (int i = 0; i < IMAGES; i++) assert_same(&got[i], &want[i]);
        release(got, IMAGES);
    }
    int twice = 0, of_another = 0;
    for (int i = 0; i < IMAGES; i++) {
        int image = want[i].image;
        bool own = drawn_by(&want[i], &set, 1, (uint32_t)image);
        assert_true(image != 4 && image != 8 && image != 11);
        if (!own) assert_true(drawn_by(&want[i], &set, 1, (uint32_t)image - 1)); /* of the picture that it replaces */
        twice += image == 5 || image == 9 || image == 12;
        of_another += !own;
    }
    assert_true(twice == 6 && of_another == 3);
    release(want, IMAGES);

    config = (SegmentationLoaderConfig){.parts = {.batch_size = 4, .max_damaged = 0.5f}, .augment = SMALL};
    load_epoch(config, &set, 2, 0, 0, got);
    quiet_end(kept);
    for (int i = 0; i < IMAGES; i++) {
        bool bad = i == 4 || i == 8 || i == 11;
        assert_int_equal(got[i].image, bad ? -1 : i);
        for (int k = 0; bad && k < got[i].label_size[0] * got[i].label_size[1]; k++)
            assert_int_equal(got[i].labels[k], SEGMENTATION_IGNORED);
    }
    release(got, IMAGES);
    segmentation_set_close(&set);
    repair();
}

static void run_damaged(void *argument) {
    SegmentationSet set;
    SegmentationLoader loader;
    SegmentationPart part;
    (void)argument;
    open_set(&set);
    SegmentationLoaderConfig config = {.parts = {.batch_size = 1, .max_damaged = 2.5f / IMAGES,
                                                 .pool = loader_pool_open(2)},
                                       .augment = SMALL};
    segmentation_open(&loader, &set, &config);
    parts_start(&loader.parts, 0, 0);
    while (segmentation_next(&loader, &part)) continue;
}

static void run_open(void *argument) {
    SegmentationSet set;
    segmentation_set_open(&set, argument, false, 1);
}

/* Running it in a child process ends with status 1 and prints the words on stderr. */
static void ends_with(void (*run)(void *), void *argument, const char *const *words) {
    char text[4096];
    int ended = status_of(run, argument, text, sizeof text);
    printf("%s", text);
    assert_int_equal(ended, 1);
    assert_words(text, words);
}

static void trouble_is_told_in_one_line(void **state) {
    (void)state;
    static const uint8_t values[MOST * MOST];
    SegmentationSetSettings s = settings(), other = s;
    Error error;
    damage();
    ends_with(run_damaged, NULL,
              WORDS("images/val/04.png: not a JPEG, PNG, WebP or BMP", "images/val/08.png: a damaged picture",
                    "images/val/11.png: ",
                    "annotations/val/11.png: value 8 in row 3, column 5, expected 1 to 7 for 7 classes",
                    "damaged images: 3 in one epoch of 23, more than max_damaged"));
    repair();

    remove(annotation(17));
    remove(annotation(18));
    ends_with(run_open, &s, WORDS("images/val/17.png: no labels: there is no ", "annotations/val/17.png"));
    write_picture(18);
    assert_true(image_write_values(annotation(17), values, 10, 20, &error));
    ends_with(run_open, &s, WORDS("annotations/val/17.png: 10 x 20 pixels (height x width), but its picture ",
                                  "images/val/17.png has "));
    assert_true(image_write_png(annotation(17), values, 10, 20, &error));
    ends_with(run_open, &s, WORDS("annotations/val/17.png: a PNG of colours, expected one of grey values"));
    put(annotation(17), "no annotation");
    ends_with(run_open, &s, WORDS("annotations/val/17.png: not a PNG picture"));
    write_picture(17);

    other.seg_classes = 0;
    ends_with(run_open, &other, WORDS("the number of classes is unknown: give seg_classes, or a file as class_names"));
    put(in_folder("names.txt"), "wall\nsky\n");
    other = s;
    other.class_names = "names.txt";
    ends_with(run_open, &other, WORDS("names.txt: 2 names, but seg_classes is 7"));
    put(in_folder("names.txt"), "wall\n\nsky\n");
    ends_with(run_open, &other, WORDS("names.txt: class 1 has no name"));
    put(in_folder("names.txt"), "");
    ends_with(run_open, &other, WORDS("names.txt: 0 names, expected 1 to 254"));
    other.class_names = "none.txt";
    ends_with(run_open, &other, WORDS("none.txt: cannot open"));
    other = s;
    other.val_images = "images/none";
    ends_with(run_open, &other, WORDS("images/none: no such folder"));
    other = s;
    other.val_images = "annotations";
    other.val_annotations = "none";
    ends_with(run_open, &other, WORDS("none: no such folder"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_are_read_as_they_are_published),
        cmocka_unit_test(names_are_read_in_three_forms),
        cmocka_unit_test(scenes_have_labels),
        cmocka_unit_test(pictures_do_not_depend_on_workers_or_ranks),
        cmocka_unit_test(an_epoch_goes_on_and_the_next_differs),
        cmocka_unit_test(labels_stay_on_their_pixels),
        cmocka_unit_test(evaluation_keeps_labels_and_never_pads),
        cmocka_unit_test(damaged_pictures_are_replaced),
        cmocka_unit_test(trouble_is_told_in_one_line),
    };
    return cmocka_run_group_tests(tests, make_pictures, remove_folder);
}
