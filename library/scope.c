/* A hash table of the blocks that the call has allocated: their addresses, in places [size] after the hash, with linear
 * probing; a block that was freed leaves a mark, so that later ones are still found. */
#include "library/scope.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void __real_free(void *block);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *block, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
char *__wrap_strdup(const char *text);
void __wrap_free(void *block);

static char freed; /* its address is the mark */

static _Thread_local struct {
    void **blocks;
    size_t size, used; /* a power of two; places that are not NULL */
    bool on, sharing;
} scope;

static size_t place_of(void *const *blocks, size_t size, const void *block) {
    size_t i = ((uintptr_t)block >> 4) * 0x9E3779B97F4A7C15u & (size - 1);
    while (blocks[i] && blocks[i] != block) i = (i + 1) & (size - 1);
    return i;
}

static bool grow(void) {
    size_t size = scope.size ? 2 * scope.size : 1024;
    void **blocks = __real_calloc(size, sizeof *blocks);
    if (!blocks) return false;
    scope.used = 0;
    for (size_t i = 0; i < scope.size; i++)
        if (scope.blocks[i] && scope.blocks[i] != &freed) {
            blocks[place_of(blocks, size, scope.blocks[i])] = scope.blocks[i];
            scope.used++;
        }
    __real_free(scope.blocks);
    scope.blocks = blocks;
    scope.size = size;
    return true;
}

/* Records the block; frees it and returns NULL where there is no memory for that. */
static void *record(void *block) {
    if (!block || !scope.on || scope.sharing) return block;
    if (2 * scope.used >= scope.size && !grow()) {
        __real_free(block);
        errno = ENOMEM;
        return NULL;
    }
    scope.blocks[place_of(scope.blocks, scope.size, block)] = block;
    scope.used++;
    return block;
}

static void forget(const void *block) {
    if (!scope.size || !block) return;
    size_t i = place_of(scope.blocks, scope.size, block);
    if (scope.blocks[i]) scope.blocks[i] = &freed;
}

void scope_begin(void) {
    scope.on = true;
    scope.sharing = false;
}

void scope_end(bool failed) {
    for (size_t i = 0; failed && i < scope.size; i++)
        if (scope.blocks[i] && scope.blocks[i] != &freed) __real_free(scope.blocks[i]);
    __real_free(scope.blocks);
    memset(&scope, 0, sizeof scope);
}

void scope_share(bool begins) { scope.sharing = begins; }

void *__wrap_malloc(size_t size) { return record(__real_malloc(size)); }
void *__wrap_calloc(size_t count, size_t size) { return record(__real_calloc(count, size)); }
void *__wrap_aligned_alloc(size_t alignment, size_t size) { return record(__real_aligned_alloc(alignment, size)); }

/* The new block is recorded before the old one is given up, as a failure must leave the old one. */
void *__wrap_realloc(void *block, size_t size) {
    if (!scope.on) return __real_realloc(block, size);
    if (2 * scope.used >= scope.size && !grow()) return NULL;
    void *moved = __real_realloc(block, size);
    if (!moved) return NULL;
    forget(block);
    return record(moved);
}

char *__wrap_strdup(const char *text) {
    size_t size = strlen(text) + 1;
    char *copy = __wrap_malloc(size);
    if (copy) memcpy(copy, text, size);
    return copy;
}

void __wrap_free(void *block) {
    forget(block);
    __real_free(block);
}
