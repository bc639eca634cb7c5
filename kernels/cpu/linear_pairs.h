/* The three products of a linear layer by dot products of pairs (kernels/cpu/pairs.h), where these are there and AMX is
 * not: on AMD's processors, which take them at the rate of the library or faster. */
#ifndef VIT_KERNELS_CPU_LINEAR_PAIRS_H
#define VIT_KERNELS_CPU_LINEAR_PAIRS_H

#include "kernels/cpu/pairs.h"
#include "kernels/linear.h"

#ifdef VIT_PAIRS

/* Whether this processor and a layer of this shape are served: whole blocks of columns, and rows that are worth the
 * weights' new layout. */
bool linear_pairs_serve(const LinearShape *s);

void linear_pairs_forward(real *y, const real *x, const float *w, const float *b, const LinearShape *s);
void linear_pairs_input(real *dx, const real *dy, const float *w, const LinearShape *s);
void linear_pairs_weight(float *dw, const real *dy, const real *x, const LinearShape *s);

#endif
#endif
