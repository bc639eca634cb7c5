/* The windows of a convolution as rows; kernels/cpu/unfold.c says which window reads what.  Both ways a thread makes
 * one number of the result, so writes are whole lines; neighbouring windows overlap, so the caches serve most reads. */
#include "kernels/cuda/rows.cuh"
#include "kernels/kernels.h"

enum { THREADS = 256 };

__global__ void __launch_bounds__(THREADS)
    unfold_forward_kernel(real *cols, const real *__restrict__ x, Unfold s, int down, int across, size_t size) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; /* (image, window's row, column, channel, r, c) */
    if (i >= size) return;
    size_t line = quotient(i, s.k), plane = quotient(line, s.k), window = quotient(plane, s.C);
    size_t row = quotient(window, across), image = quotient(row, down);
    int c = (int)(i - line * s.k), r = (int)(line - plane * s.k), m = (int)(plane - window * s.C);
    int yi = (int)(row - image * down) * s.stride + r - s.pad, xi = (int)(window - row * across) * s.stride + c - s.pad;
    bool inside = yi >= 0 && yi < s.Hi && xi >= 0 && xi < s.Wi;
    size_t at = s.planes ? ((image * s.C + m) * s.Hi + yi) * s.Wi + xi : ((image * s.Hi + yi) * s.Wi + xi) * s.C + m;
    cols[i] = inside ? x[at] : to_real(0);
}

void unfold_forward(real *cols, const real *x, const Unfold *s, int B) {
    Grid windows = unfold_grid(s);
    size_t size = (size_t)B * grid_tokens(windows) * s->C * s->k * s->k;
    LAUNCH(unfold_forward_kernel, (unsigned)ceil_div(size, THREADS), THREADS, 0, cols, x, *s, windows.rows,
           windows.columns, size);
}

/* The first window that reads position y of an axis, and the end of those that do. */
DEVICE int window_first(const Unfold &s, int y) {
    int behind = y + s.pad - s.k + 1;
    return behind <= 0 ? 0 : (behind + s.stride - 1) / s.stride;
}
DEVICE int window_end(const Unfold &s, int y, int windows) {
    int end = (y + s.pad) / s.stride + 1;
    return end < windows ? end : windows;
}

__global__ void __launch_bounds__(THREADS)
    unfold_backward_kernel(real *dx, const real *__restrict__ dcols, Unfold s, int down, int across, size_t size) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= size) return;
    size_t image, position;
    int m, taps = s.k * s.k, N = s.Hi * s.Wi;
    if (s.planes) { /* (image, channel, row, column) */
        size_t plane = quotient(at, N);
        image = quotient(plane, s.C);
        position = at - plane * N;
        m = (int)(plane - image * s.C);
    } else { /* (image, row, column, channel) */
        size_t token = quotient(at, s.C);
        image = quotient(token, N);
        position = token - image * N;
        m = (int)(at - token * s.C);
    }
    int y = (int)quotient(position, s.Wi), x = (int)position - y * s.Wi;
    float sum = 0;
    for (int i = window_first(s, y); i < window_end(s, y, down); i++)
        for (int j = window_first(s, x); j < window_end(s, x, across); j++) {
            int tap = (y + s.pad - i * s.stride) * s.k + x + s.pad - j * s.stride;
            sum += to_float(dcols[(((image * down + i) * across + j) * s.C + m) * taps + tap]);
        }
    dx[at] = to_real(sum);
}

void unfold_backward(real *dx, const real *dcols, const Unfold *s, int B) {
    Grid windows = unfold_grid(s);
    size_t size = (size_t)B * s->Hi * s->Wi * s->C;
    LAUNCH(unfold_backward_kernel, (unsigned)ceil_div(size, THREADS), THREADS, 0, dx, dcols, *s, windows.rows,
           windows.columns, size);
}
