/* Microseconds per image for crop, flip and RandAugment or AutoAugment on one thread:
 *
 *     bench_augment POLICY SIDE COUNT FILE [ROUNDS]
 *
 * FILE contains COUNT pictures [SIDE,SIDE,3].  scripts/bench/bench_augment.py compares with timm. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/die.h"
#include "data/images/augment.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc < 5) die_usage("bench_augment POLICY SIDE COUNT FILE [ROUNDS]");
    int side = atoi(argv[2]), rounds = argc > 5 ? atoi(argv[5]) : 5;
    uint32_t count = (uint32_t)atoi(argv[3]);
    if (side < 1 || rounds < 1 || count < 1) die_usage("bench_augment: SIDE, COUNT and ROUNDS are at least 1");
    size_t image = (size_t)side * (size_t)side * 3;
    Augment augment = augment_of(&(AugmentSettings){.crop_padding = 4, .flip = true, .aa = argv[1]});
    uint8_t *in = xcalloc(count, image, "pictures"), *out = xcalloc(1, image, "picture");
    uint8_t *scratch = xcalloc(1, pillow_scratch(side, side), "scratch");
    FILE *file = fopen(argv[4], "rb");
    if (!file || fread(in, image, count, file) != count) die("%s: cannot read %u pictures", argv[4], count);
    double best = 1e9;
    for (int round = 0; round < rounds; round++) {
        double start = now();
        for (uint32_t i = 0; i < count; i++) {
            AugmentDraw draw = augment_draw(augment, 1, (uint32_t)round, i);
            augment_apply(out, in + i * image, side, side, draw);
            augment_pixels(out, scratch, side, side, &draw);
        }
        double took = (now() - start) / count;
        best = took < best ? took : best;
    }
    printf("%.2f\n", best * 1e6);
    fclose(file);
    free(scratch);
    free(out);
    free(in);
    return 0;
}
