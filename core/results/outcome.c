#include "core/results/outcome.h"

#include <math.h>

#include "core/die.h"

static int place_of(const float *logits, int classes, int label) {
    int place = 0;
    if (isnan(logits[label])) return classes;
    for (int c = 0; c < classes; c++) place += logits[c] > logits[label] || (c < label && logits[c] == logits[label]);
    return place;
}

static int best_of(const float *logits, int classes) {
    int best = -1;
    for (int c = 0; c < classes; c++)
        if (!isnan(logits[c]) && (best < 0 || logits[c] > logits[best])) best = c;
    return best;
}

static double cross_entropy_of(const float *logits, int classes, int label) {
    float largest = -INFINITY;
    double sum = 0; /* at least 1, the largest score's term */
    for (int c = 0; c < classes; c++) largest = fmaxf(largest, logits[c]);
    for (int c = 0; c < classes; c++) sum += (double)expf(logits[c] - largest);
    return log(sum) + (double)(largest - logits[label]);
}

Outcome outcome_of(const float *logits, int classes, int label) {
    return (Outcome){place_of(logits, classes, label), best_of(logits, classes),
                     cross_entropy_of(logits, classes, label)};
}

void outcome_require_loss(double loss, const char *weights, const char *what) {
    if (isnan(loss))
        die("%s: the result for %s is not a number: these weights, or mean and std, are too large or too small to "
            "compute with", weights, what);
}

void outcome_require(const float *x, size_t n, const char *weights, const char *what) {
    for (size_t i = 0; i < n; i++) outcome_require_loss((double)(x[i] - x[i]), weights, what); /* NaN for infinity, too */
}
