/* A thread processes columns: of the result in forward, of the model's own grid in backward. */
#include "kernels/tokens/table_resampling.h"

#include "kernels/device/workspace.h"
#include "kernels/tokens/table_axis.h"

/* Floats of both axes' weights, and of a column of the own grid in double. */
static size_t axes_floats(const TableResampling *s) {
    return (table_axis_bytes(s->from.rows, s->to.rows) + table_axis_bytes(s->from.columns, s->to.columns)) /
           sizeof(float);
}
static size_t column_floats(const TableResampling *s) {
    return (size_t)s->from.rows * (size_t)s->inner * sizeof(double) / sizeof(float);
}

size_t table_resample_workspace(const TableResampling *shape) {
    return workspace_bytes_behind(axes_floats(shape), column_floats(shape));
}

typedef struct {
    TableAxis rows, columns;
} TableAxes;

static TableAxes axes_of(const TableResampling *s) {
    char *memory = (char *)workspace_shared();
    TableAxes axes = {table_axis_at(memory, s->from.rows, s->to.rows, s->bilinear),
                      table_axis_at(memory + table_axis_bytes(s->from.rows, s->to.rows), s->from.columns,
                                    s->to.columns, s->bilinear)};
    table_axis_fill(&axes.rows);
    table_axis_fill(&axes.columns);
    return axes;
}

static double *column_of(const TableResampling *s) {
    return (double *)workspace_behind(axes_floats(s), omp_get_thread_num(), column_floats(s));
}

enum { LANES = 16 };

/* to [n] += weight from [n] */
static void add_scaled(double *to, double weight, const double *from, int n) {
    for (int k = 0; k < n; k++) to[k] += weight * from[k];
}
static void add_scaled_floats(double *to, double weight, const float *from, int n) {
    for (int k = 0; k < n; k++) to[k] += weight * from[k];
}

/* wide [rows of the own grid,inner] = column X of a table that has the result's columns. */
static void widen(double *wide, const float *x, int X, const TableAxis *columns, const TableResampling *s) {
    size_t inner = (size_t)s->inner;
    memset(wide, 0, (size_t)s->from.rows * inner * sizeof *wide);
    for (int y = 0; y < s->from.rows; y++)
        for (int c = columns->first[X]; c < columns->end[X]; c++)
            add_scaled_floats(wide + (size_t)y * inner, table_weight(columns, c, X),
                              x + ((size_t)y * (size_t)s->from.columns + (size_t)c) * inner, s->inner);
}

void table_resample_forward(float *y, const float *x, const TableResampling *shape) {
    TableAxes axes = axes_of(shape);
    const TableAxis *rows = &axes.rows;
    int inner = shape->inner;
#pragma omp parallel for schedule(static)
    for (int X = 0; X < shape->to.columns; X++) {
        double *wide = column_of(shape);
        widen(wide, x, X, &axes.columns, shape);
        for (int Y = 0; Y < shape->to.rows; Y++) {
            float *out = y + ((size_t)Y * (size_t)shape->to.columns + (size_t)X) * (size_t)inner;
            for (int k = 0; k < inner; k += LANES) {
                double sum[LANES] = {0};
                int lanes = inner - k < LANES ? inner - k : LANES;
                for (int r = rows->first[Y]; r < rows->end[Y]; r++)
                    add_scaled(sum, table_weight(rows, r, Y), wide + (size_t)r * (size_t)inner + k, lanes);
                for (int l = 0; l < lanes; l++) out[k + l] = (float)sum[l];
            }
        }
    }
}

void table_resample_backward(float *dx, const float *dy, const TableResampling *shape) {
    TableAxes axes = axes_of(shape);
    const TableAxis *rows = &axes.rows, *columns = &axes.columns;
    size_t inner = (size_t)shape->inner;
#pragma omp parallel for schedule(static)
    for (int c = 0; c < shape->from.columns; c++) {
        double *sums = column_of(shape);
        memset(sums, 0, (size_t)shape->from.rows * inner * sizeof *sums);
        for (int X = columns->low[c]; X < columns->high[c]; X++)
            for (int Y = 0; Y < shape->to.rows; Y++)
                for (int r = rows->first[Y]; r < rows->end[Y]; r++)
                    add_scaled_floats(sums + (size_t)r * inner, table_weight(columns, c, X) * table_weight(rows, r, Y),
                                      dy + ((size_t)Y * (size_t)shape->to.columns + (size_t)X) * inner, shape->inner);
        for (int r = 0; r < shape->from.rows; r++) {
            float *to = dx + ((size_t)r * (size_t)shape->from.columns + (size_t)c) * inner;
            for (size_t k = 0; k < inner; k++) to[k] = (float)(to[k] + sums[(size_t)r * inner + k]);
        }
    }
}
