/* Codes that are filtered noise; the formulas are in kernels/linear_attention/spe_conv.c, the use of the codes in
 * spe.cuh.  A block computes the codes of sixteen tokens for a column d of a head, a few realisations at a time; for
 * the gradients of the parameters it has all tokens of the range. */
#include "kernels/linear_attention/spe.cuh"
#include "kernels/linear_attention/relative_positions.h"
#include "kernels/softmax/attention_shape.h"

/* The number of realisations at a time, limited by the space for their noise for a block of tokens.  The row length is
 * odd to avoid bank conflicts. */
static int columns_of(SpeShape s) {
    int columns = 2 * PLAIN_TILE / (SPE_BLOCK + s.K - 1);
    columns = columns < 1 ? 1 : columns < WARP ? columns : (int)WARP;
    return columns < s.D ? columns : s.D;
}

DEVICE int noise_ld(int columns) { return columns | 1; }

static size_t noise_floats(SpeShape s) { return (size_t)(SPE_BLOCK + s.K - 1) * (columns_of(s) | 1); }

/* noise = realisations r0 .. r0+count-1 of x for the taps of the block's tokens. */
DEVICE void load_noise(float *noise, int ld, const SpeConv &p, const SpeShape &s, const SpeColumn &c, int r0,
                       int count) {
    const float *x = p.x + (c.i * (s.N + s.K - 1) + s.first + c.first) * s.D + r0;
    for (int at = (int)threadIdx.x; at < (c.rows + s.K - 1) * count; at += SPE_THREADS)
        noise[at / count * ld + at % count] = x[(size_t)(at / count) * s.D + at % count];
}

__global__ void __launch_bounds__(SPE_THREADS) spe_conv_codes_kernel(float *code, SpeConv p, SpeShape s, int columns) {
    SHARED(float, w); /* [2][K] */
    float *noise = w + 2 * s.K; /* [BLOCK+K-1,ld] */
    int ld = noise_ld(columns);
    SpeColumn c = spe_column(s, blockIdx.x);
    float loud = s.scale * sqrtf(spe_sigmoid(-p.gate[c.i])), mix = s.scale * sqrtf(spe_sigmoid(p.gate[c.i]));
    for (int j = (int)threadIdx.x; j < 2 * s.K; j += SPE_THREADS)
        w[j] = loud * (j < s.K ? p.wq[c.i * s.K + j] : p.wk[c.i * s.K + j - s.K]);
    for (int r0 = 0; r0 < s.D; r0 += columns) {
        int count = s.D - r0 < columns ? s.D - r0 : columns;
        block_sync();
        load_noise(noise, ld, p, s, c, r0, count);
        block_sync();
        for (int at = (int)threadIdx.x; at < 2 * c.rows * count; at += SPE_THREADS) {
            int part = at / (c.rows * count), t = at / count % c.rows, r = at % count;
            const float *filter = w + part * s.K;
            float sum = mix * p.e[c.i * s.D + r0 + r];
            for (int j = 0; j < s.K; j++) sum += filter[j] * noise[(t + j) * ld + r];
            code[spe_code_at(s, part, c.first + t, c.h, c.d) + r0 + r] = sum;
        }
    }
}

/* == Gradients of the parameters ================================================================================== */

/* One block for each column of a head. */
__global__ void __launch_bounds__(SPE_THREADS)
    spe_conv_gradients_kernel(SpeConvGradients d, const float *dcode, SpeConv p, SpeShape s, int columns) {
    SHARED(float, dw); /* [2][K]: of w' */
    float *de = dw + 2 * s.K, *noise = de + s.D; /* [D], [BLOCK+K-1,ld] */
    int ld = noise_ld(columns);
    SpeColumn c = spe_column(s, blockIdx.x);
    float *tile = noise + (SPE_BLOCK + s.K - 1) * ld; /* [2][BLOCK,columns] */
    for (int j = (int)threadIdx.x; j < 2 * s.K; j += SPE_THREADS) dw[j] = 0;
    for (int r = (int)threadIdx.x; r < s.D; r += SPE_THREADS) de[r] = 0;
    for (; c.first < s.tokens; c.first += SPE_BLOCK) {
        c.rows = s.tokens - c.first < SPE_BLOCK ? s.tokens - c.first : SPE_BLOCK;
        for (int r0 = 0; r0 < s.D; r0 += columns) {
            int count = s.D - r0 < columns ? s.D - r0 : columns;
            block_sync();
            load_noise(noise, ld, p, s, c, r0, count);
            for (int at = (int)threadIdx.x; at < 2 * c.rows * count; at += SPE_THREADS) {
                int part = at / (c.rows * count), t = at / count % c.rows, r = at % count;
                tile[at] = dcode[spe_code_at(s, part, c.first + t, c.h, c.d) + r0 + r];
            }
            block_sync();
            for (int at = (int)threadIdx.x; at < 2 * s.K; at += SPE_THREADS) {
                const float *slope = tile + at / s.K * c.rows * count;
                int j = at % s.K;
                float sum = 0;
                for (int t = 0; t < c.rows; t++)
                    for (int r = 0; r < count; r++) sum += slope[t * count + r] * noise[(t + j) * ld + r];
                dw[at] += sum;
            }
            for (int r = (int)threadIdx.x; r < count; r += SPE_THREADS)
                for (int t = 0; t < 2 * c.rows; t++) de[r0 + r] += tile[t * count + r];
        }
    }
    block_sync();
    size_t i = c.i;
    float open = spe_sigmoid(p.gate[i]), shut = spe_sigmoid(-p.gate[i]), loud = s.scale * sqrtf(shut);
    for (int j = (int)threadIdx.x; j < s.K; j += SPE_THREADS) {
        d.wq[i * s.K + j] += loud * dw[j];
        d.wk[i * s.K + j] += loud * dw[s.K + j];
    }
    if (warp_id()) return;
    float dloud = loud * (plain_dot(dw, p.wq + i * s.K, s.K) + plain_dot(dw + s.K, p.wk + i * s.K, s.K));
    float dmix = s.scale * sqrtf(open) * plain_dot(de, p.e + i * s.D, s.D);
    if (lane_id() == 0) d.gate[i] += 0.5f * (shut * dmix - open * dloud);
}

/* == Launches ===================================================================================================== */

size_t spe_conv_workspace(int N, int H, int D, int) { return spe_workspace(N, H, D); }

static void make_codes(float *code, const SpeConv *spe, SpeShape s) {
    unsigned blocks = (unsigned)(ceil_div(s.tokens, SPE_BLOCK) * s.H * s.D);
    LAUNCH(spe_conv_codes_kernel, blocks, SPE_THREADS, (2 * s.K + noise_floats(s)) * sizeof(float), code, *spe, s,
           columns_of(s));
}

void spe_conv_forward(real *coded, const real *qkv, const SpeConv *spe, const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    float *code = static_cast<float *>(kernels_workspace(spe_workspace(N, H, D)));
    spe_stretches(spe_shape(B, N, H, D, spe->K), [=](SpeShape s) {
        make_codes(code, spe, s);
        spe_apply(coded, qkv, code, s);
    });
}

void spe_conv_backward(real *dqkv, const SpeConvGradients *d, const real *dcoded, const real *qkv, const SpeConv *spe,
                       const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    float *code = static_cast<float *>(kernels_workspace(spe_workspace(N, H, D)));
    spe_stretches(spe_shape(B, N, H, D, spe->K), [=](SpeShape s) {
        float *dcode = code + s.tokens * spe_token_floats(H, D);
        size_t floats = 2 * s.K + s.D + noise_floats(s) + 2 * SPE_BLOCK * columns_of(s);
        make_codes(code, spe, s);
        spe_apply_backward(dqkv, dcode, dcoded, qkv, code, s);
        LAUNCH(spe_conv_gradients_kernel, (unsigned)(H * D), SPE_THREADS, floats * sizeof(float), *d, dcode, *spe, s,
               columns_of(s));
    });
}
