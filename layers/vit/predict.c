/* --predict: prints the classes of images and videos, prepared as for evaluation. */
#include "layers/vit/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/results/predictions.h"
#include "data/images/image.h"
#include "data/loading/pictures.h"
#include "data/sets/videos.h"
#include "kernels/kernels.h"
#include "layers/vit/attention_picture.h"
#include "core/results/outcome.h"

/* == Images ======================================================================================================= */

/* The index in test:INDEX; false: the name is that of a file.  Opens the images that --eval evaluates. */
static bool is_test(VitRun *run, const char *name, size_t *index) {
    char *end;
    if (strncmp(name, "test:", 5)) return false;
    *index = strtoull(name + 5, &end, 10);
    if (!run->test.count) vit_run_open_evaluated(run);
    if (end == name + 5 || *end || *index >= run->test.count)
        die_usage("--predict %s: expected test:INDEX with an index below %zu, the number of %s images", name,
                  run->test.count, vit_run_evaluated(run));
    return true;
}

/* The logits for `pixels`, which were read from that file. */
static void predict_pixels(VitRun *run, const char *name, const uint8_t *pixels) {
    vit_load_pixels(&run->vit, pixels, run->train.mean, run->train.std, 1);
    vit_forward(&run->vit, 1, false);
    real_download(run->logits, run->vit.logits, (size_t)run->model_settings->num_classes);
    outcome_require(run->logits, (size_t)run->model_settings->num_classes, run->training.s->init, name);
}

/* Pixels of an image file or of test:INDEX, at the model's size: prepared as for evaluation, or, if the data set has no
 * larger pictures, the whole picture resized.  False: `error` gives the reason. */
static bool prediction_pixels(VitRun *run, const char *name, uint8_t *pixels, Error *error) {
    static TransformScratch scratch;
    Transform transform = vit_run_transform(run, false);
    Sample sample;
    size_t index;
    if (!is_test(run, name, &index)) return picture_pixels(pixels, name, &transform, vit_run_has_model_size(run), error);
    return dataset_read(&run->test, index, &scratch.bytes, &sample, error) &&
           transform_sample(&scratch, pixels, &sample, run->train.height > 0, &transform, (TransformKey){0}, error);
}

/* Runs the model once more in the training plan, which keeps the tensors that the picture shows. */
static void draw_attention(VitRun *run, const uint8_t *pixels, const char *picture) {
    Vit *vit = &run->vit;
    model_set_training(&vit->model, true);
    vit_load_pixels(vit, pixels, run->train.mean, run->train.std, 1);
    vit_forward(vit, 1, false);
    attention_picture_write(vit, pixels, picture);
    model_set_training(&vit->model, false);
}

static bool predict_image(VitRun *run, const char *name, const char *picture, Error *error) {
    if (!prediction_pixels(run, name, run->pixels, error)) return false;
    predict_pixels(run, name, run->pixels);
    if (*picture) draw_attention(run, run->pixels, picture);
    return true;
}

/* == Clips ======================================================================================================== */

/* The views of a video in an evaluation, and its frames in each clip. */
typedef struct {
    int views, frames;  /* frames: of a view */
    size_t frame_bytes;
    uint8_t *pixels;    /* [views,frames,Hi,Wi,3] */
    FrameScore *scores; /* [views,frames] */
} PredictedClip;

static PredictedClip predicted_clip_open(const VitRun *run) {
    PredictedClip clip = {.views = clip_views(run->clips), .frames = run->model_settings->frames};
    size_t frames = (size_t)clip.views * (size_t)clip.frames;
    clip.frame_bytes = vit_pixels(run->model_settings) / (size_t)clip.frames;
    clip.pixels = xcalloc(frames, clip.frame_bytes, "a clip");
    clip.scores = xcalloc(frames, sizeof *clip.scores, "the frames of a clip");
    return clip;
}

static void predicted_clip_close(PredictedClip *clip) {
    free(clip->pixels);
    free(clip->scores);
}

typedef struct {
    TransformScratch *scratch;
    Transform transform;
    bool fixed;
    uint8_t *pixels;
    FrameScore *scores;
    size_t frame_bytes;
} ViewTaker;

static bool take_frame(void *context, int i, const Sample *frame, Error *error) {
    ViewTaker *view = context;
    view->scores[i] = (FrameScore){.frame = frame->frame, .time = frame->time};
    return transform_sample(view->scratch, view->pixels + (size_t)i * view->frame_bytes, frame, view->fixed,
                            &view->transform, (TransformKey){0}, error);
}

static bool read_view(VitRun *run, const char *name, const PredictedClip *clip, int v, Error *error) {
    static TransformScratch scratch;
    ViewTaker view = {.scratch = &scratch, .transform = vit_run_transform(run, false), .fixed = run->train.height > 0,
                      .pixels = clip->pixels + (size_t)v * (size_t)clip->frames * clip->frame_bytes,
                      .scores = clip->scores + v * clip->frames, .frame_bytes = clip->frame_bytes};
    ClipTaker taker = {take_frame, &view};
    int crops = run->clips->test_crops, label;
    ClipChoice choice = {.frames = clip->frames, .s = *run->clips, .clip = v / crops};
    size_t index;
    view.transform.crop = v % crops;
    view.transform.crops = crops;
    if (is_test(run, name, &index))
        return run->test.read_clip(&run->test, index, &choice, &scratch.bytes, &taker, &label, error);
    int H = view.transform.height, W = view.transform.width;
    view.fixed = false;
    if (vit_run_has_model_size(run) && !view.transform.s.eval_resize) view.transform.s.eval_resize = H < W ? H : W;
    if (image_has_name(name))
        return refuse(error, "a picture, but the model takes clips of %d frames: give a video, or a folder of frames",
                      clip->frames);
    return videos_read_path(name, &choice, &scratch.bytes, &taker, error);
}

/* The score of each frame: the probability of the class for a clip of only this frame, averaged over crops.  The frames
 * of a view's first crop are kept. */
static void score_frames(VitRun *run, const char *name, const PredictedClip *clip, int class) {
    int crops = run->clips->test_crops, C = run->model_settings->num_classes;
    for (int i = 0; i < clip->views * clip->frames; i++) {
        const uint8_t *frame = clip->pixels + (size_t)i * clip->frame_bytes;
        int first = i - i / clip->frames % crops * clip->frames;
        for (int t = 0; t < clip->frames; t++)
            memcpy(run->pixels + (size_t)t * clip->frame_bytes, frame, clip->frame_bytes);
        predict_pixels(run, name, run->pixels);
        clip->scores[first].probability += exp(-outcome_of(run->logits, C, class).loss) / crops;
    }
}

static int by_score(const void *a, const void *b) {
    const FrameScore *x = a, *y = b;
    if (x->probability != y->probability) return x->probability < y->probability ? 1 : -1;
    return x->frame - y->frame;
}

/* Sorts the frames, the best first, each once, and returns their number.  Times are known if one of them is not 0. */
static int best_frames(const VitRun *run, const PredictedClip *clip) {
    FrameScore *scores = clip->scores;
    int kept = 0, length = clip->frames;
    bool timed = false;
    for (int v = 0; v < clip->views; v += run->clips->test_crops)
        for (int i = v * length; i < (v + 1) * length; i++) {
            int same = 0;
            while (same < kept && scores[same].frame != scores[i].frame) same++;
            timed = timed || scores[i].time > 0;
            if (same == kept) scores[kept++] = scores[i];
        }
    for (int i = 0; i < kept && !timed; i++) scores[i].time = NAN;
    qsort(scores, (size_t)kept, sizeof *scores, by_score);
    return kept;
}

/* Logits whose softmax is the video's score, as in evaluation. */
static bool predict_clip(VitRun *run, const char *name, const char *picture, const PredictedClip *clip, Error *error) {
    int C = run->model_settings->num_classes;
    Views views;
    bool ok = true;
    views_open(&views, 1, C, clip->views, run->clips->view_scores == SCORES_LOGITS);
    for (int v = 0; ok && v < clip->views; v++) {
        const uint8_t *pixels = clip->pixels + (size_t)v * vit_pixels(run->model_settings);
        ok = read_view(run, name, clip, v, error);
        if (ok) predict_pixels(run, name, pixels);
        if (ok) views_add(&views, (size_t)v, 0, run->logits);
        if (ok && !v && *picture) draw_attention(run, pixels, picture);
    }
    if (ok) memcpy(run->logits, views_logits(&views, 0), (size_t)C * sizeof *run->logits);
    views_close(&views);
    return ok;
}

/* == The mode ===================================================================================================== */

void vit_predict(VitRun *run) {
    const char *picture = run->vit_modes->attention;
    ClassNames owned = {0};
    const char *const *names = vit_run_class_names(run, &owned);
    Predictions json = {.wanted = *run->predict->json != 0};
    PredictedClip clip;
    Pictures images;
    Error error;
    size_t done = 0;
    bool clips = run->model_settings->frames > 1;
    int top = run->vit_modes->top_frames;
    if (!clips && config_origin(&run->training.config, "top_frames"))
        config_reject(&run->training.config, "top_frames", "for clips only, and this model takes images");
    pictures_find(&images, &run->predict->predict, clips);
    if (*picture) run->model_settings->recompute = false; /* recomputing would overwrite what the picture shows */
    vit_run_open_model(run, 1, *picture != 0);
    model_set_training(&run->vit.model, false);
    linear_keep_weights(images.count > 1 || clips);
    if (clips) clip = predicted_clip_open(run);
    for (size_t i = 0; i < images.count; i++) {
        const char *name = images.at[i].name, *drawn = done ? "" : picture;
        if (!(clips ? predict_clip(run, name, drawn, &clip, &error) : predict_image(run, name, drawn, &error))) {
            picture_refuse(&images.at[i], &error);
            predictions_fail(&json, name, error.text);
            continue;
        }
        done++;
        int class = predictions_classes(&json, name, run->logits, run->model_settings->num_classes, names);
        if (!clips || !top) continue;
        score_frames(run, name, &clip, class);
        int count = best_frames(run, &clip);
        predictions_frames(&json, names ? names[class] : NULL, class, clip.scores, count < top ? count : top);
    }
    if (!done) die("none of the %zu %s can be read", images.count, clips ? "clips" : "pictures");
    if (clips) predicted_clip_close(&clip);
    predictions_write(&json, run->predict->json);
    pictures_free(&images);
    class_names_free(&owned);
}
