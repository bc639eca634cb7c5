/* Shared by LiSA's two implementations of transforms: its own kernels (lisa_fft.cu) and cuFFT (lisa_cufft.cu). */
#ifndef VIT_KERNELS_CUDA_LISA_CUH
#define VIT_KERNELS_CUDA_LISA_CUH

#include "kernels/lisa/fft.cuh"
#include "kernels/lisa/lisa.h"
#include "kernels/offsets/patterns.h"
#include "kernels/tokens/grid.h"

/* The offset of a head in each tensor, and the distances from one token to the next. */
struct LisaHead {
    size_t qk, v, y, s, qk_row, qkv_row, y_row;
};

/* Head `in_launch` of a launch whose shape has N, H, D, E, by_H and its first head. */
template <typename Shape>
DEVICE LisaHead head_at(const Shape &s, int in_launch) {
    int in_image, head = s.first_head + in_launch, image = divided(head, s.by_H, &in_image);
    size_t M = (size_t)s.H * s.D, token = (size_t)image * s.N, c = (size_t)in_image * s.D;
    return {token * 2 * M + c, token * 3 * M + 2 * M + c, token * M + c, (size_t)head * s.E * s.N, 2 * M, 3 * M, M};
}

/* Whether both use the same transforms. */
static inline bool same_patterns(const Patterns &a, const Patterns &b) {
    const Grid &x = a.offsets.grid, &y = b.offsets.grid;
    return a.E == b.E && a.D == b.D && a.offsets.kind == b.offsets.kind && x.frames == y.frames && x.rows == y.rows &&
           x.columns == y.columns;
}

/* The implementation with cuFFT; `work` has lisa_cufft_workspace's bytes.  Plans are made unless `in_step`. */
size_t lisa_cufft_workspace(const Patterns *patterns, int B, bool in_step);
void lisa_cufft_forward(void *work, real *y, real *s, const real *qk, const real *qkv, const LisaTables *lisa, int B);
void lisa_cufft_backward(void *work, real *dqkv, real *dqk, const LisaGradients *d, const real *dy, const real *s,
                         const real *qk, const real *qkv, const LisaTables *lisa, int B);

#endif
