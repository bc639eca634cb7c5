#include "core/signals.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/die.h"

extern char *program_invocation_short_name;

atomic_int stop_signal;

static const struct {
    int number;
    const char *name;
} caught[] = {{SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}, {SIGHUP, "SIGHUP"}, {SIGUSR1, "SIGUSR1"}};
enum { CAUGHT = sizeof caught / sizeof *caught };

static sigset_t awaited;
static atomic_bool catching;

static const char *name_of(int number) {
    int i = 0;
    while (i < CAUGHT - 1 && caught[i].number != number) i++;
    return caught[i].name;
}

/* Writes without stdio, whose lock a blocked thread may hold. */
static void say_second(int number) {
    char text[160];
    int length = snprintf(text, sizeof text, "%.64s: ended at once by a second signal, %s: what was not saved is "
                          "lost\n", program_invocation_short_name, name_of(number));
    if (write(STDERR_FILENO, text, (size_t)length) < 0) return;
}

/* Restores and triggers the signal's default action. */
static void end_by(int number) {
    signal(number, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &awaited, NULL);
    raise(number);
}

static void *wait_for_signals(void *unused) {
    (void)unused;
    for (int number;;) {
        if (sigwait(&awaited, &number) != 0) continue;
        if (!catching) {
            end_by(number);
        } else if (!stop_signal) {
            stop_signal = number;
        } else if (number != SIGHUP) { /* a terminal that closes sends two: the shell's and the kernel's */
            say_second(number);
            end_by(number);
        }
    }
    return NULL;
}

/* nohup's SIGHUP stays ignored; a shell's background jobs come with SIGINT ignored, which kill -INT may still send. If
 * the reader of the output has ended (`| head`), the write fails with a message, and the process does not end before it
 * has saved its files. */
void signals_open(void) {
    pthread_t thread;
    struct sigaction before;
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&awaited);
    for (int i = 0; i < CAUGHT; i++) {
        sigaction(caught[i].number, NULL, &before);
        if (before.sa_handler == SIG_IGN && caught[i].number == SIGHUP) continue; /* sigwait would receive it */
        if (before.sa_handler == SIG_IGN) signal(caught[i].number, SIG_DFL);
        sigaddset(&awaited, caught[i].number);
    }
    pthread_sigmask(SIG_BLOCK, &awaited, NULL);
    int trouble = pthread_create(&thread, NULL, wait_for_signals, NULL);
    if (trouble) die("cannot start a thread: %s", strerror(trouble));
    pthread_detach(thread);
}

void catch_signals(void) { catching = true; }

const char *stop_signal_name(void) {
    return stop_signal ? name_of(stop_signal) : "a signal to another rank";
}
