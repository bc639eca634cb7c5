/* Compares gradients with central differences of a formula in double, so that tests need no formulas of derivatives. */
#ifndef VIT_TESTS_DIFFERENCES_H
#define VIT_TESTS_DIFFERENCES_H

#include "tests/on_device.h"

/* Computes the outputs out [n] from the inputs in `context`. */
typedef void Outputs(double *out, void *context);

typedef struct {
    Outputs *outputs;
    void *context;
    size_t n;
    double *out;
    const float *slopes; /* [n] of the loss by the outputs */
    double h;            /* half the width of a difference */
} Function;

/* An attention whose backward reads the rounded y: what its `outputs` write to lse [rows], the logs of the sums of
 * weights, and the sum of the sizes of dy.y's terms for each row, of which dy.y has an error, times the slope of
 * lse. */
typedef struct {
    const double *lse, *size;
    size_t rows;
} KeptOutputs;

/* Slope of the loss by *x, added to *slope; *size: the sum of the sizes of its terms, one an output.  Outputs that do
 * not depend on x cancel exactly, however large the loss. */
static inline void slope_by_difference(double *slope, double *size, double *x, const Function *f,
                                       const KeptOutputs *saved) {
    size_t rows = saved ? saved->rows : 0;
    double here = *x, *above = malloc((f->n + rows) * sizeof *above);
    *x = here + f->h;
    f->outputs(f->out, f->context);
    memcpy(above, f->out, f->n * sizeof *above);
    if (saved) memcpy(above + f->n, saved->lse, rows * sizeof *above);
    *x = here - f->h;
    f->outputs(f->out, f->context);
    *x = here;
    for (size_t i = 0; i < f->n; i++) add_term(slope, size, (above[i] - f->out[i]) * f->slopes[i] / (2 * f->h));
    for (size_t r = 0; r < rows; r++) *size += fabs(above[f->n + r] - saved->lse[r]) * saved->size[r] / (2 * f->h);
    free(above);
}

/* Checks got [n] on the host, the gradient by x [n] minus its value before the call, at a sample of its elements. */
static inline int slopes_agree_kept(const char *what, const float *got, const float *before, double *x, size_t n,
                                    const Function *f, const KeptOutputs *saved) {
    enum { SAMPLE = 40 };
    float mine[SAMPLE] = {0};
    double want[SAMPLE] = {0}, size[SAMPLE] = {0};
    static uint32_t stream;
    int count = n < SAMPLE ? (int)n : SAMPLE;
    stream++;
    for (int i = 0; i < count; i++) {
        uint32_t any = rng_below(check_seed(), RNG_TEST, 1u << 20, stream, (uint64_t)i, (uint32_t)n);
        size_t at = n < SAMPLE ? (size_t)i : any;
        if (before) add_term(&want[i], &size[i], before[at]);
        slope_by_difference(&want[i], &size[i], &x[at], f, saved);
        mine[i] = got[at];
    }
    /* Terms that cancel within a slope by an output, as in a softmax, are rounded one by one. */
    return close_sums_rounded(what, mine, want, size, (size_t)count, count < 10, 5);
}

static inline int slopes_agree(const char *what, const float *got, const float *before, double *x, size_t n,
                               const Function *f) {
    return slopes_agree_kept(what, got, before, x, n, f, NULL);
}

static inline double *wide(const float *x, size_t n) {
    double *y = zeros(n);
    for (size_t i = 0; i < n; i++) y[i] = x[i];
    return y;
}

/* A parameter: its values on the host, in double for the formulas and on the device, and its gradient, which is not
 * zero before the call, so that a test notices = in place of +=. */
typedef struct {
    size_t n;
    float *before;
    double *x;
    float *device, *gradient;
} Parameter;

static inline Parameter parameter(size_t n, float scale, float shift) {
    float *x = normals(n, scale);
    for (size_t i = 0; i < n; i++) x[i] += shift;
    Parameter p = {n, normals(n, 0.1f), wide(x, n), upload(x, n), NULL};
    p.gradient = upload(p.before, n);
    return p;
}

static inline int parameter_agrees(const char *what, const Parameter *p, const Function *f) {
    return slopes_agree(what, download(p->gradient, p->n), p->before, p->x, p->n, f);
}

#endif
