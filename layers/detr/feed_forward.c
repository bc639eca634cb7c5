/* Two linear layers with ReLU and dropout between them.  x [n,M] -> f [n,M]
 * forward   1. g = drop(relu(x W1^T + b1))   2. f = g W2^T + b2
 * backward  2. dg = df W2, dW2 += df^T g, db2   1. da = dg / (1 - rate) where g > 0, dx = da W1, dW1 += da^T x, db1
 * saves     g [n,hidden]. */
#include "layers/detr/feed_forward.h"

void feed_forward_declare(FeedForward *ff, Params *params, const char *prefix, int dim, int hidden) {
    projection_declare_as(&ff->linear1, params, prefix, "linear1.", dim, hidden, INIT_XAVIER_UNIFORM,
                          INIT_FAN_IN_UNIFORM);
    projection_declare_as(&ff->linear2, params, prefix, "linear2.", hidden, dim, INIT_XAVIER_UNIFORM,
                          INIT_FAN_IN_UNIFORM);
}

void feed_forward_plan(FeedForward *ff, Plan *plan, const char *prefix, size_t n) {
    size_t bytes = n * (size_t)ff->linear1.out * sizeof(real);
    PlanMark mark = plan_mark(plan);
    plan_pair(plan, prefix, "g", &ff->g, &ff->dg, bytes);
    plan_release(plan, mark);
}

void feed_forward_forward(const FeedForward *ff, real *f, const real *x, Rows rows, const Dropout *dropout) {
    size_t n = rows_total(rows);
    projection_forward(&ff->linear1, ff->g, x, n);
    relu_dropout_forward(ff->g, ff->g, dropout, rows.n, (size_t)rows.rows * (size_t)ff->linear1.out);
    projection_forward(&ff->linear2, f, ff->g, n);
}

void feed_forward_backward(const FeedForward *ff, real *dx, const real *df, const real *x, Rows rows,
                           const Dropout *dropout) {
    size_t n = rows_total(rows);
    projection_backward(&ff->linear2, ff->dg, df, ff->g, n);
    relu_dropout_backward(ff->dg, ff->dg, ff->g, dropout->rate, n * (size_t)ff->linear1.out);
    projection_backward(&ff->linear1, dx, ff->dg, x, n);
}

size_t feed_forward_macs(const FeedForward *ff, size_t n) {
    return projection_macs(&ff->linear1, n) + projection_macs(&ff->linear2, n);
}
