/* The assignment problem: chooses min(rows, columns) entries of a cost matrix, at most one in each row and column, with
 * the smallest sum. */
#ifndef VIT_DETECTION_MATCHING_H
#define VIT_DETECTION_MATCHING_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes that matching needs for matrices of up to rows x columns; aligned like malloc's. */
size_t matching_workspace(int rows, int columns);

/* column [rows]: the column chosen in each row, or -1 for none.  cost [rows,columns], any rows, columns >= 0; faster
 * with rows <= columns, that is a row for each target and a column for each query.  Sums are compared in double.
 * Deterministic also if several solutions are equally good.  Allocates nothing.  Returns false if a cost is NaN or
 * infinite. */
bool matching(int *column, const float *cost, int rows, int columns, void *workspace);

#endif
