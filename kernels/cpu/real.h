/* The type of an activation on this backend. */
#ifndef VIT_KERNELS_REAL_H
#define VIT_KERNELS_REAL_H

typedef float real;

#endif
