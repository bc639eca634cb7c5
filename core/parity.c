#include "core/parity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint.h"
#include "core/die.h"
#include "kernels/kernels.h"

void parity_images(SafeTensors *st, const char *path, int size[2], int *frames) {
    Error error;
    if (!safetensors_open(st, path, &error)) die("%s", error.text);
    const SafeTensor *images = safetensors_find(st, "images"), *labels = safetensors_find(st, "labels");
    if (!images || !labels) die("%s: needs the tensors 'images' [B,3,H,W] and 'labels' [B]", path);
    bool clips = images->ndim == 5;
    const size_t *shape = images->shape + clips;
    if ((images->ndim != 4 && !clips) || shape[1] != 3 || images->dtype != SAFE_F32 || !images->size ||
        images->shape[0] > 65536 || (clips && images->shape[1] > 1024) || shape[2] > 4096 || shape[3] > 4096)
        die("%s: 'images' must be float32 [B,3,H,W], or clips [B,frames,3,H,W], already normalised", path);
    if (labels->ndim != 1 || labels->shape[0] != images->shape[0])
        die("%s: 'labels' must be int64 [%zu], one for every image", path, images->shape[0]);
    size[0] = (int)shape[2];
    size[1] = (int)shape[3];
    *frames = clips ? (int)images->shape[1] : 1;
}

int parity_tokens(SafeTensors *st, const char *path, int dims[PARITY_TOKEN_DIMS]) {
    Error error;
    if (!safetensors_open(st, path, &error)) die("%s", error.text);
    const SafeTensor *tokens = safetensors_find(st, "tokens");
    bool text = tokens && tokens->ndim == 2 && tokens->shape[1] > 1;
    if (!tokens || !(text || tokens->ndim == 4) || !tokens->size || tokens->size > 1 << 28)
        die("%s: needs the tensor 'tokens', int64 [B,H,W,C] of images or [B,n+1] of text", path);
    for (int i = 0; i < tokens->ndim; i++) dims[i] = (int)tokens->shape[i];
    return tokens->ndim;
}

/* Reads integers from 0 to below - 1; `what` and `place` name one of another value in the message. */
static void read_integers(const SafeTensor *tensor, const char *path, const char *what, const char *place, int *to,
                          int below) {
    Error error;
    int64_t *wide = xcalloc(tensor->size, sizeof *wide, "parity");
    if (!safetensors_to_int64(tensor, wide, &error)) die("%s", error.text);
    for (size_t i = 0; i < tensor->size; i++) {
        if (wide[i] < 0 || wide[i] >= below)
            die("%s: %s %lld of %s %zu is outside 0..%d", path, what, (long long)wide[i], place, i, below - 1);
        to[i] = (int)wide[i];
    }
    free(wide);
}

void parity_labels(const SafeTensors *st, const char *path, int *labels, int classes) {
    read_integers(safetensors_find(st, "labels"), path, "label", "image", labels, classes);
}

void parity_token_values(const SafeTensors *st, const char *path, int *tokens, int vocabulary) {
    read_integers(safetensors_find(st, "tokens"), path, "token", "number", tokens, vocabulary);
}

void parity_parameters(Params *params, const SafeTensors *st) {
    Error error;
    int present = 0;
    for (int i = 0; i < params_count(params); i++) present += safetensors_find(st, params_at(params, i)->name) != NULL;
    if (present && !checkpoint_read_weights(params, params->values, st, "", NULL, &error))
        die("%s", error.text);
}

void parity_write(const char *path, const SafeTensorEntry *outputs, int count, const Params *params) {
    size_t most = (size_t)params_count(params) + (size_t)count;
    SafeTensorEntry *out = xcalloc(most, sizeof *out, "parity");
    char(*names)[PARAM_NAME_SIZE + 8] = xcalloc(most, sizeof *names, "parity");
    Error error;
    float *grads = xcalloc(params->total, sizeof *grads, "parity");
    device_download(grads, params->grads, params->total * sizeof *grads);
    memcpy(out, outputs, (size_t)count * sizeof *outputs);
    for (int i = 0; i < params_count(params); i++) {
        const Param *p = params_at(params, i);
        SafeTensorEntry *to = &out[count];
        if (p->frozen) continue;
        snprintf(names[count], sizeof names[count], "grad.%s", p->name);
        *to = (SafeTensorEntry){.name = names[count++], .dtype = SAFE_F32, .ndim = p->ndim, .data = grads + p->offset};
        for (int d = 0; d < p->ndim; d++) to->shape[d] = (size_t)p->shape[d];
    }
    if (!safetensors_write(path, out, count, NULL, 0, &error)) die("%s", error.text);
    free(grads);
    free(names);
    free(out);
}
