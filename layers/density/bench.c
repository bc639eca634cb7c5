/* The modes of train_ar that look at a model without data: its description and its speed. */
#include <stdio.h>
#include <stdlib.h>

#include "core/die.h"
#include "kernels/kernels.h"
#include "layers/density/run.h"
#include "training/bench.h"

void density_describe(DensityRun *run) {
    sequence_model_create(&run->model, &run->training.config, &run->shape);
    sequence_model_plan(&run->model, density_micro_batch(run), SEQUENCE_TRAIN);
    sequence_model_describe(&run->model, run->training.adamw->ema_decay > 0, stdout);
}

void density_bench(DensityRun *run) {
    SequenceModel *m = &run->model;
    const Plan *training = &m->model.training, *inference = &m->model.inference;
    Training *t = &run->training;
    int micro = density_micro_batch(run), n = run->shape.n;
    Bench b;
    density_open(run, micro, SEQUENCE_TRAIN);
    size_t count = (size_t)micro * (size_t)m->row_bytes;
    uint8_t *random = xcalloc(count, 1, "random tokens");
    bench_fill(random, count, m->settings.vocabulary, t->s->seed);
    density_load(run, random, micro);
    free(random);
    bench_begin(&b, t, &m->model.params, micro);
    while (bench_next(&b)) {
        model_set_training(&m->model, b.training);
        if (b.training) training_step_begin(t, 1e-4f);
        while (bench_part(&b)) {
            if (b.training) density_forward_backward(run, b.first, b.n, b.last);
            else sequence_model_forward(m, b.n, false);
        }
        all_reduce_finish();
        if (b.training) training_update(t, 0);
        device_synchronize();
    }
    double macs = sequence_model_training_macs(m);
    bench_print(&b, causal_attn_name(&t->config), sequence_model_macs(m), macs,
                "\"tokens\": %d, \"params\": %zu, \"training_macs\": %.0f, \"train_tokens_per_s\": %.1f, "
                "\"infer_tokens_per_s\": %.1f, \"train_batch_seconds\": %.6f, \"infer_batch_seconds\": %.6f, "
                "\"train_bytes\": %zu, \"infer_bytes\": %zu",
                n, m->model.params.parameters, macs, b.train.images_per_s * n, b.infer.images_per_s * n,
                b.train.fastest, b.infer.fastest, plan_bytes(training) + training->workspace,
                plan_bytes(inference) + inference->workspace);
}
