/* How a run ends early.  One line on stderr, prefixed with the program's name: the file or flag, the value, what was
 * expected, what to do.  die_usage is for a command line or configuration that makes no sense (exit status 2), die
 * for everything the world did to us (exit status 1).  Neither is for our own mistakes: those are asserts. */
#ifndef VIT_CORE_DIE_H
#define VIT_CORE_DIE_H

#include <stddef.h>

void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
void die_usage(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Among several processes that train one model: lines name the rank, of a wrong command line only rank 0 speaks, and
 * `how` ends the process in place of exit. */
void die_as_rank(int rank, int ranks, void (*how)(int status));

/* A line for the user that does not end the run, on stderr. */
void warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Memory that is there, zeroed, or the run ends with a line that says how much was asked for and for what. */
void *xcalloc(size_t count, size_t size, const char *what);

/* The candidate nearest to `word` in edit distance, or NULL when nothing is near enough to be meant. */
const char *nearest_word(const char *word, const char *const *candidates, int count);

#endif
