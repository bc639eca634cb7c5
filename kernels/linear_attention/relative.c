/* Relative positions as linear maps of a token's features: rotation by pairs (Su et al. 2021), permutation (Chen 2021).
 * Both are orthogonal, so that the backward pass is the inverse map. */
#include <math.h>

#include "kernels/cpu/activations.h"
#include "kernels/linear_attention/relative_positions.h"
#include "kernels/softmax/attention_shape.h"
#include "kernels/tokens/grid.h"

/* == Rotation ===================================================================================================== */

/* The position of token n along the axis of pair p, or 0 if the pair is not rotated; of `axes` axes that have `each`
 * pairs. */
static int place(int n, int p, int N, int axes, int each, const Grid *grid) {
    if (!grid) return n;
    int patch = n - (N - grid_tokens(*grid));
    if (patch < 0 || p >= each * axes) return 0;
    GridPlace at = grid_place(*grid, patch);
    int of_last = axes - 1 - p / each;
    return of_last == 0 ? at.x : of_last == 1 ? at.y : at.t;
}

void rope_table(float *turns, int N, int F, const Grid *grid) {
    int pairs = F / 2, axes = !grid ? 1 : grid->frames > 1 ? 3 : 2, each = F / (2 * axes), period = each ? each : pairs;
#pragma omp parallel for schedule(static)
    for (int p = 0; p < pairs; p++) {
        double theta = pow(10000, -2.0 * axes * (p % period) / F);
        for (int n = 0; n < N; n++) {
            float *turn = turns + ((size_t)n * pairs + p) * 2;
            double angle = theta * place(n, p, N, axes, each, grid);
            turn[0] = (float)cos(angle);
            turn[1] = (float)sin(angle);
        }
    }
}

/* One token's heads; sign -1 turns back. */
static void rotate(real *y, const real *x, const float *turn, float sign, int heads, int F) {
    for (int h = 0; h < heads; h++, x += F, y += F) {
        for (int p = 0; p < F / 2; p++) {
            float c = turn[2 * p], s = sign * turn[2 * p + 1], a = real_get(x[2 * p]),
                  b = real_get(x[2 * p + 1]);
            y[2 * p] = real_of(c * a - s * b);
            y[2 * p + 1] = real_of(s * a + c * b);
        }
        if (F % 2) y[F - 1] = x[F - 1];
    }
}

void rope_forward(real *y, const real *phi, const float *turns, const FeatureShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, F = shape->F;
    size_t row = (size_t)2 * H * F;
#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < (size_t)B * N; t++)
        rotate(y + t * row, phi + t * row, turns + t % N * (F / 2 * 2), 1, 2 * H, F);
}

void rope_backward(real *dphi, const real *dy, const float *turns, const FeatureShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, F = shape->F;
    size_t row = (size_t)2 * H * F;
#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < (size_t)B * N; t++)
        rotate(dphi + t * row, dy + t * row, turns + t % N * (F / 2 * 2), -1, 2 * H, F);
}

/* == Permutation ================================================================================================== */

void permute_table(int *order, const float *permutation, int N, int H, int F) {
#pragma omp parallel for schedule(static)
    for (int h = 0; h < H; h++) {
        int *next = order + (size_t)h * N * F;
        for (int f = 0; f < F; f++) next[f] = f;
        for (int n = 1; n < N; n++, next += F)
            for (int f = 0; f < F; f++) next[F + f] = (int)permutation[(size_t)h * F + next[f]];
    }
}

void permute_forward(real *y, const real *phi, const int *order, const FeatureShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, F = shape->F;
#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < (size_t)B * N; t++)
        for (int head = 0; head < 2 * H; head++) {
            size_t at = (t * 2 * H + head) * F;
            const int *from = order + ((size_t)(head % H) * N + t % N) * F;
            for (int f = 0; f < F; f++) y[at + f] = phi[at + from[f]];
        }
}

void permute_backward(real *dphi, const real *dy, const int *order, const FeatureShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, F = shape->F;
#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < (size_t)B * N; t++)
        for (int head = 0; head < 2 * H; head++) {
            size_t at = (t * 2 * H + head) * F;
            const int *to = order + ((size_t)(head % H) * N + t % N) * F;
            for (int f = 0; f < F; f++) dphi[at + to[f]] = dy[at + f];
        }
}
