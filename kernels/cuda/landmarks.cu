/* What landmarks are made from (kernels.h): a thread for each number of the means or of the rows of squares. */
#include "kernels/cuda/rows.cuh"
#include "kernels/kernels.h"

enum { THREADS = 256 };

/* The tokens of a cell: rows and columns from the first to before the last. */
struct Cell {
    int top, bottom, left, right;
    float share; /* 1 / tokens */
};

DEVICE Cell cell_at(const Cells &c, int i, int j) {
    Cell cell = {(int)((size_t)i * c.Hg / c.Lh), (int)((size_t)(i + 1) * c.Hg / c.Lh), (int)((size_t)j * c.Wg / c.Lw),
                 (int)((size_t)(j + 1) * c.Wg / c.Lw), 0};
    cell.share = 1.0f / ((float)(cell.bottom - cell.top) * (float)(cell.right - cell.left));
    return cell;
}

/* Forward makes means from x, backward adds to x's gradient. */
template <bool backward>
__global__ void __launch_bounds__(THREADS)
    cell_means_kernel(real *to, const real *from, Cells cells, size_t numbers, int C, int x_row) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, c = at % C, mean = at / C;
    if (at >= numbers) return;
    size_t L = (size_t)cells.Lh * cells.Lw, l = mean % L;
    size_t image = mean / L * cells.Hg * cells.Wg * x_row + c;
    Cell cell = cell_at(cells, (int)(l / cells.Lw), (int)(l % cells.Lw));
    float sum = 0, share = backward ? cell.share * to_float(from[at]) : 0;
    for (int i = cell.top; i < cell.bottom; i++)
        for (int j = cell.left; j < cell.right; j++) {
            size_t x = image + ((size_t)i * cells.Wg + j) * x_row;
            if (backward) to[x] = to_real(to_float(to[x]) + share);
            else sum += to_float(from[x]);
        }
    if (!backward) to[at] = to_real(cell.share * sum);
}

template <bool backward>
static void cell_means(real *to, const real *from, const Cells *cells, int B, int C, int x_row) {
    size_t numbers = (size_t)B * cells->Lh * cells->Lw * C;
    LAUNCH((cell_means_kernel<backward>), (unsigned)ceil_div(numbers, THREADS), THREADS, 0, to, from, *cells, numbers,
           C, x_row);
}

void cell_means_forward(real *means, const real *x, const Cells *cells, int B, int C, int x_row) {
    cell_means<false>(means, x, cells, B, C, x_row);
}

void cell_means_backward(real *dx, const real *dmeans, const Cells *cells, int B, int C, int x_row) {
    cell_means<true>(dx, dmeans, cells, B, C, x_row);
}

struct Patches {
    int Hg, Wg, r, H, D, x_row;
    size_t numbers;
};

template <bool backward>
__global__ void __launch_bounds__(THREADS) head_patches_kernel(real *to, const real *from, Patches p) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= p.numbers) return;
    int rows = p.Hg / p.r, columns = p.Wg / p.r;
    int j = (int)(at % p.r), i = (int)(at / p.r % p.r);
    size_t channel = at / p.r / p.r, patch = channel / ((size_t)p.H * p.D);
    size_t token =
        (patch / columns / rows * p.Hg + patch / columns % rows * p.r + i) * p.Wg + patch % columns * p.r + j;
    size_t x = token * p.x_row + channel % ((size_t)p.H * p.D);
    if (backward) to[x] = to_real(to_float(to[x]) + to_float(from[at]));
    else to[at] = from[x];
}

template <bool backward>
static void head_patches(real *to, const real *from, int Hg, int Wg, int r, int B, int H, int D, int x_row) {
    Patches p = {Hg, Wg, r, H, D, x_row, (size_t)B * (Hg / r) * (Wg / r) * H * D * r * r};
    LAUNCH((head_patches_kernel<backward>), (unsigned)ceil_div(p.numbers, THREADS), THREADS, 0, to, from, p);
}

void head_patches_forward(real *cols, const real *x, int Hg, int Wg, int r, int B, int H, int D, int x_row) {
    head_patches<false>(cols, x, Hg, Wg, r, B, H, D, x_row);
}

void head_patches_backward(real *dx, const real *dcols, int Hg, int Wg, int r, int B, int H, int D, int x_row) {
    head_patches<true>(dx, dcols, Hg, Wg, r, B, H, D, x_row);
}
