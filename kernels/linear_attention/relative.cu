/* Relative positions; kernels/linear_attention/relative.c has the formulas.  There is a thread for each pair of
 * features, or for each feature. */
#include <math.h>

#include "kernels/cuda/rows.cuh"
#include "kernels/linear_attention/relative_positions.h"
#include "kernels/softmax/attention_shape.h"
#include "kernels/tokens/grid.h"

enum { THREADS = 256 };

DEVICE size_t thread_number() { return (size_t)blockIdx.x * THREADS + threadIdx.x; }

/* == Rotation ===================================================================================================== */

/* The position of token n along the axis of pair p, or 0 if the pair is not rotated; of `axes` axes that have `each`
 * pairs.  One axis is the tokens in a row. */
DEVICE int place(int n, int p, int N, int axes, int each, const Grid &grid) {
    int patch = n - (N - grid_tokens(grid));
    if (axes == 1) return n;
    if (patch < 0 || p >= each * axes) return 0;
    GridPlace at = grid_place(grid, patch);
    int of_last = axes - 1 - p / each;
    return of_last == 0 ? at.x : of_last == 1 ? at.y : at.t;
}

__global__ void __launch_bounds__(THREADS) rope_table_kernel(float *turns, int N, int F, int axes, Grid grid) {
    size_t at = thread_number();
    int pairs = F / 2, each = F / (2 * axes), period = each ? each : pairs;
    if (at >= (size_t)N * pairs) return;
    int n = (int)(at / pairs), p = (int)(at % pairs);
    double theta = pow(10000.0, -2.0 * axes * (p % period) / F), angle = theta * place(n, p, N, axes, each, grid);
    turns[2 * at] = (float)cos(angle);
    turns[2 * at + 1] = (float)sin(angle);
}

void rope_table(float *turns, int N, int F, const Grid *grid) {
    const Grid none = {0, 0, 0};
    int axes = !grid ? 1 : grid->frames > 1 ? 3 : 2;
    size_t count = (size_t)N * (F / 2);
    if (count)
        LAUNCH(rope_table_kernel, (unsigned)ceil_div(count, THREADS), THREADS, 0, turns, N, F, axes, grid ? *grid : none);
}

/* Pairs, and an odd last feature as a pair of its own; sign -1 turns back. */
__global__ void __launch_bounds__(THREADS)
    rope_kernel(real *y, const real *phi, const float *turns, float sign, size_t count, int N, int heads, int F) {
    size_t at = thread_number();
    int pairs = (F + 1) / 2;
    if (at >= count) return;
    size_t row = quotient(at, pairs), token = quotient(row, heads);
    int p = (int)(at - row * pairs), n = (int)(token - quotient(token, N) * N);
    size_t first = row * F + 2 * p;
    if (2 * p + 1 == F) {
        y[first] = phi[first];
        return;
    }
    const float *turn = turns + ((size_t)n * (F / 2) + p) * 2;
    float c = turn[0], s = sign * turn[1], a = to_float(phi[first]), b = to_float(phi[first + 1]);
    y[first] = to_real(c * a - s * b);
    y[first + 1] = to_real(s * a + c * b);
}

static void rope(real *y, const real *phi, const float *turns, float sign, int B, int N, int H, int F) {
    size_t count = (size_t)B * N * 2 * H * ((F + 1) / 2);
    LAUNCH(rope_kernel, (unsigned)ceil_div(count, THREADS), THREADS, 0, y, phi, turns, sign, count, N, 2 * H, F);
}

void rope_forward(real *y, const real *phi, const float *turns, const FeatureShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, F = shape->F;
    rope(y, phi, turns, 1, B, N, H, F);
}

void rope_backward(real *dphi, const real *dy, const float *turns, const FeatureShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, F = shape->F;
    rope(dphi, dy, turns, -1, B, N, H, F);
}

/* == Permutation ================================================================================================== */

/* A thread follows a feature from token to token. */
__global__ void __launch_bounds__(THREADS)
    permute_table_kernel(int *order, const float *permutation, int N, int H, int F) {
    size_t at = thread_number();
    if (at >= (size_t)H * F) return;
    size_t h = at / F, f = at % F;
    int from = (int)f;
    for (int n = 0; n < N; n++) {
        order[(h * N + n) * F + f] = from;
        from = (int)permutation[h * F + from];
    }
}

void permute_table(int *order, const float *permutation, int N, int H, int F) {
    LAUNCH(permute_table_kernel, (unsigned)ceil_div((size_t)H * F, THREADS), THREADS, 0, order, permutation, N, H, F);
}

__global__ void __launch_bounds__(THREADS)
    permute_kernel(real *y, const real *phi, const int *order, bool back, size_t count, int N, int H, int F) {
    size_t at = thread_number();
    if (at >= count) return;
    size_t row = quotient(at, F), token = quotient(row, 2 * H), head = (row - token * 2 * H) % H;
    size_t n = token - quotient(token, N) * N, f = at - row * F;
    size_t other = row * F + order[(head * N + n) * F + f];
    if (back) y[other] = phi[at];
    else y[at] = phi[other];
}

static void permute(real *y, const real *phi, const int *order, bool back, int B, int N, int H, int F) {
    size_t count = (size_t)B * N * 2 * H * F;
    LAUNCH(permute_kernel, (unsigned)ceil_div(count, THREADS), THREADS, 0, y, phi, order, back, count, N, H, F);
}

void permute_forward(real *y, const real *phi, const int *order, const FeatureShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, F = shape->F;
    permute(y, phi, order, false, B, N, H, F);
}

void permute_backward(real *dphi, const real *dy, const int *order, const FeatureShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, F = shape->F;
    permute(dphi, dy, order, true, B, N, H, F);
}
