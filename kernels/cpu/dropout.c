/* Dropout, alone and after ReLU, and the sum of two tensors.
 * forward   y = keep x / (1 - rate), or of relu(x)
 * backward  dx = keep dy / (1 - rate), the same operation.  After ReLU no random numbers are needed, because y > 0
 *           exactly if x was positive and not dropped. */
#include <math.h>

#include "kernels/cpu/dropout.h"

static void pass(real *y, const real *x, const Dropout *dropout, int B, size_t n, bool relu) {
    size_t groups = (n + DROPOUT_GROUP - 1) / DROPOUT_GROUP;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (size_t g = 0; g < groups; g++) {
            DropoutDraw draw = dropout_draw(dropout, b);
            size_t at = b * n + g * DROPOUT_GROUP, left = n - g * DROPOUT_GROUP;
            dropout_group(y + at, x + at, &draw, g, left < DROPOUT_GROUP ? left : DROPOUT_GROUP, relu);
        }
}

void dropout_forward(real *y, const real *x, const Dropout *dropout, int B, size_t n) {
    if (dropout->rate > 0) pass(y, x, dropout, B, n, false);
    else if (y != x) device_copy(y, x, B * n * sizeof *y);
}

void relu_dropout_forward(real *y, const real *x, const Dropout *dropout, int B, size_t n) {
    if (dropout->rate > 0) {
        pass(y, x, dropout, B, n, true);
        return;
    }
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < B * n; i++) y[i] = x[i] < 0 ? 0 : x[i];
}

void relu_dropout_backward(real *dx, const real *dy, const real *y, float rate, size_t n) {
    float scale = 1 / (1 - rate);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) dx[i] = y[i] > 0 ? scale * dy[i] : 0;
}

void add_forward(real *y, const real *a, const real *b, size_t n) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}

void tanh_forward(real *y, const real *x, size_t n) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) y[i] = tanhf(x[i]);
}

void tanh_backward(real *dx, const real *dy, const real *y, size_t n) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) dx[i] = dy[i] * (1 - y[i] * y[i]);
}
