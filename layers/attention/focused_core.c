#include "layers/attention/focused_core.h"

typedef struct {
    int focused_p;
} FocusedSettings;

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(INT, FocusedSettings, focused_p), "3", .section = "attention", .min = 1, .max = 64,
     .help = "Exponent of the focusing function of focused linear attention"},
};

const ConfigGroup focused_settings = {CONFIG_GROUP(FocusedSettings, entries)};

static int power_of(const Attention *a) {
    return ((const FocusedSettings *)config_settings(a->settings, &focused_settings))->focused_p;
}

static AttentionShape shape_of(const Attention *a, int B) { return (AttentionShape){B, a->N, a->H, a->D}; }

void focused_core_declare(FocusedCore *s, const Attention *a, Params *params) {
    int M = a->M;
    /* Both decay in the published code and in timm's groups. */
    params_declare(params, &s->pos, &s->dpos, a->prefix, "positional_encoding", INIT_ZEROS, true, 3,
                   (int[]){1, a->N, M});
    params_on_grid(params, (ParamGrid){1, 1, a->N - grid_tokens(a->grid), a->grid});
    params_in_time(params, (ParamTime){TIME_COPIES, 1, a->grid.frames, a->N - grid_tokens(a->grid), false});
    params_declare(params, &s->scale, &s->dscale, a->prefix, "scale", INIT_ZEROS, true, 3, (int[]){1, 1, M});
    depthwise_declare(&s->dwc, params, a->prefix, "dwc",
                      (Depthwise){a->grid, M, 5, a->D, 3 * M, M, a->time_kernel}, true);
}

void focused_core_plan(FocusedCore *s, const Attention *a, Plan *plan, int B) {
    linear_core_plan(&s->core, a, plan, B, a->H, a->D, DENOMINATOR_EPSILON);
    plan_keep(plan, a->prefix, "linear", &s->linear, (size_t)B * (size_t)a->N * (size_t)a->M * sizeof(real));
    plan_workspace(plan, focused_features_workspace(a->M));
    plan_workspace(plan, depthwise_workspace(&s->dwc.shape));
}

void focused_core_forward(const FocusedCore *s, const Attention *a, real *mix, const real *qkv, int B) {
    focused_features_forward(s->core.phi, qkv, s->pos, s->scale, power_of(a), (AttentionShape[]){shape_of(a, B)});
    linear_core_forward(&s->core, a, s->linear, qkv, B);
    depthwise_forward(mix, s->linear, qkv + 2 * a->M, s->dwc.w, s->dwc.b, &s->dwc.shape, B);
}

void focused_core_backward(const FocusedCore *s, const Attention *a, real *dqkv, const real *dmix, const real *qkv,
                           int B) {
    real *dv = dqkv + 2 * a->M;
    linear_core_backward(&s->core, a, dqkv, dmix, s->linear, qkv, B);
    depthwise_backward(dv, dv, s->dwc.dw, s->dwc.db, dmix, qkv + 2 * a->M, s->dwc.w, &s->dwc.shape, B);
    focused_features_backward(dqkv, s->dpos, s->dscale, s->core.dphi, qkv, s->pos, s->scale, power_of(a),
                              (AttentionShape[]){shape_of(a, B)});
}

size_t focused_core_macs(const FocusedCore *s, const Attention *a) {
    return linear_core_macs(&s->core, a) + depthwise_macs(&s->dwc.shape);
}
