/* Tables with numbers for every position of a grid, carried over to a grid of another size: what fine-tuning at another
 * resolution does to position embeddings, LiSA's circles and relative position biases. */
#ifndef VIT_LAYERS_RESAMPLE_GRID_H
#define VIT_LAYERS_RESAMPLE_GRID_H

#include "core/params.h"

/* The grid of a tensor with shape[ndim] that belongs where `p` stands: the rows and columns that `known` names (the
 * grid of the model it comes from), or without one its own two dimensions, or a square.  Positions outside the grid
 * must be the same.  False: it is no such tensor. */
bool grid_of_tensor(ParamGrid *grid, const Param *p, const ParamGrid *known, int ndim, const size_t *shape);

/* to, laid out as p, from a tensor on `grid` that has p's other dimensions.
 * The positions before the grid are copied. */
void grid_resample(float *to, const Param *p, const float *from, const ParamGrid *grid);

#endif
