#include "kernels/cpu/activations.h"
#include "kernels/kernels.h"

void max_pool_forward(real *y, const real *x, const ImageShape *images, int C) {
    int B = images->B, H = images->Hi, W = images->Wi;
    int Ho = convolution_side(H, 2), Wo = convolution_side(W, 2);
#pragma omp parallel for schedule(static)
    for (size_t line = 0; line < (size_t)B * (size_t)Ho; line++) {
        const real *image = x + line / (size_t)Ho * (size_t)H * (size_t)W * (size_t)C;
        int top = 2 * (int)(line % (size_t)Ho) - 1;
        for (int j = 0; j < Wo; j++) {
            real *to = y + (line * (size_t)Wo + (size_t)j) * (size_t)C;
            for (int c = 0; c < C; c++) to[c] = real_of(-INFINITY);
            for (int yi = top < 0 ? 0 : top; yi <= top + 2 && yi < H; yi++)
                for (int xi = j ? 2 * j - 1 : 0; xi <= 2 * j + 1 && xi < W; xi++) {
                    const real *from = image + ((size_t)yi * (size_t)W + (size_t)xi) * (size_t)C;
                    for (int c = 0; c < C; c++) to[c] = real_get(from[c]) > real_get(to[c]) ? from[c] : to[c];
                }
        }
    }
}
