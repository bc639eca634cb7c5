/* Gradients that a backward pass will not touch again.  The pass goes through the parameter arena from its end to its
 * beginning, and whoever sums over ranks hears of what lies behind it: the sums run beside the rest of the pass. */
#ifndef VIT_LAYERS_FINAL_GRADIENTS_H
#define VIT_LAYERS_FINAL_GRADIENTS_H

#include <stddef.h>

/* Hears of gradients [n] that are final. */
typedef void (*GradientsListener)(float *gradients, size_t n);

typedef struct {
    GradientsListener listener; /* NULL: nobody listens, as while more micro-batches follow */
    float *gradients;           /* the arena */
    size_t end;                 /* the listener has heard of what lies from here on */
    size_t small_before;        /* small pieces wait for the next ones, unless they begin here or before: 0, so that
                                 * the last one goes out, or where a part of the model begins that takes long */
} FinalGradients;

/* All gradients from place `from` of the arena on are final.  final may be NULL: nobody listens. */
void gradients_final(FinalGradients *final, size_t from);

#endif
