/* The order of the images in a training epoch, and the keys of their random draws.
 *
 * Without repeats, place p of the epoch holds image order[p].  With repeated augmentation (Hoffer et al. 2019) each
 * image occupies `repeats` consecutive places, each with its own random draws, as in DeiT's RASampler (which deals
 * samples to ranks in turn, so that its global batch is a range of places here).  An epoch then has as many samples
 * as the data set has images, rounded down to a multiple of 256; the places after that are not used. */
#ifndef VIT_DATA_LOADING_SAMPLER_H
#define VIT_DATA_LOADING_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "core/config/config.h"

enum { SAMPLER_REPEATS = 3 }; /* DeiT's num_repeats */

typedef struct {
    bool repeated_aug, drop_last, balanced;
} SamplerSettings;

extern const ConfigGroup sampler_settings;

/* The number of times that a training image is repeated: SAMPLER_REPEATS or 1. */
int sampler_repeats(const SamplerSettings *s);

/* The number of samples in one epoch; not rounded for fewer than 256 images (timm/data/distributed_sampler.py). */
size_t sampler_length(size_t count, int repeats);

/* Sets order [count] to the draws of an epoch in which all classes that have images come equally often, up to a
 * difference of one image.  A class repeats its images in rounds, each in another order.  The draw number of an image
 * in a round is image + round * count.  labels [count]. */
void sampler_balance(uint32_t *order, const int *labels, size_t count, int classes, uint64_t seed, uint32_t epoch);

/* The draw number at a place: image + repeat * count.  The image is therefore draw % count, and its first draw is the
 * same with and without repeats.  order [count];  count * repeats < 2^32. */
uint32_t sampler_draw(const uint32_t *order, size_t count, int repeats, size_t place);

#endif
