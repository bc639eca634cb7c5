/* Calls of libvit for test_library.sh, which links this program with the library alone.  A property that does not hold
 * ends it with a line on stderr and status 1.
 *
 *   calls logits CHECKPOINT IMAGE              prints the logits, one per line
 *   calls attention CHECKPOINT IMAGE           the weights of each token are not negative, and their sum is at most 1
 *   calls recovery CHECKPOINT IMAGE BROKEN ENDLESS
 *                                              a broken image gives an error without a memory leak, and so does the
 *                                              checkpoint ENDLESS, whose outputs are not finite; afterwards the logits
 *                                              are the same
 *   calls damage CHECKPOINT IMAGE SCRATCH N    N bit flips, most in the header, and N truncations: the file SCRATCH and
 *                                              memory give the same errors and probabilities, without a memory leak
 *   calls refused CHECKPOINT                   opens a bad checkpoint 500 times without a memory leak; prints the error
 *   calls again CHECKPOINT IMAGE               prints the logits of the third classification; one call may fail, and is
 *                                              made again
 *   calls threads A B IMAGE N                  N calls by two threads with a model each: same logits, no memory leak */
#include <locale.h>
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vit.h"

#define REQUIRE(ok, ...) \
    do { \
        if (!(ok)) { \
            fprintf(stderr, __VA_ARGS__); \
            fputc('\n', stderr); \
            exit(1); \
        } \
    } while (0)

static vit_model *open_or_end(const char *path) {
    vit_error error;
    vit_model *model = vit_open(path, &error);
    REQUIRE(model, "%s", error.text);
    return model;
}

/* The logits [vit_classes] of the image, which the caller frees. */
static float *logits_of(vit_model *model, const char *image) {
    vit_error error;
    float *logits = calloc((size_t)vit_classes(model), sizeof *logits);
    REQUIRE(vit_classify_file(model, image, logits, &error), "%s", error.text);
    REQUIRE(vit_logits(model, logits, &error), "%s", error.text);
    return logits;
}

/* The number of memory pages that the process occupies. */
static long resident(void) {
    long all = 0, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    REQUIRE(file && fscanf(file, "%ld %ld", &all, &pages) == 2, "no /proc/self/statm");
    fclose(file);
    return pages;
}

static void no_growth(long before, int calls) {
    long pages = resident() - before;
    REQUIRE(pages * sysconf(_SC_PAGESIZE) < 4 << 20, "%ld pages more after %d calls", pages, calls);
}

static void print_logits(char **a) {
    vit_model *model = open_or_end(a[0]);
    float *logits = logits_of(model, a[1]);
    for (int i = 0; i < vit_classes(model); i++) printf("%.9g\n", (double)logits[i]);
    free(logits);
    vit_close(model);
}

/* tests/faults.c makes one allocation of the process fail; this function makes none of its own. */
static void again(char **a) {
    static float logits[1000];
    static vit_error error;
    vit_model *model = NULL;
    for (int tries = 0, done = 0; done < 3; tries++) {
        if (!model) model = vit_open(a[0], &error);
        REQUIRE(!model || vit_classes(model) <= 1000, "more than 1000 classes");
        bool ok = model && vit_classify_file(model, a[1], logits, &error) && vit_logits(model, logits, &error);
        REQUIRE(ok || *error.text, "a failure without a reason");
        REQUIRE(ok || tries == done, "a second failure: %s", error.text);
        done += ok;
    }
    for (int i = 0; i < vit_classes(model); i++) printf("%.9g\n", (double)logits[i]);
    vit_close(model);
}

static void attention(char **a) {
    vit_error error;
    vit_model *model = open_or_end(a[0]);
    int tokens = vit_rows(model) * vit_columns(model), rows = 0;
    float *weights = calloc((size_t)tokens, sizeof *weights);
    REQUIRE(!vit_attention(model, 0, 0, 0, weights, &error) && *error.text, "attention of no image");
    free(logits_of(model, a[1]));
    for (int b = 0; b < vit_blocks(model); b++)
        for (int h = 0; h < vit_heads(model); h++)
            for (int t = 0; t < tokens; t++, rows++) {
                double sum = 0;
                REQUIRE(vit_attention(model, b, h, t, weights, &error), "%s", error.text);
                for (int i = 0; i < tokens; i++) {
                    REQUIRE(weights[i] >= 0, "block %d head %d token %d: %g", b, h, t, (double)weights[i]);
                    sum += (double)weights[i];
                }
                REQUIRE(sum > 0 && sum < 1.0001, "block %d head %d token %d: sum %g", b, h, t, sum);
            }
    REQUIRE(rows, "a model without attention weights");
    REQUIRE(!vit_attention(model, vit_blocks(model), 0, 0, weights, &error) && *error.text, "a block too many");
    REQUIRE(!vit_attention(model, 0, 0, tokens, weights, &error) && *error.text, "a token too many");
    free(weights);
    vit_close(model);
}

static void recovery(char **a) {
    enum { ROUNDS = 3000 };
    vit_error error;
    vit_model *model = open_or_end(a[0]);
    float *broken = calloc((size_t)vit_classes(model), sizeof *broken);
    long before = 0;
    for (int i = 0; i < ROUNDS; i++) {
        REQUIRE(!vit_classify_file(model, a[2], broken, &error) && *error.text, "a broken image was classified");
        if (i == ROUNDS / 10) before = resident();
    }
    no_growth(before, ROUNDS);
    for (int round = 0; round < 20; round++) {
        REQUIRE(!vit_classify_file(model, a[2], broken, &error) && *error.text, "a broken image was classified");
        REQUIRE(!vit_classify(model, (const uint8_t *)"", 1, 1 << 20, broken, &error) && *error.text, "an endless row");
        vit_model *endless = open_or_end(a[3]);
        for (int i = 0; i < 2; i++)
            REQUIRE(!vit_classify_file(endless, a[1], broken, &error) && *error.text, "%s: classified", a[3]);
        vit_close(endless);
        float *logits = logits_of(model, a[1]), *again = logits_of(model, a[1]);
        REQUIRE(!memcmp(logits, again, (size_t)vit_classes(model) * sizeof *logits), "other logits after an error");
        free(logits);
        free(again);
    }
    free(broken);
    vit_close(model);
}

static void write_bytes(const char *path, const char *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    REQUIRE(file && fwrite(bytes, 1, size, file) == size && !fclose(file), "%s: not written", path);
}

/* Opens a copy of the bytes, which is overwritten and freed afterwards. */
static vit_model *open_bytes(const char *bytes, size_t size, vit_error *error) {
    char *copy = malloc(size);
    if (size) memcpy(copy, bytes, size);
    vit_model *model = vit_open_memory(copy, size, error);
    if (size) memset(copy, 0x55, size);
    free(copy);
    return model;
}

/* A damaged checkpoint is refused with an error, or still gives a model, with arbitrary output.  A file and the same
 * bytes in memory must give the same error or output. */
static void try_damaged(const char *path, const char *bytes, size_t size, const char *image, int *refused) {
    vit_error error[2];
    write_bytes(path, bytes, size);
    vit_model *models[2] = {vit_open(path, &error[0]), open_bytes(bytes, size, &error[1])};
    REQUIRE(!strcmp(error[0].text, error[1].text), "from a file '%s', from memory '%s'", error[0].text, error[1].text);
    *refused += !models[0];
    for (int i = 0; i < 2; i++) REQUIRE(models[i] || *error[i].text, "%s: refused without a reason", path);
    if (!models[0]) return;
    size_t classes = (size_t)vit_classes(models[0]);
    float *p = calloc(2 * classes, sizeof *p);
    for (int i = 0; i < 2; i++) {
        bool ok = vit_classify_file(models[i], image, p + (size_t)i * classes, &error[i]);
        REQUIRE(ok || *error[i].text, "%s: failed without a reason", path);
        vit_close(models[i]);
    }
    REQUIRE(!strcmp(error[0].text, error[1].text) && !memcmp(p, p + classes, classes * sizeof *p),
            "%s: other probabilities from memory", path);
    free(p);
}

static void damage(char **a) {
    FILE *file = fopen(a[0], "rb");
    REQUIRE(file && !fseek(file, 0, SEEK_END), "%s: not there", a[0]);
    size_t size = (size_t)ftell(file);
    char *bytes = malloc(size);
    rewind(file);
    REQUIRE(fread(bytes, 1, size, file) == size, "%s: not read", a[0]);
    fclose(file);
    int count = atoi(a[3]), refused = 0, cut = 0;
    size_t header = 0;
    memcpy(&header, bytes, 8);
    long before = 0;
    try_damaged(a[2], bytes, size, a[1], &refused);
    REQUIRE(!refused, "the whole checkpoint was refused");
    try_damaged(a[2], bytes, 0, a[1], &cut);
    vit_error error;
    REQUIRE(cut-- && !vit_open_memory(NULL, size, &error) && *error.text, "no bytes, and a model");
    for (int i = 0; i < count; i++) {
        size_t at = (size_t)rand() % (i % 4 ? 8 + header : size);
        char bit = (char)(1 << rand() % 8);
        bytes[at] ^= bit;
        try_damaged(a[2], bytes, size, a[1], &refused);
        bytes[at] ^= bit;
        try_damaged(a[2], bytes, (size_t)rand() % size, a[1], &cut);
        if (i == count / 4) before = resident();
    }
    REQUIRE(cut == count, "%d of %d truncated files were opened", count - cut, count);
    REQUIRE(refused > 0, "no damaged header was refused");
    no_growth(before, refused + cut);
    free(bytes);
}

static void refused(char **a) {
    enum { ROUNDS = 500 };
    vit_error error;
    long before = 0;
    for (int i = 0; i < ROUNDS; i++) {
        REQUIRE(!vit_open(a[0], &error) && *error.text, "%s: opened", a[0]);
        if (i == ROUNDS / 10) before = resident();
    }
    no_growth(before, ROUNDS);
    puts(error.text);
}

typedef struct {
    const char *path, *image;
    int calls;
} Job;

static void *work(void *context) {
    const Job *job = context;
    vit_model *model = open_or_end(job->path);
    size_t size = (size_t)vit_classes(model) * sizeof(float);
    int threads = omp_get_max_threads();
    omp_set_num_threads(64); /* more than there were when it was opened */
    float *first = logits_of(model, job->image);
    REQUIRE(omp_get_max_threads() == 64, "the caller's number of threads has changed");
    omp_set_num_threads(threads);
    for (int i = 1; i < job->calls; i++) {
        float *logits = logits_of(model, job->image);
        REQUIRE(!memcmp(logits, first, size), "%s: other logits in call %d", job->path, i);
        free(logits);
    }
    free(first);
    vit_close(model);
    return NULL;
}

static void run_both(char **a, int calls) {
    Job jobs[2] = {{a[0], a[2], calls / 2}, {a[1], a[2], calls / 2}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) REQUIRE(!pthread_create(&threads[i], NULL, work, &jobs[i]), "no thread");
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

static void threads(char **a) {
    int calls = atoi(a[3]);
    run_both(a, calls / 10);
    long before = resident();
    run_both(a, calls);
    no_growth(before, calls);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int arguments;
        void (*run)(char **arguments);
    } modes[] = {{"logits", 2, print_logits}, {"again", 2, again},   {"attention", 2, attention}, {"recovery", 4, recovery},
                 {"damage", 4, damage},       {"refused", 1, refused}, {"threads", 4, threads}};
    setlocale(LC_NUMERIC, ""); /* as programs with windows do */
    srand(17);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (argc > 1 && !strcmp(argv[1], modes[i].name) && argc == 2 + modes[i].arguments) {
            modes[i].run(argv + 2);
            return 0;
        }
    return 2;
}
