/* The type of an activation on this backend: bfloat16, or float for comparisons (PRECISION=FP32). Other code treats it
 * as opaque; device code converts through device.cuh. */
#ifndef VIT_KERNELS_REAL_H
#define VIT_KERNELS_REAL_H

#ifdef VIT_FP32
typedef float real;
#else
typedef struct {
    unsigned short bits;
} real;
#endif

#endif
