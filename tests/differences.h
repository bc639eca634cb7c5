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
    const float *slopes; /* [n], of the loss with respect to the outputs */
    double h;            /* half the width of a difference */
} Function;

/* For attention whose backward pass reads the rounded y.  lse [rows]: the logarithms of the sums of weights, which
 * `outputs` writes; size [rows]: the absolute values of the terms of dy.y, summed.  The rounding of y causes an error
 * in dy.y relative to `size`, which the slope of lse multiplies. */
typedef struct {
    const double *lse, *size;
    size_t rows;
} KeptOutputs;

/* Adds the loss's slope with respect to *x to *slope, and the absolute values of its terms, one for each output, to
 * *size.  Outputs that do not depend on *x cancel exactly, however large the loss. */
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

/* Checks a sample of the elements of got [n], on the host: the gradient with respect to x [n], added to before [n]
 * unless that is NULL. */
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
    /* Five roundings: within the slope of one output, rounded terms may cancel, as in a softmax. */
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

/* A parameter, in double for the formulas and in float on the device, and its gradient, which starts at `before`.  That
 * is not zero, so that a kernel with = in place of += fails the test. */
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
