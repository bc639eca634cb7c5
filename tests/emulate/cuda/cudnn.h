/* cuDNN's convolutions, which tests/emulate/cudnn.cpp replaces. */
#ifndef VIT_TESTS_EMULATE_CUDNN_H
#define VIT_TESTS_EMULATE_CUDNN_H

#include <cuda_runtime.h>

typedef enum { CUDNN_STATUSES(VALUE_OF) } cudnnStatus_t;
#define CUDNN_STATUS_CATEGORY(status) ((status) / 1000 * 1000)
typedef enum { CUDNN_DATA_TYPES(VALUE_OF) } cudnnDataType_t;
typedef enum { CUDNN_FORMATS(VALUE_OF) } cudnnTensorFormat_t;
typedef enum { CUDNN_MODES(VALUE_OF) } cudnnConvolutionMode_t;
typedef enum { CUDNN_MATH_TYPES(VALUE_OF) } cudnnMathType_t;
typedef enum { CUDNN_DETERMINISM(VALUE_OF) } cudnnDeterminism_t;
typedef enum { CUDNN_FORWARD_ALGORITHMS(VALUE_OF) } cudnnConvolutionFwdAlgo_t;
typedef enum { CUDNN_DATA_ALGORITHMS(VALUE_OF) } cudnnConvolutionBwdDataAlgo_t;
typedef enum { CUDNN_FILTER_ALGORITHMS(VALUE_OF) } cudnnConvolutionBwdFilterAlgo_t;

typedef struct cudnnContext *cudnnHandle_t;
typedef struct cudnnTensorStruct *cudnnTensorDescriptor_t;
typedef struct cudnnFilterStruct *cudnnFilterDescriptor_t;
typedef struct cudnnConvolutionStruct *cudnnConvolutionDescriptor_t;

#define CUDNN_PERFORMANCE(name, algorithm) \
    typedef struct {                       \
        algorithm algo;                    \
        cudnnStatus_t status;              \
        float time;                        \
        size_t memory;                     \
        cudnnDeterminism_t determinism;    \
        cudnnMathType_t mathType;          \
        int reserved[3];                   \
    } name
CUDNN_PERFORMANCE(cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionFwdAlgo_t);
CUDNN_PERFORMANCE(cudnnConvolutionBwdDataAlgoPerf_t, cudnnConvolutionBwdDataAlgo_t);
CUDNN_PERFORMANCE(cudnnConvolutionBwdFilterAlgoPerf_t, cudnnConvolutionBwdFilterAlgo_t);
#undef CUDNN_PERFORMANCE

size_t cudnnGetVersion(void);
const char *cudnnGetErrorString(cudnnStatus_t status);
cudnnStatus_t cudnnCreate(cudnnHandle_t *handle);
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle);
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream);

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *tensor);
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor);
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w);
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *filter);
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter);
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w);
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *convolution);
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t convolution);
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t convolution, int pad_h, int pad_w,
                                              int stride_h, int stride_w, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t compute);
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convolution, cudnnMathType_t math);

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                     cudnnFilterDescriptor_t w,
                                                     cudnnConvolutionDescriptor_t convolution,
                                                     cudnnTensorDescriptor_t y, int wanted, int *found,
                                                     cudnnConvolutionFwdAlgoPerf_t *results);
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                          cudnnTensorDescriptor_t dy,
                                                          cudnnConvolutionDescriptor_t convolution,
                                                          cudnnTensorDescriptor_t dx, int wanted, int *found,
                                                          cudnnConvolutionBwdDataAlgoPerf_t *results);
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                            cudnnTensorDescriptor_t dy,
                                                            cudnnConvolutionDescriptor_t convolution,
                                                            cudnnFilterDescriptor_t dw, int wanted, int *found,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t *results);
cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x, const void *X,
                                      cudnnFilterDescriptor_t w, const void *W,
                                      cudnnConvolutionDescriptor_t convolution, cudnnConvolutionFwdAlgo_t algorithm,
                                      void *workspace, size_t bytes, const void *beta, cudnnTensorDescriptor_t y,
                                      void *Y);
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha, cudnnFilterDescriptor_t w,
                                           const void *W, cudnnTensorDescriptor_t dy, const void *DY,
                                           cudnnConvolutionDescriptor_t convolution,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void *workspace, size_t bytes,
                                           const void *beta, cudnnTensorDescriptor_t dx, void *DX);
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x,
                                             const void *X, cudnnTensorDescriptor_t dy, const void *DY,
                                             cudnnConvolutionDescriptor_t convolution,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void *workspace, size_t bytes,
                                             const void *beta, cudnnFilterDescriptor_t dw, void *DW);

#endif
