/* GFLOP/s of each convolution in ResNet-50 and in a feature pyramid at one image size, forward and both backward
 * products, compared with the peak of a large matrix product; for the pyramid's convolutions, which have a bias, also
 * the time of its gradient.  `pyramid` leaves out ResNet-50; `cpu` measures processor time, which is better on a busy
 * machine with one thread.
 *
 *   build/cpu/tests/bench_convolution [height width [runs [pyramid] [cpu]]] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"

static real *numbers(size_t n) {
    float *host = malloc(n * sizeof *host);
    for (size_t i = 0; i < n; i++) host[i] = (float)(i * 2654435761u % 1000) / 500 - 1;
    return device_copy_of(host, n);
}

/* Returns the seconds of all three products and of folding the weights, which happens once in a training step. */
static double bench(const char *name, Convolution c, int H, int W, int runs) {
    const ImageShape images = {1, H, W};
    int Ho = convolution_side(H, c.stride), Wo = convolution_side(W, c.stride);
    size_t nx = (size_t)H * (size_t)W * (size_t)c.in, ny = (size_t)Ho * (size_t)Wo * (size_t)c.out;
    size_t nw = (size_t)(c.in * c.out) * (size_t)(c.k * c.k);
    real *x = numbers(nx), *dx = numbers(nx), *y = numbers(ny), *dy = numbers(ny);
    float *w = device_malloc(nw * sizeof *w, "bench"), *dw = device_malloc(nw * sizeof *w, "bench");
    float *scale = device_malloc((size_t)c.out * sizeof *w, "bench");
    void *folded = device_malloc(convolution_folded_bytes(&c, true), "bench");
    double best[4] = {1e9, 1e9, 1e9, 1e9}, gflop = 2e-9 * (double)ny * c.in * c.k * c.k;
    convolution_fold(folded, w, scale, &c, true);
    kernels_reserve(convolution_workspace(&c, &images, true));
    for (int run = 0; run <= runs; run++) { /* the first prepares the shape */
        double t[5];
        t[0] = seconds();
        convolution_forward(y, x, NULL, folded, scale, &c, true, &images);
        t[1] = seconds();
        convolution_backward_input(dx, NULL, dy, folded, x, &c, &images);
        t[2] = seconds();
        convolution_backward_weight(dw, dy, x, scale, &c, &images);
        t[3] = seconds();
        convolution_fold(folded, w, scale, &c, true);
        t[4] = seconds();
        for (int i = 0; i < 4 && run; i++)
            if (t[i + 1] - t[i] < best[i]) best[i] = t[i + 1] - t[i];
    }
    printf("%-22s %4d -> %4d  %dx%d/%d  %3dx%-3d  forward %6.0f  input %6.0f  weight %6.0f  fold %4.1f ms", name, c.in, c.out, c.k,
           c.k, c.stride, H, W, gflop / best[0], gflop / best[1], gflop / best[2], 1e3 * best[3]);
    void *made[] = {x, dx, y, dy, w, dw, scale, folded};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) device_free(made[i]);
    return best[0] + best[1] + best[2] + best[3];
}

/* The pyramid's maps are 1/4 to 1/32 of the image. */
static void bench_pyramid(int H, int W, int runs) {
    for (int level = 2; level <= 5; level++) {
        int rows = (H + (1 << level) - 1) >> level, columns = (W + (1 << level) - 1) >> level;
        char name[64];
        snprintf(name, sizeof name, "C%d lateral", level);
        bench(name, (Convolution){256 << (level - 2), 256, 1, 1, CONVOLUTION_CENTRED}, rows, columns, runs);
        snprintf(name, sizeof name, "\nP%d", level);
        bench(name, (Convolution){256, 256, 3, 1, CONVOLUTION_CENTRED}, rows, columns, runs);
        snprintf(name, sizeof name, "\nP%d, quick", level);
        double all = bench(name, (Convolution){256, 256, 3, 1, CONVOLUTION_QUICK}, rows, columns, runs), bias;
        const LinearShape pixels = {(size_t)rows * (size_t)columns, 0, 256, 0};
        real *dy = numbers(pixels.n * 256);
        float *db = device_malloc(256 * sizeof *db, "bench");
        TIME(bias, 0.05, linear_backward_bias(db, dy, &pixels));
        printf("  bias %.1f %%, %.1f GB/s\n", 100 * bias / all, 1e-9 * (double)(pixels.n * 256 * sizeof *dy) / bias);
        device_free(dy);
        device_free(db);
    }
}

static void bench_resnet(int H, int W, int runs) {
    bench("conv1", (Convolution){3, 64, 7, 2, false}, H, W, runs);
    H = (H + 3) / 4;
    W = (W + 3) / 4;
    for (int stage = 0, in = 64; stage < 4; stage++, in = 256 << (stage - 1)) {
        int width = 64 << stage, stride = stage ? 2 : 1;
        char name[64];
        const struct {
            const char *name;
            Convolution c;
        } first[] = {{"conv1, first block", {in, width, 1, 1, false}},
                     {"conv2, first block", {width, width, 3, stride, false}},
                     {"downsample", {in, 4 * width, 1, stride, false}}},
          rest[] = {{"conv1", {4 * width, width, 1, 1, false}},
                    {"conv2", {width, width, 3, 1, false}},
                    {"conv3", {width, 4 * width, 1, 1, false}}};
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "%d %s", stage + 1, first[i].name);
            putchar('\n');
            bench(name, first[i].c, H, W, runs);
        }
        H = convolution_side(H, stride);
        W = convolution_side(W, stride);
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "%d %s", stage + 1, rest[i].name);
            putchar('\n');
            bench(name, rest[i].c, H, W, runs);
        }
    }
    putchar('\n');
}

int main(int argc, char **argv) {
    int H = argc > 2 ? atoi(argv[1]) : 800, W = argc > 2 ? atoi(argv[2]) : 1066, runs = argc > 3 ? atoi(argv[3]) : 3;
    bool pyramid = false;
    for (int i = 4; i < argc; i++) {
        if (!strcmp(argv[i], "pyramid")) pyramid = true;
        if (!strcmp(argv[i], "cpu")) bench_clock = CLOCK_PROCESS_CPUTIME_ID;
    }
    kernels_init();
    printf("%s, peak %.0f GFLOP/s\n", kernels_device(), gemm_peak_gflops());
    if (!pyramid) bench_resnet(H, W, runs);
    bench_pyramid(H, W, runs);
    kernels_exit();
    return 0;
}
