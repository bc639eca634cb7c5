/* Batch norm, channels last: the norm of one image that consists of all ranks' rows and has a group for each channel
 * (group_norm.c), and
 *   running_mean = (1 - momentum) running_mean + momentum mean
 *   running_var  = (1 - momentum) running_var + momentum var n / (n - 1) */
#include "kernels/norm/batch_norm.h"

#include <math.h>

#include "core/distributed.h"
#include "kernels/device/workspace.h"
#include "kernels/norm/channel_norm.h"

static GroupNorm as_groups(const BatchNorm *s) {
    return (GroupNorm){s->w, s->b, s->mean, s->rstd, 1, s->n, s->C, s->C, s->eps};
}

/* The workspace of the group norm, followed by the variances [C] in double. */
size_t batch_norm_workspace(const BatchNorm *s) {
    GroupNorm g = as_groups(s);
    return (group_norm_workspace(&g) + 63) / 64 * 64 + (size_t)s->C * sizeof(double);
}

void batch_norm_forward(real *y, const real *x, bool relu, const BatchNorm *s) {
    GroupNorm g = as_groups(s);
    double *variances = (double *)(kernels_workspace_base + (group_norm_workspace(&g) + 63) / 64 * 64);
    double n = (double)s->n * distributed_ranks(), others = n > 1 ? n - 1 : 1, share = (double)s->momentum;
    channel_norm_forward(y, variances, x, NULL, relu, true, &g);
    for (int c = 0; c < s->C; c++) {
        s->running_mean[c] = (float)((1 - share) * (double)s->running_mean[c] + share * (double)s->mean[c]);
        s->running_var[c] = (float)((1 - share) * (double)s->running_var[c] + share * variances[c] * n / others);
    }
}

void batch_norm_inference(real *y, const real *x, bool relu, const BatchNorm *s) {
    GroupNorm g = as_groups(s);
    for (int c = 0; c < s->C; c++) {
        s->mean[c] = s->running_mean[c];
        s->rstd[c] = (float)(1 / sqrt((double)s->running_var[c] + (double)s->eps));
    }
    channel_norm_apply(y, x, NULL, relu, &g);
}

void batch_norm_backward(real *dx, float *dw, float *db, const real *dy, const real *x, bool relu,
                         const BatchNorm *s) {
    GroupNorm g = as_groups(s);
    channel_norm_backward(dx, dw, db, dy, x, relu, true, &g);
}
