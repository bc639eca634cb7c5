/* Convolution by the definition on oneDNN, 2.x and 3.x.  The gradient of the input with stride 1 is the library's
 * forward kernel on dy (near sgemm's rate; its backward kernels: 75 % of it); a 1 x 1 product of floats is sgemm, which
 * can accumulate; other strides use the library's own kernels.
 *
 * oneDNN needs a primitive for each shape, and a copy of the weights in the layout of that primitive.  Both are created
 * by the first call with a shape and kept in tables; a full table drops the least recently used entry. */
#include <stdbool.h>
#include <string.h>

#include "kernels/convolution/direct_cpu.h"
#include "kernels/cpu/activations.h"
#include "kernels/device/onednn.h"

/* == Weights ====================================================================================================== */

/* folded holds W' [out,in,k,k] and, if the forward kernel computes the gradient of the input, then [in,out,k,k]: W'
 * with its channels swapped and its taps reversed. */
static bool has_reversed(const Convolution *c, bool backward) {
    return backward && c->stride == 1 && (c->k > 1 || sizeof(real) == 2);
}

size_t direct_folded_bytes(const Convolution *c, bool backward) {
    return (has_reversed(c, backward) ? 2 : 1) * convolution_weights(c) * sizeof(float);
}

typedef struct {
    const void *folded;
    bool reversed, stale;
    dnnl_memory_t plain, packed; /* packed owns its memory */
    dnnl_primitive_t reorder;
    uint64_t used;
} PackedWeights;

/* ResNet-50 has 53 convolutions, 13 of which also need the reversed weights; few need a second layout for another
 * shape. */
enum { PACKED = 256, PRIMITIVES = 1024 };
static PackedWeights packed[PACKED];
static uint64_t clock_of_use;

void direct_fold(void *folded, const float *w, const float *scale, const Convolution *c, bool backward) {
    size_t taps = (size_t)c->k * (size_t)c->k, row = (size_t)c->in * taps;
    float *plain = folded, *reversed = plain + convolution_weights(c);
    for (int i = 0; i < PACKED; i++)
        if (packed[i].folded == folded) packed[i].stale = true;
#pragma omp parallel for schedule(static)
    for (int o = 0; o < c->out; o++) {
        for (size_t i = 0; i < row; i++) plain[(size_t)o * row + i] = scale[o] * w[(size_t)o * row + i];
        if (!has_reversed(c, backward)) continue;
        for (size_t i = 0; i < (size_t)c->in; i++)
            for (size_t tap = 0; tap < taps; tap++)
                reversed[(i * (size_t)c->out + (size_t)o) * taps + taps - 1 - tap] =
                    plain[(size_t)o * row + i * taps + tap];
    }
}

static void packed_clear(PackedWeights *p) {
    if (!p->folded) return;
    dnnl_primitive_destroy(p->reorder);
    dnnl_memory_destroy(p->plain);
    dnnl_memory_destroy(p->packed);
    *p = (PackedWeights){0};
}

/* The weights at `folded` in the layout of `wanted`. */
static dnnl_memory_t packed_find(const void *folded, bool reversed, dnnl_memory_t plain, dnnl_memory_t wanted) {
    PackedWeights *p = NULL, *oldest = packed;
    for (int i = 0; i < PACKED && !p; i++) {
        PackedWeights *q = &packed[i];
        if (q->folded == folded && q->reversed == reversed &&
            dnnl_memory_desc_equal(onednn_desc(q->packed), onednn_desc(wanted)))
            p = q;
        if (q->used < oldest->used) oldest = q;
    }
    if (!p) {
        p = oldest;
        packed_clear(p);
        p->reversed = reversed;
        p->stale = true;
        p->plain = onednn_memory(onednn_desc(plain));
        DNNL_TRY(dnnl_memory_create(&p->packed, onednn_desc(wanted), onednn_engine(), DNNL_MEMORY_ALLOCATE));
        p->reorder = onednn_reorder(onednn_desc(wanted), onednn_desc(plain));
        p->folded = folded; /* now there is such an entry */
    }
    p->used = ++clock_of_use;
    if (p->stale) {
        void *data;
        DNNL_TRY(dnnl_memory_get_data_handle(plain, &data));
        DNNL_TRY(dnnl_memory_set_data_handle(p->plain, data));
        onednn_execute(p->reorder, 2, (dnnl_exec_arg_t[]){{DNNL_ARG_FROM, p->plain}, {DNNL_ARG_TO, p->packed}});
        p->stale = false;
    }
    return p->packed;
}

/* == Primitives =================================================================================================== */

typedef enum { FORWARD, BACKWARD_INPUT } Direction;

typedef struct {
    Direction direction;
    Convolution c;
    int B, H, W;
    bool bias, add, relu;
    dnnl_data_type_t type; /* type of image and result: float if the library has no bfloat16 */
    dnnl_primitive_t primitive;
    dnnl_memory_t image, result, shift; /* input [B,C,H,W] and output [B,C,H,W], as seen in this direction */
    dnnl_memory_t plain, wanted;        /* layout of the weights: folded, and of the primitive */
    uint64_t used;
} Primitive;

static Primitive primitives[PRIMITIVES];

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t Desc;
#define REF(d) (d)
static Desc desc_create(int ndims, const dnnl_dims_t dims, dnnl_data_type_t type, dnnl_format_tag_t tag) {
    Desc d;
    DNNL_TRY(dnnl_memory_desc_create_with_tag(&d, ndims, dims, type, tag));
    return d;
}
static void desc_destroy(Desc *d) { DNNL_TRY(dnnl_memory_desc_destroy(*d)); }
#else
typedef dnnl_memory_desc_t Desc;
#define REF(d) (&(d))
static Desc desc_create(int ndims, const dnnl_dims_t dims, dnnl_data_type_t type, dnnl_format_tag_t tag) {
    Desc d;
    DNNL_TRY(dnnl_memory_desc_init_by_tag(&d, ndims, dims, type, tag));
    return d;
}
static void desc_destroy(Desc *d) { (void)d; }
#endif

/* add comes first, then ReLU. */
static dnnl_primitive_attr_t attributes_create(bool add, bool relu) {
    dnnl_primitive_attr_t attributes;
    dnnl_post_ops_t ops;
    DNNL_TRY(dnnl_primitive_attr_create(&attributes));
    DNNL_TRY(dnnl_post_ops_create(&ops));
    if (add) onednn_append_sum(ops);
#if DNNL_VERSION_MAJOR >= 3
    if (relu) DNNL_TRY(dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_relu, 0, 0));
#else
    if (relu) DNNL_TRY(dnnl_post_ops_append_eltwise(ops, 1, dnnl_eltwise_relu, 0, 0));
#endif
    DNNL_TRY(dnnl_primitive_attr_set_post_ops(attributes, ops));
    DNNL_TRY(dnnl_post_ops_destroy(ops));
    return attributes;
}

typedef struct {
    Desc x, w, b, y;
    dnnl_dims_t strides, dilates, before, after;
} Shapes;

/* NULL: the library has no such kernel. */
static dnnl_primitive_desc_t forward_create(const Shapes *s, bool bias, bool add, bool relu) {
    dnnl_primitive_attr_t attributes = attributes_create(add, relu);
    dnnl_primitive_desc_t pd = NULL;
#if DNNL_VERSION_MAJOR >= 3
    dnnl_status_t status = dnnl_convolution_forward_primitive_desc_create(
        &pd, onednn_engine(), dnnl_forward_training, dnnl_convolution_direct, s->x, s->w, bias ? s->b : NULL, s->y,
        s->strides, s->dilates, s->before, s->after, attributes);
#else
    dnnl_convolution_desc_t d;
    DNNL_TRY(dnnl_convolution_forward_desc_init(&d, dnnl_forward_training, dnnl_convolution_direct, &s->x, &s->w,
                                                bias ? &s->b : NULL, &s->y, s->strides, s->before, s->after));
    dnnl_status_t status = dnnl_primitive_desc_create(&pd, &d, attributes, onednn_engine(), NULL);
#endif
    DNNL_TRY(dnnl_primitive_attr_destroy(attributes));
    if (status == dnnl_unimplemented) return NULL;
    DNNL_TRY(status);
    return pd;
}

static dnnl_primitive_desc_t backward_create(const Shapes *s) {
    dnnl_primitive_desc_t pd = NULL, forward = forward_create(s, false, false, false);
    if (!forward) return NULL;
#if DNNL_VERSION_MAJOR >= 3
    dnnl_status_t status = dnnl_convolution_backward_data_primitive_desc_create(
        &pd, onednn_engine(), dnnl_convolution_direct, s->x, s->w, s->y, s->strides, s->dilates, s->before, s->after,
        forward, NULL);
#else
    dnnl_convolution_desc_t d;
    DNNL_TRY(dnnl_convolution_backward_data_desc_init(&d, dnnl_convolution_direct, &s->x, &s->w, &s->y, s->strides,
                                                      s->before, s->after));
    dnnl_status_t status = dnnl_primitive_desc_create(&pd, &d, NULL, onednn_engine(), forward);
#endif
    DNNL_TRY(dnnl_primitive_desc_destroy(forward));
    if (status == dnnl_unimplemented) return NULL;
    DNNL_TRY(status);
    return pd;
}

/* False if the library has no kernel for images of this type. */
static bool primitive_create(Primitive *p, dnnl_data_type_t type) {
    const Convolution *c = &p->c;
    int Ho = convolution_side(p->H, c->stride), Wo = convolution_side(p->W, c->stride);
    int top = convolution_before(c, p->H), left = convolution_before(c, p->W);
    Shapes s = {
        .strides = {c->stride, c->stride},
        .before = {top, left},
        .after = {(Ho - 1) * c->stride + c->k - p->H - top, (Wo - 1) * c->stride + c->k - p->W - left},
    };
    s.x = desc_create(4, (dnnl_dims_t){p->B, c->in, p->H, p->W}, type, dnnl_nhwc);
    s.y = desc_create(4, (dnnl_dims_t){p->B, c->out, Ho, Wo}, type, dnnl_nhwc);
    s.w = desc_create(4, (dnnl_dims_t){c->out, c->in, c->k, c->k}, type, dnnl_format_tag_any);
    s.b = desc_create(1, (dnnl_dims_t){c->out}, dnnl_f32, dnnl_a);
    Desc plain = desc_create(4, (dnnl_dims_t){c->out, c->in, c->k, c->k}, dnnl_f32, dnnl_oihw);
    bool forward = p->direction == FORWARD;
    dnnl_primitive_desc_t pd = forward ? forward_create(&s, p->bias, p->add, p->relu) : backward_create(&s);
    if (pd) {
        p->type = type;
        p->image = onednn_memory(forward ? REF(s.x) : REF(s.y));
        p->result = onednn_memory(forward ? REF(s.y) : REF(s.x));
        p->shift = onednn_memory(REF(s.b));
        p->plain = onednn_memory(REF(plain));
        p->wanted = onednn_memory(dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0));
        DNNL_TRY(dnnl_primitive_create(&p->primitive, pd));
        DNNL_TRY(dnnl_primitive_desc_destroy(pd));
    }
    Desc *made[] = {&s.x, &s.w, &s.b, &s.y, &plain};
    for (int i = 0; i < 5; i++) desc_destroy(made[i]);
    return pd != NULL;
}

static void primitive_clear(Primitive *p) {
    if (!p->primitive) return;
    dnnl_primitive_destroy(p->primitive);
    dnnl_memory_t made[] = {p->image, p->result, p->shift, p->plain, p->wanted};
    for (int i = 0; i < 5; i++) dnnl_memory_destroy(made[i]);
    *p = (Primitive){0};
}

static bool same_convolution(const Convolution *a, const Convolution *b) {
    return a->in == b->in && a->out == b->out && a->k == b->k && a->stride == b->stride &&
           a->way == b->way;
}

/* The primitive for the shape of `wanted`, created if there is none. */
static Primitive *primitive_find(const Primitive *wanted) {
    Primitive *oldest = primitives;
    for (int i = 0; i < PRIMITIVES; i++) {
        Primitive *p = &primitives[i];
        if (p->primitive && p->H == wanted->H && p->W == wanted->W && p->B == wanted->B &&
            p->direction == wanted->direction && p->bias == wanted->bias && p->add == wanted->add &&
            p->relu == wanted->relu && same_convolution(&p->c, &wanted->c)) {
            p->used = ++clock_of_use;
            return p;
        }
        if (p->used < oldest->used) oldest = p;
    }
    primitive_clear(oldest);
    *oldest = *wanted;
    oldest->used = ++clock_of_use;
    if (!primitive_create(oldest, ONEDNN_REAL) && !primitive_create(oldest, dnnl_f32))
        die("oneDNN has no convolution of %d x %d with stride %d", oldest->c.k, oldest->c.k, oldest->c.stride);
    return oldest;
}

static size_t numbers_of(dnnl_memory_t memory) { return dnnl_memory_desc_get_size(onednn_desc(memory)) / sizeof(float); }

/* Convolves image with `weights`, which are the plain or the reversed ones in `folded`, and writes or adds to
 * result. */
static void convolve(real *result, const real *image, const void *folded, const float *weights, const float *shift,
                     const Primitive *wanted) {
    Primitive *p = primitive_find(wanted);
    bool forward = p->direction == FORWARD;
    bool wide = p->type != ONEDNN_REAL;
    float *from = wide ? onednn_wide(WIDE_X, numbers_of(p->image)) : NULL;
    float *to = wide ? onednn_wide(WIDE_Y, numbers_of(p->result)) : NULL;
    if (wide) reals_widen(from, image, numbers_of(p->image));
    if (wide && p->add) reals_widen(to, result, numbers_of(p->result));
    DNNL_TRY(dnnl_memory_set_data_handle(p->image, wide ? from : (void *)image));
    DNNL_TRY(dnnl_memory_set_data_handle(p->result, wide ? to : (void *)result));
    DNNL_TRY(dnnl_memory_set_data_handle(p->shift, (void *)shift));
    DNNL_TRY(dnnl_memory_set_data_handle(p->plain, (void *)weights));
    dnnl_memory_t w = packed_find(folded, weights != folded, p->plain, p->wanted);
    dnnl_exec_arg_t arguments[] = {{forward ? DNNL_ARG_SRC : DNNL_ARG_DIFF_DST, p->image},
                                   {DNNL_ARG_WEIGHTS, w},
                                   {forward ? DNNL_ARG_DST : DNNL_ARG_DIFF_SRC, p->result},
                                   {DNNL_ARG_BIAS, p->shift}};
    onednn_execute(p->primitive, p->bias ? 4 : 3, arguments);
    if (wide) reals_round(result, to, numbers_of(p->result));
}

/* == Forward, and backward to the input =========================================================================== */

static void copy(real *to, const real *from, size_t n) {
    enum { PIECE = 1 << 14 };
    size_t pieces = (n + PIECE - 1) / PIECE;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < pieces; i++)
        memcpy(to + i * PIECE, from + i * PIECE, (i + 1 < pieces ? PIECE : n - i * PIECE) * sizeof *to);
}

void direct_forward(real *y, const real *x, const real *add, const void *folded, const float *shift, const Convolution *c,
                    bool relu, const ImageShape *images) {
    int B = images->B, H = images->Hi, W = images->Wi;
    Primitive wanted = {.direction = FORWARD, .c = *c, .B = B, .H = H, .W = W, .bias = true, .add = add, .relu = relu};
    if (add && add != y) copy(y, add, convolution_results(c, images) * (size_t)c->out);
    convolve(y, x, folded, folded, shift, &wanted);
}

#ifdef VIT_FP32
/* dx (+=) dy W' on rows. */
static void product_backward(float *dx, bool accumulate, const float *dy, const float *w, const float *below, size_t n,
                             const Convolution *c) {
    enum { AT_ONCE = 1 << 20 }; /* floats of dx at a time, so that masking finds them in the third-level cache */
    size_t rows = AT_ONCE / (size_t)c->in + 1;
    for (size_t r = 0; r < n; r += rows) {
        size_t count = n - r < rows ? n - r : rows, at = r * (size_t)c->in;
        DNNL_TRY(dnnl_sgemm('N', 'N', (dnnl_dim_t)count, c->in, c->out, 1, dy + r * (size_t)c->out, c->out, w, c->in,
                            accumulate, dx + at, c->in));
        if (below) relu_gradient(dx + at, dx + at, below + at, count * (size_t)c->in);
    }
}
#endif

void direct_backward_input(real *dx, const real *add, const real *dy, const void *folded, const real *below,
                           const Convolution *c, const ImageShape *images) {
    int B = images->B, H = images->Hi, W = images->Wi;
    size_t pixels = image_pixels(images), n = pixels * (size_t)c->in;
    const float *w = folded;
    if (c->stride == 1) {
        if (add && add != dx) copy(dx, add, n);
#ifdef VIT_FP32
        if (convolution_is_product(c)) {
            product_backward(dx, add != NULL, dy, w, below, pixels, c);
            return;
        }
#endif
        Primitive wanted = {.direction = FORWARD, .B = B, .H = H, .W = W, .add = add};
        wanted.c = (Convolution){c->out, c->in, c->k, 1, c->way};
        convolve(dx, dy, folded, w + convolution_weights(c), NULL, &wanted);
    } else {
        Primitive wanted = {.direction = BACKWARD_INPUT, .c = *c, .B = B, .H = H, .W = W};
        convolve(dx, dy, folded, w, NULL, &wanted);
    }
    if (below) relu_gradient(dx, dx, below, n);
}
