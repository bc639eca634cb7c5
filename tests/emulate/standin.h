/* Functions that the stand-ins for CUDA's libraries share.  The stand-ins do on the host what the libraries do on a
 * GPU; if a call breaks a rule they end the test with one line that names the call and the rule.
 *
 * Nothing runs at once.  Work stays in its stream until somebody waits for it, and then runs in an order that is legal
 * but unfavourable: other streams' work as late as possible, as early as possible or shuffled, at random.  Device
 * memory is full of NaN when it is allocated, and is inaccessible except while work runs.
 *
 *   VIT_STANDIN_SEED    a number that decides the order
 *   VIT_STANDIN_GPUS    the number of GPUs (default 8); 0 for none, -1 for no driver
 *   VIT_STANDIN_SM      their compute capability (default 90): 80, 86 or 89, with less shared memory for a block, or 75
 *   VIT_STANDIN_MEMORY  bytes of device memory (default 6 GiB)
 *   VIT_STANDIN_PROCESSORS  multiprocessors of a GPU (default 132)
 *   VIT_STANDIN_SHARED  KiB of shared memory that a block may use, instead of what the compute capability allows
 *   VIT_STANDIN_DENIES  1: cuBLASLt has no algorithm for about half of the problems, as its documentation permits, and
 *                       programs must do without; 0: only for those whose types or epilogue it excludes
 *   VIT_STANDIN_COUNTS  a file to which is written how often everything ran, how often the host waited, and, in builds
 *                       that count the bytes of kernels (traffic.h), the bytes that each moved, its floor, and the
 *                       bytes that its threads asked for */
#ifndef VIT_TESTS_EMULATE_STANDIN_H
#define VIT_TESTS_EMULATE_STANDIN_H

#include <cuda_runtime.h>
#include <stdint.h>

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace standin {

[[noreturn]] void fail(const char *call, const char *rule, ...) __attribute__((format(printf, 2, 3)));

/* Every call holds it, because any thread may call the libraries. */
struct Guard {
    Guard(const char *call);
    ~Guard();
};

/* Registers live handles of any kind, so that a call with another handle breaks a rule. */
void handle_add(const void *handle, const char *kind);
void handle_check(const char *call, const void *handle, const char *kind);
void handle_remove(const char *call, const void *handle, const char *kind);

/* Device memory that a call reads or writes. */
struct Operand {
    const char *what;
    const void *p;
    size_t bytes;
};

/* Checks that the memory lies in one block from cudaMalloc. */
void check_device(const char *call, const Operand &o);
void check_aligned(const char *call, const char *what, const void *p, size_t to);
void check_apart(const char *call, const Operand &a, const Operand &b);
bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes);

/* One piece of pending work; a communicator keeps its last one. */
struct Op;
typedef std::shared_ptr<Op> OpRef;

struct Work {
    const char *call;
    std::vector<Operand> operands;                  /* checked at submission and again when the work runs */
    std::function<std::function<void()>()> prepare; /* called when the work joins a stream; returns what is to run */
    std::function<bool()> may_run = {};             /* false: only if somebody waits for it */
    OpRef *chain = nullptr; /* work of one chain runs in the order in which it joined streams */
    std::function<void(const OpRef &)> joined = {};
    size_t moved = 0; /* bytes that it reads and writes, each operand once; 0 for kernels */
};
static inline std::function<std::function<void()>()> simply(std::function<void()> run) {
    return [run] { return run; };
}

void submit(cudaStream_t stream, Work work, size_t moved = 0);
/* Runs pending work until this operation is done. */
void run_until(const OpRef &op);
bool op_done(const OpRef &op);

/* Ends the test if `call`, which allocates or synchronises, is not allowed in a running capture. */
void forbid_in_capture(const char *call);

/* The chosen GPU, as NCCL identifies it. */
int device_pci_bus();

/* Random numbers for the order of work. */
uint32_t random_below(uint32_t n);
long setting(const char *name, long otherwise);

static inline float bf16_widen(uint16_t bits) {
    uint32_t word = (uint32_t)bits << 16;
    float x;
    __builtin_memcpy(&x, &word, sizeof x);
    return x;
}
static inline uint16_t bf16_round(float x) {
    uint32_t word;
    __builtin_memcpy(&word, &x, sizeof word);
    if (x != x) return (uint16_t)(word >> 16 | 0x40);
    return (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

} // namespace standin

#endif
