/* Mixup (Zhang et al. 2017) and CutMix (Yun et al. 2019) as DeiT uses timm's (timm/data/mixup.py, mode "batch"): one
 * draw for a whole batch, and the partner of sample j of n is sample n-1-j.
 *
 *   mixup    x = lam x_j + (1 - lam) x_partner, lam ~ Beta(a, a)
 *   cutmix   inside a box of about (1 - lam) of the area, centred anywhere and clipped to the image, x_partner; lam is
 *            then 1 - box / image.  A side of the box is int(side sqrt(1 - lam)), before it is clipped; if that is odd,
 * the larger half is after the centre, as in timm 1.0.31.
 *   target   lam t_j + (1 - lam) t_partner, where t is the smoothed one-hot: s/C, and 1 - s + s/C at the label
 *
 * A batch is divided into parts, for ranks and micro-batches.  So that partners fall into the same part, the samples of
 * a batch are ordered 0, n-1, 1, n-2, ...: position p holds sample mixup_sample(p, n), and its partner is at p ^ 1.  If
 * n is odd, the last sample is its own partner.  A part that starts or ends inside a pair loads the missing partner. */
#ifndef VIT_DATA_IMAGES_MIXUP_H
#define VIT_DATA_IMAGES_MIXUP_H

#include "core/config/config.h"

typedef struct {
    float mixup, cutmix;     /* parameter a of the Beta distribution; 0: disabled */
    float mixup_prob;        /* probability that a batch is mixed at all */
    float mixup_switch_prob; /* probability of cutmix when both are enabled */
} MixupSettings;

extern const ConfigGroup mixup_settings;

/* Whether mixup or cutmix is enabled. */
bool mixup_is_on(const MixupSettings *s);

typedef struct {
    float lam;  /* weight of the sample's own target */
    int box[4]; /* cutmix: top, left, bottom, right, the last two exclusive; mixup: all 0 */
} MixupDraw;

/* A pure function of its arguments; `step` selects the random stream. */
MixupDraw mixup_draw(const MixupSettings *s, uint64_t seed, uint64_t step, int height, int width);

/* Draws from Beta(a, a), a > 0, with the random stream of that step. */
double mixup_beta(double a, uint64_t seed, uint64_t step);

/* The sample at a position of a batch of n. */
size_t mixup_sample(size_t position, size_t n);

/* For the part that consists of the n_part positions from `first` on of a batch of n: returns the number of images to
 * load, at most n_part + 2, which are those at the positions from *begin on.  pairs [n_part,2] receives, for each
 * sample of the part, the indices of the sample and of its partner among the loaded images. */
int mixup_part(size_t *begin, int *pairs, size_t first, int n_part, size_t n);

/* Computes targets [n_part,classes] from the labels of the loaded images, with pairs as from mixup_part. */
void mixup_targets(float *targets, const int *labels, const int *pairs, int n_part, int classes, float smoothing,
                   float lam);

#endif
