/* The results of --predict as JSON: an array with one object per picture, each on a line of its own.
 *
 *   {"file": "cat.png", "predictions": [{"id": 3, "name": "cat", "probability": 0.93}, ...]}
 *   {"file": "street.jpg", "width": 640, "height": 480,
 *    "predictions": [{"id": 1, "name": "person", "score": 0.9, "box": [x, y, width, height],
 *                     "segmentation": {"size": [height, width], "counts": "..."}}, ...]}
 *   {"file": "clip.mp4", "predictions": [{"id": 3, "name": "throwing", "probability": 0.93}, ...],
 *    "frames": [{"frame": 12, "time": 0.48, "probability": 0.71}, ...]}
 *   {"file": "broken.png", "error": "not a PNG, JPEG or BMP picture"}
 *
 * Classes without a name and numbers that are not finite are written as null.  In strings, bytes that are not valid
 * UTF-8 are replaced by '?'. */
#ifndef VIT_CORE_RESULTS_PREDICTIONS_H
#define VIT_CORE_RESULTS_PREDICTIONS_H

#include <stdbool.h>
#include <stdio.h>

struct json_t;

/* Initialise with zeros and set `wanted`: if it is false, all functions do nothing.  They die if memory runs out. */
typedef struct {
    bool wanted;
    char *text;
    size_t size;
    FILE *lines; /* into text */
    struct json_t *picture, *found; /* the latest picture, and its array of predictions */
} Predictions;

/* Begins the next picture; width 0: its size is left out. */
void predictions_begin(Predictions *p, const char *file, int width, int height);
/* A picture that could not be read. */
void predictions_fail(Predictions *p, const char *file, const char *reason);

/* Add a class of the whole picture with its probability, or an object with its score and box x, y, width, height. */
void predictions_add(Predictions *p, int id, const char *name, double probability);
void predictions_add_box(Predictions *p, int id, const char *name, double score, const double box[4]);
/* The mask of the object that was added last, in a picture of that size, as COCO's text of run lengths. */
void predictions_add_mask(Predictions *p, const char *counts, int height, int width);

/* Prints the most probable of `classes` on stdout, even if JSON is not wanted, and adds the picture with them.
 * Replaces the logits by their softmax.  If names is NULL, class indices are printed.  Returns the first class. */
int predictions_classes(Predictions *p, const char *file, float *logits, int classes, const char *const *names);

/* The score of a frame of a video for a class. */
typedef struct {
    int frame;   /* from 0 on */
    double time; /* seconds from the first frame; NaN: not known */
    double probability;
} FrameScore;

/* Prints the frames, the best first, and adds them to the latest clip, whose first class is called `name` (NULL: it has
 * only its index). */
void predictions_frames(Predictions *p, const char *name, int class, const FrameScore *frames, int count);

/* Adds the region of a class: its share of the picture, and its pixels as COCO's run lengths (data/masks/rle.h):
 *   {"id": 3, "name": "sky", "share": 0.41, "segmentation": {"size": [480, 640], "counts": "..."}} */
void predictions_add_region(Predictions *p, int id, const char *name, double share, int height, int width,
                            const char *counts);

/* Replaces the file atomically and frees *p.  On failure dies with the file and the reason. */
void predictions_write(Predictions *p, const char *path);

#endif
