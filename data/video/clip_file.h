/* A video as a sequence of picture files, for packed data sets: no library for videos is needed to read it, and any
 * frame can be read without the others.
 *
 *     header    ClipFileHeader
 *     times     double [count]: seconds from the first frame, ascending; all 0 if they are not known
 *     offsets   uint64_t [count + 1]: of the pictures from the beginning of the file, ascending; the last is its size
 *     pictures  files as data/images/image.h reads them
 *
 * Little-endian. */
#ifndef VIT_DATA_VIDEO_CLIP_FILE_H
#define VIT_DATA_VIDEO_CLIP_FILE_H

#include "data/video/clips.h"

#define CLIP_FILE_MAGIC "VIT.CLIP"

typedef struct {
    char magic[8];
    uint64_t count;
} ClipFileHeader;

bool clip_file_is(const uint8_t *bytes, size_t size);

/* Gives the frames of a clip to `taker` as encoded pictures, as Dataset.read_clip does.  Lengths and offsets are
 * checked before anything is read. */
bool clip_file_read(const uint8_t *bytes, size_t size, int label, const ClipChoice *choice, const ClipTaker *taker,
                    Error *error);

typedef struct {
    double time;
    uint64_t offset; /* in `pictures` */
} ClipFileEntry;

/* Collects pictures; initialise to {0}. */
typedef struct {
    uint8_t *pictures;
    ClipFileEntry *entries; /* [count] */
    size_t count, size, room, entry_room;
} ClipFileWriter;

/* On failure (out of memory) returns false and sets `error`. */
bool clip_file_add(ClipFileWriter *writer, double time, const uint8_t *bytes, size_t size, Error *error);

/* The whole file, which the caller frees; NULL: out of memory. */
uint8_t *clip_file_finish(const ClipFileWriter *writer, size_t *size, Error *error);

void clip_file_free(ClipFileWriter *writer);

#endif
