/* Focused features (Han et al. 2023), a token at a time.
 *   forward   r = relu(z) + 1e-6,  u = r / softplus(scale),  t = (u / max u)^p,  phi = |u| t / |t|
 *   backward  s = dphi.t / |t|,  du = s u / |u| + (|u| / |t|) (dphi - s t / |t|) p t / u,
 *             dz = du [z > 0] / softplus(scale),  dscale -= du u sigmoid(scale) / softplus(scale)
 * z is q, or k + pos.  phi does not depend on the scale of u before the power, so u is divided by its maximum to avoid
 * overflow.  t / u is computed as a power, to avoid a division by zero. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"
#include "kernels/linear_attention/operator_features.h"

/* Rows whose dscale is summed before it is added to a thread's total, against rounding. */
enum { CHUNK = 128 };

static const float EPSILON = 1e-6f;

/* Per thread: 1 / softplus(scale), u, t / u, the current chunk's dscale, and its total. */
static size_t work_floats(int M) { return (size_t)5 * tile_round_up(M); }

size_t focused_features_workspace(int M) { return workspace_bytes(work_floats(M)); }

/* log(1 + e^x) without overflow. */
static float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

static void inverse_scales(float *inverse, const float *scale, int M) {
    for (int m = 0; m < M; m++) inverse[m] = 1 / softplus(scale[m]);
}

TILE_INLINE vec vec_power(vec x, int p) {
    vec y = vec_set(1);
    for (; p > 0; p >>= 1, x *= x)
        if (p & 1) y *= x;
    return y;
}

/* q, or k with its position. */
TILE_INLINE vec token_part(const real *z, const float *pos, int j, int M) {
    vec x = real_load_part(z + j, M - j);
    if (pos) x += vec_load_part(pos + j, M - j);
    return x;
}

typedef struct {
    float largest, norm, power_norm; /* max u, |u|, |t| */
} Norms;

/* u and t / u [M] of a token. */
static Norms focus(float *u, float *power, const real *z, const float *pos, const float *inverse, int M, int p) {
    vec squares = {0}, largest = {0}, power_squares = {0};
    for (int j = 0; j < M; j += TILE) {
        vec x = (vec_max(vec_set(0), token_part(z, pos, j, M)) + EPSILON) * vec_load_part(inverse + j, M - j);
        vec_store(u + j, x);
        squares += x * x;
        largest = vec_max(largest, x);
    }
    Norms n = {vec_largest(largest), sqrtf(vec_sum(squares)), 0};
    vec shrink = vec_set(1 / n.largest);
    for (int j = 0; j < M; j += TILE) {
        vec x = vec_load(u + j) * shrink, low = vec_power(x, p - 1);
        vec_store(power + j, low * shrink);
        power_squares += low * x * low * x;
    }
    n.power_norm = sqrtf(vec_sum(power_squares));
    return n;
}

void focused_features_forward(real *phi, const real *x, const float *pos, const float *scale, int p,
                              const FocusedRows *rows) {
    int B = rows->B, N = rows->N, M = rows->M, Mp = tile_round_up(M);
    float share = pos ? 1.0f / N : 1;
#pragma omp parallel
    {
        float *inverse = kernels_workspace(work_floats(M)), *u = inverse + Mp, *power = u + Mp;
        inverse_scales(inverse, scale, M);
#pragma omp for schedule(static)
        for (size_t i = 0; i < (size_t)B * N; i++) {
            real *to = phi + i * rows->phi_row;
            Norms n = focus(u, power, x + i * rows->x_row, pos ? pos + i % N * M : NULL, inverse, M, p);
            vec factor = vec_set(share * n.norm / n.power_norm);
            for (int j = 0; j < M; j += TILE)
                real_store_part(to + j, factor * vec_load(u + j) * vec_load(power + j), M - j);
        }
    }
}

/* dz of one token, also left in `power` in float, and what it adds to -dscale softplus / sigmoid. */
static void focus_backward(real *dz, float *dscale, const real *dphi, float share, const real *z, const float *pos,
                           const float *inverse, float *u, float *power, int M, int p) {
    Norms n = focus(u, power, z, pos, inverse, M, p);
    vec dot = {0};
    for (int j = 0; j < M; j += TILE) dot += real_load_part(dphi + j, M - j) * vec_load(u + j) * vec_load(power + j);
    float s = share * vec_sum(dot) / n.power_norm;
    vec along = vec_set(s / n.norm), across = vec_set(p * n.norm / n.power_norm), turn = vec_set(s / n.power_norm);
    for (int j = 0; j < M; j += TILE) {
        vec uj = vec_load(u + j), low = vec_load(power + j);
        vec du = along * uj + across * (share * real_load_part(dphi + j, M - j) - turn * uj * low) * low;
        vec alive = vec_select(token_part(z, pos, j, M) > 0, vec_load_part(inverse + j, M - j), vec_set(0));
        vec_store(dscale + j, vec_load(dscale + j) + du * uj);
        vec_store(power + j, du * alive);
        real_store_part(dz + j, du * alive, M - j);
    }
}

/* A token is processed for all images together, so that its row of dpos belongs to one thread. */
void focused_features_backward(real *dx, float *dpos, float *dscale, const real *dphi, const real *x, const float *pos,
                               const float *scale, int p, const FocusedRows *rows) {
    int B = rows->B, N = rows->N, M = rows->M, Mp = tile_round_up(M);
    float share = pos ? 1.0f / N : 1;
#pragma omp parallel
    {
        float *inverse = kernels_workspace(work_floats(M)), *u = inverse + Mp, *power = u + Mp;
        float *chunk = power + Mp, *total = chunk + Mp;
        int done = 0;
        inverse_scales(inverse, scale, M);
        memset(chunk, 0, (size_t)2 * Mp * sizeof *chunk);
#pragma omp for schedule(static)
        for (int t = 0; t < N; t++)
            for (int b = 0; b < B; b++) {
                size_t i = (size_t)b * N + t, at = i * rows->x_row;
                focus_backward(dx + at, chunk, dphi + i * rows->phi_row, share, x + at,
                               pos ? pos + (size_t)t * M : NULL, inverse, u, power, M, p);
                float *to = dpos + (size_t)t * M;
                for (int j = 0; pos && j < M; j += TILE) /* power: dx */
                    vec_store_part(to + j, vec_load_part(to + j, M - j) + vec_load(power + j), M - j);
                if (++done % CHUNK == 0) sums_join(total, chunk, Mp);
            }
        sums_join(total, chunk, Mp);
#pragma omp barrier
        int threads = omp_get_num_threads();
#pragma omp for schedule(static)
        for (int m = 0; m < M; m++) {
            float sum = 0;
            for (int k = 0; k < threads; k++) sum += workspace_of(k, work_floats(M))[4 * Mp + m];
            dscale[m] -= sum / (softplus(scale[m]) * (1 + expf(-scale[m])));
        }
    }
}
