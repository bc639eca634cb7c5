#include "core/threads.h"

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/die.h"

/* Numbers from 1 to `most` with commas between them: those after the first are for nested regions. */
static bool is_list(const char *text, long most) {
    char *end;
    for (;; text = end + 1) {
        long number = strtol(text, &end, 10);
        if (end == text || number < 1 || number > most) return false;
        end += strspn(end, " \t");
        if (*end != ',') return !*end;
    }
}

static void check(const char *name, long most) {
    const char *text = getenv(name);
    if (text && !is_list(text, most))
        die_usage("%s: expected a number of threads from 1 to %ld, got '%.60s'; without it all cores are used",
                  name, most, text);
}

void threads_check(void) {
    enum { ENOUGH = 1024 };
    long processors = sysconf(_SC_NPROCESSORS_CONF);
    check("OMP_NUM_THREADS", processors > ENOUGH ? processors : ENOUGH);
    check("OMP_THREAD_LIMIT", INT_MAX);
}
