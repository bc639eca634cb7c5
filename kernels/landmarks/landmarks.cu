/* Means over the cells of a grid, and squares of tokens copied to rows (kernels/landmarks/landmarks.h): one thread for
 * each element of the means or of the rows. */
#include "kernels/cuda/rows.cuh"
#include "kernels/landmarks/landmarks.h"
#include "kernels/tokens/grid.h"

enum { THREADS = 256 };

/* Forward computes means from x, backward adds to the gradient of x. */
template <bool backward>
__global__ void __launch_bounds__(THREADS)
    cell_means_kernel(real *to, const real *from, Cells cells, size_t numbers, int C, int x_row) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, c = at % C, mean = at / C;
    if (at >= numbers) return;
    size_t L = grid_tokens(cells.cells), l = mean % L;
    size_t image = mean / L * grid_tokens(cells.tokens) * x_row + c;
    int Wg = cells.tokens.columns, Lw = cells.cells.columns;
    LandmarkCell cell = landmark_cell(cells, (int)(l / Lw), (int)(l % Lw));
    float sum = 0, share = backward ? cell.share * to_float(from[at]) : 0;
    for (int i = cell.top; i < cell.bottom; i++)
        for (int j = cell.left; j < cell.right; j++) {
            size_t x = image + ((size_t)i * Wg + j) * x_row;
            if (backward) to[x] = to_real(to_float(to[x]) + share);
            else sum += to_float(from[x]);
        }
    if (!backward) to[at] = to_real(cell.share * sum);
}

template <bool backward>
static void cell_means(real *to, const real *from, const Cells *cells, int B, int C, int x_row) {
    size_t numbers = (size_t)B * grid_tokens(cells->cells) * C;
    LAUNCH((cell_means_kernel<backward>), (unsigned)ceil_div(numbers, THREADS), THREADS, 0, to, from, *cells, numbers,
           C, x_row);
}

void cell_means_forward(real *means, const real *x, const Cells *cells, int B, int C, int x_row) {
    cell_means<false>(means, x, cells, B, C, x_row);
}

void cell_means_backward(real *dx, const real *dmeans, const Cells *cells, int B, int C, int x_row) {
    cell_means<true>(dx, dmeans, cells, B, C, x_row);
}

/* Forward gathers a cell's tokens, backward a token's cells: which follow from the same rule as the tokens of a
 * cell. */
template <bool backward>
__global__ void __launch_bounds__(THREADS)
    overlapping_means_kernel(real *result, const real *source, Cells cells, size_t numbers, int C) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, row = at / C, c = at % C;
    if (at >= numbers) return;
    Grid from = backward ? cells.tokens : cells.cells, to = backward ? cells.cells : cells.tokens;
    size_t in_image = row % grid_tokens(from), image = row / grid_tokens(from) * grid_tokens(to);
    TokenSpan rows = cell_span((int)in_image / from.columns, from.rows, to.rows);
    TokenSpan columns = cell_span((int)in_image % from.columns, from.columns, to.columns);
    float sum = 0;
    for (int i = rows.begin; i < rows.end; i++)
        for (int j = columns.begin; j < columns.end; j++) {
            float share = !backward ? 1 : span_share(cell_span(i, to.rows, from.rows),
                                                     cell_span(j, to.columns, from.columns));
            sum += share * to_float(source[(image + (size_t)i * to.columns + j) * C + c]);
        }
    result[at] = to_real(backward ? sum : span_share(rows, columns) * sum);
}

template <bool backward>
static void overlapping_means(real *to, const real *from, const Cells *cells, int B, int C) {
    size_t numbers = (size_t)B * grid_tokens(backward ? cells->tokens : cells->cells) * C;
    LAUNCH((overlapping_means_kernel<backward>), (unsigned)ceil_div(numbers, THREADS), THREADS, 0, to, from, *cells,
           numbers, C);
}

void overlapping_means_forward(real *means, const real *x, const Cells *cells, int B, int C) {
    overlapping_means<false>(means, x, cells, B, C);
}

void overlapping_means_backward(real *dx, const real *dmeans, const Cells *cells, int B, int C) {
    overlapping_means<true>(dx, dmeans, cells, B, C);
}

template <bool backward>
__global__ void __launch_bounds__(THREADS)
    head_patches_kernel(real *to, const real *from, HeadPatches p, size_t numbers) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= numbers) return;
    int Hg = p.grid.rows, Wg = p.grid.columns, rows = Hg / p.r, columns = Wg / p.r;
    int j = (int)(at % p.r), i = (int)(at / p.r % p.r);
    size_t channel = at / p.r / p.r, patch = channel / ((size_t)p.H * p.D);
    size_t token =
        (patch / columns / rows * Hg + patch / columns % rows * p.r + i) * Wg + patch % columns * p.r + j;
    size_t x = token * p.x_row + channel % ((size_t)p.H * p.D);
    if (backward) to[x] = to_real(to_float(to[x]) + to_float(from[at]));
    else to[at] = from[x];
}

template <bool backward>
static void head_patches(real *to, const real *from, const HeadPatches *p, int B) {
    size_t squares = (size_t)B * (p->grid.rows / p->r) * (p->grid.columns / p->r);
    size_t numbers = squares * p->H * p->D * p->r * p->r;
    LAUNCH((head_patches_kernel<backward>), (unsigned)ceil_div(numbers, THREADS), THREADS, 0, to, from, *p, numbers);
}

void head_patches_forward(real *cols, const real *x, const HeadPatches *shape, int B) {
    head_patches<false>(cols, x, shape, B);
}

void head_patches_backward(real *dx, const real *dcols, const HeadPatches *shape, int B) {
    head_patches<true>(dx, dcols, shape, B);
}
