/* Layer norm and GELU without a rounding between them.
 *   forward   mu = mean_m x,  r = 1/sqrt(var_m x + eps),  h = w (x - mu) r + b,  y = h Phi(h)
 *   backward  dh = dy (Phi(h) + h phi(h)), h computed again
 *   saves     mu, r.   Rows are short: they are those of a head. */
#include <math.h>

#include "kernels/cpu/activations.h"
#include "kernels/norm/norm_gelu.h"
#include "kernels/norm/norms.h"

static void moments(float *mean, float *rstd, const real *x, int M, float eps) {
    double sum = 0, squares = 0;
    for (int j = 0; j < M; j++) sum += real_get(x[j]);
    float mu = (float)(sum / M);
    for (int j = 0; j < M; j++) squares += (double)(real_get(x[j]) - mu) * (real_get(x[j]) - mu);
    *mean = mu;
    *rstd = (float)(1 / sqrt(squares / M + eps));
}

/* Columns j .. of h in row i. */
TILE_INLINE vec normed(const real *x, size_t i, int j, const LayerNorm *l) {
    vec xh = (real_load_part(x + i * l->M + j, l->M - j) - l->mean[i]) * l->rstd[i];
    return vec_load_part(l->w + j, l->M - j) * xh + vec_load_part(l->b + j, l->M - j);
}

void layernorm_gelu_forward(real *y, const real *x, const LayerNorm *norm) {
    const LayerNorm l = *norm;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < l.n; i++) {
        moments(l.mean + i, l.rstd + i, x + i * l.M, l.M, l.eps);
        for (int j = 0; j < l.M; j += TILE) {
            vec h = normed(x, i, j, &l), density;
            real_store_part(y + i * l.M + j, h * vec_normal(h, &density), l.M - j);
        }
    }
}

void layernorm_gelu_backward(real *dh, const real *dy, const real *x, const LayerNorm *norm) {
    const LayerNorm l = *norm;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < l.n; i++)
        for (int j = 0; j < l.M; j += TILE) {
            size_t at = i * l.M + j;
            vec h = normed(x, i, j, &l), density, phi = vec_normal(h, &density);
            real_store_part(dh + at, real_load_part(dy + at, l.M - j) * (phi + h * density), l.M - j);
        }
}
