/* Hierarchies as backbones: four feature maps of images whose size changes after planning, compared with models created
 * for each size, and gradients of all four maps compared with differences.  (test_resnet.c tests the ResNet.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <float.h>
#include <malloc.h>
#include <omp.h>

#include "layers/backbone/backbone.h"
#include "layers/vit/layer_decay.h"
#include "layers/vit/resample_grid.h"
#include "layers/vit/vit.h"
#include "tests/on_device.h"
#include "tests/scratch.h"
#include "tests/settings.h"
#include "tests/slopes.h"
#include "training/checkpoint.h"

enum { B = 2, MOST_H = 96, MOST_W = 160 };

static const char PREFIX[] = "backbone.body.";

static const char *const cases[] = {
    "attn = softmax\nconv_stages = 2\nheads = 2\ndim = 16,16,32,32\ndepth = 2,1,2,1\npatch_overlap = true\n"
    "mlp_conv = true\npos_embed = conv\nimg_size = 64\n",
    "attn = lisa\nlisa_patterns = 2\nheads = 2\ndim = 16,16,32,32\ndepth = 1,2,1,1\npatch_overlap = true\n"
    "mlp_conv = true\npos_embed = conv\nimg_size = 64\ndrop_path = 0.3\nrecompute = true\n",
    "attn = lisa\nlisa_patterns = 2\nconv_stages = 2\nconv_block = sepconv\nheads = 2\ndim = 16,16,32,32\ndepth = 1\n"
    "patch_overlap = true\nmlp_conv = true\npos_embed = conv\nimg_size = 96x64\n",
    "attn = efficient\nheads = 2\ndim = 16,16,32,32\ndepth = 1\nstage_norm = false\npatch_norm = true\nimg_size = 64\n",
    "attn = swin\nwindow = 1\nheads = 2\ndim = 16,16,32,32\ndepth = 2,1,1,1\nstage_norm = false\npatch_norm = true\n"
    "patch_merging = true\nnorm_eps = 1e-5\nimg_size = 64\ndrop_path = 0.2\n",
    "attn = reduced\nreduction = 4,2,1,1\nheads = 2\ndim = 16,16,32,32\ndepth = 1,1,1,2\nstage_norm = false\n"
    "output_norm = false\npatch_norm = true\nimg_size = 64\ndrop_path = 0.2\n",
    "attn = reduced\nreduction = 4,2,1,1\nheads = 2\ndim = 16,16,32,32\ndepth = 1,1,1,2\nstage_norm = false\n"
    "output_norm = false\npatch_norm = true\npos_embed = stages\nimg_size = 96x64\ndrop_path = 0.2\n",
    "attn = softmax\nheads = 2\ndim = 16,16,32,32\ndepth = 1\nstage_norm = false\npos_embed = learned\n"
    "img_size = 64\n",
};
enum { CASES = sizeof cases / sizeof *cases };

/* == A backbone, and a model for one size ========================================================================= */

static void read_settings(Config *config, const char *text) {
    config_init(config, NULL);
    backbone_add_settings(config);
    settings_put(config, "backbone", "hierarchy");
    settings_read(config, text);
    backbone_use_settings(config);
    config_settle(config);
}

typedef struct {
    const char *settings;
    Config config;
    Params params;
    Backbone backbone;
    Plan training, inference;
    void *memory;
} Bench;

static void bench_open(Bench *l, const char *settings) {
    memset(l, 0, sizeof *l);
    l->settings = settings;
    read_settings(&l->config, settings);
    backbone_create(&l->backbone, &l->config, &l->params, PREFIX, CONVOLUTION_QUICK);
    l->training.guarded = l->inference.guarded = true;
    plan_start(&l->inference, false);
    plan_start(&l->training, true);
    backbone_plan(&l->backbone, &l->inference, B, MOST_H, MOST_W);
    backbone_plan(&l->backbone, &l->training, B, MOST_H, MOST_W);
    size_t training = plan_bytes(&l->training), inference = plan_bytes(&l->inference);
    l->memory = device_malloc(training > inference ? training : inference, "test");
    params_allocate(&l->params, true);
    params_initialize(&l->params, check_seed());
    backbone_fold(&l->backbone);
    plan_bind(&l->training, l->memory);
    plan_poison(&l->training);
    backbone_draw(&l->backbone, check_seed(), 3, 0, B);
}

static void bench_close(Bench *l) {
    backbone_destroy(&l->backbone);
    params_free(&l->params);
    plan_free(&l->training);
    plan_free(&l->inference);
    device_free(l->memory);
    config_free(&l->config);
    release_all();
}

static void bind(Bench *l, Plan *plan) {
    plan_bind(plan, l->memory);
    plan_poison(plan);
}

static size_t map_count(const Bench *l, int level, int H, int W) {
    return (size_t)B * (size_t)backbone_side(H, level) * (size_t)backbone_side(W, level) *
           (size_t)backbone_channels(&l->backbone, level);
}

typedef struct {
    float *images; /* [B,H,W,3] */
    float *gradients[BACKBONE_LEVELS];
    int H, W;
} Sample;

static Sample sample_of(const Bench *l, int H, int W) {
    Sample s = {.images = normals((size_t)B * (size_t)H * (size_t)W * 3, 1), .H = H, .W = W};
    for (int i = 0; i < BACKBONE_LEVELS; i++) s.gradients[i] = normals(map_count(l, i, H, W), 1);
    return s;
}

typedef struct {
    float *maps[BACKBONE_LEVELS];
    float *grads; /* NULL after a forward pass only */
} Result;

static Result run(Bench *l, const Sample *s, Plan *plan, bool backward) {
    Result r = {.grads = NULL};
    real *dfeatures[BACKBONE_LEVELS];
    real *images = upload_real(s->images, (size_t)B * (size_t)s->H * (size_t)s->W * 3);
    plan_poison(plan);
    if (plan->training) backbone_draw(&l->backbone, check_seed(), 3, 0, B); /* plan_poison overwrote the drop path */
    backbone_forward(&l->backbone, images, B, s->H, s->W);
    for (int i = 0; i < BACKBONE_LEVELS; i++) {
        size_t n = map_count(l, i, s->H, s->W);
        r.maps[i] = download_real(l->backbone.features[i], n);
        if (backward) dfeatures[i] = upload_real(s->gradients[i], n);
    }
    if (backward) {
        device_zero(l->params.grads, l->params.total * sizeof(float));
        backbone_backward(&l->backbone, dfeatures, NULL);
        r.grads = download(l->params.grads, l->params.total);
    }
    /* With recompute, tensors of later stages share memory with earlier blocks. */
    if (!strstr(l->settings, "recompute") && plan_overrun(plan))
        fail_msg("%s: somebody wrote behind the end of %s", l->settings, plan_overrun(plan));
    return r;
}

static void assert_same_maps(const Bench *l, const Sample *s, const Result *a, const Result *b) {
    for (int i = 0; i < BACKBONE_LEVELS; i++)
        assert_memory_equal(a->maps[i], b->maps[i], map_count(l, i, s->H, s->W) * sizeof(float));
}

/* The same stages for images [B,3,H,W] of one size, with tables resampled to it. */
typedef struct {
    Params params;
    Trunk trunk;
    Plan plan;
    void *memory;
} Built;

static void built_open(Built *m, const Bench *l, int H, int W) {
    memset(m, 0, sizeof *m);
    VitSettings s = hierarchy_settings(&l->config);
    s.img_size[0] = H;
    s.img_size[1] = W;
    TrunkUse use = {.prefix = PREFIX, .ends = hierarchy_ends(&l->config)};
    trunk_create(&m->trunk, &s, &use, &l->config, &m->params);
    plan_start(&m->plan, false);
    trunk_plan_scratch(&m->trunk, &m->plan, B);
    trunk_plan(&m->trunk, &m->plan, B);
    m->memory = device_malloc(plan_bytes(&m->plan), "test");
    params_allocate(&m->params, false);
    assert_int_equal(params_count(&m->params), params_count(&l->params));
    for (int i = 0; i < params_count(&m->params); i++) {
        const Param *p = params_at(&m->params, i), *q = params_find(&l->params, p->name);
        float *x = download(l->params.values + q->offset, q->size), *y = x;
        if (p->grid.axes && memcmp(&p->grid.positions, &q->grid.positions, sizeof(Grid)))
            grid_resample(y = keep(check_poison(p->size), false), p, x, &q->grid);
        else assert_int_equal(p->size, q->size);
        device_upload(m->params.values + p->offset, y, p->size * sizeof *y);
    }
}

static void built_forward(Built *m, const Sample *s) {
    size_t area = (size_t)s->H * (size_t)s->W;
    float *planes = keep(malloc(B * 3 * area * sizeof *planes), false);
    for (size_t i = 0; i < B * 3 * area; i++) planes[(i / (3 * area) * 3 + i % 3) * area + i / 3 % area] = s->images[i];
    real *images = upload_real(planes, B * 3 * area);
    plan_bind(&m->plan, m->memory);
    trunk_forward(&m->trunk, images, B, false);
}

static void built_close(Built *m) {
    trunk_destroy(&m->trunk);
    params_free(&m->params);
    plan_free(&m->plan);
    device_free(m->memory);
}

/* == Sizes that change ============================================================================================ */

static const int sizes[][2] = {{96, 160}, {160, 96}, {32, 64}, {96, 96}, {128, 32}, {64, 64}, {96, 64}};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* The index of the first size that a test uses: reduced tests use the last three sizes, which are small. */
static int first_size(void) { return SIZES - full_or_reduced("sizes", SIZES, 3); }

/* One plan for the largest size and its transpose serves all sizes in any order. */
static void test_sizes(void **state) {
    (void)state;
    const int from = first_size();
    for (int c = 0; c < full_or_reduced("cases", CASES, 2); c++) {
        Bench l;
        bench_open(&l, cases[c]);
        bind(&l, &l.inference);
        for (int i = from; i < SIZES; i++) {
            Built built;
            Sample s = sample_of(&l, sizes[i][0], sizes[i][1]);
            Result r = run(&l, &s, &l.inference, false);
            built_open(&built, &l, s.H, s.W);
            built_forward(&built, &s);
            for (int level = 0; level < BACKBONE_LEVELS; level++) {
                size_t n = map_count(&l, level, s.H, s.W);
                const float *want = download_real(stage_output(&built.trunk.stages[level]), n);
                if (memcmp(want, r.maps[level], n * sizeof *want))
                    fail_msg("case %d, %d x %d: C%d is not that of a model for this size", c, s.H, s.W, level + 2);
            }
            built_close(&built);
            release_all();
            plan_bind(&l.inference, l.memory);
        }
        bench_close(&l);
    }
}

/* The results do not depend on earlier batches, nor on the plan if there is no drop path. */
static void test_order(void **state) {
    (void)state;
    const int from = first_size();
    for (int c = 0; c < full_or_reduced("cases", CASES, 2); c++) {
        Bench l;
        Sample samples[SIZES];
        Result first[SIZES];
        bench_open(&l, cases[c]);
        for (int i = from; i < SIZES; i++) {
            samples[i] = sample_of(&l, sizes[i][0], sizes[i][1]);
            first[i] = run(&l, &samples[i], &l.training, true);
        }
        for (int i = SIZES - 1; i >= from; i--) {
            Result again = run(&l, &samples[i], &l.training, true);
            assert_same_maps(&l, &samples[i], &first[i], &again);
            assert_memory_equal(again.grads, first[i].grads, l.params.total * sizeof(float));
        }
        bind(&l, &l.inference);
        backbone_draw(&l.backbone, check_seed(), 0, 0, B); /* the inference plan has no drop path */
        bool drops = hierarchy_settings(&l.config).drop_path > 0;
        for (int i = from; i < SIZES; i++) {
            Result alone = run(&l, &samples[i], &l.inference, false);
            if (!drops) assert_same_maps(&l, &samples[i], &first[i], &alone);
            else assert_true(memcmp(first[i].maps[3], alone.maps[3], map_count(&l, 3, samples[i].H, samples[i].W) * 4));
        }
        bench_close(&l);
    }
}

/* Sizes that were seen before allocate no memory. */
static void test_memory(void **state) {
    (void)state;
    const int from = first_size();
    for (int c = 0; c < full_or_reduced("cases", CASES, 1); c++) {
        Bench l;
        real *images[SIZES], *dfeatures[SIZES][BACKBONE_LEVELS];
        size_t before = 0;
        bench_open(&l, cases[c]);
        for (int i = from; i < SIZES; i++) {
            Sample s = sample_of(&l, sizes[i][0], sizes[i][1]);
            images[i] = upload_real(s.images, (size_t)B * (size_t)s.H * (size_t)s.W * 3);
            for (int level = 0; level < BACKBONE_LEVELS; level++)
                dfeatures[i][level] = upload_real(s.gradients[level], map_count(&l, level, s.H, s.W));
        }
        for (int turn = 0; turn < 4; turn++) { /* from turn 2 on a library has cached all it needs */
            if (turn == 2) before = mallinfo2().uordblks + mallinfo2().hblkhd;
            for (int i = from; i < SIZES; i++) {
                backbone_draw(&l.backbone, check_seed(), (uint32_t)turn, 0, B);
                backbone_forward(&l.backbone, images[i], B, sizes[i][0], sizes[i][1]);
                backbone_backward(&l.backbone, dfeatures[i], NULL);
            }
        }
        size_t after = mallinfo2().uordblks + mallinfo2().hblkhd;
        if (after != before) fail_msg("%s: %zd bytes more", l.settings, (ssize_t)(after - before));
        bench_close(&l);
    }
}

/* == Gradients ==================================================================================================== */

typedef struct {
    Bench *l;
    const Sample *s;
    real *images;
    const float *base, *direction;
    const Param *p;
    double squares; /* the summed squares of the last sum's terms */
} Move;

/* The sum of all maps, each multiplied by its own gradient, at a distance h along the direction. */
static double sum_at(void *context, double h) {
    Move *m = context;
    const Param *p = m->p;
    float *moved = malloc(p->size * sizeof *moved);
    double sum = 0;
    m->squares = 0;
    for (size_t i = 0; i < p->size; i++) moved[i] = m->base[p->offset + i] + (float)(h * m->direction[i]);
    device_upload(m->l->params.values + p->offset, moved, p->size * sizeof *moved);
    backbone_forward(&m->l->backbone, m->images, B, m->s->H, m->s->W);
    for (int i = 0; i < BACKBONE_LEVELS; i++) {
        size_t n = map_count(m->l, i, m->s->H, m->s->W);
        float *y = malloc(n * sizeof *y);
        real_download(y, m->l->backbone.features[i], n);
        for (size_t j = 0; j < n; j++) {
            double term = (double)y[j] * m->s->gradients[i][j];
            sum += term;
            m->squares += term * term;
        }
        free(y);
    }
    free(moved);
    return sum;
}

/* Compares differences along the gradient plus noise of the same size, for every tensor. */
static void check_gradients(Bench *l, const Sample *s) {
    float *base = download(l->params.values, l->params.total);
    Result r = run(l, s, &l->training, true);
    Move move = {.l = l, .s = s, .base = base,
                 .images = upload_real(s->images, (size_t)B * (size_t)s->H * (size_t)s->W * 3)};
    int threads = omp_get_max_threads();
    const int step = full_or_reduced("every n-th tensor, n =", 1, 8);
    omp_set_num_threads(1); /* passes over a few tokens would mostly wait for other threads */
    for (int t = 0; t < params_count(&l->params); t += step) {
        const Param *p = params_at(&l->params, t);
        float *direction = normals(p->size, 1);
        double slope = 0, norm = 0, along = 0, noise = 0;
        for (size_t i = 0; i < p->size; i++) norm += (double)r.grads[p->offset + i] * r.grads[p->offset + i];
        norm = sqrt(norm / (double)p->size);
        for (size_t i = 0; i < p->size; i++) {
            if (norm > 0) direction[i] += (float)(r.grads[p->offset + i] / norm);
            slope += (double)r.grads[p->offset + i] * direction[i];
            along += (double)direction[i] * direction[i];
        }
        move.p = p;
        move.direction = direction;
        double size = sum_at(&move, 0), widest = sqrt((double)p->size / along) / 8;
        double rounding = 8 * FLT_EPSILON * (sqrt(move.squares) + fabs(size));
        double difference = slope_by_differences(sum_at, &move, widest, rounding, &noise);
        sum_at(&move, 0);
        if (!(fabs(difference - slope) <= 1e-3 * fabs(slope) + noise))
            fail_msg("%s: slope %g, difference %g, noise %g", p->name, slope, difference, noise);
    }
    omp_set_num_threads(threads);
}

static void test_gradients(void **state) {
    (void)state;
    if (sizeof(real) != 4) skip();
    for (int c = 0; c < full_or_reduced("cases", CASES, 1); c++) {
        Bench l;
        bench_open(&l, cases[c]);
        Sample s = sample_of(&l, 64, 32);
        check_gradients(&l, &s);
        bench_close(&l);
    }
}

/* == Loading the weights of a classifier ========================================================================== */

static const char classifier_end[] = "num_classes = 7\n";

/* Writes the weights of a classifier with these settings, and stores the settings in the file if `told`. */
static void write_classifier(const char *path, const char *settings, bool told) {
    Config config;
    Vit vit;
    char text[1024];
    config_init(&config, NULL);
    vit_add_settings(&config);
    settings_put(&config, "pos_embed", "none");
    const char *pool = strstr(settings, "pos_embed = stages") ? "cls" : "gap"; /* PVT has a class token */
    snprintf(text, sizeof text, "%spool = %s\n%s", settings, pool, classifier_end);
    settings_read(&config, text);
    vit_use_settings(&config);
    config_settle(&config);
    vit_create(&vit, &config);
    params_allocate(&vit.model.params, false);
    params_initialize(&vit.model.params, check_seed() + 1);
    char *saved = config_text(&config);
    SafeMetadata metadata = {"vit.c.config", saved};
    checkpoint_save_weights(&vit.model.params, vit.model.params.values, path, &metadata, told);
    free(saved);
    vit_destroy(&vit);
    config_free(&config);
}

static bool is_new_norm(const char *name) {
    size_t length = strlen(PREFIX);
    return !strncmp(name + length, "norm", 4) && strchr("0123", name[length + 4]);
}

static void test_start(void **state) {
    (void)state;
    for (int c = 0; c < CASES; c++) {
        /* Leave out the settings that a classifier does not have. */
        char settings[512] = "", *end = settings;
        for (const char *line = cases[c]; *line; line = strchr(line, '\n') + 1)
            if (strncmp(line, "output_norm", 11))
                end += sprintf(end, "%.*s", (int)(strchr(line, '\n') + 1 - line), line);
        const char *path = in_folder("classifier%d.safetensors", c);
        write_classifier(path, settings, c % 2);
        Bench l;
        SafeTensors st;
        Error error;
        bench_open(&l, cases[c]);
        assert_true(backbone_is_alone(&l.backbone, path));
        backbone_load_weights(&l.backbone, &l.params, path);
        if (!safetensors_open(&st, path, &error)) fail_msg("%s", error.text);
        int news = 0;
        for (int i = 0; i < params_count(&l.params); i++) {
            const Param *p = params_at(&l.params, i);
            const SafeTensor *tensor = safetensors_find(&st, p->name + strlen(PREFIX));
            float *got = download(l.params.values + p->offset, p->size);
            if (is_new_norm(p->name)) {
                for (size_t k = 0; k < p->size; k++) assert_true(got[k] == (strstr(p->name, "weight") ? 1 : 0));
                news++;
                continue;
            }
            assert_non_null(tensor);
            size_t token = strcmp(p->name + strlen(PREFIX), "pos_embed4") ? 0 : (size_t)p->shape[2];
            assert_int_equal(tensor->size, p->size + token);
            assert_memory_equal(got, (const float *)tensor->data + token, p->size * sizeof *got);
        }
        VitSettings s = hierarchy_settings(&l.config);
        assert_int_equal(news, !s.stage_norm && hierarchy_ends(&l.config) == ENDS_BESIDE ? 8 : 0);
        safetensors_close(&st);
        const char *whole = in_folder("whole%d.safetensors", c);
        checkpoint_save_weights(&l.params, l.params.values, whole, NULL, 0);
        assert_false(backbone_is_alone(&l.backbone, whole));
        bench_close(&l);
    }
}

typedef struct {
    const char *settings, *path;
} Load;

static void load_weights(void *argument) {
    const Load *load = argument;
    Bench l;
    bench_open(&l, load->settings);
    backbone_load_weights(&l.backbone, &l.params, load->path);
}

#define SMALL "heads = 2\ndim = 8,8,16,16\nimg_size = 32\n"

/* Weights of another backbone are refused with one line that names the file and the difference. */
static void test_others(void **state) {
    (void)state;
    static const struct {
        const char *here, *there;
        bool told;
        const char *words[4];
    } others[] = {
        {"attn = softmax\ndepth = 1\n" SMALL, "attn = softmax\ndepth = 1,1,2,1\n" SMALL, true,
         {"stages.2.blocks.1.", "has no place in this backbone", "depth"}},
        {"attn = softmax\ndepth = 1,1,2,1\n" SMALL, "attn = softmax\ndepth = 1\n" SMALL, false,
         {"no tensor 'stages.2.blocks.1.", "nor 11 others"}},
        {"attn = softmax\ndepth = 1\n" SMALL, "attn = softmax\ndepth = 1\nheads = 4\ndim = 8,8,16,16\nimg_size = 32\n",
         true, {"heads", "2", "was trained with 4"}},
        {"attn = softmax\ndepth = 1\n" SMALL, "attn = hydra\ndepth = 1\n" SMALL, true, {"attn", "trained with hydra"}},
        {"attn = softmax\ndepth = 1\n" SMALL, "attn = softmax\ndepth = 1\nheads = 2\ndim = 8,8,16,32\nimg_size = 32\n",
         false, {"stages.3.", "has shape", "dim"}},
        {"attn = softmax\ndepth = 1\n" SMALL, "attn = softmax\ndepth = 1\npos_embed = learned\n" SMALL, false,
         {"'pos_embed' has no place"}},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char text[1024];
        Load load = {others[i].here, in_folder("other.safetensors")};
        write_classifier(load.path, others[i].there, others[i].told);
        int status = status_of(load_weights, &load, text, sizeof text);
        printf("  %s", text);
        assert_true(status == 1 || status == 2);
        assert_non_null(strstr(text, "other.safetensors"));
        assert_words(text, others[i].words);
        assert_true(strchr(text, '\n') == text + strlen(text) - 1);
    }
}

static void open_settings(void *argument) {
    Bench l;
    bench_open(&l, argument);
}

/* Settings that do not allow images of any size are refused. */
static void test_settings(void **state) {
    (void)state;
    static const struct {
        const char *settings, *words[4];
    } refused[] = {
        {"dim = 16,32,64\nheads = 2\ndepth = 1\n", {"dim", "four numbers"}},
        {"patch_size = 8\n", {"patch_size", "stride"}},
        {"heads = 3\n", {"heads", "does not divide"}},
        {"img_size = 40\n", {"img_size", "multiple"}},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char text[1024];
        int status = status_of(open_settings, (void *)refused[i].settings, text, sizeof text);
        printf("  %s", text);
        assert_int_equal(status, 2);
        assert_words(text, refused[i].words);
    }
    /* An operator whose tables belong to one grid is not a choice. */
    Config config;
    Error error;
    config_init(&config, NULL);
    backbone_add_settings(&config);
    assert_false(config_try_set(&config, "attn", "gf", "test", &error));
    assert_true(config_try_set(&config, "attn", "lisa", "test", &error));
    config_free(&config);
}

/* == Training ===================================================================================================== */

static size_t ended;
static void hear_final(float *gradients, size_t n) {
    assert_true(!ended || (size_t)(uintptr_t)(gradients + n) == ended);
    ended = (size_t)(uintptr_t)gradients;
}

static void test_training(void **state) {
    (void)state;
    Bench l;
    float *w, *dw;
    bench_open(&l, cases[0]);
    /* Gradients become final from the end of the arena down to the backbone's first one. */
    Sample s = sample_of(&l, 64, 32);
    FinalGradients final = {hear_final, l.params.grads, l.params.total, l.params.total};
    real *dfeatures[BACKBONE_LEVELS];
    backbone_forward(&l.backbone, upload_real(s.images, B * 64 * 32 * 3), B, 64, 32);
    for (int i = 0; i < BACKBONE_LEVELS; i++) dfeatures[i] = upload_real(s.gradients[i], map_count(&l, i, 64, 32));
    ended = 0;
    backbone_backward(&l.backbone, dfeatures, &final);
    assert_true(ended == (size_t)(uintptr_t)l.params.grads);
    bench_close(&l);

    /* The backbone has the rates of the classifier's groups, and the rest of the model has its own rate. */
    Params params = {0};
    Backbone backbone;
    Config config;
    read_settings(&config, cases[0]);
    backbone_create(&backbone, &config, &params, PREFIX, CONVOLUTION_QUICK);
    params_declare(&params, (Param){.value = &w, .grad = &dw, .named = {"rpn.weight"}, .shape = {3}});
    backbone_set_rates(&backbone, &params, 0.5f, 0.8f);
    VitSettings vit = hierarchy_settings(&config);
    int groups = layer_decay_groups(&vit);
    assert_int_equal(groups, 6);
    for (int i = 0; i < params_count(&params); i++) {
        const Param *p = params_at(&params, i);
        int group = strcmp(p->name, "rpn.weight") ? layer_decay_group(&vit, p->name + strlen(PREFIX)) : -1;
        float want = group < 0 ? 1 : 0.5f * (float)pow(0.8, groups - 1 - group);
        assert_true(fabsf(p->rate - want) < 1e-6f);
        bool decays = strstr(p->name, ".weight") && p->ndim > 1;
        if (group >= 0) assert_int_equal(p->decay, decays);
    }
    backbone_destroy(&backbone);
    params_free(&params);
    config_free(&config);
}

/* == Published sizes ============================================================================================== */

/* Trainable parameters and multiply-adds, which the papers' tables count with a detector; backbones of tables 9 and 10
 * (as --describe shows them, minus the classifier). */
static const struct {
    const char *settings;
    size_t weights, norms; /* norms: of the feature maps, which the classifier lacks */
    double macs[2];        /* in 1e9, for 800 x 1280 and 512 x 2048; 0: not compared */
} published[] = {
    {"attn = lisa\nlisa_patterns = 8\ndim = 64,128,320,384\ndepth = 2,4,12,4\nheads = 4,8,20,24\n"
     "mlp_ratio = 4,4,3,3\nmlp_conv = true\npos_embed = conv\npatch_overlap = true\n", 22593888, 0, {89.2, 91.4}},
    {"attn = lisa\nlisa_patterns = 8\ndim = 64,128,320,384\ndepth = 3,6,12,4\nheads = 4,8,20,24\n"
     "mlp_ratio = 4,4,3,3\nmlp_conv = true\npos_embed = conv\npatch_overlap = true\nconv_stages = 2\n"
     "conv_block = conv\n", 21576736, 0, {89.7, 91.9}},
    {"attn = swin\nwindow = 7\ndim = 96,192,384,768\ndepth = 2,2,6,2\nheads = 3,6,12,24\npatch_norm = true\n"
     "patch_merging = true\nstage_norm = false\nnorm_eps = 1e-5\n", 47793258 - 20273904 - 2 * 768, 2 * 1440, {91.9, 94.1}},
    {"attn = cswin\nstripe = 1,2,7,7\ndim = 64,128,256,512\ndepth = 1,2,21,1\nheads = 2,4,8,16\npatch_overlap = true\n"
     "patch_pad = 2\nstage_norm = false\nnorm_eps = 1e-5\n", 41958576 - 20151024 - 2 * 512, 2 * 960, {109.7, 118.2}},
    {"attn = reduced\nreduction = 8,4,2,1\ndim = 64,128,320,512\ndepth = 3,4,6,3\nheads = 1,2,5,8\n"
     "mlp_ratio = 8,8,4,4\npatch_norm = true\nstage_norm = false\noutput_norm = false\npos_embed = stages\n",
     28239510 - 4266646 - 4 * 512, 0, {0}}, /* minus the class token, its position and the last norm */
};

static void test_published(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        Config config;
        Params params = {0};
        Backbone backbone;
        read_settings(&config, published[i].settings);
        backbone_create(&backbone, &config, &params, PREFIX, CONVOLUTION_QUICK);
        assert_int_equal(backbone_weights(&backbone, &params), published[i].weights + published[i].norms);
        assert_int_equal(params.parameters, published[i].weights + published[i].norms);
        const int sides[2][2] = {{800, 1280}, {512, 2048}};
        for (int k = 0; k < 2; k++) {
            double macs = 1e-9 * (double)backbone_macs(&backbone, sides[k][0], sides[k][1]);
            printf("  %d x %d: %.2f e9 multiply-adds\n", sides[k][0], sides[k][1], macs);
            if (published[i].macs[k] > 0) assert_true(fabs(macs - published[i].macs[k]) < 0.06);
        }
        backbone_destroy(&backbone);
        params_free(&params);
        config_free(&config);
    }
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_start),
        cmocka_unit_test(test_others),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_training),
        cmocka_unit_test(test_published),
    };
    int failed = cmocka_run_group_tests(tests, make_folder, remove_folder);
    kernels_exit();
    return failed;
}
