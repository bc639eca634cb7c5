/* Stands in for inih where there is no inih, in WebAssembly.  The caller has removed headings, comments on lines of
 * their own and indentation (core/config/config_file.c), so a line is empty or `name = value  ; comment`. */
#include <ini.h>

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int ini_max_line = 1024;

/* Removes the spaces at both ends of [text, end), in place. */
static char *trimmed(char *text, char *end) {
    while (text < end && isspace((unsigned char)*text)) text++;
    while (end > text && isspace((unsigned char)end[-1])) end--;
    *end = 0;
    return text;
}

/* Where a value ends: before a semicolon that follows a space. */
static char *end_of_value(char *value) {
    char *at = value;
    while (*at && (*at != ';' || !isspace((unsigned char)at[-1]))) at++;
    return at;
}

static bool take_line(char *line, ini_handler handler, void *user) {
    char *all = trimmed(line, line + strlen(line)), *sign = strpbrk(all, "=:");
    if (!*all) return true;
    if (!sign) return false;
    char *end = end_of_value(sign + 1);
    const char *value = trimmed(sign + 1, end), *name = trimmed(all, sign);
    return handler(user, "", name, value) != 0;
}

/* The number of the first line that is not `name = value` or that the handler refused, 0 where there is none, and -2
 * where memory is short.  All lines are read, as by inih. */
int ini_parse_stream(ini_reader reader, void *stream, ini_handler handler, void *user) {
    char *line = malloc((size_t)ini_max_line);
    int bad = 0;
    if (!line) return -2;
    for (int number = 1; reader(line, ini_max_line, stream); number++)
        if (!take_line(line, handler, user) && !bad) bad = number;
    free(line);
    return bad;
}
