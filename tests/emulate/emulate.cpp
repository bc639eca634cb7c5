/* The emulator's other half, under the sanitizers because it touches what kernels own: copies, and the device's memory,
 * which is the host's, with plain loops in place of cuBLASLt. */
#include "tests/emulate/emulate.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <sanitizer/asan_interface.h>

#include <vector>

extern "C" {
#include "core/die.h"
#include "kernels/kernels.h"
}

/* == Copies ======================================================================================================= */

struct Copy {
    void *to;
    const void *from;
    int group;
};
struct Copies {
    std::vector<Copy> pending;
    int groups;
};
static std::vector<Copies> copies;

void emulate_copies_reset(int threads) {
    if (copies.size() < (size_t)threads) copies.resize((size_t)threads);
    for (int i = 0; i < threads; i++) copies[i].pending.clear();
}

void copy_async_16(void *shared, const void *global) {
    Copies &mine = copies[emulate_current()];
    if ((uintptr_t)shared % 16 || (uintptr_t)global % 16) emulate_fail("copy_async_16", "address not 16-byte aligned");
    memset(shared, 0xFF, 16);
    mine.pending.push_back({shared, global, mine.groups});
}

void copy_async_16_or_zero(void *shared, const void *global, bool valid) {
    alignas(16) static const unsigned char zeros[16] = {};
    copy_async_16(shared, valid ? global : zeros);
}

void copy_16(void *to, const void *from) {
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16) emulate_fail("copy_16", "address not 16-byte aligned");
    memcpy(to, from, 16);
}

void copy_commit() { copies[emulate_current()].groups++; }

void emulate_copy_wait(int pending) {
    Copies &mine = copies[emulate_current()];
    size_t arrived = 0;
    for (; arrived < mine.pending.size() && mine.pending[arrived].group < mine.groups - pending; arrived++)
        memcpy(mine.pending[arrived].to, mine.pending[arrived].from, 16);
    mine.pending.erase(mine.pending.begin(), mine.pending.begin() + (ptrdiff_t)arrived);
}

/* Element [i] of a row of eight 16-bit elements is in its byte 2 i. */
void emulate_matrix_load(uint32_t *r, const void *row, bool transposed) {
    if ((uintptr_t)row % 16) emulate_fail("matrix_load", "row not 16-byte aligned");
    const unsigned char *slots = static_cast<const unsigned char *>(emulate_exchange(&row, sizeof row, 0));
    int g = lane_id() / 4, t = lane_id() % 4;
    for (int i = 0; i < 4; i++) {
        uint16_t pair[2];
        for (int j = 0; j < 2; j++) {
            const uint16_t *from;
            memcpy(&from, slots + (8 * i + (transposed ? 2 * t + j : g)) * SLOT_BYTES, sizeof from);
            pair[j] = from[transposed ? g : 2 * t + j];
        }
        memcpy(&r[i], pair, sizeof r[i]);
    }
}

/* == Workspace ==================================================================================================== */

/* NaN again for every kernel that asks: a private view of a file full of 0xFF, whose written pages are thrown away. What
 * lies beyond the bytes asked for is forbidden. */
static unsigned char *workspace;
static size_t workspace_bytes;

static unsigned char *workspace_map(size_t bytes) {
    int file = memfd_create("workspace", 0);
    std::vector<unsigned char> poison(1 << 20, 0xFF);
    for (size_t at = 0; at < bytes; at += poison.size())
        if (file < 0 || write(file, poison.data(), poison.size()) < 0) die("out of memory: kernel workspace");
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    close(file);
    if (p == MAP_FAILED) die("out of memory: %zu bytes of kernel workspace", bytes);
    return static_cast<unsigned char *>(p);
}

static void workspace_free() {
    if (!workspace_bytes) return;
    ASAN_UNPOISON_MEMORY_REGION(workspace, workspace_bytes);
    munmap(workspace, workspace_bytes);
    workspace_bytes = 0;
}

void kernels_reserve(size_t bytes) {
    if (bytes <= workspace_bytes) return;
    workspace_free();
    workspace = workspace_map(bytes);
    workspace_bytes = bytes;
}

void *kernels_workspace(size_t bytes) {
    if (bytes > workspace_bytes) die("kernel workspace: %zu bytes wanted, %zu reserved", bytes, workspace_bytes);
    if (!bytes) return NULL;
    madvise(workspace, workspace_bytes, MADV_DONTNEED);
    ASAN_UNPOISON_MEMORY_REGION(workspace, bytes);
    ASAN_POISON_MEMORY_REGION(workspace + bytes, workspace_bytes - bytes);
    return workspace;
}

/* == What runtime.cu and linear.cu do on a GPU ====================================================================== */

void kernels_init(void) {}
void kernels_exit(void) { workspace_free(); }
const char *kernels_device(void) { return "CUDA kernels emulated on the CPU"; }

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
bool device_shares_cores(void) { return true; }

void *host_malloc(size_t bytes, const char *what) { return device_malloc(bytes, what); }
void host_free(void *p) { free(p); }
void device_upload_async(void *device, const void *host, size_t bytes) { memcpy(device, host, bytes); }
bool device_graph_begin(DeviceGraph **graph) { return (void)graph, true; }
void device_graph_end(DeviceGraph **graph) { (void)graph; }
void device_graph_free(DeviceGraph **graph) { *graph = NULL; }
double memory_peak_gbytes(void) { return 1; }
size_t activations_at_once(void) { return 8 * 256 * 192; }
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
