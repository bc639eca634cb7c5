/* Bytes of device memory that kernels move, counted in a build that calls a function before every load and store, which
 * also ends the program where two blocks of a launch touch the same two bytes and one of them writes: a race, as blocks
 * have no order. */
#ifndef VIT_TESTS_EMULATE_TRAFFIC_H
#define VIT_TESTS_EMULATE_TRAFFIC_H

#include <stddef.h>

/* All of a launch, or of many.
 *
 *   asked   what its threads ask for
 *   moved   what its blocks fetch and write: a sector of 32 bytes once for each block that reads it and once for each
 *           that writes it, as the first-level cache leaves it and memory is addressed
 *   floor   each byte that is read once, each that is written once */
struct Traffic {
    size_t asked, moved, floor;
};

/* The range of addresses of device memory. */
void traffic_memory(const void *first, size_t bytes);

/* A kernel is launched; and is done. */
void traffic_begin();
Traffic traffic_end();

/* Does this build count? */
bool traffic_counts();

#endif
