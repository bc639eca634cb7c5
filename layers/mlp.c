/* Multilayer perceptron with one hidden layer.  h [n,M] -> f [n,M]
 * forward   1. a = h W1^T + b1, and its ReLU in PVTv2's linear form
 *           2. c = a, or its depthwise 3x3 convolution over the grid (PVTv2's convolutional MLP)
 *           3. g = drop(gelu(c))   4. f = g W2^T + b2
 * backward  4. dg = df W2, dW2 += df^T g, db2   3. dc = drop(dg) gelu'(c)   2. da   1. dh = da W1, dW1 += da^T h, db1
 * saves     a and c [n,hidden], and g if the device has room for it and is faster with it; otherwise g is computed
 *           again, which on a CPU takes less time than reading it from memory.
 *
 * Without convolution and dropout, GELU and the biases' gradients are part of a product (kernels/linear/linear.h). */
#include "layers/mlp.h"

void mlp_declare(Mlp *mlp, Params *params, const char *prefix, int dim, int hidden, const Grid *grid) {
    projection_declare(&mlp->fc1, params, prefix, "fc1", dim, hidden);
    mlp->convolves = grid != NULL;
    if (mlp->convolves)
        depthwise_declare(&mlp->dwconv, params, prefix, "dwconv",
                          (Depthwise){*grid, hidden, 3, hidden, hidden, hidden, mlp->time_kernel}, true);
    projection_declare(&mlp->fc2, params, prefix, "fc2", hidden, dim);
}

void mlp_plan(Mlp *mlp, Plan *plan, const char *prefix, size_t n) {
    size_t bytes = n * (size_t)mlp->fc1.out * sizeof(real);
    PlanMark mark = plan_mark(plan);
    plan_keep(plan, prefix, "a", &mlp->a, bytes);
    if (mlp->convolves) plan_keep(plan, prefix, "c", &mlp->c, bytes);
    plan_borrow(plan, prefix, "g", &mlp->g, bytes);
    if (plan->training && !mlp->recomputed && !mlp->convolves && !mlp->sigmoid)
        plan_spare(plan, prefix, "kept", &mlp->kept, bytes);
    else plan_without(plan, &mlp->kept);
    if (plan->training) plan_borrow(plan, prefix, "dg", &mlp->dg, bytes);
    if (plan->training && mlp->convolves) plan_borrow(plan, prefix, "da", &mlp->da, bytes);
    if (mlp->convolves) plan_workspace(plan, depthwise_workspace(&mlp->dwconv.shape));
    if (plan->training) plan_workspace(plan, linear_gelu_workspace(&(LinearShape){n, mlp->fc2.in, mlp->fc2.out, 0}));
    plan_release(plan, mark);
}

/* The input of GELU. */
static real *before_gelu(const Mlp *mlp) { return mlp->convolves ? mlp->c : mlp->a; }

static void drop_hidden(const Mlp *mlp, real *g, const Dropout *dropout, int B, int N) {
    if (dropout->rate > 0) dropout_forward(g, g, dropout, B, (size_t)N * (size_t)mlp->fc1.out);
}

/* Is there nothing between fc1, GELU and fc2? */
static bool is_plain(const Mlp *mlp, const Dropout *dropout) {
    return !mlp->convolves && !mlp->sigmoid && dropout->rate <= 0;
}

void mlp_forward(const Mlp *mlp, real *f, const real *h, const Dropout *dropout, int B, int N) {
    const DepthwiseLayer *conv = &mlp->dwconv;
    size_t n = (size_t)B * (size_t)N;
    const Projection *fc1 = &mlp->fc1;
    if (f && is_plain(mlp, dropout)) {
        real *g = mlp->kept ? mlp->kept : mlp->g;
        linear_gelu_forward(mlp->a, g, h, fc1->w, fc1->b, &(LinearShape){n, fc1->in, fc1->out, 0});
        projection_forward(&mlp->fc2, f, g, n);
        return;
    }
    projection_forward(fc1, mlp->a, h, n);
    if (mlp->relu) relu_dropout_forward(mlp->a, mlp->a, &(Dropout){0}, B, (size_t)N * (size_t)fc1->out);
    if (mlp->convolves) depthwise_forward(mlp->c, NULL, mlp->a, conv->w, conv->b, &conv->shape, B);
    if (!f) return;
    (mlp->sigmoid ? sigmoid_gelu_forward : gelu_forward)(mlp->g, before_gelu(mlp), n * (size_t)mlp->fc1.out);
    drop_hidden(mlp, mlp->g, dropout, B, N);
    projection_forward(&mlp->fc2, f, mlp->g, n);
}

void mlp_backward(const Mlp *mlp, real *dh, const real *df, const real *h, const Dropout *dropout, int B, int N) {
    const DepthwiseLayer *conv = &mlp->dwconv;
    size_t n = (size_t)B * (size_t)N;
    LinearShape fc1 = {n, mlp->fc1.in, mlp->fc1.out, 0}, fc2 = {n, mlp->fc2.in, mlp->fc2.out, 0};
    if (is_plain(mlp, dropout)) {
        const real *g = mlp->kept ? mlp->kept : mlp->g;
        if (mlp->kept) linear_backward_weight_beside(mlp->fc2.dw, NULL, df, g, &fc2);
        linear_gelu_backward(mlp->dg, mlp->kept ? NULL : mlp->g, mlp->fc1.db, mlp->fc2.db, df, mlp->a, mlp->fc2.w, &fc2);
        if (!mlp->kept) linear_backward_weight_beside(mlp->fc2.dw, NULL, df, g, &fc2);
        linear_backward(dh, mlp->fc1.dw, NULL, mlp->dg, h, mlp->fc1.w, &fc1);
        return;
    }
    linear_backward_input(mlp->dg, df, mlp->fc2.w, &fc2);
    drop_hidden(mlp, mlp->dg, dropout, B, N);
    (mlp->sigmoid ? sigmoid_gelu_backward : gelu_backward)(mlp->dg, mlp->g, mlp->dg, before_gelu(mlp),
                                                          n * (size_t)mlp->fc1.out);
    drop_hidden(mlp, mlp->g, dropout, B, N);
    linear_backward_weight(mlp->fc2.dw, mlp->fc2.db, df, mlp->g, &fc2);
    if (mlp->convolves)
        depthwise_backward(mlp->da, NULL, conv->dw, conv->db, mlp->dg, mlp->a, conv->w, &conv->shape, B);
    if (mlp->relu) relu_gradient(mlp->da, mlp->da, mlp->a, n * (size_t)mlp->fc1.out);
    projection_backward(&mlp->fc1, dh, mlp->convolves ? mlp->da : mlp->dg, h, n);
}

size_t mlp_macs(const Mlp *mlp, size_t n) {
    const Depthwise *shape = &mlp->dwconv.shape;
    size_t conv = mlp->convolves ? n / (size_t)grid_tokens(shape->grid) * depthwise_macs(shape) : 0;
    return projection_macs(&mlp->fc1, n) + conv + projection_macs(&mlp->fc2, n);
}
