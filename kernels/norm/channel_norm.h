/* Shared by group norm and batch norm on the CPU (group_norm.c). */
#ifndef VIT_KERNELS_NORM_CHANNEL_NORM_H
#define VIT_KERNELS_NORM_CHANNEL_NORM_H

#include "kernels/norm/group_norm.h"

/* group_norm_forward and group_norm_backward; over_ranks: statistics of the rows of all ranks, which have equally many.
 * variances [B,groups], or NULL. */
void channel_norm_forward(real *y, double *variances, const real *x, const real *add, bool relu, bool over_ranks,
                          const GroupNorm *norm);
/* Forward with the given mean and rstd. */
void channel_norm_apply(real *y, const real *x, const real *add, bool relu, const GroupNorm *norm);
void channel_norm_backward(real *dx, float *dw, float *db, const real *dy, const real *x, bool relu, bool over_ranks,
                           const GroupNorm *norm);

#endif
