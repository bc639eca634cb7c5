/* The constants of CUDA's libraries that this project uses, with the values in NVIDIA's documentation, as lists V(name,
 * value).  The other headers of this folder define enumerations from them, and where the toolkit is installed
 * check_values.cu compares them with its own. */
#ifndef VIT_TESTS_EMULATE_CUDA_VALUES_H
#define VIT_TESTS_EMULATE_CUDA_VALUES_H

#define VALUE_OF(name, value) name = value,

/* == cudart ======================================================================================================= */

#define CUDA_ERRORS(V)                     \
    V(cudaSuccess, 0)                      \
    V(cudaErrorInvalidValue, 1)            \
    V(cudaErrorMemoryAllocation, 2)        \
    V(cudaErrorInvalidConfiguration, 9)    \
    V(cudaErrorInsufficientDriver, 35)     \
    V(cudaErrorNoDevice, 100)              \
    V(cudaErrorInvalidDevice, 101)         \
    V(cudaErrorNoKernelImageForDevice, 209) \
    V(cudaErrorInvalidResourceHandle, 400) \
    V(cudaErrorNotReady, 600)              \
    V(cudaErrorNotSupported, 801)          \
    V(cudaErrorGraphExecUpdateFailure, 910)

#define CUDA_MEMCPY_KINDS(V)       \
    V(cudaMemcpyHostToHost, 0)     \
    V(cudaMemcpyHostToDevice, 1)   \
    V(cudaMemcpyDeviceToHost, 2)   \
    V(cudaMemcpyDeviceToDevice, 3) \
    V(cudaMemcpyDefault, 4)

#define CUDA_CAPTURE_MODES(V)              \
    V(cudaStreamCaptureModeGlobal, 0)      \
    V(cudaStreamCaptureModeThreadLocal, 1) \
    V(cudaStreamCaptureModeRelaxed, 2)

#define CUDA_CAPTURE_STATUSES(V)         \
    V(cudaStreamCaptureStatusNone, 0)   \
    V(cudaStreamCaptureStatusActive, 1) \
    V(cudaStreamCaptureStatusInvalidated, 2)

#define CUDA_FUNCTION_ATTRIBUTES(V)                     \
    V(cudaFuncAttributeMaxDynamicSharedMemorySize, 8)   \
    V(cudaFuncAttributePreferredSharedMemoryCarveout, 9)

#define CUDA_DEVICE_ATTRIBUTES(V)                     \
    V(cudaDevAttrMultiProcessorCount, 16)             \
    V(cudaDevAttrComputeCapabilityMajor, 75)          \
    V(cudaDevAttrComputeCapabilityMinor, 76)          \
    V(cudaDevAttrMaxSharedMemoryPerBlockOptin, 97)

#define CUDA_UPDATE_RESULTS(V)               \
    V(cudaGraphExecUpdateSuccess, 0)         \
    V(cudaGraphExecUpdateError, 1)           \
    V(cudaGraphExecUpdateErrorTopologyChanged, 2) \
    V(cudaGraphExecUpdateErrorNodeTypeChanged, 3)

/* The toolkit defines these as macros. */
#define CUDA_FLAGS(V)                  \
    V(cudaHostAllocDefault, 0)         \
    V(cudaHostAllocPortable, 1)        \
    V(cudaHostAllocMapped, 2)          \
    V(cudaHostAllocWriteCombined, 4)   \
    V(cudaStreamDefault, 0)            \
    V(cudaStreamNonBlocking, 1)        \
    V(cudaEventDefault, 0)             \
    V(cudaEventBlockingSync, 1)        \
    V(cudaEventDisableTiming, 2)       \
    V(cudaEventWaitDefault, 0)         \
    V(cudaEventWaitExternal, 1)

#define CUDA_DATA_TYPES(V) \
    V(CUDA_R_32F, 0)       \
    V(CUDA_R_16F, 2)       \
    V(CUDA_R_16BF, 14)

/* == cuBLASLt ===================================================================================================== */

#define CUBLAS_STATUSES(V)              \
    V(CUBLAS_STATUS_SUCCESS, 0)         \
    V(CUBLAS_STATUS_NOT_INITIALIZED, 1) \
    V(CUBLAS_STATUS_ALLOC_FAILED, 3)    \
    V(CUBLAS_STATUS_INVALID_VALUE, 7)   \
    V(CUBLAS_STATUS_ARCH_MISMATCH, 8)   \
    V(CUBLAS_STATUS_MAPPING_ERROR, 11)  \
    V(CUBLAS_STATUS_EXECUTION_FAILED, 13) \
    V(CUBLAS_STATUS_INTERNAL_ERROR, 14) \
    V(CUBLAS_STATUS_NOT_SUPPORTED, 15)  \
    V(CUBLAS_STATUS_LICENSE_ERROR, 16)

#define CUBLAS_OPERATIONS(V) \
    V(CUBLAS_OP_N, 0)        \
    V(CUBLAS_OP_T, 1)        \
    V(CUBLAS_OP_C, 2)

#define CUBLAS_COMPUTE_TYPES(V)          \
    V(CUBLAS_COMPUTE_16F, 64)            \
    V(CUBLAS_COMPUTE_32F, 68)            \
    V(CUBLAS_COMPUTE_32F_PEDANTIC, 69)   \
    V(CUBLAS_COMPUTE_32F_FAST_16F, 74)   \
    V(CUBLAS_COMPUTE_32F_FAST_16BF, 75)  \
    V(CUBLAS_COMPUTE_32F_FAST_TF32, 77)

#define CUBLASLT_LAYOUT_ATTRIBUTES(V)             \
    V(CUBLASLT_MATRIX_LAYOUT_TYPE, 0)             \
    V(CUBLASLT_MATRIX_LAYOUT_ORDER, 1)            \
    V(CUBLASLT_MATRIX_LAYOUT_ROWS, 2)             \
    V(CUBLASLT_MATRIX_LAYOUT_COLS, 3)             \
    V(CUBLASLT_MATRIX_LAYOUT_LD, 4)               \
    V(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 5)      \
    V(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 6)

#define CUBLASLT_MATMUL_ATTRIBUTES(V)                  \
    V(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, 0)            \
    V(CUBLASLT_MATMUL_DESC_SCALE_TYPE, 1)              \
    V(CUBLASLT_MATMUL_DESC_POINTER_MODE, 2)            \
    V(CUBLASLT_MATMUL_DESC_TRANSA, 3)                  \
    V(CUBLASLT_MATMUL_DESC_TRANSB, 4)                  \
    V(CUBLASLT_MATMUL_DESC_EPILOGUE, 7)                \
    V(CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8)            \
    V(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 11)   \
    V(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 12)        \
    V(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, 15)        \
    V(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, 22) \
    V(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, 26)

#define CUBLASLT_REDUCTION_SCHEMES(V)          \
    V(CUBLASLT_REDUCTION_SCHEME_NONE, 0)       \
    V(CUBLASLT_REDUCTION_SCHEME_INPLACE, 1)    \
    V(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 2) \
    V(CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, 4) \
    V(CUBLASLT_REDUCTION_SCHEME_MASK, 7)

#define CUBLASLT_EPILOGUES(V)               \
    V(CUBLASLT_EPILOGUE_DEFAULT, 1)         \
    V(CUBLASLT_EPILOGUE_RELU, 2)            \
    V(CUBLASLT_EPILOGUE_BIAS, 4)            \
    V(CUBLASLT_EPILOGUE_RELU_BIAS, 6)       \
    V(CUBLASLT_EPILOGUE_GELU, 32)           \
    V(CUBLASLT_EPILOGUE_GELU_BIAS, 36)      \
    V(CUBLASLT_EPILOGUE_GELU_AUX, 160)      \
    V(CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 164) \
    V(CUBLASLT_EPILOGUE_DGELU, 192)         \
    V(CUBLASLT_EPILOGUE_DGELU_BGRAD, 208)   \
    V(CUBLASLT_EPILOGUE_BGRADA, 256)        \
    V(CUBLASLT_EPILOGUE_BGRADB, 512)

#define CUBLASLT_PREFERENCES(V)                      \
    V(CUBLASLT_MATMUL_PREF_SEARCH_MODE, 0)           \
    V(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1)   \
    V(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3) \
    V(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5) \
    V(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6) \
    V(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7) \
    V(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8)

#define CUBLASLT_CONFIGS(V)                  \
    V(CUBLASLT_ALGO_CONFIG_ID, 0)            \
    V(CUBLASLT_ALGO_CONFIG_TILE_ID, 1)       \
    V(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 2)    \
    V(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 3) \
    V(CUBLASLT_ALGO_CONFIG_STAGES_ID, 6)

/* == cuFFT ======================================================================================================== */

#define CUFFT_RESULTS(V)         \
    V(CUFFT_SUCCESS, 0)          \
    V(CUFFT_INVALID_PLAN, 1)     \
    V(CUFFT_ALLOC_FAILED, 2)     \
    V(CUFFT_INVALID_TYPE, 3)     \
    V(CUFFT_INVALID_VALUE, 4)    \
    V(CUFFT_INTERNAL_ERROR, 5)   \
    V(CUFFT_EXEC_FAILED, 6)      \
    V(CUFFT_SETUP_FAILED, 7)     \
    V(CUFFT_INVALID_SIZE, 8)     \
    V(CUFFT_NOT_SUPPORTED, 16)

#define CUFFT_TYPES(V) \
    V(CUFFT_R2C, 0x2a) \
    V(CUFFT_C2R, 0x2c) \
    V(CUFFT_C2C, 0x29)

#define CUFFT_DIRECTIONS(V) \
    V(CUFFT_FORWARD, -1)    \
    V(CUFFT_INVERSE, 1)

/* == cuDNN ======================================================================================================== */

#define CUDNN_STATUSES(V)                \
    V(CUDNN_STATUS_SUCCESS, 0)           \
    V(CUDNN_STATUS_NOT_INITIALIZED, 1001) \
    V(CUDNN_STATUS_BAD_PARAM, 2000)      \
    V(CUDNN_STATUS_NOT_SUPPORTED, 3000)  \
    V(CUDNN_STATUS_INTERNAL_ERROR, 4000) \
    V(CUDNN_STATUS_EXECUTION_FAILED, 5000)

#define CUDNN_DATA_TYPES(V) \
    V(CUDNN_DATA_FLOAT, 0)  \
    V(CUDNN_DATA_HALF, 2)   \
    V(CUDNN_DATA_BFLOAT16, 9)

#define CUDNN_FORMATS(V)      \
    V(CUDNN_TENSOR_NCHW, 0)   \
    V(CUDNN_TENSOR_NHWC, 1)

#define CUDNN_MODES(V)          \
    V(CUDNN_CONVOLUTION, 0)     \
    V(CUDNN_CROSS_CORRELATION, 1)

#define CUDNN_MATH_TYPES(V)    \
    V(CUDNN_DEFAULT_MATH, 0)   \
    V(CUDNN_TENSOR_OP_MATH, 1) \
    V(CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION, 2) \
    V(CUDNN_FMA_MATH, 3)

#define CUDNN_DETERMINISM(V)        \
    V(CUDNN_NON_DETERMINISTIC, 0)   \
    V(CUDNN_DETERMINISTIC, 1)

#define CUDNN_FORWARD_ALGORITHMS(V)                         \
    V(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, 0)          \
    V(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, 1)  \
    V(CUDNN_CONVOLUTION_FWD_ALGO_GEMM, 2)                   \
    V(CUDNN_CONVOLUTION_FWD_ALGO_COUNT, 8)

#define CUDNN_DATA_ALGORITHMS(V)                 \
    V(CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, 0)      \
    V(CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, 1)      \
    V(CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT, 6)

#define CUDNN_FILTER_ALGORITHMS(V)               \
    V(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, 0)    \
    V(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, 1)    \
    V(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3, 3)    \
    V(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT, 7)

/* == NCCL ========================================================================================================= */

#define NCCL_RESULTS(V)          \
    V(ncclSuccess, 0)            \
    V(ncclUnhandledCudaError, 1) \
    V(ncclSystemError, 2)        \
    V(ncclInternalError, 3)      \
    V(ncclInvalidArgument, 4)    \
    V(ncclInvalidUsage, 5)       \
    V(ncclRemoteError, 6)        \
    V(ncclInProgress, 7)

#define NCCL_OPERATIONS(V) \
    V(ncclSum, 0)          \
    V(ncclProd, 1)         \
    V(ncclMax, 2)          \
    V(ncclMin, 3)          \
    V(ncclAvg, 4)

#define NCCL_TYPES(V)  \
    V(ncclInt32, 2)    \
    V(ncclFloat32, 7)  \
    V(ncclFloat, 7)    \
    V(ncclFloat64, 8)  \
    V(ncclDouble, 8)   \
    V(ncclBfloat16, 9)

#endif
