/* The device and its memory: one GPU, one stream for kernels and a second for simultaneous uploads.  Kernels and copies
 * run in the order of the calls, so that only downloads have to wait.
 *
 * device_upload_async copies images directly from page-locked memory on the second stream.  The copy waits for `used`,
 * the kernels that read the previous images, and the first stream waits for the copy.  Other uploads go through a ring
 * of sixteen page-locked buffers: the call returns as soon as the host's bytes are in a buffer, and the copy to the
 * device follows in the stream.  The host waits only if the next buffer of the ring is still being copied.
 *
 * Matrix products read bfloat16 parameters; the optimizer keeps float ones.  A block of device memory that holds
 * parameters has a rounded copy, computed by one kernel at the first product after a change: once in a step for the
 * whole model instead of once for each product of each micro-batch.
 *
 * A graph replays all calls of its capture, including the rounding of parameters.  All rounded copies are therefore
 * treated as out of date at the start of a capture, and again after a replay, since the host cannot know their state
 * then. */
#include <device.cuh>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/runtime.h"

extern "C" {
#include "core/die.h"
#include "core/distributed.h"
}
#include "kernels/device/device.h"

cudaStream_t kernels_stream;
void (*library_close)(void);

static cudaStream_t copy_stream;
static cudaEvent_t used, arrived; /* on kernels_stream and on copy_stream */

static struct cudaDeviceProp gpu;

/* == Errors and launches ========================================================================================== */

void cuda_fail(const char *call, const char *file, int line, const char *message) {
    die("%s: %s (%s:%d)", call, message, file, line);
}

void launch_check(const char *kernel, const char *file, int line) {
    cudaError_t status = cudaGetLastError();
#ifdef VIT_DEBUG
    if (status == cudaSuccess) status = cudaStreamSynchronize(kernels_stream);
#endif
    if (status == cudaSuccess) return;
    if (status == cudaErrorNoKernelImageForDevice)
        die("this program has no code for the %s: build it again with make cuda CUDA_ARCH=sm_%d%d", gpu.name, gpu.major,
            gpu.minor);
    cuda_fail(kernel, file, line, cudaGetErrorString(status));
}

/* The kernels that may use more shared memory, and how much. */
enum { LARGE_KERNELS = 256, FREE_SHARED = 48 * 1024 };
static struct {
    const void *kernel;
    size_t bytes;
} large[LARGE_KERNELS];

size_t launch_shared_most(void) {
    device_open();
    return gpu.sharedMemPerBlockOptin;
}

int device_multiprocessors(void) {
    device_open();
    return gpu.multiProcessorCount;
}

void launch_prepare(const void *kernel, size_t shared_bytes) {
    if (shared_bytes <= FREE_SHARED) return;
    int i = 0;
    while (i < LARGE_KERNELS - 1 && large[i].kernel && large[i].kernel != kernel) i++;
    if (large[i].kernel == kernel && large[i].bytes >= shared_bytes) return;
    if (shared_bytes > gpu.sharedMemPerBlockOptin)
        die("a kernel needs %zu bytes of shared memory and the %s gives a block %zu: a smaller model, or another GPU",
            shared_bytes, gpu.name, gpu.sharedMemPerBlockOptin);
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes));
    large[i].kernel = kernel;
    large[i].bytes = shared_bytes;
}

/* == Memory ======================================================================================================= */

/* A block from device_malloc, and its rounded copy if it is read as parameters. */
struct MemoryBlock {
    char *base;
    size_t bytes;
    real *copy;
    bool copy_is_old;
};
static MemoryBlock *blocks;
static int block_count, block_capacity;
static size_t bytes_held, bytes_peak;

static void *device_take(size_t bytes, const char *what) {
    void *p;
    device_open();
    cudaError_t status = cudaMalloc(&p, bytes ? bytes : 1);
    if (status == cudaErrorMemoryAllocation) {
        size_t free_bytes = 0, all_bytes = 0;
        cudaGetLastError();
        cudaMemGetInfo(&free_bytes, &all_bytes);
        die("out of memory on the %s: %.1f MiB for %s, and %.1f of its %.1f MiB are free: try a smaller micro_batch",
            gpu.name, (double)bytes / (1 << 20), what, (double)free_bytes / (1 << 20), (double)all_bytes / (1 << 20));
    }
    if (status != cudaSuccess) cuda_fail("cudaMalloc", __FILE__, __LINE__, cudaGetErrorString(status));
    bytes_held += bytes;
    if (bytes_held > bytes_peak) bytes_peak = bytes_held;
    return p;
}

void *device_malloc(size_t bytes, const char *what) {
    if (block_count == block_capacity) {
        block_capacity = block_capacity ? 2 * block_capacity : 64;
        blocks = static_cast<MemoryBlock *>(realloc(blocks, (size_t)block_capacity * sizeof *blocks));
        if (!blocks) die("out of memory: table of %d blocks of device memory", block_capacity);
    }
    void *p = device_take(bytes, what);
    blocks[block_count++] = {static_cast<char *>(p), bytes, NULL, false};
    CUDA_TRY(cudaMemsetAsync(p, 0, bytes, kernels_stream));
    return p;
}

static MemoryBlock *block_of(const void *p) {
    const char *at = static_cast<const char *>(p);
    for (int i = 0; i < block_count; i++)
        if (at >= blocks[i].base && at < blocks[i].base + blocks[i].bytes) return &blocks[i];
    return NULL;
}

/* Waits for the uploads, too, because an upload ends by making kernels_stream wait for it. */
void device_synchronize(void) {
    collective_wait(NULL);
    CUDA_TRY(cudaStreamSynchronize(kernels_stream));
}

static void event_wait(cudaEvent_t event) {
    collective_wait(event);
    CUDA_TRY(cudaEventSynchronize(event));
}

void device_free(void *p) {
    for (int i = 0; p && i < block_count; i++) {
        if (blocks[i].base != p) continue;
        device_synchronize();
        bytes_held -= blocks[i].bytes + (blocks[i].copy ? blocks[i].bytes / 2 : 0);
        CUDA_TRY(cudaFree(blocks[i].copy));
        CUDA_TRY(cudaFree(p));
        blocks[i] = blocks[--block_count];
        return;
    }
}

size_t device_peak_bytes(void) { return bytes_peak; }

void device_zero(void *p, size_t bytes) {
    CUDA_TRY(cudaMemsetAsync(p, 0, bytes, kernels_stream));
    memory_changed(p);
}

void device_copy(void *to, const void *from, size_t bytes) {
    CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, kernels_stream));
    memory_changed(to);
}

static void *workspace;
static size_t workspace_bytes;
static unsigned graph_generation; /* of the workspace: graphs hold its address */

void kernels_reserve(size_t bytes) {
    if (bytes <= workspace_bytes) return;
    device_free(workspace);
    workspace = device_malloc(bytes, "kernel workspace");
    workspace_bytes = bytes;
    graph_generation++;
}

void *kernels_workspace(size_t bytes) {
    if (bytes > workspace_bytes) die("kernel workspace: %zu bytes wanted, %zu reserved", bytes, workspace_bytes);
    return workspace;
}

/* == Parameters as matrix products read them ====================================================================== */

void memory_changed(const void *p) {
    MemoryBlock *block = block_of(p);
    if (block) block->copy_is_old = true;
}

static void copies_are_old(void) {
    for (int i = 0; i < block_count; i++) blocks[i].copy_is_old = true;
}

#ifdef VIT_FP32

const real *real_copy(const float *p) { return p; }

#else

enum { ROUND_THREADS = 256, ROUND_EACH = 8 };

/* Memory from cudaMalloc is aligned to 256 bytes; n can be any number. */
__global__ void __launch_bounds__(ROUND_THREADS) round_kernel(real *to, const float *__restrict__ from, size_t n) {
    size_t i = ((size_t)blockIdx.x * ROUND_THREADS + threadIdx.x) * ROUND_EACH;
    if (i + ROUND_EACH > n) {
        for (; i < n; i++) to[i] = to_real(from[i]);
        return;
    }
    float v[ROUND_EACH];
    load(v, from + i);
    store(to + i, v);
}

const real *real_copy(const float *p) {
    MemoryBlock *block = block_of(p);
    if (!block) die("a matrix product was given parameters that are not in memory from device_malloc");
    size_t n = block->bytes / sizeof(float);
    if (!block->copy) {
        block->copy = static_cast<real *>(device_take(block->bytes / 2, "rounded parameters"));
        block->copy_is_old = true;
    }
    if (block->copy_is_old)
        LAUNCH(round_kernel, (unsigned)ceil_div(n, ROUND_THREADS * ROUND_EACH), ROUND_THREADS, 0, block->copy,
               reinterpret_cast<const float *>(block->base), n);
    block->copy_is_old = false;
    return block->copy + (p - reinterpret_cast<const float *>(block->base));
}

#endif

/* == Graphs ======================================================================================================= */

/* The first two times the calls are executed, which makes all allocations and choices of algorithms; then they are
 * captured. */
enum { EAGER_CALLS = 2 };

struct DeviceGraph {
    int calls;
    unsigned generation;
    cudaGraphExec_t replay;
};
static DeviceGraph *capturing;

#ifdef VIT_DEBUG /* waits after every launch, which a capture cannot */
static const bool GRAPHS = false;
#else
static const bool GRAPHS = true;
#endif

static void graph_forget(DeviceGraph *g) {
    if (g->replay) CUDA_TRY(cudaGraphExecDestroy(g->replay));
    *g = {};
}

static void graph_replay(DeviceGraph *g) {
    CUDA_TRY(cudaGraphLaunch(g->replay, kernels_stream));
    copies_are_old();
}

bool device_graph_begin(DeviceGraph **graph) {
    if (!*graph) *graph = static_cast<DeviceGraph *>(calloc(1, sizeof **graph));
    DeviceGraph *g = *graph;
    if (!g) die("out of memory: a graph of kernels");
    if (capturing) die("a graph of kernels begins inside another");
    if (g->calls && g->generation != graph_generation) graph_forget(g);
    g->generation = graph_generation;
    if (g->replay) return graph_replay(g), false;
    if (g->calls++ < EAGER_CALLS || !GRAPHS) return true;
    copies_are_old();
    CUDA_TRY(cudaStreamBeginCapture(kernels_stream, cudaStreamCaptureModeThreadLocal));
    capturing = g;
    return true;
}

void device_graph_end(DeviceGraph **graph) {
    DeviceGraph *g = *graph;
    cudaGraph_t captured;
    if (capturing != g) return;
    CUDA_TRY(cudaStreamEndCapture(kernels_stream, &captured));
    capturing = NULL;
    CUDA_TRY(cudaGraphInstantiate(&g->replay, captured, 0));
    CUDA_TRY(cudaGraphDestroy(captured));
    graph_replay(g);
}

void device_graph_free(DeviceGraph **graph) {
    if (!*graph) return;
    device_synchronize();
    graph_forget(*graph);
    free(*graph);
    *graph = NULL;
}

/* == To the device and back ======================================================================================= */

/* 2 MiB: the pixels of 512 images of 32 x 32 in one slot, and long enough to reach the bus's speed. */
enum { SLOTS = 16 };
static const size_t SLOT_BYTES = 2 << 20;
struct Slot {
    char *host;
    cudaEvent_t arrived;
};
static Slot slots[SLOTS];
static unsigned slot_next;

static void refuse_in_capture(const char *what) {
    if (capturing) die("a graph of kernels cannot hold %s", what);
}

/* A slot whose last contents have been copied. */
static Slot *slot_take(void) {
    refuse_in_capture("a copy between host and device");
    Slot *slot = &slots[slot_next++ % SLOTS];
    event_wait(slot->arrived);
    return slot;
}

static void slot_send(Slot *slot, void *device, size_t bytes) {
    CUDA_TRY(cudaMemcpyAsync(device, slot->host, bytes, cudaMemcpyHostToDevice, kernels_stream));
    CUDA_TRY(cudaEventRecord(slot->arrived, kernels_stream));
}

void device_upload(void *device, const void *host, size_t bytes) {
    for (size_t at = 0; at < bytes; at += SLOT_BYTES) {
        size_t part = bytes - at < SLOT_BYTES ? bytes - at : SLOT_BYTES;
        Slot *slot = slot_take();
        memcpy(slot->host, static_cast<const char *>(host) + at, part);
        slot_send(slot, static_cast<char *>(device) + at, part);
    }
    memory_changed(device);
}

void *host_malloc(size_t bytes, const char *what) {
    void *p;
    device_open();
    if (cudaHostAlloc(&p, bytes ? bytes : 1, cudaHostAllocDefault) != cudaSuccess)
        die("out of memory: %.1f MiB of the host's pinned memory for %s", (double)bytes / (1 << 20), what);
    memset(p, 0, bytes);
    return p;
}

void host_free(void *p) {
    if (p) CUDA_TRY(cudaFreeHost(p));
}

void device_upload_async(void *device, const void *host, size_t bytes) {
    refuse_in_capture("a copy between host and device");
    CUDA_TRY(cudaStreamWaitEvent(copy_stream, used, 0));
    CUDA_TRY(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, copy_stream));
    CUDA_TRY(cudaEventRecord(arrived, copy_stream));
    CUDA_TRY(cudaStreamWaitEvent(kernels_stream, arrived, 0));
    memory_changed(device);
}

void device_uploads_used(void) {
    refuse_in_capture("a mark");
    device_open();
    CUDA_TRY(cudaEventRecord(used, kernels_stream));
}

void device_uploads_wait(void) {
    device_open();
    event_wait(arrived);
}

void device_download_async(void *host, const void *device, size_t bytes) {
    refuse_in_capture("a copy between host and device");
    CUDA_TRY(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, kernels_stream));
}

/* A copy into pageable memory blocks until it is done, so sums over ranks are watched before it begins. */
void device_download(void *host, const void *device, size_t bytes) {
    collective_wait(NULL);
    device_download_async(host, device, bytes);
    device_synchronize();
}

struct DeviceMark {
    cudaEvent_t event;
};

void device_mark(DeviceMark **mark) {
    refuse_in_capture("a mark");
    device_open();
    if (!*mark) {
        *mark = static_cast<DeviceMark *>(calloc(1, sizeof **mark));
        if (!*mark) die("out of memory: a mark among the kernels");
        CUDA_TRY(cudaEventCreateWithFlags(&(*mark)->event, cudaEventDisableTiming));
    }
    CUDA_TRY(cudaEventRecord((*mark)->event, kernels_stream));
}

void device_wait(const DeviceMark *mark) {
    if (mark) event_wait(mark->event);
}

void device_mark_free(DeviceMark **mark) {
    if (*mark) CUDA_TRY(cudaEventDestroy((*mark)->event));
    free(*mark);
    *mark = NULL;
}

#ifdef VIT_FP32

void real_upload(real *device, const float *host, size_t n) { device_upload(device, host, n * sizeof *host); }
void real_download(float *host, const real *device, size_t n) { device_download(host, device, n * sizeof *host); }

#else

static real host_round(float x) {
    uint32_t word;
    memcpy(&word, &x, sizeof word);
    if (x != x) return {(unsigned short)(word >> 16 | 0x40)};
    return {(unsigned short)((word + 0x7fff + (word >> 16 & 1)) >> 16)};
}

static float host_widen(real x) {
    uint32_t word = (uint32_t)x.bits << 16;
    float wide;
    memcpy(&wide, &word, sizeof wide);
    return wide;
}

static const size_t SLOT_REALS = SLOT_BYTES / sizeof(real);

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

void real_upload(real *device, const float *host, size_t n) {
    for (size_t at = 0; at < n; at += SLOT_REALS) {
        size_t part = n - at < SLOT_REALS ? n - at : SLOT_REALS;
        Slot *slot = slot_take();
        real *narrow = reinterpret_cast<real *>(slot->host);
        for (size_t i = 0; i < part; i++) narrow[i] = host_round(host[at + i]);
        slot_send(slot, device + at, part * sizeof(real));
    }
}

/* Waits once for a ring of slots. */
void real_download(float *host, const real *device, size_t n) {
    for (size_t ring = 0; ring < n; ring += SLOTS * SLOT_REALS) {
        Slot *taken[SLOTS];
        int count = 0;
        for (size_t at = ring; at < n && count < SLOTS; at += SLOT_REALS) {
            taken[count] = slot_take();
            device_download_async(taken[count++]->host, device + at, least(n - at, SLOT_REALS) * sizeof(real));
        }
        device_synchronize();
        for (int slot = 0; slot < count; slot++) {
            size_t at = ring + (size_t)slot * SLOT_REALS, part = least(n - at, SLOT_REALS);
            const real *narrow = reinterpret_cast<const real *>(taken[slot]->host);
            for (size_t i = 0; i < part; i++) host[at + i] = host_widen(narrow[i]);
        }
    }
}

#endif

bool device_shares_cores(void) { return false; }

/* Half of what is free: the optimiser, workspaces and the loader's images are still to come. */
bool device_keeps(size_t bytes) {
    size_t free_bytes, all_bytes;
    device_open();
    CUDA_TRY(cudaMemGetInfo(&free_bytes, &all_bytes));
    return bytes <= free_bytes / 2;
}

/* 64 Ki tokens 768 wide: hundreds of tiles for every multiprocessor in every product, and a few GiB of kept activations
 * for a block of DeiT. */
size_t activations_at_once(void) { return (size_t)768 << 16; }

/* == The peak ===================================================================================================== */

/* Twice 512 MiB, beyond any cache, and not in device_peak_bytes; the best of a few copies. */
double memory_peak_gbytes(void) {
    enum { RUNS = 10 };
    const size_t bytes = (size_t)512 << 20;
    void *from, *to;
    cudaEvent_t start, end;
    double best = 0;
    device_open();
    CUDA_TRY(cudaMalloc(&from, bytes));
    CUDA_TRY(cudaMalloc(&to, bytes));
    CUDA_TRY(cudaEventCreate(&start));
    CUDA_TRY(cudaEventCreate(&end));
    CUDA_TRY(cudaMemsetAsync(from, 0x5A, bytes, kernels_stream));
    for (int run = 0; run < RUNS; run++) {
        float milliseconds;
        CUDA_TRY(cudaEventRecord(start, kernels_stream));
        CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, kernels_stream));
        CUDA_TRY(cudaEventRecord(end, kernels_stream));
        CUDA_TRY(cudaEventSynchronize(end));
        CUDA_TRY(cudaEventElapsedTime(&milliseconds, start, end));
        double rate = 2 * (double)bytes / milliseconds / 1e6;
        if (rate > best) best = rate;
    }
    CUDA_TRY(cudaEventDestroy(start));
    CUDA_TRY(cudaEventDestroy(end));
    CUDA_TRY(cudaFree(from));
    CUDA_TRY(cudaFree(to));
    return best;
}

/* == Start and end ================================================================================================ */

void kernels_init(void) {}

const char *kernels_unsupported(void) { return NULL; }
void kernels_recover(void) {}

/* Each rank on a machine uses its own GPU; a launcher may also make only one GPU visible to each rank. */
static void gpu_choose(int count) {
    int device = count == 1 ? 0 : distributed_local_rank();
    if (device >= count) die("%d GPUs for more ranks than that on one machine: every rank needs its own", count);
    CUDA_TRY(cudaSetDevice(device));
    CUDA_TRY(cudaGetDeviceProperties(&gpu, device));
    if (gpu.major < 8)
        die("the %s has compute capability %d.%d, and 8.0 or newer is needed (CUDA_VISIBLE_DEVICES chooses among GPUs)",
            gpu.name, gpu.major, gpu.minor);
}

void device_open(void) {
    int count = 0;
    if (kernels_stream) return;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaErrorInsufficientDriver)
        die("no GPU to run on: no NVIDIA driver, or one older than CUDA %d.%d (make builds for the CPU)",
            CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (status != cudaSuccess) die("no GPU to run on: %s (make builds for the CPU)", cudaGetErrorString(status));
    gpu_choose(count);
    CUDA_TRY(cudaStreamCreateWithFlags(&kernels_stream, cudaStreamNonBlocking));
    CUDA_TRY(cudaStreamCreateWithFlags(&copy_stream, cudaStreamNonBlocking));
    CUDA_TRY(cudaEventCreateWithFlags(&used, cudaEventDisableTiming));
    CUDA_TRY(cudaEventCreateWithFlags(&arrived, cudaEventDisableTiming));
    for (int i = 0; i < SLOTS; i++) {
        CUDA_TRY(cudaHostAlloc(reinterpret_cast<void **>(&slots[i].host), SLOT_BYTES, cudaHostAllocDefault));
        CUDA_TRY(cudaEventCreateWithFlags(&slots[i].arrived, cudaEventDisableTiming));
    }
    linear_open();
}

void kernels_exit(void) {
    if (!kernels_stream) return;
    device_synchronize();
    linear_close();
    if (library_close) library_close();
    device_free(workspace);
    workspace = NULL;
    workspace_bytes = 0;
    for (int i = 0; i < SLOTS; i++) {
        CUDA_TRY(cudaFreeHost(slots[i].host));
        CUDA_TRY(cudaEventDestroy(slots[i].arrived));
    }
    CUDA_TRY(cudaEventDestroy(used));
    CUDA_TRY(cudaEventDestroy(arrived));
    CUDA_TRY(cudaStreamDestroy(copy_stream));
    CUDA_TRY(cudaStreamDestroy(kernels_stream));
    kernels_stream = NULL;
}

const char *kernels_device(void) {
    static char text[400];
    int version = 0;
    device_open();
    CUDA_TRY(cudaRuntimeGetVersion(&version));
    snprintf(text, sizeof text, "%s, %d multiprocessors, %s, CUDA %d.%d", gpu.name, gpu.multiProcessorCount,
             sizeof(real) == 2 ? "bf16" : "fp32", version / 1000, version % 1000 / 10);
    return text;
}
