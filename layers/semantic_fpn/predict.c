#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/results/predictions.h"
#include "core/text.h"
#include "data/detection/detection_set.h"
#include "data/masks/rle.h"
#include "data/segmentation/segmentation_sheet.h"
#include "data/sets/dataset.h"
#include "kernels/kernels.h"
#include "layers/semantic_fpn/run.h"

/* Class names: those in the checkpoint, otherwise those of the data, if these are known without files. */
static const char *const *names_of(SemanticRun *run, ClassNames *owned) {
    run_folder_classes(owned, run->training.s->init);
    return owned->named && owned->count >= run->model_settings->num_classes ? owned->at : NULL;
}

/* The data of --predict. */
typedef struct {
    TransformScratch scratch;
    uint8_t *pixels;   /* host_malloc [room] */
    size_t room, seen; /* number of pixels of the network's pictures, and of originals, for which there is memory */
    const char *const *names;
    uint8_t *chosen; /* [seen]: the pixels of one class */
    Rle region;
    char *text;
    size_t text_room;
    Predictions json;
} Prediction;

/* A region in the JSON file: its share of the picture and, as COCO's run lengths, its pixels. */
static void add_region(Prediction *p, const uint8_t *classes, int class, double share, int height, int width) {
    if (!p->json.wanted) return;
    for (size_t i = 0; i < (size_t)height * (size_t)width; i++) p->chosen[i] = classes[i] == class;
    rle_encode(&p->region, p->chosen, height, width);
    rle_text(&p->text, &p->text_room, &p->region);
    predictions_add_region(&p->json, class, p->names ? p->names[class] : NULL, share, height, width, p->text);
}

typedef struct {
    int class;
    size_t pixels;
} ClassArea;

static int by_area(const void *a, const void *b) {
    const ClassArea *x = a, *y = b;
    if (x->pixels != y->pixels) return x->pixels < y->pixels ? 1 : -1;
    return x->class - y->class;
}

/* Prints the classes of the picture, the largest first. */
static void tell_classes(Prediction *p, const char *name, const uint8_t *classes, int height, int width) {
    ClassArea areas[SEGMENTATION_MOST_CLASSES + 1] = {{0}};
    size_t pixels = (size_t)height * (size_t)width;
    int count = 0;
    for (int i = 0; i <= SEGMENTATION_MOST_CLASSES; i++) areas[i].class = i;
    for (size_t i = 0; i < pixels; i++) areas[classes[i]].pixels++;
    qsort(areas, SEGMENTATION_MOST_CLASSES + 1, sizeof *areas, by_area);
    while (count <= SEGMENTATION_MOST_CLASSES && areas[count].pixels) count++;
    print_line("%s: %d classes\n", name, count);
    for (int i = 0; i < count; i++) {
        double share = (double)areas[i].pixels / (double)pixels;
        printf("  %5.1f %%  ", 100 * share);
        if (p->names) print_line("%s\n", p->names[areas[i].class]);
        else printf("class %d\n", areas[i].class);
        add_region(p, classes, areas[i].class, share, height, width);
    }
}

/* Reads a picture, a file or val:INDEX.  False: `error` gives the reason. */
static bool read_picture(SemanticRun *run, const char *name, TransformScratch *scratch, ImagePart *picture,
                         Error *error) {
    char *end;
    uint8_t *labels;
    if (strncmp(name, "val:", 4)) return detection_picture_read(name, false, scratch, picture, error);
    unsigned long long index = strtoull(name + 4, &end, 10);
    if (!run->val.count) segmentation_set_open(&run->val, run->data, false, run->training.s->seed);
    if (end == name + 4 || *end || index >= (unsigned long long)run->val.count)
        die_usage("--predict %s: expected val:INDEX with an index below %d", name, run->val.count);
    return segmentation_set_read(&run->val, (int)index, scratch, picture, &labels, error);
}

/* Makes room for the classes of a picture of that many pixels. */
static void see(SemanticRun *run, Prediction *p, size_t pixels) {
    if (pixels <= p->seen) return;
    device_free(run->device_classes);
    free(run->classes);
    free(p->chosen);
    run->device_classes = device_malloc(pixels, "classes of a picture");
    run->classes = xcalloc(pixels, 1, "classes of a picture");
    p->chosen = xcalloc(pixels, 1, "a region");
    p->seen = pixels;
}

static bool predict(SemanticRun *run, Prediction *p, const char *name, Error *error) {
    ImagePart picture;
    if (!read_picture(run, name, &p->scratch, &picture, error)) return false;
    SegmentationDraw draw = segmentation_resize(run->augment, picture.height, picture.width);
    int height = draw.out_height, width = draw.out_width;
    if ((size_t)height * (size_t)width > p->room)
        return refuse(error, "%d x %d pixels are too slim a picture", picture.width, picture.height);
    if (!segmentation_pixels(&p->scratch, p->pixels, (size_t)width * 3, &picture, &draw)) die("%s: out of memory", name);
    see(run, p, (size_t)picture.height * (size_t)picture.width);
    semantic_eval_pictures(run, &(SemanticPictures){p->pixels, 1, height, width, imagenet_mean, imagenet_std});
    semantic_eval_classes(run, 0, picture.height, picture.width, name);
    predictions_begin(&p->json, name, picture.width, picture.height);
    tell_classes(p, name, run->classes, picture.height, picture.width);
    if (!*run->outputs->draw) return true;
    const SegmentationView view = {picture.height, picture.width, picture.pixels, (size_t)picture.width * 3,
                                   run->classes, (size_t)picture.width, NULL};
    if (!segmentation_sheet_write(run->outputs->draw, &view, 1, p->names, error))
        die("%s: %s", run->outputs->draw, error->text);
    return true;
}

/* The largest sides of a picture that was resized to fit, rounded up to the next multiple. */
static int most_side(int side) { return (side + SEGMENTATION_MULTIPLE - 1) / SEGMENTATION_MULTIPLE * SEGMENTATION_MULTIPLE; }

void semantic_predict(SemanticRun *run) {
    Prediction p = {.json.wanted = *run->predict->json != 0};
    ClassNames names;
    Pictures pictures;
    Error error;
    size_t done = 0;
    int H = most_side(run->augment->scale_short), W = most_side(run->augment->scale_long);
    pictures_find(&pictures, &run->predict->predict, false);
    if (*run->outputs->draw && pictures.count != 1)
        die_usage("--draw: '%s' would be written by --predict of one picture only", run->outputs->draw);
    semantic_run_find_classes(run);
    p.names = names_of(run, &names);
    run->eval_room = (SemanticRoom){1, H, W, 1, 1};
    semantic_run_open_model(run, false);
    semantic_eval_open(run);
    linear_keep_weights(pictures.count > 1);
    p.room = (size_t)H * (size_t)W;
    p.pixels = host_malloc(p.room * 3, "a picture");
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
    host_free(p.pixels);
    rle_free(&p.region);
    transform_scratch_free(&p.scratch);
}
