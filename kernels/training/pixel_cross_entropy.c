/* Cross entropy of pixels whose logits are bilinear in those of a coarse grid, and its gradient by these.
 *   forward   l = sum_corner a_corner z_corner,  loss = 1/(H W) sum_pixel (log sum_k exp(l_k - max) - (l_label - max))
 *   backward  dz_corner = scale / (H W) sum_pixel a_corner (softmax(l) - onehot(label))
 * A task computes BAND rows of an image's dz.  It goes down the picture's rows, and has the gradients of the two rows
 * of the grid between which they are.  The rows above its band, which also contribute to its first row, are processed
 * by two tasks.  Every element of dz therefore adds its terms in the order of the picture, whichever task computes
 * it. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"
#include "kernels/training/pixel_cross_entropy.h"

enum { BAND = 16 };

static const float NEVER = -1e30f; /* the logit of classes that pad a vector */

static size_t padded(const PixelShape *s) { return workspace_line_up((size_t)s->K); }

/* The memory of a thread: a row of the picture's logits before they are resized across, its gradients, those of two
 * rows of the grid, and one pixel. */
typedef struct {
    float *line, *slopes, *above, *below; /* [w,Kp] */
    float *pixel;                         /* [Kp] */
} Rows;

static size_t rows_floats(const PixelShape *s) { return (4 * (size_t)s->w + 1) * padded(s); }
/* The losses of rows [B,H], and the threads' slices. */
static size_t losses(const PixelShape *s) { return (size_t)s->B * (size_t)s->H; }
size_t pixel_cross_entropy_workspace(const PixelShape *s) { return workspace_bytes_behind(losses(s), rows_floats(s)); }

static Rows rows_take(const PixelShape *s) {
    float *next = workspace_behind(losses(s), omp_get_thread_num(), rows_floats(s));
    size_t row = (size_t)s->w * padded(s);
    Rows r;
    r.line = workspace_take(&next, row);
    r.slopes = workspace_take(&next, row);
    r.above = workspace_take(&next, row);
    r.below = workspace_take(&next, row);
    r.pixel = workspace_take(&next, padded(s));
    return r;
}

/* line = (1 - part) z[low] + part z[high]. */
static void line_between(float *line, const real *z, Between y, const PixelShape *s) {
    size_t K = (size_t)s->K, Kp = padded(s), row = (size_t)s->w * K;
    for (size_t x = 0; x < (size_t)s->w; x++)
        for (size_t k = 0; k < Kp; k += TILE) {
            const real *low = z + (size_t)y.low * row + x * K + k, *high = z + (size_t)y.high * row + x * K + k;
            vec v = (1 - y.fraction) * real_load_part(low, K - k) + y.fraction * real_load_part(high, K - k);
            if (K - k < TILE) v = vec_select(vec_lanes() < (int)(K - k), v, vec_set(NEVER));
            vec_store(line + x * Kp + k, v);
        }
}

/* The loss of one pixel; its gradients are added to the row's. */
static double pixel_loss(const Rows *r, Between x, int label, bool slopes, size_t Kp) {
    const float *low = r->line + (size_t)x.low * Kp, *high = r->line + (size_t)x.high * Kp;
    float *dlow = r->slopes + (size_t)x.low * Kp, *dhigh = r->slopes + (size_t)x.high * Kp;
    vec top = vec_set(NEVER), sums = {0};
    for (size_t k = 0; k < Kp; k += TILE) {
        vec l = (1 - x.fraction) * vec_load(low + k) + x.fraction * vec_load(high + k);
        vec_store(r->pixel + k, l);
        top = vec_max(l, top);
    }
    float max = vec_largest(top), at_label = r->pixel[label];
    for (size_t k = 0; k < Kp; k += TILE) {
        vec e = vec_exp_floored(vec_load(r->pixel + k) - max);
        vec_store(r->pixel + k, e);
        sums += e;
    }
    float sum = vec_sum(sums);
    if (slopes) {
        vec share = vec_set(1 / sum);
        for (size_t k = 0; k < Kp; k += TILE) {
            vec p = vec_load(r->pixel + k) * share;
            vec_store(dlow + k, vec_load(dlow + k) + (1 - x.fraction) * p);
            vec_store(dhigh + k, vec_load(dhigh + k) + x.fraction * p);
        }
        dlow[label] -= 1 - x.fraction;
        dhigh[label] -= x.fraction;
    }
    return log((double)sum) - (double)(at_label - max);
}

static double row_loss(const Rows *r, const real *z, const uint8_t *labels, Between y, bool slopes,
                       const PixelShape *s) {
    size_t Kp = padded(s);
    double loss = 0;
    line_between(r->line, z, y, s);
    if (slopes) memset(r->slopes, 0, (size_t)s->w * Kp * sizeof *r->slopes);
    for (int x = 0; x < s->W; x++)
        if (labels[x] != LABEL_IGNORED) loss += pixel_loss(r, bilinear_source(x, s->w, s->W), labels[x], slopes, Kp);
    return loss;
}

static void add_row(float *to, const float *slopes, float weight, size_t n) {
    for (size_t i = 0; i < n; i += TILE) vec_store(to + i, vec_load(to + i) + weight * vec_load(slopes + i));
}

/* The upper of the two rows is complete: it is written to dz, unless dz is NULL, and the lower one replaces it. */
static void row_done(Rows *r, real *dz, float scale, const PixelShape *s) {
    size_t Kp = padded(s), n = (size_t)s->w * Kp;
    float *above = r->above;
    if (dz) rows_scatter(dz, (size_t)s->K, above, (int)Kp, scale, s->w, s->K);
    memset(above, 0, n * sizeof *above);
    r->above = r->below;
    r->below = above;
}

/* Rows first .. end - 1 of the grid: computes their dz, unless dz is NULL, and the losses of the picture's rows between
 * each of them and the next. */
static void band(float *loss, real *dz, const real *z, const uint8_t *labels, float scale, int first, int end,
                 const PixelShape *s) {
    Rows r = rows_take(s);
    size_t row = (size_t)s->w * (size_t)s->K, n = (size_t)s->w * padded(s);
    int at = dz && first ? first - 1 : first, y = 0;
    while (y < s->H && bilinear_source(y, s->h, s->H).low < at) y++;
    memset(r.above, 0, n * sizeof *r.above);
    memset(r.below, 0, n * sizeof *r.below);
    for (Between place; y < s->H && (place = bilinear_source(y, s->h, s->H)).low < end; y++) {
        for (; dz && at < place.low; at++) row_done(&r, at < first ? NULL : dz + (size_t)at * row, scale, s);
        double sum = row_loss(&r, z, labels + (size_t)y * (size_t)s->W, place, dz, s);
        if (place.low >= first) loss[y] = (float)sum;
        if (!dz) continue;
        add_row(r.above, r.slopes, 1 - place.fraction, n);
        add_row(r.below, r.slopes, place.fraction, n); /* 0 at the last row, below which there is none */
    }
    for (; dz && at < end; at++) row_done(&r, at < first ? NULL : dz + (size_t)at * row, scale, s);
}

void pixel_cross_entropy(float *loss, real *dlogits, const real *logits, const uint8_t *labels, float scale,
                         const PixelShape *shape) {
    const PixelShape s = *shape;
    size_t pixels = (size_t)s.H * (size_t)s.W, cells = (size_t)s.h * (size_t)s.w * (size_t)s.K;
    float *rows = workspace_shared();
    scale /= (float)pixels;
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int b = 0; b < s.B; b++)
        for (int first = 0; first < s.h; first += BAND)
            band(rows + (size_t)b * (size_t)s.H, dlogits ? dlogits + b * cells : NULL, logits + b * cells,
                 labels + b * pixels, scale, first, first + BAND < s.h ? first + BAND : s.h, &s);
    for (int b = 0; b < s.B; b++) {
        double sum = 0;
        for (int y = 0; y < s.H; y++) sum += (double)rows[(size_t)b * (size_t)s.H + (size_t)y];
        loss[b] = (float)(sum / (double)pixels);
    }
}
