/* The detector's sine positions, reference points, centres of modulation and boxes, and the mask of features.  The
 * formulas are in kernels/softmax/masked_attention.h. */
#include "kernels/cuda/rows.cuh"
#include "kernels/softmax/masked_attention.h"
#include "kernels/tokens/grid.h"

enum { PLACES_THREADS = 256 };

#define PLACES(kernel, n, ...)                                                                                    \
    LAUNCH(kernel, (unsigned)ceil_div(n, PLACES_THREADS), PLACES_THREADS, 0, __VA_ARGS__)

/* The index of this thread; threads from n on have no work. */
#define THIS_ONE(i, n)                                                      \
    size_t i = (size_t)blockIdx.x * PLACES_THREADS + threadIdx.x;           \
    if (i >= (n)) return

/* One thread for each element, computed in double. */
__global__ void __launch_bounds__(PLACES_THREADS)
    sine_positions_kernel(real *pos, const int *cells, int h, int w, int M, size_t n) {
    THIS_ONE(at, n);
    int half = M / 2, m = (int)(at % M), i = m % half;
    size_t cell = at / M, b = cell / ((size_t)h * w);
    int x = (int)(cell % w), y = (int)(cell / w % h), rows = cells[2 * b], columns = cells[2 * b + 1];
    bool along_y = m < half, inside = along_y ? x < columns : y < rows;
    int count = along_y ? rows : columns, index = along_y ? y : x, number = index < count ? index + 1 : count;
    double e = inside ? 6.283185307179586 * number / (count + 1e-6) : 0;
    double angle = e / pow(10000.0, (double)(i / 2 * 2) / half);
    pos[at] = to_real((float)(i % 2 ? cos(angle) : sin(angle)));
}

void sine_positions(real *pos, const int *cells, int B, Grid grid, int M) {
    size_t n = (size_t)B * grid_tokens(grid) * M;
    PLACES(sine_positions_kernel, n, pos, cells, grid.rows, grid.columns, M, n);
}

__global__ void __launch_bounds__(PLACES_THREADS)
    mask_features_kernel(real *phi, const int *cells, int h, int w, int half, size_t n) {
    THIS_ONE(at, n);
    size_t token = at / half, b = token / ((size_t)h * w);
    int x = (int)(token % w), y = (int)(token / w % h);
    if (y >= cells[2 * b] || x >= cells[2 * b + 1]) phi[(token * 2 + 1) * half + at % half] = to_real(0);
}

void mask_features(real *phi, const int *cells, int B, Grid grid, int H, int F) {
    size_t n = (size_t)B * grid_tokens(grid) * H * F;
    PLACES(mask_features_kernel, n, phi, cells, grid.rows, grid.columns, H * F, n);
}

DEVICE float sigmoid(float x) { return 1 / (1 + expf(-x)); }

/* The image's width or height in cells: sizes are height, then width. */
DEVICE float side(const int *sizes, size_t b, int axis) { return (float)sizes[2 * b + 1 - axis] / 32; }

__global__ void __launch_bounds__(PLACES_THREADS)
    reference_forward_kernel(float *reference, const real *raw, const int *sizes, int Q, size_t n) {
    THIS_ONE(i, n);
    reference[i] = sigmoid(to_float(raw[i])) * side(sizes, i / 2 / Q, (int)(i % 2));
}

void reference_points_forward(float *reference, const real *raw, const int *sizes, int B, int Q) {
    size_t n = (size_t)B * Q * 2;
    PLACES(reference_forward_kernel, n, reference, raw, sizes, Q, n);
}

__global__ void __launch_bounds__(PLACES_THREADS)
    reference_backward_kernel(real *draw, const float *draw_boxes, const float *dreference, const real *raw,
                              const int *sizes, int Q, size_t n) {
    THIS_ONE(i, n);
    float r = sigmoid(to_float(raw[i]));
    draw[i] = to_real(draw_boxes[i] + dreference[i] * side(sizes, i / 2 / Q, (int)(i % 2)) * r * (1 - r));
}

void reference_points_backward(real *draw, const float *draw_boxes, const float *dreference, const real *raw,
                               const int *sizes, int B, int Q) {
    size_t n = (size_t)B * Q * 2;
    PLACES(reference_backward_kernel, n, draw, draw_boxes, dreference, raw, sizes, Q, n);
}

__global__ void __launch_bounds__(PLACES_THREADS)
    centres_forward_kernel(float *centre, const float *reference, const real *offset, int H, size_t n) {
    THIS_ONE(i, n);
    centre[i] = reference[i / (2 * H) * 2 + i % 2] + to_float(offset[i]);
}

void centres_forward(float *centre, const float *reference, const real *offset, size_t n, int H) {
    PLACES(centres_forward_kernel, n * H * 2, centre, reference, offset, H, n * H * 2);
}

/* One thread for each axis of a query, with its heads in order. */
__global__ void __launch_bounds__(PLACES_THREADS)
    centres_backward_kernel(real *doffset, float *dreference, const float *dcentre, int H, size_t n) {
    THIS_ONE(i, n);
    float sum = 0;
    for (int h = 0; h < H; h++) {
        size_t at = (i / 2 * H + h) * 2 + i % 2;
        doffset[at] = to_real(dcentre[at]);
        sum += dcentre[at];
    }
    dreference[i] += sum;
}

void centres_backward(real *doffset, float *dreference, const float *dcentre, size_t n, int H) {
    PLACES(centres_backward_kernel, n * 2, doffset, dreference, dcentre, H, n * 2);
}

__global__ void __launch_bounds__(PLACES_THREADS)
    boxes_forward_kernel(float *boxes, const real *u, const real *raw, size_t n, size_t count) {
    THIS_ONE(i, count);
    int k = (int)(i % 4);
    boxes[i] = sigmoid(to_float(u[i]) + (k < 2 ? to_float(raw[i / 4 % n * 2 + k]) : 0));
}

void boxes_forward(float *boxes, const real *u, const real *raw, int L, size_t n) {
    PLACES(boxes_forward_kernel, L * n * 4, boxes, u, raw, n, L * n * 4);
}

/* One thread for each number of a query's box, with its layers in order. */
__global__ void __launch_bounds__(PLACES_THREADS)
    boxes_backward_kernel(real *du, float *draw, const float *dboxes, const float *boxes, int L, size_t n) {
    THIS_ONE(i, n * 4);
    int k = (int)(i % 4);
    float sum = 0;
    for (int l = 0; l < L; l++) {
        size_t at = l * n * 4 + i;
        real d = to_real(dboxes[at] * boxes[at] * (1 - boxes[at]));
        du[at] = d;
        sum += to_float(d);
    }
    if (k < 2) draw[i / 4 * 2 + k] = sum;
}

void boxes_backward(real *du, float *draw, const float *dboxes, const float *boxes, int L, size_t n) {
    PLACES(boxes_backward_kernel, n * 4, du, draw, dboxes, boxes, L, n);
}
