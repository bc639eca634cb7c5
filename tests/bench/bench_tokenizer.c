/* How long the parts of a compact transformer's tokenizer take at 32 x 32 pixels, as 3 -> 64 -> 128 channels: its
 * convolutions, exact and quick, and its max pools, forward and backward, compared with the time that a convolution's
 * multiplications take at the rate of a large matrix product of floats.
 *
 *   build/cpu/tests/bench_tokenizer [images [seconds [cpu]]]
 *
 * `cpu` measures processor time, which is better on a busy machine with one thread. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/bench.h"


static void print(const char *name, double s, double floor) {
    printf("%-30s %8.3f ms", name, 1e3 * s);
    if (floor > 0) printf("   %5.1f %% of the rate of sgemm", 100 * floor / s);
    putchar('\n');
}

static void bench_convolution(Convolution c, int side, int B, bool input, double least, double peak) {
    const ImageShape images = {B, side, side};
    size_t pixels = (size_t)B * (size_t)(side * side), nw = (size_t)(c.in * c.out * c.k * c.k);
    real *x = uniform_real(pixels * (size_t)c.in, -1, 1), *dx = uniform_real(pixels * (size_t)c.in, -1, 1);
    real *y = uniform_real(pixels * (size_t)c.out, -1, 1), *dy = uniform_real(pixels * (size_t)c.out, -1, 1);
    float *w = uniform_floats(nw, -1, 1), *dw = uniform_floats(nw, -1, 1);
    float *scale = uniform_floats((size_t)c.out, 1, 1), *shift = uniform_floats((size_t)c.out, 0, 0);
    void *folded = device_malloc(convolution_folded_bytes(&c, input), "bench");
    double s, floor = 2e-9 * (double)pixels * (double)nw / peak;
    kernels_reserve(convolution_workspace(&c, &images, true));
    convolution_fold(folded, w, scale, &c, input);
    printf("\n%d -> %d at %d x %d, %s\n", c.in, c.out, side, side, c.way == CONVOLUTION_QUICK ? "quick" : "exact");
    TIME(s, least, convolution_fold(folded, w, scale, &c, input));
    print("  fold", s, 0);
    TIME(s, least, convolution_forward(y, x, NULL, folded, shift, &c, false, &images));
    print("  forward", s, floor);
    if (input) {
        TIME(s, least, convolution_backward_input(dx, NULL, dy, folded, NULL, &c, &images));
        print("  backward, input", s, floor);
    }
    TIME(s, least, convolution_backward_weight(dw, dy, x, scale, &c, &images));
    print("  backward, weights", s, floor);
    void *made[] = {x, dx, y, dy, w, dw, scale, shift, folded};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) device_free(made[i]);
}

static void bench_pool(int C, int side, int B, double least) {
    const ImageShape images = {B, side, side};
    size_t n = (size_t)B * (size_t)(side * side * C);
    real *x = uniform_real(n, -1, 1), *y = uniform_real(n / 4, -1, 1);
    uint8_t *at = device_malloc(n / 4, "bench");
    double s;
    printf("\nReLU and max pool of %d channels at %d x %d\n", C, side, side);
    TIME(s, least, relu_max_pool_forward(y, at, x, &images, C));
    print("  forward", s, 0);
    TIME(s, least, max_pool_backward(x, y, at, &images, C, false));
    print("  backward", s, 0);
    device_free(x);
    device_free(y);
    device_free(at);
}

int main(int argc, char **argv) {
    int B = argc > 1 ? atoi(argv[1]) : 128;
    double least = argc > 2 ? atof(argv[2]) : 0.2;
    if (argc > 3) bench_clock = CLOCK_PROCESS_CPUTIME_ID;
    kernels_init();
    double peak = gemm_peak_gflops();
    printf("%s, %d images, peak %.0f GFLOP/s\n", kernels_device(), B, peak);
    bench_convolution((Convolution){3, 64, 3, 1, CONVOLUTION_CENTRED}, 32, B, false, least, peak);
    bench_pool(64, 32, B, least);
    bench_convolution((Convolution){64, 128, 3, 1, CONVOLUTION_CENTRED}, 16, B, true, least, peak);
    bench_convolution((Convolution){64, 128, 3, 1, CONVOLUTION_QUICK}, 16, B, true, least, peak);
    bench_pool(128, 16, B, least);
    kernels_exit();
    return 0;
}
