/* The Sparse Transformer: for every pattern, results of a model whose weights are sines, computed separately in
 * float64; fixtures of tests/reference/make_sequence_fixtures.py; and properties that hold for any weights: nothing
 * depends on later tokens, sampling with caches gives the logits of a whole pass, recomputed blocks give the same bits,
 * and gradients agree with differences. */
#include <fcntl.h>
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "training/adamw.h"
#include "training/checkpoint.h"
#include "training/schedule.h"
#include "data/sequences/sequences.h"
#include "layers/density/sampling.h"
#include "tests/on_device.h"
#include "tests/scratch.h"
#include "tests/settings.h"
#include "tests/slopes.h"

/* == A model and its batch ======================================================================================== */

typedef struct {
    Config config;
    SequenceModel m;
    int B, n, V;
    uint8_t *tokens; /* [B,row_bytes] */
    float *logits;   /* [B,n,V] */
    float *sums;     /* [B] */
    bool drop;
} Case;

static const SequenceShape IMAGE = {24, 4, 2, 3, true}, TEXT = {12, 0, 0, 0, false};
#define SMALL "vocabulary = 16\ndim = 8\nheads = 2\ndepth = 2\n"
static const char IMAGE_MODEL[] = SMALL "stride = 6\nqk_ratio = 0.5\nmlp_ratio = 2\n";
static const char TEXT_MODEL[] = SMALL "stride = 4\n";

static void case_open(Case *c, const SequenceShape *shape, const char *settings, const char *more, int B,
                      SequencePurpose purpose) {
    memset(c, 0, sizeof *c);
    config_init(&c->config, NULL);
    sequence_model_add_settings(&c->config);
    settings_read(&c->config, settings);
    settings_read(&c->config, more);
    sequence_model_create(&c->m, &c->config, shape);
    c->m.model.training.guarded = true;
    if (purpose == SEQUENCE_SAMPLE) sequence_model_plan_sampling(&c->m, B, shape->n - 1);
    else sequence_model_plan(&c->m, B, purpose);
    sequence_model_allocate(&c->m);
    if (purpose == SEQUENCE_TRAIN) plan_poison(&c->m.model.training);
    params_allocate(&c->m.model.params, purpose == SEQUENCE_TRAIN);
    c->B = B;
    c->n = shape->n;
    c->V = c->m.settings.vocabulary;
    c->tokens = calloc((size_t)B, (size_t)c->m.row_bytes);
    c->logits = calloc((size_t)(B * c->n * c->V), sizeof(float));
    c->sums = calloc((size_t)B, sizeof(float));
}

static void case_close(Case *c) {
    sequence_model_destroy(&c->m);
    config_free(&c->config);
    free(c->tokens);
    free(c->logits);
    free(c->sums);
}

/* Runs all sequences forward; returns the mean loss of a token.  With the training plan it also computes the
 * gradients. */
static double case_forward(Case *c) {
    double loss = 0;
    sequence_model_load(&c->m, c->tokens, c->B);
    sequence_model_draw_drops(&c->m, 0x1234567890, 7, 3);
    sequence_model_forward(&c->m, c->B, c->drop);
    real_download(c->logits, c->m.logits, (size_t)(c->B * c->n * c->V));
    sequence_model_loss(&c->m, c->B, 1.0f / (float)(c->B * c->n));
    sequence_model_loss_sums(&c->m, c->sums, c->B);
    for (int b = 0; b < c->B; b++) loss += c->sums[b];
    return loss / (c->B * c->n);
}

static float *case_gradients(Case *c) {
    const Params *params = &c->m.model.params;
    float *grads = calloc(params->total, sizeof *grads);
    device_zero(params->grads, params->total * sizeof *grads);
    sequence_model_backward(&c->m, c->B, c->drop, NULL);
    const char *overrun = plan_overrun(&c->m.model.training);
    if (overrun) fail_msg("%s: written beyond its end", overrun);
    device_download(grads, params->grads, params->total * sizeof *grads);
    return grads;
}

static float *values_of(const Case *c) {
    float *values = calloc(c->m.model.params.total, sizeof *values);
    device_download(values, c->m.model.params.values, c->m.model.params.total * sizeof *values);
    return values;
}

static void set_values(Case *c, const float *values) {
    device_upload(c->m.model.params.values, values, c->m.model.params.total * sizeof *values);
}

/* Samples tokens, and weights large enough for attention to concentrate on some tokens. */
static void draw_all(Case *c, uint32_t stream) {
    float *values = values_of(c), *normal = check_normal(c->m.model.params.total, 0.3f, stream);
    for (int i = 0; i < params_count(&c->m.model.params); i++) {
        const Param *p = params_at(&c->m.model.params, i);
        bool gain = strstr(p->name, "norm") && strstr(p->name, "weight");
        for (size_t j = p->offset; j < p->offset + p->size; j++) values[j] = normal[j] + (float)gain;
    }
    set_values(c, values);
    for (int i = 0; i < c->B * c->m.row_bytes; i++)
        c->tokens[i] = (uint8_t)rng_below(check_seed(), RNG_TEST, 77, stream, (uint64_t)i, (uint32_t)c->V);
    free(normal);
    free(values);
}

/* == Weights that are sines ======================================================================================= */

static void sines(float *x, size_t count, int tensor, float base) {
    for (size_t e = 0; e < count; e++) x[e] = base + (float)(sin((double)(e + 1) + 3 * tensor) / 3);
}

/* Element e of tensor t, in the order of declaration, is sin(e + 1 + 3 t) / 3, plus 1 for gains; q, k and v count as
 * three tensors with a bias each.  Returns the number of tensors. */
static int fill_with_sines(Case *c) {
    const Params *params = &c->m.model.params;
    float *values = values_of(c);
    int t = 0, dim = c->m.settings.dim;
    for (int i = 0; i < params_count(params); i++) {
        const Param *p = params_at(params, i);
        float *x = values + p->offset;
        size_t row = p->ndim > 1 ? (size_t)dim : 1, keys = (p->size / row - (size_t)dim) / 2;
        if (strstr(p->name, "qkv")) {
            int first = t + (p->ndim == 1); /* weights are t, t + 2, t + 4, and biases follow each */
            sines(x, keys * row, first, 0);
            sines(x + keys * row, keys * row, first + 2, 0);
            sines(x + 2 * keys * row, (size_t)dim * row, first + 4, 0);
            t += p->ndim == 1 ? 6 : 0;
        } else {
            sines(x, p->size, t++, strstr(p->name, "norm") && strstr(p->name, "weight") ? 1 : 0);
        }
    }
    set_values(c, values);
    free(values);
    return t;
}

static void tokens_of_case(Case *c) {
    for (int i = 0; i < c->m.row_bytes; i++)
        c->tokens[i] = (uint8_t)(c->m.shape.starts ? (7 * i * i + 3 * i + 5) % 16 : (5 * i * i + i + 3) % 16);
}

typedef struct {
    bool text;
    const char *pattern;
    double bits, first, second, norm, slope; /* slope: for Wk[2][3] of the second block */
} Row;

#define STRIDED "attn = sparse-strided\n"
#define FIXED "attn = sparse-fixed\n"
static const Row rows[] = {
    {false, "", 4.35161609, 0.59949727, 0.58972291, 1.57079780, 0.0036790772},
    {false, STRIDED "sets = window,column\n", 4.37607489, 0.68340877, 0.57855932, 1.75339648, 0.0020382244},
    {false, STRIDED "sets = window,column\nwindow = 7\n", 4.37341722, 0.68251531, 0.60233295, 1.73975909, 0.0024842850},
    {false, STRIDED "sets = column, window\n", 4.40358262, 0.92096200, 0.73675710, 1.82744890, 0.0128347144},
    {false, STRIDED "scheme = merged\n", 4.35967884, 0.67881045, 0.60220130, 1.65083618, 0.0069011986},
    {false, STRIDED "scheme = split\n", 4.40332064, 0.39447336, 0.41135144, 1.65566448, 0.0034174519},
    {false, FIXED "scheme = merged\nsummary = 2\n", 4.38109639, 0.71566556, 0.64172791, 1.77508067, 0.0034830447},
    {true, "", 4.37408369, 0.72200503, -0.24311114, 1.80170120, -0.0048805603},
    {true, FIXED "scheme = merged\nsummary = 1\n", 4.36139910, 0.71421913, -0.25185388, 1.72163631, -0.0066865824},
    {true, FIXED "scheme = merged\nsummary = 2\n", 4.36882768, 0.72531264, -0.23950797, 1.78738672, -0.0063020533},
    {true, FIXED "scheme = merged\nsummary = 1\nsub_blocks = 2\n", 4.36399415, 0.76082002, -0.25939294, 1.79360541,
     -0.0056752261},
    {true, FIXED "summary = 1\n", 4.36522813, 0.71285331, -0.25413976, 1.72242864, -0.0036124780},
    {true, FIXED "scheme = split\nsummary = 1\n", 4.48945297, 0.75351434, -0.29027865, 1.84068175, -0.0063429396},
    {true, STRIDED, 4.36636974, 0.71669486, -0.25413976, 1.75153554, -0.0024580521},
};

/* `rounded` is the tolerance for bfloat16, where every operation rounds to 1/256. */
static int near(const char *what, double got, double want, double size, double exact, double rounded) {
    double allowed = (sizeof(real) == 4 ? exact : rounded) * size;
    int ok = fabs(got - want) <= allowed;
    printf("    %-8s got %-14.9g want %-14.9g %.2f of allowed  %s\n", what, got, want, fabs(got - want) / allowed,
           ok ? "ok" : "FAILED");
    return ok;
}

static double norm_of_gradients(const Case *c, const float *grads) {
    double squares = 0;
    for (size_t i = 0; i < c->m.model.params.total; i++) squares += (double)grads[i] * grads[i];
    return sqrt(squares);
}

static int row_agrees(const Row *row) {
    Case c;
    case_open(&c, row->text ? &TEXT : &IMAGE, row->text ? TEXT_MODEL : IMAGE_MODEL, row->pattern, 1, SEQUENCE_TRAIN);
    int tensors = fill_with_sines(&c), keys = c.m.frame.Dk * 2;
    assert_int_equal(tensors, row->text ? 38 : 40);
    assert_int_equal(c.m.model.params.parameters, row->text ? 2072 : 1408);
    tokens_of_case(&c);
    printf("  %s, %s", row->text ? "text" : "image", *row->pattern ? row->pattern : "dense\n");
    double bits = case_forward(&c) / log(2);
    float *grads = case_gradients(&c);
    const Param *p = params_find(&c.m.model.params, "blocks.1.attn.qkv.weight");
    double slope = grads[p->offset + (size_t)(keys + 2) * 8 + 3];
    int at = row->text ? 5 : 13, end = row->text ? 11 : 23;
    int ok = near("bits", bits, row->bits, row->bits, 1e-6, 2e-2);
    ok &= near("logit", c.logits[at * 16 + 3], row->first, 1, 2e-6, 5e-2);
    ok &= near("logit", c.logits[end * 16 + 7], row->second, 1, 2e-6, 5e-2);
    ok &= near("norm", norm_of_gradients(&c, grads), row->norm, row->norm, 2e-6, 5e-2);
    ok &= near("dWk[2][3]", slope, row->slope, 1, 1e-7, 5e-3);
    if (!row->text) {
        const double start[] = {0.01888037, 0.21026207, -0.08006665, -0.18696267};
        for (int i = 0; i < 4; i++) ok &= near("start", c.logits[i], start[i], 1, 2e-7 * 5, 2e-2);
    }
    free(grads);
    case_close(&c);
    return ok;
}

static void test_rows(void **state) {
    (void)state;
    int ok = 1;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) ok &= row_agrees(&rows[i]);
    assert_true(ok);
}

/* == What follows from the same weights =========================================================================== */

/* Bits per token of bytes 0 .. 32 of a file, evaluated in windows that move by `step`. */
static double sliding_bits(const char *path, int step, size_t windows) {
    Case c;
    SequenceSet set = {0};
    SequencesSettings s = {.data = path, .data_dir = "", .kind = SEQUENCES_TEXT, .tokens = 12, .rate = 12000,
                           .shares = {3, {0, 0, 1}}};
    float losses[12];
    double nats = 0;
    int scored = 0, from;
    Error error;
    case_open(&c, &TEXT, TEXT_MODEL, FIXED "scheme = merged\nsummary = 1\n", 1, SEQUENCE_EVALUATE);
    fill_with_sines(&c);
    sequences_open(&set, &s);
    assert_int_equal(sequences_windows(&set, SEQUENCES_TEST, step), windows);
    for (size_t w = 0; w < windows; w++) {
        if (!sequences_window(&set, SEQUENCES_TEST, step, w, c.tokens, &from, NULL, &error)) fail_msg("%s", error.text);
        case_forward(&c);
        sequence_model_losses(&c.m, losses, 1);
        for (int i = from; i < 12; i++, scored++) nats += losses[i];
    }
    assert_int_equal(scored, 32);
    sequences_close(&set);
    case_close(&c);
    return nats / log(2) / 32;
}

static void test_sliding(void **state) {
    (void)state;
    char path[SCRATCH_PATH];
    uint8_t bytes[33];
    for (int i = 0; i < 33; i++) bytes[i] = (uint8_t)((5 * i * i + i + 3) % 16);
    int fd = mkstemp(scratch_path(path)), ok = fd >= 0 && write(fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes;
    assert_true(ok && !close(fd));
    ok &= near("step 12", sliding_bits(path, 12, 3), 4.27052936, 4, 1e-6, 2e-2);
    ok &= near("step 8", sliding_bits(path, 8, 4), 4.25549609, 4, 1e-6, 2e-2);
    ok &= near("step 4", sliding_bits(path, 4, 6), 4.27117653, 4, 1e-6, 2e-2);
    ok &= near("step 1", sliding_bits(path, 1, 21), 4.25540391, 4, 1e-6, 2e-2);
    unlink(path);
    assert_true(ok);
}

static void test_greedy(void **state) {
    (void)state;
    static const uint8_t merged[] = {1, 10, 11, 5, 10, 7, 2, 7, 8, 5, 3, 4, 9, 3, 1, 9, 10, 15, 9, 10, 4, 9, 10, 14};
    if (sizeof(real) != 4) skip(); /* the closest two logits differ by 0.0006 */
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        Case c;
        case_open(&c, &IMAGE, IMAGE_MODEL, interleaved ? STRIDED : STRIDED "scheme = merged\n", 1, SEQUENCE_SAMPLE);
        fill_with_sines(&c);
        sampling_run(&c.m, c.tokens, &(SamplingSettings){.top_p = 1}, &(SamplingRun){.B = 1, .end = 24}, NULL);
        for (int i = 0; i < 24; i++) assert_int_equal(c.tokens[i], interleaved && i == 17 ? 8 : merged[i]);
        case_close(&c);
    }
}

static int three_steps(const SequenceShape *shape, const char *model, const char *pattern, const double want[4]) {
    const AdamWSettings adamw = {.weight_decay = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .clip_grad = 1};
    Case c;
    int ok = 1;
    case_open(&c, shape, model, pattern, 1, SEQUENCE_TRAIN);
    fill_with_sines(&c);
    tokens_of_case(&c);
    params_allocate_optimizer(&c.m.model.params, false);
    for (int t = 1; t <= 4; t++) {
        ok &= near("step", case_forward(&c) / log(2), want[t - 1], 4, 2e-6, 2e-2);
        free(case_gradients(&c));
        adamw_start(&adamw, &c.m.model.params, 0.01f, t);
    }
    case_close(&c);
    return ok;
}

static void test_adamw(void **state) {
    (void)state;
    assert_true(three_steps(&IMAGE, IMAGE_MODEL, STRIDED, (double[]){4.37607489, 4.03139278, 3.87271419, 3.76378515}) &
                three_steps(&TEXT, TEXT_MODEL, FIXED "scheme = merged\nsummary = 1\n",
                            (double[]){4.36139910, 3.82107237, 3.53649985, 3.28221578}));
}

static void test_schedule(void **state) {
    (void)state;
    const StepCosineSettings s = {3.5e-4f, 5000};
    static const struct {
        uint64_t step;
        double rate;
    } at[] = {{1, 7e-8}, {2500, 1.75e-4}, {5000, 3.5e-4}, {182500, 1.75e-4}, {271250, 5.1256313e-5}, {360000, 0}};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        assert_true(fabs((double)step_cosine_lr(&s, at[i].step, 360000) - at[i].rate) <= 1e-6 * at[i].rate);
}

/* Initial weights: all tokens have the same probability, and only the last layer has a gradient. */
static void test_first_weights(void **state) {
    (void)state;
    Case c;
    case_open(&c, &IMAGE, "dim = 12\nheads = 3\ndepth = 3\n", "", 2, SEQUENCE_TRAIN);
    params_initialize(&c.m.model.params, 5);
    for (int i = 0; i < 48; i++) c.tokens[i] = (uint8_t)(37 * i);
    assert_true(fabs(case_forward(&c) / log(2) - 8) < 1e-6);
    float *grads = case_gradients(&c), *values = values_of(&c);
    for (int i = 0; i < params_count(&c.m.model.params); i++) {
        const Param *p = params_at(&c.m.model.params, i);
        double squares = 0, spread = 0;
        for (size_t j = p->offset; j < p->offset + p->size; j++) {
            squares += (double)grads[j] * grads[j];
            spread += (double)values[j] * values[j];
        }
        assert_true((squares > 0) == !strcmp(p->name, "head.weight"));
        spread = sqrt(spread / (double)p->size) / sqrt(0.125 / 12);
        if (strstr(p->name, "fc1.weight")) assert_true(fabs(spread - 1) < 0.2);
        if (strstr(p->name, "proj.weight")) assert_true(fabs(spread - 1 / sqrt(6)) < 0.2);
        if (strstr(p->name, "fc2.weight")) assert_true(fabs(spread - 1 / sqrt(24)) < 0.1);
        assert_true(p->decay == (p->ndim > 1));
    }
    free(grads);
    free(values);
    case_close(&c);
}

/* The standard deviation of a tensor's initial weights according to `start_values`; 0 for zeros, -1 for ones. */
static double first_deviation(const char *name, const char *start_values, int dim, int hidden, int depth, int tables) {
    bool code = !strcmp(start_values, "code"), paper = !strcmp(start_values, "paper");
    double embedding = code ? 0.01 : paper ? 0.125 / sqrt(dim) : 0.02;
    double linear = code ? sqrt(0.125 / dim) : paper ? 0.125 / sqrt(dim) : 0.02;
    if (strstr(name, "norm")) return strstr(name, ".weight") ? -1 : 0;
    if (strstr(name, ".bias")) return 0;
    if (!strncmp(name, "pos_embed", 9)) return embedding / sqrt(tables);
    if (!strcmp(name, "token_embed.weight") || !strcmp(name, "start")) return embedding;
    if (!strcmp(name, "head.weight")) return code || paper ? 0 : linear;
    if (strstr(name, "proj.weight")) return linear / sqrt(2 * depth);
    if (strstr(name, "fc2.weight"))
        return (code || paper ? linear * sqrt((double)dim / hidden) : linear) / sqrt(2 * depth);
    return linear;
}

/* Checks the root mean square of every tensor to within seven standard errors, each 1 / sqrt(2 size). */
static int starts_as(const char *start_values, const SequenceShape *shape, int tables, uint64_t seed) {
    char more[64];
    Case c;
    int ok = 1;
    snprintf(more, sizeof more, "start_values = %s\n", start_values);
    case_open(&c, shape, "dim = 40\nheads = 2\ndepth = 3\nmlp_ratio = 2\nstride = 4\n", more, 1, SEQUENCE_EVALUATE);
    params_initialize(&c.m.model.params, seed);
    float *values = values_of(&c);
    for (int i = 0; i < params_count(&c.m.model.params); i++) {
        const Param *p = params_at(&c.m.model.params, i);
        double want = first_deviation(p->name, start_values, 40, 80, 3, tables), squares = 0;
        for (size_t j = p->offset; j < p->offset + p->size; j++) {
            double x = want < 0 ? values[j] - 1 : values[j];
            squares += x * x;
        }
        double is = sqrt(squares / (double)p->size);
        bool right = want <= 0 ? squares == 0 : fabs(is / want - 1) < 7 / sqrt(2 * (double)p->size);
        if (!right) print_error("%s, %s: deviation %g, not %g\n", start_values, p->name, is, want);
        ok &= right;
    }
    free(values);
    case_close(&c);
    return ok;
}

static void test_start_values(void **state) {
    (void)state;
    uint64_t seed = check_seed();
    int ok = 1;
    const char *const all[] = {"code", "paper", "gpt2"};
    for (int i = 0; i < 3; i++) ok &= starts_as(all[i], &IMAGE, 3, seed) & starts_as(all[i], &TEXT, 2, seed);
    assert_true(ok);
}

/* With gpt2 the first logits are not all zero, so every parameter has a gradient. */
static void test_first_step_of_gpt2(void **state) {
    (void)state;
    Case c;
    case_open(&c, &IMAGE, "dim = 12\nheads = 3\ndepth = 3\nstart_values = gpt2\n", "", 2, SEQUENCE_TRAIN);
    params_initialize(&c.m.model.params, 5);
    for (int i = 0; i < 48; i++) c.tokens[i] = (uint8_t)(37 * i);
    double bits = case_forward(&c) / log(2);
    assert_true(fabs(bits - 8) > 1e-4 && fabs(bits - 8) < 0.1);
    float *grads = case_gradients(&c);
    for (int i = 0; i < params_count(&c.m.model.params); i++) {
        const Param *p = params_at(&c.m.model.params, i);
        double squares = 0;
        for (size_t j = p->offset; j < p->offset + p->size; j++) squares += (double)grads[j] * grads[j];
        assert_true(squares > 0);
    }
    free(grads);
    case_close(&c);
}

/* == Any weights ================================================================================================== */

static const char *const patterns[] = {
    "",
    STRIDED,
    STRIDED "sets = column,window,dense\nwindow = 5\n",
    STRIDED "scheme = merged\n",
    STRIDED "scheme = split\n",
    FIXED "summary = 2\n",
    FIXED "scheme = merged\nsummary = 1\nsub_blocks = 3\n",
    FIXED "scheme = split\nsummary = 3\n",
};
enum { PATTERNS = sizeof patterns / sizeof *patterns };

/* Images and texts of odd sizes with an odd stride. */
static const SequenceShape ODD_IMAGE = {5 * 3 * 3, 5, 3, 3, true}, ODD_TEXT = {37, 0, 0, 0, false};
static const char ODD_MODEL[] =
    "vocabulary = 19\ndim = 30\nheads = 3\ndepth = 3\nqk_ratio = 0.6\nmlp_ratio = 1.5\nstride = 7\n";
#define DROPPING "dropout = 0.3\nembedding_dropout = 0.2\n"

/* Three sequences and weights that depend only on i; `more` is added to the settings of the pattern. */
static void case_open_odd(Case *c, int i, const char *more, SequencePurpose purpose) {
    char settings[256];
    snprintf(settings, sizeof settings, "%s%s", patterns[i], more);
    case_open(c, i % 2 ? &ODD_TEXT : &ODD_IMAGE, ODD_MODEL, settings, 3, purpose);
    draw_all(c, (uint32_t)i);
}

/* A changed token does not change a bit of the logits before it. */
static void test_causality(void **state) {
    (void)state;
    for (int i = 0; i < PATTERNS; i++) {
        Case c;
        case_open_odd(&c, i, "", SEQUENCE_EVALUATE);
        size_t each = (size_t)c.n * (size_t)c.V;
        int j = (int)rng_below(check_seed(), RNG_TEST, 5, (uint32_t)i, 0, (uint32_t)c.n - 1);
        float *before = malloc(3 * each * sizeof *before);
        case_forward(&c);
        memcpy(before, c.logits, 3 * each * sizeof *before);
        c.tokens[j] = (uint8_t)((c.tokens[j] + 1) % c.V);
        case_forward(&c);
        size_t same = (size_t)(j + c.m.shape.starts) * (size_t)c.V;
        assert_memory_equal(before, c.logits, same * sizeof(float));
        assert_memory_equal(before + each, c.logits + each, 2 * each * sizeof(float));
        assert_memory_not_equal(before + same, c.logits + same, (size_t)c.V * sizeof(float));
        free(before);
        case_close(&c);
    }
}

/* Compares logits of the same positions computed in two ways.  In bfloat16 both have the rounding errors of all layers,
 * and single logits may be far off, so the V logits of a position are compared together. */
static int same_logits(const char *what, const float *got, const double *want, size_t positions, size_t V) {
    if (sizeof(real) == 4) return check_close(what, got, want, positions * V, 1e-4);
    double worst = 0, bound = 0.1;
    for (size_t p = 0; p < positions; p++) {
        double error = relative_rms(got + p * V, want + p * V, V);
        if (!(error <= worst)) worst = error;
        if (isnan(worst)) break;
    }
    int ok = worst <= bound;
    printf("  %s: root mean square of a position's errors %.2g of its logits', %.2f of allowed  %s\n", what, worst,
           worst / bound, ok ? "ok" : "FAILED");
    return ok;
}

/* Steps with caches give the logits of a whole pass. */
static void test_steps(void **state) {
    (void)state;
    int ok = 1;
    for (int i = 0; i < PATTERNS; i++) {
        Case whole, steps;
        case_open_odd(&whole, i, "", SEQUENCE_EVALUATE);
        case_open_odd(&steps, i, "", SEQUENCE_SAMPLE);
        case_forward(&whole);
        size_t V = (size_t)whole.V, count = 3 * (size_t)whole.n * V;
        float *row = malloc(3 * V * sizeof *row);
        double *want = malloc(count * sizeof *want);
        sequence_model_load(&steps.m, steps.tokens, 3);
        for (int p = 0; p < whole.n; p++) {
            sequence_model_step(&steps.m, p, 3);
            real_download(row, steps.m.logits, 3 * V);
            for (size_t b = 0; b < 3; b++)
                memcpy(steps.logits + (b * (size_t)whole.n + (size_t)p) * V, row + b * V, V * sizeof *row);
        }
        for (size_t k = 0; k < count; k++) want[k] = whole.logits[k];
        ok &= same_logits(patterns[i], steps.logits, want, 3 * (size_t)whole.n, V);
        free(row);
        free(want);
        case_close(&whole);
        case_close(&steps);
    }
    assert_true(ok);
}

/* Filling the caches with the first 1, 2, half or all but one rows at once and continuing in steps gives the logits of
 * a whole pass, whether all prompts of the batch are filled together or only some at a time. */
static void test_fill(void **state) {
    (void)state;
    int ok = 1;
    for (int i = 0; i < PATTERNS; i++) {
        Case whole;
        case_open_odd(&whole, i, "", SEQUENCE_EVALUATE);
        case_forward(&whole);
        const int counts[] = {1, 2, whole.n / 2, whole.n - 1};
        for (int k = 0; k < 4; k++) {
            Case steps;
            int count = counts[k];
            case_open_odd(&steps, i, "", SEQUENCE_SAMPLE);
            steps.m.prompts -= k % 2;
            size_t V = (size_t)whole.V, left = (size_t)(whole.n - count), at = 0;
            float *got = malloc(3 * left * V * sizeof *got);
            double *want = malloc(3 * left * V * sizeof *want);
            sequence_model_load(&steps.m, steps.tokens, 3);
            sequence_model_fill(&steps.m, count, 3);
            for (int p = count; p < whole.n; p++, at += 3 * V) {
                sequence_model_step(&steps.m, p, 3);
                real_download(got + at, steps.m.logits, 3 * V);
                for (size_t b = 0; b < 3; b++)
                    for (size_t t = 0; t < V; t++)
                        want[at + b * V + t] = whole.logits[(b * (size_t)whole.n + (size_t)p) * V + t];
            }
            printf("%d rows at once\n", count);
            ok &= same_logits(patterns[i], got, want, 3 * left, V);
            free(got);
            free(want);
            case_close(&steps);
        }
        case_close(&whole);
    }
    assert_true(ok);
}

static size_t passed, of_all;

static void count_passed(size_t done, size_t end) {
    assert_true(done > passed && done <= end && (!of_all || end == of_all));
    passed = done;
    of_all = end;
}

/* Progress grows from sequence to sequence and from window to window, to the number of all tokens. */
static void test_progress(void **state) {
    (void)state;
    enum { B = 7, LENGTH = 400 };
    static uint8_t tokens[B * LENGTH];
    Case c;
    case_open_odd(&c, 1, "", SEQUENCE_SAMPLE);
    assert_true(c.m.model.batch < B && c.m.row_bytes < LENGTH);
    sampling_long(&c.m, tokens, &(SamplingSettings){.top_p = 1}, &(SamplingRun){.B = B, .given = 4, .end = LENGTH},
                  count_passed);
    assert_int_equal(passed, of_all);
    case_close(&c);
}

/* A sequence is sampled equally alone and in a batch, and top-k of one takes the most likely token. */
static void test_drawing(void **state) {
    (void)state;
    const SamplingSettings s = {.temperature = 0.7f, .top_k = 9, .top_p = 0.9f};
    Case all, one;
    case_open_odd(&all, 1, "", SEQUENCE_SAMPLE);
    case_open_odd(&one, 1, "", SEQUENCE_SAMPLE);
    size_t row = (size_t)all.m.row_bytes;
    sampling_run(&all.m, all.tokens, &s, &(SamplingRun){3, 4, row, check_seed(), 5, 0, "", 0, 0}, NULL);
    memcpy(one.tokens, one.tokens + row, row);
    sampling_run(&one.m, one.tokens, &s, &(SamplingRun){1, 4, row, check_seed(), 6, 0, "", 0, 0}, NULL);
    assert_memory_equal(one.tokens, all.tokens + row, row);
    assert_memory_not_equal(all.tokens, all.tokens + row, row);
    case_close(&all);
    case_close(&one);

    const float logits[] = {0, 2, 1, -50};
    assert_int_equal(sampling_draw(&(SamplingSettings){.temperature = 0, .top_p = 1}, logits, 4, 0.999f), 1);
    assert_int_equal(sampling_draw(&(SamplingSettings){1, 1, 1}, logits, 4, 0.999f), 1);
    assert_int_equal(sampling_draw(&(SamplingSettings){1, 0, 0.6f}, logits, 4, 0.999f), 1); /* e^2 is 0.67 of the sum */
    assert_int_equal(sampling_draw(&(SamplingSettings){1, 2, 1}, logits, 4, 0.999f), 2);
    assert_int_equal(sampling_draw(&(SamplingSettings){1, 0, 1}, logits, 4, 0.66f), 1);
    assert_int_equal(sampling_draw(&(SamplingSettings){1, 0, 1}, logits, 4, 0.67f), 2);
    assert_int_equal(sampling_draw(&(SamplingSettings){1, 0, 1}, logits, 4, 0.92f), 0);
    assert_int_equal(sampling_draw(&(SamplingSettings){100, 0, 1}, logits, 4, 0.99f), 3);
}

typedef struct {
    Case *c;
    const float *base, *direction;
} Move;

/* The mean loss at base + h direction. */
static double loss_at(void *context, double h) {
    const Move *move = context;
    size_t total = move->c->m.model.params.total;
    float *moved = malloc(total * sizeof *moved);
    for (size_t j = 0; j < total; j++) moved[j] = move->base[j] + (float)(h * move->direction[j]);
    set_values(move->c, moved);
    free(moved);
    return case_forward(move->c);
}

/* With dropout, recomputed blocks give the same bits, and the gradient agrees with differences along the gradient plus
 * noise of the same size. */
static int gradients_hold(int i) {
    Case c, again;
    case_open_odd(&c, i, DROPPING, SEQUENCE_TRAIN);
    case_open_odd(&again, i, DROPPING "recompute = true\n", SEQUENCE_TRAIN);
    c.drop = again.drop = true;
    size_t total = c.m.model.params.total;
    assert_true(plan_bytes(&again.m.model.training) < plan_bytes(&c.m.model.training));
    double loss = case_forward(&c);
    float *grads = case_gradients(&c);
    assert_true(case_forward(&again) == loss);
    float *second = case_gradients(&again);
    assert_memory_equal(grads, second, total * sizeof *grads);

    float *base = values_of(&c), *direction = check_normal(total, 1, 1000u + (uint32_t)i);
    double slope = 0, norm = norm_of_gradients(&c, grads), noise = 0;
    for (size_t j = 0; j < total; j++) {
        direction[j] = base[j] != 0 ? direction[j] / (float)sqrt((double)total) + (float)(grads[j] / norm) : 0;
        slope += (double)grads[j] * direction[j];
    }
    Move move = {&c, base, direction};
    /* At most four epsilons of the loss are rounding. */
    double found = slope_by_differences(loss_at, &move, 1.0 / 32, 4 * ldexp(loss, -23), &noise);
    int ok = sizeof(real) != 4 || near("slope", found, slope, 1, 1e-3 * slope + noise, 1);
    free(base);
    free(direction);
    free(grads);
    free(second);
    case_close(&c);
    case_close(&again);
    return ok;
}

static void test_gradients(void **state) {
    (void)state;
    int ok = 1;
    for (int i = 0; i < PATTERNS; i++) ok &= gradients_hold(i);
    assert_true(ok);
}

/* == Fixtures of the float64 reference ============================================================================ */

static double *wanted_tensor(const SafeTensors *file, const char *name) {
    const SafeTensor *tensor = safetensors_find(file, name);
    if (!tensor) fail_msg("%s: no tensor '%s'", file->file, name);
    assert_int_equal(tensor->dtype, SAFE_F64);
    double *wanted = malloc(tensor->bytes);
    memcpy(wanted, tensor->data, tensor->bytes);
    return wanted;
}

/* In float every element must agree to 1e-5, in bfloat16 the tensor to 10 %. */
static int compare(const SafeTensors *file, const char *name, const float *got, size_t n) {
    double *wanted = wanted_tensor(file, name);
    int ok = sizeof(real) == 4 ? check_close(name, got, wanted, n, 1e-5) : check_rms(name, got, wanted, n, 0.1);
    free(wanted);
    return ok;
}

static void fixture_open(Case *c, const SafeTensors *file, const char *settings) {
    const SafeTensor *tokens = safetensors_find(file, "tokens");
    int64_t wide[512];
    Error error;
    bool image = tokens->ndim == 4;
    int B = (int)tokens->shape[0], n = (int)(tokens->size / tokens->shape[0]);
    SequenceShape shape = {n - !image, 0, 0, 0, image};
    if (image) {
        shape.height = (int)tokens->shape[1];
        shape.width = (int)tokens->shape[2];
        shape.channels = (int)tokens->shape[3];
    }
    case_open(c, &shape, settings, "", B, SEQUENCE_TRAIN);
    c->drop = c->m.settings.dropout > 0;
    if (!checkpoint_read_weights(&c->m.model.params, c->m.model.params.values, file, "", NULL, &error))
        fail_msg("%s", error.text);
    assert_true(tokens->size <= 512 && safetensors_to_int64(tokens, wide, &error));
    for (size_t i = 0; i < tokens->size; i++) c->tokens[i] = (uint8_t)wide[i];
}

/* Writes the settings in a fixture's metadata as lines. */
static void settings_of(const SafeTensors *file, char *lines, size_t size) {
    Config config;
    config_init(&config, NULL);
    sequence_model_add_settings(&config);
    *lines = 0;
    for (int i = 0; i < config.count; i++) {
        const char *name = config_name(&config, i), *value = safetensors_metadata(file, name);
        size_t length = strlen(lines);
        if (value) snprintf(lines + length, size - length, "%s = %s\n", name, value);
    }
    config_free(&config);
}

static int fixture_agrees(const char *path) {
    Case c;
    SafeTensors file;
    Error error;
    char settings[1024], name[PARAM_NAME_SIZE + 8];
    if (!safetensors_open(&file, path, &error)) fail_msg("%s", error.text);
    settings_of(&file, settings, sizeof settings);
    fixture_open(&c, &file, settings);
    printf("%s\n", path);
    float loss = (float)case_forward(&c), *grads = case_gradients(&c);
    int ok = compare(&file, "logits", c.logits, (size_t)(c.B * c.n * c.V)) & compare(&file, "loss", &loss, 1);
    for (int i = 0; i < params_count(&c.m.model.params); i++) {
        const Param *p = params_at(&c.m.model.params, i);
        snprintf(name, sizeof name, "grad.%s", p->name);
        ok &= compare(&file, name, grads + p->offset, p->size);
    }
    free(grads);
    case_close(&c);
    safetensors_close(&file);
    return ok;
}

static void test_reference(void **state) {
    (void)state;
    glob_t paths;
    int ok = 1;
    assert_int_equal(glob("tests/fixtures/sequence/*.safetensors", 0, NULL, &paths), 0);
    assert_true(paths.gl_pathc >= 8);
    for (size_t i = 0; i < paths.gl_pathc; i++) ok &= fixture_agrees(paths.gl_pathv[i]);
    globfree(&paths);
    assert_true(ok);
}

int main(void) {
    kernels_init();
    printf("test_sequence_model, %s\n", kernels_device());
    check_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),       cmocka_unit_test(test_sliding),       cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_adamw),      cmocka_unit_test(test_schedule),      cmocka_unit_test(test_first_weights),
        cmocka_unit_test(test_causality),  cmocka_unit_test(test_steps),         cmocka_unit_test(test_fill),
        cmocka_unit_test(test_drawing),    cmocka_unit_test(test_gradients),     cmocka_unit_test(test_reference),
        cmocka_unit_test(test_progress),   cmocka_unit_test(test_start_values),
        cmocka_unit_test(test_first_step_of_gpt2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
