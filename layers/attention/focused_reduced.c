/* Focused linear attention to fewer keys (Han et al. 2023, FLatten Transformer, in PVT).  x [B,N,M] -> y [B,N,M]
 * forward   1. z = what the grid is reduced to, L tokens (reduced_keys.h)
 *           2. q = x Wq^T + b,  k, v = z Wkv^T + b   3. mix: focused_core.h   4. y = mix Wproj^T + b
 * backward  4. dmix   3. dq, dk, dv   2. dz, dx   1. dx += the gradient through z
 * saves     q, kv, mix, and what the core and reduced_keys.h save.  Parameter names are the authors'. */
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "layers/attention/focused_core.h"
#include "layers/attention/reduced_keys.h"

typedef struct {
    Projection q, kv, proj;
    ReducedKeys keys;
    FocusedCore core;
    real *q_act, *kv_act, *mix; /* kept: [B,N,M], [B,L,2,M], [B,N,M] */
    real *dq, *dkv, *dmix;      /* scratch, as above */
    real *dx;                   /* [B,N,M] scratch: the gradient through z */
} FocusedReduced;

static void focused_reduced_check(const Attention *a) { (void)reduction_of(a); }

static void focused_reduced_declare(Attention *a, Params *params) {
    FocusedReduced *s = a->state;
    int M = a->M;
    reduced_keys_create(&s->keys, a, reduction_of(a), 0);
    projection_declare(&s->q, params, a->prefix, "q", M, M);
    projection_declare(&s->kv, params, a->prefix, "kv", M, 2 * M);
    projection_declare(&s->proj, params, a->prefix, "proj", M, M);
    reduced_keys_declare(&s->keys, a, params);
    focused_core_declare(&s->core, a, params, reduced_keys_differ(&s->keys) ? &s->keys.grid : &a->grid);
}

static void focused_reduced_plan(Attention *a, Plan *plan, int B) {
    FocusedReduced *s = a->state;
    size_t bytes = (size_t)B * (size_t)a->N * (size_t)a->M * sizeof(real);
    size_t kv = 2 * reduced_keys_count(&s->keys, B) * (size_t)a->M * sizeof(real);
    PlanMark mark = plan_mark(plan);
    plan_keep(plan, a->prefix, "q", &s->q_act, bytes);
    plan_keep(plan, a->prefix, "kv", &s->kv_act, kv);
    plan_keep(plan, a->prefix, "mix", &s->mix, bytes);
    focused_core_plan(&s->core, a, plan, B);
    reduced_keys_plan(&s->keys, a, plan, B);
    if (plan->training) {
        plan_borrow(plan, a->prefix, "dq", &s->dq, bytes);
        plan_borrow(plan, a->prefix, "dkv", &s->dkv, kv);
        plan_borrow(plan, a->prefix, "dmix", &s->dmix, bytes);
        plan_borrow(plan, a->prefix, "dx", &s->dx, bytes);
    }
    plan_release(plan, mark);
}

static void focused_reduced_forward(const Attention *a, real *y, const real *x, int B) {
    const FocusedReduced *s = a->state;
    size_t n = (size_t)B * (size_t)a->N;
    const real *z = reduced_keys_forward(&s->keys, a, x, B);
    projection_forward(&s->q, s->q_act, x, n);
    projection_forward(&s->kv, s->kv_act, z, reduced_keys_count(&s->keys, B));
    focused_core_forward(&s->core, a, s->mix, s->q_act, s->kv_act, B);
    projection_forward(&s->proj, y, s->mix, n);
}

static void focused_reduced_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const FocusedReduced *s = a->state;
    size_t n = (size_t)B * (size_t)a->N;
    projection_backward(&s->proj, s->dmix, dy, s->mix, n);
    focused_core_backward(&s->core, a, s->dq, s->dkv, s->dmix, s->q_act, s->kv_act, B);
    const real *z = reduced_keys_differ(&s->keys) ? s->keys.z : x;
    projection_backward(&s->kv, reduced_keys_gradient(&s->keys, s->dx), s->dkv, z, reduced_keys_count(&s->keys, B));
    reduced_keys_backward(&s->keys, a, s->dx, x, B);
    projection_backward(&s->q, dx, s->dq, x, n);
    add_forward(dx, dx, s->dx, n * (size_t)a->M);
}

static size_t focused_reduced_macs(const Attention *a) {
    const FocusedReduced *s = a->state;
    size_t N = (size_t)a->N, L = reduced_keys_count(&s->keys, 1);
    return reduced_keys_macs(&s->keys) + projection_macs(&s->q, N) + projection_macs(&s->kv, L) +
           focused_core_macs(&s->core, a) + projection_macs(&s->proj, N);
}

/* Of keys, to weights of the tokens that they were made of. */
static void spread(const FocusedReduced *s, const Attention *a, float *weights, const float *of_keys) {
    memset(weights, 0, (size_t)a->N * sizeof *weights);
    for (int l = 0; l < grid_tokens(s->keys.grid); l++) reduced_keys_spread(&s->keys, a, weights, l, of_keys[l]);
}

static void focused_reduced_weights(const Attention *a, float *weights, int b, int head, int query) {
    const FocusedReduced *s = a->state;
    float *of_keys = xcalloc(reduced_keys_count(&s->keys, 1), sizeof *of_keys, "attention picture");
    linear_core_weights(&s->core.core, a, of_keys, b, head, query);
    spread(s, a, weights, of_keys);
    free(of_keys);
}

/* The convolution's weights of all tokens' v, given back to the keys that each is interpolated from. */
static void focused_reduced_spatial(const Attention *a, float *weights, int b, int head, int query) {
    const FocusedReduced *s = a->state;
    int L = grid_tokens(s->keys.grid);
    float *of_keys = xcalloc((size_t)L + 1, sizeof *of_keys, "attention picture");
    (void)b, (void)head;
    focused_core_spatial(&s->core, a, weights, query);
    for (int m = 0; m < a->N; m++) {
        RowBlend blend = row_blend(m, L, a->N);
        of_keys[blend.row] += (1 - blend.next) * weights[m];
        of_keys[blend.row + 1] += blend.next * weights[m];
    }
    spread(s, a, weights, of_keys);
    free(of_keys);
}

const AttentionOp focused_reduced_op = {
    .name = "focused-reduced",
    .summary = "focused attention to fewer keys: convolved squares (FLatten's PVT)",
    .settings = ATTENTION_SETTINGS(&reduction_settings, &focused_settings),
    .needs_grid = true,
    .state_size = sizeof(FocusedReduced),
    .check = focused_reduced_check,
    .declare = focused_reduced_declare,
    .plan = focused_reduced_plan,
    .forward = focused_reduced_forward,
    .backward = focused_reduced_backward,
    .macs = focused_reduced_macs,
    .weights = focused_reduced_weights,
    .spatial = focused_reduced_spatial,
};
