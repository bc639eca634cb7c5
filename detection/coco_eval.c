/* For each IoU threshold t and area range a, within one image and category, for the 100 best detections by falling
 * score:
 *
 *   a detection is matched with the ground truth of largest IoU >= t that is not yet matched (crowds can be matched
 *   repeatedly);
 *   ground truth outside the area range, and crowds, are "ignored": they are matched only if no other ground truth can
 *   be, and the detection then counts neither as true nor as false positive, nor does an unmatched detection whose own
 *   area is outside the range;
 *
 * and per category, over all images by falling score:
 *
 *   tp_i, fp_i   true and false positives up to i;  rc_i = tp_i / npos;
 *   pr_i = max_{j >= i} tp_j / (tp_j + fp_j + 2^-52);   recall = rc_last;
 *   precision at r = 0, .01, ... 1 = pr at the first i with rc_i >= r, 0 if there is none
 *
 * The metrics are means of these over thresholds and categories with npos > 0.  IoU = I / U of boxes x, y, w, h, or of
 * masks; for a crowd U is the detection's own area.
 *
 * Everything is in double and in pycocotools' order of operations, and the file is compiled with -ffp-contract=off: an
 * IoU that falls on a threshold must fall on the same side.  Source: cocodataset/cocoapi, PythonAPI/pycocotools
 * (cocoeval.py, and maskApi.c for the IoU). */
#include "detection/coco_eval.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"

enum { THRESHOLDS = 10, RECALLS = 101, AREAS = 4, MOST = 100 };

/* These ranges of area include both ends. */
static const double area_range[AREAS][2] = {{0, 1e10}, {0, 32 * 32}, {32 * 32, 96 * 96}, {96 * 96, 1e10}};

/* numpy.linspace's values: start + i step, and the end itself. */
static double iou_threshold(int i) { return i == THRESHOLDS - 1 ? 0.95 : 0.5 + i * ((0.95 - 0.5) / 9); }

static double recall_threshold(int i) { return i == RECALLS - 1 ? 1 : i * 0.01; }

/* == Pairs of image and category ================================================================================== */

/* A detection or a ground truth, sorted by category, image, falling score and order in the file. */
typedef struct {
    int category, image;
    double score; /* 0 for ground truth */
    size_t index; /* index in the file's table */
} Entry;

static int compare_entries(const void *left, const void *right) {
    const Entry *a = left, *b = right;
    if (a->category != b->category) return a->category < b->category ? -1 : 1;
    if (a->image != b->image) return a->image < b->image ? -1 : 1;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* The result of one detection, with a bit for each threshold. */
typedef struct {
    uint16_t matched[AREAS], ignored[AREAS];
} Outcome;

typedef struct {
    int category, image;
    size_t first_detection, first_truth; /* in the sorted entries */
    int detections, truths;              /* at most MOST detections */
    int positives[AREAS];                /* ground truths that are not ignored */
} Pair;

typedef struct {
    CocoEvalKind kind;
    const Coco *truth;
    const CocoResults *found;
    Entry *detections, *truths;
    size_t detection_count, truth_count;
    Outcome *outcomes; /* [detection_count] */
    Pair *pairs;       /* by category, then image */
    size_t pair_count;
    int most_truths;   /* of a pair */
} Evaluation;

static bool check_mask(const Evaluation *e, size_t detection, const CocoImage *image, Error *error) {
    RleText mask = rle_texts_at(&e->found->masks, detection);
    if (mask.height == image->height && mask.width == image->width) return true;
    return refuse(error, "[%zu].segmentation: its size is [%d, %d], but that of image %jd is [%d, %d]", detection,
                  mask.height, mask.width, (intmax_t)image->id, image->height, image->width);
}

static bool sort_detections(Evaluation *e, const bool *evaluated, Error *error) {
    size_t count = e->found->count;
    if (e->kind == COCO_EVAL_MASKS && e->found->masks.count < count)
        return refuse(error, "the detections have no masks");
    e->detections = xcalloc(count, sizeof *e->detections, "detections");
    for (size_t i = 0; i < count; i++) {
        const CocoDetection *d = &e->found->detections[i];
        int image = coco_find_image(e->truth, d->image_id), category = coco_find_category(e->truth, d->category_id);
        if (image < 0)
            return refuse(error, "[%zu]: image_id %jd is not among the images of the annotations", i,
                          (intmax_t)d->image_id);
        if (e->kind == COCO_EVAL_MASKS && !check_mask(e, i, &e->truth->images[image], error)) return false;
        if (!isfinite(d->score)) return refuse(error, "[%zu]: the score is not finite", i);
        if (category < 0 || (evaluated && !evaluated[image])) continue;
        e->detections[e->detection_count++] = (Entry){category, image, d->score, i};
    }
    qsort(e->detections, e->detection_count, sizeof *e->detections, compare_entries);
    return true;
}

static void sort_truths(Evaluation *e, const bool *evaluated) {
    e->truths = xcalloc(e->truth->annotation_count, sizeof *e->truths, "ground truth");
    for (size_t i = 0; i < e->truth->annotation_count; i++) {
        const CocoAnnotation *a = &e->truth->annotations[i];
        if (evaluated && !evaluated[a->image]) continue;
        e->truths[e->truth_count++] = (Entry){a->category, a->image, 0, i};
    }
    qsort(e->truths, e->truth_count, sizeof *e->truths, compare_entries);
}

/* The number of entries from `at` on that belong to the pair. */
static size_t run_of(const Entry *entries, size_t at, size_t count, const Pair *pair) {
    size_t end = at;
    while (end < count && entries[end].category == pair->category && entries[end].image == pair->image) end++;
    return end - at;
}

static void find_pairs(Evaluation *e) {
    size_t d = 0, g = 0;
    e->pairs = xcalloc(e->detection_count + e->truth_count, sizeof *e->pairs, "pairs of image and category");
    while (d < e->detection_count || g < e->truth_count) {
        Entry first = g < e->truth_count ? e->truths[g] : e->detections[d];
        if (d < e->detection_count) {
            Entry other = e->detections[d];
            if (other.category < first.category || (other.category == first.category && other.image < first.image))
                first = other;
        }
        Pair *pair = &e->pairs[e->pair_count++];
        *pair = (Pair){.category = first.category, .image = first.image, .first_detection = d, .first_truth = g};
        size_t detections = run_of(e->detections, d, e->detection_count, pair);
        size_t truths = run_of(e->truths, g, e->truth_count, pair);
        pair->detections = detections < MOST ? (int)detections : MOST;
        pair->truths = (int)truths;
        if (pair->truths > e->most_truths) e->most_truths = pair->truths;
        d += detections;
        g += truths;
    }
}

/* == One pair ===================================================================================================== */

static double box_iou(const double d[4], const double g[4], bool crowd) {
    double w = fmin(d[2] + d[0], g[2] + g[0]) - fmax(d[0], g[0]);
    if (w <= 0) return 0;
    double h = fmin(d[3] + d[1], g[3] + g[1]) - fmax(d[1], g[1]);
    if (h <= 0) return 0;
    double i = w * h, area = d[2] * d[3];
    return i / (crowd ? area : area + g[2] * g[3] - i);
}

/* A ground truth of the pair that is being matched. */
typedef struct {
    const CocoAnnotation *in_file;
    const Rle *mask; /* of evaluated masks */
    RleExtent extent;
    bool ignored;
    uint16_t taken; /* a bit for each threshold */
    int order;      /* element k: the index of the k-th one if the ignored ones come last */
} Truth;

typedef struct {
    double area[MOST]; /* of the detections */
    double *iou;       /* [detections,truths] of the pair, from [MOST,most_truths] */
    Truth *truth;      /* [most_truths], in order of the file */
    Rle mask;          /* of one detection */
} Scratch;

static void measure_masks(const Evaluation *e, const Pair *pair, Scratch *s) {
    static const Rle empty = {.height = 1, .width = 1};
    double *iou = s->iou;
    for (int j = 0; j < pair->truths; j++) {
        Truth *truth = &s->truth[j];
        truth->mask = coco_annotation_mask(e->truth, (size_t)(truth->in_file - e->truth->annotations));
        if (!truth->mask) truth->mask = &empty;
        truth->extent = rle_extent(truth->mask);
    }
    for (int i = 0; i < pair->detections; i++) {
        rle_texts_get(&s->mask, &e->found->masks, e->detections[pair->first_detection + (size_t)i].index);
        RleExtent extent = rle_extent(&s->mask);
        s->area[i] = extent.area;
        for (const Truth *truth = s->truth; truth < s->truth + pair->truths; truth++)
            *iou++ = rle_iou(&s->mask, &extent, truth->mask, &truth->extent, truth->in_file->crowd);
    }
}

static void measure_boxes(const Evaluation *e, const Pair *pair, Scratch *s) {
    double *iou = s->iou;
    for (int i = 0; i < pair->detections; i++) {
        const double *box = e->found->detections[e->detections[pair->first_detection + (size_t)i].index].box;
        s->area[i] = box[2] * box[3];
        for (int j = 0; j < pair->truths; j++)
            *iou++ = box_iou(box, s->truth[j].in_file->box, s->truth[j].in_file->crowd);
    }
}

static bool outside(double area, int range) { return area < area_range[range][0] || area > area_range[range][1]; }

/* The ground truth that is assigned to the detection at threshold t, or -1.  Of equal IoUs the later one is taken. */
static int best_truth(const Scratch *s, const double *ious, int truths, int t) {
    double best = fmin(iou_threshold(t), 1 - 1e-10);
    int match = -1;
    for (int k = 0; k < truths; k++) {
        int j = s->truth[k].order;
        if (s->truth[j].taken >> t & 1 && !s->truth[j].in_file->crowd) continue;
        if (match >= 0 && !s->truth[match].ignored && s->truth[j].ignored) break;
        if (ious[j] < best) continue;
        best = ious[j];
        match = j;
    }
    return match;
}

/* Sorts the ignored ground truths after the others, each kind in the order of the file. */
static int order_truths(Scratch *s, int truths, int range) {
    int placed = 0, positives = 0;
    for (int j = 0; j < truths; j++) {
        Truth *truth = &s->truth[j];
        truth->ignored = truth->in_file->crowd || outside(truth->in_file->area, range);
        positives += !truth->ignored;
    }
    for (int ignored = 0; ignored < 2; ignored++)
        for (int j = 0; j < truths; j++)
            if (s->truth[j].ignored == ignored) s->truth[placed++].order = j;
    return positives;
}

static void match_pair(const Evaluation *e, Pair *pair, Scratch *s) {
    for (int j = 0; j < pair->truths; j++)
        s->truth[j].in_file = &e->truth->annotations[e->truths[pair->first_truth + (size_t)j].index];
    (e->kind == COCO_EVAL_MASKS ? measure_masks : measure_boxes)(e, pair, s);
    for (int range = 0; range < AREAS; range++) {
        pair->positives[range] = order_truths(s, pair->truths, range);
        for (int j = 0; j < pair->truths; j++) s->truth[j].taken = 0;
        for (int i = 0; i < pair->detections; i++) {
            unsigned matched = 0, ignored = 0, out = outside(s->area[i], range);
            for (int t = 0; t < THRESHOLDS; t++) {
                int j = best_truth(s, s->iou + (size_t)i * (size_t)pair->truths, pair->truths, t);
                if (j >= 0) s->truth[j].taken |= (uint16_t)(1u << t);
                /* pycocotools stores the id of the assigned truth and later tests whether it is zero */
                bool took = j >= 0 && s->truth[j].in_file->id != 0;
                matched |= (unsigned)took << t;
                ignored |= ((j >= 0 && s->truth[j].ignored) || (!took && out) ? 1u : 0) << t;
            }
            Outcome *outcome = &e->outcomes[pair->first_detection + (size_t)i];
            outcome->matched[range] = (uint16_t)matched;
            outcome->ignored[range] = (uint16_t)ignored;
        }
    }
}

/* == One category ================================================================================================= */

/* A detection among all of its category; rank: its index within its image. */
typedef struct {
    double score;
    size_t place; /* in the sorted entries: by image, then rank */
    int rank;
} Ranked;

static int compare_ranked(const void *left, const void *right) {
    const Ranked *a = left, *b = right;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

/* Sums over thresholds and recalls, for one category; without ground truth all are zero and it does not count. */
typedef struct {
    bool counts;
    double precision[THRESHOLDS]; /* summed over the 101 recalls; for 100 detections only */
    double recall[THRESHOLDS];
} Curve;

enum { CURVES = 6 };
static const struct {
    int area, most;
} curve_of[CURVES] = {{0, 100}, {1, 100}, {2, 100}, {3, 100}, {0, 1}, {0, 10}};

/* pr, rc [count] are scratch. */
static void trace_curve(Curve *curve, const Evaluation *e, const Ranked *ranked, size_t count, int positives, int area,
                        int most, double *pr, double *rc) {
    *curve = (Curve){.counts = positives > 0};
    for (int t = 0; t < THRESHOLDS && positives > 0; t++) {
        double tp = 0, fp = 0;
        size_t n = 0;
        for (size_t i = 0; i < count; i++) {
            if (ranked[i].rank >= most) continue;
            const Outcome *o = &e->outcomes[ranked[i].place];
            bool matched = o->matched[area] >> t & 1, ignored = o->ignored[area] >> t & 1;
            tp += matched && !ignored;
            fp += !matched && !ignored;
            rc[n] = tp / positives;
            pr[n++] = tp / (fp + tp + 0x1p-52);
        }
        curve->recall[t] = n ? rc[n - 1] : 0;
        for (size_t i = n; i-- > 1;) pr[i - 1] = fmax(pr[i - 1], pr[i]);
        size_t at = 0;
        for (int r = 0; r < RECALLS; r++) {
            while (at < n && rc[at] < recall_threshold(r)) at++;
            if (at == n) break;
            curve->precision[t] += pr[at];
        }
    }
}

/* Computes the curves of a category, whose pairs are [first, last). */
static void trace_category(Curve curves[CURVES], const Evaluation *e, size_t first, size_t last) {
    size_t count = 0;
    int positives[AREAS] = {0};
    for (size_t p = first; p < last; p++) count += (size_t)e->pairs[p].detections;
    Ranked *ranked = xcalloc(count, sizeof *ranked, "detections of a category");
    double *pr = xcalloc(count, sizeof *pr, "precisions"), *rc = xcalloc(count, sizeof *rc, "recalls");
    count = 0;
    for (size_t p = first; p < last; p++) {
        const Pair *pair = &e->pairs[p];
        for (int a = 0; a < AREAS; a++) positives[a] += pair->positives[a];
        for (int i = 0; i < pair->detections; i++) {
            size_t place = pair->first_detection + (size_t)i;
            ranked[count++] = (Ranked){e->detections[place].score, place, i};
        }
    }
    qsort(ranked, count, sizeof *ranked, compare_ranked);
    for (int c = 0; c < CURVES; c++) {
        int area = curve_of[c].area;
        trace_curve(&curves[c], e, ranked, count, positives[area], area, curve_of[c].most, pr, rc);
    }
    free(ranked);
    free(pr);
    free(rc);
}

/* == The twelve numbers =========================================================================================== */

/* The mean over the categories with ground truth and the thresholds from..to-1; -1 where there are none. */
static double mean_of(const Curve *curves, int categories, int curve, bool precision, int from, int to) {
    double sum = 0;
    int counted = 0;
    for (int k = 0; k < categories; k++) {
        const Curve *c = &curves[(size_t)k * CURVES + (size_t)curve];
        if (!c->counts) continue;
        counted++;
        for (int t = from; t < to; t++) sum += precision ? c->precision[t] / RECALLS : c->recall[t];
    }
    return counted ? sum / ((double)counted * (to - from)) : -1;
}

static void summarize(double numbers[COCO_NUMBERS], double *category_ap, const Curve *curves, int categories) {
    enum { ALL, SMALL, MEDIUM, LARGE, ONE, TEN };
    static const int recall_curve[6] = {ONE, TEN, ALL, SMALL, MEDIUM, LARGE};
    numbers[COCO_AP] = mean_of(curves, categories, ALL, true, 0, THRESHOLDS);
    numbers[COCO_AP50] = mean_of(curves, categories, ALL, true, 0, 1);
    numbers[COCO_AP75] = mean_of(curves, categories, ALL, true, 5, 6);
    for (int c = SMALL; c <= LARGE; c++)
        numbers[COCO_AP_SMALL + c - SMALL] = mean_of(curves, categories, c, true, 0, THRESHOLDS);
    for (int i = 0; i < 6; i++)
        numbers[COCO_AR1 + i] = mean_of(curves, categories, recall_curve[i], false, 0, THRESHOLDS);
    for (int k = 0; category_ap && k < categories; k++)
        category_ap[k] = mean_of(curves + (size_t)k * CURVES, 1, ALL, true, 0, THRESHOLDS);
}

static void match_pairs(Evaluation *e) {
#pragma omp parallel
    {
        size_t most = (size_t)e->most_truths;
        Scratch scratch = {.iou = xcalloc(MOST * most, sizeof(double), "IoUs"),
                           .truth = xcalloc(most, sizeof(Truth), "ground truth")};
#pragma omp for schedule(dynamic, 32)
        for (size_t p = 0; p < e->pair_count; p++) match_pair(e, &e->pairs[p], &scratch);
        rle_free(&scratch.mask);
        free(scratch.iou);
        free(scratch.truth);
    }
}

bool coco_eval(double numbers[COCO_NUMBERS], double *category_ap, CocoEvalKind kind, const Coco *truth,
               const CocoResults *found, const bool *evaluated, Error *error) {
    Evaluation e = {.kind = kind, .truth = truth, .found = found};
    int categories = truth->category_count;
    if (!sort_detections(&e, evaluated, error)) return free(e.detections), false;
    sort_truths(&e, evaluated);
    find_pairs(&e);
    e.outcomes = xcalloc(e.detection_count, sizeof *e.outcomes, "outcomes of detections");
    match_pairs(&e);

    Curve *curves = xcalloc((size_t)categories * CURVES, sizeof *curves, "precision and recall");
    size_t *first = xcalloc((size_t)categories + 1, sizeof *first, "categories");
    for (size_t p = 0; p < e.pair_count; p++) first[e.pairs[p].category + 1]++;
    for (int k = 0; k < categories; k++) first[k + 1] += first[k];
#pragma omp parallel for schedule(dynamic, 1)
    for (int k = 0; k < categories; k++) trace_category(curves + (size_t)k * CURVES, &e, first[k], first[k + 1]);
    summarize(numbers, category_ap, curves, categories);

    free(curves);
    free(first);
    free(e.outcomes);
    free(e.pairs);
    free(e.truths);
    free(e.detections);
    return true;
}

void coco_eval_print(const double numbers[COCO_NUMBERS], FILE *out) {
    static const char *const areas[] = {"   all", " small", "medium", " large"};
    static const struct {
        bool recall;
        const char *iou;
        int area, most;
    } rows[COCO_NUMBERS] = {{0, "0.50:0.95", 0, 100}, {0, "0.50     ", 0, 100}, {0, "0.75     ", 0, 100},
                            {0, "0.50:0.95", 1, 100}, {0, "0.50:0.95", 2, 100}, {0, "0.50:0.95", 3, 100},
                            {1, "0.50:0.95", 0, 1},   {1, "0.50:0.95", 0, 10},  {1, "0.50:0.95", 0, 100},
                            {1, "0.50:0.95", 1, 100}, {1, "0.50:0.95", 2, 100}, {1, "0.50:0.95", 3, 100}};
    for (int i = 0; i < COCO_NUMBERS; i++)
        fprintf(out, " %-18s %s @[ IoU=%s | area=%s | maxDets=%3d ] = %0.3f\n",
                rows[i].recall ? "Average Recall" : "Average Precision", rows[i].recall ? "(AR)" : "(AP)", rows[i].iou,
                areas[rows[i].area], rows[i].most, numbers[i]);
}
