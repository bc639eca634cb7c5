/* The maximum over each 3x3 neighbourhood on the token grid, for every channel; positions beyond the edge are ignored.
 *   forward   y_t = max_o x_t+o, o_t the first such offset, row by row; NaN is larger than everything
 *   backward  dx_t = sum of dy_u over the neighbours u whose u + o_u is t
 *   saves     o. */
#include <stdbool.h>

#include "kernels/cpu/activations.h"
#include "kernels/convolution/convolution.h"

enum { SIDE = 3, CHANNELS = 64 }; /* channels summed together */

/* Token (y + tap / 3 - 1, x + tap % 3 - 1), -1 beyond the edge. */
static int neighbour(int y, int x, int tap, int Hg, int Wg) {
    y += tap / SIDE - 1;
    x += tap % SIDE - 1;
    return y < 0 || y >= Hg || x < 0 || x >= Wg ? -1 : y * Wg + x;
}

void neighbour_max_forward(real *y, uint8_t *at, const real *x, const NeighbourMax *shape, int B) {
    int Hg = shape->grid.rows, Wg = shape->grid.columns, C = shape->C, row = shape->x_row;
    size_t N = (size_t)Hg * Wg;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int t = 0; t < Hg * Wg; t++) {
            real *out = y + (b * N + t) * C;
            uint8_t *which = at + (b * N + t) * C;
            bool any = false;
            for (int tap = 0; tap < SIDE * SIDE; tap++) {
                int m = neighbour(t / Wg, t % Wg, tap, Hg, Wg);
                if (m < 0) continue;
                const real *in = x + (b * N + m) * row;
                for (int c = 0; c < C; c++) {
                    float own = real_get(in[c]), most = real_get(out[c]);
                    bool larger = !any || own > most || (own != own && most == most);
                    out[c] = larger ? in[c] : out[c];
                    which[c] = larger ? (uint8_t)tap : which[c];
                }
                any = true;
            }
        }
}

void neighbour_max_backward(real *dx, const real *dy, const uint8_t *at, const NeighbourMax *shape, int B) {
    int Hg = shape->grid.rows, Wg = shape->grid.columns, C = shape->C, row = shape->x_row;
    size_t N = (size_t)Hg * Wg;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int t = 0; t < Hg * Wg; t++) {
            for (int first = 0; first < C; first += CHANNELS) {
                float sum[CHANNELS] = {0};
                int count = C - first < CHANNELS ? C - first : CHANNELS;
                for (int tap = 0; tap < SIDE * SIDE; tap++) {
                    int u = neighbour(t / Wg, t % Wg, SIDE * SIDE - 1 - tap, Hg, Wg);
                    if (u < 0) continue;
                    const real *d = dy + (b * N + u) * C + first;
                    const uint8_t *which = at + (b * N + u) * C + first;
                    for (int c = 0; c < count; c++) sum[c] += which[c] == tap ? real_get(d[c]) : 0;
                }
                reals_round(dx + (b * N + t) * row + first, sum, (size_t)count);
            }
        }
}
