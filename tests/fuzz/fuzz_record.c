/* libFuzzer target: packed files.  Each input is tried unchanged, and again with its checksums corrected, since random
 * bytes never have correct ones and would not reach the checks of sizes and offsets. */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "data/video/clip_file.h"
#include "data/video/clips.h"
#include "data/sets/record.h"

static bool add_up(void *context, int i, const Sample *frame, Error *error) {
    volatile uint8_t *sum = context;
    (void)i, (void)error;
    for (size_t j = 0; j < frame->size; j++) *sum = (uint8_t)(*sum + frame->bytes[j]);
    return true;
}

/* Reads the bytes as a packed video, a sequence of pictures; the last byte chooses the frames. */
static void try_clip(const uint8_t *bytes, size_t size) {
    Error error;
    uint8_t sum = 0, how = size ? bytes[size - 1] : 0;
    const ClipChoice choice = {.frames = how % 4 ? 5 : 0, .train = how & 4, .seed = how, .clip = how & 1,
                               .s = {.sampling = (Sampling)(how / 8 % 3), .frame_stride = 1 + how % 7,
                                     .target_fps = how & 32 ? 30 : 0, .test_clips = 2, .test_crops = 1}};
    const ClipTaker taker = {add_up, &sum};
    if (!clip_file_read(bytes, size, 0, &choice, &taker, &error) &&
        (!memchr(error.text, 0, sizeof error.text) || !*error.text))
        abort();
}

static void try_file(const uint8_t *bytes, size_t size) {
    Error error;
    RecordFile file;
    if (!record_parse(&file, bytes, size, &error)) {
        if (!memchr(error.text, 0, sizeof error.text) || !*error.text) abort();
        return;
    }
    volatile uint8_t sum = 0;
    for (size_t i = 0; i < file.header.count; i++) {
        Sample sample;
        if (strlen(record_image_name(&file, i)) >= size) abort();
        if (!record_sample(&file, i, &sample, &error)) continue;
        if (sample.label < 0 || (uint32_t)sample.label >= file.header.classes) abort();
        if (sample.height && sample.size != (size_t)sample.height * (size_t)sample.width * 3) abort();
        for (size_t j = 0; j < sample.size; j++) sum = (uint8_t)(sum + sample.bytes[j]);
        try_clip(sample.bytes, sample.size);
    }
}

/* Corrects the checksums of the pictures that lie within the file. */
static void correct_entries(uint8_t *bytes, size_t size, const RecordHeader *header) {
    RecordEntry entry;
    for (uint64_t i = 0, at = header->index; i < header->count && at <= size && size - at >= sizeof entry; i++) {
        memcpy(&entry, bytes + at, sizeof entry);
        if (entry.offset <= size && entry.size <= size - entry.offset)
            entry.checksum = XXH3_64bits(bytes + entry.offset, entry.size);
        memcpy(bytes + at, &entry, sizeof entry);
        at += sizeof entry;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    RecordHeader header;
    uint8_t *bytes = malloc(size ? size : 1); /* aligned, and exactly as large */
    memcpy(bytes, data, size);
    try_file(bytes, size);
    if (size >= sizeof header) {
        memcpy(&header, bytes, sizeof header);
        memcpy(header.magic, RECORD_MAGIC, sizeof header.magic);
        header.version = header.version % 2 ? RECORD_VERSION : RECORD_CLIPS;
        header.size = size;
        correct_entries(bytes, size, &header);
        if (header.index < size) header.tail_checksum = XXH3_64bits(bytes + header.index, size - header.index);
        header.header_checksum = XXH3_64bits(&header, offsetof(RecordHeader, header_checksum));
        memcpy(bytes, &header, sizeof header);
        try_file(bytes, size);
    }
    if (size >= sizeof(ClipFileHeader)) {
        memcpy(bytes, data, size);
        memcpy(bytes, CLIP_FILE_MAGIC, sizeof CLIP_FILE_MAGIC - 1);
        try_clip(bytes, size);
    }
    free(bytes);
    return 0;
}
