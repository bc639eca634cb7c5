/* The head of Semantic FPN; its formulas are in semantic_head.h.
 * backward  dtotal = dropped channels of classifier^T dlogits;  in each branch from its last block to its first:
 *           dy = upsampling^T of the gradient above, dz and the block's input by conv_norm_backward
 *           branch 0 comes last, since it works in dtotal itself
 * saves     every block's z and input, total with its dropped channels. */
#include "layers/semantic_fpn/semantic_head.h"

#include <stdio.h>
#include <string.h>

static int blocks_of(int branch) { return branch ? branch : 1; }

static bool is_last(int branch, int k) { return k + 1 == blocks_of(branch); }

/* The images that block k of a branch reads. */
static ImageShape images_of(int branch, int k, int B, int H, int W) {
    int halvings = 2 + branch - k;
    return (ImageShape){B, H >> halvings, W >> halvings};
}

static size_t pixels_of(const ImageShape *s) { return (size_t)s->B * (size_t)s->Hi * (size_t)s->Wi; }

void semantic_head_declare(SemanticHead *head, ConvLayers *convs, Params *params, int in, int channels, int classes,
                           SegNorm norm) {
    Projection *p = &head->classifier;
    memset(head, 0, sizeof *head);
    head->in = in;
    head->C = channels;
    head->K = classes;
    head->begin = params->total;
    for (int i = 0; i < HEAD_BRANCHES; i++)
        for (int k = 0; k < blocks_of(i); k++) {
            HeadBlock *block = &head->blocks[i][k];
            snprintf(block->prefix, sizeof block->prefix, "decode_head.scale_heads.%d.%d.", i, 2 * k);
            conv_norm_declare(&block->block, convs, params, block->prefix, k ? channels : in, channels, norm);
        }
    p->in = channels;
    p->out = classes;
    params_declare(params, (Param){.value = &p->w, .grad = &p->dw, .named = {"decode_head.conv_seg.weight"},
                                   .init = INIT_NORMAL, .gain = 0.01f, .decay = true,
                                   .shape = {classes, channels, 1, 1}});
    params_declare(params, (Param){.value = &p->b, .grad = &p->db, .named = {"decode_head.conv_seg.bias"},
                                   .init = INIT_ZEROS, .shape = {classes}});
}

void semantic_head_plan(SemanticHead *head, Plan *plan, int B, int H, int W) {
    const char *prefix = "decode_head.";
    H = (H + 31) / 32 * 32;
    W = (W + 31) / 32 * 32;
    ImageShape fine = images_of(0, 0, B, H, W), coarse = images_of(1, 0, B, H, W);
    size_t C = (size_t)head->C, bytes = pixels_of(&fine) * C * sizeof(real), less = pixels_of(&coarse) * C * sizeof(real);
    size_t logits = pixels_of(&fine) * (size_t)head->K * sizeof(real);
    plan_keep(plan, prefix, "total", &head->total, bytes);
    plan_keep(plan, prefix, "logits", &head->logits, logits);
    if (plan->training) {
        plan_borrow(plan, prefix, "dlogits", &head->dlogits, logits);
        plan_borrow(plan, prefix, "dtotal", &head->dtotal, bytes);
    }
    PlanMark mark = plan_mark(plan);
    plan_borrow(plan, prefix, "y", &head->y, less);
    if (plan->training) {
        plan_borrow(plan, prefix, "dy", &head->dy, less);
        plan_borrow(plan, prefix, "du", &head->du, less);
        plan_workspace(plan, channel_dropout_workspace(B, head->C));
    } else {
        plan_borrow(plan, prefix, "z", &head->z, bytes);
    }
    for (int i = 0; i < HEAD_BRANCHES; i++)
        for (int k = 0; k < blocks_of(i); k++) {
            HeadBlock *block = &head->blocks[i][k];
            ImageShape images = images_of(i, k, B, H, W);
            conv_norm_plan(&block->block, plan, block->prefix, &images);
            if (!plan->training) plan_alias(plan, &block->block.z, &head->z);
            if (!is_last(i, k)) plan_keep(plan, block->prefix, "u", &block->u, 4 * pixels_of(&images) * C * sizeof(real));
        }
    plan_release(plan, mark);
}

static Resize doubled(const SemanticHead *head, const ImageShape *s) {
    return (Resize){s->B, head->C, s->Hi, s->Wi, 2 * s->Hi, 2 * s->Wi};
}

void semantic_head_forward(SemanticHead *head, const real *const levels[HEAD_BRANCHES], const Dropout *dropout, int B,
                           int H, int W) {
    ImageShape fine = images_of(0, 0, B, H, W);
    conv_norm_forward(&head->blocks[0][0].block, head->total, levels[0], dropout, &fine);
    for (int i = 1; i < HEAD_BRANCHES; i++) {
        const real *x = levels[i];
        for (int k = 0; k < blocks_of(i); k++) {
            const HeadBlock *block = &head->blocks[i][k];
            ImageShape images = images_of(i, k, B, H, W);
            Resize resize = doubled(head, &images);
            bool last = is_last(i, k);
            conv_norm_forward(&block->block, head->y, x, dropout, &images);
            bilinear_forward(last ? head->total : block->u, last ? head->total : NULL, head->y, &resize);
            x = block->u;
        }
    }
    size_t N = pixels_of(&fine) / (size_t)B;
    if (dropout) channel_dropout_forward(head->total, head->total, dropout, B, N, head->C);
    projection_forward(&head->classifier, head->logits, head->total, pixels_of(&fine));
}

void semantic_head_backward(SemanticHead *head, real *const dlevels[HEAD_BRANCHES],
                            const real *const levels[HEAD_BRANCHES], const Dropout *dropout, int B, int H, int W) {
    ImageShape fine = images_of(0, 0, B, H, W);
    size_t N = pixels_of(&fine) / (size_t)B;
    projection_backward(&head->classifier, head->dtotal, head->dlogits, head->total, pixels_of(&fine));
    channel_dropout_forward(head->dtotal, head->dtotal, dropout, B, N, head->C);
    for (int i = HEAD_BRANCHES - 1; i > 0; i--) {
        const real *above = head->dtotal;
        for (int k = blocks_of(i) - 1; k >= 0; k--) {
            const HeadBlock *block = &head->blocks[i][k];
            ImageShape images = images_of(i, k, B, H, W);
            Resize resize = doubled(head, &images);
            bilinear_backward(head->dy, NULL, above, &resize);
            conv_norm_backward(&block->block, k ? head->du : dlevels[i], head->dy,
                               k ? head->blocks[i][k - 1].u : levels[i], &images);
            above = head->du;
        }
    }
    conv_norm_backward(&head->blocks[0][0].block, dlevels[0], head->dtotal, levels[0], &fine);
}

size_t semantic_head_macs(const SemanticHead *head, int H, int W) {
    ImageShape fine = images_of(0, 0, 1, H, W);
    size_t macs = projection_macs(&head->classifier, pixels_of(&fine));
    for (int i = 0; i < HEAD_BRANCHES; i++)
        for (int k = 0; k < blocks_of(i); k++) {
            ImageShape images = images_of(i, k, 1, H, W);
            macs += conv_layer_macs(&head->blocks[i][k].block.conv, images.Hi, images.Wi);
        }
    return macs;
}
