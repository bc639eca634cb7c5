/* A ResNet of bottlenecks with standardised weights and group norms.  images [B,3,Hi,Wi] -> features [B,Hs*Ws,C]
 * forward   1. w' = standardised(w) of all units; a unit is norm(conv(x, w'))
 *           2. x = maxpool(relu(first(images)))
 *           3. for every block: h1 = relu(unit1(x)), h2 = relu(unit2(h1)), y = relu(unit3(h2) + x), x = y;
 *              in a stage's first block the sum is unit3(h2) + downsample(x), and from the second stage on unit2 and
 *              downsample of that block have stride 2
 * backward  dz is the gradient of a block's sum before its ReLU; the kernel of each convolution also applies the ReLU
 *           of its input
 *           3. d3 = norm3'(dz), d2 = norm2'(conv3^T d3 where h2 > 0), d1 = norm1'(conv2^T d2 where h1 > 0),
 *              dz of the previous block = (dz or downsample^T norm'(dz)) + conv1^T d1 where x > 0
 *           2. the pooled maxima show their own ReLU: if one is 0, so was its input
 *           1. dw += standardised'(dw')
 * saves     the images, pooled maxima and their positions, the input of every norm, h1, h2 and y. */
#include "layers/vit/hybrid_stem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/integers.h"
#include "layers/pieces.h"

enum { EXPANSION = 4, STEM_HALVINGS = 2 };

static const float WEIGHT_EPS = 1e-8f; /* of timm's hybrids */

/* == Settings ===================================================================================================== */

#define F(KIND, field) CONFIG_FIELD(KIND, StemSettings, field)
static const ConfigEntry entries[] = {
    {F(INTS, stem_blocks), "0", .section = "model", .min = 0, .max = 64,
     .help = "Blocks in each stage of the stem's ResNet (0: no stage, only the first convolution and the max pool; "
             "timm's vit_small_r26_s32: 2,2,2,2)"},
    {F(INT, stem_width), "64", .min = 32, .max = 1024,
     .help = "Channels of the stem's first convolution, a multiple of 32; a stage's are 4, 8, 16 or 32 times as many"},
};
#undef F
const ConfigGroup hybrid_stem_settings = {CONFIG_GROUP(StemSettings, entries), .change = CHANGE_NEVER};

static int stages_of(const StemSettings *s) { return s->stem_blocks.at[0] ? s->stem_blocks.count : 0; }

void hybrid_stem_check(const Config *config) {
    const StemSettings *s = config_settings(config, &hybrid_stem_settings);
    if (s->stem_width % STEM_GROUPS)
        config_reject(config, "stem_width", "%d is not a multiple of %d, the groups of a norm", s->stem_width,
                      STEM_GROUPS);
    if (s->stem_blocks.count > STEM_STAGES)
        config_reject(config, "stem_blocks", "%d values, but a stem has at most %d stages", s->stem_blocks.count,
                      STEM_STAGES);
    for (int i = 0; i < s->stem_blocks.count; i++)
        if (s->stem_blocks.count > 1 && !s->stem_blocks.at[i])
            config_reject(config, "stem_blocks", "0 in a list: every stage needs a block; a single 0 means no stage");
}

int hybrid_stem_side(const StemSettings *s, int side) {
    int stages = stages_of(s), halvings = STEM_HALVINGS + (stages ? stages - 1 : 0);
    for (int i = 0; i < halvings; i++) side = convolution_side(side, 2);
    return side;
}

int hybrid_stem_channels(const StemSettings *s) {
    int stages = stages_of(s);
    return stages ? (EXPANSION * s->stem_width) << (stages - 1) : s->stem_width;
}

/* == Parameters =================================================================================================== */

/* prefix: of the block of the unit; conv and norm: the names of its two halves.  The caller has set shape. */
static void unit_declare(HybridStem *stem, StemUnit *unit, Params *params, const char *prefix, const char *conv,
                         const char *norm, int H, int W) {
    const Convolution *c = &unit->shape;
    unit->H = H;
    unit->W = W;
    unit->rows = (Standardized){.out = c->out, .fan = c->in * c->k * c->k, .eps = WEIGHT_EPS};
    params_declare(params, (Param){.value = &unit->w, .grad = &unit->dw, .named = {prefix, conv, ".weight"},
                                   .init = INIT_KAIMING_NORMAL, .decay = true, .shape = {c->out, c->in, c->k, c->k},
                                   .fan = c->out * c->k * c->k});
    layer_norm_declare(&unit->norm, params, prefix, norm, c->out, false);
    stem->units[stem->unit_count++] = unit;
}

/* H, W: of the block's input, of `in` channels. */
static void block_declare(HybridStem *stem, Params *params, const char *prefix, int stage, int index, int in, int H,
                          int W) {
    StemBlock *block = &stem->blocks[stage][index];
    int width = stem->settings.stem_width << stage, out = EXPANSION * width, stride = stage && !index ? 2 : 1;
    char name[PARAM_NAME_SIZE];
    snprintf(name, sizeof name, "%.30sstages.%d.blocks.%d.", prefix, stage, index);
    block->downsampled = !index;
    block->downsample.shape = (Convolution){in, out, 1, stride, true};
    block->conv1.shape = (Convolution){in, width, 1, 1, true};
    block->conv2.shape = (Convolution){width, width, 3, stride, true};
    block->conv3.shape = (Convolution){width, out, 1, 1, true};
    if (block->downsampled)
        unit_declare(stem, &block->downsample, params, name, "downsample.conv", "downsample.norm", H, W);
    unit_declare(stem, &block->conv1, params, name, "conv1", "norm1", H, W);
    unit_declare(stem, &block->conv2, params, name, "conv2", "norm2", H, W);
    unit_declare(stem, &block->conv3, params, name, "conv3", "norm3", convolution_side(H, stride),
                 convolution_side(W, stride));
    params_start_scaled(params, name, "norm3.weight", 0); /* a block begins as its shortcut */
}

void hybrid_stem_declare(HybridStem *stem, const Config *config, Params *params, const char *prefix, int Hi, int Wi) {
    const StemSettings *s = config_settings(config, &hybrid_stem_settings);
    int H = convolution_side(convolution_side(Hi, 2), 2), W = convolution_side(convolution_side(Wi, 2), 2);
    int blocks = 0, in = s->stem_width;
    *stem = (HybridStem){.settings = *s, .Hi = Hi, .Wi = Wi, .stages = stages_of(s),
                         .channels = hybrid_stem_channels(s)};
    for (int i = 0; i < stem->stages; i++) blocks += s->stem_blocks.at[i];
    stem->units = xcalloc(1 + 4 * (size_t)blocks, sizeof *stem->units, "the stem's convolutions");
    stem->first.shape = (Convolution){3, s->stem_width, 7, 2, true};
    unit_declare(stem, &stem->first, params, prefix, stem->stages ? "stem.conv" : "conv",
                 stem->stages ? "stem.norm" : "norm", Hi, Wi);
    for (int i = 0; i < stem->stages; i++) {
        stem->blocks[i] = xcalloc((size_t)s->stem_blocks.at[i], sizeof **stem->blocks, "the stem's blocks");
        for (int j = 0; j < s->stem_blocks.at[i]; j++) {
            const StemUnit *last = &stem->blocks[i][j].conv3;
            block_declare(stem, params, prefix, i, j, in, H, W);
            in = last->shape.out;
            H = last->H;
            W = last->W;
        }
    }
    stem->grid = (Grid){1, H, W};
}

void hybrid_stem_destroy(HybridStem *stem) {
    for (int i = 0; i < stem->stages; i++) free(stem->blocks[i]);
    free(stem->units);
    device_free(stem->memory);
    memset(stem, 0, sizeof *stem);
}

/* == Standardised weights ========================================================================================= */

/* The images need no gradient. */
static bool goes_back(const HybridStem *stem, const StemUnit *unit) { return unit != &stem->first; }

static size_t most_outputs(const HybridStem *stem) {
    size_t most = 0;
    for (int i = 0; i < stem->unit_count; i++)
        if ((size_t)stem->units[i]->shape.out > most) most = (size_t)stem->units[i]->shape.out;
    return most;
}

static void units_place(void *owner, Pieces *pieces) {
    HybridStem *stem = owner;
    for (int i = 0; i < stem->unit_count; i++) {
        StemUnit *unit = stem->units[i];
        unit->folded = pieces_take(pieces, convolution_folded_bytes(&unit->shape, goes_back(stem, unit)));
        unit->rows.mean = pieces_take(pieces, (size_t)unit->shape.out * sizeof(float));
        unit->rows.rstd = pieces_take(pieces, (size_t)unit->shape.out * sizeof(float));
    }
    stem->ones = pieces_take(pieces, most_outputs(stem) * sizeof(float));
    stem->zeros = pieces_take(pieces, most_outputs(stem) * sizeof(float));
}

/* This memory is separate from the activations, because CUDA's products round the whole block of memory of their
 * weights. */
void hybrid_stem_allocate(HybridStem *stem) {
    size_t most = most_outputs(stem);
    float *ones = xcalloc(most, sizeof *ones, "the stem");
    stem->memory = pieces_allocate(units_place, stem, "standardised weights of the stem");
    device_zero(stem->zeros, most * sizeof *ones);
    for (size_t i = 0; i < most; i++) ones[i] = 1;
    device_upload(stem->ones, ones, most * sizeof *ones);
    free(ones);
}

void hybrid_stem_standardize(const HybridStem *stem) {
    for (int i = 0; i < stem->unit_count; i++) {
        const StemUnit *unit = stem->units[i];
        standardize_forward(stem->weights, unit->w, &unit->rows);
        convolution_fold(unit->folded, stem->weights, stem->ones, &unit->shape, goes_back(stem, unit));
    }
}

/* == Activations ================================================================================================== */

static int rows_down(const StemUnit *unit) { return convolution_side(unit->H, unit->shape.stride); }
static int rows_across(const StemUnit *unit) { return convolution_side(unit->W, unit->shape.stride); }
static size_t places_of(const StemUnit *unit) { return (size_t)rows_down(unit) * (size_t)rows_across(unit); }

/* Bytes of a unit's output and of its input. */
static size_t output_bytes(const StemUnit *unit, int B) {
    return (size_t)B * places_of(unit) * (size_t)unit->shape.out * sizeof(real);
}
static size_t input_bytes(const StemUnit *unit, int B) {
    return (size_t)B * (size_t)unit->H * (size_t)unit->W * (size_t)unit->shape.in * sizeof(real);
}

static GroupNorm norm_of(const StemUnit *unit, int B) {
    return (GroupNorm){unit->norm.w, unit->norm.b, unit->mean, unit->rstd, B, (int)places_of(unit), unit->shape.out,
                       STEM_GROUPS, PYTORCH_NORM_EPS};
}

static size_t pooled_count(const HybridStem *stem, int B) {
    const StemUnit *u = &stem->first;
    return (size_t)B * (size_t)convolution_side(rows_down(u), 2) * (size_t)convolution_side(rows_across(u), 2) *
           (size_t)u->shape.out;
}

/* Plans the tensors of a unit that the backward pass reads. */
static void unit_plan(StemUnit *unit, Plan *plan, const char *prefix, int B) {
    size_t stats = (size_t)B * STEM_GROUPS * sizeof(float);
    plan_keep(plan, prefix, "raw", &unit->raw, output_bytes(unit, B));
    plan_keep(plan, prefix, "mean", &unit->mean, stats);
    plan_keep(plan, prefix, "rstd", &unit->rstd, stats);
}

static void block_plan(StemBlock *block, Plan *plan, const char *prefix, int B) {
    StemUnit *units[] = {&block->conv1, &block->conv2, &block->conv3, &block->downsample};
    for (int i = 0; i < (block->downsampled ? 4 : 3); i++) unit_plan(units[i], plan, prefix, B);
    plan_keep(plan, prefix, "h1", &block->h1, output_bytes(&block->conv1, B));
    plan_keep(plan, prefix, "h2", &block->h2, output_bytes(&block->conv2, B));
    plan_keep(plan, prefix, "y", &block->y, output_bytes(&block->conv3, B));
}

/* The largest of each kind over all blocks. */
typedef struct {
    size_t h1, h2, y;
} BlockBytes;

static BlockBytes largest_block(const HybridStem *stem, int B) {
    BlockBytes bytes = {0};
    for (int i = 0; i < stem->stages; i++) {
        const StemBlock *first = stem->blocks[i];
        bytes.h1 = larger_size(bytes.h1, output_bytes(&first->conv1, B));
        bytes.h2 = larger_size(bytes.h2, output_bytes(&first->conv2, B));
        bytes.y = larger_size(bytes.y, output_bytes(&first->conv3, B));
    }
    return bytes;
}

static void training_plan(HybridStem *stem, Plan *plan, const char *prefix, int B) {
    BlockBytes bytes = largest_block(stem, B);
    unit_plan(&stem->first, plan, prefix, B);
    plan_keep(plan, prefix, "pooled", &stem->pooled, pooled_count(stem, B) * sizeof(real));
    plan_keep(plan, prefix, "at", &stem->at, pooled_count(stem, B));
    for (int i = 0; i < stem->stages; i++)
        for (int j = 0; j < stem->settings.stem_blocks.at[i]; j++) block_plan(&stem->blocks[i][j], plan, prefix, B);
    plan_borrow(plan, prefix, "d1", &stem->d1, bytes.h1);
    plan_borrow(plan, prefix, "d2", &stem->d2, bytes.h2);
    plan_borrow(plan, prefix, "d3", &stem->d3, bytes.y);
    for (int i = 0; i < stem->stages; i++)
        plan_borrow(plan, prefix, "dx", &stem->dx[i], input_bytes(&stem->blocks[i]->conv1, B));
    plan_borrow(plan, prefix, "dh", &stem->dh, output_bytes(&stem->first, B));
}

/* Norms work in place and blocks share their memory: two buffers for y, which is the next block's input, one for each
 * of the three convolutions. */
static void inference_plan(HybridStem *stem, Plan *plan, const char *prefix, int B) {
    BlockBytes bytes = largest_block(stem, B);
    StemUnit *first = &stem->first;
    size_t stats = (size_t)B * STEM_GROUPS * sizeof(float);
    plan_keep(plan, prefix, "pooled", &stem->pooled, larger_size(pooled_count(stem, B) * sizeof(real), bytes.y));
    plan_keep(plan, prefix, "mean", &first->mean, stats);
    plan_keep(plan, prefix, "rstd", &first->rstd, stats);
    plan_alias(plan, &first->raw, &stem->h);
    plan_without(plan, &stem->at);
    if (!stem->stages) return;
    StemUnit *conv3 = &stem->blocks[0]->conv3;
    real **h1 = &stem->blocks[0]->h1, **h2 = &stem->blocks[0]->h2, **y = &stem->blocks[0]->y;
    plan_keep(plan, prefix, "h1", h1, bytes.h1);
    plan_keep(plan, prefix, "h2", h2, bytes.h2);
    plan_keep(plan, prefix, "y", y, bytes.y);
    plan_keep(plan, prefix, "raw", &conv3->raw, bytes.y);
    for (int i = 0, count = 0; i < stem->stages; i++)
        for (int j = 0; j < stem->settings.stem_blocks.at[i]; j++, count++) {
            StemBlock *block = &stem->blocks[i][j];
            StemUnit *units[] = {&block->conv1, &block->conv2, &block->conv3, &block->downsample};
            for (int k = 0; k < (block->downsampled ? 4 : 3); k++) {
                plan_alias(plan, &units[k]->mean, &first->mean);
                plan_alias(plan, &units[k]->rstd, &first->rstd);
            }
            if (&block->h1 != h1) {
                plan_alias(plan, &block->h1, h1);
                plan_alias(plan, &block->h2, h2);
                plan_alias(plan, &block->conv3.raw, &conv3->raw);
                plan_alias(plan, &block->y, count % 2 ? &stem->pooled : y);
            }
            plan_alias(plan, &block->conv1.raw, h1);
            plan_alias(plan, &block->conv2.raw, h2);
            if (block->downsampled) plan_alias(plan, &block->downsample.raw, count % 2 ? &stem->pooled : y);
        }
}

static real **features_of(HybridStem *stem) {
    int last = stem->stages - 1;
    return last < 0 ? &stem->pooled : &stem->blocks[last][stem->settings.stem_blocks.at[last] - 1].y;
}

void hybrid_stem_plan(HybridStem *stem, Plan *plan, const char *prefix, int B) {
    size_t weights = 0;
    for (int i = 0; i < stem->unit_count; i++) {
        const StemUnit *unit = stem->units[i];
        GroupNorm norm = norm_of(unit, B);
        weights = larger_size(weights, (size_t)unit->rows.out * (size_t)unit->rows.fan * sizeof(float));
        plan_workspace(plan, convolution_workspace(&unit->shape, &(ImageShape){B, unit->H, unit->W}, true));
        plan_workspace(plan, group_norm_workspace(&norm));
    }
    size_t features = (size_t)B * (size_t)grid_tokens(stem->grid) * (size_t)stem->channels * sizeof(real);
    if (plan->training) plan_borrow(plan, prefix, "dfeatures", &stem->dfeatures, features);
    PlanMark mark = plan_mark(plan);
    plan_keep(plan, prefix, "pixels", &stem->pixels, input_bytes(&stem->first, B));
    plan_borrow(plan, prefix, "weights", &stem->weights, weights);
    plan_borrow(plan, prefix, "h", &stem->h, output_bytes(&stem->first, B));
    if (plan->training) plan_borrow(plan, prefix, "slope", &stem->slope, weights);
    (plan->training ? training_plan : inference_plan)(stem, plan, prefix, B);
    plan_alias(plan, &stem->features, features_of(stem));
    plan_release(plan, mark);
}

/* == Forward ====================================================================================================== */

/* y = norm(conv(x)) + add, then ReLU if relu. */
static void unit_forward(const HybridStem *stem, const StemUnit *unit, real *y, const real *x, const real *add,
                         bool relu, int B) {
    GroupNorm norm = norm_of(unit, B);
    convolution_forward(unit->raw, x, NULL, unit->folded, stem->zeros, &unit->shape, false,
                        &(ImageShape){B, unit->H, unit->W});
    group_norm_forward(y, unit->raw, add, relu, &norm);
}

static void block_forward(const HybridStem *stem, const StemBlock *block, const real *x, int B) {
    unit_forward(stem, &block->conv1, block->h1, x, NULL, true, B);
    unit_forward(stem, &block->conv2, block->h2, block->h1, NULL, true, B);
    if (block->downsampled) unit_forward(stem, &block->downsample, block->y, x, NULL, false, B);
    unit_forward(stem, &block->conv3, block->y, block->h2, block->downsampled ? block->y : x, true, B);
}

void hybrid_stem_forward(const HybridStem *stem, const real *images, int B) {
    const StemUnit *first = &stem->first;
    const real *x = stem->pooled;
    /* channels last */
    unfold_forward(stem->pixels, images, &(Unfold){stem->Hi, stem->Wi, 3, 1, 1, 0, true, 0, 0, 0}, B);
    unit_forward(stem, first, stem->h, stem->pixels, NULL, true, B);
    max_pool_forward(stem->pooled, stem->at, stem->h, &(ImageShape){B, rows_down(first), rows_across(first)},
                     first->shape.out, true);
    for (int i = 0; i < stem->stages; i++)
        for (int j = 0; j < stem->settings.stem_blocks.at[i]; j++) {
            block_forward(stem, &stem->blocks[i][j], x, B);
            x = stem->blocks[i][j].y;
        }
}

/* == Backward ===================================================================================================== */

/* From dz, the gradient of the norm's output, to d, that of the convolution's output; d may be dz.  Parameters (+=). */
static void unit_backward(const HybridStem *stem, const StemUnit *unit, real *d, const real *dz, const real *x, int B) {
    GroupNorm norm = norm_of(unit, B);
    size_t count = (size_t)unit->rows.out * (size_t)unit->rows.fan;
    group_norm_backward(d, unit->norm.dw, unit->norm.db, dz, unit->raw, false, &norm);
    device_zero(stem->slope, count * sizeof *stem->slope);
    convolution_backward_weight(stem->slope, d, x, stem->ones, &unit->shape, &(ImageShape){B, unit->H, unit->W});
    standardize_backward(unit->dw, stem->slope, unit->w, &unit->rows);
}

/* From d to the gradient of the unit's input, plus add, where `below` is positive; NULL: everywhere. */
static void unit_input(const StemUnit *unit, real *dx, const real *add, const real *d, const real *below, int B) {
    convolution_backward_input(dx, add, d, unit->folded, below, &unit->shape, &(ImageShape){B, unit->H, unit->W});
}

/* dz -> dx, the gradients of the inputs of the ReLUs with the outputs y and x.  dx may be dz except in a stage's first
 * block. */
static void block_backward(const HybridStem *stem, const StemBlock *block, real *dx, const real *dz, const real *x,
                           int B) {
    unit_backward(stem, &block->conv3, stem->d3, dz, block->h2, B);
    unit_input(&block->conv3, stem->d2, NULL, stem->d3, block->h2, B);
    unit_backward(stem, &block->conv2, stem->d2, stem->d2, block->h1, B);
    unit_input(&block->conv2, stem->d1, NULL, stem->d2, block->h1, B);
    unit_backward(stem, &block->conv1, stem->d1, stem->d1, x, B);
    if (block->downsampled) {
        unit_backward(stem, &block->downsample, stem->d3, dz, x, B);
        unit_input(&block->downsample, dx, NULL, stem->d3, NULL, B);
    }
    unit_input(&block->conv1, dx, block->downsampled ? dx : dz, stem->d1, x, B);
}

void hybrid_stem_backward(const HybridStem *stem, int B) {
    const StemUnit *first = &stem->first;
    real *dz = stem->dfeatures;
    relu_gradient(dz, dz, stem->features, (size_t)B * (size_t)grid_tokens(stem->grid) * (size_t)stem->channels);
    for (int i = stem->stages - 1; i >= 0; i--) {
        const StemBlock *blocks = stem->blocks[i];
        for (int j = stem->settings.stem_blocks.at[i] - 1; j > 0; j--)
            block_backward(stem, &blocks[j], dz, dz, blocks[j - 1].y, B);
        const real *x = i ? stem->blocks[i - 1][stem->settings.stem_blocks.at[i - 1] - 1].y : stem->pooled;
        block_backward(stem, blocks, stem->dx[i], dz, x, B);
        dz = stem->dx[i];
    }
    max_pool_backward(stem->dh, dz, stem->at, &(ImageShape){B, rows_down(first), rows_across(first)}, first->shape.out,
                      true);
    unit_backward(stem, first, stem->dh, stem->dh, stem->pixels, B);
}

size_t hybrid_stem_macs(const HybridStem *stem) {
    size_t macs = 0;
    for (int i = 0; i < stem->unit_count; i++)
        macs += places_of(stem->units[i]) * (size_t)stem->units[i]->rows.out * (size_t)stem->units[i]->rows.fan;
    return macs;
}
