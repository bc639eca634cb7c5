/* Ripple attention over pairs of tokens on tensor cores: `dense` computes all pairs, `window` only those closer than
 * the last bound, and the last group's share by linear attention.  The formulas are those of
 * kernels/ripple/ripple_pairs.c; with
 *   c_nm  the weight of a pair: alpha_g(n,m)(n), in `window` less base_n = alpha_{G-1}(n) (0 where nothing is outside)
 *   delta_n = dy_n.y_n,  i_n = 1 / den_n,  t_nm = dy_n.v_m - delta_n
 * Products use dy unscaled, and i_n is a factor of the weights:
 *   queries   dphi(q_n) = sum_m (i c t) phi(k_m),  dalpha_r(n) = i_n sum_{m in r} a t
 *   keys      dphi(k_m) = sum_n (i c t) phi(q_n),  dv_m = sum_n (i c a) dy_n
 *   far       S = sum_m phi(k_m) [v_m, 1],  dS = sum_n i_n base_n phi(q_n) [dy_n, -delta_n]
 * Patches, weights and products are in ripple_patches.cuh, the far part in ripple_far.cuh; no N x N matrix is
 * stored. */
#include "kernels/ripple/ripple_far.cuh"
#include "kernels/ripple/ripple.h"

enum { SHARED_LIMIT = 160 * 1024 }; /* of an A100 and later ones for data centres; others have less */
static const size_t BUDGET = (size_t)64 << 20;

/* == Forward ====================================================================================================== */

template <int P>
__global__ void __launch_bounds__(MOST_WARPS *WARP)
    ripple_pairs_forward_kernel(real *y, float *den, const float *S, const float *alpha, const real *phi,
                                const real *qkv, PatchShape s, int first_head) {
    constexpr int LD = tile_ld(P), TILE = STAGED * LD;
    SHARED(unsigned char, shared);
    real *staged = reinterpret_cast<real *>(shared); /* [2]: keys [STAGED,LD], values [STAGED,LD] */
    real *own = reinterpret_cast<real *>(shared + s.at.own) + warp_id() * PATCH * LD;
    real *far = reinterpret_cast<real *>(shared + s.at.far);
    float *weight = reinterpret_cast<float *>(shared + s.at.weight) + warp_id() * PATCH * s.ld;
    unsigned char *group = shared + s.at.group;
    PatchPlace at = place_of_warp(s, first_head);
    const RippleHead &o = at.o;
    auto stage = [&](Patch p, int buffer) {
        int Wg = s.rings.grid.columns;
        auto token = [&](int i) { return box_token(at.box, patch_after(at.box, p, i / PATCH), i % PATCH, Wg); };
        real *to = staged + buffer * 2 * TILE;
        load_tokens<P>(to, phi + o.k, o.phi_row, s.F, s.wide, token, STAGED, threadIdx.x, blockDim.x);
        load_tokens<P>(to + TILE, qkv + o.v, o.qkv_row, s.D, s.wide, token, STAGED, threadIdx.x, blockDim.x);
    };
    if (at.box.columns) stage({0, 0}, 0);
    load_groups(group, s);
    load_weights(
        weight, alpha, NULL, o, s, [&](int i) { return own_token(s, at, i); }, PATCH, lane_id(), WARP);

    FragmentA q[P / TILE_K];
    FragmentC num[P / TILE_N], part[P / TILE_N]; /* part: of a stretch of keys */
    float total[2] = {0, 0};
    load_own<P>(q, own, phi + o.q, o.phi_row, s.F, s, at);
    clear(num);
    clear(part);
    if (s.far) {
        FragmentC product[P / TILE_N + 1];
        load_far<P>(far, S + (size_t)at.head * far_size(P));
        block_sync();
        far_product<P>(product, q, far);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float base = base_of(s, o, alpha, own_token(s, at, fragment_c_row(i)));
            total[i / 2] += base * product[P / TILE_N].x[i];
#pragma unroll
            for (int n = 0; n < P / TILE_N; n++) part[n].x[i] = base * product[n].x[i];
        }
    }

    bool idle = at.y >= s.rings.grid.rows;
    int column = -1;
    Held held = {NOTHING, {}, {}};
    auto visit = [&](Patch p, int buffer, int k) {
        int dy = at.box.y0 + 2 * p.row - at.y;
        if (idle || beyond(s, dy)) return;
        if (p.column != column) {
            column_groups(held.column, group, s, at.box.x0 + SIDE * p.column - at.x);
            column = p.column;
            held.rows = NOTHING;
        }
        unsigned rows = row_groups(group, s, dy);
        if (rows != held.rows) hold_weights(held, rows, weight, s.ld);
        const real *keys = staged + buffer * 2 * TILE + k * PATCH * LD;
        FragmentC a[2];
        scores<P>(a, q, keys);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            a[0].x[i] *= held.weight[i / 2][0][i % 2];
            a[1].x[i] *= held.weight[i / 2][1][i % 2];
            total[i / 2] += a[0].x[i] + a[1].x[i];
        }
        accumulate<P>(part, a, keys + TILE);
    };
    walk(at.box, stage, visit, [&] {
        if (FLOAT_SUMS) flush(num, part);
    });
    flush(num, part);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = row_sum(total[i]) + RIPPLE_EPSILON, inverse = 1 / sum;
        int n = own_token(s, at, fragment_c_row(2 * i));
        if (n >= 0 && lane_id() % 4 == 0) den[o.den + n * o.den_row] = sum;
#pragma unroll
        for (int j = 0; j < P / TILE_N; j++) {
            num[j].x[2 * i] *= inverse;
            num[j].x[2 * i + 1] *= inverse;
        }
    }
    store_own<P>(y + o.y, o.y_row, s.D, own, num, s, at);
}

/* == Backward ===================================================================================================== */

/* delta and 1 / den of the warp's sixteen queries, two lanes each. */
DEVICE void load_delta(float *delta, float *inverse, const real *dy, const real *y, const float *den,
                       const RippleHead &o, const PatchShape &s, const PatchPlace &at) {
    int i = lane_id() / 2, half = lane_id() % 2, n = own_token(s, at, i);
    float sum = 0;
    if (n >= 0) {
        const real *gradient = dy + o.y + n * o.y_row, *value = y + o.y + n * o.y_row;
        for (int j = half * WIDE; s.wide && j < s.D; j += 2 * WIDE) {
            float a[WIDE], b[WIDE];
            load<WIDE>(a, gradient + j);
            load<WIDE>(b, value + j);
#pragma unroll
            for (int e = 0; e < WIDE; e++) sum += a[e] * b[e];
        }
        for (int j = half; !s.wide && j < s.D; j += 2) sum += to_float(gradient[j]) * to_float(value[j]);
    }
    sum += warp_shuffle_xor(sum, 1);
    if (half == 0) {
        delta[i] = sum;
        inverse[i] = n >= 0 ? 1 / den[o.den + n * o.den_row] : 0;
    }
}

/* sums[token][group][lane % 4] += the sums of this lane, which alone writes there. */
DEVICE void settle(float *sums, float (&sum)[2][2][2], const Held &held, int ld) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int g = pair_group(held.rows, i, j, held.column[e]);
                sums[(fragment_c_row(2 * i) * ld + g) * 4 + lane_id() % 4] += sum[i][j][e];
                sum[i][j][e] = 0;
            }
}

/* dphi(q) and dalpha; delta_out [heads,N] for the other kernels. */
template <int P>
__global__ void __launch_bounds__(MOST_WARPS *WARP)
    ripple_pairs_queries_kernel(real *dphi, float *dalpha, float *delta_out, const real *dy, const real *y,
                                const float *den, const float *S, const float *alpha, const real *phi, const real *qkv,
                                PatchShape s, int first_head) {
    constexpr int LD = tile_ld(P), TILE = STAGED * LD;
    SHARED(unsigned char, shared);
    real *staged = reinterpret_cast<real *>(shared); /* [2]: keys [STAGED,LD], values [STAGED,LD] */
    real *own = reinterpret_cast<real *>(shared + s.at.own) + warp_id() * PATCH * LD;
    real *far = reinterpret_cast<real *>(shared + s.at.far);
    float *weight = reinterpret_cast<float *>(shared + s.at.weight) + warp_id() * PATCH * s.ld;
    float *sums = reinterpret_cast<float *>(shared + s.at.sums) + warp_id() * PATCH * s.ld * 4;
    float *delta = reinterpret_cast<float *>(shared + s.at.rows) + warp_id() * PATCH * 3;
    float *inverse = delta + PATCH, *far_last = inverse + PATCH;
    unsigned char *group = shared + s.at.group;
    PatchPlace at = place_of_warp(s, first_head);
    const RippleHead &o = at.o;
    auto stage = [&](Patch p, int buffer) {
        int Wg = s.rings.grid.columns;
        auto token = [&](int i) { return box_token(at.box, patch_after(at.box, p, i / PATCH), i % PATCH, Wg); };
        real *to = staged + buffer * 2 * TILE;
        load_tokens<P>(to, phi + o.k, o.phi_row, s.F, s.wide, token, STAGED, threadIdx.x, blockDim.x);
        load_tokens<P>(to + TILE, qkv + o.v, o.qkv_row, s.D, s.wide, token, STAGED, threadIdx.x, blockDim.x);
    };
    if (at.box.columns) stage({0, 0}, 0);
    load_groups(group, s);
    load_weights(
        weight, alpha, den, o, s, [&](int i) { return own_token(s, at, i); }, PATCH, lane_id(), WARP);
    load_delta(delta, inverse, dy, y, den, o, s, at);
    for (int i = lane_id(); i < PATCH * s.ld * 4; i += WARP) sums[i] = 0;

    FragmentA q[P / TILE_K], gradient[P / TILE_K];
    FragmentC dq[P / TILE_N], part[P / TILE_N];
    load_own<P>(gradient, own, dy + o.y, o.y_row, s.D, s, at);
    load_own<P>(q, own, phi + o.q, o.phi_row, s.F, s, at);
    clear(dq);
    clear(part);
    float my_delta[2] = {delta[fragment_c_row(0)], delta[fragment_c_row(2)]};
    if (lane_id() < PATCH) {
        int n = own_token(s, at, lane_id());
        if (n >= 0) delta_out[(size_t)at.head * s.N + n] = delta[lane_id()];
    }
    if (s.far) {
        load_far<P>(far, S + (size_t)at.head * far_size(P));
        block_sync();
        far_product_transposed<P>(part, gradient, far);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = fragment_c_row(2 * i);
            float scale = base_of(s, o, alpha, own_token(s, at, row)) * inverse[row], last = 0;
#pragma unroll
            for (int n = 0; n < P / TILE_N; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int f = n * TILE_N + fragment_c_column(e);
                    float u = part[n].x[2 * i + e] - my_delta[i] * far_z(far, f, P);
                    last += to_float(own[row * LD + f]) * u;
                    part[n].x[2 * i + e] = scale * u;
                }
            last = row_sum(last);
            if (lane_id() % 4 == 0) far_last[row] = last * inverse[row];
        }
    }

    bool idle = at.y >= s.rings.grid.rows;
    int column = -1;
    Held held = {NOTHING, {}, {}};
    float sum[2][2][2] = {};
    auto visit = [&](Patch p, int buffer, int k) {
        int dy_patch = at.box.y0 + 2 * p.row - at.y;
        if (idle || beyond(s, dy_patch)) return;
        unsigned rows = row_groups(group, s, dy_patch);
        if (p.column != column || rows != held.rows) {
            if (held.rows != NOTHING) settle(sums, sum, held, s.ld);
            if (p.column != column) column_groups(held.column, group, s, at.box.x0 + SIDE * p.column - at.x);
            column = p.column;
            hold_weights(held, rows, weight, s.ld);
        }
        const real *keys = staged + buffer * 2 * TILE + k * PATCH * LD;
        FragmentC a[2], t[2];
        scores<P>(a, q, keys);
        scores<P>(t, gradient, keys + TILE);
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                t[j].x[i] -= my_delta[i / 2];
                sum[i / 2][j][i % 2] += a[j].x[i] * t[j].x[i];
                t[j].x[i] *= held.weight[i / 2][j][i % 2];
            }
        accumulate<P>(part, t, keys);
    };
    walk(at.box, stage, visit, [&] {
        if (FLOAT_SUMS) flush(dq, part);
    });
    flush(dq, part);
    if (held.rows != NOTHING) settle(sums, sum, held, s.ld);
    store_own<P>(dphi + o.q, o.phi_row, s.F, own, dq, s, at);

    int G = s.rings.G, near = s.far ? G - 1 : G;
    for (int k = lane_id(); k < PATCH * near; k += WARP) {
        int i = k / near, r = k % near, n = own_token(s, at, i);
        float *of = sums + (i * s.ld + r) * 4;
        of[0] = inverse[i] * (of[0] + of[1] + (of[2] + of[3]));
        if (n >= 0) dalpha[o.alpha + n * o.alpha_row + r] = of[0];
    }
    if (!s.far) return;
    warp_sync();
    int n = lane_id() < PATCH ? own_token(s, at, lane_id()) : -1;
    if (n < 0) return;
    float last = has_far(s, n) ? far_last[lane_id()] : 0;
    for (int r = 0; r < near && has_far(s, n); r++) last -= sums[(lane_id() * s.ld + r) * 4];
    dalpha[o.alpha + n * o.alpha_row + near] = last;
}

/* dphi(k) and dv: the warp owns a patch of keys, and the patches in staging are queries with their weights. */
template <int P>
__global__ void __launch_bounds__(MOST_WARPS *WARP)
    ripple_pairs_keys_kernel(real *dqkv, real *dphi, const float *delta_in, const real *dy, const float *den,
                             const float *dS, const float *alpha, const real *phi, const real *qkv, PatchShape s,
                             int first_head) {
    constexpr int LD = tile_ld(P), TILE = STAGED * LD;
    SHARED(unsigned char, shared);
    real *staged = reinterpret_cast<real *>(shared); /* [2]: queries [STAGED,LD], dy [STAGED,LD] */
    real *own = reinterpret_cast<real *>(shared + s.at.own) + warp_id() * PATCH * LD;
    real *far = reinterpret_cast<real *>(shared + s.at.far);
    float *weight = reinterpret_cast<float *>(shared + s.at.weight); /* [2][STAGED,ld] */
    float *delta = reinterpret_cast<float *>(shared + s.at.rows);    /* [2][STAGED] */
    unsigned char *group = shared + s.at.group;
    PatchPlace at = place_of_warp(s, first_head);
    const RippleHead &o = at.o;
    auto stage = [&](Patch p, int buffer) {
        int Wg = s.rings.grid.columns;
        auto token = [&](int i) { return box_token(at.box, patch_after(at.box, p, i / PATCH), i % PATCH, Wg); };
        real *to = staged + buffer * 2 * TILE;
        load_tokens<P>(to, phi + o.q, o.phi_row, s.F, s.wide, token, STAGED, threadIdx.x, blockDim.x);
        load_tokens<P>(to + TILE, dy + o.y, o.y_row, s.D, s.wide, token, STAGED, threadIdx.x, blockDim.x);
        load_weights(weight + buffer * STAGED * s.ld, alpha, den, o, s, token, STAGED, threadIdx.x, blockDim.x);
        for (int i = threadIdx.x; i < STAGED; i += blockDim.x) {
            int n = token(i);
            delta[buffer * STAGED + i] = n >= 0 ? delta_in[(size_t)at.head * s.N + n] : 0;
        }
    };
    if (at.box.columns) stage({0, 0}, 0);
    load_groups(group, s);

    FragmentA key[P / TILE_K], value[P / TILE_K];
    FragmentC dk[P / TILE_N], dv[P / TILE_N], dk_part[P / TILE_N], dv_part[P / TILE_N];
    load_own<P>(key, own, phi + o.k, o.phi_row, s.F, s, at);
    load_own<P>(value, own, qkv + o.v, o.qkv_row, s.D, s, at);
    clear(dk);
    clear(dv);
    clear(dk_part);
    clear(dv_part);
    if (s.far) {
        FragmentC product[P / TILE_N + 1];
        load_far<P>(far, dS + (size_t)at.head * far_size(P));
        block_sync();
        far_product<P>(product, key, far);
        far_product_transposed<P>(dk_part, value, far);
#pragma unroll
        for (int n = 0; n < P / TILE_N; n++) {
            dv_part[n] = product[n];
#pragma unroll
            for (int i = 0; i < 4; i++) dk_part[n].x[i] += far_z(far, n * TILE_N + fragment_c_column(i), P);
        }
    }

    bool idle = at.y >= s.rings.grid.rows;
    int column = -1, column_group[2];
    auto visit = [&](Patch p, int buffer, int k) {
        int dy_patch = at.box.y0 + 2 * p.row - at.y;
        if (idle || beyond(s, dy_patch)) return;
        if (p.column != column) column_groups(column_group, group, s, at.box.x0 + SIDE * p.column - at.x);
        column = p.column;
        unsigned rows = row_groups(group, s, dy_patch);
        const real *queries = staged + buffer * 2 * TILE + k * PATCH * LD, *gradients = queries + TILE;
        int first = buffer * STAGED + k * PATCH;
        FragmentC a[2], t[2];
        scores<P>(a, key, queries);
        scores<P>(t, value, gradients);
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int query = first + j * SIDE + fragment_c_column(e);
                float shift = delta[query];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float w = weight[query * s.ld + pair_group(rows, i, j, column_group[e])];
                    a[j].x[2 * i + e] *= w;
                    t[j].x[2 * i + e] = w * (t[j].x[2 * i + e] - shift);
                }
            }
        accumulate<P>(dk_part, t, queries);
        accumulate<P>(dv_part, a, gradients);
    };
    walk(at.box, stage, visit, [&] {
        if (!FLOAT_SUMS) return;
        flush(dk, dk_part);
        flush(dv, dv_part);
    });
    flush(dk, dk_part);
    flush(dv, dv_part);
    store_own<P>(dphi + o.k, o.phi_row, s.F, own, dk, s, at);
    store_own<P>(dqkv + o.v, o.qkv_row, s.D, own, dv, s, at);
}

/* == Launches ===================================================================================================== */

enum Kernel { FORWARD, QUERIES, KEYS };

/* Warps of a block: the number of patches below each other if that is at most eight, otherwise the number with the
 * fewest idle warps. */
static int warps_for(int patches) {
    int best = patches < MOST_WARPS ? patches : MOST_WARPS;
    if (patches <= MOST_WARPS) return best;
    for (int warps = MOST_WARPS; warps >= MOST_WARPS / 2; warps--)
        if (ceil_div(patches, warps) * warps < ceil_div(patches, best) * best) best = warps;
    return best;
}

static Areas areas_of(const PatchShape &s, int P, Kernel kernel) {
    Areas at = {};
    int next = 0, tokens = kernel == KEYS ? 2 * STAGED : s.warps * PATCH;
    auto take = [&](size_t bytes) {
        int first = next;
        next += (int)ceil_div(bytes, 16) * 16;
        return first;
    };
    take(2 * 2 * STAGED * tile_ld(P) * sizeof(real));
    at.own = take(s.warps * PATCH * tile_ld(P) * sizeof(real));
    at.far = take(s.far ? 2 * far_size(P) * sizeof(real) : 0);
    at.weight = take((size_t)tokens * s.ld * sizeof(float));
    at.sums = take(kernel == QUERIES ? (size_t)tokens * s.ld * 4 * sizeof(float) : 0);
    at.rows = take((size_t)tokens * 3 * sizeof(float));
    at.group = take(s.limit + 1);
    at.bytes = next;
    return at;
}

static int padded(int D, int F) {
    int width = D > F ? D : F;
    return width <= 16 ? 16 : width <= 32 ? 32 : 64;
}

/* False if the tiles do not fit in shared memory, as with wide heads or hundreds of groups: dense and window are then
 * computed by sat. */
static bool shape_of(PatchShape *s, const RippleRings *rings, int H, int D, int F, bool window) {
    int extent = ripple_extent(rings), last = rings->bound[rings->G - 1], P = padded(D, F);
    *s = {};
    s->rings = *rings;
    s->N = rings->grid.rows * rings->grid.columns;
    s->H = H;
    s->D = D;
    s->F = F;
    s->limit = last < extent ? last : extent;
    s->reach = window ? s->limit - 1 : extent;
    s->far = window && s->reach < extent - 1;
    s->ld = rings->G | 1;
    if (D > 64 || F > 64 || s->limit > SHARED_LIMIT / 4) return false;
    size_t most = launch_shared_most() < SHARED_LIMIT ? launch_shared_most() : (size_t)SHARED_LIMIT;
    for (s->warps = warps_for((rings->grid.rows + 1) / 2);; s->warps--) {
        int bytes = areas_of(*s, P, QUERIES).bytes, others = areas_of(*s, P, KEYS).bytes;
        if ((size_t)(bytes > others ? bytes : others) <= most) break;
        if (s->warps == 1) return false;
    }
    s->blocks = (int)(ceil_div(rings->grid.columns, SIDE) * ceil_div(rings->grid.rows, 2 * s->warps));
    return true;
}

static size_t bytes_of_head(const PatchShape &s, int P) {
    size_t bytes;
    far_of(s, P, 1, NULL, &bytes);
    return bytes;
}

static size_t pairs_workspace(const RippleRings *rings, int D, int F, bool window) {
    PatchShape s;
    if (!shape_of(&s, rings, 1, D, F, window)) return ripple_sat_workspace(rings, D, F);
    size_t one = bytes_of_head(s, padded(D, F));
    return one > BUDGET ? one : BUDGET;
}

size_t ripple_dense_workspace(const RippleRings *rings, int D, int F) { return pairs_workspace(rings, D, F, false); }
size_t ripple_window_workspace(const RippleRings *rings, int D, int F) { return pairs_workspace(rings, D, F, true); }

template <int P>
static void pairs_forward(real *y, float *den, const RippleInputs *in, PatchShape s, int heads) {
    const float *alpha = in->alpha;
    const real *phi = in->phi, *qkv = in->qkv;
    s.at = areas_of(s, P, FORWARD);
    s.wide = is_wide(s.F, phi) && is_wide(s.D, qkv, y);
    size_t bytes;
    int most = s.far ? ripple_heads_at_once(heads, bytes_of_head(s, P), BUDGET) : heads;
    for (int first = 0; first < heads; first += most) {
        int now = heads - first < most ? heads - first : most;
        Far far = far_of(s, P, now, NULL, &bytes);
        if (s.far) {
            far = far_of(s, P, now, static_cast<float *>(kernels_workspace(bytes)), &bytes);
            sum_far<P, false>(far.S, phi, qkv, den, alpha, far, s, first, now);
        }
        LAUNCH(ripple_pairs_forward_kernel<P>, (unsigned)now * s.blocks, s.warps * WARP, s.at.bytes, y, den, far.S,
               alpha, phi, qkv, s, first);
    }
}

template <int P>
static void pairs_backward(const RippleGradients *din, const real *dy, const real *y, const float *den,
                           const RippleInputs *in, PatchShape s, int heads) {
    const float *alpha = in->alpha;
    const real *phi = in->phi, *qkv = in->qkv;
    s.wide = is_wide(s.F, phi, din->phi) && is_wide(s.D, qkv, din->qkv, y, dy);
    int most = ripple_heads_at_once(heads, bytes_of_head(s, P), BUDGET);
    for (int first = 0; first < heads; first += most) {
        int now = heads - first < most ? heads - first : most;
        size_t bytes;
        far_of(s, P, now, NULL, &bytes);
        Far far = far_of(s, P, now, static_cast<float *>(kernels_workspace(bytes)), &bytes);
        if (s.far) sum_far<P, false>(far.S, phi, qkv, den, alpha, far, s, first, now);
        s.at = areas_of(s, P, QUERIES);
        LAUNCH(ripple_pairs_queries_kernel<P>, (unsigned)now * s.blocks, s.warps * WARP, s.at.bytes, din->phi,
               din->alpha, far.delta, dy, y, den, far.S, alpha, phi, qkv, s, first);
        if (s.far) sum_far<P, true>(far.dS, phi, dy, den, alpha, far, s, first, now);
        s.at = areas_of(s, P, KEYS);
        LAUNCH(ripple_pairs_keys_kernel<P>, (unsigned)now * s.blocks, s.warps * WARP, s.at.bytes, din->qkv,
               din->phi, far.delta, dy, den, far.dS, alpha, phi, qkv, s, first);
    }
}

/* The width of the tiles is a template argument: sixteen, thirty-two or sixty-four. */
#define FOR_WIDTH(function, ...)               \
    switch (padded(s.D, s.F)) {                \
    case 16: function<16>(__VA_ARGS__); break; \
    case 32: function<32>(__VA_ARGS__); break; \
    default: function<64>(__VA_ARGS__);        \
    }

RIPPLE_FORWARD(dense) {
    PatchShape s;
    if (!shape_of(&s, rings, shape->H, shape->D, shape->F, false))
        return ripple_sat_forward(y, den, in, rings, shape);
    FOR_WIDTH(pairs_forward, y, den, in, s, shape->B * s.H)
}

RIPPLE_FORWARD(window) {
    PatchShape s;
    if (!shape_of(&s, rings, shape->H, shape->D, shape->F, true))
        return ripple_sat_forward(y, den, in, rings, shape);
    FOR_WIDTH(pairs_forward, y, den, in, s, shape->B * s.H)
}

RIPPLE_BACKWARD(dense) {
    PatchShape s;
    if (!shape_of(&s, rings, shape->H, shape->D, shape->F, false))
        return ripple_sat_backward(din, dy, y, den, in, rings, shape);
    FOR_WIDTH(pairs_backward, din, dy, y, den, in, s, shape->B * s.H)
}

RIPPLE_BACKWARD(window) {
    PatchShape s;
    if (!shape_of(&s, rings, shape->H, shape->D, shape->F, true))
        return ripple_sat_backward(din, dy, y, den, in, rings, shape);
    FOR_WIDTH(pairs_backward, din, dy, y, den, in, s, shape->B * s.H)
}

/* == Cost ========================================================================================================= */

/* Predicted, not measured: clocks of a multiprocessor for two patches of P columns, forward and backward.  Nine
 * products, P/8 matrix instructions each at 4 to 6 clocks of one of four tensor cores, and nine P/16 loads of 512 bytes
 * at 4 clocks of shared memory overlap; weights, sums and conversions take 60.  Memory traffic: fourteen
 * rows of activations and three of weights a token, and for the far part two more readings of features and values. */
static double pairs_cost(const RippleRings *rings, int D, int F, bool window) {
    PatchShape s;
    if (!shape_of(&s, rings, 1, D, F, window)) return ripple_sat_cost(rings, D, F);
    int P = padded(D, F), reach = s.reach;
    double rows = ceil_div(rings->grid.rows, 2), columns = ceil_div(rings->grid.columns, SIDE);
    double rows_met = 2 * reach + 2 < rings->grid.rows ? reach + 2 : rows;
    double columns_met = SIDE + 2 * reach < rings->grid.columns ? (double)ceil_div(SIDE + 2 * reach, SIDE) : columns;
    double pairs = reach < 0 ? 0 : rows * columns * rows_met * columns_met;
    double bytes = s.N * (sizeof(real) * (7.0 * F + 7.0 * D + (s.far ? 4.0 * (D + F) : 0)) + 12.0 * rings->G);
    double busy = pairs * (60 + 9 * P / 4.0) / RIPPLE_CLOCKS, moving = bytes / RIPPLE_BANDWIDTH;
    return busy > moving ? busy : moving;
}

double ripple_dense_cost(const RippleRings *rings, int D, int F) { return pairs_cost(rings, D, F, false); }
double ripple_window_cost(const RippleRings *rings, int D, int F) { return pairs_cost(rings, D, F, true); }
