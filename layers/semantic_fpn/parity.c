#include "training/parity.h"

#include <math.h>
#include <stdlib.h>

#include "core/die.h"
#include "kernels/kernels.h"
#include "layers/semantic_fpn/run.h"

/* The batch of --parity: `images` [B,3,H,W], normalised, H and W multiples of 32, and `labels` [B,H,W], each a class or
 * 255. */
typedef struct {
    int B, H, W;
    float *images;   /* [B,H,W,3] */
    uint8_t *labels; /* [B,H,W] */
} PixelBatch;

static const SafeTensor *tensor_of(const SafeTensors *st, const char *name, int ndim) {
    const SafeTensor *t = safetensors_find(st, name);
    if (!t || t->ndim != ndim || !t->size)
        die("%s: needs 'images' [B,3,H,W] and 'labels' [B,H,W]: '%s' is %s", st->file, name,
            t ? "of another shape" : "missing");
    return t;
}

static void read_images(PixelBatch *p, const SafeTensor *t) {
    float *planes = xcalloc(t->size, sizeof *planes, "parity");
    size_t area = (size_t)p->H * (size_t)p->W;
    p->images = xcalloc(t->size, sizeof *p->images, "parity");
    safetensors_to_float(t, planes, &error_fatal);
    for (size_t i = 0; i < t->size; i++) {
        size_t plane = i / area, pixel = i % area;
        if (!isfinite(planes[i])) die("%s: '%s' has a value that is not finite, at %zu", t->file, t->name, i);
        p->images[(plane / 3 * area + pixel) * 3 + plane % 3] = planes[i];
    }
    free(planes);
}

static void read_labels(PixelBatch *p, const SafeTensor *t, int classes) {
    int64_t *labels = xcalloc(t->size, sizeof *labels, "parity");
    p->labels = xcalloc(t->size, 1, "parity");
    safetensors_to_int64(t, labels, &error_fatal);
    for (size_t i = 0; i < t->size; i++) {
        if ((labels[i] < 0 || labels[i] >= classes) && labels[i] != LABEL_IGNORED)
            die("%s: label %lld is outside 0..%d and not %d", t->file, (long long)labels[i], classes - 1,
                LABEL_IGNORED);
        p->labels[i] = (uint8_t)labels[i];
    }
    free(labels);
}

static void read_batch(PixelBatch *p, const SafeTensors *st, int classes) {
    const SafeTensor *images = tensor_of(st, "images", 4), *labels = tensor_of(st, "labels", 3);
    const size_t *shape = images->shape;
    if (shape[1] != 3 || shape[0] > 4096 || shape[2] > 8192 || shape[3] > 8192 || shape[2] % BACKBONE_STRIDE ||
        shape[3] % BACKBONE_STRIDE)
        die("%s: 'images' must be float32 [B,3,H,W], normalised, H and W multiples of %d", st->file, BACKBONE_STRIDE);
    if (labels->shape[0] != shape[0] || labels->shape[1] != shape[2] || labels->shape[2] != shape[3])
        die("%s: 'labels' must be [%zu,%zu,%zu], one for every pixel", st->file, shape[0], shape[2], shape[3]);
    *p = (PixelBatch){(int)shape[0], (int)shape[2], (int)shape[3], NULL, NULL};
    read_images(p, images);
    read_labels(p, labels, classes);
}

static float mean_of(const SemanticFpn *net, int B) {
    float *losses = xcalloc((size_t)B, sizeof *losses, "parity");
    double sum = 0;
    device_synchronize();
    device_download(losses, net->loss, (size_t)B * sizeof *losses);
    for (int b = 0; b < B; b++) sum += (double)losses[b];
    free(losses);
    return (float)(sum / B);
}

void semantic_parity(SemanticRun *run) {
    SemanticFpn *net = &run->net;
    PixelBatch p;
    SafeTensors st;
    safetensors_open(&st, run->modes->parity, &error_fatal);
    semantic_run_find_classes(run);
    read_batch(&p, &st, run->model_settings->num_classes);
    run->room = run->eval_room = (SemanticRoom){p.B, p.H, p.W, p.H, p.W};
    semantic_run_open_model(run, true);
    parity_parameters(&net->model.params, &st);
    semantic_fpn_fold(net);
    size_t pixels = (size_t)p.B * 3 * (size_t)p.H * (size_t)p.W;
    uint8_t *black = host_malloc(pixels, "parity");
    int *sizes = xcalloc(2 * (size_t)p.B, sizeof *sizes, "parity");
    for (int i = 0; i < 2 * p.B; i++) sizes[i] = i % 2 ? p.W : p.H;
    semantic_fpn_load(net, black, sizes, (const float[3]){0}, (const float[3]){1, 1, 1}, p.B, p.H, p.W);
    real_upload(net->backbone.images, p.images, pixels);
    semantic_fpn_load_labels(net, p.labels, p.H, p.W);
    semantic_fpn_draw(net, run->training.s->seed, 0, 0);
    semantic_fpn_forward(net);
    semantic_fpn_loss(net, 1 / (float)p.B);
    semantic_fpn_backward(net, NULL);
    size_t B = (size_t)p.B, h = (size_t)p.H / 4, w = (size_t)p.W / 4, K = (size_t)run->model_settings->num_classes;
    float loss = mean_of(net, p.B), *logits = xcalloc(B * h * w * K, sizeof *logits, "parity");
    real_download(logits, net->head.logits, B * h * w * K);
    const SafeTensorEntry outputs[] = {{"logits", SAFE_F32, 4, {B, h, w, K}, logits},
                                       {"loss", SAFE_F32, 1, {1}, &loss}};
    parity_write(run->modes->out, outputs, 2, &net->model.params);
    host_free(black);
    safetensors_close(&st);
}
