#include "layers/attention/qkv.h"

void qkv_declare(Attention *a, Params *params) {
    QkvFrame *f = &a->frame;
    int width = a->M + 2 * a->H * (a->op->key_width ? a->op->key_width(a) : a->D);
    a->last = &f->proj;
    if (a->detector) {
        projection_declare_as(&f->qkv, params, a->prefix, "in_proj_", a->M, 3 * a->M, INIT_XAVIER_UNIFORM, INIT_ZEROS);
        projection_declare_as(&f->proj, params, a->prefix, "out_proj.", a->M, a->M, INIT_XAVIER_UNIFORM, INIT_ZEROS);
        return;
    }
    (a->qkv_bias ? projection_declare : projection_declare_weight)(&f->qkv, params, a->prefix, "qkv", a->M, width);
    projection_declare(&f->proj, params, a->prefix, "proj", a->M, a->M);
}

void qkv_plan(Attention *a, Plan *plan, int B) {
    QkvFrame *f = &a->frame;
    size_t bytes = attention_bytes(a, B);
    size_t width = (size_t)f->qkv.out * sizeof(real);
    plan_pair(plan, a->prefix, "qkv", &f->qkv_act, &f->dqkv, attention_tokens(a, B) * width);
    plan_pair(plan, a->prefix, "mix", &f->mix, &f->dmix, bytes);
    if (a->detector) plan_borrow(plan, a->prefix, "with_pos", &f->with_pos, bytes);
}

void qkv_forward_in(const Attention *a, const real *x, int B) {
    const QkvFrame *f = &a->frame;
    size_t n = attention_tokens(a, B), two = 2 * (size_t)a->M, M = (size_t)a->M;
    if (!a->detector) {
        projection_forward(&f->qkv, f->qkv_act, x, n);
        return;
    }
    add_forward(f->with_pos, x, a->detector->pos, n * M);
    LinearShape q_and_k = {n, a->M, 2 * a->M, 3 * a->M}, v = {n, a->M, a->M, 3 * a->M};
    linear_forward(f->qkv_act, f->with_pos, f->qkv.w, f->qkv.b, &q_and_k);
    linear_forward(f->qkv_act + two, x, f->qkv.w + two * M, f->qkv.b + two, &v);
}

void qkv_forward_out(const Attention *a, real *y, int B) {
    projection_forward(&a->frame.proj, y, a->frame.mix, attention_tokens(a, B));
}

void qkv_backward_out(const Attention *a, const real *dy, int B) {
    projection_backward(&a->frame.proj, a->frame.dmix, dy, a->frame.mix, attention_tokens(a, B));
}

void qkv_backward_in(const Attention *a, real *dx, const real *x, int B) {
    const QkvFrame *f = &a->frame;
    size_t n = attention_tokens(a, B), two = 2 * (size_t)a->M, M = (size_t)a->M;
    if (!a->detector) {
        projection_backward(&f->qkv, dx, f->dqkv, x, n);
        return;
    }
    add_forward(f->with_pos, x, a->detector->pos, n * M);
    LinearShape q_and_k = {n, a->M, 2 * a->M, 3 * a->M}, v = {n, a->M, a->M, 3 * a->M};
    linear_backward_input(dx, f->dqkv, f->qkv.w, &(LinearShape){n, a->M, 3 * a->M, 0});
    linear_backward_weight(f->qkv.dw, f->qkv.db, f->dqkv, f->with_pos, &q_and_k);
    linear_backward_weight(f->qkv.dw + two * M, f->qkv.db + two, f->dqkv + two, x, &v);
}

size_t qkv_macs(const Attention *a) {
    return projection_macs(&a->frame.qkv, (size_t)a->N) + projection_macs(&a->frame.proj, (size_t)a->N);
}

void qkv_softmax_row(const real *qkv, const Attention *a, float *weights, int b, int head, int query) {
    size_t row = 3 * (size_t)a->M;
    const real *first = qkv + (size_t)b * (size_t)a->N * row + (size_t)(head * a->D);
    attention_softmax(weights, first + (size_t)query * row, first + a->M, a->N, row, a->D);
}
