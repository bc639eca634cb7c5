/* Exceptions of oneDNN, which is written in C++ and throws through its C interface where memory runs out. */
#ifndef VIT_LIBRARY_EXCEPTIONS_H
#define VIT_LIBRARY_EXCEPTIONS_H

#include <stdbool.h>
#include <stddef.h>

/* Runs step(context).  False: it has ended with an exception, which `message` describes.  exceptions_none.c takes the
 * place of exceptions.cpp where there is no C++ compiler, or no oneDNN: an exception then ends the process. */
bool exceptions_run(void (*step)(void *context), void *context, char *message, size_t size);

#endif
