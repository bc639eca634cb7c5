#include "data/images/png.h"

#include <pthread.h>
#include <string.h>

#include "core/integers.h"

/* == Checksums ==================================================================================================== */

/* table[k][b]: the remainder of byte b followed by k zero bytes.  Eight bytes at a time, a checksum takes a few percent
 * of the time of decoding. */
static uint32_t table[8][256];

static void fill_table(void) {
    for (uint32_t b = 0; b < 256; b++) {
        table[0][b] = b;
        for (int bit = 0; bit < 8; bit++) table[0][b] = table[0][b] >> 1 ^ (table[0][b] & 1 ? 0xedb88320u : 0);
    }
    for (int k = 1; k < 8; k++)
        for (int b = 0; b < 256; b++) table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 255];
}

uint32_t png_checksum(const uint8_t *bytes, size_t size) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_table);
    uint32_t crc = ~0u;
    for (; size >= 8; bytes += 8, size -= 8) {
        uint32_t low = crc ^ little_endian(bytes), high = little_endian(bytes + 4);
        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^ table[4][low >> 24] ^
              table[3][high & 255] ^ table[2][high >> 8 & 255] ^ table[1][high >> 16 & 255] ^ table[0][high >> 24];
    }
    for (; size; bytes++, size--) crc = crc >> 8 ^ table[0][(crc ^ *bytes) & 255];
    return ~crc;
}

/* == Chunks ======================================================================================================= */

bool png_is(const uint8_t *bytes, size_t size) {
    return size >= PNG_FIRST && !memcmp(bytes, "\x89PNG\r\n\x1a\n", PNG_FIRST);
}

bool png_chunk(const uint8_t *bytes, size_t size, size_t at, size_t *length) {
    if (size - at < PNG_CHUNK) return false;
    *length = big_endian(bytes + at);
    return *length <= size - at - PNG_CHUNK;
}

/* The name of a chunk that a reader may ignore begins with a small letter. */
bool png_check(const uint8_t *bytes, size_t size, Error *error) {
    for (size_t at = PNG_FIRST, length; png_chunk(bytes, size, at, &length); at += PNG_CHUNK + length) {
        const uint8_t *name = bytes + at + 4;
        if (!memcmp(name, "IEND", 4)) break;
        if (!(*name & 32) && png_checksum(name, 4 + length) != big_endian(name + 4 + length))
            return refuse(error, "a damaged PNG (a wrong checksum)");
    }
    return true;
}
