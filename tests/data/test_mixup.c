/* Mixup, cutmix, random erasing and repeated augmentation: their distributions, a reimplementation of timm's loops, and
 * the same batches for any division into parts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "data/images/erasing.h"
#include "data/loading/loader.h"
#include "data/images/mixup.h"
#include "data/loading/sampler.h"
#include "data/sets/shapes.h"
#include "tests/check.h"
#include "tests/ranges.h"
#include "tests/whole_batch.h"

enum { SAMPLES = 100000 };

static void assert_share(const char *what, double count, double n, double p) {
    double deviations = (count - n * p) / sqrt(n * p * (1 - p));
    printf("  %-36s %8.0f of %8.0f, expected %9.1f: %+.1f standard deviations\n", what, count, n, n * p, deviations);
    assert_true(fabs(deviations) < 6);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Compares two samples of n by Kolmogorov's distance, which exceeds 6 / sqrt n once in 1e15. */
static void assert_same_distribution(const char *what, double *a, double *b, size_t n) {
    double worst = 0;
    qsort(a, n, sizeof *a, ascending);
    qsort(b, n, sizeof *b, ascending);
    for (size_t i = 0, j = 0; i < n && j < n;) {
        double x = a[i] < b[j] ? a[i] : b[j];
        while (i < n && a[i] <= x) i++;
        while (j < n && b[j] <= x) j++;
        worst = fmax(worst, fabs((double)i - (double)j) / (double)n);
    }
    printf("  %-36s distance %.5f of %.5f allowed\n", what, worst, 6 / sqrt((double)n));
    assert_true(worst < 6 / sqrt((double)n));
}

/* A separate random generator for the reimplementations: xorshift64*. */
static double uniform(void) {
    static uint64_t x;
    if (!x) x = check_seed() | 1;
    x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
    return (double)(x * 0x2545F4914F6CDD1Du >> 11) / 9007199254740992.0;
}

/* == Beta ========================================================================================================= */

/* Another method for Beta(a, a) with small a (Johnk 1964). */
static double beta_by_rejection(double a) {
    for (;;) {
        double x = pow(uniform(), 1 / a), y = pow(uniform(), 1 / a);
        if (x + y <= 1 && x + y > 0) return x / (x + y);
    }
}

static void beta_numbers(void **state) {
    (void)state;
    const double alphas[] = {0.1, 0.2, 0.8, 1, 2.5};
    static double got[SAMPLES], want[SAMPLES];
    for (size_t k = 0; k < sizeof alphas / sizeof *alphas; k++) {
        double a = alphas[k], mean = 0, square = 0;
        char name[48];
        for (size_t i = 0; i < SAMPLES; i++) {
            got[i] = mixup_beta(a, check_seed(), i);
            want[i] = beta_by_rejection(a);
            assert_true(got[i] >= 0 && got[i] <= 1);
            mean += got[i] / SAMPLES;
            square += (got[i] - 0.5) * (got[i] - 0.5) / SAMPLES;
        }
        double variance = 1 / (4 * (2 * a + 1));
        printf("Beta(%g, %g): mean %.4f, variance %.5f, expected %.5f\n", a, a, mean, square, variance);
        assert_true(fabs(mean - 0.5) < 6 * sqrt(variance / SAMPLES));
        assert_true(fabs(square - variance) < 6 * 0.25 / sqrt(SAMPLES));
        snprintf(name, sizeof name, "Beta(%g, %g) as Johnk's", a, a);
        assert_same_distribution(name, got, want, SAMPLES);
    }
    for (uint64_t i = 0; i < 1000; i++) /* nearly 0 or 1, and nearly 1/2 */
        assert_true(mixup_beta(1e-4, check_seed(), i) * (1 - mixup_beta(1e-4, check_seed(), i)) < 0.25 &&
                    fabs(mixup_beta(1000, check_seed(), i) - 0.5) < 0.1);
}

/* == The random choices of a batch ================================================================================= */

static void mixup_draws(void **state) {
    (void)state;
    enum { H = 31, W = 40 };
    MixupSettings both = {0.8f, 1, 1, 0.5f}, sometimes = {0.8f, 1, 0.3f, 0.25f}, mixed = {0.8f, 0, 1, 0.5f},
                  cut = {0, 1, 1, 0};
    MixupSettings off = {0, 0, 1, 0.5f};
    static double lam[SAMPLES], beta[SAMPLES], area[SAMPLES], plain_area[SAMPLES];
    double cuts = 0, none = 0, cuts_sometimes = 0;
    int odd = 0; /* counts boxes with an odd side: timm rounds the far side up */
    for (size_t i = 0; i < SAMPLES; i++) {
        MixupDraw d = mixup_draw(&both, check_seed(), i, H, W), again = mixup_draw(&both, check_seed(), i, H, W);
        assert_memory_equal(&d, &again, sizeof d);
        cuts += d.box[2] > 0 || d.lam == 1; /* lam is 1 after a cut of size 0 */

        d = mixup_draw(&sometimes, check_seed(), i, H, W);
        none += d.lam == 1 && d.box[2] == 0;
        cuts_sometimes += d.box[2] > 0;

        d = mixup_draw(&mixed, check_seed(), i, H, W);
        lam[i] = (double)d.lam;
        beta[i] = beta_by_rejection(0.8);
        for (int k = 0; k < 4; k++) assert_int_equal(d.box[k], 0);

        d = mixup_draw(&cut, check_seed(), i, H, W);
        const int *b = d.box;
        assert_true(b[0] >= 0 && b[0] <= b[2] && b[2] <= H && b[1] >= 0 && b[1] <= b[3] && b[3] <= W);
        odd += (b[0] > 0 && b[2] < H && (b[2] - b[0]) % 2) || (b[1] > 0 && b[3] < W && (b[3] - b[1]) % 2);
        area[i] = (b[2] - b[0]) * (b[3] - b[1]);
        assert_true(d.lam == (float)(1 - area[i] / (H * W)));
        double side = sqrt(1 - uniform());
        int h = (int)(H * side), w = (int)(W * side), y = (int)(uniform() * H), x = (int)(uniform() * W);
        plain_area[i] = (fmin(y + (h + 1) / 2, H) - fmax(y - h / 2, 0)) * (fmin(x + (w + 1) / 2, W) - fmax(x - w / 2, 0));

        d = mixup_draw(&off, check_seed(), i, H, W);
        assert_true(d.lam == 1 && d.box[2] == 0);
    }
    assert_share("cutmix rather than mixup", cuts, SAMPLES, 0.5);
    assert_true(odd > SAMPLES / 20);
    double seen = 1 - 1.0 / (31 * 31); /* a side below one pixel, H sqrt(1 - lam) < 1, cuts nothing; W > H */
    assert_share("a visible cut in 0.3 x 0.25", cuts_sometimes, SAMPLES, 0.3 * 0.25 * seen);
    assert_share("no mixing", none, SAMPLES, 0.7 + 0.3 * 0.25 * (1 - seen));
    assert_same_distribution("mixup's lambda", lam, beta, SAMPLES);
    assert_same_distribution("cutmix's area", area, plain_area, SAMPLES);
}

/* == Random erasing =============================================================================================== */

/* A reimplementation of timm's _erase. */
static bool plain_erase(int box[4], double probability, int height, int width) {
    memset(box, 0, 4 * sizeof *box);
    if (uniform() > probability) return false;
    for (int attempt = 0; attempt < 10; attempt++) {
        double target = (0.02 + (1.0 / 3 - 0.02) * uniform()) * height * width;
        double aspect = exp(log(0.3) + (log(1 / 0.3) - log(0.3)) * uniform());
        int h = (int)nearbyint(sqrt(target * aspect)), w = (int)nearbyint(sqrt(target / aspect));
        if (w < width && h < height) {
            if (h == 0 || w == 0) return false;
            box[0] = (int)(uniform() * (height - h + 1));
            box[1] = (int)(uniform() * (width - w + 1));
            box[2] = box[0] + h;
            box[3] = box[1] + w;
            return true;
        }
    }
    return false;
}

static void erasing_draws(void **state) {
    (void)state;
    const int sizes[][2] = {{32, 32}, {224, 224}, {12, 90}, {3, 5}, {1, 1}};
    static double got[5][SAMPLES], want[5][SAMPLES];
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int H = sizes[s][0], W = sizes[s][1], box[4], plain[4];
        double erased = 0;
        for (size_t i = 0; i < SAMPLES; i++) {
            bool is = erasing_draw(box, 1, check_seed(), 3, (uint32_t)i, H, W);
            erased += erasing_draw(plain, 0.25f, check_seed(), 3, (uint32_t)i, H, W);
            assert_true(is == (box[2] > 0));
            assert_true(0 <= box[0] && box[0] <= box[2] && box[2] <= H);
            assert_true(0 <= box[1] && box[1] <= box[3] && box[3] <= W);
            plain_erase(plain, 1, H, W);
            const int *boxes[2] = {box, plain};
            for (int k = 0; k < 2; k++) {
                const int *b = boxes[k];
                double numbers[5] = {(double)(b[2] - b[0]) * (b[3] - b[1]), b[2] - b[0], b[3] - b[1], b[0], b[1]};
                for (int j = 0; j < 5; j++) (k ? want : got)[j][i] = numbers[j];
            }
        }
        printf("%d x %d\n", H, W);
        if (H == 224) assert_share("erased", erased, SAMPLES, 0.25);
        static const char *const what[] = {"area", "height", "width", "top", "left"};
        for (int j = 0; j < 5; j++) assert_same_distribution(what[j], got[j], want[j], SAMPLES);
    }
    int box[4];
    for (uint32_t i = 0; i < 1000; i++) assert_false(erasing_draw(box, 0, check_seed(), 0, i, 32, 32));
}

/* == Parts of a batch ============================================================================================= */

static void partners_are_the_batch_reversed(void **state) {
    (void)state;
    for (size_t n = 1; n < 40; n++) {
        bool seen[40] = {false};
        for (size_t p = 0; p < n; p++) {
            size_t partner = (p ^ 1) < n ? p ^ 1 : p;
            assert_false(seen[mixup_sample(p, n)]);
            seen[mixup_sample(p, n)] = true;
            assert_int_equal(mixup_sample(p, n) + mixup_sample(partner, n), n - 1);
        }
        for (size_t first = 0; first < n; first++)
            for (int part = 1; first + (size_t)part <= n; part++) {
                size_t begin;
                int pairs[80], count = mixup_part(&begin, pairs, first, part, n);
                assert_true(begin <= first && count <= part + 2 && begin + (size_t)count <= n);
                for (int i = 0; i < part; i++) {
                    size_t own = begin + (size_t)pairs[2 * i], other = begin + (size_t)pairs[2 * i + 1];
                    assert_int_equal(own, first + (size_t)i);
                    assert_in_range(pairs[2 * i + 1], 0, count - 1);
                    assert_int_equal(mixup_sample(own, n) + mixup_sample(other, n), n - 1);
                }
            }
    }
}

static void targets_are_timms(void **state) {
    (void)state;
    const int labels[] = {2, 0, 3, 3}, pairs[] = {0, 1, 1, 0, 2, 3};
    const float s = 0.1f, lam = 0.3f, off = s / 5, on = 1 - s + s / 5;
    float targets[15];
    for (int i = 0; i < 15; i++) targets[i] = NAN;
    mixup_targets(targets, labels, pairs, 3, 5, s, lam);
    for (int i = 0; i < 3; i++) {
        float sum = 0;
        for (int c = 0; c < 5; c++) {
            int own = labels[pairs[2 * i]], other = labels[pairs[2 * i + 1]];
            float t = lam * (c == own ? on : off) + (1 - lam) * (c == other ? on : off);
            assert_true(fabsf(targets[5 * i + c] - t) < 1e-6f);
            sum += targets[5 * i + c];
        }
        assert_true(fabsf(sum - 1) < 1e-5f);
    }
    float plain[5], unmixed[5];
    loader_targets(plain, labels, 1, 5, s);
    mixup_targets(unmixed, labels, pairs, 1, 5, s, 1);
    assert_memory_equal(plain, unmixed, sizeof plain);
}

/* == Order of an epoch ============================================================================================ */

/* The lists that timm's RepeatAugSampler makes for each rank from the same permutation. */
static void repeats_are_dealt_like_deits(void **state) {
    (void)state;
    const size_t counts[] = {1000, 256, 255, 7, 1};
    static uint32_t order[1000];
    for (size_t k = 0; k < 5; k++) {
        size_t n = counts[k], length = sampler_length(n, 3);
        assert_int_equal(length, n >= 256 ? n - n % 256 : n);
        assert_int_equal(sampler_length(n, 1), n);
        for (size_t i = 0; i < n; i++) order[i] = (uint32_t)(i * 7 % n);
        for (size_t ranks = 1; ranks <= 4; ranks *= 2)
            for (size_t rank = 0; rank < ranks; rank++)
                for (size_t j = 0; j < length / ranks; j++) {
                    uint32_t draw = sampler_draw(order, n, 3, j * ranks + rank);
                    assert_int_equal(draw % n, order[(rank + j * ranks) / 3]);
                    assert_int_equal(draw / n, (rank + j * ranks) % 3);
                }
        for (size_t p = 0; p < n; p++) assert_int_equal(sampler_draw(order, n, 1, p), order[p]);
    }
}

enum { COUNT = 300, BATCH = 22, IMAGE = SHAPES_SIDE * SHAPES_SIDE * 3 };

static void open_recipe(Loader *loader, const Dataset *shapes, bool repeats, bool pairs) {
    LoaderConfig config = {.parts = {.seed = 9, .batch_size = BATCH, .train = true},
                           .repeats = repeats ? 3 : 1, .pairs = pairs,
                           .transform = {.height = shapes->height, .width = shapes->width,
                                         .augment.s = {.crop_padding = 4, .flip = true}}};
    Error error;
    assert_true(randaugment_parse(&config.transform.augment.randaugment, "rand-m9-mstd0.5-inc1", &error));
    loader_open(loader, shapes, &config);
}

/* A part has the images of its samples and of their partners, for any ranks and micro-batches. */
static void parts_have_their_partners(const Dataset *shapes) {
    Loader whole;
    uint8_t *images = malloc(BATCH * IMAGE);
    int labels[BATCH];
    open_recipe(&whole, shapes, false, true);
    whole_batch(&whole, 1, images, labels);
    for (int ranks = 1; ranks <= 3; ranks++)
        for (int rank = 0; rank < ranks; rank++) {
            Loader loader;
            LoaderPart part;
            LoaderConfig config = whole.config;
            config.parts.rank = rank;
            config.parts.ranks = ranks;
            config.parts.part = 5;
            config.parts.pool = ranks == 2 ? NULL : loader_pool_open(ranks);
            loader_open(&loader, shapes, &config);
            parts_start(&loader.parts, 0, 1);
            for (int at = BATCH * rank / ranks; at < BATCH * (rank + 1) / ranks; at += part.n) {
                assert_true(loader_next(&loader, &part));
                assert_int_equal(part.batch, 1);
                assert_int_equal(part.first, at);
                for (int i = 0; i < part.n; i++) {
                    int own = at + i, partner = (own ^ 1) < BATCH ? own ^ 1 : own;
                    const int *pair = part.pairs + 2 * i;
                    assert_in_range(pair[0], 0, part.count - 1);
                    assert_in_range(pair[1], 0, part.count - 1);
                    assert_memory_equal(part.pixels + (size_t)pair[0] * IMAGE, images + own * IMAGE, IMAGE);
                    assert_memory_equal(part.pixels + (size_t)pair[1] * IMAGE, images + partner * IMAGE, IMAGE);
                    assert_int_equal(part.labels[pair[1]], labels[partner]);
                    assert_int_equal(part.draws[pair[0]], loader_draw(&whole, BATCH + (size_t)own));
                }
            }
            parts_close(&loader.parts);
            loader_pool_close(config.parts.pool);
        }
    parts_close(&whole.parts);
    free(images);
}

/* Partners are next to each other, repeats differ, and nothing depends on the division of the epoch. */
static void loader_keeps_the_order(void **state) {
    (void)state;
    Dataset shapes;
    shapes_open(&shapes, true, 5, COUNT);
    for (int mode = 0; mode < 4; mode++) {
        bool repeats = mode & 1, pairs = mode & 2;
        Loader loader, plain;
        open_recipe(&loader, &shapes, repeats, pairs);
        open_recipe(&plain, &shapes, repeats, false);
        assert_int_equal(loader.parts.batches, (repeats ? 256 : COUNT) / BATCH);
        parts_epoch(&loader.parts, 4);
        parts_epoch(&plain.parts, 4);
        uint8_t *whole = malloc(BATCH * IMAGE), *part = malloc(BATCH * IMAGE);
        int labels[BATCH], part_labels[BATCH];
        for (size_t batch = 0; batch < 3; batch++) {
            assert_int_equal(whole_batch(&loader, batch, whole, labels), BATCH);
            for (size_t p = 0; p < BATCH; p++) {
                size_t j = pairs ? mixup_sample(p, BATCH) : p;
                loader_fill(&plain, batch * BATCH + j, 1, part, part_labels);
                assert_memory_equal(whole + p * IMAGE, part, IMAGE);
                assert_int_equal(labels[p], part_labels[0]);
                assert_int_equal(loader_draw(&loader, batch * BATCH + p), loader_draw(&plain, batch * BATCH + j));
                assert_int_equal(labels[p], loader_draw(&loader, batch * BATCH + p) % COUNT % SHAPES_CLASSES);
            }
            for (int step = 5; step <= 7; step++)
                for (int first = 0; first < BATCH; first += step) {
                    int n = BATCH - first < step ? BATCH - first : step;
                    loader_fill(&loader, batch * BATCH + (size_t)first, n, part, part_labels);
                    assert_memory_equal(part, whole + first * IMAGE, (size_t)n * IMAGE);
                }
        }
        free(whole);
        free(part);
        parts_close(&plain.parts);
        parts_close(&loader.parts);
    }
    parts_have_their_partners(&shapes);
    Loader repeated;
    uint8_t three[3][IMAGE];
    int labels[3];
    open_recipe(&repeated, &shapes, true, false);
    loader_fill(&repeated, 0, 3, three[0], labels);
    assert_true(labels[0] == labels[1] && labels[1] == labels[2]);
    assert_true(memcmp(three[0], three[1], IMAGE) && memcmp(three[1], three[2], IMAGE));
    parts_close(&repeated.parts);
    dataset_close(&shapes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beta_numbers),
        cmocka_unit_test(mixup_draws),
        cmocka_unit_test(erasing_draws),
        cmocka_unit_test(partners_are_the_batch_reversed),
        cmocka_unit_test(targets_are_timms),
        cmocka_unit_test(repeats_are_dealt_like_deits),
        cmocka_unit_test(loader_keeps_the_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
