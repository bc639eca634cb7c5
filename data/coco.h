/* COCO's annotation files (instances_*.json; https://cocodataset.org/#format-data): images, boxes and categories; the
 * segmentations are skipped.  Evaluation takes every annotation as the file has it; training takes coco_targets.
 *
 * Refused, with one line: what is not JSON or ends early, a record of more than JSON_RECORD_MOST bytes, missing lists
 * and fields, wrong types, integers outside 64 bits and numbers that are not finite, an id that occurs twice,
 * annotations of unknown images or categories, category ids outside 0 .. COCO_CATEGORY_MOST, sizes outside
 * 1 .. IMAGE_MAX_SIDE, a file without images.
 * Repaired: no iscrowd means 0 and no area means w h, as pycocotools' users expect; boxes that leave their image and
 * boxes without area are left to evaluation as they are and mended by coco_targets. */
#ifndef VIT_DATA_COCO_H
#define VIT_DATA_COCO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

enum { COCO_CATEGORY_MOST = 65535 };

typedef struct {
    int64_t id;
    const char *file_name;
    int width, height;
    size_t first; /* its annotations: first .. first + count - 1 */
    int count;
} CocoImage;

typedef struct {
    int64_t id, image_id, category_id;
    int image, category; /* places in the tables of images and categories */
    bool crowd;          /* a box around many, iscrowd */
    double box[4];       /* x, y of the upper left corner, width, height, in pixels */
    double area;         /* of the segmentation */
} CocoAnnotation;

typedef struct {
    int64_t id;
    const char *name;
} CocoCategory;

typedef struct {
    CocoImage *images;           /* [image_count], by id */
    CocoAnnotation *annotations; /* [annotation_count], by image, then in the order of the file */
    CocoCategory *categories;    /* [category_count], by id */
    int image_count, category_count;
    size_t annotation_count;

    /* What was found, for a word to the user. */
    size_t crowds, empty_images;
    size_t outside;    /* boxes that leave their image by more than a pixel; not crowds */
    size_t degenerate; /* boxes of which nothing is left in the image; not crowds */
    size_t zero_ids;   /* annotations with the id 0, which pycocotools takes for "not matched" */

    size_t image_room, annotation_room, category_room;
    struct CocoText *text; /* owns the names */
} Coco;

/* False: `error` says what is wrong, nothing to close. */
bool coco_read(Coco *coco, const char *path, Error *error);

/* The same for a file in memory; `piece` as in json_lists_parse. */
bool coco_parse(Coco *coco, const void *bytes, size_t size, size_t piece, Error *error);

void coco_close(Coco *coco);

/* The same tables from elsewhere: zero a Coco, add in any order, finish.  Texts are copied. */
void coco_add_image(Coco *coco, int64_t id, const char *file_name, int width, int height);
void coco_add_category(Coco *coco, int64_t id, const char *name);
void coco_add_annotation(Coco *coco, int64_t id, int64_t image_id, int64_t category_id, const double box[4],
                         double area, bool crowd);
bool coco_finish(Coco *coco, Error *error); /* false: closed */

/* Every picture is there, in `folder`.  False: `error` names the first that is not and counts the others. */
bool coco_check_files(const Coco *coco, const char *folder, Error *error);

/* The place of that id in the table, or -1. */
int coco_find_image(const Coco *coco, int64_t id);
int coco_find_category(const Coco *coco, int64_t id);

/* DETR's number of classes: the largest category id + 1, 91 for COCO.  Labels are category ids as they are. */
int coco_num_classes(const Coco *coco);

/* What one image trains on, as in DETR (datasets/coco.py): no crowds; x0, y0, x1, y1 in float, clipped to the image;
 * kept where x1 > x0 and y1 > y0.  box [images[image].count,4] and label hold what is kept; returns how many.  An image
 * without any is a sample all the same: all of it is background. */
int coco_targets(const Coco *coco, int image, float (*box)[4], int *label);

#endif
