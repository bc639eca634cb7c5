#include "data/loading/sampler.h"

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(BOOL, SamplerSettings, repeated_aug), "false", .section = "augmentation",
     .help = "Repeated augmentation: each epoch has a third of the images, each three times with other augmentations"},
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
