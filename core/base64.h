/* Base64 (RFC 4648) with padding: bytes as text. */
#ifndef VIT_CORE_BASE64_H
#define VIT_CORE_BASE64_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The number of characters that encode `size` bytes. */
size_t base64_length(size_t size);

void base64_put(FILE *out, const uint8_t *bytes, size_t size);

/* Decodes a text; the caller frees the bytes.  NULL if the text is empty or not Base64.  Dies if memory runs out. */
uint8_t *base64_decode(const char *text, size_t *size);

#endif
