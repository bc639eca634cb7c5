/* A teacher's targets, the losses against them, and the transforms of images and logits that belong to them, against
 * their formulas in double; gradients are compared with differences of these formulas. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/tokens/images.h"
#include "kernels/training/distillation.h"
#include "tests/differences.h"

/* q += weight softmax(t/tau); with tau 0, adds `weight` at the first of the largest t. */
static void add_share(double *q, const float *t, double weight, double tau, int C) {
    int best = 0;
    double sum = 0;
    for (int c = 1; c < C; c++)
        if (t[c] > t[best]) best = c;
    if (tau == 0) {
        q[best] += weight;
        return;
    }
    for (int c = 0; c < C; c++) sum += exp((double)(t[c] - t[best]) / tau);
    for (int c = 0; c < C; c++) q[c] += weight * exp((double)(t[c] - t[best]) / tau) / sum;
}

static void targets_case(int B, int C, bool paired, float lam, float tau) {
    printf("targets B %d C %d%s lam %g tau %g\n", B, C, paired ? " in pairs" : "", (double)lam, (double)tau);
    size_t n = (size_t)B * C, rows = (size_t)B + 2;
    float *t = normals(rows * C, 3), *q = poisoned(n);
    int *pairs = keep(calloc(2 * (size_t)B, sizeof *pairs), false), *d_pairs = NULL;
    for (int b = 0; b < B; b++) {
        pairs[2 * b] = (b + 1) % (int)rows;
        pairs[2 * b + 1] = (5 * b + 2) % (int)rows;
    }
    real *d_t = upload_real(t, rows * C);
    double *want = zeros(n);
    if (paired) d_pairs = keep(device_malloc(2 * (size_t)B * sizeof *pairs, "pairs"), true);
    if (paired) device_upload(d_pairs, pairs, 2 * (size_t)B * sizeof *pairs);
    for (int b = 0; b < B; b++) {
        const float *first = t + (size_t)(paired ? pairs[2 * b] : b) * C;
        add_share(want + (size_t)b * C, first, paired ? (double)lam : 1, (double)tau, C);
        if (paired) add_share(want + (size_t)b * C, t + (size_t)pairs[2 * b + 1] * C, 1 - (double)lam, (double)tau, C);
    }
    teacher_targets(q, d_t, d_pairs, lam, tau, B, C);
    assert_true(close_float("q", q, want, n));
    release_all();
}

static void test_targets(void **state) {
    (void)state;
    targets_case(5, 7, false, 1, 3);
    targets_case(3, 1000, false, 0.3f, 1);
    targets_case(4, 37, false, 1, 0);
    targets_case(5, 19, true, 0.3f, 2);
    targets_case(5, 19, true, 0.7f, 0);
    targets_case(3, 8, true, 1, 0.5f);
    targets_case(1, 1, false, 1, 3);
}

/* Of several largest logits the first counts. */
static void test_ties(void **state) {
    (void)state;
    float t[70] = {0}, *q = poisoned(70);
    t[33] = t[34] = t[65] = 2;
    teacher_targets(q, upload_real(t, 70), NULL, 1, 0, 1, 70);
    float *got = download(q, 70);
    for (int c = 0; c < 70; c++) assert_true(got[c] == (c == 33));
    release_all();
}

typedef struct {
    int B, C;
    double alpha, tau;
    const double *x, *q, *loss;
} Losses;

static void losses(double *y, void *context) {
    const Losses *l = context;
    for (int b = 0; b < l->B; b++) {
        const double *x = l->x + (size_t)b * l->C, *q = l->q + (size_t)b * l->C;
        double largest = -INFINITY, sum = 0, D = 0;
        for (int c = 0; c < l->C; c++) largest = fmax(largest, x[c] / l->tau);
        for (int c = 0; c < l->C; c++) sum += exp(x[c] / l->tau - largest);
        for (int c = 0; c < l->C; c++)
            if (q[c] > 0) D += q[c] * (log(q[c]) - (x[c] / l->tau - largest - log(sum)));
        y[b] = (1 - l->alpha) * l->loss[b] + l->alpha * l->tau * l->tau * D;
    }
}

static void loss_case(int B, int C, float alpha, float tau, float teacher_tau, bool adds, float shift) {
    printf("loss B %d C %d alpha %g tau %g%s, logits around %g\n", B, C, (double)alpha, (double)tau,
           adds ? ", added" : "", (double)shift);
    size_t n = (size_t)B * C;
    float scale = 0.37f, *x = normals(n, 2), *t = normals(n, 2), *loss = normals(B, 1), *before = normals(n, 1);
    float *slopes = normals(B, 0);
    for (size_t i = 0; i < n; i++) x[i] += shift;
    for (int b = 0; b < B; b++) slopes[b] = scale;
    real *d_x = upload_real(x, n), *d_dx = adds ? upload_real(before, n) : poisoned_real(n);
    double *q = zeros(n), *want = zeros(B);
    for (int b = 0; b < B; b++) add_share(q + (size_t)b * C, t + (size_t)b * C, 1, (double)teacher_tau, C);
    float *single = normals(n, 1), *d_loss = upload(loss, B);
    for (size_t i = 0; i < n; i++) q[i] = (double)(single[i] = (float)q[i]);
    double *logits = wide(x, n);
    Losses l = {B, C, (double)alpha, (double)tau, logits, q, wide(loss, B)};
    losses(want, &l);
    distillation_loss(d_loss, d_dx, d_x, upload(single, n), alpha, tau, adds, scale, B, C);
    assert_true(close_logarithms("loss", d_loss, want, B));
    Function f = {losses, &l, B, zeros(B), slopes, 1e-4};
    assert_true(slopes_agree("dlogits", download_real(d_dx, n), adds ? before : NULL, logits, n, &f));
    release_all();
}

static void test_loss(void **state) {
    (void)state;
    loss_case(3, 7, 0.5f, 3, 3, false, 0);
    loss_case(5, 19, 0.3f, 1, 0, false, 40);
    loss_case(4, 37, 0.9f, 0.7f, 0.7f, true, -40);
    loss_case(2, 1000, 1, 2, 2, false, 0);
    loss_case(2, 9, 0.01f, 2, 2, false, 0);
}

/* If the student's logits are the teacher's plus a constant, there is neither a loss nor a gradient. */
static void test_agreement(void **state) {
    (void)state;
    enum { C = 11 };
    float *t = normals(C, 2), x[C], *q = poisoned(C), zero[1] = {0};
    for (int c = 0; c < C; c++) x[c] = t[c];
    real *d_dx = poisoned_real(C);
    float *d_loss = upload(zero, 1);
    teacher_targets(q, upload_real(t, C), NULL, 1, 3, 1, C);
    distillation_loss(d_loss, d_dx, upload_real(x, C), q, 1, 3, false, 1, 1, C);
    assert_true(fabsf(download(d_loss, 1)[0]) < 1e-5f);
    float *dx = download_real(d_dx, C);
    for (int c = 0; c < C; c++) assert_true(fabsf(dx[c]) < 1e-5f);
    release_all();
}

static void test_around(void **state) {
    (void)state;
    enum { B = 3, H = 5, W = 7, N = B * 3 * H * W };
    const float scale[3] = {0.5f, 1.25f, 2}, shift[3] = {0.3f, -1, 0};
    float *x = normals(N, 1), *other = normals(N, 1);
    real *d_x = upload_real(x, N), *d_other = upload_real(other, N), *y = poisoned_real(N), *mean = poisoned_real(N);
    double *want = zeros(N), *want_mean = zeros(N);
    for (int i = 0; i < N; i++) {
        int c = i / (H * W) % 3;
        want[i] = (double)x[i] * (double)scale[c] + (double)shift[c];
        want_mean[i] = ((double)x[i] + (double)other[i]) / 2;
    }
    images_renormalize(y, d_x, scale, shift, &(ImageShape){B, H, W});
    assert_true(close_real("images", y, want, N));
    logits_mean(mean, d_x, d_other, N);
    assert_true(close_real("mean", mean, want_mean, N));
    logits_mean(d_x, d_x, d_other, N);
    assert_true(close_real("mean in place", d_x, want_mean, N));
    release_all();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_targets), cmocka_unit_test(test_ties),
                                       cmocka_unit_test(test_loss), cmocka_unit_test(test_agreement),
                                       cmocka_unit_test(test_around)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
