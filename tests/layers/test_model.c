/* The whole model against the float64 reference (tests/reference/vit_reference.py), against central differences, and
 * against itself: every algorithm, both plans, micro-batches, and memory filled with NaN give the same results.  Every
 * file in tests/fixtures is a case; its metadata holds the settings. */
#include <float.h>
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <omp.h>

#include "training/checkpoint.h"
#include "layers/vit/vit.h"
#include "tests/bf16_bounds.h"
#include "tests/on_device.h"
#include "tests/settings.h"
#include "tests/slopes.h"

/* The seed and step with which tests/reference/dropout_reference.py samples dropout. */
enum { DROP_STEP = 7, DROP_FIRST = 3 };
static const uint64_t DROP_SEED = 0x1234567890;

typedef struct {
    const char *path;
    SafeTensors file;
    Config config;
    Vit vit;
    int B, C;
    const DistillationSettings *distillation;
    bool drop; /* forward and backward with drop path and dropout */
    float *images, *targets, *losses, *logits, *teacher; /* teacher: [B,C], or NULL */
} Case;

/* Reads the settings from the fixture; `algorithm` is that of ripple or lisa. */
static VitSettings *case_settings(Case *c, const char *algorithm) {
    const char *attn = safetensors_metadata(&c->file, "attn");
    config_init(&c->config, NULL);
    VitSettings *settings = vit_add_settings(&c->config);
    c->distillation = config_add(&c->config, &distillation_settings);
    settings_read(&c->config, "convit_local_layers = 1\n"); /* older fixtures lack it */
    settings_of_fixture(&c->config, &c->file);
    if (attn && !strncmp(attn, "ripple", 6)) settings_put(&c->config, "ripple_algo", algorithm);
    if (attn && !strcmp(attn, "lisa")) settings_put(&c->config, "lisa_algo", algorithm);
    return settings;
}

/* The model of a fixture with its parameters and its batch; what no layer writes stays NaN. */
static void case_open_dropping(Case *c, const char *path, const char *algorithm, float drop_path) {
    Error error;
    memset(c, 0, sizeof *c);
    c->path = path;
    if (!safetensors_open(&c->file, path, &error)) fail_msg("%s", error.text);
    VitSettings *settings = case_settings(c, algorithm);
    settings->drop_path = drop_path;
    c->drop = drop_path > 0 || settings->dropout > 0;
    const SafeTensor *images = safetensors_find(&c->file, "images"), *labels = safetensors_find(&c->file, "labels");
    int64_t wanted[64];
    c->B = (int)images->shape[0];
    c->C = settings->num_classes;
    vit_create(&c->vit, &c->config);
    c->vit.distillation = distillation_of(c->distillation);
    c->vit.model.training.guarded = true;
    vit_plan(&c->vit, c->B, true);
    vit_allocate(&c->vit);
    plan_poison(&c->vit.model.training);
    params_allocate(&c->vit.model.params, true);
    if (!checkpoint_read_weights(&c->vit.model.params, c->vit.model.params.values, &c->file, "", NULL, &error))
        fail_msg("%s", error.text);
    c->images = malloc(images->bytes);
    c->targets = calloc((size_t)(c->B * c->C), sizeof(float));
    c->losses = calloc((size_t)c->B, sizeof(float));
    c->logits = calloc((size_t)(c->B * c->C), sizeof(float));
    assert_true(safetensors_to_float(images, c->images, &error));
    assert_true(safetensors_to_int64(labels, wanted, &error));
    for (int b = 0; b < c->B; b++) c->targets[b * c->C + (int)wanted[b]] = 1;
    const SafeTensor *teacher = safetensors_find(&c->file, "teacher_logits");
    if (!teacher) return;
    c->teacher = malloc(teacher->bytes);
    assert_true(safetensors_to_float(teacher, c->teacher, &error));
}

static void case_open(Case *c, const char *path, const char *algorithm) { case_open_dropping(c, path, algorithm, 0); }

static void case_close(Case *c) {
    vit_destroy(&c->vit);
    config_free(&c->config);
    safetensors_close(&c->file);
    free(c->images);
    free(c->targets);
    free(c->teacher);
    free(c->losses);
    free(c->logits);
}

/* Runs images first .. first+B-1 forward; returns the sum of their losses. */
static double case_forward(Case *c, int first, int B) {
    const VitSettings *settings = &c->vit.settings;
    size_t image = 3 * (size_t)settings->frames * (size_t)settings->img_size[0] * (size_t)settings->img_size[1];
    double loss = 0;
    if (c->vit.settings.drop_path <= 0) trunk_draw_drops(&c->vit.trunk, DROP_SEED, DROP_STEP, (size_t)(DROP_FIRST + first), B);
    real_upload(c->vit.images, c->images + (size_t)first * image, (size_t)B * image);
    vit_forward(&c->vit, B, c->drop);
    real_download(c->logits + first * c->C, c->vit.logits, (size_t)(B * c->C));
    vit_load_targets(&c->vit, c->targets + first * c->C, B);
    if (c->teacher) real_upload(c->vit.teacher_logits, c->teacher + first * c->C, (size_t)(B * c->C));
    if (c->teacher) vit_load_teacher(&c->vit, false, 1, B);
    vit_loss(&c->vit, B, 1.0f / (float)c->B);
    vit_losses(&c->vit, c->losses, B);
    for (int b = 0; b < B; b++) loss += c->losses[b];
    return loss;
}

static float *case_gradients(Case *c) {
    const Params *params = &c->vit.model.params;
    float *grads = malloc(params->total * sizeof *grads);
    device_download(grads, params->grads, params->total * sizeof *grads);
    return grads;
}

static double *wanted_tensor(const Case *c, const char *name) {
    const SafeTensor *tensor = safetensors_find(&c->file, name);
    if (!tensor) fail_msg("%s: no tensor '%s'", c->file.file, name);
    double *wanted = malloc(tensor->size * sizeof *wanted);
    if (tensor->dtype == SAFE_F64) {
        memcpy(wanted, tensor->data, tensor->bytes);
    } else {
        float *narrow = malloc(tensor->size * sizeof *narrow);
        Error error;
        assert_true(safetensors_to_float(tensor, narrow, &error));
        for (size_t i = 0; i < tensor->size; i++) wanted[i] = narrow[i];
        free(narrow);
    }
    return wanted;
}

/* Whether a parameter's gradient is zero: it adds one number to the scores of all keys, or of all tokens in a pooling,
 * or it belongs to a norm that is not used. */
static bool cancels(const Case *c, const char *name) {
    return strstr(name, "pos_proj.bias") || strstr(name, "attention_pool.bias") ||
           (c->vit.settings.pool == POOL_GAP_RAW && !strncmp(name, "norm.", 5));
}

static int all_zero(const char *name, const float *got, size_t n) {
    int ok = 1;
    for (size_t i = 0; i < n; i++) ok &= got[i] == 0;
    printf("  %-52s zero everywhere  %s\n", name, ok ? "ok" : "FAILED");
    return ok;
}

/* In float every element must agree to 1e-5.  In bfloat16, where a gradient may be the small difference of large
 * numbers, the tensor must be as accurate as with PyTorch's autocast. */
static int compare(const Case *c, const char *name, const float *got, size_t n) {
    double *wanted = wanted_tensor(c, name);
    int ok = sizeof(real) == 4 ? check_close(name, got, wanted, n, 1e-5)
                               : check_bf16(c->path, name, got, wanted, n);
    free(wanted);
    return ok;
}

/* Compares every tensor's gradient, and all of them as one vector. */
static int compare_gradients(Case *c) {
    const Params *params = &c->vit.model.params;
    float *grads = case_gradients(c);
    double *wanted = calloc(params->total, sizeof *wanted);
    int ok = 1;
    for (int i = 0; i < params_count(params); i++) {
        const Param *p = params_at(params, i);
        char name[PARAM_NAME_SIZE + 8];
        if (p->frozen) continue;
        snprintf(name, sizeof name, "grad.%s", p->name);
        double *one = wanted_tensor(c, name);
        memcpy(wanted + p->offset, one, p->size * sizeof *one);
        free(one);
        ok &= cancels(c, p->name) ? all_zero(name, grads + p->offset, p->size)
                            : compare(c, name, grads + p->offset, p->size);
    }
    ok &= sizeof(real) == 4 ? check_rms("gradients", grads, wanted, params->total, 1e-5)
                            : check_bf16(c->path, "gradients", grads, wanted, params->total);
    free(wanted);
    free(grads);
    return ok;
}

/* == Every fixture, every algorithm =============================================================================== */

static int compare_with_reference(const char *path, const char *algorithm) {
    Case c;
    case_open(&c, path, algorithm);
    printf("%s, algorithm %s\n", path, algorithm);
    float loss = (float)(case_forward(&c, 0, c.B) / c.B);
    vit_backward(&c.vit, c.B, c.drop, NULL);
    const char *overrun = plan_overrun(&c.vit.model.training);
    if (overrun) fail_msg("%s: written beyond its end", overrun);
    int ok = compare(&c, "logits", c.logits, (size_t)(c.B * c.C));
    ok &= compare(&c, "loss", &loss, 1);
    ok &= compare_gradients(&c);
    case_close(&c);
    return ok;
}

/* Checks every step-th fixture, from a first one that depends on the seed.  VIT_TEST_FIXTURES=convit* selects fixtures
 * by name and checks all of them. */
static void each_fixture(int (*check)(const char *path), int step) {
    const char *wanted = getenv("VIT_TEST_FIXTURES");
    char pattern[256];
    glob_t paths;
    snprintf(pattern, sizeof pattern, "tests/fixtures/%s.safetensors", wanted ? wanted : "*");
    if (glob(pattern, 0, NULL, &paths) != 0) fail_msg("%s: no such fixture", pattern);
    assert_true(wanted || paths.gl_pathc >= 10);
    if (wanted) step = 1;
    int ok = 1;
    for (size_t i = check_seed() % (size_t)step; i < paths.gl_pathc; i += (size_t)step) ok &= check(paths.gl_pathv[i]);
    globfree(&paths);
    assert_true(ok);
}

static int auto_equals_reference(const char *path) { return compare_with_reference(path, "auto"); }

/* All fixtures in bfloat16, because the list of exceptions from its bounds must be complete. */
static void test_reference(void **state) {
    (void)state;
    each_fixture(auto_equals_reference, sizeof(real) == 4 ? full_or_reduced("every n-th fixture, n =", 1, 3) : 1);
}

static int algorithms_equal_reference(const char *path) {
    int ok = 1;
    if (strstr(path, "lisa")) {
        ok &= compare_with_reference(path, "dense");
        if (!strstr(path, "local")) ok &= compare_with_reference(path, "fft");
    }
    if (!strstr(path, "ripple") || strstr(path, "clip")) return ok; /* clips have one algorithm */
    ok &= compare_with_reference(path, "dense");
    ok &= compare_with_reference(path, "window");
    ok &= compare_with_reference(path, "sat");
    return ok;
}

static void test_algorithms(void **state) {
    (void)state;
    each_fixture(algorithms_equal_reference, full_or_reduced("every n-th fixture, n =", 1, 3));
}

/* == Central differences, signed, per parameter tensor ============================================================ */

/* The loss as a function of the distance by which a tensor is moved along a direction. */
typedef struct {
    Case *c;
    float *values; /* scratch [total] */
    const float *base, *direction;
    const Param *p;
} Move;

static double loss_at(void *context, double h) {
    const Move *m = context;
    Params *params = &m->c->vit.model.params;
    memcpy(m->values, m->base, params->total * sizeof *m->values);
    for (size_t i = 0; i < m->p->size; i++) m->values[m->p->offset + i] += (float)(h * m->direction[i]);
    device_upload(params->values, m->values, params->total * sizeof *m->values);
    return case_forward(m->c, 0, m->c->B) / m->c->B;
}

/* Operators that apply a ReLU to q and k. */
static bool rectifies(const char *attn) { return strstr(attn, "focused") || !strcmp(attn, "relu-linear"); }

/* Makes a convolution [C,1,k,k], or matrices [C,D,1,1] of D channels each, nearly the identity. */
static void near_identity(float *w, const Param *p) {
    size_t row = p->size / (size_t)p->shape[0];
    for (size_t i = 0; i < p->size; i++)
        w[i] = 0.05f * w[i] + (i % row == (p->shape[1] == 1 ? row / 2 : i / row % row));
}

/* Makes the loss smooth, as differences require: half of the ReLUs are on and half off, far from their kinks; stick
 * breaking does not end early, and castling's mask leaves no weight out.  (The fixtures cover kinks and early ends.) */
static void smoothen(Case *c, float *values) {
    bool rectified = rectifies(vit_attn(&c->vit.settings, 0)->name);
    for (int t = 0; t < params_count(&c->vit.model.params); t++) {
        const Param *p = params_at(&c->vit.model.params, t);
        size_t moved = strstr(p->name, "feature.b2") || strstr(p->name, "feature.bias") ? p->size : 0, third = p->size;
        if (c->vit.settings.mlp_relu && strstr(p->name, "fc1.bias")) moved = p->size;
        if (rectified && strstr(p->name, "qkv.bias")) moved = 2 * (third = p->size / 3); /* q and k alike */
        for (size_t i = 0; i < moved; i++) values[p->offset + i] = i % third % 2 ? -8 : 8;
        if (strstr(p->name, "aggreg")) near_identity(values + p->offset, p);
    }
    settings_put(&c->config, "tau", "0");
    if (config_origin(&c->config, "castling_mask")) settings_put(&c->config, "castling_mask", "1e-30");
    device_upload(c->vit.model.params.values, values, c->vit.model.params.total * sizeof *values);
}

/* Whether differences in float can check a fixture.  Not smooth are: dpfp, with a kink at zero in every column;
 * inception, where two tokens are equal; performer, and rfa with a clamped denominator, whose maximum is a constant of
 * the backward pass but does not cancel entirely.  The reference compares these with narrow differences in double.  A
 * hybrid's stem and the tokenizer of compact transformers have a ReLU and a maximum at every pixel: test_hybrid_stem.c
 * and the reference check them. */
static bool is_smooth(const char *path) {
    return !strstr(path, "dpfp") && !strstr(path, "inception") && !strstr(path, "performer") && !strstr(path, "clamp") &&
           !strstr(path, "hybrid") && !strstr(path, "compact");
}

/* Compares differences along the gradient plus noise of the same size, for every tensor, or if reduced for every
 * step-th one from a first that depends on the seed.  One thread, because passes over a few tokens would mostly wait
 * for other threads. */
static int differences_of(Case *c) {
    const int threads = omp_get_max_threads(), step = full_or_reduced("every n-th tensor, n =", 1, 4);
    omp_set_num_threads(1);
    const Params *params = &c->vit.model.params;
    float *base = malloc(params->total * sizeof *base), *values = malloc(params->total * sizeof *values);
    device_download(base, params->values, params->total * sizeof *base);
    smoothen(c, base);
    case_forward(c, 0, c->B);
    vit_backward(&c->vit, c->B, c->drop, NULL);
    float *grads = case_gradients(c);
    int ok = 1;
    for (int t = (int)(check_seed() % (uint64_t)step); t < params_count(params); t += step) {
        const Param *p = params_at(params, t);
        if (cancels(c, p->name) || p->frozen) continue;
        float *direction = check_normal(p->size, 1, (uint32_t)t);
        double slope = 0, norm = 0, along = 0, noise = 0;
        for (size_t i = 0; i < p->size; i++) norm += (double)grads[p->offset + i] * grads[p->offset + i];
        norm = sqrt(norm / (double)p->size);
        for (size_t i = 0; i < p->size; i++) {
            direction[i] += (float)(grads[p->offset + i] / norm);
            along += (double)direction[i] * direction[i];
        }
        for (size_t i = 0; i < p->size; i++) slope += (double)grads[p->offset + i] * direction[i];
        /* Nearly vanishing denominators of focused attention bend the loss within a tenth of a parameter's size. */
        double widest = fmin(0.2 / fabs(slope), sqrt((double)p->size / along) / 8);
        double rounding = 4 * FLT_EPSILON * case_forward(c, 0, c->B) / c->B; /* 4 epsilons of the loss */
        Move move = {c, values, base, direction, p};
        double difference = slope_by_differences(loss_at, &move, widest, rounding, &noise);
        double error = fabs(difference - slope) / fabs(slope);
        int close = error <= 1e-3 + noise / fabs(slope);
        printf("  %-32s slope %-12.6g difference %-12.6g relative error %.1e  %s\n", p->name, slope, difference, error,
               close ? "ok" : "FAILED");
        ok &= close;
        free(direction);
    }
    omp_set_num_threads(threads);
    free(base);
    free(values);
    free(grads);
    return ok;
}

static int differences_agree(const char *path) {
    Case c;
    if (!is_smooth(path)) return 1;
    case_open(&c, path, "auto");
    printf("%s, central differences\n", path);
    int ok = differences_of(&c);
    case_close(&c);
    return ok;
}

static void test_differences(void **state) {
    (void)state;
    if (sizeof(real) != 4) {
        printf("the loss of bfloat16 activations is too coarse to be differentiated by differences\n");
        skip();
    }
    each_fixture(differences_agree, full_or_reduced("every n-th fixture, n =", 1, 80));
}

/* Samples drop paths until the first image keeps every half-block, and every half-block from block 1 on drops another
 * image. */
static void draw_mixed(Case *c) {
    bool mixed = false;
    for (uint64_t seed = 0; !mixed; seed++) {
        trunk_draw_drops(&c->vit.trunk, seed, 0, 0, c->B);
        mixed = true;
        for (int half = 2; half < 2 * c->vit.trunk.depth; half++) {
            const float *keep = c->vit.trunk.keep_host + half * c->B;
            int alive = 0;
            for (int b = 0; b < c->B; b++) alive += keep[b] > 0;
            mixed &= keep[0] > 0 && alive < c->B;
        }
    }
}

/* Checks fixtures with a class token, which in convit joins between two dropped half-blocks, and fixtures with
 * convolutions and stages, whose sums and scales are separate passes. */
static int differences_agree_dropping(const char *path) {
    Case c;
    if (!strstr(path, "cls") && !strstr(path, "conv.") && !strstr(path, "hierarchy")) return 1;
    if (!is_smooth(path)) return 1;
    case_open_dropping(&c, path, "auto", 0.6f);
    printf("%s, central differences with drop path\n", path);
    draw_mixed(&c);
    int ok = differences_of(&c);
    case_close(&c);
    return ok;
}

static void test_drop_path(void **state) {
    (void)state;
    if (sizeof(real) != 4) skip();
    each_fixture(differences_agree_dropping, full_or_reduced("every n-th fixture, n =", 1, 20));
}

/* == The model against itself ===================================================================================== */

/* The inference plan gives the same logits as the training plan.  Nothing is dropped, and castling's extra branch,
 * which inference lacks, masks everything in training. */
static int plans_agree(const char *path) {
    Case c;
    case_open(&c, path, "auto");
    size_t n = (size_t)(c.B * c.C);
    float *training = malloc(n * sizeof *training);
    settings_put(&c.config, "castling_mask", "1");
    c.drop = false;
    case_forward(&c, 0, c.B);
    memcpy(training, c.logits, n * sizeof *training);
    model_set_training(&c.vit.model, false);
    const VitSettings *s = &c.vit.settings;
    size_t image = 3 * (size_t)s->frames * (size_t)s->img_size[0] * (size_t)s->img_size[1];
    real_upload(c.vit.images, c.images, (size_t)c.B * image);
    vit_forward(&c.vit, c.B, false);
    real_download(c.logits, c.vit.logits, n);
    int ok = check_close_float(path, c.logits, training, n, 1e-6);
    free(training);
    case_close(&c);
    return ok;
}

static void test_inference_plan(void **state) {
    (void)state;
    each_fixture(plans_agree, full_or_reduced("every n-th fixture, n =", 1, 10));
}

/* In inference a stem standardises its weights once: later changes have an effect only after the next call of
 * model_set_training. */
static void test_stem_weights(void **state) {
    (void)state;
    Case c;
    case_open(&c, "tests/fixtures/hybrid-cls.safetensors", "auto");
    size_t n = (size_t)(c.B * c.C);
    float *before = malloc(n * sizeof *before), *trained = malloc(n * sizeof *trained);
    const Param *p = params_find(&c.vit.model.params, "patch_embed.backbone.conv.weight");
    assert_non_null(p);
    float *w = check_normal(p->size, 1, 0);
    model_set_training(&c.vit.model, false);
    case_forward(&c, 0, c.B);
    memcpy(before, c.logits, n * sizeof *before);
    device_upload(c.vit.model.params.values + p->offset, w, p->size * sizeof *w);
    case_forward(&c, 0, c.B);
    assert_memory_equal(c.logits, before, n * sizeof *before);
    model_set_training(&c.vit.model, true);
    case_forward(&c, 0, c.B);
    memcpy(trained, c.logits, n * sizeof *trained);
    model_set_training(&c.vit.model, false);
    case_forward(&c, 0, c.B);
    assert_true(check_close_float("after the next call", c.logits, trained, n, 1e-6));
    assert_memory_not_equal(c.logits, before, n * sizeof *before);
    free(w);
    free(trained);
    free(before);
    case_close(&c);
}

/* == How often tau ends stick breaking ============================================================================ */

/* Counts the queries at which stick breaking ended early from the weights, and compares with the measured columns.  The
 * groups that share the rest of the stick have equal weights: the last two of the fixture's three groups, or all
 * three. */
static void test_ended(void **state) {
    enum { R = 2 };
    Case c;
    uint64_t sums[ATTENTION_PARTS * ATTENTION_COLUMNS], found[ATTENTION_COLUMNS] = {0};
    int ended = 0, equal = 0, rows = 0;
    (void)state;
    case_open(&c, "tests/fixtures/ripple-rmax2-tau.safetensors", "auto");
    case_forward(&c, 0, c.B);
    const Attention *a = &trunk_block(&c.vit.trunk, 0)->attention;
    assert_int_equal(c.vit.model.batch, c.B);
    float *weights = check_poison((size_t)a->N);
    for (int b = 0; b < c.B; b++)
        for (int head = 0; head < a->H; head++)
            for (int n = 0; n < a->N; n++, rows++) {
                int left = n % a->grid.columns < a->grid.columns / 2, m = left ? n + 1 : n - 1;
                int far = left ? n + R : n - R;
                a->op->spatial(a, weights, b, head, n);
                ended += weights[m] == weights[far];
                equal += weights[n] == weights[m] && weights[m] == weights[far];
            }
    Attention measured = *a;
    const AttentionColumns *columns = a->op->columns(a);
    measured.sums = device_malloc(sizeof sums, "sums");
    device_zero(measured.sums, sizeof sums);
    columns->measure(&measured, c.B);
    device_download(sums, measured.sums, sizeof sums);
    device_free(measured.sums);
    for (int i = 0; i < ATTENTION_PARTS * ATTENTION_COLUMNS; i++) found[i % ATTENTION_COLUMNS] += sums[i];
    printf("tau %g ended %d of %d, %d of them at once\n", 0.05, ended, rows, equal);
    assert_true(ended > rows / 5 && ended < 4 * rows / 5 && equal > 0);
    assert_string_equal(columns->names[1], "tau_ended");
    assert_string_equal(columns->names[2], "tau_equal");
    assert_float_equal((double)found[1] * columns->unit, ended, 1e-9);
    assert_float_equal((double)found[2] * columns->unit, equal, 1e-9);
    free(weights);
    case_close(&c);
}

/* == Recomputed blocks ============================================================================================ */

/* Three blocks that sample drop path and dropout independently; settings that are read later replace these. */
static const char plain_model[] = "img_size = 10x14\npatch_size = 2\nnum_classes = 5\ndim = 12\ndepth = 3\nheads = 2\n"
                                  "mlp_ratio = 2\ndrop_path = 0.5\ndropout = 0.2\nr_max = 2\nripple_layers = 2\n"
                                  "convit_local_layers = 2\nlisa_patterns = 3\n";
static const char staged_model[] = "conv_stages = 1\ndim = 12,20\ndepth = 2\nheads = 2,5\nmlp_ratio = 2,1.5\n"
                                   "pos_embed = conv\nmlp_conv = true\npatch_overlap = true\n";

static const VitSettings *model_settings(Config *config, const char *more, bool staged) {
    config_init(config, NULL);
    const VitSettings *settings = vit_add_settings(config);
    settings_read(config, plain_model);
    if (staged) settings_read(config, staged_model);
    settings_read(config, more);
    return settings;
}

/* Gradients of two steps with different drop paths, dropout and random features: [2 * total] on the host. */
static float *two_steps(const Config *config, size_t *total, size_t *bytes) {
    enum { B = 3 };
    Vit vit;
    vit_create(&vit, config);
    const VitSettings *s = &vit.settings;
    vit_plan(&vit, B, true);
    vit_allocate(&vit);
    plan_poison(&vit.model.training);
    params_allocate(&vit.model.params, true);
    params_initialize(&vit.model.params, check_seed());
    size_t n = vit.model.params.total, C = (size_t)s->num_classes;
    size_t image = 3 * (size_t)s->frames * (size_t)s->img_size[0] * (size_t)s->img_size[1];
    float *grads = malloc(2 * n * sizeof *grads), *x = check_normal(B * image, 1, 1),
          *targets = calloc(B * C, sizeof *targets);
    for (size_t b = 0; b < B; b++) targets[b * C + b] = 1;
    for (uint32_t step = 0; step < 2; step++) {
        device_zero(vit.model.params.grads, n * sizeof(float));
        trunk_draw_buffers(&vit.trunk, check_seed(), step);
        trunk_draw_drops(&vit.trunk, check_seed(), step, 0, B);
        real_upload(vit.images, x, B * image);
        vit_forward(&vit, B, true);
        vit_load_targets(&vit, targets, B);
        vit_loss(&vit, B, 1.0f / B);
        vit_backward(&vit, B, true, NULL);
        device_download(grads + step * n, vit.model.params.grads, n * sizeof *grads);
    }
    *total = n;
    *bytes = vit.model.training.keep_peak;
    vit_destroy(&vit);
    free(targets);
    free(x);
    return grads;
}

static void test_recompute(void **state) {
    (void)state;
    static const struct {
        const char *settings;
        bool staged;
    } models[] = {
        {"attn = softmax\npool = cls\n", false},
        {"attn = convit\npool = cls\n", false},
        {"attn = linear\nfeature_map = performer\npool = cls\n", false},
        {"attn = linear\nrelative = sincspe\n", false},
        {"attn = ripple\nfeature_map = performer\n", false},
        {"attn = lisa\n", false},
        {"attn = softmax\n", true},
        {"attn = lisa\n", true},
        {"conv_stages = 0\nattn = swin,softmax\nwindow = 3,2\nimg_size = 12x16\npos_embed = none\npatch_overlap = false\n"
         "patch_merging = true\npatch_norm = true\nstage_norm = false\nnorm_eps = 1e-5\n", true},
        {"conv_stages = 0\nattn = reduced\nreduction = 2,1\nimg_size = 12x16\npos_embed = stages\npool = cls\n"
         "patch_overlap = false\nmlp_conv = false\npatch_norm = true\nstage_norm = false\n", true},
        {"conv_stages = 0\nattn = cswin-focused,cswin\nstripe = 2,7\nimg_size = 16x24\n", true},
    };
    double moved = 0; /* between the steps of all models, because those of one may have the same drop path */
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        Config config;
        model_settings(&config, models[i].settings, models[i].staged);
        size_t total, all, less;
        float *plain = two_steps(&config, &total, &all);
        settings_put(&config, "recompute", "true");
        float *again = two_steps(&config, &total, &less);
        double squares = 0;
        for (size_t k = 0; k < 2 * total; k++) squares += (double)plain[k] * plain[k];
        for (size_t k = 0; k < total; k++) moved += fabs((double)plain[k] - plain[total + k]);
        printf("recompute%s: %zu bytes kept, %zu without:\n%s", models[i].staged ? ", two stages" : "", less, all,
               models[i].settings);
        assert_true(isfinite(squares) && squares > 0);
        assert_memory_equal(plain, again, 2 * total * sizeof *plain);
        assert_true(less < all);
        config_free(&config);
        free(plain);
        free(again);
    }
    assert_true(moved > 0);
}

/* == Scaled first values ========================================================================================== */

static void test_scaled_start(void **state) {
    (void)state;
    Config config;
    static const char *const scaled[] = {"attn.conv2.weight", "attn.proj.weight", "mlp.fc2.weight"};
    Vit plain, small;
    model_settings(&config, "attn = softmax\n", true);
    vit_create(&plain, &config);
    settings_put(&config, "init_scale", "depth");
    vit_create(&small, &config);
    int count = 0;
    for (int t = 0; t < params_count(&plain.model.params); t++) {
        const Param *p = params_at(&plain.model.params, t);
        float *a = check_poison(p->size), *b = check_poison(p->size), gain = 1;
        params_draw(&plain.model.params, p, 5, a);
        params_draw(&small.model.params, params_at(&small.model.params, t), 5, b);
        for (int i = 0; i < 3; i++)
            if (strstr(p->name, scaled[i])) gain = 1 / sqrtf(8); /* four blocks */
        for (size_t i = 0; i < p->size; i++) assert_true(b[i] == gain * a[i]);
        count += gain < 1;
        free(a);
        free(b);
    }
    assert_int_equal(count, 8);
    vit_destroy(&plain);
    vit_destroy(&small);
    config_free(&config);
}

static int micro_batches_add_up(const char *path) {
    Case c;
    case_open(&c, path, "auto");
    case_forward(&c, 0, c.B);
    vit_backward(&c.vit, c.B, c.drop, NULL);
    float *whole = case_gradients(&c);
    device_zero(c.vit.model.params.grads, c.vit.model.params.total * sizeof(float));
    for (int b = 0; b < c.B; b++) {
        case_forward(&c, b, 1);
        vit_backward(&c.vit, 1, c.drop, NULL);
    }
    float *parts = case_gradients(&c);
    int ok = 1;
    printf("%s, one image at a time\n", path);
    for (int i = 0; i < params_count(&c.vit.model.params); i++) {
        const Param *p = params_at(&c.vit.model.params, i);
        if (p->frozen) continue;
        ok &= cancels(&c, p->name)
                  ? all_zero(p->name, parts + p->offset, p->size)
                  : check_close_float(p->name, parts + p->offset, whole + p->offset, p->size, roundings(5));
    }
    free(parts);
    free(whole);
    case_close(&c);
    return ok;
}

static void test_micro_batches(void **state) {
    (void)state;
    each_fixture(micro_batches_add_up, full_or_reduced("every n-th fixture, n =", 1, 10));
}

/* == Weights that sum to one ====================================================================================== */

/* Whether a block's attention with all values equal to one gives ones.  With two tokens a sum of weights is small. */
static bool keeps_ones(const char *attn) {
    enum { TOKENS = 2, M = 6 };
    Config config;
    Vit vit;
    config_init(&config, NULL);
    vit_add_settings(&config);
    settings_read(&config, "img_size = 2x4\npatch_size = 2\nnum_classes = 3\ndim = 6\ndepth = 1\nheads = 2\n");
    settings_put(&config, "attn", attn);
    vit_create(&vit, &config);
    vit_plan(&vit, 1, true);
    vit_allocate(&vit);
    Params *params = &vit.model.params;
    params_allocate(params, true);
    params_initialize(params, check_seed());
    float values[2 * M * M] = {0};
    const Param *qkv = params_find(params, "blocks.0.attn.qkv.weight"),
                *bias = params_find(params, "blocks.0.attn.qkv.bias"),
                *proj = params_find(params, "blocks.0.attn.proj.weight"),
                *conv = params_find(params, "blocks.0.attn.dconv.weight");
    device_upload(params->values + qkv->offset + 2 * M * M, values, (size_t)(M * M) * sizeof *values);
    if (conv) device_upload(params->values + conv->offset, values, conv->size * sizeof *values);
    for (int i = 0; i < M; i++) values[i * M + i] = values[M * M + i] = 1;
    device_upload(params->values + proj->offset, values, (size_t)(M * M) * sizeof *values);
    device_upload(params->values + bias->offset + 2 * M, values + M * M, M * sizeof *values);
    real *x = upload_real(normals(TOKENS * M, 1), TOKENS * M), *y = poisoned_real(TOKENS * M);
    const Attention *a = &trunk_block(&vit.trunk, 0)->attention;
    attention_forward(a, y, x, 1);
    double ones[TOKENS * M];
    for (int i = 0; i < TOKENS * M; i++) ones[i] = 1;
    int ok = check_close(attn, download_real(y, TOKENS * M), ones, TOKENS * M, sizeof(real) == 4 ? 4e-7 : 2e-2);
    vit_destroy(&vit);
    config_free(&config);
    release_all();
    return ok;
}

/* The tolerance detects an epsilon of 1e-6 added to the sum, which would be ten roundings. */
static void test_weights_sum_to_one(void **state) {
    (void)state;
    assert_true(keeps_ones("softmax"));
    assert_true(keeps_ones("efficient"));
    assert_true(keeps_ones("castling"));
}

/* An argument is a pattern of the names of the tests to run, such as test_reference. */
int main(int argc, char **argv) {
    check_seed();
    kernels_init();
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),      cmocka_unit_test(test_algorithms),
        cmocka_unit_test(test_differences),    cmocka_unit_test(test_inference_plan),
        cmocka_unit_test(test_stem_weights),
        cmocka_unit_test(test_micro_batches),  cmocka_unit_test(test_drop_path),
        cmocka_unit_test(test_recompute),      cmocka_unit_test(test_scaled_start),
        cmocka_unit_test(test_ended),          cmocka_unit_test(test_weights_sum_to_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
