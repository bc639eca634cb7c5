/* The feed-forward network in a layer of the detector's transformer.  x [n,M] -> f [n,M] */
#ifndef VIT_LAYERS_DETR_FEED_FORWARD_H
#define VIT_LAYERS_DETR_FEED_FORWARD_H

#include "layers/detr/post_norm.h"
#include "layers/projection.h"

typedef struct {
    Projection linear1, linear2;
    real *g;  /* [n,hidden] kept: after ReLU and dropout */
    real *dg; /* [n,hidden] scratch */
} FeedForward;

void feed_forward_declare(FeedForward *ff, Params *params, const char *prefix, int dim, int hidden);
void feed_forward_plan(FeedForward *ff, Plan *plan, const char *prefix, size_t n);
void feed_forward_forward(const FeedForward *ff, real *f, const real *x, Rows rows, const Dropout *dropout);
/* dx (=), may be df;  parameters (+=). */
void feed_forward_backward(const FeedForward *ff, real *dx, const real *df, const real *x, Rows rows,
                           const Dropout *dropout);
size_t feed_forward_macs(const FeedForward *ff, size_t n);

#endif
