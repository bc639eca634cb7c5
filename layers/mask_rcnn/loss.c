#include "layers/mask_rcnn/loss.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "detection/regions/assign.h"
#include "detection/regions/box_coder.h"

enum { STAGE_ANCHORS, STAGE_REGIONS };

double mask_rcnn_loss_total(const MaskRcnnLoss *loss) {
    double total = 0;
    for (int i = 0; i < LOSS_TERMS; i++) total += loss->term[i];
    return total;
}

/* == Memory ======================================================================================================= */

void loss_work_open(LossWork *work, const MaskRcnn *m, int most_truth, int given) {
    const MaskRcnnSettings *s = &m->settings;
    ProposalRule rule = mask_rcnn_proposal_rule(m, true);
    size_t anchors = 0, B = (size_t)m->model.batch;
    for (int i = 0; i < FPN_LEVELS; i++)
        anchors += (size_t)fpn_side(i, m->H) * (size_t)fpn_side(i, m->W) * ANCHOR_RATIOS;
    size_t regions = (size_t)(given > s->proposals ? given : s->proposals) + (size_t)most_truth;
    size_t candidates = anchors > regions ? anchors : regions;
    size_t sample = (size_t)(s->anchor_sample > s->region_sample ? s->anchor_sample : s->region_sample);
    *work = (LossWork){.most_truth = most_truth, .candidate_room = (int)regions};
    work->to = xcalloc(candidates, sizeof *work->to, "a loss");
    work->iou = xcalloc(candidates + (size_t)most_truth, sizeof *work->iou, "a loss");
    work->valid = xcalloc(candidates, sizeof *work->valid, "a loss");
    work->chosen = xcalloc(sample, sizeof *work->chosen, "a loss");
    work->keys = xcalloc(sample, sizeof *work->keys, "a loss");
    work->candidates = xcalloc(regions, sizeof *work->candidates, "a loss");
    work->cells = xcalloc(MASK_OUT * MASK_OUT, 1, "a loss");
    work->first = xcalloc(B + 1, sizeof *work->first, "a loss");
    work->first_mask = xcalloc(B + 1, sizeof *work->first_mask, "a loss");
    work->match = xcalloc((size_t)m->regions.room, sizeof *work->match, "a loss");
    work->mask_match = xcalloc((size_t)m->masks.room, sizeof *work->mask_match, "a loss");
    proposal_scratch_open(&work->proposals, &rule, FPN_LEVELS);
}

void loss_work_close(LossWork *work) {
    void *memory[] = {work->to, work->iou, work->valid, work->chosen, work->keys, work->candidates, work->cells,
                      work->first, work->first_mask, work->match, work->mask_match};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
    proposal_scratch_close(&work->proposals);
    mask_scratch_free(&work->masks);
    *work = (LossWork){0};
}

/* == Which regions count ========================================================================================== */

static int truth_count(const Truth *t, int b) { return t->first[b + 1] - t->first[b]; }

static SampleDraw draw_of(const LossDraw *draw, int b, int stage) {
    return (SampleDraw){draw->seed, draw->step, draw->first + (uint32_t)b, (uint32_t)stage};
}

/* The proposals of image b, after its true boxes in work->candidates; returns the number of both. */
static int find_candidates(MaskRcnn *m, LossWork *work, const Truth *t, int b) {
    ProposalRule rule = mask_rcnn_proposal_rule(m, true);
    const float *logits[FPN_LEVELS], *deltas[FPN_LEVELS];
    int truth = truth_count(t, b);
    if (truth) memcpy(work->candidates, t->boxes + t->first[b], (size_t)truth * sizeof *t->boxes);
    if (t->proposals) {
        int given = t->first_proposal[b + 1] - t->first_proposal[b];
        if (given) memcpy(work->candidates + truth, t->proposals + t->first_proposal[b], (size_t)given * sizeof *t->boxes);
        return truth + given;
    }
    mask_rcnn_outputs_of(m, b, logits, deltas);
    return truth + proposals_find(work->candidates + truth, logits, deltas, &m->anchors, t->size[2 * b],
                                  t->size[2 * b + 1], &rule, &work->proposals);
}

void choose_regions(MaskRcnn *m, LossWork *work, const Truth *t, const LossDraw *draw) {
    SampleRule rule = mask_rcnn_region_rule(m);
    for (int b = 0; b < m->B; b++) {
        int truth = truth_count(t, b), count = find_candidates(m, work, t, b);
        SampleDraw drawn = draw_of(draw, b, STAGE_REGIONS);
        for (int i = 0; i < truth; i++) work->to[i] = i;
        assign_boxes(work->to + truth, work->iou, t->boxes + t->first[b], truth,
                     (const float(*)[4])work->candidates + truth, NULL, (size_t)(count - truth), &assign_proposals);
        SampleSize sample = sample_regions(work->chosen, work->keys, work->to, NULL, (size_t)count, &rule, &drawn);
        for (int i = 0; i < sample.count; i++) {
            int at = work->chosen[i], to = work->to[at], match = to < 0 ? -1 : t->first[b] + to;
            work->match[m->regions.count] = match;
            regions_add(m, &m->regions, work->candidates[at], b);
            if (match < 0) continue;
            work->mask_match[m->masks.count] = match;
            regions_add(m, &m->masks, work->candidates[at], b);
        }
        work->first[b + 1] = m->regions.count;
        work->first_mask[b + 1] = m->masks.count;
    }
}

/* == Losses ======================================================================================================= */

/* Binary cross entropy of a logit, and `scale` times its derivative. */
static double binary(float *dx, float x, bool target, double scale) {
    double z = x;
    *dx = (float)(scale * (1 / (1 + exp(-z)) - target));
    return fmax(z, 0) - z * target + log1p(exp(-fabs(z)));
}

/* The sum of |x - target| over four deltas, and `scale` times its derivative. */
static double distance(float dx[4], const float x[4], const float target[4], double scale) {
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        double d = (double)x[i] - (double)target[i];
        sum += fabs(d);
        dx[i] = (float)(d > 0 ? scale : d < 0 ? -scale : 0);
    }
    return sum;
}

static int level_of(const Anchors *anchors, size_t anchor) {
    int level = 0;
    while (anchor >= anchors->first[level + 1]) level++;
    return level;
}

static void anchor_loss(MaskRcnn *m, LossWork *work, const Truth *t, const LossDraw *draw, int b, bool gradients,
                        MaskRcnnLoss *sum) {
    const Anchors *a = &m->anchors;
    SampleRule rule = mask_rcnn_anchor_rule(m);
    SampleDraw drawn = draw_of(draw, b, STAGE_ANCHORS);
    const float(*truth)[4] = t->boxes + t->first[b];
    anchors_valid(work->valid, a, t->size[2 * b], t->size[2 * b + 1]);
    assign_boxes(work->to, work->iou, truth, truth_count(t, b), (const float(*)[4])a->boxes, work->valid, a->count,
                 &assign_anchors);
    SampleSize sample = sample_regions(work->chosen, work->keys, work->to, a->elements, a->count, &rule, &drawn);
    double scale = 1 / ((double)sample.count * draw->batch);
    for (int i = 0; i < sample.count; i++) {
        size_t anchor = (size_t)work->chosen[i];
        int level = level_of(a, anchor), to = work->to[anchor];
        size_t at = (size_t)b * (a->first[level + 1] - a->first[level]) + anchor - a->first[level];
        float target[4], unused[4];
        float *dlogit = gradients ? m->dlogits[level] + at : unused;
        sum->term[LOSS_OBJECTNESS] += scale * binary(dlogit, m->logits[level][at], to >= 0, scale);
        if (to < 0) continue;
        box_encode(target, a->boxes[anchor], truth[to], proposal_weights);
        float *ddeltas = gradients ? m->ddeltas[level] + 4 * at : unused;
        sum->term[LOSS_RPN_BOX] += scale * distance(ddeltas, m->deltas[level] + 4 * at, target, scale);
    }
}

/* Cross entropy over K logits, and `scale` times its gradient (dx may be NULL); adds 1 to *right if the label's logit
 * is the largest. */
static double cross_entropy_of(float *dx, const float *x, int label, int K, double scale, double *right) {
    double sum = 0;
    int best = 0;
    for (int k = 1; k < K; k++)
        if (x[k] > x[best]) best = k;
    for (int k = 0; k < K; k++) sum += exp((double)x[k] - (double)x[best]);
    for (int k = 0; k < K && dx; k++)
        dx[k] = (float)(scale * (exp((double)x[k] - (double)x[best]) / sum - (k == label)));
    *right += best == label;
    return log(sum) + (double)x[best] - (double)x[label];
}

static void class_loss(MaskRcnn *m, const LossWork *work, const Truth *t, const LossDraw *draw, int b, bool gradients,
                       MaskRcnnLoss *sum) {
    size_t K = (size_t)m->K;
    int count = work->first[b + 1] - work->first[b];
    double scale = 1 / ((double)count * draw->batch);
    sum->regions += count;
    for (int r = work->first[b]; r < work->first[b + 1]; r++) {
        int match = work->match[r], label = match < 0 ? 0 : t->labels[match];
        size_t row = (size_t)r * K, at = 4 * (row + (size_t)label);
        float target[4], unused[4];
        float *dlogits = gradients ? m->dclass_logits + row : NULL;
        sum->term[LOSS_CLASS] +=
            scale * cross_entropy_of(dlogits, m->class_logits + row, label, m->K, scale, &sum->right);
        if (match < 0) continue;
        box_encode(target, m->regions.boxes[r], t->boxes[match], region_weights);
        float *ddeltas = gradients ? m->dclass_deltas + at : unused;
        sum->term[LOSS_BOX] += scale * distance(ddeltas, m->class_deltas + at, target, scale);
    }
}

static void mask_loss(MaskRcnn *m, LossWork *work, const Truth *t, const LossDraw *draw, int b, bool gradients,
                      MaskRcnnLoss *sum) {
    enum { CELLS = MASK_OUT * MASK_OUT };
    size_t K = (size_t)m->K;
    int count = work->first_mask[b + 1] - work->first_mask[b];
    double scale = 1 / ((double)count * CELLS * draw->batch);
    for (int r = work->first_mask[b]; r < work->first_mask[b + 1]; r++) {
        int match = work->mask_match[r];
        object_mask_target(work->cells, MASK_OUT, &t->masks[match], m->masks.boxes[r], &work->masks);
        for (size_t i = 0; i < CELLS; i++) {
            size_t at = ((size_t)r * CELLS + i) * K + (size_t)t->labels[match];
            float unused;
            float *dlogit = gradients ? m->dmask_logits + at : &unused;
            sum->term[LOSS_MASK] += scale * binary(dlogit, m->mask_logits[at], work->cells[i], scale);
        }
    }
}

void mask_rcnn_loss(MaskRcnn *m, LossWork *work, const Truth *t, const LossDraw *draw, bool gradients,
                    MaskRcnnLoss *sum) {
    if (gradients) mask_rcnn_clear_gradients(m);
    for (int b = 0; b < m->B; b++) {
        anchor_loss(m, work, t, draw, b, gradients, sum);
        class_loss(m, work, t, draw, b, gradients, sum);
        mask_loss(m, work, t, draw, b, gradients, sum);
    }
}
