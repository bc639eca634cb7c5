/* The largest of many keys, in a heap of bounded size with the smallest key at its root. */
#ifndef VIT_DETECTION_BEST_KEYS_H
#define VIT_DETECTION_BEST_KEYS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint64_t *keys; /* [most] */
    int count, most;
} BestKeys;

/* Keeps the key if it is one of the `most` largest so far. */
void best_keys_offer(BestKeys *best, uint64_t key);

/* Sorts the kept keys in descending order. */
void best_keys_sort(BestKeys *best);

/* A key that is larger for a larger score, and among equal scores for the smaller index. */
static inline uint64_t score_key(float score, uint32_t index) {
    float whole = score + 0.0f; /* -0 becomes 0 */
    uint32_t bits;
    memcpy(&bits, &whole, sizeof bits);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~index;
}
static inline uint32_t key_index(uint64_t key) { return ~(uint32_t)key; }

#endif
