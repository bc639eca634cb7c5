/* Training, RandomResizedCrop of a picture [Hi,Wi] (torchvision, timm's transforms.py):
 *   area = Hi Wi U(area),  ratio = exp(U(log ratio)),  w = round(sqrt(area ratio)),  h = round(sqrt(area / ratio))
 *   the first of ten draws with w <= Wi and h <= Hi, at a uniform place
 * or, with short_side_max: short side to round(1 / U(1/max, 1/min)), long side to floor(S long / short), crop of the
 * output's size at a uniform place (SlowFast and MViT for Something-Something).
 * Evaluation: short side to S, long side to floor(S long / short), centre crop from round((long - size) / 2); crop k of
 * K along the longer side from ceil(k (long - size) / (K - 1)), in SlowFast K = 3.
 *
 * A JPEG is decoded at m/8 of its size, m the smallest of 1, 2, 4, 8 for which the crop is not smaller than its result,
 * and only in the region of the crop, which is then a box with fractional coordinates in the smaller picture. */
#include "data/images/transform.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "data/images/image.h"
#include "data/images/jpeg.h"

/* == Settings ===================================================================================================== */

#define F(KIND, field) CONFIG_FIELD(KIND, TransformSettings, field)
static const ConfigEntry entries[] = {
    {F(FLOAT, crop_area_min), "0.08", .section = "data", .min = 1e-4, .max = 1,
     .help = "Smallest area of a random resized crop, as a share of the image's; used only if the images of the data "
             "set do not have the size of the model"},
    {F(FLOAT, crop_area_max), "1", .min = 1e-4, .max = 1,
     .help = "Largest area of a random resized crop, as a share of the image's"},
    {F(FLOAT, crop_ratio_min), "0.75", .min = 0.01, .max = 100,
     .help = "Smallest ratio of width to height of a random resized crop"},
    {F(FLOAT, crop_ratio_max), "1.3333334", .min = 0.01, .max = 100,
     .help = "Largest ratio of width to height of a random resized crop"},
    {F(INT, short_side_min), "0", .min = 0, .max = 16384,
     .help = "In place of random resized crops: the smallest short side to which training images are resized before a "
             "crop of img_size is cut out at random (0: short_side_max)"},
    {F(INT, short_side_max), "0", .min = 0, .max = 16384,
     .help = "The largest short side to which training images are resized; 1 / side is uniformly distributed, as in "
             "SlowFast's and MViT's recipes for Something-Something (0: random resized crops)"},
    {F(INT, eval_resize), "0", .min = 0, .max = 16384,
     .help = "Short side to which test images are resized before the centre crop (0: 256/224 of img_size)"},
    {F(CHOICE, interpolation), "bicubic",
     CONFIG_CHOICES([RESAMPLE_BICUBIC] = "bicubic", [RESAMPLE_BILINEAR] = "bilinear"),
     .help = "Filter for resizing images, with the same results as Pillow's"},
    {F(BOOL, exact_decode), "false",
     .help = "Decode JPEGs at full size, as Pillow does; false: at 1/2, 1/4 or 1/8 of the size where that is enough, "
             "which is faster"},
};
#undef F

static void check(const Config *config, const void *settings) {
    const TransformSettings *s = settings;
    if (s->crop_area_min > s->crop_area_max)
        config_reject(config, "crop_area_min", "{crop_area_min} is more than {crop_area_max}");
    if (s->crop_ratio_min > s->crop_ratio_max)
        config_reject(config, "crop_ratio_min", "{crop_ratio_min} is more than {crop_ratio_max}");
    if (s->short_side_min > s->short_side_max)
        config_reject(config, "short_side_min", "{short_side_min} is more than {short_side_max}");
}

const ConfigGroup transform_settings = {CONFIG_GROUP(TransformSettings, entries),
                                        .change = CHANGE_FREELY, .check = check};

void transform_check(const Config *config, const TransformSettings *s, int height, int width) {
    enum { MOST = INT_MAX / IMAGE_MAX_SIDE }; /* the sides of a long picture stay integers when it is resized */
    int shorter = height < width ? height : width, longer = height < width ? width : height;
    if (s->eval_resize && s->eval_resize < shorter)
        config_reject(config, "eval_resize", "{eval_resize} is less than {img_size}");
    if ((int64_t)s->eval_resize * longer / shorter > MOST)
        config_reject(config, "eval_resize",
                      "{eval_resize} of the shorter side makes the longer one more than %d pixels: use less", MOST);
    int least = s->short_side_min ? s->short_side_min : s->short_side_max;
    const char *name = s->short_side_min ? "short_side_min" : "short_side_max";
    if (least && (least < height || least < width))
        config_reject(config, name, "{%s} is less than {img_size}", name);
}

/* == Draws ======================================================================================================== */

static double between(double low, double high, double u) { return low + (high - low) * u; }

static Crop centre_crop(int height, int width, double low, double high) {
    Crop crop = {.height = height, .width = width};
    double ratio = (double)width / height;
    if (ratio < low) crop.height = (int)lrint(width / low);
    if (ratio > high) crop.width = (int)lrint(height * high);
    crop.height = crop.height < 1 ? 1 : crop.height > height ? height : crop.height;
    crop.width = crop.width < 1 ? 1 : crop.width > width ? width : crop.width;
    crop.top = (height - crop.height) / 2;
    crop.left = (width - crop.width) / 2;
    return crop;
}

Crop transform_crop(const Transform *t, TransformKey key, int height, int width) {
    const TransformSettings *s = &t->s;
    bool set = s->crop_area_max > 0, ratio_set = s->crop_ratio_max > 0;
    double area[2] = {set ? (double)s->crop_area_min : 0.08, set ? (double)s->crop_area_max : 1.0};
    double ratio[2] = {ratio_set ? (double)s->crop_ratio_min : 3.0 / 4,
                       ratio_set ? (double)s->crop_ratio_max : 4.0 / 3};
    for (uint64_t attempt = 0; attempt < 40; attempt += 4) {
        double u = (double)rng_uniform(key.seed, RNG_CROP, key.epoch, key.draw, attempt);
        double v = (double)rng_uniform(key.seed, RNG_CROP, key.epoch, key.draw, attempt + 1);
        double pixels = (double)height * width * between(area[0], area[1], u);
        double aspect = exp(between(log(ratio[0]), log(ratio[1]), v));
        Crop crop = {.height = (int)lrint(sqrt(pixels / aspect)), .width = (int)lrint(sqrt(pixels * aspect))};
        if (crop.height < 1 || crop.width < 1 || crop.height > height || crop.width > width) continue;
        uint32_t tops = (uint32_t)(height - crop.height) + 1, lefts = (uint32_t)(width - crop.width) + 1;
        crop.top = (int)rng_below(key.seed, RNG_CROP, key.epoch, key.draw, attempt + 2, tops);
        crop.left = (int)rng_below(key.seed, RNG_CROP, key.epoch, key.draw, attempt + 3, lefts);
        return crop;
    }
    return centre_crop(height, width, ratio[0], ratio[1]);
}

/* The size that covers (S,S); for models that are not square, the model's size scaled so that its shorter side is S. */
Crop transform_centre(const Transform *t, int height, int width, int *resized_height, int *resized_width) {
    int shorter = t->height < t->width ? t->height : t->width;
    int64_t resize = t->s.eval_resize;
    int64_t h = resize ? resize * t->height / shorter : (int64_t)t->height * 256 / 224;
    int64_t w = resize ? resize * t->width / shorter : (int64_t)t->width * 256 / 224;
    bool by_width = width * h <= height * w;
    *resized_height = (int)(by_width ? w * height / width : h);
    *resized_width = (int)(by_width ? w : h * width / height);
    return (Crop){.top = (int)lrint((*resized_height - t->height) / 2.0),
                  .left = (int)lrint((*resized_width - t->width) / 2.0), .height = t->height, .width = t->width};
}

bool transform_mirrors(const Transform *t, TransformKey key) {
    return t->augment.s.flip && rng_bits(key.seed, RNG_FLIP, key.epoch, key.draw, 0) >> 31;
}

/* Moves the centre crop to its position among several crops. */
static void move_crop(Crop *crop, const Transform *t, int height, int width) {
    bool across = width - crop->width >= height - crop->height;
    int spare = across ? width - crop->width : height - crop->height, gaps = t->crops - 1;
    if (gaps > 0) *(across ? &crop->left : &crop->top) = (t->crop * spare + gaps - 1) / gaps;
}

/* == One axis ===================================================================================================== */

/* Resizes [begin, begin + length) to `out` samples; *origin is the first sample needed at m/8 of the size. */
static ResampleAxis axis_of_crop(int begin, int length, int out, int m, int *origin) {
    double start = begin * (double)m / 8;
    *origin = (int)start;
    return (ResampleAxis){.in = jpeg_scaled(begin + length, m) - *origin, .start = start - *origin,
                          .length = length * (double)m / 8, .out = out, .count = out};
}

/* Resizes all n samples to `resized`, of which `count` are kept. */
static ResampleAxis axis_of_centre(int n, int resized, int first, int count, int m) {
    return (ResampleAxis){
        .in = jpeg_scaled(n, m), .length = n * (double)m / 8, .out = resized, .first = first, .count = count};
}

typedef struct {
    ResampleAxis rows, columns;
    int top, left; /* where the axes begin in the picture at m/8 of its size */
    int m;
} CropPlan;

static CropPlan plan_training(const Transform *t, TransformKey key, int height, int width, bool scaled) {
    Crop crop = transform_crop(t, key, height, width);
    CropPlan plan = {.m = scaled ? jpeg_eighths(crop.height, crop.width, t->height, t->width) : 8};
    plan.rows = axis_of_crop(crop.top, crop.height, t->height, plan.m, &plan.top);
    plan.columns = axis_of_crop(crop.left, crop.width, t->width, plan.m, &plan.left);
    plan.columns.mirror = transform_mirrors(t, key);
    return plan;
}

static int drawn_below(TransformKey key, uint64_t element, int n) {
    return (int)rng_below(key.seed, RNG_CROP, key.epoch, key.draw, element, (uint32_t)n);
}

static CropPlan plan_short_side(const Transform *t, TransformKey key, int height, int width, bool scaled) {
    const TransformSettings *s = &t->s;
    double largest = s->short_side_max, least = s->short_side_min ? s->short_side_min : largest;
    double u = (double)rng_uniform(key.seed, RNG_CROP, key.epoch, key.draw, 0);
    int64_t side = lrint(1 / between(1 / largest, 1 / least, u));
    int h = (int)(height <= width ? side : side * height / width);
    int w = (int)(width <= height ? side : side * width / height);
    CropPlan plan = {.m = scaled ? jpeg_eighths(height, width, h, w) : 8};
    plan.rows = axis_of_centre(height, h, drawn_below(key, 1, h - t->height + 1), t->height, plan.m);
    plan.columns = axis_of_centre(width, w, drawn_below(key, 2, w - t->width + 1), t->width, plan.m);
    plan.columns.mirror = transform_mirrors(t, key);
    return plan;
}

static CropPlan plan_evaluation(const Transform *t, int height, int width, bool scaled) {
    int h, w;
    Crop crop = transform_centre(t, height, width, &h, &w);
    move_crop(&crop, t, h, w);
    CropPlan plan = {.m = scaled ? jpeg_eighths(height, width, h, w) : 8};
    plan.rows = axis_of_centre(height, h, crop.top, t->height, plan.m);
    plan.columns = axis_of_centre(width, w, crop.left, t->width, plan.m);
    return plan;
}

/* == A sample ===================================================================================================== */

/* An opened picture: its size, and its pixels unless it is a JPEG, which is decoded later. */
typedef struct {
    int height, width;
    ImagePart part;
    Image decoded;
} OpenPicture;

static bool picture_open(OpenPicture *picture, TransformScratch *scratch, const Sample *sample, Error *error) {
    *picture = (OpenPicture){.height = sample->height, .width = sample->width};
    const uint8_t *pixels = sample->bytes;
    if (!sample->height) {
        if (jpeg_is(sample->bytes, sample->size)) {
            if (!scratch->jpeg && !(scratch->jpeg = jpeg_open()))
                return refuse_memory(error, 0, "a JPEG decoder");
            return jpeg_begin(scratch->jpeg, sample->bytes, sample->size, JPEG_MAX_PIXELS, &picture->height,
                              &picture->width, error);
        }
        if (!image_decode(&picture->decoded, sample->bytes, sample->size, IMAGE_MAX_PIXELS, error)) return false;
        picture->height = picture->decoded.height;
        picture->width = picture->decoded.width;
        pixels = picture->decoded.pixels;
    }
    picture->part = (ImagePart){.pixels = pixels, .stride = (size_t)picture->width * 3, .height = picture->height,
                                .width = picture->width};
    return true;
}

/* Decodes the part of a JPEG that the plan needs. */
static bool picture_decode(OpenPicture *picture, TransformScratch *scratch, const CropPlan *plan, ResampleFilter filter,
                           Error *error) {
    int rows[2], columns[2];
    resample_range(&plan->rows, filter, rows);
    resample_range(&plan->columns, filter, columns);
    for (int end = 0; end < 2; end++) {
        rows[end] += plan->top;
        columns[end] += plan->left;
    }
    return jpeg_region(scratch->jpeg, plan->m, rows, columns, &picture->part, error);
}

static bool resized_crop(TransformScratch *scratch, uint8_t *out, const Sample *sample, const Transform *t,
                         TransformKey key, Error *error) {
    OpenPicture picture;
    if (!picture_open(&picture, scratch, sample, error)) return false;
    bool jpeg = !picture.part.pixels, scaled = jpeg && !t->s.exact_decode && jpeg_scales(scratch->jpeg);
    int height = picture.height, width = picture.width;
    CropPlan plan = !t->train              ? plan_evaluation(t, height, width, scaled)
                : t->s.short_side_max ? plan_short_side(t, key, height, width, scaled)
                                      : plan_training(t, key, height, width, scaled);
    bool ok = !jpeg || picture_decode(&picture, scratch, &plan, t->s.interpolation, error);
    picture.part.top -= plan.top;
    picture.part.left -= plan.left;
    if (ok && !resample(&scratch->resampler, out, &picture.part, &plan.rows, &plan.columns, t->s.interpolation))
        ok = refuse_memory(error, 0, "resizing a picture");
    if (picture.decoded.pixels) image_free(&picture.decoded);
    return ok;
}

/* Crop, mirror and changes of pixels for a sample that has the model's size already. */
static void ready_sample(TransformScratch *scratch, uint8_t *out, const uint8_t *in, const Transform *t,
                         const AugmentDraw *draw) {
    size_t bytes = (size_t)t->height * (size_t)t->width * 3, room = pillow_scratch(t->height, t->width);
    bool moves = t->train && (t->augment.s.crop_padding || t->augment.s.flip);
    if (t->train && augment_begins_with_pixels(&t->augment)) {
        uint8_t *changed = moves ? scratch->pixels.bytes + room : out;
        memcpy(changed, in, bytes);
        augment_pixels(changed, scratch->pixels.bytes, t->height, t->width, draw);
        in = changed;
    }
    if (moves) augment_apply(out, in, t->height, t->width, *draw);
    else if (in != out) memcpy(out, in, bytes);
}

bool transform_sample(TransformScratch *scratch, uint8_t *out, const Sample *sample, bool fixed,
                      const Transform *t, TransformKey key, Error *error) {
    bool ready = fixed && sample->height == t->height && sample->width == t->width;
    bool changes = t->train && augment_has_pixels(&t->augment);
    size_t room = pillow_scratch(t->height, t->width) + (size_t)t->height * (size_t)t->width * 3;
    AugmentDraw draw = augment_draw(t->augment, key.seed, key.epoch, key.draw);
    if (!ready && !resized_crop(scratch, out, sample, t, key, error)) return false;
    if (changes && !sample_buffer_grow(&scratch->pixels, room)) return refuse_memory(error, room, "augmentation");
    if (ready) ready_sample(scratch, out, sample->bytes, t, &draw);
    if (changes && !(ready && augment_begins_with_pixels(&t->augment)))
        augment_pixels(out, scratch->pixels.bytes, t->height, t->width, &draw);
    return true;
}

void transform_scratch_free(TransformScratch *scratch) {
    jpeg_close(scratch->jpeg);
    resampler_free(&scratch->resampler);
    free(scratch->bytes.bytes);
    free(scratch->pixels.bytes);
    free(scratch->crop.bytes);
    free(scratch->labels.bytes);
    *scratch = (TransformScratch){0};
}
