/* The modes that look at a model without data: its description, and its speed on random images. */
#include "layers/vit/run.h"

#include <stdio.h>

#include "kernels/kernels.h"

void vit_run_describe(VitRun *run) {
    vit_create(&run->vit, &run->training.config);
    vit_run_distill(run);
    vit_plan(&run->vit, vit_run_micro_batch(run), true);
    vit_describe(&run->vit, stdout);
}

void vit_bench_begin(Bench *b, VitRun *run) {
    const VitSettings *s = run->model_settings;
    Training *t = &run->training;
    int micro = vit_run_micro_batch(run), C = s->num_classes;
    vit_run_open_model(run, micro, true);
    bench_fill(run->pixels, (size_t)micro * vit_pixels(s), 256, t->s->seed);
    for (int i = 0; i < micro; i++) run->labels[i] = i % C;
    loader_targets(run->targets, run->labels, micro, C, run->target->label_smoothing);
    bench_begin(b, t, &run->vit.model.params, micro);
}

void vit_bench_print(const Bench *b, VitRun *run) {
    char attn[VIT_ATTN_SIZE];
    double memory = memory_peak_gbytes(), macs = (double)vit_macs(&run->vit);
    double moved = vit_moved_bytes(&run->vit, training_local_batch(&run->training));
    const Attention *a = &trunk_block(&run->vit.trunk, 0)->attention;
    const Plan *training = &run->vit.model.training, *inference = &run->vit.model.inference;
    bench_print(b, vit_attn_names(run->model_settings, attn), macs, 3 * macs,
                "\"algorithm\": \"%s\", \"tokens\": %d, \"params\": %zu, \"train_images_per_s\": %.2f, "
                "\"infer_images_per_s\": %.2f, \"train_batch_seconds\": %.6f, \"infer_batch_seconds\": %.6f, "
                "\"train_bytes\": %zu, \"infer_bytes\": %zu, \"moved_bytes\": %.0f, \"memory_peak_gbytes\": %.1f, "
                "\"bandwidth_fraction\": %.4f",
                a->op->path ? a->op->path(a) : a->op->name, run->vit.trunk.N, run->vit.model.params.parameters,
                b->train.images_per_s, b->infer.images_per_s, b->train.fastest, b->infer.fastest,
                plan_bytes(training) + training->workspace, plan_bytes(inference) + inference->workspace, moved, memory,
                moved * b->train.images_per_s / run->training.s->batch_size / (memory * 1e9));
}
