/* The windows of a convolution as rows; kernels/tokens/unfold.c has the formulas.  In both directions a thread computes
 * one number of the result, so writes are whole cache lines; neighbouring windows overlap, so most reads are from the
 * caches. */
#include "kernels/cuda/rows.cuh"
#include "kernels/tokens/grid.h"
#include "kernels/tokens/images.h"

enum { THREADS = 256 };

/* Frames, length, distance and padding of windows in time. */
struct UnfoldAxis {
    int n, k, stride, pad;
};
static UnfoldAxis time_axis(const Unfold *s) {
    if (s->frames) return {s->frames, s->kt, s->stride_t, s->kt / 2};
    return {1, 1, 1, 0};
}

__global__ void __launch_bounds__(THREADS) unfold_forward_kernel(real *cols, const real *__restrict__ x, Unfold s,
                                                                 UnfoldAxis time, Grid windows, size_t size) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; /* (clip, window's frame, row, column, channel, f, r, c) */
    if (i >= size) return;
    size_t line = quotient(i, s.k), plane = quotient(line, s.k), box = quotient(plane, time.k);
    size_t window = quotient(box, s.C), row = quotient(window, windows.columns), frame = quotient(row, windows.rows);
    size_t clip = quotient(frame, windows.frames);
    int c = (int)(i - line * s.k), r = (int)(line - plane * s.k), m = (int)(box - window * s.C);
    int f = (int)(frame - clip * windows.frames) * time.stride + (int)(plane - box * time.k) - time.pad;
    int yi = (int)(row - frame * windows.rows) * s.stride + r - s.pad;
    int xi = (int)(window - row * windows.columns) * s.stride + c - s.pad;
    bool inside = f >= 0 && f < time.n && yi >= 0 && yi < s.Hi && xi >= 0 && xi < s.Wi;
    size_t image = clip * time.n + f;
    size_t at = s.planes ? ((image * s.C + m) * s.Hi + yi) * s.Wi + xi : ((image * s.Hi + yi) * s.Wi + xi) * s.C + m;
    cols[i] = inside ? x[at] : to_real(0);
}

void unfold_forward(real *cols, const real *x, const Unfold *s, int B) {
    Grid windows = unfold_grid(s);
    size_t size = (size_t)B * grid_tokens(windows) * s->C * unfold_taps(s);
    LAUNCH(unfold_forward_kernel, (unsigned)ceil_div(size, THREADS), THREADS, 0, cols, x, *s, time_axis(s), windows,
           size);
}

/* The first window that reads position y of an axis, and the end of those that do. */
DEVICE int window_first(const UnfoldAxis &a, int y) {
    int behind = y + a.pad - a.k + 1;
    return behind <= 0 ? 0 : (behind + a.stride - 1) / a.stride;
}
DEVICE int window_end(const UnfoldAxis &a, int y, int windows) {
    int end = (y + a.pad) / a.stride + 1;
    return end < windows ? end : windows;
}

__global__ void __launch_bounds__(THREADS) unfold_backward_kernel(real *dx, const real *__restrict__ dcols, Unfold s,
                                                                  UnfoldAxis time, Grid windows, size_t size) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= size) return;
    size_t image, position;
    int m, taps = time.k * s.k * s.k, N = s.Hi * s.Wi;
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
    size_t clip = quotient(image, time.n);
    int f = (int)(image - clip * time.n), y = (int)quotient(position, s.Wi), x = (int)position - y * s.Wi;
    UnfoldAxis side = {0, s.k, s.stride, s.pad};
    float sum = 0;
    for (int h = window_first(time, f); h < window_end(time, f, windows.frames); h++)
        for (int i = window_first(side, y); i < window_end(side, y, windows.rows); i++)
            for (int j = window_first(side, x); j < window_end(side, x, windows.columns); j++) {
                int row = (f + time.pad - h * time.stride) * s.k + y + s.pad - i * s.stride;
                int tap = row * s.k + x + s.pad - j * s.stride;
                size_t line = (clip * windows.frames + h) * windows.rows + i, window = line * windows.columns + j;
                sum += to_float(dcols[(window * s.C + m) * taps + tap]);
            }
    dx[at] = to_real(sum);
}

void unfold_backward(real *dx, const real *dcols, const Unfold *s, int B) {
    UnfoldAxis time = time_axis(s);
    size_t size = (size_t)B * time.n * s->Hi * s->Wi * s->C;
    LAUNCH(unfold_backward_kernel, (unsigned)ceil_div(size, THREADS), THREADS, 0, dx, dcols, *s, time, unfold_grid(s),
           size);
}
