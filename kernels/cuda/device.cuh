/* Device primitives: everything a kernel of this backend uses beyond plain C++.  tests/emulate/device.cuh implements the
 * same names with fibers on the CPU, so that the very same .cu files run under a sanitizer where there is no GPU; the
 * include path chooses.  A kernel therefore uses no CUDA built-in but threadIdx, blockIdx, blockDim and gridDim.
 *
 *   LAUNCH(kernel, grid, block, shared_bytes, arguments...)   templates in parentheses: LAUNCH((k<4>), ...)
 *   SHARED(type, name)                    the block's dynamic shared memory
 *   block_sync, warp_sync                 barriers; every thread of the block or warp arrives
 *   warp_shuffle_xor, warp_shuffle        exchange within a warp
 *   to_float, to_real                     conversions of an activation, round to nearest even
 *   fast_exp2, fast_reciprocal            one instruction each, within 2 ulp; denormals become zero
 *   copy_async_16, copy_commit, copy_wait 16 bytes global to shared, aligned, completed by copy_wait
 *   mma_bf16                              the matrix instruction (fragments.cuh has what kernels use) */
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

/* == Conversions ================================================================================================== */

DEVICE float to_float(float x) { return x; }
DEVICE unsigned bf16_bits(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
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

/* == Asynchronous copies ========================================================================================== */

DEVICE void copy_async_16(void *shared, const void *global) {
    unsigned address = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* All but the newest `pending` groups have arrived, for this thread; a barrier makes them visible to the others. */
template <int pending>
DEVICE void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/* == The matrix instruction ======================================================================================= */

/* c [16,8] += a [16,16] b [16,8], bfloat16 pairs in, float sums; fragments.cuh has the layout. */
DEVICE void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif
