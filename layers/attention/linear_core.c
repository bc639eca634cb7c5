#include "layers/attention/linear_core.h"

#include <stdlib.h>

#include "core/die.h"

/* The number of keys. */
static size_t keys_of(const LinearCore *c, const Attention *a) { return (size_t)(c->keys ? c->keys : a->N); }

void linear_core_plan(LinearCore *c, const Attention *a, Plan *plan, int B, int H, int F, Denominator rule) {
    size_t heads = (size_t)B * (size_t)H, token = heads * (size_t)F * sizeof(real), N = (size_t)a->N;
    size_t bytes = c->keys ? N * token : 2 * N * token;
    c->H = H;
    c->F = F;
    c->rule = rule;
    plan_pair(plan, a->prefix, "phi", &c->phi, &c->dphi, bytes);
    if (c->keys) plan_pair(plan, a->prefix, "phi_k", &c->phi_k, &c->dphi_k, (size_t)c->keys * token);
    plan_keep(plan, a->prefix, "den", &c->den, heads * N * sizeof(float));
    plan_keep(plan, a->prefix, "kv", &c->kv, heads * (size_t)F * (size_t)(a->D + 1) * sizeof(float));
    plan_workspace(plan, linear_attention_workspace(a->D, F));
}

static LinearAttention linear_shape(const LinearCore *c, const Attention *a, int B) {
    return (LinearAttention){B, a->N, c->H, a->D, c->F, c->rule, {c->keys, c->phi_k, c->dphi_k}};
}

void linear_core_forward(const LinearCore *c, const Attention *a, real *mix, const real *qkv, int B) {
    LinearAttention shape = linear_shape(c, a, B);
    linear_attention_forward(mix, c->den, c->kv, c->phi, qkv, &shape);
}

void linear_core_backward(const LinearCore *c, const Attention *a, real *dqkv, const real *dmix, const real *mix,
                          const real *qkv, int B) {
    LinearAttention shape = linear_shape(c, a, B);
    linear_attention_backward(dqkv, c->dphi, dmix, mix, c->den, c->kv, c->phi, qkv, &shape);
}

void linear_core_weights(const LinearCore *c, const Attention *a, float *weights, int b, int head, int query) {
    size_t F = (size_t)c->F, M = (size_t)c->H * F, row = c->keys ? M : 2 * M, L = keys_of(c, a);
    const real *phi_k = c->keys ? c->phi_k : c->phi + M;
    float *q = xcalloc(F, sizeof *q, "attention picture"), *k = xcalloc(L * row, sizeof *k, "attention picture");
    float sum = c->rule == DENOMINATOR_EPSILON ? 1e-6f : 0;
    real_download(q, c->phi + ((size_t)b * (size_t)a->N + (size_t)query) * row + (size_t)head * F, F);
    real_download(k, phi_k + (size_t)b * L * row, (L - 1) * row + M);
    for (size_t m = 0; m < L; m++) {
        weights[m] = 0;
        for (size_t f = 0; f < F; f++) weights[m] += q[f] * k[m * row + (size_t)head * F + f];
        sum += weights[m];
    }
    for (size_t m = 0; m < L; m++) weights[m] /= sum;
    free(k);
    free(q);
}

size_t linear_core_macs(const LinearCore *c, const Attention *a) {
    return ((size_t)a->N + keys_of(c, a)) * (size_t)c->H * (size_t)c->F * (size_t)(a->D + 1);
}
