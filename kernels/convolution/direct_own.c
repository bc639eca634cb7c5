/* Convolution by the definition in plain C: windows are copied to rows, some dozens at a time for each thread, and multiplied
 * by the weights' panels (kernels/linear/panels.h) while they are in the second-level cache.
 *
 * The gradient of the input is a convolution of dy in parts.  With q = row + convolution_before, a row of the image
 * with q = s*j + r, 0 <= r < s = stride, is read only by taps r, r + s, r + 2s ..., of the rows j, j - 1, j - 2 ... of
 * the results.  The pixels with the same r, for rows and for columns, are therefore the results of a convolution of dy
 * with stride 1 and those taps in reversed order. */
#include <string.h>

#include "core/integers.h"
#include "kernels/convolution/direct_cpu.h"
#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"
#include "kernels/linear/panels.h"

/* Taps r, r + s ... of k. */
static int taps_of(int r, const Convolution *c) { return r < c->k ? (c->k - 1 - r) / c->stride + 1 : 0; }

/* == Weights ====================================================================================================== */

/* Panels for forward, then for each part of backward. */
static size_t forward_floats(const Convolution *c) { return panels_floats(c->k * c->k * c->in, c->out); }

static size_t part_floats(const Convolution *c, int ry, int rx) {
    return panels_floats(taps_of(ry, c) * taps_of(rx, c) * c->out, c->in);
}

size_t direct_folded_bytes(const Convolution *c, bool backward) {
    size_t floats = forward_floats(c);
    for (int ry = 0; backward && ry < c->stride; ry++)
        for (int rx = 0; rx < c->stride; rx++) floats += part_floats(c, ry, rx);
    return floats * sizeof(float);
}

/* Row (tap, i) of the panels has scale_o w[o,i,tap] for every o. */
static void fold_forward(float *panels, const float *w, const float *scale, const Convolution *c) {
    int taps = c->k * c->k;
#pragma omp parallel for schedule(static)
    for (int j = 0; j < panels_of(c->out); j++) {
        float *to = panels + (size_t)j * (size_t)(taps * c->in) * PANEL;
        int width = panel_width(j, c->out);
        for (int tap = 0; tap < taps; tap++)
            for (int i = 0; i < c->in; i++, to += PANEL)
                for (int e = 0; e < PANEL; e++) {
                    size_t o = (size_t)(j * PANEL + e);
                    to[e] = e < width ? scale[o] * w[(o * (size_t)c->in + (size_t)i) * (size_t)taps + (size_t)tap] : 0;
                }
    }
}

/* Row (tap of the part, from the last to the first, o) has scale_o w[o,i,tap] for every i. */
static void fold_part(float *panels, const float *w, const float *scale, const Convolution *c, int ry, int rx) {
    int rows = taps_of(ry, c), columns = taps_of(rx, c), taps = c->k * c->k;
#pragma omp parallel for schedule(static)
    for (int j = 0; j < panels_of(c->in); j++) {
        float *to = panels + (size_t)j * (size_t)(rows * columns * c->out) * PANEL;
        int width = panel_width(j, c->in);
        for (int t = rows * columns - 1; t >= 0; t--) {
            int tap = (ry + t / columns * c->stride) * c->k + rx + t % columns * c->stride;
            for (int o = 0; o < c->out; o++, to += PANEL)
                for (int e = 0; e < PANEL; e++) {
                    size_t i = (size_t)(j * PANEL + e);
                    to[e] = e < width ? scale[o] * w[((size_t)o * (size_t)c->in + i) * (size_t)taps + (size_t)tap] : 0;
                }
        }
    }
}

void direct_fold(void *folded, const float *w, const float *scale, const Convolution *c, bool backward) {
    float *panels = folded;
    fold_forward(panels, w, scale, c);
    panels += forward_floats(c);
    for (int ry = 0; backward && ry < c->stride; ry++)
        for (int rx = 0; rx < c->stride; panels += part_floats(c, ry, rx), rx++) fold_part(panels, w, scale, c, ry, rx);
}

/* == Windows times panels ========================================================================================= */

typedef struct {
    int first, step, count, side; /* places first, first + step ... of `side` rows or columns */
} Places;

/* The windows of images x [B,H,W,C]: `rows.count` by `columns.count` of them in each, of kh x kw pixels, the first one
 * at (top, left), `step` apart.  The result of each has n channels and a position in y. */
typedef struct {
    const real *x;
    int B, H, W, C, kh, kw, top, left, step;
    Places rows, columns;
    real *y;
    const real *add, *below; /* laid out like y, or NULL */
    const float *panels, *shift;
    int n;
    bool relu;
} Windows;

static int places_count(int first, int step, int side) { return first < side ? (side - 1 - first) / step + 1 : 0; }

/* to [kh,kw,C] = the window at (top, left), with zeros outside of the image; a vector behind it may be written, too. */
static void window_gather(float *to, const real *image, const Windows *s, int top, int left) {
    int from = clamp(-left, 0, s->kw) * s->C, end = clamp(s->W - left, 0, s->kw) * s->C, line = s->kw * s->C;
    for (int y = top; y < top + s->kh; y++, to += line) {
        int first = y < 0 || y >= s->H || end < from ? line : from;
        const real *pixels = image + ((ptrdiff_t)y * s->W + left) * s->C;
        for (int e = 0; e < first; e += TILE) vec_store(to + e, vec_set(0));
        if (first == line) continue;
        for (int e = from; e < end; e += TILE) vec_store(to + e, real_load_part(pixels + e, (size_t)(end - e)));
        for (int e = end; e < line; e += TILE) vec_store(to + e, vec_set(0));
    }
}

/* y, add and below are at the window's position. */
static void result_put(real *y, const real *add, const real *below, const float *sum, const Windows *s) {
    for (int e = 0; e < s->n; e += TILE) {
        size_t left = (size_t)(s->n - e);
        vec v = vec_load(sum + e);
        if (s->shift) v += vec_load_part(s->shift + e, left);
        if (add) v += real_load_part(add + e, left);
        if (s->relu) v = vec_max(vec_set(0), v);
        if (below) v = vec_select(real_load_part(below + e, left) > vec_set(0), v, vec_set(0));
        real_store_part(y + e, v, left);
    }
}

static size_t window_floats(const Windows *s) { return (size_t)(s->kh * s->kw * s->C); }

/* Windows from `first` on, m of them: rows [m,kh*kw*C] and a vector more, sums [m,panels_of(n)*PANEL] are scratch. */
static void windows_multiply(const Windows *s, size_t first, int m, float *rows, float *sums) {
    size_t window = window_floats(s), across = (size_t)s->columns.count, each = (size_t)s->rows.count * across;
    int k = (int)window, ldc = panels_of(s->n) * PANEL;
    FloatRows a = {rows, window};
    if (s->kh * s->kw == 1 && s->step == 1 && s->columns.step == 1)
        a = reals_as_floats(rows, window, s->x + first * window, window, m, k);
    else
        for (int i = 0; i < m; i++) {
            size_t p = first + (size_t)i;
            int row = (int)(p % each / across), column = (int)(p % across);
            window_gather(rows + (size_t)i * window, s->x + p / each * (size_t)s->H * (size_t)(s->W * s->C), s,
                          s->top + row * s->step, s->left + column * s->step);
        }
    for (int j = 0; j < panels_of(s->n); j++)
        panel_multiply(sums + j * PANEL, (size_t)ldc, a.at, a.row, s->panels + (size_t)j * window * PANEL, m,
                       panel_width(j, s->n), k, false);
    for (int i = 0; i < m; i++) {
        size_t p = first + (size_t)i, row = (size_t)s->rows.first + p % each / across * (size_t)s->rows.step;
        size_t column = (size_t)s->columns.first + p % across * (size_t)s->columns.step;
        size_t at = ((p / each * (size_t)s->rows.side + row) * (size_t)s->columns.side + column) * (size_t)s->n;
        result_put(s->y + at, s->add ? s->add + at : NULL, s->below ? s->below + at : NULL, sums + (size_t)i * (size_t)ldc, s);
    }
}

static void windows_convolve(const Windows *s) {
    size_t count = (size_t)s->B * (size_t)s->rows.count * (size_t)s->columns.count;
    if (!count) return; /* a single row or column has none at odd positions */
    PanelTasks tasks = panel_tasks(count, PANEL, (int)window_floats(s));
    size_t rows = workspace_slice((size_t)tasks.rows * window_floats(s) + TILE);
    size_t sums = workspace_slice((size_t)(tasks.rows * panels_of(s->n) * PANEL));
    float *room = panels_room((rows + sums) * (size_t)omp_get_max_threads());
#pragma omp parallel for schedule(static)
    for (int t = 0; t < tasks.tasks; t++) {
        size_t first = (size_t)t * (size_t)tasks.rows;
        float *own = room + (size_t)omp_get_thread_num() * (rows + sums);
        windows_multiply(s, first, count - first < (size_t)tasks.rows ? (int)(count - first) : tasks.rows, own, own + rows);
    }
}

/* == Forward, and backward to the input =========================================================================== */

void direct_forward(real *y, const real *x, const real *add, const void *folded, const float *shift, const Convolution *c,
                    bool relu, const ImageShape *images) {
    int Ho = convolution_side(images->Hi, c->stride), Wo = convolution_side(images->Wi, c->stride);
    windows_convolve(&(Windows){
        .x = x, .B = images->B, .H = images->Hi, .W = images->Wi, .C = c->in, .kh = c->k, .kw = c->k,
        .top = -convolution_before(c, images->Hi), .left = -convolution_before(c, images->Wi), .step = c->stride,
        .rows = {0, 1, Ho, Ho}, .columns = {0, 1, Wo, Wo}, .y = y, .add = add, .panels = folded, .shift = shift,
        .n = c->out, .relu = relu});
}

/* Those of `side` rows or columns whose taps are r, r + stride ... */
static Places part_places(int r, int before, int side, const Convolution *c) {
    int first = (r - before % c->stride + c->stride) % c->stride;
    return (Places){first, c->stride, places_count(first, c->stride, side), side};
}

void direct_backward_input(real *dx, const real *add, const real *dy, const void *folded, const real *below,
                           const Convolution *c, const ImageShape *images) {
    int Ho = convolution_side(images->Hi, c->stride), Wo = convolution_side(images->Wi, c->stride);
    int top = convolution_before(c, images->Hi), left = convolution_before(c, images->Wi);
    const float *panels = (const float *)folded + forward_floats(c);
    for (int ry = 0; ry < c->stride; ry++)
        for (int rx = 0; rx < c->stride; panels += part_floats(c, ry, rx), rx++) {
            Places rows = part_places(ry, top, images->Hi, c), columns = part_places(rx, left, images->Wi, c);
            int kh = taps_of(ry, c), kw = taps_of(rx, c);
            windows_convolve(&(Windows){
                .x = dy, .B = images->B, .H = Ho, .W = Wo, .C = c->out, .kh = kh, .kw = kw,
                .top = (rows.first + top) / c->stride - kh + 1, .left = (columns.first + left) / c->stride - kw + 1,
                .step = 1, .rows = rows, .columns = columns, .y = dx, .add = add, .below = below, .panels = panels,
                .n = c->in});
        }
}
