/* Weight standardisation (Qiao et al. 2019).  For each output's row of weights
 *   forward   mu = mean w,  r = 1/sqrt(var w + eps),  y = (w - mu) r, the variance that of the row itself (biased)
 *   backward  dw += r (dy - mean dy - y mean(dy y))
 *   saves     mu, r. */
#include <math.h>

#include "kernels/norm/group_norm.h"

void standardize_forward(float *y, const float *w, const Standardized *rows) {
    size_t fan = (size_t)rows->fan;
#pragma omp parallel for schedule(static)
    for (int o = 0; o < rows->out; o++) {
        const float *from = w + (size_t)o * fan;
        float *to = y + (size_t)o * fan;
        double sum = 0, squares = 0;
        for (size_t i = 0; i < fan; i++) sum += (double)from[i];
        double mu = sum / (double)fan;
        for (size_t i = 0; i < fan; i++) squares += ((double)from[i] - mu) * ((double)from[i] - mu);
        rows->mean[o] = (float)mu;
        rows->rstd[o] = (float)(1 / sqrt(squares / (double)fan + (double)rows->eps));
        for (size_t i = 0; i < fan; i++) to[i] = (from[i] - rows->mean[o]) * rows->rstd[o];
    }
}

void standardize_backward(float *dw, const float *dy, const float *w, const Standardized *rows) {
    size_t fan = (size_t)rows->fan;
#pragma omp parallel for schedule(static)
    for (int o = 0; o < rows->out; o++) {
        const float *at = w + (size_t)o * fan, *d = dy + (size_t)o * fan;
        float *to = dw + (size_t)o * fan, mu = rows->mean[o], r = rows->rstd[o];
        double sum = 0, sum_y = 0;
        for (size_t i = 0; i < fan; i++) {
            sum += (double)d[i];
            sum_y += (double)d[i] * (double)((at[i] - mu) * r);
        }
        float mean = (float)(sum / (double)fan), mean_y = (float)(sum_y / (double)fan);
        for (size_t i = 0; i < fan; i++) to[i] += r * (d[i] - mean - (at[i] - mu) * r * mean_y);
    }
}
