#include "training/parity.h"

#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "detection/boxes.h"
#include "detection/parity_batch.h"
#include "layers/mask_rcnn/run.h"

/* The contents of the file besides a ParityBatch: the runs of each object's mask, and the proposals of each image. */
typedef struct {
    float (*corners)[4]; /* [T] */
    ObjectMask *masks;   /* [T] */
    Rle *rles;           /* [T] */
    float (*proposals)[4];
    int *first_proposal; /* [B + 1] */
    int most_truth, most_proposals;
} ParityObjects;

static const SafeTensor *tensor_of(const SafeTensors *st, const char *name, int ndim) {
    const SafeTensor *t = safetensors_find(st, name);
    if (!t) die("%s: needs the tensor '%s'", st->file, name);
    if (t->ndim != ndim) die("%s: '%s' has %d dimensions, not %d", st->file, name, t->ndim, ndim);
    return t;
}

/* Sums of the counts in a tensor [n]: first [n + 1]; returns the largest count. */
static int sums_of(int **first, const SafeTensors *st, const char *name, int n) {
    const SafeTensor *t = tensor_of(st, name, 1);
    int64_t *counts = xcalloc(t->size + 1, sizeof *counts, "parity");
    int most = 0;
    if (t->size != (size_t)n) die("%s: '%s' has %zu numbers, not %d", st->file, name, t->size, n);
    safetensors_to_int64(t, counts, &error_fatal);
    *first = xcalloc((size_t)n + 1, sizeof **first, "parity");
    for (int i = 0; i < n; i++) {
        if (counts[i] < 0 || counts[i] > 1 << 24) die("%s: %s[%d] is %lld", st->file, name, i, (long long)counts[i]);
        (*first)[i + 1] = (*first)[i] + (int)counts[i];
        if (counts[i] > most) most = (int)counts[i];
    }
    free(counts);
    return most;
}

static void read_masks(ParityObjects *o, const ParityBatch *p, const SafeTensors *st) {
    const SafeTensor *t = tensor_of(st, "mask_runs", 1);
    int64_t *wide = xcalloc(t->size + 1, sizeof *wide, "parity");
    uint32_t *runs = xcalloc(t->size + 1, sizeof *runs, "parity");
    int *first;
    Error error;
    safetensors_to_int64(t, wide, &error_fatal);
    sums_of(&first, st, "mask_counts", p->T);
    if ((size_t)first[p->T] != t->size) die("%s: mask_counts do not add up to mask_runs", st->file);
    for (size_t i = 0; i < t->size; i++) {
        if (wide[i] < 0 || wide[i] > UINT32_MAX) die("%s: mask_runs[%zu] is %lld", st->file, i, (long long)wide[i]);
        runs[i] = (uint32_t)wide[i];
    }
    for (int b = 0; b < p->B; b++)
        for (int i = p->part.first[b]; i < p->part.first[b + 1]; i++) {
            size_t count = (size_t)(first[i + 1] - first[i]);
            if (!rle_set(&o->rles[i], runs + first[i], count, p->sizes[2 * b], p->sizes[2 * b + 1], &error))
                die("%s: mask %d: %s", st->file, i, error.text);
            o->masks[i] = (ObjectMask){.rle = &o->rles[i], .scale = {1, 1}};
        }
    free(first);
    free(runs);
    free(wide);
}

static void read_objects(ParityObjects *o, const ParityBatch *p, const SafeTensors *st) {
    const SafeTensor *t = tensor_of(st, "proposals", 2);
    size_t T = (size_t)p->T + 1;
    *o = (ParityObjects){.corners = xcalloc(T, sizeof *o->corners, "parity"),
                         .masks = xcalloc(T, sizeof *o->masks, "parity"),
                         .rles = xcalloc(T, sizeof *o->rles, "parity")};
    for (int b = 0; b < p->B; b++) {
        int count = p->part.first[b + 1] - p->part.first[b];
        if (count > o->most_truth) o->most_truth = count;
        for (int i = p->part.first[b]; i < p->part.first[b + 1]; i++) {
            box_corners(o->corners[i], p->part.boxes[i]);
            for (int k = 0; k < 4; k++) o->corners[i][k] *= (float)p->sizes[2 * b + !(k % 2)];
            if (!p->part.labels[i]) die("%s: label 0 is the background", st->file);
        }
    }
    read_masks(o, p, st);
    o->most_proposals = sums_of(&o->first_proposal, st, "proposal_counts", p->B);
    if (t->shape[1] != 4 || t->shape[0] != (size_t)o->first_proposal[p->B])
        die("%s: proposal_counts do not add up to proposals", st->file);
    o->proposals = xcalloc(t->shape[0] + 1, sizeof *o->proposals, "parity");
    safetensors_to_float(t, &o->proposals[0][0], &error_fatal);
}

static void write_results(MaskRun *run, const MaskRcnnLoss *loss) {
    static const char *const names[LOSS_TERMS] = {"loss_objectness", "loss_rpn_box_reg", "loss_classifier",
                                                  "loss_box_reg", "loss_mask"};
    const MaskRcnn *m = &run->model;
    float terms[LOSS_TERMS], total = (float)mask_rcnn_loss_total(loss), *maps[FPN_LEVELS];
    SafeTensorEntry outputs[LOSS_TERMS + FPN_LEVELS + 6] = {{"loss", SAFE_F32, 1, {1}, &total}};
    char map_names[FPN_LEVELS][16];
    int count = 1;
    size_t B = (size_t)m->B, R = (size_t)m->regions.count, K = (size_t)m->K, C = (size_t)m->settings.fpn_width;
    for (int i = 0; i < LOSS_TERMS; i++) {
        terms[i] = (float)loss->term[i];
        outputs[count++] = (SafeTensorEntry){names[i], SAFE_F32, 1, {1}, &terms[i]};
    }
    for (int i = 0; i < FPN_LEVELS; i++) {
        size_t h = (size_t)fpn_side(i, m->H), w = (size_t)fpn_side(i, m->W);
        snprintf(map_names[i], sizeof map_names[i], "p%d", i + 2);
        maps[i] = xcalloc(B * h * w * C, sizeof *maps[i], "parity");
        real_download(maps[i], m->fpn.p[i], B * h * w * C);
        outputs[count++] = (SafeTensorEntry){map_names[i], SAFE_F32, 4, {B, h, w, C}, maps[i]};
    }
    outputs[count++] = (SafeTensorEntry){"regions", SAFE_F32, 2, {R, 4}, m->regions.boxes};
    outputs[count++] = (SafeTensorEntry){"class_logits", SAFE_F32, 2, {R, K}, m->class_logits};
    parity_write(run->d.modes->out, outputs, count, &m->model.params);
    for (int i = 0; i < FPN_LEVELS; i++) free(maps[i]);
}

void mask_run_parity(MaskRun *run) {
    MaskRcnn *m = &run->model;
    MaskRcnnLoss loss = {0};
    ParityBatch p;
    ParityObjects o;
    SafeTensors st;
    safetensors_open(&st, run->d.modes->parity, &error_fatal);
    mask_run_find_classes(run);
    parity_batch_read(&p, &st, run->model_settings->num_classes);
    if (p.H % BACKBONE_STRIDE || p.W % BACKBONE_STRIDE)
        die("%s: 'images' are %d x %d, which are no multiples of %d", st.file, p.H, p.W, BACKBONE_STRIDE);
    read_objects(&o, &p, &st);
    mask_run_open_model(run, p.B, p.H, p.W, true);
    loss_work_open(&run->work, m, o.most_truth, o.most_proposals);
    parity_parameters(&m->model.params, &st);
    mask_rcnn_fold(m);
    size_t pixels = (size_t)p.B * 3 * (size_t)p.H * (size_t)p.W;
    uint8_t *black = host_malloc(pixels, "parity");
    mask_rcnn_load(m, black, p.sizes, (const float[3]){0}, (const float[3]){1, 1, 1}, p.B, p.H, p.W);
    real_upload(m->backbone.images, p.images, pixels);
    Truth truth = {p.sizes, (const float(*)[4])o.corners, p.part.labels, o.masks, p.part.first,
                   (const float(*)[4])o.proposals, o.first_proposal};
    LossDraw draw = {run->d.training.s->seed, 0, 0, p.B};
    mask_rcnn_forward(m);
    choose_regions(m, &run->work, &truth, &draw);
    mask_rcnn_forward_boxes(m);
    mask_rcnn_forward_masks(m);
    mask_rcnn_loss(m, &run->work, &truth, &draw, true, &loss);
    mask_rcnn_backward(m, NULL);
    write_results(run, &loss);
    loss_work_close(&run->work);
    host_free(black);
    safetensors_close(&st);
}
