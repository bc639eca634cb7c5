/* Depthwise convolution over the token grid, channels last.
 *   forward   y_t = add_t + b + sum_o w_o x_t+o
 *   backward  dx_t = add_t + sum_o w_o dy_t-o,  dw_o += sum_t dy_t x_t+o,  db += sum_t dy_t
 *
 * Four neighbouring tokens are computed together and share their loads.  For images, all channels of four tokens, or in
 * the gradients of weights those of a line, are processed before the next ones, so that memory is read sequentially.
 * For clips, TILE channels are copied into a plane for each frame with a border of zeros. */
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"
#include "kernels/convolution/convolution.h"
#include "kernels/tokens/grid.h"

enum { PIXELS = 4, LARGEST = 7 };

/* A plane is [lines,line] tokens of TILE channels; the tokens begin at (k/2, k/2). */
static int plane_line(const Depthwise *s) { return (s->grid.columns + PIXELS - 1) / PIXELS * PIXELS + s->k - 1; }
static size_t plane_floats(const Depthwise *s) { return (size_t)(s->grid.rows + s->k - 1) * plane_line(s) * TILE; }

/* Weight gradients of a thread: [taps + 1,Cp], the last row the bias's. */
static size_t part_floats(const Depthwise *s) { return (size_t)(depthwise_taps(s) + 1) * tile_round_up(s->C); }

static size_t planes_floats(const Depthwise *s) { return (size_t)s->grid.frames * plane_floats(s); }

/* Operands for an image: weights and bias by tiles of channels, and a token of zeros. */
static size_t panel_floats(const Depthwise *s) { return (size_t)(s->k * s->k + 2) * tile_round_up(s->C); }

static size_t work_floats(const Depthwise *s) {
    return panel_floats(s) + workspace_line_up(part_floats(s)) + 2 * workspace_line_up(planes_floats(s)) +
           (size_t)depthwise_frames(s) * LARGEST * LARGEST * TILE;
}

size_t depthwise_workspace(const Depthwise *shape) { return workspace_bytes(work_floats(shape)); }

/* planes = channels of x, rows `row` apart, each frame with a border of zeros. */
static void gather_planes(float *planes, const real *x, size_t row, int channels, const Depthwise *s) {
    int line = plane_line(s), border = s->k / 2;
    memset(planes, 0, planes_floats(s) * sizeof *planes);
    for (int t = 0; t < s->grid.frames; t++, planes += plane_floats(s))
        for (int i = 0; i < s->grid.rows; i++)
            for (int j = 0; j < s->grid.columns; j++, x += row)
                vec_store(planes + ((size_t)(i + border) * line + j + border) * TILE, real_load_part(x, channels));
}

/* to [taps,TILE]: the weights of channels c.., in reverse for the backward pass. */
static void gather_weights(float *to, const float *w, int c, int channels, bool reverse, const Depthwise *s) {
    int taps = depthwise_taps(s);
    for (int tap = 0; tap < taps; tap++)
        for (int l = 0; l < TILE; l++)
            to[tap * TILE + l] =
                l < channels ? w[(size_t)((c + l) % s->period) * taps + (reverse ? taps - 1 - tap : tap)] : 0;
}

/* sum [PIXELS] += the K x K window whose first token is at `plane`. */
TILE_INLINE void window(int K, vec *sum, const float *plane, size_t line, const float *w) {
    for (int i = 0; i < K; i++) {
        vec x[PIXELS + LARGEST - 1];
#pragma GCC unroll 10
        for (int j = 0; j < PIXELS + K - 1; j++) x[j] = vec_load(plane + (i * line + j) * TILE);
#pragma GCC unroll 7
        for (int j = 0; j < K; j++) {
            vec tap = vec_load(w + (i * K + j) * TILE);
#pragma GCC unroll 4
            for (int p = 0; p < PIXELS; p++) sum[p] += tap * x[p + j];
        }
    }
}

/* The neighbours of a frame in time, including itself: the first existing one, its tap, and their number. */
typedef struct {
    int frame, tap, count;
} Neighbours;

static Neighbours neighbours_of(int t, const Depthwise *s) {
    int kt = depthwise_frames(s), first = t - kt / 2, end = first + kt;
    int from = first > 0 ? first : 0, to = end < s->grid.frames ? end : s->grid.frames;
    return (Neighbours){from, from - first, to - from};
}

/* One frame of y, from `count` planes and as many K x K kernels. */
TILE_INLINE void convolve(int K, real *y, const real *add, size_t row, const float *planes, const float *w, int count,
                          vec bias, int channels, const Depthwise *s) {
    int line = plane_line(s);
    size_t plane = plane_floats(s);
    for (int i = 0; i < s->grid.rows; i++)
        for (int j = 0; j < s->grid.columns; j += PIXELS) {
            vec sum[PIXELS] = {bias, bias, bias, bias};
            size_t at = ((size_t)i * s->grid.columns + j) * row;
            for (int t = 0; t < count; t++)
                window(K, sum, planes + t * plane + ((size_t)i * line + j) * TILE, line, w + t * K * K * TILE);
            for (int p = 0; p < PIXELS && j + p < s->grid.columns; p++) {
                if (add) sum[p] += real_load_part(add + at + p * row, channels);
                real_store_part(y + at + p * row, sum[p], channels);
            }
        }
}

/* part [k*k] rows of Cp: adds the weight gradients of TILE channels, each first summed over a line of tokens.  bias:
 * the bias's row, or NULL. */
TILE_INLINE void correlate(int K, float *part, float *bias, size_t Cp, const float *dy, const float *x,
                           const Depthwise *s) {
    int line = plane_line(s), border = K / 2;
    for (int i = 0; i < s->grid.rows; i++) {
        const float *dyi = dy + ((size_t)(i + border) * line + border) * TILE;
        vec total = {0};
        for (int j = 0; j < s->grid.columns; j++) total += vec_load(dyi + j * TILE);
        if (bias) vec_store(bias, vec_load(bias) + total);
        for (int r = 0; r < K; r++) {
            const float *xr = x + (size_t)(i + r) * line * TILE;
            vec sum[LARGEST] = {{0}};
            for (int j = 0; j < s->grid.columns; j += PIXELS) {
                vec xs[PIXELS + LARGEST - 1];
#pragma GCC unroll 10
                for (int q = 0; q < PIXELS + K - 1; q++) xs[q] = vec_load(xr + (j + q) * TILE);
#pragma GCC unroll 4
                for (int p = 0; p < PIXELS; p++) {
                    vec d = j + p < s->grid.columns ? vec_load(dyi + (j + p) * TILE) : vec_set(0);
#pragma GCC unroll 7
                    for (int q = 0; q < K; q++) sum[q] += d * xs[p + q];
                }
            }
            for (int q = 0; q < K; q++) {
                float *to = part + (r * K + q) * Cp;
                vec_store(to, vec_load(to) + sum[q]);
            }
        }
    }
}

#define WITH_K(call)                 \
    switch (s->k) {                  \
    case 1: call(1); break;          \
    case 3: call(3); break;          \
    case 5: call(5); break;          \
    default: call(7);                \
    }

/* Every frame of y from the planes. */
static void convolve_frames(real *y, const real *add, size_t row, const float *planes, const float *taps, vec bias,
                            int channels, const Depthwise *s) {
    for (int t = 0; t < s->grid.frames; t++) {
        Neighbours near = neighbours_of(t, s);
        size_t at = (size_t)t * s->grid.rows * s->grid.columns * row;
        const float *from = planes + near.frame * plane_floats(s), *w = taps + near.tap * s->k * s->k * TILE;
#define FRAME(K) convolve(K, y + at, add ? add + at : NULL, row, from, w, near.count, bias, channels, s)
        WITH_K(FRAME)
    }
}

static void correlate_frames(float *part, size_t Cp, const float *dy, const float *x, const Depthwise *s) {
    size_t plane = plane_floats(s), area = (size_t)s->k * s->k;
    for (int t = 0; t < s->grid.frames; t++) {
        Neighbours near = neighbours_of(t, s);
        for (int i = 0; i < near.count; i++) {
            float *to = part + (near.tap + i) * area * Cp, *bias = i ? NULL : part + depthwise_taps(s) * Cp;
#define NEIGHBOUR(K) correlate(K, to, bias, Cp, dy + t * plane, x + (near.frame + i) * plane, s)
            WITH_K(NEIGHBOUR)
        }
    }
}

/* Channels c .. of `tokens` tokens, whose windows' tokens are at [row][column].  w [K*K,TILE]. */
TILE_INLINE void convolve_tile(int K, int channels, int c, real *y, const real *add,
                               const real *at[LARGEST][PIXELS + LARGEST - 1], const float *w, vec bias, int tokens,
                               const Depthwise *s) {
    vec sum[PIXELS] = {bias, bias, bias, bias};
    for (int r = 0; r < K; r++) {
        vec xs[PIXELS + LARGEST - 1];
#pragma GCC unroll 10
        for (int q = 0; q < PIXELS + K - 1; q++) xs[q] = real_load_part(at[r][q] + c, channels);
#pragma GCC unroll 7
        for (int q = 0; q < K; q++) {
            vec tap = vec_load(w + (r * K + q) * TILE);
#pragma GCC unroll 4
            for (int p = 0; p < PIXELS; p++) sum[p] += tap * xs[p + q];
        }
    }
    for (int p = 0; p < tokens; p++) {
        if (add) sum[p] += real_load_part(add + p * s->y_row + c, channels);
        real_store_part(y + p * s->y_row + c, sum[p], channels);
    }
}

/* PIXELS tokens from column j of row i on: y = add + b + the K x K windows around them.  panels [tiles,K*K,TILE]. */
TILE_INLINE void convolve_tokens(int K, real *y, const real *add, const real *x, const float *panels, const float *bias,
                                 const real *zeros, int i, int j, const Depthwise *s) {
    const real *at[LARGEST][PIXELS + LARGEST - 1];
    int rows = s->grid.rows, columns = s->grid.columns, tokens = columns - j < PIXELS ? columns - j : PIXELS;
    for (int r = 0; r < K; r++)
        for (int q = 0; q < PIXELS + K - 1; q++) {
            int row = i + r - K / 2, column = j + q - K / 2;
            bool inside = row >= 0 && row < rows && column >= 0 && column < columns;
            at[r][q] = inside ? x + ((size_t)row * columns + column) * s->x_row : zeros;
        }
    int c = 0;
    for (; c + TILE <= s->C; c += TILE)
        convolve_tile(K, TILE, c, y, add, at, panels + c * K * K, vec_load(bias + c), tokens, s);
    if (c < s->C) convolve_tile(K, s->C - c, c, y, add, at, panels + c * K * K, vec_load(bias + c), tokens, s);
}

/* Is there no time axis?  Then no planes are needed. */
static bool is_image(const Depthwise *s) { return s->grid.frames == 1 && depthwise_taps(s) == s->k * s->k; }

/* This thread's share of y = add + b + the windows of x, within a parallel region; b may be NULL. */
static void convolve_images(real *y, const real *add, const real *x, const float *w, const float *b, bool reverse,
                            float *panels, const Depthwise *s, int B) {
    int rows = s->grid.rows, columns = s->grid.columns, Cp = tile_round_up(s->C);
    float *bias = panels + (size_t)s->k * s->k * Cp;
    const real *zeros = memset(bias + Cp, 0, Cp * sizeof *bias);
    for (int c = 0; c < Cp; c += TILE)
        gather_weights(panels + (size_t)c * s->k * s->k, w, c, s->C - c < TILE ? s->C - c : TILE, reverse, s);
    for (int c = 0; c < Cp; c++) bias[c] = b && c < s->C ? b[c % s->period] : 0;
#pragma omp for collapse(2) schedule(static)
    for (int image = 0; image < B; image++)
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < columns; j += PIXELS) {
                size_t token = ((size_t)image * rows + i) * columns + j;
                const real *from = x + (size_t)image * rows * columns * s->x_row;
                const real *also = add ? add + token * s->y_row : NULL;
#define TOKENS(K) convolve_tokens(K, y + token * s->y_row, also, from, panels, bias, zeros, i, j, s)
                WITH_K(TOKENS)
            }
}

void depthwise_forward(real *y, const real *add, const real *x, const float *w, const float *b, const Depthwise *s,
                       int B) {
    size_t N = grid_tokens(s->grid);
    if (is_image(s)) {
#pragma omp parallel
        convolve_images(y, add, x, w, b, false, kernels_workspace(work_floats(s)), s, B);
        return;
    }
#pragma omp parallel for collapse(2) schedule(static)
    for (int image = 0; image < B; image++)
        for (int c = 0; c < s->C; c += TILE) {
            float *next = kernels_workspace(work_floats(s)), *planes = workspace_take(&next, planes_floats(s)),
                  *taps = next;
            int channels = s->C - c < TILE ? s->C - c : TILE;
            size_t at = image * N * s->y_row + c;
            vec bias = {0};
            for (int l = 0; b && l < channels; l++) bias[l] = b[(c + l) % s->period];
            gather_planes(planes, x + image * N * s->x_row + c, s->x_row, channels, s);
            gather_weights(taps, w, c, channels, false, s);
            convolve_frames(y + at, add ? add + at : NULL, s->y_row, planes, taps, bias, channels, s);
        }
}

/* dw and db += the threads' parts, in the order of the threads and of the channels that share a weight. */
static void join_parts(float *dw, float *db, int threads, const Depthwise *s) {
    int taps = depthwise_taps(s), Cp = tile_round_up(s->C);
    for (int c = 0; c < s->C; c++)
        for (int tap = 0; tap <= taps; tap++) {
            float sum = 0;
            for (int t = 0; t < threads; t++) sum += workspace_of(t, work_floats(s))[(size_t)tap * Cp + c];
            if (tap < taps) dw[(size_t)(c % s->period) * taps + tap] += sum;
            else if (db) db[c % s->period] += sum;
        }
}

/* part [K*K] rows of Cp, then the bias's: adds the weight gradients of a tile of channels over line i of an image, dy's
 * and x's first token of the image given. */
TILE_INLINE void correlate_line(int K, int channels, float *part, size_t Cp, const real *dy, const real *x, int i,
                                const Depthwise *s) {
    int rows = s->grid.rows, columns = s->grid.columns, border = K / 2;
    const real *dyi = dy + (size_t)i * columns * s->y_row;
    vec total = {0};
    for (int j = 0; j < columns; j++) total += real_load_part(dyi + j * s->y_row, channels);
    vec_store(part + K * K * Cp, vec_load(part + K * K * Cp) + total);
    for (int r = 0; r < K; r++) {
        int row = i + r - border;
        if (row < 0 || row >= rows) continue;
        const real *xr = x + (size_t)row * columns * s->x_row;
        vec sum[LARGEST] = {{0}};
        for (int j = 0; j < columns; j += PIXELS) {
            bool whole = j >= border && j + PIXELS + border <= columns;
            vec xs[PIXELS + LARGEST - 1], d[PIXELS];
#pragma GCC unroll 10
            for (int q = 0; q < PIXELS + K - 1; q++) {
                int column = j + q - border;
                bool inside = whole || (column >= 0 && column < columns);
                xs[q] = inside ? real_load_part(xr + column * (ptrdiff_t)s->x_row, channels) : vec_set(0);
            }
#pragma GCC unroll 4
            for (int p = 0; p < PIXELS; p++)
                d[p] = whole || j + p < columns ? real_load_part(dyi + (j + p) * s->y_row, channels) : vec_set(0);
#pragma GCC unroll 4
            for (int p = 0; p < PIXELS; p++)
#pragma GCC unroll 7
                for (int q = 0; q < K; q++) sum[q] += d[p] * xs[p + q];
        }
        for (int q = 0; q < K; q++) {
            float *to = part + (r * K + q) * Cp;
            vec_store(to, vec_load(to) + sum[q]);
        }
    }
}

/* This thread's share of the weights' gradients, within a parallel region. */
static void correlate_images(float *parts, const real *dy, const real *x, const Depthwise *s, int B) {
    int rows = s->grid.rows, Cp = tile_round_up(s->C);
    size_t N = grid_tokens(s->grid);
#pragma omp for collapse(2) schedule(static)
    for (int image = 0; image < B; image++)
        for (int i = 0; i < rows; i++)
            for (int c = 0; c < s->C; c += TILE) {
                const real *dyc = dy + image * N * s->y_row + c, *xc = x + image * N * s->x_row + c;
#define WHOLE(K) correlate_line(K, TILE, parts + c, Cp, dyc, xc, i, s)
#define PART(K) correlate_line(K, s->C - c, parts + c, Cp, dyc, xc, i, s)
                if (c + TILE <= s->C) {
                    WITH_K(WHOLE)
                } else {
                    WITH_K(PART)
                }
            }
}

/* An image's gradients.  dx is computed from dy as y from x, with the weights in reverse. */
static void backward_images(real *dx, const real *add, const real *dy, const real *x, const float *w,
                            const Depthwise *s, int B) {
    Depthwise swapped = *s;
    swapped.x_row = s->y_row;
    swapped.y_row = s->x_row;
    float *next = kernels_workspace(work_floats(s)), *parts = workspace_take(&next, part_floats(s));
    memset(parts, 0, part_floats(s) * sizeof *parts);
    correlate_images(parts, dy, x, s, B);
    convolve_images(dx, add, dy, w, NULL, true, next, &swapped, B);
}

void depthwise_backward(real *dx, const real *add, float *dw, float *db, const real *dy, const real *x, const float *w,
                        const Depthwise *s, int B) {
    size_t N = grid_tokens(s->grid), Cp = tile_round_up(s->C);
    int threads = 1;
    if (is_image(s)) {
#pragma omp parallel
        {
            backward_images(dx, add, dy, x, w, s, B);
#pragma omp single
            threads = omp_get_num_threads();
        }
        join_parts(dw, db, threads, s);
        return;
    }
#pragma omp parallel
    {
        float *next = kernels_workspace(work_floats(s)), *parts = workspace_take(&next, part_floats(s));
        float *dy_planes = workspace_take(&next, planes_floats(s)), *x_planes = workspace_take(&next, planes_floats(s));
        float *taps = next;
        memset(parts, 0, part_floats(s) * sizeof *parts);
#pragma omp for collapse(2) schedule(static)
        for (int image = 0; image < B; image++)
            for (int c = 0; c < s->C; c += TILE) {
                int channels = s->C - c < TILE ? s->C - c : TILE;
                size_t at = image * N * s->x_row + c;
                gather_planes(dy_planes, dy + image * N * s->y_row + c, s->y_row, channels, s);
                gather_planes(x_planes, x + at, s->x_row, channels, s);
                gather_weights(taps, w, c, channels, true, s);
                convolve_frames(dx + at, add ? add + at : NULL, s->x_row, dy_planes, taps, vec_set(0), channels, s);
                correlate_frames(parts + c, Cp, dy_planes, x_planes, s);
            }
#pragma omp single
        threads = omp_get_num_threads();
    }
    join_parts(dw, db, threads, s);
}
