/* How well the logits of one image predict its label. */
#ifndef VIT_CORE_RESULTS_OUTCOME_H
#define VIT_CORE_RESULTS_OUTCOME_H

#include <stddef.h>

typedef struct {
    int place;     /* rank of the label, 0 is first; ties go to the smaller index, NaN ranks last */
    int predicted; /* the class with the highest score; -1: all are NaN */
    double loss;   /* -log softmax(logits)[label], without label smoothing or mixup */
} Outcome;

Outcome outcome_of(const float *logits, int classes, int label);

/* Ends the program if x [n], the output for `what`, contains NaN or infinity: finite weights, a mean or a std can be too
 * large to compute with. */
void outcome_require(const float *x, size_t n, const char *weights, const char *what);
void outcome_require_loss(double loss, const char *weights, const char *what);

#endif
