/* The linear layer with oneDNN, 2.x and 3.x.  Forward is a matmul primitive, which also adds the bias; both backward
 * products are dnnl_sgemm, which can accumulate and transpose and needs no primitive for every shape.
 * At ViT-tiny's shapes the two reach the same rate (docs/performance.md). */
#include <time.h>

#include "kernels/cpu/onednn.h"
#include "kernels/kernels.h"

/* Creates the primitive and frees the description, which is an object in 3.x. */
static void memory_create(dnnl_memory_t *memory, dnnl_memory_desc_t *d) {
#if DNNL_VERSION_MAJOR >= 3
    *memory = onednn_memory(*d);
    DNNL_TRY(dnnl_memory_desc_destroy(*d));
#else
    *memory = onednn_memory(d);
#endif
}

typedef struct {
    size_t n;
    int in, out, row; /* row: numbers from one row of y to the next */
    bool bias;
    dnnl_primitive_t primitive;
    dnnl_memory_t x, w, b, y;
} Matmul;

/* A model has only a few shapes.  When the table is full, the oldest entry is replaced. */
enum { MATMULS = 64 };
static Matmul matmuls[MATMULS];
static int matmul_next;

static void memory_2d(dnnl_memory_desc_t *d, dnnl_dim_t rows, dnnl_dim_t columns, dnnl_dim_t row_stride,
                      dnnl_dim_t column_stride) {
    dnnl_dims_t dims = {rows, columns}, strides = {row_stride, column_stride};
#if DNNL_VERSION_MAJOR >= 3
    DNNL_TRY(dnnl_memory_desc_create_with_strides(d, 2, dims, dnnl_f32, strides));
#else
    DNNL_TRY(dnnl_memory_desc_init_by_strides(d, 2, dims, dnnl_f32, strides));
#endif
}

static void matmul_create(Matmul *m, size_t n, int in, int out, int row, bool bias) {
    dnnl_memory_desc_t x, w, b, y;
    dnnl_primitive_desc_t pd;
    memory_2d(&x, (dnnl_dim_t)n, in, in, 1);
    memory_2d(&w, in, out, 1, in);
    memory_2d(&b, 1, out, out, 1);
    memory_2d(&y, (dnnl_dim_t)n, out, row, 1);
#if DNNL_VERSION_MAJOR >= 3
    DNNL_TRY(dnnl_matmul_primitive_desc_create(&pd, onednn_engine(), x, w, bias ? b : NULL, y, NULL));
#else
    dnnl_matmul_desc_t d;
    DNNL_TRY(dnnl_matmul_desc_init(&d, &x, &w, bias ? &b : NULL, &y));
    DNNL_TRY(dnnl_primitive_desc_create(&pd, &d, NULL, onednn_engine(), NULL));
#endif
    DNNL_TRY(dnnl_primitive_create(&m->primitive, pd));
    DNNL_TRY(dnnl_primitive_desc_destroy(pd));
    memory_create(&m->x, &x);
    memory_create(&m->w, &w);
    memory_create(&m->b, &b);
    memory_create(&m->y, &y);
    m->n = n;
    m->in = in;
    m->out = out;
    m->row = row;
    m->bias = bias;
}

static Matmul *matmul_find(size_t n, int in, int out, int row, bool bias) {
    for (int i = 0; i < MATMULS; i++) {
        Matmul *m = &matmuls[i];
        if (m->primitive && m->n == n && m->in == in && m->out == out && m->row == row && m->bias == bias) return m;
    }
    Matmul *m = &matmuls[matmul_next];
    matmul_next = (matmul_next + 1) % MATMULS;
    if (m->primitive) {
        dnnl_primitive_destroy(m->primitive);
        dnnl_memory_destroy(m->x);
        dnnl_memory_destroy(m->w);
        dnnl_memory_destroy(m->b);
        dnnl_memory_destroy(m->y);
    }
    matmul_create(m, n, in, out, row, bias);
    return m;
}

static int row_of(const LinearShape *shape) { return shape->y_row ? shape->y_row : shape->out; }

void linear_forward(real *y, const real *x, const float *w, const float *b, const LinearShape *shape) {
    Matmul *m = matmul_find(shape->n, shape->in, shape->out, row_of(shape), b != NULL);
    DNNL_TRY(dnnl_memory_set_data_handle(m->x, (void *)x));
    DNNL_TRY(dnnl_memory_set_data_handle(m->w, (void *)w));
    DNNL_TRY(dnnl_memory_set_data_handle(m->b, (void *)b));
    DNNL_TRY(dnnl_memory_set_data_handle(m->y, y));
    dnnl_exec_arg_t arguments[4] = {
        {DNNL_ARG_SRC, m->x}, {DNNL_ARG_WEIGHTS, m->w}, {DNNL_ARG_DST, m->y}, {DNNL_ARG_BIAS, m->b}};
    onednn_execute(m->primitive, b ? 4 : 3, arguments);
}

void linear_backward_input(real *dx, const real *dy, const float *w, const LinearShape *shape) {
    int in = shape->in, out = shape->out;
    DNNL_TRY(dnnl_sgemm('N', 'N', (dnnl_dim_t)shape->n, in, out, 1, dy, row_of(shape), w, in, 0, dx, in));
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
                for (int c = 0; c < width; c++) sum[c] += dy[r * (size_t)row + (size_t)(c0 + c)];
            for (int c = 0; c < width; c++) total[c] += sum[c];
        }
        for (int c = 0; c < width; c++) db[c0 + c] += (float)total[c];
    }
}

void linear_backward_weight(float *dw, float *db, const real *dy, const real *x, const LinearShape *shape) {
    int in = shape->in, out = shape->out, row = row_of(shape);
    DNNL_TRY(dnnl_sgemm('T', 'N', out, in, (dnnl_dim_t)shape->n, 1, dy, row, x, in, 1, dw, in));
    if (db) column_sums(db, dy, row, shape->n, out);
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The best of a few square products, each large enough to hide its start and small enough for the last-level cache. */
double gemm_peak_gflops(void) {
    enum { SIDE = 1536, RUNS = 12 };
    size_t bytes = (size_t)SIDE * SIDE * sizeof(float);
    float *a = device_malloc(bytes, "peak measurement"), *b = device_malloc(bytes, "peak measurement"),
          *c = device_malloc(bytes, "peak measurement");
    for (size_t i = 0; i < (size_t)SIDE * SIDE; i++) a[i] = b[i] = (float)(i % 7);
    double best = 0;
    for (int run = 0; run < RUNS; run++) {
        double start = seconds();
        DNNL_TRY(dnnl_sgemm('N', 'N', SIDE, SIDE, SIDE, 1, a, SIDE, b, SIDE, 0, c, SIDE));
        double rate = 2.0 * SIDE * SIDE * SIDE / (seconds() - start) / 1e9;
        if (rate > best) best = rate;
    }
    device_free(a);
    device_free(b);
    device_free(c);
    return best;
}
