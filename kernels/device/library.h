/* The library for matrix products and convolutions on a CPU: oneDNN (onednn.c), or none (onednn_none.c), where the
 * products are plain C (make ONEDNN=0). */
#ifndef VIT_KERNELS_DEVICE_LIBRARY_H
#define VIT_KERNELS_DEVICE_LIBRARY_H

#include <stdbool.h>

/* "oneDNN 2.6.3" or "own products", for the report of a run; no longer than 31 characters. */
const char *library_name(void);

/* Called once, before any other part of the library. */
void library_begin(void);

/* kernels_recover of device.h. */
void library_recover(void);

/* True if products of bfloat16 have instructions here. */
bool library_multiplies_bfloat16(void);

/* Limits the library to AVX2; false if that is not possible. */
bool library_limit_to_avx2(void);

#endif
