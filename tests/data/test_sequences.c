/* Sequences of bytes for density models: what a sequence is, every split and window, the same batches for any number of
 * workers and ranks, mu-law and WAV files, and the message for every kind of bad input. */
#include "tests/scratch.h"

#include <math.h>

#include "core/files.h"
#include "core/text.h"
#include "data/images/image.h"
#include "data/sequences/mu_law.h"
#include "data/sequences/sequence_baselines.h"
#include "data/sequences/sequence_loader.h"
#include "data/sequences/sequence_samples.h"
#include "data/sets/shapes.h"
#include "data/sequences/sound.h"
#include "tests/check.h"

/* == Helpers ====================================================================================================== */

static uint32_t draw(uint32_t stream, uint64_t i, uint32_t n) {
    return rng_below(check_seed(), RNG_TEST, stream, 0, i, n);
}

static SequencesSettings settings_of(const char *data) {
    return (SequencesSettings){.data = data,
                               .data_dir = "datasets",
                               .tokens = 1024,
                               .rate = 12000,
                               .shares = {3, {90, 5, 5}},
                               .validation_images = -1};
}

/* A file of random bytes, which the caller frees. */
static uint8_t *random_file(const char *path, size_t size, uint32_t stream) {
    Error error;
    uint8_t *bytes = malloc(size);
    for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)draw(stream, i, 256);
    if (!file_write(path, bytes, size, &error)) fail_msg("%s: %s", path, error.text);
    return bytes;
}

static SequenceSet open_text(const char *path, int tokens, float train, float validation, float test) {
    SequencesSettings s = settings_of(path);
    SequenceSet set;
    s.tokens = tokens;
    s.kind = SEQUENCES_TEXT;
    s.shares = (ConfigFloats){3, {train, validation, test}};
    sequences_open(&set, &s);
    return set;
}

static void open_it(void *argument) {
    SequenceSet set;
    sequences_open(&set, argument);
    sequences_close(&set);
}

static void refused(SequencesSettings s, int status, const char *const *words) {
    char text[4096];
    int ended = status_of(open_it, &s, text, sizeof text);
    printf("  %s", text);
    assert_int_equal(ended, status);
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1); /* one line */
    assert_words(text, words);
}

/* == Text ========================================================================================================= */

/* Splits of a text by any shares are consecutive and complete, and enwik8's shares of 1e8 bytes are exact. */
static void shares_divide_a_text(void **state) {
    (void)state;
    const char *path = in_folder("%s", "shares.txt");
    for (uint32_t trial = 0; trial < 20; trial++) {
        size_t size = 200 + draw(1, trial, 3000);
        uint8_t *bytes = random_file(path, size, 100 + trial);
        float shares[3] = {(float)(5 + draw(2, trial, 90)), (float)(1 + draw(3, trial, 20)), (float)(1 + draw(4, trial, 20))};
        SequenceSet set = open_text(path, 1, shares[0], shares[1], shares[2]);
        double sum = (double)shares[0] + (double)shares[1] + (double)shares[2];
        assert_int_equal(set.count[0], (size_t)floor((double)size * (double)shares[0] / sum));
        assert_int_equal(set.count[0] + set.count[1],
                         (size_t)floor((double)size * ((double)shares[0] + (double)shares[1]) / sum));
        assert_int_equal(set.count[0] + set.count[1] + set.count[2], size);
        size_t at = set.count[0] + set.count[1]; /* the test split begins here; its windows of one token are pairs */
        for (size_t i = 0; i < sequences_windows(&set, SEQUENCES_TEST, 1); i++, at++) {
            uint8_t pair[2];
            int from;
            Error error;
            assert_true(sequences_window(&set, SEQUENCES_TEST, 1, i, pair, &from, NULL, &error));
            assert_memory_equal(pair, bytes + at, 2);
        }
        assert_int_equal(at + 1, size);
        sequences_close(&set);
        free(bytes);
    }
    double enwik8 = 1e8; /* computed like the code */
    assert_true((size_t)(enwik8 * 90 / 100) == 90000000 && (size_t)(enwik8 * 95 / 100) == 95000000);
}

/* 33 bytes need 3, 4, 6 and 21 windows of 12 with steps of 12, 8, 4 and 1. */
static void every_token_is_scored_once(void **state) {
    (void)state;
    const char *path = in_folder("%s", "windows.txt");
    const int steps[] = {12, 8, 4, 1, 5, 7}, windows[] = {3, 4, 6, 21, 5, 4};
    uint8_t *bytes = random_file(path, 33, 7);
    SequenceSet set = open_text(path, 12, 0, 0, 1);
    assert_int_equal(sequences_scored(&set, SEQUENCES_TEST), 32);
    for (int k = 0; k < 6; k++) {
        int scored[33] = {0}, step = steps[k];
        size_t count = sequences_windows(&set, SEQUENCES_TEST, step);
        assert_int_equal(count, windows[k]);
        for (size_t i = 0; i < count; i++) {
            uint8_t row[13];
            int from;
            Error error;
            assert_true(sequences_window(&set, SEQUENCES_TEST, step, i, row, &from, NULL, &error));
            size_t begin = i + 1 < count ? i * (size_t)step : 20; /* the last window ends with the text */
            if (i == 0) assert_int_equal(from, 0);
            if (i > 0 && i + 1 < count) assert_int_equal(from, 12 - step);
            assert_memory_equal(row, bytes + begin, 13);
            for (int p = from; p < 12; p++) scored[begin + (size_t)p + 1]++;
        }
        assert_int_equal(scored[0], 0);
        for (int t = 1; t < 33; t++) assert_int_equal(scored[t], 1);
    }
    sequences_close(&set);
    free(bytes);
}

static void any_text_is_scored_once(void **state) {
    (void)state;
    const char *path = in_folder("%s", "any.txt");
    for (uint32_t trial = 0; trial < 60; trial++) {
        int n = 1 + (int)draw(10, trial, 20), step = 1 + (int)draw(11, trial, (uint32_t)n);
        size_t size = (size_t)n + 1 + draw(12, trial, 90);
        int *scored = calloc(size, sizeof *scored);
        uint8_t *bytes = random_file(path, size, 200 + trial), row[32];
        SequenceSet set = open_text(path, n, 0, 0, 1);
        for (size_t i = 0; i < sequences_windows(&set, SEQUENCES_TEST, step); i++) {
            int from;
            Error error;
            assert_true(sequences_window(&set, SEQUENCES_TEST, step, i, row, &from, NULL, &error));
            size_t begin = i * (size_t)step;
            if (begin > size - 1 - (size_t)n) begin = size - 1 - (size_t)n;
            assert_memory_equal(row, bytes + begin, (size_t)n + 1);
            assert_true(i == 0 ? from == 0 : from >= n - step && from < n);
            for (int p = from; p < n; p++) scored[begin + (size_t)p + 1]++;
        }
        for (size_t t = 1; t < size; t++) assert_int_equal(scored[t], 1);
        sequences_close(&set);
        free(bytes);
        free(scored);
    }
}

/* Training windows of n + 1 bytes begin every n bytes from an offset below n and never pass the end of the split. */
static void epochs_of_a_text(void **state) {
    (void)state;
    const char *path = in_folder("%s", "epochs.txt");
    uint8_t *bytes = random_file(path, 1000, 9), row[18];
    SequenceSet set = open_text(path, 17, 60, 20, 20);
    size_t windows = sequences_epoch_length(&set), seen[17] = {0};
    assert_int_equal(windows, (600 - 1 - 16) / 17);
    for (uint32_t epoch = 0; epoch < 400; epoch++) {
        size_t offset = sequences_offset(&set, check_seed(), epoch);
        assert_true(offset < 17);
        assert_int_equal(offset, sequences_offset(&set, check_seed(), epoch));
        seen[offset]++;
    }
    for (size_t offset = 0; offset < 17; offset++) {
        assert_true(seen[offset] > 0); /* fails by chance once in 2e9 runs */
        for (size_t i = 0; i < windows; i++) {
            Error error;
            assert_true(sequences_train(&set, offset, i, row, NULL, &error));
            assert_true(offset + i * 17 + 18 <= 600);
            assert_memory_equal(row, bytes + offset + i * 17, 18);
        }
    }
    assert_true(16 + (windows + 1) * 17 + 1 > 600); /* another window would not fit at the largest offset */
    sequences_close(&set);
    free(bytes);
}

static void limits_of_a_text(void **state) {
    (void)state;
    const char *path = in_folder("%s", "limits.txt");
    free(random_file(path, 5000, 11));
    SequencesSettings s = settings_of(path);
    SequenceSet set;
    s.tokens = 32;
    s.train_limit = 7;
    s.test_limit = 3;
    sequences_open(&set, &s);
    assert_int_equal(sequences_epoch_length(&set), 7);
    assert_int_equal(sequences_scored(&set, SEQUENCES_TEST), 3 * 32);
    assert_int_equal(sequences_windows(&set, SEQUENCES_VALIDATION, 32), 3);
    sequences_close(&set);
}

/* == Images ======================================================================================================= */

/* Held-out images and the others together are all training images, each once; another split_seed holds out others. */
static void images_are_held_out(void **state) {
    (void)state;
    SequencesSettings s = settings_of("shapes");
    SequenceSet set, other;
    s.train_limit = 300;
    s.validation_images = 60;
    s.image_side = 8;
    sequences_open(&set, &s);
    s.split_seed = 1;
    sequences_open(&other, &s);
    assert_int_equal(set.n, 8 * 8 * 3);
    assert_int_equal(set.count[SEQUENCES_TRAIN], 300);
    assert_int_equal(set.count[SEQUENCES_VALIDATION], 60);
    assert_int_equal(set.count[SEQUENCES_TEST], SHAPES_TEST);
    int found[360] = {0}, same = 0;
    TransformScratch scratch = {0};
    for (size_t i = 0; i < 360; i++) {
        char name[64], others[64];
        SequencesSplit split = i < 300 ? SEQUENCES_TRAIN : SEQUENCES_VALIDATION;
        unsigned image;
        sequences_name(&set, split, i < 300 ? i : i - 300, name, sizeof name);
        sequences_name(&other, split, i < 300 ? i : i - 300, others, sizeof others);
        assert_int_equal(sscanf(name, "image %u of shapes", &image), 1);
        assert_true(image < 360);
        found[image]++;
        same += !strcmp(name, others);
    }
    for (int i = 0; i < 360; i++) assert_int_equal(found[i], 1);
    assert_true(same < 30);
    transform_scratch_free(&scratch);
    sequences_close(&set);
    sequences_close(&other);
}

static void shapes_are_read_as_they_are(void **state) {
    (void)state;
    SequencesSettings s = settings_of("shapes");
    SequenceSet set;
    uint8_t want[SHAPES_SIDE * SHAPES_SIDE * 3], *got = malloc(sizeof want);
    TransformScratch scratch = {0};
    Error error;
    int from = -1;
    s.validation_images = 0;
    sequences_open(&set, &s);
    assert_int_equal(set.n, sizeof want);
    assert_int_equal(set.count[SEQUENCES_VALIDATION], set.count[SEQUENCES_TEST]);
    for (uint32_t i = 0; i < 5; i++) {
        uint32_t index = draw(20, i, SHAPES_TRAIN);
        shapes_draw(0, 0, index, want, NULL, NULL);
        assert_true(sequences_train(&set, 0, index, got, &scratch, &error));
        assert_memory_equal(got, want, sizeof want);
        shapes_draw(0, 1, i, want, NULL, NULL);
        for (int split = SEQUENCES_VALIDATION; split <= SEQUENCES_TEST; split++) {
            assert_true(sequences_window(&set, (SequencesSplit)split, 17, i, got, &from, &scratch, &error));
            assert_memory_equal(got, want, sizeof want);
            assert_int_equal(from, 0);
        }
    }
    free(got);
    transform_scratch_free(&scratch);
    sequences_close(&set);
}

/* The rounded mean of the pixels i whose centres lie in j n / out < i + 1/2 <= (j + 1) n / out.  Where a centre lies on
 * an edge, or the mean halfway between two bytes, the last bit of a double decides, and `got` is accepted. */
static uint8_t box_mean(const double *x, int n, int out, int j, uint8_t got) {
    double sum = 0;
    int count = 0;
    for (int i = 0; i < n; i++) {
        int centre = (2 * i + 1) * out, low = 2 * n * j, high = 2 * n * (j + 1);
        if (centre == low || centre == high) return got;
        if (centre < low || centre > high) continue;
        sum += x[i];
        count++;
    }
    double mean = sum / count;
    return fabs(mean - floor(mean) - 0.5) < 1e-4 && fabs(got - mean) < 0.501 ? got : (uint8_t)floor(mean + 0.5);
}

static void pictures_shrink_by_boxes(void **state) {
    (void)state;
    TransformScratch scratch = {0};
    for (uint32_t trial = 0; trial < 40; trial++) {
        int side = 1 + (int)draw(30, trial, 12), height = side * (1 + (int)draw(31, trial, 5)) + (int)draw(32, trial, 7);
        bool grey = draw(34, trial, 2);
        uint8_t *pixels = malloc((size_t)height * (size_t)side * 3), *got = malloc((size_t)side * (size_t)side * 3);
        for (int i = 0; i < height * side; i++) {
            for (int c = 0; c < 3; c++)
                pixels[i * 3 + c] = (uint8_t)draw(40 + trial, (uint64_t)(grey ? i : i * 3 + c), 256);
        }
        SequenceSet set = {.kind = SEQUENCES_IMAGES, .height = side, .width = side, .channels = grey ? 1 : 3};
        set.n = set.row_bytes = side * side * set.channels;
        Error error;
        assert_true(sequences_from_pixels(&set, got, side, pixels, height, side, &scratch, &error));
        for (int c = 0; c < set.channels; c++) {
            for (int x = 0; x < side; x++) {
                double column[100];
                for (int y = 0; y < height; y++) column[y] = pixels[(y * side + x) * 3 + c];
                for (int y = 0; y < side; y++) {
                    uint8_t is = got[(y * side + x) * set.channels + c];
                    assert_int_equal(is, box_mean(column, height, side, y, is));
                }
            }
        }
        free(pixels);
        free(got);
    }
    transform_scratch_free(&scratch);
}

/* Grey pixels are unchanged, and means of 2 x 2 average first the rows and then the columns. */
static void small_grey_images(void **state) {
    (void)state;
    SequenceSet set = {.kind = SEQUENCES_IMAGES, .n = 4, .row_bytes = 4, .height = 2, .width = 2, .channels = 1};
    TransformScratch scratch = {0};
    Error error;
    uint8_t pixels[4 * 4 * 3], got[4], levels[16] = {0, 4, 10, 20, 8, 12, 30, 40, 255, 255, 1, 1, 255, 255, 3, 3};
    for (int i = 0; i < 48; i++) pixels[i] = levels[i / 3];
    assert_true(sequences_from_pixels(&set, got, 2, pixels, 4, 4, &scratch, &error));
    assert_int_equal(got[0], 6);
    assert_int_equal(got[1], 25);
    assert_int_equal(got[2], 255);
    assert_int_equal(got[3], 2);
    uint8_t colour[3] = {255, 0, 0}, one;
    SequenceSet single = {.kind = SEQUENCES_IMAGES, .n = 1, .row_bytes = 1, .height = 1, .width = 1, .channels = 1};
    assert_true(sequences_from_pixels(&single, &one, 1, colour, 1, 1, &scratch, &error));
    assert_int_equal(one, 76); /* Pillow's convert("L") */
    transform_scratch_free(&scratch);
}

static void make_picture(const char *name, int height, int width, uint32_t stream) {
    uint8_t *pixels = malloc((size_t)height * (size_t)width * 3);
    Error error;
    for (int i = 0; i < height * width * 3; i++) pixels[i] = (uint8_t)draw(stream, (uint64_t)i, 256);
    if (!image_write_png(in_folder("%s", name), pixels, height, width, &error)) fail_msg("%s", error.text);
    free(pixels);
}

/* Pictures of any size in folders are resized to 64 x 64. */
static void folders_of_pictures(void **state) {
    (void)state;
    static const char *const folders[] = {"set/train/a", "set/train/b", "set/val/a", "set/val/b"};
    char name[64], path[512];
    for (int i = 0; i < 4; i++) {
        make_folders(in_folder("%s", folders[i]));
        for (int j = 0; j < 5; j++) {
            snprintf(name, sizeof name, "%s/%d.png", folders[i], j);
            make_picture(name, 30 + 17 * j, 150 - 11 * j, (uint32_t)(300 + 5 * i + j));
        }
    }
    snprintf(path, sizeof path, "%s", in_folder("%s", "set"));
    SequencesSettings s = settings_of(path);
    SequenceSet set;
    s.validation_images = 2;
    sequences_open(&set, &s);
    assert_int_equal(set.n, 64 * 64 * 3);
    assert_int_equal(set.count[SEQUENCES_TRAIN], 8);
    assert_int_equal(set.count[SEQUENCES_VALIDATION], 2);
    assert_int_equal(set.count[SEQUENCES_TEST], 10);
    uint8_t *got = malloc((size_t)set.n), *want = malloc((size_t)set.n);
    TransformScratch scratch = {0};
    Error error;
    Image image;
    int from, rows;
    assert_true(sequences_window(&set, SEQUENCES_TEST, 1, 8, got, &from, &scratch, &error)); /* val/b/3.png */
    assert_true(image_read(&image, in_folder("%s", "set/val/b/3.png"), &error));
    assert_true(sequences_from_pixels(&set, want, 64, image.pixels, image.height, image.width, &scratch, &error));
    assert_memory_equal(got, want, (size_t)set.n);
    image_free(&image);
    assert_true(sequences_read_picture(&set, in_folder("%s", "set/val/b/3.png"), got, &rows, &error));
    assert_int_equal(rows, 64);
    assert_memory_equal(got, want, (size_t)set.n);
    make_picture("upper.png", 20, 40, 77);
    assert_true(sequences_read_picture(&set, in_folder("%s", "upper.png"), got, &rows, &error));
    assert_int_equal(rows, 32);
    free(got);
    free(want);
    transform_scratch_free(&scratch);
    sequences_close(&set);
}

/* == Batches ====================================================================================================== */

typedef struct {
    uint8_t *tokens;
    int *scored_from;
    size_t count;
} Epoch;

/* All sequences of an epoch from batch `first` on, combined from the ranks' parts. */
static Epoch load_epoch(const SequenceSet *set, SequenceLoaderConfig config, uint32_t epoch, size_t first, int ranks,
                        int part, int workers) {
    size_t row = (size_t)set->row_bytes;
    Epoch whole = {.tokens = NULL};
    for (int rank = 0; rank < ranks; rank++) {
        SequenceLoader loader;
        SequencePart got;
        config.parts.rank = rank;
        config.parts.ranks = ranks;
        config.parts.part = part;
        config.parts.max_damaged = 1;
        config.parts.pool = workers ? loader_pool_open(workers) : NULL;
        sequence_loader_open(&loader, set, &config);
        if (!whole.tokens) {
            size_t room = loader.parts.batches * (size_t)config.parts.batch_size;
            whole.tokens = calloc(room, row);
            whole.scored_from = calloc(room, sizeof *whole.scored_from);
        }
        parts_start(&loader.parts, epoch, first);
        while (sequence_loader_next(&loader, &got)) {
            size_t at = got.batch * (size_t)config.parts.batch_size + (size_t)got.first;
            memcpy(whole.tokens + at * row, got.tokens, (size_t)got.n * row);
            memcpy(whole.scored_from + at, got.scored_from, (size_t)got.n * sizeof *got.scored_from);
            whole.count += (size_t)got.n;
        }
        parts_close(&loader.parts);
        loader_pool_close(config.parts.pool);
    }
    return whole;
}

static void epoch_free(Epoch *epoch) {
    free(epoch->tokens);
    free(epoch->scored_from);
}

static void same_batches(const SequenceSet *set, SequenceLoaderConfig config) {
    size_t row = (size_t)set->row_bytes;
    for (uint32_t epoch = 0; epoch < 2; epoch++) {
        Epoch want = load_epoch(set, config, epoch, 0, 1, 0, 0);
        assert_true(want.count > (size_t)config.parts.batch_size);
        for (int ranks = 1; ranks <= 3; ranks++) {
            for (int workers = 0; workers <= 3; workers += 3) {
                Epoch got = load_epoch(set, config, epoch, 0, ranks, ranks == 2 ? 2 : 0, workers);
                assert_int_equal(got.count, want.count);
                assert_memory_equal(got.tokens, want.tokens, want.count * row);
                assert_memory_equal(got.scored_from, want.scored_from, want.count * sizeof(int));
                epoch_free(&got);
            }
        }
        size_t skipped = (size_t)config.parts.batch_size; /* resumed after the first batch */
        Epoch rest = load_epoch(set, config, epoch, 1, 2, 0, 2);
        assert_int_equal(rest.count, want.count - skipped);
        assert_memory_equal(rest.tokens + skipped * row, want.tokens + skipped * row, rest.count * row);
        epoch_free(&rest);
        epoch_free(&want);
    }
}

static void batches_are_the_same_for_all_ranks_and_workers(void **state) {
    (void)state;
    const char *path = in_folder("%s", "batches.txt");
    free(random_file(path, 3000, 50));
    SequenceSet text = open_text(path, 24, 80, 10, 10), images;
    SequencesSettings s = settings_of("shapes");
    s.train_limit = 60;
    s.test_limit = 33;
    s.validation_images = 10;
    s.image_side = 7;
    sequences_open(&images, &s);
    uint64_t seed = check_seed();
    same_batches(&text, (SequenceLoaderConfig){.parts = {.seed = seed, .batch_size = 7, .train = true}});
    same_batches(&text, (SequenceLoaderConfig){.parts = {.seed = seed, .batch_size = 7},
                                               .split = SEQUENCES_TEST, .step = 5});
    same_batches(&images, (SequenceLoaderConfig){.parts = {.seed = seed, .batch_size = 7, .train = true}});
    same_batches(&images, (SequenceLoaderConfig){.parts = {.seed = seed, .batch_size = 7}, .split = SEQUENCES_TEST});
    sequences_close(&text);
    sequences_close(&images);
}

/* An epoch has every window once, in an order that depends on epoch and seed. */
static void epochs_are_permutations(void **state) {
    (void)state;
    const char *path = in_folder("%s", "order.bin");
    uint8_t bytes[512];
    Error error;
    for (int i = 0; i < 512; i++) bytes[i] = (uint8_t)(i / 2);
    assert_true(file_write(path, bytes, sizeof bytes, &error));
    SequenceSet set = open_text(path, 2, 1, 0, 0);
    Epoch epochs[3];
    size_t windows = sequences_epoch_length(&set);
    for (uint32_t e = 0; e < 3; e++) {
        SequenceLoaderConfig config = {.parts = {.seed = check_seed() + (e == 2), .batch_size = 1, .train = true}};
        uint32_t epoch = e == 1;
        epochs[e] = load_epoch(&set, config, epoch, 0, 1, 0, 0);
        size_t offset = sequences_offset(&set, config.parts.seed, epoch);
        int seen[256] = {0};
        assert_int_equal(epochs[e].count, windows);
        for (size_t i = 0; i < windows; i++) seen[epochs[e].tokens[3 * i]]++;
        for (size_t i = 0; i < windows; i++) assert_int_equal(seen[bytes[offset + 2 * i]], 1);
    }
    for (int e = 0; e < 3; e++) assert_memory_not_equal(epochs[e].tokens, epochs[(e + 1) % 3].tokens, windows * 3);
    for (int e = 0; e < 3; e++) epoch_free(&epochs[e]);
    sequences_close(&set);
}

/* == mu-law ======================================================================================================= */

static void all_bytes_survive_mu_law(void **state) {
    (void)state;
    for (int byte = 0; byte < 256; byte++) {
        assert_int_equal(mu_law_encode(mu_law_decode((uint8_t)byte)), byte);
        if (byte) assert_true(mu_law_decode((uint8_t)byte) > mu_law_decode((uint8_t)(byte - 1)));
        double y = 2.0 * byte / 255 - 1, x = (y < 0 ? -1 : 1) * (pow(256, fabs(y)) - 1) / 255;
        assert_true(fabs(mu_law_decode((uint8_t)byte) - x) < 1e-12);
    }
    assert_int_equal(mu_law_encode(0), 128);
    assert_int_equal(mu_law_encode(1), 255);
    assert_int_equal(mu_law_encode(-1), 0);
    assert_int_equal(mu_law_encode(7), 255);
    assert_int_equal(mu_law_encode(-7), 0);
    for (uint64_t i = 0; i < 1000; i++) {
        double x = 2 * (double)draw(60, i, 1u << 30) / (1u << 30) - 1;
        double y = (x < 0 ? -1 : 1) * log(1 + 255 * fabs(x)) / log(256), exact = (y + 1) / 2 * 255 + 0.5;
        if (fabs(exact - floor(exact + 0.5)) > 1e-9) assert_int_equal(mu_law_encode(x), (int)floor(exact));
    }
}

/* == WAV ========================================================================================================== */

typedef struct {
    uint8_t *bytes;
    size_t size;
} Wav;

static void put(Wav *wav, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) wav->bytes[wav->size++] = (uint8_t)(value >> (8 * i));
}

static void put_text(Wav *wav, const char *text) {
    memcpy(wav->bytes + wav->size, text, 4);
    wav->size += 4;
}

/* A WAV file of samples x [frames,channels] in [-1,1); coding 1 is PCM, 3 float. */
static Wav make_wav(const double *x, size_t frames, int channels, int rate, int coding, int bits) {
    size_t bytes = frames * (size_t)channels * (size_t)bits / 8;
    Wav wav = {malloc(64 + bytes), 0};
    put_text(&wav, "RIFF"), put(&wav, 36 + bytes, 4), put_text(&wav, "WAVE");
    put_text(&wav, "fmt "), put(&wav, 16, 4), put(&wav, (uint64_t)coding, 2), put(&wav, (uint64_t)channels, 2);
    put(&wav, (uint64_t)rate, 4), put(&wav, (uint64_t)(rate * channels * bits / 8), 4);
    put(&wav, (uint64_t)(channels * bits / 8), 2), put(&wav, (uint64_t)bits, 2);
    put_text(&wav, "data"), put(&wav, bytes, 4);
    for (size_t i = 0; i < frames * (size_t)channels; i++) {
        float single = (float)x[i];
        uint32_t word;
        memcpy(&word, &single, sizeof word);
        int64_t whole = coding == 3 ? 0 : (int64_t)floor(ldexp(x[i], bits - 1));
        put(&wav, coding == 3 ? word : bits == 8 ? (uint64_t)(whole + 128) : (uint64_t)whole, bits / 8);
    }
    return wav;
}

/* Every sample format and number of channels gives the same bytes, as far as its precision allows. */
static void wav_files_of_all_formats(void **state) {
    (void)state;
    static const struct {
        int coding, bits;
    } formats[] = {{1, 8}, {1, 16}, {1, 24}, {1, 32}, {3, 32}};
    enum { FRAMES = 40000 };
    static double x[2 * FRAMES];
    if (!sound_available()) return;
    for (int f = 0; f < 5; f++) {
        for (int channels = 1; channels <= 2; channels++) {
            for (uint64_t i = 0; i < FRAMES * 2; i++)
                x[i] = floor(256 * ((double)draw(70, i, 1u << 20) / (1 << 20)) - 128) / 128; /* exact in 8 bits */
            Wav wav = make_wav(x, FRAMES, channels, 12000, formats[f].coding, formats[f].bits);
            uint8_t *got;
            size_t count;
            Error error;
            if (!sound_decode(&got, &count, wav.bytes, wav.size, 12000, &error)) fail_msg("%s", error.text);
            assert_int_equal(count, FRAMES);
            for (size_t i = 0; i < FRAMES; i++)
                assert_int_equal(got[i], mu_law_encode(channels == 1 ? x[i] : (x[2 * i] + x[2 * i + 1]) / 2));
            free(got);
            free(wav.bytes);
        }
    }
}

/* A tone of 440 Hz at another rate becomes the same tone at 12,000 samples a second, with the same phase and level. */
static void rates_are_converted(void **state) {
    (void)state;
    static const int rates[] = {44100, 48000, 22050, 8000, 11999};
    if (!sound_available()) return;
    for (int r = 0; r < 5; r++) {
        int rate = rates[r], frames = rate;
        double *x = malloc((size_t)frames * sizeof *x), worst = 0;
        for (int i = 0; i < frames; i++) x[i] = 0.5 * sin(2 * M_PI * 440 * i / rate);
        Wav wav = make_wav(x, (size_t)frames, 1, rate, 1, 16);
        uint8_t *got;
        size_t count;
        Error error;
        if (!sound_decode(&got, &count, wav.bytes, wav.size, 12000, &error)) fail_msg("%s", error.text);
        for (size_t i = 200; i + 200 < count; i++) {
            double want = 0.5 * sin(2 * M_PI * 440 * (double)i / 12000);
            worst = fmax(worst, fabs(mu_law_decode(got[i]) - want));
        }
        printf("  %d Hz: %zu samples, worst difference %.4f\n", rate, count, worst);
        assert_true(count >= 11999 && count <= 12001);
        assert_true(worst < 0.5 * log(256) * 2 / 255 + 0.003); /* half a level at 1/2 is 0.011 */
        free(got);
        free(wav.bytes);
        free(x);
    }
}

static void damaged(const char *what, Wav wav, const char *const *words) {
    Error error;
    uint8_t *got;
    size_t count;
    if (sound_decode(&got, &count, wav.bytes, wav.size, 12000, &error)) fail_msg("%s: read", what);
    printf("  %s: %s\n", what, error.text);
    assert_words(error.text, words);
}

static void damaged_wav_files(void **state) {
    (void)state;
    static double x[2000];
    if (!sound_available()) return;
    Wav wav = make_wav(x, 2000, 1, 12000, 1, 16), short_wav = wav;
    damaged("empty", (Wav){wav.bytes, 0}, WORDS("not a WAV"));
    damaged("text", (Wav){(uint8_t *)"This is no sound at all, but text.", 30}, WORDS("not a WAV"));
    damaged("big-endian", (Wav){(uint8_t *)"RIFX\0\0\0\4WAVE", 12}, WORDS("big-endian", "RIFF"));
    for (short_wav.size = 1; short_wav.size < wav.size; short_wav.size += 97)
        damaged("cut short", short_wav, WORDS(short_wav.size < 12 ? "not a WAV" : "cut short"));
    Wav none = make_wav(x, 0, 1, 12000, 1, 16);
    damaged("without sound", none, WORDS("no sound"));
    Wav law = make_wav(x, 2000, 1, 12000, 1, 8);
    law.bytes[20] = 7; /* mu-law, as in telephony */
    damaged("another coding", law, WORDS("expected PCM"));
    Wav compressed = make_wav(x, 2000, 1, 12000, 1, 16);
    compressed.bytes[20] = 0x55; /* MP3 */
    damaged("MP3 in WAV", compressed, WORDS("WAV"));
    double nan[] = {0, NAN, 0, 0};
    Wav not_numbers = make_wav(nan, 4, 1, 12000, 3, 32);
    damaged("not a number", not_numbers, WORDS("sample 1 is not a number"));
    Wav slow = make_wav(x, 2000, 1, 0, 1, 16);
    damaged("rate 0", slow, WORDS("WAV"));
    free(slow.bytes);
    free(wav.bytes);
    free(none.bytes);
    free(law.bytes);
    free(compressed.bytes);
    free(not_numbers.bytes);
}

/* The files of a folder are concatenated by name; windows never leave a split, and every sample is scored once. */
static void folders_of_sound(void **state) {
    (void)state;
    static double x[900];
    char path[512];
    Error error;
    if (!sound_available()) return;
    make_folders(in_folder("%s", "sound/more"));
    for (int f = 0; f < 3; f++) {
        static const char *const names[] = {"sound/b.wav", "sound/a.WAV", "sound/more/c.wav"};
        for (int i = 0; i < 900; i++) x[i] = mu_law_decode((uint8_t)(10 + f));
        Wav wav = make_wav(x, 900, 1, 12000, 3, 32);
        assert_true(file_write(in_folder("%s", names[f]), wav.bytes, wav.size, &error));
        free(wav.bytes);
    }
    write_text(in_folder("%s", "sound/readme.txt"), "left out");
    snprintf(path, sizeof path, "%s", in_folder("%s", "sound"));
    SequencesSettings s = settings_of(path);
    SequenceSet set;
    s.tokens = 100;
    s.shares = (ConfigFloats){3, {70, 0, 30}};
    sequences_open(&set, &s);
    assert_int_equal(set.kind, SEQUENCES_AUDIO);
    assert_int_equal(set.row_bytes, 100);
    assert_int_equal(set.count[SEQUENCES_TEST], 810);
    assert_int_equal(sequences_epoch_length(&set), (1890 - 99) / 100);
    uint8_t row[100];
    assert_true(sequences_train(&set, 0, 0, row, NULL, &error));
    assert_int_equal(row[0], 11); /* a.WAV */
    assert_true(sequences_train(&set, 0, 10, row, NULL, &error));
    assert_int_equal(row[0], 10);
    int scored[810] = {0}, from;
    for (size_t i = 0; i < sequences_windows(&set, SEQUENCES_TEST, 100); i++) {
        assert_true(sequences_window(&set, SEQUENCES_TEST, 100, i, row, &from, NULL, &error));
        for (int p = from; p < 100; p++) scored[(i == 8 ? 710 : i * 100) + (size_t)p]++;
    }
    for (int i = 0; i < 810; i++) assert_int_equal(scored[i], 1);
    assert_true(sound_write(in_folder("%s", "out.wav"), row, 100, set.rate, &error));
    sequences_close(&set);
    uint8_t *bytes, *again;
    size_t size, count;
    assert_true(file_read(in_folder("%s", "out.wav"), 1 << 20, &bytes, &size, &error));
    assert_true(sound_decode(&again, &count, bytes, size, 12000, &error));
    assert_int_equal(count, 100);
    for (int i = 0; i < 100; i++) assert_true(abs(again[i] - row[i]) <= 1);
    free(bytes);
    free(again);
}

/* == Samples and baselines ======================================================================================== */

static void text_for_a_terminal(void **state) {
    (void)state;
    static const uint8_t bytes[] = "a\tb\n\x1b[31m\xc3\xa4\xff\xe2\x82\xac\xc2\x9b\x7f\xf0\x9f\x98\x80\xe2\x82";
    char got[128] = "";
    FILE *file = fmemopen(got, sizeof got, "w");
    print_bytes_to(file, bytes, sizeof bytes - 1);
    putc(0, file);
    fclose(file);
    assert_string_equal(got, "a\tb\n?[31m\xc3\xa4?\xe2\x82\xac???\xf0\x9f\x98\x80??");
}

static void sheets(void **state) {
    (void)state;
    uint8_t tokens[3 * 4];
    SequenceSet set = {.kind = SEQUENCES_IMAGES, .n = 4, .row_bytes = 4, .height = 2, .width = 2, .channels = 1};
    Image image;
    Error error;
    for (int i = 0; i < 12; i++) tokens[i] = (uint8_t)(20 * i);
    assert_true(sequences_write_sheet(&set, in_folder("%s", "sheet.png"), tokens, 3, &error));
    assert_true(image_read(&image, in_folder("%s", "sheet.png"), &error));
    int place = 4; /* of the first image, whose pixels are scaled by 48 */
    for (int y = 0; y < 2; y++)
        for (int x = 0; x < 2; x++)
            for (int c = 0; c < 3; c++)
                assert_int_equal(image.pixels[((place + 48 * y) * image.width + place + 48 * x) * 3 + c], 20 * (2 * y + x));
    image_free(&image);
}

/* Uniform bytes cost 8 bits, a constant costs nearly nothing, and images have a histogram for each position. */
static void baselines(void **state) {
    (void)state;
    Error error;
    const char *path = in_folder("%s", "flat.bin");
    enum { SIZE = 1 << 16 };
    uint8_t *bytes = malloc(SIZE);
    for (size_t i = 0; i < SIZE; i++) bytes[i] = (uint8_t)i;
    assert_true(file_write(path, bytes, SIZE, &error));
    SequenceSet set = open_text(path, 16, 50, 25, 25);
    assert_true(fabs(sequences_histogram_bits(&set, SEQUENCES_TEST, 0) - 8) < 1e-9);
    sequences_close(&set);
    for (size_t i = 0; i < SIZE; i++) bytes[i] = i % 4 ? 'a' : 'b';
    assert_true(file_write(path, bytes, SIZE, &error));
    set = open_text(path, 16, 50, 25, 25);
    double entropy = 0.25 * log2(4) + 0.75 * log2(4 / 3.0), got = sequences_histogram_bits(&set, SEQUENCES_TEST, 0);
    printf("  text: %.4f bits, entropy %.4f\n", got, entropy);
    assert_true(got > entropy && got < entropy + 0.02); /* 254 values were counted once too often */
    sequences_close(&set);
    free(bytes);
    SequencesSettings s = settings_of("shapes");
    s.train_limit = 700;
    s.test_limit = 100;
    s.image_side = 8;
    sequences_open(&set, &s);
    double histogram = sequences_histogram_bits(&set, SEQUENCES_TEST, 0);
    printf("  shapes at 8 x 8: %.3f bits by histograms\n", histogram);
    assert_true(histogram > 5 && histogram < 8);
    sequences_close(&set);
}

/* == Bad input ==================================================================================================== */

static void bad_data(void **state) {
    (void)state;
    char path[512], missing[600];
    snprintf(path, sizeof path, "%s", in_folder("%s", "bad.txt"));
    write_text(path, "");
    refused(settings_of(path), 1, WORDS("bad.txt", "empty"));
    write_text(path, "too short for that");
    refused(settings_of(path), 1, WORDS("bad.txt", "18 bytes", "training", "tokens"));
    snprintf(missing, sizeof missing, "%s.not", path);
    refused(settings_of(missing), 1, WORDS("bad.txt.not", "no such file"));
    refused(settings_of("/dev/null"), 1, WORDS("/dev/null", "not a regular file"));
    refused(settings_of("enwik8"), 1, WORDS("datasets/enwik8", "no such file"));
    SequencesSettings s = settings_of("shapes");
    s.train_limit = 10;
    s.validation_images = 0;
    s.kind = SEQUENCES_IMAGES;
    s.image_side = 0;
    open_it(&s);
    snprintf(path, sizeof path, "%s", in_folder("%s", "bad.wav"));
    write_text(path, "RIFF\x10\x27\x01\x01WAVEfmt ");
    refused(settings_of(path), 1, sound_available() ? WORDS("bad.wav", "cut short") : WORDS("bad.wav", "libsndfile"));
    s = settings_of(path);
    s.kind = SEQUENCES_TEXT; /* the same file, read as text */
    s.tokens = 2;
    s.shares = (ConfigFloats){3, {1, 0, 0}};
    open_it(&s);
    snprintf(path, sizeof path, "%s", in_folder("%s", "nothing"));
    make_folders(path);
    s = settings_of(path);
    s.kind = SEQUENCES_AUDIO;
    refused(s, 1, WORDS("nothing", "no WAV files"));
    assert_int_equal(symlink("gone.wav", in_folder("%s", "nothing/b.wav")), 0);
    refused(s, 1, WORDS("nothing/b.wav", "No such file"));
    s.data = missing;
    refused(s, 1, WORDS("bad.txt.not", "No such file"));
}

/* A text that is truncated while it is read ends the program with a message that names it. */
static void read_a_cut_text(void *argument) {
    const char *path = argument;
    SequenceSet set = open_text(path, 4096, 90, 5, 5);
    uint8_t *row = malloc(4097);
    Error error;
    if (truncate(path, 100)) _exit(76);
    sequences_train(&set, 0, 20, row, NULL, &error);
    free(row);
}

static void texts_cut_short_while_they_are_read(void **state) {
    (void)state;
    char path[512], text[4096];
    snprintf(path, sizeof path, "%s", in_folder("%s", "cut.txt"));
    free(random_file(path, 1 << 20, 80));
    assert_int_equal(status_of(read_a_cut_text, path, text, sizeof text), 1);
    printf("  %s", text);
    assert_words(text, WORDS("cut.txt", "cut short"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_cut_short_while_they_are_read), /* before cmocka replaces file_map's signal handler */
        cmocka_unit_test(shares_divide_a_text),
        cmocka_unit_test(every_token_is_scored_once),
        cmocka_unit_test(any_text_is_scored_once),
        cmocka_unit_test(epochs_of_a_text),
        cmocka_unit_test(limits_of_a_text),
        cmocka_unit_test(images_are_held_out),
        cmocka_unit_test(shapes_are_read_as_they_are),
        cmocka_unit_test(pictures_shrink_by_boxes),
        cmocka_unit_test(small_grey_images),
        cmocka_unit_test(folders_of_pictures),
        cmocka_unit_test(batches_are_the_same_for_all_ranks_and_workers),
        cmocka_unit_test(epochs_are_permutations),
        cmocka_unit_test(all_bytes_survive_mu_law),
        cmocka_unit_test(wav_files_of_all_formats),
        cmocka_unit_test(rates_are_converted),
        cmocka_unit_test(damaged_wav_files),
        cmocka_unit_test(folders_of_sound),
        cmocka_unit_test(text_for_a_terminal),
        cmocka_unit_test(sheets),
        cmocka_unit_test(baselines),
        cmocka_unit_test(bad_data),
    };
    check_seed();
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
