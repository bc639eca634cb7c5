#include "layers/detr/post_norm.h"

#include <stdio.h>

void post_norm_declare(PostNorm *p, Params *params, const char *prefix, const char *name, int M) {
    norm_layer_declare(&p->norm, params, prefix, name, M, PYTORCH_NORM_EPS, true);
}

void post_norm_plan(PostNorm *p, Plan *plan, const char *prefix, const char *name, size_t n, real **from, real **to) {
    size_t bytes = n * (size_t)p->norm.M * sizeof(real);
    char below[PARAM_NAME_SIZE];
    snprintf(below, sizeof below, "%s%s.", prefix, name);
    if (plan->training) {
        plan_keep(plan, below, "sum", &p->sum, bytes);
        plan_keep(plan, below, "x", &p->x, bytes);
    } else {
        plan_alias(plan, &p->sum, from);
        plan_alias(plan, &p->x, to);
    }
    norm_layer_plan(&p->norm, plan, below, n);
}

void post_norm_forward(const PostNorm *p, const real *x, real *f, Rows rows, const Dropout *dropout) {
    if (dropout->rate > 0) dropout_forward(f, f, dropout, rows.n, (size_t)rows.rows * (size_t)p->norm.M);
    LayerNorm norm = norm_layer_of(&p->norm, rows_total(rows));
    add_layernorm_forward(p->sum, p->x, x, f, NULL, &norm);
}

void post_norm_backward(const PostNorm *p, real *dsum, real *df, const real *dx, Rows rows, const Dropout *dropout) {
    norm_layer_backward(&p->norm, dsum, dx, p->sum, rows_total(rows));
    dropout_forward(df, dsum, dropout, rows.n, (size_t)rows.rows * (size_t)p->norm.M);
}
