/* LiSA by Fourier transforms along the tokens, one (image, head) at a time; F is the transform, F' its inverse.
 *   forward   1. K = F k^, V = F v        2. Ga_e = F'(Wa_e K), S_e[i] = sum_c q^[i,c] Ga_e[i,c]
 *             3. Gb_e = F'(Wb_e V), y[i,c] = sum_e S_e[i] (Gb_e[i,c] + b[c,e])
 *   backward  3. dS_e[i] = sum_c dy[i,c] (Gb_e[i,c] + b[c,e]),  db[c,e] = sum_i dy[i,c] S_e[i]
 *                D = F(S_e dy):     dV += conj(Wb_e) D,  dWb_e += sum_c conj(V) D
 *             2. dq^[i,c] = sum_e dS_e[i] Ga_e[i,c]
 *                D = F(dS_e q^):    dK += conj(Wa_e) D,  dWa_e += conj(K) D
 *             1. dk^ = F' dK, dv = F' dV, and once all heads are done dwa = F' dWa, dwb = F' dWb
 *   saves     S.   Source: the paper's Figure 7.
 *
 * The lanes are the channels of a head (fft.h), and two patterns share one complex transform, w1 + i w2 and d1 + i d2:
 * the products above hold for the pairs, frequency by frequency in the order of the transform's result.  The gradients
 * of k^ and v are the real parts of F' ...; the contributions of the other parts of the pairs are imaginary.  Two
 * patterns are computed at a time and not stored, so that there is no tensor [N,D,E], and the data of a head, except
 * the spectra of the weights, stay in the second-level cache.  FFTW took 4 to 10 times as long for a transform of 49 to
 * 7056 tokens, because its vectors are along a transform instead of across TILE transforms. */
#include "kernels/lisa/fft.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/integers.h"
#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"
#include "kernels/lisa/lisa.h"
#include "kernels/offsets/offsets.h"
#include "kernels/offsets/patterns.h"

typedef struct {
    const FftPlan *fft;
    int N, H, D, E;
    int blocks;            /* of TILE channels */
    int Ep, Np;            /* patterns rounded up to pairs, of which there are Ep/2; tokens to vectors */
    size_t full, scalars;  /* floats of a spectrum [N,2,TILE], and of one [N,2] */
    size_t spare;          /* floats that a transform needs */
    size_t qk_row, qkv_row, y_row; /* floats from one token to the next */
} LisaFftShape;

static bool has_spectrum(const Patterns *p) {
    return (p->offsets.kind == OFFSETS_CIRCLE || p->offsets.kind == OFFSETS_TORUS) && p->per_channel;
}

static LisaFftShape shape_of(const Patterns *p) {
    assert(has_spectrum(p));
    const Offsets *o = &p->offsets;
    int H = p->H, D = p->D;
    LisaFftShape s = {.fft = fft_plan(o->grid, o->kind == OFFSETS_TORUS), .H = H, .D = D, .E = p->E};
    s.N = s.fft->N;
    s.blocks = tile_round_up(D) / TILE;
    s.Ep = (s.E + 1) / 2 * 2;
    s.Np = tile_round_up(s.N);
    s.full = (size_t)s.N * COMPLEX;
    s.scalars = (size_t)tile_round_up(2 * s.N);
    s.spare = fft_spare(s.fft);
    s.qk_row = (size_t)2 * H * D;
    s.qkv_row = (size_t)3 * H * D;
    s.y_row = (size_t)H * D;
    return s;
}

/* == Buffers ====================================================================================================== */

/* Shared by the threads: the weights' spectra, divided by N. */
typedef struct {
    float *wa; /* [Ep/2,blocks,N,2,TILE] */
    float *wb; /* [Ep/2,scalars] */
} LisaFftWeights;

typedef struct {
    float *z, *spare;              /* [N,2,TILE] */
    float *k, *v;                  /* [blocks,N,2,TILE] */
    float *dk, *dv;                /* [N,2,TILE], [blocks,N,2,TILE] */
    float *left, *right, *sum;     /* [Np,TILE] */
    float *s, *ds;                 /* [Ep,Np] */
    float *transposed, *bias;      /* [TILE,Np], [E,TILE] */
    float *dwa, *dwb, *db;         /* as Weights, and [blocks,E,TILE] */
} LisaFftWork;

static size_t weights_floats(const LisaFftShape *s) { return (size_t)s->Ep / 2 * (s->blocks * s->full + s->scalars); }

static LisaFftWork work_take(const LisaFftShape *s, float *base, size_t *floats) {
    float *next = base;
    LisaFftWork w;
    w.z = workspace_take(&next, (size_t)s->N * COMPLEX);
    w.spare = workspace_take(&next, s->spare);
    w.k = workspace_take(&next, s->blocks * s->full);
    w.v = workspace_take(&next, s->blocks * s->full);
    w.dk = workspace_take(&next, s->full);
    w.dv = workspace_take(&next, s->blocks * s->full);
    w.left = workspace_take(&next, (size_t)s->Np * TILE);
    w.right = workspace_take(&next, (size_t)s->Np * TILE);
    w.sum = workspace_take(&next, (size_t)s->Np * TILE);
    w.s = workspace_take(&next, (size_t)s->Ep * s->Np);
    w.ds = workspace_take(&next, (size_t)s->Ep * s->Np);
    w.transposed = workspace_take(&next, (size_t)TILE * s->Np);
    w.bias = workspace_take(&next, (size_t)s->E * TILE);
    w.dwa = workspace_take(&next, (size_t)s->Ep / 2 * s->blocks * s->full);
    w.dwb = workspace_take(&next, (size_t)s->Ep / 2 * s->scalars);
    w.db = workspace_take(&next, (size_t)s->E * s->blocks * TILE);
    *floats = (size_t)(next - base);
    return w;
}

static size_t work_floats(const LisaFftShape *s) {
    size_t floats;
    work_take(s, NULL, &floats);
    return floats;
}

/* The largest prime factor of N or of a side is at most N or that side. */
size_t lisa_fft_workspace(const Patterns *patterns, int B, bool most) {
    (void)B;
    LisaFftShape s = shape_of(patterns);
    if (most) s.spare = s.full;
    return workspace_bytes_behind(weights_floats(&s), work_floats(&s));
}

static LisaFftWeights weights_place(const LisaFftShape *s) {
    float *wa = workspace_shared();
    return (LisaFftWeights){wa, wa + (size_t)s->Ep / 2 * s->blocks * s->full};
}

static LisaFftWork work_of(const LisaFftShape *s, int thread) {
    size_t floats = work_floats(s);
    return work_take(s, workspace_behind(weights_floats(s), thread, floats), &floats);
}

/* == The weights' spectra ========================================================================================= */

/* z = columns of a table [T,columns,E], lanes `step` floats apart: `reals` lanes of the first, `imaginaries` of the
 * second, zeros beyond. */
static void load_table(float *z, const float *first, size_t row, size_t step, int reals, int imaginaries, int N) {
    for (int t = 0; t < N; t++, z += COMPLEX, first += row)
        for (int l = 0; l < TILE; l++) {
            z[l] = l < reals ? first[l * step] : 0;
            z[TILE + l] = l < imaginaries ? first[l * step + 1] : 0;
        }
}


/* A row of scalars for each of up to TILE pairs of wb, in the lanes while they are transformed. */
static void transform_scalars(float *to, const float *wb, int patterns, float scale, LisaFftWork own,
                              const LisaFftShape *s) {
    load_table(own.z, wb, s->E, 2, (patterns + 1) / 2, patterns / 2, s->N);
    fft_forward(s->fft, own.z, own.spare);
    for (int i = 0; i < s->N; i++)
        for (int l = 0; l < smaller(TILE, (patterns + 1) / 2); l++) {
            to[l * s->scalars + 2 * i] = scale * own.z[i * COMPLEX + l];
            to[l * s->scalars + 2 * i + 1] = scale * own.z[i * COMPLEX + TILE + l];
        }
}

static void weights_transform(LisaFftWeights w, const float *wa, const float *wb, const LisaFftShape *s) {
    float scale = 1.0f / s->N;
#pragma omp parallel for collapse(2) schedule(static)
    for (int e = 0; e < s->Ep; e += 2)
        for (int block = 0; block < s->blocks; block++) {
            LisaFftWork own = work_of(s, omp_get_thread_num());
            int lanes = s->D - block * TILE;
            float *out = w.wa + ((size_t)e / 2 * s->blocks + block) * s->full;
            load_table(out, wa + (size_t)block * TILE * s->E + e, (size_t)s->D * s->E, s->E, lanes,
                       e + 1 < s->E ? lanes : 0, s->N);
            fft_forward(s->fft, out, own.spare);
            for (size_t i = 0; i < s->full; i += TILE) vec_store(out + i, scale * vec_load(out + i));
        }
    memset(w.wb, 0, (size_t)s->Ep / 2 * s->scalars * sizeof(float));
    for (int e = 0; e < s->E; e += 2 * TILE)
        transform_scalars(w.wb + e / 2 * s->scalars, wb + e, s->E - e, scale, work_of(s, 0), s);
}

/* == Steps of a head ============================================================================================== */

/* to [Np,TILE] = up to TILE columns of from, zeros elsewhere. */
static void gather(float *to, const real *from, size_t row, int columns, const LisaFftShape *s) {
    for (int i = 0; i < s->N; i++) vec_store(to + (size_t)i * TILE, real_load_part(from + i * row, columns));
    memset(to + (size_t)s->N * TILE, 0, (size_t)(s->Np - s->N) * TILE * sizeof(float));
}

/* to [Ep,Np] = s of a head, [E,N], zeros beyond. */
static void gather_patterns(float *to, const real *from, const LisaFftShape *s) {
    memset(to, 0, (size_t)s->Ep * s->Np * sizeof *to);
    for (int e = 0; e < s->E; e++) reals_widen(to + (size_t)e * s->Np, from + (size_t)e * s->N, s->N);
}

/* to [E,TILE] = the channels of b [D,E] in this block. */
static void gather_bias(float *to, const float *b, int block, const LisaFftShape *s) {
    for (int e = 0; e < s->E; e++)
        for (int l = 0; l < TILE; l++) {
            int c = block * TILE + l;
            to[e * TILE + l] = c < s->D ? b[(size_t)c * s->E + e] : 0;
        }
}

typedef struct {
    vec re, im;
} LisaComplex;

/* Number i of a spectrum: of TILE lanes, or one for all of them. */
TILE_INLINE LisaComplex element(const float *x, int i, bool scalar) {
    if (scalar) return (LisaComplex){vec_set(x[2 * i]), vec_set(x[2 * i + 1])};
    return (LisaComplex){vec_load(x + (size_t)i * COMPLEX), vec_load(x + (size_t)i * COMPLEX + TILE)};
}
TILE_INLINE void set_element(float *x, int i, LisaComplex a) {
    vec_store(x + (size_t)i * COMPLEX, a.re);
    vec_store(x + (size_t)i * COMPLEX + TILE, a.im);
}
TILE_INLINE LisaComplex product(LisaComplex a, LisaComplex b) {
    return (LisaComplex){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
/* c + conj(a) b */
TILE_INLINE LisaComplex correlation(LisaComplex c, LisaComplex a, LisaComplex b) {
    return (LisaComplex){c.re + a.re * b.re + a.im * b.im, c.im + a.re * b.im - a.im * b.re};
}

/* The spectra of k^ and v, TILE channels of each. */
static void transform_keys_values(float *k, float *v, const real *keys, const real *values, int columns, LisaFftWork w,
                                  const LisaFftShape *s) {
    for (int i = 0; i < s->N; i++) {
        vec_store(w.z + (size_t)i * COMPLEX, real_load_part(keys + i * s->qk_row, columns));
        vec_store(w.z + (size_t)i * COMPLEX + TILE, real_load_part(values + i * s->qkv_row, columns));
    }
    fft_forward(s->fft, w.z, w.spare);
    for (int p = 0; p < s->fft->pairs; p++) {
        const FftPair *pair = &s->fft->pair[p];
        LisaComplex x, y;
        fft_part(&x.re, &x.im, &y.re, &y.im, w.z, pair);
        set_element(k, pair->b, (LisaComplex){x.re, -x.im}), set_element(k, pair->a, x);
        set_element(v, pair->b, (LisaComplex){y.re, -y.im}), set_element(v, pair->a, y);
    }
}

/* z = real(F' dk) + i real(F' dv) */
static void gradients_of_keys_values(const float *dk, const float *dv, LisaFftWork w, const LisaFftShape *s) {
    for (int p = 0; p < s->fft->pairs; p++) {
        vec none1, none2, kre, kim, vre, vim;
        fft_part(&kre, &kim, &none1, &none2, dk, &s->fft->pair[p]);
        fft_part(&vre, &vim, &none1, &none2, dv, &s->fft->pair[p]);
        fft_join(w.z, &s->fft->pair[p], kre, kim, vre, vim);
    }
    fft_backward(s->fft, w.z, w.spare);
}

/* z = the convolutions of x with two patterns, one in each part. */
TILE_INLINE void convolve(LisaFftWork w, const float *x, const float *pattern, bool scalar, const LisaFftShape *s) {
    for (int i = 0; i < s->N; i++) set_element(w.z, i, product(element(x, i, false), element(pattern, i, scalar)));
    fft_backward(s->fft, w.z, w.spare);
}

static void convolve_keys(LisaFftWork w, LisaFftWeights weights, int e, int block, const LisaFftShape *s) {
    convolve(w, w.k + block * s->full, weights.wa + ((size_t)e / 2 * s->blocks + block) * s->full, false, s);
}

static void convolve_values(LisaFftWork w, LisaFftWeights weights, int e, int block, const LisaFftShape *s) {
    convolve(w, w.v + block * s->full, weights.wb + e / 2 * s->scalars, true, s);
}

/* s1[i] += sum_c left[i,c] Re z[i,c], s2[i] likewise with Im. */
static void sum_channels(float *s1, float *s2, const float *left, const float *z, const LisaFftShape *s) {
    for (int i = 0; i < s->N; i += TILE) {
        vec re[TILE], im[TILE];
        int rows = smaller(TILE, s->N - i);
        for (int r = 0; r < TILE; r++) {
            const float *row = z + (size_t)(r < rows ? i + r : i) * COMPLEX; /* left is zero beyond the last token */
            vec l = vec_load(left + (size_t)(i + r) * TILE);
            re[r] = l * vec_load(row);
            im[r] = l * vec_load(row + TILE);
        }
        vec_store(s1 + i, vec_load(s1 + i) + vec_sums(re));
        vec_store(s2 + i, vec_load(s2 + i) + vec_sums(im));
    }
}

/* sum[i] += s1[i] Re z[i] + s2[i] Im z[i] */
static void sum_patterns(float *sum, const float *s1, const float *s2, const float *z, const LisaFftShape *s) {
    for (int i = 0; i < s->N; i++, sum += TILE, z += COMPLEX)
        vec_store(sum, vec_load(sum) + s1[i] * vec_load(z) + s2[i] * vec_load(z + TILE));
}

/* z = F(s1 x + i s2 x) */
static void transform_outer(LisaFftWork w, const float *s1, const float *s2, const float *x, const LisaFftShape *s) {
    for (int i = 0; i < s->N; i++) {
        vec row = vec_load(x + (size_t)i * TILE);
        vec_store(w.z + (size_t)i * COMPLEX, s1[i] * row);
        vec_store(w.z + (size_t)i * COMPLEX + TILE, s2[i] * row);
    }
    fft_forward(s->fft, w.z, w.spare);
}

/* From z = F(gradients of Ga_e and Ga_e+1): dK and dWa; then z = Ga_e and Ga_e+1 themselves. */
static void correlate_keys(LisaFftWork w, LisaFftWeights weights, int e, int block, const LisaFftShape *s) {
    size_t at = ((size_t)e / 2 * s->blocks + block) * s->full;
    const float *pattern = weights.wa + at, *k = w.k + block * s->full;
    float *dwa = w.dwa + at;
    for (int i = 0; i < s->N; i++) {
        LisaComplex d = element(w.z, i, false), x = element(k, i, false), a = element(pattern, i, false);
        set_element(dwa, i, correlation(element(dwa, i, false), x, d));
        set_element(w.dk, i, correlation(element(w.dk, i, false), a, d));
        set_element(w.z, i, product(x, a));
    }
    fft_backward(s->fft, w.z, w.spare);
}

/* From z = F(gradients of Gb_e and Gb_e+1): dV and dWb, whose channels are summed eight frequencies at a time; then z =
 * Gb_e and Gb_e+1 themselves. */
static void correlate_values(LisaFftWork w, LisaFftWeights weights, int e, int block, const LisaFftShape *s) {
    const float *pattern = weights.wb + e / 2 * s->scalars, *v = w.v + block * s->full;
    float *dwb = w.dwb + e / 2 * s->scalars, *dv = w.dv + block * s->full;
    for (int first = 0; first < s->N; first += TILE / 2) {
        vec sums[TILE] = {0};
        int count = smaller(TILE / 2, s->N - first);
        for (int n = 0; n < count; n++) {
            int i = first + n;
            LisaComplex d = element(w.z, i, false), x = element(v, i, false), b = element(pattern, i, true);
            LisaComplex gradient = correlation((LisaComplex){{0}, {0}}, x, d);
            sums[2 * n] = gradient.re, sums[2 * n + 1] = gradient.im;
            set_element(dv, i, correlation(element(dv, i, false), b, d));
            set_element(w.z, i, product(x, b));
        }
        vec_store(dwb + 2 * first, vec_load(dwb + 2 * first) + vec_sums(sums));
    }
    fft_backward(s->fft, w.z, w.spare);
}

/* == Forward ====================================================================================================== */

static void forward_head(real *y, real *patterns, const real *q, const real *v, const float *b, LisaFftWeights weights,
                         LisaFftWork w, const LisaFftShape *s) {
    const real *k = q + s->y_row;
    memset(w.s, 0, (size_t)s->Ep * s->Np * sizeof(float));
    for (int block = 0; block < s->blocks; block++) {
        int c = block * TILE;
        transform_keys_values(w.k + block * s->full, w.v + block * s->full, k + c, v + c, s->D - c, w, s);
        gather(w.left, q + c, s->qk_row, s->D - c, s);
        for (int e = 0; e < s->Ep; e += 2) {
            convolve_keys(w, weights, e, block, s);
            sum_channels(w.s + (size_t)e * s->Np, w.s + (size_t)(e + 1) * s->Np, w.left, w.z, s);
        }
    }
    for (int e = 0; e < s->E; e++) reals_round(patterns + (size_t)e * s->N, w.s + (size_t)e * s->Np, s->N);
    if (sizeof(real) < sizeof(float)) gather_patterns(w.s, patterns, s); /* y comes from the S that backward reads */
    for (int block = 0; block < s->blocks; block++) {
        int c = block * TILE;
        gather_bias(w.bias, b, block, s);
        tile_gemm(w.sum, TILE, w.s, 1, s->Np, w.bias, TILE, s->N, TILE, s->E, 0);
        for (int e = 0; e < s->Ep; e += 2) {
            convolve_values(w, weights, e, block, s);
            sum_patterns(w.sum, w.s + (size_t)e * s->Np, w.s + (size_t)(e + 1) * s->Np, w.z, s);
        }
        for (int i = 0; i < s->N; i++)
            real_store_part(y + i * s->y_row + c, vec_load(w.sum + (size_t)i * TILE), s->D - c);
    }
}

LISA_FORWARD(lisa_fft_forward) {
    LisaFftShape shape = shape_of(&lisa->patterns);
    LisaFftWeights weights = weights_place(&shape);
    int H = shape.H, D = shape.D;
    weights_transform(weights, lisa->wa, lisa->wb, &shape);
#pragma omp parallel for collapse(2) schedule(static)
    for (int image = 0; image < B; image++)
        for (int h = 0; h < H; h++) {
            size_t token = (size_t)image * shape.N, at = (size_t)h * D;
            forward_head(y + token * shape.y_row + at, s + ((size_t)image * H + h) * shape.E * shape.N,
                         qk + token * shape.qk_row + at, qkv + token * shape.qkv_row + 2 * shape.y_row + at, lisa->b,
                         weights, work_of(&shape, omp_get_thread_num()), &shape);
        }
}

/* == Backward ===================================================================================================== */

/* dS of the bias, and db; w.right contains dy. */
static void bias_backward(LisaFftWork w, const float *b, int block, const LisaFftShape *s) {
    gather_bias(w.bias, b, block, s);
    for (int i = 0; i < s->Np; i += TILE) tile_transpose(w.transposed + i, s->Np, w.right + (size_t)i * TILE, TILE);
    tile_gemm(w.ds, s->Np, w.bias, TILE, 1, w.transposed, s->Np, s->E, s->Np, TILE, 1);
    tile_gemm(w.db + (size_t)block * s->E * TILE, TILE, w.s, s->Np, 1, w.right, TILE, s->E, TILE, s->N, 1);
}

static void backward_head(real *dv, real *dq, const real *dy, const real *patterns, const real *q, const real *v,
                          const float *b, LisaFftWeights weights, LisaFftWork w, const LisaFftShape *s) {
    const real *k = q + s->y_row;
    real *dk = dq + s->y_row;
    gather_patterns(w.s, patterns, s);
    memset(w.ds, 0, (size_t)s->Ep * s->Np * sizeof(float));
    memset(w.dv, 0, s->blocks * s->full * sizeof(float));
    for (int block = 0; block < s->blocks; block++) {
        int c = block * TILE;
        transform_keys_values(w.k + block * s->full, w.v + block * s->full, k + c, v + c, s->D - c, w, s);
        gather(w.right, dy + c, s->y_row, s->D - c, s);
        bias_backward(w, b, block, s);
        for (int e = 0; e < s->Ep; e += 2) {
            transform_outer(w, w.s + (size_t)e * s->Np, w.s + (size_t)(e + 1) * s->Np, w.right, s);
            correlate_values(w, weights, e, block, s);
            sum_channels(w.ds + (size_t)e * s->Np, w.ds + (size_t)(e + 1) * s->Np, w.right, w.z, s);
        }
    }
    for (int block = 0; block < s->blocks; block++) {
        int c = block * TILE;
        gather(w.left, q + c, s->qk_row, s->D - c, s);
        memset(w.sum, 0, (size_t)s->Np * TILE * sizeof(float));
        memset(w.dk, 0, s->full * sizeof(float));
        for (int e = 0; e < s->Ep; e += 2) {
            const float *ds1 = w.ds + (size_t)e * s->Np, *ds2 = ds1 + s->Np;
            transform_outer(w, ds1, ds2, w.left, s);
            correlate_keys(w, weights, e, block, s);
            sum_patterns(w.sum, ds1, ds2, w.z, s);
        }
        gradients_of_keys_values(w.dk, w.dv + block * s->full, w, s);
        for (int i = 0; i < s->N; i++) {
            real_store_part(dq + i * s->qk_row + c, vec_load(w.sum + (size_t)i * TILE), s->D - c);
            real_store_part(dk + i * s->qk_row + c, vec_load(w.z + (size_t)i * COMPLEX), s->D - c);
            real_store_part(dv + i * s->qkv_row + c, vec_load(w.z + (size_t)i * COMPLEX + TILE), s->D - c);
        }
    }
}

/* Adds z to columns of a table: the reverse of load_table. */
static void add_table(float *first, const float *z, float scale, size_t row, size_t step, int reals, int imaginaries,
                      int N) {
    for (int t = 0; t < N; t++, z += COMPLEX, first += row) {
        for (int l = 0; l < smaller(TILE, reals); l++) first[l * step] += scale * z[l];
        for (int l = 0; l < smaller(TILE, imaginaries); l++) first[l * step + 1] += scale * z[TILE + l];
    }
}

/* dwb, up to TILE pairs of patterns in the lanes. */
static void scalars_backward(float *dwb, int e, int threads, const LisaFftShape *s) {
    LisaFftWork own = work_of(s, 0);
    int patterns = s->E - e;
    memset(own.z, 0, s->full * sizeof(float));
    for (int t = 0; t < threads; t++)
        for (int l = 0; l < smaller(TILE, (patterns + 1) / 2); l++) {
            const float *from = work_of(s, t).dwb + (e / 2 + l) * s->scalars;
            for (int i = 0; i < s->N; i++) {
                own.z[i * COMPLEX + l] += from[2 * i];
                own.z[i * COMPLEX + TILE + l] += from[2 * i + 1];
            }
        }
    fft_backward(s->fft, own.z, own.spare);
    add_table(dwb + e, own.z, 1.0f / s->N, s->E, 2, (patterns + 1) / 2, patterns / 2, s->N);
}

static void gradients_backward(float *dwa, float *dwb, float *db, int threads, const LisaFftShape *s) {
#pragma omp parallel for collapse(2) schedule(static)
    for (int e = 0; e < s->Ep; e += 2)
        for (int block = 0; block < s->blocks; block++) {
            LisaFftWork own = work_of(s, omp_get_thread_num());
            size_t at = ((size_t)e / 2 * s->blocks + block) * s->full;
            int lanes = s->D - block * TILE;
            memcpy(own.z, work_of(s, 0).dwa + at, s->full * sizeof(float));
            for (int t = 1; t < threads; t++) {
                const float *from = work_of(s, t).dwa + at;
                for (size_t i = 0; i < s->full; i += TILE)
                    vec_store(own.z + i, vec_load(own.z + i) + vec_load(from + i));
            }
            fft_backward(s->fft, own.z, own.spare);
            add_table(dwa + (size_t)block * TILE * s->E + e, own.z, 1.0f / s->N, (size_t)s->D * s->E, s->E, lanes,
                      e + 1 < s->E ? lanes : 0, s->N);
        }
    for (int e = 0; e < s->E; e += 2 * TILE) scalars_backward(dwb, e, threads, s);
    for (int t = 0; t < threads; t++)
        for (int c = 0; c < s->D; c++)
            for (int e = 0; e < s->E; e++)
                db[(size_t)c * s->E + e] += work_of(s, t).db[((size_t)(c / TILE) * s->E + e) * TILE + c % TILE];
}

LISA_BACKWARD(lisa_fft_backward) {
    (void)ds;
    LisaFftShape shape = shape_of(&lisa->patterns);
    LisaFftWeights weights = weights_place(&shape);
    int threads = omp_get_max_threads(), H = shape.H, D = shape.D;
    weights_transform(weights, lisa->wa, lisa->wb, &shape);
#pragma omp parallel for schedule(static)
    for (int t = 0; t < threads; t++) {
        LisaFftWork w = work_of(&shape, t);
        memset(w.dwa, 0, (size_t)shape.Ep / 2 * shape.blocks * shape.full * sizeof(float));
        memset(w.dwb, 0, (size_t)shape.Ep / 2 * shape.scalars * sizeof(float));
        memset(w.db, 0, (size_t)shape.E * shape.blocks * TILE * sizeof(float));
    }
#pragma omp parallel for collapse(2) schedule(static)
    for (int image = 0; image < B; image++)
        for (int h = 0; h < H; h++) {
            size_t token = (size_t)image * shape.N, at = (size_t)h * D;
            size_t at_qk = token * shape.qk_row + at, at_v = token * shape.qkv_row + 2 * shape.y_row + at;
            backward_head(dqkv + at_v, dqk + at_qk, dy + token * shape.y_row + at,
                          s + ((size_t)image * H + h) * shape.E * shape.N, qk + at_qk, qkv + at_v, lisa->b, weights,
                          work_of(&shape, omp_get_thread_num()), &shape);
        }
    gradients_backward(d->wa, d->wb, d->b, threads, &shape);
}

/* == Cost ======================================================================================================== */

/* Nanoseconds for a token, two patterns and sixteen channels, from tests/bench/bench_lisa.c on one core of an EPYC
 * 9005: a constant part, and one for each stage of the six transforms.  A prime factor r above 7 counts as 0.65 r
 * stages. */
double lisa_fft_cost(const Patterns *patterns) {
    const double token = 20, stage = 9;
    if (!has_spectrum(patterns)) return INFINITY;
    LisaFftShape s = shape_of(patterns);
    double stages = 0;
    for (int axis = 0; axis < s.fft->axes; axis++)
        for (int i = 0; i < s.fft->axis[axis].stages; i++) {
            int r = s.fft->axis[axis].radix[i];
            stages += r > 8 ? 0.65 * r : 1;
        }
    return 1e-9 * s.N * (s.Ep / 2) * s.blocks * (token + stage * stages);
}
