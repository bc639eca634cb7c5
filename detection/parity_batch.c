#include "detection/parity_batch.h"

#include <math.h>
#include <stdlib.h>

#include "core/die.h"

static const SafeTensor *batch_tensor(const SafeTensors *st, const char *name, int ndim, size_t rows, size_t columns) {
    const SafeTensor *t = safetensors_find(st, name);
    if (!t) die("%s: needs the tensor '%s'", st->file, name);
    if (t->ndim != ndim || (rows && t->shape[0] != rows) || (columns && t->shape[ndim - 1] != columns))
        die("%s: '%s' has another shape than --parity expects", st->file, name);
    return t;
}

static int64_t *batch_numbers(const SafeTensor *t) {
    int64_t *numbers = xcalloc(t->size + 1, sizeof *numbers, "parity");
    safetensors_to_int64(t, numbers, &error_fatal);
    return numbers;
}

/* [B,3,H,W] -> [B,H,W,3] */
static void batch_images(ParityBatch *p, const SafeTensor *t) {
    float *planes = xcalloc(t->size, sizeof *planes, "parity");
    size_t pixels = (size_t)p->H * (size_t)p->W;
    p->images = xcalloc(t->size, sizeof *p->images, "parity");
    safetensors_to_float(t, planes, &error_fatal);
    for (size_t i = 0; i < t->size; i++)
        if (!isfinite(planes[i])) die("%s: '%s' has a value that is not finite, at %zu", t->file, t->name, i);
    for (size_t b = 0; b < (size_t)p->B; b++)
        for (size_t i = 0; i < pixels; i++)
            for (size_t c = 0; c < 3; c++) p->images[(b * pixels + i) * 3 + c] = planes[(b * 3 + c) * pixels + i];
    free(planes);
}

static void batch_targets(ParityBatch *p, const SafeTensors *st, int classes) {
    DetectionPart *part = &p->part;
    int64_t *counts = batch_numbers(batch_tensor(st, "counts", 1, (size_t)p->B, 0));
    part->first = xcalloc((size_t)p->B + 1, sizeof *part->first, "parity");
    for (int b = 0; b < p->B; b++) {
        if (counts[b] < 0 || counts[b] > 65536) die("%s: counts[%d] is %lld", st->file, b, (long long)counts[b]);
        part->first[b + 1] = part->first[b] + (int)counts[b];
    }
    p->T = part->first[p->B];
    part->boxes = xcalloc((size_t)p->T + 1, sizeof *part->boxes, "parity");
    part->labels = xcalloc((size_t)p->T + 1, sizeof *part->labels, "parity");
    if (p->T) {
        int64_t *labels = batch_numbers(batch_tensor(st, "labels", 1, (size_t)p->T, 0));
        safetensors_to_float(batch_tensor(st, "target_boxes", 2, (size_t)p->T, 4), &part->boxes[0][0], &error_fatal);
        for (int i = 0; i < p->T; i++) {
            if (labels[i] < 0 || labels[i] > classes)
                die("%s: label %lld is outside 0..%d", st->file, (long long)labels[i], classes);
            part->labels[i] = (int)labels[i];
        }
        free(labels);
    }
    free(counts);
}

void parity_batch_read(ParityBatch *p, const SafeTensors *st, int classes) {
    *p = (ParityBatch){0};
    const SafeTensor *images = batch_tensor(st, "images", 4, 0, 0);
    if (images->shape[1] != 3 || images->shape[0] > 4096 || images->shape[2] > 8192 || images->shape[3] > 8192 ||
        !images->size)
        die("%s: 'images' must be float32 [B,3,H,W], normalised, zero where padded", st->file);
    p->B = (int)images->shape[0];
    p->H = (int)images->shape[2];
    p->W = (int)images->shape[3];
    int64_t *sizes = batch_numbers(batch_tensor(st, "sizes", 2, (size_t)p->B, 2));
    p->sizes = xcalloc(2 * (size_t)p->B, sizeof *p->sizes, "parity");
    for (int i = 0; i < 2 * p->B; i++) {
        if (sizes[i] < 1 || sizes[i] > (i % 2 ? p->W : p->H))
            die("%s: image %d is %lld high or wide, the batch %d x %d", st->file, i / 2, (long long)sizes[i], p->H,
                p->W);
        p->sizes[i] = (int)sizes[i];
    }
    batch_images(p, images);
    batch_targets(p, st, classes);
    p->part.n = p->B;
    free(sizes);
}
