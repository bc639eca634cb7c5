/* The maximum over each 3x3 neighbourhood; the formulas are in kernels/convolution/neighbour_max.c.  One thread for
 * each channel of a token. */
#include "kernels/cuda/rows.cuh"
#include "kernels/convolution/convolution.h"
#include "kernels/tokens/grid.h"

enum { THREADS = 256, SIDE = 3 };

struct NeighbourShape {
    int row, Hg, Wg, C;
    size_t size; /* of y */
};

/* Channel c of token (y, x) of an image whose first token is `image`. */
struct NeighbourPlace {
    size_t image;
    int y, x, c;
};
DEVICE NeighbourPlace place_of(size_t i, const NeighbourShape &s) {
    size_t token = quotient(i, s.C), line = quotient(token, s.Wg), image = quotient(line, s.Hg);
    return {image * s.Hg * s.Wg, (int)(line - image * s.Hg), (int)(token - line * s.Wg), (int)(i - token * s.C)};
}

/* The token `tap` away; false beyond the edge. */
DEVICE bool neighbour(size_t &token, NeighbourPlace p, int tap, const NeighbourShape &s) {
    int y = p.y + tap / SIDE - 1, x = p.x + tap % SIDE - 1;
    token = p.image + (size_t)y * s.Wg + x;
    return y >= 0 && y < s.Hg && x >= 0 && x < s.Wg;
}

__global__ void __launch_bounds__(THREADS)
    neighbour_max_forward_kernel(real *y, uint8_t *at, const real *x, NeighbourShape s) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, token;
    if (i >= s.size) return;
    NeighbourPlace p = place_of(i, s);
    float largest = 0;
    int which = -1;
#pragma unroll
    for (int tap = 0; tap < SIDE * SIDE; tap++) {
        if (!neighbour(token, p, tap, s)) continue;
        float v = to_float(x[token * s.row + p.c]);
        if (which >= 0 && !(v > largest) && (v == v || largest != largest)) continue;
        largest = v;
        which = tap;
    }
    y[i] = to_real(largest);
    at[i] = (uint8_t)which;
}

__global__ void __launch_bounds__(THREADS)
    neighbour_max_backward_kernel(real *dx, const real *dy, const uint8_t *__restrict__ at, NeighbourShape s) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, token;
    if (i >= s.size) return;
    NeighbourPlace p = place_of(i, s);
    float sum = 0;
#pragma unroll
    for (int tap = 0; tap < SIDE * SIDE; tap++) {
        if (!neighbour(token, p, SIDE * SIDE - 1 - tap, s)) continue;
        size_t from = token * s.C + p.c;
        if (at[from] == tap) sum += to_float(dy[from]);
    }
    dx[(p.image + (size_t)p.y * s.Wg + p.x) * s.row + p.c] = to_real(sum);
}

static NeighbourShape shape_of(const NeighbourMax *n, int B) {
    return {n->x_row, n->grid.rows, n->grid.columns, n->C, (size_t)B * grid_tokens(n->grid) * n->C};
}

void neighbour_max_forward(real *y, uint8_t *at, const real *x, const NeighbourMax *shape, int B) {
    NeighbourShape s = shape_of(shape, B);
    LAUNCH(neighbour_max_forward_kernel, (unsigned)ceil_div(s.size, THREADS), THREADS, 0, y, at, x, s);
}

void neighbour_max_backward(real *dx, const real *dy, const uint8_t *at, const NeighbourMax *shape, int B) {
    NeighbourShape s = shape_of(shape, B);
    LAUNCH(neighbour_max_backward_kernel, (unsigned)ceil_div(s.size, THREADS), THREADS, 0, dx, dy, at, s);
}
