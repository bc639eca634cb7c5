/* The convolutions of cuDNN: tensors channels last, filters [out,k,k,in], all of `real`. */
#ifndef VIT_KERNELS_CONVOLUTION_CUDNN_H
#define VIT_KERNELS_CONVOLUTION_CUDNN_H

#include <stdbool.h>

#include "kernels/convolution/convolution.h"

enum LibraryDirection { LIBRARY_FORWARD, LIBRARY_INPUT, LIBRARY_WEIGHT };

struct LibraryConvolution;

/* Images as they are passed to the library: it pads `top` rows above and below, and `left` columns on either side. */
struct LibraryImages {
    int B, H, W, top, left;
};

/* Prepares a shape when it is first seen.  NULL: the library has no deterministic algorithm for it. */
LibraryConvolution *library_convolution(LibraryDirection direction, const Convolution *c, const LibraryImages &images);

size_t library_workspace(const LibraryConvolution *l);

/* w is float, as parameters are.  `accumulate` adds to the contents of dx.  False: the library does not support an
 * algorithm that it has proposed.  Then nothing was written, and from now on library_convolution returns NULL for this
 * shape. */
bool library_forward(LibraryConvolution *l, real *y, const real *x, const float *w, void *workspace);
bool library_input(LibraryConvolution *l, real *dx, const float *w, const real *dy, bool accumulate, void *workspace);
bool library_weight(LibraryConvolution *l, real *dw, const real *x, const real *dy, void *workspace);

#endif
