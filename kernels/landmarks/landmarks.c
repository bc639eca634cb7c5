/* Means over the cells of a grid, and squares of tokens copied to rows (kernels/landmarks/landmarks.h). */
#include "kernels/cpu/activations.h"
#include "kernels/landmarks/landmarks.h"
#include "kernels/tokens/grid.h"

void cell_means_forward(real *means, const real *x, const Cells *cells, int B, int C, int x_row) {
    int Wg = cells->tokens.columns, Lw = cells->cells.columns;
    size_t N = grid_tokens(cells->tokens), L = grid_tokens(cells->cells);
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < B * L; at++) {
        LandmarkCell cell = landmark_cell(*cells, (int)(at % L) / Lw, (int)(at % L) % Lw);
        const real *image = x + at / L * N * x_row;
        for (int c = 0; c < C; c += TILE) {
            vec sum = {0};
            for (int i = cell.top; i < cell.bottom; i++)
                for (int j = cell.left; j < cell.right; j++)
                    sum += cell.share * real_load_part(image + ((size_t)i * Wg + j) * x_row + c, C - c);
            real_store_part(means + at * C + c, sum, C - c);
        }
    }
}

void cell_means_backward(real *dx, const real *dmeans, const Cells *cells, int B, int C, int x_row) {
    int Wg = cells->tokens.columns, Lw = cells->cells.columns;
    size_t N = grid_tokens(cells->tokens), L = grid_tokens(cells->cells);
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < B * L; at++) {
        LandmarkCell cell = landmark_cell(*cells, (int)(at % L) / Lw, (int)(at % L) % Lw);
        real *image = dx + at / L * N * x_row;
        for (int i = cell.top; i < cell.bottom; i++)
            for (int j = cell.left; j < cell.right; j++)
                for (int c = 0; c < C; c += TILE) {
                    real *to = image + ((size_t)i * Wg + j) * x_row + c;
                    vec slope = real_load_part(to, C - c) + cell.share * real_load_part(dmeans + at * C + c, C - c);
                    real_store_part(to, slope, C - c);
                }
    }
}

void overlapping_means_forward(real *means, const real *x, const Cells *cells, int B, int C) {
    Grid from = cells->cells, to = cells->tokens;
    size_t N = grid_tokens(to), L = grid_tokens(from);
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < B * L; at++) {
        TokenSpan rows = cell_span((int)(at % L) / from.columns, from.rows, to.rows);
        TokenSpan columns = cell_span((int)(at % L) % from.columns, from.columns, to.columns);
        const real *image = x + at / L * N * C;
        for (int c = 0; c < C; c += TILE) {
            vec sum = {0};
            for (int i = rows.begin; i < rows.end; i++)
                for (int j = columns.begin; j < columns.end; j++)
                    sum += real_load_part(image + ((size_t)i * to.columns + j) * C + c, C - c);
            real_store_part(means + at * C + c, span_share(rows, columns) * sum, C - c);
        }
    }
}

/* The cells of a token follow from the same rule as the tokens of a cell. */
void overlapping_means_backward(real *dx, const real *dmeans, const Cells *cells, int B, int C) {
    Grid from = cells->cells, to = cells->tokens;
    size_t N = grid_tokens(to), L = grid_tokens(from);
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < B * N; at++) {
        TokenSpan down = cell_span((int)(at % N) / to.columns, to.rows, from.rows);
        TokenSpan across = cell_span((int)(at % N) % to.columns, to.columns, from.columns);
        const real *image = dmeans + at / N * L * C;
        for (int c = 0; c < C; c += TILE) {
            vec sum = {0};
            for (int i = down.begin; i < down.end; i++)
                for (int j = across.begin; j < across.end; j++) {
                    float share = span_share(cell_span(i, from.rows, to.rows), cell_span(j, from.columns, to.columns));
                    sum += share * real_load_part(image + ((size_t)i * from.columns + j) * C + c, C - c);
                }
            real_store_part(dx + at * C + c, sum, C - c);
        }
    }
}

/* Calls `copy` for every element of cols and the element of x of which it is a copy. */
#define EACH_NUMBER(copy)                                                                                    \
    do {                                                                                                     \
        int rows = Hg / r, columns = Wg / r;                                                                 \
        _Pragma("omp parallel for schedule(static)") for (size_t at = 0; at < (size_t)B * rows * columns; at++) { \
            size_t token = (at / columns / rows * Hg + at / columns % rows * r) * Wg + at % columns * r;     \
            for (int h = 0; h < H; h++)                                                                      \
                for (int c = 0; c < D; c++)                                                                  \
                    for (int i = 0; i < r; i++)                                                              \
                        for (int j = 0; j < r; j++) {                                                        \
                            size_t to = (((at * H + h) * D + c) * r + i) * r + j;                            \
                            size_t from = (token + (size_t)i * Wg + j) * x_row + (size_t)h * D + c;          \
                            copy;                                                                            \
                        }                                                                                    \
        }                                                                                                    \
    } while (0)

void head_patches_forward(real *cols, const real *x, const HeadPatches *shape, int B) {
    int Hg = shape->grid.rows, Wg = shape->grid.columns, r = shape->r, H = shape->H, D = shape->D, x_row = shape->x_row;
    EACH_NUMBER(cols[to] = x[from]);
}

void head_patches_backward(real *dx, const real *dcols, const HeadPatches *shape, int B) {
    int Hg = shape->grid.rows, Wg = shape->grid.columns, r = shape->r, H = shape->H, D = shape->D, x_row = shape->x_row;
    EACH_NUMBER(dx[from] = real_of(real_get(dx[from]) + real_get(dcols[to])));
}
