/* Group norm, channels last (Wu and He 2018), and the code that batch norm shares with it: batch norm is the norm of
 * one image that consists of all rows and has a group for each channel.  For each image and group, over its channels c
 * and positions n
 *   forward   mu = mean_nc x,  r = 1/sqrt(var_nc x + eps),  y = relu?(w (x - mu) r + b + add)
 *   backward  xh = (x - mu) r,  dz = dy, or with a ReLU dy where w xh + b > 0 and otherwise 0,
 *             s_c = sum_n dz,  t_c = sum_n dz xh,  db += s,  dw += t,
 *             dx = r (w dz - mean(w dz) - xh mean(w dz xh)), whose means are sums over c of w_c s_c and w_c t_c
 *   saves     mu, r.
 * Whole rows are read, some channels at a time, although a group has few of them: sums are kept for each channel and
 * piece of PIECE rows, so the number of threads does not change them, and joined in double.  The variance is taken
 * around the mean.  Sums over ranks add the sums of the channels. */
#include <math.h>
#include <stdbool.h>

#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"
#include "core/distributed.h"
#include "kernels/device/collective.h"
#include "kernels/norm/channel_norm.h"

enum { PIECE = 128 };

static size_t pieces_of(const GroupNorm *g) { return ((size_t)g->N + PIECE - 1) / PIECE; }

/* The sums of forward or backward in each channel: one or two numbers. */
static size_t part_floats(const GroupNorm *g) { return 2 * (size_t)g->C; }

/* The parts [B,pieces,2,C], then their sums over pieces [B,2,C], then two numbers for each group [B,groups,2]. */
size_t group_norm_workspace(const GroupNorm *g) {
    size_t B = (size_t)g->B;
    return (B * (pieces_of(g) + 1) * part_floats(g) + 2 * B * (size_t)g->groups) * sizeof(float);
}

static float *parts_of(const GroupNorm *g, size_t b, size_t piece) {
    return workspace_shared() + (b * pieces_of(g) + piece) * part_floats(g);
}
static float *sums_of(const GroupNorm *g, size_t b) {
    return parts_of(g, (size_t)g->B, 0) + b * part_floats(g);
}
static float *means_of(const GroupNorm *g, size_t b) {
    return sums_of(g, (size_t)g->B) + 2 * b * (size_t)g->groups;
}

/* The value of each channel's group. */
static void spread(float *to, const float *groups, const GroupNorm *g) {
    int width = g->C / g->groups;
    for (int c = 0; c < g->C; c++) to[c] = groups[c / width];
}

/* Mean and factor of each channel, in place of its sums. */
static void spread_statistics(const GroupNorm *g, size_t b) {
    spread(sums_of(g, b), g->mean + b * (size_t)g->groups, g);
    spread(sums_of(g, b) + g->C, g->rstd + b * (size_t)g->groups, g);
}

typedef enum { SUM, SQUARES, GRADIENTS } Sums;

/* dy, 0 where the ReLU set w xh + b to 0. */
TILE_INLINE vec past_relu(vec dy, vec xh, const GroupNorm *g, size_t j, size_t left) {
    return vec_select(vec_load_part(g->w + j, left) * xh + vec_load_part(g->b + j, left) > 0, dy, vec_set(0));
}

/* One piece's part: the sums over its rows of x, of (x - mu)^2, or of dz and dz xh. */
static void piece_sums(Sums kind, const real *x, const real *dy, bool relu, const GroupNorm *g, size_t b,
                       size_t piece) {
    size_t C = (size_t)g->C, first = piece * PIECE, end = first + PIECE < (size_t)g->N ? first + PIECE : (size_t)g->N;
    float *part = parts_of(g, b, piece);
    int width = g->C / g->groups;
    for (size_t j = 0; j < C; j += TILE) {
        vec sum = {0}, other = {0}, mu = {0}, r = {0};
        for (size_t l = 0; kind != SUM && l < TILE && j + l < C; l++) {
            size_t group = b * (size_t)g->groups + (j + l) / (size_t)width;
            mu[l] = g->mean[group];
            r[l] = g->rstd[group];
        }
        for (size_t n = first; n < end; n++) {
            size_t at = (b * (size_t)g->N + n) * C + j;
            vec v = real_load_part(x + at, C - j);
            if (kind == SUM) {
                sum += v;
            } else if (kind == SQUARES) {
                sum += (v - mu) * (v - mu);
            } else {
                vec d = real_load_part(dy + at, C - j), xh = (v - mu) * r;
                if (relu) d = past_relu(d, xh, g, j, C - j);
                sum += d;
                other += d * xh;
            }
        }
        vec_store_part(part + j, sum, C - j);
        vec_store_part(part + C + j, other, C - j);
    }
}

/* The parts of all pieces, and their sums [B,2,C]. */
static void channel_sums(Sums kind, const real *x, const real *dy, bool relu, const GroupNorm *g) {
    size_t pieces = pieces_of(g);
#pragma omp parallel for collapse(2) schedule(static)
    for (size_t b = 0; b < (size_t)g->B; b++)
        for (size_t piece = 0; piece < pieces; piece++) piece_sums(kind, x, dy, relu, g, b, piece);
#pragma omp parallel for collapse(2) schedule(static)
    for (size_t b = 0; b < (size_t)g->B; b++)
        for (size_t j = 0; j < part_floats(g); j++) {
            double sum = 0;
            for (size_t piece = 0; piece < pieces; piece++) sum += parts_of(g, b, piece)[j];
            sums_of(g, b)[j] = (float)sum;
        }
}

/* Sums [B,2,C] of this rank become those of all ranks. */
static void share_sums(const GroupNorm *g) {
    all_reduce_start(sums_of(g, 0), (size_t)g->B * part_floats(g));
    all_reduce_finish();
}

/* The mean over a group of sums [C], each times its weight if there are weights; over_ranks: over all ranks. */
static double group_mean(const float *sums, const float *w, bool over_ranks, const GroupNorm *g, int group) {
    int width = g->C / g->groups;
    double sum = 0;
    for (int c = group * width; c < (group + 1) * width; c++) sum += (w ? (double)w[c] : 1) * (double)sums[c];
    return sum / ((double)width * g->N * (over_ranks ? distributed_ranks() : 1));
}

void channel_norm_apply(real *y, const real *x, const real *add, bool relu, const GroupNorm *norm) {
    const GroupNorm g = *norm;
    size_t C = (size_t)g.C, rows = (size_t)g.B * (size_t)g.N;
    for (size_t b = 0; b < (size_t)g.B; b++) spread_statistics(&g, b);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < rows; i++) {
        const float *mean = sums_of(&g, i / (size_t)g.N), *rstd = mean + C;
        for (size_t j = 0; j < C; j += TILE) {
            size_t left = C - j;
            vec xh = real_load_part(x + i * C + j, left) - vec_load_part(mean + j, left);
            xh *= vec_load_part(rstd + j, left);
            vec v = vec_load_part(g.w + j, left) * xh + vec_load_part(g.b + j, left);
            if (add) v += real_load_part(add + i * C + j, left);
            if (relu) v = vec_max(vec_set(0), v); /* keeps a NaN */
            real_store_part(y + i * C + j, v, left);
        }
    }
}

/* The mean of the summed values, for group i of all images. */
static double mean_of(bool over_ranks, const GroupNorm *g, int i) {
    return group_mean(sums_of(g, (size_t)(i / g->groups)), NULL, over_ranks, g, i % g->groups);
}

void channel_norm_forward(real *y, double *variances, const real *x, const real *add, bool relu, bool over_ranks,
                          const GroupNorm *norm) {
    const GroupNorm g = *norm;
    channel_sums(SUM, x, NULL, false, &g);
    if (over_ranks) share_sums(&g);
    for (int i = 0; i < g.B * g.groups; i++) {
        g.mean[i] = (float)mean_of(over_ranks, &g, i);
        g.rstd[i] = 1;
    }
    channel_sums(SQUARES, x, NULL, false, &g);
    if (over_ranks) share_sums(&g);
    for (int i = 0; i < g.B * g.groups; i++) {
        double variance = mean_of(over_ranks, &g, i);
        g.rstd[i] = (float)(1 / sqrt(variance + (double)g.eps));
        if (variances) variances[i] = variance;
    }
    channel_norm_apply(y, x, add, relu, &g);
}

void channel_norm_backward(real *dx, float *dw, float *db, const real *dy, const real *x, bool relu, bool over_ranks,
                           const GroupNorm *norm) {
    const GroupNorm g = *norm;
    size_t C = (size_t)g.C, rows = (size_t)g.B * (size_t)g.N;
    channel_sums(GRADIENTS, x, dy, relu, &g);
    for (size_t j = 0; j < C; j++) { /* the gradients of parameters are those of this rank, like all others */
        double s = 0, t = 0;
        for (size_t b = 0; b < (size_t)g.B; b++) {
            s += sums_of(&g, b)[j];
            t += sums_of(&g, b)[C + j];
        }
        db[j] += (float)s;
        dw[j] += (float)t;
    }
    if (over_ranks) share_sums(&g);
    for (size_t b = 0; b < (size_t)g.B; b++)
        for (int i = 0; i < g.groups; i++) {
            means_of(&g, b)[i] = (float)group_mean(sums_of(&g, b), g.w, over_ranks, &g, i);
            means_of(&g, b)[g.groups + i] = (float)group_mean(sums_of(&g, b) + C, g.w, over_ranks, &g, i);
        }
    for (size_t b = 0; b < (size_t)g.B; b++) { /* the parts are no longer needed */
        spread_statistics(&g, b);
        spread(parts_of(&g, b, 0), means_of(&g, b), &g);
        spread(parts_of(&g, b, 0) + C, means_of(&g, b) + g.groups, &g);
    }
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < rows; i++) {
        const float *mean = sums_of(&g, i / (size_t)g.N), *rstd = mean + C;
        const float *d_mean = parts_of(&g, i / (size_t)g.N, 0), *dxh_mean = d_mean + C;
        for (size_t j = 0; j < C; j += TILE) {
            size_t left = C - j;
            vec r = vec_load_part(rstd + j, left);
            vec xh = (real_load_part(x + i * C + j, left) - vec_load_part(mean + j, left)) * r;
            vec dz = real_load_part(dy + i * C + j, left);
            if (relu) dz = past_relu(dz, xh, &g, j, left);
            vec d = vec_load_part(g.w + j, left) * dz;
            d -= vec_load_part(d_mean + j, left) + xh * vec_load_part(dxh_mean + j, left);
            real_store_part(dx + i * C + j, r * d, left);
        }
    }
}

void group_norm_forward(real *y, const real *x, const real *add, bool relu, const GroupNorm *norm) {
    channel_norm_forward(y, NULL, x, add, relu, false, norm);
}

void group_norm_backward(real *dx, float *dw, float *db, const real *dy, const real *x, bool relu,
                         const GroupNorm *norm) {
    channel_norm_backward(dx, dw, db, dy, x, relu, false, norm);
}
