/* Mixup (Zhang et al. 2017) and CutMix (Yun et al. 2019) as DeiT uses timm's (timm/data/mixup.py, mode "batch"): one
 * draw for a whole batch, and the partner of sample j of n is sample n-1-j.
 *
 *   mixup    x = lam x_j + (1 - lam) x_partner, lam ~ Beta(a, a)
 *   cutmix   inside a box of about (1 - lam) of the area, centred anywhere and clipped to the image, x_partner; lam is
 *            then 1 - box / image.  Sides are 2 (int(side sqrt(1 - lam)) // 2), as in timm 0.3 to 0.9.
 *   target   lam t_j + (1 - lam) t_partner, t smoothed: s/C, and 1 - s + s/C at the label
 *
 * A batch is cut into parts, for ranks and micro-batches.  So that partners fall into the same part, the samples of a
 * batch are dealt out in the order 0, n-1, 1, n-2, ...: position p holds sample mixup_sample(p, n) and its partner is
 * at p ^ 1; of an odd batch the last is its own.  A part that starts or ends inside a pair loads one image more. */
#ifndef VIT_DATA_MIXUP_H
#define VIT_DATA_MIXUP_H

#include "core/config.h"

typedef struct {
    float mixup, cutmix;     /* a of the Beta distribution; 0: not this one; both 0: no mixing */
    float mixup_prob;        /* that a batch is mixed at all */
    float mixup_switch_prob; /* that it is cutmix, where both are on */
} MixupSettings;

extern const ConfigGroup mixup_settings;

/* Is either on? */
bool mixup_is_on(const MixupSettings *s);

typedef struct {
    float lam;  /* share of the sample's own target */
    int box[4]; /* cutmix: top, left, bottom, right, the last two exclusive; else all 0 */
} MixupDraw;

/* A function of seed and step alone. */
MixupDraw mixup_draw(const MixupSettings *s, uint64_t seed, uint64_t step, int height, int width);

/* Beta(a, a) from the stream of that step, a > 0. */
double mixup_beta(double a, uint64_t seed, uint64_t step);

/* Which sample of a batch of n stands at a position. */
size_t mixup_sample(size_t position, size_t n);

/* The positions *begin .. *begin + count - 1, count <= n_part + 2, that a part of n_part positions from `first` on of a
 * batch of n needs, and pairs [n_part,2]: which of them each of the part's samples and its partner are.  Returns
 * count. */
int mixup_part(size_t *begin, int *pairs, size_t first, int n_part, size_t n);

/* targets [n_part,classes] from the labels of all loaded positions. */
void mixup_targets(float *targets, const int *labels, const int *pairs, int n_part, int classes, float smoothing,
                   float lam);

#endif
