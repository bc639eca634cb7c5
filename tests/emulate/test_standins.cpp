/* The stand-ins for CUDA's libraries: every rule is broken once, in a child process, which must end with a line that
 * names the call and the rule; right calls must pass in every order and give the right results.
 *
 *   build/emulate-FP32/tests/emulate/test_standins */
#include <cublasLt.h>
#include <cudnn.h>
#include <cufft.h>
#include <math.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "tests/emulate/device.cuh"
#include "tests/emulate/standin.h"

extern "C" {
#include "kernels/kernels.h"
}

/* == Child processes =============================================================================================== */

static int count, failures;

static void check(const std::string &name, bool ok, const std::string &evidence = "") {
    printf("%s %d - %s%s%s\n", ok ? "ok" : "not ok", ++count, name.c_str(), evidence.empty() ? "" : " # ",
           evidence.c_str());
    fflush(stdout);
    failures += !ok;
}

/* Runs it in a child process, collects its standard error, and returns its wait status. */
static int in_process(void (*body)(), std::string *said) {
    int ends[2], status;
    char text[4096];
    if (pipe(ends)) abort();
    pid_t child = fork();
    if (!child) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        body();
        _exit(0);
    }
    close(ends[1]);
    said->clear();
    for (ssize_t n; (n = read(ends[0], text, sizeof text)) > 0;) said->append(text, (size_t)n);
    close(ends[0]);
    waitpid(child, &status, 0);
    return status;
}

/* `body` breaks a rule: the stand-in must end the process with one line that contains these words. */
static void breaks(const char *name, const char *words, void (*body)()) {
    std::string said, line;
    int status = in_process(body, &said);
    line = said.substr(0, said.find('\n'));
    bool ok = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && line.rfind("stand-in: ", 0) == 0 &&
              line.find(words) != std::string::npos && said.size() == line.size() + 1;
    check(std::string("caught: ") + name, ok,
          ok ? line.substr(10) : "status " + std::to_string(status) + ", said: " + line);
}

/* `body` is right and must pass in every order; it calls expect(). */
static void passes(const char *name, void (*body)()) {
    std::string said, trouble;
    for (int seed = 1; seed <= 12 && trouble.empty(); seed++) {
        setenv("VIT_STANDIN_SEED", std::to_string(seed).c_str(), 1);
        if (in_process(body, &said) != 0)
            trouble = "order " + std::to_string(seed) + ": " + said.substr(0, said.find('\n'));
    }
    unsetenv("VIT_STANDIN_SEED");
    check(name, trouble.empty(), trouble);
}

/* `body` is wrong although each call is right: the result must be wrong in some orders. */
static void shows(const char *name, void (*body)()) {
    std::string said;
    int wrong = 0;
    for (int seed = 1; seed <= 12; seed++) {
        setenv("VIT_STANDIN_SEED", std::to_string(seed).c_str(), 1);
        wrong += in_process(body, &said) != 0;
    }
    unsetenv("VIT_STANDIN_SEED");
    check(std::string("shows: ") + name, wrong > 0, std::to_string(wrong) + " of 12 orders");
}

static void expect(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "not so: %s\n", what);
    _exit(1);
}
#define EXPECT(condition) expect(condition, #condition)
static void near(const char *what, double got, double want, double tolerance) {
    if (fabs(got - want) <= tolerance * (1 + fabs(want))) return;
    fprintf(stderr, "%s: got %g, want %g\n", what, got, want);
    _exit(1);
}

/* == Helpers ======================================================================================================= */

static cudaStream_t stream() {
    cudaStream_t s;
    EXPECT(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
    return s;
}
static cudaEvent_t event(unsigned flags = cudaEventDisableTiming) {
    cudaEvent_t e;
    EXPECT(cudaEventCreateWithFlags(&e, flags) == cudaSuccess);
    return e;
}
template <typename T = float>
static T *device(size_t n) {
    T *p;
    EXPECT(cudaMalloc(&p, n * sizeof *p) == cudaSuccess);
    return p;
}
static float *pinned(size_t n) {
    float *p;
    EXPECT(cudaHostAlloc(&p, n * sizeof *p, cudaHostAllocDefault) == cudaSuccess);
    return p;
}
template <typename T>
static T *uploaded(const std::vector<T> &x) {
    T *p = device<T>(x.size());
    cudaMemcpy(p, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice);
    return p;
}
template <typename T>
static std::vector<T> downloaded(const T *p, size_t n) {
    std::vector<T> x(n);
    cudaDeviceSynchronize();
    cudaMemcpy(x.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost);
    return x;
}
static std::vector<float> numbers(size_t n, uint32_t seed) {
    std::vector<float> x(n);
    for (float &v : x) {
        seed = seed * 1664525 + 1013904223;
        v = (float)(seed >> 8) / (1 << 23) - 1;
    }
    return x;
}
static std::vector<uint16_t> rounded(std::vector<float> *x) {
    std::vector<uint16_t> y;
    for (float &v : *x) {
        y.push_back(standin::bf16_round(v));
        v = standin::bf16_widen(y.back());
    }
    return y;
}

__global__ void add_kernel(float *p, float x, int n) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) p[i] += x;
}
static void add(float *p, float x, int n, cudaStream_t s, size_t shared = 0) {
    emulated("add_kernel", add_kernel, dim3((unsigned)(n + 31) / 32), dim3(32), shared, s)(p, x, n);
}
__global__ void scale_kernel(float *p, float x) { p[threadIdx.x] *= x; }
static void scale(float *p, float x, cudaStream_t s) { emulated("scale_kernel", scale_kernel, 1, 4, 0, s)(p, x); }

static const cudaMemcpyKind TO_DEVICE = cudaMemcpyHostToDevice, TO_HOST = cudaMemcpyDeviceToHost,
                            ON_DEVICE = cudaMemcpyDeviceToDevice;

/* == cudart: memory =============================================================================================== */

static void memory() {
    breaks("the host reads device memory", "host code: touches device memory", [] {
        volatile float x = *device(4);
        (void)x;
    });
    breaks("the host writes device memory", "host code: touches device memory", [] { *device(4) = 1; });
    breaks("a kernel reads freed memory", "freed", [] {
        float *p = device(4);
        cudaFree(p);
        add(p, 1, 4, stream());
    });
    breaks("memory is freed twice", "cudaFree: freed already", [] {
        float *p = device(4);
        cudaFree(p);
        cudaFree(p);
    });
    breaks("an inner address is freed", "not an address from cudaMalloc", [] { cudaFree(device(4) + 1); });
    breaks("a copy beyond its block", "4 are beyond its block of 16", [] {
        float x[5] = {};
        cudaMemcpyAsync(device(4), x, sizeof x, TO_DEVICE, stream());
    });
    breaks("a copy the wrong way round", "said to go from device to host", [] {
        float x[4] = {};
        cudaMemcpyAsync(device(4), x, sizeof x, TO_HOST, stream());
    });
    breaks("a copy onto itself", "overlap", [] {
        float *p = device(8);
        cudaMemcpyAsync(p, p + 1, 4 * sizeof *p, ON_DEVICE, stream());
    });
    breaks("a memset beyond its block", "beyond its block", [] { cudaMemsetAsync(device(4), 0, 20, stream()); });
    breaks("page-locked memory is too short", "the block is shorter",
           [] { cudaMemcpyAsync(device(8), pinned(4), 32, TO_DEVICE, stream()); });
    breaks("page-locked memory is freed in use", "still under way", [] {
        float *host = pinned(4);
        cudaMemcpyAsync(device(4), host, 16, TO_DEVICE, stream());
        cudaFreeHost(host);
    });
    breaks("memory of malloc is freed as page-locked", "not an address from cudaHostAlloc",
           [] { cudaFreeHost(malloc(4)); });
    breaks("page-locked memory is written too early", "the host wrote to page-locked memory", [] {
        float *host = pinned(4);
        cudaStream_t s = stream();
        host[0] = 1;
        cudaMemcpyAsync(device(4), host, 16, TO_DEVICE, s);
        host[0] = 2;
        cudaStreamSynchronize(s);
    });
    shows("a download that is not waited for", [] {
        float *host = pinned(4), *p = uploaded<float>({1, 2, 3, 4});
        cudaMemcpyAsync(host, p, 16, TO_HOST, stream());
        EXPECT(host[0] == 1);
    });
    breaks("an error is left lying", "was not fetched", [] {
        float *p;
        EXPECT(cudaMalloc(&p, (size_t)1 << 40) == cudaErrorMemoryAllocation);
        device(4);
    });
    passes("out of memory is an error that goes away", [] {
        float *p;
        EXPECT(cudaMalloc(&p, (size_t)1 << 40) == cudaErrorMemoryAllocation);
        EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);
        cudaFree(device(4));
    });
    passes("new memory is NaN, aligned to 256 bytes and to no more", [] {
        float *p = device(4);
        EXPECT((uintptr_t)p % 256 == 0 && (uintptr_t)p % 512 != 0);
        std::vector<float> x = downloaded(p, 4);
        EXPECT(x[0] != x[0] && x[3] != x[3]);
    });
    passes("copies there and back, pageable and page-locked", [] {
        cudaStream_t s = stream();
        float here[4] = {1, 2, 3, 4}, back[4], *host = pinned(4), *p = device(4), *q = device(4);
        cudaMemcpyAsync(p, here, 16, TO_DEVICE, s);
        here[0] = 9; /* its bytes were copied */
        cudaMemcpyAsync(q, p, 16, ON_DEVICE, s);
        cudaMemcpyAsync(host, q, 16, cudaMemcpyDefault, s);
        cudaMemcpyAsync(back, q, 16, TO_HOST, s);
        EXPECT(back[0] == 1 && back[3] == 4 && host[0] == 1 && host[3] == 4);
    });
}

/* == cudart: streams, events, kernels ============================================================================= */

static void streams() {
    breaks("a stream that was destroyed", "no stream, or one that was destroyed", [] {
        cudaStream_t s = stream();
        cudaStreamDestroy(s);
        cudaStreamSynchronize(s);
    });
    breaks("an event where a stream is wanted", "a event where a stream is wanted",
           [] { cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(event())); });
    breaks("time of an event without time", "keeps no time", [] {
        float t;
        cudaEvent_t e = event();
        cudaEventRecord(e, stream());
        cudaEventElapsedTime(&t, e, e);
    });
    breaks("time of an event never recorded", "was not recorded", [] {
        float t;
        cudaEventElapsedTime(&t, event(cudaEventDefault), event(cudaEventDefault));
    });
    passes("time before the end is not ready", [] {
        float t;
        cudaStream_t s = stream();
        cudaEvent_t a = event(cudaEventDefault), b = event(cudaEventDefault);
        cudaEventRecord(a, s);
        cudaEventRecord(b, s);
        EXPECT(cudaEventElapsedTime(&t, a, b) == cudaErrorNotReady);
        cudaEventSynchronize(b);
        EXPECT(cudaEventElapsedTime(&t, a, b) == cudaSuccess && t > 0);
    });
    passes("an event is not ready when first asked, and is in the end", [] {
        cudaStream_t s = stream();
        cudaEvent_t e = event();
        int asked = 0;
        add(uploaded<float>({0}), 1, 1, s);
        cudaEventRecord(e, s);
        EXPECT(cudaEventQuery(e) == cudaErrorNotReady);
        while (cudaEventQuery(e) != cudaSuccess) EXPECT(asked++ < 100);
    });
    shows("two streams without an event, read before it is written", [] {
        cudaStream_t s = stream(), t = stream();
        float *p = uploaded<float>({1}), *q = uploaded<float>({0}), x;
        add(p, 1, 1, s);
        cudaMemcpyAsync(q, p, 4, ON_DEVICE, t);
        cudaMemcpyAsync(&x, q, 4, TO_HOST, t);
        EXPECT(x == 2);
    });
    shows("two streams without an event, written before it is read", [] {
        cudaStream_t s = stream(), t = stream();
        float *p = uploaded<float>({1}), *q = uploaded<float>({0}), x;
        cudaMemcpyAsync(q, p, 4, ON_DEVICE, s);
        add(p, 1, 1, t);
        cudaMemcpyAsync(&x, q, 4, TO_HOST, s);
        EXPECT(x == 1);
    });
    passes("two streams with events", [] {
        cudaStream_t s = stream(), t = stream();
        cudaEvent_t made = event(), read = event();
        float *p = uploaded<float>({1}), *q = uploaded<float>({0}), x, y;
        add(p, 1, 1, s);
        cudaEventRecord(made, s);
        cudaStreamWaitEvent(t, made);
        cudaMemcpyAsync(q, p, 4, ON_DEVICE, t);
        cudaEventRecord(read, t);
        cudaStreamWaitEvent(s, read);
        scale(uploaded<float>({1, 1, 1, 1}), 2, s);
        add(p, 5, 1, s);
        cudaMemcpyAsync(&x, q, 4, TO_HOST, t);
        cudaMemcpyAsync(&y, p, 4, TO_HOST, s);
        EXPECT(x == 2 && y == 7);
    });
    passes("blocking streams wait for the legacy stream, and it for them", [] {
        cudaStream_t s;
        float *p = uploaded<float>({1, 1, 1, 1}), x;
        cudaStreamCreate(&s);
        add(p, 1, 4, s);
        scale(p, 10, NULL);
        add(p, 1, 4, s);
        cudaMemcpyAsync(&x, p, 4, TO_HOST, s);
        EXPECT(x == 21);
    });
    breaks("a call from a function of the stream's", "called by a function that a stream runs", [] {
        cudaStream_t s = stream();
        cudaLaunchHostFunc(
            s, [](void *) { cudaGetLastError(); }, NULL);
        cudaStreamSynchronize(s);
    });
    breaks("too many threads", "a block of 2048 x 1 x 1 threads",
           [] { emulated("add_kernel", add_kernel, 1, 2048, 0, stream())(device(4), 1, 4); });
    breaks("a grid that is too high", "a grid of 1 x 65536 x 1",
           [] { emulated("add_kernel", add_kernel, dim3(1, 65536), 32, 0, stream())(device(4), 1, 4); });
    breaks("shared memory that nobody allowed", "which cudaFuncSetAttribute did not allow",
           [] { add(device(4), 1, 4, stream(), 49153); });
    breaks("more shared memory than a block may have", "a block may have 101376", [] {
        setenv("VIT_STANDIN_SM", "86", 1);
        cudaFuncSetAttribute(reinterpret_cast<const void *>(add_kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             120 << 10);
    });
    passes("shared memory that is allowed", [] {
        cudaStream_t s = stream();
        cudaFuncSetAttribute(reinterpret_cast<const void *>(add_kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             120 << 10);
        add(device(4), 1, 4, s, 120 << 10);
        cudaStreamSynchronize(s);
    });
    breaks("the host's memory as an argument", "points to no memory of the device", [] {
        float x[4] = {};
        add(x, 1, 4, stream());
    });
    breaks("another GPU than the first", "another GPU than the one", [] {
        stream();
        cudaSetDevice(1);
    });
    passes("no GPU, no driver", [] {
        int n;
        setenv("VIT_STANDIN_GPUS", "0", 1);
        EXPECT(cudaGetDeviceCount(&n) == cudaErrorNoDevice);
        setenv("VIT_STANDIN_GPUS", "-1", 1);
        EXPECT(cudaGetDeviceCount(&n) == cudaErrorInsufficientDriver);
    });
}

/* == cudart: graphs =============================================================================================== */

static cudaStream_t capturing(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    cudaStream_t s = stream();
    cudaStreamBeginCapture(s, mode);
    return s;
}
static cudaGraphExec_t captured(cudaStream_t s) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStreamEndCapture(s, &graph);
    cudaGraphInstantiate(&exec, graph);
    cudaGraphDestroy(graph);
    return exec;
}

static void graphs() {
    breaks("synchronising the capturing stream", "cudaStreamSynchronize: the stream captures",
           [] { cudaStreamSynchronize(capturing()); });
    breaks("synchronising another stream in a capture", "called while a stream captures", [] {
        capturing();
        cudaStreamSynchronize(stream());
    });
    breaks("synchronising the device in a capture", "cudaDeviceSynchronize: called while", [] {
        capturing();
        cudaDeviceSynchronize();
    });
    breaks("cudaMalloc in a capture", "cudaMalloc: called while", [] {
        capturing();
        device(4);
    });
    breaks("cudaFree in a capture", "cudaFree: called while", [] {
        float *p = device(4);
        capturing();
        cudaFree(p);
    });
    breaks("cudaHostAlloc in a capture", "cudaHostAlloc: called while", [] {
        capturing();
        pinned(4);
    });
    breaks("cudaEventQuery in a capture", "cudaEventQuery: called while", [] {
        cudaEvent_t e = event();
        capturing();
        cudaEventQuery(e);
    });
    breaks("cudaStreamQuery in a capture", "cudaStreamQuery: the stream captures",
           [] { cudaStreamQuery(capturing()); });
    breaks("waiting for an event of the capture", "cudaErrorCapturedEvent", [] {
        cudaEvent_t e = event();
        cudaEventRecord(e, capturing());
        cudaEventSynchronize(e);
    });
    breaks("the legacy stream in a capture", "cudaErrorStreamCaptureImplicit", [] {
        float *p = device(4);
        capturing();
        cudaMemsetAsync(p, 0, 4, NULL);
    });
    breaks("cudaMemcpy in a capture", "cudaMemcpy: called while", [] {
        float *p = device(4), x = 0;
        capturing();
        cudaMemcpy(p, &x, 4, TO_DEVICE);
    });
    breaks("pageable memory in a capture", "pageable memory", [] {
        float *p = device(4), x = 0;
        cudaMemcpyAsync(p, &x, 4, TO_DEVICE, capturing());
    });
    breaks("an event from outside a capture", "cudaErrorStreamCaptureIsolation", [] {
        cudaEvent_t e = event();
        cudaEventRecord(e, stream());
        cudaStreamWaitEvent(capturing(), e);
    });
    breaks("an event of a capture that has ended", "capture that has ended", [] {
        cudaStream_t s = capturing();
        cudaEvent_t e = event();
        cudaEventRecord(e, s);
        captured(s);
        cudaStreamWaitEvent(s, e);
    });
    breaks("a stream that is not joined again", "cudaErrorStreamCaptureUnjoined", [] {
        float *p = device(4);
        cudaStream_t s = capturing(), t = stream();
        cudaEvent_t e = event();
        cudaEventRecord(e, s);
        cudaStreamWaitEvent(t, e);
        cudaMemsetAsync(p, 0, 16, t);
        captured(s);
    });
    breaks("two captures that meet", "cudaErrorStreamCaptureMerge", [] {
        cudaEvent_t e = event();
        cudaEventRecord(e, capturing());
        cudaStreamWaitEvent(capturing(), e);
    });
    breaks("a capture that another stream ends", "cudaErrorStreamCaptureUnmatched", [] {
        cudaStream_t s = capturing(), t = stream();
        cudaEvent_t e = event();
        cudaEventRecord(e, s);
        cudaStreamWaitEvent(t, e);
        captured(t);
    });
    breaks("a capture that nobody began", "does not capture", [] { captured(stream()); });
    breaks("a capture of the legacy stream", "cannot capture",
           [] { cudaStreamBeginCapture(NULL, cudaStreamCaptureModeThreadLocal); });
    breaks("a capture within a capture", "captures already",
           [] { cudaStreamBeginCapture(capturing(), cudaStreamCaptureModeThreadLocal); });
    breaks("a stream destroyed in its capture", "cudaStreamDestroy: the stream captures",
           [] { cudaStreamDestroy(capturing()); });
    breaks("a graph of memory that was freed", "freed", [] {
        cudaStream_t s = stream();
        float *p = device(4);
        cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
        add(p, 1, 4, s);
        cudaGraphExec_t exec = captured(s);
        cudaFree(p);
        cudaGraphLaunch(exec, s);
    });
    breaks("a graph that was destroyed", "no executable graph", [] {
        cudaStream_t s = capturing();
        cudaGraphExec_t exec = captured(s);
        cudaGraphExecDestroy(exec);
        cudaGraphLaunch(exec, s);
    });
    passes("a graph replays its arguments, which are frozen", [] {
        float *p = uploaded<float>({0, 0, 0, 0}), by = 2;
        cudaStream_t s = capturing();
        add(p, by, 4, s);
        by = 100;
        cudaGraphExec_t exec = captured(s);
        for (int i = 0; i < 3; i++) cudaGraphLaunch(exec, s);
        EXPECT(downloaded(p, 4)[3] == 6);
    });
    passes("a graph of two streams, with a copy of page-locked memory", [] {
        float *host = pinned(4), *p = device(4), *q = uploaded<float>({1, 1, 1, 1});
        cudaStream_t s = capturing(), t = stream();
        cudaEvent_t fork = event(), join = event();
        cudaMemcpyAsync(p, host, 16, TO_DEVICE, s);
        cudaEventRecord(fork, s);
        cudaStreamWaitEvent(t, fork);
        scale(p, 2, t);
        add(q, 1, 4, s);
        cudaEventRecord(join, t);
        cudaStreamWaitEvent(s, join);
        cudaMemcpyAsync(q + 2, p, 8, ON_DEVICE, s);
        cudaGraphExec_t exec = captured(s);
        for (int i = 1; i <= 2; i++) {
            for (int j = 0; j < 4; j++) host[j] = (float)i;
            cudaGraphLaunch(exec, s);
            std::vector<float> x = downloaded(q, 4);
            EXPECT(x[0] == 1 + (float)i && x[3] == 2 * (float)i);
        }
    });
    passes("an executable graph takes other arguments, and no other shape", [] {
        cudaGraph_t graph;
        cudaGraphExecUpdateResultInfo info;
        float *p = uploaded<float>({0, 0, 0, 0});
        cudaStream_t s = capturing();
        add(p, 1, 4, s);
        cudaGraphExec_t exec = captured(s);
        cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
        add(p, 10, 4, s);
        cudaStreamEndCapture(s, &graph);
        EXPECT(cudaGraphExecUpdate(exec, graph, &info) == cudaSuccess);
        cudaGraphLaunch(exec, s);
        EXPECT(downloaded(p, 4)[0] == 10);
        cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
        scale(p, 10, s);
        scale(p, 10, s);
        cudaStreamEndCapture(s, &graph);
        EXPECT(cudaGraphExecUpdate(exec, graph, &info) == cudaErrorGraphExecUpdateFailure);
        EXPECT(info.result == cudaGraphExecUpdateErrorTopologyChanged);
    });
}

/* == cuBLASLt ===================================================================================================== */

/* D [m,n] = A^T B with A [k,m] and B [k,n], stored without gaps. */
struct Product {
    uint64_t m = 24, n = 10, k = 16;
    cudaDataType in = CUDA_R_16BF, out = CUDA_R_16BF;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT, aligned = 16, schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint64_t workspace_bytes = 1 << 20;
    size_t given = 1 << 20;
    int64_t aux_ld = 24;
    void *bias = NULL, *aux = NULL;
    float beta = 0;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulHeuristicResult_t results[8];
    int found = 0;
    char *workspace;

    void prepare() {
        cublasLtMatmulPreference_t preference;
        int32_t transposed = CUBLAS_OP_T;
        cublasLtCreate(&handle);
        cublasLtMatmulDescCreate(&matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F);
        cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
        cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
        cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
        cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux);
        cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_ld, sizeof aux_ld);
        cublasLtMatrixLayoutCreate(&a, in, k, m, (int64_t)k);
        cublasLtMatrixLayoutCreate(&b, in, k, n, (int64_t)k);
        cublasLtMatrixLayoutCreate(&d, out, m, n, (int64_t)m);
        cublasLtMatmulPreferenceCreate(&preference);
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                             sizeof workspace_bytes);
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                             sizeof schemes);
        for (auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
            cublasLtMatmulPreferenceSetAttribute(preference, attribute, &aligned, sizeof aligned);
        cublasStatus_t status =
            cublasLtMatmulAlgoGetHeuristic(handle, matmul, a, b, d, d, preference, 8, results, &found);
        EXPECT(status == CUBLAS_STATUS_SUCCESS || found == 0);
        cublasLtMatmulPreferenceDestroy(preference);
        workspace = device<char>(1 << 20);
    }
    void run(const void *A, const void *B, void *D, cudaStream_t s, int which = 0) {
        const float one = 1;
        EXPECT(found > which);
        cublasLtMatmul(handle, matmul, &one, A, a, B, b, &beta, D, d, D, d, &results[which].algo, workspace, given, s);
    }
};

static void bf16_product(Product p, size_t a_off, size_t d_off) {
    p.prepare();
    cudaStream_t s = stream();
    p.run(device<uint16_t>(p.k * p.m + 8) + a_off, device<uint16_t>(p.k * p.n), device<uint16_t>(p.m * p.n + 8) + d_off,
          s);
    cudaStreamSynchronize(s);
}

static double gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

/* Checks the results of every algorithm. */
static void product_numbers(uint32_t epilogue, cudaDataType out) {
    Product p;
    std::vector<float> A = numbers(p.k * p.m, 1), B = numbers(p.k * p.n, 2), bias = numbers(p.n > p.m ? p.n : p.m, 3),
                       aux = numbers(p.m * p.n, 4);
    uint16_t *a = uploaded(rounded(&A)), *b = uploaded(rounded(&B));
    bool wide = out == CUDA_R_32F;
    float tolerance = wide ? 1e-5f : 0.008f;
    void *d = device<float>(p.m * p.n);
    std::vector<uint16_t> bias_bits = rounded(&bias), aux_bits = rounded(&aux);
    p.out = out;
    p.epilogue = epilogue;
    p.bias = wide ? (void *)uploaded(bias) : uploaded(bias_bits);
    p.aux = wide ? (void *)uploaded(aux) : uploaded(aux_bits);
    p.prepare();
    EXPECT(p.found >= 3);
    for (int which = 0; which < p.found; which++) {
        cudaStream_t s = stream();
        p.run(a, b, d, s, which);
        auto read = [&](const void *from, size_t n) {
            std::vector<float> x(n);
            if (wide) return downloaded(static_cast<const float *>(from), n);
            std::vector<uint16_t> bits = downloaded(static_cast<const uint16_t *>(from), n);
            for (size_t i = 0; i < n; i++) x[i] = standin::bf16_widen(bits[i]);
            return x;
        };
        std::vector<float> D = read(d, p.m * p.n), auxiliary = read(p.aux, p.m * p.n),
                           gradient = read(p.bias, bias.size());
        std::vector<double> columns(p.m), a_sums(p.m), b_sums(p.n);
        for (size_t j = 0; j < p.n; j++)
            for (size_t i = 0; i < p.m; i++) {
                double y = 0;
                for (size_t k = 0; k < p.k; k++) {
                    y += (double)A[i * p.k + k] * B[j * p.k + k];
                    if (!j) a_sums[i] += A[i * p.k + k];
                    if (!i) b_sums[j] += B[j * p.k + k];
                }
                if (epilogue < 208 && epilogue & 4) y += bias[i];
                if (epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) near("aux", auxiliary[j * p.m + i], y, tolerance);
                if (epilogue == CUBLASLT_EPILOGUE_DGELU || epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD) {
                    double x = aux[j * p.m + i];
                    y *= (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5;
                } else if (epilogue & 32) y = gelu(y);
                columns[i] += y;
                near("D", D[j * p.m + i], y, tolerance);
            }
        for (size_t i = 0; i < p.m && epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD; i++)
            near("dbias", gradient[i], columns[i], 2 * tolerance);
        for (size_t i = 0; i < p.m && epilogue == CUBLASLT_EPILOGUE_BGRADA; i++)
            near("sums of A", gradient[i], a_sums[i], tolerance);
        for (size_t i = 0; i < p.n && epilogue == CUBLASLT_EPILOGUE_BGRADB; i++)
            near("sums of B", gradient[i], b_sums[i], tolerance);
    }
}

static void products() {
    passes("products by every algorithm", [] { product_numbers(CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_16BF); });
    passes("products of floats out of bfloat16", [] { product_numbers(CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_32F); });
    passes("with a bias", [] { product_numbers(CUBLASLT_EPILOGUE_BIAS, CUDA_R_16BF); });
    passes("with a GELU of tanh, and what it was taken of",
           [] { product_numbers(CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUDA_R_16BF); });
    passes("with the slope of that GELU and its bias gradient",
           [] { product_numbers(CUBLASLT_EPILOGUE_DGELU_BGRAD, CUDA_R_32F); });
    passes("with the sums of A", [] { product_numbers(CUBLASLT_EPILOGUE_BGRADA, CUDA_R_32F); });
    passes("with the sums of B", [] { product_numbers(CUBLASLT_EPILOGUE_BGRADB, CUDA_R_32F); });
    passes("a product as it should be", [] { bf16_product({}, 0, 0); });

    breaks("columns closer than they are long", "columns of 8 numbers lie 7 apart", [] {
        cublasLtMatrixLayout_t l;
        cublasLtMatrixLayoutCreate(&l, CUDA_R_32F, 8, 8, 7);
    });
    breaks("an attribute of the wrong size", "the attribute has 4 bytes, not 8", [] {
        cublasLtMatmulDesc_t m;
        int64_t transposed = CUBLAS_OP_T;
        cublasLtMatmulDescCreate(&m, CUBLAS_COMPUTE_32F, CUDA_R_32F);
        cublasLtMatmulDescSetAttribute(m, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    });
    breaks("A less aligned than promised", "A is not aligned to 16 bytes", [] { bf16_product({}, 1, 0); });
    breaks("D less aligned than promised", "D is not aligned to 16 bytes", [] { bf16_product({}, 0, 1); });
    passes("less aligned, as was said", [] {
        Product p;
        p.aligned = 2;
        bf16_product(p, 1, 1);
    });
    breaks("a bias at half of sixteen bytes", "the bias is not aligned to 16 bytes", [] {
        Product p;
        p.epilogue = CUBLASLT_EPILOGUE_BIAS;
        p.bias = device<uint16_t>(64) + 4;
        bf16_product(p, 0, 0);
    });
    breaks("no bias", "no bias pointer", [] {
        Product p;
        p.epilogue = CUBLASLT_EPILOGUE_BIAS;
        bf16_product(p, 0, 0);
    });
    breaks("a bias that is too short", "beyond its block of 40", [] {
        Product p;
        p.epilogue = CUBLASLT_EPILOGUE_BIAS;
        p.bias = device<uint16_t>(20);
        bf16_product(p, 0, 0);
    });
    breaks("no auxiliary matrix", "no auxiliary pointer", [] {
        Product p;
        p.epilogue = CUBLASLT_EPILOGUE_GELU_AUX;
        bf16_product(p, 0, 0);
    });
    breaks("an auxiliary matrix with odd columns", "a multiple of 8 is wanted", [] {
        Product p;
        p.epilogue = CUBLASLT_EPILOGUE_GELU_AUX;
        p.aux = device<uint16_t>(1000);
        p.aux_ld = 28;
        bf16_product(p, 0, 0);
    });
    breaks("less workspace than the algorithm needs", "bytes of workspace and is given 256", [] {
        Product p;
        p.given = 256;
        bf16_product(p, 0, 0);
    });
    breaks("a workspace at odd addresses", "the workspace is not aligned to 256 bytes", [] {
        Product p;
        p.prepare();
        p.workspace += 16;
        p.given -= 16;
        p.run(device<uint16_t>(500), device<uint16_t>(500), device<uint16_t>(500), stream());
    });
    breaks("an algorithm for another problem", "found for another problem", [] {
        Product p, q;
        q.n = 12;
        p.prepare();
        q.prepare();
        p.results[0] = q.results[0];
        p.run(device<uint16_t>(500), device<uint16_t>(500), device<uint16_t>(500), stream());
    });
    breaks("an algorithm of zeros", "comes from no heuristic", [] {
        Product p;
        p.prepare();
        p.results[0].algo = {};
        p.run(device<uint16_t>(500), device<uint16_t>(500), device<uint16_t>(500), stream());
    });
    breaks("D over A", "D and A overlap", [] {
        Product p;
        p.prepare();
        uint16_t *a = device<uint16_t>(500);
        p.run(a, device<uint16_t>(500), a, stream());
    });
    breaks("D longer than its memory", "D: 480 bytes", [] {
        Product p;
        p.prepare();
        p.run(device<uint16_t>(500), device<uint16_t>(500), device<uint16_t>(239), stream());
    });
    breaks("A of the host's", "A is not memory of the device", [] {
        Product p;
        alignas(256) static uint16_t a[500];
        p.prepare();
        p.run(a, device<uint16_t>(500), device<uint16_t>(500), stream());
    });
    breaks("matrices that do not fit", "A and B do not share k", [] {
        Product p;
        p.prepare();
        cublasLtMatrixLayoutCreate(&p.b, CUDA_R_16BF, p.k + 1, p.n, 32);
        p.run(device<uint16_t>(500), device<uint16_t>(500), device<uint16_t>(500), stream());
    });
    breaks("a handle created in a capture", "cublasLtCreate: called while", [] {
        Product p;
        capturing();
        p.prepare();
    });
    passes("float out of float only, no half precision sums", [] {
        Product p;
        p.in = CUDA_R_32F;
        p.prepare();
        EXPECT(p.found == 0);
    });
    passes("every shape has an algorithm, and half of them none where that is asked for", [] {
        for (int denies = 0; denies < 2; denies++) {
            int none = 0;
            setenv("VIT_STANDIN_DENIES", denies ? "1" : "0", 1);
            for (uint64_t n = 1; n <= 64; n++) {
                Product p;
                p.n = n;
                p.prepare();
                none += p.found == 0;
            }
            EXPECT(denies ? none > 8 && none < 56 : none == 0);
        }
    });
    passes("without a mask, sums that round come first", [] {
        Product p;
        uint32_t parts = 0;
        p.schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
        p.prepare();
        cublasLtMatmulAlgoConfigGetAttribute(&p.results[0].algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &parts,
                                             sizeof parts, NULL);
        EXPECT(parts == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);
    });
    passes("sums in place, of one order; another algorithm where more than 16 bytes of alignment are promised", [] {
        std::vector<float> A = numbers(1000, 1), B = numbers(1000, 2), first, aligned;
        uint16_t *a = uploaded(rounded(&A)), *b = uploaded(rounded(&B));
        auto product = [&](unsigned promised) {
            Product p;
            float *d = device<float>(p.m * p.n);
            cudaStream_t s = stream();
            p.out = CUDA_R_32F;
            p.schemes = CUBLASLT_REDUCTION_SCHEME_INPLACE;
            p.aligned = promised;
            p.prepare();
            p.run(a, b, d, s);
            cudaStreamSynchronize(s);
            return downloaded(d, p.m * p.n);
        };
        first = product(16), aligned = product(32);
        EXPECT(first != aligned);
        for (int run = 0; run < 8; run++) EXPECT(product(16) == first);
    });
    passes("a product in a graph keeps its bias's address", [] {
        Product p;
        std::vector<float> A = numbers(p.k * p.m, 1), B = numbers(p.k * p.n, 2);
        uint16_t *a = uploaded(rounded(&A)), *b = uploaded(rounded(&B)), *d = device<uint16_t>(p.m * p.n);
        uint16_t *biases = uploaded(std::vector<uint16_t>(64, 0x4000)); /* 2 */
        p.epilogue = CUBLASLT_EPILOGUE_BIAS;
        p.bias = biases;
        p.prepare();
        cudaStream_t s = capturing();
        p.run(a, b, d, s);
        void *elsewhere = biases + 32;
        cublasLtMatmulDescSetAttribute(p.matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &elsewhere, sizeof elsewhere);
        cudaGraphExec_t exec = captured(s);
        cudaMemset(elsewhere, 0, 64);
        cudaGraphLaunch(exec, s);
        double want = 2;
        for (size_t k = 0; k < p.k; k++) want += (double)A[k] * B[k];
        near("D", standin::bf16_widen(downloaded(d, 1)[0]), want, 0.008);
    });
}

/* == cuFFT ======================================================================================================== */

struct Transform {
    cufftHandle forward, inverse;
    int n[2] = {6, 5}, batch = 3;
    size_t work_bytes = 0;
    static const int complex_count = 6 * 3, real_count = 6 * 5;

    void prepare(bool own_work, cudaStream_t s) {
        for (cufftHandle *plan : {&forward, &inverse}) {
            size_t bytes;
            cufftCreate(plan);
            if (own_work) cufftSetAutoAllocation(*plan, 0);
            cufftMakePlanMany(*plan, 2, n, NULL, 1, 0, NULL, 1, 0, plan == &forward ? CUFFT_R2C : CUFFT_C2R, batch,
                              &bytes);
            if (s) cufftSetStream(*plan, s);
            if (bytes > work_bytes) work_bytes = bytes;
        }
    }
};

static void transforms() {
    passes("there and back, with a work area of one's own", [] {
        Transform t;
        cudaStream_t s = stream();
        std::vector<float> x = numbers((size_t)t.batch * t.real_count, 7);
        float *in = uploaded(x), *out = device(x.size());
        cufftComplex *spectrum = device<cufftComplex>((size_t)t.batch * t.complex_count);
        t.prepare(true, s);
        char *work = device<char>(t.work_bytes);
        cufftSetWorkArea(t.forward, work);
        cufftSetWorkArea(t.inverse, work);
        cufftExecR2C(t.forward, in, spectrum);
        cudaStreamSynchronize(s);
        std::vector<cufftComplex> middle = downloaded(spectrum, (size_t)t.batch * t.complex_count);
        for (int b = 0; b < t.batch; b++) {
            double sum = 0, re = 0, im = 0; /* sum: frequency (0, 0); re, im: (1, 2) */
            for (int i = 0; i < 6; i++)
                for (int j = 0; j < 5; j++) {
                    double v = x[(size_t)(b * 30 + i * 5 + j)], angle = -2 * M_PI * (i / 6.0 + 2 * j / 5.0);
                    sum += v;
                    re += v * cos(angle);
                    im += v * sin(angle);
                }
            near("sum", middle[(size_t)b * 18].x, sum, 1e-5);
            near("real part", middle[(size_t)b * 18 + 3 + 2].x, re, 1e-5);
            near("imaginary part", middle[(size_t)b * 18 + 3 + 2].y, im, 1e-5);
        }
        cufftExecC2R(t.inverse, spectrum, out);
        std::vector<float> back = downloaded(out, x.size());
        for (size_t i = 0; i < x.size(); i++) near("back", back[i], 30 * x[i], 1e-5);
        EXPECT(downloaded(spectrum, 1)[0].x != downloaded(spectrum, 1)[0].x); /* the input is destroyed */
    });
    breaks("a plan that was destroyed", "no plan", [] {
        Transform t;
        t.prepare(false, stream());
        cufftDestroy(t.forward);
        cufftExecR2C(t.forward, device(90), device<cufftComplex>(54));
    });
    breaks("a plan without a stream", "the plan has no stream", [] {
        Transform t;
        t.prepare(false, NULL);
        cufftExecR2C(t.forward, device(90), device<cufftComplex>(54));
    });
    breaks("a plan without a work area", "no work area", [] {
        Transform t;
        t.prepare(true, stream());
        cufftExecR2C(t.forward, device(90), device<cufftComplex>(54));
    });
    breaks("a work area that is too short", "the work area: 720 bytes", [] {
        Transform t;
        t.prepare(true, stream());
        cufftSetWorkArea(t.forward, device<char>(719));
    });
    breaks("a plan of another type", "another type of transform", [] {
        Transform t;
        t.prepare(false, stream());
        cufftExecC2R(t.forward, device<cufftComplex>(54), device(90));
    });
    breaks("an output that is too short", "the output: 432 bytes", [] {
        Transform t;
        t.prepare(false, stream());
        cufftExecR2C(t.forward, device(90), device<cufftComplex>(53));
    });
    breaks("an input at an odd address", "the input is not aligned to 8 bytes", [] {
        Transform t;
        t.prepare(false, stream());
        cufftExecR2C(t.forward, device(92) + 1, device<cufftComplex>(54));
    });
    breaks("a plan made in a capture", "cufftMakePlanMany: called while", [] {
        Transform t;
        cudaStream_t s = stream();
        capturing();
        t.prepare(false, s);
    });
    breaks("rows embedded in shorter ones", "is embedded in 4", [] {
        cufftHandle plan;
        int n[] = {6, 5}, embed[] = {6, 4};
        cufftPlanMany(&plan, 2, n, embed, 1, 30, embed, 1, 30, CUFFT_R2C, 1);
    });
}

/* == cuDNN ======================================================================================================== */

struct Convolved {
    cudnnHandle_t handle;
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t convolution;
    cudnnConvolutionFwdAlgoPerf_t forward[8];
    cudnnConvolutionBwdDataAlgoPerf_t data[8];
    cudnnConvolutionBwdFilterAlgoPerf_t filter[8];
    int count = 0;
    static const int X = 2 * 5 * 5 * 3, Y = 2 * 3 * 3 * 4, W = 4 * 3 * 3 * 3;

    void prepare(cudaStream_t s, int height = 3) {
        cudnnCreate(&handle);
        if (s) cudnnSetStream(handle, s);
        cudnnCreateTensorDescriptor(&x);
        cudnnCreateTensorDescriptor(&y);
        cudnnCreateFilterDescriptor(&w);
        cudnnCreateConvolutionDescriptor(&convolution);
        cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 2, 3, 5, 5);
        cudnnSetTensor4dDescriptor(y, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 2, 4, height, 3);
        cudnnSetFilter4dDescriptor(w, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NHWC, 4, 3, 3, 3);
        cudnnSetConvolution2dDescriptor(convolution, 1, 1, 2, 2, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
        cudnnSetConvolutionMathType(convolution, CUDNN_FMA_MATH);
        cudnnGetConvolutionForwardAlgorithm_v7(handle, x, w, convolution, y, 8, &count, forward);
        cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, w, y, convolution, x, 8, &count, data);
        cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, x, y, convolution, w, 8, &count, filter);
    }
    void run(const float *X, const float *W, float *Y, int which = 3, size_t bytes = 300,
             float *workspace = device(100)) {
        const float one = 1, zero = 0;
        cudnnConvolutionForward(handle, &one, x, X, w, W, convolution, forward[which].algo, workspace, bytes, &zero, y,
                                Y);
    }
};

static void convolutions() {
    passes("the three directions", [] {
        Convolved c;
        const float one = 1, zero = 0;
        std::vector<float> x = numbers(c.X, 1), w = numbers(c.W, 2), dy = numbers(c.Y, 3);
        float *X = uploaded(x), *W = uploaded(w), *DY = uploaded(dy), *Y = device(c.Y),
              *DX = uploaded(std::vector<float>(c.X, 1)), *DW = device(c.W);
        c.prepare(stream());
        EXPECT(c.count == 4);
        c.run(X, W, Y);
        cudnnConvolutionBackwardData(c.handle, &one, c.w, W, c.y, DY, c.convolution, c.data[3].algo, device(100), 400,
                                     &one, c.x, DX);
        cudnnConvolutionBackwardFilter(c.handle, &one, c.x, X, c.y, DY, c.convolution, c.filter[3].algo, device(100),
                                       400, &zero, c.w, DW);
        std::vector<float> y = downloaded(Y, c.Y), dx = downloaded(DX, c.X), dw = downloaded(DW, c.W);
        std::vector<double> ry(c.Y), rx(c.X, 1), rw(c.W);
        for (int b = 0; b < 2; b++)
            for (int i = 0; i < 9; i++)
                for (int tap = 0; tap < 9; tap++) {
                    int row = i / 3 * 2 + tap / 3 - 1, column = i % 3 * 2 + tap % 3 - 1;
                    if (row < 0 || row > 4 || column < 0 || column > 4) continue;
                    for (int o = 0; o < 4; o++)
                        for (int k = 0; k < 3; k++) {
                            size_t a = (size_t)((b * 9 + i) * 4 + o), f = (size_t)((o * 9 + tap) * 3 + k),
                                   p = (size_t)(((b * 5 + row) * 5 + column) * 3 + k);
                            ry[a] += (double)x[p] * w[f];
                            rx[p] += (double)dy[a] * w[f];
                            rw[f] += (double)dy[a] * x[p];
                        }
                }
        for (size_t i = 0; i < y.size(); i++) near("y", y[i], ry[i], 1e-5);
        for (size_t i = 0; i < dx.size(); i++) near("dx", dx[i], rx[i], 1e-5);
        for (size_t i = 0; i < dw.size(); i++) near("dw", dw[i], rw[i], 1e-5);
    });
    breaks("a y of another size", "y is not what x and the filter give", [] {
        Convolved c;
        c.prepare(stream(), 4);
    });
    breaks("an algorithm that is not supported", "is not one that was offered", [] {
        Convolved c;
        c.prepare(stream());
        c.run(device(c.X), device(c.W), device(c.Y), 2);
    });
    breaks("less workspace than asked for", "300 bytes of workspace and is given 299", [] {
        Convolved c;
        c.prepare(stream());
        c.run(device(c.X), device(c.W), device(c.Y), 3, 299);
    });
    breaks("a workspace that is not there", "the workspace is NULL", [] {
        Convolved c;
        c.prepare(stream());
        c.run(device(c.X), device(c.W), device(c.Y), 3, 300, NULL);
    });
    breaks("a workspace within x", "x and the workspace overlap", [] {
        Convolved c;
        c.prepare(stream());
        float *x = device(c.X);
        c.run(x, device(c.W), device(c.Y), 3, 300, x);
    });
    breaks("another math type", "another math type", [] {
        Convolved c;
        c.prepare(stream());
        cudnnSetConvolutionMathType(c.convolution, CUDNN_TENSOR_OP_MATH);
        c.run(device(c.X), device(c.W), device(c.Y));
    });
    breaks("a handle without a stream", "the handle has no stream", [] {
        Convolved c;
        c.prepare(NULL);
        c.run(device(c.X), device(c.W), device(c.Y));
    });
    breaks("a descriptor that was not set", "a descriptor was not set", [] {
        Convolved c;
        c.prepare(stream());
        cudnnCreateTensorDescriptor(&c.x);
        c.run(device(c.X), device(c.W), device(c.Y));
    });
    breaks("x shorter than its descriptor says", "x: 600 bytes", [] {
        Convolved c;
        c.prepare(stream());
        c.run(device(c.X - 1), device(c.W), device(c.Y));
    });
}

/* == NCCL ========================================================================================================= */

/* Runs body(rank, communicator, stream) in two processes; the second one uses the second GPU. */
static void two_ranks(void (*body)(int, ncclComm_t, cudaStream_t), bool one_gpu = false) {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    int status;
    pid_t child = fork();
    int rank = child == 0;
    ncclComm_t comm;
    if (!one_gpu) cudaSetDevice(rank);
    ncclResult_t result = ncclCommInitRank(&comm, 2, id, rank);
    EXPECT(result == (one_gpu ? ncclInvalidUsage : ncclSuccess));
    if (!one_gpu) {
        body(rank, comm, stream());
        ncclCommDestroy(comm);
    }
    if (rank) _exit(0);
    waitpid(child, &status, 0);
    EXPECT(status == 0);
}

static void ranks() {
    passes("sums of two ranks", [] {
        two_ranks([](int rank, ncclComm_t comm, cudaStream_t s) {
            size_t n = 100000;
            std::vector<float> mine = numbers(n, (uint32_t)rank), other = numbers(n, (uint32_t)!rank);
            float *p = uploaded(mine), *q = device(n);
            ncclAllReduce(p, q, n, ncclFloat, ncclSum, comm, s);
            ncclAllReduce(q, q, n, ncclFloat, ncclSum, comm, s);
            ncclBroadcast(p, p, 4, ncclFloat, 1, comm, s);
            std::vector<float> y = downloaded(q, n), z = downloaded(p, 4);
            for (size_t i = 0; i < n; i++) EXPECT(y[i] == 2 * (mine[i] + other[i]));
            EXPECT(z[3] == (rank ? mine : other)[3]);
        });
    });
    passes("a rank whose host is busy elsewhere takes part", [] {
        static int done[2];
        EXPECT(pipe(done) == 0);
        two_ranks([](int rank, ncclComm_t comm, cudaStream_t s) {
            float *p = uploaded<float>({1}), x;
            char byte = 0;
            ncclAllReduce(p, p, 1, ncclFloat, ncclSum, comm, s);
            if (rank) EXPECT(read(done[0], &byte, 1) == 1); /* wait until rank 0 has its sum */
            cudaMemcpyAsync(&x, p, 4, TO_HOST, s);
            if (!rank) EXPECT(write(done[1], &byte, 1) == 1);
            EXPECT(x == 2);
        });
    });
    passes("sums in a graph of two streams", [] {
        two_ranks([](int, ncclComm_t comm, cudaStream_t s) {
            cudaStream_t t = stream();
            cudaEvent_t made = event(), summed = event();
            float *p = uploaded<float>({1, 2, 3, 4}), x[4];
            cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
            add(p, 1, 4, s);
            cudaEventRecord(made, s);
            cudaStreamWaitEvent(t, made);
            ncclAllReduce(p, p, 4, ncclFloat, ncclSum, comm, t);
            cudaEventRecord(summed, t);
            cudaStreamWaitEvent(s, summed);
            scale(p, 0.5f, s);
            cudaGraphExec_t exec = captured(s);
            for (int i = 0; i < 3; i++) cudaGraphLaunch(exec, s);
            cudaMemcpyAsync(x, p, 16, TO_HOST, s);
            EXPECT(x[0] == 4 && x[3] == 7);
        });
    });
    passes("two ranks on one GPU are an error", [] { two_ranks(NULL, true); });
    breaks("sums of different lengths", "another, or another order", [] {
        two_ranks([](int rank, ncclComm_t comm, cudaStream_t s) {
            if (rank) { /* only one rank's line is needed */
                if (!freopen("/dev/null", "w", stderr)) abort();
            }
            ncclAllReduce(device(8), device(8), rank ? 7 : 8, ncclFloat, ncclSum, comm, s);
            cudaStreamSynchronize(s);
        });
    });
    breaks("a sum of the host's numbers", "is not memory of the device", [] {
        two_ranks([](int rank, ncclComm_t comm, cudaStream_t s) {
            static float x[8];
            if (rank) _exit(0);
            ncclAllReduce(x, x, 8, ncclFloat, ncclSum, comm, s);
        });
    });
    breaks("a sum over half of itself", "overlap", [] {
        two_ranks([](int rank, ncclComm_t comm, cudaStream_t s) {
            if (rank) _exit(0);
            float *p = device(8);
            ncclAllReduce(p, p + 2, 4, ncclFloat, ncclSum, comm, s);
        });
    });
    breaks("a communicator that was destroyed", "no communicator", [] {
        two_ranks([](int rank, ncclComm_t comm, cudaStream_t s) {
            if (rank) _exit(0);
            ncclCommDestroy(comm);
            ncclAllReduce(device(8), device(8), 8, ncclFloat, ncclSum, comm, s);
        });
    });
}

/* == The workspace of kernels ===================================================================================== */

static void workspace() {
    passes("the workspace is NaN for every kernel that asks", [] {
        kernels_reserve(4096);
        for (int i = 0; i < 3; i++) {
            float *p = static_cast<float *>(kernels_workspace(16)), x[4];
            cudaMemcpyAsync(x, p, 16, TO_HOST, kernels_stream);
            EXPECT(x[0] != x[0] && x[3] != x[3]);
            LAUNCH(scale_kernel, 1, 4, 0, p, 0);
            cudaMemsetAsync(p, 0, 16, kernels_stream);
        }
    });
    std::string said;
    int status = in_process(
        [] {
            kernels_reserve(4096);
            LAUNCH(scale_kernel, 1, 4, 0, static_cast<float *>(kernels_workspace(12)), 0);
            device_synchronize();
        },
        &said);
    check("caught: a kernel beyond the workspace it asked for", status && said.find("use-after-poison") != std::string::npos,
          "status " + std::to_string(status));
}

int main(void) {
    memory();
    streams();
    graphs();
    products();
    transforms();
    convolutions();
    ranks();
    workspace();
    printf("1..%d\n", count);
    return failures != 0;
}
