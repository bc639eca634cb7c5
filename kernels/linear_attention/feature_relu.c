/* T2R's feature map, for q and k of every head.
 *   forward   phi = relu(w z' + b),  z' = D^-1/4 z
 *   backward  dp = dphi [phi > 0],  db += dp,  dw += dp z'^T,  dz = D^-1/4 w^T dp
 *   saves     nothing.   Source: Kasai et al. 2021.
 * The structure is that of feature_mlp.c: ROWS rows at a time, each thread with its own padded weights, scaled, and its
 * own sums. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/linear_attention/feature_rows.h"
#include "kernels/device/workspace.h"
#include "kernels/linear_attention/feature_maps.h"
#include "kernels/softmax/attention_shape.h"

/* Gradients are summed over CHUNK tiles before they join the thread's total. */
enum { ROWS = 32, CHUNK = 32 };

typedef struct {
    int H, D, F, Dp, Fp;
    float scale; /* D^-1/4 */
} ReluFeatureSizes;

static ReluFeatureSizes sizes_of(int H, int D, int F) {
    return (ReluFeatureSizes){H, D, F, tile_round_up(D), tile_round_up(F), 1 / sqrtf(sqrtf((float)D))};
}

/* The gradients follow each other: dw [F,Dp], db [Fp]. */
typedef struct {
    float *wt, *w;        /* [D,Fp], [F,Dp], scaled */
    float *b;             /* [Fp] */
    float *z, *p;         /* [ROWS,Dp], [ROWS,Fp] */
    float *chunk, *total; /* gradients */
} ReluFeatureWork;

static size_t gradient_floats(ReluFeatureSizes s) { return (size_t)s.F * s.Dp + s.Fp; }

static size_t work_floats(ReluFeatureSizes s) {
    return (size_t)s.D * s.Fp + (size_t)s.F * s.Dp + s.Fp + (size_t)ROWS * (s.Dp + s.Fp) + 2 * gradient_floats(s);
}

size_t feature_relu_workspace(int D, int F) { return workspace_bytes(work_floats(sizes_of(1, D, F))); }

static ReluFeatureWork work_take(const float *w, const float *b, ReluFeatureSizes s) {
    float *next = kernels_workspace(work_floats(s));
    ReluFeatureWork own;
    own.wt = workspace_take(&next, (size_t)s.D * s.Fp);
    own.w = workspace_take(&next, (size_t)s.F * s.Dp);
    own.b = workspace_take(&next, s.Fp);
    own.z = workspace_take(&next, (size_t)ROWS * s.Dp);
    own.p = workspace_take(&next, (size_t)ROWS * s.Fp);
    own.chunk = workspace_take(&next, gradient_floats(s));
    own.total = workspace_take(&next, gradient_floats(s));
    memset(own.wt, 0, (size_t)s.D * s.Fp * sizeof(float));
    memset(own.w, 0, (size_t)s.F * s.Dp * sizeof(float));
    memset(own.b, 0, s.Fp * sizeof(float));
    for (int f = 0; f < s.F; f++)
        for (int d = 0; d < s.D; d++)
            own.wt[(size_t)d * s.Fp + f] = own.w[(size_t)f * s.Dp + d] = s.scale * w[(size_t)f * s.D + d];
    if (b) memcpy(own.b, b, s.F * sizeof(float));
    return own;
}

static void forward_tile(real *phi, const ReluFeatureWork *w, const real *qkv, size_t first, int rows,
                         ReluFeatureSizes s) {
    Walk at = walk_from(first, s.H, s.D);
    for (int i = 0; i < rows; i++, walk_on(&at, s.H, s.D)) reals_widen(w->z + i * s.Dp, qkv + at.offset, s.D);
    tile_gemm(w->p, s.Fp, w->z, s.Dp, 1, w->wt, s.Fp, rows, s.Fp, s.D, 0);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < s.F; j += TILE) {
            vec p = vec_load(w->p + i * s.Fp + j) + vec_load(w->b + j);
            real_store_part(phi + (first + i) * s.F + j, vec_max(vec_set(0), p), s.F - j);
        }
}

void feature_relu_forward(real *phi, const real *qkv, const float *w, const float *b, const FeatureShape *shape) {
    size_t n = (size_t)shape->B * shape->N;
    int H = shape->H, D = shape->D, F = shape->F;
    ReluFeatureSizes s = sizes_of(H, D, F);
    size_t total = n * 2 * H, tiles = (total + ROWS - 1) / ROWS;
#pragma omp parallel
    {
        ReluFeatureWork own = work_take(w, b, s);
#pragma omp for schedule(static)
        for (size_t t = 0; t < tiles; t++) {
            size_t first = t * ROWS, rows = total - first < ROWS ? total - first : ROWS;
            forward_tile(phi, &own, qkv, first, (int)rows, s);
        }
    }
}

static void backward_tile(real *dqkv, const ReluFeatureWork *w, const real *dphi, const real *phi, const real *qkv,
                          size_t first, int rows, ReluFeatureSizes s) {
    float *dw = w->chunk, *db = dw + (size_t)s.F * s.Dp, *dp = w->p;
    Walk at = walk_from(first, s.H, s.D), back = at;
    for (int i = 0; i < rows; i++, walk_on(&at, s.H, s.D))
        for (int j = 0; j < s.D; j += TILE)
            vec_store(w->z + i * s.Dp + j, real_load_part(qkv + at.offset + j, s.D - j));
    for (int j = 0; j < s.F; j += TILE) {
        vec sum = vec_load(db + j);
        for (int i = 0; i < rows; i++) {
            vec value = real_load_part(phi + (first + i) * s.F + j, s.F - j);
            vec slope = real_load_part(dphi + (first + i) * s.F + j, s.F - j);
            slope = vec_select(value <= 0.0f, vec_set(0), slope);
            vec_store(dp + i * s.Fp + j, slope);
            sum += slope;
        }
        vec_store(db + j, sum);
    }
    tile_gemm(dw, s.Dp, dp, 1, s.Fp, w->z, s.Dp, s.F, s.Dp, rows, 1);
    tile_gemm(w->z, s.Dp, dp, s.Fp, 1, w->w, s.Dp, rows, s.Dp, s.F, 0);
    for (int i = 0; i < rows; i++, walk_on(&back, s.H, s.D)) reals_round(dqkv + back.offset, w->z + i * s.Dp, s.D);
}

void feature_relu_backward(real *dqkv, float *dw, float *db, const real *dphi, const real *phi, const real *qkv,
                           const float *w, const FeatureShape *shape) {
    size_t n = (size_t)shape->B * shape->N;
    int H = shape->H, D = shape->D, F = shape->F;
    ReluFeatureSizes s = sizes_of(H, D, F);
    size_t total = n * 2 * H, tiles = (total + ROWS - 1) / ROWS, floats = work_floats(s);
#pragma omp parallel
    {
        ReluFeatureWork own = work_take(w, NULL, s);
        memset(own.chunk, 0, gradient_floats(s) * sizeof(float));
        memset(own.total, 0, gradient_floats(s) * sizeof(float));
        int done = 0, threads = omp_get_num_threads();
        size_t totals = own.total - kernels_workspace(floats);
#pragma omp for schedule(static)
        for (size_t t = 0; t < tiles; t++) {
            size_t first = t * ROWS, rows = total - first < ROWS ? total - first : ROWS;
            backward_tile(dqkv, &own, dphi, phi, qkv, first, (int)rows, s);
            if (++done % CHUNK == 0) sums_join(own.total, own.chunk, gradient_floats(s));
        }
        sums_join(own.total, own.chunk, gradient_floats(s));
#pragma omp barrier
#pragma omp for schedule(static)
        for (int f = 0; f < F; f++) {
            for (int d = 0; d < D; d++) {
                float sum = 0;
                for (int t = 0; t < threads; t++) sum += workspace_of(t, floats)[totals + (size_t)f * s.Dp + d];
                dw[(size_t)f * D + d] += s.scale * sum;
            }
            for (int t = 0; t < threads; t++) db[f] += workspace_of(t, floats)[totals + (size_t)F * s.Dp + f];
        }
    }
}
