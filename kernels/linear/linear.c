/* The linear layer on a CPU: the products of kernels/linear/products.h, and sums and GELU around them. */
#include <stdbool.h>
#include <time.h>

#include "kernels/cpu/activations.h"
#include "kernels/device/device.h"
#include "kernels/linear/elementwise.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/products.h"

/* == The three products of a layer ================================================================================ */

void linear_keep_weights(bool keep) { products_keep_weights(keep); }

void linear_forward(real *y, const real *x, const float *w, const float *b, const LinearShape *shape) {
    product_forward(y, x, w, b, shape);
}

void linear_backward_input(real *dx, const real *dy, const float *w, const LinearShape *shape) {
    product_backward_input(dx, dy, w, shape);
}

/* db += column sums, columns shared among the threads, so that the bits do not depend on their number.  Partial sums
 * of 64 rows keep the digits of long columns. */
static void column_sums(float *db, const real *dy, int row, size_t n, int out) {
    enum { COLUMNS = 64, ROWS = 64 };
#pragma omp parallel for schedule(static)
    for (int c0 = 0; c0 < out; c0 += COLUMNS) {
        int width = out - c0 < COLUMNS ? out - c0 : COLUMNS;
        double total[COLUMNS] = {0};
        for (size_t r0 = 0; r0 < n; r0 += ROWS) {
            float sum[COLUMNS] = {0};
            size_t r1 = r0 + ROWS < n ? r0 + ROWS : n;
            for (size_t r = r0; r < r1; r++)
                for (int c = 0; c < width; c++) sum[c] += real_get(dy[r * (size_t)row + (size_t)(c0 + c)]);
            for (int c = 0; c < width; c++) total[c] += sum[c];
        }
        for (int c = 0; c < width; c++) db[c0 + c] += (float)total[c];
    }
}

void linear_backward_bias(float *db, const real *dy, const LinearShape *shape) {
    column_sums(db, dy, linear_y_row(shape), shape->n, shape->out);
}

void linear_backward_weight(float *dw, float *db, const real *dy, const real *x, const LinearShape *shape) {
    product_backward_weight(dw, dy, x, shape);
    if (db) linear_backward_bias(db, dy, shape);
}

void linear_backward(real *dx, float *dw, float *db, const real *dy, const real *x, const float *w,
                     const LinearShape *shape) {
    linear_backward_input(dx, dy, w, shape);
    linear_backward_weight(dw, db, dy, x, shape);
}

/* == Together with GELU =========================================================================================== */

void linear_gelu_forward(real *a, real *g, const real *x, const float *w, const float *b, const LinearShape *shape) {
    linear_forward(a, x, w, b, shape);
    gelu_forward(g, a, shape->n * (size_t)shape->out);
}

void linear_backward_weight_beside(float *dw, float *db, const real *dy, const real *x, const LinearShape *shape) {
    linear_backward_weight(dw, db, dy, x, shape);
}

size_t linear_gelu_workspace(const LinearShape *shape) { return (void)shape, 0; }

void linear_gelu_backward(real *da, real *g, float *da_sums, float *db, const real *dy, const real *a, const float *w,
                          const LinearShape *shape) {
    linear_backward_input(da, dy, w, shape);
    gelu_backward(da, g, da, a, shape->n * (size_t)shape->in);
    column_sums(da_sums, da, shape->in, shape->n, shape->in);
    column_sums(db, dy, shape->out, shape->n, shape->out);
}

/* == The peak ===================================================================================================== */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The best of a few square products, each large enough to hide its start and small enough for the last-level cache. */
double gemm_peak_gflops(void) {
    enum { SIDE = 1536, RUNS = 12 };
    size_t bytes = (size_t)SIDE * SIDE * sizeof(real);
    real *a = device_malloc(bytes, "peak measurement"), *b = device_malloc(bytes, "peak measurement"),
         *c = device_malloc(bytes, "peak measurement");
    for (size_t i = 0; i < (size_t)SIDE * SIDE; i++) a[i] = b[i] = real_of((float)(i % 7));
    double best = 0;
    for (int run = 0; run < RUNS; run++) {
        double start = seconds();
        product_square(c, a, b, SIDE);
        double rate = 2.0 * SIDE * SIDE * SIDE / (seconds() - start) / 1e9;
        if (rate > best) best = rate;
    }
    device_free(a);
    device_free(b);
    device_free(c);
    return best;
}
