/* The interface between the two halves of the emulator; see device.cuh. */
#ifndef VIT_TESTS_EMULATE_EMULATE_H
#define VIT_TESTS_EMULATE_EMULATE_H

#include "device.cuh"

/* Ends the test with a message; `what` is a kernel or a primitive. */
[[noreturn]] void emulate_fail(const char *what, const char *why);

/* Ends the test with a message: blocks of the running kernel do `what` in no order. */
[[noreturn]] void emulate_race(const char *what);

/* The index of the running thread among the threads of all resident blocks. */
int emulate_current();

/* The number of blocks that have started in all launches, and the number of the running block. */
extern uint32_t emulate_blocks_run, emulate_block_number;

/* The number of blocks that are resident at a time, at most its initial value; 1: one block after the other. */
extern int emulate_residents;

/* Forgets the pending copies of a block's threads first .. first+threads-1; returns whether any copy is pending. */
void emulate_copies_reset(int first, int threads);
bool emulate_copies_pending(int first, int threads);

/* The distance in bytes of the values of neighbouring lanes that emulate_exchange_all returns. */
enum { SLOT_BYTES = 64 };

/* Where a thread waits: the address of the primitive's call, and of the call of the function that contains it. */
struct Place {
    const void *call, *caller;
};

/* Like emulate_exchange, but returns all 32 lanes, none of which may have exited. */
const unsigned char *emulate_exchange_all(const void *mine, size_t bytes, Place place);

/* c[j] += sum_k a[k] b[k][j] as a tensor core adds products of bfloat16. */
enum { TENSOR_TERMS = 16, TENSOR_COLUMNS = 8 };
void emulate_tensor_core(float (&c)[TENSOR_COLUMNS], const float (&a)[TENSOR_TERMS],
                         const float (&b)[TENSOR_TERMS][TENSOR_COLUMNS]);

#endif
