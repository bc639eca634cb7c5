/* Pre-norm blocks.  x_0 [B,N,M] -> h [B,N,M]
 * forward   for every block:  x += conv(x), where a depthwise 3x3 convolution embeds positions (Chu et al. 2021)
 *                             x += keep drop(attention(norm1(x)));  x += keep drop(mlp(norm2(x))), or with normed_mlp
 *                             x = norm2(x), x += keep drop(mlp(x)), as in Compact Transformers (Hassani et al. 2021)
 *           h = norm(x), or x if the stage ends without a norm; the next stage reads h, or x if there is no norm
 *           (with some operators the class token is added before a later block, without a position embedding)
 * Each residual addition is fused with the norm that follows it, so the stream has 2*depth + 1 stations and a
 * half-block maps h of one station to f, which the next station adds.
 * backward  the same steps in reverse: dx is the gradient of the stream, dh of a half-block's input, df of its output.
 * saves     every station and what the half-blocks save; with recompute (Chen et al. 2016; Child et al. 2019) only the
 *           input of every block, from which the rest is computed again with the same bits, in memory that all blocks
 *           share. */
#include "layers/stage.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/die.h"

/* == Parameters =================================================================================================== */

static void station_declare(Stage *stage, int i, Params *params, const char *prefix, const char *name) {
    Station *s = &stage->stations[i];
    int M = stage->config.dim;
    s->begin = params->total;
    s->convolves = stage->position_conv && i % 2 == 0 && i < 2 * stage->config.depth;
    if (s->convolves)
        depthwise_declare(&s->conv, params, prefix, "pos_embed",
                          (Depthwise){stage->grid, M, 3, M, M, M, stage->time_kernel}, true);
    float eps = i < 2 * stage->config.depth ? stage->norm_eps : stage->end_eps;
    if (!s->bare) norm_layer_declare(&s->norm, params, prefix, name, M, eps, false);
}

static void block_declare(Stage *stage, int i, Params *params) {
    const StageConfig *c = &stage->config;
    Block *block = &stage->blocks[i];
    char prefix[PARAM_NAME_SIZE];
    bool joined = stage->first + i >= attention_class_block(c->attn, stage->settings);
    snprintf(block->prefix, sizeof block->prefix, "%sblocks.%d.", stage->prefix, i);
    attention_create(&block->attention, c->attn, stage->settings, block->prefix,
                     (BlockPlace){stage->first + i, stage->index, stage->stages, i, stage->time_kernel,
                                  stage->conv_time_kernel},
                     stage->grid, joined ? stage->front.count : 0, c->dim, c->heads);
    block->attention.causal = stage->causal;
    block->attention.drops = stage->drops_weights;
    if (stage->without_qkv_bias) block->attention.qkv_bias = false;
    stage->stations[2 * i].N = stage->stations[2 * i + 1].N = block->attention.N;
    station_declare(stage, 2 * i, params, block->prefix, "norm1");
    attention_declare(&block->attention, params);
    station_declare(stage, 2 * i + 1, params, block->prefix, "norm2");
    snprintf(prefix, sizeof prefix, "%.40smlp.", block->prefix);
    block->mlp.time_kernel = stage->time_kernel;
    mlp_declare(&block->mlp, params, prefix, c->dim, (int)((float)c->dim * c->mlp_ratio),
                stage->mlp_conv ? &stage->grid : NULL);
    block->mlp.relu = stage->mlp_relu;
    block->mlp.sigmoid = stage->mlp_sigmoid;
    params_start_scaled(params, block->attention.prefix, "proj.weight", stage->residual_gain);
    params_start_scaled(params, block->attention.prefix, "conv2.weight", stage->residual_gain);
    params_start_scaled(params, prefix, "fc2.weight", stage->residual_gain);
}

static const char *end_name(const Stage *stage) { return stage->norm_name ? stage->norm_name : "norm"; }

void stage_declare(Stage *stage, Params *params) {
    int depth = stage->config.depth;
    stage->N = grid_tokens(stage->grid) + stage->front.count;
    stage->blocks = xcalloc((size_t)depth, sizeof *stage->blocks, "blocks");
    stage->stations = xcalloc(2 * (size_t)depth + 1, sizeof *stage->stations, "blocks");
    for (int i = 0; i < depth; i++) block_declare(stage, i, params);
    Station *end = &stage->stations[2 * depth];
    end->N = stage->N;
    end->bare = stage->bare_end;
    station_declare(stage, 2 * depth, params, stage->norm_prefix, end_name(stage));
    if (stage->norm_unused) end->bare = true;
}

/* == Activations ================================================================================================== */

void stream_plan(Stream *s, Plan *plan, size_t bytes, bool sum, bool scales) {
    plan_borrow(plan, "", "f", &s->f, bytes);
    plan_borrow(plan, "", "sum", &s->sum, sum ? bytes : 0);
    if (!plan->training) return;
    plan_borrow(plan, "", "dx", &s->dx, bytes);
    plan_borrow(plan, "", "dh", &s->dh, bytes);
    plan_borrow(plan, "", "df", &s->df, scales ? bytes : 0);
}

static void station_prefix(const Stage *stage, int i, char prefix[PARAM_NAME_SIZE]) {
    if (stage->stations[i].bare) snprintf(prefix, PARAM_NAME_SIZE, "%send.", stage->prefix);
    else if (i == 2 * stage->config.depth)
        snprintf(prefix, PARAM_NAME_SIZE, "%s%.8s.", stage->norm_prefix, end_name(stage));
    else snprintf(prefix, PARAM_NAME_SIZE, "%.40snorm%d.", stage->blocks[i / 2].prefix, i % 2 + 1);
}

/* Plans the input of a block, or of its second half. */
static void station_input_plan(Stage *stage, int i, Plan *plan, size_t rows) {
    Station *s = &stage->stations[i];
    char prefix[PARAM_NAME_SIZE];
    station_prefix(stage, i, prefix);
    plan_keep(plan, prefix, s->convolves ? "in" : "x", s->convolves ? &s->in : &s->x,
              rows * (size_t)stage->config.dim * sizeof(real));
}

static void plan_norm(Stage *stage, int i, Plan *plan, size_t rows) {
    char prefix[PARAM_NAME_SIZE];
    station_prefix(stage, i, prefix);
    plan_keep(plan, prefix, "h", &stage->stations[i].h, rows * (size_t)stage->config.dim * sizeof(real));
}

static void station_rest_plan(Stage *stage, int i, Plan *plan, size_t rows) {
    Station *s = &stage->stations[i];
    char prefix[PARAM_NAME_SIZE];
    station_prefix(stage, i, prefix);
    if (s->convolves) plan_keep(plan, prefix, "x", &s->x, rows * (size_t)stage->config.dim * sizeof(real));
    if (s->bare) return;
    plan_norm(stage, i, plan, rows);
    norm_layer_plan(&s->norm, plan, prefix, rows);
}

/* Is the norm of station i the stream that the next half-block adds to? */
static bool norm_is_stream(const Stage *stage, int i) { return stage->normed_mlp && i % 2 == 1; }

/* In inference the stream is updated in place; a norm that is the stream has its own memory, from the first one on. */
static void station_alias(Stage *stage, int i, Plan *plan) {
    Station *s = &stage->stations[i], *first = &stage->stations[0];
    Station *normed = norm_is_stream(stage, i) ? &stage->stations[1] : first;
    if (s->convolves) plan_alias(plan, &s->in, &first->in);
    plan_alias(plan, &s->x, &first->x);
    if (s != normed) plan_alias(plan, &s->h, &normed->h);
    plan_alias(plan, &s->norm.mean, &first->norm.mean);
    plan_alias(plan, &s->norm.rstd, &first->norm.rstd);
}

static void block_plan(Stage *stage, int i, Plan *plan, int B) {
    Block *block = &stage->blocks[i];
    char prefix[PARAM_NAME_SIZE];
    attention_plan(&block->attention, plan, B);
    snprintf(prefix, sizeof prefix, "%.40smlp.", block->prefix);
    block->mlp.recomputed = stage->recompute;
    mlp_plan(&block->mlp, plan, prefix, (size_t)B * (size_t)block->attention.N);
}

static void inference_plan(Stage *stage, Plan *plan, int B) {
    size_t rows = (size_t)B * (size_t)stage->N;
    station_input_plan(stage, 0, plan, rows);
    station_rest_plan(stage, 0, plan, rows);
    if (stage->normed_mlp) plan_norm(stage, 1, plan, rows);
    for (int i = 1; i <= 2 * stage->config.depth; i++) station_alias(stage, i, plan);
    for (int i = 0; i < stage->config.depth; i++) block_plan(stage, i, plan, B);
}

static void training_plan(Stage *stage, Plan *plan, int B) {
    int depth = stage->config.depth;
    size_t end = (size_t)B * (size_t)stage->N;
    for (int i = 0; i < depth; i++)
        station_input_plan(stage, 2 * i, plan, (size_t)B * (size_t)stage->stations[2 * i].N);
    station_input_plan(stage, 2 * depth, plan, end);
    station_rest_plan(stage, 2 * depth, plan, end);
    for (int i = 0; i < depth; i++) {
        size_t rows = (size_t)B * (size_t)stage->stations[2 * i].N;
        PlanMark mark = plan_mark(plan);
        station_rest_plan(stage, 2 * i, plan, rows);
        station_input_plan(stage, 2 * i + 1, plan, rows);
        station_rest_plan(stage, 2 * i + 1, plan, rows);
        block_plan(stage, i, plan, B);
        if (stage->recompute) plan_reuse(plan, mark);
    }
}

void stage_plan(Stage *stage, Plan *plan, int B) {
    (plan->training ? training_plan : inference_plan)(stage, plan, B);
    if (stage->position_conv) plan_workspace(plan, depthwise_workspace(&stage->stations[0].conv.shape));
}

void stage_set_tokens(Stage *stage, int N) {
    stage->N = N;
    for (int i = 0; i <= 2 * stage->config.depth; i++) stage->stations[i].N = N;
    for (int i = 0; i < stage->config.depth; i++) stage->blocks[i].attention.N = N;
}

void stage_set_grid(Stage *stage, Grid grid) {
    stage->grid = grid;
    stage_set_tokens(stage, grid_tokens(grid));
    for (int i = 0; i < stage->config.depth; i++) {
        attention_set_grid(&stage->blocks[i].attention, grid);
        stage->blocks[i].mlp.dwconv.shape.grid = grid;
        stage->stations[2 * i].conv.shape.grid = grid;
    }
}

real *stage_input(const Stage *stage) {
    const Station *s = &stage->stations[0];
    return s->convolves ? s->in : s->x;
}

const real *stage_output(const Stage *stage) {
    const Station *end = &stage->stations[2 * stage->config.depth];
    return end->bare ? end->x : end->h;
}

void stage_output_alias(const Stage *stage, Plan *plan, void *slot) {
    const Station *end = &stage->stations[2 * stage->config.depth];
    plan_alias(plan, slot, end->bare ? &end->x : &end->h);
}

const real *stage_stream(const Stage *stage) {
    return stage->norm_beside ? stage->stations[2 * stage->config.depth].x : stage_output(stage);
}

/* == Forward ====================================================================================================== */

/* The drop path of half-block `half`: one factor for the tokens that an image has at station s. */
static RowScale drop_path(const Stage *stage, const Station *s, int half, int B, bool drop) {
    size_t first = (size_t)(2 * stage->first + half) * (size_t)B;
    return (RowScale){drop && stage->drops ? stage->stream->keep + first : NULL, s->N, NULL};
}

/* The dropout of the output of half-block `half`. */
static Dropout output_dropout(const Stage *stage, int half, bool drop) {
    Dropout d = stage->stream->dropout;
    int sites = stage->drops_hidden ? SITES_OF_BLOCK : SITES_OF_BLOCK - 1;
    d.site = (uint32_t)(sites * (stage->first + half / 2) + (half % 2 ? sites : 1));
    if (!drop) d.rate = 0;
    return d;
}

/* Sets the dropout of the weights of block i's attention for the pass that follows. */
static void set_weights_dropout(const Stage *stage, int i, bool drop) {
    Attention *a = &stage->blocks[i].attention;
    a->dropout = stage->stream->weights;
    a->dropout.site += (uint32_t)(stage->first + i);
    if (!drop) a->dropout.rate = 0;
}

/* The dropout of block i's hidden layer, whose site is the one before that of the MLP's output. */
static Dropout hidden_dropout(const Stage *stage, int i, bool drop) {
    Dropout d = output_dropout(stage, 2 * i + 1, drop && stage->drops_hidden);
    d.site--;
    return d;
}

/* The dropout of the output of half-block `half`, y = drop(x), or of its gradient.  Returns y, or x where there is
 * none. */
static const real *drop_output(const Stage *stage, real *y, const real *x, int half, int B, bool drop) {
    Dropout d = output_dropout(stage, half, drop);
    if (d.rate <= 0) return x;
    dropout_forward(y, x, &d, B, (size_t)stage->stations[half].N * (size_t)stage->config.dim);
    return y;
}

static size_t station_rows(const Station *s, int B) { return (size_t)B * (size_t)s->N; }

/* Computes a station whose x, or `in`, is already computed. */
static void station_open(const Station *s, int B) {
    if (s->convolves) depthwise_forward(s->x, s->in, s->in, s->conv.w, s->conv.b, &s->conv.shape, B);
    norm_layer_forward(&s->norm, s->h, s->x, station_rows(s, B));
}

/* Computes the next station after s, where the class token is added.  That moves every row, so the sum and the norm are
 * not fused here. */
static void class_joins(const Stage *stage, const Station *s, const real *x, const RowScale *scale, int B) {
    const Stream *stream = stage->stream;
    int M = stage->config.dim;
    residual_forward(stream->sum, x, stream->f, scale, station_rows(s, B), M);
    embed_forward(s[1].x, stream->sum, &stage->front, NULL, &(TokenShape){B, s[1].N, M});
    station_open(s + 1, B);
}

/* Computes the next station after s: adds f to the stream. */
static void station_next(const Stage *stage, const Station *s, const RowScale *scale, int B) {
    const Station *next = s + 1;
    const real *x = norm_is_stream(stage, (int)(s - stage->stations)) ? s->h : s->x;
    if (next->N > s->N) {
        class_joins(stage, s, x, scale, B);
    } else if (next->convolves) {
        residual_forward(next->in, x, stage->stream->f, scale, station_rows(s, B), stage->config.dim);
        station_open(next, B);
    } else if (next->bare) {
        residual_forward(next->x, x, stage->stream->f, scale, station_rows(s, B), stage->config.dim);
    } else {
        LayerNorm norm = norm_layer_of(&next->norm, station_rows(next, B));
        add_layernorm_forward(next->x, next->h, x, stage->stream->f, scale, &norm);
    }
}

void stage_forward(Stage *stage, int B, bool drop) {
    Station *s = stage->stations;
    real *f = stage->stream->f;
    station_open(s, B);
    for (int half = 0; half < 2 * stage->config.depth; half++, s++) {
        const Block *block = &stage->blocks[half / 2];
        Dropout hidden = hidden_dropout(stage, half / 2, drop);
        if (half % 2 == 0) set_weights_dropout(stage, half / 2, drop);
        if (half % 2 == 0) attention_forward(&block->attention, f, s->h, B);
        else mlp_forward(&block->mlp, f, s->h, &hidden, B, s->N);
        drop_output(stage, f, f, half, B, drop);
        RowScale scale = drop_path(stage, s, half, B, drop);
        station_next(stage, s, &scale, B);
    }
}

/* Computes the activations of block i again, from its input. */
static void recompute_block(const Stage *stage, int i, int B, bool drop) {
    const Station *s = &stage->stations[2 * i];
    const Block *block = &stage->blocks[i];
    RowScale scale = drop_path(stage, s, 2 * i, B, drop);
    station_open(s, B);
    set_weights_dropout(stage, i, drop);
    attention_forward(&block->attention, stage->stream->f, s->h, B);
    drop_output(stage, stage->stream->f, stage->stream->f, 2 * i, B, drop);
    station_next(stage, s, &scale, B);
    mlp_forward(&block->mlp, NULL, s[1].h, NULL, B, s[1].N);
}

/* == Backward ===================================================================================================== */

static void swap(real **a, real **b) {
    real *kept = *a;
    *a = *b;
    *b = kept;
}

/* The gradient of the bias that ends half-block `half`, if the next norm sums it from its registers, otherwise NULL:
 * for an MLP the product that reads df sums it (kernels/linear/linear.h), and with dropout the norm does not have the
 * gradient of the bias. */
static float *sums_in_norm(const Stage *stage, int half, bool drop) {
    Projection *last = stage->blocks[half / 2].attention.last;
    if (half % 2 || !last) return NULL;
    last->summed = output_dropout(stage, half, drop).rate <= 0;
    return last->summed ? last->db : NULL;
}

/* Adds the gradient through the norm, from dh, to dx, and computes df = scale dx if there is a scale. */
static void station_backward(const Stage *stage, const Station *s, const real *dres, const RowScale *scale, int B) {
    Stream *stream = stage->stream;
    size_t rows = station_rows(s, B);
    int M = stage->config.dim;
    if (s->bare) {
        swap(&stream->dh, &stream->dx);
        if (scale && scale->scale) residual_backward(stream->df, stream->dx, scale, rows, M);
        return;
    }
    LayerNorm norm = norm_layer_of(&s->norm, rows);
    add_layernorm_backward(stream->dx, stream->df, s->norm.pair.dw, s->norm.pair.db, dres, stream->dh, s->x,
                           s->convolves ? NULL : scale, &norm);
    if (!s->convolves) return;
    depthwise_backward(stream->dh, stream->dx, s->conv.dw, s->conv.db, stream->dx, s->in, s->conv.w, &s->conv.shape, B);
    swap(&stream->dh, &stream->dx);
    if (scale && scale->scale) residual_backward(stream->df, stream->dx, scale, rows, M);
}

/* Removes the class token's rows from dx, and from df if there is one.  Uses dh as scratch. */
static void class_leaves(const Stage *stage, const Station *s, bool df, int B) {
    Stream *stream = stage->stream;
    TokenShape tokens = {B, s->N, stage->config.dim};
    embed_backward(stream->dh, &stage->front, NULL, stream->dx, &tokens);
    swap(&stream->dh, &stream->dx);
    if (!df) return;
    embed_backward(stream->dh, &(FrontTokens){.count = stage->front.count}, NULL, stream->df, &tokens);
    swap(&stream->dh, &stream->df);
}

/* True if block i's activations are still those of the forward pass: with recompute, later blocks of this and other
 * stages have overwritten them. */
static bool is_there(const Stage *stage, int i) {
    return !stage->recompute || (stage->last && i == stage->config.depth - 1);
}

void stage_backward(Stage *stage, int B, bool drop, FinalGradients *final) {
    Stream *stream = stage->stream;
    const real *dres = stage->norm_beside ? stream->dx : NULL;
    Station *s = &stage->stations[2 * stage->config.depth];
    for (int half = 2 * stage->config.depth - 1; half >= 0; half--, s--) {
        const Block *block = &stage->blocks[half / 2];
        RowScale scale = drop_path(stage, s, half, B, drop);
        scale.sums = sums_in_norm(stage, half, drop);
        station_backward(stage, s, dres, &scale, B);
        if (s->N > s[-1].N) class_leaves(stage, s, scale.scale != NULL, B);
        const real *df = drop_output(stage, stream->df, scale.scale ? stream->df : stream->dx, half, B, drop);
        Dropout hidden = hidden_dropout(stage, half / 2, drop);
        if (half % 2) gradients_final(final, s->begin);
        if (half % 2 && !is_there(stage, half / 2)) recompute_block(stage, half / 2, B, drop);
        if (half % 2 == 0 && block->attention.sums)
            block->attention.op->columns(&block->attention)->measure(&block->attention, B);
        if (half % 2 == 0) set_weights_dropout(stage, half / 2, drop);
        if (half % 2 == 0) attention_backward(&block->attention, stream->dh, df, s[-1].h, B);
        else mlp_backward(&block->mlp, stream->dh, df, s[-1].h, &hidden, B, s[-1].N);
        dres = stream->dx;
        if (!norm_is_stream(stage, half)) continue;
        add_forward(stream->dh, stream->dh, stream->dx, station_rows(&s[-1], B) * (size_t)stage->config.dim);
        dres = NULL;
    }
    station_backward(stage, s, dres, NULL, B);
}

size_t stage_macs(const Stage *stage) {
    size_t macs = 0;
    for (int i = 0; i < stage->config.depth; i++) {
        const Block *block = &stage->blocks[i];
        macs += station_macs(&stage->stations[2 * i]) + attention_macs(&block->attention) +
                mlp_macs(&block->mlp, (size_t)block->attention.N);
    }
    return macs;
}

void stage_destroy(Stage *stage) {
    for (int i = 0; stage->blocks && i < stage->config.depth; i++) attention_destroy(&stage->blocks[i].attention);
    free(stage->blocks);
    free(stage->stations);
}
