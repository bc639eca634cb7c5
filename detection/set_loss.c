/* Lin et al. 2017 (focal), Carion et al. 2020 (set loss), with the constants of SMCA-DETR's code.  p = sigmoid(x).
 *
 * cost of query i for target j with label c, whose logit is x
 *   2 [a (1-p)^2 (-log(p + e)) - (1-a) p^2 (-log(1-p + e))] + 5 |b_i - b_j|_1 - 2 GIoU(b_i, b_j),   e = 1e-8
 * loss, each sum over box_count
 *   2 sum_all focal(x) + 5 sum_pairs |b_i - b_j|_1 + 2 sum_pairs (1 - GIoU)
 * focal, y = 1 where the query has that label's target:
 *   y = 0   (1-a) p^2 s(x),     d/dx  (1-a) p^2 (p + 2 (1-p) s(x));       s(x) = log(1 + e^x) = -log(1-p)
 *   y = 1   a (1-p)^2 s(-x),    d/dx  -a (1-p)^2 ((1-p) + 2 p s(-x))
 *
 * Nearly all entries have y = 0: first every entry is computed with y = 0, then the matched ones are replaced. */
#include "detection/set_loss.h"

#include <assert.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "detection/boxes.h"
#include "detection/matching.h"

const SetLossWeights set_loss_weights = {2, 5, 2, 2, 5, 2, 0.25f};

enum { FOCAL, L1, GIOU, WRONG, MATCHED, PARTS };

/* == Memory ======================================================================================================= */

static size_t cost_bytes(SetLossSize size) {
    size_t bytes = (size_t)size.most_targets * (size_t)size.queries * sizeof(float);
    return (bytes + 63) / 64 * 64;
}

void set_loss_open(SetLossWork *work, SetLossSize size, SetLossWeights weights) {
    size_t tasks = (size_t)size.layers * (size_t)size.images, threads = (size_t)omp_get_max_threads();
    *work = (SetLossWork){.size = size, .weights = weights, .threads = (int)threads};
    work->room = cost_bytes(size) + (matching_workspace(size.most_targets, size.queries) + 63) / 64 * 64;
    work->memory = xcalloc(threads, work->room, "matching costs");
    work->parts = xcalloc(tasks * PARTS, sizeof *work->parts, "losses");
    work->query = xcalloc(tasks * (size_t)size.most_targets, sizeof *work->query, "matches");
}

void set_loss_close(SetLossWork *work) {
    free(work->memory);
    free(work->parts);
    free(work->query);
    *work = (SetLossWork){.threads = 0};
}

/* == Focal ======================================================================================================== */

/* e^-a for a >= 0 without a call, so that a loop is vectorised: 2^n times the Taylor series on |r| <= ln 2 / 2, whose
 * remainder is below 6e-9.  Adding 1.5 2^23 rounds to an integer and leaves it in the low bits.  From 87 on it is
 * constant, 2e-38. */
static inline float exp_minus(float a) {
    a = a > 87 ? 87 : a;
    float shifted = a * -1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    float r = (-a - n * 0.693359375f) + n * 2.12194440e-4f;
    float series = r / 5040 + 1 / 720.f;
    series = series * r + 1 / 120.f;
    series = series * r + 1 / 24.f;
    series = series * r + 1 / 6.f;
    series = series * r + 1 / 2.f;
    series = series * r * r + r + 1;
    uint32_t bits;
    float scale;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits - 0x4b400000u + 127) << 23;
    memcpy(&scale, &bits, sizeof scale);
    return series * scale;
}

/* log(1 + e) for 0 <= e <= 1: 2 atanh z, z = e / (2 + e) <= 1/3, whose series has a remainder below 2e-9. */
static inline float log_one_plus(float e) {
    float z = e / (2 + e), w = z * z, series = w / 15 + 1 / 13.f;
    series = series * w + 1 / 11.f;
    series = series * w + 1 / 9.f;
    series = series * w + 1 / 7.f;
    series = series * w + 1 / 5.f;
    series = series * w + 1 / 3.f;
    return 2 * z * (series * w + 1);
}

/* Treats all entries as y = 0: writes dx (=), scaled, and returns the sum of their losses. */
static double focal_negative(float *restrict dx, const float *restrict x, size_t n, float alpha, float scale) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) {
        float a = fabsf(x[i]), e = exp_minus(a), small = e / (1 + e), large = 1 / (1 + e);
        float p = x[i] < 0 ? small : large, rest = x[i] < 0 ? large : small;
        float s = (x[i] < 0 ? 0 : x[i]) + log_one_plus(e), weight = (1 - alpha) * p * p;
        sum += weight * s;
        dx[i] = scale * weight * (p + 2 * rest * s);
    }
    return sum;
}

/* Corrects one entry with y = 1: replaces the gradient that focal_negative computed and returns the change of the
 * sum. */
static double focal_positive(float *dx, float x, float alpha, float scale) {
    float e = expf(-fabsf(x)), small = e / (1 + e), large = 1 / (1 + e), tail = log1pf(e);
    float p = x < 0 ? small : large, rest = x < 0 ? large : small, s = fmaxf(-x, 0) + tail;
    float weight = alpha * rest * rest;
    *dx = -scale * weight * (rest + 2 * p * s);
    return (double)(weight * s) - (double)((1 - alpha) * p * p * (fmaxf(x, 0) + tail));
}

/* == One image of one layer ======================================================================================= */

static float distance_l1(const float a[4], const float b[4]) {
    return fabsf(a[0] - b[0]) + fabsf(a[1] - b[1]) + fabsf(a[2] - b[2]) + fabsf(a[3] - b[3]);
}

/* cost [Q] (=) of assigning a target with that label to each query. */
static void class_costs(float *cost, const SetLossWeights *w, const float *logits, int queries, int columns,
                        int label) {
    for (int i = 0; i < queries; i++) {
        float p = 1 / (1 + expf(-logits[(size_t)i * (size_t)columns + (size_t)label]));
        float yes = w->alpha * (1 - p) * (1 - p) * -logf(p + 1e-8f), no = (1 - w->alpha) * p * p * -logf(1 - p + 1e-8f);
        cost[i] = w->cost_class * (yes - no);
    }
}

/* cost [Q] (+=) for the boxes [Q,4]. */
static void box_costs(float *restrict cost, const SetLossWeights *w, const float *restrict boxes, int queries,
                      const float target[4]) {
    float corners[4], l1 = w->cost_l1, giou = w->cost_giou;
    box_corners(corners, target);
#pragma omp simd
    for (int i = 0; i < queries; i++) {
        const float *box = boxes + (size_t)i * 4;
        float mine[4];
        box_corners(mine, box);
        cost[i] += l1 * distance_l1(box, target) - giou * box_giou(mine, corners);
    }
}

/* cost [T,Q] from logits [Q,C] and boxes [Q,4]; targets with the same label share their class costs. */
static void fill_costs(float *cost, const SetLossWork *work, const float *logits, const float *boxes,
                       const float (*target)[4], const int *labels, int count) {
    size_t Q = (size_t)work->size.queries;
    for (int j = 0; j < count; j++) {
        int same = 0;
        while (labels[same] != labels[j]) same++;
        if (same < j) {
            memcpy(cost + (size_t)j * Q, cost + (size_t)same * Q, Q * sizeof *cost);
        } else {
            class_costs(cost + (size_t)j * Q, &work->weights, logits, (int)Q, work->size.columns, labels[j]);
        }
    }
    for (int j = 0; j < count; j++)
        box_costs(cost + (size_t)j * Q, &work->weights, boxes, work->size.queries, target[j]);
}

static float sign(float x) { return (float)((x > 0) - (x < 0)); }

/* A matched box: dbox (=) of l1 |b - t|_1 + giou (1 - GIoU). */
static void box_loss(float dbox[4], double parts[PARTS], const float box[4], const float target[4], float l1,
                     float giou) {
    float mine[4], corners[4], d[4];
    box_corners(mine, box);
    box_corners(corners, target);
    parts[L1] += distance_l1(box, target);
    parts[GIOU] += 1 - box_giou_backward(d, mine, corners);
    dbox[0] = l1 * sign(box[0] - target[0]) - giou * (d[0] + d[2]);
    dbox[1] = l1 * sign(box[1] - target[1]) - giou * (d[1] + d[3]);
    dbox[2] = l1 * sign(box[2] - target[2]) - giou * (d[2] - d[0]) / 2;
    dbox[3] = l1 * sign(box[3] - target[3]) - giou * (d[3] - d[1]) / 2;
}

static bool largest_is(const float *logits, int columns, int label) {
    for (int c = 0; c < columns; c++)
        if (logits[c] > logits[label]) return false;
    return true;
}

static bool image_loss(double parts[PARTS], int *query, float *dlogits, float *dboxes, const SetLossWork *work,
                       char *memory, const float *logits, const float *boxes, const float (*target)[4],
                       const int *labels, int count, float scale) {
    const SetLossWeights *w = &work->weights;
    int Q = work->size.queries, C = work->size.columns;
    float *cost = (float *)memory;
    fill_costs(cost, work, logits, boxes, target, labels, count);
    if (!matching(query, cost, count, Q, memory + cost_bytes(work->size))) return false;

    memset(dboxes, 0, (size_t)Q * 4 * sizeof *dboxes);
    memset(parts, 0, PARTS * sizeof *parts);
    parts[FOCAL] = focal_negative(dlogits, logits, (size_t)Q * (size_t)C, w->alpha, scale * w->focal);
    for (int j = 0; j < count; j++) {
        if (query[j] < 0) continue;
        size_t i = (size_t)query[j], at = i * (size_t)C + (size_t)labels[j];
        parts[FOCAL] += focal_positive(&dlogits[at], logits[at], w->alpha, scale * w->focal);
        box_loss(dboxes + i * 4, parts, boxes + i * 4, target[j], scale * w->l1, scale * w->giou);
        parts[WRONG] += !largest_is(logits + i * (size_t)C, C, labels[j]);
        parts[MATCHED] += 1;
    }
    return isfinite(parts[FOCAL]);
}

/* == A batch ====================================================================================================== */

/* Adds the parts in the order of layers and images, so that the sum does not depend on the threads. */
static SetLoss sum_parts(const SetLossWork *work, int images, double box_count) {
    SetLoss loss = {.total = 0};
    double matched = 0;
    const SetLossWeights *w = &work->weights;
    for (int l = 0; l < work->size.layers; l++) {
        for (int b = 0; b < images; b++) {
            const double *part = work->parts + ((size_t)l * (size_t)images + (size_t)b) * PARTS;
            loss.total += (w->focal * part[FOCAL] + w->l1 * part[L1] + w->giou * part[GIOU]) / box_count;
            if (l < work->size.layers - 1) continue;
            loss.focal += part[FOCAL] / box_count;
            loss.l1 += part[L1] / box_count;
            loss.giou += part[GIOU] / box_count;
            loss.wrong += part[WRONG];
            matched += part[MATCHED];
        }
    }
    loss.wrong /= fmax(matched, 1);
    return loss;
}

bool set_loss(SetLoss *loss, float *dlogits, float *dboxes, SetLossWork *work, const float *logits, const float *boxes,
              const SetTargets *targets, int images, double box_count, int *layer, int *image) {
    const SetLossSize *s = &work->size;
    size_t logit_count = (size_t)s->queries * (size_t)s->columns, box_floats = (size_t)s->queries * 4;
    int tasks = s->layers * images, failed = tasks;
    float scale = (float)(1 / box_count);
    assert(images <= s->images && omp_get_max_threads() <= work->threads);

#pragma omp parallel for schedule(dynamic, 1) reduction(min : failed)
    for (int task = 0; task < tasks; task++) {
        int b = task % images, first = targets->first[b], count = targets->first[b + 1] - first;
        size_t at = (size_t)task;
        assert(count <= s->most_targets);
        if (!image_loss(work->parts + at * PARTS, work->query + at * (size_t)s->most_targets,
                        dlogits + at * logit_count, dboxes + at * box_floats, work,
                        work->memory + (size_t)omp_get_thread_num() * work->room, logits + at * logit_count,
                        boxes + at * box_floats, (const float(*)[4])(const void *)(targets->boxes + (size_t)first * 4),
                        targets->labels + first, count, scale)) {
            failed = task < failed ? task : failed;
        }
    }
    if (failed < tasks) {
        *layer = failed / images;
        *image = failed % images;
        return false;
    }
    *loss = sum_parts(work, images, box_count);
    return true;
}
