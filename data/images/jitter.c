#include "data/images/jitter.h"

#include "core/rng.h"
#include "data/images/pillow.h"

JitterDraw jitter_draw(float strength, uint64_t seed, uint32_t epoch, uint32_t draw) {
    JitterDraw drawn = {{JITTER_BRIGHTNESS, JITTER_CONTRAST, JITTER_SATURATION}, {0}};
    float least = strength < 1 ? 1 - strength : 0, most = 1 + strength;
    for (uint32_t i = JITTERS - 1; i > 0; i--) {
        uint32_t j = rng_below(seed, RNG_JITTER, epoch, draw, i, i + 1);
        Jitter swap = drawn.order[i];
        drawn.order[i] = drawn.order[j];
        drawn.order[j] = swap;
    }
    for (uint32_t i = 0; i < JITTERS; i++)
        drawn.factor[i] = least + (most - least) * rng_uniform(seed, RNG_JITTER, epoch, draw, JITTERS + i);
    return drawn;
}

void jitter_apply(uint8_t *pixels, size_t n, const JitterDraw *draw) {
    static void (*const enhance[JITTERS])(uint8_t *, size_t, float) = {pillow_brightness, pillow_contrast,
                                                                       pillow_color};
    for (int i = 0; i < JITTERS; i++) enhance[draw->order[i]](pixels, n, draw->factor[draw->order[i]]);
}
