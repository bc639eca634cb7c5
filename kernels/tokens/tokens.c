/* From pixels to tokens and back to one vector: normalisation, patches, class token and positions, mean pooling. */
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/tokens/grid.h"
#include "kernels/tokens/images.h"
#include "kernels/tokens/tokens.h"

void images_normalize(real *y, const uint8_t *x, const float *mean, const float *std, const ImageShape *shape) {
    int B = shape->B, Hi = shape->Hi, Wi = shape->Wi;
    size_t pixels = (size_t)Hi * Wi;
    float scale[3], shift[3];
    for (int c = 0; c < 3; c++) {
        scale[c] = 1 / (255 * std[c]);
        shift[c] = -mean[c] / std[c];
    }
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int c = 0; c < 3; c++) {
            real *plane = y + ((size_t)b * 3 + c) * pixels;
            const uint8_t *image = x + b * 3 * pixels + c;
            for (size_t i = 0; i < pixels; i++) plane[i] = real_of(image[3 * i] * scale[c] + shift[c]);
        }
}

void images_renormalize(real *y, const real *x, const float *scale, const float *shift, const ImageShape *shape) {
    size_t pixels = (size_t)shape->Hi * shape->Wi;
#pragma omp parallel for schedule(static)
    for (int plane = 0; plane < 3 * shape->B; plane++)
        for (size_t i = plane * pixels; i < (plane + 1) * pixels; i++)
            y[i] = real_of(real_get(x[i]) * scale[plane % 3] + shift[plane % 3]);
}

void images_normalize_padded(real *y, const uint8_t *x, const int *sizes, const float *mean, const float *std,
                             const ImageShape *shape) {
    int B = shape->B, Hi = shape->Hi, Wi = shape->Wi;
    float scale[3], shift[3];
    for (int c = 0; c < 3; c++) {
        scale[c] = 1 / (255 * std[c]);
        shift[c] = -mean[c] / std[c];
    }
#pragma omp parallel for schedule(static)
    for (size_t line = 0; line < (size_t)B * (size_t)Hi; line++) {
        const int *size = sizes + 2 * (line / (size_t)Hi);
        int width = (int)(line % (size_t)Hi) < size[0] ? size[1] : 0;
        size_t first = line * (size_t)Wi * 3, inside = (size_t)width * 3, all = (size_t)Wi * 3;
        for (size_t i = 0; i < inside; i++) y[first + i] = real_of(x[first + i] * scale[i % 3] + shift[i % 3]);
        memset(y + first + inside, 0, (all - inside) * sizeof *y);
    }
}

void patchify(real *cols, const real *x, const ImageShape *shape, int P) {
    int B = shape->B, Hi = shape->Hi, Wi = shape->Wi;
    int rows = Hi / P, columns = Wi / P;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int row = 0; row < rows; row++)
            for (int column = 0; column < columns; column++) {
                real *patch = cols + (((size_t)b * rows + row) * columns + column) * 3 * P * P;
                for (int c = 0; c < 3; c++)
                    for (int i = 0; i < P; i++, patch += P) {
                        const real *line = x + (((size_t)b * 3 + c) * Hi + row * P + i) * Wi + (size_t)column * P;
                        memcpy(patch, line, P * sizeof *patch);
                    }
            }
}

void embed_forward(real *x, const real *patches, const FrontTokens *front, const float *pos, const TokenShape *shape) {
    int B = shape->B, N = shape->N, M = shape->M, prefix = front ? front->count : 0;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int t = 0; t < N; t++) {
            real *out = x + ((size_t)b * N + t) * M;
            const real *in = t < prefix ? NULL : patches + ((size_t)b * (N - prefix) + t - prefix) * M;
            const float *p = pos ? pos + (size_t)t * M : NULL;
            for (int m = 0; m < M; m += TILE) {
                vec token = in ? real_load_part(in + m, M - m) : vec_load_part(front->w[t] + m, M - m);
                if (p) token += vec_load_part(p + m, M - m);
                real_store_part(out + m, token, M - m);
            }
        }
}

void embed_backward(real *dpatches, const FrontTokens *front, float *dpos, const real *dx, const TokenShape *shape) {
    int B = shape->B, N = shape->N, M = shape->M, prefix = front ? front->count : 0;
#pragma omp parallel for schedule(static)
    for (int t = 0; t < N; t++)
        for (int b = 0; b < B; b++) {
            const real *in = dx + ((size_t)b * N + t) * M;
            if (t >= prefix) memcpy(dpatches + ((size_t)b * (N - prefix) + t - prefix) * M, in, M * sizeof *in);
            else if (front->dw[t])
                for (int m = 0; m < M; m++) front->dw[t][m] += real_get(in[m]);
            if (dpos)
                for (int m = 0; m < M; m++) dpos[(size_t)t * M + m] += real_get(in[m]);
        }
}

/* The number of columns summed together, in double: a cache line of results on every token. */
enum { COLUMNS = 64 };

void pool_forward(real *y, const real *x, const TokenShape *shape, int first, int count) {
    int B = shape->B, N = shape->N, M = shape->M;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int m = 0; m < M; m += COLUMNS) {
            int columns = M - m < COLUMNS ? M - m : COLUMNS;
            double sum[COLUMNS] = {0};
            for (int t = first; t < first + count; t++) {
                const real *in = x + ((size_t)b * N + t) * M + m;
                for (int j = 0; j < columns; j++) sum[j] += real_get(in[j]);
            }
            for (int j = 0; j < columns; j++) y[(size_t)b * M + m + j] = real_of((float)(sum[j] / count));
        }
}

void pool_backward(real *dx, const real *dy, const TokenShape *shape, int first, int count) {
    int B = shape->B, N = shape->N, M = shape->M;
    float share = 1.0f / count;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int t = 0; t < N; t++) {
            real *out = dx + ((size_t)b * N + t) * M;
            const real *in = dy + (size_t)b * M;
            if (t < first || t >= first + count) memset(out, 0, M * sizeof *out);
            else
                for (int m = 0; m < M; m++) out[m] = real_of(share * real_get(in[m]));
        }
}

void rows_add(real *y, const real *a, const real *b, size_t n, int M, int y_row, int a_row, int b_row) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) {
        real *out = y + i * y_row;
        const real *in = a + i * a_row, *more = b ? b + i * b_row : NULL;
        for (int m = 0; m < M; m += TILE) {
            vec sum = real_load_part(in + m, M - m);
            if (more) sum += real_load_part(more + m, M - m);
            real_store_part(out + m, sum, M - m);
        }
    }
}

/* y counts pairs of rows, of all images: a pair of rows and its cells begin at the same offset. */
static void cells_copy(real *to, const real *from, Grid grid, int B, int C, bool back) {
    size_t rows = (size_t)B * grid.frames * (grid.rows / 2), row = (size_t)grid.columns * C;
#pragma omp parallel for schedule(static)
    for (size_t y = 0; y < rows; y++)
        for (int x = 0; x < grid.columns / 2; x++)
            for (int t = 0; t < 4; t++) {
                size_t token = (2 * y + t % 2) * row + (size_t)(2 * x + t / 2) * C;
                size_t cell = 2 * y * row + (size_t)(4 * x + t) * C;
                memcpy(to + (back ? token : cell), from + (back ? cell : token), C * sizeof *to);
            }
}

void token_cells_forward(real *cells, const real *x, Grid grid, int B, int C) {
    cells_copy(cells, x, grid, B, C, false);
}

void token_cells_backward(real *dx, const real *dcells, Grid grid, int B, int C) {
    cells_copy(dx, dcells, grid, B, C, true);
}

void rows_stretch_forward(real *y, const real *x, const RowStretch *shape) {
    int from = shape->from, to = shape->to, M = shape->M;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < shape->B; b++)
        for (int i = 0; i < to; i++) {
            RowBlend blend = row_blend(i, from, to);
            const real *in = x + ((size_t)b * from + blend.row) * shape->x_row;
            const real *next = in + (blend.next > 0 ? shape->x_row : 0);
            real *out = y + ((size_t)b * to + i) * M;
            for (int m = 0; m < M; m += TILE) {
                vec sum = (1 - blend.next) * real_load_part(in + m, M - m);
                real_store_part(out + m, sum + blend.next * real_load_part(next + m, M - m), M - m);
            }
        }
}

void rows_stretch_backward(real *dx, const real *dy, const RowStretch *shape) {
    int from = shape->from, to = shape->to, M = shape->M;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < shape->B; b++)
        for (int j = 0; j < from; j++) {
            real *out = dx + ((size_t)b * from + j) * shape->x_row;
            int first = row_blend_first(j, from, to), end = row_blend_first(j + 2, from, to);
            for (int m = 0; m < M; m += TILE) {
                vec sum = real_load_part(out + m, M - m);
                for (int i = first; i < end; i++) {
                    RowBlend blend = row_blend(i, from, to);
                    float share = blend.row == j ? 1 - blend.next : blend.next;
                    sum += share * real_load_part(dy + ((size_t)b * to + i) * M + m, M - m);
                }
                real_store_part(out + m, sum, M - m);
            }
        }
}
