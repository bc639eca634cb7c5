/* Reports to a listener which gradients are complete while the backward pass is still running, so that their sums over
 * ranks can overlap with the rest of the pass.  The pass computes the gradients in the parameter arena from its end to
 * its beginning. */
#ifndef VIT_LAYERS_FINAL_GRADIENTS_H
#define VIT_LAYERS_FINAL_GRADIENTS_H

#include <stddef.h>

/* Called with a range of gradients [n] that this backward pass will not change again. */
typedef void (*GradientsListener)(float *gradients, size_t n);

typedef struct {
    GradientsListener listener; /* NULL: none, for example while more micro-batches of the step follow */
    float *gradients;           /* the arena of gradients */
    size_t end;                 /* the listener has been called for everything from this index on */
    size_t small_before;        /* a small range is held back and joined to the next one, unless it begins at or below
                                 * this index: 0, so that the last range is reported, or the start of a part of the
                                 * model with a long backward pass */
} FinalGradients;

/* Reports that all gradients from index `from` of the arena on are complete.  final may be NULL. */
void gradients_final(FinalGradients *final, size_t from);

#endif
