#include "training/params.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/rng.h"
#include "kernels/kernels.h"

/* Moves the dimensions that are not 0 to the front of the shape. */
static void keep_dimensions(Param *p) {
    int shape[PARAM_MAX_DIMS] = {0};
    for (int i = 0; i < PARAM_MAX_DIMS; i++)
        if (p->shape[i]) shape[p->ndim++] = p->shape[i];
    memcpy(p->shape, shape, sizeof shape);
}

void params_declare(Params *params, Param tensor) {
    params->items = xgrow(params->items, (size_t)params->count + 1, &params->room, sizeof tensor, "a table of tensors");
    Param *p = &params->items[params->count++];
    const char **part = tensor.named;
    *p = tensor;
    snprintf(p->name, sizeof p->name, "%s%s%s", part[0], part[1] ? part[1] : "", part[1] && part[2] ? part[2] : "");
    memset(p->named, 0, sizeof p->named); /* the parts belong to the caller */
    keep_dimensions(p);
    p->size = 1;
    for (int i = 0; i < p->ndim; i++) p->size *= (size_t)p->shape[i];
    p->gain = tensor.gain != 0 ? tensor.gain : 1;
    p->rate = 1;
    if (p->time.count <= 1) p->time = (ParamTime){.rule = TIME_NONE};
    p->offset = params->total;
    params->total += (p->size + ARENA_PIECE - 1) / ARENA_PIECE * ARENA_PIECE;
    if (!p->frozen) params->parameters += p->size;
}

void params_start_scaled(Params *params, const char *prefix, const char *name, float gain) {
    size_t length = strlen(prefix);
    /* The tensor is usually one of the latest. */
    for (int i = params->count - 1; i >= 0; i--) {
        Param *p = &params->items[i];
        if (strncmp(p->name, prefix, length) || strcmp(p->name + length, name)) continue;
        p->gain = gain;
        return;
    }
}

void params_start_fan_out(Params *params, int first) {
    for (int i = first; i < params->count; i++) {
        Param *p = &params->items[i];
        if (p->init != INIT_FAN_IN_UNIFORM) continue;
        p->init = p->ndim > 1 ? INIT_KAIMING_NORMAL : INIT_ZEROS;
        if (p->ndim > 1) p->fan = (int)p->size / p->shape[1] / (p->groups ? p->groups : 1);
    }
}

void params_decay_from(Params *params, int first) {
    for (int i = first; i < params->count; i++) params->items[i].decay = !params->items[i].frozen;
}

void params_set_rate(Params *params, int i, float rate) { params->items[i].rate = rate; }

void params_set_rate_below(Params *params, size_t floats, float rate) {
    for (int i = 0; i < params->count; i++)
        if (params->items[i].offset < floats) params_set_rate(params, i, rate);
}

void params_allocate(Params *params, bool training) {
    size_t bytes = params->total * sizeof(float);
    params->values = device_malloc(bytes, "parameters");
    params->grads = training ? device_malloc(bytes, "gradients") : NULL;
    params_view(params, params->values);
    for (int i = 0; i < params->count; i++) {
        Param *p = &params->items[i];
        if (p->grad) *p->grad = training ? params->grads + p->offset : NULL;
        if (p->host) *p->host = p->staging = xcalloc(p->size, sizeof *p->staging, p->name);
    }
}

/* The index of a factor in params->rates, where it is added if it is new. */
static int rate_index(Params *params, float rate) {
    int r = 0;
    while (r < params->rate_count && params->rates[r] != rate) r++;
    if (r == params->rate_count) {
        assert(r < PIECE_RATES);
        params->rates[params->rate_count++] = rate;
    }
    return r;
}

static void kinds_allocate(Params *params) {
    size_t pieces = params->total / ARENA_PIECE;
    uint8_t *host = xcalloc(pieces, 1, "the optimizer's table");
    for (int i = 0; i < params->count; i++) {
        const Param *p = &params->items[i];
        size_t end = i + 1 < params->count ? p[1].offset : params->total;
        int kind = p->frozen ? PIECE_FROZEN : p->decay ? PIECE_DECAYED : PIECE_PLAIN;
        kind += PIECE_KINDS * rate_index(params, p->rate);
        memset(host + p->offset / ARENA_PIECE, kind, (end - p->offset) / ARENA_PIECE);
    }
    params->kinds = device_malloc(pieces, "the optimizer's table");
    device_upload(params->kinds, host, pieces);
    free(host);
}

void params_allocate_optimizer(Params *params, bool ema) {
    size_t bytes = params->total * sizeof(float);
    params->exp_avg = device_malloc(bytes, "first moments");
    params->exp_avg_sq = device_malloc(bytes, "second moments");
    params->ema = ema ? device_malloc(bytes, "averaged parameters") : NULL;
    params->step_stats = device_malloc(sizeof *params->step_stats, "a step's loss and norm");
    kinds_allocate(params);
}

void params_view(Params *params, float *arena) {
    for (int i = 0; i < params->count; i++) *params->items[i].value = arena + params->items[i].offset;
}

/* Element i of tensor t; the truncated normal uses rejection sampling, with a new stream for every attempt. */
static float draw(const Param *p, uint64_t seed, uint32_t t, size_t i) {
    switch (p->init) {
    case INIT_ZEROS: return 0;
    case INIT_ONES: return 1;
    case INIT_NORMAL: return rng_normal(seed, RNG_INIT, t, 0, i);
    case INIT_TRUNC_NORMAL:
        for (uint32_t attempt = 0;; attempt++) {
            float x = TRUNC_NORMAL_STD * rng_normal(seed, RNG_INIT, t, attempt, i);
            if (x >= -2 && x <= 2) return x;
        }
    case INIT_XAVIER_UNIFORM: {
        float bound = sqrtf(6.0f / (float)(p->shape[p->ndim - 2] + p->shape[p->ndim - 1]));
        return bound * (2 * rng_uniform(seed, RNG_INIT, t, 0, i) - 1);
    }
    case INIT_FAN_IN_UNIFORM: {
        float bound = 1 / sqrtf((float)p->fan);
        return bound * (2 * rng_uniform(seed, RNG_INIT, t, 0, i) - 1);
    }
    case INIT_KAIMING_NORMAL: return sqrtf(2 / (float)p->fan) * rng_normal_exact(seed, RNG_INIT, t, 0, i);
    }
    return 0;
}

void params_draw(const Params *params, const Param *p, uint64_t seed, float *host) {
    uint32_t t = (uint32_t)(p - params->items);
    for (size_t i = 0; i < p->size; i++) host[i] = p->gain * draw(p, seed, t, i);
    if (p->draw) p->draw(host, p, seed, t);
}

void params_initialize(Params *params, uint64_t seed) {
    float *host = xcalloc(params->total, sizeof *host, "initial parameters");
    for (int t = 0; t < params->count; t++)
        params_draw(params, &params->items[t], seed, host + params->items[t].offset);
    device_upload(params->values, host, params->total * sizeof *host);
    free(host);
}

const Param *params_not_finite(const Params *params, const float *arena, float *value) {
    float *host = xcalloc(params->total, sizeof *host, "parameters");
    const Param *found = NULL;
    device_download(host, arena, params->total * sizeof *host);
    for (int t = 0; t < params->count && !found; t++) {
        const Param *p = &params->items[t];
        for (size_t i = 0; i < p->size && !found; i++)
            if (!isfinite(*value = host[p->offset + i])) found = p;
    }
    free(host);
    return found;
}

int params_count(const Params *params) { return params->count; }

const Param *params_at(const Params *params, int i) { return &params->items[i]; }

size_t params_size_of(const Params *params, const char *prefix) {
    size_t total = 0;
    for (int i = 0; i < params->count; i++) {
        const Param *p = &params->items[i];
        if (!p->frozen && !strncmp(p->name, prefix, strlen(prefix))) total += p->size;
    }
    return total;
}

const Param *params_find(const Params *params, const char *name) {
    for (int i = 0; i < params->count; i++)
        if (!strcmp(params->items[i].name, name)) return &params->items[i];
    return NULL;
}

void params_free(Params *params) {
    device_free(params->values);
    device_free(params->grads);
    device_free(params->exp_avg);
    device_free(params->exp_avg_sq);
    device_free(params->ema);
    device_free(params->step_stats);
    device_free(params->kinds);
    for (int i = 0; i < params->count; i++) free(params->items[i].staging);
    free(params->items);
    memset(params, 0, sizeof *params);
}
