/* Multilayer perceptron with one hidden layer.  h [n,M] -> f [n,M]
 * forward   1. a = h W1^T + b1   2. g = gelu(a)   3. f = g W2^T + b2
 * backward  3. dg = df W2, dW2 += df^T g, db2   2. da = dg gelu'(a)   1. dh = da W1, dW1 += da^T h, db1
 * saves     a [n,hidden]; g is formed again, which costs less than reading it back from memory. */
#include "layers/mlp.h"

void mlp_declare(Mlp *mlp, Params *params, const char *prefix, int dim, int hidden) {
    projection_declare(&mlp->fc1, params, prefix, "fc1", dim, hidden);
    projection_declare(&mlp->fc2, params, prefix, "fc2", hidden, dim);
}

void mlp_plan(Mlp *mlp, Plan *plan, const char *prefix, size_t n) {
    size_t bytes = n * (size_t)mlp->fc1.out * sizeof(real);
    PlanMark mark = plan_mark(plan);
    plan_keep(plan, prefix, "a", &mlp->a, bytes);
    plan_borrow(plan, prefix, "g", &mlp->g, bytes);
    if (plan->training) plan_borrow(plan, prefix, "dg", &mlp->dg, bytes);
    plan_release(plan, mark);
}

void mlp_forward(const Mlp *mlp, real *f, const real *h, size_t n) {
    projection_forward(&mlp->fc1, mlp->a, h, n);
    gelu_forward(mlp->g, mlp->a, n * (size_t)mlp->fc1.out);
    projection_forward(&mlp->fc2, f, mlp->g, n);
}

void mlp_backward(const Mlp *mlp, real *dh, const real *df, const real *h, size_t n) {
    linear_backward_input(mlp->dg, df, mlp->fc2.w, n, mlp->fc2.in, mlp->fc2.out);
    gelu_backward(mlp->dg, mlp->g, mlp->dg, mlp->a, n * (size_t)mlp->fc1.out);
    linear_backward_weight(mlp->fc2.dw, mlp->fc2.db, df, mlp->g, n, mlp->fc2.in, mlp->fc2.out);
    projection_backward(&mlp->fc1, dh, mlp->dg, h, n);
}

size_t mlp_macs(const Mlp *mlp, size_t n) { return projection_macs(&mlp->fc1, n) + projection_macs(&mlp->fc2, n); }
