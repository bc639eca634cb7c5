#include "layers/final_gradients.h"

/* Large enough for a network to be busy with, small enough that the last one is soon over: 4 MiB. */
enum { GRADIENTS_AT_ONCE = 1 << 20 };

void gradients_final(FinalGradients *final, size_t from) {
    if (!final || !final->listener || from >= final->end) return;
    if (from > final->small_before && final->end - from < GRADIENTS_AT_ONCE) return;
    final->listener(final->gradients + from, final->end - from);
    final->end = from;
}
