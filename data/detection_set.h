/* A data set with boxes: pictures of many sizes, and COCO's table of what they show.  Either files - a folder
 * of pictures and a JSON file - or the embedded scenes of data/shape_scenes. */
#ifndef VIT_DATA_DETECTION_SET_H
#define VIT_DATA_DETECTION_SET_H

#include "core/error.h"
#include "data/coco.h"
#include "data/detection_augment.h"
#include "data/transform.h"

/* Which data set, and how much of it. */
typedef struct {
    const char *data;
    const char *train_annotations, *train_images, *val_annotations, *val_images;
    int train_limit, val_limit, scene_size;
} DetectionSetSettings;

extern const ConfigGroup detection_set_settings;

typedef struct {
    char name[32];
    Coco coco;
    char *folder; /* of the pictures; NULL: scenes */
    uint64_t seed;      /* of scenes: */
    uint32_t split;
    int side;
    int classes;         /* category ids, which are the labels, are below; what a model needs columns for */
    int most_boxes;      /* of one image in training */
    size_t targets, boxes; /* of all images: what training learns from, and what evaluation looks for */
    float mean[3], std[3];
} DetectionSet;

/* The split that the settings tell of, as the functions below open it; of the embedded scenes the seed decides. */
void detection_set_open(DetectionSet *set, const DetectionSetSettings *s, bool train, uint64_t seed);

/* Category ids are below this as far as is known without any file, 0: unknown. */
int detection_set_classes(const DetectionSetSettings *s);

/* The first `limit` images (0: all).  Dies with one line that names the file and what is wrong: the JSON, or pictures
 * that are not there.  What was found odd in the annotations is said on stderr, in one line. */
void detection_set_coco(DetectionSet *set, const char *name, const char *json, const char *folder, int limit);

/* limit 0: SCENES_TRAIN or SCENES_TEST of them. */
void detection_set_scenes(DetectionSet *set, bool train, uint64_t seed, int side, int limit);

void detection_set_close(DetectionSet *set);

/* "coco/val2017/000000000139.jpg", or "image 17 of shapes". */
void detection_set_name_image(const DetectionSet *set, size_t index, char *text, size_t size);

/* The picture as it is, until the scratch is used again; mirrored if so asked.  False: `error` says what is wrong with
 * it; another size than the table says is wrong too. */
bool detection_set_read(const DetectionSet *set, int index, bool mirror, TransformScratch *scratch, ImagePart *picture,
                        Error *error);

/* A picture in a file of its own, whatever its size; otherwise the same. */
bool detection_picture_read(const char *path, bool mirror, TransformScratch *scratch, ImagePart *picture, Error *error);

/* The steps of the draw on a picture that was read mirrored where the draw says so: out [draw->height,draw->width,3],
 * rows `stride` bytes apart.  Pixels are Pillow's.  False: out of memory. */
bool detection_pixels(TransformScratch *scratch, uint8_t *out, size_t stride, const ImagePart *picture,
                      const DetectionDraw *draw);

#endif
