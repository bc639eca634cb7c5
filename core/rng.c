#include "core/rng.h"

void rng_normals(float *x, size_t n, uint64_t seed, RngPurpose purpose, uint32_t a, uint32_t b) {
#pragma omp parallel for schedule(static)
    for (size_t block = 0; block < (n + 1) / 2; block++) {
        uint32_t counter[4] = {(uint32_t)block, a, b, (uint32_t)purpose | (uint32_t)(block >> 32) << 8};
        RngBlock bits = rng_philox(counter, seed);
        x[2 * block] = rng_normal_of(bits.word[0], bits.word[1]);
        if (2 * block + 1 < n) x[2 * block + 1] = rng_normal_of(bits.word[2], bits.word[3]);
    }
}
