#include "core/signals.h"

#include <stddef.h>

volatile sig_atomic_t stop_signal;

static void on_signal(int number) { stop_signal = number; }

static const struct {
    int number;
    const char *name;
} caught[] = {{SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}, {SIGHUP, "SIGHUP"}, {SIGUSR1, "SIGUSR1"}};
enum { CAUGHT = sizeof caught / sizeof *caught };

/* nohup's SIGHUP stays ignored.  A file that outgrows `ulimit -f` is an error of that write, with its message, and not
 * the end of the process. */
void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)(SA_RESETHAND | SA_RESTART)}, before;
    for (int i = 0; i < CAUGHT; i++) {
        sigaction(caught[i].number, NULL, &before);
        if (caught[i].number == SIGHUP && before.sa_handler == SIG_IGN) continue;
        sigaction(caught[i].number, &action, NULL);
    }
    signal(SIGXFSZ, SIG_IGN);
}

const char *stop_signal_name(void) {
    for (int i = 0; i < CAUGHT; i++)
        if (caught[i].number == stop_signal) return caught[i].name;
    return "a signal to another rank";
}
