/* Common to the three algorithms of ripple attention: the position of a head in the tensors, and the groups. */
#ifndef VIT_KERNELS_RIPPLE_RIPPLE_CPU_H
#define VIT_KERNELS_RIPPLE_RIPPLE_CPU_H

#include "kernels/ripple/ripple.h"

/* First element and row stride of one head inside the interleaved tensors; gradients have the same layout. */
typedef struct {
    size_t q, k, phi_row;   /* phi [B,N,2,H,F] */
    size_t v, qkv_row;      /* qkv [B,N,3,H,D] */
    size_t y, y_row;        /* y [B,N,H,D] */
    size_t alpha, alpha_row; /* alpha [B,N,H,G] */
    size_t den, den_row;    /* den [B,N,H] */
} RippleHead;

static inline RippleHead ripple_head(int b, int h, int N, int H, int D, int F, int G) {
    size_t token = (size_t)b * N, M = (size_t)H * D, features = (size_t)H * F, weights = (size_t)H * G;
    return (RippleHead){.q = token * 2 * features + (size_t)h * F,
                        .k = token * 2 * features + features + (size_t)h * F,
                        .phi_row = 2 * features,
                        .v = token * 3 * M + 2 * M + (size_t)h * D,
                        .qkv_row = 3 * M,
                        .y = token * M + (size_t)h * D,
                        .y_row = M,
                        .alpha = token * weights + (size_t)h * G,
                        .alpha_row = weights,
                        .den = token * H + h,
                        .den_row = H};
}

static inline int ripple_extent(const RippleRings *rings) {
    return rings->grid.rows > rings->grid.columns ? rings->grid.rows : rings->grid.columns;
}

/* group[distance] for every distance on the grid: [ripple_extent]. */
static inline void ripple_groups(int *group, const RippleRings *rings) {
    for (int distance = 0, g = 0; distance < ripple_extent(rings); distance++) {
        while (g + 1 < rings->G && distance >= rings->bound[g + 1]) g++;
        group[distance] = g;
    }
}

/* Added to every denominator, as in linear attention. */
#define RIPPLE_EPSILON 1e-6f

#endif
