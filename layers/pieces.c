#include "layers/pieces.h"

#include "kernels/kernels.h"

void *pieces_take(Pieces *pieces, size_t bytes) {
    enum { ALIGN = 256 };
    char *taken = pieces->base ? pieces->base + pieces->used : NULL;
    pieces->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return taken;
}

void *pieces_allocate(void (*place)(void *owner, Pieces *pieces), void *owner, const char *what) {
    Pieces counted = {0};
    place(owner, &counted);
    Pieces pieces = {.base = device_malloc(counted.used, what)};
    place(owner, &pieces);
    return pieces.base;
}
