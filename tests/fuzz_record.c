/* libFuzzer target: packed files.  Each input is tried unchanged, and again with its checksums corrected, since random
 * bytes never have correct ones and would not reach the checks of sizes and offsets. */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "data/record.h"

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
        header.version = RECORD_VERSION;
        header.size = size;
        if (header.index < size) header.tail_checksum = XXH3_64bits(bytes + header.index, size - header.index);
        header.header_checksum = XXH3_64bits(&header, offsetof(RecordHeader, header_checksum));
        memcpy(bytes, &header, sizeof header);
        try_file(bytes, size);
    }
    free(bytes);
    return 0;
}
