/* PermuteFormer (Chen 2021) on the features: each head has a random permutation pi of its F features.
 * forward   y_(n,f) = phi_(n, pi^n(f)), for q and k alike, so that y(q_n).y(k_m) depends on n - m
 * backward  dphi_(n, pi^n(f)) = dy_(n,f)
 * saves     psi, order [H,N,F]: the powers of pi.
 * pi [H,F] is a buffer that is drawn at initialisation and stored in checkpoints with the weights.
 *
 * n counts tokens row by row.  In the author's code for images one half of the features is permuted by the column and
 * the other by the row, and all layers share pi. */
#include "core/rng.h"
#include "layers/papers.h"
#include "layers/features/relative.h"

/* Fills each row with a random permutation of 0 .. n-1 (Fisher-Yates shuffle). */
static void random_orders(float *x, const Param *p, uint64_t seed, uint32_t tensor) {
    size_t n = (size_t)p->shape[p->ndim - 1];
    for (size_t i = 0; i < p->size; i++) x[i] = (float)(i % n);
    for (size_t i = 0; i < p->size; i++) {
        size_t left = n - i % n, other = i + rng_below(seed, RNG_INIT, tensor, 0, i, (uint32_t)left);
        float kept = x[i];
        x[i] = x[other];
        x[other] = kept;
    }
}

static void permute_declare(Relative *r, const Attention *a, Params *params) {
    params_declare(params, (Param){.value = &r->permutation, .named = {a->prefix, "relative.permutation"},
                                   .init = INIT_ZEROS, .frozen = true, .shape = {a->H, r->F}, .draw = random_orders});
}

static void permute_plan(Relative *r, const Attention *a, Plan *plan, int B) {
    (void)B;
    plan_keep(plan, a->prefix, "order", &r->order, (size_t)a->H * (size_t)a->N * (size_t)r->F * sizeof *r->order);
}

static void permute_features(const Relative *r, const Attention *a, const real *phi, int B) {
    permute_table(r->order, r->permutation, a->N, a->H, r->F);
    permute_forward(r->psi, phi, r->order, &(FeatureShape){B, a->N, a->H, a->D, r->F});
}

static void permute_features_backward(const Relative *r, const Attention *a, real *dphi, int B) {
    permute_backward(dphi, r->dpsi, r->order, &(FeatureShape){B, a->N, a->H, a->D, r->F});
}

const RelativeKind relative_permute = {
    .name = "permute",
    .summary = "permutes token n's features n times (PermuteFormer, Chen 2021)",
    .paper = PAPER_PERMUTE,
    .declare = permute_declare,
    .plan = permute_plan,
    .features = permute_features,
    .features_backward = permute_features_backward,
};
