/* Small matrix products spread over a warp: C [16,8] += A [16,16] B [16,8].  With bfloat16 activations they are one
 * matrix instruction; with float ones (PRECISION=FP32) the same fragments are multiplied exactly, lane by lane, so a
 * kernel is written once.  The elements of lane 4 g + t are those of the instruction's layout:
 *   A  i = 0..7  row g + 8 (i/2 % 2), column 2t + i%2 + 8 (i/4)
 *   B  i = 0..3  row 2t + i%2 + 8 (i/2), column g
 *   C  i = 0..3  row g + 8 (i/2), column 2t + i%2
 * Two neighbouring C tiles have the elements of one A tile, so a product's result can be the left factor of the next
 * one without leaving the registers (fragment_a_from_c). */
#ifndef VIT_KERNELS_CUDA_FRAGMENTS_CUH
#define VIT_KERNELS_CUDA_FRAGMENTS_CUH

#include <device.cuh>

enum { TILE_M = 16, TILE_N = 8, TILE_K = 16 };

struct FragmentC {
    float x[4];
};

#ifdef VIT_FP32

struct FragmentA {
    float x[8];
};
struct FragmentB {
    float x[4];
};
template <typename Fragment>
DEVICE void fragment_put(Fragment &f, int i, float x) {
    f.x[i] = x;
}
template <typename Fragment>
DEVICE void fragment_put_two(Fragment &f, int i, float x, float y) {
    f.x[i] = x;
    f.x[i + 1] = y;
}
/* Elements i and i+1 from neighbours in memory, i even. */
template <typename Fragment>
DEVICE void fragment_put_pair(Fragment &f, int i, const real *p) {
    f.x[i] = p[0];
    f.x[i + 1] = p[1];
}

DEVICE void mma(FragmentC &c, const FragmentA &a, const FragmentB &b) { mma_float(c.x, a.x, b.x); }

#else

struct FragmentA {
    uint32_t x[4];
};
struct FragmentB {
    uint32_t x[2];
};
template <typename Fragment>
DEVICE void fragment_put(Fragment &f, int i, float x) {
    uint32_t &word = f.x[i / 2];
    word = i % 2 ? (word & 0xffffu) | bf16_bits(x) << 16 : (word & 0xffff0000u) | bf16_bits(x);
}
template <typename Fragment>
DEVICE void fragment_put_two(Fragment &f, int i, float x, float y) {
    f.x[i / 2] = bf16_pair(x, y);
}
/* p is 4-byte aligned: even columns of rows of even length. */
template <typename Fragment>
DEVICE void fragment_put_pair(Fragment &f, int i, const real *p) {
    f.x[i / 2] = *reinterpret_cast<const uint32_t *>(p);
}

DEVICE void mma(FragmentC &c, const FragmentA &a, const FragmentB &b) { mma_bf16(c.x, a.x, b.x); }

#endif

DEVICE void fragment_zero(FragmentC &c) { c.x[0] = c.x[1] = c.x[2] = c.x[3] = 0; }

/* Row and column of element i of this lane within a C tile. */
DEVICE int fragment_c_row(int i) { return lane_id() / 4 + 8 * (i / 2); }
DEVICE int fragment_c_column(int i) { return 2 * (lane_id() % 4) + i % 2; }

/* A from a row-major tile, p = &tile[0][0] of 16 x 16 elements, rows ld (even) apart. */
DEVICE FragmentA fragment_a(const real *p, int ld) {
    FragmentA a = {};
    int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < 8; i += 2) fragment_put_pair(a, i, p + (g + 8 * (i / 2 % 2)) * ld + 2 * t + 8 * (i / 4));
    return a;
}

/* A = the transpose of a row-major tile [k][m]. */
DEVICE FragmentA fragment_a_transposed(const real *p, int ld) {
    FragmentA a = {};
    int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < 8; i++)
        fragment_put(a, i, to_float(p[(2 * t + i % 2 + 8 * (i / 4)) * ld + g + 8 * (i / 2 % 2)]));
    return a;
}

/* B from a row-major tile [k][n]. */
DEVICE FragmentB fragment_b(const real *p, int ld) {
    FragmentB b = {};
    int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < 4; i++) fragment_put(b, i, to_float(p[(2 * t + i % 2 + 8 * (i / 2)) * ld + g]));
    return b;
}

/* B = the transpose of a row-major tile [n][k]: a product with rows of keys. */
DEVICE FragmentB fragment_b_transposed(const real *p, int ld) {
    FragmentB b = {};
    int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < 4; i += 2) fragment_put_pair(b, i, p + g * ld + 2 * t + 8 * (i / 2));
    return b;
}

/* A [16,16] from the C tiles of its left and right half. */
DEVICE FragmentA fragment_a_from_c(const FragmentC &left, const FragmentC &right) {
    FragmentA a = {};
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        fragment_put_two(a, i, left.x[i], left.x[i + 1]);
        fragment_put_two(a, i + 4, right.x[i], right.x[i + 1]);
    }
    return a;
}

/* == From aligned tiles =========================================================================================== */

/* As the functions above where p and its rows are 16-byte aligned (ld a multiple of 8), and two neighbouring B tiles,
 * columns 0..7 and 8..15, at a time: with bfloat16 one instruction instead of four or eight loads.  Rows an odd
 * multiple of 16 bytes apart are read without bank conflicts. */

#ifdef VIT_FP32

DEVICE FragmentA load_a(const real *p, int ld) { return fragment_a(p, ld); }
DEVICE FragmentA load_a_transposed(const real *p, int ld) { return fragment_a_transposed(p, ld); }
DEVICE void load_b(FragmentB (&b)[2], const real *p, int ld) {
    b[0] = fragment_b(p, ld);
    b[1] = fragment_b(p + TILE_N, ld);
}
DEVICE void load_b_transposed(FragmentB (&b)[2], const real *p, int ld) {
    b[0] = fragment_b_transposed(p, ld);
    b[1] = fragment_b_transposed(p + TILE_N * ld, ld);
}

#else

/* This lane's row of the four 8 x 8 tiles in one of 16 x 16, the second right of the first, or below it. */
DEVICE const real *load_row_right(const real *p, int ld) {
    int lane = lane_id();
    return p + (lane % 8 + lane / 16 * 8) * ld + lane / 8 % 2 * 8;
}
DEVICE const real *load_row_down(const real *p, int ld) { return p + lane_id() % 16 * ld + lane_id() / 16 * 8; }

DEVICE FragmentA load_a(const real *p, int ld) {
    FragmentA a;
    matrix_load(a.x, load_row_down(p, ld));
    return a;
}
DEVICE FragmentA load_a_transposed(const real *p, int ld) {
    FragmentA a;
    matrix_load_transposed(a.x, load_row_right(p, ld));
    return a;
}
DEVICE void load_b(FragmentB (&b)[2], const real *p, int ld) {
    uint32_t r[4];
    matrix_load_transposed(r, load_row_down(p, ld));
    b[0] = {{r[0], r[1]}};
    b[1] = {{r[2], r[3]}};
}
DEVICE void load_b_transposed(FragmentB (&b)[2], const real *p, int ld) {
    uint32_t r[4];
    matrix_load(r, load_row_right(p, ld));
    b[0] = {{r[0], r[1]}};
    b[1] = {{r[2], r[3]}};
}

#endif

/* == Reductions =================================================================================================== */

DEVICE float warp_sum(float x) {
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) x += warp_shuffle_xor(x, mask);
    return x;
}

DEVICE float warp_max(float x) {
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) x = fmaxf(x, warp_shuffle_xor(x, mask));
    return x;
}

/* Reductions over the four lanes that share the rows of a C tile. */
DEVICE float row_sum(float x) {
    x += warp_shuffle_xor(x, 1);
    return x + warp_shuffle_xor(x, 2);
}

DEVICE float row_max(float x) {
    x = fmaxf(x, warp_shuffle_xor(x, 1));
    return fmaxf(x, warp_shuffle_xor(x, 2));
}

/* The same value for every thread of the block; scratch [blockDim.x / 32] is free again after the call. */
DEVICE float block_sum(float x, float *scratch) {
    x = warp_sum(x);
    if (lane_id() == 0) scratch[warp_id()] = x;
    block_sync();
    float total = 0;
    for (int w = 0; w < (int)blockDim.x / WARP; w++) total += scratch[w];
    block_sync();
    return total;
}

#endif
