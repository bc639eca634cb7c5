/* The spatial weights of ripple attention: stick breaking, softmax, fixed.
 *
 *   logits    o_r = <sticks_r, wp v + bp> = c_r.v + e_r,  c_r = wp^T sticks_r,  e_r = sticks_r.bp: the projection is
 *             never formed, and c and e are as small as the sticks
 *   sticks    x_r = (R - r) exp(-o_r),  s_r = 1 / (1 + x_r),  1 - s_r = x_r s_r,  alpha_r = s_r prod_{r'<r} (1 - s_r')
 *             do_r = (1 - s_r) alpha_r dalpha_r - s_r sum_{r'>r} alpha_r' dalpha_r', no division; from r^ on do_r = 0,
 *             and the groups that share a weight act as one last group; its alpha dalpha is the sum over these groups
 *   softmax   do_r = alpha_r (dalpha_r - sum_r' alpha_r' dalpha_r')
 *   backward  dv += sum_r do_r c_r,  dc_r = sum do_r v,  de_r = sum do_r over tokens;
 *             dsticks_r += wp dc_r + bp de_r,  dwp += sum_r sticks_r dc_r^T,  dbp += sum_r sticks_r de_r
 * A vector has one number for each of TILE tokens.  Sums over tokens are float for FLUSH blocks, then double. Source:
 * "Ripple Attention for Visual Perception with Sub-quadratic Complexity" (ICML 2022), equations 5 and 6. */
#include "kernels/ripple/ripple.h"
#include "kernels/softmax/attention_shape.h"

#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"

enum { FLUSH = 32 };

typedef struct {
    int H, D, R, Dp, Rp; /* R logits; Dp, Rp rounded up to whole vectors */
    float tau;
    bool truncate;
    bool heads; /* every head has a projection of its own */
} RippleWeightsShape;

static RippleWeightsShape shape_of(int H, int D, int R) {
    return (RippleWeightsShape){.H = H, .D = D, .R = R, .Dp = tile_round_up(D), .Rp = tile_round_up(R)};
}

/* rule is NULL for softmax. */
static RippleWeightsShape shape_for(const RippleSticks *sticks, const StickBreaking *rule,
                                    const AttentionShape *shape) {
    RippleWeightsShape s = shape_of(shape->H, shape->D, sticks->R);
    s.heads = sticks->per_head;
    if (rule) {
        s.tau = rule->tau;
        s.truncate = rule->truncate;
    }
    return s;
}

/* Buffers of one thread. */
typedef struct {
    float *c, *ct, *e;         /* [H,R,Dp] [H,D,Rp] [H,R] */
    float *o, *v, *dv;         /* [TILE,Rp] [TILE,Dp] [TILE,Dp] */
    float *dc_part, *de_part;  /* [H,R,Dp] [H,R,TILE] */
    double *dc, *de;           /* [H,R,Dp] [H,R] */
} RippleWeightsBuffers;

static size_t buffers_of(const RippleWeightsShape *s, RippleWeightsBuffers *w, float *base) {
    size_t sticks = (size_t)s->H * s->R, block = TILE;
    size_t sizes[] = {sticks * s->Dp, (size_t)s->H * s->D * s->Rp, sticks,
                      block * s->Rp,  block * s->Dp,               block * s->Dp,
                      sticks * s->Dp, sticks * TILE,               2 * sticks * s->Dp, /* the last two hold doubles */
                      2 * sticks};
    void *places[sizeof sizes / sizeof *sizes];
    size_t total = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (base) places[i] = base + total;
        total += workspace_line_up(sizes[i]);
    }
    if (base)
        *w = (RippleWeightsBuffers){places[0], places[1], places[2], places[3], places[4],
                                    places[5], places[6], places[7], places[8], places[9]};
    return total;
}

static size_t workspace_floats(const RippleWeightsShape *s) {
    RippleWeightsBuffers unused;
    return buffers_of(s, &unused, NULL);
}

size_t ripple_weights_workspace(int H, int D, int G) {
    RippleWeightsShape s = shape_of(H, D, G);
    return workspace_bytes(workspace_floats(&s));
}

/* == Logits ======================================================================================================= */

/* c_r = wp^T sticks_r and its transpose, and e_r = sticks_r.bp. */
static void project_sticks(const RippleWeightsShape *s, const RippleWeightsBuffers *w, const float *wp, const float *bp,
                           const float *sticks) {
    memset(w->c, 0, (size_t)s->H * s->R * s->Dp * sizeof *w->c);
    memset(w->ct, 0, (size_t)s->H * s->D * s->Rp * sizeof *w->ct);
    for (int i = 0; i < s->H * s->R; i++) {
        const float *stick = sticks + (size_t)i * s->D;
        size_t own = s->heads ? i / s->R : 0;
        const float *w_own = wp + own * s->D * s->D, *b_own = bp + own * s->D;
        float *c = w->c + (size_t)i * s->Dp, *ct = w->ct + (size_t)(i / s->R) * s->D * s->Rp + i % s->R;
        double e = 0;
        for (int p = 0; p < s->D; p++) {
            e += (double)stick[p] * b_own[p];
            for (int d = 0; d < s->D; d++) c[d] += stick[p] * w_own[(size_t)p * s->D + d];
        }
        w->e[i] = (float)e;
        for (int d = 0; d < s->D; d++) ct[(size_t)d * s->Rp] = c[d];
    }
}

/* A [m,n] with rows `row` apart as n vectors of TILE rows: lane i of out[j] is x[i][j], zero past m. */
static void rows_to_lanes(vec *out, const float *x, size_t row, int m, int n) {
    for (int j = 0; j < n; j++) {
        float lanes[TILE] = {0};
        for (int i = 0; i < m; i++) lanes[i] = x[i * row + j];
        out[j] = vec_load(lanes);
    }
}

static void lanes_to_rows(float *x, size_t row, const vec *in, int m, int n) {
    for (int j = 0; j < n; j++) {
        float lanes[TILE];
        vec_store(lanes, in[j]);
        for (int i = 0; i < m; i++) x[i * row + j] = lanes[i];
    }
}

/* o of m tokens and one head, tokens along the lanes. */
static void logits(const RippleWeightsShape *s, const RippleWeightsBuffers *w, vec *o, const real *v, int h, int m) {
    FloatRows rows = reals_as_floats(w->v, s->Dp, v, 3 * (size_t)s->H * s->D, m, s->D);
    tile_gemm(w->o, s->Rp, rows.at, rows.row, 1, w->ct + (size_t)h * s->D * s->Rp, s->Rp, m, s->Rp, s->D, 0);
    rows_to_lanes(o, w->o, s->Rp, m, s->R);
    for (int r = 0; r < s->R; r++) o[r] += w->e[h * s->R + r];
}

/* == TILE tokens ================================================================================================== */

/* s and 1 - s of stick r.  Below -80 the sigmoid is negligible, and the exponential would overflow. */
TILE_INLINE void break_stick(vec *stick, vec *rest, vec o, int left) {
    vec x = (float)left * vec_exp(-vec_select(o < -80.0f, vec_set(-80.0f), o));
    *stick = 1.0f / (1.0f + x);
    *rest = x * *stick;
}

static void stick_weights(const RippleWeightsShape *s, vec *alpha, const vec *o) {
    vec mass = vec_set(1), share = vec_set(0); /* 1 - sum_{r'<r} alpha_r';  weight of each group from r^ on */
    ivec ended = {0};
    for (int r = 0; r < s->R; r++) {
        vec stick, rest;
        break_stick(&stick, &rest, o[r], s->R - r);
        ivec ends = ~ended & (mass * rest < s->tau);
        share = vec_select(ends, mass / (float)(s->R - r + 1), share);
        ended |= ends;
        alpha[r] = vec_select(ended, share, stick * mass);
        mass *= rest;
    }
    alpha[s->R] = s->truncate ? vec_set(0) : vec_select(ended, share, mass);
}

static void stick_gradients(const RippleWeightsShape *s, vec *dlogit, const vec *dalpha, const vec *alpha,
                            const vec *o) {
    vec sticks[RIPPLE_MAX_GROUPS], rests[RIPPLE_MAX_GROUPS], mass = vec_set(1);
    ivec ended[RIPPLE_MAX_GROUPS], end = {0};
    for (int r = 0; r < s->R; r++) {
        break_stick(&sticks[r], &rests[r], o[r], s->R - r);
        mass *= rests[r];
        end |= (mass < s->tau);
        ended[r] = end;
    }
    vec farther = alpha[s->R] * dalpha[s->R]; /* zero when truncated, since that alpha is zero */
    for (int r = s->R - 1; r >= 0; r--) {
        vec own = alpha[r] * dalpha[r];
        dlogit[r] = vec_select(ended[r], vec_set(0), rests[r] * own - sticks[r] * farther);
        farther += own;
    }
}

static void softmax_weights(const RippleWeightsShape *s, vec *alpha, const vec *o) {
    vec largest = o[0], sum = vec_set(0);
    for (int r = 1; r < s->R; r++) largest = vec_max(o[r], largest);
    for (int r = 0; r < s->R; r++) sum += alpha[r] = vec_exp(o[r] - largest);
    for (int r = 0; r < s->R; r++) alpha[r] /= sum;
}

static void softmax_gradients(const RippleWeightsShape *s, vec *dlogit, const vec *dalpha, const vec *alpha) {
    vec mean = vec_set(0);
    for (int r = 0; r < s->R; r++) mean += alpha[r] * dalpha[r];
    for (int r = 0; r < s->R; r++) dlogit[r] = alpha[r] * (dalpha[r] - mean);
}

/* == Forward ====================================================================================================== */

/* o is NULL for softmax, which has no last group beyond its logits. */
static void weights_forward(const RippleWeightsShape *s, float *alpha, float *o, const real *qkv,
                            const RippleSticks *sticks, size_t n) {
    size_t floats = workspace_floats(s), blocks = (n + TILE - 1) / TILE, M = (size_t)s->H * s->D;
    int G = o ? s->R + 1 : s->R;
#pragma omp parallel
    {
        RippleWeightsBuffers w;
        buffers_of(s, &w, kernels_workspace(floats));
        project_sticks(s, &w, sticks->wp, sticks->bp, sticks->sticks);
#pragma omp for schedule(static)
        for (size_t block = 0; block < blocks; block++) {
            size_t first = block * TILE;
            int m = n - first < TILE ? (int)(n - first) : TILE;
            for (int h = 0; h < s->H; h++) {
                vec logit[RIPPLE_MAX_GROUPS], weight[RIPPLE_MAX_GROUPS];
                size_t row = first * s->H + h;
                logits(s, &w, logit, qkv + first * 3 * M + 2 * M + (size_t)h * s->D, h, m);
                if (o) {
                    stick_weights(s, weight, logit);
                    lanes_to_rows(o + row * s->R, (size_t)s->H * s->R, logit, m, s->R);
                } else {
                    softmax_weights(s, weight, logit);
                }
                lanes_to_rows(alpha + row * G, (size_t)s->H * G, weight, m, G);
            }
        }
    }
}

void stick_breaking_forward(float *alpha, float *o, const real *qkv, const RippleSticks *sticks,
                            const StickBreaking *rule, const AttentionShape *shape) {
    RippleWeightsShape s = shape_for(sticks, rule, shape);
    weights_forward(&s, alpha, o, qkv, sticks, (size_t)shape->B * shape->N);
}

void softmax_weights_forward(float *alpha, const real *qkv, const RippleSticks *sticks, const AttentionShape *shape) {
    RippleWeightsShape s = shape_for(sticks, NULL, shape);
    weights_forward(&s, alpha, NULL, qkv, sticks, (size_t)shape->B * shape->N);
}

void fixed_weights(float *alpha, const float *weights, size_t rows, int G) {
#pragma omp parallel for schedule(static)
    for (size_t row = 0; row < rows; row++) memcpy(alpha + row * G, weights, G * sizeof *alpha);
}

/* == Backward ===================================================================================================== */

static void clear_parts(const RippleWeightsShape *s, const RippleWeightsBuffers *w) {
    memset(w->dc_part, 0, (size_t)s->H * s->R * s->Dp * sizeof *w->dc_part);
    memset(w->de_part, 0, (size_t)s->H * s->R * TILE * sizeof *w->de_part);
}

static void flush_parts(const RippleWeightsShape *s, const RippleWeightsBuffers *w) {
    for (size_t i = 0; i < (size_t)s->H * s->R * s->Dp; i++) w->dc[i] += w->dc_part[i];
    for (int i = 0; i < s->H * s->R; i++) w->de[i] += vec_sum(vec_load(w->de_part + (size_t)i * TILE));
    clear_parts(s, w);
}

/* dv of m tokens and one head, and their contribution to dc and de. */
static void spread_logits(const RippleWeightsShape *s, const RippleWeightsBuffers *w, real *dv, const vec *dlogit,
                          const real *v, int h, int m) {
    size_t row = 3 * (size_t)s->H * s->D, head = (size_t)h * s->R;
    for (int i = 0; i < m; i++) {
        reals_widen(w->v + i * s->Dp, v + i * row, s->D);
        for (int d = s->D; d < s->Dp; d++) w->v[i * s->Dp + d] = 0;
    }
    lanes_to_rows(w->o, s->Rp, dlogit, m, s->R);
    tile_gemm(w->dv, s->Dp, w->o, s->Rp, 1, w->c + head * s->Dp, s->Dp, m, s->Dp, s->R, 0);
    for (int i = 0; i < m; i++)
        for (int d = 0; d < s->D; d++) {
            real *to = dv + i * row + d;
            *to = real_of(real_get(*to) + w->dv[i * s->Dp + d]);
        }
    tile_gemm(w->dc_part + head * s->Dp, s->Dp, w->o, 1, s->Rp, w->v, s->Dp, s->R, s->Dp, m, 1);
    for (int r = 0; r < s->R; r++) {
        float *de = w->de_part + (head + r) * TILE;
        vec_store(de, vec_load(de) + dlogit[r]);
    }
}

/* Sums dc and de over the threads, in thread order, and computes the projection's gradients from them. */
static void finish_gradients(const RippleWeightsShape *s, size_t floats, int threads, float *dwp, float *dbp,
                             float *dsticks, const float *wp, const float *bp, const float *sticks) {
    RippleWeightsBuffers w, other;
    int D = s->D, count = s->H * s->R;
    buffers_of(s, &w, workspace_of(0, floats));
    for (int thread = 1; thread < threads; thread++) {
        buffers_of(s, &other, workspace_of(thread, floats));
        for (size_t i = 0; i < (size_t)count * s->Dp; i++) w.dc[i] += other.dc[i];
        for (int i = 0; i < count; i++) w.de[i] += other.de[i];
    }
    for (int i = 0; i < count; i++)
        for (int p = 0; p < D; p++) {
            size_t own = ((size_t)(s->heads ? i / s->R : 0) * D + p);
            double sum = bp[own] * w.de[i];
            for (int d = 0; d < D; d++) sum += wp[own * D + d] * w.dc[(size_t)i * s->Dp + d];
            dsticks[(size_t)i * D + p] += (float)sum;
        }
    int projections = s->heads ? s->H : 1, each = count / projections;
    for (int row = 0; row < projections * D; row++) {
        int first = row / D * each, p = row % D;
        double bias = 0;
        for (int i = first; i < first + each; i++) bias += sticks[(size_t)i * D + p] * w.de[i];
        dbp[row] += (float)bias;
        for (int d = 0; d < D; d++) {
            double sum = 0;
            for (int i = first; i < first + each; i++) sum += sticks[(size_t)i * D + p] * w.dc[(size_t)i * s->Dp + d];
            dwp[(size_t)row * D + d] += (float)sum;
        }
    }
}

static void weights_backward(const RippleWeightsShape *s, real *dqkv, const RippleSticksGradients *d,
                             const float *dalpha, const float *alpha, const float *o, const real *qkv,
                             const RippleSticks *sticks, size_t n) {
    size_t floats = workspace_floats(s), blocks = (n + TILE - 1) / TILE, M = (size_t)s->H * s->D;
    int G = o ? s->R + 1 : s->R, threads = 1;
#pragma omp parallel
    {
        RippleWeightsBuffers w;
        int since = 0;
        buffers_of(s, &w, kernels_workspace(floats));
        project_sticks(s, &w, sticks->wp, sticks->bp, sticks->sticks);
        clear_parts(s, &w);
        memset(w.dc, 0, (size_t)s->H * s->R * s->Dp * sizeof *w.dc);
        memset(w.de, 0, (size_t)s->H * s->R * sizeof *w.de);
#pragma omp single
        threads = omp_get_num_threads();
#pragma omp for schedule(static)
        for (size_t block = 0; block < blocks; block++) {
            size_t first = block * TILE, v = first * 3 * M + 2 * M;
            int m = n - first < TILE ? (int)(n - first) : TILE;
            for (int h = 0; h < s->H; h++) {
                vec weight[RIPPLE_MAX_GROUPS], dweight[RIPPLE_MAX_GROUPS];
                vec logit[RIPPLE_MAX_GROUPS], dlogit[RIPPLE_MAX_GROUPS];
                size_t row = first * s->H + h;
                rows_to_lanes(weight, alpha + row * G, (size_t)s->H * G, m, G);
                rows_to_lanes(dweight, dalpha + row * G, (size_t)s->H * G, m, G);
                if (o) {
                    rows_to_lanes(logit, o + row * s->R, (size_t)s->H * s->R, m, s->R);
                    stick_gradients(s, dlogit, dweight, weight, logit);
                } else {
                    softmax_gradients(s, dlogit, dweight, weight);
                }
                spread_logits(s, &w, dqkv + v + (size_t)h * s->D, dlogit, qkv + v + (size_t)h * s->D, h, m);
            }
            if (++since == FLUSH) {
                flush_parts(s, &w);
                since = 0;
            }
        }
        flush_parts(s, &w);
    }
    finish_gradients(s, floats, threads, d->wp, d->bp, d->sticks, sticks->wp, sticks->bp, sticks->sticks);
}

void stick_breaking_backward(real *dqkv, const RippleSticksGradients *d, const float *dalpha, const float *alpha,
                             const float *o, const real *qkv, const RippleSticks *sticks, const StickBreaking *rule,
                             const AttentionShape *shape) {
    RippleWeightsShape s = shape_for(sticks, rule, shape);
    weights_backward(&s, dqkv, d, dalpha, alpha, o, qkv, sticks, (size_t)shape->B * shape->N);
}

void softmax_weights_backward(real *dqkv, const RippleSticksGradients *d, const float *dalpha, const float *alpha,
                              const real *qkv, const RippleSticks *sticks, const AttentionShape *shape) {
    RippleWeightsShape s = shape_for(sticks, NULL, shape);
    weights_backward(&s, dqkv, d, dalpha, alpha, NULL, qkv, sticks, (size_t)shape->B * shape->N);
}

/* == What is logged =============================================================================================== */

/* Half of sum_r p log(p / m) + q log(q / m) with m = (p + q) / 2: p the weights of TILE rows, divided by their sum, and
 * q halving from ring to ring, the last two alike. */
static vec divergence_from_halving(const vec *alpha, int G) {
    const float tiny = 1e-37f;
    vec total = vec_set(tiny), sum = vec_set(0);
    float q = 1;
    for (int r = 0; r < G; r++) total += alpha[r];
    for (int r = 0; r < G; r++) {
        if (r < G - 1) q /= 2;
        vec p = alpha[r] / total, mean = vec_max(0.5f * (p + q), vec_set(tiny));
        sum += p * vec_log(p / mean);
        if (q > tiny) sum += q * vec_log(q / mean);
    }
    return vec_max(0.5f * sum, vec_set(0)); /* 0 where it is NaN */
}

void ripple_weights_measure(uint64_t *sums, int parts, const float *alpha, const float *o, float tau, size_t rows,
                            int G) {
    uint64_t divergence = 0, ended = 0, at_once = 0;
    (void)parts;
#pragma omp parallel for schedule(static) reduction(+ : divergence, ended, at_once)
    for (size_t row = 0; row < rows; row += TILE) {
        int m = rows - row < TILE ? (int)(rows - row) : TILE;
        vec x[RIPPLE_MAX_GROUPS], stick, rest, left = vec_set(1), first = left;
        float diverged[TILE], all[TILE], one[TILE];
        rows_to_lanes(x, alpha + row * G, G, m, G);
        vec_store(diverged, divergence_from_halving(x, G));
        if (o) rows_to_lanes(x, o + row * (G - 1), G - 1, m, G - 1);
        for (int r = 0; o && r < G - 1; r++) {
            break_stick(&stick, &rest, x[r], G - 1 - r);
            left *= rest;
            if (r == 0) first = left;
        }
        vec_store(all, left);
        vec_store(one, first);
        for (int i = 0; i < m; i++) {
            divergence += (uint64_t)((double)diverged[i] / RIPPLE_UNIT + 0.5);
            ended += o && all[i] < tau;
            at_once += o && one[i] < tau;
        }
    }
    sums[0] += divergence;
    sums[1] += ended * (uint64_t)(1 / RIPPLE_UNIT);
    sums[2] += at_once * (uint64_t)(1 / RIPPLE_UNIT);
}
