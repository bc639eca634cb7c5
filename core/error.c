#include "core/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/die.h"
#include "core/text.h"

Error error_fatal, error_usage;

bool refuse(Error *error, const char *format, ...) {
    char text[sizeof error->text];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length >= (int)sizeof text) text_drop_half_character(text, sizeof text - 1);
    text_make_printable(text);
    if (error == &error_fatal) die("%s", text);
    if (error == &error_usage) die_usage("%s", text);
    memcpy(error->text, text, strlen(text) + 1);
    error->lacking = error->unread = false;
    return false;
}

bool refuse_memory(Error *error, size_t bytes, const char *what) {
    if (bytes) refuse(error, "out of memory: %zu bytes for %s", bytes, what);
    else refuse(error, "out of memory for %s", what);
    error->lacking = true;
    return false;
}

bool refuse_library(Error *error, const char *line) {
    refuse(error, "%s", line);
    error->lacking = true;
    return false;
}

bool refuse_errno(Error *error, const char *what) {
    int reason = errno;
    refuse(error, "%s: %s", what, strerror(reason));
    error->lacking = reason == EMFILE || reason == ENFILE || reason == ENOMEM;
    error->unread = true;
    return false;
}
