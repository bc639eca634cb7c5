#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/results/outcome.h"
#include "core/results/predictions.h"
#include "core/text.h"
#include "data/loading/pictures.h"
#include "detection/draw.h"
#include "detection/postprocess.h"
#include "kernels/kernels.h"
#include "layers/detr/run.h"

/* Category names: those in the checkpoint, else those of the data, else none. */
static void names_open(DetrRun *run) {
    static ClassNames names; /* run->names points into it */
    run_folder_classes(&names, run->training.s->init);
    run->names = xcalloc((size_t)run->model_settings->num_classes, sizeof *run->names, "names of categories");
    for (int id = 0; id < run->model_settings->num_classes; id++) run->names[id] = id < names.count ? names.at[id] : "";
}

/* A table of the one picture, for drawing. */
static void predicted_coco(const DetrRun *run, Coco *coco, const char *name, int width, int height) {
    Error error;
    *coco = (Coco){.image_count = 0};
    coco_add_image(coco, 1, name, width, height);
    for (int id = 0; id < run->model_settings->num_classes; id++)
        if (*run->names[id]) coco_add_category(coco, id, run->names[id]);
    if (!coco_finish(coco, &error)) die("%s: %s", name, error.text);
}

static void tell_detections(const DetrRun *run, Predictions *json, const char *name, const CocoDetection *detections,
                            int count) {
    int shown = 0;
    while (shown < count && detections[shown].score >= (double)run->view->draw_score) shown++;
    print_line("%s: %d objects with a score of at least %g\n", name, shown, (double)run->view->draw_score);
    for (int i = 0; i < shown; i++) {
        const CocoDetection *d = &detections[i];
        const char *category = d->category_id < run->model_settings->num_classes ? run->names[d->category_id] : "";
        predictions_add_box(json, (int)d->category_id, category, d->score, d->box);
        printf("  %5.1f %%  ", 100 * d->score);
        if (*category)
            print_line("%s", category);
        else
            printf("category %lld", (long long)d->category_id);
        printf("  x %.1f  y %.1f  width %.1f  height %.1f\n", d->box[0], d->box[1], d->box[2], d->box[3]);
    }
}

/* Small pictures, on which labels would hide the objects, are drawn enlarged by an integer factor. */
static void draw_picture(const DetrRun *run, const ImagePart *picture, const char *name, CocoDetection *detections,
                         int count) {
    int longer = picture->height > picture->width ? picture->height : picture->width;
    int times = longer < 512 ? 512 / longer : 1;
    Image image = {picture->height * times, picture->width * times, NULL};
    Error error;
    Coco coco;
    image.pixels = xcalloc((size_t)image.height * (size_t)image.width * 3, 1, "a picture");
    draw_enlarged(&image, picture->pixels, times);
    for (int i = 0; i < count; i++)
        for (int side = 0; side < 4; side++) detections[i].box[side] *= times;
    predicted_coco(run, &coco, name, image.width, image.height);
    draw_detections(&image, detections, count, (double)run->view->draw_score, NULL, &coco);
    if (!image_write_png(run->outputs->draw, image.pixels, image.height, image.width, &error))
        die("%s: %s", run->outputs->draw, error.text);
    coco_close(&coco);
    free(image.pixels);
}

/* Reads a picture, a file or val:INDEX.  False: `error` gives the reason. */
static bool read_picture(DetrRun *run, const char *name, TransformScratch *scratch, ImagePart *picture, Error *error) {
    char *end;
    if (strncmp(name, "val:", 4)) return detection_picture_read(name, false, scratch, picture, error);
    unsigned long long index = strtoull(name + 4, &end, 10);
    if (!run->val.coco.image_count)
        detection_set_open(&run->val, run->data, DETECTION_BOXES, false, run->training.s->seed);
    if (end == name + 4 || *end || index >= (unsigned long long)run->val.coco.image_count)
        die_usage("--predict %s: expected val:INDEX with an index below %d", name, run->val.coco.image_count);
    return detection_set_read(&run->val, (int)index, false, scratch, picture, error);
}

/* The data of --predict. */
typedef struct {
    TransformScratch scratch;
    uint8_t *pixels;
    CocoDetection *detections; /* [Q] */
    Predictions json;
} Prediction;

static bool predict(DetrRun *run, Prediction *p, const char *name, Error *error) {
    int Q = run->model_settings->queries, C = run->model_settings->num_classes + 1;
    CocoDetection *detections = p->detections;
    uint8_t *pixels = p->pixels;
    ImagePart picture;
    if (!read_picture(run, name, &p->scratch, &picture, error)) return false;
    DetectionDraw draw = detection_resize(DETECTION_DETR, picture.width, picture.height, run->augment->eval_scale,
                                          run->augment->max_size);
    if (draw.width > run->longer || draw.height > run->longer)
        return refuse(error, "%d x %d pixels are too slim a picture", picture.width, picture.height);
    if (!detection_pixels(&p->scratch, pixels, (size_t)draw.width * 3, &picture, &draw)) die("%s: out of memory", name);
    detr_load(&run->detr, pixels, (int[]){draw.height, draw.width}, imagenet_mean, imagenet_std, 1, draw.height,
              draw.width);
    detr_forward(&run->detr);
    detr_predictions(&run->detr, run->logits, run->boxes);
    outcome_require(run->logits, (size_t)Q * (size_t)C, run->training.s->init, name);
    outcome_require(run->boxes, (size_t)Q * 4, run->training.s->init, name);
    int count = postprocess(detections, Q, run->logits, run->boxes, Q, C, 1, picture.width, picture.height);
    predictions_begin(&p->json, name, picture.width, picture.height);
    tell_detections(run, &p->json, name, detections, count);
    if (*run->outputs->draw) draw_picture(run, &picture, name, detections, count);
    return true;
}

void detr_predict(DetrRun *run) {
    Prediction p = {.json.wanted = *run->predict->json != 0};
    Pictures pictures;
    Error error;
    size_t done = 0;
    pictures_find(&pictures, &run->predict->predict, false);
    if (*run->outputs->draw && pictures.count != 1)
        die_usage("--draw: '%s' would be written by --predict of one picture only", run->outputs->draw);
    detr_run_find_classes(run);
    names_open(run);
    run->shorter = run->augment->eval_scale;
    /* by how much rounding the short side can lengthen the long one, up to 32 : 1 */
    run->longer = run->augment->max_size + 16;
    detr_run_open_model(run, 1, run->shorter, run->longer, false);
    linear_keep_weights(pictures.count > 1);
    detr_run_open_buffers(run, 1, 1, false);
    p.pixels = host_malloc((size_t)run->shorter * (size_t)run->longer * 3, "a picture");
    p.detections = xcalloc((size_t)run->model_settings->queries, sizeof *p.detections, "detections");
    for (size_t i = 0; i < pictures.count; i++) {
        const char *name = pictures.at[i].name;
        if (predict(run, &p, name, &error)) {
            done++;
            continue;
        }
        picture_refuse(&pictures.at[i], &error);
        predictions_fail(&p.json, name, error.text);
    }
    if (!done) die("none of the %zu pictures can be read", pictures.count);
    predictions_write(&p.json, run->predict->json);
    pictures_free(&pictures);
    free(p.detections);
    host_free(p.pixels);
    transform_scratch_free(&p.scratch);
}
