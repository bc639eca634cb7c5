/* For tests with side effects: a temporary folder, capturing stderr, and child processes for code that ends the
 * program. */
#ifndef VIT_TESTS_SCRATCH_H
#define VIT_TESTS_SCRATCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* == A folder ===================================================================================================== */

enum { SCRATCH_PATH = 256 };

/* A template for mkstemp and mkdtemp: a name in the folder TMPDIR, or in /tmp. */
static inline char *scratch_path(char path[SCRATCH_PATH]) {
    const char *parent = getenv("TMPDIR");
    snprintf(path, SCRATCH_PATH, "%s/vit_test_XXXXXX", parent && *parent ? parent : "/tmp");
    return path;
}

static char folder[SCRATCH_PATH];

/* Set-up and tear-down of a cmocka group: create and remove the folder. */
static inline int make_folder(void **state) {
    (void)state;
    umask(022); /* some tests read their files as another user */
    return mkdtemp(scratch_path(folder)) == NULL;
}

static inline int remove_folder(void **state) {
    (void)state;
    char command[SCRATCH_PATH + 16];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    return system(command);
}

/* The path of a file in the folder; the string stays valid for the next few dozen calls. */
static inline const char *in_folder(const char *format, ...) {
    enum { KEPT = 64 };
    static char path[KEPT][512];
    static int turn;
    turn = (turn + 1) % KEPT;
    int at = snprintf(path[turn], sizeof path[turn], "%s/", folder);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path[turn] + at, sizeof path[turn] - (size_t)at, format, arguments);
    va_end(arguments);
    return path[turn];
}

/* == stderr ======================================================================================================= */

/* Between these two calls nothing is printed to stderr. */
static inline int quiet_begin(void) {
    fflush(stderr);
    int terminal = dup(2), null = open("/dev/null", O_WRONLY);
    dup2(null, 2);
    close(null);
    return terminal;
}

static inline void quiet_end(int terminal) {
    fflush(stderr);
    dup2(terminal, 2);
    close(terminal);
}

/* Runs a function in a child process whose stderr is returned in text.  Returns the exit status, or 77 if the function
 * returned, or -1 if it crashed. */
static inline int status_of(void (*run)(void *), void *argument, char *text, size_t size) {
    int pipes[2], status;
    size_t have = 0;
    assert_int_equal(pipe(pipes), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(pipes[1], 2);
        run(argument);
        _exit(77);
    }
    close(pipes[1]);
    for (ssize_t got = 1; got > 0 && have < size - 1; have += got > 0 ? (size_t)got : 0)
        got = read(pipes[0], text + have, size - 1 - have);
    text[have] = 0;
    close(pipes[0]);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static inline void assert_words(const char *text, const char *const *words) {
    for (; *words; words++)
        if (!strstr(text, *words)) fail_msg("'%s' is missing", *words);
}

#endif
