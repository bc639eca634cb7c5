/* cuFFT, which tests/emulate/cufft.cpp replaces. */
#ifndef VIT_TESTS_EMULATE_CUFFT_H
#define VIT_TESTS_EMULATE_CUFFT_H

#include <cuda_runtime.h>
#include <device.cuh>

typedef enum { CUFFT_RESULTS(VALUE_OF) } cufftResult;
typedef enum { CUFFT_TYPES(VALUE_OF) } cufftType;
enum { CUFFT_DIRECTIONS(VALUE_OF) };

typedef int cufftHandle;
typedef float cufftReal;
typedef float2 cufftComplex;

cufftResult cufftCreate(cufftHandle *plan);
cufftResult cufftDestroy(cufftHandle plan);
cufftResult cufftPlan1d(cufftHandle *plan, int n, cufftType type, int batch);
cufftResult cufftPlan2d(cufftHandle *plan, int n0, int n1, cufftType type);
cufftResult cufftPlanMany(cufftHandle *plan, int rank, int *n, int *in_embed, int in_stride, int in_distance,
                          int *out_embed, int out_stride, int out_distance, cufftType type, int batch);
cufftResult cufftMakePlanMany(cufftHandle plan, int rank, int *n, int *in_embed, int in_stride, int in_distance,
                              int *out_embed, int out_stride, int out_distance, cufftType type, int batch,
                              size_t *work_bytes);
cufftResult cufftEstimateMany(int rank, int *n, int *in_embed, int in_stride, int in_distance, int *out_embed,
                              int out_stride, int out_distance, cufftType type, int batch, size_t *work_bytes);
cufftResult cufftGetSize(cufftHandle plan, size_t *work_bytes);
cufftResult cufftSetAutoAllocation(cufftHandle plan, int automatic);
cufftResult cufftSetWorkArea(cufftHandle plan, void *work);
cufftResult cufftSetStream(cufftHandle plan, cudaStream_t stream);
cufftResult cufftExecC2C(cufftHandle plan, cufftComplex *in, cufftComplex *out, int direction);
cufftResult cufftExecR2C(cufftHandle plan, cufftReal *in, cufftComplex *out);
cufftResult cufftExecC2R(cufftHandle plan, cufftComplex *in, cufftReal *out);

#endif
