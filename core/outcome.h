/* What the logits of one image say about its label. */
#ifndef VIT_CORE_OUTCOME_H
#define VIT_CORE_OUTCOME_H

typedef struct {
    int place;     /* classes with a higher score than the label; ties go to the smaller index, NaN loses to all */
    int predicted; /* the class with the highest score; -1: no score is a number */
    double loss;   /* -log softmax(logits)[label], without smoothing or mixing */
} Outcome;

Outcome outcome_of(const float *logits, int classes, int label);

#endif
