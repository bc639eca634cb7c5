/* The emulator's other half, under the sanitizers because it touches what kernels own: copies, and the device's memory,
 * which is the host's, with plain loops in place of cuBLASLt and cuDNN. */
#include "tests/emulate/emulate.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <sanitizer/asan_interface.h>

#include <map>
#include <vector>

extern "C" {
#include "core/die.h"
#include "kernels/kernels.h"
}
#include "kernels/cuda/library.h"

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

bool emulate_copies_pending(int threads) {
    for (int i = 0; i < threads; i++)
        if (!copies[i].pending.empty()) return true;
    return false;
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
void emulate_matrix_load(uint32_t *r, const void *row, bool transposed, const void *place) {
    if ((uintptr_t)row % 16) emulate_fail("matrix_load", "row not 16-byte aligned");
    const unsigned char *slots = emulate_exchange_all(&row, sizeof row, {__builtin_return_address(0), place});
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

/* NaN again for every kernel that asks: a private view of a file full of 0xFF, whose written pages are thrown away.
 * What lies beyond the bytes asked for is forbidden. */
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

/* == What runtime.cu and linear.cu do on a GPU ===================================================================== */

void kernels_init(void) {}
void kernels_exit(void) { workspace_free(); }
const char *kernels_unsupported(void) { return NULL; }
const char *kernels_device(void) { return "CUDA kernels emulated on the CPU"; }

/* What device_malloc gave, and the rounded copy of it. */
struct Memory {
    size_t bytes;
    real *copy;
};
static std::map<const char *, Memory> memory;

void *device_malloc(size_t bytes, const char *what) {
    void *p;
    if (posix_memalign(&p, 64, bytes ? bytes : 1)) die("out of memory: %zu bytes for %s", bytes, what);
    memset(p, 0, bytes);
    memory[static_cast<char *>(p)] = {bytes, NULL};
    return p;
}

void device_free(void *p) {
    auto found = memory.find(static_cast<char *>(p));
    if (found == memory.end()) return;
    free(found->second.copy);
    memory.erase(found);
    free(p);
}

/* Rounded anew at every call. */
const real *real_copy(const float *p) {
    auto after = memory.upper_bound(reinterpret_cast<const char *>(p));
    if (after == memory.begin()) die("parameters that are not in memory from device_malloc");
    auto &[base, block] = *--after;
    size_t n = block.bytes / sizeof(float);
    const float *from = reinterpret_cast<const float *>(base);
    if (!block.copy && posix_memalign(reinterpret_cast<void **>(&block.copy), 64, (n + 1) * sizeof(real)))
        die("out of memory: %zu rounded parameters", n);
    for (size_t i = 0; i < n; i++) block.copy[i] = to_real(from[i]);
    return block.copy + (p - from);
}
void device_zero(void *p, size_t bytes) { memset(p, 0, bytes); }
void device_upload(void *device, const void *host, size_t bytes) { memcpy(device, host, bytes); }
void device_download(void *host, const void *device, size_t bytes) { memcpy(host, device, bytes); }
void device_copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
void device_synchronize(void) {}
size_t device_peak_bytes(void) { return 0; }
bool device_shares_cores(void) { return true; }

void *host_malloc(size_t bytes, const char *what) { return device_malloc(bytes, what); }
void host_free(void *p) { device_free(p); }
void device_upload_async(void *device, const void *host, size_t bytes) { memcpy(device, host, bytes); }
void device_uploads_used(void) {}
void device_uploads_wait(void) {}
void device_download_async(void *host, const void *device, size_t bytes) { memcpy(host, device, bytes); }
void device_mark(DeviceMark **) {}
void device_wait(const DeviceMark *) {}
void device_mark_free(DeviceMark **) {}
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

static int row_of(const LinearShape *s) { return s->y_row ? s->y_row : s->out; }

/* As linear.cu's products see them: parameters in the type of activations. */
static float held(float x) { return to_float(to_real(x)); }

/* Sum over k < count of a(k) b(k) from c on: as tensor cores add in bfloat16, which take sixteen terms at a time. */
template <typename A, typename B>
static float dot(float c, size_t count, A a, B b) {
    if (sizeof(real) == 4) {
        for (size_t k = 0; k < count; k++) c = fmaf(a(k), b(k), c);
        return c;
    }
    float sums[TENSOR_COLUMNS] = {c};
    for (size_t first = 0; first < count; first += TENSOR_TERMS) {
        float left[TENSOR_TERMS] = {}, right[TENSOR_TERMS][TENSOR_COLUMNS] = {};
        for (size_t k = first; k < count && k < first + TENSOR_TERMS; k++) {
            left[k - first] = a(k);
            right[k - first][0] = b(k);
        }
        emulate_tensor_core(sums, left, right);
    }
    return sums[0];
}

void linear_forward(real *y, const real *x, const float *w, const float *b, const LinearShape *s) {
    size_t row = row_of(s), in = s->in;
    for (size_t i = 0; i < s->n; i++)
        for (int o = 0; o < s->out; o++) {
            float sum = dot(0, in, [&](size_t k) { return to_float(x[i * in + k]); },
                            [&](size_t k) { return held(w[(size_t)o * in + k]); });
            y[i * row + o] = to_real(sum + (b ? held(b[o]) : 0));
        }
}
void linear_backward_input(real *dx, const real *dy, const float *w, const LinearShape *s) {
    size_t row = row_of(s), in = s->in;
    for (size_t i = 0; i < s->n; i++)
        for (size_t k = 0; k < in; k++)
            dx[i * in + k] = to_real(dot(0, (size_t)s->out, [&](size_t o) { return to_float(dy[i * row + o]); },
                                         [&](size_t o) { return held(w[o * in + k]); }));
}
void linear_backward_weight(float *dw, float *db, const real *dy, const real *x, const LinearShape *s) {
    size_t row = row_of(s), in = s->in, n = s->n;
    for (int o = 0; o < s->out; o++) {
        float bias = 0;
        for (size_t i = 0; i < n; i++) bias += to_float(dy[i * row + o]);
        if (db) db[o] += bias;
        for (size_t k = 0; k < in; k++)
            dw[(size_t)o * in + k] += dot(0, n, [&](size_t i) { return to_float(dy[i * row + o]); },
                                          [&](size_t i) { return to_float(x[i * in + k]); });
    }
}

void linear_backward(real *dx, float *dw, float *db, const real *dy, const real *x, const float *w,
                     const LinearShape *s) {
    linear_backward_input(dx, dy, w, s);
    linear_backward_weight(dw, db, dy, x, s);
}

/* == cuDNN: an even number of outputs it has an algorithm for, with some workspace ================================= */

struct LibraryConvolution {
    Convolution c;
    int B, H, W;
};

enum { LIBRARY_WORKSPACE = 300 };

const LibraryConvolution *library_convolution(LibraryDirection, const Convolution *c, int B, int H, int W) {
    static LibraryConvolution l;
    l = {*c, B, H, W};
    return c->out % 2 ? NULL : &l;
}

size_t library_workspace(const LibraryConvolution *) { return LIBRARY_WORKSPACE; }

/* Calls each(y's, w's, x's place) for every product there is. */
template <typename Each>
static void library_products(const LibraryConvolution *l, void *workspace, Each each) {
    const Convolution &c = l->c;
    int Ho = convolution_side(l->H, c.stride), Wo = convolution_side(l->W, c.stride), taps = c.k * c.k;
    memset(workspace, 1, LIBRARY_WORKSPACE);
    for (int p = 0; p < l->B * Ho * Wo; p++)
        for (int tap = 0; tap < taps; tap++) {
            int yi = p / Wo % Ho * c.stride + tap / c.k - c.k / 2, xi = p % Wo * c.stride + tap % c.k - c.k / 2;
            if (yi < 0 || yi >= l->H || xi < 0 || xi >= l->W) continue;
            size_t pixel = ((size_t)(p / Wo / Ho) * l->H + yi) * l->W + xi;
            for (int o = 0; o < c.out; o++)
                for (int i = 0; i < c.in; i++)
                    each((size_t)p * c.out + o, ((size_t)o * taps + tap) * c.in + i, pixel * c.in + i);
        }
}

static void library_round(real *to, const std::vector<double> &from, bool accumulate) {
    for (size_t i = 0; i < from.size(); i++) to[i] = to_real((float)from[i] + (accumulate ? to_float(to[i]) : 0));
}

void library_forward(const LibraryConvolution *l, real *y, const real *x, const float *w, void *workspace) {
    size_t n = (size_t)l->B * convolution_side(l->H, l->c.stride) * convolution_side(l->W, l->c.stride) * l->c.out;
    std::vector<double> sum(n);
    library_products(l, workspace, [&](size_t a, size_t b, size_t c) { sum[a] += (double)held(w[b]) * to_float(x[c]); });
    library_round(y, sum, false);
}

void library_input(const LibraryConvolution *l, real *dx, const float *w, const real *dy, bool accumulate,
                   void *workspace) {
    std::vector<double> sum((size_t)l->B * l->H * l->W * l->c.in);
    library_products(l, workspace, [&](size_t a, size_t b, size_t c) { sum[c] += (double)held(w[b]) * to_float(dy[a]); });
    library_round(dx, sum, accumulate);
}

void library_weight(const LibraryConvolution *l, real *dw, const real *x, const real *dy, void *workspace) {
    std::vector<double> sum((size_t)l->c.out * l->c.k * l->c.k * l->c.in);
    library_products(l, workspace,
                     [&](size_t a, size_t b, size_t c) { sum[b] += (double)to_float(dy[a]) * to_float(x[c]); });
    library_round(dw, sum, false);
}

/* == One rank ===================================================================================================== */

void collective_open(void) {}
void collective_close(void) {}
void all_reduce_start(float *, size_t) {}
void all_reduce_finish(void) {}
