/* The learnable feature map of linear and ripple attention, for q and k of every head.
 *   forward   u = w1 z',  f = [sin u; cos u],  phi = relu(w2 f + b2),  z' = D^-1/4 z
 *   backward  dp = dphi [phi > 0],  db2 += dp,  dw2 += dp f^T,  df = w2^T dp,
 *             du = df_sin cos u - df_cos sin u,  dw1 += du z'^T,  dz = D^-1/4 w1^T du
 *   saves     nothing: computing u and f again takes less time than reading them.
 *
 * A row is one (token, q or k, head) triple, of all heads, or of one head if every head has its own map; ROWS of them
 * at a time stay in the first-level cache from z to phi. Each thread packs its own copy of the weights, padded to whole
 * vectors; the scale D^-1/4 is folded into w1.
 *
 * With bfloat16 and dot products of pairs (kernels/softmax/pairs.h), all products except that of u take bfloat16: f,
 * dp, du and the weights are rounded.  An absolute error of u is an error of the same size in its sine, however large u
 * is, so u remains a product of floats. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/linear_attention/feature_rows.h"
#include "kernels/softmax/pairs.h"
#include "kernels/device/workspace.h"
#include "kernels/linear_attention/feature_maps.h"
#include "kernels/softmax/attention_shape.h"

/* A gradient is summed over CHUNK tiles before it joins the thread's total: the rounding error of a sum over n rows
 * then grows with sqrt(n / 1024) instead of sqrt(n). */
enum { ROWS = 32, CHUNK = 32 };

typedef struct {
    int H, D, E, F, Dp, Ep, Fp; /* Dp, Ep, Fp rounded up to whole vectors */
    float scale;                /* D^-1/4 */
    size_t z_step, phi_step;    /* row strides within q or k: D and F, or H times that */
    bool pairs;                 /* products of pairs of bfloat16 */
} MlpSizes;

#ifdef VIT_PAIRS
static bool in_pairs(int D, int E, int F) {
    return pairs_kind() == PAIRS_DOTS && D % PAIR_BLOCK == 0 && E % PAIR_BLOCK == 0 && F % PAIR_BLOCK == 0;
}
#else
static bool in_pairs(int D, int E, int F) { return (void)D, (void)E, (void)F, false; }
#endif

static MlpSizes sizes_of(int H, int D, int E, int F) {
    return (MlpSizes){H,
                      D,
                      E,
                      F,
                      tile_round_up(D),
                      tile_round_up(E),
                      tile_round_up(F),
                      1 / sqrtf(sqrtf((float)D)),
                      (size_t)D,
                      (size_t)F,
                      in_pairs(D, E, F)};
}

/* One thread's workspace. The gradients follow each other: dw1 [E,Dp], dw2 [F,2Ep], db2 [Fp]. */
typedef struct {
    float *w1t;            /* [D,Ep] scaled */
    float *w2t;            /* [2Ep,Fp] sines first */
    float *w1, *w2;        /* [E,Dp] scaled, [F,2Ep] */
    float *b2;             /* [Fp] */
    float *z, *u, *f, *p;  /* [ROWS,Dp], [ROWS,Ep], [ROWS,2Ep], [ROWS,Fp] */
    float *df;             /* [ROWS,2Ep] */
    /* In pairs: w2 along 2E and along F, w1 along E; z, f, dp and du of a tile, each followed by its pairs of rows */
    real *w2_out, *w2_in, *w1_in, *zr, *fr, *dpr, *dur;
    float *chunk, *total;  /* gradients */
} MlpWork;

/* The space of the bfloat16 numbers, in floats. */
static size_t pairs_floats(MlpSizes s) {
    size_t weights = (size_t)s.F * 4 * s.E + (size_t)s.E * s.D, rows = (size_t)2 * ROWS * (s.D + 3 * s.E + s.F);
    return s.pairs ? (weights + rows) / 2 : 0;
}

static size_t gradient_floats(MlpSizes s) { return (size_t)s.E * s.Dp + (size_t)s.F * 2 * s.Ep + s.Fp; }

static size_t work_floats(MlpSizes s) {
    size_t weights = (size_t)s.D * s.Ep + (size_t)2 * s.Ep * s.Fp + (size_t)s.E * s.Dp + (size_t)s.F * 2 * s.Ep + s.Fp;
    return weights + (size_t)ROWS * (s.Dp + 5 * s.Ep + s.Fp) + pairs_floats(s) + 2 * gradient_floats(s);
}

size_t feature_mlp_workspace(int D, int E, int F) { return workspace_bytes(work_floats(sizes_of(1, D, E, F))); }

static MlpWork work_take(MlpSizes s) {
    float *next = kernels_workspace(work_floats(s));
    MlpWork w;
    w.w1t = workspace_take(&next, (size_t)s.D * s.Ep);
    w.w2t = workspace_take(&next, (size_t)2 * s.Ep * s.Fp);
    w.w1 = workspace_take(&next, (size_t)s.E * s.Dp);
    w.w2 = workspace_take(&next, (size_t)s.F * 2 * s.Ep);
    w.b2 = workspace_take(&next, s.Fp);
    w.z = workspace_take(&next, (size_t)ROWS * s.Dp);
    w.u = workspace_take(&next, (size_t)ROWS * s.Ep);
    w.f = workspace_take(&next, (size_t)ROWS * 2 * s.Ep);
    w.p = workspace_take(&next, (size_t)ROWS * s.Fp);
    w.df = workspace_take(&next, (size_t)ROWS * 2 * s.Ep);
    real *rest = (real *)workspace_take(&next, pairs_floats(s));
    w.w2_out = rest;
    w.w2_in = w.w2_out + (size_t)s.F * 2 * s.E;
    w.w1_in = w.w2_in + (size_t)s.F * 2 * s.E;
    w.zr = w.w1_in + (size_t)s.E * s.D;
    w.fr = w.zr + (size_t)2 * ROWS * s.D;
    w.dpr = w.fr + (size_t)2 * ROWS * 2 * s.E;
    w.dur = w.dpr + (size_t)2 * ROWS * s.F;
    w.chunk = workspace_take(&next, gradient_floats(s));
    w.total = workspace_take(&next, gradient_floats(s));
    return w;
}

static void pack_forward(MlpWork *w, const float *w1, const float *w2, const float *b2, MlpSizes s) {
    memset(w->w1t, 0, (size_t)s.D * s.Ep * sizeof(float));
    memset(w->w2t, 0, (size_t)2 * s.Ep * s.Fp * sizeof(float));
    memset(w->b2, 0, s.Fp * sizeof(float));
    memcpy(w->b2, b2, s.F * sizeof(float));
    for (int e = 0; e < s.E; e++)
        for (int d = 0; d < s.D; d++) w->w1t[(size_t)d * s.Ep + e] = s.scale * w1[(size_t)e * s.D + d];
    for (int j = 0; j < s.F; j++)
        for (int e = 0; e < s.E; e++) {
            w->w2t[(size_t)e * s.Fp + j] = w2[(size_t)j * 2 * s.E + e];
            w->w2t[(size_t)(s.Ep + e) * s.Fp + j] = w2[(size_t)j * 2 * s.E + s.E + e];
        }
}

static void pack_backward(MlpWork *w, const float *w1, const float *w2, MlpSizes s) {
    memset(w->w1, 0, (size_t)s.E * s.Dp * sizeof(float));
    memset(w->w2, 0, (size_t)s.F * 2 * s.Ep * sizeof(float));
    for (int e = 0; e < s.E; e++)
        for (int d = 0; d < s.D; d++) w->w1[(size_t)e * s.Dp + d] = s.scale * w1[(size_t)e * s.D + d];
    for (int j = 0; j < s.F; j++) {
        memcpy(w->w2 + (size_t)j * 2 * s.Ep, w2 + (size_t)j * 2 * s.E, s.E * sizeof(float));
        memcpy(w->w2 + (size_t)j * 2 * s.Ep + s.Ep, w2 + (size_t)j * 2 * s.E + s.E, s.E * sizeof(float));
    }
}

#ifdef VIT_PAIRS

/* to [rows/2][columns][2] = x [rows,columns], rounded, ldx floats from row to row. */
static void pair_floats(real *to, const float *x, int ldx, int rows, int columns) {
    for (int i = 0; i < rows; i += 2)
        for (int j = 0; j < columns; j += TILE, to += 2 * TILE)
            _mm512_storeu_si512(to, pairs_of(halfvec_round(vec_load(x + (size_t)i * ldx + j)),
                                             halfvec_round(vec_load(x + (size_t)(i + 1) * ldx + j))));
}

#endif

/* z, u and f of the tile. */
static void features(MlpWork *w, const real *qkv, Walk at, int rows, MlpSizes s) {
    for (int i = 0; i < rows; i++, walk_on(&at, s.H, s.z_step)) reals_widen(w->z + i * s.Dp, qkv + at.offset, s.D);
    tile_gemm(w->u, s.Ep, w->z, s.Dp, 1, w->w1t, s.Ep, rows, s.Ep, s.D, 0);
    sincos_tile(w->f, w->f + s.Ep, 2 * s.Ep, w->u, s.Ep, rows, s.Ep);
}

static void forward_tile(real *phi, MlpWork *w, const real *qkv, size_t first, int rows, MlpSizes s) {
    features(w, qkv, walk_from(first, s.H, s.z_step), rows, s);
#ifdef VIT_PAIRS
    if (s.pairs) {
        reals_round(w->fr, w->f, (size_t)rows * 2 * s.E);
        pairs_dots(w->p, s.F, (PairRows){w->fr, s.E, 1}, w->w2_out, s.F, rows, s.F, 2 * s.E, false);
    } else
#endif
        tile_gemm(w->p, s.Fp, w->f, 2 * s.Ep, 1, w->w2t, s.Fp, rows, s.Fp, 2 * s.Ep, 0);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < s.F; j += TILE) {
            vec p = vec_load(w->p + i * s.Fp + j) + vec_load(w->b2 + j);
            real_store_part(phi + (first + i) * s.phi_step + j, vec_max(vec_set(0), p), s.F - j);
        }
}

static void forward(real *phi, const real *qkv, const float *w1, const float *w2, const float *b2, size_t n,
                    MlpSizes s) {
    size_t total = n * 2 * s.H, tiles = (total + ROWS - 1) / ROWS;
#pragma omp parallel
    {
        MlpWork w = work_take(s);
        pack_forward(&w, w1, w2, b2, s);
#ifdef VIT_PAIRS
        if (s.pairs) pair_floats(w.w2_out, w.w2t, s.Fp, 2 * s.E, s.F);
#endif
#pragma omp for schedule(static)
        for (size_t t = 0; t < tiles; t++) {
            size_t first = t * ROWS, rows = total - first < ROWS ? total - first : ROWS;
            forward_tile(phi, &w, qkv, first, (int)rows, s);
        }
    }
}

/* The shape for a single one of H heads, whose row strides are H times as large. */
static MlpSizes head_sizes(int H, int D, int E, int F) {
    MlpSizes s = sizes_of(1, D, E, F);
    s.z_step *= H;
    s.phi_step *= H;
    return s;
}

void feature_mlp_forward(real *phi, const real *qkv, const FeatureMlp *map, const FeatureShape *shape) {
    const float *w1 = map->w1, *w2 = map->w2, *b2 = map->b2;
    size_t n = (size_t)shape->B * shape->N;
    int H = shape->H, D = shape->D, E = map->E, F = shape->F;
    if (!map->per_head) {
        forward(phi, qkv, w1, w2, b2, n, sizes_of(H, D, E, F));
        return;
    }
    MlpSizes s = head_sizes(H, D, E, F);
    for (int h = 0; h < H; h++, w1 += (size_t)E * D, w2 += (size_t)F * 2 * E, b2 += F)
        forward(phi + (size_t)h * F, qkv + (size_t)h * D, w1, w2, b2, n, s);
}

/* du [ROWS,Ep] replaces u, which is not needed any more. */
static void sincos_backward(MlpWork *w, int rows, MlpSizes s) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < s.Ep; j += TILE) {
            const float *f = w->f + i * 2 * s.Ep + j, *df = w->df + i * 2 * s.Ep + j;
            vec_store(w->u + i * s.Ep + j, vec_load(df) * vec_load(f + s.Ep) - vec_load(df + s.Ep) * vec_load(f));
        }
}

static void backward_tile(real *dqkv, MlpWork *w, bool learns_w1, const real *dphi, const real *phi, const real *qkv,
                          size_t first, int rows, MlpSizes s) {
    float *dw1 = w->chunk, *dw2 = dw1 + (size_t)s.E * s.Dp, *db2 = dw2 + (size_t)s.F * 2 * s.Ep, *dp = w->p, *dz = w->z;
    Walk at = walk_from(first, s.H, s.z_step);
    features(w, qkv, at, rows, s);
    for (int j = 0; j < s.F; j += TILE) {
        vec sum = vec_load(db2 + j);
        for (int i = 0; i < rows; i++) {
            vec value = real_load_part(phi + (first + i) * s.phi_step + j, s.F - j);
            vec slope = real_load_part(dphi + (first + i) * s.phi_step + j, s.F - j);
            slope = vec_select(value <= 0.0f, vec_set(0), slope);
            vec_store(dp + i * s.Fp + j, slope);
            sum += slope;
        }
        vec_store(db2 + j, sum);
    }
    tile_gemm(dw2, 2 * s.Ep, dp, 1, s.Fp, w->f, 2 * s.Ep, s.F, 2 * s.Ep, rows, 1);
    tile_gemm(w->df, 2 * s.Ep, dp, s.Fp, 1, w->w2, 2 * s.Ep, rows, 2 * s.Ep, s.F, 0);
    sincos_backward(w, rows, s);
    if (learns_w1) tile_gemm(dw1, s.Dp, w->u, 1, s.Ep, w->z, s.Dp, s.E, s.Dp, rows, 1);
    tile_gemm(dz, s.Dp, w->u, s.Ep, 1, w->w1, s.Dp, rows, s.Dp, s.E, 0);
    for (int i = 0; i < rows; i++, walk_on(&at, s.H, s.z_step)) reals_round(dqkv + at.offset, dz + i * s.Dp, s.D);
}

#ifdef VIT_PAIRS

/* dp of a row of F: dphi where phi is above zero, or not a number. */
static void mask_row(real *dp, const real *dphi, const real *phi, int F) {
    const __m512i below_nan = _mm512_set1_epi16((short)0xff80);
    for (int j = 0; j < F; j += 2 * TILE) {
        __m512i value = _mm512_loadu_si512(phi + j), slope = _mm512_loadu_si512(dphi + j);
        __mmask32 passes = _mm512_cmpgt_epi16_mask(value, _mm512_setzero_si512()) |
                           _mm512_cmpgt_epu16_mask(value, below_nan);
        _mm512_storeu_si512(dp + j, _mm512_maskz_mov_epi16(passes, slope));
    }
}

/* Writes the pairs of rows of x [ROWS,columns] after x; the number of rows is even, as each row of q has one of k. */
static const real *pair_tile(real *x, int rows, int columns) {
    real *pairs = x + (size_t)ROWS * columns;
    pair_rows(pairs, x, rows, columns);
    return pairs;
}

static void backward_pairs(real *dqkv, MlpWork *w, bool learns_w1, const real *dphi, const real *phi, const real *qkv,
                           size_t first, int rows, MlpSizes s) {
    float *dw1 = w->chunk, *dw2 = dw1 + (size_t)s.E * s.D, *db2 = dw2 + (size_t)s.F * 2 * s.E, *dz = w->z;
    Walk at = walk_from(first, s.H, s.z_step);
    features(w, qkv, at, rows, s);
    reals_round(w->fr, w->f, (size_t)rows * 2 * s.E);
    for (int i = 0; i < rows; i++)
        mask_row(w->dpr + (size_t)i * s.F, dphi + (first + i) * s.phi_step, phi + (first + i) * s.phi_step, s.F);
    const real *fs = pair_tile(w->fr, rows, 2 * s.E), *dps = pair_tile(w->dpr, rows, s.F);
    const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3f803f80);
    for (int j = 0; j < s.F; j += TILE) {
        __m512 sum = (__m512)vec_load(db2 + j);
        for (int i = 0; i < rows; i += 2)
            sum = _mm512_dpbf16_ps(sum, ones, (__m512bh)_mm512_loadu_si512(dps + (size_t)i * s.F + 2 * j));
        vec_store(db2 + j, (vec)sum);
    }
    pairs_dots(dw2, 2 * s.E, (PairRows){dps, 1, s.F}, fs, 2 * s.E, s.F, 2 * s.E, rows, true);
    pairs_dots(w->df, 2 * s.E, (PairRows){w->dpr, s.F / 2, 1}, w->w2_in, 2 * s.E, rows, 2 * s.E, s.F, false);
    sincos_backward(w, rows, s);
    reals_round(w->dur, w->u, (size_t)rows * s.E);
    if (learns_w1) {
        reals_round(w->zr, w->z, (size_t)rows * s.D);
        pairs_dots(dw1, s.D, (PairRows){pair_tile(w->dur, rows, s.E), 1, s.E}, pair_tile(w->zr, rows, s.D), s.D, s.E,
                   s.D, rows, true);
    }
    pairs_dots(dz, s.D, (PairRows){w->dur, s.E / 2, 1}, w->w1_in, s.D, rows, s.D, s.E, false);
    for (int i = 0; i < rows; i++, walk_on(&at, s.H, s.z_step)) reals_round(dqkv + at.offset, dz + i * s.D, s.D);
}

#endif

/* gradient [rows,columns], ldg floats a row, += scale times the threads' totals, in the order of threads; they are at
 * `offset` in the totals, with ld floats a row. */
static void reduce(float *gradient, int ldg, float scale, size_t offset, int ld, int rows, int columns, MlpSizes s) {
    size_t floats = work_floats(s), totals = floats - gradient_floats(s);
    int threads = omp_get_num_threads();
#pragma omp for schedule(static)
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            float sum = 0;
            for (int t = 0; t < threads; t++) sum += workspace_of(t, floats)[totals + offset + (size_t)i * ld + j];
            gradient[(size_t)i * ldg + j] += scale * sum;
        }
}

static void backward(real *dqkv, float *dw1, float *dw2, float *db2, const real *dphi, const real *phi, const real *qkv,
                     const float *w1, const float *w2, const float *b2, size_t n, MlpSizes s) {
    int D = s.D, E = s.E, F = s.F;
    size_t total = n * 2 * s.H, tiles = (total + ROWS - 1) / ROWS;
#pragma omp parallel
    {
        MlpWork w = work_take(s);
        pack_forward(&w, w1, w2, b2, s);
        pack_backward(&w, w1, w2, s);
#ifdef VIT_PAIRS
        if (s.pairs) {
            pair_floats(w.w2_in, w.w2, 2 * s.Ep, s.F, 2 * s.E);
            pair_floats(w.w1_in, w.w1, s.Dp, s.E, s.D);
        }
#endif
        memset(w.chunk, 0, gradient_floats(s) * sizeof(float));
        memset(w.total, 0, gradient_floats(s) * sizeof(float));
        int done = 0;
#pragma omp for schedule(static)
        for (size_t t = 0; t < tiles; t++) {
            size_t first = t * ROWS, rows = total - first < ROWS ? total - first : ROWS;
#ifdef VIT_PAIRS
            if (s.pairs) backward_pairs(dqkv, &w, dw1 != NULL, dphi, phi, qkv, first, (int)rows, s);
            else
#endif
                backward_tile(dqkv, &w, dw1 != NULL, dphi, phi, qkv, first, (int)rows, s);
            if (++done % CHUNK == 0) sums_join(w.total, w.chunk, gradient_floats(s));
        }
        sums_join(w.total, w.chunk, gradient_floats(s));
#pragma omp barrier
        size_t at_w2 = (size_t)E * s.Dp, at_b2 = at_w2 + (size_t)F * 2 * s.Ep;
        if (dw1) reduce(dw1, D, s.scale, 0, s.Dp, E, D, s);
        reduce(dw2, 2 * E, 1, at_w2, 2 * s.Ep, F, E, s);
        reduce(dw2 + E, 2 * E, 1, at_w2 + s.Ep, 2 * s.Ep, F, E, s);
        reduce(db2, F, 1, at_b2, s.Fp, 1, F, s);
    }
}

void feature_mlp_backward(real *dqkv, const FeatureMlpGradients *d, const real *dphi, const real *phi, const real *qkv,
                          const FeatureMlp *map, const FeatureShape *shape) {
    const float *w1 = map->w1, *w2 = map->w2, *b2 = map->b2;
    size_t n = (size_t)shape->B * shape->N;
    int H = shape->H, D = shape->D, E = map->E, F = shape->F;
    if (!map->per_head) {
        backward(dqkv, d->w1, d->w2, d->b2, dphi, phi, qkv, w1, w2, b2, n, sizes_of(H, D, E, F));
        return;
    }
    MlpSizes s = head_sizes(H, D, E, F);
    size_t n1 = (size_t)E * D, n2 = (size_t)F * 2 * E;
    for (int h = 0; h < H; h++) {
        size_t z = (size_t)h * D, at = (size_t)h * F;
        backward(dqkv + z, d->w1 ? d->w1 + h * n1 : NULL, d->w2 + h * n2, d->b2 + at, dphi + at, phi + at, qkv + z,
                 w1 + h * n1, w2 + h * n2, b2 + at, n, s);
    }
}
