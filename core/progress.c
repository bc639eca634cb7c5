#include "core/progress.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/distributed.h"
#include "core/text.h"

static const double TERMINAL_INTERVAL = 0.2, FILE_INTERVAL = 30; /* seconds */

double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool open_line; /* on a terminal: the cursor is at the end of the line */

/* A terminal with cursor control.  A launcher gives its processes a terminal of its own, whatever happens to the
 * output. */
static bool rewrites(void) {
    const char *name = getenv("TERM");
    return isatty(STDOUT_FILENO) && name && *name && strcmp(name, "dumb") && !distributed_launched();
}

void progress_end(void) {
    if (open_line) putchar('\n');
    open_line = false;
    fflush(stdout);
}

void progress_show(bool finish, const char *format, ...) {
    static double shown = -INFINITY;
    bool terminal = rewrites();
    double now = now_seconds();
    if (distributed_rank() > 0) return;
    if (!finish && now - shown < (terminal ? TERMINAL_INTERVAL : FILE_INTERVAL)) return;
    shown = now;
    va_list arguments;
    char line[4096];
    va_start(arguments, format);
    if (terminal) fputs("\r\033[K", stdout);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    text_make_printable(line);
    fputs(line, stdout);
    open_line = true;
    if (finish || !terminal) progress_end();
    fflush(stdout);
}

void duration_text(char *text, size_t size, double seconds) {
    long s = seconds > 0 && seconds < 1e9 ? lround(seconds) : 0;
    if (s >= 3600)
        snprintf(text, size, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(text, size, "%ld:%02ld", s / 60, s % 60);
}
