#include "training/parity.h"

#include "core/die.h"
#include "detection/parity_batch.h"
#include "kernels/device/device.h"
#include "layers/detr/run.h"

void detr_parity(DetrRun *run) {
    const DetrSettings *s = run->model_settings;
    Detr *detr = &run->detr;
    ParityBatch p;
    SafeTensors st;
    safetensors_open(&st, run->d.modes->parity, &error_fatal);
    detr_run_find_classes(run);
    parity_batch_read(&p, &st, run->model_settings->num_classes);
    detr_run_open_model(run, p.B, p.H, p.W, true);
    detr_run_open_buffers(run, p.B, p.T ? p.T : 1, true);
    parity_parameters(&detr->model.params, &st);
    detr_fold(detr);
    size_t pixels = (size_t)p.B * 3 * (size_t)p.H * (size_t)p.W;
    uint8_t *black = host_malloc(pixels, "parity");
    detr_load(detr, black, p.sizes, (const float[3]){0}, (const float[3]){1, 1, 1}, p.B, p.H, p.W);
    real_upload(detr->images, p.images, pixels);
    detr_draw(detr, run->d.training.s->seed, 0, 0);
    detr_forward(detr);
    StepLoss loss = {.boxes = p.T};
    detection_loss(run, &p.part, &loss);
    detr_backward(detr, NULL);
    float total = (float)loss.total;
    size_t L = (size_t)s->decoder_layers, B = (size_t)p.B, Q = (size_t)s->queries, C = (size_t)s->num_classes + 1;
    const SafeTensorEntry outputs[] = {{"logits", SAFE_F32, 4, {L, B, Q, C}, run->logits},
                                       {"boxes", SAFE_F32, 4, {L, B, Q, 4}, run->boxes},
                                       {"loss", SAFE_F32, 1, {1}, &total}};
    parity_write(run->d.modes->out, outputs, 3, &detr->model.params);
    host_free(black);
    safetensors_close(&st);
}
