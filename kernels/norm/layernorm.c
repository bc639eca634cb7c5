/* Layer norm over the last dimension, alone or fused with the residual sum before it.
 *   forward   y = x + s f,  mu = mean_m y,  r = 1/sqrt(var_m y + eps),  h = w (y - mu) r + b
 *   backward  xh = (y - mu) r,  g = w dh,  dy = dres + r (g - mean_m g - xh mean_m(g xh)),  df = s dy,
 *             dw += sum_n dh xh,  db += sum_n dh,  sums += sum_n df
 *   saves     mu, r.   Source: Ba et al. 2016, section 3.
 *
 * A row stays in the first-level cache between its passes, so each array is read or written in memory once.  Sums run
 * in TILE lanes and the variance is taken around the mean, so neither a long row nor a large mean loses digits.  mu and
 * r are computed in double, because an error in them shifts the whole row and with it every earlier gradient. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"
#include "kernels/norm/norms.h"

/* dw and db are summed over CHUNK rows before they are added to the thread's total: the rounding error then grows with
 * the square root of the chunks instead of the rows. */
enum { CHUNK = 128 };

/* h, mean and rstd of one row y. */
TILE_INLINE void normalize_row(real *h, float *mean, float *rstd, const real *y, const float *w, const float *b, int M,
                               float eps) {
    vec sum = {0}, squares = {0};
    for (int j = 0; j < M; j += TILE) sum += real_load_part(y + j, M - j);
    float mu = (float)((double)vec_sum(sum) / M);
    int whole = M / TILE * TILE;
    for (int j = 0; j < whole; j += TILE) {
        vec d = real_load(y + j) - mu;
        squares += d * d;
    }
    float rest = 0;
    for (int j = whole; j < M; j++) rest += (real_get(y[j]) - mu) * (real_get(y[j]) - mu);
    float r = (float)(1 / sqrt((double)(vec_sum(squares) + rest) / M + eps));
    for (int j = 0; j < M; j += TILE) {
        vec xh = (real_load_part(y + j, M - j) - mu) * r;
        real_store_part(h + j, vec_load_part(w + j, M - j) * xh + vec_load_part(b + j, M - j), M - j);
    }
    *mean = mu;
    *rstd = r;
}

void layernorm_forward(real *h, const real *x, const LayerNorm *norm) {
    const LayerNorm l = *norm;
    int M = l.M;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < l.n; i++) normalize_row(h + i * M, l.mean + i, l.rstd + i, x + i * M, l.w, l.b, M, l.eps);
}

void add_layernorm_forward(real *y, real *h, const real *x, const real *f, const RowScale *s, const LayerNorm *norm) {
    const LayerNorm l = *norm;
    const float *scale = s ? s->scale : NULL;
    int M = l.M, rows = scale ? s->rows : 1;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < l.n; i++) {
        size_t at = i * M;
        float factor = scale ? scale[i / rows] : 1;
        for (int j = 0; j < M; j += TILE)
            real_store_part(y + at + j, real_load_part(x + at + j, M - j) + factor * real_load_part(f + at + j, M - j),
                            M - j);
        normalize_row(h + at, l.mean + i, l.rstd + i, y + at, l.w, l.b, M, l.eps);
    }
}

/* Per thread: dw, db and the branch's sums of the current chunk, then their totals, [6,Mp]. */
enum { KINDS = 3 };
static size_t work_floats(int M) { return (size_t)2 * KINDS * tile_round_up(M); }

size_t layernorm_workspace(int M) { return workspace_bytes(work_floats(M)); }

TILE_INLINE void backward_row(real *dy, real *df, float *dw, float *db, float *sums, const real *dres, const real *dh, const real *y,
                              float s, const float *w, float mu, float r, int M) {
    vec sum = {0}, sum_xh = {0};
    for (int j = 0; j < M; j += TILE) {
        vec dhj = real_load_part(dh + j, M - j), xh = (real_load_part(y + j, M - j) - mu) * r;
        vec g = vec_load_part(w + j, M - j) * dhj;
        sum += g;
        sum_xh += g * xh;
        vec_store(dw + j, vec_load(dw + j) + dhj * xh);
        vec_store(db + j, vec_load(db + j) + dhj);
    }
    float mean_g = vec_sum(sum) / M, mean_gxh = vec_sum(sum_xh) / M;
    for (int j = 0; j < M; j += TILE) {
        vec dhj = real_load_part(dh + j, M - j), xh = (real_load_part(y + j, M - j) - mu) * r;
        vec g = vec_load_part(w + j, M - j) * dhj;
        vec dx = r * (g - mean_g - xh * mean_gxh);
        if (dres) dx += real_load_part(dres + j, M - j);
        real_store_part(dy + j, dx, M - j);
        if (df) real_store_part(df + j, s * dx, M - j);
        if (sums) vec_store(sums + j, vec_load(sums + j) + real_load_part((df ? df : dy) + j, M - j));
    }
}

void add_layernorm_backward(real *dy, real *df, float *dw, float *db, const real *dres, const real *dh, const real *y,
                            const RowScale *s, const LayerNorm *norm) {
    const LayerNorm l = *norm;
    const float *scale = s ? s->scale : NULL;
    float *sums = s ? s->sums : NULL;
    int M = l.M, Mp = tile_round_up(M), rows = scale ? s->rows : 1, kinds = sums ? KINDS : KINDS - 1;
#pragma omp parallel
    {
        float *work = kernels_workspace(work_floats(M));
        memset(work, 0, work_floats(M) * sizeof *work);
        int done = 0;
#pragma omp for schedule(static)
        for (size_t i = 0; i < l.n; i++) {
            size_t at = i * M;
            backward_row(dy + at, scale ? df + at : NULL, work, work + Mp, sums ? work + 2 * Mp : NULL,
                         dres ? dres + at : NULL, dh + at, y + at, scale ? scale[i / rows] : 1, l.w, l.mean[i],
                         l.rstd[i], M);
            if (++done % CHUNK == 0) sums_join(work + KINDS * Mp, work, kinds * Mp);
        }
        sums_join(work + KINDS * Mp, work, kinds * Mp);
#pragma omp barrier
        int threads = omp_get_num_threads();
#pragma omp for schedule(static)
        for (int j = 0; j < M; j++)
            for (int t = 0; t < threads; t++) {
                const float *totals = workspace_of(t, work_floats(M)) + KINDS * Mp;
                dw[j] += totals[j];
                db[j] += totals[Mp + j];
                if (sums) sums[j] += totals[2 * Mp + j];
            }
    }
}
