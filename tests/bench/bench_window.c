/* Time of attention within windows in the stages of Swin-T at 224 x 224, one image, with windows that are shifted and
 * with windows that are not.
 *
 *   OMP_NUM_THREADS=1 build/cpu/tests/bench_window
 *
 * Measures processor time, which other programs on the machine disturb little. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/bench.h"

enum { SIDE = 7, D = 32, RUNS = 15, TABLE = (2 * SIDE - 1) * (2 * SIDE - 1) };

/* Milliseconds of the forward and of the backward pass, the best of some runs. */
static void measure(int side, int H, int shift) {
    AttentionShape shape = {1, side * side, H, D};
    WindowShape windows = {.grid = {1, side, side}, .wh = SIDE, .ww = SIDE, .wt = 1, .shift_y = shift, .shift_x = shift};
    size_t n = (size_t)shape.N * (size_t)(H * D);
    real *qkv = uniform_real(3 * n, -1, 1), *y = uniform_real(n, -1, 1), *dy = uniform_real(n, -1, 1),
         *dqkv = uniform_real(3 * n, -1, 1);
    float *lse = uniform_floats((size_t)(shape.N * H), -0.5f, 0.5f),
          *table = uniform_floats((size_t)(TABLE * H), -0.05f, 0.05f),
          *dtable = uniform_floats((size_t)(TABLE * H), -0.5f, 0.5f);
    double forward = 1e9, backward = 1e9;
    kernels_reserve(window_attention_workspace(&windows, &shape));
    for (int run = 0; run < RUNS; run++) {
        double start = seconds();
        window_attention_forward(y, lse, qkv, &(WindowParameters){NULL, table}, &windows, &shape);
        double middle = seconds();
        window_attention_backward(dqkv, &(WindowGradients){NULL, dtable}, dy, y, lse, qkv,
                                  &(WindowParameters){NULL, table}, &windows, &shape);
        double end = seconds();
        if (middle - start < forward) forward = middle - start;
        if (end - middle < backward) backward = end - middle;
    }
    printf("%2d x %2d, %2d heads, shift %d %12.2f %12.2f\n", side, side, H, shift, 1e3 * forward, 1e3 * backward);
    void *memory[] = {qkv, y, dy, dqkv, lse, table, dtable};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) device_free(memory[i]);
}

int main(void) {
    bench_clock = CLOCK_PROCESS_CPUTIME_ID;
    kernels_init();
    printf("%s\n%-26s %12s %12s\n", kernels_device(), "", "forward, ms", "backward, ms");
    for (int stage = 0; stage < 3; stage++)
        for (int shift = 0; shift <= SIDE / 2; shift += SIDE / 2) measure(56 >> stage, 3 << stage, shift);
    kernels_exit();
    return 0;
}
