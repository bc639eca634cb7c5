/* The embedded data set: 32 x 32 colour images of one of ten shapes, drawn on demand.  Needs no file, no network
 * and no memory; small enough to learn in minutes, and useless to a classifier that only looks at single pixels. */
#ifndef VIT_DATA_SETS_SHAPES_H
#define VIT_DATA_SETS_SHAPES_H

#include "core/integers.h"
#include "core/rng.h"
#include "data/sets/dataset.h"

enum { SHAPES_SIDE = 32, SHAPES_CLASSES = 10, SHAPES_TRAIN = 20000, SHAPES_TEST = 2000 };

/* Draws image `index` of the split (0 train, 1 test): pixels [32,32,3], its label (= index mod 10) and the box x0, y0,
 * x1, y1 of the pixels that the shape covers at least partly (x1, y1 exclusive; any pointer but pixels may be NULL).  A
 * pure function of (seed, split, index), and thread-safe. */
void shapes_draw(uint64_t seed, uint32_t split, uint32_t index, uint8_t *pixels, int *label, int box[4]);

/* The signed distance of (x, y) from the outline of a class's figure, in units of its radius, negative inside; x to the
 * right, y down, the figure upright around the origin.  No figure extends further from the origin than shapes_reach. */
float shapes_distance(int label, float x, float y);
extern const float shapes_reach;

/* The random stream of one image or clip; `next` is the position of the next draw. */
typedef struct {
    uint64_t seed;
    uint32_t split, index, next;
    RngPurpose purpose;
} ShapesStream;

static inline float shapes_uniform(ShapesStream *s, float low, float high) {
    return low + (high - low) * rng_uniform(s->seed, s->purpose, s->split, s->index, s->next++);
}

static inline int shapes_below(ShapesStream *s, int n) {
    return (int)rng_below(s->seed, s->purpose, s->split, s->index, s->next++, (uint32_t)n);
}

/* Extends a box x0, y0, x1, y1 (x1, y1 exclusive) to a pixel. */
static inline void shapes_extend(int box[4], int x, int y) {
    box[0] = smaller(box[0], x);
    box[1] = smaller(box[1], y);
    box[2] = larger(box[2], x + 1);
    box[3] = larger(box[3], y + 1);
}

/* pixels [count] = canvas + strength times the difference of two random bytes, within 0 to 255.  The bytes are those of
 * the stream's elements from 4096 on, two for each channel of each pixel, frame t after frame t - 1.  canvas NULL: the
 * pixels as they are. */
void shapes_noise(uint8_t *pixels, const float *canvas, size_t count, int t, const ShapesStream *s, float strength);

extern const DatasetKind shapes_kind;

/* See dataset_describe in data/sets/datasets.h. */
void shapes_describe(Dataset *dataset);

/* See dataset_open there.  Without a limit 20,000 training or 2,000 test images; a larger limit draws more of them. */
void shapes_open(Dataset *dataset, bool train, uint64_t seed, size_t limit);

#endif
