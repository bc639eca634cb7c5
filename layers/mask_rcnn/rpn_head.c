/* backward  dh = (cls^T dlogits + box^T ddeltas) where h > 0;  dp = conv^T dh
 * saves     h of every level */
#include "layers/mask_rcnn/rpn_head.h"

static const char prefix[] = "rpn.head.";

static void declare(ConvLayer *layer, ConvLayers *convs, Params *params, const char *name, int in, int out, int k) {
    conv_layer_declare(layer, convs, params,
                       &(ConvConfig){prefix, name, {in, out, k, 1, false}, .bias = true, .relu = k > 1,
                                     .init = CONV_NORMAL});
}

void rpn_head_declare(RpnHead *head, ConvLayers *convs, Params *params, int channels) {
    declare(&head->conv, convs, params, "conv.0.0", channels, channels, 3);
    declare(&head->cls, convs, params, "cls_logits", channels, ANCHOR_RATIOS, 1);
    declare(&head->box, convs, params, "bbox_pred", channels, 4 * ANCHOR_RATIOS, 1);
}

static ImageShape shape_of(int i, int B, int H, int W) { return (ImageShape){B, fpn_side(i, H), fpn_side(i, W)}; }

static size_t bytes_of(const ConvLayer *layer, const ImageShape *s) {
    return (size_t)s->B * (size_t)s->Hi * (size_t)s->Wi * (size_t)layer->shape.out * sizeof(real);
}

void rpn_head_plan(RpnHead *head, Plan *plan, int B, int H, int W) {
    ImageShape finest = shape_of(0, B, H, W);
    for (int i = 0; i < FPN_LEVELS; i++) {
        ImageShape images = shape_of(i, B, H, W);
        plan_keep(plan, prefix, "logits", &head->logits[i], bytes_of(&head->cls, &images));
        plan_keep(plan, prefix, "deltas", &head->deltas[i], bytes_of(&head->box, &images));
        conv_layer_plan(&head->conv, plan, &images);
        conv_layer_plan(&head->box, plan, &images);
    }
    PlanMark mark = plan_mark(plan);
    for (int i = 0; i < FPN_LEVELS; i++) {
        ImageShape images = shape_of(i, B, H, W);
        if (plan->training || !i) plan_keep(plan, prefix, "h", &head->h[i], bytes_of(&head->conv, &images));
        else plan_alias(plan, &head->h[i], &head->h[0]);
    }
    if (plan->training) {
        plan_borrow(plan, prefix, "dlogits", &head->dlogits, bytes_of(&head->cls, &finest));
        plan_borrow(plan, prefix, "ddeltas", &head->ddeltas, bytes_of(&head->box, &finest));
        plan_borrow(plan, prefix, "dh", &head->dh, bytes_of(&head->conv, &finest));
    }
    plan_release(plan, mark);
}

void rpn_head_forward(const RpnHead *head, int i, const real *p, int B, int H, int W) {
    ImageShape images = shape_of(i, B, H, W);
    conv_layer_forward(&head->conv, head->h[i], p, &images);
    conv_layer_forward(&head->cls, head->logits[i], head->h[i], &images);
    conv_layer_forward(&head->box, head->deltas[i], head->h[i], &images);
}

void rpn_head_backward(const RpnHead *head, int i, real *dp, const real *p, int B, int H, int W) {
    ImageShape images = shape_of(i, B, H, W);
    const real *h = head->h[i];
    conv_layer_backward(&head->cls, head->dh, NULL, head->dlogits, h, NULL, &images);
    conv_layer_backward(&head->box, head->dh, head->dh, head->ddeltas, h, h, &images);
    conv_layer_backward(&head->conv, dp, NULL, head->dh, p, NULL, &images);
}

size_t rpn_head_macs(const RpnHead *head, int H, int W) {
    size_t macs = 0;
    for (int i = 0; i < FPN_LEVELS; i++)
        macs += conv_layer_macs(&head->conv, fpn_side(i, H), fpn_side(i, W)) +
                conv_layer_macs(&head->cls, fpn_side(i, H), fpn_side(i, W)) +
                conv_layer_macs(&head->box, fpn_side(i, H), fpn_side(i, W));
    return macs;
}
