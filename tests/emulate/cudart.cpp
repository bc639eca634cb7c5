/* A stand-in for cudart: devices, memory, streams, events, graphs (see standin.h). */
#include "tests/emulate/standin.h"

#include <sanitizer/asan_interface.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>

#include "tests/emulate/device.cuh"
#include "tests/emulate/traffic.h"

namespace standin {

/* == Failures ===================================================================================================== */

static std::recursive_mutex lock;
static bool running; /* pending work runs: device memory is accessible */

void fail(const char *call, const char *rule, ...) {
    va_list arguments;
    va_start(arguments, rule);
    fprintf(stderr, "stand-in: %s: ", call);
    vfprintf(stderr, rule, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

static void initialize();

/* == Counts ======================================================================================================= */

/* How often each kernel and call ran on the device, how often the host waited in each call, and how many graphs it
 * launched. */
static std::map<std::string, size_t> ran, waited;
static size_t replayed;
static std::map<std::string, Traffic> moved;

static void counts_write() {
    FILE *out = fopen(getenv("VIT_STANDIN_COUNTS"), "w");
    if (!out) return;
    for (const auto &r : ran) fprintf(out, "ran %zu %s\n", r.second, r.first.c_str());
    for (const auto &w : waited) fprintf(out, "waited %zu %s\n", w.second, w.first.c_str());
    if (replayed) fprintf(out, "replayed %zu graphs\n", replayed);
    for (const auto &m : moved)
        if (traffic_counts())
            fprintf(out, "moved %zu %zu %zu %s\n", m.second.moved, m.second.floor, m.second.asked, m.first.c_str());
    fclose(out);
}

static bool counts() {
    static bool wanted = getenv("VIT_STANDIN_COUNTS") && !atexit(counts_write);
    return wanted;
}

static void count_wait(const char *call) {
    if (counts()) waited[call]++;
}

static void count_moved(const char *call, const Traffic &t) {
    if (!counts()) return;
    Traffic *all = &moved[call];
    all->asked += t.asked;
    all->moved += t.moved;
    all->floor += t.floor;
}

Guard::Guard(const char *call) {
    lock.lock();
    if (running) fail(call, "called by a function that a stream runs");
    initialize();
}
Guard::~Guard() { lock.unlock(); }

static std::unordered_map<const void *, const char *> handles;

void handle_add(const void *handle, const char *kind) { handles[handle] = kind; }
void handle_check(const char *call, const void *handle, const char *kind) {
    auto found = handles.find(handle);
    if (found == handles.end()) fail(call, "no %s, or one that was destroyed", kind);
    if (strcmp(found->second, kind)) fail(call, "a %s where a %s is wanted", found->second, kind);
}
void handle_remove(const char *call, const void *handle, const char *kind) {
    handle_check(call, handle, kind);
    handles.erase(handle);
}

long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : otherwise;
}

uint32_t random_below(uint32_t n) {
    static uint64_t state = (uint64_t)setting("VIT_STANDIN_SEED", 1) * 0x9E3779B97F4A7C15u | 1;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 16) % n);
}

/* == Device memory ================================================================================================ */

/* Addresses that are used only once, so that a pointer to freed memory stays invalid. */
static const size_t ARENA_BYTES = (size_t)1 << 42;
static const size_t PAGE = 4096, ALIGNED = 256; /* the alignment that cudaMalloc promises, and no more */
static char *arena, *arena_next;

struct Block {
    size_t bytes;
    char *pages;
    size_t page_bytes;
    bool live;
};
static std::map<uintptr_t, Block> blocks; /* by first byte; freed ones too */
static size_t memory_used;
static std::map<uintptr_t, size_t> pinned;

static std::pair<const uintptr_t, Block> *block_of(const void *p) {
    auto after = blocks.upper_bound((uintptr_t)p);
    if (after == blocks.begin()) return NULL;
    auto before = std::prev(after);
    return (uintptr_t)p <= before->first + before->second.bytes ? &*before : NULL;
}

static bool in_arena(const void *p) {
    return arena && (const char *)p >= arena && (const char *)p < arena + ARENA_BYTES;
}

void check_device(const char *call, const Operand &o) {
    if (!o.bytes) return;
    if (!o.p) fail(call, "%s is NULL", o.what);
    auto *block = block_of(o.p);
    if (!in_arena(o.p)) fail(call, "%s is not memory of the device", o.what);
    if (!block) fail(call, "%s lies in no block of device memory", o.what);
    if (!block->second.live) fail(call, "%s lies in device memory that was freed", o.what);
    if ((uintptr_t)o.p + o.bytes > block->first + block->second.bytes)
        fail(call, "%s: %zu bytes, of which %zu are beyond its block of %zu", o.what, o.bytes,
             (size_t)((uintptr_t)o.p + o.bytes - block->first - block->second.bytes), block->second.bytes);
}

void check_aligned(const char *call, const char *what, const void *p, size_t to) {
    if ((uintptr_t)p % to) fail(call, "%s is not aligned to %zu bytes", what, to);
}

bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    return a_bytes && b_bytes && (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

void check_apart(const char *call, const Operand &a, const Operand &b) {
    if (overlap(a.p, a.bytes, b.p, b.bytes)) fail(call, "%s and %s overlap", a.what, b.what);
}

static void device_protect(int protection) {
    for (auto &b : blocks)
        if (b.second.live && mprotect(b.second.pages, b.second.page_bytes, protection)) fail("mprotect", "refused");
}
/* Closing device memory takes a fifth of the time of tests that wait often: after 100 waits it is done once in four. */
static bool device_is_open;
static void device_open() {
    if (!device_is_open) device_protect(PROT_READ | PROT_WRITE);
    device_is_open = running = true;
}
static void device_close() {
    static int waits;
    running = false;
    if (waits++ >= 100 && random_below(4)) return;
    device_protect(PROT_NONE);
    device_is_open = false;
}

/* Other addresses go to AddressSanitizer's handler. */
static struct sigaction segv_before;
static void segv(int number, siginfo_t *info, void *context) {
    const void *p = info->si_addr;
    if (in_arena(p)) {
        auto *block = block_of(p);
        const char *whose = !block ? "that was never allocated" : block->second.live ? "" : "that was freed";
        if (running) fail("kernel", "touches device memory %s at %p", whose, p);
        fail("host code", "touches device memory %s at %p", whose, p);
    }
    if (segv_before.sa_flags & SA_SIGINFO) segv_before.sa_sigaction(number, info, context);
    else signal(number, SIG_DFL);
}

static void initialize() {
    if (arena) return;
    void *p = mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) fail("mmap", "no addresses for device memory");
    arena = arena_next = static_cast<char *>(p);
    traffic_memory(arena, ARENA_BYTES);
    struct sigaction mine = {};
    mine.sa_sigaction = segv;
    mine.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &mine, &segv_before);
}

static size_t memory_all() { return (size_t)setting("VIT_STANDIN_MEMORY", 6L << 30); }

static void *device_allocate(size_t bytes) {
    size_t pages = (ALIGNED + bytes + PAGE - 1) / PAGE * PAGE;
    if (arena_next + pages + PAGE > arena + ARENA_BYTES) fail("cudaMalloc", "no addresses left");
    Block b = {bytes, arena_next, pages, true};
    if (mprotect(b.pages, pages, PROT_READ | PROT_WRITE)) return NULL;
    arena_next += pages + PAGE;
    memset(b.pages, 0xFF, pages);
    char *p = b.pages + ALIGNED;
    ASAN_POISON_MEMORY_REGION(b.pages, ALIGNED);
    ASAN_POISON_MEMORY_REGION(p + bytes, (size_t)(b.pages + pages - p) - bytes);
    if (!device_is_open) mprotect(b.pages, pages, PROT_NONE);
    blocks[(uintptr_t)p] = b;
    memory_used += bytes;
    return p;
}

static void device_release(Block *b) {
    ASAN_UNPOISON_MEMORY_REGION(b->pages, b->page_bytes);
    mmap(b->pages, b->page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    b->live = false;
    memory_used -= b->bytes;
}

/* Whether all of the memory is page-locked; fails if only a part of it is. */
static bool is_pinned(const char *call, const void *p, size_t bytes) {
    auto after = pinned.upper_bound((uintptr_t)p);
    if (after == pinned.begin()) return false;
    auto before = std::prev(after);
    uintptr_t end = before->first + before->second;
    if ((uintptr_t)p >= end) return false;
    if ((uintptr_t)p + bytes > end) fail(call, "%zu bytes of page-locked memory, and the block is shorter", bytes);
    return true;
}

/* == Pending work ================================================================================================= */

struct Op {
    const char *call;
    std::vector<Operand> operands;
    std::function<void()> run;
    std::function<bool()> may_run;
    std::vector<OpRef> after;
    const void *host; /* page-locked memory that the copy reads or writes */
    size_t host_bytes;
    bool done, needed;
    int waits_for;
    size_t moved;
    std::vector<Op *> followers;
};

/* In the order of submission, in which all work can be run. */
static std::vector<OpRef> pending;
/* Roughly the number of calls that a driver keeps in its queues. */
enum { PENDING_MOST = 4096 };

bool op_done(const OpRef &op) { return !op || op->done; }

static void op_run(Op *op) {
    for (const Operand &o : op->operands) check_device(op->call, o);
    bool real = !op->operands.empty() && strcmp(op->call, "kernels_workspace"); /* not a marker in a stream */
    if (real && counts()) ran[op->call]++;
    if (op->moved) count_moved(op->call, {op->moved, op->moved, op->moved});
    op->run();
    op->done = true;
    op->run = nullptr;
    op->after.clear();
}

enum Order { LATE, EARLY, SHUFFLED, ORDERS };

/* Chooses one of the operations that can run now. */
static size_t choose(const std::vector<Op *> &ready, Order order) {
    std::vector<size_t> first, second;
    for (size_t i = 0; i < ready.size(); i++) {
        bool may = !ready[i]->may_run || ready[i]->may_run(), needed = ready[i]->needed;
        if (may && (order == SHUFFLED || needed == (order == LATE))) first.push_back(i);
        else if (may && needed) second.push_back(i);
    }
    const std::vector<size_t> &from = first.empty() ? second : first;
    if (!from.empty()) return from[random_below((uint32_t)from.size())];
    for (size_t i = 0; i < ready.size(); i++)
        if (ready[i]->needed) return i; /* it waits for another rank */
    fail("stand-in", "work that waits for itself");
}

static void mark_needed(Op *op) {
    std::vector<Op *> stack = {op};
    while (!stack.empty()) {
        Op *top = stack.back();
        stack.pop_back();
        if (top->done || top->needed) continue;
        top->needed = true;
        for (const OpRef &before : top->after) stack.push_back(before.get());
    }
}

/* Whether the operation can finish without waiting for another rank. */
static bool can_finish(const OpRef &op) {
    if (op_done(op)) return true;
    mark_needed(op.get());
    bool can = true;
    for (const OpRef &o : pending) {
        if (o->needed && o->may_run && !o->may_run()) can = false;
        o->needed = false;
    }
    return can;
}

void run_until(const OpRef &target) {
    if (op_done(target)) return;
    Order order = (Order)random_below(ORDERS);
    std::vector<Op *> ready;
    mark_needed(target.get());
    for (const OpRef &op : pending) op->waits_for = 0, op->followers.clear();
    for (const OpRef &op : pending) {
        for (const OpRef &before : op->after)
            if (!before->done) op->waits_for++, before->followers.push_back(op.get());
        if (!op->waits_for) ready.push_back(op.get());
    }
    device_open();
    while (!target->done) {
        size_t i = choose(ready, order);
        Op *op = ready[i];
        ready[i] = ready.back();
        ready.pop_back();
        op_run(op);
        for (Op *next : op->followers)
            if (!--next->waits_for) ready.push_back(next);
    }
    device_close();
    for (const OpRef &op : pending) op->needed = false, op->followers.clear();
    pending.erase(std::remove_if(pending.begin(), pending.end(), [](const OpRef &op) { return op->done; }),
                  pending.end());
}

static void run_all() {
    while (!pending.empty()) run_until(pending.back());
}

} // namespace standin

using namespace standin;

/* == Streams, events and captures: the structures ================================================================= */

namespace {
/* A node of a graph; nodes come after those for which they wait. */
struct Node {
    Work work;
    std::vector<int> after;
    const void *host;
    size_t host_bytes;
};

struct Capture {
    std::vector<Node> nodes;
    CUstream_st *origin;
    std::thread::id thread;
    cudaStreamCaptureMode mode;
    bool live;
    std::set<CUstream_st *> members;
    std::map<OpRef *, int> chains;
};
} // namespace
typedef std::shared_ptr<Capture> CaptureRef;

struct CUstream_st {
    bool blocking;
    OpRef last;
    CaptureRef capture;
    std::vector<int> tail; /* nodes for which the next one waits */
};
struct CUevent_st {
    unsigned flags;
    OpRef op;
    std::shared_ptr<double> time;
    CaptureRef capture;
    std::vector<int> nodes;
    int asked; /* calls of cudaEventQuery since it was recorded */
};
struct CUgraph_st {
    std::vector<Node> nodes;
};
struct CUgraphExec_st {
    std::vector<Node> nodes;
    OpRef last;
};

static CUstream_st legacy = {true, nullptr, nullptr, {}};
static std::set<CUstream_st *> streams;
static std::vector<CaptureRef> captures; /* those that have not ended */
static cudaError_t last_error = cudaSuccess;

static cudaError_t error(cudaError_t e) {
    last_error = e;
    return e;
}

static CUstream_st *stream_of(const char *call, cudaStream_t stream) {
    if (stream) {
        handle_check(call, stream, "stream");
        return stream;
    }
    for (const CaptureRef &c : captures)
        if (c->mode != cudaStreamCaptureModeRelaxed || c->thread == std::this_thread::get_id())
            fail(call, "the legacy stream is used while a stream captures (cudaErrorStreamCaptureImplicit)");
    return &legacy;
}

void standin::forbid_in_capture(const char *call) {
    for (const CaptureRef &c : captures) {
        bool mine = c->thread == std::this_thread::get_id();
        if (c->mode == cudaStreamCaptureModeGlobal || (mine && c->mode == cudaStreamCaptureModeThreadLocal))
            fail(call, "called while a stream captures (cudaErrorStreamCaptureUnsupported)");
    }
}

/* == Submission =================================================================================================== */

static void add_unique(std::vector<int> *to, const std::vector<int> &from) {
    for (int node : from)
        if (std::find(to->begin(), to->end(), node) == to->end()) to->push_back(node);
}

static OpRef enqueue(const Work &work, std::vector<OpRef> after, const void *host, size_t host_bytes) {
    OpRef op = std::make_shared<Op>();
    op->call = work.call;
    op->operands = work.operands;
    op->run = work.prepare();
    op->may_run = work.may_run;
    op->moved = work.moved;
    op->host = host;
    op->host_bytes = host_bytes;
    op->done = op->needed = false;
    if (work.chain) {
        after.push_back(*work.chain);
        *work.chain = op;
    }
    for (const OpRef &before : after)
        if (!op_done(before)) op->after.push_back(before);
    pending.push_back(op);
    if (work.joined) work.joined(op);
    return op;
}

static void node_add(CUstream_st *s, const Work &work, const void *host, size_t host_bytes) {
    Capture *c = s->capture.get();
    Node node = {work, s->tail, host, host_bytes};
    if (work.chain) {
        auto found = c->chains.find(work.chain);
        if (found != c->chains.end()) add_unique(&node.after, {found->second});
        c->chains[work.chain] = (int)c->nodes.size();
    }
    s->tail = {(int)c->nodes.size()};
    c->nodes.push_back(node);
}

/* The operations that the next work of a stream has to wait for. */
static std::vector<OpRef> before_next(CUstream_st *s) {
    std::vector<OpRef> after = {s->last};
    if (s != &legacy && s->blocking) after.push_back(legacy.last);
    if (s == &legacy)
        for (CUstream_st *other : streams)
            if (other->blocking) after.push_back(other->last);
    return after;
}

static void submit_with_host(cudaStream_t stream, const Work &work, const void *host, size_t host_bytes) {
    CUstream_st *s = stream_of(work.call, stream);
    for (const Operand &o : work.operands) check_device(work.call, o);
    if (s->capture) return node_add(s, work, host, host_bytes);
    s->last = enqueue(work, before_next(s), host, host_bytes);
    if (pending.size() > PENDING_MOST) run_until(pending[PENDING_MOST / 2]);
}

void standin::submit(cudaStream_t stream, Work work, size_t bytes) {
    work.moved = bytes;
    submit_with_host(stream, work, NULL, 0);
}

/* == Devices ====================================================================================================== */

static int device_chosen;

int standin::device_pci_bus() { return device_chosen + 1; }

static int gpus() { return (int)setting("VIT_STANDIN_GPUS", 8); }

static void device_check(const char *call, int device) {
    if (device < 0 || device >= gpus()) fail(call, "GPU %d of %d", device, gpus());
}

cudaError_t cudaGetDeviceCount(int *count) {
    Guard guard("cudaGetDeviceCount");
    *count = gpus() < 0 ? 0 : gpus();
    return gpus() < 0 ? error(cudaErrorInsufficientDriver) : gpus() ? cudaSuccess : error(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
    Guard guard("cudaSetDevice");
    device_check("cudaSetDevice", device);
    if (device != device_chosen && (!streams.empty() || memory_used))
        fail("cudaSetDevice", "another GPU than the one that has this process's streams and memory");
    device_chosen = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    Guard guard("cudaGetDevice");
    *device = device_chosen;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
    Guard guard("cudaGetDeviceProperties");
    device_check("cudaGetDeviceProperties", device);
    int sm = (int)setting("VIT_STANDIN_SM", 90);
    size_t shared = (size_t)setting("VIT_STANDIN_SHARED", sm >= 90 ? 227 : sm == 80 ? 163 : sm > 80 ? 99 : 64) + 1;
    *p = {};
    snprintf(p->name, sizeof p->name, "emulated GPU");
    p->totalGlobalMem = memory_all();
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerMultiprocessor = shared << 10;
    p->sharedMemPerBlockOptin = (shared - 1) << 10;
    p->major = sm / 10;
    p->minor = sm % 10;
    p->multiProcessorCount = (int)setting("VIT_STANDIN_PROCESSORS", 132);
    p->regsPerBlock = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->l2CacheSize = 50 << 20;
    p->pciBusID = device + 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    cudaDeviceProp p;
    cudaGetDeviceProperties(&p, device);
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)p.sharedMemPerBlockOptin; break;
    default: fail("cudaDeviceGetAttribute", "attribute %d is not stood in for", attribute);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device) {
    Guard guard("cudaDeviceGetPCIBusId");
    device_check("cudaDeviceGetPCIBusId", device);
    if (size < 13) fail("cudaDeviceGetPCIBusId", "%d bytes for a name of 13", size);
    snprintf(id, (size_t)size, "0000:%02X:00.0", (unsigned)device + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    Guard guard("cudaDeviceSynchronize");
    forbid_in_capture("cudaDeviceSynchronize");
    count_wait("cudaDeviceSynchronize");
    run_all();
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) { return cudaRuntimeGetVersion(version); }

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    Guard guard("cudaMemGetInfo");
    *total = memory_all();
    *available = *total - memory_used;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
    Guard guard("cudaGetLastError");
    cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}
cudaError_t cudaPeekAtLastError(void) { return last_error; }

const char *cudaGetErrorName(cudaError_t e) {
#define NAME_OF(name, value) \
    case value: return #name;
    switch (e) {
        CUDA_ERRORS(NAME_OF)
    default: return "unknown error";
    }
}
const char *cudaGetErrorString(cudaError_t e) { return cudaGetErrorName(e); }

/* == Memory ======================================================================================================= */

cudaError_t cudaMalloc(void **p, size_t bytes) {
    Guard guard("cudaMalloc");
    forbid_in_capture("cudaMalloc");
    if (last_error != cudaSuccess) fail("cudaMalloc", "an error before it was not fetched by cudaGetLastError");
    *p = NULL;
    if (!bytes) return cudaSuccess;
    if (memory_used + bytes > memory_all()) return error(cudaErrorMemoryAllocation);
    *p = device_allocate(bytes);
    return *p ? cudaSuccess : error(cudaErrorMemoryAllocation);
}

/* Waits for all work, as the real function does. */
cudaError_t cudaFree(void *p) {
    Guard guard("cudaFree");
    if (!p) return cudaSuccess;
    forbid_in_capture("cudaFree");
    auto found = blocks.find((uintptr_t)p);
    if (found == blocks.end()) fail("cudaFree", "not an address from cudaMalloc");
    if (!found->second.live) fail("cudaFree", "freed already");
    run_all();
    device_release(&found->second);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags) {
    Guard guard("cudaHostAlloc");
    forbid_in_capture("cudaHostAlloc");
    if (flags & ~7u) fail("cudaHostAlloc", "unknown flags %x", flags);
    if (!bytes) fail("cudaHostAlloc", "no bytes");
    if (posix_memalign(p, PAGE, bytes)) return error(cudaErrorMemoryAllocation);
    memset(*p, 0xFF, bytes);
    pinned[(uintptr_t)*p] = bytes;
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **p, size_t bytes) { return cudaHostAlloc(p, bytes, cudaHostAllocDefault); }

cudaError_t cudaFreeHost(void *p) {
    Guard guard("cudaFreeHost");
    if (!p) return cudaSuccess;
    forbid_in_capture("cudaFreeHost");
    auto found = pinned.find((uintptr_t)p);
    if (found == pinned.end()) fail("cudaFreeHost", "not an address from cudaHostAlloc, or freed already");
    for (const OpRef &op : pending)
        if (overlap(op->host, op->host_bytes, p, found->second))
            fail("cudaFreeHost", "a copy from or to this memory is still under way");
    pinned.erase(found);
    free(p);
    return cudaSuccess;
}

static cudaMemcpyKind kind_of(const char *call, void *to, const void *from, cudaMemcpyKind kind) {
    bool to_device = in_arena(to), from_device = in_arena(from);
    cudaMemcpyKind is = to_device     ? from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice
                        : from_device ? cudaMemcpyDeviceToHost
                                      : cudaMemcpyHostToHost;
    if (kind != cudaMemcpyDefault && kind != is)
        fail(call, "said to go from %s to %s, and the addresses are %s and %s",
             kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost ? "host" : "device",
             kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice ? "device" : "host",
             from_device ? "the device's" : "the host's", to_device ? "the device's" : "the host's");
    return is;
}

static void capture_forbids_pageable(const char *call, CUstream_st *s) {
    if (s->capture) fail(call, "a capture cannot hold a copy of pageable memory");
}

/* Page-locked memory is read only when the copy runs, and it is checked that the host has not written to it
 * meanwhile. */
static void copy_from_pinned(const char *call, void *to, const void *from, size_t bytes, cudaStream_t stream) {
    Work work = {call, {{"the destination", to, bytes}}, [=] {
                     uint64_t sum = XXH3_64bits(from, bytes);
                     return [=] {
                         if (XXH3_64bits(from, bytes) != sum)
                             fail(call, "the host wrote to page-locked memory while it was being copied");
                         memcpy(to, from, bytes);
                     };
                 }};
    work.moved = bytes;
    submit_with_host(stream, work, from, bytes);
}

/* Until the host has waited it reads NaN. */
static void copy_to_pinned(const char *call, void *to, const void *from, size_t bytes, cudaStream_t stream) {
    Work work = {call, {{"the source", from, bytes}}, [=] {
                     bool used = false;
                     for (const OpRef &op : pending) used |= overlap(op->host, op->host_bytes, to, bytes);
                     if (!used) memset(to, 0xFF, bytes);
                     return [=] { memcpy(to, from, bytes); };
                 }};
    work.moved = bytes;
    submit_with_host(stream, work, to, bytes);
}

static void copy(const char *call, void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    if (!bytes) return;
    if (!to || !from) fail(call, "NULL");
    CUstream_st *s = stream_of(call, stream);
    Operand target = {"the destination", to, bytes}, source = {"the source", from, bytes};
    kind = kind_of(call, to, from, kind);
    if (kind == cudaMemcpyDeviceToDevice) {
        check_apart(call, target, source);
        return submit(stream, {call, {target, source}, simply([=] { memcpy(to, from, bytes); })}, 2 * bytes);
    }
    if (kind == cudaMemcpyHostToDevice) {
        if (is_pinned(call, from, bytes)) return copy_from_pinned(call, to, from, bytes, stream);
        capture_forbids_pageable(call, s);
        std::shared_ptr<std::vector<char>> staged(
            new std::vector<char>(static_cast<const char *>(from), static_cast<const char *>(from) + bytes));
        return submit(stream, {call, {target}, simply([=] { memcpy(to, staged->data(), bytes); })}, bytes);
    }
    if (kind == cudaMemcpyDeviceToHost) {
        if (is_pinned(call, to, bytes)) return copy_to_pinned(call, to, from, bytes, stream);
        capture_forbids_pageable(call, s);
        submit(stream, {call, {source}, simply([=] { memcpy(to, from, bytes); })}, bytes);
        count_wait(call);
        return run_until(s->last);
    }
    fail(call, "from host to host: memcpy does that");
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    Guard guard("cudaMemcpyAsync");
    copy("cudaMemcpyAsync", to, from, bytes, kind, stream);
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    Guard guard("cudaMemcpy2DAsync");
    if (to_pitch < width || from_pitch < width) fail("cudaMemcpy2DAsync", "rows are wider than their pitch");
    for (size_t y = 0; y < height; y++)
        copy("cudaMemcpy2DAsync", static_cast<char *>(to) + y * to_pitch,
             static_cast<const char *>(from) + y * from_pitch, width, kind, stream);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    Guard guard("cudaMemcpy");
    forbid_in_capture("cudaMemcpy");
    copy("cudaMemcpy", to, from, bytes, kind, NULL);
    count_wait("cudaMemcpy");
    run_until(legacy.last);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream) {
    Guard guard("cudaMemsetAsync");
    if (bytes)
        submit(stream, {"cudaMemsetAsync", {{"the memory", p, bytes}}, simply([=] { memset(p, value, bytes); })},
               bytes);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *p, int value, size_t bytes) {
    Guard guard("cudaMemset");
    forbid_in_capture("cudaMemset");
    return cudaMemsetAsync(p, value, bytes, NULL);
}

/* == Streams ====================================================================================================== */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    Guard guard("cudaStreamCreateWithFlags");
    if (flags & ~1u) fail("cudaStreamCreateWithFlags", "unknown flags %x", flags);
    *stream = new CUstream_st{!(flags & cudaStreamNonBlocking), nullptr, nullptr, {}};
    streams.insert(*stream);
    handle_add(*stream, "stream");
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    (void)priority; /* the real function clamps it to the valid range */
    return cudaStreamCreateWithFlags(stream, flags);
}

/* Pending work of the stream still runs. */
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    Guard guard("cudaStreamDestroy");
    handle_check("cudaStreamDestroy", stream, "stream");
    if (stream->capture) fail("cudaStreamDestroy", "the stream captures");
    handle_remove("cudaStreamDestroy", stream, "stream");
    streams.erase(stream);
    delete stream;
    return cudaSuccess;
}

static CUstream_st *stream_to_wait_for(const char *call, cudaStream_t stream) {
    CUstream_st *s = stream_of(call, stream);
    if (s->capture) fail(call, "the stream captures (cudaErrorStreamCaptureUnsupported)");
    forbid_in_capture(call);
    return s;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    Guard guard("cudaStreamSynchronize");
    count_wait("cudaStreamSynchronize");
    run_until(stream_to_wait_for("cudaStreamSynchronize", stream)->last);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    Guard guard("cudaStreamQuery");
    CUstream_st *s = stream_to_wait_for("cudaStreamQuery", stream);
    if (op_done(s->last)) return cudaSuccess;
    if (random_below(2) && can_finish(s->last)) run_until(s->last);
    return op_done(s->last) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    Guard guard("cudaLaunchHostFunc");
    submit(stream, {"cudaLaunchHostFunc", {}, simply([=] { function(data); })});
    return cudaSuccess;
}

/* == Events ======================================================================================================= */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    Guard guard("cudaEventCreateWithFlags");
    if (flags & ~3u) fail("cudaEventCreateWithFlags", "unknown flags %x", flags);
    *event = new CUevent_st{flags, nullptr, nullptr, nullptr, {}, 0};
    handle_add(*event, "event");
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    Guard guard("cudaEventDestroy");
    handle_remove("cudaEventDestroy", event, "event");
    delete event;
    return cudaSuccess;
}

static double seconds_now() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    Guard guard("cudaEventRecord");
    handle_check("cudaEventRecord", event, "event");
    CUstream_st *s = stream_of("cudaEventRecord", stream);
    event->op = nullptr;
    event->capture = s->capture;
    event->asked = 0;
    if (s->capture) {
        event->nodes = s->tail;
        return cudaSuccess;
    }
    std::shared_ptr<double> time = event->time = std::make_shared<double>(0);
    submit(stream, {"cudaEventRecord", {}, simply([time] { *time = seconds_now(); })});
    event->op = s->last;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    Guard guard("cudaStreamWaitEvent");
    const char *call = "cudaStreamWaitEvent";
    handle_check(call, event, "event");
    CUstream_st *s = stream_of(call, stream);
    if (flags) fail(call, "flags %x are not stood in for", flags);
    if (event->capture) {
        if (!event->capture->live) fail(call, "the event was recorded in a capture that has ended");
        if (s == &legacy) fail(call, "the legacy stream cannot join a capture");
        if (s->capture && s->capture != event->capture)
            fail(call, "two captures would become one (cudaErrorStreamCaptureMerge)");
        if (!s->capture) s->tail.clear();
        s->capture = event->capture;
        s->capture->members.insert(s);
        add_unique(&s->tail, event->nodes);
        return cudaSuccess;
    }
    if (s->capture)
        fail(call, "a capture cannot wait for an event that was recorded outside it (cudaErrorStreamCaptureIsolation)");
    if (op_done(event->op)) return cudaSuccess;
    std::vector<OpRef> after = before_next(s);
    after.push_back(event->op);
    s->last = enqueue({call, {}, simply([] {})}, after, NULL, 0);
    return cudaSuccess;
}

static void event_to_wait_for(const char *call, cudaEvent_t event) {
    handle_check(call, event, "event");
    if (event->capture) fail(call, "the event was recorded in a capture (cudaErrorCapturedEvent)");
    forbid_in_capture(call);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    Guard guard("cudaEventSynchronize");
    event_to_wait_for("cudaEventSynchronize", event);
    count_wait("cudaEventSynchronize");
    run_until(event->op);
    return cudaSuccess;
}

/* The first query runs no work, so that a pending event is reported as not ready. */
cudaError_t cudaEventQuery(cudaEvent_t event) {
    Guard guard("cudaEventQuery");
    event_to_wait_for("cudaEventQuery", event);
    if (event->asked++ && can_finish(event->op)) run_until(event->op);
    return op_done(event->op) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    Guard guard("cudaEventElapsedTime");
    for (cudaEvent_t event : {start, end}) {
        handle_check("cudaEventElapsedTime", event, "event");
        if (event->flags & cudaEventDisableTiming) fail("cudaEventElapsedTime", "the event keeps no time");
        if (event->capture || !event->time) fail("cudaEventElapsedTime", "the event was not recorded");
    }
    if (!op_done(start->op) || !op_done(end->op)) return cudaErrorNotReady;
    double t = 1e3 * (*end->time - *start->time);
    *milliseconds = (float)(t > 1e-3 ? t : 1e-3);
    return cudaSuccess;
}

/* == Graphs ======================================================================================================= */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    Guard guard("cudaStreamBeginCapture");
    if (!stream) fail("cudaStreamBeginCapture", "the legacy stream cannot capture");
    CUstream_st *s = stream_of("cudaStreamBeginCapture", stream);
    if (s->capture) fail("cudaStreamBeginCapture", "the stream captures already");
    s->capture = std::make_shared<Capture>();
    *s->capture = {{}, s, std::this_thread::get_id(), mode, true, {s}, {}};
    s->tail.clear();
    captures.push_back(s->capture);
    return cudaSuccess;
}

/* Every node must precede the end of the stream on which the capture began. */
static void check_joined(const Capture &c) {
    std::vector<bool> reached(c.nodes.size());
    std::vector<int> stack = c.origin->tail;
    while (!stack.empty()) {
        int i = stack.back();
        stack.pop_back();
        if (reached[(size_t)i]) continue;
        reached[(size_t)i] = true;
        stack.insert(stack.end(), c.nodes[(size_t)i].after.begin(), c.nodes[(size_t)i].after.end());
    }
    for (size_t i = 0; i < reached.size(); i++)
        if (!reached[i])
            fail("cudaStreamEndCapture", "%s on another stream was not joined again (cudaErrorStreamCaptureUnjoined)",
                 c.nodes[i].work.call);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    Guard guard("cudaStreamEndCapture");
    CUstream_st *s = stream_of("cudaStreamEndCapture", stream);
    CaptureRef c = s->capture;
    if (!c) fail("cudaStreamEndCapture", "the stream does not capture");
    if (c->origin != s)
        fail("cudaStreamEndCapture", "another stream began this capture (cudaErrorStreamCaptureUnmatched)");
    if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != std::this_thread::get_id())
        fail("cudaStreamEndCapture", "another thread began this capture (cudaErrorStreamCaptureWrongThread)");
    check_joined(*c);
    for (CUstream_st *member : c->members)
        if (streams.count(member)) member->capture = nullptr;
    c->live = false;
    captures.erase(std::find(captures.begin(), captures.end(), c));
    *graph = new CUgraph_st{c->nodes};
    handle_add(*graph, "graph");
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
    Guard guard("cudaStreamIsCapturing");
    CUstream_st *s = stream_of("cudaStreamIsCapturing", stream);
    *status = s->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    Guard guard("cudaGraphGetNodes");
    handle_check("cudaGraphGetNodes", graph, "graph");
    if (nodes) fail("cudaGraphGetNodes", "only the number of nodes is stood in for");
    *count = graph->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    Guard guard("cudaGraphDestroy");
    handle_remove("cudaGraphDestroy", graph, "graph");
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
    Guard guard("cudaGraphInstantiate");
    forbid_in_capture("cudaGraphInstantiate");
    handle_check("cudaGraphInstantiate", graph, "graph");
    if (flags) fail("cudaGraphInstantiate", "flags %llx are not stood in for", flags);
    *exec = new CUgraphExec_st{graph->nodes, nullptr};
    handle_add(*exec, "executable graph");
    return cudaSuccess;
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo *info) {
    Guard guard("cudaGraphExecUpdate");
    handle_check("cudaGraphExecUpdate", exec, "executable graph");
    handle_check("cudaGraphExecUpdate", graph, "graph");
    *info = {cudaGraphExecUpdateSuccess, NULL, NULL};
    bool same = exec->nodes.size() == graph->nodes.size();
    for (size_t i = 0; same && i < exec->nodes.size(); i++) same = exec->nodes[i].after == graph->nodes[i].after;
    if (!same) info->result = cudaGraphExecUpdateErrorTopologyChanged;
    for (size_t i = 0; same && i < exec->nodes.size(); i++)
        if (strcmp(exec->nodes[i].work.call, graph->nodes[i].work.call))
            info->result = cudaGraphExecUpdateErrorNodeTypeChanged;
    if (info->result != cudaGraphExecUpdateSuccess) return error(cudaErrorGraphExecUpdateFailure);
    exec->nodes = graph->nodes;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
    Guard guard("cudaGraphUpload");
    handle_check("cudaGraphUpload", exec, "executable graph");
    stream_of("cudaGraphUpload", stream);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    Guard guard("cudaGraphLaunch");
    handle_check("cudaGraphLaunch", exec, "executable graph");
    CUstream_st *s = stream_of("cudaGraphLaunch", stream);
    if (s->capture) fail("cudaGraphLaunch", "launching a graph within a capture is not stood in for");
    replayed += counts();
    std::vector<OpRef> before = before_next(s), ops;
    before.push_back(exec->last); /* a launch waits for the previous one */
    for (const Node &node : exec->nodes) {
        std::vector<OpRef> after = before;
        for (int i : node.after) after.push_back(ops[(size_t)i]);
        for (const Operand &o : node.work.operands) check_device(node.work.call, o);
        ops.push_back(enqueue(node.work, after, node.host, node.host_bytes));
    }
    before.insert(before.end(), ops.begin(), ops.end());
    s->last = exec->last = enqueue({"cudaGraphLaunch", {}, simply([] {})}, before, NULL, 0);
    return cudaSuccess;
}

/* A launched graph still runs. */
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    Guard guard("cudaGraphExecDestroy");
    handle_remove("cudaGraphExecDestroy", exec, "executable graph");
    delete exec;
    return cudaSuccess;
}

/* == Kernels ====================================================================================================== */

enum { FREE_SHARED = 48 * 1024, ARGUMENT_BYTES = 4096 };
static std::unordered_map<const void *, size_t> shared_allowed;

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value) {
    Guard guard("cudaFuncSetAttribute");
    cudaDeviceProp p;
    cudaGetDeviceProperties(&p, device_chosen);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || (size_t)value > p.sharedMemPerBlockOptin)
        fail("cudaFuncSetAttribute", "%d bytes of shared memory, and a block may have %zu", value,
             p.sharedMemPerBlockOptin);
    shared_allowed[kernel] = (size_t)value;
    return cudaSuccess;
}

static void check_grid(const char *name, dim3 grid, dim3 block) {
    size_t threads = (size_t)block.x * block.y * block.z;
    if (!threads || threads > 1024 || block.z > 64)
        fail(name, "a block of %u x %u x %u threads", block.x, block.y, block.z);
    if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535)
        fail(name, "a grid of %u x %u x %u blocks", grid.x, grid.y, grid.z);
}

void emulate_enqueue(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                     size_t argument_bytes, std::vector<const void *> pointers, std::function<void()> body) {
    Guard guard(name);
    check_grid(name, grid, block);
    if (argument_bytes > ARGUMENT_BYTES)
        fail(name, "%zu bytes of arguments, and older toolkits pass 4096", argument_bytes);
    auto allowed = shared_allowed.find(kernel);
    if (shared > (allowed == shared_allowed.end() ? (size_t)FREE_SHARED : allowed->second))
        fail(name, "%zu bytes of shared memory, which cudaFuncSetAttribute did not allow", shared);
    std::vector<Operand> operands;
    for (const void *p : pointers) {
        if (!p || is_pinned(name, p, 0)) continue;
        auto *b = block_of(p);
        if (!in_arena(p) || !b) fail(name, "an argument points to no memory of the device");
        if ((uintptr_t)p < b->first + b->second.bytes) operands.push_back({"an argument", p, 1});
    }
    submit(stream, {name, operands, simply([=] {
                        traffic_begin();
                        emulate_launch(name, grid, block, shared, body);
                        count_moved(name, traffic_end());
                    })});
}
