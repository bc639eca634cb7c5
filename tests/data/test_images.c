/* images_mix: random erasing, mixup and cutmix have exactly the bits that its contract defines, on every backend, and
 * the batch is the same for any division into ranks and micro-batches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "data/images/augment.h"
#include "data/images/erasing.h"
#include "data/loading/loader.h"
#include "data/images/mixup.h"
#include "data/sets/shapes.h"
#include "tests/on_device.h"

static const float mean[3] = {0.507f, 0.487f, 0.441f}, std[3] = {0.268f, 0.257f, 0.276f};

static uint32_t below(uint32_t n) {
    static uint64_t i;
    return rng_below(check_seed(), RNG_TEST, 2, 2, i++, n);
}

static void *upload_bytes(const void *host, size_t bytes) {
    void *d = keep(device_malloc(bytes, "test"), true);
    device_upload(d, host, bytes);
    return d;
}

/* == The numbers ================================================================================================== */

static bool inside(const int *box, int y, int x) { return y >= box[0] && y < box[2] && x >= box[1] && x < box[3]; }

static float plain_number(const uint8_t *x, const int *boxes, const uint32_t *draws, const ImageMix *mix, int r, int c,
                          int y, int column, int Hi, int Wi) {
    size_t pixels = (size_t)Hi * (size_t)Wi, at = (size_t)y * (size_t)Wi + (size_t)column;
    float scale = 1 / (255 * std[c]), shift = -mean[c] / std[c];
    if (boxes && inside(boxes + 4 * r, y, column)) {
        size_t number = mix->noise == NOISE_RAND ? (size_t)c : (size_t)c * pixels + at;
        if (mix->noise == NOISE_CONST) return 0;
        return rng_normal_exact(mix->seed, RNG_ERASING_NOISE, mix->epoch, draws[r], number);
    }
    return fmaf(x[((size_t)r * pixels + at) * 3 + (size_t)c], scale, shift);
}

static void random_box(int box[4], int Hi, int Wi) {
    box[0] = (int)below((uint32_t)Hi);
    box[1] = (int)below((uint32_t)Wi);
    box[2] = box[0] + 1 + (int)below((uint32_t)(Hi - box[0]));
    box[3] = box[1] + 1 + (int)below((uint32_t)(Wi - box[1]));
}

static void images_mix_case(int B, int rows, int Hi, int Wi, bool erase, int how, ImageNoise noise) {
    size_t pixels = (size_t)Hi * (size_t)Wi, n = (size_t)B * 3 * pixels;
    uint8_t *x = keep(malloc((size_t)rows * 3 * pixels), false);
    int *pairs = keep(malloc((size_t)B * 2 * sizeof *pairs), false);
    int *boxes = keep(calloc((size_t)rows, 4 * sizeof *boxes), false);
    uint32_t *draws = keep(malloc((size_t)rows * sizeof *draws), false);
    ImageMix mix = {.lam = how == 0 ? 1 : (float)(1 + below(98)) / 100, .noise = noise, .seed = check_seed()};
    mix.epoch = below(300);
    for (size_t i = 0; i < (size_t)rows * 3 * pixels; i++) x[i] = (uint8_t)below(256);
    for (int b = 0; b < 2 * B; b++) pairs[b] = (int)below((uint32_t)rows);
    for (int r = 0; r < rows; r++) {
        draws[r] = below(UINT32_MAX);
        if (r % 3) random_box(boxes + 4 * r, Hi, Wi);
    }
    if (how == 2) random_box(mix.box, Hi, Wi);

    real *y = poisoned_real(n), *again = poisoned_real(n);
    const int *d_pairs = upload_bytes(pairs, (size_t)B * 2 * sizeof *pairs);
    const int *d_boxes = erase ? upload_bytes(boxes, (size_t)rows * 4 * sizeof *boxes) : NULL;
    const uint32_t *d_draws = erase ? upload_bytes(draws, (size_t)rows * sizeof *draws) : NULL;
    const uint8_t *d_x = upload_bytes(x, (size_t)rows * 3 * pixels);
    images_mix(y, d_x, d_pairs, d_boxes, d_draws, mean, std, &mix, &(ImageShape){B, Hi, Wi});
    images_mix(again, d_x, d_pairs, d_boxes, d_draws, mean, std, &mix, &(ImageShape){B, Hi, Wi});

    double *want = zeros(n);
    for (int b = 0; b < B; b++)
        for (int c = 0; c < 3; c++)
            for (int row = 0; row < Hi; row++)
                for (int column = 0; column < Wi; column++) {
                    const int *p = erase ? boxes : NULL;
                    float own = plain_number(x, p, draws, &mix, pairs[2 * b], c, row, column, Hi, Wi);
                    float other = plain_number(x, p, draws, &mix, pairs[2 * b + 1], c, row, column, Hi, Wi);
                    float mixed = mix.lam < 1 ? fmaf(mix.lam, own, (1 - mix.lam) * other) : own;
                    if (how == 2) mixed = inside(mix.box, row, column) ? other : own;
                    want[((size_t)b * 3 + (size_t)c) * pixels + (size_t)(row * Wi + column)] = (double)mixed;
                }
    char name[96];
    static const char *const hows[] = {"plain", "mixup", "cutmix"}, *const noises[] = {"const", "rand", "pixel"};
    snprintf(name, sizeof name, "B %d of %d, %dx%d %s%s%s", B, rows, Hi, Wi, hows[how], erase ? ", erased " : "",
             erase ? noises[noise] : "");
    assert_true(close_real(name, y, want, n));
    const float *got = download_real(y, n), *twice = download_real(again, n);
    assert_memory_equal(got, twice, n * sizeof *got);
    if (sizeof(real) == 4)
        for (size_t i = 0; i < n; i++) assert_true(got[i] == (float)want[i]);
    release_all();
}

static void images_are_erased_and_mixed(void **state) {
    (void)state;
    const int sizes[][4] = {{3, 5, 9, 13}, {2, 2, 8, 16}, {1, 1, 1, 1}, {2, 4, 5, 300}, {4, 3, 16, 8}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int how = 0; how < 3; how++)
            for (int noise = -1; noise < 3; noise++)
                images_mix_case(sizes[s][0], sizes[s][1], sizes[s][2], sizes[s][3], noise >= 0, how,
                                noise < 0 ? NOISE_PIXEL : (ImageNoise)noise);
}

/* Without boxes and partners images_mix agrees with images_normalize up to the rounding of one addition. */
static void plain_images_are_normalised(void **state) {
    (void)state;
    enum { B = 3, SIDE = 16, N = B * 3 * SIDE * SIDE };
    uint8_t x[N];
    const int pairs[2 * B] = {0, 0, 1, 1, 2, 2};
    ImageMix mix = {.lam = 1};
    for (int i = 0; i < N; i++) x[i] = (uint8_t)below(256);
    const uint8_t *d_x = upload_bytes(x, sizeof x);
    real *y = poisoned_real(N), *want = poisoned_real(N);
    images_mix(y, d_x, upload_bytes(pairs, sizeof pairs), NULL, NULL, mean, std, &mix, &(ImageShape){B, SIDE, SIDE});
    images_normalize(want, d_x, mean, std, &(ImageShape){B, SIDE, SIDE});
    double *wide = zeros(N);
    const float *normalised = download_real(want, N);
    for (int i = 0; i < N; i++) wide[i] = (double)normalised[i];
    assert_true(close_rounded("images_mix == images_normalize", y, wide, N));
    release_all();
}

/* == A batch in parts ============================================================================================= */

enum { IMAGE = 3 * SHAPES_SIDE * SHAPES_SIDE };

/* Computes positions first .. first+n-1 of a batch of `size` as a rank or a micro-batch does: y [n,IMAGE] and
 * targets. */
static void part_of_batch(float *y, float *targets, Loader *loader, MixupDraw draw, int first, int n, int size) {
    size_t begin;
    int *pairs = keep(malloc(2 * (size_t)n * sizeof *pairs), false);
    int count = mixup_part(&begin, pairs, (size_t)first, n, (size_t)size);
    int *boxes = keep(malloc(4 * (size_t)count * sizeof *boxes), false);
    int *labels = keep(malloc((size_t)count * sizeof *labels), false);
    uint32_t *draws = keep(malloc((size_t)count * sizeof *draws), false);
    uint8_t *x = keep(malloc((size_t)count * IMAGE), false);
    begin += (size_t)size; /* the second batch of the epoch */
    for (int i = 0; i < count; i++) {
        draws[i] = loader_draw(loader, begin + (size_t)i);
        erasing_draw(boxes + 4 * i, 0.5f, 9, loader->parts.epoch, draws[i], SHAPES_SIDE, SHAPES_SIDE);
    }
    loader_fill(loader, begin, count, x, labels);
    mixup_targets(targets, labels, pairs, n, SHAPES_CLASSES, 0.1f, draw.lam);
    ImageMix mix = {.lam = draw.lam, .noise = NOISE_PIXEL, .seed = 9, .epoch = loader->parts.epoch};
    memcpy(mix.box, draw.box, sizeof mix.box);
    real *d_y = poisoned_real((size_t)n * IMAGE);
    images_mix(d_y, upload_bytes(x, (size_t)count * IMAGE), upload_bytes(pairs, 2 * (size_t)n * sizeof *pairs),
               upload_bytes(boxes, 4 * (size_t)count * sizeof *boxes),
               upload_bytes(draws, (size_t)count * sizeof *draws),
               mean, std, &mix, &(ImageShape){n, SHAPES_SIDE, SHAPES_SIDE});
    memcpy(y, download_real(d_y, (size_t)n * IMAGE), (size_t)n * IMAGE * sizeof *y);
    release_all();
}

/* A batch has the same bits for 1, 2 and 3 ranks with micro-batches of any size. */
static void parts_make_the_same_batch(void **state) {
    (void)state;
    enum { MOST = 12 };
    static float whole[MOST * IMAGE], parts[MOST * IMAGE];
    float targets[MOST * SHAPES_CLASSES], part_targets[MOST * SHAPES_CLASSES];
    Dataset shapes;
    Error error;
    shapes_open(&shapes, true, 5, 60);
    for (int size = MOST - 1; size <= MOST; size++)
        for (int cut = 0; cut < 2; cut++) {
            MixupSettings mixup = {.mixup = cut ? 0 : 0.8f, .cutmix = cut ? 1 : 0, .mixup_prob = 1};
            LoaderConfig config = {.parts = {.seed = 9, .batch_size = size, .train = true},
                                   .repeats = 3, .pairs = true,
                                   .transform = {.height = shapes.height, .width = shapes.width,
                                                 .augment.s = {.crop_padding = 4, .flip = true}}};
            assert_true(randaugment_parse(&config.transform.augment.randaugment, "rand-m9-mstd0.5-inc1", &error));
            Loader loader;
            loader_open(&loader, &shapes, &config);
            parts_epoch(&loader.parts, 3);
            MixupDraw draw = mixup_draw(&mixup, 9, (uint64_t)(17 + cut), SHAPES_SIDE, SHAPES_SIDE);
            part_of_batch(whole, targets, &loader, draw, 0, size, size);
            for (int ranks = 1; ranks <= 3; ranks++)
                for (int micro = 1; micro <= size; micro += ranks) {
                    for (int i = 0; i < size * IMAGE; i++) parts[i] = NAN;
                    for (int rank = 0; rank < ranks; rank++) {
                        int from = size * rank / ranks, to = size * (rank + 1) / ranks;
                        for (int first = from; first < to; first += micro)
                            part_of_batch(parts + first * IMAGE, part_targets + first * SHAPES_CLASSES, &loader, draw,
                                          first, to - first < micro ? to - first : micro, size);
                    }
                    assert_memory_equal(parts, whole, (size_t)size * IMAGE * sizeof *parts);
                    assert_memory_equal(part_targets, targets, (size_t)(size * SHAPES_CLASSES) * sizeof *targets);
                }
            parts_close(&loader.parts);
        }
    dataset_close(&shapes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_are_erased_and_mixed),
        cmocka_unit_test(plain_images_are_normalised),
        cmocka_unit_test(parts_make_the_same_batch),
    };
    kernels_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
