/* The feature pyramid; its formulas are in fpn.h.
 * backward  dP_5 += dP_6 at even rows and columns;  from fine to coarse:
 *           dM_i = output_i^T dP_i + the sums of dM_(i-1) over 2 x 2;  dC_i = lateral_i^T dM_i
 * saves     M_2 .. M_5 */
#include "layers/pyramid/fpn.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static void conv_declare(ConvLayer *layer, ConvLayers *convs, Params *params, const FpnConfig *f,
                         const char *const name[2], int i, int k) {
    char whole[PARAM_NAME_SIZE];
    snprintf(whole, sizeof whole, "%s%d%s", name[0], i, name[1]);
    conv_layer_declare(layer, convs, params,
                       &(ConvConfig){f->prefix, whole, {k > 1 ? f->channels : f->in[i], f->channels, k, 1, false},
                                     .bias = true, .init = CONV_XAVIER});
}

void fpn_declare(Fpn *fpn, ConvLayers *convs, Params *params, const FpnConfig *config) {
    memset(fpn, 0, sizeof *fpn);
    fpn->config = *config;
    for (int i = 0; i < FPN_FEATURES; i++) conv_declare(&fpn->lateral[i], convs, params, config, config->lateral, i, 1);
    for (int i = 0; i < FPN_FEATURES; i++) conv_declare(&fpn->output[i], convs, params, config, config->output, i, 3);
}

static ImageShape shape_of(int i, int B, int H, int W) { return (ImageShape){B, fpn_side(i, H), fpn_side(i, W)}; }

static size_t bytes_of(const Fpn *fpn, int i, int B, int H, int W) {
    ImageShape s = shape_of(i, B, H, W);
    return (size_t)B * (size_t)s.Hi * (size_t)s.Wi * (size_t)fpn->config.channels * sizeof(real);
}

void fpn_plan(Fpn *fpn, Plan *plan, int B, int H, int W) {
    const char *prefix = fpn->config.prefix;
    H = (H + 31) / 32 * 32;
    W = (W + 31) / 32 * 32;
    fpn->room = (size_t)B * (size_t)H * (size_t)W;
    for (int i = 0; i < fpn_levels(fpn); i++) {
        plan_keep(plan, prefix, "p", &fpn->p[i], bytes_of(fpn, i, B, H, W));
        if (plan->training) plan_borrow(plan, prefix, "dp", &fpn->dp[i], bytes_of(fpn, i, B, H, W));
    }
    PlanMark mark = plan_mark(plan);
    for (int i = 0; i < FPN_FEATURES; i++) {
        ImageShape images = shape_of(i, B, H, W);
        plan_keep(plan, prefix, "m", &fpn->m[i], bytes_of(fpn, i, B, H, W));
        if (plan->training) plan_borrow(plan, prefix, "dm", &fpn->dm[i], bytes_of(fpn, i, B, H, W));
        conv_layer_plan(&fpn->lateral[i], plan, &images);
        conv_layer_plan(&fpn->output[i], plan, &images);
    }
    plan_release(plan, mark);
}

/* From level i + 1 to level i. */
static Resize resize_of(const Fpn *fpn, int i, int B, int H, int W) {
    return (Resize){B, fpn->config.channels, fpn_side(i + 1, H), fpn_side(i + 1, W), fpn_side(i, H), fpn_side(i, W)};
}

void fpn_forward(const Fpn *fpn, const real *const features[FPN_FEATURES], int B, int H, int W) {
    assert(H % 32 == 0 && W % 32 == 0 && (size_t)B * (size_t)H * (size_t)W <= fpn->room);
    for (int i = FPN_FEATURES - 1; i >= 0; i--) {
        ImageShape images = shape_of(i, B, H, W);
        conv_layer_forward(&fpn->lateral[i], fpn->m[i], features[i], &images);
        Resize resize = resize_of(fpn, i, B, H, W);
        if (i + 1 < FPN_FEATURES) nearest_add_forward(fpn->m[i], fpn->m[i], fpn->m[i + 1], &resize);
        conv_layer_forward(&fpn->output[i], fpn->p[i], fpn->m[i], &images);
    }
    if (!fpn->config.coarsest) return;
    ImageShape fine = shape_of(FPN_FEATURES - 1, B, H, W);
    subsample_forward(fpn->p[FPN_FEATURES], fpn->p[FPN_FEATURES - 1], &fine, fpn->config.channels);
}

void fpn_backward(const Fpn *fpn, real *const dfeatures[FPN_FEATURES], const real *const features[FPN_FEATURES], int B,
                  int H, int W) {
    ImageShape last = shape_of(FPN_FEATURES - 1, B, H, W);
    if (fpn->config.coarsest)
        subsample_backward(fpn->dp[FPN_FEATURES - 1], fpn->dp[FPN_FEATURES], &last, fpn->config.channels);
    for (int i = 0; i < FPN_FEATURES; i++) {
        ImageShape images = shape_of(i, B, H, W);
        real *dm = fpn->dm[i];
        Resize resize = resize_of(fpn, i - 1, B, H, W);
        if (i) nearest_add_backward(dm, NULL, fpn->dm[i - 1], &resize);
        conv_layer_backward(&fpn->output[i], dm, i ? dm : NULL, fpn->dp[i], fpn->m[i], NULL, &images);
        conv_layer_backward(&fpn->lateral[i], dfeatures[i], NULL, dm, features[i], NULL, &images);
    }
}

size_t fpn_macs(const Fpn *fpn, int H, int W) {
    size_t macs = 0;
    for (int i = 0; i < FPN_FEATURES; i++) {
        macs += conv_layer_macs(&fpn->lateral[i], fpn_side(i, H), fpn_side(i, W));
        macs += conv_layer_macs(&fpn->output[i], fpn_side(i, H), fpn_side(i, W));
    }
    return macs;
}
