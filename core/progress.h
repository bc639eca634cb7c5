/* The one line a person watches.  On a terminal it is rewritten in place a few times a second; in a file or a pipe, on
 * a terminal that cannot (TERM=dumb) and under mpirun it becomes a line of its own every half minute, so that logs stay
 * short.  Only rank 0 shows it.  Programs read log.csv instead. */
#ifndef VIT_CORE_PROGRESS_H
#define VIT_CORE_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>

/* Seconds on a clock that never jumps. */
double now_seconds(void);

/* Shows the line if it is time to.  `finish` shows it in any case and ends it. */
void progress_show(bool finish, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Ends a line that is still being rewritten, so that what is printed next has a line of its own. */
void progress_end(void);

/* "1:02:03" or "4:05". */
void duration_text(char *text, size_t size, double seconds);

#endif
