/* Cross entropy of pixels whose logits are bilinear in those of a coarse grid; kernels/training/pixel_cross_entropy.c
 * has the formulas.  A warp computes the logarithm of a pixel's sum of exponentials, which is stored.  Then a warp has
 * a cell of the grid, computes the softmax of all pixels around it again, and adds them in the order of the picture. */
#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/training/pixel_cross_entropy.h"

enum { WARPS = 4, THREADS = WARPS * WARP };

/* For each pixel of the batch [B,H,W] the logarithm, then its loss. */
size_t pixel_cross_entropy_workspace(const PixelShape *s) { return 2 * (size_t)s->B * s->H * s->W * sizeof(float); }

DEVICE float mixed(float low, float high, float part) { return (1 - part) * low + part * high; }

/* Logit k of the pixel at those places, z [h,w,K] of its image. */
DEVICE float pixel_logit(const real *z, Between v, Between u, int k, const PixelShape &s) {
    const real *above = z + (size_t)v.low * s.w * s.K + k, *below = z + (size_t)v.high * s.w * s.K + k;
    size_t a = (size_t)u.low * s.K, b = (size_t)u.high * s.K;
    return mixed(mixed(to_float(above[a]), to_float(below[a]), v.fraction),
                 mixed(to_float(above[b]), to_float(below[b]), v.fraction), u.fraction);
}

/* logs, losses [B,H,W] */
__global__ void __launch_bounds__(THREADS)
    pixel_logs_kernel(float *logs, float *losses, const real *logits, const uint8_t *labels, PixelShape s) {
    size_t i = (size_t)blockIdx.x * WARPS + warp_id();
    if (i >= (size_t)s.B * s.H * s.W) return;
    int label = labels[i], row = (int)(i / s.W % s.H), image = (int)(i / s.W / s.H);
    if (label == LABEL_IGNORED) {
        if (lane_id() == 0) losses[i] = 0;
        return;
    }
    const real *z = logits + (size_t)image * s.h * s.w * s.K;
    Between v = bilinear_source(row, s.h, s.H), u = bilinear_source((int)(i % s.W), s.w, s.W);
    float max = -INFINITY, sum = 0;
    for (int k = lane_id(); k < s.K; k += WARP) max = fmaxf(max, pixel_logit(z, v, u, k, s));
    max = warp_max(max);
    for (int k = lane_id(); k < s.K; k += WARP) sum += expf(pixel_logit(z, v, u, k, s) - max);
    sum = warp_sum(sum);
    if (lane_id()) return;
    logs[i] = max + logf(sum);
    losses[i] = logf(sum) - (pixel_logit(z, v, u, label, s) - max);
}

/* loss[b] = the mean of its pixels' losses [n]. */
__global__ void __launch_bounds__(1024) pixel_mean_kernel(float *loss, const float *losses, size_t n) {
    SHARED(float, scratch); /* [WARP] */
    const float *own = losses + blockIdx.x * n;
    float sum = 0;
    for (size_t i = threadIdx.x; i < n; i += 1024) sum += own[i];
    sum = block_sum(sum, scratch);
    if (!threadIdx.x) loss[blockIdx.x] = sum / (float)n;
}

__global__ void __launch_bounds__(THREADS)
    pixel_slopes_kernel(real *dlogits, const real *logits, const float *logs, const uint8_t *labels, float scale,
                        PixelShape s) {
    size_t cell = (size_t)blockIdx.x * WARPS + warp_id();
    if (cell >= (size_t)s.B * s.h * s.w) return;
    int column = (int)(cell % s.w), row = (int)(cell / s.w % s.h), image = (int)(cell / s.w / s.h);
    Places rows = bilinear_places(row, s.h, s.H), columns = bilinear_places(column, s.w, s.W);
    const real *z = logits + (size_t)image * s.h * s.w * s.K;
    size_t first = (size_t)image * s.H * s.W;
    for (int k = lane_id(); k < s.K; k += WARP) {
        float sum = 0;
        for (int y = rows.first; y < rows.last; y++) {
            Between v = bilinear_source(y, s.h, s.H);
            float down = bilinear_weight(row, y, s.h, s.H);
            for (int x = columns.first; x < columns.last; x++) {
                size_t i = first + (size_t)y * s.W + x;
                if (labels[i] == LABEL_IGNORED) continue;
                float p = expf(pixel_logit(z, v, bilinear_source(x, s.w, s.W), k, s) - logs[i]);
                sum += down * bilinear_weight(column, x, s.w, s.W) * (p - (k == labels[i] ? 1 : 0));
            }
        }
        dlogits[cell * s.K + k] = to_real(scale * sum);
    }
}

void pixel_cross_entropy(float *loss, real *dlogits, const real *logits, const uint8_t *labels, float scale,
                         const PixelShape *s) {
    size_t picture = (size_t)s->H * s->W, pixels = (size_t)s->B * picture;
    float *logs = static_cast<float *>(kernels_workspace(pixel_cross_entropy_workspace(s))), *losses = logs + pixels;
    LAUNCH(pixel_logs_kernel, (unsigned)ceil_div(pixels, WARPS), THREADS, 0, logs, losses, logits, labels, *s);
    LAUNCH(pixel_mean_kernel, (unsigned)s->B, 1024, WARP * sizeof(float), loss, losses, picture);
    if (dlogits)
        LAUNCH(pixel_slopes_kernel, (unsigned)ceil_div((size_t)s->B * s->h * s->w, WARPS), THREADS, 0, dlogits, logits,
               logs, labels, scale / (float)picture, *s);
}
