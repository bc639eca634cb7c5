/* The ResNet of a hybrid against its formulas in double: features, and all gradients against central differences.  The
 * cases have images of odd sides, a stage with two blocks, a stage with stride 2, and the stem alone; with both
 * plans. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "layers/vit/hybrid_stem.h"
#include "tests/differences.h"
#include "tests/settings.h"

/* == The formulas ================================================================================================= */

typedef struct {
    const HybridStem *stem;
    const Params *params;
    double *values; /* [params->total] */
    double *images; /* [B,3,Hi,Wi] */
    int B;
    double nearest; /* least distance to a kink of a ReLU or a maximum */
    double flattest; /* least standard deviation of a normalised group, as a share of the root mean square of the
                        features: the norm divides their rounding errors by it */
} Reference;

/* Channels last. */
typedef struct {
    int H, W, C;
    double *x; /* [B,H,W,C] */
} Pictures;

static Pictures pictures(const Reference *r, int H, int W, int C) {
    return (Pictures){H, W, C, calloc((size_t)(r->B * H * W * C), sizeof(double))};
}

static size_t numbers(const Reference *r, const Pictures *p) { return (size_t)(r->B * p->H * p->W * p->C); }

/* The values of the parameter whose address the layer keeps in `slot`. */
static const double *value_of(const Reference *r, float *const *slot) { return r->values + (*slot - r->params->values); }

static void standardized(double *y, const double *w, int out, int fan) {
    for (int o = 0; o < out; o++, w += fan, y += fan) {
        double sum = 0, squares = 0;
        for (int i = 0; i < fan; i++) sum += w[i];
        for (int i = 0; i < fan; i++) squares += (w[i] - sum / fan) * (w[i] - sum / fan);
        for (int i = 0; i < fan; i++) y[i] = (w[i] - sum / fan) / sqrt(squares / fan + 1e-8);
    }
}

/* TensorFlow's padding before a side, by its definition. */
static int before(int n, int k, int stride) {
    int total = ((n + stride - 1) / stride - 1) * stride + k - n;
    return total > 0 ? total / 2 : 0;
}

static Pictures convolve(const Reference *r, const StemUnit *u, Pictures p) {
    int k = u->shape.k, stride = u->shape.stride, top = before(p.H, k, stride), left = before(p.W, k, stride);
    Pictures q = pictures(r, (p.H + stride - 1) / stride, (p.W + stride - 1) / stride, u->shape.out);
    double *w = malloc((size_t)(q.C * p.C * k * k) * sizeof *w);
    standardized(w, value_of(r, &u->w), q.C, p.C * k * k);
    for (int at = 0; at < r->B * q.H * q.W; at++)
        for (int tap = 0; tap < k * k; tap++) {
            int y = at / q.W % q.H * stride + tap / k - top, x = at % q.W * stride + tap % k - left;
            if (y < 0 || y >= p.H || x < 0 || x >= p.W) continue;
            const double *from = p.x + ((at / (q.W * q.H) * p.H + y) * p.W + x) * p.C;
            for (int o = 0; o < q.C; o++)
                for (int i = 0; i < p.C; i++) q.x[at * q.C + o] += w[(o * p.C + i) * k * k + tap] * from[i];
        }
    free(w);
    return q;
}

static void normalize(Reference *r, const StemUnit *u, Pictures p) {
    const double *w = value_of(r, &u->norm.w), *b = value_of(r, &u->norm.b);
    int N = p.H * p.W, width = p.C / 32;
    double size = 0;
    for (size_t i = 0; i < numbers(r, &p); i++) size += p.x[i] * p.x[i];
    size = sqrt(size / (double)numbers(r, &p));
    for (int g = 0; g < r->B * 32; g++) {
        double *x = p.x + (size_t)(g / 32 * N * p.C + g % 32 * width), sum = 0, squares = 0, count = N * width;
        for (int i = 0; i < N * width; i++) sum += x[i / width * p.C + i % width];
        for (int i = 0; i < N * width; i++) {
            double d = x[i / width * p.C + i % width] - sum / count;
            squares += d * d;
        }
        r->flattest = fmin(r->flattest, sqrt(squares / count) / size);
        for (int i = 0; i < N * width; i++) {
            double *at = &x[i / width * p.C + i % width];
            int c = g % 32 * width + i % width;
            *at = w[c] * (*at - sum / count) / sqrt(squares / count + 1e-5) + b[c];
        }
    }
}

static Pictures unit(Reference *r, const StemUnit *u, Pictures p) {
    Pictures q = convolve(r, u, p);
    normalize(r, u, q);
    return q;
}

static void rectify(Reference *r, Pictures p) {
    for (size_t i = 0; i < numbers(r, &p); i++) {
        r->nearest = fmin(r->nearest, fabs(p.x[i]));
        p.x[i] = fmax(p.x[i], 0);
    }
}

static Pictures pool(Reference *r, Pictures p) {
    Pictures q = pictures(r, (p.H + 1) / 2, (p.W + 1) / 2, p.C);
    for (int at = 0; at < r->B * q.H * q.W * q.C; at++) {
        double most = -INFINITY, second = -INFINITY;
        for (int tap = 0; tap < 9; tap++) {
            int y = 2 * (at / q.C / q.W % q.H) + tap / 3 - before(p.H, 3, 2);
            int x = 2 * (at / q.C % q.W) + tap % 3 - before(p.W, 3, 2);
            if (y < 0 || y >= p.H || x < 0 || x >= p.W) continue;
            double v = p.x[((at / (q.C * q.W * q.H) * p.H + y) * p.W + x) * p.C + at % q.C];
            second = fmax(second, fmin(v, most));
            most = fmax(most, v);
        }
        if (most > 0 && second > 0) r->nearest = fmin(r->nearest, most - second);
        q.x[at] = most;
    }
    free(p.x);
    return q;
}

static Pictures block(Reference *r, const StemBlock *b, Pictures x) {
    Pictures h1 = unit(r, &b->conv1, x), shortcut = b->downsampled ? unit(r, &b->downsample, x) : x;
    rectify(r, h1);
    Pictures h2 = unit(r, &b->conv2, h1);
    rectify(r, h2);
    Pictures y = unit(r, &b->conv3, h2);
    for (size_t i = 0; i < numbers(r, &y); i++) y.x[i] += shortcut.x[i];
    rectify(r, y);
    if (b->downsampled) free(shortcut.x);
    free(x.x);
    free(h1.x);
    free(h2.x);
    return y;
}

/* The features [B,Hs,Ws,C]. */
static void features(double *out, void *context) {
    Reference *r = context;
    const HybridStem *s = r->stem;
    Pictures p = pictures(r, s->Hi, s->Wi, 3);
    for (int i = 0, N = s->Hi * s->Wi; i < r->B * N * 3; i++) p.x[i] = r->images[(i / 3 / N * 3 + i % 3) * N + i / 3 % N];
    Pictures first = unit(r, &s->first, p);
    free(p.x);
    rectify(r, first);
    p = pool(r, first);
    for (int i = 0; i < s->stages; i++)
        for (int j = 0; j < s->settings.stem_blocks.at[i]; j++) p = block(r, &s->blocks[i][j], p);
    memcpy(out, p.x, numbers(r, &p) * sizeof *out);
    free(p.x);
}

/* == The layer ==================================================================================================== */

enum { B = 2 };

typedef struct {
    Config config;
    Params params;
    HybridStem stem;
    Plan plans[2]; /* for training and for inference */
    void *memory;
} Stem;

static void stem_open(Stem *s, const char *blocks, int H, int W) {
    memset(s, 0, sizeof *s);
    config_init(&s->config, NULL);
    config_add(&s->config, &hybrid_stem_settings);
    settings_put(&s->config, "stem_blocks", blocks);
    settings_put(&s->config, "stem_width", "32");
    hybrid_stem_check(&s->config);
    hybrid_stem_declare(&s->stem, &s->config, &s->params, "patch_embed.backbone.", H, W);
    size_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        s->plans[i].guarded = true;
        plan_start(&s->plans[i], i == 0);
        hybrid_stem_plan(&s->stem, &s->plans[i], "patch_embed.backbone.", B);
        if (plan_bytes(&s->plans[i]) > bytes) bytes = plan_bytes(&s->plans[i]);
    }
    s->memory = device_malloc(bytes, "test");
    params_allocate(&s->params, true);
    hybrid_stem_allocate(&s->stem);
}

static void stem_use(Stem *s, int plan) {
    plan_bind(&s->plans[plan], s->memory);
    plan_poison(&s->plans[plan]);
}

static void stem_close(Stem *s) {
    for (int i = 0; i < 2; i++) plan_free(&s->plans[i]);
    hybrid_stem_destroy(&s->stem);
    params_free(&s->params);
    config_free(&s->config);
    device_free(s->memory);
    release_all();
}

/* Samples parameters and images until rounding cannot decide a ReLU or a maximum, and no norm enlarges it much. */
static void draw(Stem *s, Reference *r, float **images, double *out) {
    size_t n = (size_t)B * 3 * (size_t)s->stem.Hi * (size_t)s->stem.Wi;
    do {
        float *values = normals(s->params.total, 0.3f);
        for (int i = 0; i < params_count(&s->params); i++) {
            const Param *p = params_at(&s->params, i);
            for (size_t j = 0; p->init == INIT_ONES && j < p->size; j++) values[p->offset + j] += 1;
        }
        device_upload(s->params.values, values, s->params.total * sizeof *values);
        *images = normals(n, 1);
        *r = (Reference){&s->stem, &s->params, wide(values, s->params.total), wide(*images, n), B, INFINITY, INFINITY};
        features(out, r);
    } while (r->nearest < 1e-5 || r->flattest < 0.15);
}

/* Compares a sample of each tensor's elements. */
static int gradients_agree(const Stem *s, const float *grads, const Function *f) {
    Reference *r = f->context;
    int ok = 1;
    for (int i = 0; i < params_count(&s->params); i++) {
        const Param *p = params_at(&s->params, i);
        ok &= slopes_agree(p->name, grads + p->offset, NULL, r->values + p->offset, p->size, f);
    }
    return ok;
}

static void stem_case(const char *blocks, int H, int W, int Hs, int Ws, int channels) {
    Stem s;
    Reference r;
    float *images;
    printf("stem of blocks %s on %d x %d\n", blocks, H, W);
    stem_open(&s, blocks, H, W);
    size_t n = (size_t)B * (size_t)grid_tokens(s.stem.grid) * (size_t)s.stem.channels;
    assert_true(s.stem.grid.rows == Hs && s.stem.grid.columns == Ws && s.stem.channels == channels);
    const StemSettings *settings = config_settings(&s.config, &hybrid_stem_settings);
    assert_true(hybrid_stem_side(settings, H) == Hs && hybrid_stem_side(settings, W) == Ws);
    double *want = zeros(n);
    draw(&s, &r, &images, want);
    real *d_images = upload_real(images, (size_t)B * 3 * (size_t)(H * W));

    stem_use(&s, 1);
    hybrid_stem_standardize(&s.stem);
    hybrid_stem_forward(&s.stem, d_images, B);
    float *inferred = download_real(s.stem.features, n);
    stem_use(&s, 0);
    hybrid_stem_forward(&s.stem, d_images, B);
    assert_true(check_close("features", download_real(s.stem.features, n), want, n, 2e-5));
    assert_true(check_close("features in inference", inferred, want, n, 2e-5));

    float *dy = normals(n, 1), *zero = keep(calloc(s.params.total, sizeof *zero), false);
    device_upload(s.params.grads, zero, s.params.total * sizeof *zero);
    real_upload(s.stem.dfeatures, dy, n);
    hybrid_stem_backward(&s.stem, B);
    const Function f = {features, &r, n, zeros(n), dy, 1e-6};
    assert_true(gradients_agree(&s, download(s.params.grads, s.params.total), &f));
    assert_null(plan_overrun(&s.plans[0]));
    stem_close(&s);
}

static void test_stem(void **state) {
    (void)state;
    if (sizeof(real) != 4) {
        printf("rounding to bfloat16 decides ReLUs: the fixtures hold a stem to what PyTorch's autocast makes of it\n");
        skip();
    }
    stem_case("0", 13, 18, 4, 5, 32);
    stem_case("1", 9, 8, 3, 2, 128);
    if (full_or_reduced("cases of two stages", 1, 0)) stem_case("2,1", 13, 18, 2, 3, 256);
}

int main(void) {
    check_seed();
    kernels_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stem)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
