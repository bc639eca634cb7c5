/* Makes the input of `train_vit --parity` and compares two of its outputs, for tests/emulate/cuda_vs_cpu.sh: on a
 * borrowed machine with a GPU there may be no numpy.
 *
 *     parity batch FILE                          4 random images and labels, from VIT_TEST_SEED or the clock
 *     parity compare WANT GOT TOLERANCE          every tensor: max |got - want| <= TOLERANCE * rms(want)
 *     parity compare WANT GOT TOLERANCE whole    logits, loss, and all gradients as one vector:
 *                                                ||got - want|| <= TOLERANCE * ||want||
 *
 * The exit status of a comparison is 0 only if both files have the same tensors, of the same shapes, and all of them
 * hold. */
#include <stdbool.h>

#include "core/die.h"
#include "core/safetensors.h"
#include "tests/check.h"

enum { IMAGES = 4, HEIGHT = 18, WIDTH = 22, CLASSES = 10, PIXELS = IMAGES * 3 * HEIGHT * WIDTH };

static void batch(const char *path) {
    Error error;
    int64_t labels[IMAGES];
    float *images = check_normal(PIXELS, 1, 1);
    for (int b = 0; b < IMAGES; b++) labels[b] = rng_below(check_seed(), RNG_TEST, 2, 0, (uint64_t)b, CLASSES);
    const SafeTensorEntry entries[] = {{"images", SAFE_F32, 4, {IMAGES, 3, HEIGHT, WIDTH}, images},
                                       {"labels", SAFE_I64, 1, {IMAGES}, labels}};
    if (!safetensors_write(path, entries, 2, NULL, 0, &error)) die("%s", error.text);
    free(images);
}

/* == Comparing ==================================================================================================== */

/* Sums over one tensor, or over several as one vector. */
typedef struct {
    double difference, want; /* sums of squares */
    double worst;            /* largest |got - want|; NaN: one of them is */
    size_t size;
} Sums;

static void add(Sums *sums, const float *got, const float *want, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - want[i]);
        sums->difference += d * d;
        sums->want += (double)want[i] * want[i];
        if (!(d <= sums->worst)) sums->worst = d;
        if (isnan(d)) break; /* a later number would be larger than no number */
    }
    sums->size += n;
}

/* The relative error; where all of `want` is zero, only zero is right. */
static double error_of(const Sums *sums, bool whole) {
    double measured = whole ? sqrt(sums->difference) : sums->worst;
    double unit = sqrt(whole ? sums->want : sums->want / (double)sums->size);
    return measured == 0 ? 0 : measured / unit;
}

static bool same_shape(const SafeTensor *a, const SafeTensor *b) {
    return a->ndim == b->ndim && !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape);
}

static float *numbers(const SafeTensor *tensor) {
    Error error;
    float *x = xcalloc(tensor->size + 1, sizeof *x, "parity");
    if (!safetensors_to_float(tensor, x, &error)) die("%s", error.text);
    return x;
}

typedef struct {
    double tolerance, worst;
    char worst_name[256];
    int failures;
} Verdict;

static void judge(Verdict *verdict, const char *name, double error) {
    bool ok = error <= verdict->tolerance;
    printf("  %-44s %.2e, %.2f of allowed  %s\n", name, error, error / verdict->tolerance, ok ? "ok" : "FAILED");
    verdict->failures += !ok;
    if (!(error <= verdict->worst)) {
        snprintf(verdict->worst_name, sizeof verdict->worst_name, "%s", name);
        verdict->worst = error;
    }
}

/* True if the tensor is in `other` with the same shape; else it counts as a failure. */
static bool has_pair(Verdict *verdict, const SafeTensor *tensor, const SafeTensors *other, const char *trouble) {
    const SafeTensor *pair = safetensors_find(other, tensor->name);
    if (pair && same_shape(tensor, pair)) return true;
    printf("  %-44s %s  FAILED\n", tensor->name, pair ? "another shape" : trouble);
    verdict->failures++;
    return false;
}

static int compare(const char *want_path, const char *got_path, double tolerance, bool whole) {
    Verdict verdict = {.tolerance = tolerance, .worst = -1};
    SafeTensors want, got;
    Sums gradients = {0};
    Error error;
    if (!safetensors_open(&want, want_path, &error) || !safetensors_open(&got, got_path, &error)) die("%s", error.text);
    if (!want.count) die("%s: no tensors", want_path);

    for (int i = 0; i < want.count; i++) {
        const SafeTensor *w = &want.tensors[i];
        if (!has_pair(&verdict, w, &got, "missing")) continue;
        float *a = numbers(safetensors_find(&got, w->name)), *b = numbers(w);
        Sums sums = {0};
        if (whole && !strncmp(w->name, "grad.", 5)) {
            add(&gradients, a, b, w->size);
        } else {
            add(&sums, a, b, w->size);
            judge(&verdict, w->name, error_of(&sums, whole));
        }
        free(a);
        free(b);
    }
    for (int i = 0; i < got.count; i++)
        if (!safetensors_find(&want, got.tensors[i].name)) has_pair(&verdict, &got.tensors[i], &want, "unexpected");
    if (whole) judge(&verdict, "all gradients", error_of(&gradients, true));

    printf("  worst: %.2e %s\n", verdict.worst, verdict.worst_name);
    printf("%s: %d FAILED\n", got_path, verdict.failures);
    safetensors_close(&want);
    safetensors_close(&got);
    return verdict.failures;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    bool whole = argc == 6 && !strcmp(argv[5], "whole");
    if (!strcmp(mode, "batch") && argc == 3) {
        batch(argv[2]);
        return 0;
    }
    double tolerance = argc > 4 ? atof(argv[4]) : 0;
    if (strcmp(mode, "compare") || !(tolerance > 0) || (argc != 5 && !whole))
        die_usage("expected: batch FILE, or: compare WANT GOT TOLERANCE [whole]");
    return compare(argv[2], argv[3], tolerance, whole) > 0;
}
