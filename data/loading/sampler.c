#include "data/loading/sampler.h"

#include <stdlib.h>

#include "core/die.h"
#include "core/rng.h"

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(BOOL, SamplerSettings, repeated_aug), "false", .section = "augmentation",
     .help = "Repeated augmentation: each epoch has a third of the images, each three times with different "
             "augmentations"},
    {CONFIG_FIELD(BOOL, SamplerSettings, balanced), "false",
     .help = "Sample all classes equally often: an epoch repeats the images of small classes, with different "
             "augmentations, and leaves out some images of large classes"},
    {CONFIG_FIELD(BOOL, SamplerSettings, drop_last), "true",
     .help = "Leave out the images at the end of an epoch that do not fill a batch; false: they make a smaller batch"},
};
const ConfigGroup sampler_settings = {CONFIG_GROUP(SamplerSettings, entries), .change = CHANGE_BETWEEN_EPOCHS};

int sampler_repeats(const SamplerSettings *s) { return s->repeated_aug ? SAMPLER_REPEATS : 1; }

size_t sampler_length(size_t count, int repeats) { return repeats > 1 && count >= 256 ? count / 256 * 256 : count; }

uint32_t sampler_draw(const uint32_t *order, size_t count, int repeats, size_t place) {
    size_t times = (size_t)(repeats > 1 ? repeats : 1);
    return (uint32_t)(order[place / times] + place % times * count);
}

/* Round `turn` of class c shuffles its images with the stream (epoch, turn * classes + c). */
void sampler_balance(uint32_t *order, const int *labels, size_t count, int classes, uint64_t seed, uint32_t epoch) {
    size_t *first = xcalloc((size_t)classes + 1, sizeof *first, "the order of an epoch");
    uint32_t *of_class = xcalloc(count, sizeof *of_class, "the order of an epoch");
    for (size_t i = 0; i < count; i++) first[labels[i] + 1]++;
    for (int c = 0; c < classes; c++) first[c + 1] += first[c];
    size_t at = 0, round = 0;
    for (size_t i = 0; i < count; i++) of_class[first[labels[i]]++] = (uint32_t)i;
    for (int c = classes; c > 0; c--) first[c] = first[c - 1];
    first[0] = 0;
    for (; at < count; round++) /* an image of every class */
        for (int c = 0; c < classes && at < count; c++) {
            size_t images = first[c + 1] - first[c];
            if (!images) continue;
            size_t turn = round / images, place = round % images;
            if (!place)
                rng_shuffle(of_class + first[c], images, 1, seed, RNG_SHUFFLE, epoch,
                            1 + (uint32_t)(turn * (size_t)classes) + (uint32_t)c);
            order[at++] = of_class[first[c] + place] + (uint32_t)(turn % (UINT32_MAX / count) * count);
        }
    rng_shuffle(order, count, 1, seed, RNG_SHUFFLE, epoch, 0);
    free(first);
    free(of_class);
}
