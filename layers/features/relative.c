/* The table of relative positions, and their common code. */
#include "layers/features/relative.h"

static const RelativeKind relative_none = {.name = "none", .summary = "no relative positions"};

#define RELATIVE_KINDS(X) X(sincspe) X(convspe) X(rope) X(rope_2d) X(rope_3d) X(permute)

#define DECLARATION(name) extern const RelativeKind relative_##name;
#define ROW(name) &relative_##name,

RELATIVE_KINDS(DECLARATION)

const RelativeKind *const relative_kinds[] = {&relative_none, RELATIVE_KINDS(ROW) NULL};

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(ITEM, RelativeSettings, relative), "none", .section = "attention",
     .table = (const void *const *)relative_kinds, .noun = "encoding",
     .list = "Relative positions in linear attention",
     .help = "Relative position encoding of linear attention"},
};

const ConfigGroup relative_settings = {CONFIG_GROUP(RelativeSettings, entries), .change = CHANGE_NEVER};

void relative_declare(Relative *r, const Attention *a, Params *params, int F) {
    const RelativeSettings *settings = config_settings(a->settings, &relative_settings);
    r->kind = settings ? settings->relative : &relative_none;
    r->F = F;
    if (r->kind->declare) r->kind->declare(r, a, params);
}

void relative_plan(Relative *r, const Attention *a, Plan *plan, int B) {
    size_t tokens = attention_tokens(a, B), features = tokens * 2 * (size_t)a->H * (size_t)r->F * sizeof(real);
    size_t codes = 3 * tokens * (size_t)a->M * sizeof(real);
    if (r->kind->code) {
        plan_pair(plan, a->prefix, "coded", &r->coded, &r->dcoded, codes);
    }
    if (r->kind->features) {
        plan_pair(plan, a->prefix, "psi", &r->psi, &r->dpsi, features);
    }
    if (r->kind->plan) r->kind->plan(r, a, plan, B);
}

void relative_draw(const Relative *r, const Attention *a, uint64_t seed, uint32_t step) {
    if (r->kind->draw) r->kind->draw(r, a, seed, step);
}

const real *relative_code(const Relative *r, const Attention *a, const real *qkv, int B) {
    if (!r->kind->code) return qkv;
    r->kind->code(r, a, qkv, B);
    return r->coded;
}

const real *relative_features(const Relative *r, const Attention *a, const real *phi, int B) {
    if (!r->kind->features) return phi;
    r->kind->features(r, a, phi, B);
    return r->psi;
}

real *relative_features_slot(const Relative *r, real *dphi) { return r->kind->features ? r->dpsi : dphi; }
real *relative_code_slot(const Relative *r, real *dqkv) { return r->kind->code ? r->dcoded : dqkv; }

void relative_features_backward(const Relative *r, const Attention *a, real *dphi, int B) {
    if (r->kind->features) r->kind->features_backward(r, a, dphi, B);
}

void relative_code_backward(const Relative *r, const Attention *a, real *dqkv, const real *qkv, int B) {
    if (r->kind->code) r->kind->code_backward(r, a, dqkv, qkv, B);
}

size_t relative_macs(const Relative *r, const Attention *a) { return r->kind->macs ? r->kind->macs(r, a) : 0; }
