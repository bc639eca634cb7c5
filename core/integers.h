/* The smaller and the larger of two integers, and of two sizes; an integer between two others; pairs of near numbers; a
 * number from four bytes, the highest or the lowest first. */
#ifndef VIT_CORE_INTEGERS_H
#define VIT_CORE_INTEGERS_H

#include <stddef.h>
#include <stdint.h>

static inline int smaller(int a, int b) { return a < b ? a : b; }
static inline int larger(int a, int b) { return a > b ? a : b; }
static inline size_t larger_size(size_t a, size_t b) { return a > b ? a : b; }

static inline int clamp(int x, int low, int high) { return x < low ? low : x > high ? high : x; }

static inline uint32_t big_endian(const uint8_t *b) {
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static inline uint32_t little_endian(const uint8_t *b) {
    return (uint32_t)b[3] << 24 | (uint32_t)b[2] << 16 | (uint32_t)b[1] << 8 | b[0];
}

/* How many pairs (x, y) of numbers below n have |x - y| <= most. */
static inline size_t near_pairs(size_t n, size_t most) {
    size_t w = !n || most < n ? most : n - 1;
    return n ? n * (2 * w + 1) - w * (w + 1) : 0;
}

#endif
