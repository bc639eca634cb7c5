/* The scores of videos that a model sees several times, as clips and crops, possibly on several ranks.  A video's score
 * is the mean of its views': of their probabilities (SlowFast) or of their logits. */
#ifndef VIT_CORE_RESULTS_VIEWS_H
#define VIT_CORE_RESULTS_VIEWS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    size_t videos;
    int classes, views; /* views: of each video */
    bool of_logits;
    double *sums;  /* [videos,classes+3]: scores, then how many views there were, how many failed, and their labels */
    int *labels;   /* [videos], set by views_sum */
    float *logits; /* [classes] */
} Views;

void views_open(Views *v, size_t videos, int classes, int views, bool of_logits);
void views_close(Views *v);

/* Adds the view at a place of the epoch: view `place` mod views of video `place` / views.  logits [classes];  a label
 * below 0 is that of a view that could not be read, -1 - label, whose logits are ignored. */
void views_add(Views *v, size_t place, int label, const float *logits);

/* Sums over all ranks. */
void views_sum(Views *v);

/* Whether all views of a video could be read.  Ends the process if their number is not the expected one. */
bool views_complete(const Views *v, size_t video, const char *dataset);

/* Logits whose softmax is the video's score, [classes], valid until the next call. */
const float *views_logits(Views *v, size_t video);

#endif
