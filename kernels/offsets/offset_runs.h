/* Tables of relative positions in an order that suits matrix products.  For one query, consecutive keys of a grid row
 * (of the whole sequence for a circle) use consecutive entries of the table in descending order.  A reversed copy [U],
 * doubled along dimensions that wrap around, gives them in ascending order: key j0 + n uses entry u + n. */
#ifndef VIT_KERNELS_OFFSETS_OFFSET_RUNS_H
#define VIT_KERNELS_OFFSETS_OFFSET_RUNS_H

#include <stdbool.h>

#include "kernels/offsets/offsets.h"
#include "kernels/tokens/grid.h"

typedef struct {
    int j0, count, u;
    int row; /* number of previous runs; 0 at the start */
} OffsetRun;

static inline int offset_runs_entries(const Offsets *o) {
    return o->kind == OFFSETS_CIRCLE || o->kind == OFFSETS_TORUS ? 2 * offsets_count(o) : offsets_count(o);
}

/* The table's entry at u. */
static inline int offset_runs_entry(const Offsets *o, int u) {
    int N = grid_tokens(o->grid), Wg = o->grid.columns, width = offsets_box(o).columns;
    if (o->kind == OFFSETS_CIRCLE) return (2 * N - u) % N;
    if (o->kind == OFFSETS_TORUS) return u / (2 * Wg) * Wg + (2 * Wg - u % (2 * Wg)) % Wg;
    return u / width * width + width - 1 - u % width;
}

/* The part of an axis of n places that lies within `reach` of place i. */
typedef struct {
    int first, count;
} OffsetSpan;

static inline OffsetSpan offset_span(int i, int reach, int n) {
    int first = i > reach ? i - reach : 0, end = i + reach < n ? i + reach + 1 : n;
    return (OffsetSpan){first, end - first};
}

static inline bool offset_runs_local(const Offsets *o, GridPlace at, int n, OffsetRun *run) {
    Grid g = o->grid, box = offsets_box(o);
    OffsetSpan t = offset_span(at.t, box.frames / 2, g.frames), y = offset_span(at.y, box.rows / 2, g.rows),
               x = offset_span(at.x, box.columns / 2, g.columns);
    int frame = t.first + n / y.count, row = y.first + n % y.count;
    int dt = at.t - frame + box.frames / 2, dy = at.y - row + box.rows / 2;
    *run = (OffsetRun){(frame * g.rows + row) * g.columns + x.first, x.count,
                       (dt * box.rows + dy) * box.columns + x.first - at.x + box.columns / 2, n + 1};
    return n < t.count * y.count;
}

/* The next run of consecutive keys for query i, in the order of the keys. */
static inline bool offset_runs_next(const Offsets *o, int i, OffsetRun *run) {
    Grid g = o->grid;
    int T = g.frames, Hg = g.rows, Wg = g.columns, N = grid_tokens(g), n = run->row++;
    GridPlace at = grid_place(g, i);
    int dt = at.t - n / Hg, dy = at.y - n % Hg;
    if (o->kind == OFFSETS_CIRCLE) {
        *run = (OffsetRun){0, N, N - i, n + 1};
        return n == 0;
    }
    if (o->kind == OFFSETS_LOCAL) return offset_runs_local(o, at, n, run);
    int line = o->kind == OFFSETS_TORUS
                   ? ((offset_around(dt, T) * Hg + offset_around(dy, Hg)) * 2 + 1) * Wg
                   : ((dt + T - 1) * (2 * Hg - 1) + dy + Hg - 1) * (2 * Wg - 1) + Wg - 1;
    *run = (OffsetRun){n * Wg, Wg, line - at.x, n + 1};
    return n < T * Hg;
}

/* The reverse: runs of consecutive queries that use entry e, query i0 + n for key j0 + n. */
typedef struct {
    int i0, j0, count;
    int part; /* number of previous runs; 0 at the start */
} OffsetLine;

/* The x below n that read x - dx around a circle, 0 <= dx < n: first those without, then those with wrap-around. */
static inline OffsetLine offset_line_around(int dx, int n, int part) {
    return part % 2 ? (OffsetLine){0, n - dx, dx, part + 1} : (OffsetLine){dx, 0, n - dx, part + 1};
}

/* The places x of an axis of n with x - d on it, too. */
static inline OffsetSpan offset_pairs(int d, int n) {
    return (OffsetSpan){d > 0 ? d : 0, d > 0 ? n - d : n + d};
}

static inline bool offset_lines_next(const Offsets *o, int e, OffsetLine *line) {
    Grid g = o->grid, box = offsets_box(o);
    int T = g.frames, Hg = g.rows, Wg = g.columns, part = line->part;
    if (o->kind == OFFSETS_CIRCLE) {
        *line = offset_line_around(e, grid_tokens(g), part);
        return part < 2;
    }
    if (o->kind == OFFSETS_TORUS) {
        GridPlace d = grid_place(g, e);
        int row = part / 2, t = offset_around(row / Hg - d.t, T), y = offset_around(row % Hg - d.y, Hg);
        *line = offset_line_around(d.x, Wg, part);
        line->i0 += row * Wg;
        line->j0 += (t * Hg + y) * Wg;
        return row < T * Hg;
    }
    GridPlace d = grid_place(box, e);
    d.t -= box.frames / 2, d.y -= box.rows / 2, d.x -= box.columns / 2;
    OffsetSpan t = offset_pairs(d.t, T), y = offset_pairs(d.y, Hg), x = offset_pairs(d.x, Wg);
    if (t.count <= 0 || y.count <= 0 || part >= t.count * y.count) return false;
    int i0 = ((t.first + part / y.count) * Hg + y.first + part % y.count) * Wg + x.first;
    *line = (OffsetLine){i0, i0 - (d.t * Hg + d.y) * Wg - d.x, x.count > 0 ? x.count : 0, part + 1};
    return true;
}

#endif
