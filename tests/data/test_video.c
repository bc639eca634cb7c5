/* Videos: exact frames of every container, with and without reordering, constant and variable rates, rotations,
 * colours, and every kind of damage.  The test encodes its files itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/files.h"
#include "data/video/clips.h"
#include "data/sets/datasets.h"
#include "data/loading/loader.h"
#include "data/video/video.h"
#include "tests/check.h"
#include "tests/encode_video.h"
#include "tests/scratch.h"

enum { F = 37 };

/* == Reading frames ================================================================================================ */

typedef struct {
    int lumas[256], marks[256]; /* mark: its corner, 0 to 3 clockwise from the top left; -1 none */
    int count, height, width;
    uint8_t middle[3];
} Seen;

static int luma_of(const uint8_t *p) { return (int)lrint(0.257 * p[0] + 0.504 * p[1] + 0.098 * p[2] + 16); }

static bool look(void *context, int i, const uint8_t *pixels, int height, int width, Error *error) {
    Seen *seen = context;
    (void)error;
    assert_int_equal(i, seen->count);
    const int corners[4][2] = {{height / 8, width / 8},
                               {height / 8, width - 1 - width / 8},
                               {height - 1 - height / 8, width - 1 - width / 8},
                               {height - 1 - height / 8, width / 8}};
    memcpy(seen->middle, pixels + ((size_t)(height / 2) * (size_t)width + (size_t)(width / 2)) * 3, 3);
    seen->lumas[i] = luma_of(seen->middle);
    seen->marks[i] = -1;
    for (int c = 0; c < 4; c++)
        if (luma_of(pixels + ((size_t)corners[c][0] * (size_t)width + (size_t)corners[c][1]) * 3) > 225) seen->marks[i] = c;
    seen->height = height;
    seen->width = width;
    seen->count++;
    return true;
}

static VideoReader *open_bytes(const uint8_t *bytes, size_t size) {
    Error error;
    VideoReader *v = video_open(bytes, size, VIDEO_MAX_PIXELS, &error);
    if (!v) fail_msg("%s", error.text);
    return v;
}

static Seen look_at(VideoReader *v, const int *index, int count) {
    Seen seen = {.count = 0};
    Error error;
    if (!video_read(v, index, count, look, &seen, &error)) fail_msg("%s", error.text);
    assert_int_equal(seen.count, count);
    return seen;
}

static void is_frame(const Seen *seen, int i, int frame) {
    if (abs(seen->lumas[i] - frame_luma(frame)) > 2)
        fail_msg("at %d brightness %d instead of frame %d's %d", i, seen->lumas[i], frame, frame_luma(frame));
}

/* == Exact frames ================================================================================================= */

static const VideoRecipe recipes[] = {
    {"mp4", "mpeg4", .frames = F, .height = 48, .width = 64, .key_distance = 12},
    {"mp4", "mpeg4", .frames = F, .height = 50, .width = 70, .key_distance = 12, .b_frames = 3},
    {"matroska", "mpeg4", .frames = F, .height = 48, .width = 64, .key_distance = 12, .b_frames = 2},
    {"matroska", "ffv1", .frames = F, .height = 33, .width = 45, .key_distance = 1},
    {"avi", "mpeg4", .frames = F, .height = 48, .width = 64, .key_distance = 12},
    {"avi", "mjpeg", .frames = F, .height = 48, .width = 64, .key_distance = 1, .format = AV_PIX_FMT_YUVJ420P},
    {"mpegts", "mpeg2video", .frames = F, .height = 48, .width = 64, .key_distance = 12, .b_frames = 2},
    {"mp4", "libx264", .frames = F, .height = 48, .width = 64, .key_distance = 12, .b_frames = 3},
    {"webm", "libvpx", .frames = F, .height = 48, .width = 64, .key_distance = 12},
};
enum { RECIPES = sizeof recipes / sizeof *recipes };

static bool is_full(const VideoRecipe *r) { return r->format == AV_PIX_FMT_YUVJ420P; }

/* Checks the brightness of a frame.  A full-range grey is converted to limited range first. */
static void is_frame_of(const VideoRecipe *r, const Seen *seen, int i, int frame) {
    int want = is_full(r) ? (int)lrint(0.859 * frame_luma(frame) + 16) : frame_luma(frame);
    if (abs(seen->lumas[i] - want) > 2) fail_msg("%s of %s: at %d brightness %d instead of frame %d's %d", r->codec,
                                                  r->container, i, seen->lumas[i], frame, want);
}

static void every_frame_is_found(void **state) {
    (void)state;
    for (int k = 0; k < RECIPES; k++) {
        const VideoRecipe *r = &recipes[k];
        if (!can_encode(r->codec)) continue;
        size_t size;
        uint8_t *bytes = encode_video(r, &size);
        VideoReader *v = open_bytes(bytes, size);
        int all[F], late = 0;
        printf("  %s in %s: %zu bytes, %d frames, %.2f a second\n", r->codec, r->container, size, video_frames(v),
               video_fps(v));
        assert_int_equal(video_frames(v), F);
        assert_true(fabs(video_fps(v) - 25) < 0.1);
        for (int i = 0; i < F; i++) all[i] = i;
        Seen seen = look_at(v, all, F); /* the last frames only come when the decoder is drained */
        assert_int_equal(seen.height, r->height);
        assert_int_equal(seen.width, r->width);
        for (int i = 0; i < F; i++) {
            is_frame_of(r, &seen, i, i);
            assert_int_equal(seen.marks[i], 0);
        }
        for (int n = 0; n < 41; n++) { /* single frames in any order, twice each */
            int frame = (int)rng_below(check_seed(), RNG_TEST, 1, (uint32_t)k, (uint64_t)n, F), before = video_decoded(v);
            seen = look_at(v, (int[]){frame, frame}, 2);
            is_frame_of(r, &seen, 0, frame);
            is_frame_of(r, &seen, 1, frame);
            late += video_decoded(v) - before > 2 * r->key_distance + 4;
        }
        if (strcmp(r->container, "mpegts")) assert_int_equal(late, 0); /* mpegts guesses where to seek */
        seen = look_at(v, (int[]){3, 3, 14, 30, 36, 36}, 6);
        for (int i = 0; i < 6; i++) is_frame_of(r, &seen, i, (int[]){3, 3, 14, 30, 36, 36}[i]);
        video_close(v);
        free(bytes);
    }
}

/* A packet without a picture is no frame. */
static void frames_may_be_hidden(void **state) {
    (void)state;
    const VideoRecipe hidden[] = {
        {"webm", "libvpx", .frames = F, .height = 48, .width = 64, .key_distance = 12, .hidden = 7},
        {"matroska", "mpeg4", .frames = F, .height = 48, .width = 64, .key_distance = 1, .hidden = 7},
        {"avi", "mpeg4", .frames = F, .height = 48, .width = 64, .key_distance = 1, .hidden = 7}};
    for (int k = 0; k < 3; k++) {
        if (!can_encode(hidden[k].codec)) continue;
        int all[F - 1];
        size_t size;
        uint8_t *bytes = encode_video(&hidden[k], &size);
        VideoReader *v = open_bytes(bytes, size);
        assert_int_equal(video_frames(v), F - 1);
        for (int i = 0; i < F - 1; i++) all[i] = i;
        Seen seen = look_at(v, all, F - 1);
        for (int i = 0; i < F - 1; i++) is_frame(&seen, i, i < 7 ? i : i + 1);
        video_close(v);
        free(bytes);
    }
}

/* Frames are counted, whatever their times: neither the duration nor the mean rate would find them. */
static void rates_may_vary(void **state) {
    (void)state;
    static const char *const containers[] = {"mp4", "matroska"};
    int times[F], at = 7; /* the first frame is not at 0 */
    for (int i = 0; i < F; i++) {
        times[i] = at;
        at += i % 5 == 4 ? 6 : 1;
    }
    for (int k = 0; k < 2; k++) {
        VideoRecipe r = {containers[k], "mpeg4", .frames = F, .height = 32, .width = 48, .key_distance = 9,
                         .b_frames = 2, .times = times};
        size_t size;
        uint8_t *bytes = encode_video(&r, &size);
        VideoReader *v = open_bytes(bytes, size);
        assert_int_equal(video_frames(v), F);
        for (int i = F - 1; i >= 0; i -= 4) {
            Seen seen = look_at(v, (int[]){i}, 1);
            is_frame(&seen, 0, i);
            assert_true(fabs(video_time(v, i) - (times[i] - 7) / 25.0) < 0.002);
        }
        assert_true(fabs(video_fps(v) - (F - 1) * 25.0 / (times[F - 1] - 7)) < 0.01);
        video_close(v);
        free(bytes);
    }
}

/* Frames that an edit list removes at the start are decoded, because others need them, but are not returned.  The list
 * removes part of a group of frames, or more than a whole group. */
static void edit_lists_cut_the_start(void **state) {
    (void)state;
    for (int k = 0; k < RECIPES; k++)
        for (int cut = 9; cut <= 16; cut += 7) {
            VideoRecipe r = recipes[k];
            if (strcmp(r.container, "mp4") || !can_encode(r.codec)) continue;
            int times[F], all[F], n = F - cut;
            size_t size;
            for (int i = 0; i < F; i++) times[i] = i - cut;
            for (int i = 0; i < F; i++) all[i] = i;
            r.times = times;
            uint8_t *bytes = encode_video(&r, &size);
            VideoReader *v = open_bytes(bytes, size);
            assert_int_equal(video_frames(v), n);
            Seen seen = look_at(v, all, n);
            for (int i = 0; i < n; i++) is_frame(&seen, i, cut + i);
            for (int i = n - 1; i >= 0; i -= 3) {
                seen = look_at(v, (int[]){i}, 1);
                is_frame(&seen, 0, cut + i);
            }
            video_close(v);
            free(bytes);
        }
}

/* A table of times may show the first key frame after all others, where an edit list removes it. */
static void a_list_can_be_empty(void **state) {
    (void)state;
    VideoRecipe r = {"mp4", "mpeg4", .frames = 7, .height = 16, .width = 32, .key_distance = 4, .b_frames = 1};
    size_t size;
    Error error;
    uint8_t *bytes = encode_video(&r, &size), *table = memmem(bytes, size, "ctts", 4);
    assert_non_null(table);
    table[17] = 0x27; /* in the first frame's offset: 32 bits after version, count and the number of frames */
    VideoReader *v = video_open(bytes, size, 1 << 20, &error);
    if (v) assert_true(video_frames(v) > 0);
    else assert_string_equal(error.text, "no frame that can be decoded");
    video_close(v);
    free(bytes);
}

/* A file of a thousand bytes lists 16 million frames of one byte each: seeking in it would take hours. */
static void tables_may_lie(void **state) {
    (void)state;
    VideoRecipe r = {"mp4", "mpeg4", .frames = 7, .height = 16, .width = 32, .key_distance = 4};
    size_t size;
    Error error;
    uint8_t *bytes = encode_video(&r, &size), *sizes = memmem(bytes, size, "stsz", 4);
    uint8_t *chunks = memmem(bytes, size, "stsc", 4);
    assert_true(sizes && chunks);
    memcpy(sizes + 8, (uint8_t[]){0, 0, 0, 1, 0, 0xff, 0xff, 0xff}, 8);          /* size of all, number */
    memcpy(chunks + 12, (uint8_t[]){0, 0, 0, 1, 0, 0xff, 0xff, 0xff}, 8); /* first chunk, frames per chunk */
    assert_null(video_open(bytes, size, 1 << 20, &error));
    assert_non_null(strstr(error.text, "16777215 frames are listed"));
    free(bytes);
}

/* Frames are resized to the size of the first one that is read. */
static void sizes_may_change(void **state) {
    (void)state;
    VideoRecipe r = {"avi", "mjpeg", .frames = F, .height = 48, .width = 80, .key_distance = 1,
                     .format = AV_PIX_FMT_YUVJ420P, .then = {20, 40, 64}};
    const struct {
        int index[3], height, width;
    } cases[] = {{{3, 19, 20}, 48, 80}, {{19, 25, 36}, 48, 80}, {{20, 21, 36}, 40, 64}};
    size_t size;
    uint8_t *bytes = encode_video(&r, &size);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        VideoReader *v = open_bytes(bytes, size);
        assert_int_equal(video_frames(v), F);
        Seen seen = look_at(v, cases[k].index, 3);
        assert_int_equal(seen.height, cases[k].height);
        assert_int_equal(seen.width, cases[k].width);
        for (int i = 0; i < 3; i++) {
            is_frame_of(&r, &seen, i, cases[k].index[i]);
            assert_int_equal(seen.marks[i], 0);
        }
        video_close(v);
    }
    free(bytes);
}

static void one_frame(void **state) {
    (void)state;
    VideoRecipe r = {"mp4", "mpeg4", .frames = 1, .height = 32, .width = 48, .key_distance = 9};
    size_t size;
    uint8_t *bytes = encode_video(&r, &size);
    VideoReader *v = open_bytes(bytes, size);
    assert_int_equal(video_frames(v), 1);
    assert_true(video_fps(v) == 0);
    Seen seen = look_at(v, (int[]){0, 0, 0}, 3);
    for (int i = 0; i < 3; i++) is_frame(&seen, i, 0);
    video_close(v);
    free(bytes);
}

/* Rotation by -90 degrees anticlockwise moves the mark from the top left to the top right. */
static void rotations_are_undone(void **state) {
    (void)state;
    const struct {
        int degrees, mark;
    } cases[] = {{0, 0}, {-90, 1}, {180, 2}, {90, 3}, {-270, 3}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        VideoRecipe r = {"mp4", "mpeg4", .frames = 3, .height = 48, .width = 80, .key_distance = 9,
                         .rotation = cases[k].degrees};
        size_t size;
        uint8_t *bytes = encode_video(&r, &size);
        VideoReader *v = open_bytes(bytes, size);
        Seen seen = look_at(v, (int[]){2}, 1);
        is_frame(&seen, 0, 2);
        assert_int_equal(seen.marks[0], cases[k].mark);
        assert_int_equal(seen.height, cases[k].mark % 2 ? 80 : 48);
        assert_int_equal(seen.width, cases[k].mark % 2 ? 48 : 80);
        video_close(v);
        free(bytes);
    }
}

/* Y, U, V = 81, 90, 240 and the exact colours, rounded. */
static void colours_follow_their_tags(void **state) {
    (void)state;
    const struct {
        enum AVColorSpace space;
        enum AVColorRange range;
        uint8_t rgb[3];
    } cases[] = {{AVCOL_SPC_SMPTE170M, AVCOL_RANGE_MPEG, {254, 0, 0}},
                 {AVCOL_SPC_SMPTE170M, AVCOL_RANGE_JPEG, {238, 14, 14}},
                 {AVCOL_SPC_BT709, AVCOL_RANGE_MPEG, {255, 24, 0}},
                 {AVCOL_SPC_BT709, AVCOL_RANGE_JPEG, {255, 36, 10}},
                 {AVCOL_SPC_UNSPECIFIED, AVCOL_RANGE_UNSPECIFIED, {254, 0, 0}}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        VideoRecipe r = {"matroska", "ffv1", .frames = 2, .height = 32, .width = 48, .key_distance = 1,
                         .format = AV_PIX_FMT_YUV444P, .space = cases[k].space, .range = cases[k].range,
                         .yuv = {81, 90, 240}};
        size_t size;
        uint8_t *bytes = encode_video(&r, &size);
        VideoReader *v = open_bytes(bytes, size);
        Seen seen = look_at(v, (int[]){1}, 1);
        for (int c = 0; c < 3; c++)
            if (abs(seen.middle[c] - cases[k].rgb[c]) > 1)
                fail_msg("case %zu: %d %d %d", k, seen.middle[0], seen.middle[1], seen.middle[2]);
        video_close(v);
        free(bytes);
    }
}

/* == Damage ======================================================================================================= */

/* Reads all frames of a damaged file and returns whether this succeeded.  *frames: the number of frames listed.
 * *concealed: the number of frames read that are not encoded frames in their order, where some may be missing because
 * the container cannot find a packet. */
static bool given_frames_are_right(const uint8_t *bytes, size_t size, int *frames, int *concealed) {
    Error error;
    Seen seen = {.count = 0};
    int all[F];
    bool complete = false;
    VideoReader *v = video_open(bytes, size, VIDEO_MAX_PIXELS, &error);
    *frames = *concealed = 0;
    if (!v) return assert_true(*error.text), false;
    *frames = video_frames(v);
    for (int i = 0; i < F; i++) all[i] = i;
    if (*frames <= F) {
        complete = video_read(v, all, *frames, look, &seen, &error);
        if (!complete) assert_true(*error.text);
        for (int i = 0, frame = 0; i < seen.count; i++) {
            int at = frame;
            while (at < F && abs(seen.lumas[i] - frame_luma(at)) > 1) at++;
            if (at < F) frame = at + 1;
            else ++*concealed;
        }
    }
    video_close(v);
    return complete;
}

/* A truncated file can be read up to its end, except mp4, whose index is at the end. */
static void cut_files(void **state) {
    (void)state;
    static const char *const containers[] = {"mp4", "matroska", "avi"};
    for (int k = 0; k < 3; k++) {
        VideoRecipe r = {containers[k], "ffv1", .frames = F, .height = 48, .width = 64, .key_distance = 1};
        size_t size;
        if (!k) r.codec = "mpeg4";
        uint8_t *bytes = encode_video(&r, &size);
        int frames, concealed, least = F;
        for (size_t cut = size / 8; cut < size * 3 / 4; cut += size / 8) {
            bool complete = given_frames_are_right(bytes, cut, &frames, &concealed);
            assert_int_equal(concealed, 0);
            if (frames) least = frames < least ? frames : least;
            if (!k) assert_true(!frames && !complete);
        }
        if (k) assert_true(least < F / 3);
        free(bytes);
    }
}

/* Damage in packets is reported, or concealed by the decoder. */
static void overwritten_packets(void **state) {
    (void)state;
    VideoRecipe r = {"matroska", "ffv1", .frames = F, .height = 48, .width = 64, .key_distance = 1};
    size_t size;
    uint8_t *bytes = encode_video(&r, &size), *copy = malloc(size);
    int lost = 0, hidden = 0;
    for (int n = 0; n < 60; n++) {
        size_t at = rng_below(check_seed(), RNG_TEST, 2, 0, (uint64_t)n, (uint32_t)size - 600) + 500;
        int frames, concealed;
        memcpy(copy, bytes, size);
        for (size_t i = 0; i < 40; i++) copy[at + i] ^= 0x5a;
        if (!given_frames_are_right(copy, size, &frames, &concealed) || frames < F) lost++;
        else hidden += concealed > 0;
    }
    printf("  of 60 files with 40 bytes overwritten %d were found to be damaged, and %d have a concealed frame\n", lost,
           hidden);
    assert_true(lost > 2);
    free(copy);
    free(bytes);
}

static void refuses_bytes(const void *bytes, size_t size, const char *word) {
    Error error;
    VideoReader *v = video_open(bytes, size, VIDEO_MAX_PIXELS, &error);
    assert_null(v);
    if (!strstr(error.text, word)) fail_msg("'%s' without '%s'", error.text, word);
}

/* Files that are no videos, and playlists of other files, which must not be opened. */
static void other_files_are_refused(void **state) {
    (void)state;
    static const char list[] = "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n";
    static const char concatenated[] = "ffconcat version 1.0\nfile /etc/passwd\n";
    refuses_bytes("", 0, "not a video");
    refuses_bytes("not a video at all, but a line of text that is long enough", 56, "not a video");
    refuses_bytes(list, sizeof list - 1, "not a video");
    refuses_bytes(concatenated, sizeof concatenated - 1, "not a video");
}

static void large_frames_are_refused(void **state) {
    (void)state;
    VideoRecipe r = {"matroska", "ffv1", .frames = 2, .height = 48, .width = 64, .key_distance = 1};
    size_t size;
    uint8_t *bytes = encode_video(&r, &size);
    Error error;
    Seen seen = {.count = 0};
    VideoReader *v = video_open(bytes, size, 47 * 64, &error);
    assert_true(!v || !video_read(v, (int[]){0}, 1, look, &seen, &error));
    video_close(v);
    v = video_open(bytes, size, 48 * 64, &error);
    assert_non_null(v);
    assert_true(video_read(v, (int[]){0}, 1, look, &seen, &error));
    assert_false(video_read(v, (int[]){2}, 1, look, &seen, &error));
    assert_non_null(strstr(error.text, "frame 2 of 2"));
    video_close(v);
    free(bytes);
}

static void names_of_videos(void **state) {
    (void)state;
    Error error;
    assert_true(video_available(&error));
    assert_true(video_has_name("x.mp4") && video_has_name("a.b.AVI") && video_has_name("x.webm"));
    assert_false(video_has_name("x.jpg") || video_has_name("mp4") || video_has_name("x.mp4.txt"));
}

/* == As a data set ================================================================================================ */

enum { SIDE = 32, T0 = 4, CLIP = T0 * SIDE * SIDE * 3 };

static void save(const char *path, const void *bytes, size_t size) {
    Error error;
    assert_true(file_write(path, bytes, size, &error));
}

/* Two classes of three videos; one video is damaged, and one is shorter than a clip. */
static void make_videos(void) {
    for (int i = 0; i < 6; i++) {
        VideoRecipe r = {i % 2 ? "mp4" : "matroska", "mpeg4", .frames = i == 5 ? 2 : F, .height = 40,
                         .width = 64, .key_distance = 12, .b_frames = 2};
        size_t size;
        uint8_t *bytes = encode_video(&r, &size);
        make_folders(in_folder("videos/train/%s", i < 3 ? "down" : "up"));
        if (i == 1) memset(bytes, 7, size);
        save(in_folder("videos/train/%s/%d.%s", i < 3 ? "down" : "up", i, i % 2 ? "mp4" : "mkv"), bytes, size);
        free(bytes);
    }
    make_folders(in_folder("videos/val/down"));
}

static LoaderConfig videos_config(bool train) {
    return (LoaderConfig){.parts = {.seed = 5, .batch_size = 6, .train = train, .max_damaged = 0.5f},
                          .frames = T0,
                          .clips = {.sampling = SAMPLING_DENSE, .frame_stride = 4, .test_clips = 2, .test_crops = 3},
                          .transform = {.height = SIDE, .width = SIDE, .augment.s.flip = true, .s.eval_resize = SIDE}};
}

static void folders_of_videos(void **state) {
    (void)state;
    static uint8_t want[36 * CLIP], got[36 * CLIP];
    int want_labels[36], labels[36], kept = quiet_begin();
    Dataset dataset;
    make_videos();
    dataset_open(&dataset, in_folder("videos"), NULL, true, 0);
    quiet_end(kept);
    assert_true(dataset.clips);
    assert_int_equal(dataset.count, 6);
    assert_int_equal(dataset.classes, 2);
    for (int train = 0; train < 2; train++) {
        int n = train ? 6 : 36;
        for (int workers = 0; workers <= 3; workers++) {
            LoaderConfig config = videos_config(train);
            Loader loader;
            LoaderPart part;
            kept = quiet_begin();
            config.parts.pool = workers ? loader_pool_open(workers) : NULL;
            loader_open(&loader, &dataset, &config);
            parts_start(&loader.parts, 1, 0);
            for (int at = 0; loader_next(&loader, &part); at += part.n) {
                memcpy((workers ? got : want) + at * CLIP, part.pixels, (size_t)part.n * CLIP);
                memcpy((workers ? labels : want_labels) + at, part.labels, (size_t)part.n * sizeof *labels);
            }
            for (int i = 0; !workers && train && i < n; i++) {
                uint32_t index = loader_draw(&loader, (size_t)i);
                assert_int_equal(want_labels[i], index >= 3); /* video 2 replaces video 1 */
            }
            parts_close(&loader.parts);
            loader_pool_close(config.parts.pool);
            quiet_end(kept);
        }
        assert_memory_equal(labels, want_labels, (size_t)n * sizeof *labels);
        for (int i = 0; i < n; i++)
            if (labels[i] >= 0) assert_memory_equal(got + i * CLIP, want + i * CLIP, CLIP);
        for (int i = 0; !train && i < n; i++) {
            int video = i / 6, clip = i / 3 % 2;
            assert_int_equal(labels[i], video == 1 ? -1 : video >= 3);
            if (video == 1) continue;
            for (int t = 0; t < T0; t++) { /* 16 of 37 frames from 0 or 21 on, every 5th */
                int frame = video == 5 ? (t > 0) : 21 * clip + 5 * t;
                const uint8_t *middle = got + i * CLIP + (t * SIDE * SIDE + SIDE / 2 * SIDE + SIDE / 2) * 3;
                if (abs(luma_of(middle) - frame_luma(frame)) > 2)
                    fail_msg("video %d, view %d, frame %d: %d", video, i % 6, t, luma_of(middle));
            }
        }
    }
    dataset_close(&dataset);
}

/* test_video FILE writes a video of 37 frames for tests of whole programs. */
static int write_video(const char *path) {
    VideoRecipe r = {"mp4", "mpeg4", .frames = F, .height = 48, .width = 64, .key_distance = 12, .b_frames = 2};
    size_t size;
    Error error;
    uint8_t *bytes = encode_video(&r, &size);
    bool ok = file_write(path, bytes, size, &error);
    free(bytes);
    return !ok;
}

int main(int argc, char **argv) {
    if (argc > 1) return write_video(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_frame_is_found),
        cmocka_unit_test(frames_may_be_hidden),
        cmocka_unit_test(rates_may_vary),
        cmocka_unit_test(edit_lists_cut_the_start),
        cmocka_unit_test(a_list_can_be_empty),
        cmocka_unit_test(tables_may_lie),
        cmocka_unit_test(sizes_may_change),
        cmocka_unit_test(one_frame),
        cmocka_unit_test(rotations_are_undone),
        cmocka_unit_test(colours_follow_their_tags),
        cmocka_unit_test(cut_files),
        cmocka_unit_test(overwritten_packets),
        cmocka_unit_test(other_files_are_refused),
        cmocka_unit_test(large_frames_are_refused),
        cmocka_unit_test(names_of_videos),
        cmocka_unit_test(folders_of_videos),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
