#include "layers/attention/linear_core.h"

#include <stdlib.h>

#include "core/die.h"

void linear_core_plan(LinearCore *c, const Attention *a, Plan *plan, int B, int H, int F, Denominator rule) {
    size_t heads = (size_t)B * (size_t)H, bytes = heads * (size_t)a->N * 2 * (size_t)F * sizeof(real);
    c->H = H;
    c->F = F;
    c->rule = rule;
    plan_keep(plan, a->prefix, "phi", &c->phi, bytes);
    plan_keep(plan, a->prefix, "den", &c->den, heads * (size_t)a->N * sizeof(float));
    plan_keep(plan, a->prefix, "kv", &c->kv, heads * (size_t)F * (size_t)(a->D + 1) * sizeof(float));
    if (plan->training) plan_borrow(plan, a->prefix, "dphi", &c->dphi, bytes);
    plan_workspace(plan, linear_attention_workspace(a->D, F));
}

static LinearAttention shape_of(const LinearCore *c, const Attention *a, int B) {
    return (LinearAttention){B, a->N, c->H, a->D, c->F, c->rule};
}

void linear_core_forward(const LinearCore *c, const Attention *a, real *mix, const real *qkv, int B) {
    LinearAttention shape = shape_of(c, a, B);
    linear_attention_forward(mix, c->den, c->kv, c->phi, qkv, &shape);
}

void linear_core_backward(const LinearCore *c, const Attention *a, real *dqkv, const real *dmix, const real *mix,
                          const real *qkv, int B) {
    LinearAttention shape = shape_of(c, a, B);
    linear_attention_backward(dqkv, c->dphi, dmix, mix, c->den, c->kv, c->phi, qkv, &shape);
}

void linear_core_weights(const LinearCore *c, const Attention *a, float *weights, int b, int head, int query) {
    size_t F = (size_t)c->F, row = 2 * (size_t)c->H * F;
    float *phi = xcalloc((size_t)a->N, row * sizeof *phi, "attention picture"),
          sum = c->rule == DENOMINATOR_EPSILON ? 1e-6f : 0;
    real_download(phi, c->phi + (size_t)b * (size_t)a->N * row, (size_t)a->N * row);
    const float *q = phi + (size_t)query * row + (size_t)head * F;
    for (int m = 0; m < a->N; m++) {
        const float *k = phi + (size_t)m * row + (size_t)(c->H + head) * F;
        weights[m] = 0;
        for (size_t f = 0; f < F; f++) weights[m] += q[f] * k[f];
        sum += weights[m];
    }
    for (int m = 0; m < a->N; m++) weights[m] /= sum;
    free(phi);
}

size_t linear_core_macs(const LinearCore *c, const Attention *a) {
    return 2 * (size_t)a->N * (size_t)c->H * (size_t)c->F * (size_t)(a->D + 1);
}
