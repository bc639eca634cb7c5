/* A detection data set: pictures of many sizes and their annotations as in COCO.  It comes either from files (a folder
 * of pictures and a JSON file) or from the embedded scenes of data/sets/shape_scenes. */
#ifndef VIT_DATA_DETECTION_DETECTION_SET_H
#define VIT_DATA_DETECTION_DETECTION_SET_H

#include "core/error.h"
#include "data/detection/coco.h"
#include "data/detection/detection_augment.h"
#include "data/images/transform.h"

/* Settings that choose a data set and how much of it is used. */
typedef struct {
    const char *data;
    const char *train_annotations, *train_images, *val_annotations, *val_images;
    int train_limit, val_limit, scene_size;
} DetectionSetSettings;

extern const ConfigGroup detection_set_settings;

/* The use of the set.  Masks: the rules of mmdetection's Mask R-CNN, see coco_targets; training leaves out pictures
 * under 32 pixels wide or high, and those without a target. */
typedef enum { DETECTION_BOXES, DETECTION_MASKS } DetectionTask;

typedef struct {
    char name[32];
    DetectionTask task;
    Coco coco;
    char *folder; /* of the pictures; NULL: embedded scenes */
    uint64_t seed;      /* seed, split and side are those of the embedded scenes */
    uint32_t split;
    int side;
    int classes;         /* labels (see coco.h) are less than this: the model's number of classes */
    int most_boxes;      /* most training boxes of one image */
    size_t targets, boxes; /* totals over all images: boxes for training, boxes for evaluation */
    size_t empty;          /* images without annotations */
    float mean[3], std[3];
} DetectionSet;

/* Opens the split that the settings name, through one of the functions below; seed is used by the embedded scenes. */
void detection_set_open(DetectionSet *set, const DetectionSetSettings *s, DetectionTask task, bool train,
                        uint64_t seed);

/* The number of classes if it is known without reading a file, else 0. */
int detection_set_classes(const DetectionSetSettings *s);

/* Opens the first `limit` images (0: all) of those that are not left out.  Ends the process with one line if the JSON is
 * invalid or pictures are missing.  Unusual annotations are reported on stderr in one line. */
void detection_set_coco(DetectionSet *set, const char *name, const char *json, const char *folder, DetectionTask task,
                        bool train, int limit);

/* Opens `limit` embedded scenes; 0: SCENES_TRAIN or SCENES_TEST. */
void detection_set_scenes(DetectionSet *set, DetectionTask task, bool train, uint64_t seed, int side, int limit);

void detection_set_close(DetectionSet *set);

/* Writes the image's name for messages, such as "coco/val2017/000000000139.jpg" or "image 17 of shapes". */
void detection_set_name_image(const DetectionSet *set, size_t index, char *text, size_t size);

/* Decodes the picture at its own size, mirrored if `mirror`; it is valid until the scratch is used again.  On failure,
 * including a size that differs from the annotations, returns false and sets `error`. */
bool detection_set_read(const DetectionSet *set, int index, bool mirror, TransformScratch *scratch, ImagePart *picture,
                        Error *error);

/* Reads any picture file; its size is not checked. */
bool detection_picture_read(const char *path, bool mirror, TransformScratch *scratch, ImagePart *picture, Error *error);

/* Applies the draw's steps to a picture that was already read with mirror = draw->mirror.  out is
 * [draw->height,draw->width,3] with rows `stride` bytes apart; its pixels equal Pillow's.  False: out of memory. */
bool detection_pixels(TransformScratch *scratch, uint8_t *out, size_t stride, const ImagePart *picture,
                      const DetectionDraw *draw);

#endif
