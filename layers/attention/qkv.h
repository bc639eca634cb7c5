/* The projections before and after every operator on queries, keys and values.
 *   x [B,N,M] -> qkv [B,N,3,H,D] -> (the operator) -> mix [B,N,H,D] -> y [B,N,M]
 * In a detector q and k are projections of x + pos.  pos is not a parameter, so that only the gradients of the weights
 * of q and k depend on it. */
#ifndef VIT_LAYERS_QKV_H
#define VIT_LAYERS_QKV_H

#include "layers/attention.h"
#include "layers/projection.h"

typedef struct {
    Projection qkv, proj;
    real *qkv_act, *mix;   /* kept */
    real *dqkv, *dmix;     /* scratch */
    real *with_pos;        /* [B,N,M] scratch: x + pos, in a detector */
} QkvFrame;

void qkv_declare(QkvFrame *f, Attention *a, Params *params);
/* Scratch is valid until the caller's plan_release. */
void qkv_plan(QkvFrame *f, const Attention *a, Plan *plan, int B);
void qkv_forward_in(const QkvFrame *f, const Attention *a, const real *x, int B);
void qkv_forward_out(const QkvFrame *f, const Attention *a, real *y, int B);
/* Backward: qkv_backward_out computes dmix from dy, then the operator computes dqkv, then qkv_backward_in computes
 * dx. */
void qkv_backward_out(const QkvFrame *f, const Attention *a, const real *dy, int B);
void qkv_backward_in(const QkvFrame *f, const Attention *a, real *dx, const real *x, int B);
size_t qkv_macs(const QkvFrame *f, const Attention *a);
/* Row `query` of softmax(q k^T / sqrt D) of the last forward pass: host weights [N], for AttentionOp.weights. */
void qkv_softmax_row(const QkvFrame *f, const Attention *a, float *weights, int b, int head, int query);

#endif
