/* The windows of a convolution as rows, and the sum of each input's gradients in all of its windows. A window (i, j)
 * reads row i stride + r - pad and column j stride + c - pad of the input, r and c below k; so the input (y, x) is read
 * by the windows with i stride <= y + pad < i stride + k, and the same for j and for frames. */
#include <stdbool.h>
#include <string.h>

#include "core/integers.h"
#include "kernels/cpu/activations.h"
#include "kernels/tokens/grid.h"
#include "kernels/tokens/images.h"

/* Numbers from one position of the input to the next, and from one channel to the next. */
static size_t position_step(const Unfold *s) { return s->planes ? 1 : (size_t)s->C; }
static size_t channel_step(const Unfold *s) { return s->planes ? (size_t)s->Hi * (size_t)s->Wi : 1; }
static size_t image_size(const Unfold *s) { return (size_t)s->Hi * (size_t)s->Wi * (size_t)s->C; }

enum { CHANNELS = 64 }; /* summed together */

/* Frames, length, distance and padding of windows in time. */
typedef struct {
    int n, k, stride, pad;
} UnfoldAxis;
static UnfoldAxis time_axis(const Unfold *s) {
    return s->frames ? (UnfoldAxis){s->frames, s->kt, s->stride_t, s->kt / 2} : (UnfoldAxis){1, 1, 1, 0};
}

/* The k columns of one line of a window, from column xi on: out [C] of k, `taps` apart.  line: NULL above and below. */
static void window_line(real *out, const real *line, int xi, const Unfold *s) {
    int taps = unfold_taps(s), begin = xi < 0 ? -xi : 0, end = line ? s->Wi - xi : 0;
    bool whole = begin == 0 && end >= s->k;
    if (s->planes && whole && s->k <= TILE) {
        for (int m = 0; m < s->C; m++, out += taps)
            real_store_part(out, real_load_part(line + (size_t)m * channel_step(s) + xi, s->k), s->k);
        return;
    }
    if (s->planes) {
        for (int m = 0; m < s->C; m++, out += taps)
            for (int c = 0; c < s->k; c++)
                out[c] = c >= begin && c < end ? line[(size_t)m * channel_step(s) + (size_t)(xi + c)] : real_of(0);
        return;
    }
    for (int c = 0; c < s->k; c++) {
        const real *from = c >= begin && c < end ? line + (size_t)(xi + c) * (size_t)s->C : NULL;
        for (int m = 0; m < s->C; m++) out[m * taps + c] = from ? from[m] : real_of(0);
    }
}

/* The distance in numbers from the first to the tap-th token of a window. */
static size_t tap_offset(const Unfold *s, int tap) {
    return ((size_t)(tap / s->k) * (size_t)s->Wi + (size_t)(tap % s->k)) * (size_t)s->C;
}

/* A window whose tokens all exist, transposed a tile at a time: row [C,k*k] = tokens [k*k,C] from the first one on. */
static void window_to_row(real *row, const real *first, const Unfold *s) {
    int taps = s->k * s->k, C = s->C;
    float from[TILE * TILE] = {0}, to[TILE * TILE];
    for (int tap = 0; tap < taps; tap += TILE) {
        int count = smaller(taps - tap, TILE);
        const real *token[TILE];
        for (int t = 0; t < count; t++) token[t] = first + tap_offset(s, tap + t);
        for (int c = 0; c < C; c += TILE) {
            int channels = smaller(C - c, TILE);
            real *out = row + (size_t)c * (size_t)taps + tap;
            for (int t = 0; t < count; t++) vec_store(from + t * TILE, real_load_part(token[t] + c, channels));
            tile_transpose(to, TILE, from, TILE);
            for (int l = 0; l < channels; l++) real_store_part(out + l * taps, vec_load(to + l * TILE), count);
        }
    }
}

/* The reverse: tokens [k*k,C] from the first one on = row [C,k*k]. */
static void row_to_window(real *first, const real *row, const Unfold *s) {
    int taps = s->k * s->k, C = s->C;
    float from[TILE * TILE] = {0}, to[TILE * TILE];
    for (int tap = 0; tap < taps; tap += TILE) {
        int count = smaller(taps - tap, TILE);
        real *token[TILE];
        for (int t = 0; t < count; t++) token[t] = first + tap_offset(s, tap + t);
        for (int c = 0; c < C; c += TILE) {
            int channels = smaller(C - c, TILE);
            const real *in = row + (size_t)c * (size_t)taps + tap;
            for (int l = 0; l < channels; l++) vec_store(from + l * TILE, real_load_part(in + l * taps, count));
            tile_transpose(to, TILE, from, TILE);
            for (int t = 0; t < count; t++) real_store_part(token[t] + c, vec_load(to + t * TILE), channels);
        }
    }
}

/* Is the window at row yi, column xi inside, and of tokens of an image? */
static bool is_whole(const Unfold *s, int yi, int xi) {
    return !s->planes && !s->frames && yi >= 0 && xi >= 0 && yi + s->k <= s->Hi && xi + s->k <= s->Wi;
}

/* Windows of one pixel: the planes of an image become its channels. */
static void interleave(real *to, const real *x, const Unfold *s, int B) {
    size_t plane = channel_step(s), width = (size_t)s->Wi, C = (size_t)s->C;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int y = 0; y < s->Hi; y++) {
            const real *line = x + (size_t)b * C * plane + (size_t)y * width;
            real *out = to + ((size_t)b * (size_t)s->Hi + (size_t)y) * width * C;
            for (size_t c = 0; c < C; c++)
                for (size_t j = 0; j < width; j++) out[j * C + c] = line[c * plane + j];
        }
}

void unfold_forward(real *cols, const real *x, const Unfold *s, int B) {
    if (s->planes && s->k == 1 && s->stride == 1 && !s->pad && !s->frames) {
        interleave(cols, x, s, B);
        return;
    }
    Grid windows = unfold_grid(s);
    UnfoldAxis time = time_axis(s);
    int down = windows.rows, across = windows.columns, k = s->k;
    size_t row = (size_t)s->C * (size_t)unfold_taps(s);
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B * windows.frames; b++)
        for (int i = 0; i < down; i++)
            for (int j = 0; j < across; j++) {
                int clip = b / windows.frames, f0 = b % windows.frames * time.stride - time.pad;
                real *out = cols + (((size_t)b * (size_t)down + (size_t)i) * (size_t)across + (size_t)j) * row;
                int y0 = i * s->stride - s->pad, x0 = j * s->stride - s->pad;
                if (is_whole(s, y0, x0)) {
                    const real *first = x + ((size_t)b * (size_t)s->Hi + (size_t)y0) * (size_t)s->Wi * (size_t)s->C;
                    window_to_row(out, first + (size_t)x0 * (size_t)s->C, s);
                    continue;
                }
                for (int f = f0; f < f0 + time.k; f++)
                    for (int r = 0; r < k; r++, out += k) {
                        int yi = y0 + r;
                        bool there = f >= 0 && f < time.n && yi >= 0 && yi < s->Hi;
                        const real *line = there ? x + ((size_t)clip * (size_t)time.n + (size_t)f) * image_size(s) +
                                                       (size_t)yi * (size_t)s->Wi * position_step(s)
                                                 : NULL;
                        window_line(out, line, x0, s);
                    }
            }
}

/* The first window that reads position y of an axis, and the end of those that do. */
static int window_first(const UnfoldAxis *a, int y) {
    int behind = y + a->pad - a->k + 1;
    return behind <= 0 ? 0 : (behind + a->stride - 1) / a->stride;
}
static int window_end(const UnfoldAxis *a, int y, int windows) {
    int end = (y + a->pad) / a->stride + 1;
    return end < windows ? end : windows;
}

/* sum [count] = channels first .. of dcols in all windows of clip b that read (f, y, x). */
static void sum_windows(float *sum, const real *dcols, const Unfold *s, int b, int f, int y, int x, int first,
                        int count) {
    Grid windows = unfold_grid(s);
    UnfoldAxis time = time_axis(s), side = {0, s->k, s->stride, s->pad};
    int taps = unfold_taps(s);
    memset(sum, 0, (size_t)count * sizeof *sum);
    for (int h = window_first(&time, f); h < window_end(&time, f, windows.frames); h++)
        for (int i = window_first(&side, y); i < window_end(&side, y, windows.rows); i++)
            for (int j = window_first(&side, x); j < window_end(&side, x, windows.columns); j++) {
                size_t line = ((size_t)b * (size_t)windows.frames + (size_t)h) * (size_t)windows.rows + (size_t)i;
                size_t window = line * (size_t)windows.columns + (size_t)j;
                int frame = f + time.pad - h * time.stride, row = y + s->pad - i * s->stride;
                int tap = (frame * s->k + row) * s->k + x + s->pad - j * s->stride;
                const real *from = dcols + (window * (size_t)s->C + (size_t)first) * (size_t)taps + tap;
                for (int m = 0; m < count; m++) sum[m] += real_get(from[m * taps]);
            }
}

/* Windows that tile the image: each token is read by one of them, or by none. */
static void unfold_backward_tiles(real *dx, const real *dcols, const Unfold *s, int B) {
    Grid windows = unfold_grid(s);
    size_t line = (size_t)s->Wi * (size_t)s->C, row = (size_t)s->C * (size_t)unfold_taps(s);
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int i = 0; i < (s->Hi + s->k - 1) / s->k; i++) {
            real *to = dx + (size_t)b * image_size(s) + (size_t)i * (size_t)s->k * line;
            int lines = s->Hi - i * s->k < s->k ? s->Hi - i * s->k : s->k;
            if (lines < s->k || s->Wi % s->k) memset(to, 0, (size_t)lines * line * sizeof *to);
            for (int j = 0; j < windows.columns && lines == s->k; j++) {
                size_t window = ((size_t)b * (size_t)windows.rows + (size_t)i) * (size_t)windows.columns + (size_t)j;
                row_to_window(to + (size_t)j * (size_t)s->k * (size_t)s->C, dcols + window * row, s);
            }
        }
}

void unfold_backward(real *dx, const real *dcols, const Unfold *s, int B) {
    if (s->stride == s->k && s->pad == 0 && !s->planes && !s->frames) {
        unfold_backward_tiles(dx, dcols, s, B);
        return;
    }
    int frames = time_axis(s).n;
    size_t step = position_step(s), channel = channel_step(s);
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B * frames; b++)
        for (int y = 0; y < s->Hi; y++)
            for (int x = 0; x < s->Wi; x++) {
                real *to = dx + (size_t)b * image_size(s) + ((size_t)y * (size_t)s->Wi + (size_t)x) * step;
                for (int first = 0; first < s->C; first += CHANNELS) {
                    float sum[CHANNELS];
                    int count = s->C - first < CHANNELS ? s->C - first : CHANNELS;
                    sum_windows(sum, dcols, s, b / frames, b % frames, y, x, first, count);
                    for (int m = 0; m < count; m++) to[(size_t)(first + m) * channel] = real_of(sum[m]);
                }
            }
}
