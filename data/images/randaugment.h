/* RandAugment (Cubuk et al. 2019) as timm does it (timm/data/auto_augment.py; DeiT trains on releases 0.3 to 0.5).
 * randaugment_draw is a pure function of (seed, epoch, draw number); randaugment_apply applies its result. */
#ifndef VIT_DATA_IMAGES_RANDAUGMENT_H
#define VIT_DATA_IMAGES_RANDAUGMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/error.h"
#include "data/images/pillow.h"

/* The argument of each operation as a function of its strength m in [0,10], with t = m/10 and a random sign +-:
 * degrees, bits, threshold, factor, shear, or fraction of the side.  The increasing variants do more at higher t. */
typedef enum {
    AUGMENT_AUTO_CONTRAST,
    AUGMENT_EQUALIZE,
    AUGMENT_INVERT,
    AUGMENT_ROTATE,                /* +- 30 t */
    AUGMENT_POSTERIZE,             /* int(4 t) */
    AUGMENT_POSTERIZE_INCREASING,  /* 4 - int(4 t) */
    AUGMENT_SOLARIZE,              /* int(256 t) */
    AUGMENT_SOLARIZE_INCREASING,   /* 256 - int(256 t) */
    AUGMENT_SOLARIZE_ADD,          /* int(110 t), at most 128 */
    AUGMENT_COLOR,                 /* 0.1 + 1.8 t */
    AUGMENT_COLOR_INCREASING,      /* 1 +- 0.9 t, at least 0.1 */
    AUGMENT_CONTRAST,
    AUGMENT_CONTRAST_INCREASING,
    AUGMENT_BRIGHTNESS,
    AUGMENT_BRIGHTNESS_INCREASING,
    AUGMENT_SHARPNESS,
    AUGMENT_SHARPNESS_INCREASING,
    AUGMENT_SHEAR_X,               /* +- 0.3 t */
    AUGMENT_SHEAR_Y,
    AUGMENT_TRANSLATE_X,           /* +- 0.45 t, timm's TranslateXRel */
    AUGMENT_TRANSLATE_Y,
    AUGMENT_OPERATIONS
} AugmentOperation;

enum { RANDAUGMENT_CHOICES = 15, RANDAUGMENT_LAYERS = 16 };

typedef enum { RANDAUGMENT_RANDOM, RANDAUGMENT_BILINEAR, RANDAUGMENT_BICUBIC } RandAugmentResample;

typedef struct {
    int layers;                   /* operations drawn per image; 0: no RandAugment */
    double magnitude, most;       /* strength before noise; upper bound after it */
    double deviation;             /* standard deviation of the strength; infinite: uniform in [0, magnitude] */
    double probability;           /* that a drawn operation is applied */
    RandAugmentResample resample; /* of the geometric operations; timm's train_interpolation */
    bool weighted;                /* draw by weight and without replacement; false: uniformly and with replacement */
    AugmentOperation choices[RANDAUGMENT_CHOICES];
    double weights[RANDAUGMENT_CHOICES];
} RandAugment;

/* One operation to apply; RandAugmentDraw lists a sample's operations in order. */
typedef struct {
    AugmentOperation operation;
    double strength; /* in [0, most] */
    bool negative;
    PillowFilter filter;
} RandAugmentStep;

typedef struct {
    int count;
    RandAugmentStep steps[RANDAUGMENT_LAYERS];
} RandAugmentDraw;

/* Parses timm's string: "rand" and parts separated by dashes, in any order; defaults are in parentheses.
 *   m9        magnitude (10)             mstd0.5   deviation of m (0); above 100 or inf: uniform in [0, m]
 *   n2        operations an image (2)    mmax10    upper bound of the strength (10)
 *   p0.5      probability (0.5)          inc1      use the increasing operations (0)
 *   tweights  timm's weighted choice     w0        the one of timm 0.3 to 0.6
 * "" means no RandAugment.  On failure returns false; `error` names the part. */
bool randaugment_parse(RandAugment *ra, const char *text, Error *error);

RandAugmentDraw randaugment_draw(const RandAugment *ra, uint64_t seed, uint32_t epoch, uint32_t draw);

/* Applies an operation with its argument, as the comments of AugmentOperation name it, to pixels [height,width,3] in
 * place; geometric operations fill with `fill`.  scratch has pillow_scratch(height, width) bytes. */
void augment_operation(uint8_t *pixels, uint8_t *scratch, int height, int width, AugmentOperation operation,
                       double argument, PillowFilter filter, const uint8_t fill[3]);

/* The argument of the step's operation, by the formulas above; 0 if it takes none. */
double randaugment_argument(const RandAugmentStep *step);

/* Changes pixels [height,width,3] in place; scratch has pillow_scratch(height, width) bytes.  Geometric operations fill
 * with ImageNet's mean colour, 124 116 104, for every data set, as DeiT does. */
void randaugment_apply(uint8_t *pixels, uint8_t *scratch, int height, int width, const RandAugmentDraw *draw);

#endif
