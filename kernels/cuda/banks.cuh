/* Rows of floats in shared memory, which has 32 banks. */
#ifndef VIT_KERNELS_CUDA_BANKS_CUH
#define VIT_KERNELS_CUDA_BANKS_CUH

#include <device.cuh>

/* The distance between rows of n floats if a warp reads the same column of 32 rows: an odd number, so that the rows are
 * in different banks.  With n = 32 all would be in one bank, and the warp would read 32 times. */
static inline __host__ __device__ int odd_ld(int n) { return n | 1; }

#endif
