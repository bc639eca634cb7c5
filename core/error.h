/* What went wrong, for functions that do not end the run: one that finds an error in a file or a setting writes a line
 * for the user and returns false, up to whoever knows whether the run can go on.  A null-initialised one is empty. */
#ifndef VIT_CORE_ERROR_H
#define VIT_CORE_ERROR_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char text[1024]; /* ends with a 0; no control characters; what does not fit is cut off between two characters */
    bool out_of_memory; /* the machine's fault: the file or setting may be sound */
} Error;

/* Writes the line and returns false, for the caller to return.  An argument may be error->text itself.  Control
 * characters in what the user gave us, or in a file's names, become '?' and do not reach the terminal. */
bool refuse(Error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Says that there were no `bytes` (0: how many is not known) for that, sets out_of_memory and returns false. */
bool refuse_memory(Error *error, size_t bytes, const char *what);

#endif
