#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/results/outcome.h"
#include "detection/mask_paste.h"
#include "layers/mask_rcnn/run.h"

void mask_run_open_evaluation(MaskRun *run) {
    const MaskRcnn *m = &run->model;
    const MaskRcnnSettings *s = &m->settings;
    ProposalRule rule = mask_rcnn_proposal_rule(m, false);
    RegionDetectionRule detections = mask_rcnn_detection_rule(m);
    proposal_scratch_open(&run->proposals, &rule, FPN_LEVELS);
    detection_scratch_open(&run->detections, s->proposals, m->K, &detections);
    run->proposal_boxes = xcalloc((size_t)s->proposals, sizeof *run->proposal_boxes, "proposals");
    run->region_found =
        xcalloc((size_t)m->model.batch * (size_t)s->detections, sizeof *run->region_found, "detections");
    run->found_first = xcalloc((size_t)m->model.batch + 1, sizeof *run->found_first, "detections");
    run->probability = xcalloc(MASK_OUT * MASK_OUT, sizeof *run->probability, "a mask");
}

/* The proposals of all images become the model's regions; first [B + 1]: those of each. */
static void propose(MaskRun *run, const int *sizes, int *first) {
    MaskRcnn *m = &run->model;
    ProposalRule rule = mask_rcnn_proposal_rule(m, false);
    for (int b = 0; b < m->B; b++) {
        const float *logits[FPN_LEVELS], *deltas[FPN_LEVELS];
        mask_rcnn_outputs_of(m, b, logits, deltas);
        int count = proposals_find(run->proposal_boxes, logits, deltas, &m->anchors, sizes[2 * b], sizes[2 * b + 1],
                                   &rule, &run->proposals);
        for (int i = 0; i < count; i++) regions_add(m, &m->regions, run->proposal_boxes[i], b);
        first[b + 1] = m->regions.count;
    }
}

/* The detections of all images become the regions of the mask head. */
static void detect(MaskRun *run, const int *sizes, const int *first) {
    MaskRcnn *m = &run->model;
    RegionDetectionRule rule = mask_rcnn_detection_rule(m);
    for (int b = 0; b < m->B; b++) {
        size_t row = (size_t)first[b] * (size_t)m->K;
        RegionDetection *found = run->region_found + m->masks.count;
        int count = region_detections(found, (const float(*)[4])m->regions.boxes + first[b], m->class_logits + row,
                                      m->class_deltas + 4 * row, first[b + 1] - first[b], m->K, sizes[2 * b],
                                      sizes[2 * b + 1], &rule, &run->detections);
        for (int i = 0; i < count; i++) regions_add(m, &m->masks, found[i].box, b);
        run->found_first[b + 1] = m->masks.count;
    }
}

/* Outputs that are not numbers come from broken weights, and would only be missing among the detections. */
static void require_numbers(const MaskRun *run, const char *what) {
    const MaskRcnn *m = &run->model;
    const char *weights = run->d.training.s->init;
    size_t B = (size_t)m->B, R = (size_t)m->regions.count, K = (size_t)m->K, cells = MASK_OUT * MASK_OUT;
    for (int i = 0; i < FPN_LEVELS; i++) {
        size_t anchors = m->anchors.first[i + 1] - m->anchors.first[i];
        outcome_require(m->logits[i], B * anchors, weights, what);
        outcome_require(m->deltas[i], B * anchors * 4, weights, what);
    }
    outcome_require(m->class_logits, R * K, weights, what);
    outcome_require(m->class_deltas, R * K * 4, weights, what);
    for (size_t i = 0; i < (size_t)m->masks.count * cells; i++)
        outcome_require(m->mask_logits + i * K + run->region_found[i / cells].label, 1, weights, what);
}

void mask_run_detect(MaskRun *run, const int *sizes, const char *what) {
    MaskRcnn *m = &run->model;
    int *first = xcalloc((size_t)m->B + 1, sizeof *first, "proposals");
    mask_rcnn_forward(m);
    propose(run, sizes, first);
    mask_rcnn_forward_boxes(m);
    detect(run, sizes, first);
    mask_rcnn_forward_masks(m);
    if (what) require_numbers(run, what);
    free(first);
}

/* The probabilities of a detection's mask, in the channel of its class. */
static void probabilities_of(MaskRun *run, int found) {
    const MaskRcnn *m = &run->model;
    size_t K = (size_t)m->K, cells = MASK_OUT * MASK_OUT, label = (size_t)run->region_found[found].label;
    for (size_t i = 0; i < cells; i++)
        run->probability[i] = 1 / (1 + expf(-m->mask_logits[((size_t)found * cells + i) * K + label]));
}

void mask_run_results(MaskRun *run, int b, const int size[2], int64_t image_id, int width, int height,
                      CocoResults *results) {
    double down = (double)height / size[0], across = (double)width / size[1];
    for (int i = run->found_first[b]; i < run->found_first[b + 1]; i++) {
        const RegionDetection *found = &run->region_found[i];
        double box[4], scale[4] = {across, down, across, down};
        for (int k = 0; k < 4; k++) box[k] = (double)found->box[k] * scale[k];
        coco_results_add(results, (CocoDetection){.image_id = image_id,
                                                  .category_id = run->ids[found->label],
                                                  .box = {box[0], box[1], box[2] - box[0], box[3] - box[1]},
                                                  .score = (double)found->score});
        probabilities_of(run, i);
        mask_paste(&run->pasted, run->probability, MASK_OUT, box, height, width, 0.5);
        coco_results_add_mask(results, &run->pasted);
    }
}

void mask_run_report(const MaskRun *run, const CocoResults *results) {
    if (distributed_rank() > 0) return;
    detector_report_begin(&run->d);
    if (run->d.val.boxes && !run->d.training.stopping) {
        printf("boxes\n");
        coco_eval_print(run->found, stdout);
        printf("masks\n");
        coco_eval_print(run->found_masks, stdout);
    }
    detector_report_end(&run->d, results);
}
