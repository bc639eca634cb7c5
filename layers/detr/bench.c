#include <string.h>

#include "core/die.h"
#include "core/rng.h"
#include "data/sets/dataset.h"
#include "kernels/kernels.h"
#include "layers/detr/run.h"
#include "training/bench.h"

/* A batch of images of one size, with seven boxes per image, COCO's average. */
enum { BENCH_BOXES = 7 };

static void fill(DetectionPart *p, const DetrRun *run, int images) {
    const int *size = run->d.view->image_size;
    uint64_t seed = run->d.training.s->seed;
    size_t n = (size_t)images, pixels = n * 3 * (size_t)size[0] * (size_t)size[1];
    *p = (DetectionPart){.n = images, .height = size[0], .width = size[1]};
    p->pixels = host_malloc(pixels, "a batch");
    p->size = xcalloc(n, sizeof *p->size, "a batch");
    p->boxes = xcalloc(n * BENCH_BOXES, sizeof *p->boxes, "a batch");
    p->labels = xcalloc(n * BENCH_BOXES, sizeof *p->labels, "a batch");
    p->first = xcalloc(n + 1, sizeof *p->first, "a batch");
    bench_fill(p->pixels, pixels, 256, seed);
    for (int b = 0; b < images; b++) {
        memcpy(p->size[b], size, sizeof p->size[b]);
        p->first[b + 1] = (b + 1) * BENCH_BOXES;
    }
    for (int i = 0; i < images * BENCH_BOXES; i++) {
        p->labels[i] = i % run->model_settings->num_classes;
        for (int k = 0; k < 4; k++)
            p->boxes[i][k] = 0.2f + 0.4f * rng_uniform(seed, RNG_TEST, 1, 0, (uint64_t)(4 * i + k));
    }
}

static void forward_backward(DetrRun *run, const DetectionPart *part, StepLoss *loss, bool last) {
    Detr *detr = &run->detr;
    detr_draw(detr, run->d.training.s->seed, (uint32_t)run->d.training.state.step, (size_t)part->position);
    detr_forward(detr);
    detection_loss(run, part, loss);
    detr_backward(detr, last ? all_reduce_start : NULL);
}

void detr_bench(DetrRun *run) {
    Detr *detr = &run->detr;
    Training *t = &run->d.training;
    int H = run->d.view->image_size[0], W = run->d.view->image_size[1];
    int micro = detector_micro_batch(&run->d, H, W, 4 * run->model_settings->backbone_width);
    DetectionPart part;
    Bench b;
    detr_run_find_classes(run);
    detr_run_open_model(run, micro, H, W, true);
    detr_run_open_buffers(run, micro, BENCH_BOXES, true);
    fill(&part, run, micro);
    bench_begin(&b, t, &detr->model.params, micro);
    while (bench_next(&b)) {
        StepLoss loss = {.boxes = t->s->batch_size * BENCH_BOXES};
        model_set_training(&detr->model, b.training);
        if (b.training) training_step_begin(t, run->schedule->lr);
        while (bench_part(&b)) {
            part.n = b.n;
            part.position = b.first;
            detr_run_load(run, &part, imagenet_mean, imagenet_std);
            if (b.training) {
                forward_backward(run, &part, &loss, b.last);
            } else {
                detr_forward(detr);
                detr_predictions(detr, run->logits, run->boxes);
            }
        }
        if (b.training) detr_run_update(run, &loss);
    }
    double macs = (double)detr_macs(detr, H, W);
    bench_print(&b, run->model_settings->attn->name, macs, (double)detr_training_macs(detr, H, W),
                "\"height\": %d, \"width\": %d, \"trainable_params\": %zu, "
                "\"train_images_per_s\": %.4f, \"infer_images_per_s\": %.4f, \"train_fastest_s\": %.4f, "
                "\"infer_fastest_s\": %.4f, \"infer_mfu\": %.4f",
                H, W, detr->model.params.parameters, b.train.images_per_s, b.infer.images_per_s, b.train.fastest,
                b.infer.fastest, bench_peak_share(&b, macs, b.infer.images_per_s));
}
