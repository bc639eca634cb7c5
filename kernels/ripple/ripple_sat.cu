/* Ripple attention by summed-area tables: the paper's Algorithm 1, and Appendix B for the gradient.  The formulas are
 * those of kernels/ripple/ripple_sat.c: with W_r(n) the sum over the square of tokens closer than bound[r+1], ring r is
 * W_r - W_{r-1}, a square needs four table entries whatever its size, a clip's box eight, and c_r = alpha_r -
 * alpha_{r+1}, c_{G-1} = alpha_{G-1}.
 *
 * A table belongs to one feature f and one column d of [v, 1]; a block keeps those of as many columns as fit into
 * shared memory (all thirty-three on a 14 x 14 grid, one at 64 x 64; larger grids use workspace: for the sums beyond 90
 * x 90, for the tables also beyond 140 x 140), and a thread has the same tokens throughout.
 *   forward   blocks of columns: the column of ones first, which gives den, then y; every feature in turn
 *   backward  blocks of features: dphi(q), dphi(k) and this block's share of dalpha and dv, which a last kernel adds
 * Tables are double, because the sum over a ring of eight tokens can be the difference of two sums over 10^4 tokens. */
#include "kernels/ripple/ripple.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/tokens/grid.h"
#include "kernels/ripple/ripple.h"

enum {
    THREADS = 256,
    FEATURE_BLOCKS = 4,         /* blocks of one head backward: 66 heads fill two blocks a multiprocessor of an H200 */
    SHARED_WANTED = 100 * 1024, /* two blocks in a multiprocessor */
    SHARED_LIMIT = 160 * 1024   /* where a GPU has as much */
};
static const size_t BUDGET = (size_t)256 << 20;

struct SatShape {
    RippleRings rings;
    int N, H, D, F, G;
    int row, frame, plane; /* of a table: [Tg,Hg+1,row], row and column 0 are zero, rows odd for the banks */
    int columns;    /* of [v, 1] at once */
    int groups;     /* groups of features, each in a block of its own */
    bool tables_shared, rows_shared;
    size_t table_bytes, row_bytes; /* of a block */
};

/* The data of a block, in shared memory or in workspace. */
struct Area {
    double *table;      /* [columns,plane] */
    float *x;           /* [columns,N] */
    float *sum, *delta; /* [N] */
};

static __host__ __device__ size_t workspace_of_block(const SatShape &s) {
    return (s.tables_shared ? 0 : s.table_bytes) + (s.rows_shared ? 0 : s.row_bytes);
}

DEVICE Area area_of(const SatShape &s, unsigned char *shared, unsigned char *workspace) {
    Area w;
    unsigned char *next = workspace + blockIdx.x * workspace_of_block(s);
    w.table = reinterpret_cast<double *>(s.tables_shared ? shared : next);
    if (!s.tables_shared) next += s.table_bytes;
    w.x = reinterpret_cast<float *>(s.rows_shared ? shared + s.table_bytes : next);
    w.sum = w.x + (size_t)s.columns * s.N;
    w.delta = w.sum + s.N;
    return w;
}

/* == Tables ======================================================================================================= */

DEVICE void clear_borders(const SatShape &s, double *table) {
    for (int at = threadIdx.x; at < s.columns * s.plane; at += THREADS) {
        int in = at % s.plane;
        if (in % s.frame < s.row || in % s.row == 0) table[at] = 0;
    }
}

/* The entry of a row of tokens, counted over all frames, each of which has a row of zeros in front. */
DEVICE int row_at(const SatShape &s, int line) { return (line + line / s.rings.grid.rows + 1) * s.row; }

/* entry[0], entry[step], ...: each becomes the sum of all entries up to it. */
DEVICE void add_up(double *entry, int count, int step) {
    double running = 0;
    for (int i = 0; i < count; i++) entry[i * step] = running += entry[i * step];
}

/* table[d][t][y+1][x+1] = sum of value(m, d) over the tokens m up to frame t, row y and column x, for d < columns. */
template <typename Value>
DEVICE void build_tables(const SatShape &s, double *table, int columns, Value value) {
    int Tg = s.rings.grid.frames, Hg = s.rings.grid.rows, Wg = s.rings.grid.columns;
    block_sync();
    for (int d = 0; d < columns; d++)
        for (int m = threadIdx.x; m < s.N; m += THREADS)
            table[(size_t)d * s.plane + row_at(s, m / Wg) + m % Wg + 1] = value(m, d);
    block_sync();
    for (int at = threadIdx.x, lines = Tg * Hg; at < columns * lines; at += THREADS)
        add_up(table + (size_t)(at / lines) * s.plane + row_at(s, at % lines) + 1, Wg, 1);
    block_sync();
    for (int at = threadIdx.x, lines = Tg * Wg; at < columns * lines; at += THREADS) {
        int t = at % lines / Wg, x = at % Wg;
        add_up(table + (size_t)(at / lines) * s.plane + t * s.frame + s.row + x + 1, Hg, s.row);
    }
    block_sync();
    if (Tg == 1) return;
    for (int at = threadIdx.x, area = Hg * Wg; at < columns * area; at += THREADS)
        add_up(table + (size_t)(at / area) * s.plane + (at % area / Wg + 1) * s.row + at % Wg + 1, Tg, s.frame);
    block_sync();
}

/* The corners of the square of ring r's tokens and all closer ones around n, clipped to the grid.  For a clip's box,
 * the corners are those in its last frame; the frame before its first one is `back` entries earlier, 0: there is
 * none. */
struct Square {
    int low, low_right, high, high_right, back;
};

DEVICE Square square_around(const SatShape &s, int n, int r) {
    int Tg = s.rings.grid.frames, Hg = s.rings.grid.rows, Wg = s.rings.grid.columns, line = n / Wg;
    int t = line / Hg, y = line - t * Hg, x = n % Wg, far = Hg + Wg + Tg * s.rings.ring_time;
    int reach = r + 1 < s.G && s.rings.bound[r + 1] <= far ? s.rings.bound[r + 1] - 1 : far;
    int frames = s.rings.ring_time ? reach / s.rings.ring_time : Tg;
    int t0 = t > frames ? t - frames : 0, t1 = t + frames < Tg ? t + frames : Tg - 1;
    int y0 = y > reach ? y - reach : 0, y1 = y + reach < Hg ? y + reach + 1 : Hg;
    int x0 = x > reach ? x - reach : 0, x1 = x + reach < Wg ? x + reach + 1 : Wg;
    int low = t1 * s.frame + y0 * s.row, high = t1 * s.frame + y1 * s.row;
    return {low + x0, low + x1, high + x0, high + x1, t0 ? (t1 - t0 + 1) * s.frame : 0};
}

DEVICE double corners_sum(const double *table, const Square &q) {
    return (table[q.high_right] - table[q.low_right]) - (table[q.high] - table[q.low]);
}

DEVICE double square_sum(const double *table, const Square &q) {
    return corners_sum(table, q) - (q.back ? corners_sum(table - q.back, q) : 0);
}

/* c_r of a token, whose weights these are. */
DEVICE double ring_weight(const float *alpha, int r, int G) {
    return alpha[r] - (r + 1 < G ? (double)alpha[r + 1] : 0.0);
}

/* == Forward ====================================================================================================== */

/* Columns first .. first+columns-1 of [v, 1] in each block: den if `ones` is set (then first is D), otherwise y. */
__global__ void __launch_bounds__(THREADS, 2)
    ripple_sat_forward_kernel(real *y, float *den, unsigned char *workspace, const float *alpha, const real *phi,
                              const real *qkv, SatShape s, int first_head, int blocks, bool ones) {
    SHARED(unsigned char, shared);
    Area w = area_of(s, shared, workspace);
    RippleHead o = ripple_head(first_head + (int)(blockIdx.x / blocks), s.N, s.H, s.D, s.F, s.G);
    int first = ones ? s.D : (int)(blockIdx.x % blocks) * s.columns, left = s.D + ones - first;
    int columns = left < s.columns ? left : s.columns;
    clear_borders(s, w.table);
    for (int d = 0; d < columns; d++)
        for (int n = threadIdx.x; n < s.N; n += THREADS) w.x[(size_t)d * s.N + n] = 0;
    for (int f = 0; f < s.F; f++) {
        build_tables(s, w.table, columns, [&](int m, int d) {
            double k = to_float(phi[o.k + m * o.phi_row + f]);
            return ones ? k : k * to_float(qkv[o.v + m * o.qkv_row + first + d]);
        });
        for (int n = threadIdx.x; n < s.N; n += THREADS) {
            const float *own = alpha + o.alpha + n * o.alpha_row;
            double q = to_float(phi[o.q + n * o.phi_row + f]);
            for (int r = 0; r < s.G; r++) {
                double weight = q * ring_weight(own, r, s.G);
                Square square = square_around(s, n, r);
                for (int d = 0; d < columns; d++)
                    w.x[(size_t)d * s.N + n] += (float)(weight * square_sum(w.table + (size_t)d * s.plane, square));
            }
        }
    }
    for (int n = threadIdx.x; n < s.N; n += THREADS) {
        float *total = den + o.den + n * o.den_row;
        if (ones) *total = w.x[n] + RIPPLE_EPSILON;
        for (int d = 0; !ones && d < columns; d++)
            y[o.y + n * o.y_row + first + d] = to_real(w.x[(size_t)d * s.N + n] / *total);
    }
}

/* == Backward ===================================================================================================== */

/* delta_n = dy_n.y_n */
DEVICE void load_delta(const SatShape &s, const Area &w, const RippleHead &o, const real *dy, const real *y) {
    for (int n = threadIdx.x; n < s.N; n += THREADS) {
        float sum = 0;
        for (int d = 0; d < s.D; d++) sum += to_float(dy[o.y + n * o.y_row + d]) * to_float(y[o.y + n * o.y_row + d]);
        w.delta[n] = sum;
    }
}

/* This block's head and features. */
struct SatPart {
    RippleHead o;
    int first, end;
};

DEVICE SatPart part_of(const SatShape &s, int first_head) {
    int head = (int)(blockIdx.x / s.groups), group = (int)(blockIdx.x % s.groups);
    return {ripple_head(first_head + head, s.N, s.H, s.D, s.F, s.G), group * s.F / s.groups,
            (group + 1) * s.F / s.groups};
}

/* dphi(q), and this block's share of dalpha times den: part [blocks,N,G]. */
__global__ void __launch_bounds__(THREADS, 2)
    ripple_sat_queries_kernel(real *dphi, float *part, unsigned char *workspace, const real *dy, const real *y,
                              const float *den, const float *alpha, const real *phi, const real *qkv, SatShape s,
                              int first_head) {
    SHARED(unsigned char, shared);
    Area w = area_of(s, shared, workspace);
    SatPart at = part_of(s, first_head);
    const RippleHead &o = at.o;
    clear_borders(s, w.table);
    load_delta(s, w, o, dy, y);
    for (int f = at.first; f < at.end; f++) {
        for (int n = threadIdx.x; n < s.N; n += THREADS) w.sum[n] = 0;
        for (int first = 0; first <= s.D; first += s.columns) {
            int left = s.D + 1 - first, columns = left < s.columns ? left : s.columns;
            bool fresh = f == at.first && first == 0;
            build_tables(s, w.table, columns, [&](int m, int d) {
                double k = to_float(phi[o.k + m * o.phi_row + f]);
                return first + d == s.D ? k : k * to_float(qkv[o.v + m * o.qkv_row + first + d]);
            });
            for (int n = threadIdx.x; n < s.N; n += THREADS) {
                const float *own = alpha + o.alpha + n * o.alpha_row;
                const real *gradient = dy + o.y + n * o.y_row + first;
                float *share = part + ((size_t)blockIdx.x * s.N + n) * s.G;
                double q = to_float(phi[o.q + n * o.phi_row + f]), closer = 0, dq = 0;
                for (int r = 0; r < s.G; r++) {
                    Square square = square_around(s, n, r);
                    double p = 0;
                    for (int d = 0; d < columns; d++) {
                        double e = first + d == s.D ? -w.delta[n] : to_float(gradient[d]);
                        p += e * square_sum(w.table + (size_t)d * s.plane, square);
                    }
                    share[r] = (fresh ? 0 : share[r]) + (float)(q * (p - closer));
                    dq += ring_weight(own, r, s.G) * p;
                    closer = p;
                }
                w.sum[n] += (float)dq;
            }
        }
        for (int n = threadIdx.x; n < s.N; n += THREADS)
            dphi[o.q + n * o.phi_row + f] = to_real(w.sum[n] / den[o.den + n * o.den_row]);
    }
}

/* dphi(k), and this block's share of dv: part [blocks,N,D]. */
__global__ void __launch_bounds__(THREADS, 2)
    ripple_sat_keys_kernel(real *dphi, float *part, unsigned char *workspace, const real *dy, const real *y,
                           const float *den, const float *alpha, const real *phi, const real *qkv, SatShape s,
                           int first_head) {
    SHARED(unsigned char, shared);
    Area w = area_of(s, shared, workspace);
    SatPart at = part_of(s, first_head);
    const RippleHead &o = at.o;
    clear_borders(s, w.table);
    load_delta(s, w, o, dy, y);
    for (int f = at.first; f < at.end; f++) {
        for (int m = threadIdx.x; m < s.N; m += THREADS) w.sum[m] = 0;
        for (int first = 0; first <= s.D; first += s.columns) {
            int left = s.D + 1 - first, columns = left < s.columns ? left : s.columns;
            for (int r = 0; r < s.G; r++) {
                build_tables(s, w.table, columns, [&](int n, int d) {
                    double weight = ring_weight(alpha + o.alpha + n * o.alpha_row, r, s.G) / den[o.den + n * o.den_row];
                    double e = first + d == s.D ? -w.delta[n] : to_float(dy[o.y + n * o.y_row + first + d]);
                    return weight * to_float(phi[o.q + n * o.phi_row + f]) * e;
                });
                for (int m = threadIdx.x; m < s.N; m += THREADS) {
                    Square square = square_around(s, m, r);
                    for (int d = 0; d < columns; d++) {
                        float *x = w.x + (size_t)d * s.N + m;
                        *x = (r ? *x : 0) + (float)square_sum(w.table + (size_t)d * s.plane, square);
                    }
                }
            }
            for (int m = threadIdx.x; m < s.N; m += THREADS) {
                const real *v = qkv + o.v + m * o.qkv_row + first;
                float *share = part + ((size_t)blockIdx.x * s.N + m) * s.D + first;
                float k = to_float(phi[o.k + m * o.phi_row + f]), sum = 0;
                for (int d = 0; d < columns; d++) {
                    float x = w.x[(size_t)d * s.N + m];
                    sum += first + d == s.D ? x : x * to_float(v[d]);
                    if (first + d < s.D) share[d] = (f == at.first ? 0 : share[d]) + k * x;
                }
                w.sum[m] += sum;
            }
        }
        for (int m = threadIdx.x; m < s.N; m += THREADS) dphi[o.k + m * o.phi_row + f] = to_real(w.sum[m]);
    }
}

/* dalpha and dv from the shares of the blocks of a head, in order. */
__global__ void __launch_bounds__(THREADS)
    ripple_sat_join_kernel(real *dqkv, float *dalpha, const float *alpha_part, const float *v_part, const float *den,
                           SatShape s, int first_head, size_t count) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= count) return;
    int width = s.G + s.D, j = (int)(at % width), n = (int)(at / width % s.N), head = (int)(at / width / s.N);
    RippleHead o = ripple_head(first_head + head, s.N, s.H, s.D, s.F, s.G);
    bool weights = j < s.G;
    const float *part = weights ? alpha_part : v_part;
    int row = weights ? s.G : s.D, column = weights ? j : j - s.G;
    float sum = 0;
    for (int g = 0; g < s.groups; g++) sum += part[(((size_t)head * s.groups + g) * s.N + n) * row + column];
    if (weights) dalpha[o.alpha + n * o.alpha_row + column] = sum / den[o.den + n * o.den_row];
    else dqkv[o.v + n * o.qkv_row + column] = to_real(sum);
}

/* == Launches ===================================================================================================== */

static void set_columns(SatShape *s, int columns) {
    s->columns = columns;
    s->table_bytes = ceil_div((size_t)columns * s->plane * sizeof(double), 16) * 16;
    s->row_bytes = ceil_div((size_t)(columns + 2) * s->N * sizeof(float), 16) * 16;
}

static SatShape shape_of(const RippleRings *rings, int H, int D, int F) {
    SatShape s = {};
    s.rings = *rings;
    s.N = grid_tokens(rings->grid);
    s.H = H;
    s.D = D;
    s.F = F;
    s.G = rings->G;
    s.row = (rings->grid.columns + 1) | 1;
    s.frame = (rings->grid.rows + 1) * s.row;
    s.plane = rings->grid.frames * s.frame;
    s.groups = F < FEATURE_BLOCKS ? F : FEATURE_BLOCKS;
    set_columns(&s, D + 1);
    size_t most = launch_shared_most(), wanted = most < SHARED_WANTED ? most : (size_t)SHARED_WANTED;
    if (most > SHARED_LIMIT) most = SHARED_LIMIT;
    while (s.columns > 1 && s.table_bytes + s.row_bytes > wanted) set_columns(&s, s.columns - 1);
    s.tables_shared = s.table_bytes <= most;
    s.rows_shared = s.table_bytes + s.row_bytes <= most;
    return s;
}

static size_t shared_bytes(const SatShape &s) {
    return (s.tables_shared ? s.table_bytes : 0) + (s.rows_shared ? s.row_bytes : 0);
}

static int column_blocks(const SatShape &s) { return (int)ceil_div(s.D, s.columns); }

/* Workspace of one head: the data of its blocks, and in backward the shares of dalpha and dv. */
static size_t forward_bytes(const SatShape &s) { return column_blocks(s) * workspace_of_block(s); }
static size_t backward_bytes(const SatShape &s) {
    size_t shares = (size_t)s.groups * s.N * (s.G + s.D) * sizeof(float);
    return ceil_div(shares, 16) * 16 + s.groups * workspace_of_block(s);
}

size_t ripple_sat_workspace(const RippleRings *rings, int D, int F) {
    SatShape s = shape_of(rings, 1, D, F);
    size_t forward = forward_bytes(s), backward = backward_bytes(s), one = forward > backward ? forward : backward;
    return one > BUDGET ? one : BUDGET;
}

RIPPLE_FORWARD(sat) {
    int B = shape->B, H = shape->H;
    SatShape s = shape_of(rings, H, shape->D, shape->F);
    size_t head_bytes = forward_bytes(s);
    int heads = B * H, most = head_bytes ? ripple_heads_at_once(heads, head_bytes, BUDGET) : heads;
    for (int first = 0; first < heads; first += most) {
        int now = heads - first < most ? heads - first : most;
        void *workspace = head_bytes ? kernels_workspace(now * head_bytes) : NULL;
        for (int ones = 1; ones >= 0; ones--) {
            int blocks = ones ? 1 : column_blocks(s);
            LAUNCH(ripple_sat_forward_kernel, (unsigned)now * blocks, THREADS, shared_bytes(s), y, den,
                   static_cast<unsigned char *>(workspace), in->alpha, in->phi, in->qkv, s, first, blocks, ones);
        }
    }
}

RIPPLE_BACKWARD(sat) {
    const float *alpha = in->alpha;
    const real *phi = in->phi, *qkv = in->qkv;
    int B = shape->B, H = shape->H, D = shape->D;
    SatShape s = shape_of(rings, H, D, shape->F);
    int heads = B * H, most = ripple_heads_at_once(heads, backward_bytes(s), BUDGET);
    for (int first = 0; first < heads; first += most) {
        int now = heads - first < most ? heads - first : most;
        unsigned grid = (unsigned)now * s.groups;
        unsigned char *workspace = static_cast<unsigned char *>(kernels_workspace(now * backward_bytes(s)));
        float *alpha_part = reinterpret_cast<float *>(workspace + grid * workspace_of_block(s));
        float *v_part = alpha_part + (size_t)grid * s.N * s.G;
        LAUNCH(ripple_sat_queries_kernel, grid, THREADS, shared_bytes(s), din->phi, alpha_part, workspace, dy, y, den,
               alpha, phi, qkv, s, first);
        LAUNCH(ripple_sat_keys_kernel, grid, THREADS, shared_bytes(s), din->phi, v_part, workspace, dy, y, den, alpha,
               phi, qkv, s, first);
        size_t count = (size_t)now * s.N * (s.G + D);
        LAUNCH(ripple_sat_join_kernel, (unsigned)ceil_div(count, THREADS), THREADS, 0, din->qkv, din->alpha, alpha_part,
               v_part, den, s, first, count);
    }
}

/* Predicted, not measured: clocks of shared memory for thirty-two entries.  Forward, and backward twice, a square is
 * four reads of eight bytes and a box eight, two clocks each; a table is written and read and written twice more, for
 * clips three times, once forward and once for the queries, but for every group for the keys.  In workspace the same
 * passes at memory speed. */
double ripple_sat_cost(const RippleRings *rings, int D, int F) {
    SatShape s = shape_of(rings, 1, D, F);
    double corners = rings->grid.frames > 1 ? 8 : 4, passes = rings->grid.frames > 1 ? 7 : 5;
    double entries = (double)s.N * (D + 1) * F, reads = entries * (3 * corners * s.G + passes * (2.0 + s.G));
    return reads * (s.tables_shared ? 2.0 / 32 / RIPPLE_CLOCKS : 8 / RIPPLE_BANDWIDTH);
}
