/* RoIAlign: a grid of P x P features for each region of interest (RoI), read from one of several feature maps. */
#ifndef VIT_KERNELS_REGIONS_ROI_ALIGN_H
#define VIT_KERNELS_REGIONS_ROI_ALIGN_H

#include <stddef.h>

#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ROI_LEVELS = 4 };

/* The maps of a batch: level l is [B,rows[l],columns[l],C], and a pixel of the picture is scale[l] of its cells wide,
 * 1/4 to 1/32. */
typedef struct {
    int B, C, P, levels; /* images, channels, cells a side of the result, levels in use */
    int rows[ROI_LEVELS], columns[ROI_LEVELS];
    float scale[ROI_LEVELS];
} RoiAlign;

/* torchvision.ops.roi_align(aligned=True, sampling_ratio=0), channels last.  With X0 = x0 scale - 1/2, X1 likewise and
 * w = (X1 - X0) / P, cell (i,j) of a RoI is the mean of g_y x g_x samples, g_x = ceil(w), at x = X0 + j w + (b + 1/2) w
 * / g_x, b = 0 .. g_x - 1, and y likewise.  A sample is the bilinear interpolation between the centres of the map's
 * cells, which lie at whole numbers: 0 where x < -1 or x > columns, otherwise x is clamped to 0 .. columns - 1.  A RoI
 * whose width or height is not above 0 has no samples and gives zeros.
 *
 * y [R,P,P,C] real;  maps host [levels] of device pointers;  boxes [R,4] float: x0, y0, x1, y1 in pixels of the
 * picture;  place [R,2] int: image, 0 .. B-1, and level, 0 .. levels-1.  R may be 0. */
void roi_align_forward(real *y, const real *const *maps, const float *boxes, const int *place, int R,
                       const RoiAlign *shape);
/* dmaps (+=), host [levels] of device pointers, laid out like the maps: the gradient is added to their contents, and
 * cells that no RoI reads are not changed.  dy [R,P,P,C].  Sums are in float and rounded once; their order is that of
 * the RoIs, whatever the number of threads.  There is no gradient of the boxes. */
void roi_align_backward(real *const *dmaps, const real *dy, const float *boxes, const int *place, int R,
                        const RoiAlign *shape);
/* Enough for both calls, with maps no larger than these and any R. */
size_t roi_align_workspace(const RoiAlign *shape);

#ifdef __cplusplus
}
#endif

#endif
