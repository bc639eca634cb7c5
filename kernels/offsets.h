/* Tables of relative positions: the entry that belongs to a query i and a key j of the grid Hg x Wg.
 *   circle    (i - j) mod N, for the tokens as one sequence                        N entries
 *   torus     the offset (dy, dx), modulo the rows and columns of the grid         N entries
 *   toeplitz  the offset (dy, dx)                                                  (2 Hg - 1)(2 Wg - 1) entries
 *   local     the offset (dy, dx), at most side / 2 in either direction            side^2 entries
 * Used on the host and on every device. */
#ifndef VIT_KERNELS_OFFSETS_H
#define VIT_KERNELS_OFFSETS_H

#include "kernels/grid.h"

typedef enum { OFFSETS_CIRCLE, OFFSETS_TORUS, OFFSETS_TOEPLITZ, OFFSETS_LOCAL } OffsetKind;

typedef struct {
    OffsetKind kind;
    Grid grid;
    int side; /* of the local window, odd; not used by the other kinds */
} Offsets;

#ifdef __CUDACC__
#define OFFSETS_INLINE static inline __host__ __device__
#else
#define OFFSETS_INLINE static inline
#endif

OFFSETS_INLINE int offsets_count(const Offsets *o) {
    if (o->kind == OFFSETS_TOEPLITZ) return (2 * o->grid.rows - 1) * (2 * o->grid.columns - 1);
    return o->kind == OFFSETS_LOCAL ? o->side * o->side : grid_tokens(o->grid);
}

/* The entry of query i and key j, or -1 if the key is outside of the query's local window. */
OFFSETS_INLINE int offset_of(const Offsets *o, int i, int j) {
    int Hg = o->grid.rows, Wg = o->grid.columns;
    if (o->kind == OFFSETS_CIRCLE) return i >= j ? i - j : i - j + Hg * Wg;
    int dy = i / Wg - j / Wg, dx = i % Wg - j % Wg, reach = o->side / 2;
    if (o->kind == OFFSETS_TORUS) return (dy < 0 ? dy + Hg : dy) * Wg + (dx < 0 ? dx + Wg : dx);
    if (o->kind == OFFSETS_TOEPLITZ) return (dy + Hg - 1) * (2 * Wg - 1) + dx + Wg - 1;
    if (dy < -reach || dy > reach || dx < -reach || dx > reach) return -1;
    return (dy + reach) * o->side + dx + reach;
}

/* The inverse of offset_of: the key j whose entry is t for query i, or -1 if there is none. */
OFFSETS_INLINE int offset_key(const Offsets *o, int t, int i) {
    int Hg = o->grid.rows, Wg = o->grid.columns;
    if (o->kind == OFFSETS_CIRCLE) return i >= t ? i - t : i - t + Hg * Wg;
    int y = i / Wg, x = i % Wg;
    if (o->kind == OFFSETS_TORUS) {
        y -= t / Wg, x -= t % Wg;
        return (y < 0 ? y + Hg : y) * Wg + (x < 0 ? x + Wg : x);
    }
    int width = o->kind == OFFSETS_LOCAL ? o->side : 2 * Wg - 1;
    y -= t / width - (o->kind == OFFSETS_LOCAL ? o->side / 2 : Hg - 1);
    x -= t % width - (o->kind == OFFSETS_LOCAL ? o->side / 2 : Wg - 1);
    return y < 0 || y >= Hg || x < 0 || x >= Wg ? -1 : y * Wg + x;
}

#endif
