#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/results/predictions.h"
#include "core/text.h"
#include "data/loading/pictures.h"
#include "detection/draw.h"
#include "kernels/kernels.h"
#include "layers/detection/detector.h"

/* Category names: those in the checkpoint, otherwise those of the data, otherwise none. */
static void names_of_checkpoint(Detector *d, int ids) {
    static ClassNames names; /* d->names points into it */
    run_folder_classes(&names, d->training.s->init);
    if (!ids) ids = names.count;
    d->ids = ids;
    d->names = xcalloc((size_t)ids, sizeof *d->names, "names of categories");
    for (int id = 0; id < ids; id++) d->names[id] = id < names.count ? names.at[id] : "";
}

/* A table with this picture only, for drawing. */
static void predicted_coco(const Detector *d, Coco *coco, const char *name, int width, int height) {
    Error error;
    *coco = (Coco){.image_count = 0};
    coco_add_image(coco, 1, name, width, height);
    for (int id = 0; id < d->ids; id++)
        if (*d->names[id]) coco_add_category(coco, id, d->names[id]);
    if (!coco_finish(coco, &error)) die("%s: %s", name, error.text);
}

static void tell_detections(const Detector *d, Predictions *json, const char *name, const CocoResults *results) {
    const CocoDetection *detections = results->detections;
    int shown = 0, count = (int)results->count;
    while (shown < count && detections[shown].score >= (double)d->view->draw_score) shown++;
    print_line("%s: %d objects with a score of at least %g\n", name, shown, (double)d->view->draw_score);
    for (int i = 0; i < shown; i++) {
        const CocoDetection *o = &detections[i];
        const char *category = o->category_id >= 0 && o->category_id < d->ids ? d->names[o->category_id] : "";
        predictions_add_box(json, (int)o->category_id, category, o->score, o->box);
        RleText mask = results->masks.count ? rle_texts_at(&results->masks, (size_t)i) : (RleText){0};
        if (mask.text) predictions_add_mask(json, mask.text, mask.height, mask.width);
        printf("  %5.1f %%  ", 100 * o->score);
        if (*category)
            print_line("%s", category);
        else
            printf("category %lld", (long long)o->category_id);
        printf("  x %.1f  y %.1f  width %.1f  height %.1f\n", o->box[0], o->box[1], o->box[2], o->box[3]);
    }
}

/* Small pictures, on which labels would hide the objects, are drawn enlarged by an integer factor. */
static void draw_picture(const Detector *d, const ImagePart *picture, const char *name, CocoResults *results) {
    CocoDetection *detections = results->detections;
    int longer = picture->height > picture->width ? picture->height : picture->width;
    int times = longer < 512 ? 512 / longer : 1;
    Image image = {picture->height * times, picture->width * times, NULL};
    Error error;
    Coco coco;
    image.pixels = xcalloc((size_t)image.height * (size_t)image.width * 3, 1, "a picture");
    draw_enlarged(&image, picture->pixels, times);
    for (size_t i = 0; i < results->count; i++)
        for (int side = 0; side < 4; side++) detections[i].box[side] *= times;
    predicted_coco(d, &coco, name, image.width, image.height);
    draw_detections(&image, detections, (int)results->count, (double)d->view->draw_score,
                    results->masks.count ? &results->masks : NULL, &coco);
    if (!image_write_png(d->outputs->draw, image.pixels, image.height, image.width, &error))
        die("%s: %s", d->outputs->draw, error.text);
    coco_close(&coco);
    free(image.pixels);
}

/* Reads a picture, a file or val:INDEX.  False: `error` gives the reason. */
static bool read_picture(Detector *d, const char *name, TransformScratch *scratch, ImagePart *picture, Error *error) {
    char *end;
    if (strncmp(name, "val:", 4)) return detection_picture_read(name, false, scratch, picture, error);
    unsigned long long index = strtoull(name + 4, &end, 10);
    if (!d->val.coco.image_count) detection_set_open(&d->val, d->data, d->task, false, d->training.s->seed);
    if (end == name + 4 || *end || index >= (unsigned long long)d->val.coco.image_count)
        die_usage("--predict %s: expected val:INDEX with an index below %d", name, d->val.coco.image_count);
    return detection_set_read(&d->val, (int)index, false, scratch, picture, error);
}

/* The data of --predict. */
typedef struct {
    TransformScratch scratch;
    DetectorPicture picture;
    CocoResults results;
    Predictions json;
} Prediction;

static int rounded_up(const Detector *d, int side) {
    int multiple = d->multiple ? d->multiple : 1;
    return (side + multiple - 1) / multiple * multiple;
}

static bool predict(Detector *d, Prediction *p, const char *name, DetectPicture detect, Error *error) {
    DetectorPicture *shown = &p->picture;
    ImagePart picture;
    if (!read_picture(d, name, &p->scratch, &picture, error)) return false;
    DetectionDraw draw = detection_resize(d->rule, picture.width, picture.height, d->augment->eval_scale,
                                          d->augment->max_size);
    if (draw.width > d->longer || draw.height > d->longer)
        return refuse(error, "%d x %d pixels are too slim a picture", picture.width, picture.height);
    *shown = (DetectorPicture){name, picture.width, picture.height, shown->pixels, rounded_up(d, draw.height),
                               rounded_up(d, draw.width), {draw.height, draw.width}};
    if (!detection_pixels(&p->scratch, shown->pixels, (size_t)shown->W * 3, &picture, &draw))
        die("%s: out of memory", name);
    coco_results_free(&p->results);
    detect(d, shown, &p->results);
    predictions_begin(&p->json, name, picture.width, picture.height);
    tell_detections(d, &p->json, name, &p->results);
    if (*d->outputs->draw) draw_picture(d, &picture, name, &p->results);
    return true;
}

void detector_predict_begin(Detector *d, Pictures *pictures, int ids) {
    pictures_find(pictures, &d->predict->predict, false);
    if (*d->outputs->draw && pictures->count != 1)
        die_usage("--draw: '%s' would be written by --predict of one picture only", d->outputs->draw);
    names_of_checkpoint(d, ids);
    d->shorter = d->augment->eval_scale;
    /* the most by which rounding the short side can lengthen the long one, up to 32 : 1 */
    d->longer = d->augment->max_size + 16;
}

void detector_predict(Detector *d, Pictures *pictures, DetectPicture detect) {
    Prediction p = {.json.wanted = *d->predict->json != 0};
    Error error;
    size_t done = 0;
    linear_keep_weights(pictures->count > 1);
    p.picture.pixels =
        host_malloc((size_t)rounded_up(d, d->shorter) * (size_t)rounded_up(d, d->longer) * 3, "a picture");
    for (size_t i = 0; i < pictures->count; i++) {
        const char *name = pictures->at[i].name;
        if (predict(d, &p, name, detect, &error)) {
            done++;
            continue;
        }
        picture_refuse(&pictures->at[i], &error);
        predictions_fail(&p.json, name, error.text);
    }
    if (!done) die("none of the %zu pictures can be read", pictures->count);
    predictions_write(&p.json, d->predict->json);
    pictures_free(pictures);
    coco_results_free(&p.results);
    host_free(p.picture.pixels);
    transform_scratch_free(&p.scratch);
}
