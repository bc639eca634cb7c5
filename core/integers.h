/* The smaller and the larger of two integers. */
#ifndef VIT_CORE_INTEGERS_H
#define VIT_CORE_INTEGERS_H

static inline int smaller(int a, int b) { return a < b ? a : b; }
static inline int larger(int a, int b) { return a > b ? a : b; }

#endif
