/* The rows that feature maps read: one (token, q or k, head) triple each, out of qkv [n,3,H,D]. */
#ifndef VIT_KERNELS_LINEAR_ATTENTION_FEATURE_ROWS_H
#define VIT_KERNELS_LINEAR_ATTENTION_FEATURE_ROWS_H

#include "kernels/cpu/tile.h"

/* Iterates over the rows in the order of phi [n,2,H,F], D numbers apart, and skips v after the last head of k. */
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
