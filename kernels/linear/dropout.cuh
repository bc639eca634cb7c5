/* Dropout's decisions (kernels/linear/dropout.h): one Philox block decides about eight elements, sixteen apart. */
#ifndef VIT_KERNELS_CUDA_DROPOUT_CUH
#define VIT_KERNELS_CUDA_DROPOUT_CUH

#include <device.cuh>

#include "core/rng.h"
#include "kernels/linear/dropout.h"

enum { DROPOUT_GROUP = 128, DROPOUT_SIDE = 16 };

struct DropoutDraw {
    uint64_t seed;
    uint32_t step, stream, threshold; /* stream: of the launch's first image */
    float scale;
    bool on;
};

static inline DropoutDraw dropout_draw(const Dropout *d) {
    return {d->seed, d->step, d->site << 20 | d->first, (uint32_t)lrintf(65536 * d->rate), 1 / (1 - d->rate),
            d->rate > 0};
}

/* The Philox block that decides about element i. */
DEVICE RngBlock dropout_block(const DropoutDraw &d, int image, uint64_t i) {
    uint64_t block = i / DROPOUT_GROUP * DROPOUT_SIDE + i % DROPOUT_SIDE;
    uint32_t counter[4] = {(uint32_t)block, d.step, d.stream + (uint32_t)image,
                           (uint32_t)RNG_DROPOUT | (uint32_t)(block >> 32) << 8};
    return rng_philox(counter, d.seed);
}

/* The factor of element i, 0 or 1 / (1 - rate), from its block; part = (i / 16) % 8. */
DEVICE float dropout_factor(const DropoutDraw &d, const RngBlock &block, int part) {
    uint32_t half = block.word[part / 2] >> (16 * (part % 2)) & 0xffffu;
    return half >= d.threshold ? d.scale : 0;
}

#endif
