/* What the two halves of the emulator know of each other; see device.cuh. */
#ifndef VIT_TESTS_EMULATE_EMULATE_H
#define VIT_TESTS_EMULATE_EMULATE_H

#include "device.cuh"

/* Ends the test: `what` is a kernel or a primitive. */
[[noreturn]] void emulate_fail(const char *what, const char *why);

/* The number in its block of the thread that runs. */
int emulate_current();

/* A block of `threads` starts: no copy is on its way. */
void emulate_copies_reset(int threads);

/* How far apart the values of neighbouring lanes lie that emulate_exchange points to. */
enum { SLOT_BYTES = 64 };

#endif
