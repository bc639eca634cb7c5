/* Depthwise convolution over the token grid, channels last.
 *   forward   y_t = add_t + b + sum_o w_o x_t+o
 *   backward  dx_t = add_t + sum_o w_o dy_t-o,  dw_o += sum_t dy_t x_t+o,  db += sum_t dy_t
 *
 * TILE channels of one image are copied into a plane with a border of zeros, so that the loops need no special case
 * at the edge.  Four neighbouring tokens are computed together and share their loads. */
#include "kernels/cpu/activations.h"
#include "kernels/cpu/workspace.h"
#include "kernels/kernels.h"

enum { PIXELS = 4, LARGEST = 7 };

/* A plane is [lines,line] tokens of TILE channels; the tokens begin at (k/2, k/2). */
static int plane_line(const Depthwise *s) { return (s->grid.columns + PIXELS - 1) / PIXELS * PIXELS + s->k - 1; }
static size_t plane_floats(const Depthwise *s) { return (size_t)(s->grid.rows + s->k - 1) * plane_line(s) * TILE; }

/* Weight gradients of a thread: [k*k + 1,Cp], the last row the bias's. */
static size_t part_floats(const Depthwise *s) { return (size_t)(s->k * s->k + 1) * tile_round_up(s->C); }

static size_t work_floats(const Depthwise *s) {
    return workspace_line_up(part_floats(s)) + 2 * workspace_line_up(plane_floats(s)) + LARGEST * LARGEST * TILE;
}

size_t depthwise_workspace(const Depthwise *shape) { return workspace_bytes(work_floats(shape)); }

/* plane = channels of x, rows `row` apart, in a frame of zeros. */
static void gather_plane(float *plane, const real *x, size_t row, int channels, const Depthwise *s) {
    int line = plane_line(s), border = s->k / 2;
    memset(plane, 0, plane_floats(s) * sizeof *plane);
    for (int i = 0; i < s->grid.rows; i++)
        for (int j = 0; j < s->grid.columns; j++)
            vec_store(plane + ((size_t)(i + border) * line + j + border) * TILE,
                      real_load_part(x + ((size_t)i * s->grid.columns + j) * row, channels));
}

/* to [k*k,TILE]: the weights of channels c.., in reverse for the backward pass. */
static void gather_weights(float *to, const float *w, int c, int channels, bool reverse, const Depthwise *s) {
    int taps = s->k * s->k;
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

TILE_INLINE void convolve(int K, real *y, const real *add, size_t row, const float *plane, const float *w, vec bias,
                          int channels, const Depthwise *s) {
    int line = plane_line(s);
    for (int i = 0; i < s->grid.rows; i++)
        for (int j = 0; j < s->grid.columns; j += PIXELS) {
            vec sum[PIXELS] = {bias, bias, bias, bias};
            size_t at = ((size_t)i * s->grid.columns + j) * row;
            window(K, sum, plane + ((size_t)i * line + j) * TILE, line, w);
            for (int p = 0; p < PIXELS && j + p < s->grid.columns; p++) {
                if (add) sum[p] += real_load_part(add + at + p * row, channels);
                real_store_part(y + at + p * row, sum[p], channels);
            }
        }
}

/* part [k*k + 1] rows of Cp: adds the weight gradients of TILE channels, each first summed over a line of tokens. */
TILE_INLINE void correlate(int K, float *part, size_t Cp, const float *dy, const float *x, const Depthwise *s) {
    int line = plane_line(s), border = K / 2;
    for (int i = 0; i < s->grid.rows; i++) {
        const float *dyi = dy + ((size_t)(i + border) * line + border) * TILE;
        vec bias = {0};
        for (int j = 0; j < s->grid.columns; j++) bias += vec_load(dyi + j * TILE);
        vec_store(part + K * K * Cp, vec_load(part + K * K * Cp) + bias);
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

void depthwise_forward(real *y, const real *add, const real *x, const float *w, const float *b, const Depthwise *s,
                       int B) {
    size_t N = grid_tokens(s->grid);
#pragma omp parallel for collapse(2) schedule(static)
    for (int image = 0; image < B; image++)
        for (int c = 0; c < s->C; c += TILE) {
            float *next = kernels_workspace(work_floats(s)), *plane = workspace_take(&next, plane_floats(s)),
                  *taps = next;
            int channels = s->C - c < TILE ? s->C - c : TILE;
            size_t at = image * N * s->y_row + c;
            vec bias = {0};
            for (int l = 0; b && l < channels; l++) bias[l] = b[(c + l) % s->period];
            gather_plane(plane, x + image * N * s->x_row + c, s->x_row, channels, s);
            gather_weights(taps, w, c, channels, false, s);
#define FORWARD(K) convolve(K, y + at, add ? add + at : NULL, s->y_row, plane, taps, bias, channels, s)
            WITH_K(FORWARD)
        }
}

/* dw and db += the threads' parts, in the order of the threads and of the channels that share a weight. */
static void join_parts(float *dw, float *db, int threads, const Depthwise *s) {
    int taps = s->k * s->k, Cp = tile_round_up(s->C);
    for (int c = 0; c < s->C; c++)
        for (int tap = 0; tap <= taps; tap++) {
            float sum = 0;
            for (int t = 0; t < threads; t++) sum += workspace_of(t, work_floats(s))[(size_t)tap * Cp + c];
            if (tap < taps) dw[(size_t)(c % s->period) * taps + tap] += sum;
            else if (db) db[c % s->period] += sum;
        }
}

void depthwise_backward(real *dx, const real *add, float *dw, float *db, const real *dy, const real *x, const float *w,
                        const Depthwise *s, int B) {
    size_t N = grid_tokens(s->grid), Cp = tile_round_up(s->C);
    int threads = 1;
#pragma omp parallel
    {
        float *next = kernels_workspace(work_floats(s)), *parts = workspace_take(&next, part_floats(s));
        float *dy_plane = workspace_take(&next, plane_floats(s)), *x_plane = workspace_take(&next, plane_floats(s));
        float *taps = next;
        memset(parts, 0, part_floats(s) * sizeof *parts);
#pragma omp for collapse(2) schedule(static)
        for (int image = 0; image < B; image++)
            for (int c = 0; c < s->C; c += TILE) {
                int channels = s->C - c < TILE ? s->C - c : TILE;
                size_t at = image * N * s->x_row + c;
                gather_plane(dy_plane, dy + image * N * s->y_row + c, s->y_row, channels, s);
                gather_plane(x_plane, x + at, s->x_row, channels, s);
                gather_weights(taps, w, c, channels, true, s);
#define BACKWARD(K)                                                                                               \
    do {                                                                                                          \
        convolve(K, dx + at, add ? add + at : NULL, s->x_row, dy_plane, taps, vec_set(0), channels, s);           \
        correlate(K, parts + c, Cp, dy_plane, x_plane, s);                                                        \
    } while (0)
                WITH_K(BACKWARD)
            }
#pragma omp single
        threads = omp_get_num_threads();
    }
    join_parts(dw, db, threads, s);
}
