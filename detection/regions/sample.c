#include "detection/regions/sample.h"

#include <stdbool.h>
#include <stdlib.h>

#include "core/rng.h"
#include "detection/best_keys.h"
#include "detection/regions/assign.h"

static int by_index(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* Appends the `most` candidates of one kind that have the smallest numbers. */
static int take(int *chosen, uint64_t *keys, bool positive, int most, const int *to, const uint32_t *elements, size_t n,
                const SampleDraw *d) {
    BestKeys best = {.keys = keys, .most = most};
    for (size_t i = 0; i < n; i++) {
        if (positive ? to[i] < 0 : to[i] != ASSIGN_NONE) continue;
        uint64_t element = elements ? elements[i] : i;
        uint32_t bits = rng_bits(d->seed, RNG_REGIONS, d->step, d->image << 1 | d->stage, element);
        best_keys_offer(&best, (uint64_t)~bits << 32 | (uint32_t)~i);
    }
    for (int k = 0; k < best.count; k++) chosen[k] = (int)key_index(keys[k]);
    return best.count;
}

SampleSize sample_regions(int *chosen, uint64_t *keys, const int *to, const uint32_t *elements, size_t n,
                          const SampleRule *rule, const SampleDraw *draw) {
    SampleSize size;
    size.positives = take(chosen, keys, true, rule->most_positive, to, elements, n, draw);
    size.count = size.positives;
    size.count += take(chosen + size.count, keys, false, rule->most - size.count, to, elements, n, draw);
    qsort(chosen, (size_t)size.count, sizeof *chosen, by_index);
    return size;
}
