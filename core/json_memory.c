#include "core/json_memory.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>

#include "core/die.h"

static struct {
    json_malloc_t allocate;
    json_free_t release;
} others;

static _Thread_local bool own;

static void *allocate(size_t size) {
    if (!own) return others.allocate(size);
    void *block = malloc(size);
    if (!block) die("out of memory: %zu bytes for JSON", size);
    return block;
}

static void release(void *block) {
    if (own) free(block);
    else others.release(block);
}

void json_memory_begin(void) {
    json_get_alloc_funcs(&others.allocate, &others.release);
    json_set_alloc_funcs(allocate, release);
    own = true;
}

void json_memory_end(void) {
    own = false;
    json_set_alloc_funcs(others.allocate, others.release);
}
