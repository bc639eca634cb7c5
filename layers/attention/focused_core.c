#include "layers/attention/focused_core.h"

#include <stdlib.h>

#include "core/die.h"

typedef struct {
    int focused_p;
} FocusedSettings;

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(INT, FocusedSettings, focused_p), "3", .section = "attention", .min = 1, .max = 64, .shapeless = true,
     .help = "Exponent of the focusing function of focused linear attention"},
};

const ConfigGroup focused_settings = {CONFIG_GROUP(FocusedSettings, entries), .change = CHANGE_NEVER};

static int power_of(const Attention *a) {
    return ((const FocusedSettings *)config_settings(a->settings, &focused_settings))->focused_p;
}

void focused_core_declare(FocusedCore *s, const Attention *a, Params *params, const Grid *keys) {
    int M = a->M;
    s->keys = keys ? *keys : a->grid;
    s->apart = keys != NULL;
    int L = grid_tokens(s->keys);
    s->pos.shape = (TableResampling){.from = s->keys, .to = s->keys, .inner = M};
    /* Both have weight decay in the published code and in timm's groups. */
    params_declare(params, (Param){.value = &s->pos.w, .grad = &s->pos.dw, .named = {a->prefix, "positional_encoding"},
                                   .init = INIT_ZEROS, .decay = true, .shape = {1, L, M}, .grid = {1, 1, 0, s->keys},
                                   .time = {TIME_COPIES, 1, s->keys.frames, 0, false}});
    params_declare(params, (Param){.value = &s->scale, .grad = &s->dscale, .named = {a->prefix, "scale"},
                                   .init = INIT_ZEROS, .decay = true, .shape = {1, 1, M}});
    int v_row = L < a->N ? M : s->apart ? 2 * M : 3 * M;
    depthwise_declare(&s->dwc, params, a->prefix, "dwc",
                      (Depthwise){a->grid, M, 5, a->D, v_row, M, a->place.time_kernel}, true);
}

void focused_core_follow_grid(FocusedCore *s, const Attention *a, const Grid *keys) {
    s->keys = s->pos.shape.to = keys ? *keys : a->grid;
    s->core.keys = s->apart ? grid_tokens(s->keys) : 0;
    s->dwc.shape.grid = a->grid;
}

/* Is v interpolated to all tokens for the convolution? */
static bool stretches(const FocusedCore *s, const Attention *a) { return grid_tokens(s->keys) < a->N; }

void focused_core_plan(FocusedCore *s, const Attention *a, Plan *plan, int B) {
    size_t bytes = attention_bytes(a, B);
    s->core.keys = s->apart ? grid_tokens(s->keys) : 0;
    linear_core_plan(&s->core, a, plan, B, a->H, a->D, DENOMINATOR_EPSILON);
    plan_keep(plan, a->prefix, "linear", &s->linear, bytes);
    if (stretches(s, a)) plan_borrow(plan, a->prefix, "all", &s->all, bytes);
    if (stretches(s, a) && plan->training) plan_borrow(plan, a->prefix, "dall", &s->dall, bytes);
    grid_table_plan(&s->pos, plan, a->prefix, "positional_encoding", a->changes);
    plan_workspace(plan, focused_features_workspace(a->M));
    plan_workspace(plan, depthwise_workspace(&s->dwc.shape));
}

static FocusedRows queries_of(const FocusedCore *s, const Attention *a, int B) {
    return (FocusedRows){B, a->N, a->M, (s->apart ? 1 : 3) * a->M, (s->apart ? 1 : 2) * a->M};
}

static FocusedRows keys_of(const FocusedCore *s, const Attention *a, int B) {
    return (FocusedRows){B, grid_tokens(s->keys), a->M, (s->apart ? 2 : 3) * a->M, (s->apart ? 1 : 2) * a->M};
}

/* v of all tokens, for the convolution. */
static const real *all_values(const FocusedCore *s, const Attention *a, const real *v, int B) {
    if (!stretches(s, a)) return v;
    rows_stretch_forward(s->all, v, &(RowStretch){B, grid_tokens(s->keys), a->N, a->M, 2 * a->M});
    return s->all;
}

void focused_core_forward(const FocusedCore *s, const Attention *a, real *mix, const real *q, const real *kv, int B) {
    FocusedRows queries = queries_of(s, a, B), keys = keys_of(s, a, B);
    int p = power_of(a);
    focused_features_forward(s->core.phi, q, NULL, s->scale, p, &queries);
    focused_features_forward(s->apart ? s->core.phi_k : s->core.phi + a->M, kv, grid_table_values(&s->pos), s->scale, p,
                             &keys);
    linear_core_forward(&s->core, a, s->linear, s->apart ? kv : q, B);
    depthwise_forward(mix, s->linear, all_values(s, a, kv + a->M, B), s->dwc.w, s->dwc.b, &s->dwc.shape, B);
}

static void values_backward(const FocusedCore *s, const Attention *a, real *dv, const real *dmix, const real *v,
                            int B) {
    const DepthwiseLayer *d = &s->dwc;
    if (!stretches(s, a)) {
        depthwise_backward(dv, dv, d->dw, d->db, dmix, v, d->w, &d->shape, B);
        return;
    }
    depthwise_backward(s->dall, NULL, d->dw, d->db, dmix, all_values(s, a, v, B), d->w, &d->shape, B);
    rows_stretch_backward(dv, s->dall, &(RowStretch){B, grid_tokens(s->keys), a->N, a->M, 2 * a->M});
}

void focused_core_backward(const FocusedCore *s, const Attention *a, real *dq, real *dkv, const real *dmix,
                           const real *q, const real *kv, int B) {
    FocusedRows queries = queries_of(s, a, B), keys = keys_of(s, a, B);
    int p = power_of(a);
    linear_core_backward(&s->core, a, s->apart ? dkv : dq, dmix, s->linear, s->apart ? kv : q, B);
    values_backward(s, a, dkv + a->M, dmix, kv + a->M, B);
    focused_features_backward(dq, NULL, s->dscale, s->core.dphi, q, NULL, s->scale, p, &queries);
    const float *pos = grid_table_values(&s->pos);
    float *dpos = grid_table_gradient(&s->pos);
    focused_features_backward(dkv, dpos, s->dscale, s->apart ? s->core.dphi_k : s->core.dphi + a->M, kv, pos, s->scale,
                              p, &keys);
    grid_table_backward(&s->pos);
}

size_t focused_core_macs(const FocusedCore *s, const Attention *a) {
    return linear_core_macs(&s->core, a) + depthwise_macs(&s->dwc.shape);
}

void focused_core_spatial(const FocusedCore *s, const Attention *a, float *weights, int query) {
    const Depthwise *d = &s->dwc.shape;
    int k = d->k, kt = d->kt > 1 ? d->kt : 1, taps = kt * k * k;
    GridPlace from = grid_place(a->grid, query);
    float *w = xcalloc((size_t)a->D, (size_t)taps * sizeof *w, "attention picture");
    device_download(w, s->dwc.w, (size_t)a->D * (size_t)taps * sizeof *w);
    for (int j = 0; j < a->N; j++) {
        GridPlace to = grid_place(a->grid, j);
        int t = to.t - from.t + kt / 2, y = to.y - from.y + k / 2, x = to.x - from.x + k / 2;
        weights[j] = 0;
        if (t < 0 || t >= kt || y < 0 || y >= k || x < 0 || x >= k) continue;
        for (int c = 0; c < a->D; c++) weights[j] += w[c * taps + (t * k + y) * k + x] / (float)a->D;
    }
    free(w);
}
