/* The rows that feature maps read: one (token, q or k, head) triple each, out of qkv [n,3,H,D]. */
#ifndef VIT_KERNELS_CPU_FEATURE_ROWS_H
#define VIT_KERNELS_CPU_FEATURE_ROWS_H

#include "kernels/cpu/vecmath.h"
#include "real.h"

/* Copies n floats, n a run-time number that is nearly always a multiple of TILE. */
TILE_INLINE void copy_row(float *to, const float *from, int n) {
    for (int j = 0; j < n; j += TILE) vec_store_part(to + j, vec_load_part(from + j, n - j), n - j);
}

/* Walks the rows in the order of phi [n,2,H,F], D numbers apart: after the last head of k it steps over v. */
typedef struct {
    size_t offset;
    int head;
} Walk;

static inline Walk walk_from(size_t row, int H, size_t D) {
    size_t token = row / (2 * (size_t)H), head = row % (2 * (size_t)H);
    return (Walk){(token * 3 * H + head) * D, (int)head};
}

TILE_INLINE void walk_on(Walk *at, int H, size_t D) {
    at->offset += D;
    if (++at->head < 2 * H) return;
    at->head = 0;
    at->offset += (size_t)H * D;
}

#endif
