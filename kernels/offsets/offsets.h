/* Tables of relative positions: the entry that belongs to a query i and a key j of the grid T x Hg x Wg.
 *   circle    (i - j) mod N, for the tokens as one sequence                         N entries
 *   torus     the offset (dt, dy, dx), modulo the sides of the grid                 N entries
 *   toeplitz  the offset (dt, dy, dx)                                               (2 T - 1)(2 Hg - 1)(2 Wg - 1) entries
 *   local     the offset (dt, dy, dx), at most side / 2 in rows and columns and
 *             frames / 2 in time                                                    frames side^2 entries
 * Entries are in row-major order of (dt, dy, dx).  Used on the host and on every device. */
#ifndef VIT_KERNELS_OFFSETS_OFFSETS_H
#define VIT_KERNELS_OFFSETS_OFFSETS_H

#include "kernels/tokens/grid.h"

typedef enum { OFFSETS_CIRCLE, OFFSETS_TORUS, OFFSETS_TOEPLITZ, OFFSETS_LOCAL } OffsetKind;

typedef struct {
    OffsetKind kind;
    Grid grid;
    int side, frames; /* of the local window, odd; 0 frames are one; not used by the other kinds */
} Offsets;

#ifdef __CUDACC__
#define OFFSETS_INLINE static inline __host__ __device__
#else
#define OFFSETS_INLINE static inline
#endif

/* The sides of the box of offsets that a toeplitz or local table holds. */
OFFSETS_INLINE Grid offsets_box(const Offsets *o) {
    Grid local = {o->frames > 0 ? o->frames : 1, o->side, o->side};
    return o->kind == OFFSETS_LOCAL ? local : grid_offsets(o->grid);
}

OFFSETS_INLINE int offsets_count(const Offsets *o) {
    return grid_tokens(o->kind == OFFSETS_CIRCLE || o->kind == OFFSETS_TORUS ? o->grid : offsets_box(o));
}

OFFSETS_INLINE int offset_around(int d, int side) { return d < 0 ? d + side : d; }

/* The entry of query i and key j, or -1 if the key is outside of the query's local window. */
OFFSETS_INLINE int offset_of(const Offsets *o, int i, int j) {
    Grid g = o->grid, box = offsets_box(o);
    if (o->kind == OFFSETS_CIRCLE) return offset_around(i - j, grid_tokens(g));
    GridPlace a = grid_place(g, i), b = grid_place(g, j);
    int dt = a.t - b.t, dy = a.y - b.y, dx = a.x - b.x;
    if (o->kind == OFFSETS_TORUS)
        return (offset_around(dt, g.frames) * g.rows + offset_around(dy, g.rows)) * g.columns +
               offset_around(dx, g.columns);
    dt += box.frames / 2, dy += box.rows / 2, dx += box.columns / 2;
    if (dt < 0 || dt >= box.frames || dy < 0 || dy >= box.rows || dx < 0 || dx >= box.columns) return -1;
    return (dt * box.rows + dy) * box.columns + dx;
}

/* The inverse of offset_of: the key j whose entry is e for query i, or -1 if there is none. */
OFFSETS_INLINE int offset_key(const Offsets *o, int e, int i) {
    Grid g = o->grid, box = offsets_box(o);
    if (o->kind == OFFSETS_CIRCLE) return offset_around(i - e, grid_tokens(g));
    GridPlace at = grid_place(g, i), d = grid_place(o->kind == OFFSETS_TORUS ? g : box, e);
    if (o->kind == OFFSETS_TORUS)
        return (offset_around(at.t - d.t, g.frames) * g.rows + offset_around(at.y - d.y, g.rows)) * g.columns +
               offset_around(at.x - d.x, g.columns);
    int t = at.t - d.t + box.frames / 2, y = at.y - d.y + box.rows / 2, x = at.x - d.x + box.columns / 2;
    if (t < 0 || t >= g.frames || y < 0 || y >= g.rows || x < 0 || x >= g.columns) return -1;
    return (t * g.rows + y) * g.columns + x;
}

#endif
