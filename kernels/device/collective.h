/* Sums of gradients over the ranks of a distributed run. */
#ifndef VIT_KERNELS_DEVICE_COLLECTIVE_H
#define VIT_KERNELS_DEVICE_COLLECTIVE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Connects the devices of all ranks (core/distributed.h), and divides a machine's cores among its ranks. */
void collective_open(void);
void collective_close(void);

/* x = sum of x over all ranks.  x [n] float (updated).  The sum starts after all earlier kernels have finished and
 * overlaps with the later ones, so x must be neither read nor written before all_reduce_finish.  All ranks must call
 * this for the same tensors in the same order. */
void all_reduce_start(float *x, size_t n);
/* Kernels that are called after this function read the finished sums. */
void all_reduce_finish(void);

#ifdef __cplusplus
}
#endif

#endif
