#include <stdio.h>
#include <string.h>

#include "core/bench.h"
#include "core/die.h"
#include "core/distributed.h"
#include "core/rng.h"
#include "data/dataset.h"
#include "kernels/kernels.h"
#include "layers/detr/detr_run.h"

/* A batch of images of one size, with seven boxes per image, COCO's average. */
enum { BENCH_BOXES = 7 };

typedef struct {
    DetrRun *run;
    DetectionPart part; /* a whole micro-batch */
} DetrBench;

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

static void bench_batch(void *context, bool training) {
    const DetrBench *bench = context;
    DetrRun *run = bench->run;
    Detr *detr = &run->detr;
    DetectionPart part = bench->part;
    StepLoss loss = {0};
    int begin, end;
    training_share(&run->training, &begin, &end);
    model_set_training(&detr->model, training);
    if (training) device_zero(detr->model.params.grads, detr->model.params.total * sizeof(float));
    for (int next = begin; next < end; next += part.n) {
        part.n = end - next < bench->part.n ? end - next : bench->part.n;
        part.position = next;
        detr_load(detr, part.pixels, &part.size[0][0], imagenet_mean, imagenet_std, part.n, part.height, part.width);
        if (training) detr_draw(detr, run->training.s->seed, (uint32_t)run->training.state.step, (size_t)next);
        detr_forward(detr);
        if (training) {
            detection_loss(run, &part, run->training.s->batch_size * BENCH_BOXES, &loss);
            detr_backward(detr, next + part.n == end ? all_reduce_start : NULL);
        } else {
            detr_predictions(detr, run->logits, run->boxes);
        }
    }
    if (training) {
        detr_run_update(run, &loss);
        run->training.state.step++;
    }
}

void detr_bench(DetrRun *run) {
    Training *t = &run->training;
    Params *params = t->params = &run->detr.model.params;
    int H = run->view->image_size[0], W = run->view->image_size[1], images = detr_run_micro_batch(run, H, W);
    detr_run_find_classes(run);
    detr_run_open_model(run, images, H, W, true);
    detr_run_open_buffers(run, images, BENCH_BOXES, true);
    params_allocate_optimizer(params, false);
    t->state.lr = run->schedule->lr;
    DetrBench context = {.run = run};
    fill(&context.part, run, images);
    Bench b = bench(bench_batch, &context, "images", &t->s->batch_size, images * distributed_ranks(),
                    (double)t->s->bench_seconds);
    double macs = (double)detr_macs(&run->detr, H, W), training_macs = (double)detr_training_macs(&run->detr, H, W);
    double per_mac = 2 / 1e9 / distributed_ranks() / b.peak;
    if (distributed_rank() > 0) return;
    printf("{\"attn\": \"%s\", \"device\": \"%s\", \"height\": %d, \"width\": %d, \"ranks\": %d, \"batch_size\": %d, "
           "\"micro_batch\": %d, \"trainable_params\": %zu, \"macs\": %.0f, \"train_images_per_s\": %.4f, "
           "\"infer_images_per_s\": %.4f, \"train_fastest_s\": %.4f, \"infer_fastest_s\": %.4f, "
           "\"peak_bytes\": %zu, \"gemm_peak_gflops\": %.1f, \"mfu\": %.4f, \"infer_mfu\": %.4f}\n",
           run->model_settings->attn->name, kernels_device(), H, W, distributed_ranks(), t->s->batch_size, images,
           params->parameters, macs, b.train.images_per_s, b.infer.images_per_s, b.train.fastest, b.infer.fastest,
           device_peak_bytes(), b.peak, per_mac * training_macs * b.train.images_per_s,
           per_mac * macs * b.infer.images_per_s);
}
