/* Time of linear attention's products, without its feature map: eight images of 256 tokens, with as many features as
 * channels.
 *
 *   OMP_NUM_THREADS=1 build/cpu/tests/bench_linear
 *
 * Measures processor time, which other programs on the machine disturb little. */
#include <stdio.h>

#include "tests/bench/bench.h"

enum { B = 8, N = 256, RUNS = 15 };

/* Microseconds per head of the forward and of the backward pass, the best of some runs. */
static void measure(int H, int D) {
    LinearAttention shape = {B, N, H, D, D, DENOMINATOR_EPSILON, {0}};
    size_t n = (size_t)B * N * (size_t)(H * D), heads = (size_t)B * (size_t)H;
    real *qkv = uniform_real(3 * n, -1, 1), *phi = uniform_real(2 * n, 0, 1), *dy = uniform_real(n, -1, 1),
         *y = uniform_real(n, -1, 1), *dqkv = uniform_real(3 * n, -1, 1), *dphi = uniform_real(2 * n, -1, 1);
    float *den = uniform_floats(heads * N, 0, 1), *kv = uniform_floats(heads * (size_t)(D * (D + 1)), 0, 1);
    double forward = 1e9, backward = 1e9;
    kernels_reserve(linear_attention_workspace(D, D));
    for (int run = 0; run < RUNS; run++) {
        double start = seconds();
        linear_attention_forward(y, den, kv, phi, qkv, &shape);
        double middle = seconds();
        linear_attention_backward(dqkv, dphi, dy, y, den, kv, phi, qkv, &shape);
        double end = seconds();
        if (middle - start < forward) forward = middle - start;
        if (end - middle < backward) backward = end - middle;
    }
    printf("%2d heads of %3d %12.2f %12.2f\n", H, D, 1e6 * forward / (double)heads, 1e6 * backward / (double)heads);
    void *memory[] = {qkv, phi, dy, y, dqkv, dphi, den, kv};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) device_free(memory[i]);
}

int main(void) {
    bench_clock = CLOCK_PROCESS_CPUTIME_ID;
    kernels_init();
    printf("%s\n%-15s %12s %12s\n", kernels_device(), "", "forward, us", "backward, us");
    measure(6, 32);
    measure(3, 64);
    measure(12, 64);
    measure(16, 64);
    kernels_exit();
    return 0;
}
