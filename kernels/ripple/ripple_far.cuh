/* The far part of `window` ripple attention, which is linear attention: the sums S and dS over all tokens, and the
 * products of a warp's patch with them.  S and dS are used as two bfloat16 terms, so that window keeps the digits of
 * dense. */
#ifndef VIT_KERNELS_CUDA_RIPPLE_FAR_CUH
#define VIT_KERNELS_CUDA_RIPPLE_FAR_CUH

#include "kernels/ripple/ripple_patches.cuh"

enum {
    FAR_WARPS = 4,
    FAR_STEP = 32, /* tokens of a warp at once: each warp has 4 KB of loads in flight */
    FAR_SPAN = 256 /* and in all: as many as float sums without losing digits */
};

/* S and z as one matrix: z is column P, followed by seven columns that fill the tile. */
constexpr int far_ld(int P) { return P + TILE_N; }
constexpr int far_size(int P) { return P * far_ld(P); }

/* == Products ===================================================================================================== */

/* far [2][P,P+8]: S as a sum of two numbers of type real. */
template <int P>
DEVICE void load_far(real *far, const float *S) {
    for (int at = threadIdx.x; at < far_size(P); at += blockDim.x) {
        float x = S[at];
        real high = to_real(x);
        far[at] = high;
        far[far_size(P) + at] = to_real(x - to_float(high));
    }
}

DEVICE float far_z(const real *far, int f, int P) {
    int at = f * far_ld(P) + P;
    return to_float(far[at]) + to_float(far[far_size(P) + at]);
}

/* c = a S, and z as the first column of one more tile. */
template <int P>
DEVICE void far_product(FragmentC (&c)[P / TILE_N + 1], const FragmentA (&a)[P / TILE_K], const real *far) {
    clear(c);
    for (int part = 0; part < (FLOAT_SUMS ? 1 : 2); part++, far += far_size(P))
#pragma unroll
        for (int k = 0; k < P / TILE_K; k++)
#pragma unroll
            for (int n = 0; n <= P / TILE_N; n++)
                mma(c[n], a[k], fragment_b(far + k * TILE_K * far_ld(P) + n * TILE_N, far_ld(P)));
}

/* c = a S^T, without z. */
template <int P>
DEVICE void far_product_transposed(FragmentC (&c)[P / TILE_N], const FragmentA (&a)[P / TILE_K], const real *far) {
    clear(c);
    for (int part = 0; part < (FLOAT_SUMS ? 1 : 2); part++, far += far_size(P))
#pragma unroll
        for (int k = 0; k < P / TILE_K; k++)
#pragma unroll
            for (int n = 0; n < P / TILE_N; n++)
                mma(c[n], a[k], fragment_b_transposed(far + n * TILE_N * far_ld(P) + k * TILE_K, far_ld(P)));
}

/* == Sums ========================================================================================================= */

/* tile [FAR_STEP,P] = the rows n0 .. end-1, each times the scale in its lane. */
template <int P>
DEVICE void load_scaled(real *tile, const real *x, size_t row, int columns, bool wide, int n0, int end, float scale) {
    constexpr int LD = tile_ld(P), PIECES = P / WIDE;
    for (int at = lane_id(); wide && at < FAR_STEP * PIECES; at += WARP) {
        int i = at / PIECES, j = at % PIECES * WIDE;
        float own = warp_shuffle(scale, i), v[WIDE] = {};
        if (n0 + i < end && j < columns) load<WIDE>(v, x + (size_t)(n0 + i) * row + j);
#pragma unroll
        for (int e = 0; e < WIDE; e++) v[e] *= own;
        store<WIDE>(tile + i * LD + j, v);
    }
    for (int at = lane_id(); !wide && at < FAR_STEP * P; at += WARP) {
        int i = at / P, j = at % P;
        float own = warp_shuffle(scale, i);
        tile[i * LD + j] = to_real(n0 + i < end && j < columns ? own * to_float(x[(size_t)(n0 + i) * row + j]) : 0);
    }
}

/* sum += x^T y over FAR_STEP rows. */
template <int P>
DEVICE void add_outer(FragmentC (&sum)[P / TILE_M][P / TILE_N + 1], const real *x, const real *y) {
    constexpr int LD = tile_ld(P);
#pragma unroll
    for (int k = 0; k < FAR_STEP; k += TILE_K)
#pragma unroll
        for (int m = 0; m < P / TILE_M; m++) {
            FragmentA a = load_a_transposed(x + k * LD + m * TILE_M, LD);
#pragma unroll
            for (int n = 0; n < P / TILE_N; n += 2) {
                FragmentB b[2];
                load_b(b, y + k * LD + n * TILE_N, LD);
                mma(sum[m][n], a, b[0]);
                mma(sum[m][n + 1], a, b[1]);
            }
            mma(sum[m][P / TILE_N], a, fragment_b(y + k * LD + P, LD));
        }
}

/* part [heads,parts,P,P+8]: S of a stretch of tokens, or dS (BACKWARD: values is dy).  Each warp sums over `span`
 * tokens, and the sums of a block's warps are added in order. */
template <int P, bool BACKWARD>
__global__ void __launch_bounds__(FAR_WARPS *WARP)
    ripple_far_sums_kernel(float *part, const real *phi, const real *values, const float *delta, const float *den,
                           const float *alpha, PatchShape s, int first_head, int parts, int span) {
    constexpr int LD = tile_ld(P), TILE = FAR_STEP * LD;
    SHARED(real, shared);
    real *x_tile = shared + warp_id() * 2 * TILE, *y_tile = x_tile + TILE;
    float *joined = reinterpret_cast<float *>(shared + FAR_WARPS * 2 * TILE); /* [P,P+8] */
    int head = (int)(blockIdx.x / parts), block = (int)(blockIdx.x % parts);
    RippleHead o = ripple_head(first_head + head, s.N, s.H, s.D, s.F, s.rings.G);
    const real *x = phi + (BACKWARD ? o.q : o.k), *y = values + (BACKWARD ? o.y : o.v);
    int first = (block * FAR_WARPS + warp_id()) * span, end = first + span < s.N ? first + span : s.N;
    FragmentC sum[P / TILE_M][P / TILE_N + 1];
#pragma unroll
    for (int m = 0; m < P / TILE_M; m++) clear(sum[m]);

    for (int n0 = first; n0 < end; n0 += FAR_STEP) {
        auto token = [&](int i) { return n0 + i < end ? n0 + i : -1; };
        int mine = token(lane_id());
        float scale = 1, last = mine >= 0; /* of the lane's token: the factor of y, and the term of z */
        if (BACKWARD && mine >= 0) {
            scale = base_of(s, o, alpha, mine) / den[o.den + mine * o.den_row];
            last = -scale * delta[(size_t)head * s.N + mine];
        }
        warp_sync();
        load_tokens<P>(x_tile, x, o.phi_row, s.F, s.wide, token, FAR_STEP, lane_id(), WARP);
        if (BACKWARD) load_scaled<P>(y_tile, y, o.y_row, s.D, s.wide, n0, end, scale);
        else load_tokens<P>(y_tile, y, o.qkv_row, s.D, s.wide, token, FAR_STEP, lane_id(), WARP);
        copy_commit();
        for (int j = 0; j < TILE_N; j++) y_tile[lane_id() * LD + P + j] = to_real(j ? 0 : last);
        copy_wait<0>();
        warp_sync();
        add_outer<P>(sum, x_tile, y_tile);
    }
    for (int w = 0; w < FAR_WARPS; w++) {
        if (w == warp_id())
#pragma unroll
            for (int m = 0; m < P / TILE_M; m++)
#pragma unroll
                for (int n = 0; n <= P / TILE_N; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        int f = m * TILE_M + fragment_c_row(i), d = n * TILE_N + fragment_c_column(i);
                        float *to = joined + f * far_ld(P) + d;
                        *to = (w ? *to : 0) + sum[m][n].x[i];
                    }
        block_sync();
    }
    for (int at = threadIdx.x; at < far_size(P); at += blockDim.x)
        part[(size_t)blockIdx.x * far_size(P) + at] = joined[at];
}

/* S [heads,size] = sum of part [heads,parts,size], in order. */
__global__ void __launch_bounds__(256)
    ripple_join_far_kernel(float *S, const float *part, int parts, int size, size_t count) {
    size_t at = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (at >= count) return;
    const float *from = part + at / size * parts * size + at % size;
    float sum = 0;
    for (int p = 0; p < parts; p++) sum += from[(size_t)p * size];
    S[at] = sum;
}

/* == Launches ===================================================================================================== */

/* Workspace of the heads of one launch. */
struct Far {
    int parts, span;
    float *part, *S, *dS, *delta; /* [heads,parts,P,P+8] [heads,P,P+8] twice [heads,N] */
};

static Far far_of(const PatchShape &s, int P, int heads, float *base, size_t *bytes) {
    Far far = {};
    size_t next = 0, size = s.far ? (size_t)heads * far_size(P) : 0;
    int quarter = (int)ceil_div(ceil_div(s.N, FAR_WARPS), FAR_STEP) * FAR_STEP;
    far.span = quarter < FAR_SPAN ? quarter : FAR_SPAN;
    far.parts = (int)ceil_div(s.N, FAR_WARPS * far.span);
    auto take = [&](size_t floats) {
        float *at = base ? base + next : NULL;
        next += floats;
        return at;
    };
    far.S = take(size);
    far.dS = take(size);
    far.delta = take((size_t)heads * s.N);
    far.part = take(far.parts > 1 ? far.parts * size : 0);
    *bytes = next * sizeof(float);
    return far;
}

template <int P, bool BACKWARD>
static void sum_far(float *S, const real *phi, const real *values, const float *den, const float *alpha, const Far &far,
                    const PatchShape &s, int first, int heads) {
    size_t shared = (size_t)FAR_WARPS * 2 * FAR_STEP * tile_ld(P) * sizeof(real) + far_size(P) * sizeof(float);
    float *part = far.parts > 1 ? far.part : S;
    LAUNCH((ripple_far_sums_kernel<P, BACKWARD>), (unsigned)heads * far.parts, FAR_WARPS * WARP, shared, part, phi,
           values, far.delta, den, alpha, s, first, far.parts, far.span);
    size_t count = (size_t)heads * far_size(P);
    if (far.parts > 1)
        LAUNCH(ripple_join_far_kernel, (unsigned)ceil_div(count, 256), 256, 0, S, part, far.parts, far_size(P), count);
}

#endif
