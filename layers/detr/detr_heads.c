/* The detector's heads.  out [L,B,Q,M], raw [B,Q,2] -> logits [L,B,Q,C], boxes [L,B,Q,4]
 * forward   logits = class_embed(out), u = bbox_embed(out), boxes = sigmoid(u + (raw, 0, 0))
 * backward  dout = dlogits Wc + bbox_embed's, du = dboxes s (1 - s), draw = sum over layers of du's first two
 * saves     boxes, and bbox_embed's hidden layers. */
#include "layers/detr/detr_heads.h"

/* -log((1 - p) / p) with p = 0.01: initially every class has the probability 0.01 (Lin et al. 2017, focal loss). */
static void rare(float *x, const Param *p, uint64_t seed, uint32_t tensor) {
    (void)seed, (void)tensor;
    for (size_t i = 0; i < p->size; i++) x[i] = -4.59511985f;
}

void detr_heads_create(DetrHeads *heads, int M, int columns, Params *params) {
    *heads = (DetrHeads){.begin = params->total};
    Projection *classes = &heads->class_embed;
    classes->in = M;
    classes->out = columns;
    params_declare(params, (Param){.value = &classes->w, .grad = &classes->dw, .named = {"class_embed.weight"},
                                   .init = INIT_FAN_IN_UNIFORM, .fan = M, .decay = true, .shape = {columns, M}});
    params_declare(params, (Param){.value = &classes->b, .grad = &classes->db, .named = {"class_embed.bias"},
                                   .draw = rare, .decay = true, .shape = {columns}});
    perceptron_declare(&heads->box, params, "bbox_embed.", M, 4, INIT_FAN_IN_UNIFORM);
}

void detr_heads_plan(DetrHeads *heads, Plan *plan, int L, size_t n) {
    size_t rows = (size_t)L * n, M = (size_t)heads->class_embed.in, C = (size_t)heads->class_embed.out;
    plan_pair(plan, "heads.", "logits", &heads->logits, &heads->dlogits, rows * C * sizeof(real));
    plan_pair(plan, "heads.", "boxes", &heads->boxes, &heads->dboxes, rows * 4 * sizeof(float));
    plan_borrow(plan, "heads.", "u", &heads->u, rows * 4 * sizeof(real));
    if (plan->training) {
        plan_borrow(plan, "heads.", "du", &heads->du, rows * 4 * sizeof(real));
        /* Kept, not scratch: the decoder's backward pass reads them while it uses scratch of its own. */
        plan_keep(plan, "heads.", "dout", &heads->dout, rows * M * sizeof(real));
        plan_keep(plan, "heads.", "draw", &heads->draw, n * 2 * sizeof(float));
    }
    PlanMark mark = plan_mark(plan);
    if (plan->training) plan_borrow(plan, "heads.", "dbox", &heads->dbox, rows * M * sizeof(real));
    perceptron_plan(&heads->box, plan, "heads.box.", rows);
    plan_release(plan, mark);
}

void detr_heads_forward(DetrHeads *heads, const real *out, const real *raw, int L, size_t n) {
    size_t rows = (size_t)L * n;
    projection_forward(&heads->class_embed, heads->logits, out, rows);
    perceptron_forward(&heads->box, heads->u, out, rows);
    boxes_forward(heads->boxes, heads->u, raw, L, n);
}

void detr_heads_backward(DetrHeads *heads, const real *out, int L, size_t n) {
    size_t rows = (size_t)L * n;
    projection_backward(&heads->class_embed, heads->dout, heads->dlogits, out, rows);
    boxes_backward(heads->du, heads->draw, heads->dboxes, heads->boxes, L, n);
    perceptron_backward(&heads->box, heads->dbox, heads->du, out, rows);
    add_forward(heads->dout, heads->dout, heads->dbox, rows * (size_t)heads->class_embed.in);
}

size_t detr_heads_macs(const DetrHeads *heads, int L, int Q) {
    size_t rows = (size_t)L * (size_t)Q;
    return projection_macs(&heads->class_embed, rows) + perceptron_macs(&heads->box, rows);
}
