/* Shared by nystrom and soft, in addition to low_rank_forward (kernels/landmarks/landmarks.h). */
#ifndef VIT_LAYERS_LOW_RANK_H
#define VIT_LAYERS_LOW_RANK_H

#include "layers/attention.h"

typedef struct {
    int landmarks; /* side of the grid of landmarks */
} LandmarksSettings;
extern const ConfigGroup landmarks_settings;

static inline int landmarks_of(const Attention *a) {
    return ((const LandmarksSettings *)config_settings(a->settings, &landmarks_settings))->landmarks;
}

/* Multiply-adds of one image: four products with the tokens, two among the landmarks, and four of L x L in each of six
 * steps. */
static inline size_t low_rank_macs(const LowRank *s) {
    size_t N = (size_t)s->N, L = (size_t)s->L, D = (size_t)s->D;
    return (size_t)s->H * (4 * N * L * D + 2 * L * L * D + 24 * L * L * L);
}

#endif
