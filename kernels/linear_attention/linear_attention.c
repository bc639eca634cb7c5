/* Linear attention, one (image, head) at a time.
 *   forward   S = sum_m phi(k_m) [v_m, 1]^T,  [num_n, s_n] = phi(q_n)^T S,  den_n = rule(s_n),  y_n = num_n / den_n
 *   backward  g_n = [dy_n, -dy_n.y_n] / den_n, its last element 0 where the rule is constant,
 *             dS = sum_n phi(q_n) g_n^T,  dphi(q_n) = S g_n,  dphi(k_m) = dS [v_m, 1],  dv_m = dS^T phi(k_m)
 *   saves     den, S.   Source: Katharopoulos et al. 2020, section 3.
 * With DENOMINATOR_GIVEN, the 1 in [v_m, 1] and the last element of g_n are replaced by 0.
 *
 * Because of the 1 after v, the denominator is one more column of the same products: S is [F,D+1].  Sums over tokens
 * are computed block by block, so that the rounding error does not grow with N.
 *
 * With bfloat16 and dot products of pairs (kernels/softmax/pairs.h), where F and D are multiples of PAIR_BLOCK, phi, v
 * and dy are operands without a copy, and the column of the denominators is stored separately, in floats.  S enters y
 * as the sum of two numbers of bfloat16; phi(q_n) / den_n in dS, and S and dS in the gradients, are rounded to one. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/softmax/pairs.h"
#include "kernels/device/workspace.h"
#include "kernels/linear_attention/linear_attention.h"

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
    bool pairs; /* products of pairs of bfloat16 */
} LinearSizes;

#ifdef VIT_PAIRS
static bool in_pairs(int D, int F) { return pairs_kind() == PAIRS_DOTS && D % PAIR_BLOCK == 0 && F % PAIR_BLOCK == 0; }
#else
static bool in_pairs(int D, int F) { return (void)D, (void)F, false; }
#endif

static LinearSizes sizes_of(const LinearAttention *shape) {
    int N = shape->N, H = shape->H, D = shape->D, F = shape->F;
    bool apart = shape->keys.count > 0;
    size_t M = (size_t)H * D, heads = (size_t)H * F;
    return (LinearSizes){.N = N,
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
                         .rule = shape->rule,
                         .pairs = in_pairs(D, F)};
}

/* The offsets of a head of an image. */
typedef struct {
    size_t y, den, kv, phi_q, phi_k, v;
} LinearPlace;

static LinearPlace place_of(int b, int h, LinearSizes s) {
    size_t query = (size_t)b * s.N, key = (size_t)b * s.keys, hd = (size_t)h * s.D, hf = (size_t)h * s.F;
    return (LinearPlace){.y = query * s.y_row + hd,
                         .den = query * s.H + h,
                         .kv = ((size_t)b * s.H + h) * s.F * s.D1,
                         .phi_q = query * s.phi_row + hf,
                         .phi_k = key * s.phi_row + hf,
                         .v = (key + 1) * s.v_row - s.y_row + hd};
}

/* Rows of the block at `first`; none past the end. */
static int rows_from(int first, int tokens, int block) {
    int left = tokens - first;
    return left < 0 ? 0 : left < block ? left : block;
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

/* == In pairs of bfloat16 ========================================================================================= */

#ifdef VIT_PAIRS

enum { TOKENS = 64 };

typedef struct {
    float *sums, *part, *z, *dz; /* [F,D] [F,D] [F] [F]: S or dS, a block's share of it, and their last columns */
    float *rows;                 /* [TOKENS,F or D]: a block's products */
    float *dots, *inverse;       /* [TOKENS] */
    real *phi, *x;               /* [TOKENS/2,F,2] [TOKENS/2,D,2]: pairs of tokens interleaved */
    real *paired, *low, *transposed; /* [F/2,D,2] [F/2,D,2] [D/2,F,2]: the sums as operands */
} PairWork;

static size_t reals_in_floats(size_t n) { return workspace_line_up((n + 1) / 2); }

static size_t pair_floats(LinearSizes s) {
    size_t sums = (size_t)s.F * s.D, wide = s.F > s.D ? s.F : s.D;
    return 2 * sums + 2 * s.F + TOKENS * wide + 2 * TOKENS + reals_in_floats((size_t)TOKENS * s.F) +
           reals_in_floats((size_t)TOKENS * s.D) + 3 * reals_in_floats(sums);
}

static PairWork pair_take(LinearSizes s) {
    float *next = kernels_workspace(pair_floats(s));
    size_t sums = (size_t)s.F * s.D, wide = s.F > s.D ? s.F : s.D;
    PairWork w;
    w.sums = workspace_take(&next, sums);
    w.part = workspace_take(&next, sums);
    w.z = workspace_take(&next, s.F);
    w.dz = workspace_take(&next, s.F);
    w.rows = workspace_take(&next, TOKENS * wide);
    w.dots = workspace_take(&next, TOKENS);
    w.inverse = workspace_take(&next, TOKENS);
    w.phi = (real *)workspace_take(&next, reals_in_floats((size_t)TOKENS * s.F));
    w.x = (real *)workspace_take(&next, reals_in_floats((size_t)TOKENS * s.D));
    w.paired = (real *)workspace_take(&next, reals_in_floats(sums));
    w.low = (real *)workspace_take(&next, reals_in_floats(sums));
    w.transposed = (real *)workspace_take(&next, reals_in_floats(sums));
    return w;
}

/* to [rows/2][n][2] = rows of n numbers, `stride` apart, and zeros after an odd one. */
static void pair_tokens(real *to, const real *from, size_t stride, int rows, int n) {
    for (int i = 0; i < rows; i += 2, from += 2 * stride)
        for (int j = 0; j < n; j += TILE, to += 2 * TILE) {
            halfvec odd = i + 1 < rows ? *(const halfvec *)(from + stride + j) : (halfvec){0};
            _mm512_storeu_si512(to, pairs_of(*(const halfvec *)(from + j), odd));
        }
}

static void add_floats(float *sum, const float *x, size_t n) {
    for (size_t i = 0; i < n; i += TILE) vec_store(sum + i, vec_load(sum + i) + vec_load(x + i));
}

/* sums += phi^T x of a block of tokens, both in pairs. */
static void add_outer_pairs(PairWork *w, int rows, LinearSizes s) {
    pairs_dots(w->part, s.D, (PairRows){w->phi, 1, s.F}, w->x, s.D, s.F, s.D, rows + rows % 2, false);
    add_floats(w->sums, w->part, (size_t)s.F * s.D);
}

/* z += the block's phi. */
static void add_features(PairWork *w, int rows, LinearSizes s) {
    const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3f803f80);
    for (int j = 0; j < s.F; j += TILE) {
        __m512 sum = _mm512_setzero_ps();
        for (int i = 0; i < rows; i += 2)
            sum = _mm512_dpbf16_ps(sum, ones, (__m512bh)_mm512_loadu_si512(w->phi + (size_t)i * s.F + 2 * j));
        vec_store(w->z + j, vec_load(w->z + j) + (vec)sum);
    }
}

/* `paired` becomes the rounded sums and, with `both`, `low` their rounding errors. */
static void pair_sums(PairWork *w, bool both, LinearSizes s) {
    size_t at = 0;
    for (int f = 0; f < s.F; f += 2)
        for (int j = 0; j < s.D; j += TILE, at += 2 * TILE) {
            vec even = vec_load(w->sums + (size_t)f * s.D + j), odd = vec_load(w->sums + (size_t)(f + 1) * s.D + j);
            halfvec high[] = {halfvec_round(even), halfvec_round(odd)};
            _mm512_storeu_si512(w->paired + at, pairs_of(high[0], high[1]));
            if (!both) continue;
            _mm512_storeu_si512(w->low + at, pairs_of(halfvec_round(even - halfvec_widen(high[0])),
                                                      halfvec_round(odd - halfvec_widen(high[1]))));
        }
}

/* `transposed` becomes the transpose of sums [F,D], whose rows are `row` apart; `low` is overwritten. */
static void turn_sums(PairWork *w, const float *sums, size_t row, LinearSizes s) {
    for (int f = 0; f < s.F; f++) reals_round(w->low + (size_t)f * s.D, sums + f * row, (size_t)s.D);
    transpose_pairs(w->transposed, s.F, w->low, s.F, s.D);
}

/* dots[i] = phi_i . z */
static void dot_features(float *dots, const real *phi, const float *z, int rows, LinearSizes s) {
    for (int first = 0; first < rows; first += TILE) {
        vec sum[TILE] = {{0}};
        for (int i = 0; i < TILE && first + i < rows; i++)
            for (int j = 0; j < s.F; j += TILE) sum[i] += real_load(phi + (first + i) * s.phi_row + j) * vec_load(z + j);
        vec_store(dots + first, vec_sums(sum));
    }
}

/* dots[i] = dy_i . y_i */
static void dot_outputs(float *dots, const real *dy, const real *y, int rows, LinearSizes s) {
    for (int first = 0; first < rows; first += TILE) {
        vec sum[TILE] = {{0}};
        for (int i = 0; i < TILE && first + i < rows; i++)
            for (int j = 0; j < s.D; j += 2 * TILE) {
                size_t at = (first + i) * s.y_row + j;
                sum[i] = (vec)_mm512_dpbf16_ps((__m512)sum[i], (__m512bh)_mm512_loadu_si512(dy + at),
                                               (__m512bh)_mm512_loadu_si512(y + at));
            }
        vec_store(dots + first, vec_sums(sum));
    }
}

static void forward_pairs(real *y, float *den, float *kv, const real *phi_q, const real *phi_k, const real *v,
                          LinearSizes s) {
    PairWork w = pair_take(s);
    memset(w.sums, 0, (size_t)s.F * s.D * sizeof(float));
    memset(w.z, 0, s.F * sizeof(float));
    for (int i = 0; i < s.keys; i += TOKENS) {
        int rows = rows_from(i, s.keys, TOKENS), next = i + TOKENS, ahead = rows_from(next, s.keys, TOKENS);
        prefetch(v, s.v_row, next, ahead, s.D, false);
        prefetch(phi_k, s.phi_row, next, ahead, s.F, false);
        pair_tokens(w.phi, phi_k + i * s.phi_row, s.phi_row, rows, s.F);
        pair_tokens(w.x, v + i * s.v_row, s.v_row, rows, s.D);
        add_outer_pairs(&w, rows, s);
        if (s.rule != DENOMINATOR_GIVEN) add_features(&w, rows, s);
    }
    for (int f = 0; f < s.F; f++) {
        memcpy(kv + (size_t)f * s.D1, w.sums + (size_t)f * s.D, s.D * sizeof *kv);
        kv[(size_t)f * s.D1 + s.D] = w.z[f];
    }
    pair_sums(&w, true, s);
    for (int i = 0; i < s.N; i += TOKENS) {
        int rows = rows_from(i, s.N, TOKENS), next = i + TOKENS;
        prefetch(phi_q, s.phi_row, next, rows_from(next, s.N, TOKENS), s.F, false);
        prefetch(y, s.y_row, i, rows, s.D, true);
        PairRows phi = {phi_q + i * s.phi_row, s.phi_row / 2, 1};
        pairs_dots(w.rows, s.D, phi, w.paired, s.D, rows, s.D, s.F, false);
        pairs_dots(w.rows, s.D, phi, w.low, s.D, rows, s.D, s.F, true);
        if (s.rule != DENOMINATOR_GIVEN) dot_features(w.dots, phi.at, w.z, rows, s);
        for (int r = 0; r < rows; r++) {
            float *own = den + (size_t)(i + r) * s.H;
            if (s.rule != DENOMINATOR_GIVEN) *own = denominator(w.dots[r], s.rule);
            float inverse = 1 / *own;
            for (int j = 0; j < s.D; j += TILE)
                real_store(y + (i + r) * s.y_row + j, inverse * vec_load(w.rows + (size_t)r * s.D + j));
        }
    }
}

/* Sets, for a block of queries, `inverse` to 1 / den and `dots` to the last element of g times den. */
static void slopes_of(PairWork *w, const real *dy, const real *y, const float *den, int rows, LinearSizes s) {
    dot_outputs(w->dots, dy, y, rows, s);
    for (int i = 0; i < rows; i++) {
        float own = den[(size_t)i * s.H];
        w->inverse[i] = 1 / own;
        w->dots[i] = s.rule != DENOMINATOR_GIVEN && follows(own, s.rule) ? -w->dots[i] : 0;
    }
    if (rows % 2) w->inverse[rows] = w->dots[rows] = 0;
}

/* phi(q) / den of a block in pairs of tokens, and their share of dz. */
static void scale_features(PairWork *w, const real *phi, int rows, LinearSizes s) {
    for (int j = 0; j < s.F; j += TILE) {
        vec dz = {0};
        for (int i = 0; i < rows; i += 2) {
            const real *even = phi + i * s.phi_row + j, *odd = i + 1 < rows ? even + s.phi_row : even;
            halfvec low = halfvec_round(w->inverse[i] * real_load(even));
            halfvec high = halfvec_round(w->inverse[i + 1] * real_load(odd));
            _mm512_storeu_si512(w->phi + (size_t)i * s.F + 2 * j, pairs_of(low, high));
            dz += w->dots[i] * halfvec_widen(low) + w->dots[i + 1] * halfvec_widen(high);
        }
        vec_store(w->dz + j, vec_load(w->dz + j) + dz);
    }
}

static void backward_pairs(real *dv, real *dphi_q, real *dphi_k, const real *dy, const real *y, const float *den,
                           const float *kv, const real *phi_q, const real *phi_k, const real *v, LinearSizes s) {
    PairWork w = pair_take(s);
    turn_sums(&w, kv, s.D1, s);
    for (int f = 0; f < s.F; f++) w.z[f] = kv[(size_t)f * s.D1 + s.D];
    memset(w.sums, 0, (size_t)s.F * s.D * sizeof(float));
    memset(w.dz, 0, s.F * sizeof(float));
    for (int i = 0; i < s.N; i += TOKENS) {
        int rows = rows_from(i, s.N, TOKENS), next = i + TOKENS, ahead = rows_from(next, s.N, TOKENS);
        prefetch(dy, s.y_row, next, ahead, s.D, false);
        prefetch(y, s.y_row, next, ahead, s.D, false);
        prefetch(phi_q, s.phi_row, next, ahead, s.F, false);
        prefetch(dphi_q, s.phi_row, i, rows, s.F, true);
        const real *own_dy = dy + i * s.y_row;
        slopes_of(&w, own_dy, y + i * s.y_row, den + (size_t)i * s.H, rows, s);
        scale_features(&w, phi_q + i * s.phi_row, rows, s);
        pair_tokens(w.x, own_dy, s.y_row, rows, s.D);
        add_outer_pairs(&w, rows, s);
        pairs_dots(w.rows, s.F, (PairRows){own_dy, s.y_row / 2, 1}, w.transposed, s.F, rows, s.F, s.D, false);
        for (int r = 0; r < rows; r++) {
            for (int j = 0; j < s.F; j += TILE) {
                vec slope = vec_load(w.rows + (size_t)r * s.F + j) + w.dots[r] * vec_load(w.z + j);
                real_store(dphi_q + (i + r) * s.phi_row + j, w.inverse[r] * slope);
            }
        }
    }
    pair_sums(&w, false, s);
    turn_sums(&w, w.sums, (size_t)s.D, s);
    for (int i = 0; i < s.keys; i += TOKENS) {
        int rows = rows_from(i, s.keys, TOKENS), next = i + TOKENS, ahead = rows_from(next, s.keys, TOKENS);
        prefetch(v, s.v_row, next, ahead, s.D, false);
        prefetch(phi_k, s.phi_row, next, ahead, s.F, false);
        prefetch(dphi_k, s.phi_row, i, rows, s.F, true);
        prefetch(dv, s.v_row, i, rows, s.D, true);
        pairs_dots(w.rows, s.F, (PairRows){v + i * s.v_row, s.v_row / 2, 1}, w.transposed, s.F, rows, s.F, s.D, false);
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < s.F; j += TILE)
                real_store(dphi_k + (i + r) * s.phi_row + j,
                           vec_load(w.rows + (size_t)r * s.F + j) + vec_load(w.dz + j));
        PairRows phi = {phi_k + i * s.phi_row, s.phi_row / 2, 1};
        pairs_dots(w.rows, s.D, phi, w.paired, s.D, rows, s.D, s.F, false);
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < s.D; j += TILE)
                real_store(dv + (i + r) * s.v_row + j, vec_load(w.rows + (size_t)r * s.D + j));
    }
}

#endif

/* == Products of floats =========================================================================================== */

typedef struct {
    float *s, *ds, *part; /* [F,D1p]: S, its gradient, one block's share */
    float *st, *dst;      /* [D1,Fp]: transposes */
    float *v, *g;         /* [BLOCK,D1p] */
    float *phi;           /* [BLOCK,Fp]: features of a block, or their gradients */
} LinearWork;

static size_t work_floats(LinearSizes s) {
#ifdef VIT_PAIRS
    if (s.pairs) return pair_floats(s);
#endif
    return (size_t)3 * s.F * s.D1p + (size_t)2 * s.D1 * s.Fp + (size_t)BLOCK * (2 * s.D1p + s.Fp);
}

size_t linear_attention_workspace(int D, int F) {
    return workspace_bytes(work_floats(sizes_of(&(LinearAttention){.H = 1, .D = D, .F = F})));
}

static LinearWork work_take(LinearSizes s) {
    float *next = kernels_workspace(work_floats(s));
    LinearWork w;
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

/* S without its padding. */
static void save_sums(float *kv, const float *sums, LinearSizes s) {
    for (int i = 0; i < s.F; i++) memcpy(kv + (size_t)i * s.D1, sums + (size_t)i * s.D1p, s.D1 * sizeof *kv);
}

/* The features of a block's tokens, which may be copied to w->phi. */
static FloatRows features(const LinearWork *w, const real *phi, int rows, LinearSizes s) {
    return reals_as_floats(w->phi, s.Fp, phi, s.phi_row, rows, s.F);
}

/* sum [F,D1p] += phi^T x, with phi `rows` tokens of features and x [rows,D1p]. */
static void add_outer(float *sum, const LinearWork *w, const real *phi, const float *x, int rows, LinearSizes s) {
    FloatRows from = features(w, phi, rows, s);
    tile_gemm(w->part, s.D1p, from.at, 1, from.row, x, s.D1p, s.F, s.D1p, rows, 0);
    for (size_t i = 0; i < (size_t)s.F * s.D1p; i += TILE)
        vec_store(sum + i, vec_load(sum + i) + vec_load(w->part + i));
}

/* [v, 1] of a block, or [v, 0]. */
static void gather_v(float *to, const real *v, int rows, LinearSizes s) {
    rows_gather(to, s.D1p, v, s.v_row, 1, rows, s.D);
    for (int i = 0; i < rows; i++) to[(size_t)i * s.D1p + s.D] = s.rule != DENOMINATOR_GIVEN;
}

static void forward_head(real *y, float *den, float *kv, const real *phi_q, const real *phi_k, const real *v,
                         LinearSizes s) {
#ifdef VIT_PAIRS
    if (s.pairs) {
        forward_pairs(y, den, kv, phi_q, phi_k, v, s);
        return;
    }
#endif
    LinearWork w = work_take(s);
    memset(w.s, 0, (size_t)s.F * s.D1p * sizeof(float));
    for (int i = 0; i < s.keys; i += BLOCK) {
        int rows = rows_from(i, s.keys, BLOCK), next = i + BLOCK, ahead = rows_from(next, s.keys, BLOCK);
        prefetch(v, s.v_row, next, ahead, s.D, false);
        prefetch(phi_k, s.phi_row, next, ahead, s.F, false);
        gather_v(w.v, v + i * s.v_row, rows, s);
        add_outer(w.s, &w, phi_k + i * s.phi_row, w.v, rows, s);
    }
    save_sums(kv, w.s, s);
    for (int i = 0; i < s.N; i += BLOCK) {
        int rows = rows_from(i, s.N, BLOCK), next = i + BLOCK;
        prefetch(phi_q, s.phi_row, next, rows_from(next, s.N, BLOCK), s.F, false);
        prefetch(y, s.y_row, i, rows, s.D, true);
        FloatRows from = features(&w, phi_q + i * s.phi_row, rows, s);
        tile_gemm(w.g, s.D1p, from.at, from.row, 1, w.s, s.D1p, rows, s.D1p, s.F, 0);
        for (int r = 0; r < rows; r++) {
            float *num = w.g + (size_t)r * s.D1p, *own = den + (size_t)(i + r) * s.H;
            if (s.rule != DENOMINATOR_GIVEN) *own = denominator(num[s.D], s.rule);
            float inverse = 1 / *own;
            rows_scatter(y + (i + r) * s.y_row, s.y_row, num, s.D1p, inverse, 1, s.D);
        }
    }
}

/* g of a block: the gradients of numerator and denominator. */
static void gather_g(float *g, const real *dy, const real *y, const float *den, int rows, LinearSizes s) {
    rows_gather(g, s.D1p, dy, s.y_row, 1, rows, s.D);
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
                          const float *kv, const real *phi_q, const real *phi_k, const real *v, LinearSizes s) {
#ifdef VIT_PAIRS
    if (s.pairs) {
        backward_pairs(dv, dphi_q, dphi_k, dy, y, den, kv, phi_q, phi_k, v, s);
        return;
    }
#endif
    LinearWork w = work_take(s);
    transpose_padded(w.st, s.Fp, kv, s.D1, s.F, s.D1);
    memset(w.ds, 0, (size_t)s.F * s.D1p * sizeof(float));
    for (int i = 0; i < s.N; i += BLOCK) {
        int rows = rows_from(i, s.N, BLOCK), next = i + BLOCK, ahead = rows_from(next, s.N, BLOCK);
        prefetch(dy, s.y_row, next, ahead, s.D, false);
        prefetch(y, s.y_row, next, ahead, s.D, false);
        prefetch(phi_q, s.phi_row, next, ahead, s.F, false);
        prefetch(dphi_q, s.phi_row, i, rows, s.F, true);
        gather_g(w.g, dy + i * s.y_row, y + i * s.y_row, den + (size_t)i * s.H, rows, s);
        add_outer(w.ds, &w, phi_q + i * s.phi_row, w.g, rows, s);
        tile_gemm(w.phi, s.Fp, w.g, s.D1p, 1, w.st, s.Fp, rows, s.Fp, s.D1, 0);
        rows_scatter(dphi_q + i * s.phi_row, s.phi_row, w.phi, s.Fp, 1, rows, s.F);
    }
    transpose_padded(w.dst, s.Fp, w.ds, s.D1p, s.F, s.D1);
    for (int i = 0; i < s.keys; i += BLOCK) {
        int rows = rows_from(i, s.keys, BLOCK), next = i + BLOCK, ahead = rows_from(next, s.keys, BLOCK);
        prefetch(v, s.v_row, next, ahead, s.D, false);
        prefetch(phi_k, s.phi_row, next, ahead, s.F, false);
        prefetch(dphi_k, s.phi_row, i, rows, s.F, true);
        prefetch(dv, s.v_row, i, rows, s.D, true);
        gather_v(w.v, v + i * s.v_row, rows, s);
        tile_gemm(w.phi, s.Fp, w.v, s.D1p, 1, w.dst, s.Fp, rows, s.Fp, s.D1, 0);
        rows_scatter(dphi_k + i * s.phi_row, s.phi_row, w.phi, s.Fp, 1, rows, s.F);
        FloatRows from = features(&w, phi_k + i * s.phi_row, rows, s);
        tile_gemm(w.g, s.D1p, from.at, from.row, 1, w.ds, s.D1p, rows, s.D1p, s.F, 0);
        rows_scatter(dv + i * s.v_row, s.v_row, w.g, s.D1p, 1, rows, s.D);
    }
}

/* == All heads ==================================================================================================== */

void linear_attention_forward(real *y, float *den, float *kv, const real *phi, const real *qkv,
                              const LinearAttention *shape) {
    LinearSizes s = sizes_of(shape);
    const real *phi_k = shape->keys.count ? shape->keys.phi : phi + (size_t)s.H * s.F;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < shape->B; b++)
        for (int h = 0; h < shape->H; h++) {
            LinearPlace at = place_of(b, h, s);
            forward_head(y + at.y, den + at.den, kv + at.kv, phi + at.phi_q, phi_k + at.phi_k, qkv + at.v, s);
        }
}

void linear_attention_backward(real *dqkv, real *dphi, const real *dy, const real *y, const float *den, const float *kv,
                               const real *phi, const real *qkv, const LinearAttention *shape) {
    LinearSizes s = sizes_of(shape);
    const real *phi_k = shape->keys.count ? shape->keys.phi : phi + (size_t)s.H * s.F;
    real *dphi_k = shape->keys.count ? shape->keys.dphi : dphi + (size_t)s.H * s.F;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < shape->B; b++)
        for (int h = 0; h < shape->H; h++) {
            LinearPlace at = place_of(b, h, s);
            backward_head(dqkv + at.v, dphi + at.phi_q, dphi_k + at.phi_k, dy + at.y, y + at.y, den + at.den,
                          kv + at.kv, phi + at.phi_q, phi_k + at.phi_k, qkv + at.v, s);
        }
}

/* == The denominator alone ======================================================================================== */

static void add(float *sum, const float *x, int n) {
    for (int j = 0; j < n; j += TILE)
        vec_store_part(sum + j, vec_load_part(sum + j, n - j) + vec_load_part(x + j, n - j), n - j);
}

/* dphi += a x. */
static void add_gradient(real *dphi, float a, const float *x, int n) {
    for (int j = 0; j < n; j += TILE)
        real_store_part(dphi + j, real_load_part(dphi + j, n - j) + a * vec_load_part(x + j, n - j), n - j);
}

size_t denominator_workspace(int F) { return workspace_bytes(workspace_line_up(F) + F); }

/* sum [F] of N rows, block by block. */
static void sum_rows(float *sum, float *part, const real *rows, size_t stride, int N, int F) {
    memset(sum, 0, (size_t)F * sizeof *sum);
    for (int first = 0; first < N; first += BLOCK) {
        memset(part, 0, (size_t)F * sizeof *part);
        for (int n = first; n < N && n < first + BLOCK; n++)
            reals_add(part, 1, rows + n * stride, F);
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
                den[((size_t)b * N + n) * H + h] = denominator(row_dot(q + n * row, sums, F), rule);
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
                    reals_add(part, dden, phi + at_q, F);
                }
                add(dz, part, F);
            }
            for (int n = 0; n < N; n++) add_gradient(dphi + at + (size_t)H * F + n * row, 1, dz, F);
        }
}
