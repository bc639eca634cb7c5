/* The counts of bytes that kernels move, for kernels whose bytes are known. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>

#include "kernels/kernels.h"
}
#include "tests/emulate/emulate.h"
#include "tests/emulate/traffic.h"

enum { THREADS = 64, BLOCKS = 3, N = THREADS * BLOCKS };

static float *x, *y;

static void assert_traffic(size_t asked, size_t moved, size_t floor) {
    device_synchronize();
    Traffic t = traffic_end();
    assert_int_equal(t.asked, asked);
    assert_int_equal(t.moved, moved);
    assert_int_equal(t.floor, floor);
}

/* Reads and writes of one address count separately; shared memory does not count. */
__global__ void add_kernel(float *to, const float *from) {
    SHARED(float, shared);
    shared[threadIdx.x] = from[blockIdx.x * THREADS + threadIdx.x];
    block_sync();
    to[blockIdx.x * THREADS + threadIdx.x] += shared[THREADS - 1 - threadIdx.x];
}
static void test_once(void **) {
    LAUNCH(add_kernel, BLOCKS, THREADS, THREADS * sizeof(float), y, x);
    assert_traffic(3 * N * sizeof(float), 3 * N * sizeof(float), 3 * N * sizeof(float));
}

/* All threads of all blocks read all of x. */
__global__ void sum_kernel(float *to, const float *from) {
    float sum = 0;
    for (int i = 0; i < N; i++) sum += from[i];
    to[blockIdx.x * THREADS + threadIdx.x] = sum;
}
static void test_again(void **) {
    LAUNCH(sum_kernel, BLOCKS, THREADS, 0, y, x);
    assert_traffic((N + 1) * N * sizeof(float), (BLOCKS + 1) * N * sizeof(float), 2 * N * sizeof(float));
}

/* Reads one number of each sector. */
__global__ void apart_kernel(float *to, const float *from) {
    to[blockIdx.x * THREADS + threadIdx.x] = from[8 * (threadIdx.x % (N / 8))];
}
static void test_sectors(void **) {
    LAUNCH(apart_kernel, 1, THREADS, 0, y, x);
    assert_traffic(2 * THREADS * sizeof(float), N / 8 * 32 + THREADS * sizeof(float),
                   (N / 8 + THREADS) * sizeof(float));
}

/* Copies of 16 bytes, also asynchronous ones to shared memory. */
__global__ void copies_kernel(float *to, const float *from) {
    SHARED(float, shared);
    copy_async_16(shared + 4 * threadIdx.x, from + 4 * threadIdx.x);
    copy_commit();
    copy_wait<0>();
    copy_16(to + 4 * threadIdx.x, shared + 4 * threadIdx.x);
}
static void test_copies(void **) {
    LAUNCH(copies_kernel, 1, N / 4, N * sizeof(float), y, x);
    assert_traffic(2 * N * sizeof(float), 2 * N * sizeof(float), 2 * N * sizeof(float));
}

/* Blocks update the same number, or read or write what another block writes, without synchronisation. */
enum { RACE_ADD, RACE_READ, RACE_BEFORE, RACE_NONE };
__global__ void race_kernel(float *to, int how) {
    if (threadIdx.x) return;
    if (how == RACE_ADD) to[0] += 1;
    if (how == RACE_READ) to[2 + blockIdx.x] = to[3 + blockIdx.x];
    if (how == RACE_BEFORE) to[4] = to[blockIdx.x ? 4 : 8];
    if (how == RACE_NONE) to[8 * blockIdx.x] += to[8 * blockIdx.x + 1];
}
static bool races(int how) {
    int ends[2], status;
    char text[256];
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        LAUNCH(race_kernel, BLOCKS, THREADS, 0, y, how);
        device_synchronize();
        _exit(0);
    }
    close(ends[1]);
    ssize_t n = read(ends[0], text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    printf("  %s", n > 0 ? text : "no race\n");
    return WIFSIGNALED(status) && strstr(text, "emulated race_kernel: blocks ");
}
static void test_races(void **) {
    assert_true(races(RACE_ADD));
    assert_true(races(RACE_READ));
    assert_true(races(RACE_BEFORE));
    assert_true(!races(RACE_NONE));
}

int main(void) {
    kernels_init();
    x = static_cast<float *>(device_malloc(N * sizeof *x, "test"));
    y = static_cast<float *>(device_malloc(N * sizeof *y, "test"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_once),
        cmocka_unit_test(test_again),
        cmocka_unit_test(test_sectors),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_races),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
