/* Multi-scale attention without strides (Li et al. 2022, MViTv2).  x [B,N,M] -> y [B,N,M], tokens on a grid
 * forward   1. q,k,v = x Wqkv^T + b   2. depthwise 3x3 of each over the grid   3. layer norm of each, head by head
 *           4. o_n = sum_m softmax_m(q_n.k_m / sqrt D) v_m   5. mix = o + q   6. y = mix Wproj^T + b
 * backward  6. dmix   4. dq, dk, dv   5. dq += dmix   3. 2. 1. dx
 * saves     qkv, pooled (step 2), normed (step 3), o, lse, mix.
 *
 * Each channel has its own 3x3 weights, which the LiSA paper's parameter count implies; in MViTv2 the heads share them.
 * The heads share the weights of the norms.  k's norm has no bias, because a bias would add the same number to all
 * scores of a query and so not change the softmax. */
#include "layers/attention/qkv.h"
#include "layers/depthwise.h"

static const float EPSILON = 1e-6f;

typedef struct {
    QkvFrame frame;
    DepthwiseLayer pool;       /* [3M,1,3,3]: q's, k's and v's channels */
    float *w[3], *dw[3];       /* [D] */
    float *b[3], *db[3];       /* [D], k's NULL */
    real *pooled, *normed, *o; /* [B,N,3,M] twice, [B,N,M]: kept */
    float *lse;                /* [B,H,N] kept */
    real *dnormed;             /* [B,N,3,M] scratch */
} Convattn;

static void convattn_declare(Attention *a, Params *params) {
    Convattn *s = a->state;
    int M = a->M;
    qkv_declare(&s->frame, a, params);
    depthwise_declare(&s->pool, params, a->prefix, "pool", (Depthwise){a->grid, 3 * M, 3, 3 * M, 3 * M, 3 * M},
                      false);
    const char *const w[] = {"norm_q.weight", "norm_k.weight", "norm_v.weight"};
    const char *const b[] = {"norm_q.bias", NULL, "norm_v.bias"};
    for (int i = 0; i < 3; i++) {
        params_declare(params, &s->w[i], &s->dw[i], a->prefix, w[i], INIT_ONES, false, 1, (int[]){a->D});
        if (b[i]) params_declare(params, &s->b[i], &s->db[i], a->prefix, b[i], INIT_ZEROS, false, 1, (int[]){a->D});
    }
}

static void convattn_plan(Attention *a, Plan *plan, int B) {
    Convattn *s = a->state;
    size_t bytes = (size_t)B * (size_t)a->N * (size_t)a->M * sizeof(real);
    PlanMark mark = plan_mark(plan);
    qkv_plan(&s->frame, a, plan, B);
    plan_keep(plan, a->prefix, "pooled", &s->pooled, 3 * bytes);
    plan_keep(plan, a->prefix, "normed", &s->normed, 3 * bytes);
    plan_keep(plan, a->prefix, "o", &s->o, bytes);
    plan_keep(plan, a->prefix, "lse", &s->lse, (size_t)B * (size_t)a->H * (size_t)a->N * sizeof(float));
    if (plan->training) plan_borrow(plan, a->prefix, "dnormed", &s->dnormed, 3 * bytes);
    plan_workspace(plan, depthwise_workspace(&s->pool.shape));
    plan_workspace(plan, heads_norm_workspace(a->D));
    plan_workspace(plan, softmax_attention_workspace(a->N, a->D));
    plan_release(plan, mark);
}

static HeadsNorm norm_of(const Attention *a, int B) {
    return (HeadsNorm){(size_t)B * (size_t)a->N, 3 * a->M, a->H, a->D, EPSILON};
}

static void convattn_forward(const Attention *a, real *y, const real *x, int B) {
    const Convattn *s = a->state;
    HeadsNorm norm = norm_of(a, B);
    size_t n = norm.n;
    int M = a->M;
    qkv_forward_in(&s->frame, a, x, B);
    depthwise_forward(s->pooled, NULL, s->frame.qkv_act, s->pool.w, NULL, &s->pool.shape, B);
    for (int i = 0; i < 3; i++)
        heads_norm_forward(s->normed + i * M, s->pooled + i * M, s->w[i], s->b[i], &norm);
    softmax_attention_forward(s->o, s->lse, s->normed, &(AttentionShape){B, a->N, a->H, a->D});
    rows_add(s->frame.mix, s->o, s->normed, n, M, M, M, 3 * M);
    qkv_forward_out(&s->frame, a, y, B);
}

static void convattn_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const Convattn *s = a->state;
    const QkvFrame *f = &s->frame;
    HeadsNorm norm = norm_of(a, B);
    size_t n = norm.n;
    int M = a->M;
    qkv_backward_out(f, a, dy, B);
    softmax_attention_backward(s->dnormed, f->dmix, s->o, s->lse, s->normed,
                               &(AttentionShape){B, a->N, a->H, a->D});
    rows_add(s->dnormed, s->dnormed, f->dmix, n, M, 3 * M, 3 * M, M);
    for (int i = 0; i < 3; i++)
        heads_norm_backward(s->dnormed + i * M, s->dw[i], s->db[i], s->dnormed + i * M, s->pooled + i * M, s->w[i],
                            &norm);
    depthwise_backward(f->dqkv, NULL, s->pool.dw, NULL, s->dnormed, f->qkv_act, s->pool.w, &s->pool.shape, B);
    qkv_backward_in(f, a, dx, x, B);
}

static size_t convattn_macs(const Attention *a) {
    const Convattn *s = a->state;
    return qkv_macs(&s->frame, a) + depthwise_macs(&s->pool.shape) + 2 * (size_t)a->N * (size_t)a->N * (size_t)a->M;
}

/* The weights of step 4, without the addition of q. */
static void convattn_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Convattn *s = a->state;
    QkvFrame normed = s->frame;
    normed.qkv_act = s->normed;
    qkv_softmax_row(&normed, a, weights, b, head, query);
}

const AttentionOp convattn_op = {
    .name = "convattn",
    .summary = "softmax after depthwise 3x3 and a norm on q, k, v, plus q (MViTv2)",
    .needs_grid = true,
    .state_size = sizeof(Convattn),
    .declare = convattn_declare,
    .plan = convattn_plan,
    .forward = convattn_forward,
    .backward = convattn_backward,
    .macs = convattn_macs,
    .weights = convattn_weights,
};
