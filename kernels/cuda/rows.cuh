/* For kernels that are limited by memory bandwidth: accesses of 16 bytes, and sums over many rows in a fixed order, so
 * that every run gives the same bits. */
#ifndef VIT_KERNELS_CUDA_ROWS_CUH
#define VIT_KERNELS_CUDA_ROWS_CUH

#include <device.cuh>

#include <stddef.h>
#include <string.h>

/* The number of activations in 16 bytes, the widest access, which a warp needs for full memory bandwidth. */
enum { WIDE = 16 / sizeof(real) };

/* == Pieces of a row ============================================================================================== */

/* True if rows of `length` activations at all of these addresses can be read WIDE elements at a time.  NULL is
 * allowed. */
template <typename... T>
static inline bool is_wide(size_t length, const T *...p) {
    return length % WIDE == 0 && (((uintptr_t)p % 16 == 0) && ...);
}

template <typename T, int N>
struct alignas(N * sizeof(T)) Piece {
    T x[N];
};

/* Copies N elements in one access; both addresses are aligned to its size. */
template <int N, typename T>
DEVICE void copy(T *to, const T *from) {
    if constexpr (N * sizeof(T) == 16) copy_16(to, from);
    else *reinterpret_cast<Piece<T, N> *>(to) = *reinterpret_cast<const Piece<T, N> *>(from);
}

/* How many of W numbers are in one access. */
template <int W, typename T>
constexpr int per_access() {
    return W * sizeof(T) < 16 ? W : (int)(16 / sizeof(T));
}

DEVICE float rounded(float x, const float *) { return x; }
#ifndef VIT_FP32
DEVICE real rounded(float x, const real *) { return to_real(x); }
#endif

/* Reads W numbers from memory that is aligned to min(W * sizeof(T), 16) bytes; T is real or float. */
template <int W, typename T>
DEVICE void load(float (&v)[W], const T *p) {
    constexpr int N = per_access<W, T>();
#pragma unroll
    for (int i = 0; i < W; i += N) {
        Piece<T, N> piece;
        copy<N>(piece.x, p + i);
#pragma unroll
        for (int j = 0; j < N; j++) v[i + j] = to_float(piece.x[j]);
    }
}

/* The reverse, rounded; bfloat16 two at a time. */
template <int W, typename T>
DEVICE void store(T *p, const float (&v)[W]) {
    constexpr int N = per_access<W, T>();
    if constexpr (N * sizeof(T) == 16) {
#pragma unroll
        for (int i = 0; i < W; i += N) {
            uint32_t word[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if constexpr (sizeof(T) == 2) word[k] = bf16_pair(v[i + 2 * k], v[i + 2 * k + 1]);
                else memcpy(&word[k], &v[i + k], sizeof word[k]);
            }
            store_16(p + i, word);
        }
    } else {
#pragma unroll
        for (int i = 0; i < W; i++) p[i] = rounded(v[i], p);
    }
}

/* i / d, in 32 bits where they are enough: 64 bits are rarely needed and take five times as long. */
DEVICE size_t quotient(size_t i, int d) { return i >> 32 ? i / (size_t)d : (unsigned)i / (unsigned)d; }

static inline size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }
static inline unsigned blocks_for(size_t work, size_t each, size_t most) {
    size_t blocks = ceil_div(work, each);
    return (unsigned)(blocks < most ? blocks : most);
}

/* == Sums over rows =============================================================================================== */

/* Targets of column sums: the first `columns[0]` columns go to the first target, the next ones to the second, ... */
struct SumTargets {
    float *to[3];
    int columns[3];
};

/* to[0][j] += sum_p parts[p][j], and the next columns likewise; rows of parts lie `row` apart. A warp adds every eighth
 * part of 32 columns, then the eight sums are added in order. */
template <int WARPS>
__global__ void __launch_bounds__(WARPS *WARP)
    add_parts_kernel(SumTargets targets, const float *__restrict__ parts, int count, int columns, int row) {
    SHARED(float, sums); /* [WARPS][WARP] */
    int j = (int)blockIdx.x * WARP + lane_id();
    float sum = 0;
    if (j < columns)
#pragma unroll 8
        for (int p = warp_id(); p < count; p += WARPS) sum += parts[(size_t)p * row + j];
    sums[threadIdx.x] = sum;
    block_sync();
    if (warp_id() || j >= columns) return;
    for (int w = 1; w < WARPS; w++) sum += sums[w * WARP + lane_id()];
#pragma unroll
    for (int t = 0; t < 3; t++) {
        if (j >= 0 && j < targets.columns[t]) targets.to[t][j] += sum;
        j -= targets.columns[t];
    }
}

/* parts [count,row]. */
static inline void add_parts_to(SumTargets targets, const float *parts, int count, int row) {
    constexpr int WARPS = 8;
    int columns = targets.columns[0] + targets.columns[1] + targets.columns[2];
    LAUNCH((add_parts_kernel<WARPS>), (unsigned)ceil_div(columns, WARP), WARPS * WARP, WARPS * WARP * sizeof(float),
           targets, parts, count, columns, row);
}

/* a[j] += sum_p parts[p][j] for the first M columns, b, which may be NULL, likewise for the next M. */
static inline void add_parts(float *a, float *b, const float *parts, int count, int M) {
    add_parts_to({{a, b}, {M, b ? M : 0}}, parts, count, b ? 2 * M : M);
}

#endif
