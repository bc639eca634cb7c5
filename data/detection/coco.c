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

/* This storage for names never moves them. */
enum { TEXT_BLOCK = 1 << 16 };

struct CocoText {
    struct CocoText *next;
    size_t used;
    char bytes[TEXT_BLOCK];
};

static const char *keep_text(Coco *coco, const char *text) {
    size_t size = strnlen(text, JSON_TEXT_MOST) + 1;
    if (!coco->text || TEXT_BLOCK - coco->text->used < size) {
        struct CocoText *block = xcalloc(1, sizeof *block, "names of pictures");
        block->next = coco->text;
        coco->text = block;
    }
    char *copy = coco->text->bytes + coco->text->used;
    memcpy(copy, text, size - 1);
    coco->text->used += size;
    return copy;
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
}

/* == Tables by id ================================================================================================= */

static int compare_ids(int64_t a, int64_t b) {
    return a < b ? -1 : a > b;
}

static int compare_images(const void *a, const void *b) {
    return compare_ids(((const CocoImage *)a)->id, ((const CocoImage *)b)->id);
}

static int compare_categories(const void *a, const void *b) {
    return compare_ids(((const CocoCategory *)a)->id, ((const CocoCategory *)b)->id);
}

static int compare_integers(const void *a, const void *b) {
    return compare_ids(*(const int64_t *)a, *(const int64_t *)b);
}

int coco_find_image(const Coco *coco, int64_t id) {
    if (!coco->image_count) return -1;
    CocoImage key = {.id = id};
    CocoImage *found = bsearch(&key, coco->images, (size_t)coco->image_count, sizeof key, compare_images);
    return found ? (int)(found - coco->images) : -1;
}

int coco_find_category(const Coco *coco, int64_t id) {
    if (!coco->category_count) return -1;
    CocoCategory key = {.id = id};
    CocoCategory *found = bsearch(&key, coco->categories, (size_t)coco->category_count, sizeof key, compare_categories);
    return found ? (int)(found - coco->categories) : -1;
}

static bool refuse_twice(Error *error, const char *what, int64_t id) {
    return refuse(error, "%s: the id %jd occurs twice", what, (intmax_t)id);
}

static bool sort_images(Coco *coco, Error *error) {
    if (!coco->image_count) return refuse(error, "no images in it");
    qsort(coco->images, (size_t)coco->image_count, sizeof *coco->images, compare_images);
    for (int i = 1; i < coco->image_count; i++) {
        if (coco->images[i].id == coco->images[i - 1].id) return refuse_twice(error, "images", coco->images[i].id);
    }
    return true;
}

static bool sort_categories(Coco *coco, Error *error) {
    if (!coco->category_count) return true;
    qsort(coco->categories, (size_t)coco->category_count, sizeof *coco->categories, compare_categories);
    for (int k = 1; k < coco->category_count; k++) {
        int64_t id = coco->categories[k].id;
        if (id == coco->categories[k - 1].id) return refuse_twice(error, "categories", id);
    }
    return true;
}

static bool annotation_ids_differ(const Coco *coco, Error *error) {
    size_t count = coco->annotation_count, twice = 0;
    int64_t *ids = xcalloc(count, sizeof *ids, "ids of annotations");
    for (size_t i = 0; i < count; i++) ids[i] = coco->annotations[i].id;
    qsort(ids, count, sizeof *ids, compare_integers);
    for (size_t i = 1; i < count && !twice; i++) twice = ids[i] == ids[i - 1] ? i : 0;
    if (twice) refuse_twice(error, "annotations", ids[twice]);
    free(ids);
    return !twice;
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

/* Counting sort, in place: annotation i goes to place[i], cycle by cycle. */
static void group_by_image(Coco *coco) {
    size_t *place = xcalloc(coco->annotation_count, sizeof *place, "the order of annotations");
    for (size_t i = 0; i < coco->annotation_count; i++) coco->images[coco->annotations[i].image].count++;
    for (int i = 1; i < coco->image_count; i++) {
        coco->images[i].first = coco->images[i - 1].first + (size_t)coco->images[i - 1].count;
    }
    for (int i = 0; i < coco->image_count; i++) coco->images[i].count = 0;
    for (size_t i = 0; i < coco->annotation_count; i++) {
        CocoImage *image = &coco->images[coco->annotations[i].image];
        place[i] = image->first + (size_t)image->count++;
    }
    for (size_t i = 0; i < coco->annotation_count; i++) {
        while (place[i] != i) {
            size_t to = place[i];
            CocoAnnotation moved = coco->annotations[to];
            coco->annotations[to] = coco->annotations[i];
            coco->annotations[i] = moved;
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

static void count_oddities(Coco *coco) {
    for (size_t i = 0; i < coco->annotation_count; i++) {
        const CocoAnnotation *a = &coco->annotations[i];
        const CocoImage *image = &coco->images[a->image];
        float clipped[4];
        coco->zero_ids += a->id == 0;
        coco->crowds += a->crowd;
        if (a->crowd) continue;
        coco->outside += a->box[0] < -1 || a->box[1] < -1 || a->box[0] + a->box[2] > image->width + 1 ||
                         a->box[1] + a->box[3] > image->height + 1;
        coco->degenerate += !clip_box(clipped, a, image);
    }
    for (int i = 0; i < coco->image_count; i++) coco->empty_images += coco->images[i].count == 0;
}

bool coco_finish(Coco *coco, Error *error) {
    bool ok = sort_images(coco, error) && sort_categories(coco, error) && find_places(coco, error) &&
              annotation_ids_differ(coco, error);
    if (!ok) {
        coco_close(coco);
        return false;
    }
    group_by_image(coco);
    count_oddities(coco);
    return true;
}

void coco_close(Coco *coco) {
    while (coco->text) {
        struct CocoText *next = coco->text->next;
        free(coco->text);
        coco->text = next;
    }
    free(coco->images);
    free(coco->annotations);
    free(coco->categories);
    *coco = (Coco){.image_count = 0};
}

/* == From JSON ==================================================================================================== */

enum { IMAGE_ID, IMAGE_FILE_NAME, IMAGE_WIDTH, IMAGE_HEIGHT, IMAGE_FIELDS };
enum { BOX_ID, BOX_IMAGE, BOX_CATEGORY, BOX_BBOX, BOX_AREA, BOX_CROWD, BOX_FIELDS };
enum { CATEGORY_ID, CATEGORY_NAME, CATEGORY_FIELDS };

static const JsonField image_fields[] = {[IMAGE_ID] = {"id", JSON_INT64, false},
                                         [IMAGE_FILE_NAME] = {"file_name", JSON_TEXT, false},
                                         [IMAGE_WIDTH] = {"width", JSON_INT64, false},
                                         [IMAGE_HEIGHT] = {"height", JSON_INT64, false}};
static const JsonField box_fields[] = {
    [BOX_ID] = {"id", JSON_INT64, false},           [BOX_IMAGE] = {"image_id", JSON_INT64, false},
    [BOX_CATEGORY] = {"category_id", JSON_INT64, false}, [BOX_BBOX] = {"bbox", JSON_NUMBER4, false},
    [BOX_AREA] = {"area", JSON_NUMBER, true},         [BOX_CROWD] = {"iscrowd", JSON_FLAG, true}};
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

static bool take_category(void *state, const JsonValue *value, uint32_t present, Error *error) {
    int64_t id = value[CATEGORY_ID].integer;
    (void)present;
    if (id < 0 || id > COCO_CATEGORY_MOST)
        return refuse(error, "id %jd: expected 0 to %d", (intmax_t)id, COCO_CATEGORY_MOST);
    coco_add_category(state, id, value[CATEGORY_NAME].text);
    return true;
}

static const JsonList lists[] = {{"images", image_fields, IMAGE_FIELDS, take_image},
                                 {"annotations", box_fields, BOX_FIELDS, take_box},
                                 {"categories", category_fields, CATEGORY_FIELDS, take_category}};
enum { LISTS = sizeof lists / sizeof *lists };

bool coco_parse(Coco *coco, const void *bytes, size_t size, size_t piece, Error *error) {
    *coco = (Coco){.image_count = 0};
    if (json_lists_parse(bytes, size, piece, lists, LISTS, coco, error)) return coco_finish(coco, error);
    coco_close(coco);
    return false;
}

bool coco_read(Coco *coco, const char *path, Error *error) {
    *coco = (Coco){.image_count = 0};
    if (json_lists_read(path, lists, LISTS, coco, error)) return coco_finish(coco, error);
    coco_close(coco);
    return false;
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

int coco_num_classes(const Coco *coco) {
    return coco->category_count ? (int)coco->categories[coco->category_count - 1].id + 1 : 0;
}

int coco_targets(const Coco *coco, int image, float (*box)[4], int *label) {
    const CocoImage *from = &coco->images[image];
    int kept = 0;
    for (int i = 0; i < from->count; i++) {
        const CocoAnnotation *a = &coco->annotations[from->first + (size_t)i];
        if (a->crowd || !clip_box(box[kept], a, from)) continue;
        label[kept++] = (int)a->category_id;
    }
    return kept;
}
