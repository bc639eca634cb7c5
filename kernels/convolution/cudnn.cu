/* Convolutions with cuDNN: bfloat16 factors and float sums; an FP32 build uses float factors without TF32.  The
 * algorithm is chosen by the first call with a shape, among the deterministic ones only.  In a build without cuDNN no
 * shape has an algorithm. */
#include <device.cuh>

#include <stdio.h>

#include "kernels/convolution/cudnn.h"
#include "kernels/convolution/convolution.h"

#ifdef VIT_CUDNN

#include <cudnn.h>

extern "C" {
#include "core/die.h"
}

#define CUDNN_TRY(call)                                                                                \
    do {                                                                                               \
        cudnnStatus_t status_ = (call);                                                                \
        if (status_ != CUDNN_STATUS_SUCCESS) cuda_fail(#call, __FILE__, __LINE__, cudnnGetErrorString(status_)); \
    } while (0)

/* In cuDNN 9 each reason has a status of its own. */
static bool unsupported(cudnnStatus_t status) {
#ifdef CUDNN_STATUS_CATEGORY
    return CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED;
#else
    return status == CUDNN_STATUS_NOT_SUPPORTED;
#endif
}

/* The largest workspace that an algorithm may need. */
static const size_t WORKSPACE_MOST = (size_t)512 << 20;

static const cudnnDataType_t REAL_TYPE = sizeof(real) == 2 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;

static cudnnHandle_t handle;

struct LibraryConvolution {
    LibraryDirection direction;
    Convolution c;
    LibraryImages images;
    bool made, found; /* found: the library has an algorithm */
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t convolution;
    int algorithm; /* of the direction's own enumeration */
    size_t workspace;
    uint64_t used;
};

/* ResNet-50 needs about fifty entries for each image size.  The least recently used entry is replaced. */
enum { CONVOLUTIONS = 2048 };
static LibraryConvolution convolutions[CONVOLUTIONS];
static uint64_t clock_of_use;

static void library_clear(LibraryConvolution *l) {
    if (!l->made) return;
    cudnnDestroyTensorDescriptor(l->x);
    cudnnDestroyTensorDescriptor(l->y);
    cudnnDestroyFilterDescriptor(l->w);
    cudnnDestroyConvolutionDescriptor(l->convolution);
    *l = {};
}

/* The fastest of the library's algorithms, by its own estimate, that is deterministic and needs little enough
 * workspace. */
template <typename Answer>
static void library_choose(LibraryConvolution *l, const Answer *answers, int count) {
    for (int i = 0; i < count && !l->found; i++) {
        const Answer &a = answers[i];
        if (a.status != CUDNN_STATUS_SUCCESS || a.determinism != CUDNN_DETERMINISTIC || a.memory > WORKSPACE_MOST)
            continue;
        if (sizeof(real) == 2) CUDNN_TRY(cudnnSetConvolutionMathType(l->convolution, a.mathType));
        l->found = true;
        l->algorithm = (int)a.algo;
        l->workspace = a.memory;
    }
}

static void library_search(LibraryConvolution *l) {
    enum { MOST = 16 };
    int count = 0;
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    if (l->direction == LIBRARY_FORWARD) {
        cudnnConvolutionFwdAlgoPerf_t answers[MOST];
        status = cudnnGetConvolutionForwardAlgorithm_v7(handle, l->x, l->w, l->convolution, l->y, MOST, &count,
                                                        answers);
        if (status == CUDNN_STATUS_SUCCESS) library_choose(l, answers, count);
    } else if (l->direction == LIBRARY_INPUT) {
        cudnnConvolutionBwdDataAlgoPerf_t answers[MOST];
        status = cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, l->w, l->y, l->convolution, l->x, MOST, &count,
                                                             answers);
        if (status == CUDNN_STATUS_SUCCESS) library_choose(l, answers, count);
    } else {
        cudnnConvolutionBwdFilterAlgoPerf_t answers[MOST];
        status = cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, l->x, l->y, l->convolution, l->w, MOST, &count,
                                                               answers);
        if (status == CUDNN_STATUS_SUCCESS) library_choose(l, answers, count);
    }
    if (!unsupported(status)) CUDNN_TRY(status);
}

static void (*close_others)(void);

static void close_all(void) {
    for (int i = 0; i < CONVOLUTIONS; i++) library_clear(&convolutions[i]);
    CUDNN_TRY(cudnnDestroy(handle));
    handle = NULL;
    if (close_others) close_others();
    close_others = NULL;
}

static void tell_slow(const LibraryConvolution *l, const char *reason) {
    fprintf(stderr, "%s for a %d x %d convolution of %d to %d channels: a slow plain kernel is used instead\n", reason,
            l->c.k, l->c.k, l->c.in, l->c.out);
}

static void library_create(LibraryConvolution *l) {
    const Convolution *c = &l->c;
    const LibraryImages &i = l->images;
    int Ho = (i.H + 2 * i.top - c->k) / c->stride + 1, Wo = (i.W + 2 * i.left - c->k) / c->stride + 1;
    if (!handle) {
        device_open();
        CUDNN_TRY(cudnnCreate(&handle));
        CUDNN_TRY(cudnnSetStream(handle, kernels_stream));
        close_others = library_close;
        library_close = close_all;
    }
    CUDNN_TRY(cudnnCreateTensorDescriptor(&l->x));
    CUDNN_TRY(cudnnCreateTensorDescriptor(&l->y));
    CUDNN_TRY(cudnnCreateFilterDescriptor(&l->w));
    CUDNN_TRY(cudnnCreateConvolutionDescriptor(&l->convolution));
    l->made = true;
    CUDNN_TRY(cudnnSetTensor4dDescriptor(l->x, CUDNN_TENSOR_NHWC, REAL_TYPE, i.B, c->in, i.H, i.W));
    CUDNN_TRY(cudnnSetTensor4dDescriptor(l->y, CUDNN_TENSOR_NHWC, REAL_TYPE, i.B, c->out, Ho, Wo));
    CUDNN_TRY(cudnnSetFilter4dDescriptor(l->w, REAL_TYPE, CUDNN_TENSOR_NHWC, c->out, c->in, c->k, c->k));
    CUDNN_TRY(cudnnSetConvolution2dDescriptor(l->convolution, i.top, i.left, c->stride, c->stride, 1, 1,
                                              CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    CUDNN_TRY(cudnnSetConvolutionMathType(l->convolution, sizeof(real) == 4 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH));
    library_search(l);
    if (!l->found) tell_slow(l, "cuDNN has no deterministic algorithm");
}

static bool same_images(const LibraryImages &a, const LibraryImages &b) {
    return a.B == b.B && a.H == b.H && a.W == b.W && a.top == b.top && a.left == b.left;
}

LibraryConvolution *library_convolution(LibraryDirection direction, const Convolution *c, const LibraryImages &images) {
    LibraryConvolution *l = NULL, *oldest = convolutions;
    for (int i = 0; i < CONVOLUTIONS && !l; i++) {
        LibraryConvolution *o = &convolutions[i];
        if (o->made && o->direction == direction && same_images(o->images, images) && o->c.in == c->in &&
            o->c.out == c->out && o->c.k == c->k && o->c.stride == c->stride)
            l = o;
        if (o->used < oldest->used) oldest = o;
    }
    if (!l) {
        l = oldest;
        library_clear(l);
        l->direction = direction;
        l->c = *c;
        l->images = images;
        library_create(l);
    }
    l->used = ++clock_of_use;
    return l->found ? l : NULL;
}

size_t library_workspace(const LibraryConvolution *l) { return l->workspace; }

/* Whether the library computed it: it may propose an algorithm without a kernel for the shape. */
static bool library_did(LibraryConvolution *l, const char *call, cudnnStatus_t status) {
    if (status == CUDNN_STATUS_SUCCESS) return true;
    if (!unsupported(status)) cuda_fail(call, __FILE__, __LINE__, cudnnGetErrorString(status));
    char reason[128];
    snprintf(reason, sizeof reason, "%s does not support what cuDNN proposed", call);
    tell_slow(l, reason);
    l->found = false;
    return false;
}

bool library_forward(LibraryConvolution *l, real *y, const real *x, const float *w, void *workspace) {
    const float one = 1, zero = 0;
    return library_did(l, "cudnnConvolutionForward",
                       cudnnConvolutionForward(handle, &one, l->x, x, l->w, real_copy(w), l->convolution,
                                               (cudnnConvolutionFwdAlgo_t)l->algorithm, workspace, l->workspace, &zero,
                                               l->y, y));
}

bool library_input(LibraryConvolution *l, real *dx, const float *w, const real *dy, bool accumulate, void *workspace) {
    const float one = 1, keep = accumulate;
    return library_did(l, "cudnnConvolutionBackwardData",
                       cudnnConvolutionBackwardData(handle, &one, l->w, real_copy(w), l->y, dy, l->convolution,
                                                    (cudnnConvolutionBwdDataAlgo_t)l->algorithm, workspace,
                                                    l->workspace, &keep, l->x, dx));
}

bool library_weight(LibraryConvolution *l, real *dw, const real *x, const real *dy, void *workspace) {
    const float one = 1, zero = 0;
    return library_did(l, "cudnnConvolutionBackwardFilter",
                       cudnnConvolutionBackwardFilter(handle, &one, l->x, x, l->y, dy, l->convolution,
                                                      (cudnnConvolutionBwdFilterAlgo_t)l->algorithm, workspace,
                                                      l->workspace, &zero, l->w, dw));
}

#else

LibraryConvolution *library_convolution(LibraryDirection, const Convolution *, const LibraryImages &) { return NULL; }
size_t library_workspace(const LibraryConvolution *) { return 0; }
bool library_forward(LibraryConvolution *, real *, const real *, const float *, void *) { return false; }
bool library_input(LibraryConvolution *, real *, const float *, const real *, bool, void *) { return false; }
bool library_weight(LibraryConvolution *, real *, const real *, const real *, void *) { return false; }

#endif
