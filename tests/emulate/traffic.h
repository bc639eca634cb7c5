/* Counts the bytes of device memory that kernels move, in a build that calls a function before every load and store.
 * That function also ends the program at a race: two blocks of a launch, which have no order, access the same two bytes
 * and one of them writes. */
#ifndef VIT_TESTS_EMULATE_TRAFFIC_H
#define VIT_TESTS_EMULATE_TRAFFIC_H

#include <stddef.h>

/* The bytes of one launch or of many.
 *
 *   asked   what the threads read and write
 *   moved   what the blocks move with a first-level cache: a sector of 32 bytes counts once for each block that reads
 *           it and once for each that writes it
 *   floor   each byte that is read counts once, and each that is written */
struct Traffic {
    size_t asked, moved, floor;
};

/* Sets the range of addresses of device memory. */
void traffic_memory(const void *first, size_t bytes);

/* Begin and end the counting of a launch. */
void traffic_begin();
Traffic traffic_end();

/* Whether this build counts. */
bool traffic_counts();

#endif
