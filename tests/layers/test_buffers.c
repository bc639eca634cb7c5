/* Buffers, which are tensors of random numbers that are not learned: what they contain, when they are sampled, that the
 * optimizer does not change them and the moving average copies them, and the initial parameters of stochastic
 * positional encoding. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "training/adamw.h"
#include "layers/features/feature_map.h"
#include "layers/vit/vit.h"
#include "tests/check.h"
#include "tests/settings.h"

/* A linear model of 24 columns with 2 heads on 5 x 7 tokens. */
static void model_open(Vit *vit, const char *feature_map, const char *relative, uint64_t seed) {
    Config *config = malloc(sizeof *config); /* is never freed: the model needs it */
    config_init(config, NULL);
    vit_add_settings(config);
    settings_read(config, "img_size = 5x7\npatch_size = 1\nnum_classes = 3\ndim = 24\ndepth = 2\nheads = 2\n"
                          "mlp_ratio = 1\nattn = linear\npos_embed = none\n");
    settings_put(config, "feature_map", feature_map);
    settings_put(config, "relative", relative);
    vit_create(vit, config);
    vit_plan(vit, 1, true);
    vit_allocate(vit);
    params_allocate(&vit->model.params, true);
    params_initialize(&vit->model.params, seed);
}

static float *tensor(const Vit *vit, const float *arena, const char *name) {
    const Param *p = params_find(&vit->model.params, name);
    assert_non_null(p);
    float *x = malloc(p->size * sizeof *x);
    device_download(x, arena + p->offset, p->size * sizeof *x);
    return x;
}

static size_t size_of(const Vit *vit, const char *name) { return params_find(&vit->model.params, name)->size; }

static const struct {
    const char *map, *relative, *name;
} drawn[] = {
    {"rfa", "none", "blocks.0.attn.feature.weight"},        {"performer", "none", "blocks.0.attn.feature.weight"},
    {"mlp-random-w1", "none", "blocks.0.attn.feature.w1"},  {"mlp", "sincspe", "blocks.0.attn.relative.noise"},
    {"mlp", "sincspe", "blocks.0.attn.relative.common"},    {"mlp", "convspe", "blocks.0.attn.relative.noise"},
    {"mlp", "convspe", "blocks.0.attn.relative.common"},
};
enum { DRAWN = sizeof drawn / sizeof *drawn };

/* The random numbers depend on seed, step and block, and on nothing else. */
static void draws_are_functions_of_seed_step_and_block(void **state) {
    (void)state;
    for (int i = 0; i < DRAWN; i++) {
        Vit vit, other;
        char elsewhere[PARAM_NAME_SIZE];
        snprintf(elsewhere, sizeof elsewhere, "blocks.1%s", drawn[i].name + 8);
        model_open(&vit, drawn[i].map, drawn[i].relative, 1);
        model_open(&other, drawn[i].map, drawn[i].relative, 2);
        size_t n = size_of(&vit, drawn[i].name), same = 0, equal[3] = {0};
        trunk_draw_buffers(&vit.trunk, 1, 5);
        float *first = tensor(&vit, vit.model.params.values, drawn[i].name);
        float *block = tensor(&vit, vit.model.params.values, elsewhere);
        trunk_draw_buffers(&vit.trunk, 1, 6);
        float *step = tensor(&vit, vit.model.params.values, drawn[i].name);
        trunk_draw_buffers(&other.trunk, 2, 5);
        float *seed = tensor(&other, other.model.params.values, drawn[i].name);
        trunk_draw_buffers(&other.trunk, 1, 5);
        float *again = tensor(&other, other.model.params.values, drawn[i].name);
        for (size_t j = 0; j < n; j++) {
            same += again[j] == first[j];
            equal[0] += block[j] == first[j];
            equal[1] += step[j] == first[j];
            equal[2] += seed[j] == first[j];
        }
        printf("  %-14s %-8s %-32s %zu of %zu again; elsewhere %zu, %zu, %zu\n", drawn[i].map, drawn[i].relative,
               drawn[i].name, same, n, equal[0], equal[1], equal[2]);
        assert_int_equal(same, n);
        for (int j = 0; j < 3; j++) assert_true(equal[j] * 100 < n + 100);
        free(first);
        free(block);
        free(step);
        free(seed);
        free(again);
        vit_destroy(&vit);
        vit_destroy(&other);
    }
}

/* No two tensors share a stream of random numbers. */
static void draws_share_nothing(void **state) {
    (void)state;
    Vit vit;
    const char *names[] = {"blocks.0.attn.feature.weight", "blocks.1.attn.feature.weight",
                           "blocks.0.attn.relative.noise", "blocks.1.attn.relative.noise",
                           "blocks.0.attn.relative.common", "blocks.1.attn.relative.common"};
    enum { NAMES = sizeof names / sizeof *names, SOME = 100 };
    model_open(&vit, "rfa", "sincspe", 1);
    trunk_draw_buffers(&vit.trunk, 1, 0);
    for (int i = 0; i < NAMES; i++)
        for (int j = 0; j < i; j++) {
            float *a = tensor(&vit, vit.model.params.values, names[i]);
            float *b = tensor(&vit, vit.model.params.values, names[j]);
            for (int k = 0; k < SOME; k++) assert_true(a[k] != b[k]);
            free(a);
            free(b);
        }
    vit_destroy(&vit);
}

/* Performer's rows are orthogonal and have the mean squared length of normal rows: E |w|^2 = D. */
static void performer_rows_are_orthogonal(void **state) {
    (void)state;
    enum { D = 12, H = 2, STEPS = 200 };
    Vit vit;
    double squares = 0;
    model_open(&vit, "performer", "none", check_seed());
    for (uint32_t step = 0; step < STEPS; step++) {
        trunk_draw_buffers(&vit.trunk, check_seed(), step);
        float *w = tensor(&vit, vit.model.params.values, "blocks.1.attn.feature.weight");
        for (int h = 0; h < H; h++)
            for (int i = 0; i < D; i++)
                for (int j = 0; j <= i; j++) {
                    double dot = 0, a = 0, b = 0;
                    const float *x = w + (h * D + i) * D, *y = w + (h * D + j) * D;
                    for (int d = 0; d < D; d++) {
                        dot += (double)x[d] * y[d];
                        a += (double)x[d] * x[d];
                        b += (double)y[d] * y[d];
                    }
                    if (j < i) assert_true(fabs(dot) < 1e-5 * sqrt(a * b));
                    else squares += a;
                }
        free(w);
    }
    /* chi squared with D degrees of freedom: variance 2D. */
    double rows = (double)H * D * STEPS, off = (squares / rows - D) / sqrt(2 * D / rows);
    printf("  mean |w|^2 %.3f want %d, %.2f standard errors off\n", squares / rows, D, off);
    assert_true(fabs(off) < 5);
    vit_destroy(&vit);
}

/* A step of AdamW with weight decay and nonzero gradients changes parameters but not buffers, and the moving average of
 * a buffer is the buffer. */
static void the_optimizer_leaves_buffers_alone(void **state) {
    (void)state;
    Vit vit;
    const char *names[] = {"blocks.0.attn.feature.weight", "blocks.1.attn.relative.permutation"};
    model_open(&vit, "rfa", "permute", 1);
    Params *params = &vit.model.params;
    size_t buffers = 0, gaps = params->total - params->parameters;
    for (int i = 0; i < params_count(params); i++) {
        const Param *p = params_at(params, i);
        if (p->frozen) buffers += p->size;
        assert_int_equal(p->frozen, strstr(p->name, "feature.weight") || strstr(p->name, "permutation"));
        assert_int_equal(p->frozen, p->grad == NULL);
    }
    assert_int_equal(buffers, 2 * (2 * 12 * 12 + 2 * 24));
    assert_true(gaps >= buffers && gaps < buffers + 16 * (size_t)params_count(params));
    params_allocate_optimizer(params, true);
    float *ones = malloc(params->total * sizeof *ones);
    for (size_t i = 0; i < params->total; i++) ones[i] = 1;
    device_upload(params->grads, ones, params->total * sizeof *ones);
    device_upload(params->ema, ones, params->total * sizeof *ones);
    float *before[2], *bias = tensor(&vit, params->values, "head.bias");
    for (int i = 0; i < 2; i++) before[i] = tensor(&vit, params->values, names[i]);
    AdamWSettings adamw = {.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.1f, .ema_decay = 0.99f};
    adamw_start(&adamw, params, 0.1f, 1);
    for (int i = 0; i < 2; i++) {
        float *after = tensor(&vit, params->values, names[i]), *average = tensor(&vit, params->ema, names[i]);
        assert_memory_equal(after, before[i], size_of(&vit, names[i]) * sizeof *after);
        assert_memory_equal(average, before[i], size_of(&vit, names[i]) * sizeof *after);
        free(after);
        free(average);
        free(before[i]);
    }
    float *moved = tensor(&vit, params->values, "head.bias");
    assert_true(fabsf(moved[0] - bias[0]) > 0.05f);
    free(moved);
    free(bias);
    free(ones);
    vit_destroy(&vit);
}

/* The initial values of the positional codes; the permutation of each head is one. */
static void initial_values(void **state) {
    (void)state;
    Vit vit;
    enum { H = 2, D = 12, K = 12, TAPS = 200 };
    double sum = 0, norms = 0;
    model_open(&vit, "mlp", "sincspe", check_seed());
    float *freqs = tensor(&vit, vit.model.params.values, "blocks.0.attn.relative.freqs");
    float *gains = tensor(&vit, vit.model.params.values, "blocks.0.attn.relative.gains");
    for (int i = 0; i < H * D; i++) {
        double squares = 0;
        for (int k = 0; k < K; k++) {
            sum += freqs[i * K + k];
            squares += (double)gains[i * K + k] * gains[i * K + k];
        }
        norms += squares / 4; /* squares / 4 is that of twelve normal numbers */
    }
    printf("  freqs: mean %.3f; gains: mean norm of a row before %.3f\n", sum / (H * D * K), norms / (H * D));
    assert_true(fabs(sum / (H * D * K) + 4) < 5 / sqrt(H * D * K));
    assert_true(fabs(norms / (H * D) - sqrt(K - 0.5)) < 5 * 0.71 / sqrt(H * D));
    vit_destroy(&vit);
    free(freqs);
    free(gains);

    model_open(&vit, "mlp", "convspe", check_seed());
    float *taps = tensor(&vit, vit.model.params.values, "blocks.1.attn.relative.conv_k");
    double highest = 0, mean = 0;
    for (int i = 0; i < H * D * TAPS; i++) {
        assert_true(taps[i] >= 0 && taps[i] < 0.1f); /* 1 / sqrt(200 / 2) */
        highest = fmax(highest, taps[i]);
        mean += taps[i] / (H * D * TAPS);
    }
    assert_true(highest > 0.099 && fabs(mean - 0.05) < 5 * 0.0289 / sqrt(H * D * TAPS));
    vit_destroy(&vit);
    free(taps);

    model_open(&vit, "dpfp", "permute", check_seed());
    float *permutation = tensor(&vit, vit.model.params.values, "blocks.0.attn.relative.permutation");
    size_t fixed = 0;
    for (int h = 0; h < H; h++) {
        int seen[2 * D] = {0};
        for (int f = 0; f < 2 * D; f++) {
            int to = (int)permutation[h * 2 * D + f];
            assert_true(to >= 0 && to < 2 * D && (float)to == permutation[h * 2 * D + f] && !seen[to]++);
            fixed += to == f;
        }
    }
    assert_true(fixed < 12);
    assert_memory_not_equal(permutation, permutation + 2 * D, 2 * D * sizeof *permutation);
    trunk_draw_buffers(&vit.trunk, 7, 3); /* the permutation depends on the weights' seed, not on the step */
    float *still = tensor(&vit, vit.model.params.values, "blocks.0.attn.relative.permutation");
    assert_memory_equal(still, permutation, H * 2 * D * sizeof *still);
    vit_destroy(&vit);
    free(still);
    free(permutation);
}

/* mlp-no-fc is another name of t2r. */
static void an_alias(void **state) {
    (void)state;
    const FeatureMapKind *a = NULL, *b = NULL;
    for (int i = 0; feature_maps[i]; i++) {
        if (!strcmp(feature_maps[i]->name, "mlp-no-fc")) a = feature_maps[i];
        if (!strcmp(feature_maps[i]->name, "t2r")) b = feature_maps[i];
    }
    assert_true(a && b);
    assert_true(a != b && a->declare == b->declare && a->forward == b->forward && a->backward == b->backward);
    assert_non_null(strstr(a->summary, "t2r"));
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_are_functions_of_seed_step_and_block),
        cmocka_unit_test(draws_share_nothing),
        cmocka_unit_test(performer_rows_are_orthogonal),
        cmocka_unit_test(the_optimizer_leaves_buffers_alone),
        cmocka_unit_test(initial_values),
        cmocka_unit_test(an_alias),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
