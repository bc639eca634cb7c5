/* Schedules against published figures and the formulas written out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "training/schedule.h"

static void is_close(float got, double want) {
    if (!(fabs((double)got - want) <= 2e-7 * want)) fail_msg("%.9g instead of %.9g", (double)got, want);
}

static void the_rate_falls_after_its_epochs(void **state) {
    (void)state;
    const DenseScheduleSettings s = {.lr = 1e-4f, .lr_warmup = 0.001f, .warmup_steps = 500, .lr_decay = DECAY_DROPS,
                                     .lr_drops = {.count = 2, .at = {8, 11}}};
    const uint64_t epoch = 7330;
    is_close(dense_lr(&s, 8 * epoch - 1, 12 * epoch, 7), 1e-4);
    is_close(dense_lr(&s, 8 * epoch, 12 * epoch, 8), 1e-5);
    is_close(dense_lr(&s, 11 * epoch - 1, 12 * epoch, 10), 1e-5);
    is_close(dense_lr(&s, 11 * epoch, 12 * epoch, 11), 1e-6);
}

static void the_warm_up_is_linear(void **state) {
    (void)state;
    const DenseScheduleSettings s = {.lr = 1e-4f, .lr_warmup = 0.001f, .warmup_steps = 500, .lr_decay = DECAY_DROPS,
                                     .lr_drops = {.count = 1, .at = {8}}};
    is_close(dense_lr(&s, 0, 80000, 0), 1e-7);
    is_close(dense_lr(&s, 250, 80000, 0), 5.005e-5);
    is_close(dense_lr(&s, 499, 80000, 0), 1e-4 * (1 - 0.999 / 500));
    is_close(dense_lr(&s, 500, 80000, 0), 1e-4);
}

static void cosine_and_poly_have_the_published_half(void **state) {
    (void)state;
    DenseScheduleSettings s = {.lr = 1e-4f, .lr_power = 0.9f, .lr_decay = DECAY_POLY};
    is_close(dense_lr(&s, 40000, 80000, 0), 5.35886731e-5);
    is_close(dense_lr(&s, 0, 80000, 0), 1e-4);
    is_close(dense_lr(&s, 79999, 80000, 0), 1e-4 * pow(1 / 80000.0, (double)0.9f));
    assert_true(dense_lr(&s, 80001, 80000, 0) == 0);
    s.lr_decay = DECAY_COSINE;
    is_close(dense_lr(&s, 40000, 80000, 0), 5e-5);
    is_close(dense_lr(&s, 20000, 80000, 0), 1e-4 * (1 + sqrt(0.5)) / 2);
    s.warmup_steps = 1000; /* as in UniFormer, the warm-up does not delay the cosine */
    s.lr_warmup = 0.1f;
    is_close(dense_lr(&s, 500, 80000, 0), 1e-4 * 0.55 * (1 + cos(acos(-1) * 500 / 80000)) / 2);
}

/* Compact Transformers, 200 epochs: lr / (5 - e) before epoch 5, then half a cosine over the remaining 195 epochs. */
static void the_warm_up_of_compact_transformers(void **state) {
    (void)state;
    const CosineSettings s = {.lr = 5e-4f, .warmup_epochs = 5, .warmup_curve = WARMUP_RECIPROCAL,
                              .cosine_from = COSINE_FROM_WARMUP};
    for (int e = 0; e < 200; e++) {
        double want = e < 5 ? 5e-4 / (5 - e) : 2.5e-4 * (1 + cos(acos(-1) * (e - 5) / 195));
        is_close(cosine_lr(&s, s.lr, 200, e), want);
        is_close(cosine_lr(&s, s.lr, 200, e + 0.75), want); /* constant within an epoch */
    }
    assert_true(cosine_lr(&s, s.lr, 200, 200) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rate_falls_after_its_epochs),
        cmocka_unit_test(the_warm_up_is_linear),
        cmocka_unit_test(the_warm_up_of_compact_transformers),
        cmocka_unit_test(cosine_and_poly_have_the_published_half),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
