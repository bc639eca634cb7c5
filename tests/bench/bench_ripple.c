/* Times the algorithms of ripple attention over grids and distances, forward and backward, in microseconds for one head
 * of one image, and prints CSV with what ripple_*_cost predicts.  The constants of the cost models come from here.
 * Usage: OMP_NUM_THREADS=1 bench_ripple [largest grid side, default 32] */
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/check.h"

static const RippleAlgorithm algorithms[] = {RIPPLE_ALGORITHM(dense), RIPPLE_ALGORITHM(window), RIPPLE_ALGORITHM(sat)};

static void bench(const RippleRings *rings, int D, int F) {
    size_t N = (size_t)grid_tokens(rings->grid), G = rings->G;
    int H = N < 1024 ? 4 : 1;
    size_t rows = N * H;
    float *weights = malloc(G * sizeof *weights), *features = check_normal(rows * 2 * F, 1, 0);
    for (size_t r = 0; r < G; r++) weights[r] = 1.0f / G;
    for (size_t i = 0; i < rows * 2 * F; i++) features[i] = fabsf(features[i]);
    real *phi = device_copy_of(features, rows * 2 * F);
    real *qkv = device_copy_of(check_normal(rows * 3 * D, 1, 1), rows * 3 * D);
    real *dy = device_copy_of(check_normal(rows * D, 1, 2), rows * D);
    real *y = device_malloc(rows * D * sizeof *y, "bench");
    real *dqkv = device_malloc(rows * 3 * D * sizeof *dqkv, "bench");
    real *dphi = device_malloc(rows * 2 * F * sizeof *dphi, "bench");
    float *alpha = device_malloc(rows * G * sizeof *alpha, "bench"), *den = device_malloc(rows * sizeof *den, "bench");
    float *dalpha = device_malloc(rows * G * sizeof *dalpha, "bench");
    fixed_weights(alpha, weights, rows, rings->G);
    RippleInputs in = {alpha, phi, qkv};
    RippleGradients din = {dalpha, dphi, dqkv};
    FeatureShape shape = {1, (int)N, H, D, F};
    for (size_t a = 0; a < sizeof algorithms / sizeof *algorithms; a++) {
        const RippleAlgorithm *algorithm = &algorithms[a];
        if (algorithm->cost(rings, D, F) * H > 1 || (rings->grid.frames > 1 && !algorithm->clips)) continue;
        double forward, backward;
        kernels_reserve(algorithm->workspace(rings, D, F));
        TIME(forward, 0.01, algorithm->forward(y, den, &in, rings, &shape));
        TIME(backward, 0.01, algorithm->backward(&din, dy, y, den, &in, rings, &shape));
        printf("%s,%d,%d,%d,%d,%d,%d,%d,%.2f,%.2f,%.2f\n", algorithm->name, rings->grid.frames, rings->grid.rows,
               rings->grid.columns, D, F, rings->G, rings->bound[rings->G - 1], forward / H * 1e6, backward / H * 1e6,
               algorithm->cost(rings, D, F) * 1e6);
        fflush(stdout);
    }
    void *all[] = {phi, qkv, dy, y, dqkv, dphi, alpha, den, dalpha};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) device_free(all[i]);
    free(weights);
}

/* Rings of width one up to distance r_max, as `ripple`; or of widths 1, 1, 2, 4 ..., as `ripple-log`. */
static RippleRings rings_of(int frames, int side, int r_max, bool widening) {
    RippleRings rings = {.grid = {frames, side, side}, .G = 1, .ring_time = frames > 1};
    for (int bound = 1; bound <= r_max; bound = widening ? 2 * bound : bound + 1) rings.bound[rings.G++] = bound;
    return rings;
}

int main(int argc, char **argv) {
    static const int sides[] = {7, 8, 14, 16, 20, 32, 48, 64, 128}, distances[] = {2, 4, 8, 16};
    int largest = argc > 1 ? atoi(argv[1]) : 32;
    kernels_init();
    check_seed();
    printf("algorithm,Tg,Hg,Wg,D,F,G,reach,forward_us,backward_us,cost_us\n");
    for (size_t s = 0; s < sizeof sides / sizeof *sides && sides[s] <= largest; s++) {
        for (size_t d = 0; d < sizeof distances / sizeof *distances; d++) {
            RippleRings rings = rings_of(1, sides[s], distances[d], false);
            bench(&rings, 32, 32);
        }
        RippleRings widening = rings_of(1, sides[s], sides[s] - 1, true), clip = rings_of(4, sides[s], 4, false);
        bench(&widening, 32, 32);
        bench(&clip, 32, 32);
    }
    kernels_exit();
}
