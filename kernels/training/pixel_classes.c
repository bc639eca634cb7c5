/* The classes of a picture's pixels: argmax of logits that are resized twice, for each pixel by itself. */
#include "kernels/cpu/activations.h"
#include "kernels/training/pixel_cross_entropy.h"

/* Sixteen of a window's logits for one pixel of the network's picture. */
static vec window_logits(const real *z, int y, int x, size_t k, const LogitWindows *s) {
    Between v = bilinear_source(y, s->h, s->height), u = bilinear_source(x, s->w, s->width);
    size_t K = (size_t)s->K, left = K - k;
    const real *low = z + (size_t)v.low * (size_t)s->w * K + k, *high = z + (size_t)v.high * (size_t)s->w * K + k;
    size_t a = (size_t)u.low * K, b = (size_t)u.high * K;
    vec above = (1 - u.fraction) * real_load_part(low + a, left) + u.fraction * real_load_part(low + b, left);
    vec below = (1 - u.fraction) * real_load_part(high + a, left) + u.fraction * real_load_part(high + b, left);
    return (1 - v.fraction) * above + v.fraction * below;
}

/* The mean over the windows that contain the pixel. */
static vec network_logits(const real *z, int y, int x, size_t k, const LogitWindows *s) {
    size_t window = (size_t)s->h * (size_t)s->w * (size_t)s->K;
    vec sum = {0};
    int count = 0;
    for (int i = 0; i < s->down; i++) {
        if (!window_holds(i, y, s->height, s->stride_y, s->H)) continue;
        for (int j = 0; j < s->across; j++) {
            if (!window_holds(j, x, s->width, s->stride_x, s->W)) continue;
            sum += window_logits(z + (size_t)(i * s->across + j) * window,
                                 y - window_begin(i, s->height, s->stride_y, s->H),
                                 x - window_begin(j, s->width, s->stride_x, s->W), k, s);
            count++;
        }
    }
    return sum * (1 / (float)count);
}

static vec picture_logits(const real *z, Between v, Between u, size_t k, const LogitWindows *s) {
    vec above = network_logits(z, v.low, u.low, k, s), below = above;
    if (u.fraction > 0) above = (1 - u.fraction) * above + u.fraction * network_logits(z, v.low, u.high, k, s);
    if (!(v.fraction > 0)) return above;
    below = network_logits(z, v.high, u.low, k, s);
    if (u.fraction > 0) below = (1 - u.fraction) * below + u.fraction * network_logits(z, v.high, u.high, k, s);
    return (1 - v.fraction) * above + v.fraction * below;
}

void pixel_classes(uint8_t *classes, const real *logits, const LogitWindows *windows) {
    const LogitWindows s = *windows;
#pragma omp parallel for schedule(dynamic)
    for (int y = 0; y < s.out_H; y++) {
        Between v = bilinear_source(y, s.H, s.out_H);
        for (int x = 0; x < s.out_W; x++) {
            Between u = bilinear_source(x, s.W, s.out_W);
            float best = 0;
            int found = -1;
            for (int k = 0; k < s.K; k += TILE) {
                vec l = picture_logits(logits, v, u, (size_t)k, &s);
                for (int i = 0; i < TILE && k + i < s.K; i++)
                    if (found < 0 || l[i] > best) {
                        best = l[i];
                        found = k + i;
                    }
            }
            classes[(size_t)y * (size_t)s.out_W + (size_t)x] = (uint8_t)found;
        }
    }
}
