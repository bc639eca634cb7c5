#include "core/text.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

/* Length of the UTF-8 character at `at` in bytes, or 0 if it is invalid. */
static size_t character_bytes(const unsigned char *at) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t bytes = at[0] < 0x80 ? 1 : at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : at[0] >= 0xc0 ? 2 : 0;
    if (bytes < 2) return bytes;
    uint32_t code = at[0] & (0x7fu >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        if ((at[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | (at[i] & 0x3fu);
    }
    bool surrogate = code >= 0xd800 && code < 0xe000;
    return at[0] < 0xf8 && code >= least[bytes] && code <= 0x10ffff && !surrogate ? bytes : 0;
}

bool text_is_utf8(const char *text) {
    const unsigned char *at = (const unsigned char *)text;
    for (size_t bytes; *at; at += bytes)
        if (!(bytes = character_bytes(at))) return false;
    return true;
}

void text_make_utf8(char *text) {
    for (size_t bytes; *text; text += bytes ? bytes : 1)
        if (!(bytes = character_bytes((unsigned char *)text))) *text = '?';
}

void text_make_printable(char *text) {
    unsigned char *to = (unsigned char *)text;
    for (const unsigned char *from = to; *from;) {
        bool second_set = from[0] == 0xc2 && from[1] >= 0x80 && from[1] < 0xa0;
        *to++ = second_set || iscntrl(*from) ? '?' : *from;
        from += second_set ? 2 : 1;
    }
    *to = 0;
}

void text_make_name(char *name, size_t size, const char *text, size_t length) {
    bool whole = length < size;
    if (!whole) length = size - 1;
    memcpy(name, text, length);
    name[length] = 0;
    if (!whole) text_drop_half_character(name, length);
    for (unsigned char *at = (unsigned char *)name; *at;) {
        size_t bytes = character_bytes(at);
        bool second_set = at[0] == 0xc2 && at[1] < 0xa0;
        if (!bytes || second_set || *at == '/' || iscntrl(*at)) *at = '_';
        else at += bytes;
    }
}

void text_name_path(char *name, size_t size, const char *path, const char *otherwise) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    text_make_name(name, size, path + begin, end - begin);
    if (!*name || *name == '.') snprintf(name, size, "%s", otherwise);
}

void text_drop_half_character(char *text, size_t length) {
    size_t tail = 0;
    while (tail < 3 && tail < length && ((unsigned char)text[length - 1 - tail] & 0xc0) == 0x80) tail++;
    if (tail == length) return;
    unsigned char first = (unsigned char)text[length - 1 - tail];
    size_t whole = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 1;
    if (tail + 1 < whole) text[length - 1 - tail] = 0;
}

/* The length of the character at `at` if it may be printed, else 0. */
static size_t printable_bytes(const unsigned char *at, size_t left) {
    unsigned char character[5] = "";
    memcpy(character, at, left < 4 ? left : 4);
    size_t bytes = character_bytes(character);
    bool control = bytes == 1 ? iscntrl(*at) && *at != '\n' && *at != '\t' : character[0] == 0xc2 && character[1] < 0xa0;
    return bytes <= left && !control ? bytes : 0;
}

void print_bytes_to(FILE *out, const void *bytes, size_t count) {
    const unsigned char *at = bytes;
    while (count) {
        size_t length = printable_bytes(at, count), taken = length ? length : 1;
        if (length)
            fwrite(at, 1, length, out);
        else
            fputc('?', out);
        at += taken;
        count -= taken;
    }
}

static void put_line(FILE *out, const char *format, va_list arguments) {
    char line[16384];
    size_t length = strlen(format);
    bool ends = length && format[length - 1] == '\n';
    vsnprintf(line, sizeof line, format, arguments);
    length = strlen(line);
    if (ends && length && line[length - 1] == '\n') line[length - 1] = 0;
    text_make_printable(line);
    fputs(line, out);
    if (ends) fputc('\n', out);
}

void print_line(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    put_line(stdout, format, arguments);
    va_end(arguments);
}

void print_line_to(FILE *out, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    put_line(out, format, arguments);
    va_end(arguments);
}

bool text_lists(const char *list, const char *word) {
    size_t length = strlen(word), here;
    for (list += strspn(list, ", "); *list; list += here, list += strspn(list, ", ")) {
        here = strcspn(list, ", ");
        if (here == length && !strncmp(list, word, length)) return true;
    }
    return false;
}

char *text_trim(char *text) {
    text += strspn(text, " \t\r");
    size_t length = strlen(text);
    while (length && strchr(" \t\r", text[length - 1])) text[--length] = 0;
    return text;
}

bool text_next_setting(char **text, char **name, char **value) {
    do {
        if (!*text) return false;
        *name = text_trim(strsep(text, "\n"));
    } while (!**name || strchr("#;[", **name));
    *value = strchr(*name, '=');
    if (!*value) return true;
    *(*value)++ = 0;
    *name = text_trim(*name);
    *value = text_trim(*value);
    return true;
}

bool text_ends_with(const char *text, const char *ending) {
    size_t length = strlen(text), cut = strlen(ending);
    return length >= cut && !strcmp(text + length - cut, ending);
}

bool text_has_extension(const char *name, const char *extensions) {
    const char *dot = strrchr(name, '.');
    char lower[16] = "";
    for (size_t i = 0; dot && dot[1 + i]; i++) {
        if (i + 1 == sizeof lower) return false;
        lower[i] = (char)tolower((unsigned char)dot[1 + i]);
    }
    return text_lists(extensions, lower);
}

void text_put_field(FILE *file, const char *text) {
    bool quoted = strpbrk(text, ",\"\r\n") != NULL;
    if (quoted) fputc('"', file);
    for (; *text; text++) {
        if (*text == '"') fputc('"', file);
        fputc(*text, file);
    }
    if (quoted) fputc('"', file);
}
