#include "data/detection/coco.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/die.h"
#include "core/files.h"
#include "core/json_lists.h"
#include "data/images/image.h"

/* == Adding ======================================================================================================= */

static const char *keep_text(Coco *coco, const char *text) {
    coco->names = xgrow(coco->names, coco->name_count + 1, &coco->name_room, sizeof *coco->names, "names of pictures");
    return coco->names[coco->name_count++] = xstrdup(text);
}

void coco_add_image(Coco *coco, int64_t id, const char *file_name, int width, int height) {
    coco->images = xgrow(coco->images, (size_t)coco->image_count + 1, &coco->image_room, sizeof *coco->images,
                         "images");
    coco->images[coco->image_count++] =
        (CocoImage){.id = id, .file_name = keep_text(coco, file_name), .width = width, .height = height};
}

void coco_add_category(Coco *coco, int64_t id, const char *name) {
    coco->categories = xgrow(coco->categories, (size_t)coco->category_count + 1, &coco->category_room,
                             sizeof *coco->categories, "categories");
    coco->categories[coco->category_count++] = (CocoCategory){id, keep_text(coco, name)};
}

void coco_add_annotation(Coco *coco, int64_t id, int64_t image_id, int64_t category_id, const double box[4],
                         double area, bool crowd) {
    coco->annotations = xgrow(coco->annotations, coco->annotation_count + 1, &coco->annotation_room,
                              sizeof *coco->annotations, "annotations");
    coco->annotations[coco->annotation_count++] =
        (CocoAnnotation){.id = id, .image_id = image_id, .category_id = category_id, .crowd = crowd,
                         .box = {box[0], box[1], box[2], box[3]}, .area = area};
    if (coco->masks.kind) coco_masks_add(&coco->masks);
}

/* == Tables by id ================================================================================================= */

_Static_assert(!offsetof(CocoImage, id) && !offsetof(CocoCategory, id), "tables are sorted by their first member");

static int compare_ids(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* The index of an id in a table [count] of entries of `size` bytes, or -1. */
static int find_id(const void *table, int count, size_t size, int64_t id) {
    const char *found = count ? bsearch(&id, table, (size_t)count, size, compare_ids) : NULL;
    return found ? (int)((size_t)(found - (const char *)table) / size) : -1;
}

int coco_find_image(const Coco *coco, int64_t id) {
    return find_id(coco->images, coco->image_count, sizeof *coco->images, id);
}

int coco_find_category(const Coco *coco, int64_t id) {
    return find_id(coco->categories, coco->category_count, sizeof *coco->categories, id);
}

/* Sorts a table of `what` by its ids, which must differ. */
static bool sort_ids(void *table, size_t count, size_t size, const char *what, Error *error) {
    if (count) qsort(table, count, size, compare_ids);
    for (size_t i = 1; i < count; i++) {
        const int64_t *id = (const void *)((const char *)table + i * size);
        if (!compare_ids((const char *)id - size, id))
            return refuse(error, "%s: the id %jd occurs twice", what, (intmax_t)*id);
    }
    return true;
}

static bool annotation_ids_differ(const Coco *coco, Error *error) {
    size_t count = coco->annotation_count;
    int64_t *ids = xcalloc(count, sizeof *ids, "ids of annotations");
    for (size_t i = 0; i < count; i++) ids[i] = coco->annotations[i].id;
    bool differ = sort_ids(ids, count, sizeof *ids, "annotations", error);
    free(ids);
    return differ;
}

static bool find_places(Coco *coco, Error *error) {
    for (size_t i = 0; i < coco->annotation_count; i++) {
        CocoAnnotation *a = &coco->annotations[i];
        a->image = coco_find_image(coco, a->image_id);
        a->category = coco_find_category(coco, a->category_id);
        if (a->image >= 0 && a->category >= 0) continue;
        bool image = a->image < 0;
        return refuse(error, "annotations[%zu] (id %jd): %s %jd is not among the %s", i, (intmax_t)a->id,
                      image ? "image_id" : "category_id", (intmax_t)(image ? a->image_id : a->category_id),
                      image ? "images" : "categories");
    }
    return true;
}

static bool finish_masks(Coco *coco, Error *error) {
    if (!coco->masks.kind) return true;
    for (size_t i = 0; i < coco->annotation_count; i++) {
        const CocoAnnotation *a = &coco->annotations[i];
        const CocoImage *image = &coco->images[a->image];
        Error reason;
        if (!coco_masks_fit(&coco->masks, i, image->height, image->width, &reason))
            return refuse(error, "annotations[%zu] (id %jd): segmentation: %s", i, (intmax_t)a->id, reason.text);
        coco_masks_rasterise(&coco->masks, i, image->height, image->width);
    }
    coco_masks_finish(&coco->masks);
    return true;
}

static void swap_annotations(Coco *coco, size_t a, size_t b) {
    CocoAnnotation moved = coco->annotations[a];
    coco->annotations[a] = coco->annotations[b];
    coco->annotations[b] = moved;
    if (!coco->masks.kind) return;
    CocoMask mask = coco->masks.of[a];
    coco->masks.of[a] = coco->masks.of[b];
    coco->masks.of[b] = mask;
}

/* Counting sort, in place: annotation i goes to place[i], cycle by cycle. */
static void group_by_image(Coco *coco) {
    size_t *place = xcalloc(coco->annotation_count, sizeof *place, "the order of annotations");
    for (size_t i = 0; i < coco->annotation_count; i++) coco->images[coco->annotations[i].image].count++;
    for (int i = 1; i < coco->image_count; i++)
        coco->images[i].first = coco->images[i - 1].first + (size_t)coco->images[i - 1].count;
    for (int i = 0; i < coco->image_count; i++) coco->images[i].count = 0;
    for (size_t i = 0; i < coco->annotation_count; i++) {
        CocoImage *image = &coco->images[coco->annotations[i].image];
        place[i] = image->first + (size_t)image->count++;
    }
    for (size_t i = 0; i < coco->annotation_count; i++) {
        while (place[i] != i) {
            size_t to = place[i];
            swap_annotations(coco, to, i);
            place[i] = place[to];
            place[to] = to;
        }
    }
    free(place);
}

/* The box in float, clipped; false if no area is left.  Source: facebookresearch/detr, datasets/coco.py. */
static bool clip_box(float out[4], const CocoAnnotation *a, const CocoImage *image) {
    float width = (float)image->width, height = (float)image->height, x = (float)a->box[0], y = (float)a->box[1];
    out[0] = fminf(fmaxf(x, 0), width);
    out[1] = fminf(fmaxf(y, 0), height);
    out[2] = fminf(fmaxf(x + (float)a->box[2], 0), width);
    out[3] = fminf(fmaxf(y + (float)a->box[3], 0), height);
    return out[2] > out[0] && out[3] > out[1];
}

static bool has_mask(const Coco *coco, size_t i) {
    const CocoMask *mask = &coco->masks.of[i];
    return mask->rings || mask->rle >= 0;
}

static void count_oddities(Coco *coco) {
    for (size_t i = 0; i < coco->annotation_count; i++) {
        const CocoAnnotation *a = &coco->annotations[i];
        const CocoImage *image = &coco->images[a->image];
        float clipped[4];
        coco->zero_ids += a->id == 0;
        if (a->crowd) continue;
        coco->outside += a->box[0] < -1 || a->box[1] < -1 || a->box[0] + a->box[2] > image->width + 1 ||
                         a->box[1] + a->box[3] > image->height + 1;
        coco->degenerate += !clip_box(clipped, a, image);
        coco->maskless += coco->masks.kind && !has_mask(coco, i);
    }
}

bool coco_finish(Coco *coco, Error *error) {
    size_t images = (size_t)coco->image_count, categories = (size_t)coco->category_count;
    bool ok = (images || refuse(error, "no images in it")) &&
              sort_ids(coco->images, images, sizeof *coco->images, "images", error) &&
              sort_ids(coco->categories, categories, sizeof *coco->categories, "categories", error) &&
              find_places(coco, error) && annotation_ids_differ(coco, error) && finish_masks(coco, error);
    if (!ok) return coco_close(coco), false;
    group_by_image(coco);
    count_oddities(coco);
    return true;
}

void coco_close(Coco *coco) {
    for (size_t i = 0; i < coco->name_count; i++) free(coco->names[i]);
    free(coco->names);
    free(coco->images);
    free(coco->annotations);
    free(coco->categories);
    coco_masks_free(&coco->masks);
    *coco = (Coco){.image_count = 0};
}

/* == From JSON ==================================================================================================== */

enum { IMAGE_ID, IMAGE_FILE_NAME, IMAGE_WIDTH, IMAGE_HEIGHT, IMAGE_FIELDS };
enum { BOX_ID, BOX_IMAGE, BOX_CATEGORY, BOX_BBOX, BOX_AREA, BOX_CROWD, BOX_FIELDS, BOX_MASK = BOX_FIELDS, MASK_FIELDS };
enum { CATEGORY_ID, CATEGORY_NAME, CATEGORY_FIELDS };

static const JsonField image_fields[] = {[IMAGE_ID] = {"id", JSON_INT64, false},
                                         [IMAGE_FILE_NAME] = {"file_name", JSON_TEXT, false},
                                         [IMAGE_WIDTH] = {"width", JSON_INT64, false},
                                         [IMAGE_HEIGHT] = {"height", JSON_INT64, false}};
static const JsonField box_fields[] = {
    [BOX_ID] = {"id", JSON_INT64, false},           [BOX_IMAGE] = {"image_id", JSON_INT64, false},
    [BOX_CATEGORY] = {"category_id", JSON_INT64, false}, [BOX_BBOX] = {"bbox", JSON_NUMBER4, false},
    [BOX_AREA] = {"area", JSON_NUMBER, true},         [BOX_CROWD] = {"iscrowd", JSON_FLAG, true},
    [BOX_MASK] = {"segmentation", JSON_ANY, false}};
static const JsonField category_fields[] = {[CATEGORY_ID] = {"id", JSON_INT64, false},
                                            [CATEGORY_NAME] = {"name", JSON_TEXT, false}};

static bool take_image(void *state, const JsonValue *value, uint32_t present, Error *error) {
    Coco *coco = state;
    int64_t width = value[IMAGE_WIDTH].integer, height = value[IMAGE_HEIGHT].integer;
    (void)present;
    if (width < 1 || width > IMAGE_MAX_SIDE || height < 1 || height > IMAGE_MAX_SIDE)
        return refuse(error, "%jd x %jd pixels, expected sides of 1 to %d", (intmax_t)width, (intmax_t)height,
                      IMAGE_MAX_SIDE);
    if (coco->image_count == INT_MAX) return refuse(error, "more than %d images", INT_MAX);
    coco_add_image(coco, value[IMAGE_ID].integer, value[IMAGE_FILE_NAME].text, (int)width, (int)height);
    return true;
}

static bool take_box(void *state, const JsonValue *value, uint32_t present, Error *error) {
    const double *box = value[BOX_BBOX].numbers;
    double area = present & 1u << BOX_AREA ? value[BOX_AREA].number : box[2] * box[3];
    bool crowd = present & 1u << BOX_CROWD && value[BOX_CROWD].integer;
    (void)error;
    coco_add_annotation(state, value[BOX_ID].integer, value[BOX_IMAGE].integer, value[BOX_CATEGORY].integer, box, area,
                        crowd);
    return true;
}

static bool take_mask(void *state, const JsonValue *value, uint32_t present, Error *error) {
    Coco *coco = state;
    Error reason;
    return take_box(state, value, present, error) &&
           (coco_masks_read(&coco->masks, value[BOX_MASK].any, &reason) ||
            refuse(error, "id %jd: segmentation: %s", (intmax_t)value[BOX_ID].integer, reason.text));
}

static bool take_category(void *state, const JsonValue *value, uint32_t present, Error *error) {
    int64_t id = value[CATEGORY_ID].integer;
    (void)present;
    if (id < 0 || id > COCO_CATEGORY_MOST)
        return refuse(error, "id %jd: expected 0 to %d", (intmax_t)id, COCO_CATEGORY_MOST);
    coco_add_category(state, id, value[CATEGORY_NAME].text);
    return true;
}

static const JsonList lists[2][3] = {{{"images", image_fields, IMAGE_FIELDS, take_image},
                                      {"annotations", box_fields, BOX_FIELDS, take_box},
                                      {"categories", category_fields, CATEGORY_FIELDS, take_category}},
                                     {{"images", image_fields, IMAGE_FIELDS, take_image},
                                      {"annotations", box_fields, MASK_FIELDS, take_mask},
                                      {"categories", category_fields, CATEGORY_FIELDS, take_category}}};
enum { LISTS = sizeof lists[0] / sizeof *lists[0] };

bool coco_parse(Coco *coco, const void *bytes, size_t size, size_t piece, CocoMaskKind masks, Error *error) {
    *coco = (Coco){.masks.kind = masks};
    if (json_lists_parse(bytes, size, piece, lists[masks != COCO_NO_MASKS], LISTS, coco, error))
        return coco_finish(coco, error);
    return coco_close(coco), false;
}

bool coco_read(Coco *coco, const char *path, CocoMaskKind masks, Error *error) {
    *coco = (Coco){.masks.kind = masks};
    if (json_lists_read(path, lists[masks != COCO_NO_MASKS], LISTS, coco, error)) return coco_finish(coco, error);
    return coco_close(coco), false;
}

/* == Use ========================================================================================================== */

bool coco_check_files(const Coco *coco, const char *folder, Error *error) {
    int missing = 0;
    for (int i = 0; i < coco->image_count; i++) {
        char path[4096];
        struct stat status;
        path_join(path, sizeof path, folder, coco->images[i].file_name);
        if (stat(path, &status) == 0 && S_ISREG(status.st_mode)) continue;
        if (!missing++) refuse(error, "no picture %.200s", coco->images[i].file_name);
    }
    if (missing > 1) refuse(error, "%s, nor %d more of %d", error->text, missing - 1, coco->image_count);
    return !missing;
}

void coco_keep(Coco *coco, const bool *keep) {
    int images = 0;
    size_t annotations = 0;
    for (int i = 0; i < coco->image_count; i++) {
        CocoImage image = coco->images[i];
        if (!keep[i]) continue;
        for (size_t k = image.first; k < image.first + (size_t)image.count; k++, annotations++) {
            coco->annotations[annotations] = coco->annotations[k];
            coco->annotations[annotations].image = images;
            if (coco->masks.kind) coco->masks.of[annotations] = coco->masks.of[k];
        }
        image.first = annotations - (size_t)image.count;
        coco->images[images++] = image;
    }
    coco->image_count = images;
    coco->annotation_count = annotations;
}

int coco_num_classes(const Coco *coco) {
    if (coco->masks.kind) return coco->category_count + 1;
    return coco->category_count ? (int)coco->categories[coco->category_count - 1].id + 1 : 0;
}

int64_t coco_category_id(const Coco *coco, int label) {
    int category = coco->masks.kind ? label - 1 : coco_find_category(coco, label);
    return category >= 0 && category < coco->category_count ? coco->categories[category].id : -1;
}

/* mmdetection's rule for annotations that can be used in training. */
static bool is_too_small(const CocoAnnotation *a) { return a->box[2] < 1 || a->box[3] < 1 || a->area <= 0; }

int coco_targets(const Coco *coco, int image, float (*box)[4], int *label, size_t *place) {
    const CocoImage *from = &coco->images[image];
    bool masks = coco->masks.kind;
    int kept = 0;
    for (size_t i = from->first; i < from->first + (size_t)from->count; i++) {
        const CocoAnnotation *a = &coco->annotations[i];
        if (a->crowd || (masks && (is_too_small(a) || !has_mask(coco, i))) || !clip_box(box[kept], a, from)) continue;
        if (place) place[kept] = i;
        label[kept++] = masks ? a->category + 1 : (int)a->category_id;
    }
    return kept;
}

const Rle *coco_annotation_mask(const Coco *coco, size_t annotation) {
    int rle = coco->masks.of[annotation].rle;
    return rle < 0 ? NULL : &coco->masks.rles[rle];
}

ObjectMask coco_object_mask(const Coco *coco, size_t annotation) {
    const CocoMasks *m = &coco->masks;
    const CocoMask *mask = &m->of[annotation];
    ObjectMask object = {.rle = coco_annotation_mask(coco, annotation), .scale = {1, 1}};
    if (mask->rings)
        object = (ObjectMask){m->points + mask->number, m->ring_points + mask->ring, mask->rings, NULL, {1, 1}, {0, 0}};
    return object;
}
