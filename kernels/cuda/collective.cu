/* Sums over ranks with NCCL, on their own stream: a sum waits for the kernels that compute its gradients, and overlaps
 * with the backward pass of the earlier blocks.  Each rank has one GPU. */
#include <device.cuh>

#include "kernels/cuda/runtime.h"

extern "C" {
#include "core/die.h"
#include "core/distributed.h"
}
#include "kernels/kernels.h"

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

void collective_open(void) {
    ncclUniqueId id;
    if (distributed_ranks() < 2) return;
    device_open(); /* NCCL joins the GPU that is chosen */
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
void all_reduce_start(float *x, size_t n) { (void)x, (void)n; }
void all_reduce_finish(void) {}

#endif
