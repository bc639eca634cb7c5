/* Convolutions with a folded batch norm, ReLU's gradient, the max pool and padded images against their formulas in
 * double, at sizes that change from call to call. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <omp.h>

#include "data/sets/dataset.h"
#include "tests/on_device.h"

typedef struct {
    int B, H, W;
    Convolution c;
    bool add, relu, in_place;
} Case;

typedef struct {
    double *y, *dx, *dw;
} Reference;

/* Visits every triple of an output, a tap of its window and an input channel; weights are not folded.  s: sums of the
 * absolute values of the terms. */
static void reference(Reference r, Reference s, const float *x, const float *dy, const float *w, const float *scale,
                      Case k) {
    int Ho = convolution_side(k.H, k.c.stride), Wo = convolution_side(k.W, k.c.stride), taps = k.c.k * k.c.k;
    for (int p = 0; p < k.B * Ho * Wo; p++)
        for (int tap = 0; tap < taps; tap++) {
            int b = p / (Ho * Wo), yi = p / Wo % Ho * k.c.stride + tap / k.c.k - convolution_before(&k.c, k.H);
            int xi = p % Wo * k.c.stride + tap % k.c.k - convolution_before(&k.c, k.W);
            if (yi < 0 || yi >= k.H || xi < 0 || xi >= k.W) continue;
            size_t in = (((size_t)b * k.H + yi) * k.W + xi) * k.c.in;
            for (int o = 0; o < k.c.out; o++)
                for (int i = 0; i < k.c.in; i++) {
                    size_t at = ((size_t)o * k.c.in + i) * taps + tap, out = (size_t)p * k.c.out + o;
                    add_term(&r.y[out], &s.y[out], (double)scale[o] * w[at] * x[in + i]);
                    add_term(&r.dx[in + i], &s.dx[in + i], (double)scale[o] * w[at] * dy[out]);
                    add_term(&r.dw[at], &s.dw[at], (double)scale[o] * dy[out] * x[in + i]);
                }
        }
}

/* Normal numbers, none so near zero that rounding could change on which side of the kink of ReLU they are. */
static float *inputs(size_t n) {
    float *x = normals(n, 1);
    for (size_t i = 0; i < n; i++)
        if (fabsf(x[i]) < 0.01f) x[i] = 0.01f;
    return x;
}

static void convolution_case(Case k) {
    const Convolution *c = &k.c;
    int Ho = convolution_side(k.H, c->stride), Wo = convolution_side(k.W, c->stride);
    size_t nx = (size_t)k.B * k.H * k.W * c->in, ny = (size_t)k.B * Ho * Wo * c->out,
           nw = (size_t)c->out * c->in * c->k * c->k;
    printf("convolution %d -> %d, %dx%d stride %d%s, B %d image %dx%d%s%s%s\n", c->in, c->out, c->k, c->k, c->stride,
           (const char *[]){"", " same", " quick"}[c->way], k.B, k.H, k.W, k.add ? ", added to" : "", k.relu ? ", relu" : "",
           k.in_place ? ", in place" : "");
    float *x = inputs(nx), *dy = inputs(ny), *w = normals(nw, 1.0f / sqrtf((float)(c->in * c->k * c->k)));
    float *add = normals(ny, 1), *dx_add = normals(nx, 1), *below = inputs(nx), *dw = normals(nw, 1);
    float *bn[4] = {normals(c->out, 1), normals(c->out, 1), normals(c->out, 1), normals(c->out, 1)};
    float *scale = keep(malloc(c->out * sizeof(float)), false);
    real *d_x = upload_real(x, nx), *d_dy = upload_real(dy, ny), *d_add = upload_real(add, ny);
    real *d_dx_add = upload_real(dx_add, nx), *d_below = upload_real(below, nx);
    real *d_y = k.in_place ? d_add : poisoned_real(ny), *d_dx = k.in_place ? d_dx_add : poisoned_real(nx);
    float *d_w = upload(w, nw), *d_dw = upload(dw, nw), *d_scale = poisoned(c->out), *d_shift = poisoned(c->out);

    for (int o = 0; o < c->out; o++) {
        bn[0][o] = 1 + 0.25f * bn[0][o];
        bn[3][o] = 1 + 0.2f * fabsf(bn[3][o]);
        scale[o] = bn[0][o] / sqrtf(bn[3][o] + 1e-5f);
    }
    Reference r = {zeros(ny), zeros(nx), zeros(nw)}, s = {zeros(ny), zeros(nx), zeros(nw)};
    for (size_t i = 0; i < nw; i++) add_term(&r.dw[i], &s.dw[i], dw[i]);
    reference(r, s, x, dy, w, scale, k);
    for (size_t i = 0; i < ny; i++) {
        add_term(&r.y[i], &s.y[i], bn[1][i % c->out]);
        add_term(&r.y[i], &s.y[i], -(double)bn[2][i % c->out] * scale[i % c->out]);
        if (k.add) add_term(&r.y[i], &s.y[i], add[i]);
        if (k.relu && r.y[i] < 0) r.y[i] = 0;
    }
    bool dx_adds = k.add && c->stride == 1;
    for (size_t i = 0; i < nx; i++) {
        if (dx_adds) add_term(&r.dx[i], &s.dx[i], dx_add[i]);
        if (k.relu && below[i] <= 0) r.dx[i] = 0;
    }

    batchnorm_fold(d_scale, d_shift, upload(bn[0], c->out), upload(bn[1], c->out), upload(bn[2], c->out),
                   upload(bn[3], c->out), c->out, 1e-5f);
    void *folded = keep(device_malloc(convolution_folded_bytes(c, true), "test"), true);
    convolution_fold(folded, d_w, d_scale, c, true);
    const ImageShape images = {k.B, k.H, k.W};
    kernels_reserve(convolution_workspace(c, &images, true));
    convolution_forward(d_y, d_x, k.add ? d_add : NULL, folded, d_shift, c, k.relu, &images);
    convolution_backward_input(d_dx, dx_adds ? d_dx_add : NULL, d_dy, folded, k.relu ? d_below : NULL, c, &images);
    convolution_backward_weight(d_dw, d_dy, d_x, d_scale, c, &images);
    bool few = ny < 100; /* ReLU may set all of them to 0 */
    assert_true(close_sums("y", download_real(d_y, ny), r.y, s.y, ny, few));
    assert_true(close_sums("dx", download_real(d_dx, nx), r.dx, s.dx, nx, few));
    assert_true(close_sums("dw", download(d_dw, nw), r.dw, s.dw, nw, few));
    float *again = upload(dw, nw);
    convolution_backward_weight(again, d_dy, d_x, d_scale, c, &images);
    assert_memory_equal(download(again, nw), download(d_dw, nw), nw * sizeof(float));
    release_all();
}

static void test_convolution(void **state) {
    (void)state;
    const Case cases[] = {
        {2, 9, 7, {3, 5, 7, 2, false}, false, true, false},   {1, 1, 1, {3, 1, 7, 2, false}, false, false, false},
        {2, 5, 6, {8, 16, 1, 1, false}, true, true, false},   {2, 5, 6, {16, 8, 1, 1, false}, true, true, true},
        {1, 1, 1, {1, 1, 1, 1, false}, false, false, false},  {3, 4, 7, {5, 9, 1, 1, false}, true, false, false},
        {2, 5, 6, {7, 11, 1, 2, false}, false, false, false}, {1, 8, 8, {16, 32, 1, 2, false}, false, true, false},
        {2, 6, 5, {8, 8, 3, 1, false}, true, true, false},    {1, 7, 9, {5, 3, 3, 1, false}, true, true, true},
        {1, 1, 2, {4, 4, 3, 1, false}, true, false, false},   {2, 7, 10, {8, 6, 3, 2, false}, false, true, false},
        {1, 1, 1, {2, 3, 3, 2, false}, false, false, false},  {1, 6, 9, {3, 3, 5, 3, false}, false, true, false},
        {2, 9, 11, {16, 16, 3, 1, false}, false, false, false},
        {2, 8, 10, {3, 5, 7, 2, true}, false, true, false},
        {2, 5, 6, {3, 4, 3, 2, true}, true, true, false},
        {1, 7, 9, {4, 6, 3, 2, true}, false, false, false},
        {2, 6, 4, {8, 7, 3, 2, true}, false, true, false},
        {1, 6, 7, {3, 3, 5, 3, true}, false, true, false},
        {2, 6, 5, {8, 8, 3, 1, true}, true, true, true},
        {1, 8, 6, {8, 16, 1, 2, true}, false, false, false},
        {1, 1, 2, {2, 3, 7, 2, true}, false, false, false},
        {2, 6, 5, {8, 26, 3, 1, false}, true, true, true},
        {1, 7, 8, {4, 26, 3, 2, true}, false, true, false},
        {2, 5, 6, {7, 26, 1, 1, false}, true, true, false},
        {2, 9, 11, {32, 64, 3, 1, CONVOLUTION_QUICK}, true, true, false},
        {1, 8, 4, {64, 32, 3, 1, CONVOLUTION_QUICK}, true, true, true},
        {3, 1, 2, {32, 32, 3, 1, CONVOLUTION_QUICK}, false, false, false},
        {1, 13, 6, {32, 96, 3, 1, CONVOLUTION_QUICK}, false, true, false},
        {1, 7, 6, {33, 20, 3, 1, CONVOLUTION_QUICK}, true, true, false},
        {2, 7, 6, {32, 32, 3, 2, CONVOLUTION_QUICK}, false, true, false},
        {2, 6, 7, {32, 64, 1, 1, CONVOLUTION_QUICK}, true, true, false},
        {2, 9, 7, {3, 32, 3, 1, false}, false, true, false},
        {1, 1, 1, {3, 16, 3, 1, false}, false, false, false},
        {3, 7, 20, {7, 48, 3, 1, false}, false, false, false},
        {2, 8, 9, {2, 16, 5, 2, false}, false, true, false},
        {2, 8, 10, {3, 32, 3, 2, true}, false, true, false},
        {1, 9, 6, {1, 32, 7, 3, true}, false, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) convolution_case(cases[i]);
    if (full_or_reduced("large convolutions", 1, 0)) {
        convolution_case((Case){1, 50, 67, {64, 64, 3, 1, false}, true, true, false});
        convolution_case((Case){2, 51, 66, {64, 48, 3, 2, false}, false, true, false});
        convolution_case((Case){1, 50, 67, {256, 64, 1, 1, false}, true, true, true});
        convolution_case((Case){1, 37, 50, {64, 96, 1, 2, false}, false, true, false});
        convolution_case((Case){2, 51, 66, {64, 96, 3, 1, CONVOLUTION_QUICK}, true, true, false});
    }
}

/* The errors of a quick convolution are at most 5e-6 of the result's root mean square, ten times those of a plain one,
 * and its bits do not depend on the number of threads. */
static void test_quick(void **state) {
    (void)state;
    enum { C = 128, H = 9, W = 14 };
    const Convolution c = {C, C, 3, 1, CONVOLUTION_QUICK};
    const ImageShape images = {1, H, W};
    const Case k = {1, H, W, c, false, false, false};
    size_t n = H * W * C, nw = C * C * 9;
    float *x = normals(n, 1), *dy = normals(n, 1), *w = normals(nw, 1 / 34.0f), *ones = keep(malloc(C * sizeof *ones), false);
    float *zero = normals(nw, 0), *first[3] = {0};
    for (int o = 0; o < C; o++) ones[o] = 1;
    real *d_x = upload_real(x, n), *d_dy = upload_real(dy, n), *y = poisoned_real(n), *dx = poisoned_real(n);
    float *d_w = upload(w, nw), *scale = upload(ones, C), *shift = upload(zero, C);
    Reference r = {zeros(n), zeros(n), zeros(nw)}, size = {zeros(n), zeros(n), zeros(nw)};
    reference(r, size, x, dy, w, ones, k);
    const int threads[] = {1, 2, 7}, usual = omp_get_max_threads();
    for (int t = 0; t < 3; t++) {
        omp_set_num_threads(threads[t]);
        void *folded = keep(device_malloc(convolution_folded_bytes(&c, true), "test"), true);
        float *dw = upload(zero, nw);
        kernels_reserve(convolution_workspace(&c, &images, true));
        convolution_fold(folded, d_w, scale, &c, true);
        convolution_forward(y, d_x, NULL, folded, shift, &c, false, &images);
        convolution_backward_input(dx, NULL, d_dy, folded, NULL, &c, &images);
        convolution_backward_weight(dw, d_dy, d_x, scale, &c, &images);
        float *now[3] = {download_real(y, n), download_real(dx, n), download(dw, nw)};
        const double *want[3] = {r.y, r.dx, r.dw};
        const size_t count[3] = {n, n, nw};
        for (int i = 0; i < 3; i++) {
            double allowed = 5e-6 + REAL_STEP;
            if (!t) assert_true(check_rms((const char *[]){"y", "dx", "dw"}[i], now[i], want[i], count[i], allowed));
            if (!t) first[i] = now[i];
            if (sizeof(real) == 4) assert_memory_equal(now[i], first[i], count[i] * sizeof(float));
        }
    }
    omp_set_num_threads(usual);
    release_all();
}

/* With few input channels the gradient of the weights has the same bits with any number of threads. */
static void test_narrow_threads(void **state) {
    (void)state;
    const Convolution c = {3, 32, 3, 1, CONVOLUTION_CENTRED};
    const ImageShape images = {3, 9, 14};
    size_t pixels = 3 * 9 * 14, nw = 32 * 3 * 9;
    real *x = upload_real(normals(pixels * 3, 1), pixels * 3), *dy = upload_real(normals(pixels * 32, 1), pixels * 32);
    float *scale = upload(normals(32, 1), 32), *dw = normals(nw, 1), *first = NULL;
    const int threads[] = {1, 2, 7, 20}, usual = omp_get_max_threads();
    for (int t = 0; t < 4; t++) {
        omp_set_num_threads(threads[t]);
        float *sum = upload(dw, nw);
        kernels_reserve(convolution_workspace(&c, &images, true));
        convolution_backward_weight(sum, dy, x, scale, &c, &images);
        float *now = download(sum, nw);
        if (first) assert_memory_equal(now, first, nw * sizeof *now);
        else first = now;
    }
    omp_set_num_threads(usual);
    release_all();
}

/* The sum over a window of ones is the number of its pixels.  There are more shapes than any table of shapes can hold,
 * and all of them occur twice, with different weights. */
static void test_changing_sizes(void **state) {
    (void)state;
    enum { MOST = 36, C = 16 };
    int most = full_or_reduced("sides up to", MOST, 4);
    const Convolution c = {C, C, 3, 1, false};
    float *ones = keep(malloc(MOST * MOST * C * sizeof *ones), false), *w = keep(calloc(C * C * 9, sizeof *w), false);
    float *no_shift = keep(calloc(C, sizeof *no_shift), false);
    for (int i = 0; i < MOST * MOST * C; i++) ones[i] = 1;
    for (int o = 0; o < C; o++)
        for (int tap = 0; tap < 9; tap++) w[(o * C + o) * 9 + tap] = 1;
    real *x = upload_real(ones, (size_t)most * most * C), *y = poisoned_real((size_t)most * most * C);
    float *d_w = upload(w, C * C * 9), *shift = upload(no_shift, C);
    void *folded = keep(device_malloc(convolution_folded_bytes(&c, true), "test"), true);
    for (int pass = 1; pass <= 2; pass++) {
        float *scale = keep(malloc(C * sizeof *scale), false);
        for (int o = 0; o < C; o++) scale[o] = (float)pass;
        convolution_fold(folded, d_w, upload(scale, C), &c, true);
        for (int H = 1; H <= most; H++)
            for (int W = 1; W <= most; W++) {
                convolution_forward(y, x, NULL, folded, shift, &c, false, &(ImageShape){1, H, W});
                const float *got = download_real(y, (size_t)H * W * C);
                int corner = (H > 1 ? 2 : 1) * (W > 1 ? 2 : 1), middle = (H > 2 ? 3 : H) * (W > 2 ? 3 : W);
                assert_true(got[0] == (float)(pass * corner) && got[(size_t)H * W * C - 1] == (float)(pass * corner));
                assert_true(got[((size_t)(H / 2 < H - 1 ? H / 2 : H - 1) * W + (W / 2)) * C] ==
                                (float)(pass * middle) || H < 3 || W < 3);
                free(kept[--kept_count].p);
            }
    }
    release_all();
}

/* The padding above and to the left of the image is TensorFlow's. */
static void test_same(void **state) {
    (void)state;
    const Convolution stem = {3, 64, 7, 2, true}, halving = {64, 64, 3, 2, true}, plain = {64, 64, 3, 2, false};
    assert_int_equal(convolution_before(&stem, 224), 2);
    assert_int_equal(convolution_before(&stem, 225), 3);
    assert_int_equal(convolution_before(&halving, 112), 0);
    assert_int_equal(convolution_before(&halving, 5), 1);
    assert_int_equal(convolution_before(&plain, 112), 1);
    assert_int_equal(convolution_before(&(Convolution){64, 64, 3, 1, true}, 112), 1);
    assert_int_equal(convolution_before(&(Convolution){64, 64, 1, 2, true}, 112), 0);
}

/* The maximum of each window and its gradient; of relu(x) if `relu`. */
static void pool_reference(double *y, double *dx, const float *x, const float *dy, const int size[5], bool relu) {
    int B = size[0], H = size[1], W = size[2], C = size[3], Ho = (H + 1) / 2, Wo = (W + 1) / 2;
    int top = size[4] ? H % 2 : 1, left = size[4] ? W % 2 : 1;
    for (int i = 0; i < B * Ho * Wo * C; i++) {
        int c = i % C, xo = i / C % Wo, yo = i / C / Wo % Ho, b = i / C / Wo / Ho, best = -1;
        for (int tap = 0; tap < 9; tap++) {
            int yi = 2 * yo + tap / 3 - top, xi = 2 * xo + tap % 3 - left, at = ((b * H + yi) * W + xi) * C + c;
            if (yi < 0 || yi >= H || xi < 0 || xi >= W) continue;
            if (best < 0 || x[at] > x[best]) best = at;
        }
        bool off = relu && x[best] <= 0;
        y[i] = off ? 0 : x[best];
        if (!off) dx[best] += dy[i];
    }
}

static void test_max_pool(void **state) {
    (void)state;
    const int sizes[][5] = {{2, 9, 7, 5, false}, {1, 1, 1, 1, false}, {1, 2, 1, 8, false}, {2, 8, 10, 16, false},
                            {1, 3, 4, 33, false}, {2, 9, 8, 5, true}, {1, 1, 1, 1, true}, {2, 8, 10, 70, true},
                            {1, 6, 7, 16, true}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int B = sizes[s][0], H = sizes[s][1], W = sizes[s][2], C = sizes[s][3];
        bool same = sizes[s][4];
        size_t nx = (size_t)B * H * W * C, ny = (size_t)B * ((H + 1) / 2) * ((W + 1) / 2) * C;
        float *x = normals(nx, 1), *dy = normals(ny, 1);
        double *y = zeros(ny), *dx = zeros(nx);
        for (size_t i = 0; i < nx; i++) x[i] -= 3; /* mostly negative: padding must not count as 0 */
        real *d_x = upload_real(x, nx), *d_dy = upload_real(dy, ny), *d_y = poisoned_real(ny);
        real *d_dx = poisoned_real(nx);
        uint8_t *at = keep(device_malloc(ny, "test"), true);
        const ImageShape images = {B, H, W};
        pool_reference(y, dx, x, dy, sizes[s], false);
        printf("max pool B %d %dx%d C %d%s\n", B, H, W, C, same ? " same" : "");
        max_pool_forward(d_y, NULL, d_x, &images, C, same);
        assert_true(close_real("y", d_y, y, ny));
        max_pool_forward(d_y, at, d_x, &images, C, same);
        assert_true(close_real("y with places", d_y, y, ny));
        max_pool_backward(d_dx, d_dy, at, &images, C, same);
        assert_true(close_real("dx", d_dx, dx, nx));
        release_all();
    }
}

/* Half of the windows have only negative pixels or zeros, for which ReLU gives 0, and many have equal maxima. */
static void test_relu_max_pool(void **state) {
    (void)state;
    const int sizes[][5] = {{2, 9, 7, 5, false}, {1, 1, 1, 1, false}, {3, 8, 10, 70, false}, {1, 3, 4, 33, false}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int B = sizes[s][0], H = sizes[s][1], W = sizes[s][2], C = sizes[s][3];
        size_t nx = (size_t)B * H * W * C, ny = (size_t)B * ((H + 1) / 2) * ((W + 1) / 2) * C;
        float *x = normals(nx, 1), *dy = normals(ny, 1);
        double *y = zeros(ny), *dx = zeros(nx);
        for (size_t i = 0; i < nx; i++) x[i] = x[i] < 1.3f ? fminf(x[i], 0) : roundf(x[i]);
        x[0] = 1; /* not everything is 0 */
        real *d_x = upload_real(x, nx), *d_dy = upload_real(dy, ny), *d_y = poisoned_real(ny);
        real *d_dx = poisoned_real(nx);
        uint8_t *at = keep(device_malloc(ny, "test"), true);
        const ImageShape images = {B, H, W};
        pool_reference(y, dx, x, dy, sizes[s], true);
        printf("ReLU and max pool B %d %dx%d C %d\n", B, H, W, C);
        relu_max_pool_forward(d_y, NULL, d_x, &images, C);
        assert_true(close_real("y", d_y, y, ny));
        relu_max_pool_forward(d_y, at, d_x, &images, C);
        assert_true(close_real("y with places", d_y, y, ny));
        max_pool_backward(d_dx, d_dy, at, &images, C, false);
        assert_true(close_real("dx", d_dx, dx, nx));
        release_all();
    }
}

static void test_relu_gradient(void **state) {
    (void)state;
    const size_t sizes[] = {1, 7, 1000, 4096};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t n = sizes[s];
        float *y = normals(n, 1), *dy = inputs(n);
        double *dx = zeros(n);
        for (size_t i = 0; i < n; i++)
            if (i % 3 == 0 && i) y[i] = 0;
        y[0] = 1;
        real *d_y = upload_real(y, n), *d_dy = upload_real(dy, n), *d_dx = poisoned_real(n);
        for (size_t i = 0; i < n; i++) dx[i] = y[i] > 0 ? dy[i] : 0;
        relu_gradient(d_dx, d_dy, d_y, n);
        assert_true(close_real("dx", d_dx, dx, n));
        relu_gradient(d_dy, d_dy, d_y, n);
        assert_true(close_real("dx in place", d_dy, dx, n));
        release_all();
    }
}

static void test_padded_images(void **state) {
    (void)state;
    enum { B = 3, H = 5, W = 7, N = B * H * W * 3 };
    const int sizes[B][2] = {{5, 4}, {3, 7}, {1, 1}};
    const float *mean = imagenet_mean, *std = imagenet_std;
    uint8_t x[N];
    double *y = zeros(N);
    for (int i = 0; i < N; i++) {
        int b = i / (H * W * 3), yi = i / (W * 3) % H, xi = i / 3 % W;
        x[i] = (uint8_t)rng_bits(check_seed(), RNG_TEST, 900, 0, (uint64_t)i);
        if (yi < sizes[b][0] && xi < sizes[b][1]) y[i] = (x[i] / 255.0 - mean[i % 3]) / std[i % 3];
    }
    uint8_t *d_x = keep(device_malloc(N, "test"), true);
    int *d_sizes = keep(device_malloc(sizeof sizes, "test"), true);
    real *d_y = poisoned_real(N);
    device_upload(d_x, x, N);
    device_upload(d_sizes, sizes, sizeof sizes);
    images_normalize_padded(d_y, d_x, d_sizes, mean, std, &(ImageShape){B, H, W});
    assert_true(close_real("padded images", d_y, y, N));
    release_all();
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convolution), cmocka_unit_test(test_quick), cmocka_unit_test(test_narrow_threads),
        cmocka_unit_test(test_changing_sizes),
        cmocka_unit_test(test_max_pool), cmocka_unit_test(test_relu_max_pool),
        cmocka_unit_test(test_relu_gradient), cmocka_unit_test(test_padded_images),  cmocka_unit_test(test_same),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
