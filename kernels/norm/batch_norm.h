/* Batch norm (Ioffe and Szegedy 2015) with statistics over all ranks, like PyTorch's SyncBatchNorm. */
#ifndef VIT_KERNELS_NORM_BATCH_NORM_H
#define VIT_KERNELS_NORM_BATCH_NORM_H

#include <stdbool.h>
#include <stddef.h>

#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A batch norm of n rows, channels last: positions of all images.  Every rank calls forward and backward in the same
 * order with equally many rows; the statistics are those of all ranks' rows. */
typedef struct {
    const float *w, *b;                /* [C] */
    float *mean, *rstd;                /* [C] mean and 1 / standard deviation: written by forward (saved) */
    float *running_mean, *running_var; /* [C] forward moves them by `momentum` towards mean and unbiased variance */
    int n, C;
    float eps, momentum;
} BatchNorm;

/* y = w (x - mean) rstd + b, followed by a ReLU if relu is true.  y, x [n,C] real;  y may be x. */
void batch_norm_forward(real *y, const real *x, bool relu, const BatchNorm *norm);
/* The gradient of both.  dx [n,C] (=), may be dy;  dw, db [C] (+=): of this rank's rows;  dy, x [n,C]. */
void batch_norm_backward(real *dx, float *dw, float *db, const real *dy, const real *x, bool relu,
                         const BatchNorm *norm);
/* Forward in inference: the running averages are mean and variance.  Writes norm->mean and rstd. */
void batch_norm_inference(real *y, const real *x, bool relu, const BatchNorm *norm);
/* The workspace is enough for all three. */
size_t batch_norm_workspace(const BatchNorm *shape);

#ifdef __cplusplus
}
#endif

#endif
