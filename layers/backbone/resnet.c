/* ResNet of bottlenecks with frozen batch norms.  images [B,H,W,3] -> C2 to C5, the outputs of its stages
 * forward   1. x = maxpool(relu(conv1(images)))
 *           2. for every block: h1 = relu(conv1(x)), h2 = relu(conv2(h1)), y = relu(conv3(h2) + x), x = y;
 *              in a stage's first block the sum is conv3(h2) + downsample(x), and from layer2 on conv2 and downsample
 *              of that block have stride 2
 * backward  dz is the gradient of a block's sum before its ReLU; the kernel of each convolution also applies the ReLU
 *           of its input
 *           2. dh2 = conv3^T dz where h2 > 0, dh1 = conv2^T dh2 where h1 > 0,
 *              dz of the previous block = (dz or downsample^T dz) + conv1^T dh1 where x > 0, and where x is a stage's
 *              output, its other gradient is added before the ReLU
 *           The pass ends with the weights of the first trained block, whose input needs no gradient.
 * saves     h1, h2, y of the trained stages, and the output of the stage before them. */
#include "layers/backbone/resnet.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/integers.h"
#include "layers/pieces.h"

static const float BATCHNORM_EPS = 1e-5f;

enum { EXPANSION = 4 };

static int stage_width(const ResNet *net, int stage) { return net->config.width << stage; }
static int first_trained(const ResNet *net) { return RESNET_STAGES - net->config.trained; }

/* The stages are layer1 .. layer4 by 0 .. 3. */
int resnet_channels(const ResNet *net, int stage) { return EXPANSION * stage_width(net, stage); }
bool resnet_is_trained(const ResNet *net, int stage) { return stage >= first_trained(net); }

/* == Parameters =================================================================================================== */

/* The initial weight of the last batch norm of a block, where `fan` blocks are summed. */
static void branch_weight(float *x, const Param *p, uint64_t seed, uint32_t tensor) {
    (void)seed, (void)tensor;
    for (size_t i = 0; i < p->size; i++) x[i] = 1 / sqrtf((float)p->fan);
}

static void batchnorm_declare(ResNetConv *conv, Params *params, const char *prefix, const char *name, int branches) {
    const char *const names[] = {".weight", ".bias", ".running_mean", ".running_var"};
    float **values[] = {&conv->bn_w, &conv->bn_b, &conv->running_mean, &conv->running_var};
    const ParamInit init[] = {INIT_ONES, INIT_ZEROS, INIT_ZEROS, INIT_ONES};
    for (int i = 0; i < 4; i++)
        params_declare(params, (Param){.value = values[i], .named = {prefix, name, names[i]}, .init = init[i],
                                       .frozen = true, .shape = {conv->shape.out}, .fan = branches,
                                       .draw = i == 0 && branches ? branch_weight : NULL});
}

/* name and norm as in torchvision: "layer2.0.conv1" and "layer2.0.bn1".  The caller has set conv's shape, halvings and
 * trained. */
static void conv_declare(ResNet *net, ResNetConv *conv, Params *params, const char *name, const char *norm,
                         int branches) {
    const Convolution *c = &conv->shape;
    const char *prefix = net->config.prefix;
    params_declare(params, (Param){.value = &conv->w, .grad = conv->trained ? &conv->dw : NULL,
                                   .named = {prefix, name, ".weight"}, .init = INIT_KAIMING_NORMAL,
                                   .fan = c->out * c->k * c->k, .decay = conv->trained, .frozen = !conv->trained,
                                   .shape = {c->out, c->in, c->k, c->k}});
    batchnorm_declare(conv, params, prefix, norm, branches);
    net->convs[net->conv_count++] = conv;
}

static void block_declare(ResNet *net, Params *params, int stage, int index, int branches) {
    Bottleneck *block = &net->blocks[stage][index];
    int width = stage_width(net, stage), out = EXPANSION * width, stride = stage && !index ? 2 : 1;
    int in = index ? out : stage ? resnet_channels(net, stage - 1) : width;
    int after = stage + 2, before = stride == 2 ? after - 1 : after;
    struct {
        ResNetConv *conv;
        const char *name, *norm;
        Convolution shape;
        int halvings;
    } convs[] = {{&block->conv1, "conv1", "bn1", {in, width, 1, 1, false}, before},
                 {&block->conv2, "conv2", "bn2", {width, width, 3, stride, false}, before},
                 {&block->conv3, "conv3", "bn3", {width, out, 1, 1, false}, after},
                 {&block->downsample, "downsample.0", "downsample.1", {in, out, 1, stride, false}, before}};
    block->downsampled = !index;
    for (int i = 0; i < (index ? 3 : 4); i++) {
        ResNetConv *conv = convs[i].conv;
        char name[PARAM_NAME_SIZE], norm[PARAM_NAME_SIZE];
        conv->shape = convs[i].shape;
        conv->shape.way = net->config.way;
        conv->halvings = convs[i].halvings;
        conv->trained = resnet_is_trained(net, stage);
        snprintf(name, sizeof name, "layer%d.%d.%s", stage + 1, index, convs[i].name);
        snprintf(norm, sizeof norm, "layer%d.%d.%s", stage + 1, index, convs[i].norm);
        conv_declare(net, conv, params, name, norm, conv == &block->conv3 ? branches : 0);
    }
}

void resnet_create(ResNet *net, const ResNetConfig *config, Params *params) {
    int branches = 0;
    memset(net, 0, sizeof *net);
    net->config = *config;
    for (int s = 0; s < RESNET_STAGES; s++) branches += config->blocks[s];
    net->convs = xcalloc(1 + 4 * (size_t)branches, sizeof *net->convs, "the backbone's convolutions");
    net->conv1.shape = (Convolution){3, config->width, 7, 2, false};
    conv_declare(net, &net->conv1, params, "conv1", "bn1", 0);
    for (int s = 0; s < RESNET_STAGES; s++) {
        net->first[s] = params->total;
        net->blocks[s] = xcalloc((size_t)config->blocks[s], sizeof *net->blocks[s], "the backbone's blocks");
        for (int i = 0; i < config->blocks[s]; i++) block_declare(net, params, s, i, branches);
    }
}

void resnet_destroy(ResNet *net) {
    for (int s = 0; s < RESNET_STAGES; s++) free(net->blocks[s]);
    free(net->convs);
    device_free(net->memory);
    memset(net, 0, sizeof *net);
}

/* == Folding ====================================================================================================== */

static void convs_place(void *owner, Pieces *pieces) {
    ResNet *net = owner;
    for (int i = 0; i < net->conv_count; i++) {
        ResNetConv *conv = net->convs[i];
        conv->scale = pieces_take(pieces, (size_t)conv->shape.out * sizeof(float));
        conv->shift = pieces_take(pieces, (size_t)conv->shape.out * sizeof(float));
        conv->folded = pieces_take(pieces, convolution_folded_bytes(&conv->shape, conv->trained));
    }
}

void resnet_fold(ResNet *net) {
    if (!net->memory) net->memory = pieces_allocate(convs_place, net, "folded weights of the backbone");
    for (int i = 0; i < net->conv_count; i++) {
        const ResNetConv *conv = net->convs[i];
        batchnorm_fold(conv->scale, conv->shift, conv->bn_w, conv->bn_b, conv->running_mean, conv->running_var,
                       conv->shape.out, BATCHNORM_EPS);
        convolution_fold(conv->folded, conv->w, conv->scale, &conv->shape, conv->trained);
    }
}

/* == Activations ================================================================================================== */

/* Each halving rounds up. */
static int reduced(int side, int halvings) { return ((side - 1) >> halvings) + 1; }

static size_t positions(int B, int H, int W, int halvings) {
    return (size_t)B * (size_t)reduced(H, halvings) * (size_t)reduced(W, halvings);
}

void resnet_set_room(ResNet *net, int B, int H, int W) {
    for (int i = 0; i <= RESNET_STAGES; i++) net->room[i] = positions(B, H, W, i + 1);
}

bool resnet_fits(const ResNet *net, int B, int H, int W) {
    for (int i = 0; i <= RESNET_STAGES; i++)
        if (positions(B, H, W, i + 1) > net->room[i]) return false;
    return true;
}

static size_t reals(size_t rows, int channels) { return rows * (size_t)channels * sizeof(real); }

/* Plans h1 and h2 of a block.  In a stage's first block h1 has the grid of the previous stage. */
static size_t h1_bytes(const ResNet *net, int stage, int index) {
    return reals(net->room[stage && !index ? stage : stage + 1], stage_width(net, stage));
}
static size_t h2_bytes(const ResNet *net, int stage) { return reals(net->room[stage + 1], stage_width(net, stage)); }
static size_t y_bytes(const ResNet *net, int stage) { return reals(net->room[stage + 1], resnet_channels(net, stage)); }

/* True if a stage that is not trained has its own memory for its output, which must outlast the next stage. */
static bool output_apart(const ResNet *net, int stage) { return net->config.pyramid && stage > 0; }

/* A stage that is not trained needs the memory of one block only.  Its first block reads the output of the previous
 * stage, so outputs alternate between two buffers, beginning with those of conv1 and of the max pool; or, if all of
 * them are wanted, only that of the first stage shares memory with conv1's. */
static void frozen_plan(ResNet *net, Plan *plan, int stages) {
    size_t bytes[2] = {reals(net->room[0], net->config.width), reals(net->room[1], net->config.width)}, h1 = 0, h2 = 0;
    real **first[RESNET_STAGES] = {&net->stem, &net->pooled, &net->stem, &net->pooled};
    bool borrowed = stages == 1 || net->config.pyramid; /* only the max pool's output is in memory */
    Bottleneck *keeper = net->blocks[0];
    for (int s = 0; s < stages; s++) {
        if (output_apart(net, s)) first[s] = &net->blocks[s]->y;
        else bytes[s % 2] = larger_size(bytes[s % 2], y_bytes(net, s));
        h1 = larger_size(h1, h1_bytes(net, s, 0));
        h2 = larger_size(h2, h2_bytes(net, s));
    }
    plan_keep(plan, net->config.prefix, "stem", &net->stem, bytes[0]);
    if (!borrowed) plan_keep(plan, net->config.prefix, "pooled", &net->pooled, bytes[1]);
    for (int s = 0; s < stages; s++)
        if (output_apart(net, s)) plan_keep(plan, net->config.prefix, "output", first[s], y_bytes(net, s));
    PlanMark mark = plan_mark(plan);
    if (borrowed) plan_borrow(plan, net->config.prefix, "pooled", &net->pooled, bytes[1]);
    plan_borrow(plan, net->config.prefix, "h1", &keeper->h1, h1);
    plan_borrow(plan, net->config.prefix, "h2", &keeper->h2, h2);
    plan_release(plan, mark);
    for (int s = 0; s < stages; s++)
        for (int i = 0; i < net->config.blocks[s]; i++) {
            Bottleneck *block = &net->blocks[s][i];
            if (&block->y != first[s]) plan_alias(plan, &block->y, first[s]);
            if (block == keeper) continue;
            plan_alias(plan, &block->h1, &keeper->h1);
            plan_alias(plan, &block->h2, &keeper->h2);
        }
}

static void trained_plan(ResNet *net, Plan *plan) {
    for (int s = first_trained(net); s < RESNET_STAGES; s++)
        for (int i = 0; i < net->config.blocks[s]; i++) {
            char prefix[PARAM_NAME_SIZE];
            Bottleneck *block = &net->blocks[s][i];
            snprintf(prefix, sizeof prefix, "%slayer%d.%d.", net->config.prefix, s + 1, i);
            plan_keep(plan, prefix, "h1", &block->h1, h1_bytes(net, s, i));
            plan_keep(plan, prefix, "h2", &block->h2, h2_bytes(net, s));
            plan_keep(plan, prefix, "y", &block->y, y_bytes(net, s));
        }
}

static void backward_plan(ResNet *net, Plan *plan) {
    size_t h1 = 0, h2 = 0;
    PlanMark mark = plan_mark(plan);
    for (int s = first_trained(net); s < RESNET_STAGES; s++) {
        h1 = larger_size(h1, h1_bytes(net, s, 0));
        h2 = larger_size(h2, h2_bytes(net, s));
        if (s + 1 < RESNET_STAGES) plan_borrow(plan, net->config.prefix, "dy", &net->dy[s], y_bytes(net, s));
    }
    plan_borrow(plan, net->config.prefix, "dh1", &net->dh1, h1);
    plan_borrow(plan, net->config.prefix, "dh2", &net->dh2, h2);
    plan_release(plan, mark);
}

void resnet_plan(ResNet *net, Plan *plan, int B, int H, int W) {
    bool training = plan->training && net->config.trained > 0;
    resnet_set_room(net, B, H, W);
    frozen_plan(net, plan, training ? first_trained(net) : RESNET_STAGES);
    if (training) {
        trained_plan(net, plan);
        backward_plan(net, plan);
    }
    for (int i = 0; i < net->conv_count; i++) {
        const ResNetConv *conv = net->convs[i];
        ImageShape images = {B, reduced(H, conv->halvings), reduced(W, conv->halvings)};
        plan_workspace(plan, convolution_workspace(&conv->shape, &images, training && conv->trained));
    }
    for (int s = 0; s < RESNET_STAGES; s++)
        plan_alias(plan, &net->features[s], &net->blocks[s][net->config.blocks[s] - 1].y);
}

/* == Forward and backward ========================================================================================= */

static void conv_forward(const ResNetConv *conv, real *y, const real *x, const real *add, bool relu, int B, int H,
                         int W) {
    convolution_forward(y, x, add, conv->folded, conv->shift, &conv->shape, relu, &(ImageShape){B, H, W});
}

/* x [B,H,W,in] -> block->y. */
static void block_forward(const Bottleneck *block, const real *x, int B, int H, int W) {
    int Ho = convolution_side(H, block->conv2.shape.stride), Wo = convolution_side(W, block->conv2.shape.stride);
    conv_forward(&block->conv1, block->h1, x, NULL, true, B, H, W);
    conv_forward(&block->conv2, block->h2, block->h1, NULL, true, B, H, W);
    if (block->downsampled) conv_forward(&block->downsample, block->y, x, NULL, false, B, H, W);
    conv_forward(&block->conv3, block->y, block->h2, block->downsampled ? block->y : x, true, B, Ho, Wo);
}

void resnet_forward(const ResNet *net, const real *images, int B, int H, int W) {
    assert(resnet_fits(net, B, H, W));
    conv_forward(&net->conv1, net->stem, images, NULL, true, B, H, W);
    max_pool_forward(net->pooled, NULL, net->stem, &(ImageShape){B, reduced(H, 1), reduced(W, 1)}, net->config.width,
                     false);
    const real *x = net->pooled;
    for (int s = 0; s < RESNET_STAGES; s++)
        for (int i = 0; i < net->config.blocks[s]; i++) {
            int before = s && !i ? s + 1 : s + 2;
            block_forward(&net->blocks[s][i], x, B, reduced(H, before), reduced(W, before));
            x = net->blocks[s][i].y;
        }
}

static void conv_backward_input(const ResNetConv *conv, real *dx, const real *add, const real *dy, const real *below,
                                int B, int H, int W) {
    convolution_backward_input(dx, add, dy, conv->folded, below, &conv->shape, &(ImageShape){B, H, W});
}

static void conv_backward_weight(const ResNetConv *conv, const real *dy, const real *x, int B, int H, int W) {
    convolution_backward_weight(conv->dw, dy, x, conv->scale, &conv->shape, &(ImageShape){B, H, W});
}

/* dz -> dx, the gradients of the inputs of the ReLUs whose outputs are y and x.  dx may be dz except in a stage's first
 * block, and is NULL if no earlier layer is trained.  `other`: another gradient of x, or NULL. */
static void block_backward(const ResNet *net, const Bottleneck *block, real *dx, const real *dz, const real *other,
                           const real *x, int B, int H, int W) {
    int Ho = convolution_side(H, block->conv2.shape.stride), Wo = convolution_side(W, block->conv2.shape.stride);
    conv_backward_input(&block->conv3, net->dh2, NULL, dz, block->h2, B, Ho, Wo);
    conv_backward_weight(&block->conv3, dz, block->h2, B, Ho, Wo);
    conv_backward_input(&block->conv2, net->dh1, NULL, net->dh2, block->h1, B, H, W);
    conv_backward_weight(&block->conv2, net->dh2, block->h1, B, H, W);
    conv_backward_weight(&block->conv1, net->dh1, x, B, H, W);
    if (block->downsampled) conv_backward_weight(&block->downsample, dz, x, B, H, W);
    if (!dx) return;
    if (block->downsampled) conv_backward_input(&block->downsample, dx, NULL, dz, NULL, B, H, W);
    if (other) add_forward(dx, dx, other, (size_t)B * (size_t)H * (size_t)W * (size_t)block->conv1.shape.in);
    conv_backward_input(&block->conv1, dx, dx, net->dh1, x, B, H, W);
}

void resnet_backward(const ResNet *net, real *const dfeatures[RESNET_STAGES], int B, int H, int W,
                     FinalGradients *final) {
    int top = RESNET_STAGES - 1, first = first_trained(net);
    if (!net->config.trained) return;
    real *dz = dfeatures[top];
    relu_gradient(dz, dz, net->features[top], positions(B, H, W, top + 2) * (size_t)resnet_channels(net, top));
    for (int s = top; s >= first; s--) {
        const Bottleneck *blocks = net->blocks[s];
        real *dx = s > first ? net->dy[s - 1] : NULL;
        for (int i = net->config.blocks[s] - 1; i > 0; i--)
            block_backward(net, &blocks[i], dz, dz, NULL, blocks[i - 1].y, B, reduced(H, s + 2), reduced(W, s + 2));
        block_backward(net, blocks, dx, dz, dfeatures[s - 1], net->features[s - 1], B, reduced(H, s + 1),
                       reduced(W, s + 1));
        dz = dx;
        gradients_final(final, net->first[s]);
    }
}

/* == Size ========================================================================================================= */

static size_t conv_macs(const ResNetConv *conv, int H, int W) {
    const Convolution *c = &conv->shape;
    return positions(1, H, W, conv->halvings + c->stride / 2) * (size_t)c->out * (size_t)(c->in * c->k * c->k);
}

size_t resnet_macs(const ResNet *net, int H, int W) {
    size_t macs = 0;
    for (int i = 0; i < net->conv_count; i++) macs += conv_macs(net->convs[i], H, W);
    return macs;
}

size_t resnet_backward_macs(const ResNet *net, int H, int W) {
    size_t macs = 0;
    for (int i = 0; i < net->conv_count; i++)
        if (net->convs[i]->trained) macs += 2 * conv_macs(net->convs[i], H, W);
    if (!net->config.trained) return 0;
    const Bottleneck *lowest = net->blocks[first_trained(net)]; /* its input needs no gradient */
    return macs - conv_macs(&lowest->conv1, H, W) - conv_macs(&lowest->downsample, H, W);
}
