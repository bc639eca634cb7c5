#include "layers/density/run.h"

#include <stdlib.h>

#include "core/die.h"
#include "core/distributed.h"
#include "kernels/kernels.h"

/* The number of sequences at a time: as many as keep the device busy and fit in memory.  A pass reads the weights of a
 * block, 12 dim^2 of them, once for all of its rows, so a wide model processes several thousand rows at a time. */
int density_micro_batch(const DensityRun *run) {
    enum { ROWS_FOR_DIM = 6, MOST_ROWS = 4096 };
    size_t dim = (size_t)run->model_settings->dim, rows = activations_at_once() / dim, least = ROWS_FOR_DIM * dim;
    if (least > MOST_ROWS) least = MOST_ROWS;
    int micro = training_micro_batch(&run->training, (rows > least ? rows : least) / (size_t)run->shape.n);
    config_limit(&run->training.config, "micro_batch", (double)micro * run->shape.n, "tokens at a time");
    return micro;
}

/* The number of heads with which the weights were trained, from their file; 0 if the file does not have it. */
static int heads_of(const Config *config, const char *checkpoint) {
    Config other;
    bool told = run_folder_settings(&other, config, checkpoint);
    const SequenceModelSettings *saved = config_settings(&other, &sequence_model_settings);
    int heads = told ? saved->heads : 0;
    config_free(&other);
    return heads;
}

void density_open(DensityRun *run, int batch, SequencePurpose purpose) {
    SequenceModel *m = &run->model;
    const char *init = run->training.s->init;
    sequence_model_create(m, &run->training.config, &run->shape);
    if (*init) sequence_model_check_weights(m, &run->training.config, init, heads_of(&run->training.config, init));
    if (purpose == SEQUENCE_SAMPLE) sequence_model_plan_sampling(m, batch, run->prompt);
    else sequence_model_plan(m, batch, purpose);
    sequence_model_allocate(m);
    params_allocate(&m->model.params, purpose == SEQUENCE_TRAIN);
    if (*init) checkpoint_load_weights(&m->model.params, init, NULL);
    else params_initialize(&m->model.params, run->training.s->seed);
    run->losses = xcalloc((size_t)batch * (size_t)run->shape.n, sizeof *run->losses, "a batch");
}

void density_close(DensityRun *run) {
    sequence_model_destroy(&run->model);
    free(run->losses);
}

/* Tokens of a smaller vocabulary must be below it. */
void density_check_tokens(const DensityRun *run, const uint8_t *tokens, size_t count, const char *from) {
    int V = run->model_settings->vocabulary;
    for (size_t i = 0; V < 256 && i < count; i++)
        if (tokens[i] >= V)
            config_die(&run->training.config, "%s: contains the byte %d, which is not below "
                                              "{vocabulary}", from, tokens[i]);
}

void density_load(DensityRun *run, const uint8_t *tokens, int B) {
    density_check_tokens(run, tokens, (size_t)B * (size_t)run->model.row_bytes, run->set.name);
    sequence_model_load(&run->model, tokens, B);
}

double density_forward_backward(DensityRun *run, int first, int B, bool last) {
    SequenceModel *m = &run->model;
    const Training *t = &run->training;
    int batch = t->s->batch_size, n = m->shape.n;
    double loss = 0;
    sequence_model_draw_drops(m, t->s->seed, (uint32_t)t->state.step, (size_t)first);
    bool same = B == m->model.batch && m->settings.dropout <= 0 && m->settings.embedding_dropout <= 0 &&
                !(last && distributed_ranks() > 1);
    if (!same || device_graph_begin(&run->graph)) {
        sequence_model_forward(m, B, true);
        sequence_model_loss(m, B, 1.0f / ((float)n * (float)batch));
        sequence_model_backward(m, B, true, last ? all_reduce_start : NULL);
        if (same) device_graph_end(&run->graph);
    }
    sequence_model_loss_sums(m, run->losses, B);
    for (int b = 0; b < B; b++) loss += run->losses[b];
    return loss;
}
