#include "layers/attention/stripes.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/die.h"
#include "layers/attention.h"

static int stripe_count(const StripeBranch *s) { return grid_tokens(window_counts(&s->order.windows)); }

/* The shift of stripes of `side` rows, which puts half of a grid's padding rows above it. */
static int padding_shift(int rows, int side) {
    int padding = (side - rows % side) % side, above = padding / 2;
    return above ? rows + padding - above : 0;
}

void stripes_set_sides(StripeBranch *s, const Attention *a, int rows, int columns) {
    Grid grid = a->grid;
    s->order.windows = (WindowShape){.grid = grid,
                                     .wh = rows,
                                     .ww = columns,
                                     .wt = grid.frames,
                                     .shift_y = padding_shift(grid.rows, rows),
                                     .shift_x = padding_shift(grid.columns, columns)};
    s->lepe.shape.grid = s->stripe.grid = window_sides(&s->order.windows);
    s->stripe.N = grid_tokens(s->stripe.grid);
    s->most = (size_t)stripe_count(s) * (size_t)s->stripe.N;
}

void stripes_create(StripeBranch *s, const Attention *a, int index, int rows, int columns, int first, int heads,
                    bool focused) {
    int C = heads * a->D;
    *s = (StripeBranch){.stripe = *a,
                        .order = {.parts = 3, .C = C, .M = a->M},
                        .first = first * a->D,
                        .focused = focused};
    stripes_set_sides(s, a, rows, columns);
    s->stripe.M = C;
    s->stripe.H = heads;
    s->stripe.state = NULL;
    snprintf(s->stripe.prefix, sizeof s->stripe.prefix, "%.50sattns.%d.", a->prefix, index);
}

/* Does the order of tokens and heads in the stripes differ from that of all tokens and heads? */
static bool reorders(const StripeBranch *s) { return stripe_count(s) > 1 || s->order.C < s->order.M; }

/* The setting of the stripes in this stage, which divide both sides of the grid. */
static int stripe_setting(const StripeBranch *s) {
    int rows = s->stripe.grid.rows, columns = s->stripe.grid.columns;
    return !reorders(s) ? 0 : rows < columns ? rows : columns;
}

void stripes_declare(StripeBranch *s, Params *params) {
    const char *prefix = s->stripe.prefix;
    int C = s->stripe.M, stripe = stripe_setting(s), stage = s->stripe.place.stage;
    Depthwise shape = {s->stripe.grid, C, 3, C, 3 * C, C, s->stripe.place.time_kernel};
    depthwise_declare_from(&s->lepe, params, prefix, "get_v", shape, true, (ParamSetting){"stripe", stripe, stage});
    if (s->focused) focused_core_declare(&s->core, &s->stripe, params, NULL);
}

/* The shape of attention within the stripes of B images. */
static AttentionShape stripe_shape(const StripeBranch *s, int B) {
    return attention_shape(&s->stripe, B * stripe_count(s));
}

/* The order of a tensor with one part instead of q, k and v. */
static WindowRows part_order(const StripeBranch *s) {
    WindowRows order = s->order;
    order.parts = 1;
    return order;
}

void stripes_plan(StripeBranch *s, Plan *plan, int B) {
    const char *prefix = s->stripe.prefix;
    int stripes = B * stripe_count(s);
    size_t rows = (size_t)B * s->most, bytes = rows * (size_t)s->stripe.M * sizeof(real);
    if (s->focused) {
        focused_core_plan(&s->core, &s->stripe, plan, stripes);
    } else {
        plan_keep(plan, prefix, "y", &s->y, bytes);
        plan_keep(plan, prefix, "lse", &s->lse, rows * (size_t)s->stripe.H * sizeof(float));
        plan_workspace(plan, softmax_attention_workspace(s->stripe.N, s->stripe.D));
    }
    plan_workspace(plan, depthwise_workspace(&s->lepe.shape));
    if (!reorders(s)) return;
    plan_borrow(plan, prefix, "rows", &s->rows, 3 * bytes);
    plan_borrow(plan, prefix, "part", &s->part, bytes);
    if (plan->training) plan_borrow(plan, prefix, "drows", &s->drows, 3 * bytes);
}

/* Returns q, k and v in the order of stripes. */
static const real *rows_of(const StripeBranch *s, const real *qkv, int B) {
    if (!reorders(s)) return qkv;
    windows_gather(s->rows, qkv + s->first, &s->order, B);
    return s->rows;
}

void stripes_forward(const StripeBranch *s, real *mix, const real *qkv, int B) {
    AttentionShape shape = stripe_shape(s, B);
    WindowRows order = part_order(s);
    const real *rows = rows_of(s, qkv, B), *v = rows + 2 * s->stripe.M;
    real *to = reorders(s) ? s->part : mix;
    if (s->focused) focused_core_forward(&s->core, &s->stripe, to, rows, rows + s->stripe.M, shape.B);
    else softmax_attention_forward(s->y, s->lse, rows, &shape);
    depthwise_forward(to, s->focused ? to : s->y, v, s->lepe.w, s->lepe.b, &s->lepe.shape, shape.B);
    if (reorders(s)) windows_scatter(mix + s->first, to, &order, B);
}

void stripes_backward(const StripeBranch *s, real *dqkv, const real *dmix, const real *qkv, int B) {
    AttentionShape shape = stripe_shape(s, B);
    WindowRows order = part_order(s);
    const real *rows = rows_of(s, qkv, B), *dy = reorders(s) ? s->part : dmix;
    real *drows = reorders(s) ? s->drows : dqkv, *dv = drows + 2 * s->stripe.M;
    if (reorders(s)) windows_gather(s->part, dmix + s->first, &order, B);
    if (s->focused)
        focused_core_backward(&s->core, &s->stripe, drows, drows + s->stripe.M, dy, rows, rows + s->stripe.M, shape.B);
    else softmax_attention_backward(drows, dy, s->y, s->lse, rows, &shape);
    depthwise_backward(dv, dv, s->lepe.dw, s->lepe.db, dy, rows + 2 * s->stripe.M, s->lepe.w, &s->lepe.shape, shape.B);
    if (reorders(s)) windows_scatter(dqkv + s->first, drows, &s->order, B);
}

size_t stripes_macs(const StripeBranch *s) {
    const Attention *a = &s->stripe;
    size_t attention = s->focused ? focused_core_macs(&s->core, a) : attention_pair_macs(a);
    return (size_t)stripe_count(s) * (attention + depthwise_macs(&s->lepe.shape));
}

void stripes_weights(const StripeBranch *s, const real *qkv, float *weights, int b, int head, int query) {
    const WindowShape *w = &s->order.windows;
    GridPlace at = grid_place(w->grid, query);
    int N = grid_tokens(w->grid), window = at.y / w->wh * (w->grid.columns / w->ww) + at.x / w->ww;
    int place = (at.t * w->wh + at.y % w->wh) * w->ww + at.x % w->ww;
    float *row = xcalloc((size_t)s->stripe.N, sizeof *row, "attention picture");
    const real *image = qkv + (size_t)b * (size_t)N * 3 * (size_t)s->order.M;
    if (s->focused) linear_core_weights(&s->core.core, &s->stripe, row, b * stripe_count(s) + window, head, place);
    else attention_qkv_row(rows_of(s, image, 1), &s->stripe, row, window, head, place);
    for (int n = 0; n < N; n++) weights[n] = 0;
    for (int i = 0; i < s->stripe.N; i++) weights[window_place(w, window, i).token] = row[i];
    free(row);
}
