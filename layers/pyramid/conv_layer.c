#include "layers/pyramid/conv_layer.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "layers/pieces.h"

/* == Parameters =================================================================================================== */

static void set_init(Param *p, ConvInit init, const Convolution *c) {
    int taps = c->k * c->k;
    switch (init) {
    case CONV_XAVIER:
        p->init = INIT_FAN_IN_UNIFORM; /* within 1 / sqrt(fan) */
        p->fan = taps * (c->in + c->out);
        p->gain = sqrtf(6);
        break;
    case CONV_KAIMING:
        p->init = INIT_KAIMING_NORMAL;
        p->fan = taps * c->out;
        break;
    case CONV_KAIMING_IN:
        p->init = INIT_KAIMING_NORMAL;
        p->fan = taps * c->in;
        break;
    case CONV_NORMAL:
        p->init = INIT_NORMAL;
        p->gain = 0.01f;
        break;
    }
}

void conv_layer_declare(ConvLayer *layer, ConvLayers *all, Params *params, const ConvConfig *config) {
    const Convolution *c = &config->shape;
    Param weight = {.value = &layer->w, .grad = &layer->dw, .named = {config->prefix, config->name, ".weight"},
                    .decay = true, .shape = {c->out, c->in, c->k, c->k}};
    memset(layer, 0, sizeof *layer);
    layer->shape = *c;
    layer->shape.way = all->way;
    layer->relu = config->relu;
    set_init(&weight, config->init, c);
    params_declare(params, weight);
    if (config->bias)
        params_declare(params, (Param){.value = &layer->b, .grad = &layer->db,
                                       .named = {config->prefix, config->name, ".bias"}, .init = INIT_ZEROS,
                                       .shape = {c->out}});
    assert(all->count < CONV_LAYERS);
    all->layers[all->count++] = layer;
}

/* == Folding ====================================================================================================== */

static size_t most_outputs(const ConvLayers *all) {
    size_t most = 0;
    for (int i = 0; i < all->count; i++)
        if ((size_t)all->layers[i]->shape.out > most) most = (size_t)all->layers[i]->shape.out;
    return most;
}

static void layers_place(void *owner, Pieces *pieces) {
    ConvLayers *all = owner;
    for (int i = 0; i < all->count; i++) {
        ConvLayer *layer = all->layers[i];
        layer->folded = pieces_take(pieces, convolution_folded_bytes(&layer->shape, all->trained));
    }
    all->ones = pieces_take(pieces, most_outputs(all) * sizeof(float));
    all->zeros = pieces_take(pieces, most_outputs(all) * sizeof(float));
}

void conv_layers_allocate(ConvLayers *all, const Model *model) {
    if (!all->count) return;
    size_t most = most_outputs(all);
    all->trained = model_trains(model);
    all->turn = model->turn - 1;
    float *ones = xcalloc(most, sizeof *ones, "convolutions");
    all->memory = pieces_allocate(layers_place, all, "folded weights of convolutions");
    device_zero(all->zeros, most * sizeof *ones);
    for (size_t i = 0; i < most; i++) ones[i] = 1;
    device_upload(all->ones, ones, most * sizeof *ones);
    free(ones);
}

void conv_layers_fold(ConvLayers *all, const Model *model) {
    if (model->keeps_weights && all->turn == model->turn) return;
    assert(all->memory || !all->count);
    for (int i = 0; i < all->count; i++) {
        ConvLayer *layer = all->layers[i];
        layer->scale = all->ones;
        layer->shift = layer->b ? layer->b : all->zeros;
        convolution_fold(layer->folded, layer->w, layer->scale, &layer->shape, all->trained);
    }
    all->turn = model->turn;
}

void conv_layers_free(ConvLayers *all) {
    device_free(all->memory);
    memset(all, 0, sizeof *all);
}

/* == Forward and backward ========================================================================================= */

void conv_layer_plan(const ConvLayer *layer, Plan *plan, const ImageShape *images) {
    plan_workspace(plan, convolution_workspace(&layer->shape, images, plan->training));
}

void conv_layer_forward(const ConvLayer *layer, real *y, const real *x, const ImageShape *images) {
    convolution_forward(y, x, NULL, layer->folded, layer->shift, &layer->shape, layer->relu, images);
}

static size_t positions(const ConvLayer *layer, const ImageShape *images) {
    int stride = layer->shape.stride;
    return (size_t)images->B * (size_t)convolution_side(images->Hi, stride) *
           (size_t)convolution_side(images->Wi, stride);
}

void conv_layer_backward(const ConvLayer *layer, real *dx, const real *add, const real *dy, const real *x,
                         const real *below, const ImageShape *images) {
    convolution_backward_weight(layer->dw, dy, x, layer->scale, &layer->shape, images);
    LinearShape rows = {positions(layer, images), layer->shape.in, layer->shape.out, 0};
    if (layer->b) linear_backward_bias(layer->db, dy, &rows);
    if (dx) convolution_backward_input(dx, add, dy, layer->folded, below, &layer->shape, images);
}

size_t conv_layer_macs(const ConvLayer *layer, int H, int W) {
    const Convolution *c = &layer->shape;
    return positions(layer, &(ImageShape){1, H, W}) * (size_t)c->out * (size_t)(c->in * c->k * c->k);
}
