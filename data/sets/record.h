/* A split of a data set in one file, for random access without opening a million files (written by pack_dataset.c):
 *
 *     header   RecordHeader
 *     images   consecutive: unchanged picture files, or pixels [height,width,3];  of videos encoded files, or pictures in
 *              a row (data/video/clip_file.h)
 *     index    RecordEntry for each image: its offset, label and checksum
 *     names    of the classes, then of the images, each terminated by a 0
 *
 * Little-endian.  The header, the index with the names, and each image have XXH3 checksums.  An image's checksum is
 * compared whenever the image is read, so that a flipped bit is reported as damage instead of changing the picture. */
#ifndef VIT_DATA_SETS_RECORD_H
#define VIT_DATA_SETS_RECORD_H

#include "core/error.h"
#include "data/sets/dataset.h"

#define RECORD_MAGIC "VIT.PACK"
enum { RECORD_VERSION = 1, RECORD_CLIPS = 2 }; /* the second: of videos instead of images */

typedef struct {
    char magic[8];
    uint32_t version, split; /* split 0: train, 1: val */
    uint64_t count;
    uint64_t index, class_names, image_names, size; /* offsets of the parts, and the size of the file */
    uint32_t classes, height, width, directed;      /* height, width: of every image; 0: sizes differ.  directed: clips
                                                       must not be mirrored */
    float mean[3], std[3];
    char name[32];
    uint64_t tail_checksum;   /* of bytes [index, size) */
    uint64_t header_checksum; /* of the header's bytes before this field */
} RecordHeader;

typedef struct {
    uint64_t offset, checksum, name; /* name: offset in the image names */
    uint32_t size, label;
    uint32_t height, width; /* 0: an encoded picture.  size 0: the image was damaged at packing */
} RecordEntry;

/* A packed file in memory. */
typedef struct {
    const uint8_t *bytes;
    RecordHeader header;
    const RecordEntry *entries; /* [count] */
    const char *image_names;
} RecordFile;

/* Checks everything but the images.  `bytes`, aligned to 8, must outlive `file`.  On failure returns false and sets
 * `error`. */
bool record_parse(RecordFile *file, const uint8_t *bytes, size_t size, Error *error);

/* Returns image `index` after checking its checksum; on failure returns false and sets `error`. */
bool record_sample(const RecordFile *file, size_t index, Sample *sample, Error *error);

const char *record_image_name(const RecordFile *file, size_t index);

/* Reads a file's header; ends the process if it is not valid. */
void record_read_header(const char *path, RecordHeader *header);

/* Recognised: a file that begins with RECORD_MAGIC, or a folder with train.pack or val.pack. */
extern const DatasetKind packed_kind;

/* Whether this file holds the validation split, or the one of the other split in the same folder exists. */
bool record_has_validation(const char *path);

/* See dataset_open in data/sets/datasets.h.  If the file holds the other split, the wanted one is looked for in the
 * same folder, under the same name with train and val exchanged. */
void record_open(Dataset *dataset, const char *path, bool train, size_t limit);

/* == Writing ====================================================================================================== */

/* Images are appended in order.  Until record_finish the file is <path>.partial; <path>.partial.index lists the images
 * that record_flush has made durable, so that an interrupted packing can continue from there. */
typedef struct RecordWriter RecordWriter;

/* Starts or continues a file for that split of the data set.  `recipe` identifies how the images are made: a partial
 * file with another recipe or from other images is refused.  *done receives the number of images already written.  Ends
 * the process on error. */
RecordWriter *record_create(const char *path, const Dataset *dataset, bool train, uint64_t recipe, size_t *done);

/* Appends the next image: bytes of an encoded picture (height 0), pixels, or size 0 for a damaged one. */
void record_append(RecordWriter *writer, const Sample *sample);

/* The number of damaged images among those already written. */
size_t record_damaged(const RecordWriter *writer);

/* Makes the appended images durable: they survive a crash from here on. */
void record_flush(RecordWriter *writer);

/* Writes index, names and header, and renames the file to its final path.  height, width as in the header. */
void record_finish(RecordWriter *writer, int height, int width);

#endif
