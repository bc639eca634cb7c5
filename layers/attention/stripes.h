/* A branch of CSwin's attention (Dong et al. 2022) between the projections: attention within stripes of the grid, and
 * locally enhanced positions (LePE).  Some heads of qkv [B,N,3,M] -> their channels of mix [B,N,M]
 * forward   1. rows = q, k, v of these heads in the order of stripes, which the next steps treat as images
 *           2. y = softmax attention of rows, or focused linear attention
 *           3. y += depthwise 3x3 of v within the stripe   4. mix = y in the order of tokens
 * backward  the same steps in reverse
 * saves     what attention saves; rows are formed again.  One stripe with all heads needs no other order.
 * Of clips a stripe goes through all frames, and LePE is time_kernel frames long. */
#ifndef VIT_LAYERS_STRIPES_H
#define VIT_LAYERS_STRIPES_H

#include "layers/attention/focused_core.h"

typedef struct {
    Attention stripe;    /* tokens, channels and heads of one stripe; prefix ".. attns.0." */
    WindowRows order;    /* of q, k and v */
    int first;           /* channel of the first head */
    size_t most;         /* places in the stripes of an image that stripes_plan plans for */
    bool focused;
    FocusedCore core;    /* if focused */
    real *y;             /* kept if not focused: [B,N,C], in the order of stripes, before step 3 */
    float *lse;          /* [B,H,N] likewise */
    DepthwiseLayer lepe; /* "get_v" */
    real *rows, *drows;  /* scratch [B,N,3,C], or NULL where the order is that of tokens */
    real *part;          /* scratch [B,N,C] likewise: y, or its gradient */
} StripeBranch;

/* Branch `index` of attention `a`: `heads` heads from head `first` on, within stripes of these rows and columns. */
void stripes_create(StripeBranch *s, const Attention *a, int index, int rows, int columns, int first, int heads,
                    bool focused);
/* Adapts to a new grid of `a`: stripes have these rows and columns from now on.  A grid that they do not divide is
 * padded with places whose q, k and v are zero, half of them above or to the left, as in the authors' segmentation
 * program; these places are keys, too. */
void stripes_set_sides(StripeBranch *s, const Attention *a, int rows, int columns);
void stripes_declare(StripeBranch *s, Params *params);
/* Scratch is valid until the caller's plan_release. */
void stripes_plan(StripeBranch *s, Plan *plan, int B);
void stripes_forward(const StripeBranch *s, real *mix, const real *qkv, int B);
/* dqkv (=) of these heads;  parameters (+=). */
void stripes_backward(const StripeBranch *s, real *dqkv, const real *dmix, const real *qkv, int B);
size_t stripes_macs(const StripeBranch *s);
/* AttentionOp.weights for one of these heads, counted from the first, without the convolutions. */
void stripes_weights(const StripeBranch *s, const real *qkv, float *weights, int b, int head, int query);

#endif
