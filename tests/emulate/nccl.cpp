/* A stand-in for NCCL between processes of one machine, which share a memory file of rank 0.
 *
 * A rank takes part in a collective when its stream reaches it.  If its host is busy, a thread of the stand-in runs the
 * stream, as a GPU would do.  Ranks must submit the same collectives in the same order; otherwise the real library
 * hangs or adds the wrong numbers, and the stand-in reports it.  VIT_STANDIN_NETWORK=5: the network fails in the fifth
 * collective, which never ends. */
#include <nccl.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <thread>

#include "tests/emulate/standin.h"

using namespace standin;

enum { RANKS_MOST = 16, PART_BYTES = 1 << 18 };

namespace {
struct Request {
    uint64_t number, count;
    int kind, type, operation, root;
};

/* The memory that all ranks share. */
struct Meeting {
    std::atomic<int> joined;
    int ranks, process[RANKS_MOST], bus[RANKS_MOST];
    std::atomic<uint64_t> announced[RANKS_MOST]; /* the number of collectives that a rank has submitted */
    std::atomic<uint64_t> wanted;                /* the last collective for which some rank waits */
    std::atomic<uint64_t> step[RANKS_MOST];
    Request request[RANKS_MOST];
    char part[RANKS_MOST][PART_BYTES];
};
} // namespace


struct ncclComm {
    Meeting *meeting;
    int rank, ranks;
    std::atomic<uint64_t> done;
    uint64_t asked, steps;
    OpRef last;
    std::deque<OpRef> ops; /* those not done yet; the first one has number done + 1 */
    std::atomic<bool> closing;
    std::thread helper;
};

static int groups;

const char *ncclGetErrorString(ncclResult_t result) {
    switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    }
    return "unknown result code";
}
const char *ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetVersion(int *version) {
    *version = 22000;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    Guard guard("ncclGetUniqueId");
    memset(id, 0, sizeof *id);
    int file = memfd_create("nccl", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, sizeof(Meeting))) return ncclSystemError;
    snprintf(id->internal, sizeof id->internal, "/proc/%d/fd/%d", (int)getpid(), file);
    return ncclSuccess;
}

static double seconds_now() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool alive(int process) { return kill(process, 0) == 0 || errno != ESRCH; }

static bool all_alive(const ncclComm *c) {
    for (int r = 0; r < c->ranks; r++)
        if (!alive(c->meeting->process[r])) return false;
    return true;
}

/* A rank whose partner has died would wait for ever with the real library; here it gives up after two minutes. */
template <typename Condition>
static void wait_until(const char *call, Condition condition) {
    double begin = seconds_now();
    while (!condition()) {
        usleep(50);
        if (seconds_now() - begin > 120) fail(call, "the other ranks did not come within two minutes");
    }
}

static void help(ncclComm *c);

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) {
    const char *call = "ncclCommInitRank";
    Guard guard(call);
    forbid_in_capture(call);
    if (ranks < 1 || rank < 0 || rank >= ranks) fail(call, "rank %d of %d", rank, ranks);
    if (ranks > RANKS_MOST) fail(call, "%d ranks, and the stand-in has room for %d", ranks, RANKS_MOST);
    if (memchr(id.internal, 0, sizeof id.internal) == id.internal) fail(call, "an id that is not from ncclGetUniqueId");
    int file = open(id.internal, O_RDWR | O_CLOEXEC);
    if (file < 0) fail(call, "%s: %s", id.internal, strerror(errno));
    void *p = mmap(NULL, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (p == MAP_FAILED) return ncclSystemError;
    Meeting *m = static_cast<Meeting *>(p);
    m->ranks = ranks;
    m->process[rank] = (int)getpid();
    m->bus[rank] = device_pci_bus();
    m->joined++;
    wait_until(call, [&] { return m->joined == ranks; });
    for (int r = 0; r < ranks; r++)
        if (r != rank && m->bus[r] == m->bus[rank]) return ncclInvalidUsage; /* two ranks on one GPU */
    ncclComm *c = new ncclComm{};
    c->meeting = m;
    c->rank = rank;
    c->ranks = ranks;
    c->helper = std::thread(help, c);
    handle_add(c, "communicator");
    *comm = c;
    return ncclSuccess;
}

/* == Taking part ================================================================================================== */

static void meet(ncclComm *c, const char *call) {
    Meeting *m = c->meeting;
    uint64_t step = ++c->steps;
    m->step[c->rank] = step;
    wait_until(call, [&] {
        for (int r = 0; r < c->ranks; r++)
            if (m->step[r] < step) return false;
        return true;
    });
}

static size_t size_of(ncclDataType_t type) { return type == ncclFloat64 ? 8 : type == ncclBfloat16 ? 2 : 4; }

template <typename T>
static T combine(ncclRedOp_t operation, T a, T b) {
    return operation == ncclMax    ? a > b ? a : b
           : operation == ncclMin  ? a < b ? a : b
           : operation == ncclProd ? a * b
                                   : a + b;
}

/* Combines the numbers of all ranks in the order of the ranks. */
template <typename T>
static void reduce(const ncclComm *c, T *to, size_t n, ncclRedOp_t operation) {
    for (size_t i = 0; i < n; i++) {
        T sum = reinterpret_cast<const T *>(c->meeting->part[0])[i];
        for (int r = 1; r < c->ranks; r++)
            sum = combine(operation, sum, reinterpret_cast<const T *>(c->meeting->part[r])[i]);
        to[i] = operation == ncclAvg ? sum / (T)c->ranks : sum;
    }
}

static void compare_requests(const ncclComm *c, const char *call) {
    const Request &mine = c->meeting->request[c->rank];
    for (int r = 0; r < c->ranks; r++) {
        const Request &other = c->meeting->request[r];
        if (other.number != mine.number || other.count != mine.count || other.kind != mine.kind ||
            other.type != mine.type || other.operation != mine.operation || other.root != mine.root)
            fail(call,
                 "rank %d's collective %llu is of %llu numbers, and rank %d's %llu of %llu: another, or another order",
                 c->rank, (unsigned long long)mine.number, (unsigned long long)mine.count, r,
                 (unsigned long long)other.number, (unsigned long long)other.count);
    }
}

/* Whether the network has failed before this collective. */
static bool lost(uint64_t collective) {
    static const uint64_t last = (uint64_t)setting("VIT_STANDIN_NETWORK", 0);
    return last && collective >= last;
}

static void take_part(ncclComm *c, const char *call, Request request, const void *send, void *receive) {
    Meeting *m = c->meeting;
    ncclDataType_t type = (ncclDataType_t)request.type;
    size_t bytes = request.count * size_of(type);
    request.number = c->done + 1;
    if (lost(request.number)) wait_until(call, [] { return false; });
    uint64_t before = m->wanted;
    while (before < request.number && !m->wanted.compare_exchange_weak(before, request.number)) continue;
    m->request[c->rank] = request;
    meet(c, call);
    compare_requests(c, call);
    for (size_t at = 0; at < bytes; at += PART_BYTES) {
        size_t part = bytes - at < PART_BYTES ? bytes - at : (size_t)PART_BYTES;
        char *to = static_cast<char *>(receive) + at;
        memcpy(m->part[c->rank], static_cast<const char *>(send) + at, part);
        meet(c, call);
        if (request.root >= 0) memcpy(to, m->part[request.root], part);
        else if (type == ncclFloat32)
            reduce(c, reinterpret_cast<float *>(to), part / 4, (ncclRedOp_t)request.operation);
        else if (type == ncclFloat64)
            reduce(c, reinterpret_cast<double *>(to), part / 8, (ncclRedOp_t)request.operation);
        else reduce(c, reinterpret_cast<int *>(to), part / 4, (ncclRedOp_t)request.operation);
        meet(c, call);
    }
    c->ops.pop_front();
    c->done++;
}

/* Runs this rank's stream up to the collective for which another rank waits. */
static void help(ncclComm *c) {
    sigset_t every;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, NULL); /* the program's threads handle signals */
    while (!c->closing) {
        usleep(500);
        if (c->meeting->wanted <= c->done) continue;
        Guard guard("NCCL");
        if (!c->closing && c->meeting->wanted > c->done && !c->ops.empty()) run_until(OpRef(c->ops.front()));
    }
}

static ncclResult_t collective(const char *call, ncclComm_t c, Request request, const void *send, void *receive,
                               cudaStream_t stream) {
    Guard guard(call);
    handle_check(call, c, "communicator");
    ncclDataType_t type = (ncclDataType_t)request.type;
    size_t bytes = request.count * size_of(type);
    bool sums = type == ncclFloat32 || type == ncclFloat64 || type == ncclInt32;
    if (request.root < 0 && !sums) fail(call, "sums of type %d are not stood in for", type);
    if (request.root >= c->ranks) fail(call, "root %d of %d ranks", request.root, c->ranks);
    check_aligned(call, "the buffer", send, size_of(type));
    check_aligned(call, "the buffer", receive, size_of(type));
    if (send != receive) check_apart(call, {"the sent", send, bytes}, {"the received", receive, bytes});
    Work work = {call, {{"the sent", send, bytes}, {"the received", receive, bytes}}, simply([=] {
                     take_part(c, call, request, send, receive);
                 })};
    work.may_run = [c, number = c->asked + 1] {
        if (lost(number)) return false;
        for (int r = 0; r < c->ranks; r++)
            if (c->meeting->announced[r] <= c->done) return false;
        return all_alive(c);
    };
    work.chain = &c->last;
    work.joined = [c](const OpRef &op) {
        c->ops.push_back(op);
        c->meeting->announced[c->rank] = ++c->asked;
    };
    submit(stream, work);
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t comm, cudaStream_t stream) {
    return collective("ncclAllReduce", comm, {0, count, 0, type, operation, -1}, send, receive, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    if (root < 0) fail("ncclBroadcast", "root %d", root);
    return collective("ncclBroadcast", comm, {0, count, 1, type, 0, root}, send, receive, stream);
}

ncclResult_t ncclGroupStart(void) {
    Guard guard("ncclGroupStart");
    groups++;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd(void) {
    Guard guard("ncclGroupEnd");
    if (groups-- < 1) fail("ncclGroupEnd", "without ncclGroupStart");
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    Guard guard("ncclCommGetAsyncError");
    handle_check("ncclCommGetAsyncError", comm, "communicator");
    *error = all_alive(comm) && !lost(comm->asked) ? ncclSuccess : ncclRemoteError;
    return ncclSuccess;
}
ncclResult_t ncclCommCount(ncclComm_t comm, int *count) {
    Guard guard("ncclCommCount");
    handle_check("ncclCommCount", comm, "communicator");
    *count = comm->ranks;
    return ncclSuccess;
}
ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank) {
    Guard guard("ncclCommUserRank");
    handle_check("ncclCommUserRank", comm, "communicator");
    *rank = comm->rank;
    return ncclSuccess;
}

static void end(const char *call, ncclComm_t c, bool finish) {
    {
        Guard guard(call);
        handle_check(call, c, "communicator");
        forbid_in_capture(call);
        if (finish) run_until(c->last);
        handle_remove(call, c, "communicator");
        c->closing = true;
        if (finish) c->meeting->process[c->rank] = 0; /* process 0 counts as alive: this rank may end now */
    }
    c->helper.join();
    if (!finish) return; /* pending work still points to c */
    munmap(c->meeting, sizeof(Meeting));
    delete c;
}

/* Finishes submitted work first. */
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    end("ncclCommDestroy", comm, true);
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    end("ncclCommAbort", comm, false);
    return ncclSuccess;
}
