/* --parity of train_ar: a step on the tokens of a comparison with another framework. */
#include "training/parity.h"

#include <stdlib.h>

#include "core/die.h"
#include "kernels/kernels.h"
#include "layers/density/run.h"

void density_parity_open(DensityRun *run) {
    int dims[PARITY_TOKEN_DIMS];
    bool image = parity_tokens(&run->parity, run->modes->parity, dims) == 4;
    run->shape = image ? (SequenceShape){dims[1] * dims[2] * dims[3], dims[1], dims[2], dims[3], true}
                       : (SequenceShape){dims[1] - 1, 0, 0, 0, false};
}

/* Logits, loss and gradients for these tokens. */
void density_parity(DensityRun *run) {
    SequenceModel *m = &run->model;
    const SafeTensor *given = safetensors_find(&run->parity, "tokens");
    size_t B = given->shape[0], n = (size_t)run->shape.n, V = (size_t)run->model_settings->vocabulary;
    int *labels = xcalloc(given->size, sizeof *labels, "parity");
    uint8_t *tokens = xcalloc(given->size, 1, "parity");
    parity_token_values(&run->parity, run->modes->parity, labels, (int)V);
    density_open(run, (int)B, SEQUENCE_TRAIN);
    parity_parameters(&m->model.params, &run->parity);
    float *logits = xcalloc(B * n * V, sizeof *logits, "parity");
    double loss = 0;
    for (size_t i = 0; i < given->size; i++) tokens[i] = (uint8_t)labels[i];
    density_load(run, tokens, (int)B);
    sequence_model_forward(m, (int)B, false);
    real_download(logits, m->logits, B * n * V);
    sequence_model_loss(m, (int)B, 1.0f / ((float)B * (float)n));
    sequence_model_loss_sums(m, run->losses, (int)B);
    sequence_model_backward(m, (int)B, false, NULL);
    for (size_t b = 0; b < B; b++) loss += run->losses[b];
    float mean = (float)(loss / (double)(B * n));
    const SafeTensorEntry outputs[] = {{"logits", SAFE_F32, 3, {B, n, V}, logits}, {"loss", SAFE_F32, 1, {1}, &mean}};
    parity_write(run->modes->out, outputs, 2, &m->model.params);
    free(labels);
    free(tokens);
    free(logits);
    safetensors_close(&run->parity);
}
