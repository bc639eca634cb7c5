/* The gradient of the weights of a convolution with small windows:  dW'[tap, i, o] = sum_p x[p*stride + tap - k/2, i]
 * dy[p,o]. The windows of a line of results are copied to rows, which are multiplied by dy while both are in the
 * first-level cache.  The library's product of all positions at once, which has few rows, reaches less than half of the
 * speed. */
#include <string.h>

#include "core/integers.h"
#include "kernels/convolution/narrow_cpu.h"
#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"

/* Groups of lines have sums of their own, so that the result does not depend on the number of threads. */
enum { WINDOW = 64, GROUPS = 16 };

static int window_of(const Convolution *c) { return c->in * c->k * c->k; }

bool narrow_serves(const Convolution *c) { return window_of(c) <= WINDOW && c->k > 1 && c->out % TILE == 0; }

/* The number of floats in a row, a multiple of tile_gemm's vectors; and in a line of windows, with the unused pixels
 * that the last vector copies. */
static int row_floats(const Convolution *c) { return (window_of(c) + 3) / 4 * 4; }

static size_t line_floats(const Convolution *c, int Wo) {
    return (size_t)(((Wo - 1) * c->stride + c->k) * c->in) + TILE;
}

static size_t rows_floats(const Convolution *c, int Wo) { return (size_t)Wo * (size_t)row_floats(c) + TILE; }

static size_t sum_floats(const Convolution *c) { return (size_t)row_floats(c) * (size_t)c->out; }

static size_t thread_floats(const Convolution *c, int Wo) {
    size_t lines = workspace_line_up((size_t)c->k * line_floats(c, Wo)), rows = workspace_line_up(rows_floats(c, Wo));
    return lines + rows + workspace_line_up((size_t)Wo * (size_t)c->out);
}

size_t narrow_workspace(const Convolution *c, const ImageShape *images) {
    return workspace_bytes_behind(GROUPS * sum_floats(c), thread_floats(c, convolution_side(images->Wi, c->stride)));
}

/* rows [Wo, row_floats]: the windows, [k,k,in], of line `yo` of the results of an image; lines is scratch. */
static void line_gather(float *rows, float *lines, const real *image, int yo, const Convolution *c, int H, int W) {
    int Wo = convolution_side(W, c->stride), top = yo * c->stride - convolution_before(c, H);
    int left = convolution_before(c, W), step = c->stride * c->in, part = c->k * c->in, row = row_floats(c);
    size_t line = line_floats(c, Wo), seen = (size_t)smaller(W, (Wo - 1) * c->stride + c->k - left) * (size_t)c->in;
    memset(lines, 0, (size_t)c->k * line * sizeof *lines);
    for (int r = 0; r < c->k; r++)
        if (top + r >= 0 && top + r < H)
            reals_widen(lines + (size_t)r * line + left * c->in, image + (size_t)(top + r) * (size_t)(W * c->in), seen);
    for (int j = 0; j < Wo; j++)
        for (int r = 0; r < c->k; r++) { /* numbers copied beyond a part are overwritten by the next one */
            float *to = rows + j * row + r * part;
            const float *from = lines + (size_t)r * line + j * step;
            for (int e = 0; e < part; e += TILE) vec_store(to + e, vec_load(from + e));
        }
}

/* sum [row_floats,out] = rows^T dy over the lines from `first` to `end`. */
static void lines_multiply(float *sum, const real *dy, const real *x, const Convolution *c, const ImageShape *images,
                           size_t first, size_t end) {
    int H = images->Hi, W = images->Wi, Ho = convolution_side(H, c->stride), Wo = convolution_side(W, c->stride);
    float *next = workspace_behind(GROUPS * sum_floats(c), omp_get_thread_num(), thread_floats(c, Wo));
    float *lines = workspace_take(&next, (size_t)c->k * line_floats(c, Wo));
    float *rows = workspace_take(&next, rows_floats(c, Wo));
    memset(sum, 0, sum_floats(c) * sizeof *sum);
    for (size_t line = first; line < end; line++) {
        const real *image = x + line / (size_t)Ho * (size_t)H * (size_t)(W * c->in);
        size_t out = (size_t)c->out;
        line_gather(rows, lines, image, (int)(line % (size_t)Ho), c, H, W);
        FloatRows d = reals_as_floats(next, out, dy + line * (size_t)Wo * out, out, Wo, c->out);
        tile_gemm(sum, out, rows, 1, (size_t)row_floats(c), d.at, d.row, row_floats(c), c->out, Wo, 1);
    }
}

void narrow_backward_weight(float *dw, const real *dy, const real *x, const float *scale, const Convolution *c,
                            const ImageShape *images) {
    size_t lines = (size_t)images->B * (size_t)convolution_side(images->Hi, c->stride), size = sum_floats(c);
    float *sums = workspace_shared();
#pragma omp parallel for schedule(dynamic)
    for (int g = 0; g < GROUPS; g++)
        lines_multiply(sums + (size_t)g * size, dy, x, c, images, lines * (size_t)g / GROUPS,
                       lines * (size_t)(g + 1) / GROUPS);
    int taps = c->k * c->k;
    for (int o = 0; o < c->out; o++)
        for (int i = 0; i < c->in; i++)
            for (int tap = 0; tap < taps; tap++) {
                float sum = 0;
                for (int g = 0; g < GROUPS; g++) sum += sums[(size_t)g * size + (size_t)((tap * c->in + i) * c->out + o)];
                dw[(o * c->in + i) * taps + tap] += scale[o] * sum;
            }
}
