/* A learned filter for every channel in the frequency domain, TILE channels at a time; F is the transform over the
 * grid and F' its inverse without the factor 1/N.
 *   forward   y = F' (E F x) / N,  E[f] = w[f], or if -f has an entry too, (w[f] + conj w[-f]) / 2;
 *             E[-f] = conj E[f]
 *   backward  dx = F' (conj(E) F dy) / N,  dE[f] = conj(F x) F dy / N, twice where f and -f differ;
 *             dw[f] = dE[f], or dE[f] / 2 and its conjugate for dw[-f]
 *   Source: Rao et al. 2021, section 3.2.
 *
 * Two images are transformed at once, as real and imaginary part.  E is the same for both, so that only dE needs their
 * spectra separately. */
#include "kernels/lisa/fft.h"

#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"
#include "kernels/lisa/global_filter.h"
#include "kernels/tokens/grid.h"

typedef struct {
    const FftPlan *fft;
    int B, N, M;
} FilterShape;

typedef struct {
    float *x, *dy, *spare;   /* [N,2,TILE] */
    float *filter, *dfilter; /* [pairs,2,TILE] */
} FilterWork;

static FilterShape shape_of(int B, Grid grid, int M) {
    return (FilterShape){fft_plan(grid, true), B, grid_tokens(grid), M};
}

static size_t work_floats(const FilterShape *s) {
    return 2 * (size_t)s->N * COMPLEX + workspace_line_up(fft_spare(s->fft)) + 2 * (size_t)s->fft->pairs * COMPLEX;
}

static FilterWork work_take(const FilterShape *s) {
    float *next = kernels_workspace(work_floats(s));
    FilterWork w;
    w.x = workspace_take(&next, (size_t)s->N * COMPLEX);
    w.dy = workspace_take(&next, (size_t)s->N * COMPLEX);
    w.spare = workspace_take(&next, fft_spare(s->fft));
    w.filter = workspace_take(&next, (size_t)s->fft->pairs * COMPLEX);
    w.dfilter = workspace_take(&next, (size_t)s->fft->pairs * COMPLEX);
    return w;
}

size_t global_filter_workspace(int B, Grid grid, int M) {
    FilterShape s = shape_of(B, grid, M);
    return workspace_bytes(work_floats(&s));
}

/* The indices in w [T,Hg,Wg/2+1,M,2] of frequency p's entry and of its opposite's, which are equal if the opposite has
 * no entry. */
static void entries_of(size_t *own, size_t *partner, const FftPair *p, const FilterShape *s) {
    int Wg = s->fft->tokens.columns, columns = Wg / 2 + 1;
    bool both = p->fx == 0 || 2 * p->fx == Wg;
    *own = ((size_t)p->fy * columns + p->fx) * s->M * 2;
    *partner = both ? ((size_t)fft_opposite_row(s->fft, p->fy) * columns + p->fx) * s->M * 2 : *own;
}

static bool has_partner(const FftPair *p, const FilterShape *s) {
    return p->fx == 0 || 2 * p->fx == s->fft->tokens.columns;
}

/* E of channels c.., divided by N. */
static void load_filter(FilterWork w, const float *weights, int c, const FilterShape *s) {
    float scale = 1.0f / s->N;
    memset(w.filter, 0, (size_t)s->fft->pairs * COMPLEX * sizeof(float));
    for (int p = 0; p < s->fft->pairs; p++) {
        size_t own, partner;
        entries_of(&own, &partner, &s->fft->pair[p], s);
        float *re = w.filter + (size_t)p * COMPLEX, *im = re + TILE;
        for (int l = 0; l < TILE && c + l < s->M; l++) {
            const float *a = weights + own + 2 * (c + l), *b = weights + partner + 2 * (c + l);
            bool mean = has_partner(&s->fft->pair[p], s);
            re[l] = scale * (mean ? 0.5f * (a[0] + b[0]) : a[0]);
            im[l] = scale * (mean ? 0.5f * (a[1] - b[1]) : a[1]);
        }
    }
}

/* z = the spectrum of images b and b+1, channels c... */
static void load_images(float *z, FilterWork w, const real *x, int b, int c, const FilterShape *s) {
    size_t image = (size_t)s->N * s->M;
    for (int i = 0; i < s->N; i++) {
        const real *row = x + b * image + (size_t)i * s->M + c;
        vec_store(z + (size_t)i * COMPLEX, real_load_part(row, s->M - c));
        vec_store(z + (size_t)i * COMPLEX + TILE, b + 1 < s->B ? real_load_part(row + image, s->M - c) : vec_set(0));
    }
    fft_forward(s->fft, z, w.spare);
}

static void store_images(real *y, float *z, FilterWork w, int b, int c, const FilterShape *s) {
    size_t image = (size_t)s->N * s->M;
    fft_backward(s->fft, z, w.spare);
    for (int i = 0; i < s->N; i++) {
        real *row = y + b * image + (size_t)i * s->M + c;
        real_store_part(row, vec_load(z + (size_t)i * COMPLEX), s->M - c);
        if (b + 1 < s->B) real_store_part(row + image, vec_load(z + (size_t)i * COMPLEX + TILE), s->M - c);
    }
}

/* z times re + i im. */
TILE_INLINE void multiply(float *z, vec re, vec im) {
    vec x = vec_load(z), y = vec_load(z + TILE);
    vec_store(z, x * re - y * im);
    vec_store(z + TILE, x * im + y * re);
}

/* z times E, or its conjugate: sign -1. */
static void filter(float *z, FilterWork w, float sign, const FilterShape *s) {
    for (int p = 0; p < s->fft->pairs; p++) {
        const FftPair *at = &s->fft->pair[p];
        vec re = vec_load(w.filter + (size_t)p * COMPLEX), im = sign * vec_load(w.filter + (size_t)p * COMPLEX + TILE);
        multiply(z + (size_t)at->a * COMPLEX, re, im);
        if (at->b != at->a) multiply(z + (size_t)at->b * COMPLEX, re, -im);
    }
}

void global_filter_forward(real *y, const real *x, const float *w, int B, Grid grid, int M) {
    FilterShape s = shape_of(B, grid, M);
#pragma omp parallel for schedule(static)
    for (int c = 0; c < M; c += TILE) {
        FilterWork own = work_take(&s);
        load_filter(own, w, c, &s);
        for (int b = 0; b < B; b += 2) {
            load_images(own.x, own, x, b, c, &s);
            filter(own.x, own, 1, &s);
            store_images(y, own.x, own, b, c, &s);
        }
    }
}

/* dE += conj(F x) F dy of both images. */
static void add_gradient(FilterWork w, const FilterShape *s) {
    for (int p = 0; p < s->fft->pairs; p++) {
        vec x1, y1, x2, y2, a1, b1, a2, b2;
        float *sum = w.dfilter + (size_t)p * COMPLEX;
        fft_part(&x1, &y1, &x2, &y2, w.x, &s->fft->pair[p]);
        fft_part(&a1, &b1, &a2, &b2, w.dy, &s->fft->pair[p]);
        vec_store(sum, vec_load(sum) + x1 * a1 + y1 * b1 + x2 * a2 + y2 * b2);
        vec_store(sum + TILE, vec_load(sum + TILE) + x1 * b1 - y1 * a1 + x2 * b2 - y2 * a2);
    }
}

static void store_gradient(float *dw, FilterWork w, int c, const FilterShape *s) {
    for (int p = 0; p < s->fft->pairs; p++) {
        const FftPair *at = &s->fft->pair[p];
        size_t own, partner;
        entries_of(&own, &partner, at, s);
        const float *re = w.dfilter + (size_t)p * COMPLEX, *im = re + TILE;
        float scale = (at->a == at->b ? 1.0f : 2.0f) / s->N;
        bool mean = has_partner(at, s);
        for (int l = 0; l < TILE && c + l < s->M; l++) {
            float *a = dw + own + 2 * (c + l), *b = dw + partner + 2 * (c + l), share = mean ? 0.5f * scale : scale;
            a[0] += share * re[l], a[1] += share * im[l];
            if (mean) b[0] += share * re[l], b[1] -= share * im[l];
        }
    }
}

void global_filter_backward(real *dx, float *dw, const real *dy, const real *x, const float *w, int B, Grid grid,
                            int M) {
    FilterShape s = shape_of(B, grid, M);
#pragma omp parallel for schedule(static)
    for (int c = 0; c < M; c += TILE) {
        FilterWork own = work_take(&s);
        load_filter(own, w, c, &s);
        memset(own.dfilter, 0, (size_t)s.fft->pairs * COMPLEX * sizeof(float));
        for (int b = 0; b < B; b += 2) {
            load_images(own.x, own, x, b, c, &s);
            load_images(own.dy, own, dy, b, c, &s);
            add_gradient(own, &s);
            filter(own.dy, own, -1, &s);
            store_images(dx, own.dy, own, b, c, &s);
        }
        store_gradient(dw, own, c, &s);
    }
}
