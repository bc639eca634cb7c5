/* The outline is followed in steps of a fifth of a pixel, on points (u, v) with whole coordinates:
 *
 *   vertices   u = trunc(5 x + 1/2),  v = trunc(5 y + 1/2)
 *   edges      in unit steps t along the longer axis (u where equal), from its smaller end; the other coordinate is
 *              trunc(start + slope t + 1/2)
 *
 * Where two consecutive points lie on both sides of the middle of column k, u = 5 k + 2 and 5 k + 3, the outline
 * crosses that column; with v the smaller of their v, above row
 *
 *   y = ceil((v + 1/2) / 5 - 1/2) = ceil((v - 2) / 5), clamped to 0 .. height.
 *
 * The mask changes at the crossings k height + y in ascending order; two at the same place cancel.  Only points at the
 * middle of a column matter, so the cost of an edge is proportional to the columns that it crosses, not to its
 * points. */
#include "data/masks/polygon.h"

#include <math.h>
#include <stdlib.h>

#include "core/die.h"
#include "core/integers.h"

/* Sorts the crossings byte by byte, the lowest first, and removes pairs of equal ones.  The second half of the memory
 * holds every other pass. */
static void sort_crossings(Rle *out) {
    uint32_t *from = out->runs, *to, pixels = (uint32_t)out->height * (uint32_t)out->width;
    size_t kept = 0;
    if (!out->count) return;
    to = from + out->room / 2;
    for (int shift = 0; shift < 32 && pixels >> shift; shift += 8) {
        size_t place[257] = {0};
        for (size_t i = 0; i < out->count; i++) place[(from[i] >> shift & 255) + 1]++;
        for (int byte = 0; byte < 255; byte++) place[byte + 1] += place[byte];
        for (size_t i = 0; i < out->count; i++) to[place[from[i] >> shift & 255]++] = from[i];
        uint32_t *sorted = to;
        to = from;
        from = sorted;
    }
    for (size_t i = 0; i < out->count; i++) {
        if (kept && out->runs[kept - 1] == from[i]) kept--;
        else out->runs[kept++] = from[i];
    }
    out->count = kept;
}

/* However long the outline is, the memory is at most a few numbers for each pixel. */
static void add_crossing(Rle *out, int column, int v) {
    int y = v <= 2 ? 0 : smaller((v + 2) / 5, out->height);
    if (2 * out->count + 2 > out->room) {
        sort_crossings(out);
        out->runs = xgrow(out->runs, 4 * out->count + 4, &out->room, sizeof *out->runs, "runs of a mask");
    }
    out->runs[out->count++] = (uint32_t)column * (uint32_t)out->height + (uint32_t)y;
}

/* The columns whose middle lies between u and the larger u1: [first, last]. */
static int first_column(int u) { return u <= 2 ? 0 : (u + 2) / 5; }
static int last_column(int u1, int width) { return u1 < 3 ? -1 : smaller((u1 - 3) / 5, width - 1); }

static int point_at(int start, double slope, int t) { return (int)(start + slope * t + 0.5); }

/* From (x0, y0) to (x1, y1), with x1 - x0 >= |y1 - y0| and not 0. */
static void walk_flat_edge(Rle *out, int x0, int y0, int x1, int y1) {
    double slope = (double)(y1 - y0) / (x1 - x0);
    for (int k = first_column(x0), last = last_column(x1, out->width); k <= last; k++) {
        int t = 5 * k + 2 - x0;
        add_crossing(out, k, smaller(point_at(y0, slope, t), point_at(y0, slope, t + 1)));
    }
}

/* From (x0, y0) to (x1, y1), with y1 - y0 > |x1 - x0|. */
static void walk_steep_edge(Rle *out, int x0, int y0, int x1, int y1) {
    int steps = y1 - y0, right = x1 > x0;
    double slope = (double)(x1 - x0) / steps;
    for (int k = first_column(smaller(x0, x1)), last = last_column(larger(x0, x1), out->width); k <= last; k++) {
        int middle = 5 * k + 3, t = clamp((int)((middle - 0.5 - x0) / slope), 1, steps);
        /* The first step beyond the middle of the column is at most a few away from this estimate. */
        while (t > 1 && right == (point_at(x0, slope, t - 1) >= middle)) t--;
        while (t < steps && right != (point_at(x0, slope, t) >= middle)) t++;
        add_crossing(out, k, y0 + t - 1);
    }
}

static void walk_edge(Rle *out, const int from[2], const int to[2]) {
    int across = abs(to[0] - from[0]), down = abs(to[1] - from[1]);
    bool flat = across >= down, turn = flat ? from[0] > to[0] : from[1] > to[1];
    const int *a = turn ? to : from, *b = turn ? from : to;
    if (!across) return; /* it crosses no column */
    (flat ? walk_flat_edge : walk_steep_edge)(out, a[0], a[1], b[0], b[1]);
}

static int fifths(double x) { return (int)fmin(fmax(5 * x + 0.5, -5e8), 5e8); }

void polygon_rle(Rle *out, const double *xy, int points, int height, int width) {
    uint32_t pixels = (uint32_t)height * (uint32_t)width, at = 0;
    rle_begin(out, height, width);
    for (int i = 0; i < points; i++) {
        const double *a = xy + 2 * (size_t)i, *b = i + 1 < points ? a + 2 : xy;
        walk_edge(out, (const int[]){fifths(a[0]), fifths(a[1])}, (const int[]){fifths(b[0]), fifths(b[1])});
    }
    sort_crossings(out);
    if (!out->count || out->runs[out->count - 1] != pixels) {
        out->runs = xgrow(out->runs, out->count + 1, &out->room, sizeof *out->runs, "runs of a mask");
        out->runs[out->count++] = pixels;
    }
    for (size_t i = 0; i < out->count; i++) {
        uint32_t next = out->runs[i];
        out->runs[i] -= at;
        at = next;
    }
}

static void swap(Rle *a, Rle *b) {
    Rle kept = *a;
    *a = *b;
    *b = kept;
}

void polygons_rle(Rle *out, const double *xy, const int *ring_points, int rings, int height, int width, Rle spare[2]) {
    polygon_rle(out, xy, rings ? ring_points[0] : 0, height, width);
    for (int i = 1; i < rings; i++) {
        xy += 2 * (size_t)ring_points[i - 1];
        polygon_rle(&spare[0], xy, ring_points[i], height, width);
        rle_union(&spare[1], out, &spare[0]);
        swap(out, &spare[1]);
    }
}
