#include "core/base64.h"

#include <stdlib.h>
#include <string.h>

#include "core/die.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

size_t base64_length(size_t size) { return (size + 2) / 3 * 4; }

void base64_put(FILE *out, const uint8_t *bytes, size_t size) {
    for (size_t i = 0; i < size; i += 3) {
        uint32_t second = i + 1 < size ? bytes[i + 1] : 0, third = i + 2 < size ? bytes[i + 2] : 0;
        uint32_t three = (uint32_t)bytes[i] << 16 | second << 8 | third;
        fputc(digits[three >> 18], out);
        fputc(digits[three >> 12 & 63], out);
        fputc(i + 1 < size ? digits[three >> 6 & 63] : '=', out);
        fputc(i + 2 < size ? digits[three & 63] : '=', out);
    }
}

uint8_t *base64_decode(const char *text, size_t *size) {
    size_t length = strlen(text), padding = 0;
    while (padding < 2 && padding < length && text[length - 1 - padding] == '=') padding++;
    if (!length || length % 4 || strspn(text, digits) != length - padding) return NULL;
    uint8_t *bytes = xcalloc(length / 4 * 3, 1, "decoded bytes"), *to = bytes;
    for (size_t i = 0; i < length; i += 4) {
        uint32_t three = 0;
        for (size_t k = i; k < i + 4; k++)
            three = three << 6 | (text[k] == '=' ? 0 : (uint32_t)(strchr(digits, text[k]) - digits));
        *to++ = (uint8_t)(three >> 16);
        *to++ = (uint8_t)(three >> 8);
        *to++ = (uint8_t)three;
    }
    *size = length / 4 * 3 - padding;
    return bytes;
}
