/* Linear attention (Katharopoulos et al. 2020) with a feature map, per head.  x [B,N,M] -> y [B,N,M]
 * forward   1. q,k,v = x Wqkv^T + b   2. q, k encoded with positions, or unchanged   3. phi(q), phi(k)
 *           4. psi = phi encoded with positions, or unchanged
 *           5. S = sum_m psi(k_m) v_m^T, z = sum_m psi(k_m), or with phi if only the numerator has positions
 *           6. den_n = rule(psi(q_n).z), mix_n = psi(q_n)^T S / den_n   7. y = mix Wproj^T + b
 * backward  7. dmix   6.-5. dpsi, dv   4. dphi   3.-2. dq, dk   1. dx
 * saves     qkv, phi, mix, den [B,N,H], kv [B,H,F,D+1] (S with z as last column), and what the position encoding saves.
 * The rule is DENOMINATOR_EPSILON or, if features may be negative, DENOMINATOR_CLAMP.  For comparison, the published
 * code of FAVOR+ adds nothing, and that of RFA uses 1 for every denominator below 1, with features scaled by 0.1. */
#include <string.h>

#include "layers/features/feature_map.h"
#include "layers/papers.h"
#include "layers/attention.h"
#include "layers/features/relative.h"

typedef struct {
    FeatureMap map;
    Relative relative;
    float *den; /* [B,N,H] */
    float *kv;  /* [B,H,F,D+1] */
    float *z;   /* [B,H,F], if it is not the last column of kv */
} Linear;

static void linear_declare(Attention *a, Params *params) {
    Linear *s = a->state;
    feature_map_declare(&s->map, a, params);
    relative_declare(&s->relative, a, params, s->map.F);
}

static void linear_plan(Attention *a, Plan *plan, int B) {
    Linear *s = a->state;
    size_t heads = (size_t)B * (size_t)a->H;
    feature_map_plan(&s->map, a, plan, B);
    relative_plan(&s->relative, a, plan, B);
    plan_keep(plan, a->prefix, "den", &s->den, heads * (size_t)a->N * sizeof(float));
    plan_keep(plan, a->prefix, "kv", &s->kv, heads * (size_t)s->map.F * (size_t)(a->D + 1) * sizeof(float));
    if (s->relative.kind->numerator) plan_keep(plan, a->prefix, "z", &s->z, heads * (size_t)s->map.F * sizeof(float));
    plan_workspace(plan, linear_attention_workspace(a->D, s->map.F));
    plan_workspace(plan, denominator_workspace(s->map.F));
}

static void linear_draw(const Attention *a, uint64_t seed, uint32_t step) {
    const Linear *s = a->state;
    feature_map_draw(&s->map, a, seed, step);
    relative_draw(&s->relative, a, seed, step);
}

static Denominator rule_of(const Linear *s) { return s->map.kind->negative ? DENOMINATOR_CLAMP : DENOMINATOR_EPSILON; }

static void linear_op_forward(const Attention *a, int B) {
    const Linear *s = a->state;
    LinearAttention shape = {B, a->N, a->H, a->D, s->map.F, rule_of(s), {0}};
    feature_map_forward(&s->map, a, relative_code(&s->relative, a, a->frame.qkv_act, B), B);
    const real *psi = relative_features(&s->relative, a, s->map.phi, B);
    if (s->relative.kind->numerator) {
        denominator_forward(s->den, s->z, s->map.phi, &shape);
        shape.rule = DENOMINATOR_GIVEN;
    }
    linear_attention_forward(a->frame.mix, s->den, s->kv, psi, a->frame.qkv_act, &shape);
}

static void linear_op_backward(const Attention *a, int B) {
    const Linear *s = a->state;
    const Relative *r = &s->relative;
    const real *qkv = a->frame.qkv_act;
    bool apart = r->kind->numerator;
    LinearAttention shape = {B, a->N, a->H, a->D, s->map.F, apart ? DENOMINATOR_GIVEN : rule_of(s), {0}};
    linear_attention_backward(a->frame.dqkv, relative_features_slot(r, s->map.dphi), a->frame.dmix, a->frame.mix,
                              s->den, s->kv, r->kind->features ? r->psi : s->map.phi, qkv, &shape);
    relative_features_backward(r, a, s->map.dphi, B);
    shape.rule = rule_of(s);
    if (apart)
        denominator_backward(s->map.dphi, a->frame.dmix, a->frame.mix, s->den, s->z, s->map.phi, &shape);
    feature_map_backward(&s->map, a, relative_code_slot(r, a->frame.dqkv), r->kind->code ? r->coded : qkv, B);
    relative_code_backward(r, a, a->frame.dqkv, qkv, B);
}

static size_t linear_macs(const Attention *a) {
    const Linear *s = a->state;
    size_t features = (size_t)a->N * (size_t)a->H * (size_t)s->map.F;
    return feature_map_macs(&s->map, a) + relative_macs(&s->relative, a) +
           2 * features * (size_t)(a->D + 1);
}

static void linear_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Linear *s = a->state;
    size_t row = ((size_t)b * (size_t)a->N + (size_t)query) * (size_t)a->H + (size_t)head;
    float den;
    feature_map_scores(s->relative.kind->features ? s->relative.psi : s->map.phi, s->map.F, a, weights, b, head, query);
    device_download(&den, s->den + row, sizeof den);
    for (int m = 0; m < a->N; m++) weights[m] /= den;
}

static void linear_check(const Attention *a) {
    const RelativeSettings *relative = config_settings(a->settings, &relative_settings);
    if (a->grid.frames > 1 && relative && !strcmp(relative->relative->name, "rope-2d"))
        config_reject(a->settings, "relative", "{relative} does not support frames, but {frames} makes clips: use "
                                               "rope-3d");
}

static const char *linear_bound(const Attention *a) {
    const RelativeKind *kind = ((const Linear *)a->state)->relative.kind;
    return kind->code || kind->features ? "relative" : NULL;
}

const AttentionOp linear_op = {
    .name = "linear",
    .summary = "linear attention with a learned feature map (DeiT-LA)",
    .paper = PAPER_LINEAR,
    .settings = ATTENTION_SETTINGS(&feature_map_settings),
    .grid_settings = ATTENTION_SETTINGS(&relative_settings),
    .off_grid = true,
    .takes_mask = true,
    .any_grid = true,
    .state_size = sizeof(Linear),
    .check = linear_check,
    .declare = linear_declare,
    .plan = linear_plan,
    .bound_to_grid = linear_bound,
    .draw = linear_draw,
    .mix_forward = linear_op_forward,
    .mix_backward = linear_op_backward,
    .macs = linear_macs,
    .weights = linear_weights,
};
