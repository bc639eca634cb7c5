/* Common to the three algorithms of ripple attention: the position of a head in the tensors, and the groups. */
#ifndef VIT_KERNELS_CUDA_RIPPLE_CUH
#define VIT_KERNELS_CUDA_RIPPLE_CUH

#include <device.cuh>

#include "kernels/ripple/ripple.h"

/* First element and row stride of one head inside the interleaved tensors; gradients have the same layout. */
struct RippleHead {
    size_t q, k, phi_row;    /* phi [B,N,2,H,F] */
    size_t v, qkv_row;       /* qkv [B,N,3,H,D] */
    size_t y, y_row;         /* y [B,N,H,D] */
    size_t alpha, alpha_row; /* alpha [B,N,H,G] */
    size_t den, den_row;     /* den [B,N,H] */
};

/* head = b H + h */
DEVICE RippleHead ripple_head(int head, int N, int H, int D, int F, int G) {
    int b = head / H, h = head % H;
    size_t token = (size_t)b * N, M = (size_t)H * D, features = (size_t)H * F, weights = (size_t)H * G;
    RippleHead o;
    o.q = token * 2 * features + (size_t)h * F;
    o.k = o.q + features;
    o.phi_row = 2 * features;
    o.v = token * 3 * M + 2 * M + (size_t)h * D;
    o.qkv_row = 3 * M;
    o.y = token * M + (size_t)h * D;
    o.y_row = M;
    o.alpha = token * weights + (size_t)h * G;
    o.alpha_row = weights;
    o.den = token * H + h;
    o.den_row = H;
    return o;
}

static inline int ripple_extent(const RippleRings *rings) {
    return rings->grid.rows > rings->grid.columns ? rings->grid.rows : rings->grid.columns;
}

/* The group of tokens at this distance. */
DEVICE int ripple_group(const RippleRings &rings, int distance) {
    int g = 0;
    while (g + 1 < rings.G && rings.bound[g + 1] <= distance) g++;
    return g;
}

/* The number of heads in a launch, given the workspace for each: the workspace for all heads may be more than there
 * is. */
static inline int ripple_heads_at_once(size_t heads, size_t bytes_of_head, size_t budget) {
    size_t most = budget / bytes_of_head;
    return (int)(most < 1 ? 1 : most < heads ? most : heads);
}

/* Added to every denominator, as in linear attention. */
#define RIPPLE_EPSILON 1e-6f

/* The GPU of the cost models: 132 multiprocessors at 1.755 GHz, 4 TB/s. */
#define RIPPLE_CLOCKS (132 * 1.755e9)
#define RIPPLE_BANDWIDTH 4e12

#endif
