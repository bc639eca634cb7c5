/* Codes that are filtered noise.  Per head and column d, with a = D^-1/2 sqrt(1 - g), t = D^-1/2 sqrt(g)
 *   forward   1. w'_j = a w_j, of q and of k   2. C_(n,r) = t e_r + sum_j w'_j x_(n+j,r)   3. q'_r = sum_d q_d C_(d,r)
 *   backward  3. dC = sum_b q dq', dq   2. dw'_j = sum_(n,r) dC_(n,r) x_(n+j,r)
 *             1. dw = a dw', dgate = (1 - g)/2 sum dC t e - g/2 sum dw' w'
 *   saves     nothing.   Source: Liutkus et al. 2021, and the authors' ConvSPE.
 *
 * The codes of a block of tokens, last token first, are a product with the filter as the rows of a Hankel matrix:
 * element (i, p) is f_(i+p), f being the filter between zeros. */
#include <math.h>
#include <string.h>

#include "kernels/linear_attention/spe.h"
#include "kernels/linear_attention/relative_positions.h"
#include "kernels/softmax/attention_shape.h"

typedef struct {
    SpeBlock block;
    float *filter, *dfilter; /* [D,K]: w' of q or k, and its gradient */
    float *padded;           /* [K+2 BLOCK] */
    float *e, *de;           /* [D,Dp] */
    float *noise;            /* [BLOCK+K,Dp]: a block's share of x */
    float *rows, *columns;   /* [BLOCK,Dp], [D,BLOCK] */
    float *products;         /* [BLOCK+K,BLOCK] */
    float *totals;           /* dwq, dwk [H,D,K], dgate [H,D] */
} SpeConvWork;

static size_t total_floats(SpeSizes s) { return (size_t)s.H * s.D * (2 * s.K + 1); }

static size_t work_floats(SpeSizes s) {
    size_t square = (size_t)s.D * s.Dp, taps = (size_t)s.K + SPE_BLOCK;
    return workspace_line_up(total_floats(s)) + spe_block_floats(s) + 2 * workspace_line_up((size_t)s.D * s.K) +
           workspace_line_up(taps + SPE_BLOCK) + 2 * square + taps * (s.Dp + SPE_BLOCK) +
           (size_t)SPE_BLOCK * (s.Dp + s.D);
}

size_t spe_conv_workspace(int N, int H, int D, int K) { return workspace_bytes(work_floats(spe_sizes(1, N, H, D, K))); }

static SpeConvWork work_take(SpeSizes s) {
    size_t square = (size_t)s.D * s.Dp, taps = (size_t)s.K + SPE_BLOCK;
    float *next = kernels_workspace(work_floats(s));
    SpeConvWork w;
    w.totals = workspace_take(&next, total_floats(s)); /* first, where spe_reduce finds it */
    w.block = spe_block_take(&next, s);
    w.filter = workspace_take(&next, (size_t)s.D * s.K);
    w.dfilter = workspace_take(&next, (size_t)s.D * s.K);
    w.padded = workspace_take(&next, taps + SPE_BLOCK);
    w.e = workspace_take(&next, square);
    w.de = workspace_take(&next, square);
    w.noise = workspace_take(&next, taps * s.Dp);
    w.rows = workspace_take(&next, (size_t)SPE_BLOCK * s.Dp);
    w.columns = workspace_take(&next, (size_t)SPE_BLOCK * s.D);
    w.products = workspace_take(&next, taps * SPE_BLOCK);
    return w;
}

/* == A head's codes =============================================================================================== */

static void head_prepare(const SpeConvWork *w, const SpeConv *p, SpeSizes s, int part, int h) {
    const float *filter = (part ? p->wk : p->wq) + (size_t)h * s.D * s.K;
    memset(w->e, 0, (size_t)s.D * s.Dp * sizeof(float));
    for (int d = 0; d < s.D; d++) {
        size_t i = (size_t)h * s.D + d;
        float loud = s.scale * sqrtf(spe_sigmoid(-p->gate[i])), mix = s.scale * sqrtf(spe_sigmoid(p->gate[i]));
        for (int r = 0; r < s.D; r++) w->e[(size_t)d * s.Dp + r] = mix * p->e[i * s.D + r];
        for (int j = 0; j < s.K; j++) w->filter[(size_t)d * s.K + j] = loud * filter[(size_t)d * s.K + j];
    }
}

/* noise = x of column d for the taps of tokens first .. first+rows-1. */
static void load_noise(const SpeConvWork *w, const SpeConv *p, SpeSizes s, int h, int d, int first, int rows) {
    const float *x = p->x + (((size_t)h * s.D + d) * (s.N + s.K - 1) + first) * s.D;
    for (int i = 0; i < rows + s.K - 1; i++)
        for (int j = 0; j < s.D; j += TILE)
            vec_store(w->noise + (size_t)i * s.Dp + j, vec_load_part(x + (size_t)i * s.D + j, s.D - j));
}

/* Step 2. */
static void make_codes(const SpeConvWork *w, const SpeConv *p, SpeSizes s, int h, int first, int rows) {
    int taps = rows + s.K - 1;
    for (int d = 0; d < s.D; d++) {
        load_noise(w, p, s, h, d, first, rows);
        memset(w->padded, 0, (size_t)(taps + rows - 1) * sizeof(float));
        memcpy(w->padded + rows - 1, w->filter + (size_t)d * s.K, s.K * sizeof(float));
        for (int t = 0; t < rows; t++) memcpy(w->rows + t * s.Dp, w->e + (size_t)d * s.Dp, s.Dp * sizeof(float));
        tile_gemm(w->rows, s.Dp, w->padded, 1, 1, w->noise, s.Dp, rows, s.Dp, taps, 1);
        for (int t = 0; t < rows; t++)
            memcpy(w->block.code + ((size_t)t * s.D + d) * s.Dp, w->rows + (rows - 1 - t) * s.Dp, s.Dp * sizeof(float));
    }
}

/* == Forward ====================================================================================================== */

void spe_conv_forward(real *coded, const real *qkv, const SpeConv *spe, const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    SpeSizes s = spe_sizes(B, N, H, D, spe->K);
#pragma omp parallel
    {
        SpeConvWork w = work_take(s);
#pragma omp for schedule(static)
        for (int item = 0; item < 2 * H * s.chunks; item++) {
            int h = item / 2 / s.chunks, part = item % 2, begin = item / 2 % s.chunks * SPE_CHUNK;
            int end = smaller(begin + SPE_CHUNK, N);
            head_prepare(&w, spe, s, part, h);
            for (int first = begin; first < end; first += SPE_BLOCK) {
                int rows = smaller(SPE_BLOCK, end - first);
                make_codes(&w, spe, s, h, first, rows);
                spe_apply(coded, qkv, &w.block, s, part, h, first, rows);
            }
        }
    }
}

/* == Backward ===================================================================================================== */

/* Step 2 from dC in the block: products (p, t) = x_p . dC_t, whose diagonals p - t = j add up to dw'_j. */
static void code_gradients(const SpeConvWork *w, const SpeConv *p, SpeSizes s, int h, int first, int rows) {
    int taps = rows + s.K - 1;
    for (int d = 0; d < s.D; d++) {
        float *dfilter = w->dfilter + (size_t)d * s.K, *de = w->de + (size_t)d * s.Dp;
        load_noise(w, p, s, h, d, first, rows);
        memset(w->columns, 0, (size_t)SPE_BLOCK * s.D * sizeof(float));
        for (int t = 0; t < rows; t++) {
            const float *dcode = w->block.dcode + ((size_t)t * s.D + d) * s.Dp;
            for (int r = 0; r < s.D; r++) w->columns[r * SPE_BLOCK + t] = dcode[r];
            for (int j = 0; j < s.Dp; j += TILE) vec_store(de + j, vec_load(de + j) + vec_load(dcode + j));
        }
        tile_gemm(w->products, SPE_BLOCK, w->noise, s.Dp, 1, w->columns, SPE_BLOCK, taps, SPE_BLOCK, s.D, 0);
        for (int j = 0; j < s.K; j++) {
            float sum = 0;
            for (int t = 0; t < rows; t++) sum += w->products[(size_t)(j + t) * SPE_BLOCK + t];
            dfilter[j] += sum;
        }
    }
}

/* Step 1: adds the sums of a chunk of tokens to the thread's totals. */
static void head_gradients(const SpeConvWork *w, const SpeConv *p, SpeSizes s, int part, int h) {
    size_t all = (size_t)s.H * s.D * s.K;
    float *dw = w->totals + part * all, *dgate = w->totals + 2 * all;
    for (int d = 0; d < s.D; d++) {
        size_t i = (size_t)h * s.D + d;
        float open = spe_sigmoid(p->gate[i]), shut = spe_sigmoid(-p->gate[i]);
        const float *dfilter = w->dfilter + (size_t)d * s.K;
        float dmix = vec_dot(w->de + (size_t)d * s.Dp, w->e + (size_t)d * s.Dp, s.D);
        dgate[i] += 0.5f * (shut * dmix - open * vec_dot(dfilter, w->filter + (size_t)d * s.K, s.K));
        for (int j = 0; j < s.K; j++) dw[i * s.K + j] += s.scale * sqrtf(shut) * dfilter[j];
    }
}

void spe_conv_backward(real *dqkv, const SpeConvGradients *d, const real *dcoded, const real *qkv, const SpeConv *spe,
                       const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    SpeSizes s = spe_sizes(B, N, H, D, spe->K);
    size_t square = (size_t)D * s.Dp, all = (size_t)H * D * s.K, floats = work_floats(s);
#pragma omp parallel
    {
        SpeConvWork w = work_take(s);
        memset(w.totals, 0, total_floats(s) * sizeof(float));
#pragma omp for schedule(static)
        for (int item = 0; item < 2 * H * s.chunks; item++) {
            int h = item / 2 / s.chunks, part = item % 2, begin = item / 2 % s.chunks * SPE_CHUNK;
            int end = smaller(begin + SPE_CHUNK, N);
            head_prepare(&w, spe, s, part, h);
            memset(w.dfilter, 0, (size_t)D * s.K * sizeof(float));
            memset(w.de, 0, square * sizeof(float));
            for (int first = begin; first < end; first += SPE_BLOCK) {
                int rows = smaller(SPE_BLOCK, end - first);
                make_codes(&w, spe, s, h, first, rows);
                spe_apply_backward(dqkv, dcoded, qkv, &w.block, s, part, h, first, rows);
                code_gradients(&w, spe, s, h, first, rows);
            }
            head_gradients(&w, spe, s, part, h);
        }
        spe_reduce(d->wq, all, 0, floats);
        spe_reduce(d->wk, all, all, floats);
        spe_reduce(d->gate, (size_t)H * D, 2 * all, floats);
    }
}
