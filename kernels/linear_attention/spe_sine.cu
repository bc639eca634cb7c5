/* Codes that are sums of sinusoids; the formulas are in kernels/linear_attention/spe_sine.c, the use of the codes in
 * spe.cuh.  A block computes the codes of sixteen tokens for a column d of a head; for the gradients of the parameters
 * it has all tokens of the range, so that each gradient is computed by one block.  Angles are reduced in double, since
 * they grow with the number of tokens. */
#include "kernels/linear_attention/spe.cuh"
#include "kernels/linear_attention/relative_positions.h"
#include "kernels/softmax/attention_shape.h"

/* G [2K,D] of a column, and the angles of a block of tokens: cosines, then sines, [BLOCK,2K]. */
static size_t column_floats(SpeShape s) { return (size_t)2 * s.K * s.D + (size_t)SPE_BLOCK * 2 * s.K; }

DEVICE float loudness(const SpeSine &p, const SpeShape &s, size_t i) {
    return s.scale * sqrtf(spe_sigmoid(-p.gate[i]) / (2 * (float)s.K));
}

DEVICE float softplus(float x) { return log1pf(expf(-fabsf(x))) + (x > 0 ? x : 0); }

DEVICE void load_gains(float *g, const SpeSine &p, const SpeShape &s, size_t i) {
    float loud = loudness(p, s, i);
    for (int at = (int)threadIdx.x; at < 2 * s.K * s.D; at += SPE_THREADS)
        g[at] = loud * softplus(p.gains[i * s.K + at / s.D % s.K]) * p.z[i * 2 * s.K * s.D + at];
}

DEVICE void load_angles(float *omega, const SpeSine &p, const SpeShape &s, const SpeColumn &c, int part) {
    for (int at = (int)threadIdx.x; at < c.rows * s.K; at += SPE_THREADS) {
        int t = at / s.K, k = at % s.K;
        double turns = 0.5 / (1 + exp(-(double)p.freqs[c.i * s.K + k])) * (s.first + c.first + t);
        float angle = (float)(6.283185307179586 * (turns - rint(turns)));
        if (part == 0) angle += p.offsets[c.i * s.K + k];
        omega[t * 2 * s.K + k] = cosf(angle);
        omega[t * 2 * s.K + s.K + k] = sinf(angle);
    }
}

__global__ void __launch_bounds__(SPE_THREADS) spe_sine_codes_kernel(float *code, SpeSine p, SpeShape s) {
    SHARED(float, g);
    float *omega = g + 2 * s.K * s.D;
    SpeColumn c = spe_column(s, blockIdx.x);
    float mix = s.scale * sqrtf(spe_sigmoid(p.gate[c.i]));
    load_gains(g, p, s, c.i);
    for (int part = 0; part < 2; part++) {
        block_sync();
        load_angles(omega, p, s, c, part);
        block_sync();
        for (int at = (int)threadIdx.x; at < c.rows * s.D; at += SPE_THREADS) {
            int t = at / s.D, r = at % s.D;
            float sum = mix * p.e[c.i * s.D + r];
            for (int k = 0; k < 2 * s.K; k++) sum += omega[t * 2 * s.K + k] * g[k * s.D + r];
            code[spe_code_at(s, part, c.first + t, c.h, c.d) + r] = sum;
        }
    }
}

/* == Gradients of the parameters ================================================================================== */

static size_t gradient_floats(SpeShape s) {
    return column_floats(s) + (size_t)2 * s.K * s.D + s.D + (size_t)SPE_BLOCK * (s.D + 2 * s.K) + 2 * s.K;
}

/* dG, de and the sums of da from one block's dC; slopes [BLOCK,2K] is scratch. */
DEVICE void add_code_gradients(float *dg, float *de, float *slopes, float *da, const float *dcode, const float *g,
                               const float *omega, const SpeShape &s, const SpeColumn &c, int part) {
    for (int at = (int)threadIdx.x; at < 2 * s.K * s.D; at += SPE_THREADS) {
        int k = at / s.D, r = at % s.D;
        for (int t = 0; t < c.rows; t++) dg[at] += omega[t * 2 * s.K + k] * dcode[t * s.D + r];
    }
    for (int r = (int)threadIdx.x; r < s.D; r += SPE_THREADS)
        for (int t = 0; t < c.rows; t++) de[r] += dcode[t * s.D + r];
    for (int at = (int)threadIdx.x; at < c.rows * 2 * s.K; at += SPE_THREADS) {
        int t = at / (2 * s.K), k = at % (2 * s.K);
        float sum = 0;
        for (int r = 0; r < s.D; r++) sum += dcode[t * s.D + r] * g[k * s.D + r];
        slopes[at] = sum;
    }
    block_sync();
    for (int k = (int)threadIdx.x; k < s.K; k += SPE_THREADS)
        for (int t = 0; t < c.rows; t++) {
            int at = t * 2 * s.K + k;
            float own = omega[at] * slopes[at + s.K] - omega[at + s.K] * slopes[at];
            if (part == 0) da[k] += own;
            da[s.K + k] += (float)(s.first + c.first + t) * own;
        }
}

/* One block for each column of a head. */
__global__ void __launch_bounds__(SPE_THREADS)
    spe_sine_gradients_kernel(SpeSineGradients d, const float *dcode, SpeSine p, SpeShape s) {
    SHARED(float, g);
    float *omega = g + 2 * s.K * s.D, *dg = omega + SPE_BLOCK * 2 * s.K, *de = dg + 2 * s.K * s.D; /* [2K,D], [D] */
    float *tile = de + s.D, *slopes = tile + SPE_BLOCK * s.D, *da = slopes + SPE_BLOCK * 2 * s.K; /* da: [2][K] */
    SpeColumn c = spe_column(s, blockIdx.x);
    size_t i = c.i;
    load_gains(g, p, s, i);
    for (int at = (int)threadIdx.x; at < 2 * s.K * s.D; at += SPE_THREADS) dg[at] = 0;
    for (int r = (int)threadIdx.x; r < s.D; r += SPE_THREADS) de[r] = 0;
    for (int k = (int)threadIdx.x; k < 2 * s.K; k += SPE_THREADS) da[k] = 0;
    for (; c.first < s.tokens; c.first += SPE_BLOCK) {
        c.rows = s.tokens - c.first < SPE_BLOCK ? s.tokens - c.first : SPE_BLOCK;
        for (int part = 0; part < 2; part++) {
            block_sync();
            load_angles(omega, p, s, c, part);
            for (int at = (int)threadIdx.x; at < c.rows * s.D; at += SPE_THREADS)
                tile[at] = dcode[spe_code_at(s, part, c.first + at / s.D, c.h, c.d) + at % s.D];
            block_sync();
            add_code_gradients(dg, de, slopes, da, tile, g, omega, s, c, part);
        }
    }
    block_sync();
    float loud = loudness(p, s, i), mix = s.scale * sqrtf(spe_sigmoid(p.gate[i]));
    for (int k = warp_id(); k < s.K; k += SPE_WARPS) {
        const float *z = p.z + (i * 2 * s.K + k) * s.D;
        float gain = plain_dot(dg + k * s.D, z, s.D) + plain_dot(dg + (s.K + k) * s.D, z + (size_t)s.K * s.D, s.D);
        float frequency = p.freqs[i * s.K + k];
        if (lane_id()) continue;
        d.gains[i * s.K + k] += spe_sigmoid(p.gains[i * s.K + k]) * loud * gain;
        d.offsets[i * s.K + k] += da[k];
        d.freqs[i * s.K + k] += 3.14159265f * da[s.K + k] * spe_sigmoid(frequency) * spe_sigmoid(-frequency);
    }
    if (warp_id()) return;
    float dloud = plain_dot(dg, g, 2 * s.K * s.D), dmix = mix * plain_dot(de, p.e + i * s.D, s.D);
    if (lane_id() == 0) d.gate[i] += 0.5f * (spe_sigmoid(-p.gate[i]) * dmix - spe_sigmoid(p.gate[i]) * dloud);
}

/* == Launches ===================================================================================================== */

size_t spe_sine_workspace(int N, int H, int D, int) { return spe_workspace(N, H, D); }

static void make_codes(float *code, const SpeSine *spe, SpeShape s) {
    unsigned blocks = (unsigned)(ceil_div(s.tokens, SPE_BLOCK) * s.H * s.D);
    LAUNCH(spe_sine_codes_kernel, blocks, SPE_THREADS, column_floats(s) * sizeof(float), code, *spe, s);
}

void spe_sine_forward(real *coded, const real *qkv, const SpeSine *spe, const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    float *code = static_cast<float *>(kernels_workspace(spe_workspace(N, H, D)));
    spe_stretches(spe_shape(B, N, H, D, spe->K), [=](SpeShape s) {
        make_codes(code, spe, s);
        spe_apply(coded, qkv, code, s);
    });
}

void spe_sine_backward(real *dqkv, const SpeSineGradients *d, const real *dcoded, const real *qkv, const SpeSine *spe,
                       const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    float *code = static_cast<float *>(kernels_workspace(spe_workspace(N, H, D)));
    spe_stretches(spe_shape(B, N, H, D, spe->K), [=](SpeShape s) {
        float *dcode = code + s.tokens * spe_token_floats(H, D);
        make_codes(code, spe, s);
        spe_apply_backward(dqkv, dcode, dcoded, qkv, code, s);
        LAUNCH(spe_sine_gradients_kernel, (unsigned)(H * D), SPE_THREADS, gradient_floats(s) * sizeof(float), *d, dcode,
               *spe, s);
    });
}
