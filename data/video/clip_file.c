#include "data/video/clip_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/video/clips.h"

enum { MOST_FRAMES = 1 << 20 };

_Static_assert(sizeof(ClipFileHeader) == 16, "this is a file format");

/* == Reading ====================================================================================================== */

bool clip_file_is(const uint8_t *bytes, size_t size) {
    return size >= sizeof(ClipFileHeader) && !memcmp(bytes, CLIP_FILE_MAGIC, sizeof CLIP_FILE_MAGIC - 1);
}

/* Offsets and times are copied out because they need not be aligned. */
static uint64_t offset_of(const uint8_t *offsets, size_t i) {
    uint64_t offset;
    memcpy(&offset, offsets + i * sizeof offset, sizeof offset);
    return offset;
}

static double time_of(const uint8_t *times, size_t i) {
    double time;
    memcpy(&time, times + i * sizeof time, sizeof time);
    return time;
}

static bool is_sound(const uint8_t *times, const uint8_t *offsets, size_t count, size_t head, size_t size) {
    if (offset_of(offsets, 0) != head || offset_of(offsets, count) != size) return false;
    for (size_t i = 0; i < count; i++) {
        double time = time_of(times, i);
        if (offset_of(offsets, i) >= offset_of(offsets, i + 1) || !isfinite(time)) return false;
        if (i && time < time_of(times, i - 1)) return false;
    }
    return true;
}

bool clip_file_read(const uint8_t *bytes, size_t size, int label, const ClipChoice *choice, const ClipTaker *taker,
                    Error *error) {
    ClipFileHeader header;
    if (!clip_file_is(bytes, size)) return refuse(error, "not a row of pictures");
    memcpy(&header, bytes, sizeof header);
    size_t count = header.count <= MOST_FRAMES ? (size_t)header.count : 0;
    size_t head = sizeof header + count * 16 + 8;
    const uint8_t *times = bytes + sizeof header, *offsets = times + 8 * count;
    if (!count || head > size || !is_sound(times, offsets, count, head, size))
        return refuse(error, "the row of pictures contradicts itself");
    double first = time_of(times, 0), length = time_of(times, count - 1) - first;
    ClipIndex frames = {.count = 0};
    if (!clip_index(&frames, (int)count, length > 0 ? (double)(count - 1) / length : 0, choice, error)) return false;
    bool ok = true;
    for (int i = 0; ok && i < frames.count; i++) {
        size_t at = (size_t)frames.at[i];
        uint64_t begin = offset_of(offsets, at), end = offset_of(offsets, at + 1);
        Sample frame = {.bytes = bytes + begin, .size = (size_t)(end - begin), .label = label,
                        .time = time_of(times, at) - first, .frame = frames.at[i]};
        ok = taker->take(taker->context, i, &frame, error);
    }
    clip_index_free(&frames);
    return ok;
}

/* == Writing ====================================================================================================== */

/* Makes room for `wanted` elements; NULL when out of memory, and the old memory remains. */
static void *grow(void *memory, size_t *room, size_t wanted, size_t size, Error *error) {
    if (wanted <= *room) return memory;
    void *more = realloc(memory, 2 * wanted * size);
    if (more) *room = 2 * wanted;
    else refuse_memory(error, 2 * wanted * size, "the frames of a video");
    return more;
}

bool clip_file_add(ClipFileWriter *w, double time, const uint8_t *bytes, size_t size, Error *error) {
    uint8_t *pictures = grow(w->pictures, &w->room, w->size + size, 1, error);
    if (pictures) w->pictures = pictures;
    ClipFileEntry *entries = pictures ? grow(w->entries, &w->entry_room, w->count + 1, sizeof *entries, error) : NULL;
    if (!entries) return false;
    w->entries = entries;
    w->entries[w->count++] = (ClipFileEntry){time, w->size};
    memcpy(w->pictures + w->size, bytes, size);
    w->size += size;
    return true;
}

uint8_t *clip_file_finish(const ClipFileWriter *w, size_t *size, Error *error) {
    ClipFileHeader header = {.count = w->count};
    size_t head = sizeof header + 16 * w->count + 8;
    uint8_t *bytes = malloc(head + w->size), *offsets = bytes + sizeof header + 8 * w->count;
    *size = head + w->size;
    if (!bytes) return refuse_memory(error, *size, "a video"), NULL;
    memcpy(header.magic, CLIP_FILE_MAGIC, sizeof header.magic);
    memcpy(bytes, &header, sizeof header);
    for (size_t i = 0; i <= w->count; i++) {
        uint64_t offset = head + (i < w->count ? w->entries[i].offset : w->size);
        if (i < w->count) memcpy(bytes + sizeof header + 8 * i, &w->entries[i].time, sizeof w->entries[i].time);
        memcpy(offsets + 8 * i, &offset, sizeof offset);
    }
    if (w->size) memcpy(bytes + head, w->pictures, w->size);
    return bytes;
}

void clip_file_free(ClipFileWriter *w) {
    free(w->pictures);
    free(w->entries);
    *w = (ClipFileWriter){.count = 0};
}
