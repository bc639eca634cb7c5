/* Batches with boxes: the same pixels as Pillow's, the same batches for any number of workers, ranks and parts,
 * resuming within an epoch, the limit of padding, and images that cannot be read. */
#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data/detection/detection_loader.h"
#include "data/detection/shape_scenes.h"
#include "data/images/image.h"
#include "tests/check.h"
#include "tests/ranges.h"
#include "tests/scratch.h"

/* == Helpers ====================================================================================================== */

enum { IMAGES = 23, SIDE = 128 };

static char json[SCRATCH_PATH + 16];

static uint32_t draw(uint32_t stream, uint64_t i, uint32_t n) { return rng_below(1, RNG_TEST, stream, 0, i, n); }

/* Writes parts of scenes as PNG files of many sizes, wide and tall, and the boxes of the figures, some of which extend
 * beyond the picture. */
static int make_pictures(void **state) {
    char name[64];
    Error error;
    static uint8_t scene[SIDE * SIDE * 3], part[SIDE * SIDE * 3];
    if (make_folder(state)) return 1;
    snprintf(json, sizeof json, "%s/pictures.json", folder);
    FILE *images = tmpfile(), *boxes = tmpfile(), *out = fopen(json, "w");
    int id = 1;
    for (int i = 0; i < IMAGES; i++) {
        int label[SCENES_MOST], box[SCENES_MOST][4], width = 30 + (int)draw(1, 2 * (uint64_t)i, 99);
        int height = 30 + (int)draw(1, 2 * (uint64_t)i + 1, 99), count;
        count = scenes_draw(5, 0, (uint32_t)i, SIDE, scene, NULL, label, box);
        for (int y = 0; y < height; y++)
            memcpy(part + (size_t)(y * width) * 3, scene + (size_t)(y * SIDE) * 3, (size_t)width * 3);
        snprintf(name, sizeof name, "%d.png", i);
        if (!image_write_png(in_folder(name), part, height, width, &error)) return 1;
        fprintf(images, "%s{\"id\": %d, \"file_name\": \"%s\", \"width\": %d, \"height\": %d}", i ? "," : "", 7 * i + 3,
                name, width, height);
        for (int j = 0; j < count && i % 9 != 4; j++) /* some pictures have none */
            fprintf(boxes,
                    "%s{\"id\": %d, \"image_id\": %d, \"category_id\": %d, \"bbox\": [%d, %d, %d, %d], \"iscrowd\": 0}",
                    id > 1 ? "," : "", id, 7 * i + 3, label[j] + 1, box[j][0], box[j][1], box[j][2] - box[j][0],
                    box[j][3] - box[j][1]),
                id++;
    }
    fprintf(out, "{\"images\": [");
    rewind(images);
    for (int c; (c = getc(images)) != EOF;) putc(c, out);
    fprintf(out, "], \"annotations\": [");
    rewind(boxes);
    for (int c; (c = getc(boxes)) != EOF;) putc(c, out);
    fprintf(out, "], \"categories\": [");
    for (int c = 1; c <= 10; c++) fprintf(out, "%s{\"id\": %d, \"name\": \"c%d\"}", c > 1 ? "," : "", c, c);
    fprintf(out, "]}\n");
    fclose(images);
    fclose(boxes);
    return fclose(out);
}

static void open_set(DetectionSet *set) {
    int kept = quiet_begin();
    detection_set_coco(set, "pictures", json, folder, DETECTION_BOXES, true, 0);
    quiet_end(kept);
}

static const DetectionAugment SMALL = {.flip = true, .crop = true, .scale = {40, 56, 72}, .scales = 3, .max_size = 90,
                                       .crop_scale = {40, 60}, .crop_scales = 2, .crop_min = 30, .crop_max = 50};

/* == Pixels ======================================================================================================= */

static void pixels_are_pillows(void **state) {
    (void)state;
    FILE *file = fopen("tests/fixtures/detection/moved_pixels.txt", "r");
    TransformScratch scratch = {0};
    DetectionDraw d = {.steps = 0};
    int mirror, cases = 0, twice = 0;
    assert_non_null(file);
    for (; fscanf(file, "%d %d %d %d", &d.from_width, &d.from_height, &mirror, &d.steps) == 4; cases++) {
        uint8_t in[40 * 40 * 3], out[30 * 40 * 3];
        for (int i = 0; i < d.steps; i++) {
            DetectionStep *s = &d.step[i];
            assert_int_equal(fscanf(file, "%d %d %d %d %d %d", &s->width, &s->height, &s->left, &s->top, &s->crop_width,
                                    &s->crop_height), 6);
            d.width = s->crop_width;
            d.height = s->crop_height;
        }
        for (int y = 0, i = 0; y < d.from_height; y++) {
            for (int column = 0; column < d.from_width; column++) {
                int x = mirror ? d.from_width - 1 - column : column; /* mirrored as by detection_set_read */
                for (int c = 0; c < 3; c++)
                    in[i++] = (uint8_t)(37 * y + 11 * x * x + 53 * c + 5 * x * y + ((x * y * 7919) >> 5));
            }
        }
        ImagePart picture = {in, (size_t)d.from_width * 3, 0, 0, d.from_height, d.from_width};
        size_t stride = (size_t)d.width * 3 + 7;
        memset(out, 0xA5, sizeof out);
        assert_true(detection_pixels(&scratch, out, stride, &picture, &d));
        for (int y = 0; y < d.height; y++) {
            for (size_t x = 0; x < stride; x++) {
                unsigned want = 0xA5; /* padding between rows is not written */
                if (x < stride - 7) assert_int_equal(fscanf(file, "%2x", &want), 1);
                if (out[(size_t)y * stride + x] != want)
                    fail_msg("case %d, row %d, byte %zu: %d, expected %u", cases, y, x, out[(size_t)y * stride + x],
                             want);
            }
        }
        twice += d.steps == 2;
    }
    fclose(file);
    transform_scratch_free(&scratch);
    assert_true(cases == 8 && twice == 4);
}

static void pictures_are_mirrored_as_a_whole(void **state) {
    (void)state;
    DetectionSet set;
    TransformScratch scratch[2] = {{0}, {0}};
    ImagePart plain, mirrored;
    Error error;
    for (int kind = 0; kind < 2; kind++) {
        if (kind)
            detection_set_scenes(&set, DETECTION_BOXES, true, 3, 48, 5);
        else
            open_set(&set);
        for (int i = 0; i < 4; i++) {
            assert_true(detection_set_read(&set, i, false, &scratch[0], &plain, &error));
            assert_true(detection_set_read(&set, i, true, &scratch[1], &mirrored, &error));
            assert_int_equal(plain.width, set.coco.images[i].width);
            assert_int_equal(mirrored.height, set.coco.images[i].height);
            for (int y = 0; y < plain.height; y++)
                for (int x = 0; x < plain.width; x++)
                    assert_memory_equal(
                        plain.pixels + (size_t)y * plain.stride + 3 * (size_t)x,
                        mirrored.pixels + (size_t)y * mirrored.stride + 3 * (size_t)(plain.width - 1 - x), 3);
        }
        detection_set_close(&set);
    }
    transform_scratch_free(&scratch[0]);
    transform_scratch_free(&scratch[1]);
}

/* == Batches ====================================================================================================== */

/* One image as the loader returned it. */
typedef struct {
    int image, height, width, count;
    float box[SCENES_MOST][4];
    int label[SCENES_MOST];
    uint8_t *pixels;
} Got;

static void take(Got *got, const DetectionPart *part, int i) {
    size_t row = (size_t)part->size[i][1] * 3, stride = (size_t)part->width * 3;
    assert_true(part->size[i][0] <= part->height && part->size[i][1] <= part->width);
    *got = (Got){.image = part->image[i], .height = part->size[i][0], .width = part->size[i][1]};
    got->pixels = malloc(row * (size_t)got->height);
    for (int y = 0; y < got->height; y++)
        memcpy(got->pixels + (size_t)y * row,
               part->pixels + ((size_t)i * (size_t)part->height + (size_t)y) * stride, row);
    got->count = part->first[i + 1] - part->first[i];
    assert_in_range(got->count, 0, SCENES_MOST);
    memcpy(got->box, part->boxes + part->first[i], (size_t)got->count * sizeof *got->box);
    memcpy(got->label, part->labels + part->first[i], (size_t)got->count * sizeof *got->label);
}

static void assert_same(const Got *a, const Got *b) {
    assert_int_equal(a->image, b->image);
    assert_int_equal(a->height, b->height);
    assert_int_equal(a->width, b->width);
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->box, b->box, (size_t)a->count * sizeof *a->box);
    assert_memory_equal(a->label, b->label, (size_t)a->count * sizeof *a->label);
    assert_memory_equal(a->pixels, b->pixels, (size_t)a->height * (size_t)a->width * 3);
}

static void release(Got *got, int count) {
    for (int i = 0; i < count; i++) free(got[i].pixels);
    memset(got, 0, (size_t)count * sizeof *got);
}

/* The sides of a batch are those of its largest pictures unless one was replaced, and within the loader's limits. */
static void check_part(const DetectionLoader *loader, const DetectionPart *part) {
    int height = 0, width = 0;
    for (int i = 0; i < part->n; i++) {
        height = part->size[i][0] > height ? part->size[i][0] : height;
        width = part->size[i][1] > width ? part->size[i][1] : width;
    }
    if (!parts_stats(&loader->parts).damaged) assert_true(part->height == height && part->width == width);
    height = part->height;
    width = part->width;
    assert_true((height < width ? height : width) <= loader->shorter);
    assert_true((height < width ? width : height) <= loader->longer);
}

/* Loads one rank's images of an epoch to their places in the global batches and returns their number. */
static int load_epoch(DetectionLoaderConfig config, const DetectionSet *set, int workers, uint32_t epoch, size_t from,
                      Got *got) {
    DetectionLoader loader;
    DetectionPart part;
    int images = 0;
    config.parts.pool = workers ? loader_pool_open(workers) : NULL;
    detection_open(&loader, set, &config);
    parts_start(&loader.parts, epoch, from);
    int wanted = config.parts.train && from < loader.parts.batches ? detection_boxes_of(&loader, from) : 0, boxes = 0;
    while (detection_next(&loader, &part)) {
        if (part.batch == from) boxes += part.first[part.n];
        size_t place = part.batch * (size_t)config.parts.batch_size + (size_t)part.position;
        check_part(&loader, &part);
        assert_true(part.batch >= from && (!config.parts.part || part.n <= config.parts.part));
        for (int i = 0; i < part.n; i++, place++, images++) {
            assert_true(place < IMAGES && !got[place].pixels);
            take(&got[place], &part, i);
        }
    }
    if (config.parts.ranks < 2 && !parts_stats(&loader.parts).damaged) assert_int_equal(boxes, wanted);
    detection_close(&loader);
    loader_pool_close(config.parts.pool);
    return images;
}

static void images_do_not_depend_on_workers_or_ranks(void **state) {
    (void)state;
    DetectionSet set;
    open_set(&set);
    for (int train = 0; train < 2; train++) {
        Got want[IMAGES] = {{0}}, got[IMAGES] = {{0}};
        DetectionLoaderConfig config = {.parts = {.seed = check_seed(), .batch_size = train ? 7 : 5, .train = train},
                                        .window = train ? 2 : 0, .augment = SMALL};
        int images = train ? IMAGES / 7 * 7 : IMAGES, boxes = 0, seen[IMAGES] = {0};
        assert_int_equal(load_epoch(config, &set, 0, 3, 0, want), images);
        for (int i = 0; i < images; i++) {
            boxes += want[i].count;
            assert_int_equal(seen[want[i].image]++, 0); /* none occurs twice */
            for (int j = 0; j < want[i].count; j++)
                for (int k = 0; k < 4; k++) /* a side is a difference of rounded products and may exceed 1 slightly */
                    assert_true(want[i].box[j][k] > 0 && want[i].box[j][k] <= 1 + 4 * FLT_EPSILON);
        }
        assert_true(train ? boxes > images / 2 : boxes == 0); /* some crops contain none */
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
    detection_set_close(&set);
}

static void an_epoch_goes_on_and_the_next_differs(void **state) {
    (void)state;
    DetectionSet set;
    Got whole[IMAGES] = {{0}}, got[IMAGES] = {{0}}, next[IMAGES] = {{0}};
    open_set(&set);
    DetectionLoaderConfig config = {.parts = {.seed = check_seed(), .batch_size = 5, .train = true, .part = 2},
                                    .window = 2, .augment = SMALL};
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
    detection_set_close(&set);
}

static void evaluation_sees_all_in_order(void **state) {
    (void)state;
    DetectionSet set;
    Got got[IMAGES] = {{0}};
    open_set(&set);
    DetectionLoaderConfig config = {.parts = {.batch_size = 1},
                                    .augment = {.scale = {64}, .scales = 1, .max_size = 100}};
    assert_int_equal(load_epoch(config, &set, 2, 0, 0, got), IMAGES);
    for (int i = 0; i < IMAGES; i++) {
        const CocoImage *image = &set.coco.images[i];
        DetectionDraw wanted = detection_resize(DETECTION_DETR, image->width, image->height, 64, 100);
        assert_int_equal(got[i].image, i);
        assert_int_equal(got[i].width, wanted.width);
        assert_int_equal(got[i].height, wanted.height);
    }
    release(got, IMAGES);
    detection_set_close(&set);
}

static void size_buckets_cut_padding(void **state) {
    (void)state;
    DetectionSet set;
    DetectionLoader loader;
    double padding[2];
    open_set(&set);
    for (int window = 0; window < 2; window++) {
        DetectionLoaderConfig config = {.parts = {.seed = 4, .batch_size = 4, .train = true},
                                        .window = 5 * window, .augment = SMALL};
        detection_open(&loader, &set, &config);
        padding[window] = detection_padding(&loader);
        detection_close(&loader);
    }
    printf("  padding %.3f without, %.3f with buckets\n", padding[0], padding[1]);
    assert_true(padding[1] < 0.8 * padding[0]);
    detection_set_close(&set);
}

/* == Pictures that cannot be read ================================================================================= */

static void put(const char *name, const char *text) {
    FILE *file = fopen(in_folder(name), "w");
    fputs(text, file);
    fclose(file);
}

/* Picture 4 is a text file, and picture 11 differs in size from the annotations. */
static void damage(DetectionSet *set) {
    uint8_t pixels[10 * 20 * 3] = {0};
    Error error;
    open_set(set);
    put("4.png", "no picture");
    assert_true(image_write_png(in_folder("11.png"), pixels, 10, 20, &error));
}

static void damaged_pictures_are_replaced(void **state) {
    (void)state;
    DetectionSet set;
    Got want[IMAGES] = {{0}}, got[IMAGES] = {{0}};
    int kept;
    damage(&set);
    DetectionLoaderConfig config = {.parts = {.seed = check_seed(), .batch_size = IMAGES, .train = true,
                                              .max_damaged = 0.5f},
                                    .augment = SMALL};
    kept = quiet_begin();
    load_epoch(config, &set, 0, 1, 0, want);
    for (int ranks = 1; ranks <= 3; ranks += 2) { /* the replacement is the same everywhere */
        config.parts.ranks = ranks;
        config.parts.part = 2;
        for (config.parts.rank = 0; config.parts.rank < ranks; config.parts.rank++)
            load_epoch(config, &set, 2, 1, 0, got);
        for (int i = 0; i < IMAGES; i++) assert_same(&got[i], &want[i]);
        release(got, IMAGES);
    }
    int twice = 0;
    for (int i = 0; i < IMAGES; i++) {
        assert_true(want[i].image != 4 && want[i].image != 11);
        twice += want[i].image == 5 || want[i].image == 12;
    }
    assert_int_equal(twice, 4);
    release(want, IMAGES);

    config = (DetectionLoaderConfig){.parts = {.batch_size = 4, .max_damaged = 0.5f},
                                     .augment = {.scale = {50}, .max_size = 80}};
    load_epoch(config, &set, 2, 0, 0, got);
    quiet_end(kept);
    for (int i = 0; i < IMAGES; i++) assert_int_equal(got[i].image, i == 4 || i == 11 ? -1 : i);
    release(got, IMAGES);
    detection_set_close(&set);
}

static void run_damaged(void *argument) {
    const DetectionSet *set = argument;
    DetectionLoader loader;
    DetectionPart part;
    DetectionLoaderConfig config = {.parts = {.batch_size = 1, .max_damaged = 1.5f / IMAGES,
                                              .pool = loader_pool_open(2)},
                                    .augment = {.scale = {50}}};
    detection_open(&loader, set, &config);
    parts_start(&loader.parts, 0, 0);
    while (detection_next(&loader, &part)) continue;
}

static void run_missing(void *argument) {
    DetectionSet set;
    (void)argument;
    remove(in_folder("17.png"));
    remove(in_folder("18.png"));
    detection_set_coco(&set, "pictures", json, folder, DETECTION_BOXES, true, 0);
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
    DetectionSet set;
    damage(&set);
    ends_with(run_damaged, &set,
              WORDS("4.png: not a JPEG, PNG, WebP or BMP", "11.png: 20 x 10 pixels, but the annotations say",
                    "pictures: damaged images: 2 in one epoch of 23, more than max_damaged"));
    ends_with(run_missing, NULL, WORDS(folder, "no picture 17.png, nor 1 more of 23"));
    detection_set_close(&set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pixels_are_pillows),
        cmocka_unit_test(pictures_are_mirrored_as_a_whole),
        cmocka_unit_test(images_do_not_depend_on_workers_or_ranks),
        cmocka_unit_test(an_epoch_goes_on_and_the_next_differs),
        cmocka_unit_test(evaluation_sees_all_in_order),
        cmocka_unit_test(size_buckets_cut_padding),
        cmocka_unit_test(damaged_pictures_are_replaced),
        cmocka_unit_test(trouble_is_told_in_one_line), /* removes pictures: must be last */
    };
    return cmocka_run_group_tests(tests, make_pictures, remove_folder);
}
