/* How well the logits of one image predict its label. */
#ifndef VIT_CORE_OUTCOME_H
#define VIT_CORE_OUTCOME_H

typedef struct {
    int place;     /* rank of the label, 0 is first; ties go to the smaller index, NaN ranks last */
    int predicted; /* the class with the highest score; -1: all are NaN */
    double loss;   /* -log softmax(logits)[label], without label smoothing or mixup */
} Outcome;

Outcome outcome_of(const float *logits, int classes, int label);

#endif
