#include "core/results/views.h"

#include <math.h>
#include <stdlib.h>

#include "core/die.h"
#include "core/distributed.h"

/* The numbers that follow the scores in a row of sums. */
enum { SEEN, FAILED, LABELS, EXTRA };

static size_t row_length(const Views *v) { return (size_t)v->classes + EXTRA; }

static double *row_of(const Views *v, size_t video) { return v->sums + video * row_length(v); }

/* The mean over one view needs no softmax: its logits stay as they are. */
void views_open(Views *v, size_t videos, int classes, int views, bool of_logits) {
    *v = (Views){.videos = videos, .classes = classes, .views = views, .of_logits = of_logits || views == 1};
    v->sums = xcalloc(videos * row_length(v), sizeof *v->sums, "scores of videos");
    v->labels = xcalloc(videos, sizeof *v->labels, "labels of videos");
    v->logits = xcalloc((size_t)classes, sizeof *v->logits, "scores of a video");
}

void views_close(Views *v) {
    free(v->sums);
    free(v->labels);
    free(v->logits);
    *v = (Views){.videos = 0};
}

/* scores += softmax(logits) */
static void add_probabilities(double *scores, const float *logits, int classes) {
    float largest = -INFINITY;
    double sum = 0;
    for (int c = 0; c < classes; c++) /* not fmax: gcc 12 crashes on it when it makes code for arm64 */
        if (logits[c] > largest) largest = logits[c];
    for (int c = 0; c < classes; c++) sum += exp((double)logits[c] - (double)largest);
    for (int c = 0; c < classes; c++) scores[c] += exp((double)logits[c] - (double)largest) / sum;
}

void views_add(Views *v, size_t place, int label, const float *logits) {
    double *row = row_of(v, place / (size_t)v->views), *extra = row + v->classes;
    extra[SEEN]++;
    extra[LABELS] += label < 0 ? -1 - label : label;
    if (label < 0) extra[FAILED]++;
    else if (!v->of_logits) add_probabilities(row, logits, v->classes);
    else for (int c = 0; c < v->classes; c++) row[c] += (double)logits[c];
}

void views_sum(Views *v) {
    distributed_sum(v->sums, v->videos * row_length(v));
    for (size_t i = 0; i < v->videos; i++) {
        const double *extra = row_of(v, i) + v->classes;
        v->labels[i] = (int)lrint(extra[LABELS] / fmax(extra[SEEN], 1));
    }
}

bool views_complete(const Views *v, size_t video, const char *dataset) {
    const double *extra = row_of(v, video) + v->classes;
    if (extra[SEEN] != v->views)
        die("%s: video %zu was evaluated %g times, not %d", dataset, video, extra[SEEN], v->views);
    return extra[FAILED] <= 0;
}

const float *views_logits(Views *v, size_t video) {
    const double *row = row_of(v, video);
    for (int c = 0; c < v->classes; c++) {
        double mean = row[c] / v->views;
        v->logits[c] = (float)(v->of_logits ? mean : log(mean));
    }
    return v->logits;
}
