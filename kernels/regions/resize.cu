/* Resizing, channels last; kernels/regions/resize.h has the rules and the code shared by both backends.  A thread has
 * some channels of an output pixel, and reads all of its inputs. */
#include "kernels/convolution/convolution.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/regions/resize.h"

enum { THREADS = 256 };

/* Launches kernel<V> on n numbers in rows of C channels; V divides the alignment of all these addresses. */
#define LAUNCH_WIDE(kernel, n, wide, ...)                                                                  \
    do {                                                                                                   \
        if (!(n)) break;                                                                                   \
        if (wide) LAUNCH((kernel<WIDE>), (unsigned)ceil_div(n, THREADS *WIDE), THREADS, 0, __VA_ARGS__);   \
        else LAUNCH((kernel<1>), (unsigned)ceil_div(n, THREADS), THREADS, 0, __VA_ARGS__);                 \
    } while (0)

/* The position of a thread's V channels in a tensor [images,rows,columns,C] of n numbers. */
struct Place {
    size_t at, image;
    int row, column, c;
};
template <int V>
DEVICE Place place_of(int rows, int columns, int C) {
    size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) * V, pixel = quotient(at, C), line = quotient(pixel, columns);
    size_t image = quotient(line, rows);
    return {at, image, (int)(line - image * rows), (int)(pixel - line * columns), (int)(at - pixel * C)};
}

template <int V>
DEVICE void add_scaled(float (&sum)[V], float w, const real *from) {
    float v[V];
    load(v, from);
#pragma unroll
    for (int e = 0; e < V; e++) sum[e] += w * v[e];
}

static size_t count(const Resize *s, bool to) {
    return (size_t)s->B * (to ? s->to_rows : s->rows) * (to ? s->to_columns : s->columns) * s->C;
}

/* == Forward ====================================================================================================== */

template <int V>
__global__ void __launch_bounds__(THREADS)
    nearest_add_kernel(real *y, const real *add, const real *__restrict__ x, Resize s, size_t n) {
    Place p = place_of<V>(s.to_rows, s.to_columns, s.C);
    if (p.at >= n) return;
    int row = nearest_source(p.row, s.rows, s.to_rows), column = nearest_source(p.column, s.columns, s.to_columns);
    float sum[V] = {};
    if (add) load(sum, add + p.at);
    add_scaled(sum, 1, x + ((p.image * s.rows + row) * s.columns + column) * s.C + p.c);
    store(y + p.at, sum);
}

void nearest_add_forward(real *y, const real *add, const real *x, const Resize *s) {
    size_t n = count(s, true);
    LAUNCH_WIDE(nearest_add_kernel, n, is_wide(s->C, y, add, x), y, add, x, *s, n);
}

template <int V>
__global__ void __launch_bounds__(THREADS)
    bilinear_kernel(real *y, const real *add, const real *__restrict__ x, Resize s, size_t n) {
    Place p = place_of<V>(s.to_rows, s.to_columns, s.C);
    if (p.at >= n) return;
    Between down = bilinear_source(p.row, s.rows, s.to_rows);
    Between across = bilinear_source(p.column, s.columns, s.to_columns);
    const real *low = x + (p.image * s.rows + down.low) * s.columns * s.C + p.c;
    const real *high = x + (p.image * s.rows + down.high) * s.columns * s.C + p.c;
    size_t left = (size_t)across.low * s.C, right = (size_t)across.high * s.C;
    float v = down.fraction, u = across.fraction, sum[V] = {};
    if (add) load(sum, add + p.at);
    add_scaled(sum, (1 - v) * (1 - u), low + left);
    add_scaled(sum, (1 - v) * u, low + right);
    add_scaled(sum, v * (1 - u), high + left);
    add_scaled(sum, v * u, high + right);
    store(y + p.at, sum);
}

void bilinear_forward(real *y, const real *add, const real *x, const Resize *s) {
    size_t n = count(s, true);
    LAUNCH_WIDE(bilinear_kernel, n, is_wide(s->C, y, add, x), y, add, x, *s, n);
}

/* == Backward ===================================================================================================== */

template <int V>
__global__ void __launch_bounds__(THREADS)
    nearest_add_backward_kernel(real *dx, const real *add, const real *__restrict__ dy, Resize s, size_t n) {
    Place p = place_of<V>(s.rows, s.columns, s.C);
    if (p.at >= n) return;
    Places down = nearest_places(p.row, s.rows, s.to_rows), across = nearest_places(p.column, s.columns, s.to_columns);
    float sum[V] = {};
    if (add) load(sum, add + p.at);
    for (int i = down.first; i < down.last; i++)
        for (int j = across.first; j < across.last; j++)
            add_scaled(sum, 1, dy + ((p.image * s.to_rows + i) * s.to_columns + j) * s.C + p.c);
    store(dx + p.at, sum);
}

void nearest_add_backward(real *dx, const real *add, const real *dy, const Resize *s) {
    size_t n = count(s, false);
    LAUNCH_WIDE(nearest_add_backward_kernel, n, is_wide(s->C, dx, add, dy), dx, add, dy, *s, n);
}

template <int V>
__global__ void __launch_bounds__(THREADS)
    bilinear_backward_kernel(real *dx, const real *add, const real *__restrict__ dy, Resize s, size_t n) {
    Place p = place_of<V>(s.rows, s.columns, s.C);
    if (p.at >= n) return;
    Places down = bilinear_places(p.row, s.rows, s.to_rows), across = bilinear_places(p.column, s.columns, s.to_columns);
    float sum[V] = {};
    if (add) load(sum, add + p.at);
    for (int i = down.first; i < down.last; i++) {
        float v = bilinear_weight(p.row, i, s.rows, s.to_rows);
        for (int j = across.first; j < across.last; j++)
            add_scaled(sum, v * bilinear_weight(p.column, j, s.columns, s.to_columns),
                       dy + ((p.image * s.to_rows + i) * s.to_columns + j) * s.C + p.c);
    }
    store(dx + p.at, sum);
}

void bilinear_backward(real *dx, const real *add, const real *dy, const Resize *s) {
    size_t n = count(s, false);
    LAUNCH_WIDE(bilinear_backward_kernel, n, is_wide(s->C, dx, add, dy), dx, add, dy, *s, n);
}

/* == Even rows and columns ======================================================================================== */

/* y [images,rows,columns,C] at the even pixels of x: y = x, or x += y if back is true. */
template <int V>
__global__ void __launch_bounds__(THREADS) subsample_kernel(real *y, real *x, bool back, ImageShape images, int C, size_t n) {
    Place p = place_of<V>(convolution_side(images.Hi, 2), convolution_side(images.Wi, 2), C);
    if (p.at >= n) return;
    real *even = x + ((p.image * images.Hi + 2 * p.row) * images.Wi + 2 * p.column) * C + p.c;
    float v[V];
    load(v, even);
    if (back) add_scaled(v, 1, y + p.at);
    store(back ? even : y + p.at, v);
}

static void subsample(real *y, real *x, bool back, const ImageShape *images, int C) {
    size_t n = (size_t)images->B * convolution_side(images->Hi, 2) * convolution_side(images->Wi, 2) * C;
    LAUNCH_WIDE(subsample_kernel, n, is_wide(C, y, x), y, x, back, *images, C, n);
}

void subsample_forward(real *y, const real *x, const ImageShape *images, int C) {
    subsample(y, const_cast<real *>(x), false, images, C);
}

void subsample_backward(real *dx, const real *dy, const ImageShape *images, int C) {
    subsample(const_cast<real *>(dy), dx, true, images, C);
}
