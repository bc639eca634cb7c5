#include "core/error.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Drops the first bytes of a UTF-8 character whose others were cut off. */
static void drop_half_character(char *text, size_t length) {
    size_t tail = 0;
    while (tail < 3 && tail < length && ((unsigned char)text[length - 1 - tail] & 0xc0) == 0x80) tail++;
    if (tail == length) return;
    unsigned char first = (unsigned char)text[length - 1 - tail];
    size_t whole = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 1;
    if (tail + 1 < whole) text[length - 1 - tail] = 0;
}

bool refuse(Error *error, const char *format, ...) {
    char text[sizeof error->text];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length >= (int)sizeof text) drop_half_character(text, sizeof text - 1);
    for (char *c = text; *c; c++)
        if (iscntrl((unsigned char)*c)) *c = '?';
    memcpy(error->text, text, strlen(text) + 1);
    return false;
}
