#include "data/segmentation/segmentation_loader.h"

#include <assert.h>
#include <string.h>

#include "core/integers.h"

typedef struct {
    SegmentationPart part;
    uint32_t *index; /* [n]: the picture planned for this place, before any replacement */
} SegmentationSlot;

static bool trains(const SegmentationLoader *loader) { return loader->config.parts.train; }

/* A picture whose header is damaged has room for one pixel. */
static const int *label_size(const SegmentationLoader *loader, size_t index) {
    static const int least[2] = {1, 1};
    const int *size = loader->set->size[index];
    return size[0] ? size : least;
}

static SegmentationDraw planned(const SegmentationLoader *loader, size_t index) {
    const int *size = label_size(loader, index);
    return segmentation_resize(&loader->config.augment, size[0], size[1]);
}

/* == One picture ================================================================================================== */

typedef struct {
    const SegmentationLoader *loader;
    SegmentationPart *part;
    TransformScratch *scratch;
    int i;
    uint32_t meant;
} SegmentationJob;

/* The draw for evaluation; a replacement is stretched over the space planned for the picture. */
static SegmentationDraw evaluation_draw(const SegmentationJob *job, size_t index, const ImagePart *picture) {
    if (index == job->meant) return planned(job->loader, index);
    int height = job->part->height, width = job->part->width;
    return (SegmentationDraw){.from_height = picture->height, .from_width = picture->width, .height = height,
                              .width = width, .crop_height = height, .crop_width = width, .out_height = height,
                              .out_width = width};
}

static void copy_rows(uint8_t *to, size_t stride, const uint8_t *from, int height, int width) {
    for (int y = 0; y < height; y++) memcpy(to + (size_t)y * stride, from + (size_t)y * (size_t)width, (size_t)width);
}

static bool load_picture(void *argument, size_t index, Error *error) {
    const SegmentationJob *job = argument;
    const SegmentationLoader *loader = job->loader;
    const SegmentationAugment *augment = &loader->config.augment;
    SegmentationPart *part = job->part;
    size_t place = (size_t)job->i, stride = (size_t)part->width * 3, row = (size_t)part->label_width;
    uint64_t seed = loader->config.parts.seed;
    uint32_t epoch = loader->parts.epoch;
    uint8_t *out = part->pixels + place * stride * (size_t)part->height;
    uint8_t *labels_out = part->labels + place * row * (size_t)part->label_height, *labels;
    ImagePart picture;
    SegmentationDraw draw;
    bool ok = true;
    if (!segmentation_set_read(loader->set, (int)index, job->scratch, &picture, &labels, error)) return false;
    if (trains(loader)) {
        draw = segmentation_draw(augment, picture.height, picture.width, seed, epoch, job->meant);
        ok = segmentation_crop(&draw, labels_out, row, labels, augment, seed, epoch, job->meant, job->scratch);
        part->label_size[place][0] = draw.out_height;
        part->label_size[place][1] = draw.out_width;
    } else {
        draw = evaluation_draw(job, index, &picture);
        if (index == job->meant) copy_rows(labels_out, row, labels, picture.height, picture.width);
    }
    if (!ok || !segmentation_pixels(job->scratch, out, stride, &picture, &draw))
        return refuse_memory(error, 0, "resizing it");
    part->size[place][0] = draw.out_height;
    part->size[place][1] = draw.out_width;
    return true;
}

static void fill_picture(void *argument, void *memory, int i, TransformScratch *scratch) {
    SegmentationLoader *loader = argument;
    SegmentationSlot *slot = memory;
    SegmentationPart *part = &slot->part;
    size_t count = (size_t)part->label_height * (size_t)part->label_width;
    uint32_t meant = slot->index[i];
    SegmentationJob job = {loader, part, scratch, i, meant};
    memset(part->labels + (size_t)i * count, SEGMENTATION_IGNORED, count);
    memcpy(part->label_size[i], label_size(loader, meant), sizeof part->label_size[i]);
    size_t got = parts_load(&loader->parts, meant, 1, &job, load_picture,
                            trains(loader) ? PARTS_REPLACED : "left out");
    part->image[i] = trains(loader) || got == meant ? (int)got : -1;
}

static void describe(const void *loader, size_t index, char *text, size_t size) {
    segmentation_set_name_image(((const SegmentationLoader *)loader)->set, index, text, size);
}

/* == Parts ======================================================================================================== */

/* Adds the picture to a part of evaluation, unless its size for the network differs or its labels make the part too
 * large. */
static bool add_picture(const SegmentationLoader *loader, SegmentationPart *part, uint32_t index) {
    SegmentationDraw draw = planned(loader, index);
    const int *size = label_size(loader, index);
    int height = larger(part->label_height, size[0]), width = larger(part->label_width, size[1]);
    bool fits = (size_t)height * (size_t)width <= loader->most_labels;
    if (part->n && (draw.out_height != part->height || draw.out_width != part->width || !fits)) return false;
    part->height = draw.out_height;
    part->width = draw.out_width;
    part->label_height = height;
    part->label_width = width;
    return true;
}

static int open_part(void *argument, void *memory, size_t batch, int first, int *images) {
    const SegmentationLoader *loader = argument;
    SegmentationSlot *slot = memory;
    SegmentationPart *p = &slot->part;
    size_t position = batch * (size_t)loader->config.parts.batch_size + (size_t)first;
    int side = loader->config.augment.crop_size;
    p->label_height = p->label_width = p->height = p->width = trains(loader) ? side : 0;
    for (p->n = 0; p->n < *images; p->n++) {
        uint32_t index = loader->parts.order[position + (size_t)p->n];
        if (!trains(loader) && !add_picture(loader, p, index)) break;
        slot->index[p->n] = index;
    }
    assert(p->n > 0);
    p->batch = batch;
    p->position = first;
    return *images = p->n;
}

/* == A loader ===================================================================================================== */

static void find_largest(SegmentationLoader *loader) {
    int side = loader->config.augment.crop_size;
    if (trains(loader)) {
        loader->shorter = loader->longer = side;
        loader->most_pixels = loader->most_labels = (size_t)side * (size_t)side;
        return;
    }
    for (int i = 0; i < loader->set->count; i++) {
        SegmentationDraw draw = planned(loader, (size_t)i);
        const int *size = label_size(loader, (size_t)i);
        loader->shorter = larger(loader->shorter, smaller(draw.out_height, draw.out_width));
        loader->longer = larger(loader->longer, larger(draw.out_height, draw.out_width));
        loader->most_pixels = larger_size(loader->most_pixels, (size_t)draw.out_height * (size_t)draw.out_width);
        loader->most_labels = larger_size(loader->most_labels, (size_t)size[0] * (size_t)size[1]);
    }
}

void segmentation_open(SegmentationLoader *loader, const SegmentationSet *set, const SegmentationLoaderConfig *config) {
    *loader = (SegmentationLoader){.set = set, .config = *config};
    find_largest(loader);
    PartsSource source = {
        .name = set->name,
        .noun = "images",
        .count = (size_t)set->count,
        .length = (size_t)set->count,
        .chunk = 1,
        .loader = loader,
        .slot_size = sizeof(SegmentationSlot),
        .arrays = {{offsetof(SegmentationSlot, part.pixels), loader->most_pixels * 3, 0, "a batch of images"},
                   {offsetof(SegmentationSlot, part.labels), loader->most_labels, 0, "a batch of labels"},
                   {offsetof(SegmentationSlot, part.size), sizeof(int[2]), 0, "a batch of sizes"},
                   {offsetof(SegmentationSlot, part.label_size), sizeof(int[2]), 0, "a batch of sizes"},
                   {offsetof(SegmentationSlot, part.image), sizeof(int), 0, "a batch of numbers"},
                   {offsetof(SegmentationSlot, index), sizeof(uint32_t), 0, "a batch of numbers"}},
        .open = open_part,
        .fill = fill_picture,
        .describe = describe};
    parts_open(&loader->parts, &config->parts, &source);
}

void segmentation_close(SegmentationLoader *loader) {
    parts_close(&loader->parts);
    *loader = (SegmentationLoader){.set = NULL};
}

bool segmentation_next(SegmentationLoader *loader, SegmentationPart *part) {
    const SegmentationSlot *slot = parts_next(&loader->parts);
    if (!slot) return false;
    *part = slot->part;
    return true;
}
