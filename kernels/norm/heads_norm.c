/* Layer norm of each head separately.
 *   forward   mu = mean_c x,  r = 1/sqrt(var_c x + eps),  y = w (x - mu) r + b
 *   backward  xh = (x - mu) r,  g = w dy,  dx = r (g - mean_c g - xh mean_c(g xh)),  dw += sum dy xh,  db += sum dy
 *   saves     nothing: a head is so short that backward computes mu and r again.
 *
 * TILE heads are processed together, so that their sums fill one vector. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"
#include "kernels/norm/norms.h"

/* Groups of TILE heads whose dw and db are summed before they are added to a thread's total, against rounding. */
enum { CHUNK = 16 };

/* Per thread: dw and db of the current chunk, then their totals, [4,Dp]. */
static size_t work_floats(int D) { return (size_t)4 * tile_round_up(D); }

size_t heads_norm_workspace(int D) { return workspace_bytes(work_floats(D)); }

typedef struct {
    int count;
    size_t at[TILE]; /* offset of each head */
} Heads;

static Heads heads_at(size_t first, size_t all, int row, int H, int D) {
    Heads h = {.count = all - first < TILE ? (int)(all - first) : TILE};
    for (int r = 0; r < h.count; r++) h.at[r] = (first + r) / H * row + (first + r) % H * D;
    return h;
}

/* The first n lanes of x, zero beyond. */
TILE_INLINE vec vec_first(vec x, int n) {
    return n >= TILE ? x : vec_select(vec_lanes() < n, x, vec_set(0));
}

/* Means and 1/sqrt(var + eps), with a lane for each head. */
TILE_INLINE void statistics(vec *mean, vec *rstd, const real *x, const Heads *h, int D, float eps) {
    vec sums[TILE] = {{0}}, squares[TILE] = {{0}};
    for (int r = 0; r < h->count; r++)
        for (int j = 0; j < D; j += TILE) sums[r] += real_load_part(x + h->at[r] + j, D - j);
    *mean = vec_sums(sums) / (float)D;
    for (int r = 0; r < h->count; r++)
        for (int j = 0; j < D; j += TILE) {
            vec d = vec_first(real_load_part(x + h->at[r] + j, D - j) - (*mean)[r], D - j);
            squares[r] += d * d;
        }
    vec variance = vec_sums(squares) / (float)D + eps;
    for (int l = 0; l < TILE; l++) (*rstd)[l] = 1 / sqrtf(variance[l]);
}

void heads_norm_forward(real *y, const real *x, const float *w, const float *b, const HeadsNorm *shape) {
    int row = shape->row, H = shape->H, D = shape->D;
    float eps = shape->eps;
    size_t all = shape->n * H;
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < all; first += TILE) {
        Heads h = heads_at(first, all, row, H, D);
        vec mean, rstd;
        statistics(&mean, &rstd, x, &h, D, eps);
        for (int r = 0; r < h.count; r++)
            for (int j = 0; j < D; j += TILE) {
                vec xh = (real_load_part(x + h.at[r] + j, D - j) - mean[r]) * rstd[r];
                vec out = vec_load_part(w + j, D - j) * xh;
                if (b) out += vec_load_part(b + j, D - j);
                real_store_part(y + h.at[r] + j, out, D - j);
            }
    }
}

/* dw and db [Dp] are the chunk's. */
static void backward_heads(real *dx, float *dw, float *db, const real *dy, const real *x, const float *w,
                           const Heads *h, int D, float eps) {
    vec mean, rstd, sums[TILE] = {{0}}, along[TILE] = {{0}};
    statistics(&mean, &rstd, x, h, D, eps);
    for (int r = 0; r < h->count; r++)
        for (int j = 0; j < D; j += TILE) {
            vec d = real_load_part(dy + h->at[r] + j, D - j),
                xh = (real_load_part(x + h->at[r] + j, D - j) - mean[r]) * rstd[r];
            vec g = vec_load_part(w + j, D - j) * d;
            sums[r] += g;
            along[r] += g * xh;
            vec_store(dw + j, vec_load(dw + j) + d * xh);
            vec_store(db + j, vec_load(db + j) + d);
        }
    vec mean_g = vec_sums(sums) / (float)D, mean_gxh = vec_sums(along) / (float)D;
    for (int r = 0; r < h->count; r++)
        for (int j = 0; j < D; j += TILE) {
            vec xh = (real_load_part(x + h->at[r] + j, D - j) - mean[r]) * rstd[r];
            vec g = vec_load_part(w + j, D - j) * real_load_part(dy + h->at[r] + j, D - j);
            real_store_part(dx + h->at[r] + j, rstd[r] * (g - mean_g[r] - xh * mean_gxh[r]), D - j);
        }
}

void heads_norm_backward(real *dx, float *dw, float *db, const real *dy, const real *x, const float *w,
                         const HeadsNorm *shape) {
    int row = shape->row, H = shape->H, D = shape->D, Dp = tile_round_up(D), threads = 1;
    float eps = shape->eps;
    size_t all = shape->n * H;
#pragma omp parallel
    {
        float *work = kernels_workspace(work_floats(D));
        int done = 0;
        memset(work, 0, work_floats(D) * sizeof *work);
#pragma omp for schedule(static)
        for (size_t first = 0; first < all; first += TILE) {
            Heads h = heads_at(first, all, row, H, D);
            backward_heads(dx, work, work + Dp, dy, x, w, &h, D, eps);
            if (++done % CHUNK == 0) sums_join(work + 2 * Dp, work, 2 * Dp);
        }
        sums_join(work + 2 * Dp, work, 2 * Dp);
#pragma omp single
        threads = omp_get_num_threads();
    }
    for (int t = 0; t < threads; t++) {
        const float *totals = workspace_of(t, work_floats(D)) + 2 * Dp;
        for (int c = 0; c < D; c++) {
            dw[c] += totals[c];
            if (db) db[c] += totals[Dp + c];
        }
    }
}
