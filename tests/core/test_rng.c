/* Philox against its authors' test vectors, and the distributions computed from it against their moments. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/rng.h"
#include "tests/check.h"

/* Random123's kat_vectors, philox 4x32, 10 rounds. */
static void philox_known_answers(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], answer[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        RngBlock block = rng_philox(known[i].counter, (uint64_t)known[i].key[1] << 32 | known[i].key[0]);
        assert_memory_equal(block.word, known[i].answer, sizeof block.word);
    }
}

/* Element i is word i mod 4 of block i / 4, on both sides of the 32-bit boundary of the block number. */
static void elements_are_words_of_blocks(void **state) {
    (void)state;
    static const uint64_t at[] = {0, 5, 4095, ((uint64_t)1 << 34) - 1, ((uint64_t)1 << 34) + 2};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        uint64_t block = at[i] / 4;
        uint32_t counter[4] = {(uint32_t)block, 7, 9, RNG_TEST | (uint32_t)(block >> 32) << 8};
        assert_int_equal(rng_bits(3, RNG_TEST, 7, 9, at[i]), rng_philox(counter, 3).word[at[i] % 4]);
    }
}

/* Each of seed, purpose, a, b and i changes the bits, and so does exchanging two of them. */
static void every_argument_matters(void **state) {
    (void)state;
    uint64_t seed = check_seed();
    uint32_t bits[] = {rng_bits(seed, RNG_TEST, 1, 2, 3),     rng_bits(seed + 1, RNG_TEST, 1, 2, 3),
                       rng_bits(seed, RNG_CROP, 1, 2, 3),     rng_bits(seed, RNG_TEST, 2, 1, 3),
                       rng_bits(seed, RNG_TEST, 1, 3, 2),     rng_bits(seed, RNG_TEST, 1, 2, 4),
                       rng_bits(seed, RNG_TEST, 1, 2, 3 + 4), rng_bits(seed + (1ull << 32), RNG_TEST, 1, 2, 3)};
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
        for (size_t j = 0; j < i; j++) assert_int_not_equal(bits[i], bits[j]);
    }
}

/* The mean of n samples with standard deviation s is within 5 s / sqrt n of its expectation.  By chance this fails once
 * in 1.7 million runs. */
static void mean_is(const char *what, double sum, size_t n, double expected, double deviation) {
    double off = (sum / (double)n - expected) / (deviation / sqrt((double)n));
    printf("  %-40s mean %.6f want %.6f, %.2f standard errors off\n", what, sum / (double)n, expected, off);
    assert_true(fabs(off) < 5);
}

enum { DRAWS = 1 << 20 };

static void uniform_moments(void **state) {
    (void)state;
    uint64_t seed = check_seed();
    double first = 0, second = 0, neighbours = 0, previous = 0.5;
    size_t bins[16] = {0};
    for (size_t i = 0; i < DRAWS; i++) {
        double u = rng_uniform(seed, RNG_TEST, 11, 0, i);
        assert_true(u >= 0 && u < 1);
        first += u;
        second += u * u;
        neighbours += (u - 0.5) * (previous - 0.5);
        previous = u;
        bins[(size_t)(u * 16)]++;
    }
    mean_is("uniform: u", first, DRAWS, 1.0 / 2, sqrt(1.0 / 12));
    mean_is("uniform: u^2", second, DRAWS, 1.0 / 3, sqrt(1.0 / 5 - 1.0 / 9));
    mean_is("uniform: neighbours' covariance", neighbours, DRAWS, 0, 1.0 / 12);
    for (int b = 0; b < 16; b++) mean_is("uniform: share of a sixteenth", (double)bins[b], DRAWS, 1.0 / 16, 0.2421);
}

static void normal_moments(void **state) {
    (void)state;
    uint64_t seed = check_seed();
    double sum[5] = {0};
    for (size_t i = 0; i < DRAWS; i++) {
        double x = rng_normal(seed, RNG_TEST, 12, 0, i), power = 1;
        assert_true(isfinite(x));
        for (int k = 1; k <= 4; k++) sum[k] += power *= x;
    }
    mean_is("normal: x", sum[1], DRAWS, 0, 1);
    mean_is("normal: x^2", sum[2], DRAWS, 1, sqrt(2));
    mean_is("normal: x^3", sum[3], DRAWS, 0, sqrt(15));
    mean_is("normal: x^4", sum[4], DRAWS, 3, sqrt(96));
}

static void exact_normals_are_normal(void **state) {
    (void)state;
    uint64_t seed = check_seed();
    double sum[5] = {0}, worst = 0;
    for (size_t i = 0; i < DRAWS; i++) {
        double x = rng_normal_exact(seed, RNG_TEST, 14, 0, i), power = 1;
        uint32_t u = rng_bits(seed, RNG_TEST, 14, 0, 2 * i) >> 8 | 1,
                 v = rng_bits(seed, RNG_TEST, 14, 0, 2 * i + 1) >> 8;
        double want = sqrt(-2 * log(u / 16777216.0)) * cos(2 * M_PI * v / 16777216.0);
        worst = fmax(worst, fabs(x - want));
        for (int k = 1; k <= 4; k++) sum[k] += power *= x;
    }
    printf("  exact normal against the library: at most %.2g apart\n", worst);
    assert_true(worst < 1e-6);
    mean_is("exact normal: x", sum[1], DRAWS, 0, 1);
    mean_is("exact normal: x^2", sum[2], DRAWS, 1, sqrt(2));
    mean_is("exact normal: x^3", sum[3], DRAWS, 0, sqrt(15));
    mean_is("exact normal: x^4", sum[4], DRAWS, 3, sqrt(96));
    uint32_t sum_of_bits = 0; /* the same on every machine */
    for (uint64_t i = 0; i < 4096; i++) {
        float x = rng_normal_exact(1, RNG_TEST, 2, 3, i);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        sum_of_bits = sum_of_bits * 31 + bits;
    }
    assert_int_equal(sum_of_bits, 0x259cd520);
}

static void below_is_uniform(void **state) {
    (void)state;
    uint64_t seed = check_seed();
    size_t seen[7] = {0};
    for (size_t i = 0; i < DRAWS; i++) {
        uint32_t k = rng_below(seed, RNG_TEST, 13, 0, i, 7);
        assert_true(k < 7);
        seen[k]++;
    }
    for (int k = 0; k < 7; k++) mean_is("below 7: share of one", (double)seen[k], DRAWS, 1.0 / 7, sqrt(6.0) / 7);
    assert_int_equal(rng_below(seed, RNG_TEST, 13, 0, 0, 1), 0);
}

/* Generating many normal numbers at once gives the same numbers as one at a time. */
static void normals_in_bulk(void **state) {
    (void)state;
    static const size_t counts[] = {0, 1, 2, 63, 64, 65, 1001};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        float x[1002];
        for (size_t i = 0; i < 1002; i++) x[i] = -77;
        rng_normals(x, counts[c], check_seed(), RNG_FEATURES, 5, 11);
        for (size_t i = 0; i < counts[c]; i++) {
            float alone = rng_normal_exact(check_seed(), RNG_FEATURES, 5, 11, i);
            assert_memory_equal(&x[i], &alone, sizeof alone);
        }
        assert_true(x[counts[c]] == -77);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers), cmocka_unit_test(elements_are_words_of_blocks),
        cmocka_unit_test(every_argument_matters), cmocka_unit_test(uniform_moments),
        cmocka_unit_test(normal_moments),       cmocka_unit_test(exact_normals_are_normal),
        cmocka_unit_test(below_is_uniform),
        cmocka_unit_test(normals_in_bulk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
