/* The smaller and the larger of two integers, and of two sizes. */
#ifndef VIT_CORE_INTEGERS_H
#define VIT_CORE_INTEGERS_H

#include <stddef.h>

static inline int smaller(int a, int b) { return a < b ? a : b; }
static inline int larger(int a, int b) { return a > b ? a : b; }
static inline size_t larger_size(size_t a, size_t b) { return a > b ? a : b; }

#endif
