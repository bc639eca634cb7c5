/* The modes that look at a model without data: its description, and its speed on random images. */
#include "layers/vit/vit_run.h"

#include <stdio.h>

#include "core/distributed.h"
#include "core/rng.h"
#include "kernels/kernels.h"
#include "training/bench.h"

void vit_run_describe(VitRun *run) {
    vit_create(&run->vit, &run->training.config);
    vit_plan(&run->vit, vit_run_micro_batch(run), true);
    vit_describe(&run->vit, stdout);
}

void vit_bench(VitRun *run, void (*batch)(void *run, bool training)) {
    const VitSettings *s = run->model;
    Training *t = &run->training;
    Params *params = t->params = &run->vit.model.params;
    int micro = vit_run_micro_batch(run), C = s->num_classes;
    vit_run_open_model(run, micro, true);
    params_allocate_optimizer(params, false);
    for (size_t i = 0; i < (size_t)micro * vit_pixels(s); i++)
        run->pixels[i] = (uint8_t)rng_bits(t->s->seed, RNG_TEST, 0, 0, i);
    for (int b = 0; b < micro; b++) run->labels[b] = b % C;
    loader_targets(run->targets, run->labels, micro, C, run->target->label_smoothing);
    double memory = memory_peak_gbytes();
    Bench b = bench(batch, run, "images", &t->s->batch_size, micro * distributed_ranks(),
                    (double)t->s->bench_seconds);
    int images = t->s->batch_size;
    char attn[VIT_ATTN_SIZE];
    double moved = vit_moved_bytes(&run->vit, training_local_batch(&run->training));
    double gflops = 3 * 2 * (double)vit_macs(&run->vit) * b.train.images_per_s / 1e9 / distributed_ranks();
    if (distributed_rank() > 0) return;
    const Attention *a = &vit_block(&run->vit, 0)->attention;
    const Plan *training = &run->vit.model.training, *inference = &run->vit.model.inference;
    printf("{\"attn\": \"%s\", \"algorithm\": \"%s\", \"device\": \"%s\", \"tokens\": %d, \"ranks\": %d, "
           "\"batch_size\": %d, \"micro_batch\": %d, \"params\": %zu, \"macs\": %zu, \"train_images_per_s\": %.2f, "
           "\"infer_images_per_s\": %.2f, \"train_batch_seconds\": %.6f, \"infer_batch_seconds\": %.6f, "
           "\"train_bytes\": %zu, \"infer_bytes\": %zu, \"peak_bytes\": %zu, \"gemm_peak_gflops\": %.1f, "
           "\"mfu\": %.4f, \"moved_bytes\": %.0f, \"memory_peak_gbytes\": %.1f, \"bandwidth_fraction\": %.4f}\n",
           vit_attn_names(s, attn), a->op->path ? a->op->path(a) : a->op->name, kernels_device(), run->vit.N,
           distributed_ranks(), images, micro, params->parameters, vit_macs(&run->vit), b.train.images_per_s,
           b.infer.images_per_s, b.train.fastest, b.infer.fastest, plan_bytes(training) + training->workspace,
           plan_bytes(inference) + inference->workspace, device_peak_bytes(), b.peak, gflops / b.peak, moved, memory,
           moved * b.train.images_per_s / images / (memory * 1e9));
}
