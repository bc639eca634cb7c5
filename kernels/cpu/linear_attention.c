/* Linear attention, one (image, head) at a time.
 *   forward   S = sum_m phi(k_m) [v_m, 1]^T,  [num_n, s_n] = phi(q_n)^T S,  den_n = rule(s_n),  y_n = num_n / den_n
 *   backward  g_n = [dy_n, -dy_n.y_n] / den_n, its last element 0 where the rule is constant,
 *             dS = sum_n phi(q_n) g_n^T,  dphi(q_n) = S g_n,  dphi(k_m) = dS [v_m, 1],  dv_m = dS^T phi(k_m)
 *   saves     den, S.   Source: Katharopoulos et al. 2020, section 3.
 * With DENOMINATOR_GIVEN, 0 stands in place of the 1 in [v_m, 1] and of g_n's last element.
 *
 * Because of the 1 after v, the denominator is one more column of the same products: S is [F,D+1].  Sums over tokens
 * are made of the sums of blocks of tokens, so that the rounding error does not grow with N. */
#include "kernels/cpu/activations.h"
#include "kernels/cpu/workspace.h"
#include "kernels/kernels.h"

enum { BLOCK = 32 };

static const float EPSILON = 1e-6f, NEAREST = 1e-2f;

static float denominator(float sum, Denominator rule) {
    if (rule == DENOMINATOR_EPSILON) return sum + EPSILON;
    return fabsf(sum) < NEAREST ? copysignf(NEAREST, sum) : sum;
}

/* True if den depends on the sum of the weights; false if the rule has replaced it by a constant. */
static bool follows(float den, Denominator rule) { return rule == DENOMINATOR_EPSILON || !(fabsf(den) <= NEAREST); }

/* D1 = D+1 columns of [v, 1]; the others are rounded up to whole vectors. */
typedef struct {
    int N, keys, F, D, D1, Fp, D1p;
    size_t phi_row, v_row, y_row; /* floats from one token to the next */
    int H;
    Denominator rule;
} Sizes;

static Sizes sizes_of(const LinearAttention *shape) {
    int N = shape->N, H = shape->H, D = shape->D, F = shape->F;
    bool apart = shape->keys.count > 0;
    size_t M = (size_t)H * D, heads = (size_t)H * F;
    return (Sizes){.N = N,
                   .keys = apart ? shape->keys.count : N,
                   .F = F,
                   .D = D,
                   .D1 = D + 1,
                   .Fp = tile_round_up(F),
                   .D1p = tile_round_up(D + 1),
                   .phi_row = apart ? heads : 2 * heads,
                   .v_row = apart ? 2 * M : 3 * M,
                   .y_row = M,
                   .H = H,
                   .rule = shape->rule};
}

/* Where a head of an image begins. */
typedef struct {
    size_t y, den, kv, phi_q, phi_k, v;
} Place;

static Place place_of(int b, int h, Sizes s) {
    size_t query = (size_t)b * s.N, key = (size_t)b * s.keys, hd = (size_t)h * s.D, hf = (size_t)h * s.F;
    return (Place){.y = query * s.y_row + hd,
                   .den = query * s.H + h,
                   .kv = ((size_t)b * s.H + h) * s.F * s.D1,
                   .phi_q = query * s.phi_row + hf,
                   .phi_k = key * s.phi_row + hf,
                   .v = (key + 1) * s.v_row - s.y_row + hd};
}

typedef struct {
    float *s, *ds, *part; /* [F,D1p]: S, its gradient, one block's share */
    float *st, *dst;      /* [D1,Fp]: transposes */
    float *v, *g;         /* [BLOCK,D1p] */
    float *phi;           /* [BLOCK,Fp]: features of a block, or their gradients */
} Work;

static size_t work_floats(Sizes s) {
    return (size_t)3 * s.F * s.D1p + (size_t)2 * s.D1 * s.Fp + (size_t)BLOCK * (2 * s.D1p + s.Fp);
}

size_t linear_attention_workspace(int D, int F) {
    return workspace_bytes(work_floats(sizes_of(&(LinearAttention){.H = 1, .D = D, .F = F})));
}

static Work work_take(Sizes s) {
    float *next = kernels_workspace(work_floats(s));
    Work w;
    w.s = workspace_take(&next, (size_t)s.F * s.D1p);
    w.ds = workspace_take(&next, (size_t)s.F * s.D1p);
    w.part = workspace_take(&next, (size_t)s.F * s.D1p);
    w.st = workspace_take(&next, (size_t)s.D1 * s.Fp);
    w.dst = workspace_take(&next, (size_t)s.D1 * s.Fp);
    w.v = workspace_take(&next, (size_t)BLOCK * s.D1p);
    w.g = workspace_take(&next, (size_t)BLOCK * s.D1p);
    w.phi = workspace_take(&next, (size_t)BLOCK * s.Fp);
    return w;
}

/* to [rows,ld], ld > n, from rows `stride` apart: n floats, then zeros. */
static void gather(float *to, int ld, const real *from, size_t stride, int rows, int n) {
    for (int i = 0; i < rows; i++) {
        for (int j = tile_round_up(n); j < ld; j += TILE) vec_store(to + (size_t)i * ld + j, vec_set(0));
        for (int j = 0; j < n; j += TILE)
            vec_store(to + (size_t)i * ld + j, real_load_part(from + i * stride + j, n - j));
    }
}

static void scatter(real *to, size_t stride, const float *from, int ld, int rows, int n) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n; j += TILE)
            real_store_part(to + i * stride + j, vec_load(from + (size_t)i * ld + j), n - j);
}

/* S without its padding. */
static void save_sums(float *kv, const float *sums, Sizes s) {
    for (int i = 0; i < s.F; i++) memcpy(kv + (size_t)i * s.D1, sums + (size_t)i * s.D1p, s.D1 * sizeof *kv);
}

/* to [columns,ldt] = from [rows,ld] transposed, zeros beyond its rows. */
static void transpose(float *to, int ldt, const float *from, int ld, int rows, int columns) {
    for (int j = 0; j < columns; j++)
        for (int i = 0; i < ldt; i++) to[(size_t)j * ldt + i] = i < rows ? from[(size_t)i * ld + j] : 0;
}

/* The features of a block's tokens, perhaps in w->phi. */
static FloatRows features(const Work *w, const real *phi, int rows, Sizes s) {
    return reals_as_floats(w->phi, s.Fp, phi, s.phi_row, rows, s.F);
}

/* sum [F,D1p] += phi^T x, with phi `rows` tokens of features and x [rows,D1p]. */
static void add_outer(float *sum, const Work *w, const real *phi, const float *x, int rows, Sizes s) {
    FloatRows from = features(w, phi, rows, s);
    tile_gemm(w->part, s.D1p, from.at, 1, from.row, x, s.D1p, s.F, s.D1p, rows, 0);
    for (size_t i = 0; i < (size_t)s.F * s.D1p; i += TILE)
        vec_store(sum + i, vec_load(sum + i) + vec_load(w->part + i));
}

/* [v, 1] of a block, or [v, 0]. */
static void gather_v(float *to, const real *v, int rows, Sizes s) {
    gather(to, s.D1p, v, s.v_row, rows, s.D);
    for (int i = 0; i < rows; i++) to[(size_t)i * s.D1p + s.D] = s.rule != DENOMINATOR_GIVEN;
}

/* Rows of the block at `first`; none past the end. */
static int rows_from(int first, int tokens) {
    int left = tokens - first;
    return left < 0 ? 0 : left < BLOCK ? left : BLOCK;
}

/* Prefetches rows first.. of p [*,n].  A head's rows have a large stride, which the hardware prefetcher does not
 * follow; prefetching one block ahead saves a third of the time for a batch that exceeds the last-level cache. */
TILE_INLINE void prefetch(const real *p, size_t stride, int first, int rows, int n, bool write) {
    enum { LINE = 64 / sizeof(real) };
    for (int i = first; i < first + rows; i++)
        for (int j = 0; j < n; j += LINE) {
            if (write) __builtin_prefetch(p + i * stride + j, 1);
            else __builtin_prefetch(p + i * stride + j, 0);
        }
}

static void forward_head(real *y, float *den, float *kv, const real *phi_q, const real *phi_k, const real *v, Sizes s) {
    Work w = work_take(s);
    memset(w.s, 0, (size_t)s.F * s.D1p * sizeof(float));
    for (int i = 0; i < s.keys; i += BLOCK) {
        int rows = rows_from(i, s.keys), next = i + BLOCK, ahead = rows_from(next, s.keys);
        prefetch(v, s.v_row, next, ahead, s.D, false);
        prefetch(phi_k, s.phi_row, next, ahead, s.F, false);
        gather_v(w.v, v + i * s.v_row, rows, s);
        add_outer(w.s, &w, phi_k + i * s.phi_row, w.v, rows, s);
    }
    save_sums(kv, w.s, s);
    for (int i = 0; i < s.N; i += BLOCK) {
        int rows = rows_from(i, s.N), next = i + BLOCK;
        prefetch(phi_q, s.phi_row, next, rows_from(next, s.N), s.F, false);
        prefetch(y, s.y_row, i, rows, s.D, true);
        FloatRows from = features(&w, phi_q + i * s.phi_row, rows, s);
        tile_gemm(w.g, s.D1p, from.at, from.row, 1, w.s, s.D1p, rows, s.D1p, s.F, 0);
        for (int r = 0; r < rows; r++) {
            float *num = w.g + (size_t)r * s.D1p, *own = den + (size_t)(i + r) * s.H;
            if (s.rule != DENOMINATOR_GIVEN) *own = denominator(num[s.D], s.rule);
            float inverse = 1 / *own;
            for (int j = 0; j < s.D; j += TILE)
                real_store_part(y + (i + r) * s.y_row + j, inverse * vec_load(num + j), s.D - j);
        }
    }
}

void linear_attention_forward(real *y, float *den, float *kv, const real *phi, const real *qkv,
                              const LinearAttention *shape) {
    Sizes s = sizes_of(shape);
    const real *phi_k = shape->keys.count ? shape->keys.phi : phi + (size_t)s.H * s.F;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < shape->B; b++)
        for (int h = 0; h < shape->H; h++) {
            Place at = place_of(b, h, s);
            forward_head(y + at.y, den + at.den, kv + at.kv, phi + at.phi_q, phi_k + at.phi_k, qkv + at.v, s);
        }
}

/* g of a block: the gradients of numerator and denominator. */
static void gather_g(float *g, const real *dy, const real *y, const float *den, int rows, Sizes s) {
    gather(g, s.D1p, dy, s.y_row, rows, s.D);
    for (int i = 0; i < rows; i++) {
        float *row = g + (size_t)i * s.D1p, inverse = 1 / den[(size_t)i * s.H];
        vec dot = {0};
        for (int j = 0; j < s.D; j += TILE) {
            vec dyj = vec_load(row + j);
            dot += dyj * real_load_part(y + i * s.y_row + j, s.D - j);
            vec_store(row + j, inverse * dyj);
        }
        bool both = s.rule != DENOMINATOR_GIVEN && follows(den[(size_t)i * s.H], s.rule);
        row[s.D] = both ? -inverse * vec_sum(dot) : 0;
    }
}

static void backward_head(real *dv, real *dphi_q, real *dphi_k, const real *dy, const real *y, const float *den,
                          const float *kv, const real *phi_q, const real *phi_k, const real *v, Sizes s) {
    Work w = work_take(s);
    transpose(w.st, s.Fp, kv, s.D1, s.F, s.D1);
    memset(w.ds, 0, (size_t)s.F * s.D1p * sizeof(float));
    for (int i = 0; i < s.N; i += BLOCK) {
        int rows = rows_from(i, s.N), next = i + BLOCK, ahead = rows_from(next, s.N);
        prefetch(dy, s.y_row, next, ahead, s.D, false);
        prefetch(y, s.y_row, next, ahead, s.D, false);
        prefetch(phi_q, s.phi_row, next, ahead, s.F, false);
        prefetch(dphi_q, s.phi_row, i, rows, s.F, true);
        gather_g(w.g, dy + i * s.y_row, y + i * s.y_row, den + (size_t)i * s.H, rows, s);
        add_outer(w.ds, &w, phi_q + i * s.phi_row, w.g, rows, s);
        tile_gemm(w.phi, s.Fp, w.g, s.D1p, 1, w.st, s.Fp, rows, s.Fp, s.D1, 0);
        scatter(dphi_q + i * s.phi_row, s.phi_row, w.phi, s.Fp, rows, s.F);
    }
    transpose(w.dst, s.Fp, w.ds, s.D1p, s.F, s.D1);
    for (int i = 0; i < s.keys; i += BLOCK) {
        int rows = rows_from(i, s.keys), next = i + BLOCK, ahead = rows_from(next, s.keys);
        prefetch(v, s.v_row, next, ahead, s.D, false);
        prefetch(phi_k, s.phi_row, next, ahead, s.F, false);
        prefetch(dphi_k, s.phi_row, i, rows, s.F, true);
        prefetch(dv, s.v_row, i, rows, s.D, true);
        gather_v(w.v, v + i * s.v_row, rows, s);
        tile_gemm(w.phi, s.Fp, w.v, s.D1p, 1, w.dst, s.Fp, rows, s.Fp, s.D1, 0);
        scatter(dphi_k + i * s.phi_row, s.phi_row, w.phi, s.Fp, rows, s.F);
        FloatRows from = features(&w, phi_k + i * s.phi_row, rows, s);
        tile_gemm(w.g, s.D1p, from.at, from.row, 1, w.ds, s.D1p, rows, s.D1p, s.F, 0);
        scatter(dv + i * s.v_row, s.v_row, w.g, s.D1p, rows, s.D);
    }
}

void linear_attention_backward(real *dqkv, real *dphi, const real *dy, const real *y, const float *den, const float *kv,
                               const real *phi, const real *qkv, const LinearAttention *shape) {
    Sizes s = sizes_of(shape);
    const real *phi_k = shape->keys.count ? shape->keys.phi : phi + (size_t)s.H * s.F;
    real *dphi_k = shape->keys.count ? shape->keys.dphi : dphi + (size_t)s.H * s.F;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < shape->B; b++)
        for (int h = 0; h < shape->H; h++) {
            Place at = place_of(b, h, s);
            backward_head(dqkv + at.v, dphi + at.phi_q, dphi_k + at.phi_k, dy + at.y, y + at.y, den + at.den,
                          kv + at.kv, phi + at.phi_q, phi_k + at.phi_k, qkv + at.v, s);
        }
}

/* == The denominator alone ======================================================================================== */

/* sum += a x. */
static void add_scaled(float *sum, float a, const real *x, int n) {
    for (int j = 0; j < n; j += TILE)
        vec_store_part(sum + j, vec_load_part(sum + j, n - j) + a * real_load_part(x + j, n - j), n - j);
}

static void add(float *sum, const float *x, int n) {
    for (int j = 0; j < n; j += TILE)
        vec_store_part(sum + j, vec_load_part(sum + j, n - j) + vec_load_part(x + j, n - j), n - j);
}

/* dphi += a x. */
static void add_gradient(real *dphi, float a, const float *x, int n) {
    for (int j = 0; j < n; j += TILE)
        real_store_part(dphi + j, real_load_part(dphi + j, n - j) + a * vec_load_part(x + j, n - j), n - j);
}

static float weigh(const real *phi, const float *sums, int n) {
    vec sum = {0};
    for (int j = 0; j < n; j += TILE) sum += real_load_part(phi + j, n - j) * vec_load_part(sums + j, n - j);
    return vec_sum(sum);
}

size_t denominator_workspace(int F) { return workspace_bytes(workspace_line_up(F) + F); }

/* sum [F] of N rows, block by block. */
static void sum_rows(float *sum, float *part, const real *rows, size_t stride, int N, int F) {
    memset(sum, 0, (size_t)F * sizeof *sum);
    for (int first = 0; first < N; first += BLOCK) {
        memset(part, 0, (size_t)F * sizeof *part);
        for (int n = first; n < N && n < first + BLOCK; n++)
            add_scaled(part, 1, rows + n * stride, F);
        add(sum, part, F);
    }
}

void denominator_forward(float *den, float *z, const real *phi, const LinearAttention *shape) {
    int B = shape->B, N = shape->N, H = shape->H, F = shape->F;
    Denominator rule = shape->rule;
    size_t row = (size_t)2 * H * F;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            const real *q = phi + (size_t)b * N * row + (size_t)h * F;
            float *sums = z + ((size_t)b * H + h) * F, *part = kernels_workspace(workspace_line_up(F) + F);
            sum_rows(sums, part, q + (size_t)H * F, row, N, F);
            for (int n = 0; n < N; n++)
                den[((size_t)b * N + n) * H + h] = denominator(weigh(q + n * row, sums, F), rule);
        }
}

void denominator_backward(real *dphi, const real *dy, const real *y, const float *den, const float *z, const real *phi,
                          const LinearAttention *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D, F = shape->F;
    Denominator rule = shape->rule;
    size_t row = (size_t)2 * H * F, M = (size_t)H * D;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            size_t at = (size_t)b * N * row + (size_t)h * F, token = (size_t)b * N;
            const float *sums = z + ((size_t)b * H + h) * F;
            float *part = kernels_workspace(workspace_line_up(F) + F), *dz = part + workspace_line_up(F);
            memset(dz, 0, (size_t)F * sizeof *dz);
            for (int first = 0; first < N; first += BLOCK) {
                memset(part, 0, (size_t)F * sizeof *part);
                for (int n = first; n < N && n < first + BLOCK; n++) {
                    size_t at_y = (token + n) * M + (size_t)h * D, at_q = at + n * row;
                    float own = den[(token + n) * H + h];
                    if (!follows(own, rule)) continue;
                    float dden = -reals_dot(dy + at_y, y + at_y, D) / own;
                    add_gradient(dphi + at_q, dden, sums, F);
                    add_scaled(part, dden, phi + at_q, F);
                }
                add(dz, part, F);
            }
            for (int n = 0; n < N; n++) add_gradient(dphi + at + (size_t)H * F + n * row, 1, dz, F);
        }
}
