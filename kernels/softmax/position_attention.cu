/* Gated positional attention; the formulas are those of kernels/softmax/position_attention.c.
 *   forward   a block processes one (image, head) after the other: columns v along the lines, rows of that across them,
 *             mixed with content as it is written
 *   backward  u = rows v, t = columns^T dy;  drows = sum t v^T, dcolumns = sum dy u^T;  dv from rows^T t
 * For clips frames v replaces v, and dframes = sum (rows^T t) v^T is computed before frames^T t replaces t.  The
 * intermediate result between two products is a plane [N,COLUMNS] of floats in the workspace of the block.  The planes
 * of all running blocks stay in the second-level cache, so every activation is read or written in memory once.
 *
 * A warp multiplies one line of the grid at a time, 16 x 16 of an axis' weights by 16 rows of COLUMNS channels. Weights
 * and planes enter as the sum of two bfloat16 tiles, high and low, so that only activations are rounded: there are few
 * products, and in a head that attends to one token the rounding of a weight would not average out. */
#include "kernels/cuda/tiles.cuh"
#include "kernels/device/device.h"
#include "kernels/softmax/position_attention.h"

enum { THREADS = 128, WARPS = THREADS / WARP, COLUMNS = 32, LD = tile_ld(COLUMNS), STAGE_LD = COLUMNS + 4 };

/* Number of blocks that fills a large device, and the tokens of all their planes: 128 bytes each, twice. */
static const size_t MOST_BLOCKS = 512, MOST_TOKENS = (size_t)1 << 18;

typedef struct {
    int T, Hg, Wg, H, D, features;
    size_t units; /* (image, head) */
    size_t M, N, squares; /* squares: sum of the squared sides of all axes */
    bool wide;
} PositionShape;

static PositionShape shape_of(const PositionAttention *a, int B, bool wide) {
    int T = a->grid.frames, Hg = a->grid.rows, Wg = a->grid.columns, H = a->H, D = a->D;
    return {T, Hg, Wg, H, D, position_features(a->grid), (size_t)B * H, (size_t)H * D, (size_t)T * Hg * Wg,
            position_axes(a->grid), wide};
}

static unsigned blocks_of(PositionShape s) {
    size_t most = MOST_TOKENS / s.N > 0 ? MOST_TOKENS / s.N : 1;
    return blocks_for(s.units, 1, most < MOST_BLOCKS ? most : MOST_BLOCKS);
}

size_t position_attention_workspace(const PositionAttention *shape) {
    PositionShape s = shape_of(shape, (int)MOST_BLOCKS, false);
    size_t planes = blocks_of(s) * 2 * s.N * COLUMNS * sizeof(float), sums = s.H * (s.squares + 1) * sizeof(float);
    return planes > sums ? planes : sums;
}

/* == The weights of an axis ======================================================================================= */

/* A row of the weights of an axis: of the rows, the columns or the frames. */
struct AxisRow {
    int n, i;             /* number of rows, and index of this row */
    size_t first;         /* in axes */
    int slope, curve;     /* features */
};

DEVICE int axis_rows(PositionShape s) { return s.Hg + s.Wg + (s.T > 1 ? s.T : 0); }

DEVICE AxisRow axis_row(int row, PositionShape s) {
    size_t columns = (size_t)s.Hg * s.Hg, frames = columns + (size_t)s.Wg * s.Wg;
    int i = row - s.Hg, t = i - s.Wg;
    if (row < s.Hg) return {s.Hg, row, (size_t)row * s.Hg, 1, 2};
    if (i < s.Wg) return {s.Wg, i, columns + (size_t)i * s.Wg, 0, 2};
    return {s.T, t, frames + (size_t)t * s.T, 3, 4};
}

/* One thread for each row of the weights of an axis. */
__global__ void __launch_bounds__(THREADS)
    position_axes_forward_kernel(float *axes, const float *pos_proj, PositionShape s) {
    const float *w = pos_proj + s.features * blockIdx.x;
    for (int row = (int)threadIdx.x; row < axis_rows(s); row += THREADS) {
        AxisRow a = axis_row(row, s);
        int n = a.n, i = a.i;
        double slope = w[a.slope], curve = w[a.curve], most = -INFINITY, sum = 0;
        float *p = axes + blockIdx.x * s.squares + a.first;
        for (int j = 0; j < n; j++) most = fmax(most, (slope + curve * (j - i)) * (j - i));
        for (int j = 0; j < n; j++) sum += exp((slope + curve * (j - i)) * (j - i) - most);
        for (int j = 0; j < n; j++) p[j] = (float)(exp((slope + curve * (j - i)) * (j - i) - most) / sum);
    }
}

void position_axes_forward(float *axes, const float *pos_proj, const PositionAttention *shape) {
    LAUNCH(position_axes_forward_kernel, (unsigned)shape->H, THREADS, 0, axes, pos_proj, shape_of(shape, 1, false));
}

/* sums [H,squares+1]: daxes over all images. */
__global__ void __launch_bounds__(THREADS)
    position_axes_backward_kernel(float *dpos_proj, float *dgating, const float *sums, const float *axes,
                                  const float *gating, PositionShape s) {
    SHARED(double, parts); /* [6][THREADS]: dw [5], and the sum of dy.(P v) */
    const float *d = sums + blockIdx.x * (s.squares + 1);
    double mine[6] = {};
    for (int row = (int)threadIdx.x; row < axis_rows(s); row += THREADS) {
        AxisRow a = axis_row(row, s);
        const float *p = axes + blockIdx.x * s.squares + a.first;
        double m[3] = {}, dm[3] = {}; /* moments of the distance under p, and under p d */
        for (int j = 0; j < a.n; j++) {
            double distance = j - a.i, weight = p[j];
            for (int k = 0; k < 3; k++, weight *= distance) {
                m[k] += weight;
                dm[k] += weight * d[a.first + j];
            }
        }
        mine[a.slope] += dm[1] - dm[0] * m[1] / m[0];
        mine[a.curve] += dm[2] - dm[0] * m[2] / m[0];
        if (row < s.Hg) mine[5] += dm[0];
    }
    for (int k = 0; k < 6; k++) parts[k * THREADS + threadIdx.x] = mine[k];
    block_sync();
    int k = (int)threadIdx.x;
    if (k >= 6 || (k >= s.features && k < 5)) return;
    double total = 0, gate = gating[blockIdx.x], g = 1 / (1 + exp(-gate));
    for (int t = 0; t < THREADS; t++) total += parts[k * THREADS + t];
    if (k < 5) dpos_proj[s.features * blockIdx.x + k] += (float)(g * total);
    else dgating[blockIdx.x] += (float)(g / (1 + exp(gate)) * (total - d[s.squares]));
}

void position_axes_backward(float *dpos_proj, float *dgating, const float *daxes, const float *axes,
                            const float *gating, const PositionAttention *shape, int B) {
    PositionShape s = shape_of(shape, B, false);
    size_t columns = s.H * (s.squares + 1), bytes = columns * sizeof(float);
    float *sums = static_cast<float *>(kernels_workspace(bytes));
    device_zero(sums, bytes);
    add_parts(sums, NULL, daxes, B, (int)columns);
    LAUNCH(position_axes_backward_kernel, (unsigned)s.H, THREADS, 6 * THREADS * sizeof(double), dpos_proj, dgating,
           sums, axes, gating, s);
}

/* == Products along an axis ======================================================================================= */

/* The shared memory of a warp. */
typedef struct {
    float *stage;           /* [TILE_M,STAGE_LD] */
    real *x, *high, *low;   /* [TILE_M,LD] each: of activations, and of a plane */
} PositionWork;

enum { STAGE_BYTES = TILE_M * STAGE_LD * sizeof(float), WARP_BYTES = STAGE_BYTES + 3 * TILE_M * LD * sizeof(real) };

DEVICE PositionWork work_of(unsigned char *shared, int warp) {
    unsigned char *mine = shared + warp * WARP_BYTES;
    real *tiles = reinterpret_cast<real *>(mine + STAGE_BYTES);
    return {reinterpret_cast<float *>(mine), tiles, tiles + TILE_M * LD, tiles + 2 * TILE_M * LD};
}

/* A grid of tokens as lines: row i of line l is token l / group * beyond + l % group * line + i row. */
struct Order {
    int lines, group;
    size_t line, beyond, row;
};

/* Along the lines of the grid, across them in every frame, or from frame to frame. */
DEVICE Order along(PositionShape s) { return {s.T * s.Hg, s.T * s.Hg, (size_t)s.Wg, 0, 1}; }
DEVICE Order across(PositionShape s) { return {s.T * s.Wg, s.Wg, 1, (size_t)s.Hg * s.Wg, (size_t)s.Wg}; }
DEVICE Order over_frames(PositionShape s) { return {s.Hg * s.Wg, s.Hg * s.Wg, 1, 0, (size_t)s.Hg * s.Wg}; }

DEVICE size_t line_token(Order o, int line) {
    int group = line / o.group;
    return group * o.beyond + (line - group * o.group) * o.line;
}

/* Tokens `stride` apart, in an activation or in a plane. */
struct PositionLines {
    static constexpr bool HAS_LOW = false;
    const real *first;
    size_t stride;
    int columns;
    bool wide;
    Order order;
};
struct Plane {
    static constexpr bool HAS_LOW = SPLIT;
    float *first;
    Order order;
};

DEVICE const real *tile_of(PositionWork w, const PositionLines &) { return w.x; }
DEVICE const real *tile_of(PositionWork w, const Plane &) { return w.high; }

/* Fills the tiles with rows first.. of n, zeros beyond. */
DEVICE void load_line(PositionWork w, PositionLines x, int line, int first, int n) {
    size_t row = x.order.row * x.stride;
    const real *from = x.first + line_token(x.order, line) * x.stride + first * row;
    tile_load<TILE_M, COLUMNS, WARP>(
        w.x, LD, [=](int i) { return from + i * row; }, n - first, x.columns, x.wide, lane_id());
    copy_commit();
}
DEVICE void load_line(PositionWork w, Plane x, int line, int first, int n) {
    size_t row = x.order.row * COLUMNS;
    const float *from = x.first + line_token(x.order, line) * COLUMNS + first * row;
    for (int at = lane_id(); at < TILE_M * COLUMNS / WIDE; at += WARP) {
        int i = at / (COLUMNS / WIDE), j = at % (COLUMNS / WIDE) * WIDE;
        float v[WIDE] = {};
        if (first + i < n) load(v, from + i * row + j);
        store(w.high + i * LD + j, v);
        if constexpr (SPLIT) {
#pragma unroll
            for (int e = 0; e < WIDE; e++) v[e] -= to_float(to_real(v[e]));
            store(w.low + i * LD + j, v);
        }
    }
}

DEVICE void arrive() {
    copy_wait<0>();
    warp_sync();
}

typedef struct {
    const float *p; /* [n,n] */
    int n;
    bool transposed;
} PositionAxis;

DEVICE void axis_tile(FragmentA &high, FragmentA &low, PositionAxis axis, int row, int column) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int r = row + lane_id() / 4 + 8 * (i / 2 % 2), c = column + 2 * (lane_id() % 4) + i % 2 + 8 * (i / 4);
        size_t at = axis.transposed ? (size_t)c * axis.n + r : (size_t)r * axis.n + c;
        float p = r < axis.n && c < axis.n ? axis.p[at] : 0;
        fragment_put(high, i, p);
        if (SPLIT) fragment_put(low, i, p - to_float(to_real(p)));
    }
}

/* Rows row.. of the axis times a line of x; use(i, j, v) is called with columns j .. j+W-1 of row row + i. */
template <int W, typename X, typename Use>
DEVICE void line_product(PositionAxis axis, int row, X x, int line, int columns, PositionWork w, Use use) {
    FragmentC sum[COLUMNS / TILE_N];
#pragma unroll
    for (int n = 0; n < COLUMNS / TILE_N; n++) fragment_zero(sum[n]);
    for (int j = 0; j < axis.n; j += TILE_K) {
        load_line(w, x, line, j, axis.n);
        FragmentA high = {}, low = {};
        axis_tile(high, low, axis, row, j);
        arrive();
#pragma unroll
        for (int n = 0; n < COLUMNS / TILE_N; n += 2) {
            FragmentB b[2], b_low[2];
            load_b(b, tile_of(w, x) + n * TILE_N, LD);
            if (X::HAS_LOW) load_b(b_low, w.low + n * TILE_N, LD);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                mma(sum[n + k], high, b[k]);
                if (SPLIT) mma(sum[n + k], low, b[k]);
                if (X::HAS_LOW) mma(sum[n + k], high, b_low[k]);
            }
        }
        warp_sync();
    }
#pragma unroll
    for (int n = 0; n < COLUMNS / TILE_N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            w.stage[fragment_c_row(i) * STAGE_LD + n * TILE_N + fragment_c_column(i)] = sum[n].x[i];
    warp_sync();
    for (int at = lane_id(); at < TILE_M * COLUMNS / W; at += WARP) {
        int i = at / (COLUMNS / W), j = at % (COLUMNS / W) * W;
        float v[W];
        if (row + i >= axis.n || j >= columns) continue;
        load(v, w.stage + i * STAGE_LD + j);
        use(i, j, v);
    }
    warp_sync();
}

/* plane = the axis times every line of x, padding included. */
template <typename X>
DEVICE void transform(float *plane, PositionAxis axis, X x, PositionWork w) {
    size_t apart = x.order.row * COLUMNS;
    for (int line = warp_id(); line < x.order.lines; line += WARPS)
        for (int row = 0; row < axis.n; row += TILE_M) {
            float *to = plane + line_token(x.order, line) * COLUMNS + row * apart;
            line_product<4>(axis, row, x, line, COLUMNS, w,
                            [=](int i, int j, float(&v)[4]) { store(to + i * apart + j, v); });
        }
}

/* out [n,n] = or += sum over lines of a b^T: the warps share the lines, and their sums are added in order. */
template <typename A, typename B>
DEVICE void outer_products(float *out, bool add, A a, B b, int n, unsigned char *shared) {
    PositionWork w = work_of(shared, warp_id());
    for (int row = 0; row < n; row += TILE_M)
        for (int column = 0; column < n; column += 2 * TILE_N) {
            FragmentC sum[2];
            fragment_zero(sum[0]);
            fragment_zero(sum[1]);
            for (int line = warp_id(); line < a.order.lines; line += WARPS) {
                load_line(w, a, line, row, n);
                load_line(w, b, line, column, n);
                arrive();
#pragma unroll
                for (int k = 0; k < COLUMNS; k += TILE_K) {
                    FragmentA left = load_a(tile_of(w, a) + k, LD), left_low;
                    FragmentB right[2], right_low[2];
                    load_b_transposed(right, tile_of(w, b) + k, LD);
                    if (A::HAS_LOW) left_low = load_a(w.low + k, LD);
                    if (B::HAS_LOW) load_b_transposed(right_low, w.low + k, LD);
#pragma unroll
                    for (int t = 0; t < 2; t++) {
                        mma(sum[t], left, right[t]);
                        if (A::HAS_LOW) mma(sum[t], left_low, right[t]);
                        if (B::HAS_LOW) mma(sum[t], left, right_low[t]);
                    }
                }
                warp_sync();
            }
#pragma unroll
            for (int t = 0; t < 2; t++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    w.stage[fragment_c_row(i) * TILE_M + t * TILE_N + fragment_c_column(i)] = sum[t].x[i];
            block_sync();
            for (int at = (int)threadIdx.x; at < TILE_M * TILE_M; at += THREADS) {
                int i = row + at / TILE_M, j = column + at % TILE_M;
                if (i >= n || j >= n) continue;
                float total = add ? out[(size_t)i * n + j] : 0;
                for (int v = 0; v < WARPS; v++) total += work_of(shared, v).stage[at];
                out[(size_t)i * n + j] = total;
            }
            block_sync();
        }
}

/* == Forward and backward ========================================================================================= */

/* One head of one image, channels c.. of it. */
typedef struct {
    size_t y, q;     /* element of its first token in [B,N,H,D] and in [B,N,3,H,D] */
    PositionAxis rows, columns, frames;
    float g, keep;   /* g, 1 - g */
} PositionPlace;

DEVICE PositionPlace place_of(size_t unit, const float *axes, const float *gating, PositionShape s) {
    size_t b = quotient(unit, s.H), h = unit - b * s.H, at = b * s.N * s.M;
    const float *p = axes + h * s.squares;
    size_t columns = (size_t)s.Hg * s.Hg, frames = columns + (size_t)s.Wg * s.Wg;
    return {at + h * s.D, 3 * at + h * s.D, {p, s.Hg, false}, {p + columns, s.Wg, false}, {p + frames, s.T, false},
            1 / (1 + expf(-gating[h])), 1 / (1 + expf(gating[h]))};
}

DEVICE PositionAxis transposed(PositionAxis axis) { return {axis.p, axis.n, true}; }

/* W: numbers at a time if rows allow it, or 1. */
template <int W>
__global__ void __launch_bounds__(THREADS)
    position_forward_kernel(real *y, float *planes, const real *content, const real *qkv, const float *axes,
                            const float *gating, PositionShape s) {
    SHARED(unsigned char, shared);
    PositionWork w = work_of(shared, warp_id());
    float *u = planes + blockIdx.x * 2 * s.N * COLUMNS, *t = u + s.N * COLUMNS;
    for (size_t unit = blockIdx.x; unit < s.units; unit += gridDim.x) {
        PositionPlace at = place_of(unit, axes, gating, s);
        for (int c = 0; c < s.D; c += COLUMNS) {
            int columns = s.D - c < COLUMNS ? s.D - c : COLUMNS;
            PositionLines v = {qkv + at.q + 2 * s.M + c, 3 * s.M, columns, s.wide, along(s)};
            if (s.T > 1) {
                v.order = over_frames(s);
                transform(t, at.frames, v, w);
                block_sync();
                transform(u, at.columns, Plane{t, along(s)}, w);
            } else {
                transform(u, at.columns, v, w);
            }
            block_sync();
            Plane last = {u, across(s)};
            for (int x = warp_id(); x < last.order.lines; x += WARPS)
                for (int row = 0; row < s.Hg; row += TILE_M)
                    line_product<W>(at.rows, row, last, x, columns, w, [=](int i, int j, float(&p)[W]) {
                        size_t token = line_token(last.order, x) + (size_t)(row + i) * s.Wg;
                        size_t here = at.y + token * s.M + c + j;
                        float mixed[W];
                        load(mixed, content + here);
#pragma unroll
                        for (int e = 0; e < W; e++) mixed[e] = at.keep * mixed[e] + at.g * p[e];
                        store(y + here, mixed);
                    });
            block_sync();
        }
    }
}

/* x = keep x + added, W numbers of it. */
template <int W>
DEVICE void scale_and_add(real *x, float keep, const float (&added)[W]) {
    float v[W];
    load(v, x);
#pragma unroll
    for (int e = 0; e < W; e++) v[e] = keep * v[e] + added[e];
    store(x, v);
}

template <int W>
__global__ void __launch_bounds__(THREADS)
    position_backward_kernel(real *dqkv, float *daxes, float *planes, const real *dy, const real *content,
                             const real *qkv, const float *axes, const float *gating, PositionShape s) {
    SHARED(unsigned char, shared);
    PositionWork w = work_of(shared, warp_id());
    float *u = planes + blockIdx.x * 2 * s.N * COLUMNS, *t = u + s.N * COLUMNS;
    for (size_t unit = blockIdx.x; unit < s.units; unit += gridDim.x) {
        PositionPlace at = place_of(unit, axes, gating, s);
        float *drows = daxes + unit * (s.squares + 1), *dcolumns = drows + (size_t)s.Hg * s.Hg;
        float *dframes = dcolumns + (size_t)s.Wg * s.Wg, *last = t, dot = 0;
        for (int c = 0; c < s.D; c += COLUMNS) {
            int columns = s.D - c < COLUMNS ? s.D - c : COLUMNS;
            const real *v = qkv + at.q + 2 * s.M + c, *d = dy + at.y + c;
            PositionLines v_across = {v, 3 * s.M, columns, s.wide, across(s)},
                          d_along = {d, s.M, columns, s.wide, along(s)};
            if (s.T > 1) {
                PositionLines v_frames = {v, 3 * s.M, columns, s.wide, over_frames(s)};
                transform(t, at.frames, v_frames, w);
                block_sync();
                transform(u, at.rows, Plane{t, across(s)}, w);
                block_sync();
                outer_products(dcolumns, c > 0, d_along, Plane{u, along(s)}, s.Wg, shared);
                transform(t, transposed(at.columns), d_along, w);
                block_sync();
                transform(u, transposed(at.rows), Plane{t, across(s)}, w);
                block_sync();
                outer_products(dframes, c > 0, Plane{u, over_frames(s)}, v_frames, s.T, shared);
                transform(last = u, transposed(at.frames), Plane{t, over_frames(s)}, w);
                block_sync();
            } else {
                transform(u, at.rows, v_across, w);
                transform(t, transposed(at.columns), d_along, w);
                block_sync();
                outer_products(dcolumns, c > 0, d_along, Plane{u, along(s)}, s.Wg, shared);
            }
            Plane back = {last, across(s)};
            outer_products(drows, c > 0, back, v_across, s.Hg, shared);
            for (int x = warp_id(); x < back.order.lines; x += WARPS)
                for (int row = 0; row < s.Hg; row += TILE_M)
                    line_product<W>(transposed(at.rows), row, back, x, columns, w, [=](int i, int j, float(&p)[W]) {
                        size_t token = line_token(back.order, x) + (size_t)(row + i) * s.Wg;
                        real *dq = dqkv + at.q + 3 * token * s.M + c + j;
                        const float nothing[W] = {};
#pragma unroll
                        for (int e = 0; e < W; e++) p[e] *= at.g;
                        scale_and_add(dq, at.keep, nothing);
                        scale_and_add(dq + s.M, at.keep, nothing);
                        scale_and_add(dq + 2 * s.M, at.keep, p);
                    });
            if (lane_id() < columns)
#pragma unroll 4
                for (size_t n = warp_id(); n < s.N; n += WARPS) {
                    size_t here = n * s.M + c + lane_id();
                    dot += to_float(dy[at.y + here]) * to_float(content[at.y + here]);
                }
            block_sync();
        }
        dot = block_sum(dot, reinterpret_cast<float *>(shared));
        if (threadIdx.x == 0) drows[s.squares] = dot;
    }
}

void position_attention_forward(real *y, const real *content, const real *qkv, const float *axes, const float *gating,
                                const PositionAttention *shape, int B) {
    PositionShape s = shape_of(shape, B, is_wide(shape->D, y, content, qkv));
    float *planes = static_cast<float *>(kernels_workspace(position_attention_workspace(shape)));
    if (s.wide)
        LAUNCH((position_forward_kernel<WIDE>), blocks_of(s), THREADS, WARPS * WARP_BYTES, y, planes, content, qkv,
               axes, gating, s);
    else
        LAUNCH((position_forward_kernel<1>), blocks_of(s), THREADS, WARPS * WARP_BYTES, y, planes, content, qkv, axes,
               gating, s);
}

void position_attention_backward(real *dqkv, float *daxes, const real *dy, const real *content, const real *qkv,
                                 const float *axes, const float *gating, const PositionAttention *shape, int B) {
    PositionShape s = shape_of(shape, B, is_wide(shape->D, dqkv, dy, content, qkv));
    float *planes = static_cast<float *>(kernels_workspace(position_attention_workspace(shape)));
    if (s.wide)
        LAUNCH((position_backward_kernel<WIDE>), blocks_of(s), THREADS, WARPS * WARP_BYTES, dqkv, daxes, planes, dy,
               content, qkv, axes, gating, s);
    else
        LAUNCH((position_backward_kernel<1>), blocks_of(s), THREADS, WARPS * WARP_BYTES, dqkv, daxes, planes, dy,
               content, qkv, axes, gating, s);
}
