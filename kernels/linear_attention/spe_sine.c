/* Codes that are sums of sinusoids.  Per head and column d, with a = D^-1/2 sqrt(1 - g), t = D^-1/2 sqrt(g)
 *   forward   1. G_k = a (2K)^-1/2 softplus(gains_k) z_k for the cosines k and the sines K + k
 *             2. C_(n,r) = t e_r + sum_k cos(a_k(n)) G_(k,r) + sin(a_k(n)) G_(K+k,r)
 *             3. q'_r = sum_d q_d C_(d,r)
 *   backward  3. dC = sum_b q dq', dq   2. dG, da_k = cos(a_k) dsin_k - sin(a_k) dcos_k, doffsets = sum_n da of q,
 *             df = 2 pi sum_n n da, dfreqs = df sigma'(freqs) / 2
 *             1. dgains = softplus' a (2K)^-1/2 sum_r dG z, dgate = (1 - g)/2 sum dC t e - g/2 sum dG G
 *   saves     nothing.   Source: Liutkus et al. 2021, and the authors' SineSPE.
 *
 * The angles in a block are those of its first token, rotated by the angles of tokens 0 .. 15, which costs two
 * roundings instead of a sine.  The gated noise t e is one more row of G, with the factor one in place of a sine: P =
 * 2K + 1 rows. */
#include <math.h>
#include <string.h>

#include "kernels/linear_attention/spe.h"
#include "kernels/linear_attention/relative_positions.h"
#include "kernels/softmax/attention_shape.h"

/* Cosines and sines, one plane after the other: [D,Kp] each. */
typedef struct {
    float *cosine, *sine;
} Turn;

typedef struct {
    SpeBlock block;
    double *turns;      /* [D,Kp] turns per token */
    float *g, *gt;      /* [D,P,Dp], [D,Dp,Pp], Pp: P rounded up */
    float *dg;          /* [D,P,Dp] */
    float *domega;      /* [BLOCK,Pp], and a vector more */
    float *da, *dna;    /* [D,Kp]: sums of da of q, and of n da */
    Turn steps;         /* [BLOCK][D,Kp] each: the angles of tokens 0 .. 15 */
    Turn start, offset; /* [D,Kp]: of the block's first token; q's */
    float *omega;       /* [BLOCK][D,P]: a column's cosines, its sines, and one */
    float *totals;      /* dfreqs, doffsets, dgains [H,D,K], dgate [H,D] */
} SpeSineWork;

static size_t angle_floats(SpeSizes s) { return (size_t)s.D * s.Kp; }
static int rows_of_g(SpeSizes s) { return 2 * s.K + 1; }
static int columns_of_gt(SpeSizes s) { return tile_round_up(rows_of_g(s)); }
/* A vector of a column's last sines reaches beyond it. */
static size_t omega_floats(SpeSizes s) { return (size_t)SPE_BLOCK * s.D * rows_of_g(s) + TILE; }

static size_t total_floats(SpeSizes s) { return (size_t)s.H * s.D * (3 * s.K + 1); }

static size_t work_floats(SpeSizes s) {
    size_t angles = angle_floats(s), square = (size_t)s.D * s.Dp;
    return workspace_line_up(total_floats(s)) + spe_block_floats(s) + (2 * rows_of_g(s) + columns_of_gt(s)) * square +
           (size_t)SPE_BLOCK * columns_of_gt(s) + TILE + (8 + 2 * SPE_BLOCK) * angles +
           workspace_line_up(omega_floats(s));
}

size_t spe_sine_workspace(int N, int H, int D, int K) { return workspace_bytes(work_floats(spe_sizes(1, N, H, D, K))); }

static Turn turn_take(float **next, size_t n) {
    Turn turn;
    turn.cosine = workspace_take(next, n);
    turn.sine = workspace_take(next, n);
    return turn;
}

static SpeSineWork work_take(SpeSizes s) {
    size_t angles = angle_floats(s), square = (size_t)s.D * s.Dp;
    float *next = kernels_workspace(work_floats(s));
    SpeSineWork w;
    w.totals = workspace_take(&next, total_floats(s)); /* first, where spe_reduce finds it */
    w.block = spe_block_take(&next, s);
    w.turns = (double *)workspace_take(&next, 2 * angles);
    w.g = workspace_take(&next, rows_of_g(s) * square);
    w.gt = workspace_take(&next, columns_of_gt(s) * square);
    w.dg = workspace_take(&next, rows_of_g(s) * square);
    w.domega = workspace_take(&next, (size_t)SPE_BLOCK * columns_of_gt(s) + TILE);
    w.da = workspace_take(&next, angles);
    w.dna = workspace_take(&next, angles);
    w.start = turn_take(&next, angles);
    w.offset = turn_take(&next, angles);
    w.steps = turn_take(&next, SPE_BLOCK * angles);
    w.omega = workspace_take(&next, omega_floats(s));
    return w;
}

/* == A head's codes =============================================================================================== */

/* Cosine and sine of 2 pi turns n, the turns reduced in double: n may be large. */
static void turns_at(Turn to, const double *turns, int n, size_t count) {
    for (size_t i = 0; i < count; i++) {
        double angle = turns[i] * n;
        to.sine[i] = (float)(6.283185307179586 * (angle - rint(angle)));
    }
    for (size_t i = 0; i < count; i += TILE) {
        vec sine, cosine;
        vec_sincos(&sine, &cosine, vec_load(to.sine + i));
        vec_store(to.sine + i, sine);
        vec_store(to.cosine + i, cosine);
    }
}

/* to = a and b, one after the other; to may be either. */
static void turn_by(Turn to, Turn a, Turn b, size_t count) {
    for (size_t i = 0; i < count; i += TILE) {
        vec c = vec_load(a.cosine + i), s = vec_load(a.sine + i);
        vec c2 = vec_load(b.cosine + i), s2 = vec_load(b.sine + i);
        vec_store(to.cosine + i, c * c2 - s * s2);
        vec_store(to.sine + i, s * c2 + c * s2);
    }
}

static Turn turn_of(Turn turn, size_t i, size_t count) {
    return (Turn){turn.cosine + i * count, turn.sine + i * count};
}

static float softplus(float x) { return log1pf(expf(-fabsf(x))) + (x > 0 ? x : 0); }

/* a of column i of all heads. */
static float loudness(const SpeSine *p, SpeSizes s, size_t i) {
    return s.scale * sqrtf(spe_sigmoid(-p->gate[i]) / (2 * (float)s.K));
}

/* Step 1 for column d of head h: G and its transpose. */
static void column_prepare(const SpeSineWork *w, const SpeSine *p, SpeSizes s, int h, int d) {
    size_t i = (size_t)h * s.D + d;
    int ld = columns_of_gt(s), P = rows_of_g(s);
    float loud = loudness(p, s, i), mix = s.scale * sqrtf(spe_sigmoid(p->gate[i]));
    float *g = w->g + (size_t)d * P * s.Dp, *gt = w->gt + (size_t)d * s.Dp * ld;
    memset(g, 0, (size_t)P * s.Dp * sizeof *g);
    memset(gt, 0, (size_t)s.Dp * ld * sizeof *gt);
    for (int k = 0; k < s.K; k++) {
        float gain = loud * softplus(p->gains[i * s.K + k]);
        for (int sine = 0; sine < 2; sine++) {
            const float *z = p->z + ((i * 2 + sine) * s.K + k) * s.D;
            float *row = g + ((size_t)sine * s.K + k) * s.Dp, *column = gt + sine * s.K + k;
            for (int r = 0; r < s.D; r++) column[(size_t)r * ld] = row[r] = gain * z[r];
        }
    }
    for (int r = 0; r < s.D; r++) g[(size_t)2 * s.K * s.Dp + r] = mix * p->e[i * s.D + r];
}

static void head_prepare(const SpeSineWork *w, const SpeSine *p, SpeSizes s, int h) {
    size_t angles = (size_t)s.D * s.Kp;
    memset(w->turns, 0, angles * sizeof *w->turns);
    memset(w->offset.cosine, 0, angles * sizeof(float));
    memset(w->offset.sine, 0, angles * sizeof(float));
    for (int d = 0; d < s.D; d++) {
        size_t i = (size_t)h * s.D + d;
        column_prepare(w, p, s, h, d);
        for (int k = 0; k < s.K; k++) {
            w->turns[d * s.Kp + k] = 0.5 / (1 + exp(-(double)p->freqs[i * s.K + k]));
            w->offset.cosine[d * s.Kp + k] = cosf(p->offsets[i * s.K + k]);
            w->offset.sine[d * s.Kp + k] = sinf(p->offsets[i * s.K + k]);
        }
    }
    for (int t = 0; t < SPE_BLOCK; t++) turns_at(turn_of(w->steps, t, angles), w->turns, t, angles);
}

/* omega of k (part 1) or q of the tokens first .. first+rows-1. */
static void angles_at(const SpeSineWork *w, SpeSizes s, int part, int first, int rows) {
    size_t angles = angle_floats(s);
    turns_at(w->start, w->turns, first, angles);
    if (part == 0) turn_by(w->start, w->start, w->offset, angles);
    for (int t = 0; t < rows; t++) {
        Turn step = turn_of(w->steps, t, angles);
        for (int d = 0; d < s.D; d++) {
            float *to = w->omega + ((size_t)t * s.D + d) * rows_of_g(s);
            for (int j = 0; j < s.K; j += TILE) { /* all cosines before the sines, which overwrite their ends */
                size_t i = (size_t)d * s.Kp + j;
                vec_store(to + j, vec_load(w->start.cosine + i) * vec_load(step.cosine + i) -
                                      vec_load(w->start.sine + i) * vec_load(step.sine + i));
            }
            for (int j = 0; j < s.K; j += TILE) {
                size_t i = (size_t)d * s.Kp + j;
                vec_store(to + s.K + j, vec_load(w->start.sine + i) * vec_load(step.cosine + i) +
                                            vec_load(w->start.cosine + i) * vec_load(step.sine + i));
            }
            to[2 * s.K] = 1;
        }
    }
}

/* Step 2. */
static void make_codes(const SpeSineWork *w, SpeSizes s, int rows) {
    int P = rows_of_g(s);
    for (int d = 0; d < s.D; d++)
        tile_gemm(w->block.code + (size_t)d * s.Dp, (size_t)s.D * s.Dp, w->omega + (size_t)d * P, (size_t)s.D * P, 1,
                  w->g + (size_t)d * P * s.Dp, s.Dp, rows, s.Dp, P, 0);
}

/* == Forward ====================================================================================================== */

void spe_sine_forward(real *coded, const real *qkv, const SpeSine *spe, const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    SpeSizes s = spe_sizes(B, N, H, D, spe->K);
#pragma omp parallel
    {
        SpeSineWork w = work_take(s);
        int ready = -1; /* the head that is prepared */
#pragma omp for schedule(static)
        for (int item = 0; item < H * s.chunks; item++) {
            int h = item / s.chunks, begin = item % s.chunks * SPE_CHUNK, end = smaller(begin + SPE_CHUNK, N);
            if (h != ready) head_prepare(&w, spe, s, h);
            ready = h;
            for (int first = begin; first < end; first += SPE_BLOCK) {
                int rows = smaller(SPE_BLOCK, end - first);
                for (int part = 0; part < 2; part++) {
                    angles_at(&w, s, part, first, rows);
                    make_codes(&w, s, rows);
                    spe_apply(coded, qkv, &w.block, s, part, h, first, rows);
                }
            }
        }
    }
}

/* == Backward ===================================================================================================== */

/* da of column d: q's and n times all. */
static void angle_gradients(const SpeSineWork *w, SpeSizes s, int part, int d, int first, int rows) {
    for (int j = 0; j < s.K; j += TILE) {
        vec da = vec_load(w->da + d * s.Kp + j), dna = vec_load(w->dna + d * s.Kp + j);
        for (int t = 0; t < rows; t++) {
            const float *omega = w->omega + ((size_t)t * s.D + d) * rows_of_g(s) + j;
            const float *slope = w->domega + (size_t)t * columns_of_gt(s) + j;
            vec own = vec_load(omega) * vec_load(slope + s.K) - vec_load(omega + s.K) * vec_load(slope);
            if (part == 0) da += own;
            dna += (float)(first + t) * own;
        }
        vec_store(w->da + d * s.Kp + j, da);
        vec_store(w->dna + d * s.Kp + j, dna);
    }
}

/* Step 2 from dC in the block. */
static void code_gradients(const SpeSineWork *w, SpeSizes s, int part, int first, int rows) {
    size_t square = (size_t)s.D * s.Dp;
    int ld = columns_of_gt(s), P = rows_of_g(s);
    for (int d = 0; d < s.D; d++) {
        const float *dcode = w->block.dcode + (size_t)d * s.Dp;
        tile_gemm(w->dg + (size_t)d * P * s.Dp, s.Dp, w->omega + (size_t)d * P, 1, (size_t)s.D * P, dcode, square, P,
                  s.Dp, rows, 1);
        tile_gemm(w->domega, ld, dcode, square, 1, w->gt + (size_t)d * s.Dp * ld, ld, rows, ld, s.D, 0);
        angle_gradients(w, s, part, d, first, rows);
    }
}

static void clear_gradients(const SpeSineWork *w, SpeSizes s) {
    memset(w->dg, 0, rows_of_g(s) * (size_t)s.D * s.Dp * sizeof(float));
    memset(w->da, 0, angle_floats(s) * sizeof(float));
    memset(w->dna, 0, angle_floats(s) * sizeof(float));
}

/* Step 1: adds the sums of a head's tokens to the thread's totals. */
static void head_gradients(const SpeSineWork *w, const SpeSine *p, SpeSizes s, int h) {
    size_t all = (size_t)s.H * s.D * s.K;
    float *dfreqs = w->totals, *doffsets = dfreqs + all, *dgains = doffsets + all, *dgate = dgains + all;
    for (int d = 0; d < s.D; d++) {
        size_t i = (size_t)h * s.D + d;
        size_t column = (size_t)d * rows_of_g(s) * s.Dp, last = column + (size_t)2 * s.K * s.Dp;
        const float *g = w->g + column, *dg = w->dg + column, *z = p->z + i * 2 * s.K * s.D;
        float open = spe_sigmoid(p->gate[i]), loud = loudness(p, s, i), dloud = 0;
        float dmix = vec_dot(w->dg + last, w->g + last, s.D);
        for (int k = 0; k < s.K; k++) {
            const float *cosine = dg + (size_t)k * s.Dp, *sine = cosine + (size_t)s.K * s.Dp;
            float frequency = spe_sigmoid(p->freqs[i * s.K + k]), rest = spe_sigmoid(-p->freqs[i * s.K + k]);
            dloud += vec_dot(cosine, g + (size_t)k * s.Dp, s.D) + vec_dot(sine, g + (size_t)(s.K + k) * s.Dp, s.D);
            float dgain = vec_dot(cosine, z + (size_t)k * s.D, s.D) + vec_dot(sine, z + (size_t)(s.K + k) * s.D, s.D);
            dgains[i * s.K + k] += spe_sigmoid(p->gains[i * s.K + k]) * loud * dgain;
            doffsets[i * s.K + k] += w->da[d * s.Kp + k];
            dfreqs[i * s.K + k] += 3.14159265f * w->dna[d * s.Kp + k] * frequency * rest;
        }
        dgate[i] += 0.5f * (spe_sigmoid(-p->gate[i]) * dmix - open * dloud);
    }
}

void spe_sine_backward(real *dqkv, const SpeSineGradients *d, const real *dcoded, const real *qkv, const SpeSine *spe,
                       const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    SpeSizes s = spe_sizes(B, N, H, D, spe->K);
    size_t all = (size_t)H * D * s.K, floats = work_floats(s);
#pragma omp parallel
    {
        SpeSineWork w = work_take(s);
        int ready = -1; /* the head that is prepared */
        memset(w.totals, 0, total_floats(s) * sizeof(float));
        clear_gradients(&w, s);
#pragma omp for schedule(static)
        for (int item = 0; item < H * s.chunks; item++) {
            int h = item / s.chunks, begin = item % s.chunks * SPE_CHUNK, end = smaller(begin + SPE_CHUNK, N);
            if (h != ready) {
                if (ready >= 0) head_gradients(&w, spe, s, ready);
                clear_gradients(&w, s);
                head_prepare(&w, spe, s, h);
                ready = h;
            }
            for (int first = begin; first < end; first += SPE_BLOCK) {
                int rows = smaller(SPE_BLOCK, end - first);
                for (int part = 0; part < 2; part++) {
                    angles_at(&w, s, part, first, rows);
                    make_codes(&w, s, rows);
                    spe_apply_backward(dqkv, dcoded, qkv, &w.block, s, part, h, first, rows);
                    code_gradients(&w, s, part, first, rows);
                }
            }
        }
        if (ready >= 0) head_gradients(&w, spe, s, ready);
#pragma omp barrier
        spe_reduce(d->freqs, all, 0, floats);
        spe_reduce(d->offsets, all, all, floats);
        spe_reduce(d->gains, all, 2 * all, floats);
        spe_reduce(d->gate, (size_t)H * D, 3 * all, floats);
    }
}
