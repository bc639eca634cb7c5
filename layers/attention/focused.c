/* Focused linear attention (Han et al. 2023, FLatten Transformer).  x [B,N,M] -> y [B,N,M]
 * forward   1. q,k,v = x Wqkv^T + b
 *           2. r = relu(q) + 1e-6, relu(k + positional_encoding) + 1e-6;  u = r / softplus(scale);
 *              phi = |u| u^p / |u^p|, norms over the whole token: this keeps the norm and turns the vector towards its
 *              largest components
 *           3. per head, z_n = 1 / (phi(q_n).mean_m phi(k_m) + 1e-6),  mix_n = z_n phi(q_n)^T sum_m phi(k_m) v_m^T / N
 *           4. mix += depthwise 5x5 of v over the grid, weights shared by the heads   5. y = mix Wproj^T + b
 * backward  5. dmix   3. dphi, dv   4. dv += reversed depthwise of dmix   2. dq, dk   1. dx
 * saves     qkv, phi, den, kv, and linear attention's mix before step 4.  1/N is part of phi(k). */
#include <stdlib.h>

#include "core/die.h"
#include "layers/attention/linear_core.h"
#include "layers/attention/qkv.h"
#include "layers/depthwise.h"

typedef struct {
    int focused_p;
} FocusedSettings;

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(INT, FocusedSettings, focused_p), "3", .section = "attention", .min = 1, .max = 64,
     .help = "Exponent of the focusing function of focused linear attention"},
};

static const ConfigGroup focused_settings = {CONFIG_GROUP(FocusedSettings, entries)};

typedef struct {
    QkvFrame frame;
    LinearCore core;
    DepthwiseLayer dwc;
    float *pos, *dpos;     /* [N,M] */
    float *scale, *dscale; /* [M] */
    real *linear;          /* [B,N,M] kept: step 3's mix */
} Focused;

static int power_of(const Attention *a) {
    return ((const FocusedSettings *)config_settings(a->settings, &focused_settings))->focused_p;
}

static void focused_declare(Attention *a, Params *params) {
    Focused *s = a->state;
    int M = a->M;
    qkv_declare(&s->frame, a, params);
    /* Both decay in the published code and in timm's groups. */
    params_declare(params, &s->pos, &s->dpos, a->prefix, "positional_encoding", INIT_ZEROS, true, 3,
                   (int[]){1, a->N, M});
    params_on_grid(params, (ParamGrid){1, 1, a->N - grid_tokens(a->grid), a->grid});
    params_in_time(params, (ParamTime){TIME_COPIES, 1, a->grid.frames, a->N - grid_tokens(a->grid), false});
    params_declare(params, &s->scale, &s->dscale, a->prefix, "scale", INIT_ZEROS, true, 3, (int[]){1, 1, M});
    depthwise_declare(&s->dwc, params, a->prefix, "dwc",
                      (Depthwise){a->grid, M, 5, a->D, 3 * M, M, a->time_kernel}, true);
}

static void focused_plan(Attention *a, Plan *plan, int B) {
    Focused *s = a->state;
    PlanMark mark = plan_mark(plan);
    qkv_plan(&s->frame, a, plan, B);
    linear_core_plan(&s->core, a, plan, B, a->H, a->D, DENOMINATOR_EPSILON);
    plan_keep(plan, a->prefix, "linear", &s->linear, (size_t)B * (size_t)a->N * (size_t)a->M * sizeof(real));
    plan_workspace(plan, focused_features_workspace(a->M));
    plan_workspace(plan, depthwise_workspace(&s->dwc.shape));
    plan_release(plan, mark);
}

static void focused_forward(const Attention *a, real *y, const real *x, int B) {
    const Focused *s = a->state;
    const real *qkv = s->frame.qkv_act;
    qkv_forward_in(&s->frame, a, x, B);
    focused_features_forward(s->core.phi, qkv, s->pos, s->scale, power_of(a),
                             &(AttentionShape){B, a->N, a->H, a->D});
    linear_core_forward(&s->core, a, s->linear, qkv, B);
    depthwise_forward(s->frame.mix, s->linear, qkv + 2 * a->M, s->dwc.w, s->dwc.b, &s->dwc.shape, B);
    qkv_forward_out(&s->frame, a, y, B);
}

static void focused_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const Focused *s = a->state;
    const real *qkv = s->frame.qkv_act;
    real *dqkv = s->frame.dqkv, *dv = dqkv + 2 * a->M;
    qkv_backward_out(&s->frame, a, dy, B);
    linear_core_backward(&s->core, a, dqkv, s->frame.dmix, s->linear, qkv, B);
    depthwise_backward(dv, dv, s->dwc.dw, s->dwc.db, s->frame.dmix, qkv + 2 * a->M, s->dwc.w, &s->dwc.shape, B);
    focused_features_backward(dqkv, s->dpos, s->dscale, s->core.dphi, qkv, s->pos, s->scale, power_of(a),
                              &(AttentionShape){B, a->N, a->H, a->D});
    qkv_backward_in(&s->frame, a, dx, x, B);
}

static size_t focused_macs(const Attention *a) {
    const Focused *s = a->state;
    return qkv_macs(&s->frame, a) + linear_core_macs(&s->core, a) + depthwise_macs(&s->dwc.shape);
}

/* The weights of step 3 only; those of the convolution are given by focused_spatial. */
static void focused_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Focused *s = a->state;
    linear_core_weights(&s->core, a, weights, b, head, query);
}

/* AttentionOp.spatial: the depthwise kernel, averaged over the head's channels. */
static void focused_spatial(const Attention *a, float *weights, int b, int head, int query) {
    const Focused *s = a->state;
    const Depthwise *d = &s->dwc.shape;
    int k = d->k, reach = k / 2, Wg = a->grid.columns, y0 = query / Wg - reach, x0 = query % Wg - reach;
    float *w = xcalloc((size_t)a->D * (size_t)(k * k), sizeof *w, "attention picture");
    (void)b, (void)head;
    device_download(w, s->dwc.w, (size_t)a->D * (size_t)(k * k) * sizeof *w);
    for (int j = 0; j < a->N; j++) {
        int y = j / Wg - y0, x = j % Wg - x0;
        weights[j] = 0;
        for (int c = 0; y >= 0 && y < k && x >= 0 && x < k && c < a->D; c++)
            weights[j] += w[(c * k + y) * k + x] / (float)a->D;
    }
    free(w);
}

const AttentionOp focused_op = {
    .name = "focused",
    .summary = "focused linear attention: features to the power p, 5x5 on v (FLatten)",
    .settings = ATTENTION_SETTINGS(&focused_settings),
    .needs_grid = true,
    .takes_frames = true,
    .state_size = sizeof(Focused),
    .declare = focused_declare,
    .plan = focused_plan,
    .forward = focused_forward,
    .backward = focused_backward,
    .macs = focused_macs,
    .weights = focused_weights,
    .spatial = focused_spatial,
};
