/* The choice of the anchors or proposals that count in a step's loss.  The sample is a pure function of its arguments:
 * every candidate has a random number of its own, and those with the smallest numbers are taken. */
#ifndef VIT_DETECTION_REGIONS_SAMPLE_H
#define VIT_DETECTION_REGIONS_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int most;          /* candidates in a sample: 256 anchors, 512 proposals */
    int most_positive; /* of them: 128 */
} SampleRule;

/* What the random numbers depend on: RNG_REGIONS, a = step, b = image << 1 | stage. */
typedef struct {
    uint64_t seed;
    uint32_t step, image; /* image: of the global batch */
    uint32_t stage;       /* 0: anchors, 1: proposals */
} SampleDraw;

typedef struct {
    int count, positives;
} SampleSize;

/* chosen (=) [rule->most]: indices of the sample in ascending order, from to [n] of assign_boxes: as many positive ones
 * as there are, up to most_positive, and negative ones up to `most` together.  elements [n]: distinct numbers of the
 * candidates, on which the draw depends, or NULL for their indices.  keys [rule->most]: scratch. */
SampleSize sample_regions(int *chosen, uint64_t *keys, const int *to, const uint32_t *elements, size_t n,
                          const SampleRule *rule, const SampleDraw *draw);

#endif
