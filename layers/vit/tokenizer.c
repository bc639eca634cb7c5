/* Convolutions as a tokenizer.  images [B,3,Hi,Wi] -> tokens [B,N,M]
 * forward   for every layer: h = conv(x),  x = maxpool(relu(h)) = relu(maxpool(h))
 * backward  dh = dx at the positions of the maxima, where these are positive,  dW += h's windows,  dx = conv^T dh
 * saves     the input of every layer and the positions of its maxima; a position beyond the last means a ReLU of 0.
 * Source: the stride is max(1, K/2 - 1), the padding K/2 for kernels of K x K; no biases; weights have He's
 * initialisation with fan in. */
#include "layers/vit/tokenizer.h"

#include <stdio.h>
#include <string.h>

#include "core/integers.h"

/* == Settings ===================================================================================================== */

#define F(KIND, field) CONFIG_FIELD(KIND, TokenizerSettings, field)
static const ConfigEntry entries[] = {
    {F(INT, tokenizer_convs), "2", .section = "model", .min = 1, .max = TOKENIZER_CONVS,
     .help = "Number of the tokenizer's convolutions, each followed by a ReLU and by a max pool that halves rows and "
             "columns"},
    {F(INT, tokenizer_kernel), "3", .min = 3, .max = 7,
     .help = "Side of these convolutions' kernels: 3, 5 or 7, whose stride is 1, 1 or 2"},
    {F(INT, tokenizer_width), "64", .min = 1, .max = 4096,
     .help = "Channels of all these convolutions except the last, which has dim"},
};
#undef F
const ConfigGroup tokenizer_settings = {CONFIG_GROUP(TokenizerSettings, entries), .change = CHANGE_NEVER};

void tokenizer_check(const Config *config) {
    const TokenizerSettings *s = config_settings(config, &tokenizer_settings);
    if (s->tokenizer_kernel % 2 == 0)
        config_reject(config, "tokenizer_kernel", "%d: a kernel has an odd side, so that a pixel is in its middle",
                      s->tokenizer_kernel);
}

static int stride_of(const TokenizerSettings *s) { return s->tokenizer_kernel > 5 ? s->tokenizer_kernel / 2 - 1 : 1; }

enum { POOL_STRIDE = 2 };

int tokenizer_side(const TokenizerSettings *s, int side) {
    for (int i = 0; i < s->tokenizer_convs; i++) side = convolution_side(convolution_side(side, stride_of(s)), POOL_STRIDE);
    return side;
}

/* == Parameters =================================================================================================== */

void tokenizer_create(Tokenizer *t, const TokenizerSettings *settings, int way, int Hi, int Wi, bool planes) {
    *t = (Tokenizer){.settings = *settings, .planes = planes, .convs.way = way};
    for (int i = 0; i < settings->tokenizer_convs; i++) {
        t->layers[i].H = Hi;
        t->layers[i].W = Wi;
        Hi = convolution_side(convolution_side(Hi, stride_of(settings)), POOL_STRIDE);
        Wi = convolution_side(convolution_side(Wi, stride_of(settings)), POOL_STRIDE);
    }
}

static TokenizerLayer *last_of(const Tokenizer *t) {
    return (TokenizerLayer *)&t->layers[t->settings.tokenizer_convs - 1];
}

void tokenizer_declare(Tokenizer *t, Params *params, const char *prefix, int M) {
    const TokenizerSettings *s = &t->settings;
    char name[PARAM_NAME_SIZE];
    for (int i = 0, in = 3; i < s->tokenizer_convs; i++) {
        int out = i == s->tokenizer_convs - 1 ? M : s->tokenizer_width;
        snprintf(name, sizeof name, "%d.0", i);
        conv_layer_declare(&t->layers[i].conv, &t->convs, params,
                           &(ConvConfig){.prefix = prefix, .name = name, .init = CONV_KAIMING_IN,
                                         .shape = {in, out, s->tokenizer_kernel, stride_of(s), 0}});
        in = out;
    }
}

void tokenizer_destroy(Tokenizer *t) { conv_layers_free(&t->convs); }

/* == Activations ================================================================================================== */

static ImageShape inputs_of(const TokenizerLayer *l, int B) { return (ImageShape){B, l->H, l->W}; }

static ImageShape outputs_of(const TokenizerLayer *l, int B) {
    int stride = l->conv.shape.stride;
    return (ImageShape){B, convolution_side(l->H, stride), convolution_side(l->W, stride)};
}

static size_t numbers(ImageShape s, int C) { return (size_t)s.B * (size_t)s.Hi * (size_t)s.Wi * (size_t)C; }

static size_t pooled_numbers(const TokenizerLayer *l, int B) {
    ImageShape h = outputs_of(l, B);
    return numbers((ImageShape){B, convolution_side(h.Hi, POOL_STRIDE), convolution_side(h.Wi, POOL_STRIDE)},
                   l->conv.shape.out);
}

void tokenizer_plan(Tokenizer *t, Plan *plan, const char *prefix, int B) {
    size_t h = 0, dy = 0;
    TokenizerLayer *last = last_of(t);
    if (t->planes) plan_keep(plan, prefix, "pixels", &t->pixels, numbers(inputs_of(t->layers, B), 3) * sizeof(real));
    for (TokenizerLayer *l = t->layers; l <= last; l++) {
        ImageShape images = inputs_of(l, B);
        size_t pooled = pooled_numbers(l, B);
        conv_layer_plan(&l->conv, plan, &images);
        h = larger_size(h, numbers(outputs_of(l, B), l->conv.shape.out) * sizeof(real));
        if (l != last) dy = larger_size(dy, pooled * sizeof(real));
        if (l != last) plan_keep(plan, prefix, "y", &l->y, pooled * sizeof(real));
        if (plan->training) plan_keep(plan, prefix, "at", &l->at, pooled);
        else plan_without(plan, &l->at);
    }
    PlanMark mark = plan_mark(plan);
    plan_borrow(plan, prefix, "h", &t->h, h);
    if (plan->training) {
        plan_borrow(plan, prefix, "dh", &t->dh, h);
        plan_borrow(plan, prefix, "dy", &t->dy, dy);
    }
    plan_release(plan, mark);
}

/* == Forward and backward ========================================================================================= */

/* The input of layer l. */
static const real *input_of(const Tokenizer *t, const TokenizerLayer *l, const real *images) {
    return l > t->layers ? l[-1].y : t->planes ? t->pixels : images;
}

void tokenizer_forward(const Tokenizer *t, real *tokens, const real *images, int B) {
    const TokenizerLayer *last = last_of(t);
    if (t->planes)
        unfold_forward(t->pixels, images, &(Unfold){t->layers->H, t->layers->W, 3, 1, 1, 0, true, 0, 0, 0}, B);
    for (const TokenizerLayer *l = t->layers; l <= last; l++) {
        ImageShape in = inputs_of(l, B), out = outputs_of(l, B);
        conv_layer_forward(&l->conv, t->h, input_of(t, l, images), &in);
        relu_max_pool_forward(l == last ? tokens : l->y, l->at, t->h, &out, l->conv.shape.out);
    }
}

void tokenizer_backward(const Tokenizer *t, const real *dtokens, const real *images, int B) {
    for (const TokenizerLayer *l = last_of(t); l >= t->layers; l--) {
        ImageShape in = inputs_of(l, B), out = outputs_of(l, B);
        real *dx = l > t->layers ? t->dy : NULL;
        max_pool_backward(t->dh, dtokens, l->at, &out, l->conv.shape.out, false);
        conv_layer_backward(&l->conv, dx, NULL, t->dh, input_of(t, l, images), NULL, &in);
        dtokens = dx;
    }
}

size_t tokenizer_macs(const Tokenizer *t) {
    size_t macs = 0;
    for (const TokenizerLayer *l = t->layers; l <= last_of(t); l++) macs += conv_layer_macs(&l->conv, l->H, l->W);
    return macs;
}
