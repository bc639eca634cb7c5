#include "layers/final_gradients.h"

/* 4 MiB: large enough for the network's full bandwidth, and small enough that the sum of the last range takes little
 * time after the backward pass. */
enum { GRADIENTS_AT_ONCE = 1 << 20 };

void gradients_final(FinalGradients *final, size_t from) {
    if (!final || !final->listener || from >= final->end) return;
    if (from > final->small_before && final->end - from < GRADIENTS_AT_ONCE) return;
    final->listener(final->gradients + from, final->end - from);
    final->end = from;
}
