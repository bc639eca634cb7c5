#include "core/limits.h"

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/die.h"

extern char *program_invocation_short_name;

static void say(const char *text) {
    if (write(STDERR_FILENO, text, strlen(text)) < 0) return;
}

void limits_open(char **argv) {
    static const rlim_t least = 256 << 10, usual = 8 << 20;
    struct rlimit stack;
    signal(SIGXFSZ, SIG_IGN);
    if (getrlimit(RLIMIT_STACK, &stack) || stack.rlim_cur >= least) return;
    if (stack.rlim_max < usual) stack.rlim_max = usual; /* which only root may */
    stack.rlim_cur = usual;
    bool raised = setrlimit(RLIMIT_STACK, &stack) == 0;
    if (!raised && !getrlimit(RLIMIT_STACK, &stack) && stack.rlim_max >= least) {
        stack.rlim_cur = stack.rlim_max;
        raised = setrlimit(RLIMIT_STACK, &stack) == 0;
    }
    if (raised) execv("/proc/self/exe", argv);
    if (raised) return; /* without /proc: at least this thread has the limit */
    say(program_invocation_short_name); /* die would need more stack than there is */
    say(": the stack is limited to less than 256 KiB: start it from a shell with `ulimit -s 8192`\n");
    _exit(1);
}

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
