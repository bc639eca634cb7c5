/* The steps of Attention.frame: attention.c calls them before and after an operator that has mix_forward. */
#ifndef VIT_LAYERS_QKV_H
#define VIT_LAYERS_QKV_H

#include "layers/attention.h"

void qkv_declare(Attention *a, Params *params);
void qkv_plan(Attention *a, Plan *plan, int B);
void qkv_forward_in(const Attention *a, const real *x, int B);
void qkv_forward_out(const Attention *a, real *y, int B);
/* Backward: qkv_backward_out computes dmix from dy, then the operator computes dqkv, then qkv_backward_in computes
 * dx. */
void qkv_backward_out(const Attention *a, const real *dy, int B);
void qkv_backward_in(const Attention *a, real *dx, const real *x, int B);
size_t qkv_macs(const Attention *a);
/* Row `query` of softmax(q k^T / sqrt D) of qkv [B,N,3,H,D]: host weights [N], for AttentionOp.weights. */
void qkv_softmax_row(const real *qkv, const Attention *a, float *weights, int b, int head, int query);

#endif
