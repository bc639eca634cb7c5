#include "data/video/clips.h"

#include <math.h>
#include <stdlib.h>

#include "core/rng.h"

#define F(KIND, field) CONFIG_FIELD(KIND, ClipSettings, field)
static const ConfigEntry entries[] = {
    {F(CHOICE, sampling), "segments", .section = "clips",
     CONFIG_CHOICES([SAMPLING_SEGMENTS] = "segments", [SAMPLING_DENSE] = "dense", [SAMPLING_TSN] = "tsn"),
     .help = "Choice of a clip's frames from a video: segments, one from each of `frames` equal segments "
             "(Something-Something); dense, frames at a fixed distance from a stretch of the video (Kinetics); tsn, "
             "one from each segment of whole frames, as in TSN"},
    {F(INT, frame_stride), "4", .min = 1, .max = 1024,
     .help = "With sampling dense: length of the stretch in frames of the video for each frame of the clip"},
    {F(FLOAT, target_fps), "0", .min = 0, .max = 1000,
     .help = "With sampling dense: frame rate for which the length of the stretch is meant; it is scaled for videos "
             "with another rate (0: never scaled)"},
    {F(INT, samples_per_clip), "1", .min = 1, .max = CLIP_MOST_SAMPLES, .change = CHANGE_BETWEEN_EPOCHS,
     .help = "Number of training samples from each clip in an epoch. They follow each other, have the same frames with "
             "different augmentations, and the file is decoded once (2: NUM_SAMPLE in the recipes of SlowFast, MViT and "
             "UniFormer; batch_size counts samples)"},
    {F(INT, test_clips), "1", .min = 1, .max = 100, .help = "Clips of each video in tests, whose scores are averaged"},
    {F(INT, test_crops), "1", .min = 1, .max = 3,
     .help = "Crops of each of these clips: 1, the centre, or 3 along the longer side"},
    {F(CHOICE, view_scores), "probabilities",
     CONFIG_CHOICES([SCORES_PROBABILITIES] = "probabilities", [SCORES_LOGITS] = "logits"),
     .help = "What is averaged over the clips and crops of a video"},
};
#undef F

static void check(const Config *config, const void *settings) {
    const ClipSettings *s = settings;
    if (s->test_crops == 2) config_reject(config, "test_crops", "2: expected 1 or 3");
}

const ConfigGroup clip_settings = {CONFIG_GROUP(ClipSettings, entries), .change = CHANGE_FREELY, .check = check};

int clip_views(const ClipSettings *s) { return s->test_clips * s->test_crops; }

/* == Frames ======================================================================================================= */

static uint32_t below(const ClipChoice *c, int i, int n) {
    return rng_below(c->seed, RNG_FRAMES, c->epoch, c->draw, (uint64_t)i, (uint32_t)n);
}

/* i (span - 1) is computed before the division: 5 * 63 / 15 is 21, but 5 * 4.2 need not be. */
static void dense(int *index, int F, double fps, const ClipChoice *c) {
    int T0 = c->frames, K = c->s.test_clips;
    double span = (double)T0 * c->s.frame_stride, last = F - 1;
    if (c->s.target_fps > 0 && fps > 0) span *= fps / (double)c->s.target_fps;
    double spare = F > span ? F - span : 0, start = floor(spare / 2);
    if (c->train) start = spare * (double)rng_uniform(c->seed, RNG_FRAMES, c->epoch, c->draw, 0);
    else if (K > 1) start = c->clip * floor(spare / (K - 1));
    for (int i = 0; i < T0; i++) {
        double at = start + (T0 > 1 ? i * (span - 1) / (T0 - 1) : 0);
        index[i] = (int)floor(fmin(fmax(at, 0), last));
    }
}

static void segments(int *index, int F, const ClipChoice *c) {
    int K = c->s.test_clips;
    double length = (double)(F - 1) / c->frames;
    for (int i = 0; i < c->frames; i++) {
        int a = (int)rint(length * i), b = (int)rint(length * (i + 1));
        if (c->train) index[i] = a + (int)below(c, i, b - a + 1);
        else if (K > 1) index[i] = a + (int)floor(length * (c->clip + 1) / (K + 1));
        else index[i] = (a + b) / 2;
    }
}

/* The products and the sum are rounded one by one, as numpy rounds them in TSN's and mmaction2's loaders: with 6 frames
 * and 7 segments the fourth is frame 2, and without rounding it would be 3. */
static void tsn(int *index, int F, const ClipChoice *c) {
    int T0 = c->frames, K = c->train ? 1 : c->s.test_clips, k = c->train ? 0 : c->clip, length = F / T0;
    double tick = (double)F / T0;
    for (int i = 0; i < T0; i++) {
        if (c->train && length) index[i] = i * length + (int)below(c, i, length);
        else index[i] = (int)(i * tick + tick * (k + 1) / (K + 1));
    }
}

void clip_frames(int *index, int F, double fps, const ClipChoice *choice) {
    switch (choice->s.sampling) {
    case SAMPLING_DENSE: dense(index, F, fps, choice); break;
    case SAMPLING_SEGMENTS: segments(index, F, choice); break;
    case SAMPLING_TSN: tsn(index, F, choice); break;
    }
}

bool clip_index(ClipIndex *index, int F, double fps, const ClipChoice *choice, Error *error) {
    index->count = choice->frames ? choice->frames : F;
    index->at = malloc((size_t)index->count * sizeof *index->at);
    if (!index->at) return refuse_memory(error, (size_t)index->count * sizeof *index->at, "the frames of a clip");
    for (int i = 0; !choice->frames && i < F; i++) index->at[i] = i;
    if (choice->frames) clip_frames(index->at, F, fps, choice);
    return true;
}

void clip_index_free(ClipIndex *index) {
    free(index->at);
    *index = (ClipIndex){.count = 0};
}
