extern "C" {
#include "library/exceptions.h"
}

#include <cstdio>
#include <exception>
#include <new>

/* Catches standard exceptions alone: the one by which pthread_cancel ends a thread has to pass. */
bool exceptions_run(void (*step)(void *context), void *context, char *message, size_t size) {
    try {
        step(context);
        return true;
    } catch (const std::bad_alloc &) {
        std::snprintf(message, size, "out of memory in oneDNN");
    } catch (const std::exception &e) {
        std::snprintf(message, size, "oneDNN failed with a C++ exception: %s", e.what());
    }
    return false;
}
