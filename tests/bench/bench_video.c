/* Frames per second that one thread reads from videos, for scripts/bench/bench_video.py.
 *
 *   bench_video FILE all             every frame in order
 *   bench_video FILE clips N T STEP  N clips of T frames STEP apart, evenly spaced; the file is opened for each
 *   bench_video FILE pixels          writes all pixels to standard output */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/die.h"
#include "core/files.h"
#include "data/video/video.h"

static bool count_bytes(void *context, int i, const uint8_t *pixels, int height, int width, Error *error) {
    size_t *sum = context;
    (void)i, (void)error;
    *sum += pixels[(size_t)height * (size_t)width];
    return true;
}

static bool write_bytes(void *context, int i, const uint8_t *pixels, int height, int width, Error *error) {
    size_t size = (size_t)height * (size_t)width * 3;
    (void)i;
    return fwrite(pixels, 1, size, context) == size || refuse(error, "cannot write");
}

static VideoReader *open_or_die(const uint8_t *bytes, size_t size) {
    Error error;
    VideoReader *v = video_open(bytes, size, VIDEO_MAX_PIXELS, &error);
    if (!v) die("%s", error.text);
    return v;
}

static int read_all(const uint8_t *bytes, size_t size, bool write) {
    Error error;
    VideoReader *v = open_or_die(bytes, size);
    int F = video_frames(v), *index = xcalloc((size_t)F, sizeof *index, "frames");
    size_t sum = 0;
    for (int i = 0; i < F; i++) index[i] = i;
    if (!video_read(v, index, F, write ? write_bytes : count_bytes, write ? (void *)stdout : &sum, &error))
        die("%s", error.text);
    free(index);
    video_close(v);
    return F;
}

static int read_clips(const uint8_t *bytes, size_t size, int clips, int T, int step) {
    Error error;
    size_t sum = 0;
    int *index = xcalloc((size_t)T, sizeof *index, "frames");
    for (int k = 0; k < clips; k++) {
        VideoReader *v = open_or_die(bytes, size);
        int spare = video_frames(v) - (T - 1) * step - 1, start = (int)((int64_t)k * 7919 % (spare > 0 ? spare : 1));
        for (int i = 0; i < T; i++) index[i] = start + i * step < video_frames(v) ? start + i * step : video_frames(v) - 1;
        if (!video_read(v, index, T, count_bytes, &sum, &error)) die("%s", error.text);
        video_close(v);
    }
    free(index);
    return clips * T;
}

int main(int argc, char **argv) {
    uint8_t *bytes;
    size_t size;
    Error error;
    if (argc < 3) die_usage("bench_video FILE all | clips N T STEP | pixels");
    if (!file_read(argv[1], (size_t)1 << 30, &bytes, &size, &error)) die("%s: %s", argv[1], error.text);
    clock_t begin = clock(); /* processor time, which other programs disturb less */
    bool pixels = !strcmp(argv[2], "pixels"), clips = !strcmp(argv[2], "clips");
    if (clips && argc < 6) die_usage("bench_video FILE clips N T STEP");
    int frames = clips ? read_clips(bytes, size, atoi(argv[3]), atoi(argv[4]), atoi(argv[5]))
                       : read_all(bytes, size, pixels);
    if (!pixels) printf("{\"frames\": %d, \"frames_per_s\": %.1f}\n", frames, frames / ((double)(clock() - begin) / CLOCKS_PER_SEC));
    free(bytes);
    return 0;
}
