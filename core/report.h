/* Errors of files and settings: a function that finds one writes a line for the user and returns false, up to whoever
 * knows whether the run can go on. */
#ifndef VIT_CORE_REPORT_H
#define VIT_CORE_REPORT_H

#include <stdbool.h>
#include <stddef.h>

/* Where the line is written. */
typedef struct {
    char *text;
    size_t size;
} Report;

/* Returns false, for the caller to return.  Control characters in what the user gave us, or in a file's names, do not
 * reach the terminal. */
bool refuse(Report report, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
