/* The deterministic parameter-free projection with nu = 1, for q and k of every head.  F = 2D.
 *   forward   u = relu([z'; -z']),  phi_i = u_i u_(i-1),  z' = D^-1/4 z, indices modulo F
 *   backward  du_i = dphi_i u_(i-1) + dphi_(i+1) u_(i+1),  dz = D^-1/4 (du_i [z > 0] - du_(D+i) [z < 0])
 *   saves     nothing.   Source: Schlag et al. 2021, section 5.3. */
#include <math.h>
#include <stdbool.h>

#include "kernels/cpu/activations.h"
#include "kernels/linear_attention/feature_maps.h"
#include "kernels/softmax/attention_shape.h"

static float positive(float x) { return x < 0 ? 0 : x; }

/* s z, for u. */
static float part(real z, float s) { return positive(s * real_get(z)); }

/* The halves of u are u_i = part(z_i, s): s = 1 for the first, -1 for the second; the element before
 * the first of one half is the last of the other. */
static void forward_half(real *phi, const real *z, float s, float scale, int D) {
    phi[0] = real_of(scale * part(z[0], s) * part(z[D - 1], -s));
#pragma omp simd
    for (int i = 1; i < D; i++) phi[i] = real_of(scale * part(z[i], s) * part(z[i - 1], s));
}

void feature_dpfp_forward(real *phi, const real *qkv, const FeatureShape *shape) {
    size_t n = (size_t)shape->B * shape->N;
    int H = shape->H, D = shape->D;
    float scale = 1 / sqrtf((float)D); /* D^-1/4 twice */
#pragma omp parallel for schedule(static)
    for (size_t token = 0; token < n; token++)
        for (int row = 0; row < 2 * H; row++) {
            const real *z = qkv + (token * 3 * H + row) * D;
            real *to = phi + (token * 2 * H + row) * 2 * D;
            forward_half(to, z, 1, scale, D);
            forward_half(to + D, z, -1, scale, D);
        }
}

/* du of element i of a half; next: dphi of the next element, which is in the other half when i is the last. */
static float slope(const real *dphi, real next, const real *z, float s, int i, int D) {
    float before = i > 0 ? part(z[i - 1], s) : part(z[D - 1], -s);
    float behind = i + 1 < D ? part(z[i + 1], s) : part(z[0], -s);
    return real_get(dphi[i]) * before + real_get(next) * behind;
}

static float slope_of_z(const real *dphi, const real *z, int i, int D) {
    bool last = i == D - 1;
    if (real_get(z[i]) > 0) return slope(dphi, dphi[i + 1], z, 1, i, D);
    if (real_get(z[i]) < 0) return -slope(dphi + D, last ? dphi[0] : dphi[D + i + 1], z, -1, i, D);
    return real_get(z[i]) * 0;
}

static void backward_row(real *dz, const real *dphi, const real *z, float scale, int D) {
    dz[0] = real_of(scale * slope_of_z(dphi, z, 0, D));
    dz[D - 1] = real_of(scale * slope_of_z(dphi, z, D - 1, D));
#pragma omp simd
    for (int i = 1; i < D - 1; i++) {
        float own = real_get(z[i]);
        float up = real_get(dphi[i]) * part(z[i - 1], 1) + real_get(dphi[i + 1]) * part(z[i + 1], 1);
        float down = real_get(dphi[D + i]) * part(z[i - 1], -1) + real_get(dphi[D + i + 1]) * part(z[i + 1], -1);
        dz[i] = real_of(scale * (own > 0 ? up : own < 0 ? -down : own * 0));
    }
}

void feature_dpfp_backward(real *dqkv, const real *dphi, const real *qkv, const FeatureShape *shape) {
    size_t n = (size_t)shape->B * shape->N;
    int H = shape->H, D = shape->D;
    float scale = 1 / sqrtf((float)D);
#pragma omp parallel for schedule(static)
    for (size_t token = 0; token < n; token++)
        for (int row = 0; row < 2 * H; row++) {
            size_t at = (token * 3 * H + row) * D;
            backward_row(dqkv + at, dphi + (token * 2 * H + row) * 2 * D, qkv + at, scale, D);
        }
}
