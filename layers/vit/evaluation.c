/* Counts the results of an evaluation: images one by one, videos by the scores of all their views. */
#include "layers/vit/run.h"

#include <math.h>
#include <stdio.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/files.h"
#include "core/progress.h"
#include "core/signals.h"
#include "core/text.h"
#include "core/results/outcome.h"

/* == Counting ===================================================================================================== */

static int label_of(const VitEvaluation *e, int label) {
    if (label < 0) return -1 - label_of(e, -1 - label);
    return e->class_of ? e->class_of[label] : label;
}

/* predicted -1: an image that cannot be read. */
static void count_real(VitEvaluation *e, size_t index, int predicted) {
    size_t count;
    if (!e->real.images) return;
    const int *labels = real_labels_of(&e->real, index, &count);
    bool right = false;
    for (size_t i = 0; i < count; i++) right |= label_of(e, labels[i]) == predicted;
    e->real_right += right;
    e->real_counted += count > 0;
}

static Outcome count_outcome(VitRun *run, size_t index, int label, const float *logits) {
    VitEvaluation *e = &run->evaluation;
    Outcome found = outcome_of(logits, run->model_settings->num_classes, label);
    e->right += found.place < 1;
    e->right5 += found.place < 5;
    e->loss += found.loss;
    if (e->confusion.classes) confusion_add(&e->confusion, label, &found);
    count_real(e, index, found.predicted);
    return found;
}

/* Each rank counts its share of the videos, whichever ranks have evaluated their views. */
static void count_videos(VitRun *run) {
    Views *views = &run->evaluation.views;
    bool stopping = distributed_any(stop_signal != 0);
    if (!stopping) views_sum(views);
    size_t rank = (size_t)distributed_rank(), ranks = (size_t)distributed_ranks();
    size_t first = views->videos * rank / ranks, end = views->videos * (rank + 1) / ranks;
    for (size_t v = first; !stopping && v < end; v++)
        if (views_complete(views, v, run->test.name)) count_outcome(run, v, views->labels[v], views_logits(views, v));
        else run->evaluation.failed++;
    views_close(views);
}

void vit_eval_begin(VitRun *run) {
    VitEvaluation *e = &run->evaluation;
    e->right = e->right5 = e->loss = e->real_right = e->real_counted = 0;
    e->failed = 0;
    confusion_clear(&e->confusion);
    vit_facts_begin(run);
    if (run->test.clips)
        views_open(&e->views, run->test.count, run->model_settings->num_classes, loader_views(&run->test_loader),
                   run->clips->view_scores == SCORES_LOGITS);
}

void vit_eval_add(VitRun *run, const LoaderPart *images) {
    VitEvaluation *e = &run->evaluation;
    size_t place = images->batch * (size_t)run->test_loader.config.parts.batch_size + (size_t)images->first;
    for (int b = 0; b < images->n; b++, place++) { /* place: position in the epoch, in which each video has loader_views
                                                    * positions */
        const float *logits = run->logits + (size_t)b * (size_t)run->model_settings->num_classes;
        int label = label_of(e, images->labels[b]);
        if (run->test.clips) {
            views_add(&e->views, place, label, logits);
            continue;
        }
        if (label < 0) {
            e->failed++;
            count_real(e, place, -1);
            continue;
        }
        Outcome found = count_outcome(run, place, label, logits);
        vit_facts_add(run, images->pixels + (size_t)b * vit_pixels(run->model_settings), label, logits, &found);
    }
}

void vit_eval_end(VitRun *run) {
    VitEvaluation *e = &run->evaluation;
    double count = (double)run->test.count;
    if (run->test.clips) count_videos(run);
    double sums[] = {e->right, e->right5, e->loss, e->real_right, e->real_counted, (double)e->failed};
    training_sum(&run->training, sums, 6);
    e->failed = (size_t)sums[5];
    if (e->confusion.classes && !run->training.stopping) confusion_sum(&e->confusion);
    e->top1 = 100 * sums[0] / count;
    e->top5 = 100 * sums[1] / count;
    /* An image or video that cannot be read counts as wrong, but it has no loss. */
    run->training.validation_loss = sums[2] / fmax(count - (double)e->failed, 1);
    e->real_right = sums[3];
    e->real_counted = sums[4];
}

/* == --eval ======================================================================================================= */

/* Maps the data's classes to those of the weights, by name if both have names. */
static void match_classes(VitRun *run) {
    const Dataset *d = &run->test;
    const char *path = run->training.s->init;
    int *class_of;
    ClassNames names;
    run_folder_classes(&names, path);
    if (names.named && d->class_names) {
        class_of = run->evaluation.class_of = xcalloc((size_t)d->classes, sizeof *class_of, "classes");
        bool same = class_names_match(&names, path, class_of, d->class_names, d->classes, d->name);
        if (!same && distributed_rank() == 0)
            print_line("%s: its %d classes have other numbers than the %d of %s: matched by name\n", d->name,
                       d->classes, names.count, path);
    }
    class_names_free(&names);
}

void vit_eval_open(VitRun *run) {
    const VitModeSettings *s = run->vit_modes;
    confusion_check_path(s->confusion);
    vit_run_open_data(run, false);
    match_classes(run);
    vit_run_open_model(run, vit_run_micro_batch(run), false);
    if (*s->confusion || *s->per_class)
        confusion_open(&run->evaluation.confusion, run->model_settings->num_classes, *s->confusion != 0);
}

void vit_eval_report(VitRun *run) {
    VitEvaluation *e = &run->evaluation;
    const Training *t = &run->training;
    const VitModeSettings *s = run->vit_modes;
    bool counts = e->confusion.classes && !t->stopping, written = true;
    ClassNames names = {0};
    Error error;
    if (!t->stopping) outcome_require_loss(t->validation_loss, t->s->init, run->test.name);
    if (distributed_rank() > 0) return;
    const char *things = run->test.clips ? "videos" : "images";
    progress_show(true, "%zu %s %s of %s", run->test.count, vit_run_evaluated(run), things, run->test.name);
    if (counts)
        written = confusion_report(&e->confusion, s->confusion, s->per_class, vit_run_class_names(run, &names), &error);
    class_names_free(&names);
    if (e->failed) printf("failed: %zu %s\n", e->failed, things);
    printf("loss: %.6f\n", t->validation_loss);
    printf("top1: %.4f top5: %.4f\n", e->top1, e->top5);
    if (e->real.images)
        printf("real: %.4f of %.0f images with labels\n",
               e->real_counted > 0 ? 100 * e->real_right / e->real_counted : 0, e->real_counted);
    if (!written) die("%s", error.text);
}

/* == At the end of a run ========================================================================================== */

void vit_eval_note_test(const VitRun *run) {
    const Training *t = &run->training;
    char path[RUN_PATH_SIZE], text[256];
    Error error;
    if (distributed_rank() > 0) return;
    int size = snprintf(text, sizeof text, "{\"images\": %zu, \"top1\": %.4f, \"top5\": %.4f, \"loss\": %.6f, "
                        "\"weights\": \"best.safetensors\", \"validation_top1\": %.4f}\n", run->test.count,
                        run->evaluation.top1, run->evaluation.top5, t->validation_loss, t->state.best);
    run_folder_file(path, t->s->run_dir, "test.json");
    if (!file_write(path, text, (size_t)size, &error)) die("%s: %s", path, error.text);
}
