#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/progress.h"
#include "core/results/outcome.h"
#include "data/segmentation/sliding_windows.h"
#include "kernels/kernels.h"
#include "layers/semantic_fpn/run.h"

/* == A picture ==================================================================================================== */

static bool slides(const SemanticRun *run) { return run->view->eval_windows == WINDOWS_SLIDE; }

static size_t logits_of(const SemanticRun *run, int height, int width) {
    return (size_t)(height / 4) * (size_t)(width / 4) * (size_t)run->model_settings->num_classes;
}

void semantic_eval_open(SemanticRun *run) {
    const SemanticRoom *room = &run->eval_room;
    size_t pixels = (size_t)room->label_H * (size_t)room->label_W;
    size_t logits = logits_of(run, room->H, room->W);
    int size = run->view->window_size, stride = run->view->window_stride;
    run->own_labels = xcalloc(pixels, 1, "labels of a picture");
    run->classes = xcalloc(pixels, 1, "classes of a picture");
    run->device_classes = device_malloc(pixels, "classes of a picture");
    if (slides(run)) {
        /* A picture with height and width exchanged, or with a smaller side, has at most the same number of windows. */
        SlidingWindow first = sliding_window(room->H, room->W, size, stride, 0);
        logits = (size_t)sliding_count(room->H, room->W, size, stride) * logits_of(run, first.height, first.width);
        run->window_pixels = host_malloc((size_t)first.height * (size_t)first.width * 3, "a window");
        run->window_logits = device_malloc(logits * sizeof *run->window_logits, "logits of windows");
    }
    if (run->modes->eval || run->predict->predict.count)
        run->host_logits = xcalloc(logits, sizeof *run->host_logits, "logits of a picture");
}

static LogitWindows whole_windows(const SemanticRun *run, int out_H, int out_W) {
    const SemanticPictures *p = &run->shown;
    return (LogitWindows){run->model_settings->num_classes, p->height / 4, p->width / 4, p->height, p->width, 1, 1,
                          p->height, p->width, p->height, p->width, out_H, out_W};
}

/* The logits of each window of picture b, one after the other. */
static LogitWindows slide(SemanticRun *run, int b, int out_H, int out_W) {
    const SemanticPictures *p = &run->shown;
    int size = run->view->window_size, stride = run->view->window_stride;
    int count = sliding_count(p->height, p->width, size, stride), across = sliding_count(1, p->width, size, stride);
    const uint8_t *pixels = p->pixels + (size_t)b * (size_t)p->height * (size_t)p->width * 3;
    LogitWindows windows = whole_windows(run, out_H, out_W);
    for (int i = 0; i < count; i++) {
        SlidingWindow w = sliding_window(p->height, p->width, size, stride, i);
        size_t row = (size_t)w.width * 3, n = logits_of(run, w.height, w.width);
        device_uploads_wait();
        for (int y = 0; y < w.height; y++)
            memcpy(run->window_pixels + (size_t)y * row,
                   pixels + ((size_t)(w.top + y) * (size_t)p->width + (size_t)w.left) * 3, row);
        semantic_fpn_load(&run->net, run->window_pixels, (int[]){w.height, w.width}, p->mean, p->std, 1, w.height,
                          w.width);
        semantic_fpn_forward(&run->net);
        device_copy(run->window_logits + (size_t)i * n, run->net.head.logits, n * sizeof *run->window_logits);
        windows.height = w.height;
        windows.width = w.width;
    }
    windows.h = windows.height / 4;
    windows.w = windows.width / 4;
    windows.across = across;
    windows.down = count / across;
    windows.stride_y = windows.stride_x = stride;
    return windows;
}

void semantic_eval_pictures(SemanticRun *run, const SemanticPictures *p) {
    int *sizes = xcalloc(2 * (size_t)p->n, sizeof *sizes, "sizes of pictures");
    run->shown = *p;
    for (int i = 0; i < 2 * p->n; i++) sizes[i] = i % 2 ? p->width : p->height;
    if (!slides(run)) {
        semantic_fpn_load(&run->net, p->pixels, sizes, p->mean, p->std, p->n, p->height, p->width);
        semantic_fpn_forward(&run->net);
    }
    free(sizes);
}

static const real *own_logits(const SemanticRun *run, int b) {
    return run->net.head.logits + (size_t)b * logits_of(run, run->shown.height, run->shown.width);
}

void semantic_eval_classes(SemanticRun *run, int b, int height, int width, const char *what) {
    LogitWindows windows = slides(run) ? slide(run, b, height, width) : whole_windows(run, height, width);
    const real *logits = slides(run) ? run->window_logits : own_logits(run, b);
    if (run->host_logits) {
        size_t n = (size_t)windows.down * (size_t)windows.across * logits_of(run, windows.height, windows.width);
        real_download(run->host_logits, logits, n);
        outcome_require(run->host_logits, n, run->training.s->init, what);
    }
    pixel_classes(run->device_classes, logits, &windows);
    device_download(run->classes, run->device_classes, (size_t)height * (size_t)width);
}

/* The loss of the whole picture b against run->own_labels. */
static float picture_loss(SemanticRun *run, int b, int height, int width) {
    const SemanticPictures *p = &run->shown;
    const PixelShape shape = {1, run->model_settings->num_classes, p->height / 4, p->width / 4, height, width};
    float loss;
    device_upload(run->net.labels, run->own_labels, (size_t)height * (size_t)width);
    pixel_cross_entropy(run->net.loss, NULL, own_logits(run, b), run->net.labels, 0, &shape);
    device_download(&loss, run->net.loss, sizeof loss);
    return loss;
}

/* == All of them ================================================================================================== */

void semantic_eval_begin(SemanticRun *run) {
    int classes = run->model_settings->num_classes;
    segmentation_counts_close(&run->counts);
    segmentation_counts_open(&run->counts, classes);
    run->loss = run->pictures = 0;
}

void semantic_eval_add(SemanticRun *run, const SegmentationPart *part) {
    size_t stride = (size_t)part->label_width, picture = (size_t)part->label_height * stride;
    semantic_eval_pictures(run, &(SemanticPictures){part->pixels, part->n, part->height, part->width, run->val.mean,
                                                    run->val.std});
    for (int b = 0; b < part->n; b++) {
        if (part->image[b] < 0) continue; /* unreadable: it does not count */
        int height = part->label_size[b][0], width = part->label_size[b][1];
        const uint8_t *labels = part->labels + (size_t)b * picture;
        for (int y = 0; y < height; y++)
            memcpy(run->own_labels + (size_t)y * (size_t)width, labels + (size_t)y * stride, (size_t)width);
        semantic_eval_classes(run, b, height, width, run->val.name);
        segmentation_counts_add(&run->counts, run->classes, (size_t)width, run->own_labels, (size_t)width, height,
                                width);
        semantic_facts_keep(run, part, b, height, width);
        if (!slides(run)) run->loss += (double)picture_loss(run, b, height, width);
        run->pictures++;
    }
}

void semantic_eval_end(SemanticRun *run) {
    double sums[] = {run->loss, run->pictures};
    training_sum(&run->training, sums, 2);
    if (run->training.stopping) return;
    segmentation_counts_sum(&run->counts);
    run->loss = sums[0];
    run->pictures = sums[1];
    run->training.validation_loss = sums[0] / (sums[1] > 0 ? sums[1] : 1);
    run->scores = segmentation_scores(&run->counts);
}

void semantic_eval_report(SemanticRun *run) {
    const char *path = run->outputs->per_class;
    const SegmentationScores *s = &run->scores;
    Error error;
    outcome_require_loss(run->training.validation_loss, run->training.s->init, run->val.name);
    if (distributed_rank() > 0) return;
    progress_show(true, "%.0f validation pictures of %s", run->pictures, run->val.name);
    segmentation_counts_print(&run->counts, semantic_run_names(run));
    printf("mIoU: %.2f\nmAcc: %.2f\naAcc: %.2f\n", 100 * s->miou, 100 * s->macc, 100 * s->aacc);
    if (!slides(run)) printf("loss: %.6f\n", run->training.validation_loss);
    if (*path && !segmentation_counts_write(&run->counts, path, semantic_run_names(run), &error))
        die("%s: %s", path, error.text);
}
