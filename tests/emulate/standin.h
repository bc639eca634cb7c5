/* The functions that the stand-ins for CUDA's libraries share.  They do on the host what the libraries do on a GPU, and
 * end the test with one line that names the call and the rule when a call breaks one.
 *
 * Nothing runs when it is asked for.  A stream's work waits until somebody waits for it, and then runs in an order that
 * is legal but unkind: other streams' work as late as possible, as early as possible, or shuffled, in rotation.  The memory of the
 * device is full of NaN when it is allocated and closed to the host except while such work runs.
 *
 *   VIT_STANDIN_SEED    another order (a number)
 *   VIT_STANDIN_GPUS    how many GPUs there are: 8; 0 for none, -1 for no driver
 *   VIT_STANDIN_SM      their compute capability: 90, or 80, 86, 89, which give a block less shared memory; 75
 *   VIT_STANDIN_MEMORY  bytes of device memory: 6 GiB
 *   VIT_STANDIN_PROCESSORS  multiprocessors of a GPU: 132
 *   VIT_STANDIN_SHARED  KiB of shared memory that a block may ask for, other than the compute capability says
 *   VIT_STANDIN_DENIES  1: cuBLASLt has no algorithm for every other problem, as its documentation allows for any, and
 *                       programs have to go on without; 0: for those only whose types or epilogue it excludes
 *   VIT_STANDIN_COUNTS  a file that will hold how often everything ran, how often the host asked to wait, and, where
 *                       kernels are compiled to be counted (traffic.h), the bytes that each moved, its floor, and the
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

/* Held by every call: the libraries may be called by any thread. */
struct Guard {
    Guard(const char *call);
    ~Guard();
};

/* Live handles of any kind: a call with one that was destroyed, or never was one, breaks a rule. */
void handle_add(const void *handle, const char *kind);
void handle_check(const char *call, const void *handle, const char *kind);
void handle_remove(const char *call, const void *handle, const char *kind);

/* Device memory that a call reads or writes. */
struct Operand {
    const char *what;
    const void *p;
    size_t bytes;
};

/* All of it lies in one block from cudaMalloc. */
void check_device(const char *call, const Operand &o);
void check_aligned(const char *call, const char *what, const void *p, size_t to);
void check_apart(const char *call, const Operand &a, const Operand &b);
bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes);

/* One piece of pending work; the communicator that it belongs to keeps its last one. */
struct Op;
typedef std::shared_ptr<Op> OpRef;

struct Work {
    const char *call;
    std::vector<Operand> operands;                  /* checked when the work is asked for and again when it runs */
    std::function<std::function<void()>()> prepare; /* called whenever the work joins a stream; gives what is to run */
    std::function<bool()> may_run = {};             /* false: not before somebody waits for it */
    OpRef *chain = nullptr; /* works of one chain run in the order in which they joined streams */
    std::function<void(const OpRef &)> joined = {};
    size_t moved = 0; /* bytes that it reads and writes, each operand once, where it is no kernel */
};
static inline std::function<std::function<void()>()> simply(std::function<void()> run) {
    return [run] { return run; };
}

void submit(cudaStream_t stream, Work work, size_t moved = 0);
/* Runs what must run for this to be done, and maybe more. */
void run_until(const OpRef &op);
bool op_done(const OpRef &op);

/* Ends the test if this thread captures in another than relaxed mode: `call` allocates or synchronises. */
void forbid_in_capture(const char *call);

/* The GPU that this process chose, as NCCL compares it. */
int device_pci_bus();

/* Random numbers for unkind choices. */
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
