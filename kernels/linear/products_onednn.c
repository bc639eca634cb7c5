/* The products of a linear layer with oneDNN, 2.x and 3.x.
 *   floats     Forward is a matmul primitive, which also adds the bias; both backward products are dnnl_sgemm, which can
 *              accumulate and transpose and needs no primitive for every shape.  At ViT-tiny's shapes the two reach the
 *              same rate (docs/notebook/a-step.md).
 *   bfloat16   All three are matmul primitives on bfloat16 factors, with float sums, bias and weight gradient.  The
 *              weights are rounded for each product.  Where oneDNN has no such primitives, for AVX2 and for arm64
 *              before its version 3, factors are widened for dnnl_sgemm. */
#include <stdbool.h>

#include "core/die.h"
#include "kernels/cpu/activations.h"
#include "kernels/device/device.h"
#include "kernels/device/onednn.h"
#include "kernels/device/workspace.h"
#include "kernels/linear/products.h"

/* == Products ===================================================================================================== */

/* A description is an object in 3.x. */
static void desc_free(dnnl_memory_desc_t *d) {
#if DNNL_VERSION_MAJOR >= 3
    DNNL_TRY(dnnl_memory_desc_destroy(*d));
#else
    (void)d;
#endif
}

/* Frees the description. */
static void memory_create(dnnl_memory_t *memory, dnnl_memory_desc_t *d) {
#if DNNL_VERSION_MAJOR >= 3
    *memory = onednn_memory(*d);
#else
    *memory = onednn_memory(d);
#endif
    desc_free(d);
}

/* FORWARD_KEPT: with weights in the library's own layout. */
typedef enum { FORWARD, FORWARD_KEPT, BACKWARD_INPUT, BACKWARD_WEIGHT } Kind;

/* D = A B + bias, or D += A B for the weights' gradient. */
typedef struct {
    Kind kind;
    size_t n;
    int in, out, row; /* row: numbers from one row of y, or dy, to the next */
    bool bias, found;
    dnnl_primitive_t primitive; /* if found */
    dnnl_memory_t a, b, shift, d;
} Matmul;

/* A model has only a few shapes.  When the table is full, the oldest entry is replaced. */
enum { MATMULS = 192 };
static Matmul matmuls[MATMULS];
static int matmul_next;

static void memory_2d(dnnl_memory_desc_t *d, dnnl_data_type_t type, dnnl_dim_t rows, dnnl_dim_t columns,
                      dnnl_dim_t row_stride, dnnl_dim_t column_stride) {
    dnnl_dims_t dims = {rows, columns}, strides = {row_stride, column_stride};
#if DNNL_VERSION_MAJOR >= 3
    DNNL_TRY(dnnl_memory_desc_create_with_strides(d, 2, dims, type, strides));
#else
    DNNL_TRY(dnnl_memory_desc_init_by_strides(d, 2, dims, type, strides));
#endif
}

#if DNNL_VERSION_MAJOR < 3
/* oneDNN 2.6.3's product of bfloat16 with AMX ends in an illegal instruction where 63 is the inner dimension, and for
 * no other up to 200 (docs/notebook/bfloat16.md). */
static bool broken(const Matmul *m) {
    int inner = m->kind == FORWARD || m->kind == FORWARD_KEPT ? m->in : m->kind == BACKWARD_INPUT ? m->out : (int)m->n;
    return sizeof(real) == 2 && inner == 63;
}
#endif

/* The weights of a product in a layout that the library chooses. */
static void memory_any(dnnl_memory_desc_t *d, dnnl_dim_t in, dnnl_dim_t out) {
    dnnl_dims_t dims = {in, out};
#if DNNL_VERSION_MAJOR >= 3
    DNNL_TRY(dnnl_memory_desc_create_with_tag(d, 2, dims, ONEDNN_REAL, dnnl_format_tag_any));
#else
    DNNL_TRY(dnnl_memory_desc_init_by_tag(d, 2, dims, ONEDNN_REAL, dnnl_format_tag_any));
#endif
}

static void matmul_create(Matmul *m) {
    dnnl_dim_t n = (dnnl_dim_t)m->n, in = m->in, out = m->out, row = m->row;
    dnnl_memory_desc_t a, b, shift, d;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_attr_t attributes;
    dnnl_post_ops_t ops;
    DNNL_TRY(dnnl_primitive_attr_create(&attributes));
    DNNL_TRY(dnnl_post_ops_create(&ops));
    memory_2d(&shift, dnnl_f32, 1, out, out, 1);
    if (m->kind == FORWARD || m->kind == FORWARD_KEPT) { /* x [n,in], w^T [in,out], y [n,out] */
        memory_2d(&a, ONEDNN_REAL, n, in, in, 1);
        if (m->kind == FORWARD) memory_2d(&b, ONEDNN_REAL, in, out, 1, in);
        else memory_any(&b, in, out);
        memory_2d(&d, ONEDNN_REAL, n, out, row, 1);
    } else if (m->kind == BACKWARD_INPUT) { /* dy [n,out], w [out,in], dx [n,in] */
        memory_2d(&a, ONEDNN_REAL, n, out, row, 1);
        memory_2d(&b, ONEDNN_REAL, out, in, in, 1);
        memory_2d(&d, ONEDNN_REAL, n, in, in, 1);
    } else { /* dy^T [out,n], x [n,in], dw [out,in] */
        memory_2d(&a, ONEDNN_REAL, out, n, 1, row);
        memory_2d(&b, ONEDNN_REAL, n, in, in, 1);
        memory_2d(&d, dnnl_f32, out, in, in, 1);
        onednn_append_sum(ops);
    }
    DNNL_TRY(dnnl_primitive_attr_set_post_ops(attributes, ops));
    DNNL_TRY(dnnl_post_ops_destroy(ops));
#if DNNL_VERSION_MAJOR >= 3
    dnnl_status_t status =
        dnnl_matmul_primitive_desc_create(&pd, onednn_engine(), a, b, m->bias ? shift : NULL, d, attributes);
#else
    dnnl_matmul_desc_t product;
    DNNL_TRY(dnnl_matmul_desc_init(&product, &a, &b, m->bias ? &shift : NULL, &d));
    dnnl_status_t status = broken(m) ? dnnl_unimplemented
                                     : dnnl_primitive_desc_create(&pd, &product, attributes, onednn_engine(), NULL);
#endif
    DNNL_TRY(dnnl_primitive_attr_destroy(attributes));
    m->found = status != dnnl_unimplemented;
    if (m->found) {
        DNNL_TRY(status);
        DNNL_TRY(dnnl_primitive_create(&m->primitive, pd));
        if (m->kind == FORWARD_KEPT) m->b = onednn_memory(dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0));
        DNNL_TRY(dnnl_primitive_desc_destroy(pd));
    }
    memory_create(&m->a, &a);
    if (m->kind != FORWARD_KEPT) memory_create(&m->b, &b);
    else desc_free(&b);
    memory_create(&m->shift, &shift);
    memory_create(&m->d, &d);
}

static Matmul *matmul_find(Kind kind, const LinearShape *s, bool bias) {
    Matmul wanted = {.kind = kind, .n = s->n, .in = s->in, .out = s->out, .row = linear_y_row(s), .bias = bias};
    for (int i = 0; i < MATMULS; i++) {
        Matmul *m = &matmuls[i];
        if (m->n && m->kind == kind && m->n == wanted.n && m->in == wanted.in && m->out == wanted.out &&
            m->row == wanted.row && m->bias == bias)
            return m;
    }
    Matmul *m = &matmuls[matmul_next];
    matmul_next = (matmul_next + 1) % MATMULS;
    if (m->n) {
        if (m->found) dnnl_primitive_destroy(m->primitive);
        dnnl_memory_t made[] = {m->a, m->b, m->shift, m->d};
        for (int i = 0; i < 4; i++) dnnl_memory_destroy(made[i]);
    }
    *m = (Matmul){0}; /* also where the next one cannot be created */
    matmul_create(&wanted);
    *m = wanted;
    return m;
}

/* == Kept weights ================================================================================================= */

typedef struct {
    const float *w;
    dnnl_memory_t memory; /* owns its numbers */
} Kept;

static Kept *kept;
static size_t kept_count, kept_room;
static bool keeping;

void products_keep_weights(bool keep) {
    for (size_t i = 0; !keep && i < kept_count; i++) dnnl_memory_destroy(kept[i].memory);
    if (!keep) kept_count = 0;
    keeping = keep;
}

/* w [out,in] in the layout of product m. */
static dnnl_memory_t kept_weights(const Matmul *m, const float *w) {
    for (size_t i = 0; i < kept_count; i++)
        if (kept[i].w == w && dnnl_memory_desc_equal(onednn_desc(kept[i].memory), onednn_desc(m->b)))
            return kept[i].memory;
    memory_shared_begin();
    kept = xgrow(kept, kept_count + 1, &kept_room, sizeof *kept, "a list of weights");
    memory_shared_end();
    dnnl_memory_desc_t desc;
    dnnl_memory_t plain, to;
    memory_2d(&desc, dnnl_f32, m->in, m->out, 1, m->in);
    memory_create(&plain, &desc);
    DNNL_TRY(dnnl_memory_set_data_handle(plain, (void *)w));
    DNNL_TRY(dnnl_memory_create(&to, onednn_desc(m->b), onednn_engine(), DNNL_MEMORY_ALLOCATE));
    dnnl_primitive_t reorder = onednn_reorder(onednn_desc(to), onednn_desc(plain));
    onednn_execute(reorder, 2, (dnnl_exec_arg_t[]){{DNNL_ARG_FROM, plain}, {DNNL_ARG_TO, to}});
    dnnl_primitive_destroy(reorder);
    dnnl_memory_destroy(plain);
    kept[kept_count++] = (Kept){w, to};
    return to;
}

/* == Without the library's primitives ============================================================================= */

static float *widened(int place, const real *from, size_t rows, size_t row, int n) {
    float *to = onednn_wide(place, rows * (size_t)n);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < rows; i++) reals_widen(to + i * (size_t)n, from + i * row, (size_t)n);
    return to;
}

static void put_rows(real *to, size_t row, float *from, const float *bias, size_t rows, int n) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < rows; i++) {
        for (int j = 0; bias && j < n; j++) from[i * (size_t)n + (size_t)j] += bias[j];
        reals_round(to + i * row, from + i * (size_t)n, (size_t)n);
    }
}

static void multiply_wide(const Matmul *m, void *d, const void *a, const void *b, const float *bias) {
    size_t n = m->n, row = (size_t)m->row;
    dnnl_dim_t rows = (dnnl_dim_t)n, in = m->in, out = m->out;
    if (m->kind == FORWARD) {
        const float *x = widened(WIDE_X, a, n, (size_t)in, m->in), *w = widened(WIDE_W, b, (size_t)out, (size_t)in, m->in);
        float *y = onednn_wide(WIDE_Y, n * (size_t)out);
        DNNL_TRY(dnnl_sgemm('N', 'T', rows, out, in, 1, x, in, w, in, 0, y, out));
        put_rows(d, row, y, bias, n, m->out);
    } else if (m->kind == BACKWARD_INPUT) {
        const float *dy = widened(WIDE_Y, a, n, row, m->out), *w = widened(WIDE_W, b, (size_t)out, (size_t)in, m->in);
        float *dx = onednn_wide(WIDE_X, n * (size_t)in);
        DNNL_TRY(dnnl_sgemm('N', 'N', rows, in, out, 1, dy, out, w, in, 0, dx, in));
        put_rows(d, (size_t)in, dx, NULL, n, m->in);
    } else {
        const float *dy = widened(WIDE_Y, a, n, row, m->out), *x = widened(WIDE_X, b, n, (size_t)in, m->in);
        DNNL_TRY(dnnl_sgemm('T', 'N', out, in, rows, 1, dy, out, x, in, 1, d, in));
    }
}

/* == The three products of a layer ================================================================================ */

static void execute(const Matmul *m, void *d, const void *a, dnnl_memory_t b, const float *bias) {
    DNNL_TRY(dnnl_memory_set_data_handle(m->a, (void *)a));
    DNNL_TRY(dnnl_memory_set_data_handle(m->shift, (void *)bias));
    DNNL_TRY(dnnl_memory_set_data_handle(m->d, d));
    dnnl_exec_arg_t arguments[4] = {
        {DNNL_ARG_SRC, m->a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, m->d}, {DNNL_ARG_BIAS, m->shift}};
    onednn_execute(m->primitive, bias ? 4 : 3, arguments);
}

static void multiply(Kind kind, void *d, const void *a, const void *b, const float *bias, const LinearShape *shape) {
    Matmul *m = matmul_find(kind, shape, bias != NULL);
    if (!m->found) {
        multiply_wide(m, d, a, b, bias);
        return;
    }
    DNNL_TRY(dnnl_memory_set_data_handle(m->b, (void *)b));
    execute(m, d, a, m->b, bias);
}

#ifdef VIT_FP32

static const real *rounded(const float *w, const LinearShape *s) { return (void)s, w; }

static void multiply_input(real *dx, const real *dy, const real *w, const LinearShape *s) {
    DNNL_TRY(dnnl_sgemm('N', 'N', (dnnl_dim_t)s->n, s->in, s->out, 1, dy, linear_y_row(s), w, s->in, 0, dx, s->in));
}

static void multiply_weight(float *dw, const real *dy, const real *x, const LinearShape *s) {
    DNNL_TRY(dnnl_sgemm('T', 'N', s->out, s->in, (dnnl_dim_t)s->n, 1, dy, linear_y_row(s), x, s->in, 1, dw, s->in));
}

#else

/* Room for the largest weights so far, made by the first call with them. */
static void *room;
static size_t room_bytes;

static const real *rounded(const float *w, const LinearShape *s) {
    enum { PIECE = 4096 };
    size_t n = (size_t)s->in * (size_t)s->out;
    real *copy = workspace_grow(&room, &room_bytes, n * sizeof *copy, "rounded weights");
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i += PIECE) reals_round(copy + i, w + i, n - i < PIECE ? n - i : PIECE);
    return copy;
}

static void multiply_input(real *dx, const real *dy, const real *w, const LinearShape *s) {
    multiply(BACKWARD_INPUT, dx, dy, w, NULL, s);
}

static void multiply_weight(float *dw, const real *dy, const real *x, const LinearShape *s) {
    multiply(BACKWARD_WEIGHT, dw, dy, x, NULL, s);
}

#endif

static bool forward_kept(real *y, const real *x, const float *w, const float *b, const LinearShape *shape) {
    Matmul *m = matmul_find(FORWARD_KEPT, shape, b != NULL);
    if (!m->found) return false;
    execute(m, y, x, kept_weights(m, w), b);
    return true;
}

void product_forward(real *y, const real *x, const float *w, const float *b, const LinearShape *shape) {
    if (keeping && forward_kept(y, x, w, b, shape)) return;
    multiply(FORWARD, y, x, rounded(w, shape), b, shape);
}

void product_backward_input(real *dx, const real *dy, const float *w, const LinearShape *shape) {
    multiply_input(dx, dy, rounded(w, shape), shape);
}

void product_backward_weight(float *dw, const real *dy, const real *x, const LinearShape *shape) {
    multiply_weight(dw, dy, x, shape);
}

void product_square(real *c, const real *a, const real *b, int side) {
    multiply_input(c, a, b, &(LinearShape){(size_t)side, side, side, 0});
}
