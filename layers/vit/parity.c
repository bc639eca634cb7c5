/* --parity: one forward and backward pass on the inputs of another framework. */
#include "layers/vit/run.h"

#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "kernels/kernels.h"
#include "training/parity.h"

void vit_parity_open(VitRun *run) {
    const char *path = run->modes->parity;
    int *size = run->model_settings->img_size, *frames = &run->model_settings->frames, found[2], count;
    parity_images(&run->parity, path, found, &count);
    if (config_origin(&run->training.config, "frames") && *frames != count)
        config_die(&run->training.config, "%s: has %d frame%s for each label, which is not {frames}", path, count,
                   count > 1 ? "s" : "");
    *frames = count;
    if (config_origin(&run->training.config, "img_size") && memcmp(size, found, sizeof found))
        config_die(&run->training.config, "%s: images are %dx%d, which is not {img_size}", path, found[0], found[1]);
    memcpy(size, found, sizeof found);
}

/* The file's `teacher_logits` [B,C]. */
static void load_teacher(VitRun *run, int B, int C) {
    const SafeTensor *logits = safetensors_find(&run->parity, "teacher_logits");
    if (!logits || logits->ndim != 2 || logits->shape[0] != (size_t)B || logits->shape[1] != (size_t)C)
        die("%s: a loss against a teacher needs teacher_logits [%d,%d]", run->modes->parity, B, C);
    float *values = xcalloc(logits->size, sizeof *values, "teacher_logits");
    safetensors_to_float(logits, values, &error_fatal);
    real_upload(run->vit.teacher_logits, values, logits->size);
    vit_load_teacher(&run->vit, false, 1, B);
    free(values);
}

void vit_parity(VitRun *run) {
    Vit *vit = &run->vit;
    double loss = 0;
    int B, C = run->model_settings->num_classes;
    float *pixels = parity_pixels(&run->parity, &B);

    vit_run_open_model(run, B, true);
    parity_parameters(&vit->model.params, &run->parity);
    parity_labels(&run->parity, run->modes->parity, run->labels, C);
    loader_targets(run->targets, run->labels, B, C, 0);
    real_upload(vit->images, pixels, (size_t)B * vit_pixels(run->model_settings));
    vit_forward(vit, B, false);
    real_download(run->logits, vit->logits, (size_t)B * (size_t)C);
    vit_load_targets(vit, run->targets, B);
    if (vit->distillation.kind != DISTILLATION_NONE) load_teacher(run, B, C);
    vit_loss(vit, B, 1.0f / (float)B);
    vit_losses(vit, run->losses, B);
    vit_backward(vit, B, false, NULL);
    for (int b = 0; b < B; b++) loss += run->losses[b];
    float mean = (float)(loss / B);
    const SafeTensorEntry outputs[] = {{"logits", SAFE_F32, 2, {(size_t)B, (size_t)C}, run->logits},
                                       {"loss", SAFE_F32, 1, {1}, &mean}};
    parity_write(run->modes->out, outputs, 2, &vit->model.params);
    free(pixels);
    safetensors_close(&run->parity);
}
