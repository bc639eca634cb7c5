/* Device primitives: everything a kernel of this backend uses beyond plain C++.  tests/emulate/device.cuh implements
 * the same names with fibers on the CPU, so that the very same .cu files run under a sanitizer where there is no GPU;
 * the include path chooses.  A kernel therefore uses no CUDA built-in but threadIdx, blockIdx, blockDim and gridDim.
 *
 *   LAUNCH(kernel, grid, block, shared_bytes, arguments...)   templates in parentheses: LAUNCH((k<4>), ...)
 *   SHARED(type, name)                    the block's dynamic shared memory
 *   block_sync, warp_sync                 barriers; every thread of the block or warp arrives
 *   warp_shuffle_xor, warp_shuffle        exchange within a warp
 *   to_float, to_real, bf16_pair          conversions of an activation, round to nearest even
 *   fast_exp2, fast_reciprocal            one instruction each, within 2 ulp; denormals become zero
 *   fast_sincos                           absolute error 1e-6 up to |x| = 1e4; exact to 2 ulp in an FP32 build
 *   copy_16, store_16                     16 bytes at once, the addresses aligned
 *   copy_async_16, copy_commit, copy_wait 16 bytes global to shared, aligned, completed by copy_wait
 *   copy_async_16_or_zero                 the same, or 16 zero bytes and no read
 *   matrix_load, matrix_load_transposed   four 8 x 8 tiles of 16-bit elements from shared memory (fragments.cuh)
 *   mma_bf16, mma_float                   the matrix instruction and its twin for floats (kernels use fragments.cuh) */
#ifndef VIT_KERNELS_CUDA_DEVICE_CUH
#define VIT_KERNELS_CUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels/cuda/runtime.h"
#include "real.h"

#define LAUNCH(kernel, grid, block, shared_bytes, ...)                             \
    do {                                                                           \
        launch_prepare((const void *)kernel, shared_bytes);                        \
        kernel<<<grid, block, shared_bytes, kernels_stream>>>(__VA_ARGS__);        \
        launch_check(#kernel, __FILE__, __LINE__);                                 \
    } while (0)

#define SHARED(type, name)                                  \
    extern __shared__ __align__(128) unsigned char shared_[]; \
    type *name = reinterpret_cast<type *>(shared_)

#define DEVICE static __device__ __forceinline__

enum { WARP = 32 };

DEVICE int lane_id() { return threadIdx.x % WARP; }
DEVICE int warp_id() { return threadIdx.x / WARP; }

/* == Barriers and exchange ======================================================================================== */

DEVICE void block_sync() { __syncthreads(); }
DEVICE void warp_sync() { __syncwarp(); }

DEVICE float warp_shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE float warp_shuffle(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
DEVICE int warp_shuffle(int x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }

/* == Conversions ================================================================================================== */

DEVICE float to_float(float x) { return x; }
DEVICE unsigned bf16_bits(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
/* Two conversions at once, the first result in the low half. */
DEVICE uint32_t bf16_pair(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return (uint32_t)__bfloat16_as_ushort(pair.y) << 16 | __bfloat16_as_ushort(pair.x);
}
#ifdef VIT_FP32
DEVICE real to_real(float x) { return x; }
#else
DEVICE float to_float(real x) { return __uint_as_float((unsigned)x.bits << 16); }
DEVICE real to_real(float x) { return {(unsigned short)bf16_bits(x)}; }
#endif

/* == Elementary functions ========================================================================================= */

DEVICE float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float fast_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#ifdef VIT_FP32
DEVICE void fast_sincos(float x, float *sine, float *cosine) { sincosf(x, sine, cosine); }
#else
/* Uses the special function unit after subtracting a whole number of turns, which is exact enough for results in
 * bfloat16. Infinity and NaN become NaN. */
DEVICE void fast_sincos(float x, float *sine, float *cosine) {
    const float round = 12582912.0f; /* 3 2^22: adding it leaves no fraction */
    float turns = __fmaf_rn(x, 0.159154943f, round) - round;
    float r = __fmaf_rn(turns, -6.28125f, x);
    r = __fmaf_rn(turns, -1.93530717958647692e-3f, r);
    *sine = __sinf(r);
    *cosine = __cosf(r);
}
#endif

/* == Copies ======================================================================================================== */

DEVICE void copy_16(void *to, const void *from) { *static_cast<uint4 *>(to) = *static_cast<const uint4 *>(from); }

/* As one number: nvcc may compile a uint4 made of single words to four stores. */
DEVICE void store_16(void *to, const uint32_t (&word)[4]) {
    uint64_t low = (uint64_t)word[1] << 32 | word[0], high = (uint64_t)word[3] << 32 | word[2];
    *static_cast<unsigned __int128 *>(to) = (unsigned __int128)high << 64 | low;
}

DEVICE void copy_async_16(void *shared, const void *global) {
    unsigned address = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
}
DEVICE void copy_async_16_or_zero(void *shared, const void *global, bool valid) {
    unsigned address = (unsigned)__cvta_generic_to_shared(shared);
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global), "r"(bytes) : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Waits until all but this thread's newest `pending` groups have arrived; a barrier makes them visible to other
 * threads. */
template <int pending>
DEVICE void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/* == The matrix instruction and its loads ========================================================================== */

/* Lanes 8 i .. 8 i + 7 give the rows of tile i, 16 aligned bytes each; lane 4 g + t gets its elements (g, 2t) and
 * (g, 2t+1) in r[i], or (2t, g) and (2t+1, g). */
DEVICE void matrix_load(uint32_t (&r)[4], const void *row) {
    unsigned address = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
DEVICE void matrix_load_transposed(uint32_t (&r)[4], const void *row) {
    unsigned address = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* c [16,8] += a [16,16] b [16,8], bfloat16 pairs in, float sums; fragments.cuh has the layout. */
DEVICE void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#include "kernels/cuda/mma_float.cuh"

#endif
