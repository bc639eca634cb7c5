/* The spatial weights of ripple attention: stick breaking, softmax, fixed.  The formulas are those of
 * kernels/ripple/ripple_weights.c: the projection is never formed, o_r = c_r.v + e_r with c_r = wp^T sticks_r and
 * e_r = sticks_r.bp, and the gradients of the parameters come from dc_r = sum do_r v and de_r = sum do_r over tokens.
 *
 * A warp processes thirty-two tokens and one head.  In forward each lane has a token: its v is in registers, and c has
 * the same address for all lanes.  In backward each lane has a column of v: dv and dc of thirty-two tokens are products
 * with the rows of do in shared memory, and every access to v and dv is to a whole row.  A block adds its tiles' dc and
 * de in workspace; add_parts adds the blocks' sums. */
#include "kernels/cuda/rows.cuh"
#include "kernels/ripple/ripple.h"
#include "kernels/softmax/attention_shape.h"

enum {
    TOKENS = WARP,
    ROW = TOKENS + 4, /* row of a logit or weight in shared memory, with one number per token: aligned, not all in one
                       * bank */
    COLUMNS = WARP,   /* of v at once */
    MOST_WARPS = 8,
    BACKWARD_WARPS = 6, /* with 168 registers, two blocks per multiprocessor */
    MOST_PARTS = 264,        /* two blocks for each multiprocessor of an H200 */
    SHARED_LIMIT = 96 * 1024 /* two blocks in a multiprocessor */
};
static const size_t MOST_PART_BYTES = (size_t)16 << 20;

struct RippleWeightsShape {
    size_t n;
    int H, D, R, G; /* R logits, G weights */
    int columns;    /* D rounded up: row of c */
    float tau;
    bool truncate, softmax;
    bool heads; /* every head has a projection of its own */
};

/* Workspace: c [H,R,columns], e [H,R], dc [H,R,D+1] with de as the last column, and one of those for every block. */
struct RippleWeightsBuffers {
    float *c, *e, *dc, *parts;
    int most_parts;
};

static RippleWeightsBuffers buffers_of(int H, int D, int R, float *base, size_t *bytes) {
    size_t columns = ceil_div(D, COLUMNS) * COLUMNS, sticks = (size_t)H * R, size = sticks * (D + 1), next = 0;
    size_t parts = MOST_PART_BYTES / (size * sizeof(float));
    auto take = [&](size_t floats) {
        float *at = base ? base + next : NULL;
        next += ceil_div(floats, 4) * 4;
        return at;
    };
    RippleWeightsBuffers w = {};
    w.most_parts = parts < 1 ? 1 : parts > MOST_PARTS ? (int)MOST_PARTS : (int)parts;
    w.c = take(sticks * columns);
    w.e = take(sticks);
    w.dc = take(size);
    w.parts = take(w.most_parts * size);
    *bytes = next * sizeof(float);
    return w;
}

size_t ripple_weights_workspace(int H, int D, int G) {
    size_t bytes;
    buffers_of(H, D, G, NULL, &bytes);
    return bytes;
}

static RippleWeightsBuffers workspace_of(const RippleWeightsShape &s) {
    size_t bytes;
    buffers_of(s.H, s.D, s.R, NULL, &bytes);
    return buffers_of(s.H, s.D, s.R, static_cast<float *>(kernels_workspace(bytes)), &bytes);
}

/* c and e, padded with zeros, and dc = 0.  One block for each stick; `each` sticks share a projection. */
__global__ void __launch_bounds__(128) ripple_project_kernel(float *c, float *e, float *dc, const float *wp,
                                                             const float *bp, const float *sticks, int D, int columns,
                                                             int each) {
    size_t i = blockIdx.x, own = i / each;
    const float *stick = sticks + i * D;
    wp += own * D * D;
    bp += own * D;
    for (int d = threadIdx.x; d < columns; d += blockDim.x) {
        float sum = 0;
        for (int p = 0; p < D && d < D; p++) sum += stick[p] * wp[(size_t)p * D + d];
        c[i * columns + d] = sum;
    }
    for (int d = threadIdx.x; d <= D; d += blockDim.x) dc[i * (D + 1) + d] = 0;
    if (threadIdx.x) return;
    float sum = 0;
    for (int p = 0; p < D; p++) sum += stick[p] * bp[p];
    e[i] = sum;
}

/* Floats of shared memory that a warp needs. */
constexpr int forward_floats(int G) { return G * ROW + TOKENS * (COLUMNS + 1); }
constexpr int backward_floats(int G) { return 2 * G * ROW; }

/* == One token ==================================================================================================== */

/* s and 1 - s of a stick.  Below -80 the sigmoid is nothing, and its exponential would overflow. */
DEVICE void break_stick(float *stick, float *rest, float o, int left) {
    float x = (float)left * expf(o < -80 ? 80 : -o);
    *stick = 1 / (1 + x);
    *rest = x * *stick;
}

/* From here on x [.,ROW] in shared memory is a column: this lane's token. */
#define OF(x, r) (x)[(r) * ROW + lane_id()]

/* R logits become R + 1 weights. */
DEVICE void stick_weights(float *x, const RippleWeightsShape &s) {
    float mass = 1, share = 0; /* 1 - sum_{r'<r} alpha_r';  weight of each group from r^ on */
    bool ended = false;
    for (int r = 0; r < s.R; r++) {
        float stick, rest;
        break_stick(&stick, &rest, OF(x, r), s.R - r);
        if (!ended && mass * rest < s.tau) {
            share = mass / (float)(s.R - r + 1);
            ended = true;
        }
        OF(x, r) = ended ? share : stick * mass;
        mass *= rest;
    }
    OF(x, s.R) = s.truncate ? 0 : ended ? share : mass;
}

/* own: alpha dalpha becomes do. */
DEVICE void stick_gradients(float *own, const float *o, const RippleWeightsShape &s) {
    float stick, rest, mass = 1, farther = OF(own, s.R); /* zero when truncated, since that alpha is zero */
    int end = 0;
    for (; end < s.R; end++) {
        break_stick(&stick, &rest, OF(o, end), s.R - end);
        mass *= rest;
        if (mass < s.tau) break;
    }
    for (int r = s.R - 1; r >= 0; r--) {
        float product = OF(own, r);
        break_stick(&stick, &rest, OF(o, r), s.R - r);
        OF(own, r) = r < end ? rest * product - stick * farther : 0;
        farther += product;
    }
}

DEVICE void softmax(float *x, const RippleWeightsShape &s) {
    float largest = OF(x, 0), sum = 0;
    for (int r = 1; r < s.R; r++) largest = fmaxf(largest, OF(x, r));
    for (int r = 0; r < s.R; r++) sum += OF(x, r) = expf(OF(x, r) - largest);
    for (int r = 0; r < s.R; r++) OF(x, r) /= sum;
}

DEVICE void softmax_gradients(float *own, const float *alpha, const RippleWeightsShape &s) {
    float mean = 0;
    for (int r = 0; r < s.R; r++) mean += OF(own, r);
    for (int r = 0; r < s.R; r++) OF(own, r) -= OF(alpha, r) * mean;
}

/* == Thirty-two tokens ============================================================================================ */

DEVICE int tokens_from(const RippleWeightsShape &s, size_t first) {
    return s.n - first < TOKENS ? (int)(s.n - first) : TOKENS;
}

/* Calls visit(i, r, where) for the rows of `width` floats of tokens first .. first+31 and head h in x [n,H,width]. */
template <typename Visit>
DEVICE void for_rows(const RippleWeightsShape &s, size_t first, int h, int width, Visit visit) {
    int count = tokens_from(s, first) * width;
    for (int k = lane_id(); k < count; k += WARP) {
        int i = k / width, r = k % width;
        visit(i, r, ((first + i) * s.H + h) * width + r);
    }
}

/* x [R,ROW] = the logits of head h; v_tile [TOKENS,COLUMNS+1]. */
DEVICE void logits(float *x, float *v_tile, const real *v, size_t v_row, const float *c, const float *e,
                   const RippleWeightsShape &s, size_t first, int h) {
    for (int r = 0; r < s.R; r++) OF(x, r) = e[h * s.R + r];
    for (int d0 = 0; d0 < s.D; d0 += COLUMNS) {
        float own[COLUMNS];
        const real *column = v + first * v_row + d0 + lane_id();
        int tokens = d0 + lane_id() < s.D ? tokens_from(s, first) : 0;
        warp_sync();
#pragma unroll 8
        for (int i = 0; i < TOKENS; i++, column += v_row)
            v_tile[i * (COLUMNS + 1) + lane_id()] = i < tokens ? to_float(*column) : 0;
        warp_sync();
#pragma unroll
        for (int d = 0; d < COLUMNS; d++) own[d] = v_tile[lane_id() * (COLUMNS + 1) + d];
#pragma unroll 1
        for (int r = 0; r < s.R; r++) {
            const float *from = c + (size_t)(h * s.R + r) * s.columns + d0;
            float sum = 0;
#pragma unroll
            for (int d = 0; d < COLUMNS; d += 4) {
                float weight[4];
                load<4>(weight, from + d);
#pragma unroll
                for (int k = 0; k < 4; k++) sum += weight[k] * own[d + k];
            }
            OF(x, r) += sum;
        }
    }
}

/* A block processes all heads of its tokens, so that their short rows of weights share cache lines. */
__global__ void __launch_bounds__(MOST_WARPS *WARP, 2)
    ripple_weights_forward_kernel(float *alpha, float *o, const real *qkv, const float *c, const float *e,
                                  RippleWeightsShape s) {
    SHARED(float, shared);
    float *x = shared + warp_id() * forward_floats(s.G), *v_tile = x + s.G * ROW;
    size_t first = (size_t)blockIdx.x * TOKENS, M = (size_t)s.H * s.D;
    for (int h = warp_id(); h < s.H; h += (int)blockDim.x / WARP) {
        warp_sync();
        logits(x, v_tile, qkv + 2 * M + (size_t)h * s.D, 3 * M, c, e, s, first, h);
        warp_sync();
        if (!s.softmax) for_rows(s, first, h, s.R, [&](int i, int r, size_t at) { o[at] = x[r * ROW + i]; });
        warp_sync();
        if (s.softmax) softmax(x, s);
        else stick_weights(x, s);
        warp_sync();
        for_rows(s, first, h, s.G, [&](int i, int r, size_t at) { alpha[at] = x[r * ROW + i]; });
    }
}

/* own [G,ROW] = do of head h, zero beyond the last token; other [G,ROW] is scratch. */
DEVICE void logit_gradients(float *own, float *other, const float *dalpha, const float *alpha, const float *o,
                            const RippleWeightsShape &s, size_t first, int h) {
    warp_sync();
    for (int r = 0; r < s.G; r++) OF(own, r) = OF(other, r) = 0;
    warp_sync();
    for_rows(s, first, h, s.G, [&](int i, int r, size_t at) {
        own[r * ROW + i] = alpha[at] * dalpha[at];
        if (s.softmax) other[r * ROW + i] = alpha[at];
    });
    if (!s.softmax) for_rows(s, first, h, s.R, [&](int i, int r, size_t at) { other[r * ROW + i] = o[at]; });
    warp_sync();
    if (s.softmax) softmax_gradients(own, other, s);
    else stick_gradients(own, other, s);
    warp_sync();
}

/* Column d of dv += do c, for the first `tokens` of the tile. */
DEVICE void add_value_gradient(real *dv, int row, int tokens, const float *own, const float *c,
                               const RippleWeightsShape &s, int h, int d) {
    float sum[TOKENS];
#pragma unroll
    for (int i = 0; i < TOKENS; i++) sum[i] = i < tokens ? to_float(dv[i * row]) : 0;
#pragma unroll 2
    for (int r = 0; r < s.R; r++) {
        float weight = c[(size_t)(h * s.R + r) * s.columns + d], gradient[TOKENS];
        load<TOKENS>(gradient, own + r * ROW);
#pragma unroll
        for (int i = 0; i < TOKENS; i++) sum[i] += gradient[i] * weight;
    }
#pragma unroll
    for (int i = 0; i < TOKENS; i++)
        if (i < tokens) dv[i * row] = to_real(sum[i]);
}

/* Column d of dc += do^T v, the block's share; with `fresh` it overwrites the previous contents. */
DEVICE void add_stick_gradient(float *part, const real *v, int row, int tokens, const float *own,
                               const RippleWeightsShape &s, int h, int d, bool fresh) {
    float value[TOKENS];
#pragma unroll
    for (int i = 0; i < TOKENS; i++) value[i] = i < tokens ? to_float(v[i * row]) : 0;
#pragma unroll 2
    for (int r = 0; r < s.R; r++) {
        float *to = part + ((size_t)h * s.R + r) * (s.D + 1) + d, gradient[TOKENS], sum = 0;
        load<TOKENS>(gradient, own + r * ROW);
#pragma unroll
        for (int i = 0; i < TOKENS; i++) sum += gradient[i] * value[i];
        if (d < s.D) *to = fresh ? sum : *to + sum;
    }
}

__global__ void __launch_bounds__(BACKWARD_WARPS *WARP, 2)
    ripple_weights_backward_kernel(real *dqkv, float *parts, const float *dalpha, const float *alpha, const float *o,
                                   const real *qkv, const float *c, RippleWeightsShape s) {
    SHARED(float, shared);
    float *own = shared + warp_id() * backward_floats(s.G), *other = own + s.G * ROW;
    size_t M = (size_t)s.H * s.D, tiles = (s.n + TOKENS - 1) / TOKENS;
    int row = (int)(3 * M); /* thirty-two rows are within int */
    float *part = parts + (size_t)blockIdx.x * s.H * s.R * (s.D + 1); /* [H,R,D+1] */
    for (size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        size_t first = tile * TOKENS;
        bool fresh = tile == blockIdx.x;
        for (int h = warp_id(); h < s.H; h += (int)blockDim.x / WARP) {
            logit_gradients(own, other, dalpha, alpha, o, s, first, h);
            for (int d0 = 0; d0 < s.D; d0 += COLUMNS) {
                int d = d0 + lane_id(), tokens = d < s.D ? tokens_from(s, first) : 0;
                size_t at = (first * 3 + 2) * M + (size_t)h * s.D + d;
                add_value_gradient(dqkv + at, row, tokens, own, c, s, h, d);
                add_stick_gradient(part, qkv + at, row, tokens, own, s, h, d, fresh);
            }
            for (int r = lane_id(); r < s.R; r += WARP) {
                float *to = part + ((size_t)h * s.R + r) * (s.D + 1) + s.D, sum = 0;
                for (int i = 0; i < TOKENS; i++) sum += own[r * ROW + i];
                *to = fresh ? sum : *to + sum;
            }
        }
    }
}

/* There is a thread for each element of dwp, dbp and dsticks, in this order. */
__global__ void __launch_bounds__(128)
    ripple_weights_parameters_kernel(float *dwp, float *dbp, float *dsticks, const float *dc, const float *wp,
                                     const float *bp, const float *sticks, int D, int count, int each) {
    size_t rows = (size_t)count / each * D, square = rows * D;
    size_t at = (size_t)blockIdx.x * 128 + threadIdx.x;
    double sum = 0;
    if (at < square + rows) {
        bool bias = at >= square;
        size_t row = bias ? at - square : at / D, d = bias ? D : at % D, p = row % D, first = row / D * each;
        for (size_t i = first; i < first + each; i++) sum += (double)sticks[i * D + p] * dc[i * (D + 1) + d];
        float *to = bias ? dbp + row : dwp + at;
        *to += (float)sum;
    } else if ((at -= square + rows) < (size_t)count * D) {
        size_t i = at / D, row = i / each * D + at % D;
        sum = (double)bp[row] * dc[i * (D + 1) + D];
        for (int d = 0; d < D; d++) sum += (double)wp[row * D + d] * dc[i * (D + 1) + d];
        dsticks[at] += (float)sum;
    }
}

/* == Launches ===================================================================================================== */

/* rule is NULL for softmax. */
static RippleWeightsShape shape_of(const RippleSticks *sticks, const StickBreaking *rule, const AttentionShape *shape) {
    RippleWeightsShape s = {};
    s.n = (size_t)shape->B * shape->N;
    s.H = shape->H;
    s.D = shape->D;
    s.R = sticks->R;
    s.G = rule ? s.R + 1 : s.R;
    s.columns = (int)ceil_div(s.D, COLUMNS) * COLUMNS;
    s.tau = rule ? rule->tau : 0;
    s.truncate = rule && rule->truncate;
    s.softmax = !rule;
    s.heads = sticks->per_head;
    return s;
}

static int warps_for(const RippleWeightsShape &s, size_t floats, int most) {
    int warps = (int)(SHARED_LIMIT / (floats * sizeof(float)));
    if (warps > most) warps = most;
    return warps < 1 ? 1 : warps < s.H ? warps : s.H;
}

static void project(const RippleWeightsBuffers &w, const RippleWeightsShape &s, const RippleSticks *sticks) {
    LAUNCH(ripple_project_kernel, s.H * s.R, 128, 0, w.c, w.e, w.dc, sticks->wp, sticks->bp, sticks->sticks, s.D,
           s.columns, s.heads ? s.R : s.H * s.R);
}

static void weights_forward(float *alpha, float *o, const real *qkv, const RippleSticks *sticks,
                            const RippleWeightsShape &s) {
    RippleWeightsBuffers w = workspace_of(s);
    size_t floats = forward_floats(s.G);
    int warps = warps_for(s, floats, MOST_WARPS);
    project(w, s, sticks);
    LAUNCH(ripple_weights_forward_kernel, (unsigned)ceil_div(s.n, TOKENS), warps * WARP, warps * floats * sizeof(float),
           alpha, o, qkv, w.c, w.e, s);
}

static void weights_backward(real *dqkv, const RippleSticksGradients *d, const float *dalpha, const float *alpha,
                             const float *o, const real *qkv, const RippleSticks *sticks, const RippleWeightsShape &s) {
    RippleWeightsBuffers w = workspace_of(s);
    size_t floats = backward_floats(s.G), projections = s.heads ? s.H : 1,
           elements = projections * s.D * (s.D + 1) + (size_t)s.H * s.R * s.D;
    int warps = warps_for(s, floats, BACKWARD_WARPS), parts = (int)blocks_for(s.n, TOKENS, w.most_parts);
    project(w, s, sticks);
    LAUNCH(ripple_weights_backward_kernel, parts, warps * WARP, warps * floats * sizeof(float), dqkv, w.parts, dalpha,
           alpha, o, qkv, w.c, s);
    add_parts(w.dc, NULL, w.parts, parts, s.H * s.R * (s.D + 1));
    LAUNCH(ripple_weights_parameters_kernel, (unsigned)ceil_div(elements, 128), 128, 0, d->wp, d->bp, d->sticks, w.dc,
           sticks->wp, sticks->bp, sticks->sticks, s.D, s.H * s.R, s.heads ? s.R : s.H * s.R);
}

void stick_breaking_forward(float *alpha, float *o, const real *qkv, const RippleSticks *sticks,
                            const StickBreaking *rule, const AttentionShape *shape) {
    weights_forward(alpha, o, qkv, sticks, shape_of(sticks, rule, shape));
}

void softmax_weights_forward(float *alpha, const real *qkv, const RippleSticks *sticks, const AttentionShape *shape) {
    weights_forward(alpha, NULL, qkv, sticks, shape_of(sticks, NULL, shape));
}

void stick_breaking_backward(real *dqkv, const RippleSticksGradients *d, const float *dalpha, const float *alpha,
                             const float *o, const real *qkv, const RippleSticks *sticks, const StickBreaking *rule,
                             const AttentionShape *shape) {
    weights_backward(dqkv, d, dalpha, alpha, o, qkv, sticks, shape_of(sticks, rule, shape));
}

void softmax_weights_backward(real *dqkv, const RippleSticksGradients *d, const float *dalpha, const float *alpha,
                              const real *qkv, const RippleSticks *sticks, const AttentionShape *shape) {
    weights_backward(dqkv, d, dalpha, alpha, NULL, qkv, sticks, shape_of(sticks, NULL, shape));
}

/* == Fixed ======================================================================================================== */

struct RingWeights {
    float of[RIPPLE_MAX_GROUPS];
};

__global__ void __launch_bounds__(256) fixed_weights_kernel(float *alpha, RingWeights weights, size_t count, int G) {
    size_t step = (size_t)gridDim.x * 256;
    for (size_t at = (size_t)blockIdx.x * 256 + threadIdx.x; at < count; at += step) alpha[at] = weights.of[at % G];
}

void fixed_weights(float *alpha, const float *weights, size_t rows, int G) {
    RingWeights w = {};
    for (int r = 0; r < G; r++) w.of[r] = weights[r];
    size_t count = rows * G;
    if (count) LAUNCH(fixed_weights_kernel, blocks_for(count, 256, 132 * 8), 256, 0, alpha, w, count, G);
}

/* == What is logged =============================================================================================== */

enum { MEASURE_THREADS = 256 };

/* Half of sum_r p log(p / m) + q log(q / m) with m = (p + q) / 2: p = alpha / sum alpha, q halving from ring to
 * ring. */
DEVICE float divergence_from_halving(const float *alpha, int G) {
    const float tiny = 1e-37f;
    float total = tiny, sum = 0, q = 1;
    for (int r = 0; r < G; r++) total += alpha[r];
    for (int r = 0; r < G; r++) {
        if (r < G - 1) q /= 2;
        float p = alpha[r] / total, mean = fmaxf(0.5f * (p + q), tiny);
        if (p > tiny) sum += p * logf(p / mean);
        if (q > tiny) sum += q * logf(q / mean);
    }
    return fmaxf(0.5f * sum, 0); /* 0 where it is NaN */
}

/* Every thread has its own rows, and every block its own element of `sums`, which is kept from launch to launch. */
__global__ void __launch_bounds__(MEASURE_THREADS)
    sticks_measure_kernel(uint64_t *sums, const float *alpha, const float *o, float tau, size_t rows, int G) {
    SHARED(uint64_t, found);
    uint64_t own[3] = {};
    int R = G - 1;
    for (size_t row = (size_t)blockIdx.x * MEASURE_THREADS + threadIdx.x; row < rows;
         row += (size_t)gridDim.x * MEASURE_THREADS) {
        own[0] += (uint64_t)(divergence_from_halving(alpha + row * G, G) * (float)(1 / RIPPLE_UNIT) + 0.5f);
        float left = 1, stick, rest;
        for (int r = 0; o && r < R; r++) {
            break_stick(&stick, &rest, o[row * R + r], R - r);
            left *= rest;
            if (r == 0) own[2] += left < tau;
        }
        own[1] += o && left < tau;
    }
    for (int i = 0; i < 3; i++) found[i * MEASURE_THREADS + threadIdx.x] = own[i];
    for (int half = MEASURE_THREADS / 2; half > 0; half /= 2) {
        block_sync();
        if ((int)threadIdx.x < half)
            for (int i = 0; i < 3; i++)
                found[i * MEASURE_THREADS + threadIdx.x] += found[i * MEASURE_THREADS + threadIdx.x + half];
    }
    block_sync();
    if (threadIdx.x < 3)
        sums[blockIdx.x * 3 + threadIdx.x] += found[threadIdx.x * MEASURE_THREADS] *
                                              (threadIdx.x ? (uint64_t)(1 / RIPPLE_UNIT) : 1);
}

void ripple_weights_measure(uint64_t *sums, int parts, const float *alpha, const float *o, float tau, size_t rows,
                            int G) {
    LAUNCH(sticks_measure_kernel, parts, MEASURE_THREADS, 3 * MEASURE_THREADS * sizeof(uint64_t), sums, alpha, o, tau,
           rows, G);
}
