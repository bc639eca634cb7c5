/* Weights of image models in models of clips: a still clip without motion operators gives the logits of its image, and
 * centre kernels treat each frame separately. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "training/checkpoint.h"
#include "layers/vit/fit_weights.h"
#include "layers/vit/vit.h"
#include "tests/on_device.h"
#include "tests/scratch.h"
#include "tests/settings.h"

enum { B = 2, CLASSES = 5, FRAMES = 5 };

static const char SMALL[] = "num_classes = 5\npatch_size = 2\ndim = 12\ndepth = 2\nheads = 3\nmlp_ratio = 2\n"
                            "lisa_patterns = 3\npool = gap\nimg_size = 6x14\n";

typedef struct {
    Config config;
    Vit vit;
} Network;

static void model_create(Network *m, const char *settings, const char *more) {
    config_init(&m->config, NULL);
    vit_add_settings(&m->config);
    settings_read(&m->config, SMALL);
    settings_read(&m->config, settings);
    settings_read(&m->config, more);
    vit_create(&m->vit, &m->config);
}

static void model_start(Network *m) {
    vit_plan(&m->vit, B, false);
    vit_allocate(&m->vit);
    params_allocate(&m->vit.model.params, false);
}

/* Fills all tensors with random numbers: initial zeros, ones and small weights would hide mistakes. */
static void draw(Params *params) {
    float *values = check_normal(params->total, 1, 77);
    for (int i = 0; i < params_count(params); i++) {
        const Param *p = params_at(params, i);
        bool norm = strstr(p->name, "norm") && strstr(p->name, "weight");
        for (size_t k = 0; k < p->size; k++) values[p->offset + k] = 0.3f * values[p->offset + k] + norm;
    }
    device_upload(params->values, values, params->total * sizeof *values);
    free(values);
}

static void model_close(Network *m) {
    vit_destroy(&m->vit);
    config_free(&m->config);
}

/* Logits of B clips [B,frames,3,Hi,Wi]. */
static void logits_of(Network *m, float *logits, const float *images) {
    const VitSettings *s = &m->vit.settings;
    size_t n = (size_t)B * (size_t)s->frames * 3 * (size_t)s->img_size[0] * (size_t)s->img_size[1];
    real_upload(m->vit.images, images, n);
    vit_forward(&m->vit, B, false);
    real_download(logits, m->vit.logits, B * CLASSES);
}

static size_t image_size(const Network *m) {
    return 3 * (size_t)m->vit.settings.img_size[0] * (size_t)m->vit.settings.img_size[1];
}

/* Frame t of every clip, as images. */
static float *frame_of(const float *clips, int t, size_t image) {
    float *x = malloc(B * image * sizeof *x);
    for (size_t b = 0; b < B; b++) memcpy(x + b * image, clips + (b * FRAMES + (size_t)t) * image, image * sizeof *x);
    return x;
}

/* Saves the image model's weights and loads them into the clip model. */
static void pair_open(Network *image, Network *clip, const char *settings, const char *clips, const char *rule) {
    char more[128];
    const char *path = in_folder("image.safetensors");
    model_create(image, settings, "");
    model_start(image);
    draw(&image->vit.model.params);
    checkpoint_save_weights(&image->vit.model.params, image->vit.model.params.values, path, NULL, 0);
    snprintf(more, sizeof more, "frames = %d\ninflate = %s\n%s", FRAMES, rule, clips);
    model_create(clip, settings, more);
    model_start(clip);
    FittedWeights fitted = fit_weights(&clip->vit.model, path, &image->vit.model, NULL, 1,
                                                clip->vit.settings.inflate);
    assert_int_equal(fitted.resampled, 0);
}

/* The largest difference between the clip model's logits and the mean of the image model's logits on every step-th
 * frame, relative to their root mean square.  still: all frames are the first one. */
static double difference(const char *settings, const char *clips, const char *rule, bool still, int step) {
    Network image, clip;
    float got[B * CLASSES], one[B * CLASSES];
    double want[B * CLASSES] = {0}, squares = 0, worst = 0;
    pair_open(&image, &clip, settings, clips, rule);
    size_t size = image_size(&image);
    float *x = check_normal(B * FRAMES * size, 1, 5);
    for (size_t i = 0; still && i < B * FRAMES * size; i++) x[i] = x[i / size / FRAMES * FRAMES * size + i % size];
    logits_of(&clip, got, x);
    int count = 0;
    for (int t = 0; t < FRAMES; t += step, count++) {
        float *frame = frame_of(x, t, size);
        logits_of(&image, one, frame);
        for (int i = 0; i < B * CLASSES; i++) want[i] += one[i];
        free(frame);
    }
    for (int i = 0; i < B * CLASSES && !isnan(worst); i++) {
        want[i] /= count;
        squares += want[i] * want[i];
        double error = fabs(got[i] - want[i]);
        if (!(error <= worst)) worst = error;
    }
    free(x);
    model_close(&clip);
    model_close(&image);
    worst /= sqrt(squares / (B * CLASSES));
    printf("%s%s %s%s: %.1e\n", settings, clips, rule, still ? ", still" : "", worst);
    return worst;
}

static double tolerance(void) { return sizeof(real) == 4 ? 2e-5 : 0.1; }

/* The whole network with tubelets and convolutions.  A model with a class token is not the same, because the token sees
 * more tokens, and neither is relu-linear, which adds 1e-6 to a sum over all keys. */
static void test_centre_still(void **state) {
    static const char *const models[] = {
        "attn = softmax\n", "attn = efficient\npos_embed = none\n", "attn = lisa\n",
        "attn = lisa\nlisa_fft = 3d\n", "attn = lisa\nlisa_kernel = 3\n", "attn = gf\n", "attn = lambda\n",
        "attn = rsa\n", "attn = dwconv7\n", "attn = focused\n", "attn = castling\n", "attn = sa9\n", "attn = sa11\n",
        "attn = inception\n", "attn = convattn\n", "attn = convattn\nkv_stride = 2\n", "attn = convit\n", "attn = reduced\nreduction = 2\n",
        "attn = swin\nwindow = 3\n", "attn = cswin\nheads = 2\nstripe = 1\n",
        "attn = softmax\npos_embed = conv\nmlp_conv = true\n",
        ("attn = lisa\ndim = 8,12\ndepth = 1,1\nheads = 2,3\npatch_overlap = true\npos_embed = conv\nmlp_conv = true\n"
         "conv_stages = 1\nconv_block = sepconv\nhead = mlp\n")};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        assert_true(difference(models[i], "tubelet = 3\n", "centre", true, 1) < tolerance());
}

/* Operators without a kernel over neighbouring frames, because such a kernel has fewer frames at the ends of a clip. */
static void test_mean_still(void **state) {
    static const char *const models[] = {"attn = softmax\n", "attn = softmax\nrpe = heads\n", "attn = efficient\n", "attn = lisa\n", "attn = convit\n",
                                         "attn = lisa\nlisa_fft = 3d\n", "attn = gf\n", "attn = lambda\n",
                                         "attn = rsa\n", "attn = sa9-heads\n", "attn = sa10\n",
                                         "attn = reduced\nreduction = 2\n", "attn = reduced\nreduction_cells = 2\n",
                                         "attn = swin\nwindow = 3\n", "attn = swin\nwindow = 3\nwindow_time = 1\n"};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        assert_true(difference(models[i], "tubelet = 1\n", "mean", true, 1) < tolerance());
    assert_true(difference("attn = dwconv7\n", "tubelet = 1\n", "mean", true, 1) > 0.01); /* the ends */
}

/* Moving clips: no frame sees another one. */
static void test_centre_moving(void **state) {
    static const char *const models[] = {"attn = lisa\nlisa_fft = 3d\n", "attn = lisa\nlisa_kernel = 3\n",
                                         "attn = gf\n", "attn = dwconv7\n", "attn = sa11\n", "attn = lambda\n",
                                         "attn = rsa\n", "attn = gf\nmlp_conv = true\npos_embed = conv\n"};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        assert_true(difference(models[i], "tubelet = 1\n", "centre", false, 1) < tolerance());
        assert_true(difference(models[i], "tubelet = 3\n", "centre", false, 2) < tolerance());
    }
    assert_true(difference("attn = lisa\n", "tubelet = 1\n", "centre", false, 1) > 0.003); /* circular over frames */
    assert_true(difference("attn = gf\n", "tubelet = 1\n", "mean", false, 1) > 0.003);
}

/* Weights for images of another size are first resampled and then extended; the clip model agrees with a resampled
 * image model. */
static void test_sizes(void **state) {
    static const char *const models[] = {"attn = lisa\nlisa_fft = 3d\n", "attn = lambda\n", "attn = softmax\n"};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        Network small, large, clip;
        float got[B * CLASSES], want[B * CLASSES];
        const char *path = in_folder("small.safetensors");
        model_create(&small, models[i], "");
        model_start(&small);
        draw(&small.vit.model.params);
        checkpoint_save_weights(&small.vit.model.params, small.vit.model.params.values, path, NULL, 0);
        model_create(&large, models[i], "img_size = 10x18\n");
        model_start(&large);
        fit_weights(&large.vit.model, path, &small.vit.model, NULL, 1, INFLATE_NONE);
        model_create(&clip, models[i], "img_size = 10x18\nframes = 5\ntubelet = 3\n");
        model_start(&clip);
        FittedWeights fitted = fit_weights(&clip.vit.model, path, &small.vit.model, NULL, 1, INFLATE_CENTRE);
        assert_true(fitted.resampled > 0 && fitted.inflated > 1);
        assert_string_equal(fitted.clip->name, "pos_embed");
        assert_ptr_equal(fitted.first, fitted.clip);
        size_t size = image_size(&large);
        float *x = check_normal(B * FRAMES * size, 1, 5), *frame = frame_of(x, 0, size);
        for (size_t k = 0; k < B * FRAMES * size; k++) x[k] = frame[k / size / FRAMES * size + k % size];
        logits_of(&large, want, frame);
        logits_of(&clip, got, x);
        double wanted[B * CLASSES];
        for (int k = 0; k < B * CLASSES; k++) wanted[k] = want[k];
        assert_true(check_close(models[i], got, wanted, B * CLASSES, sizeof(real) == 4 ? 5e-5 : 0.1));
        free(frame);
        free(x);
        model_close(&clip);
        model_close(&large);
        model_close(&small);
    }
}

/* A 3 x 3 kernel of one channel, extended and applied to four frames, against numbers computed separately. */
static void test_numbers(void **state) {
    enum { HG = 3, WG = 4, T = 4 };
    (void)state;
    float image[9], mean[27], centre[27], bias[] = {0.25f}, x[T * HG * WG];
    Param p = {.ndim = 5, .shape = {1, 1, 3, 3, 3}, .size = 27, .time = {TIME_TAPS, 2, 3, 0, true}};
    for (int m = 0; m < 9; m++) image[m] = (float)(0.1 * sin(1 + m));
    inflate_tensor(mean, &p, image, INFLATE_MEAN);
    inflate_tensor(centre, &p, image, INFLATE_CENTRE);
    Depthwise shape = {{T, HG, WG}, 1, 3, 1, 1, 1, 3};
    double small = sizeof(real) == 4 ? 1e-6 : 1e-2;
    for (int still = 0; still < 2; still++) {
        for (int i = 0; i < T * HG * WG; i++) x[i] = (float)cos(0.3 * (i % 12) + 0.5 * (still ? 0 : i / 12));
        real *y = poisoned_real(T * HG * WG), *d_x = upload_real(x, T * HG * WG);
        kernels_reserve(depthwise_workspace(&shape));
        depthwise_forward(y, NULL, d_x, upload(mean, 27), upload(bias, 1), &shape, 1);
        const float *got = download_real(y, T * HG * WG);
        const double want[] = {0.24780688, 0.24671032, 0.24671032, 0.24780688};
        for (int t = 0; still && t < T; t++) assert_true(fabs(got[t * 12 + 6] - want[t]) < small);
        depthwise_forward(y, NULL, d_x, upload(centre, 27), upload(bias, 1), &shape, 1);
        got = download_real(y, T * HG * WG);
        assert_true(fabs(got[0] - 0.16617936) < small && fabs(got[6] - 0.24671032) < small);
        if (still) continue;
        Unfold windows = {HG, WG, 1, 3, 1, 1, true, T, 3, 2};
        real *cols = poisoned_real(2 * HG * WG * 27);
        unfold_forward(cols, d_x, &windows, 1);
        const float *rows = download_real(cols, 2 * HG * WG * 27);
        double sum = 0, y06 = 0.25, y16 = 0.25;
        for (int i = 0; i < 2 * HG * WG; i++) {
            sum += 0.25;
            for (int k = 0; k < 27; k++) sum += (double)mean[k] * rows[i * 27 + k];
        }
        for (int k = 0; k < 27; k++) {
            y06 += (double)mean[k] * rows[6 * 27 + k];
            y16 += (double)mean[k] * rows[18 * 27 + k];
        }
        assert_true(fabs(y06 - 0.25915829) < small && fabs(y16 - 0.30261128) < small);
        assert_true(fabs(sum - 5.33181083) < 20 * small);
    }
    release_all();
}

/* The saved weights of an extended model are those of a clip model and need no inflation rule. */
static void test_again(void **state) {
    Network image, clip, again;
    float want[B * CLASSES], got[B * CLASSES];
    const char *path = in_folder("clip.safetensors");
    (void)state;
    pair_open(&image, &clip, "attn = lisa\nlisa_fft = 3d\nmlp_conv = true\n", "tubelet = 3\n", "mean");
    checkpoint_save_weights(&clip.vit.model.params, clip.vit.model.params.values, path, NULL, 0);
    model_create(&again, "attn = lisa\nlisa_fft = 3d\nmlp_conv = true\n", "frames = 5\ntubelet = 3\n");
    model_start(&again);
    FittedWeights fitted = fit_weights(&again.vit.model, path, &clip.vit.model, NULL, 1, INFLATE_NONE);
    assert_true(!fitted.inflated && !fitted.resampled);
    float *x = check_normal(B * FRAMES * image_size(&image), 1, 5);
    logits_of(&clip, want, x);
    logits_of(&again, got, x);
    assert_memory_equal(got, want, sizeof want);
    free(x);
    model_close(&again);
    model_close(&clip);
    model_close(&image);
}

/* Weights for clips with 3 token frames in a model with 5: all tables on the grid are resampled, the position embedding
 * linearly. */
static void test_longer(void **state) {
    enum { T = 3, U = 5, AREA = 3 * 7, M = 12 };
    static const double weights[U][T] = {{1, 0, 0}, {0.6, 0.4, 0}, {0, 1, 0}, {0, 0.4, 0.6}, {0, 0, 1}};
    static const struct {
        const char *settings;
        int tables;
    } models[] = {{"attn = softmax\n", 1}, {"attn = softmax\nrpe = heads\n", 3}, {"attn = focused\n", 3},
                  {"attn = lisa\nlisa_fft = 3d\n", 5}, {"attn = lambda\n", 3}, {"attn = sa11\n", 5}};
    const char *path = in_folder("short.safetensors");
    static float was[T * AREA * M], is[U * AREA * M];
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        Network shorter, longer;
        model_create(&shorter, models[i].settings, "frames = 5\ntubelet = 3\n");
        model_start(&shorter);
        Params *from = &shorter.vit.model.params, *to = &longer.vit.model.params;
        draw(from);
        checkpoint_save_weights(from, from->values, path, NULL, 0);
        model_create(&longer, models[i].settings, "frames = 9\ntubelet = 3\n");
        model_start(&longer);
        FittedWeights fitted = fit_weights(&longer.vit.model, path, &shorter.vit.model, NULL, 1, INFLATE_NONE);
        assert_true(!fitted.inflated);
        assert_int_equal(fitted.resampled, models[i].tables);
        device_download(was, from->values + params_find(from, "pos_embed")->offset, sizeof was);
        device_download(is, to->values + params_find(to, "pos_embed")->offset, sizeof is);
        for (size_t k = 0; k < U * AREA * M; k++) {
            double want = 0;
            for (size_t t = 0; t < T; t++) want += weights[k / (AREA * M)][t] * was[t * AREA * M + k % (AREA * M)];
            assert_float_equal(is[k], want, 1e-6);
        }
        model_close(&longer);
        model_close(&shorter);
    }
}

int main(void) {
    check_seed();
    kernels_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_centre_still), cmocka_unit_test(test_mean_still), cmocka_unit_test(test_centre_moving),
        cmocka_unit_test(test_sizes),        cmocka_unit_test(test_numbers),    cmocka_unit_test(test_again),
        cmocka_unit_test(test_longer),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
