/* LiSA's kernels against sums in double, for every kind of offsets; fft against dense on the grids of the paper; unit
 * lengths, position weights, and GFNet's filter, which shares the transforms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/on_device.h"

/* == The sums in double =========================================================================================== */

typedef struct {
    const char *name;
    OffsetKind kind;
    Grid grid;
    int side, frames, B, H, D, E; /* side and frames of a local window */
    bool per_channel;
} Case;

/* Independent of kernels/offsets/offsets.h: the paper's positions, with frames as an additional axis. */
static int entry_of(const Case *k, int i, int j) {
    int N = grid_tokens(k->grid), T = k->grid.frames, Hg = k->grid.rows, Wg = k->grid.columns;
    int dt = i / (Hg * Wg) - j / (Hg * Wg), dy = i / Wg % Hg - j / Wg % Hg, dx = i % Wg - j % Wg;
    switch (k->kind) {
    case OFFSETS_CIRCLE: return ((i - j) % N + N) % N;
    case OFFSETS_TORUS: return ((dt + T) % T * Hg + (dy + Hg) % Hg) * Wg + (dx + Wg) % Wg;
    case OFFSETS_TOEPLITZ: return ((dt + T - 1) * (2 * Hg - 1) + dy + Hg - 1) * (2 * Wg - 1) + dx + Wg - 1;
    default: break;
    }
    if (2 * abs(dt) > k->frames || 2 * abs(dy) > k->side || 2 * abs(dx) > k->side) return -1;
    return ((dt + k->frames / 2) * k->side + dy + k->side / 2) * k->side + dx + k->side / 2;
}

static int entries_of(const Case *k) {
    if (k->kind == OFFSETS_LOCAL) return k->frames * k->side * k->side;
    if (k->kind != OFFSETS_TOEPLITZ) return grid_tokens(k->grid);
    return (2 * k->grid.frames - 1) * (2 * k->grid.rows - 1) * (2 * k->grid.columns - 1);
}

static Patterns patterns_of(const Case *k) {
    return (Patterns){{k->kind, k->grid, k->side, k->frames}, k->E, k->H, k->D, k->per_channel};
}

/* All results; gradients of parameters start at their values before the call. */
typedef struct {
    double *y, *s, *dv, *dqk, *dwa, *dwb, *db;
    double *wa_size, *wb_size, *b_size; /* absolute values of the terms of dwa, dwb and db, summed */
} Result;

typedef struct {
    float *qk, *qkv, *dy, *wa, *wb, *b, *dwa, *dwb, *db, *before;
    real *d_qk, *d_qkv, *d_dy;
    float *d_wa, *d_wb, *d_b;
    size_t tokens, n_y, n_s, n_wa, n_wb, n_b;
} Inputs;

static Inputs inputs_of(const Case *k) {
    Inputs x = {.tokens = (size_t)k->B * grid_tokens(k->grid)};
    size_t T = entries_of(k);
    x.n_y = x.tokens * k->H * k->D;
    x.n_s = x.tokens * k->H * k->E;
    x.n_wa = T * (k->per_channel ? k->D : 1) * k->E;
    x.n_wb = T * k->E;
    x.n_b = (size_t)k->D * k->E;
    x.qk = normals(2 * x.n_y, 1);
    for (size_t row = 0; row < 2 * x.n_y; row += k->D) {
        double squares = 0;
        for (int c = 0; c < k->D; c++) squares += (double)x.qk[row + c] * x.qk[row + c];
        for (int c = 0; c < k->D; c++) x.qk[row + c] /= (float)sqrt(squares);
    }
    x.qkv = normals(3 * x.n_y, 1);
    x.dy = normals(x.n_y, 1);
    x.wa = normals(x.n_wa, 0.3f);
    x.wb = normals(x.n_wb, 0.3f);
    x.b = normals(x.n_b, 0.3f);
    x.dwa = normals(x.n_wa, 1);
    x.dwb = normals(x.n_wb, 1);
    x.db = normals(x.n_b, 1);
    x.before = normals(3 * x.n_y, 1);
    x.d_qk = upload_real(x.qk, 2 * x.n_y);
    x.d_qkv = upload_real(x.qkv, 3 * x.n_y);
    x.d_dy = upload_real(x.dy, x.n_y);
    x.d_wa = upload(x.wa, x.n_wa);
    x.d_wb = upload(x.wb, x.n_wb);
    x.d_b = upload(x.b, x.n_b);
    return x;
}

static double *widened(const float *x, size_t n) {
    double *wide = zeros(n);
    for (size_t i = 0; i < n; i++) wide[i] = x[i];
    return wide;
}

/* The index of element c of head h in part `part` of token t, counted over all images. */
static size_t at(size_t t, int parts, int part, const Case *k, int h, int c) {
    return ((t * parts + part) * k->H + h) * k->D + c;
}

static const float *entry(const float *wa, const Case *k, int t, int c) {
    return wa + ((size_t)t * (k->per_channel ? k->D : 1) + (k->per_channel ? c : 0)) * k->E;
}

/* `stored` is the S that forward wrote, from which all later results are computed, as it may be rounded. */
static void head_reference(Result r, const float *stored, const Inputs *x, const Case *k, int image, int h) {
    int N = grid_tokens(k->grid), E = k->E, D = k->D;
    size_t first = (size_t)image * N, patterns = ((size_t)image * k->H + h) * E * N;
    double *exact = r.s + patterns, *ds = calloc((size_t)N * E, sizeof *ds);
    const float *s = stored + patterns;
    for (int i = 0; i < N; i++)
        for (int e = 0; e < E; e++) {
            size_t out = first + i;
            for (int j = 0; j < N; j++) {
                int t = entry_of(k, i, j);
                for (int c = 0; t >= 0 && c < D; c++)
                    exact[e * N + i] += (double)x->qk[at(out, 2, 0, k, h, c)] * x->qk[at(first + j, 2, 1, k, h, c)] *
                                        entry(x->wa, k, t, c)[e];
            }
            for (int c = 0; c < D; c++) {
                double dy = x->dy[at(out, 1, 0, k, h, c)];
                r.y[at(out, 1, 0, k, h, c)] += (double)s[e * N + i] * x->b[c * E + e];
                ds[i * E + e] += dy * x->b[c * E + e];
                add_term(&r.db[c * E + e], &r.b_size[c * E + e], dy * s[e * N + i]);
            }
        }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            int t = entry_of(k, i, j);
            if (t < 0) continue;
            double p = 0, pair = 0;
            for (int e = 0; e < E; e++) p += (double)s[e * N + i] * x->wb[(size_t)t * E + e];
            for (int c = 0; c < D; c++) {
                size_t v = at(first + j, 3, 2, k, h, c), y = at(first + i, 1, 0, k, h, c);
                r.y[y] += p * x->qkv[v];
                r.dv[y - at(first + i, 1, 0, k, h, c) + at(first + j, 1, 0, k, h, c)] += p * x->dy[y];
                pair += (double)x->dy[y] * x->qkv[v];
            }
            for (int e = 0; e < E; e++) {
                ds[i * E + e] += pair * x->wb[(size_t)t * E + e];
                add_term(&r.dwb[(size_t)t * E + e], &r.wb_size[(size_t)t * E + e], pair * s[e * N + i]);
            }
        }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            int t = entry_of(k, i, j);
            for (int c = 0; t >= 0 && c < D; c++) {
                size_t q = at(first + i, 2, 0, k, h, c), key = at(first + j, 2, 1, k, h, c);
                const float *w = entry(x->wa, k, t, c);
                for (int e = 0; e < E; e++) {
                    r.dqk[q] += ds[i * E + e] * w[e] * x->qk[key];
                    r.dqk[key] += ds[i * E + e] * w[e] * x->qk[q];
                    add_term(&r.dwa[w - x->wa + e], &r.wa_size[w - x->wa + e], ds[i * E + e] * x->qk[q] * x->qk[key]);
                }
            }
        }
    free(ds);
}

static Result reference(const float *stored, const Inputs *x, const Case *k) {
    Result r = {zeros(x->n_y), zeros(x->n_s), zeros(x->n_y), zeros(2 * x->n_y), widened(x->dwa, x->n_wa),
                widened(x->dwb, x->n_wb), widened(x->db, x->n_b),
                zeros(x->n_wa), zeros(x->n_wb), zeros(x->n_b)};
    for (int image = 0; image < k->B; image++)
        for (int h = 0; h < k->H; h++) head_reference(r, stored, x, k, image, h);
    return r;
}

/* == The kernels ================================================================================================== */

static const LisaAlgorithm dense = LISA_ALGORITHM(dense), fft = LISA_ALGORITHM(fft);

typedef struct {
    real *y, *s, *dqkv, *dqk;
    float *dwa, *dwb, *db;
} Outputs;

/* Permutes s from [B,N,H,E] to [B,H,E,N]. */
static real *patterns_first(const real *s, const Inputs *x, const Case *k) {
    size_t N = (size_t)grid_tokens(k->grid), rows = (size_t)k->H * k->E, image = N * rows;
    const float *from = download_real(s, x->n_s);
    float *to = normals(x->n_s, 1);
    for (size_t i = 0; i < x->n_s; i++) to[i / image * image + i % rows * N + i % image / rows] = from[i];
    return upload_real(to, x->n_s);
}

/* Runs both passes; backward uses s, or if that is NULL forward's.  The returned s is [B,H,E,N]. */
static Outputs run_from(const real *s, const LisaAlgorithm *a, const Inputs *x, const Case *k) {
    LisaTables tables = {patterns_of(k), x->d_wa, x->d_wb, x->d_b};
    float *ds = poisoned(x->n_s);
    Outputs o = {poisoned_real(x->n_y),     poisoned_real(x->n_s),   upload_real(x->before, 3 * x->n_y),
                 poisoned_real(2 * x->n_y), upload(x->dwa, x->n_wa), upload(x->dwb, x->n_wb),
                 upload(x->db, x->n_b)};
    kernels_reserve(a->workspace(&tables.patterns, k->B, false));
    a->forward(o.y, o.s, x->d_qk, x->d_qkv, &tables, k->B);
    a->backward(o.dqkv, o.dqk, ds, &(LisaGradients){o.dwa, o.dwb, o.db}, x->d_dy, s ? s : o.s, x->d_qk, x->d_qkv,
                &tables, k->B);
    if (a->s_by_token) o.s = patterns_first(o.s, x, k);
    return o;
}

static Outputs run(const LisaAlgorithm *a, const Inputs *x, const Case *k) { return run_from(NULL, a, x, k); }

/* All elements of a small gradient may cancel; the rounding of their terms is then large relative to the gradient. */
static int close_gradient(const char *what, const float *got, const double *want, const double *size, size_t n) {
    double cancelled = ldexp(1, -22) * root_mean_square(size, n) / root_mean_square(want, n);
    return check_close(what, download(got, n), want, n, 1e-5 + cancelled);
}

/* Compares dv, and checks that the thirds of q and k are unchanged. */
static int close_values(const real *d_dqkv, const double *dv, const Inputs *x, const Case *k) {
    size_t M = (size_t)k->H * k->D;
    float *dqkv = download_real(d_dqkv, 3 * x->n_y), *got = normals(x->n_y, 1);
    for (size_t t = 0; t < x->tokens; t++) {
        for (size_t c = 0; c < 2 * M; c++) assert_true(dqkv[t * 3 * M + c] == x->before[t * 3 * M + c]);
        memcpy(got + t * M, dqkv + t * 3 * M + 2 * M, M * sizeof *got);
    }
    return check_close_step("dv", got, dv, x->n_y, halves(), REAL_STEP);
}

static void compare(const LisaAlgorithm *a, const Inputs *x, const Case *k) {
    printf("%s, %s %dx%dx%d side %d B %d H %d D %d E %d\n", a->name, k->name, k->grid.frames, k->grid.rows,
           k->grid.columns, k->side, k->B, k->H, k->D, k->E);
    Outputs o = run(a, x, k), again = run(a, x, k);
    Result r = reference(download_real(o.s, x->n_s), x, k); /* from the stored s; y may come from s before rounding */
    assert_true(close_rounded("y", o.y, r.y, x->n_y));
    assert_true(close_real("s", o.s, r.s, x->n_s));
    assert_true(close_values(o.dqkv, r.dv, x, k));
    assert_true(close_halves("dqk", o.dqk, r.dqk, 2 * x->n_y));
    assert_true(close_gradient("dwa", o.dwa, r.dwa, r.wa_size, x->n_wa));
    assert_true(close_gradient("dwb", o.dwb, r.dwb, r.wb_size, x->n_wb));
    assert_true(close_gradient("db", o.db, r.db, r.b_size, x->n_b));
    assert_memory_equal(download(o.dwa, x->n_wa), download(again.dwa, x->n_wa), x->n_wa * sizeof(float));
    assert_memory_equal(download(o.dwb, x->n_wb), download(again.dwb, x->n_wb), x->n_wb * sizeof(float));
    assert_memory_equal(download_real(o.dqk, 2 * x->n_y), download_real(again.dqk, 2 * x->n_y),
                        2 * x->n_y * sizeof(float));
}

static void check_case(const Case *k) {
    Inputs x = inputs_of(k);
    compare(&dense, &x, k);
    if (k->per_channel && (k->kind == OFFSETS_CIRCLE || k->kind == OFFSETS_TORUS)) compare(&fft, &x, k);
    release_all();
}

/* Odd grids, one token, one pattern, more channels and patterns than a vector has lanes, prime sides with and without
 * butterflies.  Cases with few tokens have many heads, because a few numbers may all be small by cancellation. */
static void test_formulas(void **state) {
    (void)state;
    static const Case cases[] = {
        {"circle", OFFSETS_CIRCLE, {1, 5, 7}, 0, 0, 3, 3, 5, 3, true},
        {"torus", OFFSETS_TORUS, {1, 5, 7}, 0, 0, 3, 3, 5, 3, true},
        {"circle", OFFSETS_CIRCLE, {1, 1, 1}, 0, 0, 8, 3, 3, 2, true},
        {"torus", OFFSETS_TORUS, {1, 1, 2}, 0, 0, 6, 3, 3, 2, true},
        {"torus", OFFSETS_TORUS, {1, 2, 3}, 0, 0, 4, 3, 4, 1, true},
        {"circle", OFFSETS_CIRCLE, {1, 3, 2}, 0, 0, 4, 3, 1, 4, true},
        {"circle", OFFSETS_CIRCLE, {1, 11, 2}, 0, 0, 1, 2, 17, 5, true},
        {"torus", OFFSETS_TORUS, {1, 3, 13}, 0, 0, 1, 1, 4, 17, true},
        {"circle", OFFSETS_CIRCLE, {1, 8, 9}, 0, 0, 1, 1, 16, 16, true},
        {"torus", OFFSETS_TORUS, {1, 8, 6}, 0, 0, 2, 1, 16, 4, true},
        {"toeplitz", OFFSETS_TOEPLITZ, {1, 5, 7}, 0, 0, 2, 3, 5, 3, true},
        {"toeplitz, one wa", OFFSETS_TOEPLITZ, {1, 5, 7}, 0, 0, 2, 3, 5, 3, false},
        {"toeplitz, one wa", OFFSETS_TOEPLITZ, {1, 2, 1}, 0, 0, 4, 3, 5, 18, false},
        {"toeplitz", OFFSETS_TOEPLITZ, {1, 4, 2}, 0, 0, 1, 9, 19, 2, true},
        {"local", OFFSETS_LOCAL, {1, 5, 7}, 3, 1, 2, 3, 5, 3, true},
        {"local", OFFSETS_LOCAL, {1, 4, 9}, 5, 1, 1, 2, 16, 4, true},
        {"local", OFFSETS_LOCAL, {1, 2, 3}, 7, 1, 1, 2, 3, 2, true},
        {"circle", OFFSETS_CIRCLE, {3, 5, 7}, 0, 0, 2, 2, 5, 3, true},
        {"torus", OFFSETS_TORUS, {3, 5, 7}, 0, 0, 2, 2, 5, 3, true},
        {"torus", OFFSETS_TORUS, {2, 1, 6}, 0, 0, 3, 2, 3, 2, true},
        {"torus", OFFSETS_TORUS, {11, 2, 3}, 0, 0, 2, 1, 17, 2, true},
        {"torus", OFFSETS_TORUS, {4, 4, 1}, 0, 0, 3, 2, 4, 5, true},
        {"toeplitz", OFFSETS_TOEPLITZ, {3, 5, 7}, 0, 0, 1, 2, 5, 3, true},
        {"toeplitz, one wa", OFFSETS_TOEPLITZ, {2, 4, 3}, 0, 0, 2, 2, 5, 3, false},
        {"local", OFFSETS_LOCAL, {3, 5, 7}, 3, 3, 2, 2, 5, 3, true},
        {"local", OFFSETS_LOCAL, {2, 4, 3}, 5, 5, 2, 2, 3, 4, true},
        {"local", OFFSETS_LOCAL, {4, 3, 4}, 5, 1, 2, 1, 4, 2, true},
        {"torus", OFFSETS_TORUS, {1, 3, 4}, 0, 0, 6, 3, 35, 18, true}, /* more than a block computes at a time */
        {"toeplitz, one wa", OFFSETS_TOEPLITZ, {1, 2, 3}, 0, 0, 2, 9, 34, 35, false},
        {"toeplitz", OFFSETS_TOEPLITZ, {1, 5, 7}, 0, 0, 6, 3, 2, 2, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Case k = cases[i];
        if (grid_tokens(k.grid) > full_or_reduced("tokens of a clip", 105, 72)) k.grid = (Grid){3, 2, 5};
        check_case(&k);
    }
}

/* An emulated block needs a second, and a CPU or GPU microseconds. */
static bool emulated(void) { return strstr(kernels_device(), "emulated"); }

/* Compares two float results: the largest of thousands of elements are ten times the root mean square, so that the
 * tolerance also grows with the element. */
static int agree(const char *what, const real *got, const real *want, size_t n) {
    return check_close_step(what, download_real(got, n), widened(download_real(want, n), n), n, roundings(5),
                            fmax(REAL_STEP, 2e-6));
}

/* The grids of the paper's Tables 4, 8, 12 and 14, from 49 to 7056 tokens, and one with a side of 33. */
static void test_algorithms_agree(void **state) {
    (void)state;
    static const Grid sides[] = {{1, 7, 7},   {1, 14, 14}, {1, 28, 28}, {1, 10, 33},
                                 {1, 56, 56}, {1, 84, 84}, {4, 14, 14}, {8, 14, 14}};
    for (int i = 0; i < (emulated() ? 1 : 8); i++)
        for (int grid = 0; grid < 2; grid++) {
            const char *name = grid ? "torus" : "circle";
            OffsetKind kind = grid ? OFFSETS_TORUS : OFFSETS_CIRCLE;
            Case k = {name, kind, sides[i], 0, 0, 1, 1, grid_tokens(sides[i]) < 1000 ? 16 : 2,
                      grid_tokens(sides[i]) < 1000 ? 4 : 6, true};
            Inputs x = inputs_of(&k);
            Outputs want = run(&dense, &x, &k), got = run_from(want.s, &fft, &x, &k); /* from the same S */
            printf("fft == dense, %s %dx%dx%d D %d E %d\n", k.name, k.grid.frames, k.grid.rows, k.grid.columns, k.D,
                   k.E);
            assert_true(agree("y", got.y, want.y, x.n_y));
            assert_true(agree("s", got.s, want.s, x.n_s));
            assert_true(agree("dqkv", got.dqkv, want.dqkv, 3 * x.n_y));
            assert_true(agree("dqk", got.dqk, want.dqk, 2 * x.n_y));
            assert_true(close_float_rounded("dwa", got.dwa, widened(download(want.dwa, x.n_wa), x.n_wa), x.n_wa));
            assert_true(close_float_rounded("dwb", got.dwb, widened(download(want.dwb, x.n_wb), x.n_wb), x.n_wb));
            const float *s = download_real(want.s, x.n_s);
            double *db_size = zeros(x.n_b); /* [D,E] of one head: the terms of thousands of tokens cancel */
            for (size_t o = 0; o < x.n_b; o++)
                for (size_t n = x.n_s / (size_t)k.E, t = 0; t < n; t++)
                    db_size[o] += fabs((double)x.dy[t * (size_t)k.D + o / (size_t)k.E] * s[o % (size_t)k.E * n + t]);
            assert_true(close_sums("db", download(got.db, x.n_b), widened(download(want.db, x.n_b), x.n_b), db_size,
                                   x.n_b, true));
            release_all();
        }
}

/* A NaN in one image's v does not reach the other images. */
static void test_nan(void **state) {
    (void)state;
    Case k = {"circle", OFFSETS_CIRCLE, {1, 3, 4}, 0, 0, 2, 2, 5, 3, true};
    const LisaAlgorithm *both[] = {&dense, &fft};
    for (int a = 0; a < 2; a++) {
        Inputs x = inputs_of(&k);
        x.qkv[at(12 + 5, 3, 2, &k, 1, 2)] = NAN;
        x.d_qkv = upload_real(x.qkv, 3 * x.n_y);
        Outputs o = run(both[a], &x, &k);
        float *y = download_real(o.y, x.n_y);
        for (size_t i = 0; i < x.n_y / 2; i++) assert_false(isnan(y[i]));
        assert_true(isnan(y[at(12 + 5, 1, 0, &k, 1, 2)]));
        release_all();
    }
}

static void test_costs(void **state) {
    (void)state;
    Patterns circle = {{OFFSETS_CIRCLE, {1, 14, 14}, 0, 0}, 16, 1, 16, true},
             large = {{OFFSETS_CIRCLE, {1, 56, 56}, 0, 0}, 16, 1, 16, true},
             window = {{OFFSETS_LOCAL, {1, 14, 14}, 5, 1}, 16, 1, 16, true},
             shared = {{OFFSETS_TORUS, {1, 14, 14}, 0, 0}, 16, 1, 16, false};
    assert_true(lisa_dense_cost(&circle) > 0 && lisa_fft_cost(&circle) > 0);
    assert_true(lisa_dense_cost(&large) > 10 * lisa_fft_cost(&large));
    circle.offsets.grid = (Grid){8, 28, 28}; /* a clip of 6272 tokens */
    assert_true(lisa_dense_cost(&circle) > 10 * lisa_fft_cost(&circle));
    assert_true(isinf(lisa_fft_cost(&window)) && isinf(lisa_fft_cost(&shared)));
}

/* == Unit lengths ================================================================================================= */

static void length_case(size_t n, int parts, int H, int D) {
    size_t n_y = n * H * D, n_unit = parts * n_y, rows = n * parts * H;
    printf("unit lengths n %zu parts %d H %d D %d\n", n, parts, H, D);
    float *qkv = normals(3 * n_y, 1), *dqk = normals(n_unit, 1), *before = normals(3 * n_y, 1);
    for (int c = 0; c < D; c++) qkv[c] = 0; /* a zero query, and one shorter than 1e-6 where there is a second token */
    for (int c = 0; c < D && n > 1; c++) qkv[(size_t)3 * H * D + c] *= 1e-8f;
    real *d_qkv = upload_real(qkv, 3 * n_y), *d_dqk = upload_real(dqk, n_unit), *d_qk = poisoned_real(n_unit);
    real *d_dqkv = parts == 3 ? d_dqk : upload_real(before, 3 * n_y);
    float *d_inverse = poisoned(rows);
    const UnitLengths shape = {n, parts, H, D};
    l2_normalize_forward(d_qk, d_inverse, d_qkv, &shape);
    l2_normalize_backward(d_dqkv, d_dqk, d_qk, d_inverse, &shape);
    double *qk = zeros(n_unit), *inverse = zeros(rows), *dqkv = zeros(3 * n_y);
    float *after = download_real(d_dqkv, 3 * n_y), *unit = download_real(d_qk, n_unit);
    for (size_t i = 0; i < rows; i++) { /* gradients are computed from the stored vectors, which may be rounded */
        size_t from = i / (parts * H) * 3 * H * D + i % (parts * H) * D;
        double squares = 0, dot = 0;
        for (int c = 0; c < D; c++) squares += (double)qkv[from + c] * qkv[from + c];
        inverse[i] = 1 / fmax(sqrt(squares), 1e-6);
        for (int c = 0; c < D; c++) {
            qk[i * D + c] = inverse[i] * qkv[from + c];
            dot += (double)dqk[i * D + c] * unit[i * D + c];
        }
        if (squares < 1e-12) dot = 0;
        for (int c = 0; c < D; c++) {
            double gradient = inverse[i] * (dqk[i * D + c] - dot * unit[i * D + c]);
            if (inverse[i] > 1e3) { /* scaled down, because otherwise they would hide the others */
                gradient /= inverse[i];
                after[from + c] /= (float)inverse[i];
            }
            dqkv[from + c] = gradient;
        }
        inverse[i] = fmin(inverse[i], 1e3);
    }
    float *got = download(d_inverse, rows);
    for (size_t i = 0; i < rows; i++) got[i] = fminf(got[i], 1e3f);
    for (size_t i = 0; i < n; i++)
        for (int c = parts * H * D; c < 3 * H * D; c++) {
            size_t v = i * 3 * H * D + c;
            assert_true(after[v] == before[v]);
            dqkv[v] = before[v];
        }
    assert_true(close_real("unit", d_qk, qk, n_unit));
    assert_true(check_close("inverse", got, inverse, rows, 1e-5));
    assert_true(check_close_step("dqkv", after, dqkv, 3 * n_y, 1e-5, REAL_STEP));
    release_all();
}

static void test_unit_lengths(void **state) {
    (void)state;
    length_case(35, 2, 3, 5);
    length_case(1, 2, 1, 2);
    length_case(9, 2, 2, 16);
    length_case(4, 2, 1, 37);
    length_case(23, 3, 3, 5);
}

/* == Position weights ============================================================================================= */

static void weighted_case(Grid grid, int B, int H, int D, int tables) {
    Case k = {"toeplitz", OFFSETS_TOEPLITZ, grid, 0, 0, B, H, D, tables, false};
    Inputs x = inputs_of(&k); /* wb [T,tables] is r */
    WeightedAttention shape = {patterns_of(&k).offsets, tables, H, D};
    int N = grid_tokens(grid);
    double *y = zeros(x.n_y), *dv = zeros(x.n_y), *dqk = zeros(2 * x.n_y), *dr = widened(x.dwb, x.n_wb);
    for (int head = 0; head < B * H; head++)
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++) {
                size_t n = (size_t)(head / H) * N + i, m = (size_t)(head / H) * N + j;
                size_t r = (size_t)entry_of(&k, i, j) * tables + (tables > 1 ? head % H : 0);
                double a = 0, t = 0, weight = x.wb[r];
                for (int c = 0; c < D; c++) {
                    a += (double)x.qk[at(n, 2, 0, &k, head % H, c)] * x.qk[at(m, 2, 1, &k, head % H, c)];
                    t += (double)x.dy[at(n, 1, 0, &k, head % H, c)] * x.qkv[at(m, 3, 2, &k, head % H, c)];
                }
                dr[r] += a * t;
                for (int c = 0; c < D; c++) {
                    size_t q = at(n, 2, 0, &k, head % H, c), key = at(m, 2, 1, &k, head % H, c);
                    y[at(n, 1, 0, &k, head % H, c)] += a * weight * x.qkv[at(m, 3, 2, &k, head % H, c)];
                    dv[at(m, 1, 0, &k, head % H, c)] += a * weight * x.dy[at(n, 1, 0, &k, head % H, c)];
                    dqk[q] += t * weight * x.qk[key];
                    dqk[key] += t * weight * x.qk[q];
                }
            }
    printf("position weights %dx%dx%d B %d H %d D %d tables %d\n", grid.frames, grid.rows, grid.columns, B, H, D,
           tables);
    real *d_y = poisoned_real(x.n_y), *d_dqkv = upload_real(x.before, 3 * x.n_y), *d_dqk = poisoned_real(2 * x.n_y);
    float *d_dr = upload(x.dwb, x.n_wb);
    kernels_reserve(weighted_attention_workspace(&shape, B));
    weighted_attention_forward(d_y, x.d_qk, x.d_qkv, x.d_wb, &shape, B);
    weighted_attention_backward(d_dqkv, d_dqk, d_dr, x.d_dy, x.d_qk, x.d_qkv, x.d_wb, &shape, B);
    assert_true(close_halves("y", d_y, y, x.n_y));
    assert_true(close_values(d_dqkv, dv, &x, &k));
    assert_true(close_halves("dqk", d_dqk, dqk, 2 * x.n_y));
    assert_true(close_float("dr", d_dr, dr, x.n_wb));
    release_all();
}

static void test_position_weights(void **state) {
    (void)state;
    weighted_case((Grid){1, 5, 7}, 3, 3, 5, 1);
    weighted_case((Grid){1, 5, 7}, 2, 3, 5, 3);
    weighted_case((Grid){1, 1, 2}, 6, 3, 3, 1);
    weighted_case((Grid){1, 3, 12}, 1, 2, 17, 2);
    weighted_case((Grid){3, 4, 5}, 2, 3, 5, 3);
}

/* == Global filter ================================================================================================ */

typedef struct {
    int B;
    Grid grid;
    int M;
} FilterCase;

/* The angle of frequency f at token n. */
static double turn_of(GridPlace f, int n, Grid g) {
    GridPlace at = grid_place(g, n);
    return 2 * M_PI * ((double)f.t * at.t / g.frames + (double)f.y * at.y / g.rows + (double)f.x * at.x / g.columns);
}

/* Frequency f in channel c of image b, by definition. */
static void spectrum(double *re, double *im, const float *x, const FilterCase *k, int b, GridPlace f, int c) {
    int N = grid_tokens(k->grid);
    *re = *im = 0;
    for (int n = 0; n < N; n++) {
        double angle = -turn_of(f, n, k->grid), value = x[((size_t)b * N + n) * k->M + c];
        *re += value * cos(angle);
        *im += value * sin(angle);
    }
}

/* The stored half of the frequencies. */
static Grid half_of(Grid g) { return (Grid){g.frames, g.rows, g.columns / 2 + 1}; }

/* y = Re sum_f m_f w_f X_f exp(...) / N over the stored half, where m is 1 in the columns 0 and Wg/2 and otherwise 2;
 * and its gradients, one frequency at a time. */
static void filter_reference(double *y, double *dx, double *dw, const float *x, const float *dy, const float *w,
                             const FilterCase *k) {
    int N = grid_tokens(k->grid);
    for (int b = 0; b < k->B; b++)
        for (int c = 0; c < k->M; c++)
            for (int i = 0; i < grid_tokens(half_of(k->grid)); i++) {
                GridPlace f = grid_place(half_of(k->grid), i);
                double many = (f.x == 0 || 2 * f.x == k->grid.columns ? 1.0 : 2.0) / N, xr, xi, gr, gi;
                size_t at_w = ((size_t)i * k->M + c) * 2;
                double wr = w[at_w], wi = w[at_w + 1];
                spectrum(&xr, &xi, x, k, b, f, c);
                spectrum(&gr, &gi, dy, k, b, f, c);
                dw[at_w] += many * (xr * gr + xi * gi);
                dw[at_w + 1] += many * (xr * gi - xi * gr);
                for (int n = 0; n < N; n++) {
                    double angle = turn_of(f, n, k->grid);
                    size_t at_x = ((size_t)b * N + n) * k->M + c;
                    y[at_x] += many * ((wr * xr - wi * xi) * cos(angle) - (wr * xi + wi * xr) * sin(angle));
                    dx[at_x] += many * ((wr * gr + wi * gi) * cos(angle) - (wr * gi - wi * gr) * sin(angle));
                }
            }
}

static void filter_case(FilterCase k) {
    size_t n = (size_t)k.B * grid_tokens(k.grid) * k.M, n_w = (size_t)grid_tokens(half_of(k.grid)) * k.M * 2;
    printf("global filter B %d %dx%dx%d M %d\n", k.B, k.grid.frames, k.grid.rows, k.grid.columns, k.M);
    float *x = normals(n, 1), *dy = normals(n, 1), *w = normals(n_w, 1), *before = normals(n_w, 1);
    real *d_x = upload_real(x, n), *d_dy = upload_real(dy, n), *d_y = poisoned_real(n), *d_dx = poisoned_real(n);
    float *d_w = upload(w, n_w), *d_dw = upload(before, n_w);
    double *y = zeros(n), *dx = zeros(n), *dw = widened(before, n_w);
    filter_reference(y, dx, dw, x, dy, w, &k);
    kernels_reserve(global_filter_workspace(k.B, k.grid, k.M));
    global_filter_forward(d_y, d_x, d_w, k.B, k.grid, k.M);
    global_filter_backward(d_dx, d_dw, d_dy, d_x, d_w, k.B, k.grid, k.M);
    assert_true(close_real("y", d_y, y, n));
    assert_true(close_real("dx", d_dx, dx, n));
    assert_true(close_float("dw", d_dw, dw, n_w));
    release_all();
}

static void test_global_filter(void **state) {
    (void)state;
    const FilterCase cases[] = {
        {3, {1, 5, 7}, 5},  {2, {1, 4, 6}, 17}, {5, {1, 1, 1}, 19}, {5, {1, 2, 1}, 12}, {1, {1, 3, 11}, 2},
        {4, {1, 8, 8}, 4},  {2, {3, 5, 7}, 5},  {3, {2, 3, 4}, 4},  {2, {4, 2, 6}, 17}, {3, {11, 1, 2}, 3},
        {3, {1, 1, 12}, 2}, {3, {5, 4, 1}, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) filter_case(cases[i]);
}

/* == Known results ================================================================================================ */

enum { CASE_N = 12, CASE_D = 2, CASE_E = 2 };

static float *sines(size_t n, double a, double b, double shift, double size, int cosine) {
    float *x = normals(n, 1);
    for (size_t i = 0; i < n; i++) {
        double angle = a * (double)(i / CASE_D) + b * (double)(i % CASE_D) + shift;
        x[i] = (float)(size * (cosine ? cos(angle) : sin(angle)));
    }
    return x;
}

/* One head on 2 x 3 x 2 tokens, with sines of unit length as q and k, against float64 sums over all pairs: y of token
 * 0, and the sum of y and of its squares over all tokens. */
static void numeric_case(OffsetKind kind, const LisaAlgorithm *a, double y0, double y1, double sum, double squares) {
    Case k = {"numbers", kind, {2, 3, 2}, 3, 3, 1, 1, CASE_D, CASE_E, true};
    Patterns patterns = patterns_of(&k);
    int T = entries_of(&k), ny = CASE_N * CASE_D;
    float *q = sines(ny, 0.7, 1.3, 0.2, 1, 0), *key = sines(ny, 0.5, -0.9, 0.1, 1, 1);
    float *v = sines(ny, 0.3, 0.8, -0.4, 1, 0);
    float *qk = normals(2 * ny, 1), *qkv = normals(3 * ny, 1), *wa = normals((size_t)T * 4, 1);
    float *wb = sines(2 * T, 0.9, -0.5, 0.3, 0.1, 0);
    float b[] = {0.05f, 0, 0.1f, 0.05f};
    for (int i = 0; i < ny; i++) {
        int n = i / 2, c = i % 2;
        qk[4 * n + c] = q[i] / hypotf(q[2 * n], q[2 * n + 1]);
        qk[4 * n + 2 + c] = key[i] / hypotf(key[2 * n], key[2 * n + 1]);
        qkv[6 * n + 4 + c] = v[i];
    }
    for (int i = 0; i < 4 * T; i++) wa[i] = (float)(0.1 * cos(0.4 * (i / 4) + 0.6 * (i / 2 % 2) + 1.1 * (i % 2)));
    real *y = poisoned_real(ny), *s = poisoned_real(ny);
    LisaTables tables = {patterns, upload(wa, 4 * T), upload(wb, 2 * T), upload(b, 4)};
    kernels_reserve(a->workspace(&patterns, 1, false));
    a->forward(y, s, upload_real(qk, 2 * ny), upload_real(qkv, 3 * ny), &tables, 1);
    const float *got = download_real(y, ny);
    double total[] = {0, 0}, tolerance = sizeof(real) == 4 ? 1e-6 : 2e-2;
    for (int i = 0; i < ny; i++) total[0] += got[i], total[1] += (double)got[i] * got[i];
    printf("%s, %s: y[0] %.8f %.8f, sums %.8f %.8f\n", a->name, k.name, (double)got[0], (double)got[1], total[0],
           total[1]);
    assert_true(fabs(got[0] - y0) < tolerance && fabs(got[1] - y1) < tolerance);
    assert_true(fabs(total[0] - sum) < 8 * tolerance && (isnan(squares) || fabs(total[1] - squares) < 8 * tolerance));
    release_all();
}

static void test_numbers(void **state) {
    (void)state;
    const LisaAlgorithm *both[] = {&dense, &fft};
    for (int a = 0; a < 2; a++) {
        numeric_case(OFFSETS_CIRCLE, both[a], 0.01746546, 0.03584636, 1.18773642, 0.27695210);
        numeric_case(OFFSETS_TORUS, both[a], -0.01569199, 0.00428144, 0.77625136, 0.09616508);
    }
    numeric_case(OFFSETS_LOCAL, &dense, 0.07580945, 0.06009840, -0.13816707, NAN);
}

/* A filter of 2 x 3 x 4 tokens against numpy.fft.rfftn and irfftn. */
static void test_filter_numbers(void **state) {
    (void)state;
    float x[24], w[36];
    double sum = 0, squares = 0, tolerance = sizeof(real) == 4 ? 2e-6 : 5e-2;
    for (int n = 0; n < 24; n++) x[n] = (float)sin(0.37 * n + 0.2);
    for (int m = 0; m < 18; m++) w[2 * m] = (float)cos(0.21 * m), w[2 * m + 1] = (float)sin(0.13 * m + 0.1);
    Grid grid = {2, 3, 4};
    real *y = poisoned_real(24);
    kernels_reserve(global_filter_workspace(1, grid, 1));
    global_filter_forward(y, upload_real(x, 24), upload(w, 36), 1, grid, 1);
    const float *got = download_real(y, 24);
    for (int n = 0; n < 24; n++) sum += got[n], squares += (double)got[n] * got[n];
    printf("filter: %.8f %.8f %.8f, sums %.8f %.8f\n", (double)got[0], (double)got[6], (double)got[23], sum, squares);
    assert_true(fabs(got[0] + 0.58777815) < tolerance && fabs(got[6] - 0.15617774) < tolerance);
    assert_true(fabs(got[23] + 0.56211112) < tolerance);
    assert_true(fabs(sum - 5.06344633) < 8 * tolerance && fabs(squares - 10.07751575) < 8 * tolerance);
    release_all();
}

/* CUDA's kernels transform in shared memory or by cuFFT; on a CPU the setting has no effect. */
static int by_cufft(void **state) {
    (void)state;
    return setenv("VIT_TRANSFORMS", "cufft", 1);
}
static int by_default(void **state) {
    (void)state;
    return unsetenv("VIT_TRANSFORMS");
}
#define WAY(test, way, name) {#test ", " name, test, way, by_default, NULL}

/* A plan for a batch also computes smaller batches, with the same bits, even in a graph, where no plan can be made. */
static void test_smaller_batches(void **state) {
    (void)state;
    static const Case k = {"torus", OFFSETS_TORUS, {1, 5, 6}, 0, 0, 3, 2, 5, 3, true};
    Inputs x = inputs_of(&k);
    LisaTables tables = {patterns_of(&k), x.d_wa, x.d_wb, x.d_b};
    size_t n = x.n_y / 3;
    real *y = poisoned_real(x.n_y), *s = poisoned_real(x.n_s), *few = poisoned_real(x.n_y);
    float *w = upload(normals(5 * 4 * 7 * 2, 1), 5 * 4 * 7 * 2);
    size_t lisa = fft.workspace(&tables.patterns, 3, false), filter = global_filter_workspace(3, k.grid, 7);
    kernels_reserve(lisa > filter ? lisa : filter);
    fft.forward(y, s, x.d_qk, x.d_qkv, &tables, 3);
    for (int B = 1; B < 3; B++) {
        DeviceGraph *graph = NULL;
        for (int step = 0; step < 4; step++) { /* the first steps are not a graph yet */
            if (!device_graph_begin(&graph)) continue;
            fft.forward(few, s, x.d_qk, x.d_qkv, &tables, B);
            device_graph_end(&graph);
        }
        device_graph_free(&graph);
        assert_memory_equal(download_real(few, B * n), download_real(y, B * n), B * n * sizeof(float));
    }
    global_filter_forward(y, x.d_qk, w, 3, k.grid, 7);
    size_t filtered = (size_t)2 * 30 * 7; /* in shared memory images are transformed in pairs */
    global_filter_forward(few, x.d_qk, w, 2, k.grid, 7);
    assert_memory_equal(download_real(few, filtered), download_real(y, filtered), filtered * sizeof(float));
    release_all();
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_algorithms_agree),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_costs),
        cmocka_unit_test(test_unit_lengths),
        cmocka_unit_test(test_position_weights),
        cmocka_unit_test(test_global_filter),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_filter_numbers),
        cmocka_unit_test(test_smaller_batches),
        WAY(test_formulas, by_cufft, "cuFFT"),
        WAY(test_algorithms_agree, by_cufft, "cuFFT"),
        WAY(test_nan, by_cufft, "cuFFT"),
        WAY(test_global_filter, by_cufft, "cuFFT"),
        WAY(test_numbers, by_cufft, "cuFFT"),
        WAY(test_filter_numbers, by_cufft, "cuFFT"),
        WAY(test_smaller_batches, by_cufft, "cuFFT"),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
