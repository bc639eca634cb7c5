/* See device.cuh: one block at a time, its threads as fibers.  Below: the device's memory, which is the host's, and plain
 * loops in place of cuBLASLt. */
#include "device.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define SWITCH_START(save, bottom, size) __sanitizer_start_switch_fiber(save, bottom, size)
#define SWITCH_FINISH(save, bottom, size) __sanitizer_finish_switch_fiber(save, bottom, size)
#else
#define SWITCH_START(save, bottom, size) ((void)(save), (void)(bottom), (void)(size))
#define SWITCH_FINISH(save, bottom, size) ((void)(save), (void)(bottom), (void)(size))
#endif

dim3 emulate_thread, emulate_block, emulate_block_dim, emulate_grid_dim;
void *emulate_shared;

/* == Fibers ======================================================================================================= */

enum { STACK_BYTES = 256 * 1024, MAX_THREADS = 1024, SLOT_BYTES = 64 };
enum State { RUNNABLE, AT_WARP, AT_BLOCK, DONE };

struct Copy {
    void *to;
    const void *from;
    int group;
};

struct Fiber {
    ucontext_t context;
    char *stack;
    void *fake_stack;
    State state;
    int exchanges, groups;
    std::vector<Copy> copies;
};

static std::vector<Fiber> fibers(MAX_THREADS);
static ucontext_t scheduler;
static void *scheduler_fake_stack;
static const void *scheduler_stack;
static size_t scheduler_stack_size;
static int current, thread_count;
static const std::function<void()> *kernel_body;
alignas(16) static unsigned char slots[2][MAX_THREADS][SLOT_BYTES];

[[noreturn]] static void fail(const char *kernel, const char *what) {
    fprintf(stderr, "emulated kernel %s: %s\n", kernel, what);
    abort();
}

static void place_thread(int i) {
    dim3 b = emulate_block_dim;
    emulate_thread = dim3(i % b.x, i / b.x % b.y, i / (b.x * b.y));
}

/* Gives the processor back to the scheduler until the barrier `state` opens. */
static void wait_at(State state) {
    int me = current;
    Fiber &f = fibers[me];
    f.state = state;
    SWITCH_START(state == DONE ? NULL : &f.fake_stack, scheduler_stack, scheduler_stack_size);
    swapcontext(&f.context, &scheduler);
    SWITCH_FINISH(f.fake_stack, &scheduler_stack, &scheduler_stack_size);
}

void block_sync() { wait_at(AT_BLOCK); }
void warp_sync() { wait_at(AT_WARP); }

static void fiber_main() {
    SWITCH_FINISH(NULL, &scheduler_stack, &scheduler_stack_size);
    (*kernel_body)();
    wait_at(DONE);
}

static void fiber_start(int i) {
    Fiber &f = fibers[i];
    if (!f.stack) f.stack = (char *)malloc(STACK_BYTES);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack;
    f.context.uc_stack.ss_size = STACK_BYTES;
    f.context.uc_link = NULL;
    makecontext(&f.context, fiber_main, 0);
    f.state = RUNNABLE;
    f.exchanges = f.groups = 0;
    f.copies.clear();
}

static void fiber_run(int i) {
    current = i;
    place_thread(i);
    SWITCH_START(&scheduler_fake_stack, fibers[i].stack, STACK_BYTES);
    swapcontext(&scheduler, &fibers[i].context);
    SWITCH_FINISH(scheduler_fake_stack, NULL, NULL);
}

/* Opens the barrier of threads first .. first+n-1 when all that still live wait at it. */
static bool barrier_opens(int first, int n, State barrier) {
    bool any = false;
    for (int i = first; i < first + n; i++) {
        if (fibers[i].state == DONE) continue;
        if (fibers[i].state != barrier) return false;
        any = true;
    }
    for (int i = first; any && i < first + n; i++)
        if (fibers[i].state == barrier) fibers[i].state = RUNNABLE;
    return any;
}

static void run_block(const char *kernel) {
    for (int i = 0; i < thread_count; i++) fiber_start(i);
    for (int turn = 0;; turn++) {
        bool ran = false, done = true;
        for (int k = 0; k < thread_count; k++) {
            int i = turn % 2 ? thread_count - 1 - k : (k + 7 * turn) % thread_count;
            if (fibers[i].state != RUNNABLE) continue;
            fiber_run(i);
            ran = true;
        }
        for (int i = 0; i < thread_count; i++) done = done && fibers[i].state == DONE;
        if (done) return;
        bool opened = false;
        for (int w = 0; w < thread_count; w += WARP)
            opened |= barrier_opens(w, thread_count - w < WARP ? thread_count - w : WARP, AT_WARP);
        opened |= barrier_opens(0, thread_count, AT_BLOCK);
        if (!ran && !opened) fail(kernel, "some threads wait at a barrier that others never reach");
    }
}

void emulate_launch(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &body) {
    thread_count = (int)(block.x * block.y * block.z);
    if (thread_count < 1 || thread_count > MAX_THREADS) fail(kernel, "more than 1024 threads in a block, or none");
    if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.y > 65535 || grid.z > 65535) fail(kernel, "impossible grid");
    if (shared_bytes > 227 * 1024) fail(kernel, "more shared memory than a multiprocessor has");
    kernel_body = &body;
    emulate_grid_dim = grid;
    emulate_block_dim = block;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                emulate_block = dim3(x, y, z);
                if (posix_memalign(&emulate_shared, 128, shared_bytes ? shared_bytes : 1)) fail(kernel, "no memory");
                memset(emulate_shared, 0xFF, shared_bytes);
                run_block(kernel);
                free(emulate_shared);
            }
}

/* == Warp exchange, copies, the matrix instruction ================================================================= */

/* Two sets of slots by turns: a lane that writes its next value cannot disturb one that still reads this one. */
const void *emulate_exchange(const void *mine, size_t bytes, int lane) {
    int me = current, set = fibers[me].exchanges++ % 2;
    memcpy(slots[set][me], mine, bytes);
    warp_sync();
    return slots[set][me / WARP * WARP + lane];
}

void copy_async_16(void *shared, const void *global) {
    Fiber &f = fibers[current];
    if ((uintptr_t)shared % 16 || (uintptr_t)global % 16) fail("copy_async_16", "address not 16-byte aligned");
    memset(shared, 0xFF, 16);
    f.copies.push_back({shared, global, f.groups});
}

void copy_async_16_or_zero(void *shared, const void *global, bool valid) {
    alignas(16) static const unsigned char zeros[16] = {};
    copy_async_16(shared, valid ? global : zeros);
}

void copy_16(void *to, const void *from) {
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16) fail("copy_16", "address not 16-byte aligned");
    memcpy(to, from, 16);
}

void copy_commit() { fibers[current].groups++; }

void emulate_copy_wait(int pending) {
    Fiber &f = fibers[current];
    std::vector<Copy> later;
    for (const Copy &c : f.copies)
        if (c.group < f.groups - pending)
            memcpy(c.to, c.from, 16);
        else
            later.push_back(c);
    f.copies = later;
}

/* Element [i] of a row of eight 16-bit elements is in its byte 2 i. */
void emulate_matrix_load(uint32_t *r, const void *row, bool transposed) {
    if ((uintptr_t)row % 16) fail("matrix_load", "row not 16-byte aligned");
    const unsigned char(*lanes)[SLOT_BYTES] =
        static_cast<const unsigned char(*)[SLOT_BYTES]>(emulate_exchange(&row, sizeof row, 0));
    int g = current % WARP / 4, t = current % 4;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 2; j++) {
            const unsigned char *from;
            memcpy(&from, lanes[8 * i + (transposed ? 2 * t + j : g)], sizeof from);
            memcpy((unsigned char *)&r[i] + 2 * j, from + 2 * (transposed ? g : 2 * t + j), 2);
        }
}

static float half_of(uint32_t word, int half) { return bf16_value(half ? word >> 16 : word & 0xffff); }

/* Element (row, k) of A and (k, column) of B as the lanes of this warp hold them. */
struct Operands {
    uint32_t a[4], b[2];
};
static float a_element(const unsigned char (*lane)[SLOT_BYTES], int row, int k) {
    Operands o;
    memcpy(&o, lane[row % 8 * 4 + k % 8 / 2], sizeof o);
    return half_of(o.a[row / 8 + k / 8 * 2], k % 2);
}
static float b_element(const unsigned char (*lane)[SLOT_BYTES], int k, int column) {
    Operands o;
    memcpy(&o, lane[column * 4 + k % 8 / 2], sizeof o);
    return half_of(o.b[k / 8], k % 2);
}

void emulate_mma(float *c, const uint32_t *a, const uint32_t *b) {
    Operands mine;
    memcpy(mine.a, a, sizeof mine.a);
    memcpy(mine.b, b, sizeof mine.b);
    const unsigned char(*lanes)[SLOT_BYTES] =
        static_cast<const unsigned char(*)[SLOT_BYTES]>(emulate_exchange(&mine, sizeof mine, 0));
    int g = current % WARP / 4, t = current % 4;
    for (int i = 0; i < 4; i++) {
        float sum = 0;
        for (int k = 0; k < 16; k++) sum += a_element(lanes, g + 8 * (i / 2), k) * b_element(lanes, k, 2 * t + i % 2);
        c[i] += sum;
    }
}

/* The same of floats, in one exchange instead of sixty-four. */
void emulate_mma_float(float *c, const float *a, const float *b) {
    float mine[12];
    memcpy(mine, a, 8 * sizeof *a);
    memcpy(mine + 8, b, 4 * sizeof *b);
    const unsigned char(*lanes)[SLOT_BYTES] =
        static_cast<const unsigned char(*)[SLOT_BYTES]>(emulate_exchange(mine, sizeof mine, 0));
    int g = current % WARP / 4, t = current % 4;
    for (int k = 0; k < 16; k++) {
        const float *row = reinterpret_cast<const float *>(lanes[4 * g + k % 8 / 2]) + k / 8 * 4 + k % 2;
        for (int e = 0; e < 2; e++) {
            float right = reinterpret_cast<const float *>(lanes[8 * t + 4 * e + k % 8 / 2])[8 + k / 8 * 2 + k % 2];
            c[e] += row[0] * right;
            c[2 + e] += row[2] * right;
        }
    }
}

/* == What runtime.cu and linear.cu do on a GPU ===================================================================== */

extern "C" {
#include "core/die.h"
#include "kernels/kernels.h"
}

static void *workspace;
static size_t workspace_bytes;

void *kernels_workspace(size_t bytes) {
    if (bytes > workspace_bytes) die("kernel workspace: %zu bytes wanted, %zu reserved", bytes, workspace_bytes);
    memset(workspace, 0xFF, bytes);
    return workspace;
}

void kernels_init(void) {}
void kernels_exit(void) {}
const char *kernels_device(void) { return "CUDA kernels emulated on the CPU"; }

void kernels_reserve(size_t bytes) {
    if (bytes <= workspace_bytes) return;
    free(workspace);
    workspace = device_malloc(bytes, "kernel workspace");
    workspace_bytes = bytes;
}

void *device_malloc(size_t bytes, const char *what) {
    void *p;
    if (posix_memalign(&p, 64, bytes ? bytes : 1)) die("out of memory: %zu bytes for %s", bytes, what);
    memset(p, 0, bytes);
    return p;
}
void device_free(void *p) { free(p); }
void device_zero(void *p, size_t bytes) { memset(p, 0, bytes); }
void device_upload(void *device, const void *host, size_t bytes) { memcpy(device, host, bytes); }
void device_download(void *host, const void *device, size_t bytes) { memcpy(host, device, bytes); }
void device_copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
void device_synchronize(void) {}
size_t device_peak_bytes(void) { return 0; }
void real_upload(real *device, const float *host, size_t n) {
    for (size_t i = 0; i < n; i++) device[i] = to_real(host[i]);
}
void real_download(float *host, const real *device, size_t n) {
    for (size_t i = 0; i < n; i++) host[i] = to_float(device[i]);
}
double gemm_peak_gflops(void) { return 1; }

void linear_forward(real *y, const real *x, const float *w, const float *b, size_t n, int in, int out) {
    for (size_t i = 0; i < n; i++)
        for (int o = 0; o < out; o++) {
            double sum = b ? b[o] : 0;
            for (int k = 0; k < in; k++) sum += (double)to_float(x[i * in + k]) * w[(size_t)o * in + k];
            y[i * out + o] = to_real((float)sum);
        }
}
void linear_backward_input(real *dx, const real *dy, const float *w, size_t n, int in, int out) {
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < in; k++) {
            double sum = 0;
            for (int o = 0; o < out; o++) sum += (double)to_float(dy[i * out + o]) * w[(size_t)o * in + k];
            dx[i * in + k] = to_real((float)sum);
        }
}
void linear_backward_weight(float *dw, float *db, const real *dy, const real *x, size_t n, int in, int out) {
    for (int o = 0; o < out; o++) {
        double bias = 0;
        for (size_t i = 0; i < n; i++) bias += to_float(dy[i * out + o]);
        if (db) db[o] += (float)bias;
        for (int k = 0; k < in; k++) {
            double sum = 0;
            for (size_t i = 0; i < n; i++) sum += (double)to_float(dy[i * out + o]) * to_float(x[i * in + k]);
            dw[(size_t)o * in + k] += (float)sum;
        }
    }
}

/* == One rank ===================================================================================================== */

void collective_open(void) {}
void collective_close(void) {}
void all_reduce_start(float *, size_t) {}
void all_reduce_finish(void) {}
