/* Sums over ranks with NCCL, on their own stream: a sum waits for the kernels that compute its gradients, and overlaps
 * with the backward pass of the earlier blocks.  Each rank has one GPU. */
#include <device.cuh>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/cuda/runtime.h"

extern "C" {
#include "core/die.h"
#include "core/distributed.h"
}
#include "kernels/device/collective.h"

#ifdef VIT_NCCL

#include <nccl.h>

static ncclComm_t communicator;
static cudaStream_t sums;
static cudaEvent_t made, summed;
static bool summing;

#define NCCL_TRY(call)                                                                                     \
    do {                                                                                                   \
        ncclResult_t status_ = (call);                                                                     \
        if (status_ != ncclSuccess) cuda_fail(#call, __FILE__, __LINE__, ncclGetErrorString(status_));     \
    } while (0)

/* == One GPU for each rank ======================================================================================== */

/* A number below 2^52 that two ranks share only if they use the same GPU: a hash of its address on the bus and of the
 * machine's boot, which is the same in all containers. */
static double gpu_number(const char *place) {
    char boot[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file && !fgets(boot, sizeof boot, file)) boot[0] = 0;
    if (file) fclose(file);
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a */
    for (const char *c = place; *c; c++) hash = (hash ^ (unsigned char)*c) * 0x100000001b3;
    for (const char *c = boot; *c; c++) hash = (hash ^ (unsigned char)*c) * 0x100000001b3;
    return (double)(hash >> 12);
}

/* NCCL would say "invalid usage". */
static void check_own_gpu(void) {
    int device, ranks = distributed_ranks();
    char place[32];
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetPCIBusId(place, sizeof place, device));
    double *numbers = static_cast<double *>(xcalloc((size_t)ranks, sizeof *numbers, "GPUs of ranks"));
    numbers[distributed_rank()] = gpu_number(place);
    distributed_sum(numbers, ranks);
    for (int a = 0; a < ranks; a++)
        for (int b = a + 1; b < ranks; b++)
            if (numbers[a] == numbers[b])
                die("ranks %d and %d have the same GPU: start as many ranks on a machine as it has GPUs, and let "
                    "CUDA_VISIBLE_DEVICES name as many",
                    a, b);
    free(numbers);
}

/* == The communicator ============================================================================================= */

void collective_open(void) {
    ncclUniqueId id;
    if (distributed_ranks() < 2) return;
    device_open(); /* NCCL uses the selected GPU */
    check_own_gpu();
    if (distributed_rank() == 0) NCCL_TRY(ncclGetUniqueId(&id));
    distributed_broadcast(&id, sizeof id);
    NCCL_TRY(ncclCommInitRank(&communicator, distributed_ranks(), id, distributed_rank()));
    CUDA_TRY(cudaStreamCreateWithFlags(&sums, cudaStreamNonBlocking));
    CUDA_TRY(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
    CUDA_TRY(cudaEventCreateWithFlags(&summed, cudaEventDisableTiming));
}

void collective_close(void) {
    if (!communicator) return;
    NCCL_TRY(ncclCommDestroy(communicator));
    CUDA_TRY(cudaEventDestroy(made));
    CUDA_TRY(cudaEventDestroy(summed));
    CUDA_TRY(cudaStreamDestroy(sums));
    communicator = NULL;
}

/* If the network fails, NCCL's kernel never ends, nor does a wait for it: check before waiting. */
void collective_wait(cudaEvent_t event) {
    while (communicator && (event ? cudaEventQuery(event) : cudaStreamQuery(kernels_stream)) == cudaErrorNotReady) {
        ncclResult_t state = ncclSuccess;
        NCCL_TRY(ncclCommGetAsyncError(communicator, &state));
        if (state == ncclSuccess || state == ncclInProgress) {
            usleep(20);
            continue;
        }
        ncclCommAbort(communicator);
        communicator = NULL;
        die("a sum over ranks failed: %s (NCCL_DEBUG=INFO says more)", ncclGetErrorString(state));
    }
}

void all_reduce_start(float *x, size_t n) {
    if (!communicator || !n) return;
    CUDA_TRY(cudaEventRecord(made, kernels_stream));
    CUDA_TRY(cudaStreamWaitEvent(sums, made, 0));
    NCCL_TRY(ncclAllReduce(x, x, n, ncclFloat, ncclSum, communicator, sums));
    summing = true;
}

void all_reduce_finish(void) {
    if (!summing) return;
    CUDA_TRY(cudaEventRecord(summed, sums));
    CUDA_TRY(cudaStreamWaitEvent(kernels_stream, summed, 0));
    summing = false;
}

#else

void collective_open(void) {
    if (distributed_ranks() > 1)
        die("%d ranks, but this build has no NCCL: set NCCL_HOME and make cuda again", distributed_ranks());
}
void collective_close(void) {}
void collective_wait(cudaEvent_t) {}
void all_reduce_start(float *x, size_t n) { (void)x, (void)n; }
void all_reduce_finish(void) {}

#endif
