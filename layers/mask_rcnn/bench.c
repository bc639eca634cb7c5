#include <string.h>

#include "core/die.h"
#include "core/rng.h"
#include "data/sets/dataset.h"
#include "kernels/kernels.h"
#include "layers/mask_rcnn/run.h"
#include "training/bench.h"

/* A batch of images of one size, with seven objects in each, COCO's average, whose masks are triangles. */
enum { BENCH_OBJECTS = 7 };

static void fill_object(DetectionPart *p, const MaskRun *run, int i) {
    const int *size = run->d.view->image_size;
    static const int corners = 3;
    float draws[4], *points = xcalloc(6, sizeof *points, "a batch");
    for (int k = 0; k < 4; k++)
        draws[k] = rng_uniform(run->d.training.s->seed, RNG_TEST, 1, 0, (uint64_t)(4 * i + k));
    for (int k = 0; k < 2; k++) {
        float side = (float)size[!k], half = side * (0.05f + 0.2f * draws[2 + k]), centre = side * (0.3f + 0.4f * draws[k]);
        p->corners[i][k] = centre - half;
        p->corners[i][2 + k] = centre + half;
    }
    const float *box = p->corners[i];
    memcpy(points, (float[]){box[0], box[3], box[2], box[3], (box[0] + box[2]) / 2, box[1]}, 6 * sizeof *points);
    p->masks[i] = (ObjectMask){.points = points, .ring_points = &corners, .rings = 1, .scale = {1, 1}};
    p->labels[i] = 1 + i % run->model_settings->num_classes;
}

static void fill(DetectionPart *p, const MaskRun *run, int images) {
    const int *size = run->d.view->image_size;
    size_t n = (size_t)images, objects = n * BENCH_OBJECTS;
    *p = (DetectionPart){.n = images, .height = run->model.H, .width = run->model.W};
    size_t pixels = n * 3 * (size_t)p->height * (size_t)p->width;
    p->pixels = host_malloc(pixels, "a batch");
    p->size = xcalloc(n, sizeof *p->size, "a batch");
    p->corners = xcalloc(objects, sizeof *p->corners, "a batch");
    p->masks = xcalloc(objects, sizeof *p->masks, "a batch");
    p->labels = xcalloc(objects, sizeof *p->labels, "a batch");
    p->first = xcalloc(n + 1, sizeof *p->first, "a batch");
    bench_fill(p->pixels, pixels, 256, run->d.training.s->seed);
    for (int b = 0; b < images; b++) {
        memcpy(p->size[b], size, sizeof p->size[b]);
        p->first[b + 1] = (b + 1) * BENCH_OBJECTS;
    }
    for (int i = 0; i < images * BENCH_OBJECTS; i++) fill_object(p, run, i);
}

static void forward_backward(MaskRun *run, const DetectionPart *part, const Truth *truth, MaskRcnnLoss *loss,
                             bool last) {
    const Training *t = &run->d.training;
    MaskRcnn *m = &run->model;
    LossDraw draw = {t->s->seed, (uint32_t)t->state.step, (uint32_t)part->position, t->s->batch_size};
    backbone_draw(&m->backbone, t->s->seed, (uint32_t)t->state.step, (size_t)part->position, part->n);
    mask_rcnn_forward(m);
    choose_regions(m, &run->work, truth, &draw);
    mask_rcnn_forward_boxes(m);
    mask_rcnn_forward_masks(m);
    mask_rcnn_loss(m, &run->work, truth, &draw, true, loss);
    mask_rcnn_backward(m, last ? all_reduce_start : NULL);
}

void mask_run_bench(MaskRun *run) {
    MaskRcnn *m = &run->model;
    Training *t = &run->d.training;
    int H = run->d.view->image_size[0], W = run->d.view->image_size[1];
    int micro = detector_micro_batch(&run->d, H, W, run->model_settings->fpn_width);
    DetectionPart part;
    Bench b;
    mask_run_find_classes(run);
    mask_run_open_model(run, micro, H, W, true);
    loss_work_open(&run->work, m, BENCH_OBJECTS, 0);
    mask_run_open_evaluation(run);
    fill(&part, run, micro);
    bench_begin(&b, t, &m->model.params, micro);
    while (bench_next(&b)) {
        MaskRcnnLoss loss = {0};
        model_set_training(&m->model, b.training);
        if (b.training) training_step_begin(t, run->schedule->lr);
        while (bench_part(&b)) {
            part.n = b.n;
            part.position = b.first;
            Truth truth = mask_run_load(run, &part, imagenet_mean, imagenet_std);
            if (b.training) forward_backward(run, &part, &truth, &loss, b.last);
            else mask_run_detect(run, &part.size[0][0], NULL);
        }
        if (b.training) mask_run_update(run, &loss);
    }
    double macs = (double)mask_rcnn_macs(m, H, W, m->settings.proposals, m->settings.detections);
    bench_print(&b, "mask-rcnn", macs, (double)mask_rcnn_training_macs(m, H, W),
                "\"height\": %d, \"width\": %d, \"trainable_params\": %zu, "
                "\"train_images_per_s\": %.4f, \"infer_images_per_s\": %.4f, \"train_fastest_s\": %.4f, "
                "\"infer_fastest_s\": %.4f, \"infer_mfu\": %.4f",
                H, W, m->model.params.parameters, b.train.images_per_s, b.infer.images_per_s, b.train.fastest,
                b.infer.fastest, bench_peak_share(&b, macs, b.infer.images_per_s));
}
