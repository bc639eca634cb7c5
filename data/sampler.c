#include "data/sampler.h"

size_t sampler_length(size_t count, int repeats) { return repeats > 1 && count >= 256 ? count / 256 * 256 : count; }

uint32_t sampler_draw(const uint32_t *order, size_t count, int repeats, size_t place) {
    size_t times = (size_t)(repeats > 1 ? repeats : 1);
    return (uint32_t)(order[place / times] + place % times * count);
}
