/* Fatal errors.  One line on stderr, prefixed with the program's name: the file or flag, the value, what was expected,
 * what to do.  die_usage is for an invalid command line or configuration (exit status 2), die for all other errors from
 * outside the program (exit status 1).  Bugs of the program itself are asserts instead. */
#ifndef VIT_CORE_DIE_H
#define VIT_CORE_DIE_H

#include <stdbool.h>
#include <stddef.h>

void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
void die_usage(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* For several processes that train one model: from now on messages name the rank, and `how` ends the process.  It
 * receives the message and calls die_say unless another rank reports the same. */
void die_as_rank(int rank, int ranks, void (*how)(int status, const char *message));

/* When die or die_usage has written its line, it calls last(message), in whichever thread it was called, but not in a
 * library.  What fails in `last` ends the process without another line.  NULL: nothing is called any more. */
void die_last(void (*last)(const char *message));

/* Calls it; for the `how` of die_as_rank. */
void die_do_last(const char *message);

/* Writes `message` as one line to stderr. */
void die_say(const char *message);

/* For a library in another program (library/vit.c): from now on nothing is written to stderr, and a message goes to `how`
 * alone, which does not return.  shared(true) and shared(false) are called around allocations that outlive the library's
 * call: memory_shared_begin and memory_shared_end. */
void die_in_library(void (*how)(int status, const char *message), void (*shared)(bool begins));

/* What is allocated between these two belongs to the process and not to the call that needs it first, such as the
 * workspace of kernels.  Outside of a library they do nothing. */
void memory_shared_begin(void);
void memory_shared_end(void);

/* Dies like die, but runs no exit handlers: for a thread inside another library, whose locks it may hold. */
void die_at_once(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Writes a warning to stderr; the run continues. */
void warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Zeroed memory.  If there is not enough, dies with a line that says how much was needed and for what. */
void *xcalloc(size_t count, size_t size, const char *what);

/* Makes room in an array of *room elements for at least `wanted` of them; new ones are not set.  Dies like xcalloc. */
void *xgrow(void *array, size_t wanted, size_t *room, size_t size, const char *what);

/* A copy of the text, which the caller frees.  Dies like xcalloc. */
char *xstrdup(const char *text);

/* The candidate nearest to `word` in edit distance, or NULL if none is close enough to be a likely typo. */
const char *nearest_word(const char *word, const char *const *candidates, int count);

#endif
