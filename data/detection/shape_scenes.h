/* The embedded data set of the detector: several of data/sets/shapes' figures in one picture, with their boxes, drawn
 * on demand.  Needs no file and no network; small enough for a detector to learn on a CPU in minutes. */
#ifndef VIT_DATA_DETECTION_SHAPE_SCENES_H
#define VIT_DATA_DETECTION_SHAPE_SCENES_H

#include "data/detection/coco.h"
#include "data/sets/shapes.h"

enum { SCENES_SIDE = 128, SCENES_LEAST_SIDE = 32, SCENES_MOST = 6, SCENES_TRAIN = 4000, SCENES_TEST = 500 };

enum { SCENES_EDGE = 128 };

/* Draws scene `index` of the split (0 train, 1 test): pixels [side,side,3], and for each of its 1 to SCENES_MOST
 * figures, in painting order, the label and the box x0, y0, x1, y1 of the pixels it covers at least partly (x1, y1
 * exclusive).  Returns the number of figures.  Boxes lie inside the picture, and two of them overlap by at most a tenth
 * of the smaller one.
 *
 * owner [side,side]: 0 for a pixel of the ground, 1 + i for a pixel of figure i, which covers at least half of it and
 * is not painted over there by a later figure that also does.  SCENES_EDGE is added if a visible edge of a figure runs
 * through the pixel, whose colour is then a mixture.
 *
 * pixels and owner may be NULL.  A pure function of (seed, split, index, side), and thread-safe. */
int scenes_draw(uint64_t seed, uint32_t split, uint32_t index, int side, uint8_t *pixels, uint8_t *owner,
                int label[SCENES_MOST], int box[SCENES_MOST][4]);

/* The classes for semantic segmentation of `count` pixels with these owners: 0 for the ground, 1 + label for a figure,
 * and SCENES_IGNORED for edges if `ignore_edges`.  classes may be owner. */
enum { SCENES_IGNORED = 255 };
void scenes_classes(uint8_t *classes, const uint8_t *owner, size_t count, const int label[SCENES_MOST],
                    bool ignore_edges);

/* The annotations of the first `count` scenes in COCO's form: image id = index + 1, category id = label + 1, area = the
 * box's area.  With masks, the pixels that each figure owns are annotated as run lengths, and area is their number. */
void scenes_coco(Coco *coco, uint64_t seed, uint32_t split, int count, int side, bool masks);

#endif
