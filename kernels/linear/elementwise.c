/* Elementwise operations: dropout, alone and after ReLU; tanh; the sum of two tensors.
 * forward   y = keep x / (1 - rate), or of relu(x)
 * backward  dx = keep dy / (1 - rate), the same operation.  After ReLU no random numbers are needed, because y > 0
 *           exactly if x was positive and not dropped. */
#include <math.h>
#include <stdbool.h>

#include "kernels/cpu/activations.h"
#include "kernels/linear/dropout_cpu.h"
#include "kernels/device/device.h"
#include "kernels/linear/dropout.h"
#include "kernels/linear/elementwise.h"

/* dropout_group of activations. */
TILE_INLINE void group_pass(real *y, const real *x, const DropoutDraw *draw, uint64_t group, size_t n, bool relu) {
    DropoutWords word;
    dropout_words(&word, draw, group);
#pragma GCC unroll 8
    for (int i = 0; i < DROPOUT_VECTORS; i++) {
        if ((size_t)i * TILE >= n) break;
        vec v = real_load_part(x + i * TILE, n - i * TILE);
        if (relu) v = vec_select(v < 0.0f, vec_set(0), v);
        real_store_part(y + i * TILE, vec_select(dropout_kept(&word, draw, i), draw->scale * v, vec_set(0)), n - i * TILE);
    }
}

static void pass(real *y, const real *x, const Dropout *dropout, int B, size_t n, bool relu) {
    size_t groups = (n + DROPOUT_GROUP - 1) / DROPOUT_GROUP;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (size_t g = 0; g < groups; g++) {
            DropoutDraw draw = dropout_draw(dropout, b);
            size_t at = b * n + g * DROPOUT_GROUP, left = n - g * DROPOUT_GROUP;
            group_pass(y + at, x + at, &draw, g, left < DROPOUT_GROUP ? left : DROPOUT_GROUP, relu);
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
    for (size_t i = 0; i < B * n; i++) y[i] = real_get(x[i]) < 0 ? real_of(0) : x[i];
}

void relu_dropout_backward(real *dx, const real *dy, const real *y, float rate, size_t n) {
    float scale = 1 / (1 - rate);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) dx[i] = real_of(real_get(y[i]) > 0 ? scale * real_get(dy[i]) : 0);
}

void add_forward(real *y, const real *a, const real *b, size_t n) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) y[i] = real_of(real_get(a[i]) + real_get(b[i]));
}

void tanh_forward(real *y, const real *x, size_t n) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) y[i] = real_of(tanhf(real_get(x[i])));
}

void tanh_backward(real *dx, const real *dy, const real *y, size_t n) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) {
        float t = real_get(y[i]);
        dx[i] = real_of(real_get(dy[i]) * (1 - t * t));
    }
}

void bias_relu_forward(real *y, const real *x, const float *b, size_t n, int C) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        for (int c = 0; c < C; c += TILE) {
            size_t at = i * (size_t)C + (size_t)c, left = (size_t)(C - c);
            vec v = real_load_part(x + at, left) + vec_load_part(b + c, left);
            real_store_part(y + at, vec_select(v < 0.0f, vec_set(0), v), left);
        }
}
