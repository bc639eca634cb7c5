/* Seconds of ResNet-50 on one image: forward alone, as in evaluation, and forward, backward and folding, as in
 * training; the fastest of a few runs.  `cpu` measures processor time instead of elapsed time, which is better on a
 * busy machine with one thread.
 *
 *   build/cpu/tests/bench_resnet [height width [runs [cpu]]]      scripts/bench/bench_resnet.py compares with PyTorch
 */
#include <stdio.h>
#include <stdlib.h>

#include "layers/backbone/resnet.h"
#include "tests/bench/bench.h"

int main(int argc, char **argv) {
    int H = argc > 2 ? atoi(argv[1]) : 800, W = argc > 2 ? atoi(argv[2]) : 1066, runs = argc > 3 ? atoi(argv[3]) : 5;
    if (argc > 4) bench_clock = CLOCK_PROCESS_CPUTIME_ID;
    kernels_init();
    ResNetConfig config = {{3, 4, 6, 3}, 64, 3, false, CONVOLUTION_CENTRED, ""};
    Params params = {0};
    ResNet net;
    Plan training = {0}, inference = {0};
    resnet_create(&net, &config, &params);
    params_allocate(&params, true);
    params_initialize(&params, 1);
    resnet_fold(&net);
    plan_start(&training, true);
    plan_start(&inference, false);
    resnet_plan(&net, &training, 1, H, W);
    resnet_plan(&net, &inference, 1, H, W);
    size_t bytes = plan_bytes(&training);
    void *memory = device_malloc(bytes, "activations");
    size_t n = (size_t)H * (size_t)W * 3, out = (size_t)resnet_grid(H) * (size_t)resnet_grid(W) * 2048;
    float *host = calloc(n > out ? n : out, sizeof *host);
    for (size_t i = 0; i < n || i < out; i++) host[i] = (float)(i * 2654435761u % 1000) / 500 - 1;
    real *images = device_malloc(n * sizeof *images, "images"),
         *dfeatures = device_malloc(out * sizeof *images, "gradient");
    real_upload(images, host, n);

    double gflop = 2e-9 * (double)resnet_macs(&net, H, W), best[2] = {1e9, 1e9};
    for (int both = 0; both < 2; both++) {
        plan_bind(both ? &training : &inference, memory);
        for (int run = 0; run <= runs; run++) { /* the first prepares the shapes */
            real_upload(dfeatures, host, out);
            double start = seconds();
            resnet_forward(&net, images, 1, H, W);
            if (both) {
                resnet_backward(&net, (real *[RESNET_STAGES]){NULL, NULL, NULL, dfeatures}, 1, H, W, NULL);
                resnet_fold(&net);
            }
            double took = seconds() - start;
            if (run && took < best[both]) best[both] = took;
        }
    }
    printf("%s, %dx%d, %.1f GFLOP forward, %.0f MiB: forward %.4f s, %.0f GFLOP/s; forward and backward %.4f s\n",
           kernels_device(), H, W, gflop, (double)bytes / (1 << 20), best[0], gflop / best[0], best[1]);
    printf("peak %.0f GFLOP/s\n", gemm_peak_gflops());
    return 0;
}
