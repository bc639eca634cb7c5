/* Masks as run lengths, as COCO has them: the pixels are read down each column, columns from left to right, and the
 * runs count zeros and ones in turn.  The first run is of zeros and may be empty.
 * Source: cocodataset/cocoapi, common/maskApi.c.
 *
 * Functions that write to `out` use its memory again and enlarge it as needed: zero an Rle before its first use and
 * free it at the end.  `out` is never one of the inputs.  What they write has no empty run but the first and covers
 * the whole picture.  Inputs may have empty runs and may end early, as pycocotools allows: the rest is zeros. */
#ifndef VIT_DATA_MASKS_RLE_H
#define VIT_DATA_MASKS_RLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

typedef struct {
    int height, width; /* of the picture; at least 1 each, with fewer than 2^31 pixels */
    size_t count;
    uint32_t *runs; /* [count] */
    size_t room;    /* elements allocated at runs; 0 if they belong to another owner */
} Rle;

void rle_free(Rle *rle);

/* Begins a mask without runs; appends pixels > 0 of one value to it, in order. */
void rle_begin(Rle *out, int height, int width);
void rle_append(Rle *out, bool one, uint32_t pixels);

/* Runs as numbers.  False with a reason in `error` if they cover more than the picture. */
bool rle_set(Rle *out, const uint32_t *runs, size_t count, int height, int width, Error *error);

/* COCO's text of a mask [length].  False with a reason in `error` if the text is broken or covers more than the
 * picture.  Runs are kept as they are. */
bool rle_parse(Rle *out, const char *text, size_t length, int height, int width, Error *error);

/* Writes COCO's text and a zero into *text, which has *room bytes (initially NULL and 0) and is enlarged as needed;
 * returns its length without the zero. */
size_t rle_text(char **text, size_t *room, const Rle *rle);

/* pixels [height,width], row by row; what is not 0 is 1.  rle_decode writes zeros and ones. */
void rle_encode(Rle *out, const uint8_t *pixels, int height, int width);
void rle_decode(uint8_t *pixels, const Rle *rle);

/* Decodes only the columns from .. to-1, column by column: columns [to-from,height]. */
void rle_decode_columns(uint8_t *columns, const Rle *rle, int from, int to);

/* Both masks are of one picture size. */
void rle_union(Rle *out, const Rle *a, const Rle *b);
void rle_intersection(Rle *out, const Rle *a, const Rle *b);

/* The number of ones, and the smallest box x0, y0, x1, y1 around them (x1, y1 exclusive; zeros for an empty mask). */
typedef struct {
    uint32_t area;
    int box[4];
} RleExtent;

RleExtent rle_extent(const Rle *rle);

/* The number of pixels that are 1 in both masks, by one walk along both lists. */
uint32_t rle_common_area(const Rle *a, const Rle *b);

/* Intersection over union; for a crowd, intersection over the area of `found`.  0 if the extents do not overlap.  The
 * extents are the masks'. */
double rle_iou(const Rle *found, const RleExtent *found_extent, const Rle *truth, const RleExtent *truth_extent,
               bool crowd);

/* Many masks in little memory: their texts, each with a zero at its end.  Zero it before use. */
typedef struct {
    char *text;
    struct RlePlace *places; /* [count] */
    size_t length, text_room, count, room;
} RleTexts;

/* One of them; it is valid until another is added. */
typedef struct {
    const char *text;
    size_t length;
    int height, width;
} RleText;

void rle_texts_add(RleTexts *texts, const Rle *rle);
RleText rle_texts_at(const RleTexts *texts, size_t index);
void rle_texts_get(Rle *out, const RleTexts *texts, size_t index);
void rle_texts_free(RleTexts *texts);

#endif
