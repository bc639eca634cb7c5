/* Pooling.  h [B,N,M] -> y [B,M]
 * forward   y = h_0 (cls), or the mean of h_n (gap), or sum_n a_n h_n with a = softmax_n(h_n.w) (seq)
 * backward  dh, dw
 * saves     a. */
#include "layers/vit/pooling.h"

void pooling_declare(Pooling *p, Params *params, Pool pool, int M) {
    *p = (Pooling){.pool = pool};
    if (pool == POOL_SEQ) projection_declare(&p->scores, params, "", "attention_pool", M, 1);
}

void pooling_plan(Pooling *p, Plan *plan, const TokenShape *tokens) {
    size_t bytes = (size_t)tokens->B * (size_t)tokens->N * sizeof(float);
    if (p->pool == POOL_SEQ) plan_pair(plan, "attention_pool.", "weights", &p->a, &p->ds, bytes);
}

/* The first token and the number of tokens of a mean. */
static int tokens_of(const Pooling *p, const TokenShape *tokens) { return p->pool == POOL_CLS ? 1 : tokens->N; }

void pooling_forward(const Pooling *p, real *y, const real *h, const TokenShape *tokens) {
    if (p->pool == POOL_SEQ) sequence_pool_forward(y, p->a, h, p->scores.w, tokens);
    else pool_forward(y, h, tokens, 0, tokens_of(p, tokens));
}

void pooling_backward(const Pooling *p, real *dh, const real *dy, const real *h, const TokenShape *tokens) {
    if (p->pool == POOL_SEQ) sequence_pool_backward(dh, p->scores.dw, p->ds, dy, h, p->scores.w, p->a, tokens);
    else pool_backward(dh, dy, tokens, 0, tokens_of(p, tokens));
}
