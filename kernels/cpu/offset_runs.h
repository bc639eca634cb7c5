/* Tables of relative positions in an order that suits matrix products.  For one query, consecutive keys of a grid row
 * (of the whole sequence for a circle) use consecutive entries of the table in descending order.  A reversed copy [U],
 * doubled along dimensions that wrap around, gives them in ascending order: key j0 + n uses entry u + n. */
#ifndef VIT_KERNELS_CPU_OFFSET_RUNS_H
#define VIT_KERNELS_CPU_OFFSET_RUNS_H

#include <stdbool.h>

#include "kernels/offsets.h"

typedef struct {
    int j0, count, u;
    int row; /* how many runs came before; 0 in a fresh one */
} OffsetRun;

static inline int offset_runs_entries(const Offsets *o) {
    return o->kind == OFFSETS_CIRCLE || o->kind == OFFSETS_TORUS ? 2 * offsets_count(o) : offsets_count(o);
}

/* The table's own entry at u. */
static inline int offset_runs_entry(const Offsets *o, int u) {
    int N = grid_tokens(o->grid), Wg = o->grid.columns, width = o->kind == OFFSETS_LOCAL ? o->side : 2 * Wg - 1;
    if (o->kind == OFFSETS_CIRCLE) return (2 * N - u) % N;
    if (o->kind == OFFSETS_TORUS) return u / (2 * Wg) * Wg + (2 * Wg - u % (2 * Wg)) % Wg;
    return u / width * width + width - 1 - u % width;
}

/* The next run of consecutive keys for query i, in the order of the keys. */
static inline bool offset_runs_next(const Offsets *o, int i, OffsetRun *run) {
    int Hg = o->grid.rows, Wg = o->grid.columns, y = i / Wg, x = i % Wg, n = run->row++;
    if (o->kind == OFFSETS_CIRCLE) {
        *run = (OffsetRun){0, Hg * Wg, Hg * Wg - i, n + 1};
        return n == 0;
    }
    if (o->kind == OFFSETS_LOCAL) {
        int reach = o->side / 2, y0 = y > reach ? y - reach : 0, y1 = y + reach < Hg ? y + reach : Hg - 1;
        int x0 = x > reach ? x - reach : 0, x1 = x + reach < Wg ? x + reach : Wg - 1, row = y0 + n;
        *run = (OffsetRun){row * Wg + x0, x1 - x0 + 1, (y - row + reach) * o->side + x0 - x + reach, n + 1};
        return row <= y1;
    }
    if (o->kind == OFFSETS_TORUS) *run = (OffsetRun){n * Wg, Wg, ((y - n + Hg) % Hg * 2 + 1) * Wg - x, n + 1};
    else *run = (OffsetRun){n * Wg, Wg, (y - n + Hg - 1) * (2 * Wg - 1) + Wg - 1 - x, n + 1};
    return n < Hg;
}

/* The reverse: runs of consecutive queries that use entry t, query i0 + n for key j0 + n. */
typedef struct {
    int i0, j0, count;
    int part; /* how many came before; 0 in a fresh one */
} OffsetLine;

/* x of n that read x - dx, 0 <= dx < n, around a circle: those up to the end, then those that begin again. */
static inline OffsetLine offset_line_around(int dx, int n, int part) {
    return part % 2 ? (OffsetLine){0, n - dx, dx, part + 1} : (OffsetLine){dx, 0, n - dx, part + 1};
}

static inline bool offset_lines_next(const Offsets *o, int t, OffsetLine *line) {
    int Hg = o->grid.rows, Wg = o->grid.columns, part = line->part;
    if (o->kind == OFFSETS_CIRCLE) {
        *line = offset_line_around(t, Hg * Wg, part);
        return part < 2;
    }
    if (o->kind == OFFSETS_TORUS) {
        int y = part / 2;
        *line = offset_line_around(t % Wg, Wg, part);
        line->i0 += y * Wg;
        line->j0 += (y - t / Wg + Hg) % Hg * Wg;
        return y < Hg;
    }
    int width = o->kind == OFFSETS_LOCAL ? o->side : 2 * Wg - 1;
    int dy = t / width - (o->kind == OFFSETS_LOCAL ? o->side / 2 : Hg - 1);
    int dx = t % width - (o->kind == OFFSETS_LOCAL ? o->side / 2 : Wg - 1);
    int y = (dy > 0 ? dy : 0) + part, x = dx > 0 ? dx : 0, end = dx < 0 ? Wg + dx : Wg;
    *line = (OffsetLine){y * Wg + x, (y - dy) * Wg + x - dx, end > x ? end - x : 0, part + 1};
    return y < Hg && y - dy < Hg;
}

#endif
