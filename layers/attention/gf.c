/* Global filter (GFNet, Rao et al. 2021) in place of attention.  x [B,N,M] -> y [B,N,M], tokens on a grid
 * forward   1. mix = F' (w F x), F the real Fourier transform over the grid, channel by channel
 *           2. y = mix Wproj^T + b
 * backward  2. dmix   1. dx = F' (conj(w) F dmix),  dw = conj(F x) F dmix
 * saves     mix. */
#include <math.h>

#include "layers/attention.h"
#include "layers/papers.h"
#include "layers/projection.h"

typedef struct {
    Projection proj;
    float *w, *dw;    /* [Hg,Wg/2+1,M,2], of clips [T,Hg,Wg/2+1,M,2] */
    real *mix, *dmix; /* [B,N,M] kept; scratch */
} Gf;

static void gf_declare(Attention *a, Params *params) {
    Gf *s = a->state;
    Grid g = a->grid;
    params_declare(params, (Param){.value = &s->w, .grad = &s->dw, .named = {a->prefix, "filter.complex_weight"},
                                   .init = INIT_TRUNC_NORMAL, .decay = true,
                                   .shape = {g.frames > 1 ? g.frames : 0, g.rows, g.columns / 2 + 1, a->M, 2},
                                   .time = {TIME_FREQUENCIES, 0, g.frames, 0, true}});
    projection_declare(&s->proj, params, a->prefix, "proj", a->M, a->M);
    a->last = &s->proj;
}

static void gf_plan(Attention *a, Plan *plan, int B) {
    Gf *s = a->state;
    size_t bytes = attention_bytes(a, B);
    plan_pair(plan, a->prefix, "mix", &s->mix, &s->dmix, bytes);
    plan_workspace(plan, global_filter_workspace(B, a->grid, a->M));
}

static void gf_forward(const Attention *a, real *y, const real *x, int B) {
    const Gf *s = a->state;
    global_filter_forward(s->mix, x, s->w, B, a->grid, a->M);
    projection_forward(&s->proj, y, s->mix, attention_tokens(a, B));
}

static void gf_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const Gf *s = a->state;
    projection_backward(&s->proj, s->dmix, dy, s->mix, attention_tokens(a, B));
    global_filter_backward(dx, s->dw, s->dmix, x, s->w, B, a->grid, a->M);
}

/* The count has two real transforms of N log2 N multiply-adds for each channel, and the product of half spectra with
 * four multiply-adds for each number. */
static size_t gf_transform_macs(const Attention *a) {
    size_t N = (size_t)a->N, M = (size_t)a->M;
    return 2 * M * (size_t)((double)N * log2((double)N)) +
           4 * (size_t)a->grid.frames * (size_t)a->grid.rows * (size_t)(a->grid.columns / 2 + 1) * M;
}

static size_t gf_macs(const Attention *a) {
    return projection_macs(&((const Gf *)a->state)->proj, (size_t)a->N) + gf_transform_macs(a);
}

const AttentionOp gf_op = {
    .name = "gf",
    .summary = "learned filter for each channel in the frequency domain (GFNet)",
    .paper = PAPER_GF,
    .state_size = sizeof(Gf),
    .declare = gf_declare,
    .plan = gf_plan,
    .forward = gf_forward,
    .backward = gf_backward,
    .macs = gf_macs,
    .transform_macs = gf_transform_macs,
};
