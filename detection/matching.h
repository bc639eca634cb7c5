/* The assignment problem: pairs of rows and columns of a cost matrix, each used at most once, min(rows, columns) of
 * them, with the smallest sum. */
#ifndef VIT_DETECTION_MATCHING_H
#define VIT_DETECTION_MATCHING_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes that matching needs for matrices of up to rows x columns; aligned like malloc's. */
size_t matching_workspace(int rows, int columns);

/* column [rows]: the column of each row, -1 for none.  cost [rows,columns], any rows, columns >= 0; fastest with rows
 * <= columns, each row a target and each column a query.  Exact: sums are compared in double.  The same matrix gives
 * the same pairs, also where several are equally good.  Allocates nothing.  False when a cost is NaN or infinite. */
bool matching(int *column, const float *cost, int rows, int columns, void *workspace);

#endif
