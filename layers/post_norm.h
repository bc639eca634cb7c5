/* The residual connection of a post-norm transformer.  x' = norm(x + drop(f))
 * backward  dsum = norm'(dx'),  df = drop(dsum);  dsum is also the gradient of x by the short way.
 * saves     sum = x + drop(f) [n,M], its mean and 1 / deviation [n]; what is dropped is drawn again. */
#ifndef VIT_LAYERS_POST_NORM_H
#define VIT_LAYERS_POST_NORM_H

#include "core/plan.h"
#include "kernels/kernels.h"
#include "layers/layer_norm.h"

typedef struct {
    int M;
    NormPair norm;
    real *sum;          /* [n,M] kept */
    real *x;            /* [n,M] kept: the stream behind it */
    float *mean, *rstd; /* [n] kept */
} PostNorm;

/* n images of `rows` tokens. */
typedef struct {
    int n, rows;
} Rows;

static inline size_t rows_total(Rows r) { return (size_t)r.n * (size_t)r.rows; }

/* The layer norm of n rows. */
static inline LayerNorm post_norm_of(const PostNorm *p, size_t n) {
    return (LayerNorm){p->norm.w, p->norm.b, p->mean, p->rstd, n, p->M, PYTORCH_NORM_EPS};
}

void post_norm_declare(PostNorm *p, Params *params, const char *prefix, const char *name, int M);
/* Training keeps all.  In inference the sum takes the place of `from`, the stream before,
 * and the stream goes to `to`. */
void post_norm_plan(PostNorm *p, Plan *plan, const char *prefix, const char *name, size_t n, real **from, real **to);
/* p->x from x and f, which is overwritten. */
void post_norm_forward(const PostNorm *p, const real *x, real *f, Rows rows, const Dropout *dropout);
/* dsum, df (=);  parameters (+=). */
void post_norm_backward(const PostNorm *p, real *dsum, real *df, const real *dx, Rows rows, const Dropout *dropout);

#endif
