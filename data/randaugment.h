/* RandAugment (Cubuk et al. 2019) as timm does it (timm/data/auto_augment.py; DeiT trains on releases 0.3 to 0.5).
 * A draw is a pure function of (seed, epoch, draw number); what is done with it is another function. */
#ifndef VIT_DATA_RANDAUGMENT_H
#define VIT_DATA_RANDAUGMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/error.h"
#include "data/pillow.h"

/* Where an operation's strength m in [0,10] goes, t = m/10, sign +-: degrees, bits, threshold, factor, shear, share of
 * the side.  The increasing ones do more at higher t. */
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
    int layers;                   /* operations drawn for an image; 0: no RandAugment */
    double magnitude, most;       /* strength before noise; its upper bound */
    double deviation;             /* of the strength; infinite: uniform in [0, magnitude] */
    double probability;           /* that a drawn operation is applied */
    RandAugmentResample resample; /* of the geometric operations; timm's train_interpolation */
    bool weighted;                /* drawn by weight and without replacement, else uniformly and with it */
    AugmentOperation choices[RANDAUGMENT_CHOICES];
    double weights[RANDAUGMENT_CHOICES];
} RandAugment;

/* One operation that is applied, and a sample's operations in order. */
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

/* timm's string: "rand" and parts behind dashes, in any order.
 *   m9        magnitude (10)             mstd0.5   its deviation (0); above 100 or inf: uniform in [0, m]
 *   n2        operations an image (2)    mmax10    upper bound of the strength (10)
 *   p0.5      probability (0.5)          inc1      the increasing operations (0)
 *   tweights  timm's weighted choice     w0        the one of timm 0.3 to 0.6
 * "" is no RandAugment.  False: `error` names the part. */
bool randaugment_parse(RandAugment *ra, const char *text, Error *error);

RandAugmentDraw randaugment_draw(const RandAugment *ra, uint64_t seed, uint32_t epoch, uint32_t draw);

/* What the operation is given, as in the list above; 0 where it takes nothing. */
double randaugment_argument(const RandAugmentStep *step);

/* pixels [height,width,3] in place; scratch pillow_scratch(height, width) bytes.  Geometric operations fill with
 * ImageNet's mean colour, 124 116 104, whatever the data set, as DeiT does. */
void randaugment_apply(uint8_t *pixels, uint8_t *scratch, int height, int width, const RandAugmentDraw *draw);

#endif
