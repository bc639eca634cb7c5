/* The progress line.  On a terminal it is rewritten in place a few times a second; in a file or a pipe, on
 * a terminal without cursor control (TERM=dumb) and under mpirun a new line is printed every half minute, so that logs
 * stay short.  Only rank 0 prints it.  Other programs should read log.csv instead. */
#ifndef VIT_CORE_PROGRESS_H
#define VIT_CORE_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>

/* Seconds on the monotonic clock. */
double now_seconds(void);

/* Prints the line if enough time has passed since the last one.  `finish`: prints it in any case, with a newline. */
void progress_show(bool finish, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Ends a line that is still being rewritten, so that the next output starts on a new line. */
void progress_end(void);

/* Writes the duration as "1:02:03" or "4:05". */
void duration_text(char *text, size_t size, double seconds);

#endif
