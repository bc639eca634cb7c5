/* Classifier.  x [n,M] -> logits [n,C]
 * forward   1. a = x W1^T + b1   2. g = gelu(a) or tanh(a)   3. h = norm(g), mlp only   4. logits = h W2^T + b2
 * backward  4. dh, dW2, db2   3. dg   2. da   1. dx, dW1, db1
 * saves     a, g and h, which have only n rows, so computing them again would gain nothing. */
#include "layers/vit/classifier.h"

void classifier_declare(Classifier *c, Params *params, HeadKind kind, const char *linear, int dim, int classes) {
    *c = (Classifier){.kind = kind};
    if (kind == HEAD_LINEAR) {
        projection_declare(&c->out, params, "", linear, dim, classes);
        return;
    }
    int hidden = kind == HEAD_MLP ? 4 * dim : dim;
    projection_declare(&c->fc1, params, "head.", "fc1", dim, hidden);
    if (kind == HEAD_MLP) norm_layer_declare(&c->norm, params, "head.", "norm", hidden, PYTORCH_NORM_EPS, false);
    projection_declare(&c->out, params, "head.", "fc2", hidden, classes);
}

void classifier_plan(Classifier *c, Plan *plan, size_t n) {
    size_t bytes = n * (size_t)c->fc1.out * sizeof(real);
    if (c->kind == HEAD_LINEAR) return;
    plan_keep(plan, "head.", "a", &c->a, bytes);
    plan_keep(plan, "head.", "g", &c->g, bytes);
    if (plan->training) plan_borrow(plan, "head.", "dh", &c->dh, bytes);
    if (c->kind != HEAD_MLP) return;
    plan_keep(plan, "head.", "h", &c->h, bytes);
    norm_layer_plan(&c->norm, plan, "head.", n);
    if (plan->training) plan_borrow(plan, "head.", "dg", &c->dg, bytes);
}

/* Returns the input of the last layer. */
static const real *features(const Classifier *c, const real *x) {
    return c->kind == HEAD_LINEAR ? x : c->kind == HEAD_MLP ? c->h : c->g;
}

void classifier_forward(const Classifier *c, real *logits, const real *x, size_t n) {
    size_t all = n * (size_t)c->fc1.out;
    if (c->kind != HEAD_LINEAR) projection_forward(&c->fc1, c->a, x, n);
    if (c->kind == HEAD_TANH) tanh_forward(c->g, c->a, all);
    if (c->kind == HEAD_MLP) {
        gelu_forward(c->g, c->a, all);
        norm_layer_forward(&c->norm, c->h, c->g, n);
    }
    projection_forward(&c->out, logits, features(c, x), n);
}

void classifier_backward(const Classifier *c, real *dx, const real *dlogits, const real *x, size_t n) {
    size_t all = n * (size_t)c->fc1.out;
    projection_backward(&c->out, c->kind == HEAD_LINEAR ? dx : c->dh, dlogits, features(c, x), n);
    if (c->kind == HEAD_LINEAR) return;
    if (c->kind == HEAD_TANH) tanh_backward(c->dh, c->dh, c->g, all);
    if (c->kind == HEAD_MLP) {
        norm_layer_backward(&c->norm, c->dg, c->dh, c->g, n);
        gelu_backward(c->dh, c->g, c->dg, c->a, all);
    }
    projection_backward(&c->fc1, dx, c->dh, x, n);
}

size_t classifier_macs(const Classifier *c, size_t n) {
    return projection_macs(&c->fc1, n) + projection_macs(&c->out, n);
}
