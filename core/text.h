/* Text that others wrote: names of files, classes and tensors may hold any byte.  On a terminal a control character
 * moves the cursor or worse, and in a list of names a newline makes two of one. */
#ifndef VIT_CORE_TEXT_H
#define VIT_CORE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Each control character, of ASCII or of Unicode's second set (U+0080 to U+009F), becomes one '?'. */
void text_make_printable(char *text);

/* printf of one line whose arguments may hold such names: they become printable, and so does everything in the line
 * but a newline at the end of the format. */
void print_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
void print_line_to(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* As JSON wants it: no overlong form, no surrogate, nothing above U+10FFFF. */
bool text_is_utf8(const char *text);

/* name [size] = as much of text [length] as fits, to be part of a file's name: UTF-8 without control characters and
 * without '/', in whose places stands '_'. */
void text_make_name(char *name, size_t size, const char *text, size_t length);

/* Drops the first bytes of a UTF-8 character at the end of text [length] whose others were cut off. */
void text_drop_half_character(char *text, size_t length);

#endif
