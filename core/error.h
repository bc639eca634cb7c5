/* Error messages of functions that do not end the run.  Such a function writes one line for the user and returns false;
 * its caller decides whether the run can continue.  A zero-initialised Error is empty. */
#ifndef VIT_CORE_ERROR_H
#define VIT_CORE_ERROR_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char text[1024]; /* zero-terminated, without control characters; truncated between two characters if too long */
    bool lacking; /* memory, descriptors or a library: the file or setting may be valid, and another would fail, too */
    bool unread;  /* a file could not be opened or read: it may be valid, or come back */
} Error;

/* Passed by a caller that cannot continue: the function that refuses something then ends the program with its line,
 * with die, or with die_usage if a command line or a configuration is at fault (core/die.h). */
extern Error error_fatal, error_usage;

/* Writes the line and returns false, for the caller to return.  error->text may be one of the arguments.  Control
 * characters in the arguments are replaced by '?', so that they do not reach the terminal. */
bool refuse(Error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Writes that `bytes` of memory (0: unknown) could not be allocated for `what`, sets `lacking` and returns false. */
bool refuse_memory(Error *error, size_t bytes, const char *what);

/* Writes what errno says about `what` and sets `unread`; descriptors and memory set `lacking`, too. */
bool refuse_errno(Error *error, const char *what);

/* Like refuse_memory, where a library could not allocate memory. */
bool refuse_library(Error *error, const char *line);

#endif
