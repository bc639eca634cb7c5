#include "data/detection/detection_loader.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/integers.h"
#include "data/detection/size_buckets.h"

/* While threads fill a slot, each image has room for most_boxes targets; detection_next then removes the gaps. */
typedef struct {
    DetectionPart part;
    uint32_t *index; /* [n]: the image planned for this place, before any replacement */
    int *count;      /* [n]: number of its targets */
    size_t *place;   /* [n,most_boxes]: their annotations, where masks are loaded */
} DetectionSlot;

/* == Order ======================================================================================================== */

static DetectionDraw draw_of(const DetectionLoader *loader, uint32_t index, int width, int height) {
    const DetectionLoaderConfig *c = &loader->config;
    const DetectionAugment *a = &c->augment;
    if (!c->parts.train) return detection_resize(a->rule, width, height, a->scale[0], a->max_size);
    return detection_draw(a, width, height, c->parts.seed, loader->parts.epoch, index);
}

static size_t count_of(const DetectionLoader *loader) { return (size_t)loader->set->coco.image_count; }

static void shuffle(void *argument) {
    DetectionLoader *loader = argument;
    const DetectionLoaderConfig *c = &loader->config;
    for (size_t i = 0; i < count_of(loader); i++) {
        const CocoImage *image = &loader->set->coco.images[i];
        DetectionDraw draw = draw_of(loader, (uint32_t)i, image->width, image->height);
        loader->size[i][0] = draw.width;
        loader->size[i][1] = draw.height;
    }
    if (c->parts.train)
        bucket_order(loader->parts.order, loader->size, count_of(loader), c->parts.batch_size, c->window,
                     c->parts.seed, loader->parts.epoch);
}

double detection_padding(const DetectionLoader *loader) {
    return bucket_padding(loader->parts.order, loader->size, count_of(loader), loader->config.parts.batch_size);
}

/* The largest ratio of long to short side of any picture that enters the last resize. */
static double largest_ratio(const DetectionLoader *loader) {
    const DetectionAugment *a = &loader->config.augment;
    double ratio = 1;
    for (size_t i = 0; i < count_of(loader); i++) {
        const CocoImage *image = &loader->set->coco.images[i];
        double own = (double)image->width / image->height;
        ratio = fmax(ratio, fmax(own, 1 / own));
    }
    if (!loader->config.parts.train || !a->crop) return ratio;
    int least = a->crop_min;
    for (int i = 0; i < a->crop_scales; i++) least = a->crop_scale[i] < least ? a->crop_scale[i] : least;
    return fmax(ratio, (double)a->crop_max / least);
}

static int rounded_up(const DetectionLoader *loader, int side) {
    int multiple = larger(loader->config.multiple, 1);
    return (side + multiple - 1) / multiple * multiple;
}

/* When max_size limits the long side, DETR rounds the short side, so the long side may exceed max_size by half the
 * ratio of the sides, or equal that ratio when the short side is 1; mmdetection rounds the long side. */
static void find_largest(DetectionLoader *loader) {
    const DetectionAugment *a = &loader->config.augment;
    double ratio = largest_ratio(loader);
    int scale = 1, scales = loader->config.parts.train ? a->scales : 1;
    for (int i = 0; i < scales; i++) scale = a->scale[i] > scale ? a->scale[i] : scale;
    bool detr = a->rule == DETECTION_DETR;
    int longer = (int)(scale * ratio + 1e-6 + (detr ? 0 : 0.5));
    loader->shorter = rounded_up(loader, scale);
    loader->longer =
        rounded_up(loader, a->max_size && longer > a->max_size ? a->max_size + (detr ? (int)ratio : 0) : longer);
}

/* == One image ==================================================================================================== */

typedef struct {
    const DetectionLoader *loader;
    DetectionSlot *slot;
    TransformScratch *scratch;
    int i;
} DetectionJob;

/* Shrinks the draw of a replacement so that its result lies within width x height. */
static void fit(DetectionDraw *draw, int width, int height) {
    DetectionStep *last = &draw->step[draw->steps - 1];
    double shrink = 1, across = (double)width / draw->width, down = (double)height / draw->height;
    shrink = across < shrink ? across : shrink;
    shrink = down < shrink ? down : shrink;
    if (shrink == 1) return;
    draw->width = (int)(draw->width * shrink) > 1 ? (int)(draw->width * shrink) : 1;
    draw->height = (int)(draw->height * shrink) > 1 ? (int)(draw->height * shrink) : 1;
    *last = (DetectionStep){draw->width, draw->height, 0, 0, draw->width, draw->height};
}

/* Writes the targets of an image to the slot's arrays, from `at` on; returns their number. */
static int load_targets(const DetectionLoader *loader, const DetectionSlot *slot, size_t at, int image,
                        const DetectionDraw *draw) {
    const Coco *coco = &loader->set->coco;
    const DetectionPart *part = &slot->part;
    float(*boxes)[4] = part->boxes + at;
    int *labels = part->labels + at;
    size_t *place = loader->masks ? slot->place + at : NULL;
    int count = coco_targets(coco, image, boxes, labels, place);
    count = detection_corners(boxes, labels, place, count, draw);
    if (loader->masks) {
        memcpy(part->corners + at, boxes, (size_t)count * sizeof *boxes);
        for (int i = 0; i < count; i++) {
            ObjectMask *mask = &part->masks[at + (size_t)i];
            *mask = coco_object_mask(coco, place[i]);
            detection_map(mask->scale, mask->shift, draw);
        }
    }
    detection_relative(boxes, count, draw);
    return count;
}

static bool load_picture(void *argument, size_t index, Error *error) {
    const DetectionJob *job = argument;
    const DetectionLoader *loader = job->loader;
    const CocoImage *image = &loader->set->coco.images[index];
    DetectionPart *part = &job->slot->part;
    uint32_t meant = job->slot->index[job->i];
    size_t stride = (size_t)part->width * 3, room = (size_t)job->i * (size_t)loader->set->most_boxes;
    DetectionDraw draw = draw_of(loader, meant, image->width, image->height);
    ImagePart picture;
    fit(&draw, loader->size[meant][0], loader->size[meant][1]);
    if (!detection_set_read(loader->set, (int)index, draw.mirror, job->scratch, &picture, error)) return false;
    uint8_t *out = part->pixels + (size_t)job->i * stride * (size_t)part->height;
    if (!detection_pixels(job->scratch, out, stride, &picture, &draw))
        return refuse_memory(error, 0, "resizing it");
    part->size[job->i][0] = draw.height;
    part->size[job->i][1] = draw.width;
    if (loader->config.parts.train)
        job->slot->count[job->i] = load_targets(loader, job->slot, room, (int)index, &draw);
    return true;
}

static void fill_image(void *argument, void *memory, int i, TransformScratch *scratch) {
    DetectionLoader *loader = argument;
    DetectionSlot *slot = memory;
    DetectionJob job = {loader, slot, scratch, i};
    bool train = loader->config.parts.train;
    size_t got = parts_load(&loader->parts, slot->index[i], 1, &job, load_picture,
                            train ? PARTS_REPLACED : "evaluated as a picture without detections");
    slot->part.image[i] = train || got == slot->index[i] ? (int)got : -1;
}

static void describe(const void *loader, size_t index, char *text, size_t size) {
    detection_set_name_image(((const DetectionLoader *)loader)->set, index, text, size);
}

/* == Parts ======================================================================================================== */

/* Whether images padded to that height and width are within the bounds `shorter` and `longer`. */
static bool fits(const DetectionLoader *loader, int height, int width) {
    int shorter = height < width ? height : width, longer = height < width ? width : height;
    return shorter <= loader->shorter && longer <= loader->longer;
}

/* Takes as many of the images as fit together. */
static int open_part(void *argument, void *memory, size_t batch, int first, int *images) {
    const DetectionLoader *loader = argument;
    DetectionSlot *slot = memory;
    DetectionPart *p = &slot->part;
    size_t position = batch * (size_t)loader->config.parts.batch_size + (size_t)first;
    p->height = p->width = 1;
    for (p->n = 0; p->n < *images; p->n++) {
        uint32_t index = loader->parts.order[position + (size_t)p->n];
        int width = loader->size[index][0], height = loader->size[index][1];
        width = width > p->width ? width : p->width;
        height = height > p->height ? height : p->height;
        if (!fits(loader, rounded_up(loader, height), rounded_up(loader, width))) break;
        p->width = width;
        p->height = height;
        slot->index[p->n] = index;
        slot->count[p->n] = 0;
    }
    assert(p->n > 0);
    p->height = rounded_up(loader, p->height);
    p->width = rounded_up(loader, p->width);
    p->batch = batch;
    p->position = first;
    return *images = p->n;
}

/* Moves the targets of all images together, without gaps. */
static void gather_targets(const DetectionLoader *loader, DetectionSlot *slot) {
    DetectionPart *p = &slot->part;
    for (int i = 0; i < p->n; i++) {
        size_t from = (size_t)i * (size_t)loader->set->most_boxes, count = (size_t)slot->count[i];
        memmove(p->boxes + p->first[i], p->boxes + from, count * sizeof *p->boxes);
        memmove(p->labels + p->first[i], p->labels + from, count * sizeof *p->labels);
        if (loader->masks) {
            memmove(p->corners + p->first[i], p->corners + from, count * sizeof *p->corners);
            memmove(p->masks + p->first[i], p->masks + from, count * sizeof *p->masks);
        }
        p->first[i + 1] = p->first[i] + slot->count[i];
    }
}

/* == A loader ===================================================================================================== */

void detection_open(DetectionLoader *loader, const DetectionSet *set, const DetectionLoaderConfig *config) {
    *loader = (DetectionLoader){.set = set, .config = *config};
    size_t count = count_of(loader), most = (size_t)set->most_boxes;
    loader->size = xcalloc(count, sizeof *loader->size, "the sizes of images");
    loader->boxes = xcalloc(most, sizeof *loader->boxes, "an image's boxes");
    loader->labels = xcalloc(most, sizeof *loader->labels, "an image's labels");
    loader->masks = config->parts.train && set->task == DETECTION_MASKS;
    const char *masks = loader->masks ? "a batch of masks" : NULL; /* NULL ends the list of arrays */
    find_largest(loader);
    size_t pixels = (size_t)loader->shorter * (size_t)loader->longer * 3;
    PartsSource source = {
        .name = set->name,
        .noun = "images",
        .count = count,
        .length = count,
        .chunk = 1,
        .loader = loader,
        .shuffle = shuffle,
        .slot_size = sizeof(DetectionSlot),
        .arrays = {{offsetof(DetectionSlot, part.pixels), pixels, 0, "a batch of images"},
                   {offsetof(DetectionSlot, part.size), sizeof(int[2]), 0, "a batch of sizes"},
                   {offsetof(DetectionSlot, part.image), sizeof(int), 0, "a batch of numbers"},
                   {offsetof(DetectionSlot, part.boxes), most * sizeof(float[4]), 0, "a batch of boxes"},
                   {offsetof(DetectionSlot, part.labels), most * sizeof(int), 0, "a batch of labels"},
                   {offsetof(DetectionSlot, part.first), sizeof(int), 1, "a batch of targets"},
                   {offsetof(DetectionSlot, index), sizeof(uint32_t), 0, "a batch of numbers"},
                   {offsetof(DetectionSlot, count), sizeof(int), 0, "a batch of targets"},
                   {offsetof(DetectionSlot, part.corners), most * sizeof(float[4]), 0, masks},
                   {offsetof(DetectionSlot, part.masks), most * sizeof(ObjectMask), 0, masks},
                   {offsetof(DetectionSlot, place), most * sizeof(size_t), 0, masks}},
        .open = open_part,
        .fill = fill_image,
        .describe = describe};
    parts_open(&loader->parts, &config->parts, &source);
}

void detection_close(DetectionLoader *loader) {
    parts_close(&loader->parts);
    free(loader->size);
    free(loader->boxes);
    free(loader->labels);
    *loader = (DetectionLoader){.set = NULL};
}

bool detection_next(DetectionLoader *loader, DetectionPart *part) {
    DetectionSlot *slot = parts_next(&loader->parts);
    if (!slot) return false;
    gather_targets(loader, slot);
    *part = slot->part;
    return true;
}

int detection_boxes_of(const DetectionLoader *loader, size_t batch) {
    size_t size = (size_t)loader->config.parts.batch_size;
    int total = 0;
    for (size_t i = batch * size; i < (batch + 1) * size; i++) {
        uint32_t index = loader->parts.order[i];
        const CocoImage *image = &loader->set->coco.images[index];
        int count = coco_targets(&loader->set->coco, (int)index, loader->boxes, loader->labels, NULL);
        DetectionDraw draw = draw_of(loader, index, image->width, image->height);
        total += detection_corners(loader->boxes, loader->labels, NULL, count, &draw);
    }
    return total;
}
