#include "training/parity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "training/checkpoint.h"
#include "core/die.h"
#include "core/text.h"

/* The axis of the frames in `clips`, and in `images` that are clips. */
enum { FRAMES_LAST = 2, FRAMES_FIRST = 1 };

static const SafeTensor *pixels_of(const SafeTensors *st, int *frame_axis) {
    const SafeTensor *images = safetensors_find(st, "images"), *clips = safetensors_find(st, "clips");
    *frame_axis = images ? FRAMES_FIRST : FRAMES_LAST;
    return images && clips ? NULL : images ? images : clips;
}

void parity_images(SafeTensors *st, const char *path, int size[2], int *frames) {
    int axis;
    safetensors_open(st, path, &error_fatal);
    const SafeTensor *images = pixels_of(st, &axis), *labels = safetensors_find(st, "labels");
    if (!images || !labels)
        die("%s: needs the tensors 'images' [B,3,H,W], or 'clips' [B,3,frames,H,W], and 'labels' [B]", path);
    bool clips = images->ndim == 5;
    const size_t *shape = images->shape;
    if ((images->ndim != 4 && !clips) || (axis == FRAMES_LAST && !clips) ||
        (clips ? shape[3 - axis] : shape[1]) != 3 || images->dtype != SAFE_F32 || !images->size || shape[0] > 65536 ||
        (clips && shape[axis] > 1024) || shape[2 + clips] > 4096 || shape[3 + clips] > 4096)
        die("%s: 'images' must be float32 [B,3,H,W], or clips: [B,frames,3,H,W], or 'clips' [B,3,frames,H,W], already "
            "normalised", path);
    if (labels->ndim != 1 || labels->shape[0] != shape[0])
        die("%s: 'labels' must be int64 [%zu], one for every image", path, shape[0]);
    size[0] = (int)shape[2 + clips];
    size[1] = (int)shape[3 + clips];
    *frames = clips ? (int)shape[axis] : 1;
}

/* [B,3,frames,area] becomes [B,frames,3,area]. */
static float *frames_first(float *x, size_t B, size_t frames, size_t area) {
    float *to = xcalloc(B * 3 * frames * area, sizeof *to, "parity");
    for (size_t b = 0; b < B; b++)
        for (size_t c = 0; c < 3; c++)
            for (size_t t = 0; t < frames; t++)
                memcpy(to + ((b * frames + t) * 3 + c) * area, x + ((b * 3 + c) * frames + t) * area,
                       area * sizeof *to);
    free(x);
    return to;
}

float *parity_pixels(const SafeTensors *st, int *B) {
    int axis;
    const SafeTensor *images = pixels_of(st, &axis);
    float *pixels = xcalloc(images->size, sizeof *pixels, "parity");
    safetensors_to_float(images, pixels, &error_fatal);
    for (size_t i = 0; i < images->size; i++)
        if (!isfinite(pixels[i])) die("%s: '%s' has a value that is not finite, at %zu", st->file,
                                      images->name, i);
    *B = (int)images->shape[0];
    if (axis == FRAMES_FIRST) return pixels;
    return frames_first(pixels, images->shape[0], images->shape[2], images->shape[3] * images->shape[4]);
}

int parity_tokens(SafeTensors *st, const char *path, int dims[PARITY_TOKEN_DIMS]) {
    safetensors_open(st, path, &error_fatal);
    const SafeTensor *tokens = safetensors_find(st, "tokens");
    bool text = tokens && tokens->ndim == 2 && tokens->shape[1] > 1;
    if (!tokens || !(text || tokens->ndim == 4) || !tokens->size || tokens->size > 1 << 28)
        die("%s: needs the tensor 'tokens', int64 [B,H,W,C] of images or [B,n+1] of text", path);
    for (int i = 0; i < tokens->ndim; i++) dims[i] = (int)tokens->shape[i];
    return tokens->ndim;
}

/* Reads integers from 0 to below - 1; `what` and `place` name an integer out of range in the message. */
static void read_integers(const SafeTensor *tensor, const char *path, const char *what, const char *place, int *to,
                          int below) {
    int64_t *wide = xcalloc(tensor->size, sizeof *wide, "parity");
    safetensors_to_int64(tensor, wide, &error_fatal);
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

/* The first parameter in the file that this model does not have, or NULL; *count: how many.  Results and a PyTorch
 * module's buffers may be in the same file. */
static const char *first_stranger(const Params *params, const SafeTensors *st, int *count) {
    const char *first = NULL;
    *count = 0;
    for (int i = 0; i < st->count; i++) {
        const char *name = st->tensors[i].name;
        bool weight = text_ends_with(name, ".weight") || text_ends_with(name, ".bias");
        if (!weight || !strncmp(name, "grad.", 5) || params_find(params, name)) continue;
        if (!first) first = name;
        ++*count;
    }
    return first;
}

/* Weights with other names would leave this model's initial values, without a message.  Besides all of this model's,
 * the file may have weights of a module that the authors do not use, which are reported. */
void parity_parameters(Params *params, const SafeTensors *st) {
    int present = 0, strangers;
    const char *stranger = first_stranger(params, st, &strangers);
    for (int i = 0; i < params_count(params); i++) present += safetensors_find(st, params_at(params, i)->name) != NULL;
    if (present) checkpoint_read_weights(params, params->values, st, "", NULL, &error_fatal);
    if (stranger && !present)
        die("%s: '%s' is no parameter of this model: another attn, depth, pool or stem, or other names than timm's?",
            st->file, stranger);
    if (stranger)
        warn("%s: '%s'%s not used: no parameter of this model", st->file, stranger,
             strangers > 1 ? " and others are" : " is");
}

void parity_write(const char *path, const SafeTensorEntry *outputs, int count, const Params *params) {
    size_t most = (size_t)params_count(params);
    SafeTensorEntry *out = xcalloc((size_t)count + most, sizeof *out, "parity");
    char(*names)[CHECKPOINT_NAME] = xcalloc(most, sizeof *names, "parity");
    float *grads = xcalloc(params->total, sizeof *grads, "parity");
    memcpy(out, outputs, (size_t)count * sizeof *outputs);
    count += checkpoint_entries(out + count, names, grads, params, params->grads, "grad.");
    safetensors_write(path, out, count, NULL, 0, &error_fatal);
    free(grads);
    free(names);
    free(out);
}
