/* Resamples tables that have an entry for every position of a grid to a grid of another size.  Fine-tuning at another
 * resolution, or with clips of another length, needs this for position embeddings, LiSA's circular tables and relative
 * position biases. */
#ifndef VIT_LAYERS_VIT_RESAMPLE_GRID_H
#define VIT_LAYERS_VIT_RESAMPLE_GRID_H

#include "training/params.h"

/* Finds the grid of a tensor of the given shape [ndim] from a file that is to become parameter `p`: `known` is the grid
 * of the model in the file; if it is NULL, the grid is the tensor's own two dimensions, or a square, with p's frames.
 * The number of positions outside of the grid, such as a class token, must be p's.  Tables are resampled neither from
 * images to clips nor, around the circle of all tokens, to another number of frames.  Returns false if the tensor does
 * not fit p on any grid. */
bool grid_of_tensor(ParamGrid *grid, const Param *p, const ParamGrid *known, int ndim, const size_t *shape);

/* Resamples `from`, a tensor on `grid` whose other dimensions are p's, to p's grid.  `to` has p's shape.  Positions
 * outside of the grid are copied. */
void grid_resample(float *to, const Param *p, const float *from, const ParamGrid *grid);

#endif
