/* What both depthwise convolutions share. */
#ifndef VIT_KERNELS_CUDA_DEPTHWISE_CUH
#define VIT_KERNELS_CUDA_DEPTHWISE_CUH

#include "kernels/cuda/tiles.cuh"

/* Calls launch(Constant<k>()) for kernels of k x k. */
template <typename Launch>
static void with_kernel_size(int k, Launch launch) {
    if (k == 1) launch(Constant<1>());
    else if (k == 3) launch(Constant<3>());
    else if (k == 5) launch(Constant<5>());
    else launch(Constant<7>());
}

#endif
