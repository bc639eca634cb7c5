#include "core/limits.h"

#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

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
    if (raised) return; /* without /proc: at least this thread has it */
    say(program_invocation_short_name); /* die would take more stack than there is */
    say(": the stack is limited to less than 256 KiB: start it from a shell with `ulimit -s 8192`\n");
    _exit(1);
}
