/* Focused linear attention to fewer keys (Han et al. 2023, FLatten Transformer, in PVT).  x [B,N,M] -> y [B,N,M]
 * forward   1. z = what the grid is reduced to, L tokens (reduced_keys.h)
 *           2. q = x Wq^T + b,  k, v = z Wkv^T + b   3. mix: focused_core.h   4. y = mix Wproj^T + b
 * backward  4. dmix   3. dq, dk, dv   2. dz, dx   1. dx += the gradient through z
 * saves     q, kv, mix, and what the core and reduced_keys.h save.  Parameter names are the authors'. */
#include <stdlib.h>

#include "core/die.h"
#include "layers/attention/focused_core.h"
#include "layers/papers.h"
#include "layers/attention/reduced_keys.h"

typedef struct {
    ReducedFrame frame;
    FocusedCore core;
} FocusedReduced;

static void focused_reduced_check(const Attention *a) { (void)reduction_of(a); }

static void focused_reduced_declare(Attention *a, Params *params) {
    FocusedReduced *s = a->state;
    const ReducedKeys *keys = &s->frame.keys;
    reduced_frame_declare(&s->frame, a, params, reduction_of(a), 0);
    focused_core_declare(&s->core, a, params, reduced_keys_differ(keys) ? &keys->grid : &a->grid);
}

static void focused_reduced_plan(Attention *a, Plan *plan, int B) {
    FocusedReduced *s = a->state;
    reduced_frame_plan(&s->frame, a, plan, B);
    focused_core_plan(&s->core, a, plan, B);
}

static void focused_reduced_follow_grid(Attention *a) {
    FocusedReduced *s = a->state;
    const ReducedKeys *keys = &s->frame.keys;
    reduced_frame_follow_grid(&s->frame, a);
    focused_core_follow_grid(&s->core, a, reduced_keys_differ(keys) ? &keys->grid : NULL);
}

static void focused_reduced_forward(const Attention *a, real *y, const real *x, int B) {
    const FocusedReduced *s = a->state;
    const ReducedFrame *f = &s->frame;
    reduced_frame_forward_in(f, a, x, B);
    focused_core_forward(&s->core, a, f->mix, f->q_act, f->kv_act, B);
    projection_forward(&f->proj, y, f->mix, attention_tokens(a, B));
}

static void focused_reduced_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const FocusedReduced *s = a->state;
    const ReducedFrame *f = &s->frame;
    projection_backward(&f->proj, f->dmix, dy, f->mix, attention_tokens(a, B));
    focused_core_backward(&s->core, a, f->dq, f->dkv, f->dmix, f->q_act, f->kv_act, B);
    reduced_frame_backward_in(f, a, dx, x, B);
}

static size_t focused_reduced_macs(const Attention *a) {
    const FocusedReduced *s = a->state;
    return reduced_frame_macs(&s->frame, a) + focused_core_macs(&s->core, a);
}

static void focused_reduced_weights(const Attention *a, float *weights, int b, int head, int query) {
    const FocusedReduced *s = a->state;
    float *of_keys = xcalloc(reduced_keys_count(&s->frame.keys, 1), sizeof *of_keys, "attention picture");
    linear_core_weights(&s->core.core, a, of_keys, b, head, query);
    reduced_keys_spread(&s->frame.keys, a, weights, of_keys);
    free(of_keys);
}

/* The convolution's weights of all tokens' v, assigned to the keys from which each is interpolated. */
static void focused_reduced_spatial(const Attention *a, float *weights, int b, int head, int query) {
    const FocusedReduced *s = a->state;
    int L = grid_tokens(s->frame.keys.grid);
    float *of_keys = xcalloc((size_t)L + 1, sizeof *of_keys, "attention picture");
    (void)b, (void)head;
    focused_core_spatial(&s->core, a, weights, query);
    for (int m = 0; m < a->N; m++) {
        RowBlend blend = row_blend(m, L, a->N);
        of_keys[blend.row] += (1 - blend.next) * weights[m];
        of_keys[blend.row + 1] += blend.next * weights[m];
    }
    reduced_keys_spread(&s->frame.keys, a, weights, of_keys);
    free(of_keys);
}

const AttentionOp focused_reduced_op = {
    .name = "focused-reduced",
    .summary = "focused attention to fewer keys, from a strided convolution (FLatten)",
    .paper = PAPER_FLATTEN,
    .settings = ATTENTION_SETTINGS(&reduction_settings, &focused_settings),
    .images_only = true,
    .any_grid = true,
    .state_size = sizeof(FocusedReduced),
    .check = focused_reduced_check,
    .declare = focused_reduced_declare,
    .plan = focused_reduced_plan,
    .follow_grid = focused_reduced_follow_grid,
    .forward = focused_reduced_forward,
    .backward = focused_reduced_backward,
    .macs = focused_reduced_macs,
    .weights = focused_reduced_weights,
    .spatial = focused_reduced_spatial,
};
