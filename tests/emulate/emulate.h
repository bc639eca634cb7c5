/* The interface between the two halves of the emulator; see device.cuh. */
#ifndef VIT_TESTS_EMULATE_EMULATE_H
#define VIT_TESTS_EMULATE_EMULATE_H

#include "device.cuh"

/* Ends the test: `what` is a kernel or a primitive. */
[[noreturn]] void emulate_fail(const char *what, const char *why);

/* Ends the test: blocks of the kernel that runs do `what` in no order. */
[[noreturn]] void emulate_race(const char *what);

/* The number of the thread that runs, among those of all blocks that have begun. */
int emulate_current();

/* How many blocks of all launches have started, and which of them runs. */
extern uint32_t emulate_blocks_run, emulate_block_number;

/* How many blocks are under way at a time, at most as many as at the start; 1: they run one after the other. */
extern int emulate_residents;

/* A block of `threads`, numbered from `first`, starts: no copy is on its way.  And ends: whether any still is. */
void emulate_copies_reset(int first, int threads);
bool emulate_copies_pending(int first, int threads);

/* How far apart the values of neighbouring lanes lie that emulate_exchange_all returns. */
enum { SLOT_BYTES = 64 };

/* The place where a thread waits: the call of the primitive, and the call of the function that contains it. */
struct Place {
    const void *call, *caller;
};

/* emulate_exchange with all 32 lanes at once, every one of which must live. */
const unsigned char *emulate_exchange_all(const void *mine, size_t bytes, Place place);

/* c[j] += sum_k a[k] b[k][j] as a tensor core adds products of bfloat16. */
enum { TENSOR_TERMS = 16, TENSOR_COLUMNS = 8 };
void emulate_tensor_core(float (&c)[TENSOR_COLUMNS], const float (&a)[TENSOR_TERMS],
                         const float (&b)[TENSOR_TERMS][TENSOR_COLUMNS]);

#endif
