#include "layers/attention.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "layers/features/feature_map.h"

/* == Settings ===================================================================================================== */

enum { OWNERS_SIZE = 512, GROUPS_MOST = 64 };

static bool lists(const ConfigGroup *const *groups, const ConfigGroup *group) {
    for (; groups && *groups; groups++)
        if (*groups == group) return true;
    return false;
}

static bool is_offered(const AttentionOp *op, AttentionUse use) {
    return use == ATTENTION_ONE_GRID || (use == ATTENTION_DETECTOR ? op->takes_mask : op->any_grid);
}

/* Names of the operators that read the group, "ripple, ripple-fixed".  The text is never freed. */
static const char *owners_of(const ConfigGroup *group, AttentionUse use) {
    static struct {
        const ConfigGroup *group;
        char text[OWNERS_SIZE];
    } known[GROUPS_MOST][ATTENTION_USES];
    int i = 0;
    while (known[i][use].group && known[i][use].group != group && i < GROUPS_MOST - 1) i++;
    char *text = known[i][use].text;
    if (known[i][use].group == group) return text;
    known[i][use].group = group;
    for (int op = 0; attention_operators[op]; op++) {
        const AttentionOp *o = attention_operators[op];
        if (!is_offered(o, use) || !(lists(o->settings, group) || lists(o->grid_settings, group))) continue;
        size_t used = strlen(text);
        snprintf(text + used, OWNERS_SIZE - used, "%s%s", used ? ", " : "", o->name);
    }
    return text;
}

void attention_add_settings(Config *config, AttentionUse use) {
    for (int op = 0; attention_operators[op]; op++) {
        const AttentionOp *o = attention_operators[op];
        if (!is_offered(o, use)) continue;
        for (const ConfigGroup *const *g = o->settings; g && *g; g++)
            config_add_for(config, *g, "attn", owners_of(*g, use));
        for (const ConfigGroup *const *g = use == ATTENTION_DETECTOR ? NULL : o->grid_settings; g && *g; g++)
            config_add_for(config, *g, "attn", owners_of(*g, use));
    }
}

void attention_use_settings(Config *config, const AttentionOp *op) {
    for (const ConfigGroup *const *g = op->settings; g && *g; g++) config_use(config, *g);
    for (const ConfigGroup *const *g = op->grid_settings; g && *g; g++) config_use(config, *g);
}

/* == One block ==================================================================================================== */

int attention_class_block(const AttentionOp *op, const Config *settings) {
    return op->class_block ? op->class_block(settings) : 0;
}

int attention_stage_number(const Attention *a, const char *name, const ConfigInts *list) {
    if (list->count != 1 && list->count != a->place.stages)
        config_reject(a->settings, name, "{%s} has %d values, but {dim} has %d: give one for each stage, or one for all",
                      name, list->count, a->place.stages);
    return list->at[list->count > 1 ? a->place.stage : 0];
}

static void set_width(Attention *a, int M, int heads) {
    if (M % heads) config_reject(a->settings, "heads", "{heads=%d} does not divide {dim=%d}", heads, M);
    a->M = M;
    a->H = heads;
    a->D = M / heads;
    a->state = xcalloc(1, a->op->state_size, "attention");
}

/* Rejects values of settings common to all operators that this operator does not support. */
static void check(const Attention *a, bool class_token) {
    const FeatureMapSettings *features = config_settings(a->settings, &feature_map_settings);
    if (!a->op->off_grid && class_token && !a->op->class_block)
        config_reject(a->settings, "pool", "{attn=%s} has no place for the class token of {pool}: use pool gap",
                      a->op->name);
    if (a->grid.frames > 1 && a->op->images_only)
        config_reject(a->settings, "frames", "{frames} makes clips, but {attn=%s} has only rows and columns of tokens: "
                      "use frames 1", a->op->name);
    if (a->op->needs_positive && features->feature_map->negative)
        config_reject(a->settings, "feature_map", "{attn=%s} needs features that are not negative, and those of "
                      "{feature_map} may be", a->op->name);
    if (a->op->check) a->op->check(a);
}

void attention_create(Attention *a, const AttentionOp *op, const Config *settings, const char *prefix, BlockPlace place,
                      Grid grid, int front, int M, int heads) {
    *a = (Attention){.op = op->in_block ? op->in_block(settings, place.block) : op,
                     .settings = settings,
                     .place = place,
                     .N = grid_tokens(grid) + front,
                     .grid = grid,
                     .qkv_bias = !op->no_qkv_bias};
    snprintf(a->prefix, sizeof a->prefix, "%.40sattn.", prefix);
    set_width(a, M, heads);
    check(a, front > 0);
}

void attention_create_detector(Attention *a, const AttentionOp *op, const Config *settings, const DetectorFrame *frame,
                               int layer, int M, int heads) {
    *a = (Attention){.op = op, .settings = settings, .place.block = layer, .qkv_bias = true, .detector = frame};
    snprintf(a->prefix, sizeof a->prefix, "transformer.encoder.layers.%d.self_attn.", layer);
    a->grid = (Grid){1, 1, 1};
    a->N = 1;
    set_width(a, M, heads);
    check(a, false);
}

void attention_check_any_grid(const Attention *a) {
    const char *setting = !a->op->any_grid ? "attn" : a->op->bound_to_grid ? a->op->bound_to_grid(a) : NULL;
    if (setting)
        config_reject(a->settings, setting, "{attn=%s} has tables for the grid that {img_size} makes, but here pictures "
                      "have many sizes", a->op->name);
    if (a->N > grid_tokens(a->grid))
        config_reject(a->settings, "pool", "{pool} has a class token, which has no place where pictures have many sizes: "
                      "use pool gap");
    if (a->grid.frames > 1) config_reject(a->settings, "frames", "{frames} makes clips, but here pictures are expected");
}

void attention_set_grid(Attention *a, Grid grid) {
    assert(a->op->any_grid || a->detector);
    a->changes = true;
    a->grid = grid;
    a->N = grid_tokens(grid);
    if (a->op->follow_grid) a->op->follow_grid(a);
}

/* == The projections of queries, keys and values ================================================================== */

static void qkv_declare(Attention *a, Params *params) {
    QkvFrame *f = &a->frame;
    int width = a->M + 2 * a->H * (a->op->key_width ? a->op->key_width(a) : a->D);
    a->last = &f->proj;
    if (a->op->declare_qkv) {
        a->op->declare_qkv(a, params);
        return;
    }
    if (a->detector) {
        projection_declare_as(&f->qkv, params, a->prefix, "in_proj_", a->M, 3 * a->M, INIT_XAVIER_UNIFORM, INIT_ZEROS);
        projection_declare_as(&f->proj, params, a->prefix, "out_proj.", a->M, a->M, INIT_XAVIER_UNIFORM, INIT_ZEROS);
        return;
    }
    (a->qkv_bias ? projection_declare : projection_declare_weight)(&f->qkv, params, a->prefix, "qkv", a->M, width);
    projection_declare(&f->proj, params, a->prefix, "proj", a->M, a->M);
}

static void qkv_plan(Attention *a, Plan *plan, int B) {
    QkvFrame *f = &a->frame;
    size_t bytes = attention_bytes(a, B);
    size_t width = (size_t)f->qkv.out * sizeof(real);
    plan_pair(plan, a->prefix, "qkv", &f->qkv_act, &f->dqkv, attention_tokens(a, B) * width);
    plan_pair(plan, a->prefix, "mix", &f->mix, &f->dmix, bytes);
    if (a->detector) plan_borrow(plan, a->prefix, "with_pos", &f->with_pos, bytes);
}

static void qkv_forward_in(const Attention *a, const real *x, int B) {
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

static void qkv_forward_out(const Attention *a, real *y, int B) {
    projection_forward(&a->frame.proj, y, a->frame.mix, attention_tokens(a, B));
}

static void qkv_backward_out(const Attention *a, const real *dy, int B) {
    projection_backward(&a->frame.proj, a->frame.dmix, dy, a->frame.mix, attention_tokens(a, B));
}

static void qkv_backward_in(const Attention *a, real *dx, const real *x, int B) {
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

static size_t qkv_macs(const Attention *a) {
    return projection_macs(&a->frame.qkv, (size_t)a->N) + projection_macs(&a->frame.proj, (size_t)a->N);
}

/* == Passes ======================================================================================================= */

void attention_declare(Attention *a, Params *params) {
    if (a->op->mix_forward) qkv_declare(a, params);
    if (a->op->declare) a->op->declare(a, params);
}

static void plan_all(Attention *a, Plan *plan, int B) {
    PlanMark mark = plan_mark(plan);
    if (a->op->mix_forward) qkv_plan(a, plan, B);
    if (a->op->plan) a->op->plan(a, plan, B);
    plan_release(plan, mark);
}

/* Plans for the grid with rows and columns exchanged, only to find its workspace. */
static size_t turned_workspace(Attention *a, bool training, int B) {
    Plan aside = {0};
    Grid grid = a->grid;
    plan_start(&aside, training);
    attention_set_grid(a, (Grid){1, grid.columns, grid.rows});
    plan_all(a, &aside, B);
    attention_set_grid(a, grid);
    size_t bytes = aside.workspace;
    plan_free(&aside);
    return bytes;
}

void attention_plan(Attention *a, Plan *plan, int B) {
    if (a->changes) plan_workspace(plan, turned_workspace(a, plan->training, B));
    plan_all(a, plan, B);
}

void attention_forward(const Attention *a, real *y, const real *x, int B) {
    if (!a->op->mix_forward) {
        a->op->forward(a, y, x, B);
        return;
    }
    qkv_forward_in(a, x, B);
    a->op->mix_forward(a, B);
    qkv_forward_out(a, y, B);
}

void attention_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    if (!a->op->mix_backward) {
        a->op->backward(a, dx, dy, x, B);
        return;
    }
    qkv_backward_out(a, dy, B);
    a->op->mix_backward(a, B);
    qkv_backward_in(a, dx, x, B);
}

size_t attention_macs(const Attention *a) { return a->op->macs(a) + (a->op->mix_forward ? qkv_macs(a) : 0); }

size_t attention_pair_macs(const Attention *a) { return 2 * (size_t)a->N * (size_t)a->N * (size_t)a->M; }

void attention_softmax(float *weights, const real *q, const real *k, int L, size_t row, int D) {
    size_t size = (size_t)(L - 1) * row + (size_t)D;
    float *host_q = xcalloc((size_t)D, sizeof *host_q, "attention picture"), sum = 0, largest = -INFINITY;
    float *host_k = xcalloc(size, sizeof *host_k, "attention picture");
    real_download(host_q, q, (size_t)D);
    real_download(host_k, k, size);
    for (int l = 0; l < L; l++) {
        weights[l] = 0;
        for (int d = 0; d < D; d++) weights[l] += host_q[d] * host_k[(size_t)l * row + (size_t)d];
        weights[l] /= sqrtf((float)D);
        largest = fmaxf(largest, weights[l]);
    }
    for (int l = 0; l < L; l++) sum += weights[l] = expf(weights[l] - largest);
    for (int l = 0; l < L; l++) weights[l] /= sum;
    free(host_q);
    free(host_k);
}

void attention_qkv_row(const real *qkv, const Attention *a, float *weights, int b, int head, int query) {
    size_t row = 3 * (size_t)a->M;
    const real *first = qkv + (size_t)b * (size_t)a->N * row + (size_t)(head * a->D);
    attention_softmax(weights, first + (size_t)query * row, first + a->M, a->N, row, a->D);
}

void attention_destroy(Attention *a) {
    free(a->state);
    *a = (Attention){0};
}
