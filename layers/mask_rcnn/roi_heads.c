#include "layers/mask_rcnn/roi_heads.h"

#include <math.h>
#include <string.h>

/* == Boxes ======================================================================================================== */

/* forward   columns = x with its channels slowest;  h6 = relu(fc6(columns));  h7 = relu(fc7(h6));
 *           logits = cls(h7);  deltas = box(h7)
 * backward  the same steps in reverse
 * saves     columns, h6, h7 */

static const char box_prefix[] = "roi_heads.";

static void linear_declare(Projection *p, Params *params, const char *name, int in, int out, ParamInit init,
                           float gain) {
    p->in = in;
    p->out = out;
    params_declare(params, (Param){.value = &p->w, .grad = &p->dw, .named = {box_prefix, name, ".weight"}, .init = init,
                                   .gain = gain, .decay = true, .shape = {out, in}});
    params_declare(params, (Param){.value = &p->b, .grad = &p->db, .named = {box_prefix, name, ".bias"},
                                   .init = INIT_ZEROS, .shape = {out}});
}

void box_head_declare(BoxHead *head, Params *params, int C, int width, int classes) {
    memset(head, 0, sizeof *head);
    head->C = C;
    head->K = classes;
    linear_declare(&head->fc6, params, "box_head.fc6", C * BOX_SIDE * BOX_SIDE, width, INIT_XAVIER_UNIFORM, 1);
    linear_declare(&head->fc7, params, "box_head.fc7", width, width, INIT_XAVIER_UNIFORM, 1);
    linear_declare(&head->cls, params, "box_predictor.cls_score", width, classes, INIT_NORMAL, 0.01f);
    linear_declare(&head->box, params, "box_predictor.bbox_pred", width, 4 * classes, INIT_NORMAL, 0.001f);
}

static size_t reals(size_t rows, int columns) { return rows * (size_t)columns * sizeof(real); }

void box_head_plan(BoxHead *head, Plan *plan, size_t R) {
    int features = head->fc6.in, width = head->fc6.out;
    plan_keep(plan, box_prefix, "logits", &head->logits, reals(R, head->K));
    plan_keep(plan, box_prefix, "deltas", &head->deltas, reals(R, 4 * head->K));
    PlanMark mark = plan_mark(plan);
    plan_borrow(plan, box_prefix, "x", &head->x, reals(R, features));
    plan_keep(plan, box_prefix, "columns", &head->columns, reals(R, features));
    plan_keep(plan, box_prefix, "h6", &head->h6, reals(R, width));
    plan_keep(plan, box_prefix, "h7", &head->h7, reals(R, width));
    if (plan->training) {
        plan_borrow(plan, box_prefix, "dlogits", &head->dlogits, reals(R, head->K));
        plan_borrow(plan, box_prefix, "ddeltas", &head->ddeltas, reals(R, 4 * head->K));
        plan_borrow(plan, box_prefix, "dh", &head->dh, reals(R, width));
        plan_borrow(plan, box_prefix, "dh6", &head->dh6, reals(R, width));
        plan_alias(plan, &head->dcolumns, &head->x);
    }
    plan_release(plan, mark);
}

static Unfold channels_first(const BoxHead *head) {
    return (Unfold){.Hi = BOX_SIDE, .Wi = BOX_SIDE, .C = head->C, .k = BOX_SIDE, .stride = BOX_SIDE};
}

static void linear_relu(const Projection *p, real *y, const real *x, size_t R) {
    const Dropout none = {0};
    projection_forward(p, y, x, R);
    relu_dropout_forward(y, y, &none, 1, R * (size_t)p->out);
}

void box_head_forward(const BoxHead *head, int R) {
    Unfold order = channels_first(head);
    size_t n = (size_t)R;
    unfold_forward(head->columns, head->x, &order, R);
    linear_relu(&head->fc6, head->h6, head->columns, n);
    linear_relu(&head->fc7, head->h7, head->h6, n);
    projection_forward(&head->cls, head->logits, head->h7, n);
    projection_forward(&head->box, head->deltas, head->h7, n);
}

void box_head_backward(const BoxHead *head, int R) {
    Unfold order = channels_first(head);
    size_t n = (size_t)R, hidden = n * (size_t)head->fc7.out;
    projection_backward(&head->cls, head->dh, head->dlogits, head->h7, n);
    projection_backward(&head->box, head->dh6, head->ddeltas, head->h7, n);
    add_forward(head->dh, head->dh, head->dh6, hidden);
    relu_gradient(head->dh, head->dh, head->h7, hidden);
    projection_backward(&head->fc7, head->dh6, head->dh, head->h6, n);
    relu_gradient(head->dh6, head->dh6, head->h6, hidden);
    projection_backward(&head->fc6, head->dcolumns, head->dh6, head->columns, n);
    unfold_backward(head->dx, head->dcolumns, &order, R);
}

size_t box_head_macs(const BoxHead *head, size_t R) {
    return projection_macs(&head->fc6, R) + projection_macs(&head->fc7, R) + projection_macs(&head->cls, R) +
           projection_macs(&head->box, R);
}

/* == Masks ======================================================================================================== */

/* forward   h_0 = x, h_i = relu(conv_i(h_(i-1)));  four = h_4 W, the 2 x 2 results of each cell;
 *           up = relu(four, put to its places, + b);  logits = logit(up)
 * backward  the same steps in reverse; `four` shares its memory with its gradient
 * saves     x, h_1 .. h_4, up */

void mask_head_declare(MaskHead *head, ConvLayers *convs, Params *params, int C, int width, int classes) {
    memset(head, 0, sizeof *head);
    head->C = C;
    head->K = classes;
    head->width = width;
    for (int i = 0; i < MASK_CONVS; i++) {
        char name[16] = {(char)('0' + i), '.', '0'};
        conv_layer_declare(&head->convs[i], convs, params,
                           &(ConvConfig){"roi_heads.mask_head.", name, {i ? width : C, width, 3, 1, false},
                                         .bias = true, .relu = true, .init = CONV_KAIMING});
    }
    params_declare(params, (Param){.value = &head->w, .grad = &head->dw,
                                   .named = {"roi_heads.mask_predictor.", "conv5_mask", ".weight"},
                                   .init = INIT_KAIMING_NORMAL, .fan = 4 * width, .decay = true,
                                   .shape = {width, width, 2, 2}});
    params_declare(params, (Param){.value = &head->b, .grad = &head->db,
                                   .named = {"roi_heads.mask_predictor.", "conv5_mask", ".bias"}, .init = INIT_ZEROS,
                                   .shape = {width}});
    conv_layer_declare(&head->logit, convs, params,
                       &(ConvConfig){"roi_heads.mask_predictor.", "mask_fcn_logits", {width, classes, 1, 1, false},
                                     .bias = true, .init = CONV_KAIMING});
}

static ImageShape cells_of(int R) { return (ImageShape){R, MASK_SIDE, MASK_SIDE}; }
static ImageShape pixels_of(int R) { return (ImageShape){R, MASK_OUT, MASK_OUT}; }

void mask_head_plan(MaskHead *head, Plan *plan, size_t R) {
    const char *prefix = "roi_heads.mask_";
    size_t cells = R * MASK_SIDE * MASK_SIDE;
    ImageShape small = cells_of((int)R), large = pixels_of((int)R);
    plan_keep(plan, prefix, "logits", &head->logits, reals(4 * cells, head->K));
    PlanMark mark = plan_mark(plan);
    plan_keep(plan, prefix, "x", &head->x, reals(cells, head->C));
    for (int i = 0; i < MASK_CONVS; i++) {
        if (plan->training || i < 2) plan_keep(plan, prefix, "h", &head->h[i], reals(cells, head->width));
        else plan_alias(plan, &head->h[i], &head->h[i - 2]);
        conv_layer_plan(&head->convs[i], plan, &small);
    }
    plan_keep(plan, prefix, "up", &head->up, reals(4 * cells, head->width));
    plan_borrow(plan, prefix, "four", &head->four, reals(4 * cells, head->width));
    conv_layer_plan(&head->logit, plan, &large);
    if (plan->training) {
        plan_borrow(plan, prefix, "dlogits", &head->dlogits, reals(4 * cells, head->K));
        plan_borrow(plan, prefix, "dup", &head->dup, reals(4 * cells, head->width));
        for (int i = 0; i < 2; i++) plan_borrow(plan, prefix, "dh", &head->dh[i], reals(cells, head->width));
    }
    plan_release(plan, mark);
}

/* The windows of the transposed convolution do not overlap, so sums over windows are copies. */
static Unfold windows(const MaskHead *head) {
    return (Unfold){.Hi = MASK_OUT, .Wi = MASK_OUT, .C = head->width, .k = 2, .stride = 2};
}

/* The weight [in,out,2,2] is that of a linear layer from the results to the inputs, used in the opposite direction. */
static LinearShape transposed(const MaskHead *head, int R) {
    return (LinearShape){(size_t)R * MASK_SIDE * MASK_SIDE, 4 * head->width, head->width, 0};
}

static size_t results(int R) { return (size_t)R * MASK_OUT * MASK_OUT; }

void mask_head_forward(const MaskHead *head, int R) {
    ImageShape small = cells_of(R), large = pixels_of(R);
    LinearShape four = transposed(head, R);
    Unfold order = windows(head);
    const real *x = head->x;
    for (int i = 0; i < MASK_CONVS; i++) {
        conv_layer_forward(&head->convs[i], head->h[i], x, &small);
        x = head->h[i];
    }
    linear_backward_input(head->four, x, head->w, &four);
    unfold_backward(head->up, head->four, &order, R);
    bias_relu_forward(head->up, head->up, head->b, results(R), head->width);
    conv_layer_forward(&head->logit, head->logits, head->up, &large);
}

void mask_head_backward(const MaskHead *head, int R) {
    ImageShape small = cells_of(R), large = pixels_of(R);
    LinearShape four = transposed(head, R), bias = {results(R), head->width, head->width, 0};
    Unfold order = windows(head);
    const real *last = head->h[MASK_CONVS - 1];
    real *dh = head->dh[(MASK_CONVS - 1) % 2];
    conv_layer_backward(&head->logit, head->dup, NULL, head->dlogits, head->up, head->up, &large);
    linear_backward_bias(head->db, head->dup, &bias);
    unfold_forward(head->four, head->dup, &order, R);
    linear_backward_weight(head->dw, NULL, last, head->four, &four);
    linear_forward(dh, head->four, head->w, NULL, &four);
    relu_gradient(dh, dh, last, four.n * (size_t)head->width);
    for (int i = MASK_CONVS - 1; i >= 0; i--) {
        const real *below = i ? head->h[i - 1] : head->x;
        real *dbelow = i ? head->dh[(i - 1) % 2] : head->dx;
        conv_layer_backward(&head->convs[i], dbelow, NULL, head->dh[i % 2], below, i ? below : NULL, &small);
    }
}

size_t mask_head_macs(const MaskHead *head, size_t R) {
    size_t macs = 4 * MASK_SIDE * MASK_SIDE * (size_t)head->width * (size_t)head->width;
    for (int i = 0; i < MASK_CONVS; i++) macs += conv_layer_macs(&head->convs[i], MASK_SIDE, MASK_SIDE);
    return R * (macs + conv_layer_macs(&head->logit, MASK_OUT, MASK_OUT));
}
