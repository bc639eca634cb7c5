#include "core/die.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/text.h"

extern char *program_invocation_short_name;

static int own_rank, all_ranks = 1;
static bool quiet;

static void (*to_do)(const char *message);

void die_last(void (*last)(const char *message)) { to_do = last; }

void die_do_last(const char *message) {
    void (*last)(const char *) = to_do;
    to_do = NULL;
    if (!last) return;
    quiet = true;
    last(message);
}

static void leave_alone(int status, const char *message) {
    die_say(message);
    die_do_last(message);
    exit(status);
}

static void (*leave)(int status, const char *message) = leave_alone;

void die_as_rank(int rank, int ranks, void (*how)(int status, const char *message)) {
    own_rank = rank;
    all_ranks = ranks;
    leave = how;
}

enum { MESSAGE_SIZE = 8192 };

static void (*shares)(bool begins);

void die_in_library(void (*how)(int status, const char *message), void (*shared)(bool begins)) {
    quiet = true;
    leave = how;
    shares = shared;
}

void memory_shared_begin(void) {
    if (shares) shares(true);
}

void memory_shared_end(void) {
    if (shares) shares(false);
}

/* One write, so that the lines of several ranks do not mix. */
void die_say(const char *message) {
    if (quiet) return;
    char line[MESSAGE_SIZE + 128];
    int at = snprintf(line, sizeof line, "%.64s: ", program_invocation_short_name);
    if (all_ranks > 1) at += snprintf(line + at, sizeof line - (size_t)at, "rank %d: ", own_rank);
    snprintf(line + at, sizeof line - (size_t)at, "%s", message);
    text_make_printable(line);
    fflush(stdout);
    fprintf(stderr, "%s\n", line);
}

void die(const char *format, ...) {
    char message[MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    leave(1, message);
    abort();
}

void die_usage(const char *format, ...) {
    char message[MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    leave(2, message);
    abort();
}

void die_at_once(const char *format, ...) {
    char message[MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    die_say(message);
    _exit(1);
}

void warn(const char *format, ...) {
    char message[MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    die_say(message);
}

void *xcalloc(size_t count, size_t size, const char *what) {
    void *p = calloc(count ? count : 1, size ? size : 1);
    if (!p) die("out of memory: %zu x %zu bytes for %s", count, size, what);
    return p;
}

void *xgrow(void *array, size_t wanted, size_t *room, size_t size, const char *what) {
    if (wanted <= *room) return array;
    size_t more = 2 * wanted + 64;
    array = realloc(array, more * size);
    if (!array) die("out of memory: %zu x %zu bytes for %s", more, size, what);
    *room = more; /* only now: in a library the old array and its room may be used again */
    return array;
}

char *xstrdup(const char *text) {
    char *copy = strdup(text);
    if (!copy) die("out of memory: a copy of '%.100s'", text);
    return copy;
}

static int folded(char c) { return c == '_' ? '-' : tolower((unsigned char)c); }

static int smallest(int a, int b, int c) { return a < b ? (a < c ? a : c) : (b < c ? b : c); }

/* Insertions, deletions, replacements and swaps of neighbours (Damerau); ignores case, and dashes equal underscores.
 * Words too long for the row buffers get a large distance. */
static int edit_distance(const char *a, const char *b) {
    enum { LONGEST = 63 };
    int rows[3][LONGEST + 1], m = (int)strlen(a), n = (int)strlen(b);
    if (m > LONGEST || n > LONGEST) return LONGEST;
    for (int i = 0; i <= m; i++) {
        int *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        for (int j = 0; j <= n; j++) {
            if (i == 0 || j == 0) {
                row[j] = i + j;
                continue;
            }
            int x = folded(a[i - 1]), y = folded(b[j - 1]);
            row[j] = smallest(above[j] + 1, row[j - 1] + 1, above[j - 1] + (x != y));
            bool swapped = i > 1 && j > 1 && x == folded(b[j - 2]) && y == folded(a[i - 2]);
            if (swapped && above2[j - 2] + 1 < row[j]) row[j] = above2[j - 2] + 1;
        }
    }
    return rows[m % 3][n];
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
