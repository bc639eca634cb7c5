/* Dropout of whole channels: a factor for each channel of an image, drawn once, and a product. */
#include <stdbool.h>

#include "kernels/cpu/activations.h"
#include "kernels/device/device.h"
#include "kernels/device/workspace.h"
#include "kernels/linear/dropout_cpu.h"

/* The factors [B,C]. */
size_t channel_dropout_workspace(int B, int C) { return workspace_slice((size_t)B * (size_t)C) * sizeof(float); }

static void draw_factors(float *factors, const Dropout *dropout, int image, size_t C) {
    DropoutDraw draw = dropout_draw(dropout, image);
    for (size_t c = 0; c < C; c++) factors[c] = 1;
    for (size_t c = 0; c < C; c += DROPOUT_GROUP)
        dropout_group(factors + c, factors + c, &draw, c / DROPOUT_GROUP, C - c < DROPOUT_GROUP ? C - c : DROPOUT_GROUP,
                      false);
}

void channel_dropout_forward(real *y, const real *x, const Dropout *dropout, int B, size_t N, int C) {
    size_t width = (size_t)C, rows = (size_t)B * N;
    float *factors = workspace_shared();
    if (!(dropout->rate > 0)) {
        if (y != x) device_copy(y, x, rows * width * sizeof *y);
        return;
    }
    for (int b = 0; b < B; b++) draw_factors(factors + (size_t)b * width, dropout, b, width);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < rows; i++)
        for (size_t c = 0; c < width; c += TILE) {
            vec v = real_load_part(x + i * width + c, width - c);
            real_store_part(y + i * width + c, v * vec_load_part(factors + i / N * width + c, width - c), width - c);
        }
}
