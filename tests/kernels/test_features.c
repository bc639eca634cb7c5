/* Feature maps, denominators, relative positions, positional codes and explicit ripple softmax: outputs against their
 * formulas in double, gradients against central differences of those formulas.  Maxima that the backward pass treats as
 * constants are kept constant in the differences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/differences.h"

/* Index of column c of head h in part `part` of token t in [tokens,parts,H,D]. */
static size_t at(size_t t, int parts, int part, int H, int h, int D, int c) {
    return ((t * parts + part) * H + h) * D + c;
}

/* Compares the q and k thirds of dqkv with slopes, and checks that the v third is unchanged. */
static int thirds_agree(const real *dqkv, const float *before, double *qkv, size_t tokens, int M, const Function *f) {
    float *got = download_real(dqkv, 3 * tokens * M);
    int ok = 1;
    for (size_t i = 0; i < 3 * tokens * M; i++)
        if (i / M % 3 == 2) {
            ok &= got[i] == before[i];
            got[i] = 0;
        }
    if (!ok) printf("  the third of v was written\n");
    return ok & slopes_agree("dqkv", got, NULL, qkv, 3 * tokens * M, f);
}

/* == Feature maps ================================================================================================= */

typedef enum { RELU, DPFP, RFA, PERFORMER } Map;

typedef struct {
    Map map;
    int B, N, H, D, E;
} FeatureCase;

typedef struct {
    FeatureCase k;
    int F;
    double *qkv, *w, *b;
    double *most; /* [B,2,H,N], constant; NULL: computed */
} Features;

static double projected(const Features *f, const double *z, int h, int e) {
    const double *w = f->w + (f->k.map == RELU ? (size_t)e : (size_t)h * f->k.E + e) * f->k.D;
    double sum = 0;
    for (int d = 0; d < f->k.D; d++) sum += w[d] * z[d] * pow(f->k.D, -0.25);
    return sum;
}

static double half_square(const Features *f, const double *z) {
    double sum = 0;
    for (int d = 0; d < f->k.D; d++) sum += z[d] * z[d];
    return sum / 2 / sqrt(f->k.D);
}

static void feature_row(double *phi, const Features *f, const double *z, int h, double most) {
    int D = f->k.D, E = f->k.E;
    double u[512];
    for (int i = 0; f->k.map == DPFP && i < 2 * D; i++) u[i] = fmax(0, (i < D ? z[i] : -z[i - D]) * pow(D, -0.25));
    for (int i = 0; i < f->F; i++) switch (f->k.map) {
        case RELU: phi[i] = fmax(0, projected(f, z, h, i) + f->b[i]); break;
        case DPFP: phi[i] = u[i] * u[(i + 2 * D - 1) % (2 * D)]; break;
        case RFA: {
            double angle = projected(f, z, h, i % E);
            phi[i] = exp(half_square(f, z) - most) / sqrt(E) * (i < E ? sin(angle) : cos(angle));
            break;
        }
        case PERFORMER: phi[i] = (exp(projected(f, z, h, i) - half_square(f, z) - most) + 1e-4) / sqrt(E); break;
        }
}

/* For each token the number that is subtracted from the exponents of q or k (part) of an image and head. */
static void maxima(double *most, const Features *f, int b, int part, int h) {
    FeatureCase k = f->k;
    double all = -INFINITY;
    for (int n = 0; n < k.N; n++) {
        const double *z = f->qkv + at((size_t)b * k.N + n, 3, part, k.H, h, k.D, 0);
        most[n] = k.map == RFA ? half_square(f, z) : -INFINITY;
        for (int e = 0; k.map == PERFORMER && e < k.E; e++) most[n] = fmax(most[n], projected(f, z, h, e));
        all = fmax(all, most[n]);
    }
    for (int n = 0; n < k.N; n++)
        if (k.map == RFA || part == 1) most[n] = all;
}

static void feature_outputs(double *phi, void *context) {
    Features *f = context;
    FeatureCase k = f->k;
    bool random = k.map == RFA || k.map == PERFORMER, find = random && !f->most;
    if (find) f->most = zeros((size_t)k.B * 2 * k.H * k.N);
    for (int b = 0; b < k.B; b++)
        for (int part = 0; part < 2; part++)
            for (int h = 0; h < k.H; h++) {
                double *most = random ? f->most + (((size_t)b * 2 + part) * k.H + h) * k.N : NULL;
                if (find) maxima(most, f, b, part, h);
                for (int n = 0; n < k.N; n++) {
                    size_t t = (size_t)b * k.N + n;
                    feature_row(phi + at(t, 2, part, k.H, h, f->F, 0), f, f->qkv + at(t, 3, part, k.H, h, k.D, 0), h,
                                random ? most[n] : 0);
                }
            }
}

static int features_of(FeatureCase k) { return k.map == DPFP ? 2 * k.D : k.map == RFA ? 2 * k.E : k.E; }

static void feature_forward(real *phi, const real *qkv, const Parameter *w, const Parameter *b, FeatureCase k) {
    FeatureShape shape = {k.B, k.N, k.H, k.D, features_of(k)};
    switch (k.map) {
    case RELU: feature_relu_forward(phi, qkv, w->device, b->device, &shape); break;
    case DPFP: feature_dpfp_forward(phi, qkv, &shape); break;
    case RFA: feature_rfa_forward(phi, qkv, w->device, &shape); break;
    case PERFORMER: feature_performer_forward(phi, qkv, w->device, &shape); break;
    }
}

static void feature_backward(real *dqkv, const real *dphi, const real *phi, const real *qkv, const Parameter *w,
                             const Parameter *b, FeatureCase k) {
    FeatureShape shape = {k.B, k.N, k.H, k.D, features_of(k)};
    switch (k.map) {
    case RELU:
        feature_relu_backward(dqkv, w->gradient, b->gradient, dphi, phi, qkv, w->device, &shape);
        break;
    case DPFP: feature_dpfp_backward(dqkv, dphi, qkv, &shape); break;
    case RFA: feature_rfa_backward(dqkv, dphi, phi, qkv, w->device, &shape); break;
    case PERFORMER: feature_performer_backward(dqkv, dphi, phi, qkv, w->device, &shape); break;
    }
}

static void feature_case(FeatureCase k) {
    const char *names[] = {"relu", "dpfp", "rfa", "performer"};
    int F = features_of(k), M = k.H * k.D;
    size_t tokens = (size_t)k.B * k.N, n = tokens * M, n_phi = tokens * 2 * k.H * F;
    printf("feature map %s B %d N %d H %d D %d E %d\n", names[k.map], k.B, k.N, k.H, k.D, k.E);
    /* Smaller inputs for wide heads: exponents grow with the root of D, and so does the error of the features. */
    float *qkv = normals(3 * n, k.D > 16 ? 0.3f : 1), *dphi = normals(n_phi, 1), *before = normals(3 * n, 1);
    real *d_qkv = upload_real(qkv, 3 * n), *d_dphi = upload_real(dphi, n_phi), *d_phi = poisoned_real(n_phi);
    real *d_dqkv = upload_real(before, 3 * n);
    Parameter w = parameter((size_t)(k.map == RELU ? 1 : k.H) * k.E * k.D, k.map == RELU ? 0.5f : 1, 0);
    Parameter b = parameter((size_t)k.E, 0.3f, 0.3f);
    Features f = {k, F, wide(qkv, 3 * n), w.x, b.x, NULL};
    double h = k.map == RELU || k.map == DPFP ? 1e-8 : 1e-5; /* narrow, to avoid kinks, where there is no curvature */
    Function function = {feature_outputs, &f, n_phi, zeros(n_phi), dphi, h};
    feature_outputs(function.out, &f);
    kernels_reserve(k.map == RELU ? feature_relu_workspace(k.D, k.E) : feature_random_workspace(k.D, k.E));
    feature_forward(d_phi, d_qkv, &w, &b, k);
    /* The rounding error of an exponent, here of up to ten, is a relative error of the feature. */
    assert_true(check_close_step("phi", download_real(d_phi, n_phi), function.out, n_phi, 1e-5, REAL_STEP + 1e-5));
    feature_backward(d_dqkv, d_dphi, d_phi, d_qkv, &w, &b, k);
    assert_true(thirds_agree(d_dqkv, before, f.qkv, tokens, M, &function));
    if (k.map == RELU) {
        assert_true(parameter_agrees("dw", &w, &function));
        assert_true(parameter_agrees("db", &b, &function));
    }
    release_all();
}

static void test_feature_maps(void **state) {
    (void)state;
    const FeatureCase sizes[] = {{0, 3, 35, 3, 5, 5}, {0, 1, 1, 1, 2, 13}, {0, 2, 33, 1, 32, 32}, {0, 1, 5, 2, 33, 47},
                                 {0, 1, 3, 1, 130, 70}, {0, 2, 2, 2, 64, 64}};
    for (Map map = RELU; map <= PERFORMER; map++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            FeatureCase k = sizes[i];
            k.map = map;
            feature_case(k);
        }
}

/* With a huge query and key, all features are finite, and the RFA features of that query still have length 1. */
static void test_random_features_large(void **state) {
    (void)state;
    enum { N = 40, D = 8 };
    float *qkv = normals(N * 3 * D, 1);
    for (int c = 0; c < 2 * D; c++) qkv[7 * 3 * D + c] = 300;
    real *d_qkv = upload_real(qkv, N * 3 * D), *d_phi = poisoned_real(N * 4 * D);
    float *w = upload(normals(D * D, 1), D * D);
    kernels_reserve(feature_random_workspace(D, D));
    feature_rfa_forward(d_phi, d_qkv, w, &(FeatureShape){1, N, 1, D, 2 * D});
    float *phi = download_real(d_phi, N * 4 * D);
    double own = 0;
    for (int i = 0; i < N * 4 * D; i++) assert_true(isfinite(phi[i]));
    for (int i = 0; i < 2 * D; i++) own += phi[7 * 4 * D + i] * phi[7 * 4 * D + i];
    assert_true(fabs(own - 1) < 0.02);
    feature_performer_forward(d_phi, d_qkv, w, &(FeatureShape){1, N, 1, D, D});
    phi = download_real(d_phi, N * 2 * D);
    for (int i = 0; i < N * 2 * D; i++) assert_true(isfinite(phi[i]) && phi[i] > 0);
    release_all();
}

/* == Linear attention: denominators of either sign, and denominators from other features =========================== */

typedef struct {
    int B, N, H, D, F;
    Denominator rule; /* CLAMP or EPSILON */
    bool apart;       /* psi makes the numerator, phi the denominator */
} LinearCase;

typedef struct {
    LinearCase k;
    double *phi, *psi, *qkv, *den;
} Linear;

static double rule(double sum, Denominator how) {
    if (how == DENOMINATOR_EPSILON) return sum + 1e-6;
    return fabs(sum) < 1e-2 ? copysign(1e-2, sum) : sum;
}

static void linear_outputs(double *y, void *context) {
    Linear *l = context;
    LinearCase k = l->k;
    const double *psi = k.apart ? l->psi : l->phi;
    memset(y, 0, (size_t)k.B * k.N * k.H * k.D * sizeof *y);
    for (size_t t = 0; t < (size_t)k.B * k.N; t++)
        for (int h = 0; h < k.H; h++) {
            double sum = 0, *to = y + at(t, 1, 0, k.H, h, k.D, 0);
            for (size_t m = t / k.N * k.N; m < (t / k.N + 1) * k.N; m++) {
                double weight = 0;
                for (int f = 0; f < k.F; f++) {
                    size_t q = at(t, 2, 0, k.H, h, k.F, f), key = at(m, 2, 1, k.H, h, k.F, f);
                    weight += psi[q] * psi[key];
                    sum += l->phi[q] * l->phi[key];
                }
                for (int c = 0; c < k.D; c++) to[c] += weight * l->qkv[at(m, 3, 2, k.H, h, k.D, c)];
            }
            l->den[t * k.H + h] = rule(sum, k.rule);
            for (int c = 0; c < k.D; c++) to[c] /= l->den[t * k.H + h];
        }
}

/* Every third query is so small that its denominator is clamped. */
static bool is_faint(size_t token) { return token % 3 == 0; }

/* Features whose sums over keys have either sign and are far above or far below the clamp: sums near zero would
 * consist only of rounding errors. */
static float *signed_features(LinearCase k, size_t n_phi) {
    float *phi = normals(n_phi, 1);
    for (size_t i = 0; i < n_phi; i++) {
        size_t head = i / k.F % (2 * k.H), token = i / k.F / (2 * k.H);
        if (head >= (size_t)k.H)
            phi[i] += 2;
        else
            phi[i] = (fabsf(phi[i]) + 0.5f) * (token % 2 ? 1 : -1) * (is_faint(token) ? 3e-7f : 1);
    }
    return phi;
}

static void linear_case(LinearCase k) {
    size_t tokens = (size_t)k.B * k.N, n = tokens * k.H * k.D, n_phi = tokens * 2 * k.H * k.F, rows = tokens * k.H;
    size_t n_kv = (size_t)k.B * k.H * k.F * (k.D + 1);
    float *phi = k.rule == DENOMINATOR_CLAMP ? signed_features(k, n_phi) : normals(n_phi, 1);
    for (size_t i = 0; k.rule == DENOMINATOR_EPSILON && i < n_phi; i++) phi[i] = fabsf(phi[i]) + 0.2f;
    printf("linear attention B %d N %d H %d D %d F %d, %s, numerator %s\n", k.B, k.N, k.H, k.D, k.F,
           k.rule == DENOMINATOR_CLAMP ? "clamp" : "epsilon", k.apart ? "apart" : "with it");
    float *psi = normals(n_phi, 1), *qkv = normals(3 * n, 1), *dy = normals(n, 1);
    for (size_t i = 0; k.rule == DENOMINATOR_CLAMP && i < n; i++)
        if (is_faint(i / (k.H * k.D))) dy[i] *= 1e-4f; /* otherwise their slopes would hide all others */
    for (size_t i = 0; k.rule == DENOMINATOR_CLAMP && k.apart && i < n_phi; i++)
        if (is_faint(i / (2 * k.H * k.F))) psi[i] *= 1e-2f;
    real *d_phi = upload_real(phi, n_phi), *d_psi = upload_real(psi, n_phi), *d_qkv = upload_real(qkv, 3 * n);
    real *d_dy = upload_real(dy, n), *d_y = poisoned_real(n), *d_dqkv = poisoned_real(3 * n);
    real *d_dphi = poisoned_real(n_phi), *d_dpsi = poisoned_real(n_phi);
    float *d_den = poisoned(rows), *d_kv = poisoned(n_kv), *d_z = poisoned((size_t)k.B * k.H * k.F);
    Linear l = {k, wide(phi, n_phi), wide(psi, n_phi), wide(qkv, 3 * n), zeros(rows)};
    Function function = {linear_outputs, &l, n, zeros(n), dy, k.rule == DENOMINATOR_CLAMP ? 1e-7 : 1e-5};
    linear_outputs(function.out, &l);
    double *den = zeros(rows);
    memcpy(den, l.den, rows * sizeof *den);
    size_t bytes = linear_attention_workspace(k.D, k.F), other = denominator_workspace(k.F);
    kernels_reserve(bytes > other ? bytes : other);
    LinearAttention shape = {k.B, k.N, k.H, k.D, k.F, k.apart ? DENOMINATOR_GIVEN : k.rule, {0}}, apart = shape;
    apart.rule = k.rule;
    if (k.apart) denominator_forward(d_den, d_z, d_phi, &apart);
    linear_attention_forward(d_y, d_den, d_kv, k.apart ? d_psi : d_phi, d_qkv, &shape);
    assert_true(close_float("den", d_den, den, rows));
    assert_true(close_real("y", d_y, function.out, n));
    linear_attention_backward(d_dqkv, k.apart ? d_dpsi : d_dphi, d_dy, d_y, d_den, d_kv, k.apart ? d_psi : d_phi, d_qkv,
                              &shape);
    if (k.apart) {
        float *none = normals(n_phi, 0);
        real_upload(d_dphi, none, n_phi);
        denominator_backward(d_dphi, d_dy, d_y, d_den, d_z, d_phi, &apart);
        assert_true(slopes_agree("dpsi", download_real(d_dpsi, n_phi), NULL, l.psi, n_phi, &function));
    }
    assert_true(slopes_agree("dphi", download_real(d_dphi, n_phi), NULL, l.phi, n_phi, &function));
    float *dqkv = download_real(d_dqkv, 3 * n), *dv = normals(n, 0);
    double *v = zeros(n);
    for (size_t i = 0; i < n; i++) {
        dv[i] = dqkv[(i / (k.H * k.D) * 3 + 2) * (k.H * k.D) + i % (k.H * k.D)];
        v[i] = l.qkv[(i / (k.H * k.D) * 3 + 2) * (k.H * k.D) + i % (k.H * k.D)];
    }
    /* The gradient of v, term by term. */
    double *want = zeros(n), *size = zeros(n);
    for (size_t i = 0; i < n; i++) {
        size_t token = i / (k.H * k.D), h = i / k.D % k.H;
        for (size_t t = token / k.N * k.N; t < (token / k.N + 1) * k.N; t++) {
            const double *p = k.apart ? l.psi : l.phi;
            double slope = dy[at(t, 1, 0, k.H, (int)h, k.D, (int)(i % k.D))] / den[t * k.H + h];
            for (int f = 0; f < k.F; f++) {
                double term = p[at(t, 2, 0, k.H, (int)h, k.F, f)] * p[at(token, 2, 1, k.H, (int)h, k.F, f)] * slope;
                want[i] += term;
                size[i] += fabs(term);
            }
        }
    }
    assert_true(close_sums("dv", dv, want, size, n, n < 10));
    release_all();
}

static void test_denominators(void **state) {
    (void)state;
    const LinearCase cases[] = {
        {3, 35, 3, 5, 10, DENOMINATOR_EPSILON, true}, {3, 35, 3, 5, 10, DENOMINATOR_CLAMP, false},
        {2, 35, 2, 5, 7, DENOMINATOR_CLAMP, true},    {1, 70, 1, 32, 64, DENOMINATOR_EPSILON, true},
        {1, 70, 1, 33, 64, DENOMINATOR_CLAMP, false}, {1, 9, 2, 5, 200, DENOMINATOR_EPSILON, true},
        {1, 6, 1, 140, 12, DENOMINATOR_CLAMP, false}, {8, 2, 1, 1, 1, DENOMINATOR_EPSILON, true},
        {1, 67, 2, 32, 32, DENOMINATOR_CLAMP, false}, {1, 35, 1, 64, 32, DENOMINATOR_CLAMP, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) linear_case(cases[i]);
}

/* == Rotation and permutation ===================================================================================== */

typedef struct {
    int B, N, H, F, Hg, Wg, T; /* Wg 0: one axis; T: frames */
} TurnCase;

static double sum_of_products(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

/* The backward pass of a linear map T is its transpose T': dy . T x = x . T' dy. */
static int transposed(const float *dy, const float *y, const float *x, const float *dx, size_t n) {
    double left = sum_of_products(dy, y, n), right = sum_of_products(x, dx, n), scale = sqrt(sum_of_products(x, x, n));
    printf("  %-52s %.6g and %.6g\n", "dy.Tx == x.T'dy", left, right);
    return fabs(left - right) <= 3 * roundings(2) * scale;
}

static void rope_reference(double *y, const float *x, TurnCase k) {
    for (size_t t = 0; t < (size_t)k.B * k.N; t++)
        for (int head = 0; head < 2 * k.H; head++) {
            const float *from = x + (t * 2 * k.H + head) * k.F;
            double *to = y + (t * 2 * k.H + head) * k.F;
            int n = (int)(t % k.N), patch = n - (k.N - k.T * k.Hg * k.Wg), axes = k.T > 1 ? 3 : 2;
            int each = k.F / (2 * axes), columns = k.Wg ? k.Wg : 1, rows = k.Hg ? k.Hg : 1;
            int places[] = {patch % columns, patch / columns % rows, patch / columns / rows};
            for (int f = 0; f < k.F; f++) to[f] = from[f];
            for (int p = 0; p < k.F / 2; p++) {
                double angle = n * pow(10000, -2.0 * p / k.F);
                if (k.Wg) {
                    if (patch < 0 || p >= axes * each) continue;
                    angle = places[axes - 1 - p / each] * pow(10000, -2.0 * axes * (p % each) / k.F);
                }
                to[2 * p] = cos(angle) * from[2 * p] - sin(angle) * from[2 * p + 1];
                to[2 * p + 1] = sin(angle) * from[2 * p] + cos(angle) * from[2 * p + 1];
            }
        }
}

static void rope_case(TurnCase k) {
    size_t n = (size_t)k.B * k.N * 2 * k.H * k.F;
    printf("rope B %d N %d H %d F %d grid %dx%dx%d\n", k.B, k.N, k.H, k.F, k.T, k.Hg, k.Wg);
    float *x = normals(n, 1), *dy = normals(n, 1), *turns = poisoned((size_t)k.N * (k.F / 2) * 2 + 1);
    real *d_x = upload_real(x, n), *d_dy = upload_real(dy, n), *d_y = poisoned_real(n), *d_dx = poisoned_real(n);
    double *y = zeros(n);
    rope_reference(y, x, k);
    rope_table(turns, k.N, k.F, k.Wg ? &(Grid){k.T, k.Hg, k.Wg} : NULL);
    FeatureShape shape = {.B = k.B, .N = k.N, .H = k.H, .F = k.F};
    rope_forward(d_y, d_x, turns, &shape);
    rope_backward(d_dx, d_dy, turns, &shape);
    assert_true(close_real("y", d_y, y, n));
    assert_true(transposed(dy, download_real(d_y, n), x, download_real(d_dx, n), n));
    release_all();
}

static void test_rope(void **state) {
    (void)state;
    const TurnCase cases[] = {{3, 35, 3, 5, 0, 0, 1}, {2, 36, 2, 10, 5, 7, 1},  {2, 35, 1, 33, 5, 7, 1},
                              {1, 1, 1, 1, 0, 0, 1},  {1, 4, 1, 3, 2, 2, 1},    {1, 5000, 1, 32, 0, 0, 1},
                              {1, 8, 2, 5, 2, 2, 2},  {2, 106, 2, 20, 5, 7, 3}, {1, 105, 1, 33, 5, 7, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) rope_case(cases[i]);
}

static void permute_case(TurnCase k) {
    size_t n = (size_t)k.B * k.N * 2 * k.H * k.F, entries = (size_t)k.H * k.F;
    printf("permute B %d N %d H %d F %d\n", k.B, k.N, k.H, k.F);
    float *x = normals(n, 1), *dy = normals(n, 1), *permutation = normals(entries, 0);
    for (size_t i = 0; i < entries; i++) { /* Fisher-Yates shuffle */
        size_t own = i / k.F * k.F;
        size_t other = own + rng_below(check_seed(), RNG_TEST, 1u << 21, (uint32_t)k.F, i, (uint32_t)(i - own + 1));
        permutation[i] = permutation[other];
        permutation[other] = (float)(i - own);
    }
    real *d_x = upload_real(x, n), *d_dy = upload_real(dy, n), *d_y = poisoned_real(n), *d_dx = poisoned_real(n);
    int *order = keep(device_malloc(entries * k.N * sizeof *order, "test"), true);
    FeatureShape shape = {.B = k.B, .N = k.N, .H = k.H, .F = k.F};
    permute_table(order, upload(permutation, entries), k.N, k.H, k.F);
    permute_forward(d_y, d_x, order, &shape);
    permute_backward(d_dx, d_dy, order, &shape);
    float *y = download_real(d_y, n), *dx = download_real(d_dx, n);
    for (size_t i = 0; i < n; i++) {
        size_t row = i / k.F, head = row % k.H;
        int from = (int)(i % k.F);
        for (size_t step = row / (2 * k.H) % k.N; step > 0; step--) from = (int)permutation[head * k.F + from];
        assert_true(y[i] == x[row * k.F + from]);
        assert_true(dx[row * k.F + from] == dy[i]);
    }
    release_all();
}

static void test_permute(void **state) {
    (void)state;
    const TurnCase cases[] = {{3, 35, 3, 5, 0, 0, 1}, {1, 40, 2, 33, 0, 0, 1}, {2, 1, 1, 1, 0, 0, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) permute_case(cases[i]);
}

/* == Stochastic positional codes ================================================================================== */

typedef struct {
    bool conv;
    int B, N, H, D, K;
} SpeCase;

typedef struct {
    SpeCase k;
    double *qkv, *freqs, *offsets, *gains, *wq, *wk, *gate, *noise, *e;
} Spe;

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* The c of the header's formula: element r of column i = h D + d of token n, for q (part 0) or k (part 1). */
static double raw_code(const Spe *s, int part, int n, size_t i, int r) {
    SpeCase k = s->k;
    double sum = 0;
    for (int j = 0; j < k.K; j++) {
        size_t own = i * k.K + j;
        if (k.conv) {
            sum += (part ? s->wk : s->wq)[own] * s->noise[(i * (k.N + k.K - 1) + n + j) * k.D + r];
            continue;
        }
        double angle = 2 * acos(-1) * n * sigmoid(s->freqs[own]) / 2 + (part ? 0 : s->offsets[own]);
        const double *z = s->noise + (i * 2 * k.K + j) * k.D + r;
        sum += log1p(exp(s->gains[own])) * (cos(angle) * z[0] + sin(angle) * z[(size_t)k.K * k.D]) / sqrt(2 * k.K);
    }
    return sum;
}

static void spe_outputs(double *coded, void *context) {
    const Spe *s = context;
    SpeCase k = s->k;
    for (size_t i = 0; i < (size_t)k.B * k.N * 3 * k.H * k.D; i++)
        if (i / (k.H * k.D) % 3 < 2) coded[i] = 0;
    for (int n = 0; n < k.N; n++)
        for (int part = 0; part < 2; part++)
            for (size_t i = 0; i < (size_t)k.H * k.D; i++)
                for (int r = 0; r < k.D; r++) {
                    double g = sigmoid(s->gate[i]);
                    double code = sqrt(1 - g) * raw_code(s, part, n, i, r) + sqrt(g) * s->e[i * k.D + r];
                    for (int b = 0; b < k.B; b++) {
                        size_t row = at((size_t)b * k.N + n, 3, part, k.H, (int)(i / k.D), k.D, 0);
                        coded[row + r] += s->qkv[row + i % k.D] * code / sqrt(k.D);
                    }
                }
}

static void spe_case(SpeCase k) {
    int M = k.H * k.D;
    size_t tokens = (size_t)k.B * k.N, n = 3 * tokens * M, columns = (size_t)k.H * k.D, taps = columns * k.K;
    size_t rows = k.conv ? (size_t)k.N + k.K - 1 : 2 * (size_t)k.K;
    printf("%s codes B %d N %d H %d D %d K %d\n", k.conv ? "filtered" : "sine", k.B, k.N, k.H, k.D, k.K);
    float *qkv = normals(n, 1), *slopes = normals(n, 1), *before = normals(n, 1);
    for (size_t i = 0; i < n; i++)
        if (i / M % 3 == 2) slopes[i] = 0;
    real *d_qkv = upload_real(qkv, n), *d_slopes = upload_real(slopes, n);
    real *d_coded = upload_real(before, n), *d_dqkv = upload_real(before, n);
    Parameter a = parameter(taps, k.conv ? 0.3f : 1, k.conv ? 0 : -2), b = parameter(taps, k.conv ? 0.3f : 1, 0);
    Parameter c = parameter(taps, 1, 0), gate = parameter(columns, 1, 0), noise = parameter(columns * rows * k.D, 1, 0);
    Parameter e = parameter(columns * k.D, 1, 0);
    Spe s = {k, wide(qkv, n), a.x, b.x, c.x, a.x, b.x, gate.x, noise.x, e.x};
    Function function = {spe_outputs, &s, n, wide(before, n), slopes, 1e-5};
    SpeSine sine = {k.K, a.device, b.device, c.device, gate.device, noise.device, e.device};
    SpeSineGradients dsine = {a.gradient, b.gradient, c.gradient, gate.gradient};
    SpeConv conv = {k.K, a.device, b.device, gate.device, noise.device, e.device};
    SpeConvGradients dconv = {a.gradient, b.gradient, gate.gradient};
    spe_outputs(function.out, &s);
    kernels_reserve(k.conv ? spe_conv_workspace(k.N, k.H, k.D, k.K) : spe_sine_workspace(k.N, k.H, k.D, k.K));
    AttentionShape shape = {k.B, k.N, k.H, k.D};
    if (k.conv) {
        spe_conv_forward(d_coded, d_qkv, &conv, &shape);
        spe_conv_backward(d_dqkv, &dconv, d_slopes, d_qkv, &conv, &shape);
    } else {
        spe_sine_forward(d_coded, d_qkv, &sine, &shape);
        spe_sine_backward(d_dqkv, &dsine, d_slopes, d_qkv, &sine, &shape);
    }
    assert_true(close_real("coded, v untouched", d_coded, function.out, n));
    assert_true(thirds_agree(d_dqkv, before, s.qkv, tokens, M, &function));
    assert_true(parameter_agrees(k.conv ? "dwq" : "dfreqs", &a, &function));
    assert_true(parameter_agrees(k.conv ? "dwk" : "doffsets", &b, &function));
    if (!k.conv) assert_true(parameter_agrees("dgains", &c, &function));
    assert_true(parameter_agrees("dgate", &gate, &function));
    release_all();
}

static void test_codes(void **state) {
    (void)state;
    const SpeCase cases[] = {{0, 3, 35, 3, 5, 12}, {0, 2, 70, 1, 16, 3}, {0, 34, 3, 1, 4, 17}, {0, 1, 1, 1, 1, 1},
                             {0, 2, 3, 1, 33, 5},  {1, 3, 35, 3, 5, 20}, {1, 2, 70, 1, 16, 3}, {1, 34, 3, 1, 4, 17},
                             {1, 1, 1, 1, 1, 1},   {1, 2, 3, 1, 33, 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) spe_case(cases[i]);
}

/* == Ripple with explicit softmax ================================================================================= */

typedef struct {
    int B, Hg, Wg, H, D, G;
} ExplicitCase;

typedef struct {
    ExplicitCase k;
    double *qkv, *alpha;
} Explicit;

static void explicit_outputs(double *y, void *context) {
    const Explicit *x = context;
    ExplicitCase k = x->k;
    int N = k.Hg * k.Wg;
    memset(y, 0, (size_t)k.B * N * k.H * k.D * sizeof *y);
    for (int b = 0; b < k.B; b++)
        for (int h = 0; h < k.H; h++)
            for (int n = 0; n < N; n++)
                for (int r = 0; r < k.G; r++) {
                    size_t t = (size_t)b * N + n;
                    double sum = 0, own[64];
                    for (int m = 0; m < N; m++) {
                        int dy = abs(n / k.Wg - m / k.Wg), dx = abs(n % k.Wg - m % k.Wg), far = dy > dx ? dy : dx;
                        own[m] = 0;
                        if ((far < k.G - 1 ? far : k.G - 1) != r) continue;
                        for (int c = 0; c < k.D; c++)
                            own[m] += x->qkv[at(t, 3, 0, k.H, h, k.D, c)] *
                                      x->qkv[at((size_t)b * N + m, 3, 1, k.H, h, k.D, c)] / sqrt(k.D);
                        sum += own[m] = exp(own[m]);
                    }
                    for (int m = 0; m < N && sum > 0; m++)
                        for (int c = 0; c < k.D; c++)
                            y[at(t, 1, 0, k.H, h, k.D, c)] += x->alpha[(t * k.H + h) * k.G + r] * own[m] / sum *
                                                              x->qkv[at((size_t)b * N + m, 3, 2, k.H, h, k.D, c)];
                }
}

static void explicit_case(ExplicitCase k) {
    size_t tokens = (size_t)k.B * k.Hg * k.Wg, n = tokens * k.H * k.D, weights = tokens * k.H * k.G;
    printf("explicit ripple softmax B %d grid %dx%d H %d D %d G %d\n", k.B, k.Hg, k.Wg, k.H, k.D, k.G);
    float *qkv = normals(3 * n, 1), *dy = normals(n, 1), *alpha = normals(weights, 1);
    RippleRings rings = {.grid = {1, k.Hg, k.Wg}, .G = k.G};
    AttentionShape shape = {k.B, k.Hg * k.Wg, k.H, k.D};
    for (int r = 0; r < k.G; r++) rings.bound[r] = r;
    real *d_qkv = upload_real(qkv, 3 * n), *d_dy = upload_real(dy, n), *d_y = poisoned_real(n);
    real *d_dqkv = poisoned_real(3 * n);
    float *d_alpha = upload(alpha, weights), *d_lse = poisoned(weights), *d_dalpha = poisoned(weights);
    Explicit x = {k, wide(qkv, 3 * n), wide(alpha, weights)};
    Function function = {explicit_outputs, &x, n, zeros(n), dy, 1e-5};
    explicit_outputs(function.out, &x);
    kernels_reserve(ripple_explicit_workspace(&rings, k.D));
    ripple_explicit_forward(d_y, d_lse, d_alpha, d_qkv, &rings, &shape);
    assert_true(close_real("y", d_y, function.out, n));
    ripple_explicit_backward(d_dqkv, d_dalpha, d_dy, d_lse, d_alpha, d_qkv, &rings, &shape);
    assert_true(slopes_agree("dqkv", download_real(d_dqkv, 3 * n), NULL, x.qkv, 3 * n, &function));
    assert_true(slopes_agree("dalpha", download(d_dalpha, weights), NULL, x.alpha, weights, &function));
    release_all();
}

static void test_explicit(void **state) {
    (void)state;
    const ExplicitCase cases[] = {{3, 5, 7, 3, 5, 3}, {1, 2, 3, 1, 33, 5}, {2, 1, 1, 1, 2, 2}, {1, 1, 6, 2, 3, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) explicit_case(cases[i]);
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_feature_maps), cmocka_unit_test(test_random_features_large),
        cmocka_unit_test(test_denominators), cmocka_unit_test(test_rope),
        cmocka_unit_test(test_permute),      cmocka_unit_test(test_codes),
        cmocka_unit_test(test_explicit),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
