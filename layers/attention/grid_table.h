/* A parameter with `inner` numbers for every position of the model's own grid.  Where the grid changes from batch to
 * batch, it is resampled to the batch's grid in every pass, and the gradient, summed over the batch, is resampled back:
 *   w' = U w V^T,  dw += U^T dw' V,  U and V the weights of kernels/tokens/table_resampling.h
 * On the own grid w' is w itself. */
#ifndef VIT_LAYERS_GRID_TABLE_H
#define VIT_LAYERS_GRID_TABLE_H

#include "kernels/tokens/table_resampling.h"
#include "training/plan.h"

typedef struct {
    float *w, *dw;     /* [own positions,inner] */
    float *now, *dnow; /* [positions,inner] scratch: w', dw' */
    TableResampling shape;
} GridTable;

/* Plans for the largest grid; does nothing where `changes` is false. */
void grid_table_plan(GridTable *t, Plan *plan, const char *prefix, const char *name, bool changes);
/* Computes w' on the grid shape.to. */
const float *grid_table_values(const GridTable *t);
/* dw', zero at first, to which the operator adds. */
float *grid_table_gradient(const GridTable *t);
/* Adds dw' to dw. */
void grid_table_backward(const GridTable *t);

#endif
