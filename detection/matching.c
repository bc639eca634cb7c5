/* Shortest augmenting paths (Jonker and Volgenant 1987, for rectangular matrices as in Crouse 2016), rows <= columns.
 *
 * Potentials u_i, v_j keep c_ij - u_i - v_j >= 0, with equality on matched pairs and v_j = 0 on free columns: then the
 * pairs are optimal.  Rows are added one by one: from the new row, Dijkstra's algorithm over the reduced costs finds
 * the nearest free column along rows and the columns they are matched with; the pairs on that path are exchanged, and
 *   u_i += d - d_col(i)  for the rows on the way (the new one: += d),   v_j -= d - d_j  for the columns settled,
 * where d_j is the distance of column j and d that of the free one.  O(rows^2 columns) at worst.
 *
 * One step of Dijkstra is one loop over all columns without a branch: a settled column has an infinite distance and a
 * potential of minus infinity, so that it is never chosen. */
#include "detection/matching.h"

#include <math.h>
#include <stdint.h>

typedef struct {
    double *u;        /* [rows] */
    double *v;        /* [columns] */
    double *distance; /* [columns] */
    struct {
        double v, distance;
        int column;
    } *settled;   /* [rows]: columns on the way to the free one */
    int32_t *from; /* [columns]: the row before it on the shortest path */
    int *row;      /* [columns]: the row it is matched with, or -1 */
    int *swapped;  /* [rows]: the result for a transposed matrix */
    float *cost;   /* [rows,columns], transposed */
} Workspace;

/* Divides memory into the arrays, doubles first for alignment, and returns the bytes used.  For rows <= columns.
 * memory NULL: only counts the bytes. */
static size_t lay_out(Workspace *w, char *memory, size_t rows, size_t columns) {
    size_t at = 0;
#define PLACE(pointer, count) (w->pointer = memory ? (void *)(memory + at) : NULL, at += (count) * sizeof *w->pointer)
    PLACE(u, rows);
    PLACE(v, columns);
    PLACE(distance, columns);
    PLACE(settled, rows);
    PLACE(from, columns);
    PLACE(row, columns);
    PLACE(swapped, rows);
    PLACE(cost, rows * columns);
#undef PLACE
    return at;
}

size_t matching_workspace(int rows, int columns) {
    Workspace w;
    int small = rows < columns ? rows : columns, large = rows < columns ? columns : rows;
    return lay_out(&w, NULL, (size_t)small, (size_t)large);
}

/* Relaxes the columns first..end-1 from row i, whose distance less its potential is `base`; returns the nearest one. */
static double relax(const Workspace *w, const float *restrict cost, int32_t i, double base, int first, int end) {
    const double *restrict v = w->v;
    double *restrict distance = w->distance, nearest = INFINITY;
    int32_t *restrict from = w->from;
#pragma omp simd reduction(min : nearest)
    for (int j = first; j < end; j++) {
        double offer = base + (double)cost[j] - v[j];
        from[j] = offer < distance[j] ? i : from[j];
        distance[j] = offer < distance[j] ? offer : distance[j];
        nearest = distance[j] < nearest ? distance[j] : nearest;
    }
    return nearest;
}

/* Relaxes all columns; returns the nearest, the first of equals, which is searched for only in its block. */
static int advance(const Workspace *w, const float *cost, int32_t i, double base, int columns) {
    enum { BLOCK = 64 };
    double nearest = INFINITY;
    int j = 0;
    for (int first = 0; first < columns; first += BLOCK) {
        double here = relax(w, cost, i, base, first, first + BLOCK < columns ? first + BLOCK : columns);
        j = here < nearest ? first : j;
        nearest = here < nearest ? here : nearest;
    }
    while (w->distance[j] != nearest) j++;
    return j;
}

static void add_row(const Workspace *w, int *column, const float *cost, int row, int columns) {
    int steps = 0, i = row, j;
    double base = -w->u[row];
    for (j = 0; j < columns; j++) w->distance[j] = INFINITY;
    for (;;) {
        j = advance(w, cost + (size_t)i * (size_t)columns, i, base, columns);
        if (w->row[j] < 0) break;
        i = w->row[j];
        base = w->distance[j] - w->u[i];
        w->settled[steps].v = w->v[j];
        w->settled[steps].distance = w->distance[j];
        w->settled[steps++].column = j;
        w->v[j] = -INFINITY;
        w->distance[j] = INFINITY;
    }
    double length = w->distance[j];
    w->u[row] += length;
    for (int k = 0; k < steps; k++) {
        int passed = w->settled[k].column;
        double further = length - w->settled[k].distance;
        w->u[w->row[passed]] += further;
        w->v[passed] = w->settled[k].v - further;
    }
    do { /* back along the path */
        i = w->from[j];
        w->row[j] = i;
        int before = column[i];
        column[i] = j;
        j = before;
    } while (i != row);
}

static void match_rows(const Workspace *w, int *column, const float *cost, int rows, int columns) {
    for (int i = 0; i < rows; i++) {
        column[i] = -1;
        w->u[i] = 0;
    }
    for (int j = 0; j < columns; j++) {
        w->v[j] = 0;
        w->row[j] = -1;
    }
    for (int i = 0; i < rows; i++) add_row(w, column, cost, i, columns);
}

static bool all_finite(const float *cost, size_t n) {
    int bad = 0;
    for (size_t i = 0; i < n; i++) bad |= !(fabsf(cost[i]) < INFINITY);
    return !bad;
}

bool matching(int *column, const float *cost, int rows, int columns, void *workspace) {
    Workspace w;
    bool tall = rows > columns;
    int small = tall ? columns : rows, large = tall ? rows : columns;
    if (!all_finite(cost, (size_t)rows * (size_t)columns)) return false;
    lay_out(&w, workspace, (size_t)small, (size_t)large);
    if (!tall) {
        match_rows(&w, column, cost, rows, columns);
        return true;
    }
    for (int j = 0; j < columns; j++) {
        float *to = w.cost + (size_t)j * (size_t)rows;
        for (int i = 0; i < rows; i++) to[i] = cost[(size_t)i * (size_t)columns + (size_t)j];
    }
    match_rows(&w, w.swapped, w.cost, columns, rows);
    for (int i = 0; i < rows; i++) column[i] = w.row[i]; /* rows here are columns there */
    return true;
}
