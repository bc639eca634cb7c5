/* There is a thread for each number of the result.  The host computes the weights of both axes, a few kilobytes, and
 * copies them into the workspace. */
#include "kernels/cuda/rows.cuh"
#include "kernels/device/device.h"
#include "kernels/tokens/table_axis.h"
#include "kernels/tokens/table_resampling.h"

extern "C" {
#include "core/die.h"
}

enum { THREADS = 256 };

struct TableAxes {
    TableAxis rows, columns;
};

static size_t axes_bytes(const TableResampling *s) {
    return table_axis_bytes(s->from.rows, s->to.rows) + table_axis_bytes(s->from.columns, s->to.columns);
}

static TableAxes axes_at(char *memory, const TableResampling *s) {
    return {table_axis_at(memory, s->from.rows, s->to.rows, s->bilinear),
            table_axis_at(memory + table_axis_bytes(s->from.rows, s->to.rows), s->from.columns, s->to.columns,
                          s->bilinear)};
}

/* The host's memory for weights, which is enlarged when workspace is planned. */
static char *host;
static size_t host_room;

size_t table_resample_workspace(const TableResampling *shape) {
    host = static_cast<char *>(xgrow(host, axes_bytes(shape), &host_room, 1, "weights of tables"));
    return axes_bytes(shape);
}

static TableAxes axes_of(const TableResampling *s) {
    size_t bytes = axes_bytes(s);
    char *device = static_cast<char *>(kernels_workspace(bytes));
    TableAxes here = axes_at(host, s);
    if (bytes > host_room) die("a table is resampled to a larger grid than was planned for");
    table_axis_fill(&here.rows);
    table_axis_fill(&here.columns);
    device_upload(device, host, bytes);
    return axes_at(device, s);
}

__global__ void __launch_bounds__(THREADS) table_forward_kernel(float *y, const float *__restrict__ x, TableAxes axes,
                                                                int inner, size_t n) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= n) return;
    const TableAxis &rows = axes.rows, &columns = axes.columns;
    size_t place = at / inner, k = at - place * inner;
    int Y = (int)(place / columns.out), X = (int)(place - (size_t)Y * columns.out);
    double sum = 0;
    for (int r = rows.first[Y]; r < rows.end[Y]; r++) {
        double wide = 0;
        for (int c = columns.first[X]; c < columns.end[X]; c++)
            wide += table_weight(&columns, c, X) * x[((size_t)r * columns.in + c) * inner + k];
        sum += table_weight(&rows, r, Y) * wide;
    }
    y[at] = (float)sum;
}

__global__ void __launch_bounds__(THREADS) table_backward_kernel(float *dx, const float *__restrict__ dy,
                                                                 TableAxes axes, int inner, size_t n) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= n) return;
    const TableAxis &rows = axes.rows, &columns = axes.columns;
    size_t place = at / inner, k = at - place * inner;
    int r = (int)(place / columns.in), c = (int)(place - (size_t)r * columns.in);
    double sum = 0;
    for (int X = columns.low[c]; X < columns.high[c]; X++)
        for (int Y = rows.low[r]; Y < rows.high[r]; Y++)
            sum += table_weight(&columns, c, X) * table_weight(&rows, r, Y) *
                   dy[((size_t)Y * columns.out + X) * inner + k];
    dx[at] = (float)(dx[at] + sum);
}

void table_resample_forward(float *y, const float *x, const TableResampling *shape) {
    TableAxes axes = axes_of(shape);
    size_t n = (size_t)grid_tokens(shape->to) * shape->inner;
    LAUNCH(table_forward_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, y, x, axes, shape->inner, n);
}

void table_resample_backward(float *dx, const float *dy, const TableResampling *shape) {
    TableAxes axes = axes_of(shape);
    size_t n = (size_t)grid_tokens(shape->from) * shape->inner;
    LAUNCH(table_backward_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, dx, dy, axes, shape->inner, n);
}
