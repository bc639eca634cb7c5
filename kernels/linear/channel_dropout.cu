/* Dropout of whole channels.  A thread draws the factor of one channel of one image, and multiplies some rows. */
#include "kernels/cuda/rows.cuh"
#include "kernels/device/device.h"
#include "kernels/linear/dropout.cuh"

enum { WARPS = 8, THREADS = WARPS * WARP, EACH = 16 }; /* rows of a thread */

size_t channel_dropout_workspace(int B, int C) {
    (void)B, (void)C;
    return 0;
}

__global__ void __launch_bounds__(THREADS)
    channel_dropout_kernel(real *y, const real *x, DropoutDraw draw, size_t N, int C) {
    int c = (int)blockIdx.y * WARP + lane_id(), image = (int)blockIdx.z;
    if (c >= C) return;
    float factor = dropout_factor(draw, dropout_block(draw, image, (uint64_t)c), c / DROPOUT_SIDE % 8);
    size_t first = (size_t)blockIdx.x * WARPS * EACH + warp_id();
    for (int i = 0; i < EACH; i++) {
        size_t row = first + (size_t)i * WARPS;
        if (row >= N) return;
        size_t at = ((size_t)image * N + row) * C + c;
        y[at] = to_real(factor * to_float(x[at]));
    }
}

void channel_dropout_forward(real *y, const real *x, const Dropout *dropout, int B, size_t N, int C) {
    if (!(dropout->rate > 0)) {
        if (y != x) device_copy(y, x, B * N * C * sizeof *y);
        return;
    }
    LAUNCH(channel_dropout_kernel,
           dim3((unsigned)ceil_div(N, WARPS * EACH), (unsigned)ceil_div(C, WARP), (unsigned)B), THREADS, 0, y, x,
           dropout_draw(dropout), N, C);
}
