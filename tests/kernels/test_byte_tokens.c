/* Bytes as tokens: embedding, cross-entropy, and the GELU of Child et al. 2019, against their formulas in double;
 * gradients are compared with differences of these formulas. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <omp.h>

#include "tests/differences.h"

/* == Embedding ==================================================================================================== */

/* tables: the tables of bytes, positions and start, one after the other. */
typedef struct {
    ByteEmbedding s;
    bool start;
    const uint8_t *bytes;
    double *tables;
} Embedding;

static size_t table_at(const Embedding *e, int t) {
    size_t at = (size_t)e->s.vocabulary * e->s.M;
    for (int i = 0; i < t; i++) at += (size_t)e->s.entries[i] * e->s.M;
    return at;
}
static size_t tables_size(const Embedding *e) { return table_at(e, BYTE_TABLES) + (e->start ? (size_t)e->s.M : 0); }

/* Finds the elements of the tables whose sum is element m of a row; returns their number. */
static int terms_of(size_t terms[BYTE_TABLES + 1], const Embedding *e, int b, int n, int m) {
    const ByteEmbedding *s = &e->s;
    int i = s->first + n - e->start, count = 0;
    if (i < 0) {
        terms[0] = table_at(e, BYTE_TABLES) + m;
        return 1;
    }
    terms[count++] = (size_t)e->bytes[b * s->row + i] * s->M + m;
    for (int t = 0; t < BYTE_TABLES; t++)
        if (s->entries[t])
            terms[count++] = table_at(e, t) + (size_t)(i / s->divisor[t] % s->entries[t]) * s->M + m;
    return count;
}

/* Each x is the sum of its terms, and a term's gradient is the sum of dx over all x that contain the term. */
static void embedding_reference(double *x, double *dtables, const float *dx, const Embedding *e) {
    const ByteEmbedding *s = &e->s;
    for (int b = 0; b < s->B; b++)
        for (int n = 0; n < s->N; n++)
            for (int m = 0; m < s->M; m++) {
                size_t terms[BYTE_TABLES + 1], at = ((size_t)b * s->N + n) * s->M + m;
                for (int t = terms_of(terms, e, b, n, m); t-- > 0;) {
                    x[at] += e->tables[terms[t]];
                    dtables[terms[t]] += dx[at];
                }
            }
}

static uint8_t *upload_bytes(const uint8_t *bytes, size_t n) {
    uint8_t *d = keep(device_malloc(n, "test"), true);
    device_upload(d, bytes, n);
    return d;
}

static uint8_t *random_bytes(size_t n, int vocabulary) {
    static uint32_t stream;
    uint8_t *bytes = keep(malloc(n), false);
    stream++;
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)rng_below(check_seed(), RNG_TEST, 1u << 21, stream, i, (uint32_t)vocabulary);
    return bytes;
}

/* Pointers to the tables within one vector on the device. */
static ByteTables tables_in(const Embedding *e, const float *all) {
    ByteTables t = {.bytes = all, .start = e->start ? all + table_at(e, BYTE_TABLES) : NULL};
    for (int i = 0; i < BYTE_TABLES; i++) t.positions[i] = e->s.entries[i] ? all + table_at(e, i) : NULL;
    return t;
}
static ByteGradients gradients_in(const Embedding *e, float *all) {
    ByteGradients t = {.bytes = all, .start = e->start ? all + table_at(e, BYTE_TABLES) : NULL};
    for (int i = 0; i < BYTE_TABLES; i++) t.positions[i] = e->s.entries[i] ? all + table_at(e, i) : NULL;
    return t;
}

static void embedding_case(ByteEmbedding s, bool start) {
    printf("embedding B %d rows %d .. %d M %d vocabulary %d tables %d %d %d%s\n", s.B, s.first, s.first + s.N, s.M,
           s.vocabulary, s.entries[0], s.entries[1], s.entries[2], start ? " and a vector to start" : "");
    Embedding e = {s, start, random_bytes((size_t)s.B * s.row, s.vocabulary), NULL};
    size_t n = (size_t)s.B * s.N * s.M;
    const uint8_t *bytes = upload_bytes(e.bytes, (size_t)s.B * s.row);
    Parameter tables = parameter(tables_size(&e), 1, 0);
    e.tables = tables.x;
    float *dx = normals(n, 1), *again = upload(tables.before, tables.n);
    real *d_x = poisoned_real(n), *d_dx = upload_real(dx, n);
    ByteTables in = tables_in(&e, tables.device);
    ByteGradients d = gradients_in(&e, tables.gradient), d_again = gradients_in(&e, again);
    double *want = zeros(n), *slopes = wide(tables.before, tables.n);
    embedding_reference(want, slopes, dx, &e);
    byte_embedding_forward(d_x, bytes, &in, &s);
    assert_true(close_real("x", d_x, want, n));
    byte_embedding_backward(&d, d_dx, bytes, &in, &s);
    assert_true(close_float("dtables", tables.gradient, slopes, tables.n));
    byte_embedding_backward(&d_again, d_dx, bytes, &in, &s);
    assert_memory_equal(download(again, tables.n), download(tables.gradient, tables.n), tables.n * sizeof(float));
    release_all();
}

/* Images of 4 x 3 x 3 bytes and windows of text, whole and one position at a time; rows with more bytes than tokens. */
static void test_embedding(void **state) {
    (void)state;
    embedding_case((ByteEmbedding){3, 5, 0, 36, 36, 256, {4, 3, 3}, {9, 3, 1}}, true);
    embedding_case((ByteEmbedding){2, 40, 0, 36, 37, 16, {4, 3, 3}, {9, 3, 1}}, true);
    embedding_case((ByteEmbedding){2, 17, 0, 50, 51, 200, {8, 7, 0}, {7, 1, 1}}, false);
    embedding_case((ByteEmbedding){4, 16, 0, 1, 36, 256, {4, 3, 3}, {9, 3, 1}}, true);
    embedding_case((ByteEmbedding){4, 33, 7, 1, 36, 256, {4, 3, 3}, {9, 3, 1}}, true);
    embedding_case((ByteEmbedding){1, 8, 11, 9, 36, 256, {0, 3, 3}, {9, 3, 1}}, false);
    embedding_case((ByteEmbedding){1, 1, 0, 9, 9, 2, {0, 0, 0}, {1, 1, 1}}, false);
}

/* One thread sums each entry, so that the bits are the same with any number of threads. */
static void test_threads_make_no_difference(void **state) {
    (void)state;
    ByteEmbedding s = {2, 70, 0, 200, 200, 9, {20, 10, 0}, {10, 1, 1}};
    Embedding e = {s, true, random_bytes((size_t)s.B * s.row, s.vocabulary), NULL};
    size_t n = (size_t)s.B * s.N * s.M, size = tables_size(&e);
    const uint8_t *bytes = upload_bytes(e.bytes, (size_t)s.B * s.row);
    float *dx = normals(n, 1), *zero = upload(normals(size, 0), size), *first = NULL;
    real *d_dx = upload_real(dx, n);
    ByteTables in = tables_in(&e, zero);
    int threads = omp_get_max_threads();
    for (int count = 1; count <= 3; count++) {
        float *sums = upload(download(zero, size), size);
        ByteGradients d = gradients_in(&e, sums);
        omp_set_num_threads(count);
        byte_embedding_backward(&d, d_dx, bytes, &in, &s);
        float *got = download(sums, size);
        if (count == 1) first = got;
        assert_memory_equal(got, first, size * sizeof *got);
    }
    omp_set_num_threads(threads);
    release_all();
}

/* == Cross-entropy ================================================================================================ */

typedef struct {
    ByteTargets s;
    const uint8_t *targets;
    double *x;
} Losses;

static void losses(double *loss, void *context) {
    Losses *l = context;
    for (int row = 0; row < l->s.B * l->s.N; row++) {
        const double *x = l->x + (size_t)row * l->s.V;
        double largest = -INFINITY, sum = 0;
        for (int c = 0; c < l->s.V; c++) largest = fmax(largest, x[c]);
        for (int c = 0; c < l->s.V; c++) sum += exp(x[c] - largest);
        loss[row] = largest + log(sum) - x[l->targets[row / l->s.N * l->s.row + row % l->s.N]];
    }
}

static void cross_entropy_case(ByteTargets s, float shift) {
    printf("cross-entropy B %d N %d V %d, logits around %g\n", s.B, s.N, s.V, shift);
    size_t rows = (size_t)s.B * s.N, n = rows * s.V;
    float *x = normals(n, 2), scale = 0.37f, *slopes = normals(rows, 0);
    for (size_t i = 0; i < n; i++) x[i] += shift;
    for (size_t i = 0; i < rows; i++) slopes[i] = scale;
    real *d_x = upload_real(x, n), *d_dx = poisoned_real(n);
    float *d_loss = poisoned(rows), *sums = poisoned(s.B);
    Losses l = {s, random_bytes((size_t)s.B * s.row, s.V), wide(x, n)};
    const uint8_t *targets = upload_bytes(l.targets, (size_t)s.B * s.row);
    double *want = zeros(rows), *want_sums = zeros(s.B);
    losses(want, &l);
    for (size_t i = 0; i < rows; i++)
        if ((int)(i % s.N) >= s.N / 3) want_sums[i / s.N] += want[i];
    byte_cross_entropy(d_loss, d_dx, d_x, targets, scale, &s);
    assert_true(close_logarithms("loss", d_loss, want, rows));
    byte_loss_sums(sums, d_loss, s.N / 3, &s);
    assert_true(close_float("sums", sums, want_sums, s.B));
    Function f = {losses, &l, rows, zeros(rows), slopes, 1e-4};
    assert_true(slopes_agree("dlogits", download_real(d_dx, n), NULL, l.x, n, &f));
    float *kept_dx = download_real(d_dx, n), *kept_loss = download(d_loss, rows);
    byte_cross_entropy(d_loss, NULL, d_x, targets, scale, &s);
    assert_memory_equal(download(d_loss, rows), kept_loss, rows * sizeof(float));
    byte_cross_entropy(d_loss, d_x, d_x, targets, scale, &s); /* in place */
    assert_memory_equal(download_real(d_x, n), kept_dx, n * sizeof(float));
    release_all();
}

static void test_cross_entropy(void **state) {
    (void)state;
    cross_entropy_case((ByteTargets){3, 11, 256, 11}, 0);
    cross_entropy_case((ByteTargets){2, 5, 16, 6}, 0);
    cross_entropy_case((ByteTargets){1, 7, 37, 9}, -64);
    cross_entropy_case((ByteTargets){1, 1, 256, 1}, 64);
}

/* The loss of equal logits is the logarithm of their number; a target 400 below another logit has the loss 400. */
static void test_known_losses(void **state) {
    (void)state;
    float x[2 * 256] = {0}, *loss = poisoned(2);
    x[256 + 9] = 400;
    const uint8_t target[2] = {3, 8};
    ByteTargets s = {1, 2, 256, 2};
    byte_cross_entropy(loss, NULL, upload_real(x, 512), upload_bytes(target, 2), 1, &s);
    float *got = download(loss, 2);
    assert_float_equal(got[0], log(256), 1e-6);
    assert_float_equal(got[1], 400, 1e-4);
    release_all();
}

/* == The activation =============================================================================================== */

typedef struct {
    double *x;
    size_t n;
} Activation;

static void activation_outputs(double *y, void *context) {
    Activation *a = context;
    for (size_t i = 0; i < a->n; i++) y[i] = a->x[i] / (1 + exp(-1.702 * a->x[i]));
}

static void test_sigmoid_gelu(void **state) {
    (void)state;
    size_t n = 1003;
    float *x = normals(n, 3), *dy = normals(n, 1);
    const float far[] = {-200, -60, -30, 30, 200, 0};
    memcpy(x, far, sizeof far);
    real *d_x = upload_real(x, n), *d_y = poisoned_real(n), *d_dy = upload_real(dy, n), *again = poisoned_real(n);
    Activation a = {wide(x, n), n};
    double *want = zeros(n), *slope = zeros(n);
    activation_outputs(want, &a);
    sigmoid_gelu_forward(d_y, d_x, n);
    assert_true(close_real("y", d_y, want, n));
    for (size_t i = 0; i < n; i++) {
        double s = 1 / (1 + exp(-1.702 * x[i]));
        slope[i] = dy[i] * (s + 1.702 * x[i] * s * (1 - s));
    }
    sigmoid_gelu_backward(d_dy, again, d_dy, d_x, n);
    assert_true(close_real("dx", d_dy, slope, n));
    assert_memory_equal(download_real(again, n), download_real(d_y, n), n * sizeof(float));
    Function f = {activation_outputs, &a, n, zeros(n), dy, 1e-4};
    assert_true(slopes_agree("dx", download_real(d_dy, n), NULL, a.x, n, &f));
    release_all();
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embedding),   cmocka_unit_test(test_threads_make_no_difference),
        cmocka_unit_test(test_cross_entropy), cmocka_unit_test(test_known_losses), cmocka_unit_test(test_sigmoid_gelu),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
