/* Untrusted text: names of files, classes and tensors may hold any byte.  Control characters could move the terminal's
 * cursor or worse, and a newline would split a name in a list into two. */
#ifndef VIT_CORE_TEXT_H
#define VIT_CORE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Replaces each control character, of ASCII or of Unicode's C1 set (U+0080 to U+009F), by one '?'. */
void text_make_printable(char *text);

/* printf for one line whose arguments may be untrusted: makes the whole line printable, except for a newline at the end
 * of the format. */
void print_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
void print_line_to(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints any bytes as text for a terminal: invalid UTF-8 and control characters other than newline and tab become
 * '?'. */
void print_bytes_to(FILE *out, const void *bytes, size_t count);

/* Is the text valid UTF-8 for JSON: no overlong forms, no surrogates, nothing above U+10FFFF? */
bool text_is_utf8(const char *text);

/* Copies as much of text [length] as fits to name [size], for use in a file name: valid UTF-8, with control characters
 * and '/' replaced by '_'. */
void text_make_name(char *name, size_t size, const char *text, size_t length);

/* Makes a name [size] of the last part of a path with text_make_name, or of `otherwise` if that part is empty or begins
 * with a dot. */
void text_name_path(char *name, size_t size, const char *path, const char *otherwise);

/* Replaces each byte that is not part of valid UTF-8 by '?'. */
void text_make_utf8(char *text);

bool text_ends_with(const char *text, const char *ending);

/* The text without the blanks around it; those at its end are cut off in place. */
char *text_trim(char *text);

/* Cuts the next line with a setting, "name = value", off *text, the rest of an INI file, skipping comments and
 * headings.  The value is NULL if the line is not a setting.  False at the end of the text. */
bool text_next_setting(char **text, char **name, char **value);

/* Does a file's name have one of these extensions, "jpeg jpg", in upper or lower case? */
bool text_has_extension(const char *name, const char *extensions);

/* Is `word` in this list, whose words are separated by spaces or commas? */
bool text_lists(const char *list, const char *word);

/* Writes a string as one CSV field, in quotes if it contains a separator, a quote or a line break (RFC 4180). */
void text_put_field(FILE *file, const char *text);

/* Removes an incomplete UTF-8 character at the end of text [length], which was cut off there. */
void text_drop_half_character(char *text, size_t length);

#endif
