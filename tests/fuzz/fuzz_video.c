/* libFuzzer target: videos, opened, listed and decoded.  Each input is tried unchanged, and again as edits of a small
 * mp4, Matroska or avi file encoded here: the first byte chooses the file, and every three bytes after it are an offset
 * and the byte to write there. */
#include <stdlib.h>
#include <string.h>

#include "data/video/video.h"
#include "tests/encode_video.h"

enum { MOST_PIXELS = 1 << 14, FRAMES = 6 };

static bool add_up(void *context, int i, const uint8_t *pixels, int height, int width, Error *error) {
    volatile uint8_t *sum = context;
    (void)i, (void)error;
    if (height < 1 || width < 1) abort();
    for (int p = 0; p < height * width * 3; p++) *sum = (uint8_t)(*sum + pixels[p]);
    return true;
}

static void try_file(const uint8_t *bytes, size_t size) {
    Error error = {.text = ""};
    uint8_t sum = 0;
    VideoReader *v = video_open(bytes, size, MOST_PIXELS, &error);
    bool ok = v != NULL;
    if (v) {
        int F = video_frames(v), index[FRAMES];
        if (F < 1 || !(video_fps(v) >= 0)) abort();
        for (int i = 0; i < FRAMES; i++) index[i] = (int)((int64_t)i * (F - 1) / (FRAMES - 1));
        ok = video_read(v, index, FRAMES, add_up, &sum, &error);
        if (ok) ok = video_read(v, (int[]){F / 2}, 1, add_up, &sum, &error);
    }
    video_close(v);
    if (!ok && (!memchr(error.text, 0, sizeof error.text) || !*error.text)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t *bases[3];
    static size_t sizes[3];
    static const char *const containers[3] = {"mp4", "matroska", "avi"};
    for (int i = 0; i < 3 && !bases[i]; i++) {
        VideoRecipe r = {containers[i], "mpeg4", .frames = 7, .height = 16, .width = 32, .key_distance = 4,
                         .b_frames = i < 2 ? 1 : 0};
        bases[i] = encode_video(&r, &sizes[i]);
    }
    try_file(data, size);
    if (!size) return 0;
    int base = data[0] % 3;
    uint8_t *bytes = malloc(sizes[base]);
    memcpy(bytes, bases[base], sizes[base]);
    for (size_t i = 1; i + 2 < size; i += 3) bytes[(size_t)(data[i] << 8 | data[i + 1]) % sizes[base]] = data[i + 2];
    try_file(bytes, sizes[base]);
    free(bytes);
    return 0;
}
