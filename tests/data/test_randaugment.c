/* RandAugment and colour jitter: every operation against Pillow's bytes, affine maps against a simple reimplementation,
 * the distributions of random choices, and the messages for invalid policies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/safetensors.h"
#include "data/images/transform.h"
#include "tests/check.h"
#include "tests/ranges.h"

/* timm's names, in the order of AugmentOperation. */
static const char *const operation_names[AUGMENT_OPERATIONS] = {
    "AutoContrast",       "Equalize",   "Invert",
    "Rotate",             "Posterize",  "PosterizeIncreasing",
    "Solarize",           "SolarizeIncreasing", "SolarizeAdd",
    "Color",              "ColorIncreasing",    "Contrast",
    "ContrastIncreasing", "Brightness", "BrightnessIncreasing",
    "Sharpness",          "SharpnessIncreasing", "ShearX",
    "ShearY",             "TranslateXRel", "TranslateYRel"};

/* == Every operation against Pillow =============================================================================== */

enum { GUARD = 64 };

/* Applies the operations to a copy between guard bytes, with poisoned scratch memory at an odd address. */
static void applied(uint8_t *out, const uint8_t *in, int height, int width, const AugmentDraw *draw) {
    size_t bytes = (size_t)height * (size_t)width * 3, scratch_bytes = pillow_scratch(height, width);
    uint8_t *pixels = malloc(bytes + 2 * GUARD), *scratch = malloc(scratch_bytes + 1 + GUARD);
    memset(pixels, 0xA5, bytes + 2 * GUARD);
    memset(scratch, 0xA5, scratch_bytes + 1 + GUARD);
    memcpy(pixels + GUARD, in, bytes);
    augment_pixels(pixels + GUARD, scratch + 1, height, width, draw);
    for (int i = 0; i < GUARD; i++) {
        assert_int_equal(pixels[i], 0xA5);
        assert_int_equal(pixels[GUARD + bytes + (size_t)i], 0xA5);
        assert_int_equal(scratch[1 + scratch_bytes + (size_t)i], 0xA5);
    }
    memcpy(out, pixels + GUARD, bytes);
    free(pixels);
    free(scratch);
}

static AugmentDraw forced(const float *c) {
    static const Jitter orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    AugmentDraw draw = {.jittered = c[1] >= AUGMENT_OPERATIONS};
    if (draw.jittered) {
        memcpy(draw.jitter.order, orders[(int)c[1] - AUGMENT_OPERATIONS], sizeof draw.jitter.order);
        memcpy(draw.jitter.factor, c + 2, sizeof draw.jitter.factor);
    } else {
        draw.randaugment.count = 1;
        draw.randaugment.steps[0] = (RandAugmentStep){(AugmentOperation)c[1], (double)c[2], c[3] != 0,
                                                      c[4] != 0 ? PILLOW_BICUBIC : PILLOW_BILINEAR};
    }
    return draw;
}

static void operations_are_pillows(void **state) {
    (void)state;
    enum { ROWS = AUGMENT_OPERATIONS + 1 };
    SafeTensors st;
    Error error;
    size_t numbers[ROWS] = {0}, different[ROWS] = {0};
    int cases_of[ROWS] = {0}, worst[ROWS] = {0};
    assert_true(safetensors_open(&st, "tests/fixtures/data/augment.safetensors", &error));
    const SafeTensor *list = safetensors_find(&st, "cases"), *pictures = safetensors_find(&st, "pictures");
    const uint8_t *pixels = safetensors_find(&st, "pixels")->data, *want = safetensors_find(&st, "results")->data;
    float *cases = malloc(list->size * sizeof *cases);
    int64_t *picture = malloc(pictures->size * sizeof *picture);
    assert_true(safetensors_to_float(list, cases, &error));
    assert_true(safetensors_to_int64(pictures, picture, &error));
    printf("Pillow %s, timm %s, torchvision %s\n", safetensors_metadata(&st, "pillow"),
           safetensors_metadata(&st, "timm"), safetensors_metadata(&st, "torchvision"));
    const char *arguments = safetensors_find(&st, "arguments")->data;
    for (size_t i = 0; i < list->shape[0]; i++) {
        const float *c = cases + 5 * i;
        const int64_t *p = picture + 3 * (size_t)c[0];
        int height = (int)p[0], width = (int)p[1], row = c[1] < AUGMENT_OPERATIONS ? (int)c[1] : AUGMENT_OPERATIONS;
        size_t bytes = (size_t)height * (size_t)width * 3;
        uint8_t *got = malloc(bytes);
        double argument;
        AugmentDraw draw = forced(c);
        applied(got, pixels + p[2], height, width, &draw);
        memcpy(&argument, arguments + i * sizeof argument, sizeof argument);
        if (!draw.jittered) assert_true(randaugment_argument(&draw.randaugment.steps[0]) == argument);
        for (size_t k = 0; k < bytes; k++) {
            int by = abs(got[k] - want[k]);
            different[row] += by > 0;
            if (by > worst[row]) worst[row] = by;
        }
        numbers[row] += bytes;
        cases_of[row]++;
        want += bytes;
        free(got);
    }
    for (int row = 0; row < ROWS; row++) {
        printf("  %-22s %3d cases  %6zu numbers  %zu differ, by at most %d\n",
               row < AUGMENT_OPERATIONS ? operation_names[row] : "colour jitter", cases_of[row], numbers[row],
               different[row], worst[row]);
        assert_true(cases_of[row] > 0);
        assert_int_equal(different[row], 0);
    }
    free(cases);
    free(picture);
    safetensors_close(&st);
}

/* == AutoAugment against torchvision and Pillow =================================================================== */

static void autoaugment_is_torchvisions(void **state) {
    (void)state;
    SafeTensors st;
    Error error;
    const char *file = getenv("VIT_TEST_AUTOAUGMENT");
    assert_true(safetensors_open(&st, file ? file : "tests/fixtures/data/autoaugment.safetensors", &error));
    const SafeTensor *list = safetensors_find(&st, "cases"), *pictures = safetensors_find(&st, "pictures");
    const uint8_t *pixels = safetensors_find(&st, "pixels")->data, *want = safetensors_find(&st, "results")->data;
    int64_t *cases = malloc(list->size * sizeof *cases), *picture = malloc(pictures->size * sizeof *picture);
    assert_true(safetensors_to_int64(list, cases, &error));
    assert_true(safetensors_to_int64(pictures, picture, &error));
    size_t differ = 0, changed = 0;
    for (size_t i = 0; i < list->shape[0]; i++) {
        const int64_t *c = cases + 4 * i, *p = picture + 3 * c[0];
        size_t bytes = (size_t)p[0] * (size_t)p[1] * 3, wrong = 0;
        uint8_t *got = malloc(bytes);
        AugmentDraw draw = {.autoaugment = {(AutoAugmentPolicy)c[1], (int)c[2], {true, true},
                                            {c[3] & 1, (c[3] & 2) != 0}}};
        applied(got, pixels + p[2], (int)p[0], (int)p[1], &draw);
        for (size_t k = 0; k < bytes; k++) wrong += got[k] != want[k];
        if (wrong) printf("policy %d pair %d signs %d: %zu of %zu\n", (int)c[1], (int)c[2], (int)c[3], wrong, bytes);
        differ += wrong;
        changed += memcmp(got, pixels + p[2], bytes) != 0;
        want += bytes;
        free(got);
    }
    printf("%zu cases, of which %zu change the picture; %zu numbers differ\n", list->shape[0], changed, differ);
    assert_int_equal(differ, 0);
    assert_true(changed > list->shape[0] * 8 / 10);
    free(cases);
    free(picture);
    safetensors_close(&st);
}

/* Pairs, operations and signs have the expected frequencies, within six standard deviations. */
static void autoaugment_draws_have_their_probabilities(void **state) {
    (void)state;
    enum { DRAWS = 100000 };
    SafeTensors st;
    Error error;
    float listed[2][AUTOAUGMENT_PAIRS][2];
    assert_true(safetensors_open(&st, "tests/fixtures/data/autoaugment.safetensors", &error));
    assert_true(safetensors_to_float(safetensors_find(&st, "probabilities"), listed[0][0], &error));
    safetensors_close(&st);
    for (AutoAugmentPolicy policy = AUTOAUGMENT_CIFAR10; policy <= AUTOAUGMENT_COMPACT; policy++) {
        int pairs[AUTOAUGMENT_PAIRS] = {0}, applied_of[AUTOAUGMENT_PAIRS][2] = {{0}}, negative[2] = {0};
        for (uint32_t i = 0; i < DRAWS; i++) {
            AutoAugmentDraw draw = autoaugment_draw(policy, check_seed(), 2, i);
            pairs[draw.pair]++;
            for (int half = 0; half < 2; half++) {
                applied_of[draw.pair][half] += draw.applies[half];
                negative[half] += draw.negative[half];
            }
        }
        for (int half = 0; half < 2; half++) assert_true(abs(negative[half] - DRAWS / 2) < 6 * 158);
        for (int i = 0; i < AUTOAUGMENT_PAIRS; i++) {
            assert_true(abs(pairs[i] - DRAWS / AUTOAUGMENT_PAIRS) < 6 * 62);
            for (int half = 0; half < 2; half++) {
                double p = listed[policy == AUTOAUGMENT_IMAGENET][i][half];
                assert_true(fabs(applied_of[i][half] - p * pairs[i]) <= 6 * sqrt(p * (1 - p) * pairs[i]));
            }
        }
    }
}

/* torchvision's policies and RandAugment are applied after crop and mirror, Compact Transformers' before. */
static void policies_come_before_or_behind_the_crop(void **state) {
    (void)state;
    enum { SIDE = 20, BYTES = SIDE * SIDE * 3 };
    static uint8_t in[BYTES], between[BYTES], want[BYTES], got[BYTES];
    static const char *const names[] = {"rand-m9-mstd0.5-inc1", "autoaugment-cifar10", "autoaugment-imagenet",
                                        "autoaugment-compact"};
    const Sample sample = {.bytes = in, .size = BYTES, .height = SIDE, .width = SIDE};
    TransformScratch scratch = {0};
    Error error;
    for (size_t i = 0; i < BYTES; i++) in[i] = (uint8_t)rng_below(check_seed(), RNG_TEST, 2, 1, i, 256);
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        AugmentSettings settings = {.crop_padding = 4, .flip = true, .aa = names[n]};
        Transform t = {.height = SIDE, .width = SIDE, .train = true, .augment = augment_of(&settings)};
        for (uint32_t i = 0; i < 50; i++) {
            AugmentDraw draw = augment_draw(t.augment, check_seed(), 3, i);
            if (n == 3) {
                applied(between, in, SIDE, SIDE, &draw);
                augment_apply(want, between, SIDE, SIDE, draw);
            } else {
                augment_apply(between, in, SIDE, SIDE, draw);
                applied(want, between, SIDE, SIDE, &draw);
            }
            memset(got, 0xA5, BYTES);
            assert_true(transform_sample(&scratch, got, &sample, true, &t, (TransformKey){check_seed(), 3, i}, &error));
            assert_memory_equal(got, want, BYTES);
        }
    }
    transform_scratch_free(&scratch);
}

/* == Affine maps against a simple reimplementation ================================================================= */

static uint32_t below(uint32_t n) {
    static uint64_t i;
    return rng_below(check_seed(), RNG_TEST, 1, 1, i++, n);
}

static double between(double low, double high) { return low + (high - low) * (below(1u << 24) / 16777216.0); }

static int clamp(int x, int most) { return x < 0 ? 0 : x > most ? most : x; }

static double cubic(const double v[4], double d) {
    double p2 = -v[0] + v[2], p3 = 2 * (v[0] - v[1]) + v[2] - v[3], p4 = -v[0] + v[1] - v[2] + v[3];
    return v[1] + d * (p2 + d * (p3 + d * p4));
}

static uint8_t plain_sample(const uint8_t *in, int height, int width, int c, double u, double v, PillowFilter filter) {
    int x = (int)floor(u - 0.5), y = (int)floor(v - 0.5);
    double dx = u - 0.5 - x, dy = v - 0.5 - y, rows[4], value;
    for (int i = 0; i < 4; i++) {
        double row[4];
        for (int j = 0; j < 4; j++)
            row[j] = in[(clamp(y - 1 + i, height - 1) * width + clamp(x - 1 + j, width - 1)) * 3 + c];
        rows[i] = filter == PILLOW_BICUBIC ? cubic(row, dx) : row[1] + (row[2] - row[1]) * dx;
    }
    value = filter == PILLOW_BICUBIC ? cubic(rows, dy) : rows[1] + (rows[2] - rows[1]) * dy;
    return (uint8_t)fmin(fmax(value, 0), 255);
}

static void affine_is_the_plain_loop(void **state) {
    (void)state;
    static const uint8_t fill[3] = {1, 2, 3};
    for (int round = 0; round < 400; round++) {
        int height = 1 + (int)below(20), width = 1 + (int)below(40);
        double m[6] = {1, 0, 0, 0, 1, 0};
        if (round % 5 == 0) m[1] = between(-0.6, 0.6);
        if (round % 5 == 1) m[3] = between(-0.6, 0.6);
        if (round % 5 == 2) m[2] = round % 2 ? below(2) * 3 - 1e-16 * below(9) : between(-width, width);
        if (round % 5 == 3) m[5] = round % 2 ? below(2) * 3 - 1e-16 * below(9) : between(-height, height);
        if (round % 5 == 4)
            for (int i = 0; i < 6; i++) m[i] += between(-1.5, 1.5);
        size_t bytes = (size_t)height * (size_t)width * 3;
        uint8_t *in = malloc(bytes), *out = malloc(bytes), *scratch = malloc(pillow_scratch(height, width));
        for (size_t i = 0; i < bytes; i++) in[i] = (uint8_t)below(256);
        for (PillowFilter filter = PILLOW_BILINEAR; filter <= PILLOW_BICUBIC; filter++) {
            memcpy(out, in, bytes);
            pillow_affine(out, scratch, height, width, m, filter, fill);
            for (int y = 0; y < height; y++)
                for (int x = 0; x < width; x++)
                    for (int c = 0; c < 3; c++) {
                        double u = m[0] * (x + 0.5) + m[1] * (y + 0.5) + m[2];
                        double v = m[3] * (x + 0.5) + m[4] * (y + 0.5) + m[5];
                        bool inside = u >= 0 && u < width && v >= 0 && v < height;
                        int want = inside ? plain_sample(in, height, width, c, u, v, filter) : fill[c];
                        assert_int_equal(out[(y * width + x) * 3 + c], want);
                    }
        }
        free(in);
        free(out);
        free(scratch);
    }
}

/* == Random choices ================================================================================================ */

enum { SAMPLES = 200000 };

/* Checks that a count of `n` trials at probability p is within six standard deviations. */
static void assert_share(const char *what, double count, double n, double p) {
    double deviations = (count - n * p) / sqrt(n * p * (1 - p));
    printf("  %-28s %8.0f of %8.0f, expected %9.1f: %+.1f standard deviations\n", what, count, n, n * p, deviations);
    assert_true(fabs(deviations) < 6);
}

static RandAugment parsed(const char *text) {
    RandAugment ra;
    Error error = {.text = ""};
    if (!randaugment_parse(&ra, text, &error)) fail_msg("%s: %s", text, error.text);
    return ra;
}

static double phi(double x) { return erfc(-x / sqrt(2)) / 2; }

static void draws_of_the_recipe(void **state) {
    (void)state;
    RandAugment ra = parsed("rand-m9-mstd0.5-inc1");
    double count[AUGMENT_OPERATIONS] = {0}, layers[3] = {0}, bilinear = 0, negative = 0, steps = 0, at_most = 0;
    double below_9 = 0, below_85 = 0, below_95 = 0, same = 0;
    for (uint32_t i = 0; i < SAMPLES; i++) {
        RandAugmentDraw draw = randaugment_draw(&ra, check_seed(), 7, i);
        assert_in_range(draw.count, 0, 2);
        layers[draw.count]++;
        same += draw.count == 2 && draw.steps[0].operation == draw.steps[1].operation;
        for (int k = 0; k < draw.count; k++) {
            const RandAugmentStep *s = &draw.steps[k];
            assert_true(s->strength >= 0 && s->strength <= 10);
            steps++;
            count[s->operation]++;
            bilinear += s->filter == PILLOW_BILINEAR;
            negative += s->negative;
            at_most += s->strength == 10;
            below_85 += s->strength < 8.5;
            below_9 += s->strength < 9;
            below_95 += s->strength < 9.5;
        }
    }
    assert_share("no operation", layers[0], SAMPLES, 0.25);
    assert_share("one operation", layers[1], SAMPLES, 0.5);
    assert_share("the same one twice", same, layers[2], 1.0 / 15);
    assert_share("bilinear", bilinear, steps, 0.5);
    assert_share("negative", negative, steps, 0.5);
    assert_share("strength 10", at_most, steps, 1 - phi(2));
    assert_share("strength below 9.5", below_95, steps, phi(1));
    assert_share("strength below 9", below_9, steps, 0.5);
    assert_share("strength below 8.5", below_85, steps, phi(-1));
    for (int op = 0; op < AUGMENT_OPERATIONS; op++) {
        bool increasing = strstr(operation_names[op], "Increasing") != NULL;
        bool replaced = op == AUGMENT_POSTERIZE || op == AUGMENT_SOLARIZE || op == AUGMENT_COLOR ||
                        op == AUGMENT_CONTRAST || op == AUGMENT_BRIGHTNESS || op == AUGMENT_SHARPNESS;
        assert_true(!(increasing && replaced));
        if (replaced) assert_true(count[op] == 0);
        else assert_share(operation_names[op], count[op], 2 * SAMPLES, 0.5 / 15);
    }
}

static void draws_of_other_strings(void **state) {
    (void)state;
    RandAugment fixed = parsed("rand-m15-n3-p1"), uniform = parsed("rand-m8-mstd101-p1-n1-inc0");
    RandAugment wide = parsed("rand-m14-mmax20-p1"), never = parsed("rand-p0");
    RandAugment infinite = parsed("rand-m8-mstdinf-p1-n1");
    fixed.resample = RANDAUGMENT_BICUBIC;
    uniform.resample = RANDAUGMENT_BILINEAR;
    double below_2 = 0, shapes = 0;
    for (uint32_t i = 0; i < SAMPLES; i++) {
        RandAugmentDraw a = randaugment_draw(&fixed, check_seed(), 0, i);
        RandAugmentDraw b = randaugment_draw(&uniform, check_seed(), 0, i);
        RandAugmentDraw c = randaugment_draw(&infinite, check_seed(), 0, i);
        assert_int_equal(a.count, 3);
        for (int k = 0; k < 3; k++) assert_true(a.steps[k].strength == 10 && a.steps[k].filter == PILLOW_BICUBIC);
        assert_int_equal(b.count, 1);
        assert_memory_equal(&b.steps[0].strength, &c.steps[0].strength, sizeof(double));
        assert_true(b.steps[0].strength >= 0 && b.steps[0].strength < 8 && b.steps[0].filter == PILLOW_BILINEAR);
        below_2 += b.steps[0].strength < 2;
        shapes += b.steps[0].operation == AUGMENT_POSTERIZE;
        assert_true(randaugment_draw(&wide, check_seed(), 0, i).steps[0].strength == 14);
        assert_int_equal(randaugment_draw(&never, check_seed(), 0, i).count, 0);
    }
    assert_share("uniform strength below 2", below_2, SAMPLES, 0.25);
    assert_share("Posterize without inc", shapes, SAMPLES, 1.0 / 15);
}

/* Two operations are chosen by weight without replacement: first i and then j with probability w_i w_j / (1 - w_i). */
static void draws_by_weight(void **state) {
    (void)state;
    const char *const texts[] = {"rand-p1-tweights", "rand-p1-w0", "rand-p1-w0-inc1"};
    for (int t = 0; t < 3; t++) {
        RandAugment ra = parsed(texts[t]);
        double first[AUGMENT_OPERATIONS] = {0}, second[AUGMENT_OPERATIONS] = {0}, total = 0;
        for (int k = 0; k < RANDAUGMENT_CHOICES; k++) total += ra.weights[k];
        for (uint32_t i = 0; i < SAMPLES; i++) {
            RandAugmentDraw draw = randaugment_draw(&ra, check_seed(), 1, i);
            assert_int_equal(draw.count, 2);
            assert_true(draw.steps[0].operation != draw.steps[1].operation);
            first[draw.steps[0].operation]++;
            second[draw.steps[1].operation]++;
        }
        printf("%s\n", texts[t]);
        for (int k = 0; k < RANDAUGMENT_CHOICES; k++) {
            double w = ra.weights[k] / total, later = 0;
            const char *name = operation_names[ra.choices[k]];
            for (int j = 0; j < RANDAUGMENT_CHOICES; j++) {
                double wj = ra.weights[j] / total;
                later += j == k ? 0 : wj * w / (1 - wj);
            }
            if (w == 0) {
                assert_true(first[ra.choices[k]] + second[ra.choices[k]] == 0);
                continue;
            }
            assert_share(name, first[ra.choices[k]], SAMPLES, w);
            assert_share(name, second[ra.choices[k]], SAMPLES, later);
        }
    }
}

/* Choices for neighbouring images, epochs and seeds are independent. */
static void draws_are_independent(void **state) {
    (void)state;
    RandAugment ra = parsed("rand-m9-mstd0.5-inc1-p1-n1");
    double same[3] = {0};
    for (uint32_t i = 0; i < SAMPLES; i++) {
        AugmentOperation op = randaugment_draw(&ra, check_seed(), 3, i).steps[0].operation;
        assert_int_equal(op, randaugment_draw(&ra, check_seed(), 3, i).steps[0].operation);
        same[0] += op == randaugment_draw(&ra, check_seed(), 3, i + 1).steps[0].operation;
        same[1] += op == randaugment_draw(&ra, check_seed(), 4, i).steps[0].operation;
        same[2] += op == randaugment_draw(&ra, check_seed() + 1, 3, i).steps[0].operation;
    }
    assert_share("as the next draw", same[0], SAMPLES, 1.0 / 15);
    assert_share("as in the next epoch", same[1], SAMPLES, 1.0 / 15);
    assert_share("as with the next seed", same[2], SAMPLES, 1.0 / 15);
}

static void jitter_draws(void **state) {
    (void)state;
    double orders[27] = {0}, low[3] = {0}, wide = 0;
    for (uint32_t i = 0; i < SAMPLES; i++) {
        JitterDraw draw = jitter_draw(0.4f, check_seed(), 2, i);
        orders[draw.order[0] * 9 + draw.order[1] * 3 + draw.order[2]]++;
        for (int k = 0; k < 3; k++) {
            assert_true(draw.factor[k] >= 0.6f && draw.factor[k] <= 1.4f);
            low[k] += draw.factor[k] < 0.8f;
        }
        draw = jitter_draw(3, check_seed(), 2, i);
        assert_true(draw.factor[0] >= 0 && draw.factor[0] <= 4);
        wide += draw.factor[0] < 1;
    }
    static const int permutations[6] = {5, 7, 11, 15, 19, 21}; /* 012 021 102 120 201 210 in base 3 */
    double total = 0;
    for (int p = 0; p < 6; p++) {
        assert_share("an order", orders[permutations[p]], SAMPLES, 1.0 / 6);
        total += orders[permutations[p]];
    }
    assert_true(total == SAMPLES);
    for (int k = 0; k < 3; k++) assert_share("a factor below 0.8", low[k], SAMPLES, 0.25);
    assert_share("of 0 to 4, below 1", wide, SAMPLES, 0.25);
}

/* RandAugment turns colour jitter off, whatever its strength. */
static void randaugment_turns_jitter_off(void **state) {
    (void)state;
    Augment both = {.s.color_jitter = 0.4f, .randaugment = parsed("rand-m9")}, one = {.s.color_jitter = 0.4f};
    Augment none = {.s.crop_padding = 4};
    assert_false(augment_draw(both, 1, 2, 3).jittered);
    assert_true(augment_draw(one, 1, 2, 3).jittered);
    assert_false(augment_draw(none, 1, 2, 3).jittered);
    assert_true(augment_has_pixels(&both) && augment_has_pixels(&one) && !augment_has_pixels(&none));
}

/* == Strings ====================================================================================================== */

static void strings_are_read(void **state) {
    (void)state;
    RandAugment ra = parsed("rand-m9-mstd0.5-inc1");
    assert_true(ra.layers == 2 && ra.magnitude == 9 && ra.most == 10 && ra.deviation == 0.5 && ra.probability == 0.5);
    assert_true(ra.choices[4] == AUGMENT_POSTERIZE_INCREASING && !ra.weighted);
    ra = parsed("rand");
    assert_true(ra.layers == 2 && ra.magnitude == 10 && ra.deviation == 0 && ra.choices[4] == AUGMENT_POSTERIZE);
    ra = parsed("rand-inc0-n4-p.25-mmax15-mstd100-m12.5");
    assert_true(ra.layers == 4 && ra.magnitude == 12.5 && ra.most == 15 && ra.deviation == 100);
    assert_true(ra.probability == .25);
    assert_true(isinf(parsed("rand-mstd100.5").deviation) && isinf(parsed("rand-mstdinf").deviation));
    assert_true(parsed("rand-tweights").weighted && parsed("rand-tweights").choices[5] == AUGMENT_SOLARIZE_INCREASING);
    assert_true(parsed("rand-w0").choices[5] == AUGMENT_SOLARIZE);
    assert_int_equal(parsed("").layers, 0);
}

static void bad_strings_are_refused(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"original-mstd0.5", "expected RandAugment"}, {"Rand-m9", "expected RandAugment"},
        {"rand-q3", "'q3'"},                      {"rand-m", "'m'"},
        {"rand-m9x", "'m9x'"},                    {"rand-m-9", "'m'"},
        {"rand-m1001", "from 0 to 1000"},         {"rand-m0x9", "'m0x9'"},
        {"rand-m1e1", "'m1e1'"},                  {"rand-mnan", "'mnan'"},
        {"rand-minf", "'minf'"},                  {"rand-n0", "from 1 to 16"},
        {"rand-n17", "from 1 to 16"},             {"rand-n2.5", "a whole number"},
        {"rand-p1.5", "from 0 to 1"},             {"rand-mmax0", "from 1 to 1000"},
        {"rand-inc2", "from 0 to 1"},             {"rand-inc", "'inc'"},
        {"rand-w1", "after 'w'"},                 {"rand-t3a", "tweights"},
        {"rand-tweights-w0", "choose one"},       {"rand-w0-n14", "there are only 13"},
        {"rand--m9", "''"},                       {"rand-", "''"},
        {"rand-9", "'9'"},                        {"rand-mstd1.2.3", "'mstd1.2.3'"},
        {"rand m9", "expected RandAugment"}, {"rand-n4294967298", "from 1 to 16"},
    };
    char long_text[400];
    Error error;
    RandAugment ra;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        error.text[0] = 0;
        if (randaugment_parse(&ra, bad[i][0], &error)) fail_msg("%s was taken", bad[i][0]);
        if (!strstr(error.text, bad[i][1]) || strchr(error.text, '\n')) fail_msg("%s: %s", bad[i][0], error.text);
        assert_int_equal(ra.layers, 0);
    }
    memset(long_text, '9', sizeof long_text);
    memcpy(long_text, "rand-m", 6);
    long_text[sizeof long_text - 1] = 0;
    assert_false(randaugment_parse(&ra, long_text, &error));
    assert_non_null(strstr(error.text, "longer than"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_are_pillows),   cmocka_unit_test(affine_is_the_plain_loop),
        cmocka_unit_test(draws_of_the_recipe),      cmocka_unit_test(draws_of_other_strings),
        cmocka_unit_test(draws_by_weight),          cmocka_unit_test(draws_are_independent),
        cmocka_unit_test(jitter_draws),             cmocka_unit_test(randaugment_turns_jitter_off),
        cmocka_unit_test(strings_are_read),         cmocka_unit_test(bad_strings_are_refused),
        cmocka_unit_test(autoaugment_is_torchvisions), cmocka_unit_test(autoaugment_draws_have_their_probabilities),
        cmocka_unit_test(policies_come_before_or_behind_the_crop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
