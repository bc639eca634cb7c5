/* A split of a data set in one file, for random access without opening a million of them (pack_dataset.c makes it):
 *
 *     header   RecordHeader
 *     images   one after the other: files as they are, or pixels [height,width,3]
 *     index    RecordEntry for each image: where it lies, its label, its checksum
 *     names    of the classes, then of the images, each ended by a 0
 *
 * Little-endian.  Index and names have a checksum, so has the header, and so has each image, which is compared whenever
 * the image is read: a flipped bit is a damaged image and never a wrong one.  Checksums are XXH3. */
#ifndef VIT_DATA_RECORD_H
#define VIT_DATA_RECORD_H

#include "core/error.h"
#include "data/dataset.h"

#define RECORD_MAGIC "VIT.PACK"
enum { RECORD_VERSION = 1 };

typedef struct {
    char magic[8];
    uint32_t version, split; /* split 0: train, 1: val */
    uint64_t count;
    uint64_t index, class_names, image_names, size; /* offsets of the parts, and where the file ends */
    uint32_t classes, height, width, padding;       /* height, width: of every image; 0: as they come */
    float mean[3], std[3];
    char name[32];
    uint64_t tail_checksum;   /* of bytes [index, size) */
    uint64_t header_checksum; /* of the bytes before it */
} RecordHeader;

typedef struct {
    uint64_t offset, checksum, name; /* name: offset in the image names */
    uint32_t size, label;
    uint32_t height, width; /* 0: an encoded picture.  size 0: it was damaged when it was packed */
} RecordEntry;

/* A packed file in memory. */
typedef struct {
    const uint8_t *bytes;
    RecordHeader header;
    const RecordEntry *entries; /* [count] */
    const char *image_names;
} RecordFile;

/* Checks everything but the images.  False: `error` says what is wrong.  bytes, aligned to 8, stay. */
bool record_parse(RecordFile *file, const uint8_t *bytes, size_t size, Error *error);

/* Compares the checksum of the image first. */
bool record_sample(const RecordFile *file, size_t index, Sample *sample, Error *error);

const char *record_image_name(const RecordFile *file, size_t index);

/* Of a file; dies when it has no sound one. */
void record_read_header(const char *path, RecordHeader *header);

/* Found in a file that begins with the magic word, and in a folder with train.pack or val.pack. */
extern const DatasetKind packed_kind;

/* See dataset_open in data/datasets.h.  When the file holds the other split, the wanted one is looked for beside it,
 * under its name with train and val exchanged. */
void record_open(Dataset *dataset, const char *path, bool train, size_t limit);

/* == Writing ====================================================================================================== */

/* Images are appended in order.  Until record_finish the file is <path>.partial, and what record_flush has made last is
 * told in <path>.partial.index, so that an interrupted packing goes on from there. */
typedef struct RecordWriter RecordWriter;

/* Begins or goes on with a file of that data set's split.  `recipe` stands for how its images are made: what was begun
 * with another, or from other images, is refused.  *done: images that are in it already.  Dies when it cannot. */
RecordWriter *record_create(const char *path, const Dataset *dataset, bool train, uint64_t recipe, size_t *done);

/* Appends the next image: bytes of an encoded picture (height 0), pixels, or size 0 for a damaged one. */
void record_append(RecordWriter *writer, const Sample *sample);

/* What was appended survives from here on. */
void record_flush(RecordWriter *writer);

/* Writes index, names and header, and gives the file its name.  height, width as in the header. */
void record_finish(RecordWriter *writer, int height, int width);

#endif
