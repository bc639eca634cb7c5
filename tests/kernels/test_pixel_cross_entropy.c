/* The loss of semantic segmentation, the predicted classes and the dropout of whole channels, against their formulas in
 * double.  The formulas resize all logits first, which the kernels never do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/differences.h"

/* y [H,W,K] = x [h,w,K], resized bilinearly without aligned corners. */
static void resize(double *y, const double *x, int h, int w, int H, int W, int K) {
    for (int i = 0; i < H; i++)
        for (int j = 0; j < W; j++) {
            double v = fmax((i + 0.5) * h / H - 0.5, 0), u = fmax((j + 0.5) * w / W - 0.5, 0);
            int y0 = (int)(v + 1e-12), x0 = (int)(u + 1e-12); /* in double, k + 1/2 - 1/2 may be less than k */
            int y1 = y0 + 1 < h ? y0 + 1 : h - 1, x1 = x0 + 1 < w ? x0 + 1 : w - 1;
            double fy = fmax(v - y0, 0), fx = fmax(u - x0, 0);
            for (int k = 0; k < K; k++)
                y[(i * W + j) * K + k] =
                    (1 - fy) * ((1 - fx) * x[(y0 * w + x0) * K + k] + fx * x[(y0 * w + x1) * K + k]) +
                    fy * ((1 - fx) * x[(y1 * w + x0) * K + k] + fx * x[(y1 * w + x1) * K + k]);
        }
}

/* == The loss ===================================================================================================== */

typedef struct {
    PixelShape shape;
    double *logits;
    const uint8_t *labels;
} Case;

/* out [B]: the loss of each image. */
static void losses(double *out, void *context) {
    const Case *c = context;
    const PixelShape *s = &c->shape;
    int pixels = s->H * s->W;
    double *l = malloc((size_t)pixels * (size_t)s->K * sizeof *l);
    for (int b = 0; b < s->B; b++) {
        resize(l, c->logits + (size_t)b * (size_t)(s->h * s->w * s->K), s->h, s->w, s->H, s->W, s->K);
        out[b] = 0;
        for (int i = 0; i < pixels; i++) {
            int label = c->labels[b * pixels + i];
            double sum = 0;
            if (label == LABEL_IGNORED) continue;
            for (int k = 0; k < s->K; k++) sum += exp(l[i * s->K + k]);
            out[b] += (log(sum) - l[i * s->K + label]) / pixels;
        }
    }
    free(l);
}

static uint8_t *drawn_labels(size_t n, int K) {
    static uint32_t stream;
    uint8_t *labels = keep(malloc(n), false);
    stream++;
    for (size_t i = 0; i < n; i++) {
        uint32_t any = rng_below(check_seed(), RNG_TEST, 1u << 21, stream, i, (uint32_t)K + 2);
        labels[i] = any < (uint32_t)K ? (uint8_t)any : LABEL_IGNORED;
    }
    return labels;
}

static uint8_t *upload_bytes(const uint8_t *x, size_t n) {
    uint8_t *d = keep(device_malloc(n, "test"), true);
    device_upload(d, x, n);
    return d;
}

static void loss_case(PixelShape s, float size) {
    size_t B = (size_t)s.B, cells = B * (size_t)(s.h * s.w * s.K), pixels = B * (size_t)(s.H * s.W);
    printf("pixel cross entropy: %d images, %d classes, %d x %d -> %d x %d\n", s.B, s.K, s.h, s.w, s.H, s.W);
    float *x = normals(cells, size), *loss = poisoned(B);
    real *logits = upload_real(x, cells), *dlogits = poisoned_real(cells);
    Case k = {s, wide(x, cells), drawn_labels(pixels, s.K)};
    const uint8_t *labels = upload_bytes(k.labels, pixels);
    double *want = zeros(B);
    kernels_reserve(pixel_cross_entropy_workspace(&s));
    losses(want, &k);
    pixel_cross_entropy(loss, dlogits, logits, labels, 0.7f, &s);
    assert_true(close_float("loss", loss, want, B));
    float *slopes = keep(malloc(B * sizeof *slopes), false);
    for (size_t b = 0; b < B; b++) slopes[b] = 0.7f;
    const Function f = {losses, &k, B, zeros(B), slopes, 1e-4};
    assert_true(slopes_agree("dlogits", download_real(dlogits, cells), NULL, k.logits, cells, &f));
    float *alone = poisoned(B);
    pixel_cross_entropy(alone, NULL, logits, labels, 0, &s);
    assert_memory_equal(download(alone, B), download(loss, B), B * sizeof(float));
    release_all();
}

static void test_loss(void **state) {
    (void)state;
    const PixelShape shapes[] = {
        {1, 3, 2, 3, 4, 6},    {2, 150, 5, 7, 20, 28}, {3, 17, 18, 3, 72, 12}, {1, 2, 40, 2, 37, 5},
        {2, 16, 4, 4, 4, 4},   {1, 5, 9, 8, 7, 6},     {1, 33, 1, 1, 7, 5},    {2, 254, 3, 5, 13, 11},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) loss_case(shapes[i], i % 2 ? 1 : 4);
}

/* If all labels are ignored, loss and gradient are 0.  Large logits give a finite loss. */
static void test_loss_edges(void **state) {
    (void)state;
    enum { K = 20, H = 6, N = 4 * K, PIXELS = H * H };
    const PixelShape s = {1, K, 2, 2, H, H};
    uint8_t labels[PIXELS];
    float *x = normals(N, 1), *loss = poisoned(1);
    real *dlogits = poisoned_real(N);
    memset(labels, LABEL_IGNORED, sizeof labels);
    kernels_reserve(pixel_cross_entropy_workspace(&s));
    pixel_cross_entropy(loss, dlogits, upload_real(x, N), upload_bytes(labels, PIXELS), 1, &s);
    assert_true(*download(loss, 1) == 0);
    const float *none = download_real(dlogits, N);
    for (int i = 0; i < N; i++) assert_true(none[i] == 0);
    memset(labels, 3, sizeof labels);
    for (int i = 0; i < N; i++) x[i] = i % K == 3 ? -8192 : i % K == 4 ? 8192 : 0;
    pixel_cross_entropy(loss, dlogits, upload_real(x, N), upload_bytes(labels, PIXELS), 1, &s);
    assert_true(*download(loss, 1) == 16384);
    release_all();
}

/* PyTorch's results in float64 for z = 2 sin(0.7 k + 1.1 y + 0.4 x) and labels (2 y + x) mod 4, where 3 is ignored. */
static void test_known_loss(void **state) {
    (void)state;
    enum { K = 3, N = 2 * 3 * K, H = 4, W = 6, PIXELS = H * W };
    const PixelShape s = {1, K, 2, 3, H, W};
    double z[N], l[PIXELS * K], squares = 0, tolerance = sizeof(real) == 4 ? 1e-6 : 1e-2;
    float x[N], *loss = poisoned(1);
    uint8_t labels[PIXELS];
    real *dlogits = poisoned_real(N);
    for (int i = 0; i < N; i++) z[i] = 2 * sin(0.7 * (i % K) + 1.1 * (i / K / 3) + 0.4 * (i / K % 3));
    for (int i = 0; i < N; i++) x[i] = (float)z[i];
    for (int i = 0; i < PIXELS; i++)
        labels[i] = (2 * (i / W) + i % W) % 4 == 3 ? LABEL_IGNORED : (uint8_t)((2 * (i / W) + i % W) % 4);
    resize(l, z, 2, 3, H, W, K);
    assert_true(fabs(l[(1 * W + 2) * K + 0] - 0.92355718) < 1e-8 && fabs(l[(3 * W + 5) * K + 2] - -0.31549139) < 1e-8);
    kernels_reserve(pixel_cross_entropy_workspace(&s));
    real *logits = upload_real(x, N);
    pixel_cross_entropy(loss, dlogits, logits, upload_bytes(labels, PIXELS), 1, &s);
    const float *d = download_real(dlogits, N);
    for (int i = 0; i < N; i++) squares += (double)d[i] * (double)d[i];
    printf("known loss %.8f, dz %.8f %.8f %.8f, squares %.8f\n", (double)*download(loss, 1), (double)d[0],
           (double)d[(3 + 2) * K + 1], (double)d[1 * K + 2], squares);
    assert_true(fabs((double)*download(loss, 1) - 0.93688173) < tolerance);
    assert_true(fabs((double)d[0] - -0.04002902) < tolerance);
    assert_true(fabs((double)d[(3 + 2) * K + 1] - -0.00827489) < tolerance);
    assert_true(fabs((double)d[1 * K + 2] - -0.00022920) < tolerance);
    assert_true(fabs(squares - 0.00692058) < tolerance);

    const LogitWindows whole = {K, 2, 3, H, W, 1, 1, H, W, H, W, H, W};
    uint8_t *classes = upload_bytes(labels, PIXELS), got[PIXELS];
    int both[K] = {0}, either[K] = {0}, right = 0, labelled = 0;
    double sum = 0;
    pixel_classes(classes, logits, &whole);
    device_download(got, classes, PIXELS);
    for (int i = 0; i < PIXELS; i++) {
        if (labels[i] == LABEL_IGNORED) continue;
        labelled++;
        right += got[i] == labels[i];
        both[got[i]] += got[i] == labels[i];
        either[got[i]]++;
        either[labels[i]] += got[i] != labels[i];
    }
    for (int k = 0; k < K; k++) sum += (double)both[k] / either[k] / K;
    assert_true(both[0] == 2 && both[1] == 3 && both[2] == 2 && either[0] == 9 && either[1] == 12 && either[2] == 8);
    assert_true(fabs(sum - 0.24074074) < 1e-8 && fabs((double)right / labelled - 0.38888889) < 1e-8);
    release_all();
}

/* == Classes ====================================================================================================== */

/* picture [H,W,K]: the logits of all windows, resized to the size of a window, with the mean where windows overlap. */
static void assemble(double *picture, const double *logits, const LogitWindows *s) {
    int K = s->K, *count = calloc((size_t)(s->H * s->W), sizeof *count);
    double *own = malloc((size_t)(s->height * s->width * K) * sizeof *own);
    memset(picture, 0, (size_t)(s->H * s->W * K) * sizeof *picture);
    for (int i = 0; i < s->down * s->across; i++) {
        int top = i / s->across * s->stride_y, left = i % s->across * s->stride_x;
        if (top > s->H - s->height) top = s->H - s->height;
        if (left > s->W - s->width) left = s->W - s->width;
        resize(own, logits + (size_t)i * (size_t)(s->h * s->w * K), s->h, s->w, s->height, s->width, K);
        for (int y = 0; y < s->height; y++)
            for (int x = 0; x < s->width; x++) {
                int at = (top + y) * s->W + left + x;
                count[at]++;
                for (int k = 0; k < K; k++) picture[at * K + k] += own[(y * s->width + x) * K + k];
            }
    }
    for (int i = 0; i < s->H * s->W * K; i++) picture[i] /= count[i / K];
    free(count);
    free(own);
}

static void classes_case(LogitWindows s) {
    size_t n = (size_t)(s.down * s.across) * (size_t)(s.h * s.w * s.K), pixels = (size_t)(s.out_H * s.out_W);
    float *x = normals(n, 1);
    real *logits = upload_real(x, n);
    double *all = zeros((size_t)(s.H * s.W * s.K)), *final = zeros(pixels * (size_t)s.K);
    uint8_t *got = keep(malloc(pixels), false), *unset = keep(malloc(pixels), false);
    memset(unset, 254, pixels);
    uint8_t *classes = upload_bytes(unset, pixels);
    pixel_classes(classes, logits, &s);
    device_synchronize();
    device_download(got, classes, pixels);
    assemble(all, wide(x, n), &s);
    resize(final, all, s.H, s.W, s.out_H, s.out_W, s.K);
    for (size_t i = 0; i < pixels; i++) { /* the largest, except for rounding */
        double most = -INFINITY;
        for (int k = 0; k < s.K; k++) most = fmax(most, final[i * (size_t)s.K + (size_t)k]);
        assert_true(got[i] < s.K);
        assert_true(final[i * (size_t)s.K + got[i]] >= most - 1e-5);
    }
    printf("classes: %d windows of %d x %d on %d x %d, %d classes, out %d x %d: ok\n", s.down * s.across, s.height,
           s.width, s.H, s.W, s.K, s.out_H, s.out_W);
    release_all();
}

static void test_classes(void **state) {
    (void)state;
    const LogitWindows cases[] = {
        {150, 8, 8, 32, 32, 1, 1, 32, 32, 32, 32, 21, 37}, {3, 4, 6, 16, 24, 1, 1, 16, 24, 16, 24, 40, 50},
        {17, 4, 4, 16, 16, 2, 3, 10, 11, 25, 33, 30, 17},  {40, 3, 2, 12, 8, 3, 1, 7, 8, 20, 8, 20, 8},
        {1, 2, 2, 8, 8, 1, 1, 8, 8, 8, 8, 3, 3},           {254, 2, 3, 8, 12, 1, 1, 8, 12, 8, 12, 9, 13},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) classes_case(cases[i]);
}

/* Of equal logits the first class is predicted, in any lane of a vector or warp. */
static void test_first_of_equals(void **state) {
    (void)state;
    enum { K = 70, N = 4 * K, PIXELS = 36 };
    const int first[] = {0, 5, 31, 33, 47, 64};
    const LogitWindows s = {K, 2, 2, 6, 6, 1, 1, 6, 6, 6, 6, 6, 6};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        float x[N];
        uint8_t got[PIXELS] = {0};
        for (int j = 0; j < N; j++) x[j] = j % K < first[i] ? -2 : -1;
        uint8_t *classes = upload_bytes(got, PIXELS);
        pixel_classes(classes, upload_real(x, N), &s);
        device_synchronize();
        device_download(got, classes, PIXELS);
        for (int j = 0; j < PIXELS; j++) assert_int_equal(got[j], first[i]);
    }
    release_all();
}

/* == Channel dropout ============================================================================================== */

/* At every position the dropped channels are those that dropout_forward drops from an image of C elements. */
static void test_channel_dropout(void **state) {
    (void)state;
    const int sizes[][3] = {{2, 7, 128}, {3, 5, 130}, {1, 300, 21}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int B = sizes[i][0], N = sizes[i][1], C = sizes[i][2], dropped = 0;
        size_t n = (size_t)(B * N * C), rows = (size_t)(B * C);
        const Dropout d = {.rate = 0.3f, .seed = check_seed(), .step = 5, .site = 2, .first = 9};
        float *x = normals(n, 1), *ones = keep(malloc(rows * sizeof *ones), false);
        for (size_t j = 0; j < rows; j++) ones[j] = 1;
        real *d_x = upload_real(x, n), *y = poisoned_real(n), *factor = poisoned_real(rows);
        double *want = zeros(n);
        kernels_reserve(channel_dropout_workspace(B, C));
        dropout_forward(factor, upload_real(ones, rows), &d, B, (size_t)C);
        channel_dropout_forward(y, d_x, &d, B, (size_t)N, C);
        const float *kept_ones = download_real(factor, rows);
        for (size_t j = 0; j < n; j++) {
            bool survives = kept_ones[j / (size_t)(N * C) * (size_t)C + j % (size_t)C] != 0;
            want[j] = survives ? x[j] / (1 - 0.3) : 0;
            dropped += !survives;
        }
        assert_true(dropped > 0 && dropped < (int)n);
        assert_true(close_real("channel dropout", y, want, n));
        channel_dropout_forward(d_x, d_x, &d, B, (size_t)N, C);
        assert_memory_equal(download_real(d_x, n), download_real(y, n), n * sizeof(float));
        const Dropout none = {.rate = 0};
        channel_dropout_forward(y, d_x, &none, B, (size_t)N, C);
        assert_memory_equal(download_real(d_x, n), download_real(y, n), n * sizeof(float));
        release_all();
    }
}

int main(void) {
    check_seed();
    kernels_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss),    cmocka_unit_test(test_loss_edges),      cmocka_unit_test(test_known_loss),
        cmocka_unit_test(test_classes), cmocka_unit_test(test_first_of_equals), cmocka_unit_test(test_channel_dropout),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
