/* A data set for semantic segmentation: pictures of many sizes, and a class for every pixel.  It comes either from files
 * as ADE20K is published - a folder of pictures and one of annotations, PNG files with the pictures' names whose grey
 * values or palette indices are the classes - or from the embedded scenes of data/detection/shape_scenes. */
#ifndef VIT_DATA_SEGMENTATION_SEGMENTATION_SET_H
#define VIT_DATA_SEGMENTATION_SEGMENTATION_SET_H

#include "core/config/config.h"
#include "core/error.h"
#include "core/results/class_names.h"
#include "core/results/segmentation.h"
#include "data/images/transform.h"
#include "data/loading/pictures.h"

/* Settings that choose a data set and how much of it is used. */
typedef struct {
    const char *data;
    const char *train_images, *train_annotations, *val_images, *val_annotations, *class_names;
    int seg_classes; /* 0: as many as the list of names has */
    bool zero_unlabelled;
    int train_limit, val_limit, scene_size;
    bool scene_edges;
} SegmentationSetSettings;

extern const ConfigGroup segmentation_set_settings;

typedef struct {
    char name[32];
    int count;      /* of the pictures, sorted by name */
    int classes;    /* the model's: labels are less than this, or SEGMENTATION_IGNORED */
    ClassNames names; /* [classes]; `at` is NULL if they are unknown */
    int (*size)[2]; /* [count]: height and width; 0, 0: the picture's header is damaged */
    Pictures pictures;               /* [count]; empty: embedded scenes */
    char *image_folder, *label_folder;
    bool zero_unlabelled; /* a stored value v is class v - 1, and 0 is no label; otherwise v is class v */
    uint64_t seed;        /* seed, split, side and edges are those of the embedded scenes */
    uint32_t split;
    int side;
    bool edges;
    float mean[3], std[3];
} SegmentationSet;

/* Opens the split that the settings name; seed is used by the embedded scenes.  Reads the header of every file, and
 * ends the process with one line if a picture has no annotation, or one of another size or kind. */
void segmentation_set_open(SegmentationSet *set, const SegmentationSetSettings *s, bool train, uint64_t seed);
void segmentation_set_close(SegmentationSet *set);

/* The number of classes if it is known without reading a file, else 0. */
int segmentation_set_classes(const SegmentationSetSettings *s);

/* Writes the picture's name for messages: its path, or "image 17 of shapes". */
void segmentation_set_name_image(const SegmentationSet *set, size_t index, char *text, size_t size);

/* Decodes a picture and its labels [height,width] at their own size; both are valid until the scratch is used again. On
 * failure, also if a label is out of range, returns false and sets `error`. */
bool segmentation_set_read(const SegmentationSet *set, int index, TransformScratch *scratch, ImagePart *picture,
                           uint8_t **labels, Error *error);

#endif
