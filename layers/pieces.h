/* Several tensors in one block of device memory: the layer takes them one after another, once to count the bytes of the
 * block, and again after it was allocated. */
#ifndef VIT_LAYERS_PIECES_H
#define VIT_LAYERS_PIECES_H

#include <stddef.h>

typedef struct {
    char *base; /* NULL: only their bytes are counted */
    size_t used;
} Pieces;

/* The next `bytes` of the block, aligned to 256 bytes; NULL while they are counted. */
void *pieces_take(Pieces *pieces, size_t bytes);

/* Allocates the block that place(owner, pieces), which is called twice, takes its tensors from.  `what` is for the
 * message when memory runs out.  To be freed with device_free. */
void *pieces_allocate(void (*place)(void *owner, Pieces *pieces), void *owner, const char *what);

#endif
