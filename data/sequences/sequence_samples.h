/* Shows the samples of a density model: pictures, text and sound from bytes.  On failure a function returns false
 * and sets `error`. */
#ifndef VIT_DATA_SEQUENCES_SEQUENCE_SAMPLES_H
#define VIT_DATA_SEQUENCES_SEQUENCE_SAMPLES_H

#include <stdio.h>

#include "data/sequences/sequences.h"

/* Writes images tokens [count,n] as a PNG file that is roughly square, small ones enlarged. */
bool sequences_write_sheet(const SequenceSet *set, const char *path, const uint8_t *tokens, int count, Error *error);

/* Reads a picture as an image of the set, tokens [n].  A picture with the proportions of the upper half of one fills
 * the first H / 2 rows only.  *rows receives how many rows were filled, H or H / 2. */
bool sequences_read_picture(const SequenceSet *set, const char *path, uint8_t *tokens, int *rows, Error *error);

/* Writes mu-law samples at the set's rate as a WAV file, 16 bits, mono. */
bool sequences_write_wav(const SequenceSet *set, const char *path, const uint8_t *tokens, size_t count, Error *error);

/* Prints bytes as text for a terminal: what is not valid UTF-8, and control characters but newline and tab, as '?'. */
void sequences_print_text(FILE *out, const uint8_t *tokens, size_t count);

#endif
