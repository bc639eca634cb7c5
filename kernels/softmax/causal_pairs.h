/* Causal attention over sets of keys, by products of bfloat16 pairs, one head at a time: the same results as those of
 * kernels/softmax/causal_attention.c, up to rounding. */
#ifndef VIT_KERNELS_SOFTMAX_CAUSAL_PAIRS_H
#define VIT_KERNELS_SOFTMAX_CAUSAL_PAIRS_H

#include "kernels/softmax/causal_runs.h"
#include "kernels/softmax/pairs.h"
#include "kernels/softmax/causal_attention.h"

#ifdef VIT_PAIRS

/* Floats of a thread's slice that head h needs. */
size_t causal_pairs_forward_floats(const CausalShape *s, const CausalPattern *p, int h);
size_t causal_pairs_backward_floats(const CausalShape *s, const CausalPattern *p, int h);

/* They compute this member's part of a head.  `own` is its slice, `lead` that of the team's first member. Members'
 * slices lie `apart` floats from each other. */
void causal_pairs_forward(Pairs kind, const CausalHead *a, const CausalShape *s, Team team, float *own, float *lead);
void causal_pairs_backward(Pairs kind, const CausalHead *a, const CausalShape *s, Team team, float *own, float *lead,
                           size_t apart);

#endif
#endif
