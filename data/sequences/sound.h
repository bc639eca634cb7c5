/* Sound from and to WAV files through libsndfile and libsamplerate, and 8-bit mu-law.  The Makefile compiles sound.c if
 * both libraries are installed, otherwise sound_none.c, which reports that they are not. */
#ifndef VIT_DATA_SEQUENCES_SOUND_H
#define VIT_DATA_SEQUENCES_SOUND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

/* Whether this build can read sound. */
bool sound_available(void);

/* Decodes a complete WAV file in memory (RIFF, WAVEX, RF64; PCM of 8, 16, 24 or 32 bits or float) to mu-law bytes at
 * `rate` samples a second: channels are averaged, another rate is converted, and values outside [-1,1] are clamped.
 * The caller frees *samples [*count].  On failure returns false and sets `error`; there is then nothing to free. */
bool sound_decode(uint8_t **samples, size_t *count, const uint8_t *bytes, size_t size, int rate, Error *error);

/* Writes mu-law samples as a WAV file of 16 bits, mono, replacing an existing file atomically.  samples NULL: only
 * whether such a file can be written.  On failure returns false and sets `error`. */
bool sound_write(const char *path, const uint8_t *samples, size_t count, int rate, Error *error);

#endif
