#include "data/segmentation/segmentation_augment.h"

#include <math.h>
#include <string.h>

#include "core/integers.h"
#include "core/results/segmentation.h"
#include "core/rng.h"

#define F(KIND, field) CONFIG_FIELD(KIND, SegmentationAugment, field)
static const ConfigEntry entries[] = {
    {F(INT, scale_long), "2048", .section = "augmentation", .min = 32, .max = 16384,
     .help = "Largest long side of a resized image; in training it is multiplied by a random factor from scale_min to "
             "scale_max"},
    {F(INT, scale_short), "512", .min = 32, .max = 16384,
     .help = "Largest short side of a resized image; in training it is multiplied by the same factor"},
    {F(FLOAT, scale_min), "0.5", .min = 0.05, .max = 20,
     .help = "Smallest factor of scale_long and scale_short in training"},
    {F(FLOAT, scale_max), "2", .min = 0.05, .max = 20, .help = "Largest factor of scale_long and scale_short in "
                                                               "training"},
    {F(INT, crop_size), "512", .min = 32, .max = 4096,
     .help = "Height and width of the crops of training images, a multiple of 32; smaller images are padded"},
    {F(FLOAT, crop_most), "0.75", .min = 0.01, .max = 1,
     .help = "Largest share of one class in the labelled pixels of a crop; a crop with more is drawn again, up to ten "
             "times"},
    {F(BOOL, flip), "true", .help = "Mirror half of the training images"},
    {F(BOOL, photometric), "true",
     .help = "Change brightness, contrast, saturation and hue of training images, as mmsegmentation does"},
};
#undef F

static void check(const Config *c, const void *settings) {
    const SegmentationAugment *s = settings;
    if (s->scale_short > s->scale_long)
        config_reject(c, "scale_short", "{scale_short} is more than {scale_long}");
    if (s->scale_min > s->scale_max)
        config_reject(c, "scale_min", "{scale_min} is more than {scale_max}");
    if (s->crop_size % SEGMENTATION_MULTIPLE)
        config_reject(c, "crop_size", "{crop_size} is not a multiple of %d", SEGMENTATION_MULTIPLE);
}

const ConfigGroup segmentation_augment_settings = {CONFIG_GROUP(SegmentationAugment, entries),
                                                   .change = CHANGE_FREELY, .check = check};

/* == Sizes ======================================================================================================== */

/* mmcv's rescale_size.  A side of a very thin picture would become 0. */
static void fit(SegmentationDraw *draw, int longest, int shortest) {
    int h = draw->from_height, w = draw->from_width;
    double down = (double)shortest / smaller(h, w), across = (double)longest / larger(h, w);
    double factor = down < across ? down : across;
    draw->height = draw->crop_height = larger((int)(h * factor + 0.5), 1);
    draw->width = draw->crop_width = larger((int)(w * factor + 0.5), 1);
}

static int round_up(int side) {
    return (side + SEGMENTATION_MULTIPLE - 1) / SEGMENTATION_MULTIPLE * SEGMENTATION_MULTIPLE;
}

SegmentationDraw segmentation_resize(const SegmentationAugment *augment, int height, int width) {
    SegmentationDraw draw = {.from_height = height, .from_width = width};
    fit(&draw, augment->scale_long, augment->scale_short);
    draw.out_height = round_up(draw.height);
    draw.out_width = round_up(draw.width);
    return draw;
}

/* == Draws ======================================================================================================== */

/* Elements of the sample's stream of RNG_CROP: the scale, and from PLACES on the top and left of each attempt. */
enum { SCALE, PLACES, ATTEMPTS = 11 };

typedef struct {
    uint64_t seed;
    uint32_t epoch, index;
} SegmentationKey;

static void place(SegmentationDraw *draw, uint64_t attempt, SegmentationKey k) {
    uint32_t tops = (uint32_t)(draw->height - draw->crop_height) + 1;
    uint32_t lefts = (uint32_t)(draw->width - draw->crop_width) + 1;
    draw->top = (int)rng_below(k.seed, RNG_CROP, k.epoch, k.index, PLACES + 2 * attempt, tops);
    draw->left = (int)rng_below(k.seed, RNG_CROP, k.epoch, k.index, PLACES + 2 * attempt + 1, lefts);
}

SegmentationDraw segmentation_draw(const SegmentationAugment *augment, int height, int width, uint64_t seed,
                                   uint32_t epoch, uint32_t index) {
    SegmentationDraw draw = {.from_height = height, .from_width = width};
    double least = (double)augment->scale_min, most = (double)augment->scale_max;
    double r = least + (most - least) * (double)rng_uniform(seed, RNG_CROP, epoch, index, SCALE);
    fit(&draw, (int)(augment->scale_long * r), (int)(augment->scale_short * r));
    draw.crop_height = draw.out_height = smaller(draw.height, augment->crop_size);
    draw.crop_width = draw.out_width = smaller(draw.width, augment->crop_size);
    draw.mirror = augment->flip && rng_bits(seed, RNG_FLIP, epoch, index, 0) >> 31;
    if (augment->photometric) draw.colours = photometric_draw(seed, epoch, index);
    place(&draw, 0, (SegmentationKey){seed, epoch, index});
    return draw;
}

/* == Labels ======================================================================================================= */

/* OpenCV's resizeNN, in its order of operations. */
static int nearest(int i, int out, int in) {
    double scale = 1 / ((double)out / in);
    return smaller((int)(i * scale), in - 1);
}

static void copy_labels(uint8_t *out, size_t stride, const uint8_t *labels, const SegmentationDraw *draw, int *column) {
    int w = draw->crop_width;
    for (int x = 0; x < w; x++)
        column[x] = nearest(draw->left + (draw->mirror ? w - 1 - x : x), draw->width, draw->from_width);
    for (int y = 0; y < draw->crop_height; y++) {
        int row = nearest(draw->top + y, draw->height, draw->from_height);
        const uint8_t *in = labels + (size_t)row * (size_t)draw->from_width;
        for (int x = 0; x < w; x++) out[(size_t)y * stride + (size_t)x] = in[column[x]];
    }
}

/* More than one class, and the commonest has less than the share `most` of the labelled pixels. */
static bool is_mixed(const uint8_t *labels, size_t stride, const SegmentationDraw *draw, float most) {
    enum { LANES = 4 }; /* several counters: neighbours are mostly equal, and each increment of one counter would wait
                         * for the previous one */
    uint32_t count[LANES][256] = {{0}}, total = 0, largest = 0, present = 0;
    for (int y = 0; y < draw->crop_height; y++)
        for (int x = 0; x < draw->crop_width; x++) count[x % LANES][labels[(size_t)y * stride + (size_t)x]]++;
    for (int c = 0; c < 256; c++) {
        uint32_t n = 0;
        for (int lane = 0; lane < LANES && c != SEGMENTATION_IGNORED; lane++) n += count[lane][c];
        total += n;
        present += n > 0;
        if (n > largest) largest = n;
    }
    return present > 1 && (double)largest / total < (double)most;
}

bool segmentation_crop(SegmentationDraw *draw, uint8_t *out, size_t stride, const uint8_t *labels,
                       const SegmentationAugment *augment, uint64_t seed, uint32_t epoch, uint32_t index,
                       TransformScratch *scratch) {
    if (!sample_buffer_grow(&scratch->crop, (size_t)draw->crop_width * sizeof(int))) return false;
    int *column = (int *)(void *)scratch->crop.bytes;
    for (uint64_t attempt = 0; attempt < ATTEMPTS; attempt++) {
        place(draw, attempt, (SegmentationKey){seed, epoch, index});
        copy_labels(out, stride, labels, draw, column);
        if (augment->crop_most >= 1 || is_mixed(out, stride, draw, augment->crop_most)) break;
    }
    return true;
}

/* == Pixels ======================================================================================================= */

bool segmentation_pixels(TransformScratch *scratch, uint8_t *out, size_t stride, const ImagePart *picture,
                         const SegmentationDraw *draw) {
    ImagePart in = *picture;
    ResampleAxis rows = resample_whole(in.height, draw->height), columns = resample_whole(in.width, draw->width);
    rows.first = draw->top;
    rows.count = draw->crop_height;
    columns.first = draw->left;
    columns.count = draw->crop_width;
    columns.mirror = draw->mirror;
    bool again = draw->out_height != draw->crop_height || draw->out_width != draw->crop_width;
    size_t between = (size_t)draw->crop_width * 3;
    if (again && !sample_buffer_grow(&scratch->crop, between * (size_t)draw->crop_height)) return false;
    if (!resample_strided(&scratch->resampler, again ? scratch->crop.bytes : out, again ? between : stride, &in, &rows,
                          &columns, RESAMPLE_BILINEAR))
        return false;
    if (again) {
        in = (ImagePart){scratch->crop.bytes, between, 0, 0, draw->crop_height, draw->crop_width};
        rows = resample_whole(in.height, draw->out_height);
        columns = resample_whole(in.width, draw->out_width);
        if (!resample_strided(&scratch->resampler, out, stride, &in, &rows, &columns, RESAMPLE_BILINEAR)) return false;
    }
    photometric_apply(out, stride, draw->out_height, draw->out_width, &draw->colours);
    return true;
}
