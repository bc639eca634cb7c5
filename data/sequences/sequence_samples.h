/* Pictures of a density model, to and from bytes.  On failure a function returns false and sets `error`. */
#ifndef VIT_DATA_SEQUENCES_SEQUENCE_SAMPLES_H
#define VIT_DATA_SEQUENCES_SEQUENCE_SAMPLES_H

#include "data/sequences/sequences.h"

/* Writes images tokens [count,n] as a PNG file that is roughly square, small ones enlarged.  tokens NULL: only whether
 * the file can hold `count` images. */
bool sequences_write_sheet(const SequenceSet *set, const char *path, const uint8_t *tokens, int count, Error *error);

/* Reads a picture as an image of the set, tokens [n].  A picture with the proportions of the upper half of one fills
 * the first H / 2 rows only.  *rows receives how many rows were filled, H or H / 2. */
bool sequences_read_picture(const SequenceSet *set, const char *path, uint8_t *tokens, int *rows, Error *error);

#endif
