/* The residual connection and norm of a post-norm transformer.  x' = norm(x + drop(f))
 * backward  dsum = norm'(dx'),  df = drop(dsum);  dsum is also the gradient of x through the residual connection.
 * saves     sum = x + drop(f) [n,M], and its mean and 1 / standard deviation [n]. */
#ifndef VIT_LAYERS_DETR_POST_NORM_H
#define VIT_LAYERS_DETR_POST_NORM_H

#include "training/plan.h"
#include "kernels/kernels.h"
#include "layers/layer_norm.h"

typedef struct {
    NormLayer norm;
    real *sum;          /* [n,M] kept */
    real *x;            /* [n,M] kept: the output x' */
} PostNorm;

/* n images of `rows` tokens each. */
typedef struct {
    int n, rows;
} Rows;

static inline size_t rows_total(Rows r) { return (size_t)r.n * (size_t)r.rows; }

void post_norm_declare(PostNorm *p, Params *params, const char *prefix, const char *name, int M);
/* In training everything is kept.  In inference the sum overwrites `from`, which holds x, and the output x' is written
 * to `to`. */
void post_norm_plan(PostNorm *p, Plan *plan, const char *prefix, const char *name, size_t n, real **from, real **to);
/* p->x = norm(x + drop(f)).  Overwrites f. */
void post_norm_forward(const PostNorm *p, const real *x, real *f, Rows rows, const Dropout *dropout);
/* dsum, df (=);  parameters (+=). */
void post_norm_backward(const PostNorm *p, real *dsum, real *df, const real *dx, Rows rows, const Dropout *dropout);

#endif
