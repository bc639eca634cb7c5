/* y = relu(norm(z)), z = conv(x)
 * backward  dz = (norm and ReLU)'(dy, z),  dx = conv^T dz
 * saves     z, and the norm's mean and rstd. */
#include "layers/semantic_fpn/conv_norm.h"

#include <string.h>

static const float EPS = 1e-5f, MOMENTUM = 0.1f; /* PyTorch's */

void conv_norm_declare(ConvNorm *block, ConvLayers *convs, Params *params, const char *prefix, int in, int out,
                       SegNorm norm) {
    const char *name = norm == SEG_NORM_BN ? "bn" : "gn";
    memset(block, 0, sizeof *block);
    block->norm = norm;
    conv_layer_declare(&block->conv, convs, params,
                       &(ConvConfig){prefix, "conv", {in, out, 3, 1, false}, .init = CONV_KAIMING});
    params_declare(params, (Param){.value = &block->w, .grad = &block->dw, .named = {prefix, name, ".weight"},
                                   .init = INIT_ONES, .shape = {out}});
    params_declare(params, (Param){.value = &block->b, .grad = &block->db, .named = {prefix, name, ".bias"},
                                   .init = INIT_ZEROS, .shape = {out}});
    if (norm != SEG_NORM_BN) return;
    params_declare(params, (Param){.value = &block->running_mean, .named = {prefix, name, ".running_mean"},
                                   .init = INIT_ZEROS, .frozen = true, .shape = {out}});
    params_declare(params, (Param){.value = &block->running_var, .named = {prefix, name, ".running_var"},
                                   .init = INIT_ONES, .frozen = true, .shape = {out}});
}

static BatchNorm batch_norm_of(const ConvNorm *block, const ImageShape *images) {
    return (BatchNorm){block->w, block->b, block->mean, block->rstd, block->running_mean, block->running_var,
                       images->B * images->Hi * images->Wi, block->conv.shape.out, EPS, MOMENTUM};
}

static GroupNorm group_norm_of(const ConvNorm *block, const ImageShape *images) {
    return (GroupNorm){block->w, block->b, block->mean, block->rstd, images->B, images->Hi * images->Wi,
                       block->conv.shape.out, SEG_NORM_GROUPS, EPS};
}

void conv_norm_plan(ConvNorm *block, Plan *plan, const char *prefix, const ImageShape *images) {
    BatchNorm batch = batch_norm_of(block, images);
    GroupNorm group = group_norm_of(block, images);
    bool bn = block->norm == SEG_NORM_BN;
    size_t C = (size_t)block->conv.shape.out, pixels = (size_t)images->B * (size_t)images->Hi * (size_t)images->Wi;
    size_t statistics = bn ? C : (size_t)images->B * SEG_NORM_GROUPS;
    plan_keep(plan, prefix, "mean", &block->mean, statistics * sizeof *block->mean);
    plan_keep(plan, prefix, "rstd", &block->rstd, statistics * sizeof *block->rstd);
    if (plan->training) plan_keep(plan, prefix, "z", &block->z, pixels * C * sizeof *block->z);
    plan_workspace(plan, bn ? batch_norm_workspace(&batch) : group_norm_workspace(&group));
    conv_layer_plan(&block->conv, plan, images);
}

void conv_norm_forward(const ConvNorm *block, real *y, const real *x, bool training, const ImageShape *images) {
    BatchNorm batch = batch_norm_of(block, images);
    GroupNorm group = group_norm_of(block, images);
    conv_layer_forward(&block->conv, block->z, x, images);
    if (block->norm == SEG_NORM_GN) group_norm_forward(y, block->z, NULL, true, &group);
    else if (training) batch_norm_forward(y, block->z, true, &batch);
    else batch_norm_inference(y, block->z, true, &batch);
}

void conv_norm_backward(const ConvNorm *block, real *dx, real *dy, const real *x, const ImageShape *images) {
    BatchNorm batch = batch_norm_of(block, images);
    GroupNorm group = group_norm_of(block, images);
    if (block->norm == SEG_NORM_GN) group_norm_backward(dy, block->dw, block->db, dy, block->z, true, &group);
    else batch_norm_backward(dy, block->dw, block->db, dy, block->z, true, &batch);
    conv_layer_backward(&block->conv, dx, NULL, dy, x, NULL, images);
}
