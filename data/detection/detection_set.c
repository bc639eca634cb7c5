#include "data/detection/detection_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/files.h"
#include "core/integers.h"
#include "core/text.h"
#include "data/images/image.h"
#include "data/images/jpeg.h"
#include "data/detection/shape_scenes.h"
#include "data/sets/shapes.h"

enum { MOST_PATH = 4096 };

#define F(KIND, field) CONFIG_FIELD(KIND, DetectionSetSettings, field)
static const ConfigEntry entries[] = {
    {F(STRING, data), "shapes", .section = "data", .change = CHANGE_PATH,
     .help = "Data set: shapes (generated scenes, no files needed), or the folder with COCO's annotations and images"},
    {F(STRING, train_annotations), "annotations/instances_train2017.json", .argument = "FILE",
     .help = "COCO's annotations for training: an absolute path, or one relative to the folder of data"},
    {F(STRING, train_images), "train2017", .argument = "FOLDER",
     .help = "Folder of the training images: an absolute path, or one relative to the folder of data"},
    {F(STRING, val_annotations), "annotations/instances_val2017.json", .argument = "FILE",
     .help = "COCO's annotations for validation: an absolute path, or one relative to the folder of data"},
    {F(STRING, val_images), "val2017", .argument = "FOLDER",
     .help = "Folder of the validation images: an absolute path, or one relative to the folder of data"},
    {F(INT, train_limit), "0", .min = 0, .max = 1e7, .change = CHANGE_NEVER,
     .help = "Use only the first N training images (0: all)"},
    {F(INT, val_limit), "0", .min = 0, .max = 1e7, .help = "Use only the first N validation images (0: all)"},
    {F(INT, scene_size), "128", .min = SCENES_LEAST_SIDE, .max = 1024, .change = CHANGE_NEVER,
     .help = "Side in pixels of the scenes that shapes generates"},
};
#undef F
const ConfigGroup detection_set_settings = {CONFIG_GROUP(DetectionSetSettings, entries), .change = CHANGE_FREELY};

/* == Tables ======================================================================================================= */

static void set_finish(DetectionSet *set, const char *name) {
    snprintf(set->name, sizeof set->name, "%s", name);
    set->classes = coco_num_classes(&set->coco);
    set->most_boxes = 1;
    for (int i = 0; i < set->coco.image_count; i++) {
        set->most_boxes = larger(set->most_boxes, set->coco.images[i].count);
        set->empty += set->coco.images[i].count == 0;
    }
    for (size_t i = 0; i < set->coco.annotation_count; i++) set->boxes += !set->coco.annotations[i].crowd;
    float(*box)[4] = xcalloc((size_t)set->most_boxes, sizeof *box, "boxes");
    int *label = xcalloc((size_t)set->most_boxes, sizeof *label, "labels");
    for (int i = 0; i < set->coco.image_count; i++)
        set->targets += (size_t)coco_targets(&set->coco, i, box, label, NULL);
    free(box);
    free(label);
    memcpy(set->mean, imagenet_mean, sizeof set->mean);
    memcpy(set->std, imagenet_std, sizeof set->std);
}

/* Prints one line about annotations that are unusable for training. */
static void mention_oddities(const Coco *coco, const char *json) {
    char text[512] = "";
    const struct {
        size_t count;
        const char *what;
    } odd[] = {{coco->degenerate, "without area in their image, left out of training"},
               {coco->maskless, "without a mask, left out of training"},
               {coco->masks.shortened, "with polygons of fewer than three corners, which are left out"},
               {coco->outside, "reaching beyond their image, clipped to it in training"},
               {coco->zero_ids, "with the id 0, which evaluation treats as unmatched, as pycocotools does"}};
    for (size_t i = 0, used = 0; i < sizeof odd / sizeof *odd; i++)
        if (odd[i].count)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%zu %s", used ? "; " : "", odd[i].count,
                                     odd[i].what);
    if (*text) warn("%s: annotations %s", json, text);
}

/* Keeps the first images, which is possible because images are sorted by id and annotations by image. */
static void keep_first(Coco *coco, int limit) {
    if (!limit || limit >= coco->image_count) return;
    coco->annotation_count = coco->images[limit].first;
    coco->image_count = limit;
}

/* Leaves out the pictures on which Mask R-CNN is not trained: small ones, and those without a target. */
static void keep_trainable(Coco *coco, const char *json) {
    enum { LEAST_SIDE = 32 }; /* mmdetection's */
    bool *keep = xcalloc((size_t)coco->image_count, sizeof *keep, "the choice of images");
    int most = 1, kept = 0;
    for (int i = 0; i < coco->image_count; i++) most = larger(most, coco->images[i].count);
    float(*box)[4] = xcalloc((size_t)most, sizeof *box, "boxes");
    int *label = xcalloc((size_t)most, sizeof *label, "labels");
    for (int i = 0; i < coco->image_count; i++) {
        const CocoImage *image = &coco->images[i];
        keep[i] = smaller(image->width, image->height) >= LEAST_SIDE && coco_targets(coco, i, box, label, NULL);
        kept += keep[i];
    }
    if (!kept)
        die("%s: none of its %d images has an object with a mask and sides of at least %d pixels", json,
            coco->image_count, LEAST_SIDE);
    coco_keep(coco, keep);
    free(keep);
    free(box);
    free(label);
}

void detection_set_coco(DetectionSet *set, const char *name, const char *json, const char *folder, DetectionTask task,
                        bool train, int limit) {
    Error error;
    CocoMaskKind masks = task == DETECTION_BOXES ? COCO_NO_MASKS : train ? COCO_POLYGONS : COCO_RLE;
    *set = (DetectionSet){.task = task, .folder = xstrdup(folder)};
    if (!coco_read(&set->coco, json, masks, &error)) die("%s: %s", json, error.text);
    if (masks && train) keep_trainable(&set->coco, json);
    keep_first(&set->coco, limit);
    if (!coco_check_files(&set->coco, folder, &error)) die("%s: %s: %s has them", folder, error.text, json);
    mention_oddities(&set->coco, json);
    set_finish(set, name);
}

void detection_set_scenes(DetectionSet *set, DetectionTask task, bool train, uint64_t seed, int side, int limit) {
    *set = (DetectionSet){.task = task, .seed = seed, .split = !train, .side = side};
    scenes_coco(&set->coco, seed, set->split, limit ? limit : train ? SCENES_TRAIN : SCENES_TEST, side,
                task == DETECTION_MASKS);
    set_finish(set, "shapes");
}

static bool is_shapes(const DetectionSetSettings *s) { return !strcmp(s->data, "shapes"); }

void detection_set_open(DetectionSet *set, const DetectionSetSettings *s, DetectionTask task, bool train,
                        uint64_t seed) {
    char name[sizeof set->name], json[MOST_PATH], folder[MOST_PATH];
    int limit = train ? s->train_limit : s->val_limit;
    if (is_shapes(s)) return detection_set_scenes(set, task, train, seed, s->scene_size, limit);
    text_name_path(name, sizeof name, s->data, "images");
    path_find(json, sizeof json, s->data, train ? s->train_annotations : s->val_annotations);
    path_find(folder, sizeof folder, s->data, train ? s->train_images : s->val_images);
    detection_set_coco(set, name, json, folder, task, train, limit);
}

int detection_set_classes(const DetectionSetSettings *s) { return is_shapes(s) ? SHAPES_CLASSES + 1 : 0; }

void detection_set_close(DetectionSet *set) {
    coco_close(&set->coco);
    free(set->folder);
    *set = (DetectionSet){.side = 0};
}

void detection_set_name_image(const DetectionSet *set, size_t index, char *text, size_t size) {
    if (set->folder)
        snprintf(text, size, "%s/%s", set->folder, set->coco.images[index].file_name);
    else
        snprintf(text, size, "image %zu of %s", index, set->name);
}

/* == Pictures ===================================================================================================== */

static bool out_of_memory(Error *error) { return refuse_memory(error, 0, "its pixels"); }

/* Makes room for a picture with contiguous rows. */
static bool picture_start(ImagePart *picture, SampleBuffer *buffer, int height, int width, Error *error) {
    size_t stride = (size_t)width * 3;
    if (!sample_buffer_grow(buffer, stride * (size_t)height)) return out_of_memory(error);
    *picture = (ImagePart){.pixels = buffer->bytes, .stride = stride, .height = height, .width = width};
    return true;
}

static void copy_rows(uint8_t *to, const ImagePart *from) {
    size_t row = (size_t)from->width * 3;
    for (int y = 0; y < from->height; y++) memcpy(to + (size_t)y * row, from->pixels + (size_t)y * from->stride, row);
}

static bool decode_jpeg(TransformScratch *scratch, size_t size, ImagePart *picture, Error *error) {
    int height, width;
    if (!scratch->jpeg && !(scratch->jpeg = jpeg_open())) return out_of_memory(error);
    return jpeg_begin(scratch->jpeg, scratch->bytes.bytes, size, JPEG_MAX_PIXELS, &height, &width, error) &&
           jpeg_region(scratch->jpeg, 8, (int[]){0, height}, (int[]){0, width}, picture, error);
}

/* Decodes the file in scratch->bytes into scratch->pixels. */
static bool decode(TransformScratch *scratch, size_t size, bool mirror, ImagePart *picture, Error *error) {
    Image image = {.pixels = NULL};
    ImagePart decoded;
    if (jpeg_is(scratch->bytes.bytes, size)) {
        if (!decode_jpeg(scratch, size, &decoded, error)) return false;
    } else {
        if (!image_decode(&image, scratch->bytes.bytes, size, IMAGE_MAX_PIXELS, error)) return false;
        decoded = (ImagePart){image.pixels, (size_t)image.width * 3, 0, 0, image.height, image.width};
    }
    bool ok = picture_start(picture, &scratch->pixels, decoded.height, decoded.width, error);
    if (ok) copy_rows(scratch->pixels.bytes, &decoded);
    if (ok && mirror) augment_mirror(scratch->pixels.bytes, decoded.height, decoded.width);
    if (image.pixels) image_free(&image);
    return ok;
}

bool detection_picture_read(const char *path, bool mirror, TransformScratch *scratch, ImagePart *picture,
                            Error *error) {
    size_t size;
    return file_read_again(path, IMAGE_MAX_BYTES, &scratch->bytes.bytes, &scratch->bytes.room, &size, error) &&
           decode(scratch, size, mirror, picture, error);
}

bool detection_set_read(const DetectionSet *set, int index, bool mirror, TransformScratch *scratch, ImagePart *picture,
                        Error *error) {
    const CocoImage *image = &set->coco.images[index];
    char path[MOST_PATH];
    if (!set->folder) {
        int label[SCENES_MOST], box[SCENES_MOST][4];
        if (!picture_start(picture, &scratch->pixels, set->side, set->side, error)) return false;
        scenes_draw(set->seed, set->split, (uint32_t)index, set->side, scratch->pixels.bytes, NULL, label, box);
        if (mirror) augment_mirror(scratch->pixels.bytes, set->side, set->side);
        return true;
    }
    path_join(path, sizeof path, set->folder, image->file_name);
    if (!detection_picture_read(path, mirror, scratch, picture, error)) return false;
    if (picture->width == image->width && picture->height == image->height) return true;
    return refuse(error, "%d x %d pixels, but the annotations say %d x %d", picture->width, picture->height,
                  image->width, image->height);
}

/* Resizes all of `in` to the step's width x height, and computes only the step's crop of the result. */
static ResampleAxis axis_of_step(int in, int out, int first, int count) {
    ResampleAxis axis = resample_whole(in, out);
    axis.first = first;
    axis.count = count;
    return axis;
}

bool detection_pixels(TransformScratch *scratch, uint8_t *out, size_t stride, const ImagePart *picture,
                      const DetectionDraw *draw) {
    ImagePart in = *picture;
    for (int i = 0; i < draw->steps; i++) {
        const DetectionStep *s = &draw->step[i];
        bool last = i == draw->steps - 1;
        ResampleAxis rows = axis_of_step(in.height, s->height, s->top, s->crop_height);
        ResampleAxis columns = axis_of_step(in.width, s->width, s->left, s->crop_width);
        size_t between = (size_t)s->crop_width * 3;
        if (!last && !sample_buffer_grow(&scratch->crop, between * (size_t)s->crop_height)) return false;
        if (!resample_strided(&scratch->resampler, last ? out : scratch->crop.bytes, last ? stride : between, &in,
                              &rows, &columns, RESAMPLE_BILINEAR))
            return false;
        in = (ImagePart){scratch->crop.bytes, between, 0, 0, s->crop_height, s->crop_width};
    }
    return true;
}
