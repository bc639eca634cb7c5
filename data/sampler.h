/* Which image stands where in an epoch of training, and by what number its random draws are keyed.
 *
 * Without repeats place p of the epoch holds image order[p].  With repeated augmentation (Hoffer et al. 2019) an image
 * stands `repeats` times in a row, each time with draws of its own, as in DeiT's RASampler (samples are dealt to ranks
 * in turn there, so that a global batch is a range of places here), and an epoch sees as many images as before, rounded
 * down to a multiple of 256: the places behind that are not reached. */
#ifndef VIT_DATA_SAMPLER_H
#define VIT_DATA_SAMPLER_H

#include "core/config.h"

enum { SAMPLER_REPEATS = 3 }; /* DeiT's num_repeats */

typedef struct {
    bool repeated_aug;
} SamplerSettings;

extern const ConfigGroup sampler_settings;

/* SAMPLER_REPEATS or 1. */
int sampler_repeats(const SamplerSettings *s);

/* Images of one epoch; sets below 256 are not rounded (timm/data/distributed_sampler.py). */
size_t sampler_length(size_t count, int repeats);

/* The draw at a place: image + repeat * count, so that the image is draw % count and the first draw of an image is the
 * same with repeats and without.  order [count];  count * repeats < 2^32. */
uint32_t sampler_draw(const uint32_t *order, size_t count, int repeats, size_t place);

#endif
