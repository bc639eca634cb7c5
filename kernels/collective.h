/* Between ranks: sums of gradients. */
#ifndef VIT_KERNELS_COLLECTIVE_H
#define VIT_KERNELS_COLLECTIVE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Joins the devices of all ranks (core/distributed.h), and shares a machine's cores among its ranks. */
void collective_open(void);
void collective_close(void);

/* x = sum of x over all ranks: begins once everything asked for so far is done, and runs beside what is asked for next.
 * Nobody touches x before all_reduce_finish.  All ranks ask for the same sums in the same order.
 * x [n] float (updated). */
void all_reduce_start(float *x, size_t n);
/* What is asked for from here on sees the sums. */
void all_reduce_finish(void);

#ifdef __cplusplus
}
#endif

#endif
