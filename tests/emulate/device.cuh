/* Device primitives for a CPU, with the names of kernels/cuda/device.cuh.  Every thread of a block is a fiber, and a
 * few blocks are resident at a time.
 *
 * These errors give a wrong number or a report of AddressSanitizer: a missing barrier, because threads run in an order
 * that changes at every barrier; a race between blocks, because they start in a random order and another block may
 * continue at a barrier (traffic.h finds races without a barrier); a read of shared memory before it is written,
 * because it is full of NaN, or an access beyond its end; a read of an asynchronous copy that was not waited for.
 * These errors end the test: threads meet at different barriers or exchanges, or some never arrive; an exchange with a
 * lane that has exited; a copy that nobody waits for; an address that is not aligned.
 *
 * The matrix instruction and the special functions have a GPU's errors (arithmetic.cpp).  The seed is VIT_TEST_SEED. */
#ifndef VIT_TESTS_EMULATE_DEVICE_CUH
#define VIT_TESTS_EMULATE_DEVICE_CUH

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <type_traits>
#include <vector>

#include "kernels/cuda/runtime.h"
#include "real.h"

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define DEVICE static inline
/* A primitive is inlined into the function that uses it, and EMULATE_PLACE is the place where that function was
 * called. */
#define EMULATE_INLINE static inline __attribute__((always_inline))
#define EMULATE_PLACE __builtin_return_address(0)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};

extern dim3 emulate_thread, emulate_block, emulate_block_dim, emulate_grid_dim;
extern void *emulate_shared;
#define threadIdx emulate_thread
#define blockIdx emulate_block
#define blockDim emulate_block_dim
#define gridDim emulate_grid_dim

/* Runs all blocks of the grid. */
void emulate_launch(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &body);

/* Enqueues a launch: the arguments are copied now, and the kernel runs when the stream reaches it. */
void emulate_enqueue(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared_bytes,
                     cudaStream_t stream, size_t argument_bytes, std::vector<const void *> pointers,
                     std::function<void()> body);

template <typename T>
static inline void emulate_pointer(std::vector<const void *> *, const T &) {}
template <typename T>
static inline void emulate_pointer(std::vector<const void *> *to, T *p) {
    to->push_back(p);
}

/* Is called like the kernel itself, so that arguments are converted to its types.  The namespace makes its type local
 * to each file, because several files have structures of the same name. */
namespace {
template <typename... T>
struct EmulatedLaunch {
    const char *name;
    void (*kernel)(T...);
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;

    void operator()(T... arguments) const {
        static_assert((std::is_trivially_copyable<T>::value && ...), "a kernel's arguments are copied as bytes");
        std::vector<const void *> pointers;
        (emulate_pointer(&pointers, arguments), ...);
        void (*run)(T...) = kernel;
        emulate_enqueue(name, reinterpret_cast<const void *>(kernel), grid, block, shared_bytes, stream,
                        (sizeof arguments + ... + 0), pointers, [=] { run(arguments...); });
    }
};
template <typename... T>
inline EmulatedLaunch<T...> emulated(const char *name, void (*kernel)(T...), dim3 grid, dim3 block,
                                     size_t shared_bytes, cudaStream_t stream) {
    return {name, kernel, grid, block, shared_bytes, stream};
}
} // namespace

#define LAUNCH(kernel, grid, block, shared_bytes, ...)                                             \
    do {                                                                                           \
        launch_prepare((const void *)kernel, shared_bytes);                                        \
        emulated(#kernel, kernel, grid, block, shared_bytes, kernels_stream)(__VA_ARGS__);         \
        launch_check(#kernel, __FILE__, __LINE__);                                                 \
    } while (0)

#define SHARED(type, name) type *name = static_cast<type *>(emulate_shared)

enum { WARP = 32 };

DEVICE int lane_id() { return threadIdx.x % WARP; }
DEVICE int warp_id() { return threadIdx.x / WARP; }

void emulate_block_sync(const void *place);
void emulate_warp_sync(const void *place);
EMULATE_INLINE void block_sync() { emulate_block_sync(EMULATE_PLACE); }
EMULATE_INLINE void warp_sync() { emulate_warp_sync(EMULATE_PLACE); }

/* Stores `mine` (at most 64 bytes), waits until all lanes have, and returns what lane `lane` stored, which stays valid
 * until the next exchange. */
const void *emulate_exchange(const void *mine, size_t bytes, int lane, const void *place);

EMULATE_INLINE float warp_shuffle(float x, int lane) {
    float y;
    memcpy(&y, emulate_exchange(&x, sizeof x, lane, EMULATE_PLACE), sizeof y);
    return y;
}
EMULATE_INLINE int warp_shuffle(int x, int lane) {
    int y;
    memcpy(&y, emulate_exchange(&x, sizeof x, lane, EMULATE_PLACE), sizeof y);
    return y;
}
EMULATE_INLINE float warp_shuffle_xor(float x, int mask) { return warp_shuffle(x, lane_id() ^ mask); }

DEVICE float to_float(float x) { return x; }
DEVICE float bf16_value(unsigned bits) {
    uint32_t word = bits << 16;
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
}
DEVICE unsigned bf16_bits(float x) {
    uint32_t word;
    memcpy(&word, &x, sizeof word);
    if (x != x) return word >> 16 | 0x40;
    return (word + 0x7fff + (word >> 16 & 1)) >> 16;
}
DEVICE uint32_t bf16_pair(float low, float high) { return bf16_bits(high) << 16 | bf16_bits(low); }
#ifdef VIT_FP32
DEVICE real to_real(float x) { return x; }
#else
DEVICE float to_float(real x) { return bf16_value(x.bits); }
DEVICE real to_real(float x) { return {(unsigned short)bf16_bits(x)}; }
#endif

float emulate_exp2(float x);
float emulate_reciprocal(float x);
float emulate_sine(float x);
float emulate_cosine(float x);
DEVICE float fast_exp2(float x) { return emulate_exp2(x); }
DEVICE float fast_reciprocal(float x) { return emulate_reciprocal(x); }
#ifdef VIT_FP32
DEVICE void fast_sincos(float x, float *sine, float *cosine) {
    *sine = sinf(x);
    *cosine = cosf(x);
}
#else
/* The same steps as in kernels/cuda/device.cuh. */
DEVICE void fast_sincos(float x, float *sine, float *cosine) {
    const float round = 12582912.0f;
    float turns = fmaf(x, 0.159154943f, round) - round;
    float r = fmaf(turns, -6.28125f, x);
    r = fmaf(turns, -1.93530717958647692e-3f, r);
    *sine = emulate_sine(r);
    *cosine = emulate_cosine(r);
}
#endif

void copy_16(void *to, const void *from);
DEVICE void store_16(void *to, const uint32_t (&word)[4]) {
    alignas(16) uint32_t aligned[4] = {word[0], word[1], word[2], word[3]};
    copy_16(to, aligned);
}
void copy_async_16(void *shared, const void *global);
void copy_async_16_or_zero(void *shared, const void *global, bool valid);
void copy_commit();
void emulate_copy_wait(int pending);
template <int pending>
DEVICE void copy_wait() {
    emulate_copy_wait(pending);
}

void emulate_matrix_load(uint32_t *r, const void *row, bool transposed, const void *place);
EMULATE_INLINE void matrix_load(uint32_t (&r)[4], const void *row) {
    emulate_matrix_load(r, row, false, EMULATE_PLACE);
}
EMULATE_INLINE void matrix_load_transposed(uint32_t (&r)[4], const void *row) {
    emulate_matrix_load(r, row, true, EMULATE_PLACE);
}

void emulate_mma(float *c, const uint32_t *a, const uint32_t *b, const void *place);
EMULATE_INLINE void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    emulate_mma(c, a, b, EMULATE_PLACE);
}
/* Runs the code of kernels/cuda/mma_float.cuh for all lanes when they have met. */
void emulate_mma_float(float *c, const float *a, const float *b, const void *place);
EMULATE_INLINE void mma_float(float (&c)[4], const float (&a)[8], const float (&b)[4]) {
    emulate_mma_float(c, a, b, EMULATE_PLACE);
}

#endif
