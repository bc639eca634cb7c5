/* Random erasing, mixup and cutmix of normalised images, a part of a row at a time.  Every multiply-add is an explicit
 * fmaf, so that all devices round in the same way. */
#include <stdbool.h>

#include "core/rng.h"
#include "kernels/cpu/activations.h"
#include "kernels/tokens/images.h"

enum { STRETCH = 128 };

typedef struct {
    const uint8_t *x;
    const int *boxes;
    const uint32_t *draws;
    float scale[3], shift[3];
    const ImageMix *mix;
    int Hi, Wi;
} Source;

/* True if row y crosses the box; then also which of the columns left .. left+n-1 are inside, counted from left. */
static bool cross(const int *box, int y, int left, int n, int *first, int *last) {
    *first = box[1] > left ? box[1] - left : 0;
    *last = box[3] < left + n ? box[3] - left : n;
    return y >= box[0] && y < box[2] && *first < *last;
}

/* out [n]: channel c of row y, columns left .. left+n-1, of image `row`, normalised and erased. */
static void stretch(float *out, const Source *s, int row, int c, int y, int left, int n) {
    size_t pixels = (size_t)s->Hi * s->Wi, at = (size_t)y * s->Wi + left;
    const uint8_t *in = s->x + ((size_t)row * pixels + at) * 3 + c;
    const ImageMix *mix = s->mix;
    int first, last;
    for (int i = 0; i < n; i++) out[i] = fmaf(in[3 * i], s->scale[c], s->shift[c]);
    if (!s->boxes || !cross(s->boxes + 4 * row, y, left, n, &first, &last)) return;
    for (int i = first; i < last; i++) {
        size_t number = mix->noise == NOISE_PIXEL ? c * pixels + at + i : (size_t)c;
        out[i] = mix->noise == NOISE_CONST
                     ? 0
                     : rng_normal_exact(mix->seed, RNG_ERASING_NOISE, mix->epoch, s->draws[row], number);
    }
}

static void mix_stretch(real *y, const Source *s, const int pair[2], int c, int row, int left, int n) {
    const int *box = s->mix->box;
    bool cut = box[0] < box[2] && box[1] < box[3];
    float own[STRETCH], other[STRETCH], lam = s->mix->lam, rest = 1 - lam;
    int first, last;
    stretch(own, s, pair[0], c, row, left, n);
    if (cut && cross(box, row, left, n, &first, &last)) {
        stretch(own + first, s, pair[1], c, row, left + first, last - first);
    } else if (!cut && lam < 1) {
        stretch(other, s, pair[1], c, row, left, n);
        for (int i = 0; i < n; i++) own[i] = fmaf(lam, own[i], rest * other[i]);
    }
    reals_round(y, own, (size_t)n);
}

void images_mix(real *y, const uint8_t *x, const int *pairs, const int *boxes, const uint32_t *draws, const float *mean,
                const float *std, const ImageMix *mix, const ImageShape *shape) {
    int B = shape->B, Hi = shape->Hi, Wi = shape->Wi;
    Source s = {.x = x, .boxes = boxes, .draws = draws, .mix = mix, .Hi = Hi, .Wi = Wi};
    for (int c = 0; c < 3; c++) {
        s.scale[c] = 1 / (255 * std[c]);
        s.shift[c] = -mean[c] / std[c];
    }
#pragma omp parallel for collapse(3) schedule(static)
    for (int b = 0; b < B; b++)
        for (int c = 0; c < 3; c++)
            for (int row = 0; row < Hi; row++)
                for (int left = 0; left < Wi; left += STRETCH) {
                    int n = Wi - left < STRETCH ? Wi - left : STRETCH;
                    real *out = y + (((size_t)b * 3 + c) * Hi + row) * Wi + left;
                    mix_stretch(out, &s, pairs + 2 * b, c, row, left, n);
                }
}
