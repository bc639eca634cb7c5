#include "layers/attention/reduced_keys.h"

#include "core/die.h"

typedef struct {
    ConfigInts reduction;
} ReductionSettings;

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(INTS, ReductionSettings, reduction), "1", .section = "attention", .min = 1, .max = 64,
     .help = "Side of the squares of tokens that become one key of reduced attention; with several stages one number or "
             "a list (PVT: 8,4,2,1)"},
};

const ConfigGroup reduction_settings = {CONFIG_GROUP(ReductionSettings, entries), .change = CHANGE_NEVER};

int reduction_of(const Attention *a) {
    const ReductionSettings *s = config_settings(a->settings, &reduction_settings);
    int r = attention_stage_number(a, "reduction", &s->reduction);
    if (r > a->grid.rows || r > a->grid.columns)
        config_reject(a->settings, "reduction", "{reduction=%d} is more than a side of stage %d's %dx%d tokens, which "
                      "{img_size} and {patch_size} make", r, a->place.stage, a->grid.rows, a->grid.columns);
    return r;
}

/* The keys of the current grid, which have reduction k->squares.stride or, unless that is 0, k->cells a side. */
static void keys_follow_grid(ReducedKeys *k, const Attention *a) {
    int c = k->cells;
    k->squares.Hi = a->grid.rows;
    k->squares.Wi = a->grid.columns;
    k->tokens_of_frame = (Grid){1, a->grid.rows, a->grid.columns};
    k->of_frame = c ? (Grid){1, c, c} : unfold_grid(&k->squares);
    k->frames = a->grid.frames;
    k->grid = (Grid){1, k->frames * k->of_frame.rows, k->of_frame.columns};
    if (!reduced_keys_differ(k)) k->grid = (Grid){1, 1, a->N};
}

bool reduced_keys_differ(const ReducedKeys *k) { return k->cells > 0 || k->squares.stride > 1; }

size_t reduced_keys_count(const ReducedKeys *k, int B) { return (size_t)B * (size_t)grid_tokens(k->grid); }

static void keys_declare(ReducedKeys *k, const Attention *a, Params *params) {
    int M = a->M, r = k->squares.stride, fan = M * r * r;
    ParamSetting from = {k->cells ? NULL : "reduction", r, a->place.stage};
    if (!reduced_keys_differ(k)) return;
    k->sr = (Projection){.in = fan, .out = M};
    params_declare(params, (Param){.value = &k->sr.w, .grad = &k->sr.dw, .named = {a->prefix, "sr.weight"},
                                   .init = INIT_FAN_IN_UNIFORM, .fan = fan, .decay = true, .shape = {M, M, r, r},
                                   .from = from});
    params_declare(params, (Param){.value = &k->sr.b, .grad = &k->sr.db, .named = {a->prefix, "sr.bias"},
                                   .init = INIT_FAN_IN_UNIFORM, .fan = fan, .shape = {M}});
    norm_layer_declare(&k->norm, params, a->prefix, "norm", M, PYTORCH_NORM_EPS, false);
}

static void keys_plan(ReducedKeys *k, const Attention *a, Plan *plan, int B) {
    size_t L = reduced_keys_count(k, B), bytes = L * (size_t)a->M * sizeof(real);
    if (!reduced_keys_differ(k)) return;
    plan_pair(plan, a->prefix, "raw", &k->raw, &k->draw, bytes);
    norm_layer_plan(&k->norm, plan, a->prefix, L);
    plan_pair(plan, a->prefix, "z", &k->z, &k->dz, bytes);
    plan_borrow(plan, a->prefix, "cols", &k->cols, L * (size_t)k->sr.in * sizeof(real));
}

/* The rows that sr projects. */
static void gather_squares(const ReducedKeys *k, const Attention *a, const real *x, int B) {
    int frames = B * k->frames;
    if (k->cells) overlapping_means_forward(k->cols, x, &(Cells){k->tokens_of_frame, k->of_frame}, frames, a->M);
    else unfold_forward(k->cols, x, &k->squares, frames);
}

/* Returns z, which may be x. */
static const real *keys_forward(const ReducedKeys *k, const Attention *a, const real *x, int B) {
    if (!reduced_keys_differ(k)) return x;
    LayerNorm norm = norm_layer_of(&k->norm, reduced_keys_count(k, B));
    gather_squares(k, a, x, B);
    projection_forward(&k->sr, k->raw, k->cols, norm.n);
    (k->cells ? layernorm_gelu_forward : layernorm_forward)(k->z, k->raw, &norm);
    return k->z;
}

/* Computes dx (=), the gradient through z, from dz; does nothing where z is x. */
static void keys_backward(const ReducedKeys *k, const Attention *a, real *dx, const real *x, int B) {
    if (!reduced_keys_differ(k)) return;
    LayerNorm norm = norm_layer_of(&k->norm, reduced_keys_count(k, B));
    if (k->cells) layernorm_gelu_backward(k->dz, k->dz, k->raw, &norm);
    norm_layer_backward(&k->norm, k->draw, k->dz, k->raw, norm.n);
    gather_squares(k, a, x, B);
    projection_backward(&k->sr, NULL, k->draw, k->cols, norm.n);
    linear_backward_input(k->cols, k->draw, k->sr.w, &(LinearShape){norm.n, k->sr.in, k->sr.out, 0});
    int frames = B * k->frames;
    if (k->cells) overlapping_means_backward(dx, k->cols, &(Cells){k->tokens_of_frame, k->of_frame}, frames, a->M);
    else unfold_backward(dx, k->cols, &k->squares, frames);
}

static void spread(const ReducedKeys *k, const Attention *a, float *weights, int l, float weight) {
    if (!reduced_keys_differ(k)) {
        weights[l] += weight;
        return;
    }
    GridPlace key = grid_place((Grid){k->frames, k->of_frame.rows, k->of_frame.columns}, l);
    int r = k->squares.stride, first = key.t * grid_tokens(k->tokens_of_frame);
    TokenSpan rows = {key.y * r, (key.y + 1) * r}, columns = {key.x * r, (key.x + 1) * r};
    if (k->cells) {
        rows = cell_span(key.y, k->of_frame.rows, a->grid.rows);
        columns = cell_span(key.x, k->of_frame.columns, a->grid.columns);
    }
    float share = weight / (float)((rows.end - rows.begin) * (columns.end - columns.begin));
    for (int y = rows.begin; y < rows.end; y++)
        for (int x = columns.begin; x < columns.end; x++) weights[first + y * a->grid.columns + x] += share;
}

void reduced_keys_spread(const ReducedKeys *k, const Attention *a, float *weights, const float *of_keys) {
    for (int m = 0; m < a->N; m++) weights[m] = 0;
    for (int l = 0; l < grid_tokens(k->grid); l++) spread(k, a, weights, l, of_keys[l]);
}

/* == The frame ==================================================================================================== */

void reduced_frame_declare(ReducedFrame *f, const Attention *a, Params *params, int r, int c) {
    int M = a->M;
    f->keys.cells = c;
    f->keys.squares = (Unfold){a->grid.rows, a->grid.columns, M, r, r, 0, false, 0, 0, 0};
    keys_follow_grid(&f->keys, a);
    projection_declare(&f->q, params, a->prefix, "q", M, M);
    projection_declare(&f->kv, params, a->prefix, "kv", M, 2 * M);
    projection_declare(&f->proj, params, a->prefix, "proj", M, M);
    keys_declare(&f->keys, a, params);
}

void reduced_frame_follow_grid(ReducedFrame *f, const Attention *a) {
    int r = f->keys.squares.stride;
    if (!f->keys.cells && (a->grid.rows < r || a->grid.columns < r))
        die("a grid of %d x %d tokens has no whole square of reduction %d in stage %d: the picture is too small",
            a->grid.rows, a->grid.columns, r, a->place.stage);
    keys_follow_grid(&f->keys, a);
}

void reduced_frame_plan(ReducedFrame *f, const Attention *a, Plan *plan, int B) {
    size_t bytes = attention_bytes(a, B);
    size_t kv = 2 * reduced_keys_count(&f->keys, B) * (size_t)a->M * sizeof(real);
    plan_pair(plan, a->prefix, "q", &f->q_act, &f->dq, bytes);
    plan_pair(plan, a->prefix, "kv", &f->kv_act, &f->dkv, kv);
    plan_pair(plan, a->prefix, "mix", &f->mix, &f->dmix, bytes);
    keys_plan(&f->keys, a, plan, B);
    if (plan->training) plan_borrow(plan, a->prefix, "dx", &f->dx, bytes);
}

void reduced_frame_forward_in(const ReducedFrame *f, const Attention *a, const real *x, int B) {
    const real *z = keys_forward(&f->keys, a, x, B);
    projection_forward(&f->q, f->q_act, x, attention_tokens(a, B));
    projection_forward(&f->kv, f->kv_act, z, reduced_keys_count(&f->keys, B));
}

void reduced_frame_backward_in(const ReducedFrame *f, const Attention *a, real *dx, const real *x, int B) {
    bool differ = reduced_keys_differ(&f->keys);
    projection_backward(&f->kv, differ ? f->keys.dz : f->dx, f->dkv, differ ? f->keys.z : x,
                        reduced_keys_count(&f->keys, B));
    keys_backward(&f->keys, a, f->dx, x, B);
    projection_backward(&f->q, dx, f->dq, x, attention_tokens(a, B));
    add_forward(dx, dx, f->dx, attention_tokens(a, B) * (size_t)a->M);
}

size_t reduced_frame_macs(const ReducedFrame *f, const Attention *a) {
    size_t N = (size_t)a->N, L = reduced_keys_count(&f->keys, 1);
    size_t keys = reduced_keys_differ(&f->keys) ? projection_macs(&f->keys.sr, L) : 0;
    return keys + projection_macs(&f->q, N) + projection_macs(&f->kv, L) + projection_macs(&f->proj, N);
}
