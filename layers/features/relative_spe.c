/* Stochastic positional encoding (Liutkus et al. 2021) of q and k before the feature map, per head.
 * forward   1. codes C_(n,d,r) for q and k from learned parameters and noise
 *              (kernels/linear_attention/relative_positions.h)
 *           2. q'_(n,r) = sum_d q_(n,d) C_(n,d,r), k' likewise: the expectation of q'.k' is a learned function of n - m
 * backward  2. dC, dq, dk   1. dfreqs, doffsets, dgains or dwq, dwk; dgate
 * saves     coded [B,N,3,H,D]; the codes are computed again.
 *
 * In the published code conv_q computes the codes of k and conv_k those of q; their initialisations are the same.  The
 * noise is sampled anew in every training step; evaluation uses that of the last step, which is in the checkpoint. */
#include <math.h>

#include "core/rng.h"
#include "layers/papers.h"
#include "layers/features/relative.h"

enum { SINES = 12, TAPS = 200 };

static void declare_learned(Params *params, const Attention *a, float **value, float **grad, const char *name,
                            ParamInit init, ParamDraw draw, int K) {
    params_declare(params, (Param){.value = value, .grad = grad, .named = {a->prefix, name}, .init = init, .draw = draw,
                                   .shape = {a->H, a->D, K}});
}

extern const RelativeKind relative_sincspe;

/* Rows of noise for each channel of a head. */
static int noise_rows(const Relative *r, const Attention *a) {
    return r->kind == &relative_sincspe ? 2 * SINES : a->N + TAPS - 1;
}

static void shared_declare(Relative *r, const Attention *a, Params *params) {
    params_declare(params, (Param){.value = &r->gate, .grad = &r->dgate, .named = {a->prefix, "relative.gate"},
                                   .init = INIT_NORMAL, .shape = {a->H, a->D}});
    params_declare(params, (Param){.value = &r->noise, .named = {a->prefix, "relative.noise"}, .init = INIT_NORMAL,
                                   .frozen = true, .host = &r->noise_host,
                                   .shape = {a->H, a->D, noise_rows(r, a), a->D}});
    params_declare(params, (Param){.value = &r->common, .named = {a->prefix, "relative.common"}, .init = INIT_NORMAL,
                                   .frozen = true, .host = &r->common_host, .shape = {a->H, a->D, a->D}});
}

static size_t row_of(const Param *p) { return (size_t)p->shape[p->ndim - 1]; }

/* Each block uses two random streams; the second one is for e, which all tokens share. */
static void spe_draw(const Relative *r, const Attention *a, uint64_t seed, uint32_t step) {
    enum { STREAMS = 2 };
    size_t square = (size_t)a->H * (size_t)a->D * (size_t)a->D, n = square * (size_t)noise_rows(r, a);
    rng_normals(r->noise_host, n, seed, RNG_CODES, step, STREAMS * (uint32_t)a->place.block);
    rng_normals(r->common_host, square, seed, RNG_CODES, step, STREAMS * (uint32_t)a->place.block + 1);
    device_upload(r->noise, r->noise_host, n * sizeof(float));
    device_upload(r->common, r->common_host, square * sizeof(float));
}

/* == Sines ======================================================================================================== */

/* Standard normal numbers minus 4, whose sigmoids are low frequencies. */
static void low_frequencies(float *x, const Param *p, uint64_t seed, uint32_t tensor) {
    for (size_t i = 0; i < p->size; i++) x[i] = rng_normal(seed, RNG_INIT, tensor, 0, i) - 4;
}

/* Each row of standard normal numbers times 2/sqrt(its norm). */
static void even_rows(float *x, const Param *p, uint64_t seed, uint32_t tensor) {
    (void)seed, (void)tensor;
    size_t n = row_of(p);
    for (float *row = x; row < x + p->size; row += n) {
        double squares = 0;
        for (size_t j = 0; j < n; j++) squares += pow((double)row[j], 2);
        for (size_t j = 0; j < n; j++) row[j] *= (float)(2 / pow(squares, 0.25));
    }
}

static void sine_declare(Relative *r, const Attention *a, Params *params) {
    declare_learned(params, a, &r->freqs, &r->dfreqs, "relative.freqs", INIT_NORMAL, low_frequencies, SINES);
    declare_learned(params, a, &r->offsets, &r->doffsets, "relative.offsets", INIT_NORMAL, NULL, SINES);
    declare_learned(params, a, &r->gains, &r->dgains, "relative.gains", INIT_NORMAL, even_rows, SINES);
    shared_declare(r, a, params);
}

static void sine_plan(Relative *r, const Attention *a, Plan *plan, int B) {
    (void)r, (void)B;
    plan_workspace(plan, spe_sine_workspace(a->N, a->H, a->D, SINES));
}

static SpeSine sine_of(const Relative *r) {
    return (SpeSine){SINES, r->freqs, r->offsets, r->gains, r->gate, r->noise, r->common};
}

static void sine_code(const Relative *r, const Attention *a, const real *qkv, int B) {
    AttentionShape shape = attention_shape(a, B);
    SpeSine spe = sine_of(r);
    spe_sine_forward(r->coded, qkv, &spe, &shape);
}

static void sine_code_backward(const Relative *r, const Attention *a, real *dqkv, const real *qkv, int B) {
    AttentionShape shape = attention_shape(a, B);
    SpeSine spe = sine_of(r);
    SpeSineGradients d = {r->dfreqs, r->doffsets, r->dgains, r->dgate};
    spe_sine_backward(dqkv, &d, r->dcoded, qkv, &spe, &shape);
}

/* Multiply-adds of one image, without the codes, which all images share. */
static size_t spe_macs(const Relative *r, const Attention *a) {
    (void)r;
    return 2 * (size_t)a->N * (size_t)a->H * (size_t)a->D * (size_t)a->D;
}

const RelativeKind relative_sincspe = {
    .name = "sincspe",
    .summary = "stochastic positional encoding with learned sines (Liutkus et al. 2021)",
    .paper = PAPER_SPE,
    .declare = sine_declare,
    .plan = sine_plan,
    .draw = spe_draw,
    .code = sine_code,
    .code_backward = sine_code_backward,
    .macs = spe_macs,
};

/* == Convolutions ================================================================================================= */

/* Uniform in [0, sqrt(2/n)) for filters of n taps. */
static void uniform_filters(float *x, const Param *p, uint64_t seed, uint32_t tensor) {
    for (size_t i = 0; i < p->size; i++)
        x[i] = rng_uniform(seed, RNG_INIT, tensor, 0, i) * sqrtf(2 / (float)row_of(p));
}

static void conv_declare(Relative *r, const Attention *a, Params *params) {
    declare_learned(params, a, &r->wq, &r->dwq, "relative.conv_q", INIT_ZEROS, uniform_filters, TAPS);
    declare_learned(params, a, &r->wk, &r->dwk, "relative.conv_k", INIT_ZEROS, uniform_filters, TAPS);
    shared_declare(r, a, params);
}

static void conv_plan(Relative *r, const Attention *a, Plan *plan, int B) {
    (void)r, (void)B;
    plan_workspace(plan, spe_conv_workspace(a->N, a->H, a->D, TAPS));
}

static SpeConv conv_of(const Relative *r) { return (SpeConv){TAPS, r->wq, r->wk, r->gate, r->noise, r->common}; }

static void conv_code(const Relative *r, const Attention *a, const real *qkv, int B) {
    AttentionShape shape = attention_shape(a, B);
    SpeConv spe = conv_of(r);
    spe_conv_forward(r->coded, qkv, &spe, &shape);
}

static void conv_code_backward(const Relative *r, const Attention *a, real *dqkv, const real *qkv, int B) {
    AttentionShape shape = attention_shape(a, B);
    SpeConv spe = conv_of(r);
    SpeConvGradients d = {r->dwq, r->dwk, r->dgate};
    spe_conv_backward(dqkv, &d, r->dcoded, qkv, &spe, &shape);
}

const RelativeKind relative_convspe = {
    .name = "convspe",
    .summary = "stochastic positional encoding with learned filters (Liutkus et al. 2021)",
    .paper = PAPER_SPE,
    .declare = conv_declare,
    .plan = conv_plan,
    .draw = spe_draw,
    .code = conv_code,
    .code_backward = conv_code_backward,
    .macs = spe_macs,
};
