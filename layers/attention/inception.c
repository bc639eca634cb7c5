/* Inception mixer (Si et al. 2022, iFormer) without its pooled keys.  x [B,N,M] -> y [B,N,M], tokens on a grid
 * Of x's channels the first 2C are for high frequencies, the last L = inception_heads * D for low ones.
 * forward   1. wide [4C]: a = depthwise 3x3 of (x[0..C) W1^T),  p = (3x3 max of x[C..2C)) W2^T + b, both 2C, after GELU
 *           2. wide [L]: q,k,v = x[2C..M) Wqkv^T + b, softmax attention
 *           3. mix = wide + depthwise 3x3 of wide   4. y = mix Wproj^T + b, Wproj [M,4C+L]
 * backward  4. dmix   3. dwide   2. and 1. a slice of dx each
 * saves     the slices of x (the second one after the maximum, with its indices), x W1^T, the first 4C channels of wide
 *           before GELU, qkv, lse, the output of the attention, wide, mix.
 *
 * Of clips the convolutions are time_kernel frames long and the maximum is that of each frame by itself.  W1 and W2
 * begin with deviation 0.02, like linear layers.
 *
 * The numbers in the LiSA paper, 6.36 M parameters and 1.28 G multiply-adds, imply dim 216 with L = 96, that is 9 heads
 * of which four attend; no other division of 180 to 320 channels has both numbers. */
#include "layers/attention.h"
#include "layers/papers.h"
#include "layers/depthwise.h"
#include "layers/projection.h"

typedef struct {
    int inception_heads;
} InceptionSettings;

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(INT, InceptionSettings, inception_heads), "0", .section = "attention", .min = 0, .max = 256,
     .help = "Number of heads of inception with softmax attention; the remaining channels are convolved and pooled "
             "(0: half of heads, rounded down)"},
};

static const ConfigGroup inception_settings = {CONFIG_GROUP(InceptionSettings, entries), .change = CHANGE_NEVER};

typedef struct {
    int C, L, low, W; /* low heads; W = 4C + L */
    Projection conv1, proj2, qkv, proj;
    DepthwiseLayer conv, fuse;
    real *first, *pooled, *last;          /* [B,N,C] twice, [B,N,L] kept: the slices of x */
    uint8_t *at;                          /* [B,N,C] kept: index of each maximum (neighbour_max_forward) */
    real *doubled;                        /* [B,N,2C] kept: x W1^T */
    real *high;                           /* [B,N,4C] kept: before GELU */
    real *qkv_act, *o;                    /* [B,N,3L], [B,N,L] kept */
    float *lse;                           /* [B,low,N] kept */
    real *wide, *mix;                     /* [B,N,W] kept */
    real *part;                           /* [B,N,4C] scratch: a slice of wide or of x, or its gradient */
    real *dmix, *dwide, *dhigh, *ddoubled, *dqkv, *dslice; /* scratch */
} Inception;

static int low_heads(const Attention *a) {
    const InceptionSettings *settings = config_settings(a->settings, &inception_settings);
    return settings->inception_heads ? settings->inception_heads : a->H / 2;
}

static void inception_check(const Attention *a) {
    int low = low_heads(a);
    if (a->H < 2)
        config_reject(a->settings, "heads", "{heads=%d} is too few for {attn=%s}: some heads attend, and the channels of "
                      "the others are convolved", a->H, a->op->name);
    if (low >= a->H)
        config_reject(a->settings, "inception_heads", "{inception_heads=%d} with {heads=%d} leaves no channel to convolve: "
                      "use %d at most", low, a->H, a->H - 1);
    if ((a->M - low * a->D) % 2)
        config_reject(a->settings, "dim",
                      "{dim=%d} minus %d heads of %d channels is odd, but {attn=%s} divides these channels into halves: "
                      "change dim, heads or inception_heads", a->M, low, a->D, a->op->name);
}

static void inception_declare(Attention *a, Params *params) {
    Inception *s = a->state;
    s->low = low_heads(a);
    s->L = s->low * a->D;
    s->C = (a->M - s->L) / 2;
    s->W = 4 * s->C + s->L;
    int C = s->C, L = s->L, W = s->W;
    projection_declare_weight(&s->conv1, params, a->prefix, "high_mixer.conv1", C, 2 * C);
    depthwise_declare(&s->conv, params, a->prefix, "high_mixer.proj1",
                      (Depthwise){a->grid, 2 * C, 3, 2 * C, 2 * C, 4 * C, a->place.time_kernel}, false);
    projection_declare(&s->proj2, params, a->prefix, "high_mixer.proj2", C, 2 * C);
    projection_declare(&s->qkv, params, a->prefix, "low_mixer.qkv", L, 3 * L);
    depthwise_declare(&s->fuse, params, a->prefix, "conv_fuse",
                      (Depthwise){a->grid, W, 3, W, W, W, a->place.time_kernel}, false);
    projection_declare(&s->proj, params, a->prefix, "proj", W, a->M);
}

static void inception_plan(Attention *a, Plan *plan, int B) {
    Inception *s = a->state;
    size_t n = attention_tokens(a, B), C = n * (size_t)s->C * sizeof(real), L = n * (size_t)s->L * sizeof(real),
           W = n * (size_t)s->W * sizeof(real);
    plan_keep(plan, a->prefix, "first", &s->first, C);
    plan_keep(plan, a->prefix, "pooled", &s->pooled, C);
    plan_keep(plan, a->prefix, "last", &s->last, L);
    plan_keep(plan, a->prefix, "at", &s->at, n * (size_t)s->C);
    plan_pair(plan, a->prefix, "doubled", &s->doubled, &s->ddoubled, 2 * C);
    plan_pair(plan, a->prefix, "high", &s->high, &s->dhigh, 4 * C);
    plan_pair(plan, a->prefix, "qkv", &s->qkv_act, &s->dqkv, 3 * L);
    plan_keep(plan, a->prefix, "o", &s->o, L);
    plan_keep(plan, a->prefix, "lse", &s->lse, (size_t)B * (size_t)s->low * (size_t)a->N * sizeof(float));
    plan_pair(plan, a->prefix, "wide", &s->wide, &s->dwide, W);
    plan_pair(plan, a->prefix, "mix", &s->mix, &s->dmix, W);
    plan_borrow(plan, a->prefix, "part", &s->part, 4 * C);
    if (plan->training) plan_borrow(plan, a->prefix, "dslice", &s->dslice, C > L ? C : L);
    plan_workspace(plan, depthwise_workspace(&s->conv.shape));
    plan_workspace(plan, depthwise_workspace(&s->fuse.shape));
    plan_workspace(plan, softmax_attention_workspace(a->N, a->D));
}

/* The shape of the maxima over the tokens of one frame. */
static NeighbourMax maxima(const Inception *s, const Attention *a) {
    return (NeighbourMax){{1, a->grid.rows, a->grid.columns}, s->C, a->M};
}

static void inception_forward(const Attention *a, real *y, const real *x, int B) {
    const Inception *s = a->state;
    size_t n = attention_tokens(a, B);
    int M = a->M, C = s->C, L = s->L, W = s->W;
    rows_add(s->first, x, NULL, n, C, C, M, 0);
    projection_forward(&s->conv1, s->doubled, s->first, n);
    depthwise_forward(s->high, NULL, s->doubled, s->conv.w, NULL, &s->conv.shape, B);
    neighbour_max_forward(s->pooled, s->at, x + C, (NeighbourMax[]){maxima(s, a)}, B * a->grid.frames);
    projection_forward(&s->proj2, s->part, s->pooled, n);
    rows_add(s->high + 2 * C, s->part, NULL, n, 2 * C, 4 * C, 2 * C, 0);
    gelu_forward(s->part, s->high, n * 4 * (size_t)C);
    rows_add(s->wide, s->part, NULL, n, 4 * C, W, 4 * C, 0);

    rows_add(s->last, x + 2 * C, NULL, n, L, L, M, 0);
    projection_forward(&s->qkv, s->qkv_act, s->last, n);
    softmax_attention_forward(s->o, s->lse, s->qkv_act, &(AttentionShape){B, a->N, s->low, a->D});
    rows_add(s->wide + 4 * C, s->o, NULL, n, L, W, L, 0);

    depthwise_forward(s->mix, s->wide, s->wide, s->fuse.w, NULL, &s->fuse.shape, B);
    projection_forward(&s->proj, y, s->mix, n);
}

static void inception_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const Inception *s = a->state;
    size_t n = attention_tokens(a, B);
    int M = a->M, C = s->C, L = s->L, W = s->W;
    (void)x;
    projection_backward(&s->proj, s->dmix, dy, s->mix, n);
    depthwise_backward(s->dwide, s->dmix, s->fuse.dw, NULL, s->dmix, s->wide, s->fuse.w, &s->fuse.shape, B);

    rows_add(s->dslice, s->dwide + 4 * C, NULL, n, L, L, W, 0);
    softmax_attention_backward(s->dqkv, s->dslice, s->o, s->lse, s->qkv_act, &(AttentionShape){B, a->N, s->low, a->D});
    projection_backward(&s->qkv, s->dslice, s->dqkv, s->last, n);
    rows_add(dx + 2 * C, s->dslice, NULL, n, L, M, L, 0);

    rows_add(s->dhigh, s->dwide, NULL, n, 4 * C, 4 * C, W, 0);
    gelu_backward(s->dhigh, s->part, s->dhigh, s->high, n * 4 * (size_t)C);
    rows_add(s->ddoubled, s->dhigh + 2 * C, NULL, n, 2 * C, 2 * C, 4 * C, 0);
    projection_backward(&s->proj2, s->dslice, s->ddoubled, s->pooled, n);
    neighbour_max_backward(dx + C, s->dslice, s->at, (NeighbourMax[]){maxima(s, a)}, B * a->grid.frames);
    depthwise_backward(s->ddoubled, NULL, s->conv.dw, NULL, s->dhigh, s->doubled, s->conv.w, &s->conv.shape, B);
    projection_backward(&s->conv1, s->dslice, s->ddoubled, s->first, n);
    rows_add(dx, s->dslice, NULL, n, C, M, C, 0);
}

static size_t inception_macs(const Attention *a) {
    const Inception *s = a->state;
    size_t N = (size_t)a->N;
    return projection_macs(&s->conv1, N) + depthwise_macs(&s->conv.shape) + projection_macs(&s->proj2, N) +
           projection_macs(&s->qkv, N) + 2 * N * N * (size_t)s->L + depthwise_macs(&s->fuse.shape) +
           projection_macs(&s->proj, N);
}

const AttentionOp inception_op = {
    .name = "inception",
    .summary = "channels divided among convolution, max pooling and softmax (iFormer)",
    .paper = PAPER_INCEPTION,
    .settings = ATTENTION_SETTINGS(&inception_settings),
    .state_size = sizeof(Inception),
    .check = inception_check,
    .declare = inception_declare,
    .plan = inception_plan,
    .forward = inception_forward,
    .backward = inception_backward,
    .macs = inception_macs,
};
