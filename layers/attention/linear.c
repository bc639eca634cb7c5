/* Linear attention (Katharopoulos et al. 2020) with a feature map, per head.  x [B,N,M] -> y [B,N,M]
 * forward   1. q,k,v = x Wqkv^T + b   2. phi(q), phi(k)   3. S = sum_m phi(k_m) v_m^T, z = sum_m phi(k_m)
 *           4. den_n = phi(q_n).z + 1e-6, mix_n = phi(q_n)^T S / den_n   5. y = mix Wproj^T + b
 * backward  5. dmix   4.-3. dphi(q), dphi(k), dv   2. dq, dk   1. dx
 * saves     qkv, phi, mix, den [B,N,H], kv [B,H,F,D+1] (S with z as last column). */
#include "layers/attention/feature_map.h"

typedef struct {
    QkvFrame frame;
    FeatureMap map;
    float *den; /* [B,N,H] */
    float *kv;  /* [B,H,F,D+1] */
} Linear;

static void linear_declare(Attention *a, Params *params) {
    Linear *s = a->state;
    qkv_declare(&s->frame, a, params);
    feature_map_declare(&s->map, a, params);
}

static void linear_plan(Attention *a, Plan *plan, int B) {
    Linear *s = a->state;
    size_t heads = (size_t)B * (size_t)a->H;
    PlanMark mark = plan_mark(plan);
    qkv_plan(&s->frame, a, plan, B);
    feature_map_plan(&s->map, a, plan, B);
    plan_keep(plan, a->prefix, "den", &s->den, heads * (size_t)a->N * sizeof(float));
    plan_keep(plan, a->prefix, "kv", &s->kv, heads * (size_t)s->map.F * (size_t)(a->D + 1) * sizeof(float));
    plan_workspace(plan, linear_attention_workspace(a->D, s->map.F));
    plan_release(plan, mark);
}

static void linear_op_forward(const Attention *a, real *y, const real *x, int B) {
    const Linear *s = a->state;
    qkv_forward_in(&s->frame, a, x, B);
    feature_map_forward(&s->map, a, s->frame.qkv_act, B);
    linear_attention_forward(s->frame.mix, s->den, s->kv, s->map.phi, s->frame.qkv_act, B, a->N, a->H, a->D, s->map.F);
    qkv_forward_out(&s->frame, a, y, B);
}

static void linear_op_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const Linear *s = a->state;
    qkv_backward_out(&s->frame, a, dy, B);
    linear_attention_backward(s->frame.dqkv, s->map.dphi, s->frame.dmix, s->frame.mix, s->den, s->kv, s->map.phi,
                              s->frame.qkv_act, B, a->N, a->H, a->D, s->map.F);
    feature_map_backward(&s->map, a, s->frame.dqkv, s->frame.qkv_act, B);
    qkv_backward_in(&s->frame, a, dx, x, B);
}

static size_t linear_macs(const Attention *a) {
    const Linear *s = a->state;
    size_t features = (size_t)a->N * (size_t)a->H * (size_t)s->map.F;
    return qkv_macs(&s->frame, a) + feature_map_macs(&s->map, a) + 2 * features * (size_t)(a->D + 1);
}

static void linear_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Linear *s = a->state;
    feature_map_scores(&s->map, a, weights, b, head, query);
    float sum = 1e-6f;
    for (int m = 0; m < a->N; m++) sum += weights[m];
    for (int m = 0; m < a->N; m++) weights[m] /= sum;
}

const AttentionOp linear_op = {
    .name = "linear",
    .summary = "linear attention with a learned feature map (DeiT-LA)",
    .state_size = sizeof(Linear),
    .declare = linear_declare,
    .plan = linear_plan,
    .forward = linear_op_forward,
    .backward = linear_op_backward,
    .macs = linear_macs,
    .weights = linear_weights,
};
