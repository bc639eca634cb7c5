#include "core/rng.h"

#include <string.h>

/* Number of Philox blocks computed together, so that the compiler can vectorise the rounds. */
enum { SIDE_BY_SIDE = 32 };

/* Computes words [4][SIDE_BY_SIDE] of the blocks from `first` on; the same bits as rng_philox block by block. */
static void philox_blocks(uint32_t (*words)[SIDE_BY_SIDE], uint64_t first, uint32_t a, uint32_t b, uint32_t purpose,
                          uint64_t seed) {
    for (int j = 0; j < SIDE_BY_SIDE; j++) {
        uint64_t block = first + (uint64_t)j;
        uint32_t counter[4] = {(uint32_t)block, a, b, purpose | (uint32_t)(block >> 32) << 8};
        RngBlock bits = rng_philox(counter, seed);
        for (int w = 0; w < 4; w++) words[w][j] = bits.word[w];
    }
}

void rng_normals(float *x, size_t n, uint64_t seed, RngPurpose purpose, uint32_t a, uint32_t b) {
    size_t blocks = (n + 1) / 2; /* two elements per block */
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < blocks; first += SIDE_BY_SIDE) {
        uint32_t words[4][SIDE_BY_SIDE];
        float pairs[2 * SIDE_BY_SIDE];
        size_t left = n - 2 * first;
        philox_blocks(words, first, a, b, (uint32_t)purpose, seed);
        for (int j = 0; j < SIDE_BY_SIDE; j++) {
            pairs[2 * j] = rng_normal_of(words[0][j], words[1][j]);
            pairs[2 * j + 1] = rng_normal_of(words[2][j], words[3][j]);
        }
        memcpy(x + 2 * first, pairs, (left < 2 * SIDE_BY_SIDE ? left : 2 * SIDE_BY_SIDE) * sizeof *x);
    }
}
