/* Patch merging.  x [B,N,C] -> y [B,N/4,M]
 * forward   1. cells = the four tokens of each 2 x 2 cell, concatenated   2. h = norm(cells)   3. y = h W^T
 * backward  3. dW, dh   2. dcells   1. dx, a permutation
 * saves     the norm's statistics; cells and h are computed again.  Parameter names are timm's. */
#include "layers/vit/merging.h"

void merging_create(Merging *m, int C, Grid tokens) {
    *m = (Merging){.C = C};
    merging_set_tokens(m, tokens);
}

void merging_set_tokens(Merging *m, Grid tokens) {
    m->tokens = tokens;
    m->grid = (Grid){tokens.frames, tokens.rows / 2, tokens.columns / 2};
}

void merging_declare(Merging *m, Params *params, const char *prefix, int M) {
    norm_layer_declare(&m->norm, params, prefix, "norm", 4 * m->C, PYTORCH_NORM_EPS, false);
    projection_declare_weight(&m->reduction, params, prefix, "reduction", 4 * m->C, M);
}

static size_t rows_of(const Merging *m, int B) { return (size_t)B * (size_t)grid_tokens(m->grid); }

void merging_plan(Merging *m, Plan *plan, const char *prefix, int B) {
    size_t rows = rows_of(m, B), bytes = rows * 4 * (size_t)m->C * sizeof(real);
    norm_layer_plan(&m->norm, plan, prefix, rows);
    PlanMark mark = plan_mark(plan);
    plan_borrow(plan, prefix, "cells", &m->cells, bytes);
    plan_borrow(plan, prefix, "h", &m->h, bytes);
    if (plan->training) plan_borrow(plan, prefix, "dcells", &m->dcells, bytes);
    plan_release(plan, mark);
}

static void normed_cells(const Merging *m, const real *x, int B) {
    token_cells_forward(m->cells, x, m->tokens, B, m->C);
    norm_layer_forward(&m->norm, m->h, m->cells, rows_of(m, B));
}

void merging_forward(const Merging *m, real *y, const real *x, int B) {
    normed_cells(m, x, B);
    projection_forward(&m->reduction, y, m->h, rows_of(m, B));
}

void merging_backward(const Merging *m, real *dx, const real *dy, const real *x, int B) {
    size_t rows = rows_of(m, B);
    normed_cells(m, x, B);
    projection_backward(&m->reduction, NULL, dy, m->h, rows);
    linear_backward_input(m->h, dy, m->reduction.w, &(LinearShape){rows, 4 * m->C, m->reduction.out, 0});
    norm_layer_backward(&m->norm, m->dcells, m->h, m->cells, rows);
    if (dx) token_cells_backward(dx, m->dcells, m->tokens, B, m->C);
}
