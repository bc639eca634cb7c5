/* Scales every head of q and k, and optionally of v, to unit norm.
 *   forward   r = 1 / max(|x|, 1e-6),  x^ = r x
 *   backward  dx = r (dx^ - x^ (x^.dx^)),  or r dx^ where |x| was below 1e-6
 *   saves     x^, r. */
#include <math.h>

#include "kernels/cpu/activations.h"
#include "kernels/norm/l2_normalize.h"

static const float LARGEST = 1e6f;

/* 1 / max(|x|, 1e-6) from values of |x|^2; NaN gives NaN. */
TILE_INLINE vec inverse_lengths(vec squares) {
    vec inverse;
    for (int l = 0; l < TILE; l++) inverse[l] = 1 / sqrtf(squares[l]);
    return vec_min(vec_set(LARGEST), inverse);
}

/* TILE rows of D or fewer; their sums together.  D is a literal where it is TILE. */
TILE_INLINE void rows_forward(real *unit, float *inverse, const real *x, int rows, int D) {
    vec squares[TILE] = {0};
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < D; j += TILE) {
            vec part = real_load_part(x + (size_t)r * D + j, D - j);
            squares[r] += part * part;
        }
    vec scale = inverse_lengths(vec_sums(squares));
    vec_store_part(inverse, scale, rows);
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < D; j += TILE) {
            size_t at = (size_t)r * D + j;
            real_store_part(unit + at, inverse[r] * real_load_part(x + at, D - j), D - j);
        }
}

TILE_INLINE void rows_backward(real *dx, const real *dunit, const real *unit, const float *inverse, int rows, int D) {
    vec dots[TILE] = {0};
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < D; j += TILE) {
            size_t at = (size_t)r * D + j;
            dots[r] += real_load_part(dunit + at, D - j) * real_load_part(unit + at, D - j);
        }
    vec along = vec_select(vec_load_part(inverse, rows) < LARGEST, vec_sums(dots), vec_set(0));
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < D; j += TILE) {
            size_t at = (size_t)r * D + j;
            vec d = real_load_part(dunit + at, D - j) - along[r] * real_load_part(unit + at, D - j);
            real_store_part(dx + at, inverse[r] * d, D - j);
        }
}

/* The rows of a token's first parts are also adjacent in qkv. */
void l2_normalize_forward(real *unit, float *inverse, const real *qkv, const UnitLengths *shape) {
    int parts = shape->parts, H = shape->H, D = shape->D, heads = parts * H;
    size_t n = shape->n, row = (size_t)H * D;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        for (int h = 0; h < heads; h += TILE) {
            int rows = heads - h < TILE ? heads - h : TILE;
            size_t at = i * parts * row + (size_t)h * D, from = i * 3 * row + (size_t)h * D;
            if (D == TILE) rows_forward(unit + at, inverse + i * heads + h, qkv + from, rows, TILE);
            else rows_forward(unit + at, inverse + i * heads + h, qkv + from, rows, D);
        }
}

void l2_normalize_backward(real *dqkv, const real *dunit, const real *unit, const float *inverse,
                           const UnitLengths *shape) {
    int parts = shape->parts, H = shape->H, D = shape->D, heads = parts * H;
    size_t n = shape->n, row = (size_t)H * D;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        for (int h = 0; h < heads; h += TILE) {
            int rows = heads - h < TILE ? heads - h : TILE;
            size_t at = i * parts * row + (size_t)h * D, to = i * 3 * row + (size_t)h * D;
            const float *lengths = inverse + i * heads + h;
            if (D == TILE) rows_backward(dqkv + to, dunit + at, unit + at, lengths, rows, TILE);
            else rows_backward(dqkv + to, dunit + at, unit + at, lengths, rows, D);
        }
}
