/* The emulator itself: wrong kernels must fail in it, each with its own message, and right ones must not; its
 * arithmetic must have the errors of a GPU's. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

extern "C" {
#include <cmocka.h>

#include "kernels/kernels.h"
}
#include "kernels/cuda/divisor.cuh"
#include "tests/emulate/emulate.h"

/* Launches a kernel and waits for it. */
#define RUN(kernel, grid, block, shared_bytes, ...)                \
    do {                                                           \
        LAUNCH(kernel, grid, block, shared_bytes, __VA_ARGS__);    \
        device_synchronize();                                      \
    } while (0)

static float *numbers(size_t n) { return static_cast<float *>(device_malloc(n * sizeof(float), "test")); }

static std::vector<float> taken(float *x, size_t n) {
    std::vector<float> host(n);
    device_download(host.data(), x, n * sizeof(float));
    device_free(x);
    return host;
}

/* == Threads that meet ============================================================================================= */

__global__ void barrier_and_exchange_kernel(float *y) {
    if (threadIdx.x < 16) block_sync();
    else y[threadIdx.x] = warp_shuffle(1.0f, 20);
}
__global__ void two_barriers_kernel(float *y) {
    if (threadIdx.x < 32) {
        y[threadIdx.x] = 1;
        block_sync();
    } else {
        block_sync();
        y[threadIdx.x] = y[threadIdx.x - 32];
    }
}
__global__ void two_shuffles_kernel(float *y) {
    float x = (float)threadIdx.x;
    if (lane_id() < 16) y[threadIdx.x] = warp_shuffle(x, 3);
    else y[threadIdx.x] = warp_shuffle(x, 4) + 1;
}

/* A function like warp_sum: its shuffle occurs once in the program's text, and once in its code if it is not
 * inlined. */
static __attribute__((noinline)) float from_first(float x) { return warp_shuffle(x, 0); }
__global__ void two_callers_kernel(float *y) {
    float x = (float)threadIdx.x;
    if (lane_id() < 16) y[threadIdx.x] = from_first(x);
    else y[threadIdx.x] = 2 * from_first(x + 1);
}

__global__ void shuffle_with_exited_kernel(float *y) {
    if (lane_id() == 5) return;
    y[threadIdx.x] = warp_shuffle(1.0f, 5);
}
__global__ void shuffle_kernel(float *y, int lane) { y[threadIdx.x] = warp_shuffle((float)threadIdx.x, lane); }

__global__ void product_kernel(float *y) {
    float c[4] = {};
    const uint32_t a[4] = {}, b[2] = {};
    if (lane_id() == 31) return;
    mma_bf16(c, a, b);
    y[threadIdx.x] = c[0];
}
__global__ void float_product_kernel(float *y) {
    float c[4] = {};
    const float a[8] = {}, b[4] = {};
    mma_float(c, a, b);
    y[threadIdx.x] = c[0];
}
__global__ void matrix_load_kernel(float *y) {
    SHARED(uint16_t, rows);
    uint32_t r[4];
    rows[threadIdx.x] = 0;
    block_sync();
    matrix_load(r, rows);
    y[threadIdx.x] = (float)r[0];
}

/* == Copies ======================================================================================================= */

enum { NOT_COMMITTED, NOT_WAITED, WAITED_FOR_OLDER, WAITED };

__global__ void copy_kernel(float *y, const float *x, int way) {
    SHARED(float, shared);
    copy_async_16(shared + 4 * threadIdx.x, x + 4 * threadIdx.x);
    if (way != NOT_COMMITTED) copy_commit();
    if (way == WAITED_FOR_OLDER) copy_wait<1>();
    if (way == WAITED || way == NOT_COMMITTED) copy_wait<0>();
    block_sync();
    y[threadIdx.x] = shared[4 * threadIdx.x];
}
__global__ void early_read_kernel(float *y, const float *x) {
    SHARED(float, shared);
    copy_async_16(shared + 4 * threadIdx.x, x + 4 * threadIdx.x);
    copy_commit();
    y[threadIdx.x] = shared[4 * threadIdx.x];
    copy_wait<0>();
}
__global__ void crooked_copy_kernel(const float *x) {
    SHARED(float, shared);
    copy_async_16(shared, x + 1);
    copy_commit();
    copy_wait<0>();
}

/* == Wrong kernels fail =========================================================================================== */

static void barrier_and_exchange() { RUN(barrier_and_exchange_kernel, 1, 32, 0, numbers(32)); }
static void two_barriers() { RUN(two_barriers_kernel, 1, 64, 0, numbers(64)); }
static void two_shuffles() { RUN(two_shuffles_kernel, 1, 32, 0, numbers(32)); }
static void two_callers() { RUN(two_callers_kernel, 1, 32, 0, numbers(32)); }
static void shuffle_with_exited() { RUN(shuffle_with_exited_kernel, 1, 64, 0, numbers(64)); }
static void shuffle_beyond_block() { RUN(shuffle_kernel, 1, 20, 0, numbers(20), 25); }
static void shuffle_beyond_warp() { RUN(shuffle_kernel, 1, 64, 0, numbers(64), 32); }
static void product_with_exited() { RUN(product_kernel, 1, 32, 0, numbers(32)); }
static void product_of_few() { RUN(float_product_kernel, 1, 48, 0, numbers(48)); }
static void matrix_load_of_few() { RUN(matrix_load_kernel, 1, 16, 32, numbers(16)); }
static void copy_not_committed() { RUN(copy_kernel, 2, 32, 512, numbers(32), numbers(128), NOT_COMMITTED); }
static void copy_not_waited() { RUN(copy_kernel, 2, 32, 512, numbers(32), numbers(128), NOT_WAITED); }
static void copy_waited_too_little() { RUN(copy_kernel, 2, 32, 512, numbers(32), numbers(128), WAITED_FOR_OLDER); }
static void crooked_copy() { RUN(crooked_copy_kernel, 1, 1, 16, numbers(8)); }

/* Whether `wrong`, run in a child process, ends it with this message. */
static bool fails(void (*wrong)(), const char *message) {
    int ends[2];
    char text[4096];
    size_t n = 0;
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        wrong();
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t more; (more = read(ends[0], text + n, sizeof text - 1 - n)) > 0;) n += (size_t)more;
    text[n] = 0;
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    bool ok = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strstr(text, message);
    printf("  %-60s %s\n", message, ok ? "ok" : "FAILED");
    if (!ok) printf("%s", text);
    return ok;
}

static void test_meetings(void **) {
    static const char other[] = "lanes of a warp meet at different places", lane[] = "asks a lane that is not there",
                      few[] = "a matrix instruction in a warp of fewer than 32";
    bool ok = fails(barrier_and_exchange, "wait at a barrier that others never reach");
    ok &= fails(two_barriers, "threads of a block meet at different barriers");
    ok &= fails(two_shuffles, other);
    ok &= fails(two_callers, other);
    ok &= fails(shuffle_with_exited, lane);
    ok &= fails(shuffle_beyond_block, lane);
    ok &= fails(shuffle_beyond_warp, lane);
    ok &= fails(product_with_exited, few);
    ok &= fails(product_of_few, few);
    ok &= fails(matrix_load_of_few, few);
    assert_true(ok);
}

static void test_copies(void **) {
    static const char pending[] = "a block ends before its copies have arrived";
    bool ok = fails(copy_not_committed, pending);
    ok &= fails(copy_not_waited, pending);
    ok &= fails(copy_waited_too_little, pending);
    ok &= fails(crooked_copy, "address not 16-byte aligned");
    assert_true(ok);
    float *x = numbers(128), *y = numbers(32);
    RUN(early_read_kernel, 1, 32, 512, y, x);
    for (float one : taken(y, 32)) assert_true(one != one);
    y = numbers(32);
    RUN(copy_kernel, 1, 32, 512, y, x, WAITED);
    for (float one : taken(y, 32)) assert_true(one == 0);
    device_free(x);
}

/* == Right kernels succeed ========================================================================================= */

/* Warps take different branches, some lanes exit, and the others continue. */
__global__ void right_kernel(float *y) {
    float x = (float)threadIdx.x;
    if (warp_id() == 0) x = warp_shuffle(x, 7);
    else x = from_first(x) + from_first(1);
    block_sync();
    y[threadIdx.x] = x;
    if (lane_id() >= 8) return;
    for (int mask = 4; mask; mask /= 2) x += warp_shuffle_xor(x, mask);
    y[threadIdx.x] = x;
}

static void test_right(void **) {
    float *y = numbers(64);
    RUN(right_kernel, 3, 64, 0, y);
    std::vector<float> got = taken(y, 64);
    for (int i = 0; i < 64; i++) {
        float want = (i < 32 ? 7.0f : 33.0f) * (i % 32 < 8 ? 8 : 1);
        assert_true(got[i] == want);
    }
}

/* == Order of blocks =============================================================================================== */

__global__ void order_kernel(float *y, float *next) {
    y[blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)] = next[0]++;
}

/* Every block runs once, and the order of blocks differs between launches. */
static void test_blocks(void **) {
    enum { BLOCKS = 3 * 5 * 2 };
    std::vector<float> first;
    int moved = 0;
    for (int launch = 0; launch < 4; launch++) {
        float *y = numbers(BLOCKS), *next = numbers(1);
        RUN(order_kernel, dim3(3, 5, 2), 1, 0, y, next);
        std::vector<float> at = taken(y, BLOCKS);
        device_free(next);
        int seen[BLOCKS] = {};
        for (float i : at) seen[(int)i]++;
        for (int one : seen) assert_int_equal(one, 1);
        if (!launch) first = at;
        moved += at != first;
    }
    assert_true(moved >= 2);
}

__global__ void missing_barrier_kernel(float *y) {
    SHARED(float, x);
    x[threadIdx.x] = 1;
    y[threadIdx.x] = x[(threadIdx.x + 1) % blockDim.x] + x[(threadIdx.x + blockDim.x - 1) % blockDim.x];
}

static void test_missing_barrier(void **) {
    float *y = numbers(64);
    RUN(missing_barrier_kernel, 1, 64, 64 * sizeof(float), y);
    int wrong = 0;
    for (float one : taken(y, 64)) wrong += one != 2;
    assert_true(wrong > 0);
}

/* Blocks write to one address in the same launch: each block stores its number, and after a barrier copies what it
 * finds there. */
__global__ void between_blocks_kernel(int *y, int *last) {
    if (threadIdx.x == 0) last[0] = (int)blockIdx.x;
    block_sync();
    if (threadIdx.x == 0) y[blockIdx.x] = last[0];
}

/* How many of 8 blocks do not find their own number. */
static int surprised(int residents) {
    enum { BLOCKS = 8 };
    int at_start = emulate_residents, *y = reinterpret_cast<int *>(numbers(BLOCKS)),
        *last = reinterpret_cast<int *>(numbers(1)), got[BLOCKS], wrong = 0;
    emulate_residents = residents;
    RUN(between_blocks_kernel, BLOCKS, 64, 0, y, last);
    emulate_residents = at_start;
    device_download(got, y, sizeof got);
    for (int i = 0; i < BLOCKS; i++) wrong += got[i] != i;
    device_free(y);
    device_free(last);
    return wrong;
}

/* Blocks that run one after the other always find their own number. */
static void test_between_blocks(void **) {
    int wrong = 0;
    assert_true(emulate_residents > 1);
    for (int launch = 0; launch < 10; launch++) {
        assert_int_equal(surprised(1), 0);
        wrong += surprised(emulate_residents) > 0;
    }
    printf("  found in %d launches of 10\n", wrong);
    assert_true(wrong >= 5);
}

/* == Arithmetic =================================================================================================== */

/* c + n products of a and b. */
static float summed(float c, float a, float b, int n) {
    float sums[TENSOR_COLUMNS] = {c}, left[TENSOR_TERMS] = {}, right[TENSOR_TERMS][TENSOR_COLUMNS] = {};
    for (int k = 0; k < n; k++) {
        left[k] = a;
        right[k][0] = b;
    }
    emulate_tensor_core(sums, left, right);
    assert_true(sums[1] == 0 || !isfinite(a));
    return sums[0];
}

static void test_tensor_core(void **) {
    const float ulp = 0x1p-23f; /* of 1 */
    assert_true(summed(0, 1.5f, 1.5f, 16) == 36);
    assert_true(summed(1, 0x1p-12f, 0x1p-13f, 16) == 1 + 4 * ulp); /* a term in the last extra bit */
    assert_true(summed(1, 0x1p-13f, 0x1p-13f, 16) == 1);           /* terms below it, which together are 2 ulp */
    assert_true(summed(1, 0x1.8p-12f, 0x1p-12f, 1) == 1);          /* 0.75 ulp is cut off, not rounded */
    assert_true(summed(-1, -0x1.8p-12f, 0x1p-12f, 1) == -1);
    assert_true(summed(1, -0x1p-12f, 0x1p-13f, 1) == 1 - ulp / 2); /* below 1 floats are twice as dense */
    assert_true(summed(0x1p-30f, -1, 1, 1) == -1);                 /* the accumulator is shifted, too */
    assert_true(summed(0, 0, 5, 16) == 0 && summed(3, 0, 0, 16) == 3);
    assert_true(summed(0, INFINITY, 1, 1) == INFINITY);
    float nan = summed(1, NAN, 1, 1);
    assert_true(nan != nan);
}

/* The matrix instruction adds in this way. */
__global__ void truncated_kernel(float *y) {
    float c[4] = {1, 1, 1, 1};
    uint32_t pair = bf16_pair(0x1p-13f, 0x1p-13f);
    const uint32_t a[4] = {pair, pair, pair, pair}, b[2] = {pair, pair};
    mma_bf16(c, a, b);
    y[threadIdx.x] = c[lane_id() % 4];
}
static void test_matrix_instruction(void **) {
    float *y = numbers(32);
    RUN(truncated_kernel, 1, 32, 0, y);
    for (float one : taken(y, 32)) assert_true(one == 1);
}

/* The product of floats against the definition of the layout, lane by lane (kernels/cuda/fragments.cuh). */
__global__ void whole_float_product_kernel(float *y, const float *a, const float *b) {
    int g = lane_id() / 4, t = lane_id() % 4;
    float mine[8], other[4], c[4];
    for (int i = 0; i < 8; i++) mine[i] = a[(g + 8 * (i / 2 % 2)) * 16 + 2 * t + i % 2 + 8 * (i / 4)];
    for (int i = 0; i < 4; i++) other[i] = b[(2 * t + i % 2 + 8 * (i / 2)) * 8 + g];
    for (int i = 0; i < 4; i++) c[i] = (float)i;
    mma_float(c, mine, other);
    for (int i = 0; i < 4; i++) y[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = c[i];
}
static void test_float_product(void **) {
    enum { A = 16 * 16, B = 16 * 8, C = 16 * 8 };
    float *a = numbers(A), *b = numbers(B), *y = numbers(C), host_a[A], host_b[B];
    for (int i = 0; i < A; i++) host_a[i] = (float)(i * 37 % 101 - 50); /* the sums are exact */
    for (int i = 0; i < B; i++) host_b[i] = (float)(i * 53 % 89 - 44);
    device_upload(a, host_a, sizeof host_a);
    device_upload(b, host_b, sizeof host_b);
    RUN(whole_float_product_kernel, 1, 32, 0, y, a, b);
    std::vector<float> got = taken(y, C);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            float want = (float)(j % 2 + 2 * (i / 8));
            for (int k = 0; k < 16; k++) want += host_a[i * 16 + k] * host_b[k * 8 + j];
            assert_true(got[i * 8 + j] == want);
        }
    device_free(a);
    device_free(b);
}

/* The distance of got from want in units of want's last place. */
static double ulps(float got, double want) { return fabs(got - want) / ldexp(1, ilogb(want) - 23); }

static void test_special_functions(void **) {
    double exp2_worst = 0, reciprocal_worst = 0, sine_worst = 0, cosine_worst = 0;
    for (int i = 1; i < 20000; i++) {
        float x = (float)(i - 10000.5) / 777, turn = x / 4;
        exp2_worst = fmax(exp2_worst, ulps(emulate_exp2(x), exp2((double)x)));
        reciprocal_worst = fmax(reciprocal_worst, ulps(emulate_reciprocal(x), 1 / (double)x));
        sine_worst = fmax(sine_worst, fabs(emulate_sine(turn) - sin((double)turn)));
        cosine_worst = fmax(cosine_worst, fabs(emulate_cosine(turn) - cos((double)turn)));
        assert_true(emulate_exp2(x) == emulate_exp2(x));
    }
    printf("  2^x off by %.2f ulp, 1/x by %.2f, sine by %.1e, cosine by %.1e\n", exp2_worst, reciprocal_worst, sine_worst,
           cosine_worst);
    assert_true(exp2_worst > 1.5 && exp2_worst <= 2);
    assert_true(reciprocal_worst > 0.75 && reciprocal_worst <= 1);
    assert_true(sine_worst > 2e-7 && sine_worst < 4.2e-7 && cosine_worst > 2e-7 && cosine_worst < 4.8e-7);
    assert_true(emulate_exp2(0) == 1 && emulate_exp2(1e-40f) == 1 && emulate_exp2(-126.5f) == 0);
    assert_true(emulate_exp2(-INFINITY) == 0 && emulate_exp2(128) == INFINITY);
    assert_true(emulate_reciprocal(1e-40f) == INFINITY && emulate_reciprocal(-0.0f) == -INFINITY);
    assert_true(emulate_reciprocal(0x1.8p126f) == 0 && emulate_reciprocal(INFINITY) == 0);
}

/* 1 + 1/512 is not a bfloat16 number: what remains after subtracting 1 shows whether a parameter was rounded. */
static void test_rounded_parameters(void **) {
    const float rest = 0x1p-9f, biases[] = {0, 1 + rest}, ones[] = {1, 1};
    const float weights[] = {1 + rest, -1, -1, 0}, turned[] = {1 + rest, 0, -1, 0};
    const float want = sizeof(real) == 2 ? 0 : rest;
    LinearShape shape = {1, 2, 2, 0};
    real *x = (real *)device_malloc(2 * sizeof(real), "test"), *y = (real *)device_malloc(2 * sizeof(real), "test");
    float *w = numbers(4), *b = numbers(2), got[2];
    device_upload(w, weights, sizeof weights);
    device_upload(b, biases, sizeof biases);
    real_upload(x, ones, 2);
    linear_forward(y, x, w, b, &shape);
    device_synchronize();
    real_download(got, y, 2);
    assert_true(got[0] == want && got[1] == want);
    device_upload(w, turned, sizeof turned);
    real_upload(y, ones, 2);
    linear_backward_input(x, y, w, &shape);
    device_synchronize();
    real_download(got, x, 2);
    assert_true(got[0] == want && got[1] == 0);
    device_free(x);
    device_free(y);
    device_free(w);
    device_free(b);
}

/* Divisions are exact where a rounded quotient would first be wrong: next to multiples, and up to 2^31 - 1. */
static void test_divisors(void **) {
    for (int i = 1; i < 4000; i++) {
        int by = i < 2000 ? i : i < 3000 ? 0x7fffffff - (i - 2000) : (1 << i % 31) + i % 3 - (i % 31 > 1);
        Divisor divisor = divisor_of(by);
        for (int k = 0; k < 600; k++) {
            int64_t multiple = (int64_t)(0x7fffffff / by) * (k / 3) / 199 * by + k % 3 - 1;
            int n = multiple < 0 ? 0 : multiple > 0x7fffffff ? 0x7fffffff : (int)multiple, rest;
            assert_int_equal(divided(n, divisor, &rest), n / by);
            assert_int_equal(rest, n % by);
        }
    }
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meetings),          cmocka_unit_test(test_copies),
        cmocka_unit_test(test_right),             cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_missing_barrier),   cmocka_unit_test(test_between_blocks),
        cmocka_unit_test(test_tensor_core),       cmocka_unit_test(test_matrix_instruction),
        cmocka_unit_test(test_float_product),     cmocka_unit_test(test_special_functions),
        cmocka_unit_test(test_rounded_parameters), cmocka_unit_test(test_divisors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
