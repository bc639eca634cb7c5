/* The modes of train_ar that look at a model without data: its description and its speed. */
#include <stdio.h>
#include <stdlib.h>

#include "training/bench.h"
#include "core/die.h"
#include "core/distributed.h"
#include "core/rng.h"
#include "kernels/kernels.h"
#include "layers/density/run.h"

void density_describe(DensityRun *run) {
    sequence_model_create(&run->model, &run->training.config, &run->shape);
    sequence_model_plan(&run->model, density_micro_batch(run), SEQUENCE_TRAIN);
    sequence_model_describe(&run->model, run->training.adamw->ema_decay > 0, stdout);
}

static void bench_batch(void *context, bool training) {
    DensityRun *run = context;
    Training *t = &run->training;
    int begin, end;
    training_share(t, &begin, &end);
    model_set_training(&run->model.model, training);
    if (training) training_step_begin(t, 1e-4f);
    for (int first = begin, B; first < end; first += B) {
        B = end - first < run->model.model.batch ? end - first : run->model.model.batch;
        if (training) density_forward_backward(run, first, B, first + B == end);
        else sequence_model_forward(&run->model, B, false);
    }
    all_reduce_finish();
    if (training) training_update(t, 0);
    if (training) t->state.step++;
    device_synchronize();
}

void density_bench(DensityRun *run) {
    const SequenceModel *m = &run->model;
    const Plan *training = &m->model.training, *inference = &m->model.inference;
    Training *t = &run->training;
    Params *params = t->params = &run->model.model.params;
    int micro = density_micro_batch(run), n = run->shape.n;
    density_open(run, micro, SEQUENCE_TRAIN);
    params_allocate_optimizer(params, false);
    size_t count = (size_t)micro * (size_t)m->row_bytes;
    uint8_t *random = xcalloc(count, 1, "random tokens");
    for (size_t i = 0; i < count; i++)
        random[i] = (uint8_t)(rng_bits(t->s->seed, RNG_TEST, 0, 0, i) % (uint32_t)m->settings.vocabulary);
    density_load(run, random, micro);
    Bench b = bench(bench_batch, run, "sequences", &t->s->batch_size, micro * distributed_ranks(),
                    (double)t->s->bench_seconds);
    free(random);
    if (distributed_rank() > 0) return;
    double macs = sequence_model_training_macs(m);
    printf("{\"attn\": \"%s\", \"device\": \"%s\", \"tokens\": %d, \"ranks\": %d, \"batch_size\": %d, "
           "\"micro_batch\": %d, \"params\": %zu, \"macs\": %.0f, \"training_macs\": %.0f, "
           "\"train_tokens_per_s\": %.1f, \"infer_tokens_per_s\": %.1f, \"train_batch_seconds\": %.6f, "
           "\"infer_batch_seconds\": %.6f, \"train_bytes\": %zu, \"infer_bytes\": %zu, \"peak_bytes\": %zu, "
           "\"gemm_peak_gflops\": %.1f, \"mfu\": %.4f}\n",
           causal_attn_name(&t->config), kernels_device(), n, distributed_ranks(), t->s->batch_size, micro,
           params->parameters, sequence_model_macs(m), macs, b.train.images_per_s * n,
           b.infer.images_per_s * n, b.train.fastest, b.infer.fastest, plan_bytes(training) + training->workspace,
           plan_bytes(inference) + inference->workspace, device_peak_bytes(), b.peak,
           2 * macs * b.train.images_per_s / 1e9 / distributed_ranks() / b.peak);
}
