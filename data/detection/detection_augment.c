/* All rounding matches facebookresearch/detr (datasets/transforms.py, datasets/coco.py): sizes in Python's double
 * arithmetic, boxes in float, one operation at a time (-ffp-contract=off in the Makefile). */
#include "data/detection/detection_augment.h"

#include <math.h>

#include "core/integers.h"
#include "core/rng.h"

/* == Settings ===================================================================================================== */

#define F(KIND, field) CONFIG_FIELD(KIND, DetectionAugmentSettings, field)
static const ConfigEntry entries[] = {
    {F(BOOL, flip), "true", .section = "augmentation", .change = CHANGE_FREELY, .help = "Mirror half of the training images"},
    {F(BOOL, crop), "true", .help = "Resize, crop and resize again half of the training images, as DETR does"},
    {F(INT, scale_min), "480", .min = 16, .max = 8192,
     .help = "Smallest short side to which training images are resized at random"},
    {F(INT, scale_max), "800", .min = 16, .max = 8192,
     .help = "Largest short side to which training images are resized at random"},
    {F(INT, scale_step), "32", .min = 1, .max = 8192,
     .help = "Step between the sizes from scale_min to scale_max; there may be at most 16 sizes"},
    {F(INT, max_size), "1333", .min = 16, .max = 16384,
     .help = "Largest long side of a resized image; where the long side would exceed it, the image is resized to a "
             "smaller short side"},
    {F(INT, crop_scale_min), "400", .min = 16, .max = 8192,
     .help = "Smallest short side to which an image is resized before a crop"},
    {F(INT, crop_scale_max), "600", .min = 16, .max = 8192,
     .help = "Largest short side to which an image is resized before a crop"},
    {F(INT, crop_scale_step), "100", .min = 1, .max = 8192,
     .help = "Step between the sizes from crop_scale_min to crop_scale_max"},
    {F(INT, crop_min), "384", .min = 8, .max = 8192,
     .help = "Smallest height and width of a crop; a side of the image that is shorter is not cropped"},
    {F(INT, crop_max), "600", .min = 8, .max = 8192, .help = "Largest height and width of a crop"},
    {F(INT, eval_scale), "800", .min = 16, .max = 8192, .change = CHANGE_FREELY,
     .help = "Short side to which validation images are resized"},
};
#undef F

/* `prefix` is the prefix of the settings' names. */
static void check_scales(const Config *c, const char *prefix, int least, int most, int step) {
    char name[32];
    snprintf(name, sizeof name, "%s_step", prefix);
    if ((most - least) / step >= DETECTION_SCALES)
        config_reject(c, name, "{%s_step} makes more than %d sizes from {%s_min} to {%s_max}", prefix, DETECTION_SCALES,
                      prefix, prefix);
}

static void check(const Config *c, const void *settings) {
    const DetectionAugmentSettings *s = settings;
    if (s->scale_min > s->scale_max)
        config_reject(c, "scale_min", "{scale_min} is more than {scale_max}");
    if (s->scale_max > s->max_size)
        config_reject(c, "scale_max", "{scale_max} is more than {max_size}");
    if (s->eval_scale > s->max_size)
        config_reject(c, "eval_scale", "{eval_scale} is more than {max_size}");
    check_scales(c, "scale", s->scale_min, s->scale_max, s->scale_step);
    if (s->crop_scale_min > s->crop_scale_max)
        config_reject(c, "crop_scale_min", "{crop_scale_min} is more than {crop_scale_max}");
    check_scales(c, "crop_scale", s->crop_scale_min, s->crop_scale_max, s->crop_scale_step);
    if (s->crop_min > s->crop_max)
        config_reject(c, "crop_min", "{crop_min} is more than {crop_max}");
}

const ConfigGroup detection_augment_settings = {CONFIG_GROUP(DetectionAugmentSettings, entries),
                                                .change = CHANGE_BETWEEN_EPOCHS, .check = check};

static void fill_scales(int *scale, int *count, int least, int most, int step) {
    for (*count = 0; *count < DETECTION_SCALES && least <= most; least += step) scale[(*count)++] = least;
}

DetectionAugment detection_augment_of(const DetectionAugmentSettings *s, bool train) {
    DetectionAugment a = {.max_size = s->max_size, .scale = {s->eval_scale}, .scales = 1};
    if (!train) return a;
    a.flip = s->flip;
    a.crop = s->crop;
    a.crop_min = s->crop_min;
    a.crop_max = s->crop_max;
    fill_scales(a.scale, &a.scales, s->scale_min, s->scale_max, s->scale_step);
    fill_scales(a.crop_scale, &a.crop_scales, s->crop_scale_min, s->crop_scale_max, s->crop_scale_step);
    return a;
}

/* == Draws ======================================================================================================== */

/* The short side becomes `scale`, and the long one is truncated to an integer.  If the long side would exceed max_size,
 * the short side is instead max_size short / long, rounded half to even. */
static DetectionStep resized_detr(int width, int height, int scale, int max_size) {
    int small = smaller(width, height), large = width + height - small;
    if (max_size && (double)large / small * scale > max_size) {
        scale = (int)rint((double)((int64_t)max_size * small) / large);
        if (scale < 1) scale = 1; /* the long side is more than 2 max_size times the short one */
    }
    int other = small == scale ? large : (int)((int64_t)scale * large / small);
    DetectionStep step = {.width = width < height ? scale : other, .height = width < height ? other : scale};
    step.crop_width = step.width;
    step.crop_height = step.height;
    return step;
}

/* Source: mmcv, rescale_size (image/geometric.py). */
static DetectionStep resized_mmdetection(int width, int height, int scale, int max_size) {
    int small = smaller(width, height), large = width + height - small;
    double factor = (double)scale / small;
    if (max_size) factor = fmin((double)max_size / large, factor);
    DetectionStep step = {.width = larger((int)(width * factor + 0.5), 1),
                          .height = larger((int)(height * factor + 0.5), 1)};
    step.crop_width = step.width;
    step.crop_height = step.height;
    return step;
}

static DetectionStep resized(DetectionRule rule, int width, int height, int scale, int max_size) {
    return (rule == DETECTION_DETR ? resized_detr : resized_mmdetection)(width, height, scale, max_size);
}

static void add_step(DetectionDraw *draw, DetectionStep step) {
    draw->step[draw->steps++] = step;
    draw->width = step.crop_width;
    draw->height = step.crop_height;
}

/* Each draw uses its own element of the sample's random stream. */
enum { CHOICE, SCALE, CROP_SCALE, CROP_WIDTH, CROP_HEIGHT, LEFT, TOP };

typedef struct {
    uint64_t seed;
    uint32_t epoch, index;
} DetectionSample;

/* A uniform integer in low .. high, both inclusive. */
static int between(const DetectionSample *s, uint64_t element, int low, int high) {
    return low + (int)rng_below(s->seed, RNG_CROP, s->epoch, s->index, element, (uint32_t)(high - low) + 1);
}

static DetectionStep cropped(const DetectionAugment *a, const DetectionSample *s, int width, int height) {
    int scale = a->crop_scale[between(s, CROP_SCALE, 0, a->crop_scales - 1)];
    DetectionStep step = resized(a->rule, width, height, scale, 0);
    int most_width = smaller(step.width, a->crop_max), most_height = smaller(step.height, a->crop_max);
    step.crop_width = between(s, CROP_WIDTH, smaller(a->crop_min, most_width), most_width);
    step.crop_height = between(s, CROP_HEIGHT, smaller(a->crop_min, most_height), most_height);
    step.left = between(s, LEFT, 0, step.width - step.crop_width);
    step.top = between(s, TOP, 0, step.height - step.crop_height);
    return step;
}

DetectionDraw detection_draw(const DetectionAugment *augment, int width, int height, uint64_t seed, uint32_t epoch,
                             uint32_t index) {
    DetectionSample s = {seed, epoch, index};
    DetectionDraw draw = {.from_width = width, .from_height = height, .width = width, .height = height};
    draw.mirror = augment->flip && rng_bits(seed, RNG_FLIP, epoch, index, 0) >> 31;
    if (augment->crop && between(&s, CHOICE, 0, 1)) add_step(&draw, cropped(augment, &s, width, height));
    int scale = augment->scale[between(&s, SCALE, 0, augment->scales - 1)];
    add_step(&draw, resized(augment->rule, draw.width, draw.height, scale, augment->max_size));
    return draw;
}

DetectionDraw detection_resize(DetectionRule rule, int width, int height, int scale, int max_size) {
    DetectionDraw draw = {.from_width = width, .from_height = height};
    add_step(&draw, resized(rule, width, height, scale, max_size));
    return draw;
}

/* == Boxes ======================================================================================================== */

static float clip(float x, int high) {
    float most = (float)high;
    x = x > most ? most : x;
    return x < 0 ? 0 : x;
}

/* Transforms a box in a picture of width x height by one step; false if nothing is left. */
static bool step_box(float box[4], const DetectionStep *step, int width, int height, bool crops) {
    float right = (float)((double)step->width / width), down = (float)((double)step->height / height);
    for (int k = 0; k < 4; k += 2) {
        box[k] *= right;
        box[k + 1] *= down;
    }
    if (!crops) return true;
    for (int k = 0; k < 4; k += 2) {
        box[k] = clip(box[k] - (float)step->left, step->crop_width);
        box[k + 1] = clip(box[k + 1] - (float)step->top, step->crop_height);
    }
    return box[2] > box[0] && box[3] > box[1];
}

/* Transforms one box by all steps; false if a crop removed it. */
static bool move_box(float box[4], const DetectionDraw *draw) {
    int width = draw->from_width, height = draw->from_height;
    if (draw->mirror) {
        float x0 = box[0];
        box[0] = (float)width - box[2];
        box[2] = (float)width - x0;
    }
    for (int i = 0; i < draw->steps; i++) {
        if (!step_box(box, &draw->step[i], width, height, i < draw->steps - 1)) return false;
        width = draw->step[i].crop_width;
        height = draw->step[i].crop_height;
    }
    return true;
}

int detection_corners(float (*box)[4], int *label, size_t *place, int count, const DetectionDraw *draw) {
    int kept = 0;
    for (int i = 0; i < count; i++) {
        if (!move_box(box[i], draw)) continue;
        for (int k = 0; k < 4; k++) box[kept][k] = box[i][k];
        if (place) place[kept] = place[i];
        label[kept++] = label[i];
    }
    return kept;
}

void detection_relative(float (*box)[4], int count, const DetectionDraw *draw) {
    float w = (float)draw->width, h = (float)draw->height;
    for (int i = 0; i < count; i++) {
        float x0 = box[i][0], y0 = box[i][1], x1 = box[i][2], y1 = box[i][3];
        box[i][0] = (x0 + x1) / 2 / w;
        box[i][1] = (y0 + y1) / 2 / h;
        box[i][2] = (x1 - x0) / w;
        box[i][3] = (y1 - y0) / h;
    }
}

void detection_map(double scale[2], double shift[2], const DetectionDraw *draw) {
    int width = draw->from_width, height = draw->from_height;
    scale[0] = draw->mirror ? -1 : 1;
    shift[0] = draw->mirror ? width : 0;
    scale[1] = 1;
    shift[1] = 0;
    for (int i = 0; i < draw->steps; i++) {
        const DetectionStep *s = &draw->step[i];
        const double ratio[2] = {(double)s->width / width, (double)s->height / height};
        const int corner[2] = {s->left, s->top};
        for (int k = 0; k < 2; k++) {
            scale[k] *= ratio[k];
            shift[k] = shift[k] * ratio[k] - corner[k];
        }
        width = s->crop_width;
        height = s->crop_height;
    }
}
