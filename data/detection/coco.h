/* COCO's annotation files (instances_*.json; https://cocodataset.org/#format-data): images, boxes, categories and,
 * where asked for, segmentations.  Evaluation uses every annotation as it is in the file; training uses coco_targets.
 *
 * Refused with a one-line error: invalid or truncated JSON, a record of more than JSON_RECORD_MOST bytes, missing lists
 * and fields, wrong types, integers outside 64 bits and numbers that are not finite, an id that occurs twice,
 * annotations of unknown images or categories, category ids outside 0 .. COCO_CATEGORY_MOST, sizes outside
 * 1 .. IMAGE_MAX_SIDE, a file without images; and where segmentations are read, what coco_masks.h says, annotations
 * without the field "segmentation", and run lengths of another size than their image's.
 * Repaired: a missing iscrowd means 0 and a missing area means w h, as users of pycocotools expect.  Boxes that extend
 * outside their image and boxes without area reach evaluation unchanged; coco_targets clips or drops them. */
#ifndef VIT_DATA_DETECTION_COCO_H
#define VIT_DATA_DETECTION_COCO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"
#include "data/detection/coco_masks.h"

enum { COCO_CATEGORY_MOST = 65535 };

typedef struct {
    int64_t id;
    const char *file_name;
    int width, height;
    size_t first; /* its annotations are first .. first + count - 1 of the table */
    int count;
} CocoImage;

typedef struct {
    int64_t id, image_id, category_id;
    int image, category; /* indices into the tables of images and categories */
    bool crowd;          /* iscrowd: one box around a group of objects */
    double box[4];       /* x, y of the upper left corner, width, height, in pixels */
    double area;         /* of the segmentation, in pixels */
} CocoAnnotation;

typedef struct {
    int64_t id;
    const char *name;
} CocoCategory;

typedef struct {
    CocoImage *images;           /* [image_count], sorted by id */
    CocoAnnotation *annotations; /* [annotation_count], sorted by image, then in file order */
    CocoCategory *categories;    /* [category_count], sorted by id */
    int image_count, category_count;
    size_t annotation_count;

    /* Numbers of unusual annotations, for a warning to the user. */
    size_t outside;    /* boxes that extend outside their image by more than a pixel, crowds excepted */
    size_t degenerate; /* boxes with no area left after clipping to the image, crowds excepted */
    size_t zero_ids;   /* annotations with id 0, which pycocotools confuses with "not matched" */
    size_t maskless;   /* annotations with no mask although masks were read, crowds excepted */

    CocoMasks masks; /* of the annotations */

    char **names; /* [name_count]: of the pictures and categories */
    size_t image_room, annotation_room, category_room, name_count, name_room;
} Coco;

/* On failure returns false and sets `error`; there is then nothing to close. */
bool coco_read(Coco *coco, const char *path, CocoMaskKind masks, Error *error);

/* Reads annotations from a file in memory; `piece` has the meaning it has in json_lists_parse. */
bool coco_parse(Coco *coco, const void *bytes, size_t size, size_t piece, CocoMaskKind masks, Error *error);

void coco_close(Coco *coco);

/* Builds the same tables from another source: zero a Coco, set masks.kind, add entries in any order, give annotations
 * their masks (coco_masks_set after each), call coco_finish.  Strings are copied. */
void coco_add_image(Coco *coco, int64_t id, const char *file_name, int width, int height);
void coco_add_category(Coco *coco, int64_t id, const char *name);
void coco_add_annotation(Coco *coco, int64_t id, int64_t image_id, int64_t category_id, const double box[4],
                         double area, bool crowd);
bool coco_finish(Coco *coco, Error *error); /* on failure returns false, with coco closed */

/* Checks that every picture exists in `folder`.  If not, returns false; `error` names the first missing one and counts
 * the others. */
bool coco_check_files(const Coco *coco, const char *folder, Error *error);

/* The index of that id in the table, or -1. */
int coco_find_image(const Coco *coco, int64_t id);
int coco_find_category(const Coco *coco, int64_t id);

/* Leaves out the images that are not marked in `keep` [image_count], and their annotations. */
void coco_keep(Coco *coco, const bool *keep);

/* Labels for training.  Without masks they are the category ids, as in DETR; with masks they are 1, 2, ... in the order
 * of the ids, and 0 for the background, as in mmdetection.  coco_num_classes is the largest label + 1: 91 or 81 for
 * COCO.  coco_category_id is the id for a label, -1 where there is none. */
int coco_num_classes(const Coco *coco);
int64_t coco_category_id(const Coco *coco, int label);

/* The training targets of one image, as in DETR (datasets/coco.py): crowds are dropped; boxes are x0, y0, x1, y1 in
 * float, clipped to the image, and kept if x1 > x0 and y1 > y0.  If masks were read, annotations without a mask, with a
 * box less than one pixel wide or high, or with an area <= 0 are dropped, too, as in mmdetection (datasets/coco.py).
 * box [images[image].count,4], label and place [the same count] receive the kept boxes, their labels, and the
 * annotations' indices in the table; place may be NULL.  Returns their number.  An image with none is still a sample:
 * all of it is background. */
int coco_targets(const Coco *coco, int image, float (*box)[4], int *label, size_t *place);

/* The mask of an annotation in its own picture (scale 1, shift 0); after COCO_POLYGONS.  Points belong to `coco`. */
ObjectMask coco_object_mask(const Coco *coco, size_t annotation);

/* The run lengths of an annotation's mask; NULL without a mask, and after COCO_POLYGONS if it has polygons. */
const Rle *coco_annotation_mask(const Coco *coco, size_t annotation);

#endif
