#include "data/images/augment.h"

#include <string.h>

#include "core/die.h"
#include "core/integers.h"
#include "core/rng.h"

#define F(KIND, field) CONFIG_FIELD(KIND, AugmentSettings, field)
static const ConfigEntry entries[] = {
    {F(INT, crop_padding), "4", .section = "data", .min = 0, .max = 64,
     .help = "Random crop after padding with this many black pixels on every side; used only if the images of the data "
             "set have the size of the model"},
    {F(BOOL, flip), "true", .help = "Mirror half of the training images"},
    {F(STRING, aa), .section = "augmentation", .argument = "POLICY",
     .help = "RandAugment policy in timm's notation, such as rand-m9-mstd0.5-inc1; or AutoAugment: autoaugment-cifar10 "
             "and autoaugment-imagenet as in torchvision, autoaugment-compact as in Compact Transformers (empty: off). "
             "RandAugment fills with ImageNet's mean colour, as in DeiT, for every data set"},
    {F(CHOICE, train_interpolation), "random",
     CONFIG_CHOICES([RANDAUGMENT_RANDOM] = "random", [RANDAUGMENT_BILINEAR] = "bilinear",
                    [RANDAUGMENT_BICUBIC] = "bicubic"),
     .help = "Interpolation of RandAugment's geometric operations"},
    {F(FLOAT, color_jitter), "0", .min = 0, .max = 10,
     .help = "Strength of random changes of brightness, contrast and saturation; ignored if aa is set (0: off)"},
};
#undef F

static bool policy_parse(Augment *augment, const char *aa, Error *error) {
    if (autoaugment_named(aa)) return autoaugment_parse(&augment->autoaugment, aa, error);
    return randaugment_parse(&augment->randaugment, aa, error);
}

static void check(const Config *config, const void *settings) {
    const AugmentSettings *s = settings;
    Augment augment = {.s = *s};
    Error error;
    if (!policy_parse(&augment, s->aa, &error)) config_reject(config, "aa", "%s", error.text);
}

const ConfigGroup augment_settings = {CONFIG_GROUP(AugmentSettings, entries), .change = CHANGE_FREELY, .check = check};

Augment augment_of(const AugmentSettings *settings) {
    Augment augment = {.s = *settings};
    Error error;
    if (!policy_parse(&augment, settings->aa, &error)) die_usage("aa: %s", error.text);
    augment.randaugment.resample = settings->train_interpolation;
    return augment;
}

AugmentDraw augment_draw(Augment augment, uint64_t seed, uint32_t epoch, uint32_t index) {
    int pad = augment.s.crop_padding;
    uint32_t places = 2 * (uint32_t)pad + 1;
    AugmentDraw draw = {.mirror = augment.s.flip && rng_bits(seed, RNG_FLIP, epoch, index, 0) >> 31};
    draw.dy = (int)rng_below(seed, RNG_CROP, epoch, index, 0, places) - pad;
    draw.dx = (int)rng_below(seed, RNG_CROP, epoch, index, 1, places) - pad;
    draw.randaugment = randaugment_draw(&augment.randaugment, seed, epoch, index);
    draw.autoaugment = autoaugment_draw(augment.autoaugment, seed, epoch, index);
    draw.jittered = augment.s.color_jitter > 0 && !augment.randaugment.layers && !augment.autoaugment;
    if (draw.jittered) draw.jitter = jitter_draw(augment.s.color_jitter, seed, epoch, index);
    return draw;
}

bool augment_has_pixels(const Augment *augment) {
    return augment->s.color_jitter > 0 || augment->randaugment.layers > 0 || augment->autoaugment;
}

bool augment_begins_with_pixels(const Augment *augment) { return augment->autoaugment == AUTOAUGMENT_COMPACT; }

void augment_mirror(uint8_t *pixels, int height, int width) {
    for (int y = 0; y < height; y++, pixels += width * 3) {
        for (uint8_t *a = pixels, *b = pixels + (width - 1) * 3; a < b; a += 3, b -= 3) {
            for (int c = 0; c < 3; c++) {
                uint8_t swap = a[c];
                a[c] = b[c];
                b[c] = swap;
            }
        }
    }
}

void augment_apply(uint8_t *out, const uint8_t *in, int height, int width, AugmentDraw draw) {
    int first = clamp(-draw.dx, 0, width), last = clamp(width - draw.dx, 0, width); /* columns covered by the image */
    for (int y = 0; y < height; y++, out += width * 3) {
        int from = y + draw.dy;
        if (from < 0 || from >= height || first >= last) {
            memset(out, 0, (size_t)width * 3);
            continue;
        }
        memset(out, 0, (size_t)first * 3);
        memcpy(out + first * 3, in + ((size_t)from * (size_t)width + (size_t)(first + draw.dx)) * 3,
               (size_t)(last - first) * 3);
        memset(out + last * 3, 0, (size_t)(width - last) * 3);
        if (draw.mirror) augment_mirror(out, 1, width);
    }
}

void augment_pixels(uint8_t *pixels, uint8_t *scratch, int height, int width, const AugmentDraw *draw) {
    randaugment_apply(pixels, scratch, height, width, &draw->randaugment);
    autoaugment_apply(pixels, scratch, height, width, &draw->autoaugment);
    if (draw->jittered) jitter_apply(pixels, (size_t)height * (size_t)width, &draw->jitter);
}
