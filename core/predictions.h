/* What --predict finds, as JSON: an array with an object for each picture, one a line.
 *
 *   {"file": "cat.png", "predictions": [{"id": 3, "name": "cat", "probability": 0.93}, ...]}
 *   {"file": "street.jpg", "width": 640, "height": 480,
 *    "predictions": [{"id": 1, "name": "person", "score": 0.9, "box": [x, y, width, height]}, ...]}
 *   {"file": "broken.png", "error": "not a PNG, JPEG or BMP picture"}
 *
 * A class without a name has null, and so has a number that is none.  Texts that are not UTF-8 have '?' for the bytes
 * that make them so. */
#ifndef VIT_CORE_PREDICTIONS_H
#define VIT_CORE_PREDICTIONS_H

#include <stdbool.h>
#include <stdio.h>

struct json_t;

/* Zero at first, but for `wanted`: without it all functions do nothing.  They die where memory runs out. */
typedef struct {
    bool wanted;
    char *text;
    size_t size;
    FILE *lines; /* into text */
    struct json_t *picture, *found; /* the last one, and its array */
} Predictions;

/* The next picture; width 0: its size is not told. */
void predictions_begin(Predictions *p, const char *file, int width, int height);
/* A picture that could not be read. */
void predictions_fail(Predictions *p, const char *file, const char *reason);

/* What the picture shows as a whole, with its probability; or in a box x, y, width, height, with its score. */
void predictions_add(Predictions *p, int id, const char *name, double probability);
void predictions_add_box(Predictions *p, int id, const char *name, double score, const double box[4]);

/* The likeliest of `classes`, on stdout and as a picture of its own; softmax of the logits in place, names NULL:
 * numbers.  Prints even where JSON is not wanted. */
void predictions_classes(Predictions *p, const char *file, float *logits, int classes, const char *const *names);

/* To the file, which is replaced as a whole, and frees.  Dies with the file and the reason. */
void predictions_write(Predictions *p, const char *path);

#endif
