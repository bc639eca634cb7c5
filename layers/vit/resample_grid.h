/* Resamples tables that have an entry for every position of a grid to a grid of another size.  Fine-tuning at another
 * resolution, or with clips of another length, needs this for position embeddings, LiSA's circular tables and relative
 * position biases. */
#ifndef VIT_LAYERS_VIT_RESAMPLE_GRID_H
#define VIT_LAYERS_VIT_RESAMPLE_GRID_H

#include "training/params.h"

/* Finds the grid of a tensor of the given shape [ndim] from a file that is to become parameter `p`: `known`, the grid
 * of the model that the file comes from; if that is NULL, the tensor's own two dimensions, or a square, of p's frames.
 * The number of positions outside of the grid, such as a class token, must be p's.  Not from images to clips, nor from
 * one number of frames to another around the circle of all tokens.  Returns false if the tensor does not fit p on any
 * grid. */
bool grid_of_tensor(ParamGrid *grid, const Param *p, const ParamGrid *known, int ndim, const size_t *shape);

/* Resamples `from`, a tensor on `grid` whose other dimensions are p's, to p's grid.  `to` has p's shape.  Positions
 * outside of the grid are copied. */
void grid_resample(float *to, const Param *p, const float *from, const ParamGrid *grid);

#endif
