/* Rows of tokens in the order of windows, and back. */
#include "kernels/cuda/rows.cuh"
#include "kernels/tokens/grid.h"
#include "kernels/tokens/windows.h"

enum { THREADS = 256 };

/* A thread has W channels, in the order of rows. */
template <int W, bool BACK>
__global__ void __launch_bounds__(THREADS) windows_kernel(real *to, const real *__restrict__ from, size_t n,
                                                          WindowRows s) {
    size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (at >= n) return;
    int windows = grid_tokens(window_counts(&s.windows)), places = grid_tokens(window_sides(&s.windows));
    size_t piece = quotient(at, s.C), row = quotient(piece, s.parts), window = quotient(row, places);
    size_t image = quotient(window, windows), part = piece - row * s.parts;
    int token = window_place(&s.windows, (int)(window - image * windows), (int)(row - window * places)).token;
    if (token < 0) {
        for (int e = 0; e < W && !BACK; e++) to[at + e] = to_real(0);
        return;
    }
    size_t there = ((image * grid_tokens(s.windows.grid) + token) * s.parts + part) * s.M + (at - piece * s.C);
    copy<W>(to + (BACK ? there : at), from + (BACK ? at : there));
}

template <bool BACK>
static void windows_copy(real *to, const real *from, const WindowRows *s, int B) {
    size_t rows = (size_t)B * grid_tokens(window_counts(&s->windows)) * grid_tokens(window_sides(&s->windows));
    size_t n = rows * s->parts * s->C;
    bool wide = is_wide(s->C, to, from) && s->M % WIDE == 0;
    unsigned blocks = (unsigned)ceil_div(n, wide ? THREADS * WIDE : THREADS);
    if (wide) LAUNCH((windows_kernel<WIDE, BACK>), blocks, THREADS, 0, to, from, n, *s);
    else LAUNCH((windows_kernel<1, BACK>), blocks, THREADS, 0, to, from, n, *s);
}

void windows_gather(real *rows, const real *x, const WindowRows *shape, int B) {
    windows_copy<false>(rows, x, shape, B);
}

void windows_scatter(real *x, const real *rows, const WindowRows *shape, int B) {
    windows_copy<true>(x, rows, shape, B);
}
