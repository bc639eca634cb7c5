/* Convolution on oneDNN, 2.x and 3.x, channels last.
 * With W' = s W and p a position of the output, o one of its channels
 *   forward          y[p,o] = sum_(tap,i) x[p*stride + tap - k/2, i] W'[o,i,tap] + t[o] + add[p,o], then ReLU
 *   backward, input  stride 1: the same sum with dy for x, input and output channels swapped and the taps reversed,
 *                    so that the library's forward kernel serves (near sgemm's rate; its backward kernels: 75 % of it);
 *                    a 1 x 1 product of floats is sgemm, which adds to what is there; other strides are the library's
 *                    own
 *   backward, weight dW'[o, tap, i] = sum_p dy[p,o] x[p*stride + tap - k/2, i]: for a few thousand positions at a time
 *                    each window is copied to a row (not needed for 1 x 1 with stride 1), which is then a linear
 *                    layer's input; the library's kernels reach 60 % of that speed at stride 1 and 15 % at stride 2
 *                    (docs/notebook/detection.md).
 *
 * What may be quick goes to kernels/convolution/winograd.c where that serves it, and the gradient of the weights of small
 * windows to kernels/convolution/narrow.c.
 *
 * oneDNN needs a primitive for each shape, and a copy of the weights in the layout that the primitive asks for.  Both
 * are created by the first call with a shape and kept in tables; a full table drops the least recently used entry. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/device/onednn.h"
#include "kernels/device/workspace.h"
#include "kernels/convolution/convolution.h"
#include "kernels/convolution/narrow_cpu.h"
#include "kernels/convolution/winograd_cpu.h"
#include "kernels/device/device.h"
#include "kernels/linear/linear.h"
#include "kernels/tokens/images.h"

static size_t weight_count(const Convolution *c) { return (size_t)c->out * (size_t)c->in * (size_t)(c->k * c->k); }

static bool is_product(const Convolution *c) { return c->k == 1 && c->stride == 1; }

/* == Weights ====================================================================================================== */

void batchnorm_fold(float *scale, float *shift, const float *w, const float *b, const float *mean, const float *var,
                    int n, float eps) {
    for (int i = 0; i < n; i++) {
        scale[i] = w[i] / sqrtf(var[i] + eps);
        shift[i] = b[i] - mean[i] * scale[i];
    }
}

/* folded holds W' [out,in,k,k] and, if the forward kernel computes the gradient of the input, then [in,out,k,k]: W'
 * with its channels swapped and its taps reversed. */
static bool has_reversed(const Convolution *c, bool backward) {
    return backward && c->stride == 1 && (c->k > 1 || sizeof(real) == 2);
}

size_t convolution_folded_bytes(const Convolution *c, bool backward) {
    if (winograd_serves(c)) return (backward ? 2 : 1) * winograd_weights(c) * sizeof(float);
    return (has_reversed(c, backward) ? 2 : 1) * weight_count(c) * sizeof(float);
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

void convolution_fold(void *folded, const float *w, const float *scale, const Convolution *c, bool backward) {
    size_t taps = (size_t)c->k * (size_t)c->k, row = (size_t)c->in * taps;
    float *plain = folded, *reversed = plain + weight_count(c);
    if (winograd_serves(c)) {
        winograd_fold(folded, w, scale, c, false);
        if (backward) winograd_fold((float *)folded + winograd_weights(c), w, scale, c, true);
        return;
    }
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
        p->folded = folded;
        p->reversed = reversed;
        p->stale = true;
        p->plain = onednn_memory(onednn_desc(plain));
        DNNL_TRY(dnnl_memory_create(&p->packed, onednn_desc(wanted), onednn_engine(), DNNL_MEMORY_ALLOCATE));
        p->reorder = onednn_reorder(onednn_desc(wanted), onednn_desc(plain));
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
    dnnl_data_type_t type; /* of image and result: float where the library has no bfloat16 */
    dnnl_primitive_t primitive;
    dnnl_memory_t image, result, shift; /* [B,C,H,W] in, [B,C,H,W] out in the direction's own sense */
    dnnl_memory_t plain, wanted;        /* the weights: as they are folded, and as the primitive reads them */
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

/* False if the library has none for images of this type. */
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

static size_t image_count(int B, int H, int W, int channels) {
    return (size_t)B * (size_t)H * (size_t)W * (size_t)channels;
}

void convolution_forward(real *y, const real *x, const real *add, const void *folded, const float *shift,
                         const Convolution *c, bool relu, const ImageShape *images) {
    int B = images->B, H = images->Hi, W = images->Wi;
    if (winograd_serves(c)) {
        kernels_reserve(winograd_workspace(c, false));
        winograd_convolve(y, x, add, folded, shift, relu, NULL, c->in, c->out, images);
        return;
    }
    Primitive wanted = {.direction = FORWARD, .c = *c, .B = B, .H = H, .W = W, .bias = true, .add = add, .relu = relu};
    int Ho = convolution_side(H, c->stride), Wo = convolution_side(W, c->stride);
    if (add && add != y) copy(y, add, image_count(B, Ho, Wo, c->out));
    convolve(y, x, folded, folded, shift, &wanted);
}

void relu_gradient(real *dx, const real *dy, const real *y, size_t n) {
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++) dx[i] = real_get(y[i]) > 0 ? dy[i] : real_of(0);
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

void convolution_backward_input(real *dx, const real *add, const real *dy, const void *folded, const real *below,
                                const Convolution *c, const ImageShape *images) {
    int B = images->B, H = images->Hi, W = images->Wi;
    size_t n = image_count(B, H, W, c->in);
    const float *w = folded;
    if (winograd_serves(c)) {
        kernels_reserve(winograd_workspace(c, false));
        winograd_convolve(dx, dy, add, w + winograd_weights(c), NULL, false, below, c->out, c->in, images);
        return;
    }
    if (c->stride == 1) {
        if (add && add != dx) copy(dx, add, n);
#ifdef VIT_FP32
        if (is_product(c)) {
            product_backward(dx, add != NULL, dy, w, below, image_count(B, H, W, 1), c);
            return;
        }
#endif
        Primitive wanted = {.direction = FORWARD, .B = B, .H = H, .W = W, .add = add};
        wanted.c = (Convolution){c->out, c->in, c->k, 1, c->way};
        convolve(dx, dy, folded, w + weight_count(c), NULL, &wanted);
    } else {
        Primitive wanted = {.direction = BACKWARD_INPUT, .c = *c, .B = B, .H = H, .W = W};
        convolve(dx, dy, folded, w, NULL, &wanted);
    }
    if (below) relu_gradient(dx, dx, below, n);
}

/* == Backward to the weights ====================================================================================== */

/* Positions in a product: enough that reading and writing its result costs little in comparison, and all of them if
 * windows need not be copied. */
enum { GATHER_FLOATS = 1 << 20, GATHER_LEAST = 512 };

static size_t positions_at_once(const Convolution *c, size_t positions) {
    size_t most = GATHER_FLOATS / (size_t)(c->in * c->k * c->k);
    if (most < GATHER_LEAST) most = GATHER_LEAST;
    return positions < most ? positions : most;
}

/* rows [count,k,k,in] = the windows of x at the positions from `first` on. */
static void gather(real *rows, const real *x, size_t first, size_t count, const Convolution *c, int H, int W) {
    size_t Ho = (size_t)convolution_side(H, c->stride), Wo = (size_t)convolution_side(W, c->stride);
    size_t line = (size_t)(c->k * c->in); /* a window's row, whose pixels lie together */
#pragma omp parallel for schedule(static)
    for (size_t p = first; p < first + count; p++) {
        int left = (int)(p % Wo) * c->stride - convolution_before(c, W);
        int top = (int)(p / Wo % Ho) * c->stride - convolution_before(c, H);
        const real *image = x + p / (Wo * Ho) * (size_t)H * (size_t)W * (size_t)c->in;
        real *to = rows + (p - first) * (size_t)(c->k * c->k * c->in);
        int from = left < 0 ? -left : 0, end = W - left < c->k ? W - left : c->k; /* columns within the image */
        for (int yi = top; yi < top + c->k; yi++, to += line) {
            if (yi < 0 || yi >= H || from >= end) memset(to, 0, line * sizeof *to);
            else {
                memset(to, 0, (size_t)(from * c->in) * sizeof *to);
                memcpy(to + from * c->in, image + ((ptrdiff_t)yi * W + left + from) * c->in,
                       (size_t)((end - from) * c->in) * sizeof *to);
                memset(to + end * c->in, 0, (size_t)((c->k - end) * c->in) * sizeof *to);
            }
        }
    }
}

size_t convolution_workspace(const Convolution *c, const ImageShape *images, bool weights) {
    if (winograd_serves(c)) return winograd_workspace(c, weights);
    if (!weights) return 0;
    if (narrow_serves(c)) return narrow_workspace(c, images);
    int B = images->B, H = images->Hi, W = images->Wi;
    size_t positions = image_count(B, convolution_side(H, c->stride), convolution_side(W, c->stride), 1);
    size_t rows = is_product(c) ? 0 : positions_at_once(c, positions) * (size_t)(c->in * c->k * c->k);
    return weight_count(c) * sizeof(float) + rows * sizeof(real);
}

/* dw [out,in,taps] += scale sum [out,taps,in]. */
static void add_scaled(float *dw, const float *sum, const float *scale, const Convolution *c) {
    size_t in = (size_t)c->in, taps = (size_t)c->k * (size_t)c->k;
#pragma omp parallel for schedule(static)
    for (int o = 0; o < c->out; o++)
        for (size_t i = 0; i < in; i++)
            for (size_t tap = 0; tap < taps; tap++)
                dw[((size_t)o * in + i) * taps + tap] += scale[o] * sum[((size_t)o * taps + tap) * in + i];
}

void convolution_backward_weight(float *dw, const real *dy, const real *x, const float *scale, const Convolution *c,
                                 const ImageShape *images) {
    int B = images->B, H = images->Hi, W = images->Wi;
    size_t n = image_count(B, convolution_side(H, c->stride), convolution_side(W, c->stride), 1);
    LinearShape product = {.in = c->in * c->k * c->k, .out = c->out};
    size_t at_once = is_product(c) ? n : positions_at_once(c, n);
    kernels_reserve(convolution_workspace(c, images, true));
    if (winograd_serves(c)) {
        winograd_backward_weight(dw, dy, x, scale, c, images);
        return;
    }
    if (narrow_serves(c)) {
        narrow_backward_weight(dw, dy, x, scale, c, images);
        return;
    }
    float *sum = workspace_shared();
    real *rows = (real *)(sum + weight_count(c));
    memset(sum, 0, weight_count(c) * sizeof *sum);
    for (size_t p = 0; p < n; p += at_once) {
        product.n = n - p < at_once ? n - p : at_once;
        if (!is_product(c)) gather(rows, x, p, product.n, c, H, W);
        linear_backward_weight(sum, NULL, dy + p * (size_t)c->out, is_product(c) ? x : rows, &product);
    }
    add_scaled(dw, sum, scale, c);
}
