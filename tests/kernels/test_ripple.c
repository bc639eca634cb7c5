/* Ripple attention and its spatial weights against plain double formulas over all pairs of tokens, on odd grids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/on_device.h"

enum { PLAIN = 0, NO_FAR = 1 }; /* weights: all positive, or the last group zero */

typedef struct {
    int Hg, Wg, B, H, D, F, G;
    int bound[10];
    int weights;
} Case;

static const Case cases[] = {
    {7, 9, 3, 2, 5, 7, 5, {0, 1, 2, 3, 4}, PLAIN},
    {7, 9, 2, 1, 32, 32, 5, {0, 1, 2, 4, 8}, PLAIN},
    {7, 9, 1, 2, 10, 7, 2, {0, 3}, NO_FAR},
    {1, 1, 2, 2, 5, 7, 5, {0, 1, 2, 3, 4}, PLAIN},
    {1, 1, 1, 1, 1, 1, 1, {0}, PLAIN},
    {1, 13, 2, 2, 10, 7, 5, {0, 1, 2, 3, 4}, PLAIN},
    {13, 1, 2, 2, 1, 32, 5, {0, 1, 2, 4, 8}, PLAIN},
    {13, 1, 1, 1, 32, 7, 9, {0, 1, 2, 3, 4, 5, 6, 7, 8}, PLAIN},
    {5, 5, 3, 1, 10, 7, 5, {0, 1, 2, 3, 4}, PLAIN},
    {5, 5, 1, 1, 5, 7, 9, {0, 1, 2, 3, 4, 5, 6, 7, 8}, PLAIN},
    {5, 5, 1, 2, 5, 7, 1, {0}, PLAIN},
    {8, 8, 1, 1, 17, 33, 3, {0, 2, 7}, PLAIN},
    {14, 14, 1, 1, 32, 32, 5, {0, 1, 2, 3, 4}, NO_FAR},
    {16, 16, 1, 2, 32, 32, 5, {0, 1, 2, 3, 4}, PLAIN},
    {16, 16, 1, 1, 32, 7, 2, {0, 1}, PLAIN},
    {20, 33, 1, 1, 10, 7, 5, {0, 1, 2, 3, 4}, PLAIN},
    {20, 33, 1, 1, 32, 32, 9, {0, 1, 2, 3, 4, 5, 6, 7, 8}, PLAIN},
    {3, 150, 1, 1, 10, 32, 5, {0, 1, 2, 4, 8}, PLAIN},
    {2, 300, 1, 1, 5, 7, 3, {0, 1, 140}, PLAIN},
    {150, 3, 1, 1, 10, 7, 5, {0, 1, 2, 4, 8}, NO_FAR},
    {5, 6, 1, 2, 70, 66, 3, {0, 1, 3}, PLAIN}, /* wider than the tiles of a GPU */
};

static const RippleAlgorithm algorithms[] = {RIPPLE_ALGORITHM(dense), RIPPLE_ALGORITHM(window), RIPPLE_ALGORITHM(sat)};
enum { ALGORITHMS = sizeof algorithms / sizeof *algorithms };

/* == Device tensors =============================================================================================== */

static real *to_device(const float *host, size_t n) {
    real *device = device_malloc(n * sizeof *device, "test");
    real_upload(device, host, n);
    return device;
}

static float *floats_to_device(const float *host, size_t n) {
    float *device = device_malloc(n * sizeof *device, "test");
    device_upload(device, host, n * sizeof *device);
    return device;
}

static void from_device(float *host, real *device, size_t n) {
    real_download(host, device, n);
    device_free(device);
}

static void floats_from_device(float *host, float *device, size_t n) {
    device_download(host, device, n * sizeof *host);
    device_free(device);
}

/* == Reference ==================================================================================================== */

typedef struct {
    int B, H, D, F;
    RippleRings rings;
    size_t tokens, phis, qkvs, ys, alphas, dens; /* element counts */
    float *phi, *qkv, *alpha, *dy;
} Problem;

/* Results, and for each the sum of the absolute values of its terms, to which rounding is relative.  For dalpha these
 * are the terms of all groups of the query: an algorithm may compute one group as the total less the others.  Another
 * may give every pair the last group's weight and then correct it, so that twice that weight is added. */
typedef struct {
    double *y, *den, *dqkv, *dphi, *dalpha;
    double *y_size, *dqkv_size, *dphi_size, *dalpha_size;
} Reference;

static Problem problem_of(const Case *c, uint32_t stream) {
    Problem p = {.B = c->B, .H = c->H, .D = c->D, .F = c->F, .rings = {.grid = {1, c->Hg, c->Wg}, .G = c->G}};
    memcpy(p.rings.bound, c->bound, sizeof c->bound);
    p.tokens = (size_t)c->Hg * c->Wg;
    p.dens = p.tokens * c->B * c->H;
    p.phis = p.dens * 2 * c->F;
    p.qkvs = p.dens * 3 * c->D;
    p.ys = p.dens * c->D;
    p.alphas = p.dens * c->G;
    p.phi = rounded_real(check_normal(p.phis, 1, stream), p.phis);
    p.qkv = rounded_real(check_normal(p.qkvs, 1, stream + 1), p.qkvs);
    p.alpha = check_normal(p.alphas, 1, stream + 2);
    p.dy = rounded_real(check_normal(p.ys, 1, stream + 3), p.ys);
    for (size_t i = 0; i < p.phis; i++) p.phi[i] = fabsf(p.phi[i]);
    for (size_t row = 0; row < p.dens; row++) {
        float *alpha = p.alpha + row * c->G, sum = 0;
        for (int r = 0; r < c->G; r++) sum += alpha[r] = c->weights == NO_FAR && r == c->G - 1 ? 0 : expf(alpha[r]);
        for (int r = 0; r < c->G; r++) alpha[r] /= sum;
    }
    return p;
}

static void problem_free(Problem *p) {
    free(p->phi);
    free(p->qkv);
    free(p->alpha);
    free(p->dy);
}

static int group_of(const RippleRings *rings, size_t n, size_t m) {
    size_t Hg = rings->grid.rows, Wg = rings->grid.columns, area = Hg * Wg;
    int dt = rings->ring_time * abs((int)(n / area) - (int)(m / area)), r = rings->G - 1;
    int dy = abs((int)(n / Wg % Hg) - (int)(m / Wg % Hg)), dx = abs((int)(n % Wg) - (int)(m % Wg));
    while (rings->bound[r] > dt && rings->bound[r] > dy && rings->bound[r] > dx) r--;
    return r;
}

static void reference_row(Reference *out, const Problem *p, int b, int h, size_t n) {
    int H = p->H, D = p->D, F = p->F, G = p->rings.G;
    size_t N = p->tokens, row = ((size_t)b * N + n) * H + h;
    size_t qn = (((size_t)b * N + n) * 2 * H + h) * F;
    const float *q = p->phi + qn, *alpha = p->alpha + row * G;
    double *a = malloc(N * sizeof *a), num[96] = {0}, size[96] = {0}, den = 1e-6, dnum[96], dden = 0, dden_size = 0;
    for (size_t m = 0; m < N; m++) {
        const float *k = p->phi + (((size_t)b * N + m) * 2 * H + H + h) * F;
        const float *v = p->qkv + (((size_t)b * N + m) * 3 * H + 2 * H + h) * D;
        a[m] = 0;
        for (int f = 0; f < F; f++) a[m] += (double)q[f] * k[f];
        double w = alpha[group_of(&p->rings, n, m)];
        den += w * a[m];
        for (int d = 0; d < D; d++) num[d] += w * a[m] * v[d];
        for (int d = 0; d < D; d++) size[d] += (w + 2 * alpha[G - 1]) * a[m] * fabs(v[d]);
    }
    out->den[row] = den;
    for (int d = 0; d < D; d++) {
        out->y[row * D + d] = num[d] / den;
        out->y_size[row * D + d] = size[d] / den;
        dnum[d] = p->dy[row * D + d] / den;
        dden -= dnum[d] * num[d] / den;
        dden_size += fabs(dnum[d] * num[d] / den);
    }
    for (size_t m = 0; m < N; m++) {
        size_t km = (((size_t)b * N + m) * 2 * H + H + h) * F, vm = (((size_t)b * N + m) * 3 * H + 2 * H + h) * D;
        int g = group_of(&p->rings, n, m);
        double w = alpha[g], w_size = w + 2 * alpha[G - 1], t = dden, t_size = dden_size;
        for (int d = 0; d < D; d++) {
            t += dnum[d] * p->qkv[vm + d];
            t_size += fabs(dnum[d] * p->qkv[vm + d]);
            out->dqkv[vm + d] += w * a[m] * dnum[d];
            out->dqkv_size[vm + d] += fabs(w_size * a[m] * dnum[d]);
        }
        out->dalpha[row * G + g] += a[m] * t;
        for (int r = 0; r < G; r++) out->dalpha_size[row * G + r] += a[m] * t_size;
        for (int f = 0; f < F; f++) {
            out->dphi[qn + f] += w * t * p->phi[km + f];
            out->dphi[km + f] += w * t * q[f];
            out->dphi_size[qn + f] += w_size * t_size * p->phi[km + f];
            out->dphi_size[km + f] += w_size * t_size * q[f];
        }
    }
    free(a);
}

static Reference reference_of(const Problem *p) {
    Reference r = {.y = calloc(p->ys, 8), .den = calloc(p->dens, 8), .dqkv = calloc(p->qkvs, 8),
                   .dphi = calloc(p->phis, 8), .dalpha = calloc(p->alphas, 8), .y_size = calloc(p->ys, 8),
                   .dqkv_size = calloc(p->qkvs, 8), .dphi_size = calloc(p->phis, 8),
                   .dalpha_size = calloc(p->alphas, 8)};
    for (int b = 0; b < p->B; b++)
        for (int h = 0; h < p->H; h++)
            for (size_t n = 0; n < p->tokens; n++) reference_row(&r, p, b, h, n);
    return r;
}

static void reference_free(Reference *r) {
    double *all[] = {r->y, r->den, r->dqkv, r->dphi, r->dalpha, r->y_size, r->dqkv_size, r->dphi_size, r->dalpha_size};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* == Attention ==================================================================================================== */

typedef struct {
    float *y, *den, *dqkv, *dphi, *dalpha;
} Result;

/* The q and k thirds of dqkv start as this value, which must not change; the v third starts as NaN. */
static const float UNTOUCHED = 12352; /* exact in bfloat16, too */

static bool is_v(const Problem *p, size_t i) { return i / ((size_t)p->H * p->D) % 3 == 2; }

static Result run(const RippleAlgorithm *algorithm, const Problem *p) {
    Result r = {check_poison(p->ys), check_poison(p->dens), check_poison(p->qkvs), check_poison(p->phis),
                check_poison(p->alphas)};
    for (size_t i = 0; i < p->qkvs; i++)
        if (!is_v(p, i)) r.dqkv[i] = UNTOUCHED;
    real *phi = to_device(p->phi, p->phis), *qkv = to_device(p->qkv, p->qkvs), *dy = to_device(p->dy, p->ys);
    real *y = to_device(r.y, p->ys), *dqkv = to_device(r.dqkv, p->qkvs), *dphi = to_device(r.dphi, p->phis);
    float *alpha = floats_to_device(p->alpha, p->alphas), *den = floats_to_device(r.den, p->dens);
    float *dalpha = floats_to_device(r.dalpha, p->alphas);
    kernels_reserve(algorithm->workspace(&p->rings, p->D, p->F));
    RippleInputs in = {alpha, phi, qkv};
    RippleGradients din = {dalpha, dphi, dqkv};
    FeatureShape shape = {p->B, (int)p->tokens, p->H, p->D, p->F};
    algorithm->forward(y, den, &in, &p->rings, &shape);
    algorithm->backward(&din, dy, y, den, &in, &p->rings, &shape);
    device_synchronize();
    from_device(r.y, y, p->ys);
    from_device(r.dqkv, dqkv, p->qkvs);
    from_device(r.dphi, dphi, p->phis);
    floats_from_device(r.den, den, p->dens);
    floats_from_device(r.dalpha, dalpha, p->alphas);
    device_free(phi);
    device_free(qkv);
    device_free(dy);
    device_free(alpha);
    return r;
}

static void result_free(Result *r) {
    free(r->y);
    free(r->den);
    free(r->dqkv);
    free(r->dphi);
    free(r->dalpha);
}

/* Checks the q and k thirds and removes them from dqkv, want and size, so that dv remains. */
static int thirds_untouched(const Problem *p, float *dqkv, double *want, double *size) {
    size_t left = 0;
    for (size_t i = 0; i < p->qkvs; i++) {
        if (is_v(p, i)) {
            want[left] = want[i];
            size[left] = size[i];
            dqkv[left++] = dqkv[i];
        } else if (dqkv[i] != UNTOUCHED) {
            return 0;
        }
    }
    return 1;
}

/* Compares each element relative to the size of its terms, and each tensor relative to its own size.  The latter is
 * left out on a grid of one token and for the weight of a single group, where everything may cancel. */
static int check_result(const char *algorithm, const Problem *p, const Result *r, const Reference *want,
                        double sums) {
    Reference v = *want;
    v.dqkv = malloc(p->qkvs * sizeof *v.dqkv);
    v.dqkv_size = malloc(p->qkvs * sizeof *v.dqkv_size);
    memcpy(v.dqkv, want->dqkv, p->qkvs * sizeof *v.dqkv);
    memcpy(v.dqkv_size, want->dqkv_size, p->qkvs * sizeof *v.dqkv_size);
    printf("ripple %s  grid %dx%d  B %d H %d D %d F %d G %d\n", algorithm, p->rings.grid.rows, p->rings.grid.columns,
           p->B, p->H, p->D, p->F, p->rings.G);
    int ok = check_sums("y", r->y, v.y, v.y_size, p->ys, sums);
    ok &= check_close("den", r->den, v.den, p->dens, sums);
    ok &= check_sums("dphi", r->dphi, v.dphi, v.dphi_size, p->phis, sums);
    ok &= check_sums("dalpha", r->dalpha, v.dalpha, v.dalpha_size, p->alphas, sums);
    ok &= thirds_untouched(p, r->dqkv, v.dqkv, v.dqkv_size);
    ok &= check_sums("dv", r->dqkv, v.dqkv, v.dqkv_size, p->ys, sums);
    if (p->tokens > 1) {
        ok &= close_own("y to its own size", r->y, v.y, v.y_size, p->ys);
        ok &= close_own("dphi to its own size", r->dphi, v.dphi, v.dphi_size, p->phis);
        ok &= p->rings.G == 1 || close_own("dalpha to its own size", r->dalpha, v.dalpha, v.dalpha_size, p->alphas);
        ok &= close_own("dv to its own size", r->dqkv, v.dqkv, v.dqkv_size, p->ys);
    }
    free(v.dqkv);
    free(v.dqkv_size);
    return ok;
}

/* The allowed error of a term, relative to its size: in float `chain`, for consecutive additions; with bfloat16
 * activations three roundings of at most 2^-8 each, of a factor, the weighted pair and the result.  Half of that is
 * enough, because check_sums allows it once for the element's terms and once for the tensor's. */
static double sums_tolerance(double chain) { return sizeof(real) == 4 ? chain : 3.0 / 512; }

/* 4e-6 is 64 consecutive roundings, as in the longest chain of additions for one element here. */
static void algorithms_match_formulas(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        Problem p = problem_of(&cases[c], 10 * (uint32_t)c);
        Reference want = reference_of(&p);
        for (int a = 0; a < ALGORITHMS; a++) {
            Result r = run(&algorithms[a], &p);
            assert_true(check_result(algorithms[a].name, &p, &r, &want, sums_tolerance(4e-6)));
            result_free(&r);
        }
        reference_free(&want);
        problem_free(&p);
    }
}

static int drawn(int i, int most) { return (int)rng_below(check_seed(), RNG_TEST, 3, 0, (uint64_t)i, (uint32_t)most); }

/* Rings in space-time: cubes, frames further apart than rows, and time ignored; the last two cases are random. */
static void clips_match_formulas(void **state) {
    (void)state;
    struct {
        Grid grid;
        int ring_time;
    } clips[] = {{{3, 5, 7}, 1}, {{3, 5, 7}, 0}, {{4, 3, 5}, 2}, {{7, 2, 3}, 1}, {{2, 4, 4}, 9}, {{5, 1, 1}, 3},
                 {{9, 5, 4}, 1}, {{5, 3, 4}, 2}, {{2, 1, 1}, 4}, {{0, 0, 0}, 0}, {{0, 0, 0}, 0}};
    enum { CLIPS = sizeof clips / sizeof *clips };
    for (int c = CLIPS - 2; c < CLIPS; c++) {
        clips[c].grid = (Grid){2 + drawn(4 * c, 6), 1 + drawn(4 * c + 1, 6), 1 + drawn(4 * c + 2, 7)};
        clips[c].ring_time = drawn(4 * c + 3, 5);
    }
    for (int c = 0; c < CLIPS; c++) {
        Grid g = clips[c].grid;
        Case k = {g.frames * g.rows, g.columns, 2, 2, 5, 7, 4, {0, 1, 2, 4}, PLAIN};
        Problem p = problem_of(&k, 4000 + 10 * (uint32_t)c);
        p.rings.grid = g;
        p.rings.ring_time = clips[c].ring_time;
        printf("%d frames, ring_time %d: ", g.frames, clips[c].ring_time);
        Reference want = reference_of(&p);
        for (int a = 0; a < ALGORITHMS; a++) {
            if (!algorithms[a].clips) continue;
            Result r = run(&algorithms[a], &p);
            assert_true(check_result(algorithms[a].name, &p, &r, &want, sums_tolerance(4e-6)));
            result_free(&r);
        }
        reference_free(&want);
        problem_free(&p);
    }
}

/* 2 x 3 x 2 tokens of sines with cubic rings and features max(z, 0) + 0.1, against float64 sums over all pairs. */
static void clip_of_numbers(void **state) {
    (void)state;
    enum { N = 12, D = 2, G = 3 };
    RippleRings rings = {.grid = {2, 3, 2}, .G = G, .bound = {0, 1, 2}, .ring_time = 1};
    float phi[N * 2 * D], qkv[N * 3 * D] = {0}, alpha[N * G], y[N * D];
    int pairs[G] = {0};
    double sum = 0, tolerance = sizeof(real) == 4 ? 1e-6 : 1e-2;
    for (int i = 0; i < N * D; i++) {
        int n = i / D, c = i % D;
        phi[n * 2 * D + c] = (float)(fmax(sin(0.7 * n + 1.3 * c + 0.2), 0) + 0.1);
        phi[n * 2 * D + D + c] = (float)(fmax(cos(0.5 * n - 0.9 * c + 0.1), 0) + 0.1);
        qkv[n * 3 * D + 2 * D + c] = (float)sin(0.3 * n + 0.8 * c - 0.4);
    }
    for (int i = 0; i < N * G; i++) alpha[i] = (const float[]){0.5f, 0.3f, 0.2f}[i % G];
    for (size_t n = 0; n < N; n++)
        for (size_t m = 0; m < N; m++) pairs[group_of(&rings, n, m)]++;
    assert_true(pairs[0] == 12 && pairs[1] == 100 && pairs[2] == 32);
    real *d_phi = to_device(phi, N * 2 * D), *d_qkv = to_device(qkv, N * 3 * D), *d_y = to_device(qkv, N * D);
    float *d_alpha = floats_to_device(alpha, N * G), *d_den = floats_to_device(alpha, N);
    kernels_reserve(ripple_sat_workspace(&rings, D, D));
    ripple_sat_forward(d_y, d_den, &(RippleInputs){d_alpha, d_phi, d_qkv}, &rings, &(FeatureShape){1, N, 1, D, D});
    from_device(y, d_y, N * D);
    for (int i = 0; i < N * D; i++) sum += y[i];
    assert_true(fabs(y[0] - 0.11230604) < tolerance && fabs(y[1] - 0.59853928) < tolerance);
    assert_true(fabs(y[14] - 0.17838255) < tolerance && fabs(y[15] - 0.59420792) < tolerance);
    assert_true(fabs(sum - 8.17123530) < 10 * tolerance);
    device_free(d_phi);
    device_free(d_qkv);
    device_free(d_alpha);
    device_free(d_den);
}

/* 10^4 float additions, in stretches of a hundred with sixteen lanes, have a random error of 1e-6; the largest error of
 * 10^5 elements is five times as large. */
static void many_tokens_keep_their_digits(void **state) {
    (void)state;
    int side = full_or_reduced("grid side", 100, 30);
    const Case large[] = {{side, side, 1, 1, 3, 2, 5, {0, 1, 2, 3, 4}, PLAIN},
                          {side, side, 1, 1, 2, 3, 5, {0, 1, 2, 4, 8}, PLAIN}};
    for (size_t c = 0; c < sizeof large / sizeof *large; c++) {
        Problem p = problem_of(&large[c], 1000 + 10 * (uint32_t)c);
        Reference want = reference_of(&p);
        for (int a = 0; a < ALGORITHMS; a++) {
            Result r = run(&algorithms[a], &p);
            assert_true(check_result(algorithms[a].name, &p, &r, &want, sums_tolerance(5e-6)));
            result_free(&r);
        }
        reference_free(&want);
        problem_free(&p);
    }
}

/* Where no terms cancel, errors are smaller than the bound for sums allows. */
static void formulas_to_few_roundings(void **state) {
    (void)state;
    Case c = {11, 17, 2, 3, 12, 20, 4, {0, 1, 3, 6}, PLAIN};
    Problem p = problem_of(&c, 2000);
    Reference want = reference_of(&p);
    for (int a = 0; a < ALGORITHMS; a++) {
        Result r = run(&algorithms[a], &p);
        double rounding = sums_tolerance(1e-6);
        printf("ripple %s == formulas  grid 11x17\n", algorithms[a].name);
        assert_true(check_rms("y", r.y, want.y, p.ys, rounding));
        assert_true(check_rms("den", r.den, want.den, p.dens, rounding));
        assert_true(check_rms("dphi", r.dphi, want.dphi, p.phis, rounding));
        assert_true(check_rms("dalpha", r.dalpha, want.dalpha, p.alphas, rounding));
        for (size_t i = 0; i < p.qkvs; i++)
            if (!is_v(&p, i)) r.dqkv[i] = 0;
        assert_true(check_rms("dqkv", r.dqkv, want.dqkv, p.qkvs, rounding));
        result_free(&r);
    }
    reference_free(&want);
    problem_free(&p);
}

static void same_bits_again(void **state) {
    (void)state;
    Case c = {9, 20, 3, 2, 12, 20, 5, {0, 1, 2, 3, 4}, PLAIN};
    Problem p = problem_of(&c, 3000);
    for (int a = 0; a < ALGORITHMS; a++) {
        Result first = run(&algorithms[a], &p), second = run(&algorithms[a], &p);
        assert_memory_equal(first.y, second.y, p.ys * sizeof(float));
        assert_memory_equal(first.dphi, second.dphi, p.phis * sizeof(float));
        assert_memory_equal(first.dqkv, second.dqkv, p.qkvs * sizeof(float));
        assert_memory_equal(first.dalpha, second.dalpha, p.alphas * sizeof(float));
        result_free(&first);
        result_free(&second);
    }
    problem_free(&p);
}

/* A NaN in one image must appear in its results and in no others, even if buffers are reused. */
static void nan_stays_in_its_image(void **state) {
    (void)state;
    Case c = {6, 10, 3, 1, 5, 7, 4, {0, 1, 2, 3}, PLAIN};
    Problem p = problem_of(&c, 4000);
    size_t one = p.tokens * 3 * p.D;
    for (size_t i = 0; i < one; i++) p.qkv[one + i] = NAN;
    for (int a = 0; a < ALGORITHMS; a++) {
        Result r = run(&algorithms[a], &p);
        for (size_t i = 0; i < p.ys; i++) assert_true(isnan(r.y[i]) == (i / (p.tokens * p.D) == 1));
        for (size_t i = 0; i < p.alphas; i++) assert_true(isnan(r.dalpha[i]) <= (i / (p.tokens * p.rings.G) == 1));
        result_free(&r);
    }
    problem_free(&p);
}

/* The comparison must reject the results of broken kernels: zeros, a flipped sign, or rows shifted by one. */
static void broken_results_are_rejected(void **state) {
    (void)state;
    Problem p = problem_of(&cases[0], 0);
    Reference want = reference_of(&p);
    float *y = malloc(p.ys * sizeof *y);
    printf("the next three must fail\n");
    for (int broken = 0; broken < 3; broken++) {
        for (size_t i = 0; i < p.ys; i++) y[i] = (float)want.y[broken == 2 ? (i + p.D) % p.ys : i];
        for (int d = 0; d < p.D; d++) y[d] = broken == 0 ? 0 : broken == 1 ? -y[d] : y[d];
        assert_false(check_close("y", y, want.y, p.ys, 1e-5));
    }
    free(y);
    reference_free(&want);
    problem_free(&p);
}

static void costs_are_positive_and_ordered(void **state) {
    (void)state;
    RippleRings rings = {.grid = {1, 64, 64}, .G = 5, .bound = {0, 1, 2, 3, 4}};
    for (int a = 0; a < ALGORITHMS; a++) assert_true(algorithms[a].cost(&rings, 32, 32) > 0);
    assert_true(ripple_window_cost(&rings, 32, 32) < ripple_dense_cost(&rings, 32, 32));
}

/* == Weights ====================================================================================================== */

typedef struct {
    int H, D, R; /* R logits */
    bool softmax, truncate;
    double tau;
    size_t n, qkvs, alphas, os;
    double *qkv, *wp, *bp, *sticks, *dalpha; /* exactly representable in float */
} Weights;

static double *wide(float *x, size_t n) {
    double *y = malloc((n ? n : 1) * sizeof *y);
    for (size_t i = 0; i < n; i++) y[i] = x[i];
    free(x);
    return y;
}

static float *narrow(const double *x, size_t n) {
    float *y = malloc((n ? n : 1) * sizeof *y);
    for (size_t i = 0; i < n; i++) y[i] = (float)x[i];
    return y;
}

static int groups_of(const Weights *w) { return w->softmax ? w->R : w->R + 1; }

static Weights weights_of(size_t n, int H, int D, int R, bool softmax, double tau, bool truncate, uint32_t stream) {
    Weights w = {.H = H, .D = D, .R = R, .softmax = softmax, .truncate = truncate, .tau = tau, .n = n};
    w.qkvs = n * 3 * H * D;
    w.alphas = n * H * groups_of(&w);
    w.os = n * H * R;
    w.qkv = wide(rounded_real(check_normal(w.qkvs, 1, stream), w.qkvs), w.qkvs);
    w.wp = wide(check_normal((size_t)D * D, 1 / sqrtf((float)D), stream + 1), (size_t)D * D);
    w.bp = wide(check_normal(D, 0.5f, stream + 2), D);
    w.sticks = wide(check_normal((size_t)H * R * D, tau > 0 ? 3 / sqrtf((float)D) : 1 / sqrtf((float)D), stream + 3),
                    (size_t)H * R * D);
    w.dalpha = wide(check_normal(w.alphas, 1, stream + 4), w.alphas);
    return w;
}

static void weights_free(Weights *w) {
    free(w->qkv);
    free(w->wp);
    free(w->bp);
    free(w->sticks);
    free(w->dalpha);
}

/* The paper's equations 5 and 6 and appendix C.3.  As printed there, sticks are counted from `first` = 1, and `added`
 * is 2 in the denominator R - r^ + added; the kernels use 0 and 1.  Returns r^, or R if the process does not end
 * early. */
static int break_sticks(double *alpha, const double *o, int R, double tau, int first, int added) {
    double left = 1, taken = 0;
    for (int r = 0; r < R; r++) {
        double s = 1 / (1 + (R - r - first) * exp(-o[r]));
        alpha[r] = s * left;
        left *= 1 - s;
    }
    alpha[R] = left;
    for (int r = 0; r < R; r++) {
        if (tau > 0 && 1 - taken - alpha[r] < tau) {
            for (int j = r; j <= R; j++) alpha[j] = (1 - taken) / (R - r + added);
            return r;
        }
        taken += alpha[r];
    }
    return R;
}

/* Computes alpha, o and p of token i and head h by the header's formulas; returns r^. */
static int weights_row(const Weights *w, size_t i, int h, double *alpha, double *o, double *p) {
    int D = w->D, R = w->R;
    const double *v = w->qkv + (i * 3 * w->H + 2 * w->H + h) * D;
    for (int a = 0; a < D; a++) {
        p[a] = w->bp[a];
        for (int d = 0; d < D; d++) p[a] += w->wp[a * D + d] * v[d];
    }
    for (int r = 0; r < R; r++) {
        o[r] = 0;
        for (int a = 0; a < D; a++) o[r] += w->sticks[((size_t)h * R + r) * D + a] * p[a];
    }
    if (w->softmax) {
        double sum = 0;
        for (int r = 0; r < R; r++) sum += alpha[r] = exp(o[r]);
        for (int r = 0; r < R; r++) alpha[r] /= sum;
        return R;
    }
    int end = break_sticks(alpha, o, R, w->tau, 0, 1);
    if (w->truncate) alpha[R] = 0;
    return end;
}

static double weights_loss(const Weights *w) {
    double loss = 0, alpha[64], o[64], p[64];
    int G = groups_of(w);
    for (size_t i = 0; i < w->n; i++)
        for (int h = 0; h < w->H; h++) {
            weights_row(w, i, h, alpha, o, p);
            for (int r = 0; r < G; r++) loss += alpha[r] * w->dalpha[(i * w->H + h) * G + r];
        }
    return loss;
}

/* Changes v in rows where 1 - sum alpha is within rounding of tau: there float and double may end the process at
 * different sticks, and both are right. */
static void avoid_ties(Weights *w) {
    double alpha[64], o[64], p[64], tau = w->tau;
    for (size_t i = 0; i < w->n; i++)
        for (int h = 0; h < w->H; h++) {
            double *v = w->qkv + (i * 3 * w->H + 2 * w->H + h) * w->D;
            for (;;) {
                w->tau = tau * 1.0001;
                int early = weights_row(w, i, h, alpha, o, p);
                w->tau = tau * 0.9999;
                if (weights_row(w, i, h, alpha, o, p) == early) break;
                for (int d = 0; d < w->D; d++) v[d] *= 0.5;
            }
        }
    w->tau = tau;
}

typedef struct {
    double *alpha, *o, *dqkv, *dwp, *dbp, *dsticks;
    double *terms; /* [D]: sums of the absolute values of dbp's terms */
} WeightsReference;

/* Computes do by the quotient form of the gradient, which the kernels do not use. */
static void logit_gradients(const Weights *w, double *dlogit, const double *dalpha, const double *alpha,
                            const double *o, int end) {
    int R = w->R;
    for (int r = 0; r < R; r++) {
        double farther = 0;
        if (w->softmax) {
            for (int j = 0; j < R; j++) farther += alpha[j] * dalpha[j];
            dlogit[r] = alpha[r] * (dalpha[r] - farther);
            continue;
        }
        for (int j = r + 1; j <= R; j++) farther += alpha[j] * dalpha[j];
        double s = 1 / (1 + (R - r) * exp(-o[r])), ds = alpha[r] / s * dalpha[r] - farther / (1 - s);
        dlogit[r] = r < end ? ds * s * (1 - s) : 0;
    }
}

static WeightsReference weights_reference(const Weights *w) {
    int H = w->H, D = w->D, R = w->R, G = groups_of(w);
    WeightsReference out = {calloc(w->alphas, 8), calloc(w->os, 8),        calloc(w->qkvs, 8),
                            calloc(D * D, 8),     calloc(D, 8),            calloc((size_t)H * R * D, 8),
                            calloc(D, 8)};
    double p[64], dlogit[64];
    for (size_t i = 0; i < w->n; i++)
        for (int h = 0; h < H; h++) {
            size_t row = i * H + h, v = (i * 3 * H + 2 * H + h) * D;
            double *alpha = out.alpha + row * G, *o = out.o + row * R;
            int end = weights_row(w, i, h, alpha, o, p);
            logit_gradients(w, dlogit, w->dalpha + row * G, alpha, o, end);
            for (int r = 0; r < R; r++)
                for (int a = 0; a < D; a++) {
                    size_t stick = ((size_t)h * R + r) * D + a;
                    double dp = dlogit[r] * w->sticks[stick];
                    out.dsticks[stick] += dlogit[r] * p[a];
                    out.dbp[a] += dp;
                    out.terms[a] += fabs(dp);
                    for (int d = 0; d < D; d++) {
                        out.dwp[a * D + d] += dp * w->qkv[v + d];
                        out.dqkv[v + d] += dp * w->wp[a * D + d];
                    }
                }
        }
    return out;
}

static void weights_reference_free(WeightsReference *r) {
    double *all[] = {r->alpha, r->o, r->dqkv, r->dwp, r->dbp, r->dsticks, r->terms};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* All accumulated gradients start at this value, to which kernels must add. */
static const float START = 1.0f / 64;

static float *constant(size_t n, float x) {
    float *y = malloc((n ? n : 1) * sizeof *y);
    for (size_t i = 0; i < n; i++) y[i] = x;
    return y;
}

typedef struct {
    float *alpha, *o, *dqkv, *dwp, *dbp, *dsticks;
} WeightsResult;

static WeightsResult weights_run(const Weights *w) {
    int H = w->H, D = w->D, R = w->R;
    size_t params = (size_t)D * D, stick_count = (size_t)H * R * D;
    float *host[] = {narrow(w->wp, params), narrow(w->bp, D), narrow(w->sticks, stick_count),
                     narrow(w->dalpha, w->alphas), narrow(w->qkv, w->qkvs)};
    WeightsResult r = {check_poison(w->alphas), check_poison(w->os), constant(w->qkvs, START),
                       constant(params, START), constant(D, START),  constant(stick_count, START)};
    float *wp = floats_to_device(host[0], params), *bp = floats_to_device(host[1], D);
    float *sticks = floats_to_device(host[2], stick_count), *dalpha = floats_to_device(host[3], w->alphas);
    real *qkv = to_device(host[4], w->qkvs), *dqkv = to_device(r.dqkv, w->qkvs);
    float *alpha = floats_to_device(r.alpha, w->alphas), *o = floats_to_device(r.o, w->os);
    float *dwp = floats_to_device(r.dwp, params), *dbp = floats_to_device(r.dbp, D);
    float *dsticks = floats_to_device(r.dsticks, stick_count);
    kernels_reserve(ripple_weights_workspace(H, D, groups_of(w)));
    RippleSticks weights = {R, false, wp, bp, sticks};
    RippleSticksGradients d = {dwp, dbp, dsticks};
    StickBreaking rule = {(float)w->tau, w->truncate};
    AttentionShape shape = {1, (int)w->n, H, D};
    if (w->softmax) {
        softmax_weights_forward(alpha, qkv, &weights, &shape);
        softmax_weights_backward(dqkv, &d, dalpha, alpha, qkv, &weights, &shape);
    } else {
        stick_breaking_forward(alpha, o, qkv, &weights, &rule, &shape);
        stick_breaking_backward(dqkv, &d, dalpha, alpha, o, qkv, &weights, &rule, &shape);
    }
    device_synchronize();
    floats_from_device(r.alpha, alpha, w->alphas);
    floats_from_device(r.o, o, w->os);
    from_device(r.dqkv, dqkv, w->qkvs);
    floats_from_device(r.dwp, dwp, params);
    floats_from_device(r.dbp, dbp, D);
    floats_from_device(r.dsticks, dsticks, stick_count);
    device_free(wp);
    device_free(bp);
    device_free(sticks);
    device_free(dalpha);
    device_free(qkv);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
    return r;
}

static void weights_result_free(WeightsResult *r) {
    float *all[] = {r->alpha, r->o, r->dqkv, r->dwp, r->dbp, r->dsticks};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* Subtracts START from a gradient. */
static const float *less_start(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] -= START;
    return x;
}

/* The error of storing START + x as `real`, relative to the root mean square of x. */
static double stored_step(const double *x, size_t n) {
    double squares = 0;
    for (size_t i = 0; i < n; i++) squares += x[i] * x[i];
    return REAL_STEP * (1 + START / sqrt(squares / (double)n));
}

/* Checks the root mean square of the error, and the worst of up to 10^5 elements with five times that tolerance.  All
 * arithmetic is in float on every device; `stored`: the relative error of storing the result. */
static int check_both(const char *what, const float *got, const double *want, size_t n, double stored) {
    int ok = check_rms(what, got, want, n, 1e-5 + stored);
    return check_close_step(what, got, want, n, 5e-5 + stored, stored) && ok;
}

static void check_weights(Weights *w) {
    avoid_ties(w);
    printf("%s  n %zu H %d D %d R %d tau %g%s\n", w->softmax ? "softmax weights" : "stick breaking", w->n, w->H, w->D,
           w->R, w->tau, w->truncate ? " truncated" : "");
    size_t M = (size_t)w->H * w->D;
    WeightsReference want = weights_reference(w);
    WeightsResult got = weights_run(w);
    assert_true(check_both("alpha", got.alpha, want.alpha, w->alphas, 0));
    if (!w->softmax) assert_true(check_both("o", got.o, want.o, w->os, 0));
    for (size_t i = 0; i < w->qkvs; i++)
        if (i / M % 3 != 2) assert_true(got.dqkv[i] == START);
    assert_true(check_both("dv", less_start(got.dqkv, w->qkvs), want.dqkv, w->qkvs, stored_step(want.dqkv, w->qkvs)));
    assert_true(check_both("dwp", less_start(got.dwp, (size_t)w->D * w->D), want.dwp, (size_t)w->D * w->D, 0));
    assert_true(check_sums("dbp", less_start(got.dbp, w->D), want.dbp, want.terms, w->D, 1e-6));
    assert_true(check_both("dsticks", less_start(got.dsticks, M * w->R), want.dsticks, M * w->R, 0));
    weights_result_free(&got);
    weights_reference_free(&want);
}

static void weights_match_formulas(void **state) {
    (void)state;
    static const struct {
        size_t n;
        int H, D, R;
    } sizes[] = {{1, 4, 3, 2},   {9, 2, 3, 1},     {5, 2, 5, 4},    {16, 3, 32, 4},
                 {63, 3, 10, 8}, {700, 2, 32, 16}, {300, 1, 17, 20}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int kind = 0; kind < 6; kind++) {
            double tau = kind == 1 ? 0.001f : kind == 2 || kind == 4 ? 0.2f : 0;
            if (kind == 5 && sizes[i].R == 1) continue; /* one weight is always one */
            if (tau > 0.1 && sizes[i].n == 1) continue; /* all gradients may be zero */
            bool truncate = kind == 3 || kind == 4;
            Weights w = weights_of(sizes[i].n, sizes[i].H, sizes[i].D, sizes[i].R, kind == 5, tau, truncate,
                                   5000 + 100 * (uint32_t)i + 10 * kind);
            check_weights(&w);
            weights_free(&w);
        }
}

/* d loss / d x by central differences of the double formulas. */
static double *differences(Weights *w, double *x, size_t n) {
    double *gradient = malloc(n * sizeof *gradient), step = 1e-6;
    for (size_t i = 0; i < n; i++) {
        double at = x[i];
        x[i] = at + step;
        double up = weights_loss(w);
        x[i] = at - step;
        gradient[i] = (up - weights_loss(w)) / (2 * step);
        x[i] = at;
    }
    return gradient;
}

static void weights_match_differences(void **state) {
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        Weights w = weights_of(7, 2, 5, 4, kind == 3, kind == 1 ? 0.1 : 0, kind == 2, 6000 + 10 * kind);
        size_t M = (size_t)w.H * w.D;
        avoid_ties(&w);
        WeightsResult got = weights_run(&w);
        double *dv = differences(&w, w.qkv, w.qkvs), *dwp = differences(&w, w.wp, (size_t)w.D * w.D);
        double *dbp = differences(&w, w.bp, w.D), *dsticks = differences(&w, w.sticks, M * w.R);
        printf("central differences, kind %d\n", kind);
        double stored = stored_step(dv, w.qkvs);
        assert_true(check_close_step("dv", less_start(got.dqkv, w.qkvs), dv, w.qkvs, 1e-5 + stored, stored));
        assert_true(check_close("dwp", less_start(got.dwp, (size_t)w.D * w.D), dwp, (size_t)w.D * w.D, 1e-5));
        assert_true(check_close("dbp", less_start(got.dbp, w.D), dbp, w.D, 1e-5));
        assert_true(check_close("dsticks", less_start(got.dsticks, M * w.R), dsticks, M * w.R, 1e-5));
        free(dv);
        free(dwp);
        free(dbp);
        free(dsticks);
        weights_result_free(&got);
        weights_free(&w);
    }
}

/* Logits of zero give every group the same weight, because sticks are counted from 0.  Extreme logits give zeros and
 * ones, not NaN. */
static void weights_at_the_ends(void **state) {
    (void)state;
    enum { D = 4, R = 4, N = 3 };
    float zeros[3 * D * N] = {0}, sticks[R * D] = {0}, bias[D] = {0}, wp[D * D] = {0}, alpha[N * (R + 1)], o[N * R];
    float *device[] = {floats_to_device(wp, D * D), floats_to_device(bias, D), floats_to_device(sticks, R * D),
                       floats_to_device(alpha, N * (R + 1)), floats_to_device(o, N * R)};
    real *qkv = to_device(zeros, 3 * D * N);
    kernels_reserve(ripple_weights_workspace(1, D, R + 1));
    RippleSticks weights = {R, false, device[0], device[1], device[2]};
    StickBreaking rule = {0, false};
    AttentionShape shape = {1, N, 1, D};
    stick_breaking_forward(device[3], device[4], qkv, &weights, &rule, &shape);
    device_download(alpha, device[3], sizeof alpha);
    for (int i = 0; i < N * (R + 1); i++) assert_true(fabsf(alpha[i] - 1.0f / (R + 1)) < 1e-6f);
    for (int sign = -1; sign <= 1; sign += 2) {
        for (int d = 0; d < D; d++) bias[d] = 1000;
        for (int i = 0; i < R * D; i++) sticks[i] = (float)sign;
        device_upload(device[1], bias, sizeof bias);
        device_upload(device[2], sticks, sizeof sticks);
        stick_breaking_forward(device[3], device[4], qkv, &weights, &rule, &shape);
        device_download(alpha, device[3], sizeof alpha);
        for (int i = 0; i < N * (R + 1); i++)
            assert_true(fabsf(alpha[i] - (i % (R + 1) == (sign > 0 ? 0 : R))) < 1e-30f);
    }
    for (int i = 0; i < 5; i++) device_free(device[i]);
    device_free(qkv);
}

static double sum_of(const double *x, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    return sum;
}

/* The kernels deviate from the printed paper in two places.  With the printed denominator of equation 6, the weights of
 * a process that ends early do not sum to 1, as section 3.1 requires.  With the printed sticks of C.3, the last stick
 * is 1 for any logit, so that the weight of the merged group is always 0. */
static void weights_deviate_from_the_letter(void **state) {
    (void)state;
    enum { R = 4, H = 2, D = 8, N = 500 };
    for (int ending = 0; ending < 2; ending++) {
        Weights w = weights_of(N, H, D, R, false, ending ? 0.2f : 0, false, 7000 + 10 * (uint32_t)ending);
        avoid_ties(&w);
        WeightsResult got = weights_run(&w);
        double alpha[R + 1], o[R], p[D], printed[R + 1];
        int ended = 0;
        for (int row = 0; row < N * H; row++) {
            const float *found = got.alpha + row * (R + 1);
            double sum = 0;
            for (int r = 0; r <= R; r++) sum += (double)found[r];
            assert_true(fabs(sum - 1) < 1e-5);
            int end = weights_row(&w, (size_t)row / H, row % H, alpha, o, p);
            if (ending && end < R) {
                ended++;
                assert_int_equal(break_sticks(printed, o, R, w.tau, 0, 2), end);
                double mass = 1 - sum_of(alpha, end);
                assert_true(fabs(sum_of(printed, R + 1) - (1 - mass / (R - end + 2))) < 1e-12);
                assert_true(fabs((double)found[R] - mass / (R - end + 1)) < 1e-4 * mass);
                assert_true(found[R] > 1.15 * printed[R]); /* (R - r^ + 2) / (R - r^ + 1) is 6/5 or more */
            }
            if (!ending) {
                break_sticks(printed, o, R, 0, 1, 2);
                assert_true(printed[R] == 0 && fabs(sum_of(printed, R) - 1) < 1e-12);
                assert_true(found[R] > 0);
            }
        }
        if (ending) assert_true(ended > N / 10);
        weights_result_free(&got);
        weights_free(&w);
    }
}

static void fixed_weights_repeat(void **state) {
    (void)state;
    float weights[5] = {0.5f, 0.25f, 0.125f, 0.0625f, 0.0625f}, *host = check_poison(7 * 5);
    float *device = floats_to_device(host, 7 * 5);
    fixed_weights(device, weights, 7, 5);
    floats_from_device(host, device, 7 * 5);
    for (int i = 0; i < 7 * 5; i++) assert_true(host[i] == weights[i % 5]);
    free(host);
}

/* == What is logged =============================================================================================== */

/* Jensen-Shannon divergence between p / sum p and weights that halve from ring to ring. */
static double divergence_of(const float *p, int G) {
    double sum = 0, divergence = 0;
    for (int r = 0; r < G; r++) sum += (double)p[r];
    for (int r = 0; r < G; r++) {
        double x = (double)p[r] / sum, q = ldexp(1, r < G - 1 ? -(r + 1) : -(G - 1)), m = (x + q) / 2;
        divergence += (x > 0 ? x * log(x / m) : 0) / 2 + q * log(q / m) / 2;
    }
    return divergence;
}

/* The means of two calls, which add to the same sums. */
static void measure_twice(double total[3], const float *alpha, const float *o, float tau, size_t rows, int G) {
    enum { PARTS = 5 };
    uint64_t sums[3 * PARTS], *device = device_malloc(sizeof sums, "sums");
    float *weights = floats_to_device(alpha, rows * (size_t)G);
    float *logits = o ? floats_to_device(o, rows * (size_t)(G - 1)) : NULL;
    device_zero(device, sizeof sums);
    for (int i = 0; i < 2; i++) ripple_weights_measure(device, PARTS, weights, logits, tau, rows, G);
    device_download(sums, device, sizeof sums);
    for (int i = 0; i < 3; i++) total[i] = 0;
    for (int i = 0; i < 3 * PARTS; i++) total[i % 3] += (double)sums[i] * RIPPLE_UNIT / 2;
    device_free(device);
    device_free(weights);
    device_free(logits);
}

static void measures_match_formulas(void **state) {
    (void)state;
    static const struct {
        size_t n;
        int H, R;
        bool softmax;
        double tau;
        bool truncate;
    } sizes[] = {{1, 1, 2, false, 0, false},      {37, 11, 4, false, 0.2, false}, {1500, 2, 4, false, 0.05, true},
                 {100, 1, 63, false, 0, false}, {29, 2, 5, true, 0, false},    {5, 2, 1, false, 0.4, false}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        Weights w = weights_of(sizes[i].n, sizes[i].H, 8, sizes[i].R, sizes[i].softmax, sizes[i].tau, sizes[i].truncate,
                               9000 + 10 * (uint32_t)i);
        avoid_ties(&w);
        WeightsResult got = weights_run(&w);
        size_t rows = w.n * (size_t)w.H;
        double want[3] = {0}, found[3], alpha[64], o[64], p[64];
        for (size_t row = 0; row < rows; row++) {
            int end = weights_row(&w, row / (size_t)w.H, (int)(row % (size_t)w.H), alpha, o, p);
            want[0] += divergence_of(got.alpha + row * (size_t)groups_of(&w), groups_of(&w));
            want[1] += end < w.R;
            want[2] += end == 0;
        }
        measure_twice(found, got.alpha, w.softmax ? NULL : got.o, (float)w.tau, rows, groups_of(&w));
        printf("divergence %g, wanted %g; ended %g, %g at once, of %zu\n", found[0], want[0], found[1], found[2], rows);
        assert_true(fabs(found[0] - want[0]) <= 1e-6 * (double)rows);
        assert_true(found[1] == want[1] && found[2] == want[2]);
        if (i == 1) assert_true(want[1] > (double)rows / 10 && want[2] > 0 && want[2] < want[1]);
        weights_result_free(&got);
        weights_free(&w);
    }
}

/* Weights that halve from ring to ring have divergence 0, with any number of rings. */
static void halving_weights_measure_nothing(void **state) {
    (void)state;
    for (int G = 1; G <= RIPPLE_MAX_GROUPS; G += 51) {
        float weights[RIPPLE_MAX_GROUPS];
        double found[3];
        for (int r = 0; r < G; r++) weights[r] = ldexpf(1, r < G - 1 ? -(r + 1) : -(G - 1));
        measure_twice(found, weights, NULL, 0.5f, 1, G);
        assert_true(found[0] == 0 && found[1] == 0 && found[2] == 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clips_match_formulas),
        cmocka_unit_test(clip_of_numbers),
        cmocka_unit_test(algorithms_match_formulas),     cmocka_unit_test(many_tokens_keep_their_digits),
        cmocka_unit_test(formulas_to_few_roundings),              cmocka_unit_test(same_bits_again),
        cmocka_unit_test(nan_stays_in_its_image),        cmocka_unit_test(broken_results_are_rejected),
        cmocka_unit_test(costs_are_positive_and_ordered), cmocka_unit_test(weights_match_formulas),
        cmocka_unit_test(weights_match_differences),     cmocka_unit_test(weights_at_the_ends),
        cmocka_unit_test(weights_deviate_from_the_letter), cmocka_unit_test(fixed_weights_repeat),
        cmocka_unit_test(measures_match_formulas),       cmocka_unit_test(halving_weights_measure_nothing),
    };
    kernels_init();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
