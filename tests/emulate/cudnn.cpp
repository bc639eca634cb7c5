/* A stand-in for cuDNN's convolutions: channels last, bfloat16 or float, sums in float.  It has no algorithm for an odd
 * number of outputs.  Otherwise it offers four, the fastest first: one that is not deterministic, or in forward passes
 * one that needs a large workspace; one that needs a large workspace; one that is reported as not supported; and one
 * that always works, except that with a multiple of 26 outputs running it fails as not supported. */
#include <cudnn.h>
#include <string.h>

#include "tests/emulate/standin.h"

using namespace standin;

struct cudnnContext {
    cudaStream_t stream;
    bool stream_set;
};
struct cudnnTensorStruct {
    bool set;
    cudnnDataType_t type;
    int n, c, h, w;
};
struct cudnnFilterStruct {
    bool set;
    cudnnDataType_t type;
    int k, c, h, w;
};
struct cudnnConvolutionStruct {
    bool set;
    int top, left, stride;
    cudnnMathType_t math;
};
typedef cudnnTensorStruct Tensor;
typedef cudnnFilterStruct Filter;
typedef cudnnConvolutionStruct Convolution;

size_t cudnnGetVersion(void) { return 90000; }

const char *cudnnGetErrorString(cudnnStatus_t status) {
#define NAME_OF(name, value) \
    case name: return #name;
    switch (status) { CUDNN_STATUSES(NAME_OF) }
    return "unknown status";
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    Guard guard("cudnnCreate");
    forbid_in_capture("cudnnCreate");
    handle_add(*handle = new cudnnContext{NULL, false}, "cuDNN handle");
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    Guard guard("cudnnDestroy");
    forbid_in_capture("cudnnDestroy");
    handle_remove("cudnnDestroy", handle, "cuDNN handle");
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    Guard guard("cudnnSetStream");
    handle_check("cudnnSetStream", handle, "cuDNN handle");
    if (stream) handle_check("cudnnSetStream", stream, "stream");
    *handle = {stream, true};
    return CUDNN_STATUS_SUCCESS;
}

/* == Descriptors ================================================================================================== */

#define CREATE_AND_DESTROY(Name, kind)                                                   \
    cudnnStatus_t cudnnCreate##Name##Descriptor(cudnn##Name##Descriptor_t *descriptor) { \
        Guard guard("cudnnCreate" #Name "Descriptor");                                   \
        handle_add(*descriptor = new cudnn##Name##Struct{}, kind);                       \
        return CUDNN_STATUS_SUCCESS;                                                     \
    }                                                                                    \
    cudnnStatus_t cudnnDestroy##Name##Descriptor(cudnn##Name##Descriptor_t descriptor) { \
        Guard guard("cudnnDestroy" #Name "Descriptor");                                  \
        handle_remove("cudnnDestroy" #Name "Descriptor", descriptor, kind);              \
        delete descriptor;                                                               \
        return CUDNN_STATUS_SUCCESS;                                                     \
    }
CREATE_AND_DESTROY(Tensor, "tensor descriptor")
CREATE_AND_DESTROY(Filter, "filter descriptor")
CREATE_AND_DESTROY(Convolution, "convolution descriptor")

static void check_four(const char *call, cudnnTensorFormat_t format, cudnnDataType_t type, int a, int b, int c, int d) {
    if (format != CUDNN_TENSOR_NHWC) fail(call, "only channels last is stood in for");
    if (type != CUDNN_DATA_FLOAT && type != CUDNN_DATA_BFLOAT16) fail(call, "type %d is not stood in for", type);
    if (a < 1 || b < 1 || c < 1 || d < 1) fail(call, "%d x %d x %d x %d", a, b, c, d);
    if ((double)a * b * c * d >= 2147483648.0) fail(call, "2^31 numbers or more");
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
    Guard guard("cudnnSetTensor4dDescriptor");
    handle_check("cudnnSetTensor4dDescriptor", tensor, "tensor descriptor");
    check_four("cudnnSetTensor4dDescriptor", format, type, n, c, h, w);
    *tensor = {true, type, n, c, h, w};
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
    Guard guard("cudnnSetFilter4dDescriptor");
    handle_check("cudnnSetFilter4dDescriptor", filter, "filter descriptor");
    check_four("cudnnSetFilter4dDescriptor", format, type, k, c, h, w);
    *filter = {true, type, k, c, h, w};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t convolution, int pad_h, int pad_w,
                                              int stride_h, int stride_w, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t compute) {
    const char *call = "cudnnSetConvolution2dDescriptor";
    Guard guard(call);
    handle_check(call, convolution, "convolution descriptor");
    if (pad_h < 0 || pad_w < 0 || stride_h < 1) fail(call, "padding %d x %d, stride %d", pad_h, pad_w, stride_h);
    if (stride_h != stride_w || dilation_h != 1 || dilation_w != 1)
        fail(call, "only square strides without dilation are stood in for");
    if (mode != CUDNN_CROSS_CORRELATION) fail(call, "filters would be mirrored");
    if (compute != CUDNN_DATA_FLOAT) fail(call, "sums of type %d are not stood in for", compute);
    *convolution = {true, pad_h, pad_w, stride_h, CUDNN_DEFAULT_MATH};
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convolution, cudnnMathType_t math) {
    Guard guard("cudnnSetConvolutionMathType");
    handle_check("cudnnSetConvolutionMathType", convolution, "convolution descriptor");
    convolution->math = math;
    return CUDNN_STATUS_SUCCESS;
}

/* == Algorithms =================================================================================================== */

namespace {
struct Shape {
    Tensor x, y;
    Filter w;
    Convolution c;
};
} // namespace


static Shape shape_of(const char *call, cudnnHandle_t handle, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                      cudnnConvolutionDescriptor_t convolution, cudnnTensorDescriptor_t y) {
    handle_check(call, handle, "cuDNN handle");
    handle_check(call, x, "tensor descriptor");
    handle_check(call, y, "tensor descriptor");
    handle_check(call, w, "filter descriptor");
    handle_check(call, convolution, "convolution descriptor");
    Shape s = {*x, *y, *w, *convolution};
    if (!s.x.set || !s.y.set || !s.w.set || !s.c.set) fail(call, "a descriptor was not set");
    if (s.x.type != s.w.type || s.x.type != s.y.type) fail(call, "the three types differ");
    int h = (s.x.h + 2 * s.c.top - s.w.h) / s.c.stride + 1, v = (s.x.w + 2 * s.c.left - s.w.w) / s.c.stride + 1;
    if (s.x.n != s.y.n || s.x.c != s.w.c || s.w.k != s.y.c || s.y.h != h || s.y.w != v)
        fail(call, "y is not what x and the filter give: %d x %d x %d x %d", s.x.n, h, v, s.w.k);
    return s;
}

enum { SMALL_WORKSPACE = 300 };
static const size_t LARGE_WORKSPACE = (size_t)1 << 30;

static bool has_algorithms(const Shape &s) { return s.w.k % 2 == 0; }
static cudnnMathType_t math_of(const Shape &s) {
    return s.x.type == CUDNN_DATA_FLOAT ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH;
}

template <typename Answer, typename Algorithm>
static cudnnStatus_t answer(const char *call, const Shape &s, int wanted, int *found, Answer *to,
                            const Algorithm (&algorithms)[4], bool always_deterministic) {
    if (wanted < 1) fail(call, "%d algorithms are asked for", wanted);
    cudnnStatus_t ok = has_algorithms(s) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
    cudnnDeterminism_t first = always_deterministic ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC;
    const Answer all[] = {
        {algorithms[0], ok, 1, always_deterministic ? LARGE_WORKSPACE : 0, first, math_of(s), {}},
        {algorithms[1], ok, 2, LARGE_WORKSPACE, CUDNN_DETERMINISTIC, math_of(s), {}},
        {algorithms[2], CUDNN_STATUS_NOT_SUPPORTED, -1, 0, CUDNN_DETERMINISTIC, math_of(s), {}},
        {algorithms[3], ok, 3, SMALL_WORKSPACE, CUDNN_DETERMINISTIC, math_of(s), {}},
    };
    *found = wanted < 4 ? wanted : 4;
    memcpy(to, all, (size_t)*found * sizeof *to);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                     cudnnFilterDescriptor_t w,
                                                     cudnnConvolutionDescriptor_t convolution,
                                                     cudnnTensorDescriptor_t y, int wanted, int *found,
                                                     cudnnConvolutionFwdAlgoPerf_t *results) {
    const char *call = "cudnnGetConvolutionForwardAlgorithm_v7";
    Guard guard(call);
    static const cudnnConvolutionFwdAlgo_t all[] = {CUDNN_CONVOLUTION_FWD_ALGO_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_GEMM,
                                                    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
                                                    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM};
    return answer(call, shape_of(call, handle, x, w, convolution, y), wanted, found, results, all, true);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                          cudnnTensorDescriptor_t dy,
                                                          cudnnConvolutionDescriptor_t convolution,
                                                          cudnnTensorDescriptor_t dx, int wanted, int *found,
                                                          cudnnConvolutionBwdDataAlgoPerf_t *results) {
    const char *call = "cudnnGetConvolutionBackwardDataAlgorithm_v7";
    Guard guard(call);
    static const cudnnConvolutionBwdDataAlgo_t all[] = {
        CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1,
        CUDNN_CONVOLUTION_BWD_DATA_ALGO_1};
    return answer(call, shape_of(call, handle, dx, w, convolution, dy), wanted, found, results, all, false);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                            cudnnTensorDescriptor_t dy,
                                                            cudnnConvolutionDescriptor_t convolution,
                                                            cudnnFilterDescriptor_t dw, int wanted, int *found,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t *results) {
    const char *call = "cudnnGetConvolutionBackwardFilterAlgorithm_v7";
    Guard guard(call);
    static const cudnnConvolutionBwdFilterAlgo_t all[] = {
        CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3,
        CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1};
    return answer(call, shape_of(call, handle, x, dw, convolution, dy), wanted, found, results, all, false);
}

/* == The convolution ============================================================================================== */

#define LOOPS __attribute__((no_sanitize("address", "undefined"), optimize("O3", "tree-vectorize")))

static size_t size_of(cudnnDataType_t type) { return type == CUDNN_DATA_FLOAT ? 4 : 2; }
static size_t count(const Tensor &t) { return (size_t)t.n * (size_t)t.c * (size_t)t.h * (size_t)t.w; }
static size_t count(const Filter &f) { return (size_t)f.k * (size_t)f.c * (size_t)f.h * (size_t)f.w; }

LOOPS static void widen(float *to, const void *from, cudnnDataType_t type, size_t n) {
    if (type == CUDNN_DATA_FLOAT) memcpy(to, from, n * sizeof *to);
    else
        for (size_t i = 0; i < n; i++) to[i] = bf16_widen(static_cast<const uint16_t *>(from)[i]);
}

enum Direction { FORWARD, DATA, FILTER };

/* The three products of one pixel of y and one tap, each of a vector and a matrix [k][taps][c]. */
LOOPS static void tap_forward(float *y, const float *x, const float *w, int k, int c, size_t step) {
    for (int o = 0; o < k; o++) {
        float sum = 0;
        for (int i = 0; i < c; i++) sum += x[i] * w[(size_t)o * step + (size_t)i];
        y[o] += sum;
    }
}
LOOPS static void tap_data(float *x, const float *y, const float *w, int k, int c, size_t step) {
    for (int o = 0; o < k; o++)
        for (int i = 0; i < c; i++) x[i] += y[o] * w[(size_t)o * step + (size_t)i];
}
LOOPS static void tap_filter(float *w, const float *y, const float *x, int k, int c, size_t step) {
    for (int o = 0; o < k; o++)
        for (int i = 0; i < c; i++) w[(size_t)o * step + (size_t)i] += y[o] * x[i];
}

static void taps(Direction direction, const Shape &s, float *x, float *y, float *w) {
    int pixels = s.y.h * s.y.w, all = s.w.h * s.w.w, k = s.w.k, c = s.w.c;
    size_t step = (size_t)all * (size_t)c;
    for (int p = 0; p < s.y.n * pixels; p++)
        for (int tap = 0; tap < all; tap++) {
            int row = p % pixels / s.y.w * s.c.stride + tap / s.w.w - s.c.top;
            int column = p % s.y.w * s.c.stride + tap % s.w.w - s.c.left;
            if (row < 0 || row >= s.x.h || column < 0 || column >= s.x.w) continue;
            float *from =
                x + (((size_t)(p / pixels) * (size_t)s.x.h + (size_t)row) * (size_t)s.x.w + (size_t)column) * (size_t)c;
            float *to = y + (size_t)p * (size_t)k, *filter = w + (size_t)tap * (size_t)c;
            if (direction == FORWARD) tap_forward(to, from, filter, k, c, step);
            else if (direction == DATA) tap_data(from, to, filter, k, c, step);
            else tap_filter(filter, to, from, k, c, step);
        }
}

namespace {
struct Places {
    const void *x, *y, *w;
    void *to, *workspace;
    size_t bytes;
    float alpha, beta;
};
} // namespace


static void convolve(Direction direction, const Shape &s, const Places &at) {
    cudnnDataType_t type = s.x.type;
    std::vector<float> x(count(s.x)), y(count(s.y)), w(count(s.w));
    if (direction != DATA) widen(x.data(), at.x, type, x.size());
    if (direction != FORWARD) widen(y.data(), at.y, type, y.size());
    if (direction != FILTER) widen(w.data(), at.w, type, w.size());
    memset(at.workspace, 0xFF, at.bytes);
    taps(direction, s, x.data(), y.data(), w.data());
    const std::vector<float> &sum = direction == FORWARD ? y : direction == DATA ? x : w;
    for (size_t i = 0; i < sum.size(); i++) {
        float *wide = static_cast<float *>(at.to) + i;
        uint16_t *narrow = static_cast<uint16_t *>(at.to) + i;
        float value = at.alpha * sum[i];
        if (at.beta != 0) value += at.beta * (type == CUDNN_DATA_FLOAT ? *wide : bf16_widen(*narrow));
        if (type == CUDNN_DATA_FLOAT) *wide = value;
        else *narrow = bf16_round(value);
    }
}

static cudnnStatus_t run(const char *call, Direction direction, cudnnHandle_t handle, const Shape &s, int algorithm,
                         const void *alpha, const void *x, const void *y, const void *w, void *to, void *workspace,
                         size_t bytes, const void *beta) {
    static const int usable[] = {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1,
                                 CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1};
    size_t size = size_of(s.x.type);
    if (!handle->stream_set) fail(call, "the handle has no stream: it would run in the legacy stream");
    if (!has_algorithms(s) || algorithm != usable[direction])
        fail(call, "algorithm %d is not one that was offered as supported, deterministic and small", algorithm);
    if (s.c.math != math_of(s)) fail(call, "the algorithm was found for another math type");
    if (bytes < SMALL_WORKSPACE)
        fail(call, "the algorithm needs %d bytes of workspace and is given %zu", SMALL_WORKSPACE, bytes);
    check_aligned(call, "the workspace", workspace, 16);
    Operand operands[] = {{"x", x, count(s.x) * size},
                          {"y", y, count(s.y) * size},
                          {"the filter", w, count(s.w) * size},
                          {"the workspace", workspace, bytes}};
    for (int i = 0; i < 4; i++) {
        if (i < 3) check_aligned(call, operands[i].what, operands[i].p, 16);
        for (int j = i + 1; j < 4; j++) check_apart(call, operands[i], operands[j]);
    }
    if (s.w.k % 26 == 0) return (cudnnStatus_t)(CUDNN_STATUS_NOT_SUPPORTED + 2); /* ..._SHAPE */
    Places at = {x, y, w, to, workspace, bytes, *static_cast<const float *>(alpha), *static_cast<const float *>(beta)};
    size_t moved = operands[0].bytes + operands[1].bytes + operands[2].bytes;
    submit(handle->stream,
           {call, std::vector<Operand>(operands, operands + 4), simply([=] { convolve(direction, s, at); })}, moved);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x, const void *X,
                                      cudnnFilterDescriptor_t w, const void *W,
                                      cudnnConvolutionDescriptor_t convolution, cudnnConvolutionFwdAlgo_t algorithm,
                                      void *workspace, size_t bytes, const void *beta, cudnnTensorDescriptor_t y,
                                      void *Y) {
    const char *call = "cudnnConvolutionForward";
    Guard guard(call);
    return run(call, FORWARD, handle, shape_of(call, handle, x, w, convolution, y), algorithm, alpha, X, Y, W, Y,
               workspace, bytes, beta);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha, cudnnFilterDescriptor_t w,
                                           const void *W, cudnnTensorDescriptor_t dy, const void *DY,
                                           cudnnConvolutionDescriptor_t convolution,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void *workspace, size_t bytes,
                                           const void *beta, cudnnTensorDescriptor_t dx, void *DX) {
    const char *call = "cudnnConvolutionBackwardData";
    Guard guard(call);
    return run(call, DATA, handle, shape_of(call, handle, dx, w, convolution, dy), algorithm, alpha, DX, DY, W, DX,
               workspace, bytes, beta);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x,
                                             const void *X, cudnnTensorDescriptor_t dy, const void *DY,
                                             cudnnConvolutionDescriptor_t convolution,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void *workspace, size_t bytes,
                                             const void *beta, cudnnFilterDescriptor_t dw, void *DW) {
    const char *call = "cudnnConvolutionBackwardFilter";
    Guard guard(call);
    return run(call, FILTER, handle, shape_of(call, handle, x, dw, convolution, dy), algorithm, alpha, X, DY, DW, DW,
               workspace, bytes, beta);
}
