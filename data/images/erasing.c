#include "data/images/erasing.h"

#include <math.h>
#include <string.h>

#include "core/rng.h"

#define F(KIND, field) CONFIG_FIELD(KIND, ErasingSettings, field)
static const ConfigEntry entries[] = {
    {F(FLOAT, reprob), "0", .section = "augmentation", .min = 0, .max = 1,
     .help = "Probability that random erasing overwrites a box of a training image"},
    {F(CHOICE, remode), "pixel",
     CONFIG_CHOICES([NOISE_CONST] = "const", [NOISE_RAND] = "rand", [NOISE_PIXEL] = "pixel"),
     .help = "Contents of erased boxes: zeros, one random colour per box, or a random colour per pixel"},
};
#undef F
const ConfigGroup erasing_settings = {CONFIG_GROUP(ErasingSettings, entries), .change = CHANGE_FREELY};

bool erasing_draw(int box[4], float probability, uint64_t seed, uint32_t epoch, uint32_t draw, int height, int width) {
    enum { TRIES = 10 };
    double least = 0.02, most = 1.0 / 3, log_aspect = log(0.3);
    memset(box, 0, 4 * sizeof *box);
    if (rng_uniform(seed, RNG_ERASING, epoch, draw, 0) >= probability) return false;
    for (uint64_t first = 4; first <= 4 * TRIES; first += 4) {
        double u = (double)rng_uniform(seed, RNG_ERASING, epoch, draw, first);
        double v = (double)rng_uniform(seed, RNG_ERASING, epoch, draw, first + 1);
        double area = (least + (most - least) * u) * height * width, aspect = exp(log_aspect * (1 - 2 * v));
        int h = (int)rint(sqrt(area * aspect)), w = (int)rint(sqrt(area / aspect));
        if (h >= height || w >= width) continue;
        if (h == 0 || w == 0) return false;
        box[0] = (int)rng_below(seed, RNG_ERASING, epoch, draw, first + 2, (uint32_t)(height - h + 1));
        box[1] = (int)rng_below(seed, RNG_ERASING, epoch, draw, first + 3, (uint32_t)(width - w + 1));
        box[2] = box[0] + h;
        box[3] = box[1] + w;
        return true;
    }
    return false;
}
