#include <stdio.h>
#include <string.h>

#include "training/bench.h"
#include "core/die.h"
#include "core/distributed.h"
#include "core/rng.h"
#include "data/sets/dataset.h"
#include "kernels/kernels.h"
#include "layers/detr/run.h"

/* A batch of images of one size, with seven boxes per image, COCO's average. */
enum { BENCH_BOXES = 7 };

static void fill(DetectionPart *p, const DetrRun *run, int images) {
    const int *size = run->view->image_size;
    uint64_t seed = run->training.s->seed;
    size_t n = (size_t)images, pixels = n * 3 * (size_t)size[0] * (size_t)size[1];
    *p = (DetectionPart){.n = images, .height = size[0], .width = size[1]};
    p->pixels = host_malloc(pixels, "a batch");
    p->size = xcalloc(n, sizeof *p->size, "a batch");
    p->boxes = xcalloc(n * BENCH_BOXES, sizeof *p->boxes, "a batch");
    p->labels = xcalloc(n * BENCH_BOXES, sizeof *p->labels, "a batch");
    p->first = xcalloc(n + 1, sizeof *p->first, "a batch");
    for (size_t i = 0; i < pixels; i++) p->pixels[i] = (uint8_t)rng_bits(seed, RNG_TEST, 0, 0, i);
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

/* One step on a batch of such images, micro-batch by micro-batch. */
static void train_batch(DetrRun *run, const DetectionPart *images) {
    Detr *detr = &run->detr;
    DetectionPart part = *images;
    StepLoss loss = {.boxes = run->training.s->batch_size * BENCH_BOXES};
    int begin, end;
    training_share(&run->training, &begin, &end);
    model_set_training(&detr->model, true);
    training_step_begin(&run->training, run->schedule->lr);
    for (; begin < end; begin += part.n) {
        part.n = end - begin < images->n ? end - begin : images->n;
        detr_run_load(run, &part, imagenet_mean, imagenet_std);
        detr_draw(detr, run->training.s->seed, (uint32_t)run->training.state.step, (size_t)begin);
        detr_forward(detr);
        detection_loss(run, &part, &loss);
        detr_backward(detr, begin + part.n == end ? all_reduce_start : NULL);
    }
    detr_run_update(run, &loss);
}

static void infer_batch(DetrRun *run, const DetectionPart *images) {
    Detr *detr = &run->detr;
    DetectionPart part = *images;
    int begin, end;
    training_share(&run->training, &begin, &end);
    model_set_training(&detr->model, false);
    for (; begin < end; begin += part.n) {
        part.n = end - begin < images->n ? end - begin : images->n;
        detr_run_load(run, &part, imagenet_mean, imagenet_std);
        detr_forward(detr);
        detr_predictions(detr, run->logits, run->boxes);
    }
}

void detr_bench(DetrRun *run) {
    Detr *detr = &run->detr;
    int H = run->view->image_size[0], W = run->view->image_size[1], micro = detr_run_micro_batch(run, H, W);
    DetectionPart images;
    Bench b;
    detr_run_find_classes(run);
    detr_run_open_model(run, micro, H, W, true);
    detr_run_open_buffers(run, micro, BENCH_BOXES, true);
    fill(&images, run, micro);
    bench_begin(&b, &run->training, &detr->model.params, micro);
    while (bench_next(&b)) {
        if (b.training) train_batch(run, &images);
        else infer_batch(run, &images);
    }
    double macs = (double)detr_macs(detr, H, W);
    bench_print(&b, run->model_settings->attn->name, (double)detr_training_macs(detr, H, W),
                "\"height\": %d, \"width\": %d, \"trainable_params\": %zu, \"macs\": %.0f, "
                "\"train_images_per_s\": %.4f, \"infer_images_per_s\": %.4f, \"train_fastest_s\": %.4f, "
                "\"infer_fastest_s\": %.4f, \"infer_mfu\": %.4f",
                H, W, detr->model.params.parameters, macs, b.train.images_per_s, b.infer.images_per_s, b.train.fastest,
                b.infer.fastest, bench_peak_share(&b, macs, b.infer.images_per_s));
}
