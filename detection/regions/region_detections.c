#include "detection/regions/region_detections.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "detection/best_keys.h"
#include "detection/regions/box_coder.h"
#include "detection/regions/nms.h"

const RegionDetectionRule detection_rule = {0.05f, 0.5f, 100};

void detection_scratch_open(DetectionScratch *s, int proposals, int classes, const RegionDetectionRule *rule) {
    size_t n = (size_t)proposals, most = (size_t)rule->most;
    const char *what = "detections";
    s->scores = xcalloc(n * (size_t)classes, sizeof *s->scores, what);
    s->keys = xcalloc(n, sizeof *s->keys, what);
    s->best = xcalloc(most, sizeof *s->best, what);
    s->kept = xcalloc(most * (size_t)(classes - 1), sizeof *s->kept, what);
    s->boxes = xcalloc(n, sizeof *s->boxes, what);
    s->keep = xcalloc(n, sizeof *s->keep, what);
}

void detection_scratch_close(DetectionScratch *s) {
    free(s->scores);
    free(s->keys);
    free(s->best);
    free(s->kept);
    free(s->boxes);
    free(s->keep);
    *s = (DetectionScratch){0};
}

static void softmax(float *y, const float *x, int n) {
    float most = x[0], sum = 0;
    for (int i = 1; i < n; i++) most = x[i] > most ? x[i] : most;
    for (int i = 0; i < n; i++) sum += y[i] = expf(x[i] - most);
    for (int i = 0; i < n; i++) y[i] /= sum;
}

/* Appends the detections of one class to kept [rule->most]; returns their number. */
static int class_detections(RegionDetection *kept, int label, const float (*proposals)[4], const float *deltas, int R,
                            int classes, int own_h, int own_w, const RegionDetectionRule *rule, DetectionScratch *s) {
    BestKeys best = {.keys = s->keys, .most = R};
    int n = 0;
    for (int r = 0; r < R; r++) {
        float score = s->scores[(size_t)r * (size_t)classes + (size_t)label];
        if (score > rule->least_score) best_keys_offer(&best, score_key(score, (uint32_t)r));
    }
    best_keys_sort(&best);
    for (int k = 0; k < best.count; k++) {
        uint32_t r = key_index(best.keys[k]);
        float *box = s->boxes[n];
        box_decode(box, proposals[r], deltas + ((size_t)r * (size_t)classes + (size_t)label) * 4, region_weights);
        box_cut(box, own_h, own_w);
        best.keys[n] = best.keys[k];
        n += box[2] > box[0] && box[3] > box[1];
    }
    int count = nms_sorted(s->keep, (const float (*)[4])s->boxes, n, rule->nms, rule->most);
    for (int k = 0; k < count; k++) {
        int r = (int)key_index(best.keys[s->keep[k]]);
        kept[k] = (RegionDetection){.score = s->scores[(size_t)r * (size_t)classes + (size_t)label], .label = label,
                                    .proposal = r};
        memcpy(kept[k].box, s->boxes[s->keep[k]], sizeof kept[k].box);
    }
    return count;
}

int region_detections(RegionDetection *found, const float (*proposals)[4], const float *logits, const float *deltas,
                      int R, int classes, int own_h, int own_w, const RegionDetectionRule *rule, DetectionScratch *s) {
    BestKeys best = {.keys = s->best, .most = rule->most};
    int count = 0;
    for (size_t r = 0, C = (size_t)classes; r < (size_t)R; r++) softmax(s->scores + r * C, logits + r * C, classes);
    for (int label = 1; label < classes; label++)
        count += class_detections(s->kept + count, label, proposals, deltas, R, classes, own_h, own_w, rule, s);
    for (int k = 0; k < count; k++) best_keys_offer(&best, score_key(s->kept[k].score, (uint32_t)k));
    best_keys_sort(&best);
    for (int k = 0; k < best.count; k++) found[k] = s->kept[key_index(best.keys[k])];
    return best.count;
}
