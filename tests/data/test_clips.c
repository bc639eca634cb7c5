/* Clips: the choice of frames, the embedded set of moving shapes, whose class no single frame shows, the loader, and
 * the scores of several views of a video. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "core/files.h"
#include "core/results/views.h"
#include "data/video/clip_file.h"
#include "data/video/clips.h"
#include "data/sets/datasets.h"
#include "data/images/image.h"
#include "data/images/jpeg.h"
#include "data/loading/loader.h"
#include "data/sets/moving_shapes.h"
#include "data/sets/record.h"
#include "data/images/sheet.h"
#include "tests/check.h"
#include "tests/ranges.h"
#include "tests/scratch.h"

/* == Frames of a video ============================================================================================ */

static ClipChoice choice_of(Sampling sampling, int frames, int stride, int clips, int clip) {
    return (ClipChoice){.frames = frames, .clip = clip,
                        .s = {.sampling = sampling, .frame_stride = stride, .test_clips = clips, .test_crops = 1}};
}

static void frames_are(ClipChoice choice, int F, const int *want) {
    int got[64];
    clip_frames(got, F, 0, &choice);
    for (int i = 0; i < choice.frames; i++)
        if (got[i] != want[i]) fail_msg("frame %d of %d: %d instead of %d", i, choice.frames, got[i], want[i]);
}

#define FRAMES(...) ((const int[]){__VA_ARGS__})

/* Frames of a video with 37 frames.  training_frames tests random starts. */
static void dense_frames(void **state) {
    (void)state;
    frames_are(choice_of(SAMPLING_DENSE, 8, 4, 4, 0), 37, FRAMES(0, 4, 8, 13, 17, 22, 26, 31));
    frames_are(choice_of(SAMPLING_DENSE, 8, 4, 4, 1), 37, FRAMES(1, 5, 9, 14, 18, 23, 27, 32));
    frames_are(choice_of(SAMPLING_DENSE, 8, 4, 4, 3), 37, FRAMES(3, 7, 11, 16, 20, 25, 29, 34));
    frames_are(choice_of(SAMPLING_DENSE, 8, 4, 1, 0), 37, FRAMES(2, 6, 10, 15, 19, 24, 28, 33));
    frames_are(choice_of(SAMPLING_DENSE, 8, 2, 4, 3), 37, FRAMES(21, 23, 25, 27, 29, 31, 33, 36));
    for (int k = 0; k < 4; k++) { /* the starts are 0, 7, 14 and 21 */
        int got[8];
        ClipChoice choice = choice_of(SAMPLING_DENSE, 8, 2, 4, k);
        clip_frames(got, 37, 0, &choice);
        assert_int_equal(got[0], 7 * k);
    }
    frames_are(choice_of(SAMPLING_DENSE, 16, 4, 1, 0), 37,
               FRAMES(0, 4, 8, 12, 16, 21, 25, 29, 33, 36, 36, 36, 36, 36, 36, 36));
    frames_are(choice_of(SAMPLING_DENSE, 1, 4, 1, 0), 37, FRAMES(16));
    frames_are(choice_of(SAMPLING_DENSE, 4, 4, 1, 0), 1, FRAMES(0, 0, 0, 0));
}

/* A clip of a video with twice the target rate spans twice as many frames. */
static void dense_frames_at_a_rate(void **state) {
    (void)state;
    int got[8], want[8];
    ClipChoice choice = choice_of(SAMPLING_DENSE, 8, 2, 1, 0), twice = choice_of(SAMPLING_DENSE, 8, 4, 1, 0);
    clip_frames(want, 37, 0, &twice);
    choice.s.target_fps = 30;
    clip_frames(got, 37, 60, &choice);
    assert_memory_equal(got, want, sizeof got);
    clip_frames(got, 37, 30, &choice);
    assert_int_not_equal(got[7], want[7]);
    clip_frames(want, 37, 0, &choice); /* an unknown rate counts as the target rate */
    assert_memory_equal(got, want, sizeof got);
}

/* Halves are rounded to even: 4.5, 13.5, 22.5 and 31.5 become 4, 14, 22 and 32. */
static void segment_frames(void **state) {
    (void)state;
    frames_are(choice_of(SAMPLING_SEGMENTS, 8, 1, 1, 0), 37, FRAMES(2, 6, 11, 16, 20, 24, 29, 34));
    frames_are(choice_of(SAMPLING_SEGMENTS, 8, 1, 2, 0), 37, FRAMES(1, 5, 10, 15, 19, 23, 28, 33));
    frames_are(choice_of(SAMPLING_SEGMENTS, 8, 1, 2, 1), 37, FRAMES(3, 7, 12, 17, 21, 25, 30, 35));
    frames_are(choice_of(SAMPLING_SEGMENTS, 16, 1, 1, 0), 37,
               FRAMES(1, 3, 5, 8, 10, 12, 15, 17, 19, 21, 23, 26, 28, 30, 33, 35));
    frames_are(choice_of(SAMPLING_SEGMENTS, 8, 1, 1, 0), 5, FRAMES(0, 0, 1, 2, 2, 2, 3, 4));
    frames_are(choice_of(SAMPLING_SEGMENTS, 4, 1, 1, 0), 1, FRAMES(0, 0, 0, 0));
}

static void tsn_frames(void **state) {
    (void)state;
    frames_are(choice_of(SAMPLING_TSN, 8, 1, 1, 0), 37, FRAMES(2, 6, 11, 16, 20, 25, 30, 34));
    frames_are(choice_of(SAMPLING_TSN, 4, 1, 1, 0), 3, FRAMES(0, 1, 1, 2));
    frames_are(choice_of(SAMPLING_TSN, 2, 1, 2, 0), 12, FRAMES(2, 8));
    frames_are(choice_of(SAMPLING_TSN, 2, 1, 2, 1), 12, FRAMES(4, 10));
}

/* mmaction2's and TSN's loaders compute (np.arange(T0) * tick + tick / 2.0).astype(np.int32) with tick = F / float(T0).
 * For F <= 64 and T0 <= 16 this is floor((2i + 1) F / 2 T0), except that numpy 2.4 gives one less for these frames. */
static void tsn_frames_of_numpy(void **state) {
    (void)state;
    static const struct {
        int F, T0, i;
    } lower[] = {
        {4, 14, 10}, {6, 7, 3}, {6, 9, 7}, {8, 12, 7}, {8, 12, 10}, {8, 14, 10}, {10, 11, 5}, {10, 15, 7},
        {10, 15, 10}, {12, 7, 3}, {12, 9, 7}, {12, 14, 3}, {16, 12, 7}, {16, 12, 10}, {16, 14, 10}, {18, 13, 6},
        {18, 15, 12}, {20, 11, 5}, {20, 15, 7}, {20, 15, 10}, {22, 15, 7}, {24, 7, 3}, {24, 9, 7}, {24, 14, 3},
        {28, 10, 7}, {30, 11, 5}, {30, 13, 6}, {32, 12, 7}, {32, 12, 10}, {32, 14, 10}, {34, 7, 3}, {36, 13, 6},
        {36, 15, 12}, {38, 13, 6}, {40, 11, 5}, {40, 15, 7}, {40, 15, 10}, {42, 15, 7}, {42, 15, 12}, {44, 15, 7},
        {46, 11, 5}, {48, 7, 3}, {48, 9, 7}, {48, 14, 3}, {56, 10, 7}, {60, 11, 5}, {60, 13, 6}, {62, 13, 6},
        {64, 12, 7}, {64, 12, 10}, {64, 14, 10}};
    size_t at = 0, count = sizeof lower / sizeof *lower;
    for (int F = 1; F <= 64; F++) {
        for (int T0 = 1; T0 <= 16; T0++) {
            ClipChoice choice = choice_of(SAMPLING_TSN, T0, 1, 1, 0);
            int got[16];
            clip_frames(got, F, 0, &choice);
            for (int i = 0; i < T0; i++) {
                bool listed = at < count && lower[at].F == F && lower[at].T0 == T0 && lower[at].i == i;
                assert_int_equal(got[i], (2 * i + 1) * F / (2 * T0) - listed);
                at += listed;
            }
        }
    }
    assert_int_equal(at, count);
}

/* In training every frame of a segment occurs, its ends included, and no other.  With TSN's sampling the last five of
 * 37 frames never occur. */
static void training_frames(void **state) {
    (void)state;
    static const int low[8] = {0, 4, 9, 14, 18, 22, 27, 32}, high[8] = {4, 9, 14, 18, 22, 27, 32, 36};
    bool seen[2][8][37] = {{{false}}};
    double starts = 0;
    for (uint32_t draw = 0; draw < 2000; draw++) {
        int got[8], again[8];
        for (int form = 0; form < 3; form++) {
            ClipChoice c = choice_of(form ? form > 1 ? SAMPLING_DENSE : SAMPLING_TSN : SAMPLING_SEGMENTS, 8, 4, 1, 0);
            c.train = true;
            c.seed = check_seed();
            c.epoch = 3;
            c.draw = draw;
            clip_frames(got, 37, 0, &c);
            clip_frames(again, 37, 0, &c);
            assert_memory_equal(got, again, sizeof got);
            for (int i = 0; i < 8; i++) {
                assert_in_range(got[i], i ? got[i - 1] : 0, 36);
                if (form < 2) seen[form][i][got[i]] = true;
            }
            if (form < 2) continue;
            double start = 5 * (double)rng_uniform(c.seed, RNG_FRAMES, 3, draw, 0);
            for (int i = 0; i < 8; i++) assert_int_equal(got[i], (int)floor(start + i * 31 / 7.0));
            starts += start / 2000;
        }
    }
    for (int i = 0; i < 8; i++)
        for (int f = 0; f < 37; f++) {
            assert_int_equal(seen[0][i][f], f >= low[i] && f <= high[i]);
            assert_int_equal(seen[1][i][f], f / 4 == i && f < 32);
        }
    assert_true(fabs(starts - 2.5) < 5 * 1.45 / sqrt(2000)); /* 5 standard errors of 5 / sqrt 12 / sqrt 2000 */
}

/* == What a frame shows =========================================================================================== */

enum { SMALL = 5, T = 3 };

/* The cells that an L of three cells covers, as bits. */
static uint64_t ell(int x, int y, int side) {
    int below = moving_at(y, 1, 1, side), right = moving_at(x, 1, 1, side);
    return 1ull << (y * side + x) | 1ull << (below * side + x) | 1ull << (below * side + right);
}

static void ell_clip(uint64_t frames[T], int direction, int speed, int start, int side) {
    const int *v = moving_directions[direction];
    for (int t = 0; t < T; t++)
        frames[t] = ell(moving_at(start % side, speed * v[0], t, side), moving_at(start / side, speed * v[1], t, side),
                        side);
}

static int by_number(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* What a model sees of a clip: words that are equal if the pixels are. */
typedef struct {
    uint64_t words[T];
    int label;
} Sight;

static int by_sight(const void *a, const void *b) { return memcmp(a, b, T * sizeof(uint64_t)); }

/* The accuracy of the best classifier that only sees these equally likely sights: for each group of equal sights it
 * chooses the most frequent label. */
static double best_guess(Sight *sights, int count) {
    int right = 0;
    qsort(sights, (size_t)count, sizeof *sights, by_sight);
    for (int first = 0, end; first < count; first = end) {
        int labels[8] = {0}, most = 0;
        for (end = first; end < count && !by_sight(&sights[first], &sights[end]); end++) labels[sights[end].label]++;
        for (int c = 0; c < 8; c++) most = labels[c] > most ? labels[c] : most;
        right += most;
    }
    return (double)right / count;
}

/* On the torus a single frame does not show the class, frames without order leave two possible classes, and the
 * sequence shows the class. */
static void a_frame_tells_nothing_by_counting(void **state) {
    (void)state;
    static Sight frame[T][8 * 3 * 49], bag[8 * 3 * 49], sequence[8 * 3 * 49];
    for (int side = SMALL; side <= 7; side += 2) {
        int speeds = side == SMALL ? 1 : 3, starts = side * side, n = 0;
        for (int d = 0; d < 8; d++)
            for (int s = 1; s <= speeds; s++)
                for (int start = 0; start < starts; start++, n++) {
                    uint64_t clip[T];
                    ell_clip(clip, d, s, start, side);
                    for (int t = 0; t < T; t++) frame[t][n] = (Sight){{clip[t]}, d};
                    sequence[n].label = bag[n].label = d;
                    memcpy(sequence[n].words, clip, sizeof clip);
                    qsort(clip, T, sizeof *clip, by_number);
                    memcpy(bag[n].words, clip, sizeof clip);
                }
        for (int t = 0; t < T; t++) assert_true(best_guess(frame[t], n) == 1 / 8.0);
        assert_true(best_guess(bag, n) == 1 / 2.0);
        assert_true(best_guess(sequence, n) == 1);
    }
}

/* Without wrapping a single frame does show something of the class: the same motions on a canvas of 9 x 9, where all
 * three places lie inside. */
static void borders_would_tell(void **state) {
    (void)state;
    enum { SIDE = 9 };
    double largest = 0;
    for (int t = 0; t < T; t++) {
        double shares[SIDE][SIDE][8] = {{{0}}};
        for (int d = 0; d < 8; d++) {
            const int *v = moving_directions[d];
            int count = 0, across = abs(v[0]) * (T - 1), down = abs(v[1]) * (T - 1);
            int places = (SIDE - across) * (SIDE - down);
            for (int y = 0; y < SIDE; y++)
                for (int x = 0; x < SIDE; x++) {
                    int lx = x + v[0] * (T - 1), ly = y + v[1] * (T - 1);
                    if (lx < 0 || ly < 0 || lx >= SIDE || ly >= SIDE) continue;
                    shares[y + v[1] * t][x + v[0] * t][d] += 1.0 / places / 8;
                    count++;
                }
            assert_int_equal(count, places);
        }
        double right = 0;
        for (int y = 0; y < SIDE; y++)
            for (int x = 0; x < SIDE; x++) {
                double most = 0;
                for (int d = 0; d < 8; d++) most = fmax(most, shares[y][x][d]);
                right += most;
            }
        printf("  without wrapping, frame %d alone: %.4f\n", t, right);
        assert_true(right > 0.18);
        largest = fmax(largest, right);
    }
    assert_true(fabs(largest - 0.2066) < 0.0001);
}

/* == Drawing of scenes ============================================================================================= */

/* A small torus with a small figure and no noise, so that all starting positions can be enumerated. */
static MovingScene small_scene(MovingTask task, uint32_t index) {
    MovingScene scene = moving_scene(task, check_seed(), 0, index);
    scene.side = 9;
    scene.noise = 0;
    for (int i = 0; i < scene.figures; i++) {
        scene.figure[i].least = task == MOVING_SIZE ? 1 : 2;
        scene.figure[i].largest = 2;
    }
    return scene;
}

/* The sorted hashes of frame t over all starts of what moves; the rest is as in `scene`. */
static size_t frames_of(uint64_t *hashes, MovingScene scene, int t) {
    MovingFigure *f = scene.figure;
    int side = scene.side, angles = f->turn ? MOVING_ANGLES : 1, sizes = f->growth ? MOVING_SIZES : 1;
    int others = scene.figures > 1 ? side * side : 1;
    size_t n = 0;
    uint8_t pixels[9 * 9 * 3];
    for (int start = 0; start < side * side; start++)
        for (int a = 0; a < angles; a++)
            for (int s = 0; s < sizes; s++)
                for (int o = 0; o < others; o++) {
                    f->x = start % side;
                    f->y = start / side;
                    if (f->turn) f->angle = a;
                    if (f->growth) f->size = s;
                    if (others > 1) {
                        f[1].x = o % side;
                        f[1].y = o / side;
                    }
                    moving_draw(&scene, t, pixels);
                    hashes[n++] = XXH3_64bits(pixels, sizeof pixels);
                }
    qsort(hashes, n, sizeof *hashes, by_number);
    return n;
}

/* `scene` with the motion of another scene, as if it had the other's label. */
static MovingScene with_motion_of(MovingScene scene, const MovingScene *other) {
    for (int i = 0; i < scene.figures; i++) {
        scene.figure[i].vx = other->figure[i].vx;
        scene.figure[i].vy = other->figure[i].vy;
        scene.figure[i].turn = other->figure[i].turn;
        scene.figure[i].growth = other->figure[i].growth;
    }
    return scene;
}

/* A frame has the same distribution in all classes: each picture occurs equally often. */
static void frames_of_all_classes_are_alike(void **state) {
    (void)state;
    static uint64_t want[81 * 81], got[81 * 81];
    for (int task = 0; task < MOVING_TASKS; task++) {
        MovingScene scene = small_scene((MovingTask)task, 0);
        size_t n = frames_of(want, scene, 0), different = 1;
        for (size_t i = 1; i < n; i++) different += want[i] != want[i - 1];
        assert_true(different > 40); /* the pictures differ */
        int classes = moving_classes((MovingTask)task), step = task == MOVING_PAIR ? 3 : 1;
        for (int label = 0; label < classes; label += step)
            for (int t = 1; t < 8; t += 3) {
                MovingScene other = small_scene((MovingTask)task, (uint32_t)label);
                assert_int_equal(frames_of(got, with_motion_of(scene, &other), t), n);
                assert_memory_equal(got, want, n * sizeof *got);
            }
    }
}

/* A frame is the first one, shifted on the torus; the background does not move. */
static void frames_are_shifts(void **state) {
    (void)state;
    static uint8_t first[MOVING_SIDE * MOVING_SIDE * 3], later[MOVING_SIDE * MOVING_SIDE * 3];
    for (uint32_t index = 0; index < 16; index++) {
        MovingScene scene = moving_scene(MOVING_DIRECTION, check_seed(), 1, index);
        const MovingFigure *f = &scene.figure[0];
        const int *v = moving_directions[index % 8];
        int speed = abs(f->vx) > abs(f->vy) ? abs(f->vx) : abs(f->vy);
        assert_in_range(speed, 1, 3);
        assert_int_equal(f->vx, speed * v[0]);
        assert_int_equal(f->vy, speed * v[1]);
        scene.noise = 0;
        memset(scene.stripe, 0, sizeof scene.stripe);
        moving_draw(&scene, 0, first);
        moving_draw(&scene, 7, later);
        for (int y = 0; y < MOVING_SIDE; y++)
            for (int x = 0; x < MOVING_SIDE; x++) {
                int to_y = moving_at(y, f->vy, 7, MOVING_SIDE), to_x = moving_at(x, f->vx, 7, MOVING_SIDE);
                assert_memory_equal(later + (to_y * MOVING_SIDE + to_x) * 3, first + (y * MOVING_SIDE + x) * 3, 3);
            }
    }
}

/* Starts are uniform (chi squared test of coordinates, angles and sizes), and each frame has new noise. */
static void starts_are_uniform(void **state) {
    (void)state;
    enum { CLIPS = 6400 };
    int x[MOVING_SIDE] = {0}, y[MOVING_SIDE] = {0}, angle[MOVING_ANGLES] = {0}, size[MOVING_SIZES] = {0};
    for (uint32_t i = 0; i < CLIPS; i++) {
        MovingScene scene = moving_scene(i % 2 ? MOVING_TURN : MOVING_SIZE, check_seed(), 0, i / 2);
        x[scene.figure[0].x]++;
        y[scene.figure[0].y]++;
        angle[scene.figure[0].angle]++;
        size[scene.figure[0].size]++;
    }
    const struct {
        const int *counts;
        int n;
    } tables[] = {{x, MOVING_SIDE}, {y, MOVING_SIDE}, {angle, MOVING_ANGLES}, {size, MOVING_SIZES}};
    for (int k = 0; k < 4; k++) {
        double want = (double)CLIPS / tables[k].n, chi = 0, degrees = tables[k].n - 1;
        for (int i = 0; i < tables[k].n; i++) chi += (tables[k].counts[i] - want) * (tables[k].counts[i] - want) / want;
        /* Pairs of clips have one start, which doubles chi; six deviations, and more for the longer tail. */
        assert_true(chi < 2 * (degrees + 6 * sqrt(2 * degrees) + 20));
    }
    uint8_t a[MOVING_SIDE * MOVING_SIDE * 3], b[MOVING_SIDE * MOVING_SIDE * 3];
    MovingScene scene = moving_scene(MOVING_DIRECTION, check_seed(), 0, 5);
    scene.figures = 0;
    scene.noise = 0.08f;
    moving_draw(&scene, 0, a);
    moving_draw(&scene, 1, b);
    size_t same = 0;
    for (size_t i = 0; i < sizeof a; i++) same += a[i] == b[i];
    assert_true(same < sizeof a / 10);
}

/* == The loader =================================================================================================== */

enum { FRAMES = 5, FRAME = MOVING_SIDE * MOVING_SIDE * 3, CLIP = FRAMES * FRAME };

static LoaderConfig clips_config(bool train) {
    return (LoaderConfig){.parts = {.seed = 11, .batch_size = 6, .train = train, .max_damaged = 0.5f},
                          .frames = FRAMES, .transform = {.height = MOVING_SIDE, .width = MOVING_SIDE},
                          .clips = {.test_clips = 1, .test_crops = 1}};
}

static void moving_statistics(void **state) {
    (void)state;
    Dataset dataset;
    moving_open(&dataset, MOVING_DIRECTION, true, 0, 0);
    assert_int_equal(dataset.count, MOVING_TRAIN);
    dataset_close(&dataset);
    moving_open(&dataset, MOVING_DIRECTION, true, 0, 512);
    static uint8_t pixels[CLIP];
    double sum[3] = {0}, squares[3] = {0};
    LoaderConfig config = clips_config(false);
    Loader loader;
    loader_open(&loader, &dataset, &config);
    for (size_t i = 0; i < dataset.count; i++) {
        int label;
        loader_fill(&loader, i, 1, pixels, &label);
        assert_int_equal(label, i % 8);
        for (size_t p = 0; p < FRAME; p++) {
            sum[p % 3] += pixels[p] / 255.0;
            squares[p % 3] += pixels[p] / 255.0 * pixels[p] / 255.0;
        }
    }
    for (int c = 0; c < 3; c++) {
        double n = (double)dataset.count * FRAME / 3, mean = sum[c] / n, deviation = sqrt(squares[c] / n - mean * mean);
        printf("  mean %.3f std %.3f\n", mean, deviation);
        assert_true(fabs(mean - (double)dataset.mean[c]) < 0.01 && fabs(deviation - (double)dataset.std[c]) < 0.01);
    }
    parts_close(&loader.parts);
    dataset_close(&dataset);
}

/* The direction of motion: the one whose velocity explains the bright pixels best.  It agrees with the label only if
 * the loader gives the frames in order and with the right label. */
static int direction_seen(const uint8_t *clip, int frames) {
    static bool bright[16][MOVING_SIDE][MOVING_SIDE];
    int best = -1, least = INT32_MAX;
    for (int t = 0; t < frames; t++)
        for (int p = 0; p < MOVING_SIDE * MOVING_SIDE; p++) {
            const uint8_t *pixel = clip + t * FRAME + 3 * p;
            bright[t][p / MOVING_SIDE][p % MOVING_SIDE] = pixel[0] + pixel[1] + pixel[2] > 360;
        }
    for (int v = 0; v < 24; v++) {
        int dx = (v / 8 + 1) * moving_directions[v % 8][0], dy = (v / 8 + 1) * moving_directions[v % 8][1], wrong = 0;
        for (int t = 1; t < frames; t++)
            for (int y = 0; y < MOVING_SIDE; y++)
                for (int x = 0; x < MOVING_SIDE; x++)
                    wrong += bright[t - 1][y][x] !=
                             bright[t][moving_at(y, dy, 1, MOVING_SIDE)][moving_at(x, dx, 1, MOVING_SIDE)];
        if (wrong >= least) continue;
        least = wrong;
        best = v % 8;
    }
    return best;
}

static void the_sequence_tells(void **state) {
    (void)state;
    enum { CLIPS = 64 };
    static uint8_t clip[CLIP], reversed[CLIP];
    Dataset dataset;
    Loader loader;
    LoaderConfig config = clips_config(true);
    int right = 0, opposite = 0;
    moving_open(&dataset, MOVING_DIRECTION, true, check_seed(), CLIPS);
    loader_open(&loader, &dataset, &config);
    for (size_t i = 0; i < CLIPS; i++) {
        int label;
        loader_fill(&loader, i, 1, clip, &label);
        for (int t = 0; t < FRAMES; t++) memcpy(reversed + t * FRAME, clip + (FRAMES - 1 - t) * FRAME, FRAME);
        right += direction_seen(clip, FRAMES) == label;
        opposite += direction_seen(reversed, FRAMES) == (label + 4) % 8;
    }
    printf("  %d of %d clips by their motion, %d reversed\n", right, CLIPS, opposite);
    assert_true(right >= CLIPS - 4 && opposite >= CLIPS - 4);
    parts_close(&loader.parts);
    dataset_close(&dataset);
}

/* Loads one rank's clips of an epoch to their places in the global batches. */
static void load_clips(LoaderConfig config, const Dataset *dataset, int workers, uint8_t *pixels, int *labels) {
    Loader loader;
    LoaderPart part;
    config.parts.pool = workers ? loader_pool_open(workers) : NULL;
    loader_open(&loader, dataset, &config);
    parts_start(&loader.parts, 2, 0);
    while (loader_next(&loader, &part)) {
        size_t place = part.batch * (size_t)config.parts.batch_size + (size_t)part.first;
        memcpy(pixels + place * CLIP, part.pixels, (size_t)part.n * CLIP);
        memcpy(labels + place, part.labels, (size_t)part.n * sizeof *labels);
    }
    parts_close(&loader.parts);
    loader_pool_close(config.parts.pool);
}

static void clips_do_not_depend_on_workers_or_ranks(void **state) {
    (void)state;
    enum { CLIPS = 13 };
    static uint8_t want[2 * CLIPS * CLIP], got[2 * CLIPS * CLIP];
    int want_labels[2 * CLIPS], labels[2 * CLIPS];
    Dataset dataset;
    Error error;
    moving_open(&dataset, MOVING_TURN, true, 3, CLIPS);
    for (int train = 0; train < 2; train++) {
        LoaderConfig config = clips_config(train);
        config.transform.augment.s = (AugmentSettings){.crop_padding = 4, .flip = true};
        assert_true(randaugment_parse(&config.transform.augment.randaugment, "rand-m9-mstd0.5-inc1", &error));
        config.clips.test_clips = config.clips.samples_per_clip = 2;
        int n = train ? 2 * CLIPS / 6 * 6 : 2 * CLIPS;
        load_clips(config, &dataset, 0, want, want_labels);
        for (int ranks = 1; ranks <= 3; ranks++)
            for (int part = 0; part <= 2; part++) {
                memset(got, 0, sizeof got);
                memset(labels, 0xff, sizeof labels);
                config.parts.ranks = ranks;
                config.parts.part = part;
                for (config.parts.rank = 0; config.parts.rank < ranks; config.parts.rank++)
                    load_clips(config, &dataset, ranks + part - 1, got, labels);
                assert_memory_equal(got, want, (size_t)n * CLIP);
                assert_memory_equal(labels, want_labels, (size_t)n * sizeof *labels);
            }
        config.parts.rank = config.parts.ranks = config.parts.part = 0;
        for (int i = 0; !train && i < 2 * CLIPS; i++) /* both views of a clip, one after the other */
            assert_int_equal(want_labels[i], i / 2 % 2);
    }
    dataset_close(&dataset);
}

/* All frames show the same picture. */
static bool bars_read(const Dataset *dataset, size_t index, const ClipChoice *choice, SampleBuffer *buffer,
                      const ClipTaker *taker, int *label, Error *error) {
    Sample frame = {.size = (size_t)dataset->height * (size_t)dataset->width * 3, .height = dataset->height,
                    .width = dataset->width, .label = (int)(index % 3)};
    *label = frame.label;
    if (index == 4) return refuse(error, "damaged on purpose");
    if (!sample_buffer_grow(buffer, frame.size)) return refuse_memory(error, frame.size, "a frame");
    for (int t = 0; t < choice->frames; t++) {
        for (size_t p = 0; p < frame.size; p++)
            buffer->bytes[p] = (uint8_t)(p / 3 % (size_t)frame.width + p / 3 / (size_t)frame.width * 3 + p % 3);
        frame.bytes = buffer->bytes;
        if (!taker->take(taker->context, t, &frame, error)) return false;
    }
    return true;
}

static Dataset bars(int height, int width) {
    static const int mirrored[3] = {1, 0, -1};
    return (Dataset){.name = "bars", .count = 7, .classes = 3, .clips = true, .height = height, .width = width,
                     .mirrored = mirrored, .read_clip = bars_read};
}

/* All frames are cropped, mirrored and recoloured alike, and a mirrored clip has the label of the mirrored class. */
static void a_clip_is_augmented_as_one(void **state) {
    (void)state;
    enum { SIDE = 16, BYTES = 16 * 16 * 3 };
    static uint8_t clip[FRAMES * BYTES], still[FRAMES * BYTES];
    Error error;
    int flipped = 0, kept = quiet_begin(), resized = 0;
    for (int size = SIDE; size <= 40; size += 24) {
        Dataset dataset = bars(size, size + 8 * (size > SIDE));
        LoaderConfig config = clips_config(true);
        config.parts.batch_size = 1;
        config.transform.height = config.transform.width = SIDE;
        config.transform.augment.s = (AugmentSettings){.crop_padding = 4, .flip = true};
        assert_true(randaugment_parse(&config.transform.augment.randaugment, "rand-m9-mstd0.5-inc1", &error));
        Loader loader;
        loader_open(&loader, &dataset, &config);
        for (uint32_t epoch = 0; epoch < 20; epoch++) {
            parts_epoch(&loader.parts, epoch);
            for (size_t i = 0; i < dataset.count; i++) {
                int label;
                uint32_t draw = loader_draw(&loader, i);
                if (draw == 4) continue;
                loader_fill(&loader, i, 1, clip, &label);
                for (int t = 1; t < FRAMES; t++) assert_memory_equal(clip + t * BYTES, clip, BYTES);
                bool mirror = rng_bits(config.parts.seed, RNG_FLIP, epoch, draw, 0) >> 31;
                assert_int_equal(label, draw % 3 == 2 ? 2 : mirror ? 1 - (int)(draw % 3) : (int)(draw % 3));
                if (draw % 3 == 2) { /* a class without a mirror image is never flipped */
                    Loader plain;
                    LoaderConfig unflipped = loader.config;
                    unflipped.transform.augment.s.flip = false;
                    loader_open(&plain, &dataset, &unflipped);
                    parts_epoch(&plain.parts, epoch);
                    loader_fill(&plain, i, 1, still, &label);
                    assert_memory_equal(clip, still, sizeof clip);
                    parts_close(&plain.parts);
                }
                flipped += mirror;
                resized += size > SIDE;
            }
        }
        parts_close(&loader.parts);
    }
    quiet_end(kept);
    assert_true(flipped > 40 && resized > 40);
}

/* Three crops along a side of 27 with a short side of 16 begin at 0, ceil(11 / 2) = 6, and 11. */
static void views_are_clips_and_crops(void **state) {
    (void)state;
    enum { SIDE = 16, BYTES = 16 * 16 * 3 };
    static uint8_t pixels[6 * FRAMES * BYTES];
    static const int from[3] = {0, 6, 11};
    int labels[6];
    for (int upright = 0; upright < 2; upright++) {
        Dataset dataset = bars(upright ? 27 : SIDE, upright ? SIDE : 27);
        LoaderConfig config = clips_config(false);
        config.transform.height = config.transform.width = config.transform.s.eval_resize = SIDE;
        config.clips.test_clips = 2;
        config.clips.test_crops = 3;
        Loader loader;
        loader_open(&loader, &dataset, &config);
        assert_int_equal(loader_views(&loader), 6);
        assert_int_equal(loader.parts.batches, 7);
        loader_fill(&loader, 6, 6, pixels, labels);
        for (int view = 0; view < 6; view++) {
            assert_int_equal(labels[view], 1);
            const uint8_t *corner = pixels + view * FRAMES * BYTES;
            assert_int_equal(corner[0], upright ? 3 * from[view % 3] : from[view % 3]);
        }
        parts_close(&loader.parts);
    }
}

/* In evaluation a video that cannot be read keeps its place and has a negative label; in training the next one replaces
 * it. */
static void damaged_videos(void **state) {
    (void)state;
    enum { SIDE = 16, BYTES = 16 * 16 * 3 };
    static uint8_t pixels[7 * FRAMES * BYTES];
    Dataset dataset = bars(SIDE, SIDE);
    int labels[7];
    for (int train = 0; train < 2; train++) {
        LoaderConfig config = clips_config(train);
        config.parts.batch_size = 7;
        config.transform.height = config.transform.width = SIDE;
        Loader loader;
        int kept = quiet_begin();
        loader_open(&loader, &dataset, &config);
        loader_fill(&loader, 0, 7, pixels, labels);
        quiet_end(kept);
        for (int i = 0; i < 7; i++) {
            int index = (int)loader_draw(&loader, (size_t)i);
            assert_int_equal(labels[i], index != 4 ? index % 3 : train ? 5 % 3 : -1 - 4 % 3);
        }
        assert_int_equal(parts_stats(&loader.parts).damaged, 1);
        parts_close(&loader.parts);
    }
}

/* == Several samples of a clip ==================================================================================== */

enum { OPENED_SIDE = 16, OPENED_BYTES = OPENED_SIDE * OPENED_SIDE * 3, OPENED_CLIPS = 12 };
static atomic_int opened[OPENED_CLIPS];       /* how often each clip was read */
static atomic_uint drawn_for[OPENED_CLIPS];   /* the draw with which its frames were chosen */

/* Every frame of every clip has different pixels, and clip 5 is damaged. */
static bool opened_read(const Dataset *dataset, size_t index, const ClipChoice *choice, SampleBuffer *buffer,
                        const ClipTaker *taker, int *label, Error *error) {
    Sample frame = {.size = OPENED_BYTES, .height = OPENED_SIDE, .width = OPENED_SIDE, .label = (int)(index % 3)};
    (void)dataset;
    *label = frame.label;
    opened[index]++;
    drawn_for[index] = choice->draw;
    if (index == 5) return refuse(error, "damaged on purpose");
    if (!sample_buffer_grow(buffer, frame.size)) return refuse_memory(error, frame.size, "a frame");
    for (int t = 0; t < choice->frames; t++) {
        for (size_t p = 0; p < frame.size; p++)
            buffer->bytes[p] = (uint8_t)rng_bits(choice->draw, RNG_TEST, (uint32_t)index, (uint64_t)t, p);
        frame.bytes = buffer->bytes;
        if (!taker->take(taker->context, t, &frame, error)) return false;
    }
    return true;
}

static void forget_openings(void) {
    for (int i = 0; i < OPENED_CLIPS; i++) opened[i] = 0;
}

/* Each clip of an epoch has several samples with the same frames, cropped and mirrored differently.  A part opens it
 * once for all its samples, whose bytes are those of samples loaded one by one. */
static void samples_share_a_clip(void **state) {
    enum { SAMPLES = 3, LENGTH = SAMPLES * OPENED_CLIPS, BATCH = 12, CLIP_BYTES = FRAMES * OPENED_BYTES };
    static uint8_t want[LENGTH * CLIP_BYTES];
    const Dataset dataset = {.name = "opened", .count = OPENED_CLIPS, .classes = 3, .clips = true,
                             .height = OPENED_SIDE, .width = OPENED_SIDE, .read_clip = opened_read};
    int labels[LENGTH], times[OPENED_CLIPS] = {0}, kept = quiet_begin();
    uint32_t draws[LENGTH];
    LoaderConfig config = clips_config(true);
    Loader loader;
    LoaderPart part;
    (void)state;
    config.parts.batch_size = BATCH;
    config.transform.height = config.transform.width = OPENED_SIDE;
    config.transform.augment.s = (AugmentSettings){.crop_padding = 4, .flip = true};
    config.clips.samples_per_clip = SAMPLES;
    assert_int_equal(loader_length(&dataset, &config), LENGTH);
    for (int pairs = 0; pairs < 2; pairs++) {
        config.pairs = pairs;
        loader_open(&loader, &dataset, &config);
        assert_int_equal(loader.parts.batches, LENGTH / BATCH);
        parts_epoch(&loader.parts, 2);
        loader_fill(&loader, 0, LENGTH, want, labels);
        for (size_t i = 0; i < LENGTH; i++) {
            draws[i] = loader_draw(&loader, i);
            times[draws[i] % OPENED_CLIPS]++;
            assert_true(draws[i] / OPENED_CLIPS < SAMPLES && (pairs || draws[i] / OPENED_CLIPS == i % SAMPLES));
            assert_int_equal(labels[i], draws[i] % OPENED_CLIPS == 5 ? 6 % 3 : draws[i] % OPENED_CLIPS % 3);
        }
        for (int i = 0; i < OPENED_CLIPS; i++) assert_int_equal(times[i], SAMPLES * (pairs + 1));
        for (int i = 0; i < OPENED_CLIPS; i++) /* 6 also replaces 5, with the draw of 5 */
            assert_true((int)drawn_for[i] == i || (i == 6 && drawn_for[i] == 5));
        parts_close(&loader.parts);
        for (int workers = 0; workers < 4; workers++)
            for (int size = 0; size <= 5; size += 5) { /* of a part; 0: a batch */
                int opens = 0;
                LoaderConfig shared = config;
                shared.parts.part = size;
                shared.parts.pool = workers ? loader_pool_open(workers) : NULL;
                loader_open(&loader, &dataset, &shared);
                forget_openings();
                parts_start(&loader.parts, 2, 0);
                while (loader_next(&loader, &part)) {
                    size_t at = part.batch * BATCH + (size_t)part.first - (size_t)part.pairs[0];
                    for (int i = 0; i < part.count; i++) {
                        assert_int_equal(part.draws[i], draws[at + (size_t)i]);
                        assert_int_equal(part.labels[i], labels[at + (size_t)i]);
                    }
                    assert_memory_equal(part.pixels, want + at * CLIP_BYTES, (size_t)part.count * CLIP_BYTES);
                }
                for (int i = 0; i < OPENED_CLIPS; i++) opens += opened[i];
                if (size == 0) assert_int_equal(opens, OPENED_CLIPS + 1); /* one more for the replaced clip */
                assert_int_equal(parts_stats(&loader.parts).damaged, 1);
                parts_close(&loader.parts);
                loader_pool_close(shared.parts.pool);
            }
    }
    quiet_end(kept);
}

/* == Scores of several views ====================================================================================== */

static void scores_are_means(void **state) {
    (void)state;
    const float logits[4][3] = {{2, 0, 0}, {0, 1, 0}, {0, 0, 30}, {0, 1, 0}};
    Views views;
    for (int of_logits = 0; of_logits < 2; of_logits++) {
        views_open(&views, 3, 3, 2, of_logits);
        for (size_t i = 0; i < 4; i++) views_add(&views, i, i < 2 ? 1 : 2, logits[i]);
        views_add(&views, 4, -1 - 2, logits[0]);
        views_add(&views, 5, 2, logits[0]);
        views_sum(&views);
        assert_true(views_complete(&views, 0, "test") && views_complete(&views, 1, "test"));
        assert_false(views_complete(&views, 2, "test"));
        assert_int_equal(views.labels[0], 1);
        assert_int_equal(views.labels[2], 2);
        const float *got = views_logits(&views, 0);
        double p = (exp(2) / (exp(2) + 2) + 1 / (exp(1) + 2)) / 2;
        assert_true(fabs((double)got[0] - (of_logits ? 1 : log(p))) < 1e-6);
        got = views_logits(&views, 1); /* a large logit of one view does not outvote probabilities */
        assert_true(of_logits ? got[2] > 14 : got[2] < 0);
        views_close(&views);
    }
    views_open(&views, 1, 3, 1, false);
    views_add(&views, 0, 1, logits[0]);
    views_sum(&views);
    assert_memory_equal(views_logits(&views, 0), logits[0], sizeof logits[0]);
    views_close(&views);
}

static void an_incomplete_video(void *argument) {
    (void)argument;
    const float logits[2] = {0, 1};
    Views views;
    views_open(&views, 2, 2, 3, false);
    for (size_t i = 0; i < 5; i++) views_add(&views, i, 0, logits);
    views_sum(&views);
    views_complete(&views, 0, "test");
    views_complete(&views, 1, "test");
}

static void missing_views_are_refused(void **state) {
    (void)state;
    char text[1024];
    assert_int_equal(status_of(an_incomplete_video, NULL, text, sizeof text), 1);
    assert_words(text, WORDS("test", "video 1", "2 times, not 3"));
}

/* == Strips ======================================================================================================= */

static void clips_are_drawn_as_strips(void **state) {
    (void)state;
    Dataset dataset;
    Error error;
    Image sheet;
    const char *path = in_folder("strips.png");
    LoaderConfig config = clips_config(true);
    moving_open(&dataset, MOVING_DIRECTION, true, 0, 1);
    assert_int_equal(loader_write_sheet(path, &dataset, &config, &error), 1);
    assert_true(image_read(&sheet, path, &error));
    static uint8_t clip[CLIP];
    Loader loader;
    int label;
    config.parts.batch_size = 1;
    loader_open(&loader, &dataset, &config);
    loader_fill(&loader, 0, 1, clip, &label);
    assert_int_equal(sheet.width, 4 + FRAMES * (2 * MOVING_SIDE + 1) - 1 + 4);
    for (int t = 0; t < FRAMES; t++)
        for (int y = 0; y < 2 * MOVING_SIDE; y++) {
            const uint8_t *row = sheet.pixels + ((4 + y) * sheet.width + 4 + t * (2 * MOVING_SIDE + 1)) * 3;
            for (int x = 0; x < 2 * MOVING_SIDE; x++)
                assert_memory_equal(row + 3 * x, clip + t * FRAME + (y / 2 * MOVING_SIDE + x / 2) * 3, 3);
        }
    parts_close(&loader.parts);
    image_free(&sheet);
    dataset_close(&dataset);
}

/* == Data sets of videos ========================================================================================== */

/* A folder with `count` frames of 8 x 8 pixels, whose colour is (video, 10 frame, 0), named as in
 * Something-Something. */
static void make_frames(const char *name, int video, int count) {
    uint8_t pixels[8 * 8 * 3] = {0};
    Error error;
    make_folders(in_folder("%s", name));
    for (int f = 0; f < count; f++) {
        for (int p = 0; p < 64; p++) {
            pixels[3 * p] = (uint8_t)video;
            pixels[3 * p + 1] = (uint8_t)(10 * f);
        }
        assert_true(image_write_png(in_folder("%s/img_%d.png", name, f + 1), pixels, 8, 8, &error));
    }
}

typedef struct {
    int video, label, frames[16];
} Shot;

static bool take_shot(void *context, int i, const Sample *frame, Error *error) {
    Shot *shot = context;
    Image image;
    if (!image_decode(&image, frame->bytes, frame->size, IMAGE_MAX_PIXELS, error)) return false;
    shot->video = image.pixels[0];
    shot->frames[i] = image.pixels[1] / 10;
    image_free(&image);
    return true;
}

/* Reads a clip of four frames, one from the middle of each segment. */
static Shot shot_of(const Dataset *dataset, size_t index) {
    Shot shot = {.video = -1};
    SampleBuffer buffer = {0};
    Error error;
    ClipChoice choice = choice_of(SAMPLING_SEGMENTS, 4, 1, 1, 0);
    ClipTaker taker = {take_shot, &shot};
    if (!dataset->read_clip(dataset, index, &choice, &buffer, &taker, &shot.label, &error)) fail_msg("%s", error.text);
    free(buffer.bytes);
    return shot;
}

/* There are twelve frames, so that names must be sorted by number: img_10 comes after img_9. */
static void folders_of_frames(void **state) {
    (void)state;
    static const char *const classes[] = {"wave", "clap"};
    Dataset dataset;
    char name[128];
    for (int split = 0; split < 2; split++)
        for (int c = 0; c < 2; c++)
            for (int i = 0; i < 3 - split; i++) {
                snprintf(name, sizeof name, "frames/%s/%s/clip %d", split ? "val" : "train", classes[c], i);
                make_frames(name, 100 * split + 10 * c + i, 12);
            }
    dataset_open(&dataset, in_folder("frames"), NULL, true, 0);
    assert_true(dataset.clips && dataset.count == 6 && dataset.classes == 2 && !dataset.get);
    assert_string_equal(dataset.class_names[0], "clap");
    for (size_t i = 0; i < 6; i++) {
        Shot shot = shot_of(&dataset, i);
        assert_int_equal(shot.video, (i < 3 ? 10 : 0) + (int)(i % 3));
        assert_int_equal(shot.label, i / 3);
        assert_memory_equal(shot.frames, FRAMES(1, 4, 7, 9), 4 * sizeof(int)); /* segments (0,3) (3,6) (6,8) (8,11) */
    }
    dataset_close(&dataset);
    dataset_open(&dataset, in_folder("frames"), NULL, false, 2);
    assert_int_equal(dataset.count, 2);
    assert_int_equal(shot_of(&dataset, 0).label + 2 * shot_of(&dataset, 1).label, 2); /* both classes remain */
    dataset_name_image(&dataset, 1, name, sizeof name);
    assert_non_null(strstr(name, "val/wave/clip 0"));
    dataset_close(&dataset);
    dataset_describe(&dataset, in_folder("frames"), NULL);
    assert_true(dataset.clips && dataset.classes == 2 && !dataset.close);
}

static void lists_of_frames(void **state) {
    (void)state;
    Dataset dataset;
    make_frames("list/a b", 1, 12);
    make_frames("list/c", 2, 12);
    write_text(in_folder("list/train.txt"), "a b 8 3\r\nc,12,0\n\nc 1\n");
    write_text(in_folder("list/val.txt"), "c 12 4\n");
    dataset_open(&dataset, in_folder("list"), NULL, true, 0);
    assert_int_equal(dataset.count, 3);
    assert_int_equal(dataset.classes, 5); /* of both lists */
    assert_string_equal(dataset.class_names[4], "4");
    Shot shot = shot_of(&dataset, 0);
    assert_int_equal(shot.video * 10 + shot.label, 13);
    assert_memory_equal(shot.frames, FRAMES(1, 3, 4, 6), 4 * sizeof(int)); /* 8 frames: (0,2) (2,4) (4,5) (5,7) */
    shot = shot_of(&dataset, 1);
    assert_int_equal(shot.video * 10 + shot.label, 20);
    shot = shot_of(&dataset, 2); /* without a number of frames all pictures count */
    assert_int_equal(shot.video * 10 + shot.label, 21);
    assert_memory_equal(shot.frames, FRAMES(1, 4, 7, 9), 4 * sizeof(int));
    dataset_close(&dataset);
    write_text(in_folder("list/classes.txt"), "zero\none\ntwo\nthree\nfour\n");
    dataset_open(&dataset, in_folder("list"), NULL, false, 0);
    assert_string_equal(dataset.class_names[4], "four");
    assert_int_equal(shot_of(&dataset, 0).label, 4);
    dataset_close(&dataset);
}

static void kinetics_lists(void **state) {
    (void)state;
    Dataset dataset;
    char name[256];
    make_folders(in_folder("kinetics/train/riding a bike"));
    make_folders(in_folder("kinetics/val/abseiling"));
    write_text(in_folder("kinetics/train/riding a bike/-x_y_000003_000013.mp4"), "no video");
    write_text(in_folder("kinetics/val/abseiling/q_000100_000110.mkv"), "no video");
    write_text(in_folder("kinetics/train.csv"), "label,youtube_id,time_start,time_end,split,is_cc\n"
                                                "riding a bike,-x_y,3,13,train,0\n\"tie, bow\",zz,0,10,train,1\n");
    write_text(in_folder("kinetics/val.csv"), "label,youtube_id,time_start,time_end,split\nabseiling,q,100,110,val\n");
    dataset_open(&dataset, in_folder("kinetics"), NULL, true, 0);
    assert_int_equal(dataset.count, 2);
    assert_int_equal(dataset.classes, 3);
    assert_string_equal(dataset.class_names[0], "abseiling");
    assert_string_equal(dataset.class_names[2], "tie, bow");
    dataset_name_image(&dataset, 0, name, sizeof name);
    assert_non_null(strstr(name, "train/riding a bike/-x_y_000003_000013.mp4"));
    SampleBuffer buffer = {0};
    Shot shot;
    Error error;
    ClipChoice choice = choice_of(SAMPLING_SEGMENTS, 4, 1, 1, 0);
    ClipTaker taker = {take_shot, &shot};
    assert_false(dataset.read_clip(&dataset, 1, &choice, &buffer, &taker, &shot.label, &error));
    assert_int_equal(shot.label, 2); /* known although the file does not exist */
    assert_non_null(strstr(error.text, "no such file"));
    free(buffer.bytes);
    dataset_close(&dataset);
    dataset_open(&dataset, in_folder("kinetics"), NULL, false, 0);
    dataset_name_image(&dataset, 0, name, sizeof name);
    assert_non_null(strstr(name, "val/abseiling/q_000100_000110.mkv"));
    dataset_close(&dataset);
}

static void something_lists(void **state) {
    (void)state;
    Dataset dataset;
    char name[256];
    make_folders(in_folder("ssv2/20bn-something-something-v2"));
    write_text(in_folder("ssv2/20bn-something-something-v2/78.webm"), "no video");
    write_text(in_folder("ssv2/labels.json"), "{\"Holding something\": \"1\", \"Pushing something from left to right\": \"0\"}");
    write_text(in_folder("ssv2/train.json"),
               "[{\"id\": \"78\", \"label\": \"holding, \\\"x\\\"\", \"template\": \"Holding [something]\", "
               "\"placeholders\": [\"x\"]},\n {\"id\": \"9\", \"template\": \"Pushing [something] from left to right\"}]");
    dataset_open(&dataset, in_folder("ssv2"), NULL, true, 0);
    assert_int_equal(dataset.count, 2);
    assert_string_equal(dataset.class_names[1], "Holding something");
    assert_true(dataset.mirrored && dataset.mirrored[0] == -1 && dataset.mirrored[1] == -1);
    dataset_name_image(&dataset, 0, name, sizeof name);
    assert_non_null(strstr(name, "20bn-something-something-v2/78.webm"));
    dataset_close(&dataset);
}

typedef struct {
    const char *file, *text, *words[3];
} BadList;

static void open_bad(void *argument) {
    const BadList *bad = argument;
    Dataset dataset;
    make_folders(in_folder("bad"));
    write_text(in_folder("bad/labels.json"), "{\"A\": \"0\"}");
    write_text(in_folder("bad/%s", bad->file), bad->text);
    dataset_open(&dataset, in_folder("bad"), NULL, true, 0);
}

static void bad_lists_are_refused(void **state) {
    (void)state;
    static const BadList lists[] = {
        {"train.txt", "a.mp4 1\nb.mp4\n", {"train.txt:2", "a path and a label"}},
        {"train.txt", "a.mp4 -1\n", {"train.txt:1", "a path and a label"}},
        {"train.txt", "a.mp4 9999999\n", {"train.txt:1", "a path and a label"}},
        {"train.txt", "\n", {"no training videos", "train.csv"}},
        {"train.csv", "label,youtube_id,time_start,time_end,split\nx,y,z,1,train\n", {"train.csv:2", "time_start"}},
        {"train.json", "[{\"id\": \"1\"}]", {"train.json", "no template"}},
        {"train.json", "[{\"id\": \"1\", \"template\": \"B [x]\"}]", {"train.json", "'B x'", "list of labels"}},
        {"train.json", "[{\"id\": 1, \"template\": \"A\"}]", {"train.json", "id"}},
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char text[2048];
        assert_int_equal(status_of(open_bad, (void *)(uintptr_t)&lists[i], text, sizeof text), 1);
        printf("  %s", text);
        for (int w = 0; w < 3 && lists[i].words[w]; w++) assert_non_null(strstr(text, lists[i].words[w]));
        remove(in_folder("bad/%s", lists[i].file));
    }
}

/* == Packed videos ================================================================================================ */

static bool count_frame(void *context, int i, const Sample *frame, Error *error) {
    double *times = context;
    (void)error;
    times[i] = frame->time;
    return frame->size > 0;
}

/* A file of JPEG frames gives back the frames that were added, and damaged files are refused or harmless. */
static void rows_of_pictures(void **state) {
    (void)state;
    ClipFileWriter writer = {.count = 0};
    Error error;
    size_t size;
    uint8_t pixels[8 * 8 * 3];
    for (int f = 0; f < 12; f++) {
        uint8_t *jpeg;
        size_t bytes;
        memset(pixels, 20 * f, sizeof pixels);
        assert_true(jpeg_encode(pixels, 8, 8, 95, &jpeg, &bytes, &error));
        assert_true(clip_file_add(&writer, 3 + 0.5 * f, jpeg, bytes, &error));
        free(jpeg);
    }
    uint8_t *bytes = clip_file_finish(&writer, &size, &error);
    clip_file_free(&writer);
    assert_non_null(bytes);
    double times[12];
    ClipTaker taker = {count_frame, times};
    ClipChoice all = {.frames = 0}, four = choice_of(SAMPLING_SEGMENTS, 4, 1, 1, 0);
    assert_true(clip_file_read(bytes, size, 0, &all, &taker, &error));
    for (int f = 0; f < 12; f++) assert_true(fabs(times[f] - 0.5 * f) < 1e-12);
    assert_true(clip_file_read(bytes, size, 0, &four, &taker, &error));
    for (int i = 0; i < 4; i++) assert_true(times[i] * 2 == FRAMES(1, 4, 7, 9)[i]);
    for (size_t cut = 0; cut < size; cut += cut < 300 ? 1 : 50) /* on the heap, for sanitizers */
        if (cut) {
            uint8_t *part = malloc(cut);
            memcpy(part, bytes, cut);
            assert_false(clip_file_read(part, cut, 0, &all, &taker, &error));
            free(part);
        }
    for (int n = 0; n < 2000; n++) {
        uint8_t *forged = malloc(size);
        memcpy(forged, bytes, size);
        for (uint64_t i = 0; i < 3; i++) {
            uint32_t at = 8 + rng_below(check_seed(), RNG_TEST, 7, (uint32_t)n, 2 * i, 8 + 12 * 16 + 8);
            forged[at] = (uint8_t)rng_bits(check_seed(), RNG_TEST, 7, (uint32_t)n, 2 * i + 1);
        }
        double many[64];
        taker.context = many;
        clip_file_read(forged, size, 0, &four, &taker, &error);
        free(forged);
    }
    free(bytes);
}

/* A packed set of frame folders gives the same bytes as the folders, and remembers which classes must not be
 * mirrored. */
static void packed_and_unpacked_are_the_same(void **state) {
    (void)state;
    enum { SIDE = 8, BYTES = T * SIDE * SIDE * 3 };
    static uint8_t want[4 * BYTES], got[4 * BYTES];
    static const int never[2] = {-1, -1};
    Dataset folders, packed;
    SampleBuffer buffer = {0};
    Error error;
    char name[64];
    int want_labels[4], labels[4];
    size_t done;
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "unpacked/train/%s/%d", i < 2 ? "a" : "b", i);
        make_frames(name, i, 7 + i);
    }
    dataset_open(&folders, in_folder("unpacked"), NULL, true, 0);
    folders.mirrored = never;
    RecordWriter *writer = record_create(in_folder("videos-train.pack"), &folders, true, 1, &done);
    for (size_t i = 0; i < 4; i++) {
        Sample video;
        assert_true(folders.read(&folders, i, &buffer, &video, &error));
        record_append(writer, &video);
    }
    record_flush(writer);
    record_finish(writer, 0, 0);
    dataset_open(&packed, in_folder("videos-train.pack"), NULL, true, 0);
    assert_true(packed.clips && packed.count == 4 && packed.classes == 2 && packed.mirrored[1] == -1);
    for (int epoch = 0; epoch < 4; epoch++)
        for (int which = 0; which < 2; which++) {
            LoaderConfig config = clips_config(true);
            Loader loader;
            config.parts.batch_size = 4;
            config.frames = T;
            config.transform = (Transform){.height = SIDE, .width = SIDE, .augment.s.flip = true};
            if (epoch >= 2) { /* the rate is unknown in both */
                config.clips.sampling = SAMPLING_DENSE;
                config.clips.frame_stride = 1;
                config.clips.target_fps = 30;
            }
            loader_open(&loader, which ? &packed : &folders, &config);
            parts_epoch(&loader.parts, (uint32_t)epoch);
            loader_fill(&loader, 0, 4, which ? got : want, which ? labels : want_labels);
            parts_close(&loader.parts);
            if (!which) continue;
            assert_memory_equal(got, want, sizeof got);
            assert_memory_equal(labels, want_labels, sizeof labels);
        }
    dataset_name_image(&packed, 3, name, sizeof name);
    dataset_close(&packed);
    dataset_close(&folders);
    free(buffer.bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_frames),
        cmocka_unit_test(dense_frames_at_a_rate),
        cmocka_unit_test(segment_frames),
        cmocka_unit_test(tsn_frames),
        cmocka_unit_test(tsn_frames_of_numpy),
        cmocka_unit_test(training_frames),
        cmocka_unit_test(a_frame_tells_nothing_by_counting),
        cmocka_unit_test(borders_would_tell),
        cmocka_unit_test(frames_of_all_classes_are_alike),
        cmocka_unit_test(frames_are_shifts),
        cmocka_unit_test(starts_are_uniform),
        cmocka_unit_test(moving_statistics),
        cmocka_unit_test(the_sequence_tells),
        cmocka_unit_test(clips_do_not_depend_on_workers_or_ranks),
        cmocka_unit_test(a_clip_is_augmented_as_one),
        cmocka_unit_test(views_are_clips_and_crops),
        cmocka_unit_test(damaged_videos),
        cmocka_unit_test(samples_share_a_clip),
        cmocka_unit_test(scores_are_means),
        cmocka_unit_test(missing_views_are_refused),
        cmocka_unit_test(clips_are_drawn_as_strips),
        cmocka_unit_test(folders_of_frames),
        cmocka_unit_test(lists_of_frames),
        cmocka_unit_test(kinetics_lists),
        cmocka_unit_test(something_lists),
        cmocka_unit_test(bad_lists_are_refused),
        cmocka_unit_test(rows_of_pictures),
        cmocka_unit_test(packed_and_unpacked_are_the_same),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
