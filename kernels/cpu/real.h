/* The type of an activation on this backend: float, or bfloat16 (PRECISION=BF16). Other code treats it as opaque; the
 * kernels convert through kernels/cpu/activations.h. */
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
