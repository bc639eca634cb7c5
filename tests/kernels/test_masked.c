/* The detector's kernels against their formulas in double: attention with padding, dropout and modulation; dropout
 * alone; linear layers that fill part of a tensor; sine positions; feature maps and projections of each head. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/on_device.h"

static int *upload_ints(const int *x, size_t n) {
    int *d = keep(device_malloc(n * sizeof *d, "test"), true);
    device_upload(d, x, n * sizeof *d);
    return d;
}

/* == Dropout ====================================================================================================== */

/* Whether element i is kept: the rule in kernels.h, computed from rng_bits alone. */
static bool is_kept(const Dropout *d, int image, uint64_t i) {
    uint64_t block = i / 128 * 16 + i % 16, half = i / 16 % 8;
    uint32_t bits =
        rng_bits(d->seed, RNG_DROPOUT, d->step, d->site << 20 | (d->first + (uint32_t)image), 4 * block + half / 2);
    return (bits >> 16 * (half % 2) & 0xffff) >= (uint32_t)lrint(65536 * (double)d->rate);
}

static double factor(const Dropout *d, int image, uint64_t i) {
    return d->rate > 0 ? is_kept(d, image, i) ? 1 / (1 - (double)d->rate) : 0 : 1;
}

static void dropout_case(int B, size_t n, float rate) {
    Dropout d = {rate, 0xABCDEF0123456789u ^ check_seed(), 41, 7, 5};
    size_t count = (size_t)B * n;
    printf("dropout B %d n %zu rate %g\n", B, n, (double)rate);
    float *x = normals(count, 1), *dy = normals(count, 1);
    real *d_x = upload_real(x, count), *d_dy = upload_real(dy, count), *y = poisoned_real(count),
         *z = poisoned_real(count), *dx = poisoned_real(count);
    double *want = zeros(count), *relu = zeros(count), *want_dx = zeros(count);
    dropout_forward(y, d_x, &d, B, n);
    relu_dropout_forward(z, d_x, &d, B, n);
    relu_dropout_backward(dx, d_dy, z, rate, count);
    for (size_t i = 0; i < count; i++) {
        double f = factor(&d, (int)(i / n), i % n);
        want[i] = f * x[i];
        relu[i] = x[i] > 0 ? want[i] : 0;
        want_dx[i] = relu[i] > 0 ? f * dy[i] : 0;
    }
    assert_true(close_real("drop(x)", y, want, count));
    assert_true(close_real("drop(relu(x))", z, relu, count));
    assert_true(close_real("its gradient", dx, want_dx, count));
    dropout_forward(d_x, d_x, &d, B, n); /* in place */
    assert_memory_equal(download_real(d_x, count), download_real(y, count), count * sizeof(float));
    add_forward(y, d_dy, z, count);
    float *dropped = download_real(z, count);
    for (size_t i = 0; i < count; i++) want[i] = (double)dy[i] + dropped[i];
    assert_true(close_real("a + b", y, want, count));
    release_all();
}

static void test_dropout(void **state) {
    (void)state;
    dropout_case(3, 300, 0.1f);
    dropout_case(1, 90, 0.5f);
    dropout_case(2, 1024, 0.25f);
    dropout_case(2, 130, 0);
}

static void test_bias_relu(void **state) {
    const int sizes[][2] = {{11, 7}, {20, 5}, {33, 80}, {5, 256}, {9, 33}};
    (void)state;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        size_t n = (size_t)sizes[k][0], C = (size_t)sizes[k][1];
        float *x = normals(n * C, 1), *b = normals(C, 1);
        real *d_x = upload_real(x, n * C), *y = upload_real(x, n * C);
        float *d_b = upload(b, C);
        double *want = zeros(n * C);
        for (size_t i = 0; i < n * C; i++) want[i] = fmax((double)x[i] + b[i % C], 0);
        bias_relu_forward(y, d_x, d_b, n, (int)C);
        assert_true(close_real("relu(x + b)", y, want, n * C));
        bias_relu_forward(d_x, d_x, d_b, n, (int)C); /* in place */
        assert_memory_equal(download_real(d_x, n * C), download_real(y, n * C), n * C * sizeof(float));
        release_all();
    }
}

/* The fraction of dropped elements, and its independence of neighbours, step, site, image and seed. */
static void test_dropout_statistics(void **state) {
    (void)state;
    enum { N = 1 << 16 };
    Dropout d = {0.1f, check_seed(), 3, 2, 9};
    const Dropout others[] = {{0.1f, check_seed(), 4, 2, 9},
                              {0.1f, check_seed(), 3, 1, 9},
                              {0.1f, check_seed(), 3, 2, 10},
                              {0.1f, check_seed() + 1, 3, 2, 9}};
    static float ones[N], kept_values[5][N];
    for (int i = 0; i < N; i++) ones[i] = 1;
    for (int k = 0; k < 5; k++) {
        real *x = upload_real(ones, N), *y = poisoned_real(N);
        dropout_forward(y, x, k ? &others[k - 1] : &d, 1, N);
        memcpy(kept_values[k], download_real(y, N), sizeof kept_values[k]);
    }
    double dropped = 0, next = 0, apart = 0, both[5] = {0};
    for (int i = 0; i < N; i++) {
        bool zero = kept_values[0][i] == 0;
        dropped += zero;
        next += zero && kept_values[0][(i + 1) % N] == 0;
        apart += zero && kept_values[0][(i + 16) % N] == 0;
        for (int k = 1; k < 5; k++) both[k] += zero && kept_values[k][i] == 0;
    }
    double deviation = sqrt(0.01 * 0.99 * N); /* of the number of pairs that are both dropped */
    printf("  dropped %.4f, pairs %.0f %.0f %.0f %.0f %.0f %.0f of %d\n", dropped / N, next, apart, both[1], both[2],
           both[3], both[4], N);
    assert_true(fabs(dropped - 0.1 * N) < 6 * sqrt(0.09 * N));
    assert_true(fabs(next - 0.01 * N) < 6 * deviation && fabs(apart - 0.01 * N) < 6 * deviation);
    for (int k = 1; k < 5; k++) assert_true(fabs(both[k] - 0.01 * N) < 6 * deviation);
    release_all();
}

/* == Attention ==================================================================================================== */

typedef struct {
    int B, H, D, Q, h, w, type;
    float rate;
    int within; /* 1: q, k and v are thirds of one tensor; 2: k and v halves of one; 0: all apart */
    int cells[6];
} AttentionCase;

typedef struct {
    double *y, *lse, *dq, *dk, *dv, *dcentre, *dz;
} AttentionWant;

typedef struct {
    float *q, *k, *v, *dy, *centre, *z;
} AttentionInput;

static double modulation(const AttentionCase *c, const float *centre, const float *z, int gx, int gy, double *slope) {
    double dx = centre[0] - gx, dy = centre[1] - gy, a[3] = {1, 1, 0}, zs[3] = {1, 1, 0};
    int scales = modulation_scales(c->type);
    for (int i = 0; i < scales; i++) zs[i] = z[i];
    if (scales == 1) zs[1] = zs[0];
    for (int i = 0; i < 3; i++) a[i] = zs[i] * zs[i];
    slope[0] = -(2 * a[0] * dx + 2 * a[2] * dx * dy * dy) / 8;
    slope[1] = -(2 * a[1] * dy + 2 * a[2] * dx * dx * dy) / 8;
    slope[2] = -2 * zs[0] * dx * dx / 8;
    slope[3] = -2 * zs[1] * dy * dy / 8;
    slope[4] = -2 * zs[2] * dx * dx * dy * dy / 8;
    return -(a[0] * dx * dx + a[1] * dy * dy + a[2] * dx * dx * dy * dy) / 8;
}

static void add_product(double *sum, double *size, size_t at, double a, double a_size, double b) {
    sum[at] += a * b;
    size[at] += a_size * fabs(b);
}

/* One query of one head, over all keys that are not padding.  s: the absolute values of the terms, summed. */
static void query_reference(AttentionWant *r, AttentionWant *s, const AttentionInput *x, const AttentionCase *c,
                            const Dropout *drop, int b, int h, int i) {
    int N = c->h * c->w, rows = c->cells[2 * b], columns = c->cells[2 * b + 1], D = c->D,
        scales = modulation_scales(c->type);
    size_t query = (((size_t)b * c->Q + i) * c->H + h), padded = (size_t)(N + 127) / 128 * 128;
    double *p = calloc((size_t)N, sizeof *p), (*slope)[5] = calloc((size_t)N, sizeof *slope);
    double largest = -INFINITY, sum = 0, delta = 0, delta_size = 0;
    for (int j = 0; j < rows * columns; j++) {
        size_t key = (((size_t)b * N + j / columns * c->w + j % columns) * c->H + h) * D;
        for (int d = 0; d < D; d++) p[j] += (double)x->q[query * D + d] * x->k[key + d] / sqrt(D);
        if (c->type)
            p[j] += modulation(c, x->centre + 2 * query, x->z + query * scales, j % columns, j / columns, slope[j]);
        largest = fmax(largest, p[j]);
    }
    for (int j = 0; j < rows * columns; j++) sum += p[j] = exp(p[j] - largest);
    r->lse[((size_t)b * c->H + h) * c->Q + i] = largest + log(sum);
    for (int pass = 0; pass < 3; pass++)
        for (int j = 0; j < rows * columns; j++) {
            size_t key = (((size_t)b * N + j / columns * c->w + j % columns) * c->H + h) * D;
            double f = factor(drop, b, ((size_t)h * c->Q + i) * padded + j), dp = 0, dp_size = 0;
            if (pass == 0) p[j] /= sum;
            for (int d = 0; d < D; d++) {
                if (pass == 0) add_product(r->y, s->y, query * D + d, f * p[j], f * p[j], x->v[key + d]);
                dp += f * x->dy[query * D + d] * x->v[key + d];
                dp_size += fabs(f * x->dy[query * D + d] * x->v[key + d]);
            }
            if (pass == 1) delta += p[j] * dp, delta_size += p[j] * dp_size;
            if (pass < 2) continue;
            double ds = p[j] * (dp - delta), ds_size = p[j] * (dp_size + delta_size);
            for (int d = 0; d < D; d++) {
                add_product(r->dq, s->dq, query * D + d, ds, ds_size, x->k[key + d] / sqrt(D));
                add_product(r->dk, s->dk, key + d, ds, ds_size, x->q[query * D + d] / sqrt(D));
                add_product(r->dv, s->dv, key + d, f * p[j], f * p[j], x->dy[query * D + d]);
            }
            if (!c->type) continue;
            add_product(r->dcentre, s->dcentre, 2 * query, ds, ds_size, slope[j][0]);
            add_product(r->dcentre, s->dcentre, 2 * query + 1, ds, ds_size, slope[j][1]);
            for (int k = 0; k < scales; k++)
                add_product(r->dz, s->dz, query * scales + k, ds, ds_size, slope[j][2 + k]);
            if (scales == 1) add_product(r->dz, s->dz, query, ds, ds_size, slope[j][3]);
        }
    free(p);
    free(slope);
}

/* Copies `part` to position `at` of rows with `parts` parts of M numbers. */
static void place_part(float *whole, const float *part, size_t tokens, size_t M, int parts, int at) {
    for (size_t t = 0; t < tokens; t++) memcpy(whole + (t * parts + at) * M, part + t * M, M * sizeof *part);
}

static float *take_part(const float *whole, size_t tokens, size_t M, int parts, int at) {
    float *part = keep(calloc(tokens * M, sizeof *part), false);
    for (size_t t = 0; t < tokens; t++) memcpy(part + t * M, whole + (t * parts + at) * M, M * sizeof *part);
    return part;
}

static AttentionWant no_sums(size_t queries, size_t keys, size_t rows, size_t M, size_t scales) {
    return (AttentionWant){zeros(queries * M), zeros(rows), zeros(queries * M), zeros(keys * M), zeros(keys * M),
                           zeros(rows * 2), zeros(rows * scales)};
}

static void attention_case(AttentionCase c) {
    size_t N = (size_t)c.h * c.w, M = (size_t)c.H * c.D, queries = (size_t)c.B * c.Q, keys = (size_t)c.B * N;
    size_t scales = (size_t)modulation_scales(c.type), rows = queries * c.H;
    printf("masked attention B %d H %d D %d Q %d grid %dx%d type %d rate %g\n", c.B, c.H, c.D, c.Q, c.h, c.w, c.type,
           (double)c.rate);
    Dropout drop = {c.rate, check_seed(), 12, 3, 1};
    AttentionInput x = {rounded_real(normals(queries * M, 0.7f), queries * M),
                        rounded_real(normals(keys * M, 0.7f), keys * M),
                        rounded_real(normals(keys * M, 1), keys * M),
                        rounded_real(normals(queries * M, 1), queries * M),
                        normals(rows * 2, 1),
                        rounded_real(normals(rows * scales + 1, 0.3f), rows * scales)};
    for (size_t i = 0; i < rows * 2; i++) x.centre[i] = x.centre[i] + (i % 2 ? c.h : c.w) / 3.0f;
    for (size_t i = 0; i < rows * scales; i++) x.z[i] += 1;
    rounded_real(x.z, rows * scales);
    int q_parts = c.within == 1 ? 3 : 1, k_parts = c.within == 1 ? 3 : c.within == 2 ? 2 : 1;
    float *q_whole = normals(queries * M * q_parts, 1),
          *k_whole = c.within == 1 ? q_whole : normals(keys * M * k_parts, 1),
          *v_whole = c.within ? k_whole : normals(keys * M, 1);
    place_part(q_whole, x.q, queries, M, q_parts, 0);
    place_part(k_whole, x.k, keys, M, k_parts, c.within == 1);
    place_part(v_whole, x.v, keys, M, k_parts, c.within ? c.within == 1 ? 2 : 1 : 0);
    real *q = upload_real(q_whole, queries * M * q_parts),
         *k = c.within == 1 ? q : upload_real(k_whole, keys * M * k_parts);
    real *v = c.within ? k : upload_real(v_whole, keys * M);
    real *dq = poisoned_real(queries * M * q_parts), *dk = c.within == 1 ? dq : poisoned_real(keys * M * k_parts);
    real *dv = c.within ? dk : poisoned_real(keys * M);
    size_t k_at = c.within == 1 ? M : 0, v_at = c.within == 1 ? 2 * M : c.within == 2 ? M : 0;
    real *y = poisoned_real(queries * M), *dy = upload_real(x.dy, queries * M), *dz = poisoned_real(rows * scales);
    float *lse = poisoned(rows), *dcentre = poisoned(rows * 2);
    Modulation m = {upload(x.centre, rows * 2), upload_real(x.z, rows * scales)};
    ModulationGradients dm = {dcentre, dz};
    bool padded = false;
    for (int b = 0; b < c.B; b++) padded |= c.cells[2 * b] < c.h || c.cells[2 * b + 1] < c.w;
    MaskedAttention shape = {.B = c.B, .H = c.H, .D = c.D, .Q = c.Q, .grid = {1, c.h, c.w}, .q_row = q_parts * (int)M,
                             .kv_row = k_parts * (int)M, .cells = padded ? upload_ints(c.cells, 2 * (size_t)c.B) : NULL,
                             .dropout = drop, .scale_type = c.type};
    const MaskedInputs in = {q, k + k_at, v + v_at};
    const MaskedGradients d = {dq, dk + k_at, dv + v_at};
    kernels_reserve(masked_attention_workspace(&shape));
    masked_attention_forward(y, lse, &in, c.type ? &m : NULL, &shape);
    masked_attention_backward(&d, c.type ? &dm : NULL, dy, y, lse, &in, c.type ? &m : NULL, &shape);
    AttentionWant want = no_sums(queries, keys, rows, M, scales), size = no_sums(queries, keys, rows, M, scales);
    for (int b = 0; b < c.B; b++)
        for (int h = 0; h < c.H; h++)
            for (int i = 0; i < c.Q; i++) query_reference(&want, &size, &x, &c, &drop, b, h, i);
    int ok = close_sums("y", download_real(y, queries * M), want.y, size.y, queries * M, false);
    ok &= check_close("lse", download(lse, rows), want.lse, rows, 2e-5);
    float *dq_got = download_real(dq, queries * M * q_parts), *dk_got = download_real(dk, keys * M * k_parts),
          *dv_got = download_real(dv, keys * M * k_parts);
    ok &= close_sums("dv", take_part(dv_got, keys, M, k_parts, (int)(v_at / M)), want.dv, size.dv, keys * M, false);
    bool lone = c.h * c.w == 1;
    ok &= close_sums("dq", take_part(dq_got, queries, M, q_parts, 0), want.dq, size.dq, queries * M, lone);
    ok &= close_sums("dk", take_part(dk_got, keys, M, k_parts, (int)(k_at / M)), want.dk, size.dk, keys * M, lone);
    if (c.type) ok &= close_sums("dcentre", download(dcentre, rows * 2), want.dcentre, size.dcentre, rows * 2, lone);
    if (scales) ok &= close_sums("dz", download_real(dz, rows * scales), want.dz, size.dz, rows * scales, lone);
    assert_true(ok);
    for (size_t t = 0; t < keys; t++) /* the gradients of padding are exactly 0 */
        if ((int)(t % N) / c.w >= c.cells[t / N * 2] || (int)(t % N) % c.w >= c.cells[t / N * 2 + 1])
            for (size_t i = 0; i < M; i++)
                assert_true(dk_got[t * k_parts * M + k_at + i] == 0 && dv_got[t * k_parts * M + v_at + i] == 0);
    release_all();
}

/* With a single key, gradients of scores are only rounding errors, which the distances of far cells enlarge. */
static void test_masked_attention(void **state) {
    (void)state;
    const AttentionCase cases[] = {
        {2, 2, 5, 7, 3, 4, 0, 0, 0, {3, 3, 2, 4}},     {1, 1, 1, 1, 1, 1, 0, 0, 0, {1, 1}},
        {2, 2, 8, 5, 5, 7, 3, 0.1f, 2, {5, 6, 4, 7}},  {1, 3, 4, 35, 5, 7, 0, 0.1f, 1, {4, 6}},
        {1, 1, 16, 33, 9, 31, 1, 0.1f, 0, {9, 30}},    {1, 2, 6, 40, 4, 6, 2, 0, 2, {2, 3}},
        {3, 1, 7, 9, 6, 5, 4, 0.2f, 2, {6, 5, 1, 1, 3, 5}}, {1, 1, 33, 70, 10, 13, 4, 0, 0, {10, 13}},
        {1, 1, 130, 6, 3, 5, 3, 0.1f, 2, {2, 5}},      {1, 1, 65, 3, 2, 70, 0, 0.1f, 2, {2, 67}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) attention_case(cases[i]);
}

/* With a centre far from all cells, scores are far below zero, but the weights still sum to 1. */
static void test_far_centre(void **state) {
    (void)state;
    enum { N = 40, D = 4 };
    float centre[2] = {1000, -2000}, z[2] = {3, 3}, *v = rounded_real(normals(N * D, 1), N * D);
    real *q = upload_real(normals(D, 1), D), *k = upload_real(normals(N * D, 1), N * D), *d_v = upload_real(v, N * D),
         *y = poisoned_real(D);
    float *lse = poisoned(1);
    Modulation m = {upload(centre, 2), upload_real(z, 2)};
    MaskedAttention shape = {.B = 1, .H = 1, .D = D, .Q = 1, .grid = {1, 4, 10}, .q_row = D, .kv_row = D,
                             .scale_type = 3};
    kernels_reserve(masked_attention_workspace(&shape));
    masked_attention_forward(y, lse, &(MaskedInputs){q, k, d_v}, &m, &shape);
    double want[D];
    for (int d = 0; d < D; d++) want[d] = v[9 * D + d]; /* the nearest cell, x 9 and y 0, has weight 1 */
    assert_true(close_real("the nearest cell", y, want, D));
    release_all();
}

static double largest_of(const float *x, size_t n) {
    double most = 0;
    for (size_t i = 0; i < n; i++) most = x[i] == x[i] ? fmax(most, fabs((double)x[i])) : INFINITY;
    return most;
}

/* If all cells have the same values, modulation does not change y, and its gradients are 0, even with a rounded y and
 * far cells.  Without a correction, the rounding of delta would cause gradients of 1e-3 and more. */
static void test_equal_values(void **state) {
    (void)state;
    enum { N = 40, D = 8, Q = 6 };
    float centre[2 * Q], z[3 * Q], *v = rounded_real(normals(D, 20), D), *values = malloc(N * D * sizeof *values);
    for (int i = 0; i < N * D; i++) values[i] = v[i % D];
    for (int i = 0; i < Q; i++) {
        centre[2 * i] = 9 - 3 * (float)i;
        centre[2 * i + 1] = (float)i - 2;
        for (int k = 0; k < 3; k++) z[3 * i + k] = 0.25f * (float)(k + 1);
    }
    real *q = upload_real(normals(Q * D, 1), Q * D), *k = upload_real(normals(N * D, 1), N * D),
         *d_v = upload_real(values, N * D), *dy = upload_real(normals(Q * D, 20), Q * D);
    real *y = poisoned_real(Q * D), *dq = poisoned_real(Q * D), *dk = poisoned_real(N * D), *dv = poisoned_real(N * D);
    float *lse = poisoned(Q);
    Modulation m = {upload(centre, 2 * Q), upload_real(z, 3 * Q)};
    ModulationGradients dm = {poisoned(2 * Q), poisoned_real(3 * Q)};
    MaskedAttention shape = {.B = 1, .H = 1, .D = D, .Q = Q, .grid = {1, 4, 10}, .q_row = D, .kv_row = D,
                             .scale_type = 4};
    kernels_reserve(masked_attention_workspace(&shape));
    masked_attention_forward(y, lse, &(MaskedInputs){q, k, d_v}, &m, &shape);
    masked_attention_backward(&(MaskedGradients){dq, dk, dv}, &dm, dy, y, lse, &(MaskedInputs){q, k, d_v}, &m, &shape);
    double most = fmax(largest_of(download(dm.centre, 2 * Q), 2 * Q), largest_of(download_real(dm.z, 3 * Q), 3 * Q));
    printf("  largest gradient of centres and scales: %.2g\n", most);
    assert_true(most < (sizeof(real) == 4 ? 1e-6 : 1e-2));
    free(values);
    release_all();
}

/* == Positions ==================================================================================================== */

static void positions_case(int B, int h, int w, int M, const int *cells) {
    size_t n = (size_t)B * h * w * M;
    printf("sine positions B %d grid %dx%d M %d\n", B, h, w, M);
    real *pos = poisoned_real(n);
    double *want = zeros(n);
    sine_positions(pos, upload_ints(cells, 2 * (size_t)B), B, (Grid){1, h, w}, M);
    for (size_t at = 0; at < n; at++) {
        int m = (int)(at % M), half = M / 2, i = m % half, x = (int)(at / M % w), y = (int)(at / M / w % h);
        const int *own = cells + 2 * (at / M / w / h);
        /* cumulative sums over the mask, as in DETR's code */
        int along = 0, all = 0;
        for (int o = 0; o < (m < half ? h : w); o++) {
            int valid = m < half ? o < own[0] && x < own[1] : y < own[0] && o < own[1];
            all += valid;
            if (o <= (m < half ? y : x)) along += valid;
        }
        double angle = 2 * 3.14159265358979323846 * along / (all + 1e-6) / pow(10000, 2.0 * (i / 2) / half);
        want[at] = i % 2 ? cos(angle) : sin(angle);
    }
    assert_true(close_real("positions", pos, want, n));
    release_all();
}

static void test_positions(void **state) {
    (void)state;
    positions_case(2, 5, 7, 12, (int[]){5, 6, 3, 7});
    positions_case(3, 4, 4, 32, (int[]){1, 1, 4, 4, 2, 3});
    positions_case(1, 1, 9, 4, (int[]){1, 9});
}

/* == Linear layers in part of a tensor ============================================================================ */

static void rows_case(size_t n, int in, int out, int row, int at) {
    printf("linear rows n %zu in %d out %d row %d at %d\n", n, in, out, row, at);
    float *x = normals(n * in, 1), *w = normals((size_t)out * in, 0.3f), *b = normals(out, 1),
          *dy = normals(n * row, 1), *before = normals(n * row, 1);
    float *dw = normals((size_t)out * in, 1), *db = normals(out, 1);
    real *d_x = upload_real(x, n * in), *d_y = upload_real(before, n * row), *d_dy = upload_real(dy, n * row),
         *dx = poisoned_real(n * in);
    rounded_real(w, (size_t)out * in);
    rounded_real(b, out);
    float *d_w = upload(w, (size_t)out * in), *d_b = upload(b, out), *d_dw = upload(dw, (size_t)out * in),
          *d_db = upload(db, out);
    double *y = zeros(n * row), *want_dx = zeros(n * in), *want_dw = zeros((size_t)out * in), *want_db = zeros(out);
    for (size_t i = 0; i < n * row; i++) y[i] = before[i];
    for (size_t i = 0; i < (size_t)out * in; i++) want_dw[i] = dw[i];
    for (int o = 0; o < out; o++) want_db[o] = db[o];
    for (size_t t = 0; t < n; t++)
        for (int o = 0; o < out; o++) {
            double sum = b[o], g = dy[t * row + at + o];
            for (int i = 0; i < in; i++) {
                sum += (double)x[t * in + i] * w[(size_t)o * in + i];
                want_dx[t * in + i] += g * w[(size_t)o * in + i];
                want_dw[(size_t)o * in + i] += g * x[t * in + i];
            }
            want_db[o] += g;
            y[t * row + at + o] = sum;
        }
    const LinearShape shape = {n, in, out, row};
    linear_forward(d_y + at, d_x, d_w, d_b, &shape);
    linear_backward_input(dx, d_dy + at, d_w, &shape);
    linear_backward_weight(d_dw, d_db, d_dy + at, d_x, &shape);
    assert_true(close_real("y", d_y, y, n * row));
    assert_true(close_real("dx", dx, want_dx, n * in));
    assert_true(close_float("dw", d_dw, want_dw, (size_t)out * in));
    assert_true(close_float("db", d_db, want_db, out));
    release_all();
}

static void test_linear_rows(void **state) {
    (void)state;
    rows_case(37, 12, 8, 24, 16);
    rows_case(3, 5, 7, 21, 7);
    rows_case(130, 32, 64, 96, 0);
}

/* == A map and a projection for each head ========================================================================= */

/* Compares each head with the kernels whose parameters all heads share.  Those have their own tests. */
static void test_heads(void **state) {
    (void)state;
    enum { TOKENS = 37, H = 3, D = 6, E = 5, F = 7, R = 4, W1 = E * D, W2 = F * 2 * E };
    size_t n = TOKENS * 3 * H * D, phi_size = TOKENS * 2 * H * F, one = TOKENS * 3 * D, one_phi = TOKENS * 2 * F;
    float *qkv = normals(n, 1), *dphi = normals(phi_size, 1), *before = normals(n, 1);
    float *w1 = normals(H * W1, 1), *w2 = normals(H * W2, 0.3f), *b2 = normals(H * F, 0.3f);
    float *dw1 = normals(H * W1, 1), *dw2 = normals(H * W2, 1), *db2 = normals(H * F, 1);
    real *d_qkv = upload_real(qkv, n), *d_dphi = upload_real(dphi, phi_size), *phi = poisoned_real(phi_size),
         *dqkv = upload_real(before, n);
    float *d_dw1 = upload(dw1, H * W1), *d_dw2 = upload(dw2, H * W2), *d_db2 = upload(db2, H * F);
    float *d_w1 = upload(w1, H * W1), *d_w2 = upload(w2, H * W2), *d_b2 = upload(b2, H * F);
    kernels_reserve(feature_mlp_workspace(D, E, F));
    FeatureMlp map = {E, true, d_w1, d_w2, d_b2};
    FeatureMlpGradients d = {d_dw1, d_dw2, d_db2};
    FeatureShape shape = {1, TOKENS, H, D, F}, one_head = {1, TOKENS, 1, D, F};
    feature_mlp_forward(phi, d_qkv, &map, &shape);
    feature_mlp_backward(dqkv, &d, d_dphi, phi, d_qkv, &map, &shape);
    float *got_phi = download_real(phi, phi_size), *got_dqkv = download_real(dqkv, n),
          *got_dw1 = download(d_dw1, H * W1), *got_dw2 = download(d_dw2, H * W2), *got_db2 = download(d_db2, H * F);
    for (int h = 0; h < H; h++) {
        float *z = take_part(qkv, 3 * TOKENS, D, H, h), *g = take_part(dphi, 2 * TOKENS, F, H, h),
              *start = take_part(before, 3 * TOKENS, D, H, h);
        real *a_z = upload_real(z, one), *a_g = upload_real(g, one_phi), *a_phi = poisoned_real(one_phi),
             *a_dz = upload_real(start, one);
        float *a_w1 = upload(w1 + h * W1, W1), *a_w2 = upload(w2 + h * W2, W2), *a_b2 = upload(b2 + h * F, F),
              *a_dw1 = upload(dw1 + h * W1, W1), *a_dw2 = upload(dw2 + h * W2, W2), *a_db2 = upload(db2 + h * F, F);
        FeatureMlp own = {E, false, a_w1, a_w2, a_b2};
        FeatureMlpGradients own_d = {a_dw1, a_dw2, a_db2};
        feature_mlp_forward(a_phi, a_z, &own, &one_head);
        feature_mlp_backward(a_dz, &own_d, a_g, a_phi, a_z, &own, &one_head);
        assert_memory_equal(take_part(got_phi, 2 * TOKENS, F, H, h), download_real(a_phi, one_phi),
                            one_phi * sizeof(float));
        assert_memory_equal(take_part(got_dqkv, 3 * TOKENS, D, H, h), download_real(a_dz, one), one * sizeof(float));
        assert_memory_equal(got_dw1 + h * W1, download(a_dw1, W1), W1 * sizeof(float));
        assert_memory_equal(got_dw2 + h * W2, download(a_dw2, W2), W2 * sizeof(float));
        assert_memory_equal(got_db2 + h * F, download(a_db2, F), F * sizeof(float));
    }
    release_all();
}

static void weights_of_sticks(bool softmax, float *alpha, float *o, real *dqkv, const RippleSticksGradients *d,
                              const float *dalpha, const real *qkv, const RippleSticks *sticks,
                              const AttentionShape *shape) {
    const StickBreaking rule = {0.01f, false};
    if (softmax) {
        softmax_weights_forward(alpha, qkv, sticks, shape);
        softmax_weights_backward(dqkv, d, dalpha, alpha, qkv, sticks, shape);
    } else {
        stick_breaking_forward(alpha, o, qkv, sticks, &rule, shape);
        stick_breaking_backward(dqkv, d, dalpha, alpha, o, qkv, sticks, &rule, shape);
    }
}

static void stick_heads_case(bool softmax) {
    enum { TOKENS = 45, H = 3, D = 6, R = 4, W = D * D, STICKS = R * D };
    int G = softmax ? R : R + 1;
    size_t n = TOKENS * 3 * H * D, one = TOKENS * 3 * D;
    float *qkv = normals(n, 1), *before = normals(n, 1), *dalpha = normals(TOKENS * H * G, 1);
    float *wp = normals(H * W, 0.5f), *bp = normals(H * D, 0.5f), *sticks = normals(H * STICKS, 1);
    float *dwp = normals(H * W, 1), *dbp = normals(H * D, 1), *dsticks = normals(H * STICKS, 1);
    real *d_qkv = upload_real(qkv, n), *dqkv = upload_real(before, n);
    float *alpha = poisoned(TOKENS * H * G), *o = poisoned(TOKENS * H * R), *d_dalpha = upload(dalpha, TOKENS * H * G);
    float *d_wp = upload(wp, H * W), *d_bp = upload(bp, H * D), *d_sticks = upload(sticks, H * STICKS);
    float *d_dwp = upload(dwp, H * W), *d_dbp = upload(dbp, H * D), *d_dsticks = upload(dsticks, H * STICKS);
    kernels_reserve(ripple_weights_workspace(H, D, G));
    RippleSticks all = {R, true, d_wp, d_bp, d_sticks};
    RippleSticksGradients d_all = {d_dwp, d_dbp, d_dsticks};
    weights_of_sticks(softmax, alpha, o, dqkv, &d_all, d_dalpha, d_qkv, &all, &(AttentionShape){1, TOKENS, H, D});
    for (int h = 0; h < H; h++) {
        real *a_z = upload_real(take_part(qkv, 3 * TOKENS, D, H, h), one),
             *a_dz = upload_real(take_part(before, 3 * TOKENS, D, H, h), one);
        float *a_alpha = poisoned(TOKENS * G), *a_o = poisoned(TOKENS * R),
              *a_dalpha = upload(take_part(dalpha, TOKENS, G, H, h), TOKENS * G);
        float *a_wp = upload(wp + h * W, W), *a_bp = upload(bp + h * D, D),
              *a_sticks = upload(sticks + h * STICKS, STICKS), *a_dwp = upload(dwp + h * W, W),
              *a_dbp = upload(dbp + h * D, D), *a_dsticks = upload(dsticks + h * STICKS, STICKS);
        RippleSticks own = {R, false, a_wp, a_bp, a_sticks};
        RippleSticksGradients d_own = {a_dwp, a_dbp, a_dsticks};
        weights_of_sticks(softmax, a_alpha, a_o, a_dz, &d_own, a_dalpha, a_z, &own, &(AttentionShape){1, TOKENS, 1, D});
        float *got_alpha = take_part(download(alpha, TOKENS * H * G), TOKENS, G, H, h);
        assert_true(check_close_float("alpha", got_alpha, download(a_alpha, TOKENS * G), TOKENS * G, 1e-6));
        float *got_dz = take_part(download_real(dqkv, n), 3 * TOKENS, D, H, h);
        assert_true(check_close_float("dv", got_dz, download_real(a_dz, one), one, roundings(5)));
        assert_true(check_close_float("dwp", download(d_dwp, H * W) + h * W, download(a_dwp, W), W, 1e-5));
        assert_true(check_close_float("dbp", download(d_dbp, H * D) + h * D, download(a_dbp, D), D, 1e-5));
        assert_true(check_close_float("dsticks", download(d_dsticks, H * STICKS) + h * STICKS,
                                      download(a_dsticks, STICKS), STICKS, 1e-5));
    }
    release_all();
}

static void test_stick_heads(void **state) {
    (void)state;
    stick_heads_case(false);
    stick_heads_case(true);
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dropout), cmocka_unit_test(test_bias_relu),
        cmocka_unit_test(test_dropout_statistics),
        cmocka_unit_test(test_masked_attention),
        cmocka_unit_test(test_far_centre),
        cmocka_unit_test(test_equal_values),
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_linear_rows),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_stick_heads),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
