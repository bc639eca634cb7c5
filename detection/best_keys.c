#include "detection/best_keys.h"

static void swap(uint64_t *a, uint64_t *b) {
    uint64_t kept = *a;
    *a = *b;
    *b = kept;
}

/* Entry i of a heap is larger than its parent (i - 1) / 2. */
static void rise(uint64_t *heap, int i) {
    for (; i > 0 && heap[i] < heap[(i - 1) / 2]; i = (i - 1) / 2) swap(&heap[(i - 1) / 2], &heap[i]);
}

static void sink(uint64_t *heap, int n) {
    for (int i = 0, child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[i] <= heap[child]) break;
        swap(&heap[i], &heap[child]);
    }
}

void best_keys_offer(BestKeys *best, uint64_t key) {
    if (best->count < best->most) {
        best->keys[best->count] = key;
        rise(best->keys, best->count++);
    } else if (best->most && key > best->keys[0]) {
        best->keys[0] = key;
        sink(best->keys, best->count);
    }
}

void best_keys_sort(BestKeys *best) {
    for (int n = best->count - 1; n > 0; n--) { /* the smallest key is moved to the end */
        swap(&best->keys[0], &best->keys[n]);
        sink(best->keys, n);
    }
}
