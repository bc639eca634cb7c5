/* The chunks of PNG files and their checksums, which stb does not compare. */
#ifndef VIT_DATA_IMAGES_PNG_H
#define VIT_DATA_IMAGES_PNG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

/* Where the first chunk begins, and the bytes of a chunk besides its content: before it its length and a name of four
 * letters, behind it a checksum. */
enum { PNG_FIRST = 8, PNG_CHUNK = 12 };

bool png_is(const uint8_t *bytes, size_t size);

/* Whether a whole chunk begins at `at`, and the length of its content.  The next one begins at + PNG_CHUNK + length. */
bool png_chunk(const uint8_t *bytes, size_t size, size_t at, size_t *length);

/* The checksum (CRC-32) of a chunk's name and content, which are these bytes. */
uint32_t png_checksum(const uint8_t *bytes, size_t size);

/* Compares the checksums of all chunks that pixels depend on.  A file that is cut short is accepted up to its end. */
bool png_check(const uint8_t *bytes, size_t size, Error *error);

#endif
