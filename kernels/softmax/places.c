/* The detector's sine positions, reference points, centres of modulation and boxes, and the mask of features.  The
 * formulas are in kernels/softmax/masked_attention.h. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/softmax/masked_attention.h"
#include "kernels/tokens/grid.h"

/* The sine embedding of cell `number` of `count` along an axis, counted from 1; number is 0 for padding. */
static void sine_code(real *code, int number, int count, int channels) {
    double e = 6.283185307179586 * number / (count + 1e-6);
    for (int i = 0; i < channels; i++) {
        double angle = e / pow(10000, (double)(i / 2 * 2) / channels);
        code[i] = real_of((float)(i % 2 ? cos(angle) : sin(angle)));
    }
}

/* Each row's and each column's embedding is computed once, in its first cell, and copied from there. */
void sine_positions(real *pos, const int *cells, int B, Grid grid, int M) {
    int h = grid.rows, w = grid.columns, half = M / 2;
    size_t bytes = half * sizeof *pos;
#pragma omp parallel for schedule(static)
    for (int b = 0; b < B; b++) {
        int rows = cells[2 * b], columns = cells[2 * b + 1];
        real *first = pos + (size_t)b * h * w * M;
        for (int x = 0; x < w; x++)
            sine_code(first + (size_t)x * M + half, x < columns ? x + 1 : columns, columns, half);
        for (int y = 0; y < h; y++) {
            real *row = first + (size_t)y * w * M;
            sine_code(row, y < rows ? y + 1 : rows, rows, half);
            if (columns < w) sine_code(row + (size_t)columns * M, 0, rows, half);
            if (y == rows) sine_code(row + half, 0, columns, half);
            for (int x = 1; x < w; x++)
                if (x != columns) memcpy(row + (size_t)x * M, row + (x < columns ? 0 : (size_t)columns * M), bytes);
            for (int x = 0; x < w && y > 0; x++)
                if (y < rows) memcpy(row + (size_t)x * M + half, first + (size_t)x * M + half, bytes);
                else if (y > rows || x > 0)
                    memcpy(row + (size_t)x * M + half, first + (size_t)rows * w * M + half, bytes);
        }
    }
}

void mask_features(real *phi, const int *cells, int B, Grid grid, int H, int F) {
    int h = grid.rows, w = grid.columns;
    size_t half = (size_t)H * F;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int n = 0; n < h * w; n++)
            if (n / w >= cells[2 * b] || n % w >= cells[2 * b + 1])
                memset(phi + (((size_t)b * h * w + n) * 2 + 1) * half, 0, half * sizeof *phi);
}

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }

/* The image's width or height in cells: sizes are height, then width. */
static float side(const int *sizes, size_t b, int axis) { return (float)sizes[2 * b + 1 - axis] / 32; }

void reference_points_forward(float *reference, const real *raw, const int *sizes, int B, int Q) {
    for (size_t i = 0; i < (size_t)B * Q * 2; i++)
        reference[i] = sigmoid(real_get(raw[i])) * side(sizes, i / 2 / Q, i % 2);
}

void reference_points_backward(real *draw, const float *draw_boxes, const float *dreference, const real *raw,
                               const int *sizes, int B, int Q) {
    for (size_t i = 0; i < (size_t)B * Q * 2; i++) {
        float r = sigmoid(real_get(raw[i]));
        draw[i] = real_of(draw_boxes[i] + dreference[i] * side(sizes, i / 2 / Q, i % 2) * r * (1 - r));
    }
}

void centres_forward(float *centre, const float *reference, const real *offset, size_t n, int H) {
    for (size_t i = 0; i < n * H * 2; i++) centre[i] = reference[i / (2 * H) * 2 + i % 2] + real_get(offset[i]);
}

void centres_backward(real *doffset, float *dreference, const float *dcentre, size_t n, int H) {
    for (size_t i = 0; i < n * H * 2; i++) {
        doffset[i] = real_of(dcentre[i]);
        dreference[i / (2 * H) * 2 + i % 2] += dcentre[i];
    }
}

void boxes_forward(float *boxes, const real *u, const real *raw, int L, size_t n) {
    for (size_t i = 0; i < L * n * 4; i++) {
        float place = i % 4 < 2 ? real_get(raw[i / 4 % n * 2 + i % 4]) : 0;
        boxes[i] = sigmoid(real_get(u[i]) + place);
    }
}

void boxes_backward(real *du, float *draw, const float *dboxes, const float *boxes, int L, size_t n) {
    for (size_t i = 0; i < n * 2; i++) draw[i] = 0;
    for (size_t i = 0; i < L * n * 4; i++) {
        float slope = dboxes[i] * boxes[i] * (1 - boxes[i]);
        du[i] = real_of(slope);
        if (i % 4 < 2) draw[i / 4 % n * 2 + i % 4] += slope;
    }
}
