#include "core/report.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>

bool refuse(Report report, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(report.text, report.size, format, arguments);
    va_end(arguments);
    for (char *c = report.text; report.size && *c; c++)
        if (iscntrl((unsigned char)*c)) *c = '?';
    return false;
}
