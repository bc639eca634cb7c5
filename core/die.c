#include "core/die.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char *program_invocation_short_name;

static void say(const char *format, va_list arguments) {
    fflush(stdout);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
}

void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
    exit(1);
}

void die_usage(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
    exit(2);
}

void warn(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
}

void *xcalloc(size_t count, size_t size, const char *what) {
    void *p = calloc(count ? count : 1, size ? size : 1);
    if (!p) die("out of memory: %zu x %zu bytes for %s", count, size, what);
    return p;
}

/* Levenshtein distance, case-blind, dashes equal to underscores; words longer than the row count as far apart. */
static int edit_distance(const char *a, const char *b) {
    int row[64], n = (int)strlen(b);
    if (n >= 64 || strlen(a) >= 64) return 64;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int x = a[i - 1] == '_' ? '-' : tolower((unsigned char)a[i - 1]);
            int y = b[j - 1] == '_' ? '-' : tolower((unsigned char)b[j - 1]);
            int best = diagonal + (x != y);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

const char *nearest_word(const char *word, const char *const *candidates, int count) {
    const char *best = NULL;
    int best_distance = (int)strlen(word) / 3 + 1;
    for (int i = 0; i < count; i++) {
        int distance = edit_distance(word, candidates[i]);
        if (distance < best_distance) {
            best = candidates[i];
            best_distance = distance;
        }
    }
    return best;
}
