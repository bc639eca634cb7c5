/* Scales queries, keys and values to unit length. */
#ifndef VIT_KERNELS_NORM_L2_NORMALIZE_H
#define VIT_KERNELS_NORM_L2_NORMALIZE_H

#include <stddef.h>

#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    size_t n;  /* tokens */
    int parts; /* 2: q and k, or 3: q, k and v */
    int H, D;
} UnitLengths;

/* x^ = x / max(|x|, 1e-6) for every head of q and k, or of q, k and v.
 * unit [n,parts,H,D] real: x^ (also read by backward);  inverse [n,parts,H] float: 1 / max(|x|, 1e-6) (saved);
 * qkv [n,3,H,D]. */
void l2_normalize_forward(real *unit, float *inverse, const real *qkv, const UnitLengths *shape);
/* dqkv [n,3,H,D] (=) in its first `parts` thirds, the rest left as it is;  dunit, unit [n,parts,H,D].  With three parts
 * dqkv may be dunit. */
void l2_normalize_backward(real *dqkv, const real *dunit, const real *unit, const float *inverse,
                           const UnitLengths *shape);

#ifdef __cplusplus
}
#endif

#endif
