/* Clips: the choice of a sample's frames from a video.  F frames in the file, T0 (`frames`) in a clip, tau =
 * frame_stride.
 *
 *   dense     the span is T0 tau frames (scaled by the video's rate / target_fps if that is set), d = max(F - span, 0):
 *             training starts at U(0, d), real; view k of K at k floor(d / (K-1)), a single one at floor(d / 2);
 *             frame i = floor(clamp(start + i (span - 1) / (T0 - 1), 0, F - 1)).  The step is therefore not tau itself.
 *   segments  seg = (F - 1) / T0, a_i = rint(seg i), b_i = rint(seg (i+1)), halves to even: training takes a uniform
 *             frame of [a_i, b_i], both ends included; a single view floor((a_i + b_i) / 2), view k of K
 *             a_i + floor(seg (k+1) / (K+1))
 *   tsn       training i floor(F / T0) + U{0 .. floor(F / T0) - 1}, so that the last F mod T0 frames are never seen;
 *             view k of K floor(i F/T0 + F/T0 (k+1) / (K+1)), in doubles as numpy computes it; this also serves for
 *             training where F < T0
 *
 * A video shorter than the clip repeats frames; the order is never changed.
 * Source: SlowFast (dense as its USE_OFFSET_SAMPLING makes it for UniFormer and MViT, and the single view of segments),
 * UniFormer's Something-Something loader (segments), Wang et al. 2016 and RSA (tsn). */
#ifndef VIT_DATA_VIDEO_CLIPS_H
#define VIT_DATA_VIDEO_CLIPS_H

#include "core/config/config.h"
#include "core/error.h"
#include "data/images/sample.h"

typedef enum { SAMPLING_SEGMENTS, SAMPLING_DENSE, SAMPLING_TSN } Sampling;
typedef enum { SCORES_PROBABILITIES, SCORES_LOGITS } ViewScores;

typedef struct {
    Sampling sampling;
    int frame_stride;
    float target_fps; /* 0: the span is counted in frames */
    int samples_per_clip;
    int test_clips, test_crops;
    ViewScores view_scores;
} ClipSettings;

extern const ConfigGroup clip_settings;

enum { CLIP_MOST_SAMPLES = 16 }; /* samples_per_clip */

/* The number of views of a video that are evaluated: test_clips * test_crops, one after another; view v is crop
 * v mod test_crops of clip v / test_crops. */
int clip_views(const ClipSettings *s);

/* Chooses one clip of a video.  In training the frames are a pure function of (seed, epoch, draw, F). */
typedef struct {
    int frames; /* T0; 0: all frames of the video */
    ClipSettings s;
    bool train;
    uint64_t seed;
    uint32_t epoch, draw;
    int clip; /* evaluation: of s.test_clips */
} ClipChoice;

/* index [choice->frames]: the frames of a video with F >= 1 frames at `fps` a second (0: unknown), ascending. */
void clip_frames(int *index, int F, double fps, const ClipChoice *choice);

/* The result for any choice, also for all frames of the video. */
typedef struct {
    int *at; /* [count] */
    int count;
} ClipIndex;

/* Returns false when out of memory. */
bool clip_index(ClipIndex *index, int F, double fps, const ClipChoice *choice, Error *error);
void clip_index_free(ClipIndex *index);

/* Receives the frames of a clip in order, i from 0 on; false with `error` set ends the reading. */
typedef struct {
    bool (*take)(void *context, int i, const Sample *frame, Error *error);
    void *context;
} ClipTaker;

#endif
