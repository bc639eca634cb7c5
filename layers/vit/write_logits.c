/* --write-logits: the logits of all training images, prepared as for evaluation, for --teacher. */
#include "layers/vit/run.h"

#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/progress.h"
#include "core/results/outcome.h"
#include "core/signals.h"
#include "core/text.h"
#include "kernels/kernels.h"

/* The values of a bfloat16 model are already bfloat16. */
static void narrow(uint16_t *to, const float *from, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, from + i, sizeof bits);
        to[i] = (uint16_t)(bits >> 16);
    }
}

void vit_write_logits(VitRun *run) {
    const char *path = run->vit_modes->write_logits;
    size_t C = (size_t)run->model_settings->num_classes, width = sizeof(real), done = 0;
    LoaderConfig config = vit_run_samples(run, false);
    char digest[TEACHER_DIGEST_SIZE];
    int batch = vit_run_micro_batch(run);
    Loader loader;
    if (run->train.clips)
        config_reject(&run->training.config, "write_logits", "{data} has clips, and logits are written for images "
                      "only: give the checkpoint itself as teacher");
    vit_run_open_split(run, &run->train, true); /* held-out images, too */
    vit_run_open_model(run, batch, false);
    config.parts.batch_size = batch;
    config.replaces = true; /* as training does where it reads these logits */
    loader_open(&loader, &run->train, &config);
    uint8_t *all = xcalloc(run->train.count, C * width, "the logits");
    model_evaluation_begin(&run->vit.model);
    for (; done < run->train.count && !stop_signal;) {
        size_t left = run->train.count - done;
        int n = left < (size_t)batch ? (int)left : batch;
        loader_fill(&loader, done, n, run->pixels, run->labels);
        vit_load_pixels(&run->vit, run->pixels, run->train.mean, run->train.std, n);
        vit_forward(&run->vit, n, false);
        real_download(run->logits, run->vit.logits, (size_t)n * C);
        device_uploads_wait();
        outcome_require(run->logits, (size_t)n * C, run->training.s->init, run->train.name);
        if (width == 2) narrow((uint16_t *)all + done * C, run->logits, (size_t)n * C);
        else memcpy((float *)all + done * C, run->logits, (size_t)n * C * sizeof(float));
        done += (size_t)n;
        progress_show(false, "logits of %zu/%zu", done, run->train.count);
    }
    if (stop_signal) die("%s: stopped before all logits were there: nothing is written", path);
    teacher_digest(digest, &run->train);
    SafeTensorEntry entry = {TEACHER_LOGITS, width == 2 ? SAFE_BF16 : SAFE_F32, 2, {run->train.count, C}, all};
    safetensors_write(path, &entry, 1, &(SafeMetadata){TEACHER_DIGEST, digest}, 1, &error_fatal);
    print_line("%s: logits of the %zu training images of %s, %zu classes\n", path, run->train.count, run->train.name, C);
    free(all);
    parts_close(&loader.parts);
}
