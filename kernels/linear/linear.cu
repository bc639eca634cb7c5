/* The linear layer on cuBLASLt: bfloat16 factors, float sums, the bias added as the product is written.  An FP32 build
 * multiplies floats exactly, without TF32.
 *
 * cuBLASLt is column-major: a row-major [rows, columns] is its [columns, rows] without a copy, so
 *   y  = x w^T + b  is  Y [out,n] = W^T X     with W [in,out], X [in,n]
 *   dx = dy w       is  DX [in,n] = W DY      with DY [out,n]
 *   dw += dy^T x    is  DW [in,out] += X DY^T, float out of bfloat16 factors.
 *
 * The bias gradient is a separate kernel.  The library could compute it within the third product, but that product has
 * few tiles and needs to split n among all multiprocessors to be fast, which the library does not do together with a
 * bias gradient; reading dy again costs less.  Shapes for which the library has no algorithm use a plain tiled
 * kernel.
 *
 * The algorithm for a shape is the library's first proposal.
 *
 * linear_backward computes the gradients of the weights and of the input at the same time, on two streams: both read
 * dy, and neither keeps the whole GPU busy at its end.  Each stream has its own workspace. */
#include <device.cuh>

#include <cublasLt.h>
#include <string.h>

#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/runtime.h"

extern "C" {
#include "core/die.h"
}
#include "kernels/device/device.h"
#include "kernels/linear/linear.h"

#define CUBLAS_TRY(call)                                                                                      \
    do {                                                                                                      \
        cublasStatus_t status_ = (call);                                                                      \
        if (status_ != CUBLAS_STATUS_SUCCESS)                                                                 \
            cuda_fail(#call, __FILE__, __LINE__, cublasLtGetStatusString(status_));                           \
    } while (0)

/* Bytes of workspace that NVIDIA recommends for Hopper, for partial sums of a product split along n and of a bias
 * gradient. */
enum { WORKSPACE_BYTES = 32 << 20 };

static const cudaDataType_t REAL_TYPE = sizeof(real) == 2 ? CUDA_R_16BF : CUDA_R_32F;

static cublasLtHandle_t handle;
static void *workspace, *main_workspace, *side_workspace; /* the first: that of the current kernels_stream */
static cudaStream_t side_stream;
static cudaEvent_t forked, joined;

/* == Products ===================================================================================================== */

/* Bytes of the widest access of the library's kernels.  A larger alignment of a tensor is ignored, so that the same
 * product at another address uses the same algorithm and has the same bits. */
enum { MOST_ALIGNED = 16 };

enum Kind { FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT };

struct Product {
    Kind kind;
    size_t n;
    int in, out, row; /* row: numbers from one row of y, or dy, to the next */
    bool bias, found; /* found: the library has an algorithm */
    unsigned aligned; /* common alignment of all addresses, at most MOST_ALIGNED */
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
};

/* A model has about a dozen shapes, a detector as many for each size of images.  A shape belongs to one set of the
 * table; when the set is full, its oldest entry is replaced. */
enum { SETS = 512, WAYS = 8 };
static Product products[SETS][WAYS];
static int product_next[SETS];

/* D [m,n] = op(A) op(B), the sum over k; column-major, the columns of B and D b_ld and d_ld apart, those of A
 * packed. */
struct ProductShape {
    uint64_t m, n, k;
    bool a_transposed, b_transposed;
    uint64_t b_ld, d_ld;
};

static ProductShape shape_of(Kind kind, size_t n, int in, int out, int row) {
    uint64_t I = (uint64_t)in, O = (uint64_t)out, R = (uint64_t)row;
    switch (kind) {
    case FORWARD: return {O, n, I, true, false, I, R};
    case BACKWARD_INPUT: return {I, n, O, false, false, R, I};
    default: return {I, O, n, false, true, R, I};
    }
}

static cublasLtMatrixLayout_t layout(cudaDataType_t type, uint64_t rows, uint64_t columns, uint64_t ld) {
    cublasLtMatrixLayout_t l;
    CUBLAS_TRY(cublasLtMatrixLayoutCreate(&l, type, rows, columns, (int64_t)ld));
    return l;
}

template <typename T>
static void describe(cublasLtMatmulDesc_t matmul, cublasLtMatmulDescAttributes_t attribute, T value) {
    CUBLAS_TRY(cublasLtMatmulDescSetAttribute(matmul, attribute, &value, sizeof value));
}

template <typename T>
static void prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    CUBLAS_TRY(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
}

static void product_destroy(Product *p) {
    if (!p->matmul) return;
    cublasLtMatmulDescDestroy(p->matmul);
    cublasLtMatrixLayoutDestroy(p->a);
    cublasLtMatrixLayoutDestroy(p->b);
    cublasLtMatrixLayoutDestroy(p->d);
    p->matmul = NULL;
}

/* Describes a product to the library and takes the algorithm that it proposes first, if it has any. */
static void product_create(Product *p, const real *bias) {
    ProductShape s = shape_of(p->kind, p->n, p->in, p->out, p->row);
    CUBLAS_TRY(cublasLtMatmulDescCreate(&p->matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    describe(p->matmul, CUBLASLT_MATMUL_DESC_TRANSA, (int32_t)(s.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    describe(p->matmul, CUBLASLT_MATMUL_DESC_TRANSB, (int32_t)(s.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    if (bias) { /* of D's type; the search depends on the alignment of its address */
        describe(p->matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, (uint32_t)CUBLASLT_EPILOGUE_BIAS);
        describe(p->matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    }
    p->a = s.a_transposed ? layout(REAL_TYPE, s.k, s.m, s.k) : layout(REAL_TYPE, s.m, s.k, s.m);
    p->b = s.b_transposed ? layout(REAL_TYPE, s.n, s.k, s.b_ld) : layout(REAL_TYPE, s.k, s.n, s.b_ld);
    cudaDataType_t type = p->kind == BACKWARD_WEIGHT ? CUDA_R_32F : REAL_TYPE;
    p->d = layout(type, s.m, s.n, s.d_ld);

    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t proposal = {};
    int found = 0;
    CUBLAS_TRY(cublasLtMatmulPreferenceCreate(&preference));
    prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (uint64_t)WORKSPACE_BYTES);
    /* The parts of a split sum must be added as float and in a fixed order.  In place they are added one after the
     * other in D's type (cublasLt.h). */
    uint32_t in_place = type == CUDA_R_32F ? CUBLASLT_REDUCTION_SCHEME_INPLACE : CUBLASLT_REDUCTION_SCHEME_NONE;
    prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           (uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | in_place);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)p->aligned);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)p->aligned);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)p->aligned);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)p->aligned);
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, p->matmul, p->a, p->b, p->d, p->d, preference, 1,
                                                           &proposal, &found);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) CUBLAS_TRY(status);
    CUBLAS_TRY(cublasLtMatmulPreferenceDestroy(preference));
    p->found = status == CUBLAS_STATUS_SUCCESS && found && proposal.state == CUBLAS_STATUS_SUCCESS;
    p->algorithm = proposal.algo;
}

/* op(A) op(B) + keep D as p says, with its algorithm. */
static void product_run(const Product *p, void *d, const real *a, const real *b, float keep) {
    const float one = 1;
    CUBLAS_TRY(cublasLtMatmul(handle, p->matmul, &one, a, p->a, b, p->b, &keep, d, p->d, d, p->d, &p->algorithm,
                              workspace, WORKSPACE_BYTES, kernels_stream));
}

static unsigned set_of(Kind kind, size_t n, int in, int out, int row) {
    uint64_t h = ((((uint64_t)n * 31 + (uint64_t)in) * 31 + (uint64_t)out) * 31 + (uint64_t)row) * 3 + kind;
    return (unsigned)((h * 0x9E3779B97F4A7C15u) >> 32) % SETS;
}

static Product *product_find(Kind kind, size_t n, int in, int out, int row, const real *bias, unsigned aligned) {
    unsigned set = set_of(kind, n, in, out, row);
    for (Product &p : products[set])
        if (p.matmul && p.kind == kind && p.n == n && p.in == in && p.out == out && p.row == row &&
            p.bias == (bias != NULL) && p.aligned == aligned)
            return &p;
    Product *p = &products[set][product_next[set]];
    product_next[set] = (product_next[set] + 1) % WAYS;
    product_destroy(p);
    *p = {};
    p->kind = kind;
    p->n = n;
    p->in = in;
    p->out = out;
    p->row = row;
    p->bias = bias != NULL;
    p->aligned = aligned;
    product_create(p, bias);
    return p;
}

/* == Without the library ========================================================================================== */

enum { PLAIN_TILE = 16 };

/* D(i,j) = D(i,j) keep + sum_k A(i,k) B(k,j) + bias(i); A(i,k) is at a[i ai + k ak], B(k,j) at b[k bk + j bj], D(i,j)
 * at d[i + j dj]. */
template <typename T>
__global__ void __launch_bounds__(PLAIN_TILE *PLAIN_TILE)
    plain_product_kernel(T *d, const real *a, const real *b, const real *bias, size_t m, size_t n, size_t k, size_t ai,
                         size_t ak, size_t bk, size_t bj, size_t dj, bool keep) {
    SHARED(float, shared); /* A's tile, then B's, [k][i or j] */
    float *a_tile = shared, *b_tile = shared + PLAIN_TILE * PLAIN_TILE;
    int x = (int)threadIdx.x % PLAIN_TILE, y = (int)threadIdx.x / PLAIN_TILE;
    size_t i = blockIdx.y * (size_t)PLAIN_TILE + x, j0 = blockIdx.x * (size_t)PLAIN_TILE, j = j0 + y;
    float sum = 0;
    for (size_t k0 = 0; k0 < k; k0 += PLAIN_TILE) {
        a_tile[y * PLAIN_TILE + x] = i < m && k0 + y < k ? to_float(a[i * ai + (k0 + y) * ak]) : 0;
        b_tile[y * PLAIN_TILE + x] = j0 + x < n && k0 + y < k ? to_float(b[(k0 + y) * bk + (j0 + x) * bj]) : 0;
        block_sync();
        for (int l = 0; l < PLAIN_TILE; l++) sum += a_tile[l * PLAIN_TILE + x] * b_tile[l * PLAIN_TILE + y];
        block_sync();
    }
    if (i >= m || j >= n) return;
    if (bias) sum += to_float(bias[i]);
    if (keep) sum += to_float(d[j * dj + i]);
    d[j * dj + i] = rounded(sum, d);
}

template <typename T>
static void plain_product(T *d, const real *a, const real *b, const real *bias, ProductShape s, bool keep) {
    dim3 grid((unsigned)ceil_div(s.n, PLAIN_TILE), (unsigned)ceil_div(s.m, PLAIN_TILE));
    int threads = PLAIN_TILE * PLAIN_TILE;
    size_t ai = s.a_transposed ? s.k : 1, ak = s.a_transposed ? 1 : s.m;
    size_t bk = s.b_transposed ? s.b_ld : 1, bj = s.b_transposed ? 1 : s.b_ld;
    LAUNCH((plain_product_kernel<T>), grid, threads, 2 * threads * sizeof(float), d, a, b, bias, s.m, s.n, s.k, ai, ak,
           bk, bj, s.d_ld, keep);
}

/* == The three products of a layer ================================================================================ */

static unsigned alignment(const void *a, const void *b, const void *bias, const void *d) {
    uintptr_t bits = (uintptr_t)a | (uintptr_t)b | (uintptr_t)bias | (uintptr_t)d | MOST_ALIGNED;
    return (unsigned)(bits & (~bits + 1));
}

/* The library needs a bias aligned to 16 bytes, as tensors of the parameter arena are. */
enum { BIAS_ALIGNED = 16 };

/* D = op(A) op(B) + bias, or += for the weights' gradient. */
template <typename T>
static void multiply(Kind kind, T *d, const real *a, const real *b, const real *bias, size_t n, int in, int out,
                     int row) {
    bool odd = bias && (uintptr_t)bias % BIAS_ALIGNED;
    Product *p = odd ? NULL : product_find(kind, n, in, out, row, bias, alignment(a, b, bias, d));
    if (odd || !p->found) {
        plain_product(d, a, b, bias, shape_of(kind, n, in, out, row), kind == BACKWARD_WEIGHT);
        return;
    }
    if (bias) describe(p->matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    product_run(p, d, a, b, kind == BACKWARD_WEIGHT);
}

static int row_of(const LinearShape *s) { return s->y_row ? s->y_row : s->out; }

void linear_keep_weights(bool keep) { (void)keep; } /* cuBLASLt reads them as they are */

void linear_forward(real *y, const real *x, const float *w, const float *b, const LinearShape *s) {
    multiply(FORWARD, y, real_copy(w), x, b ? real_copy(b) : NULL, s->n, s->in, s->out, row_of(s));
}

void linear_backward_input(real *dx, const real *dy, const float *w, const LinearShape *s) {
    multiply(BACKWARD_INPUT, dx, real_copy(w), dy, NULL, s->n, s->in, s->out, row_of(s));
}

enum { SUM_WARPS = 8, SUM_BLOCKS = 512 };

/* Column sums of rows blockIdx.y * each .. : each lane has W columns, each warp of the block every n-th row. */
template <int W>
__global__ void __launch_bounds__(SUM_WARPS *WARP)
    column_sums_kernel(float *parts, const real *__restrict__ dy, int row, size_t n, int out, size_t each) {
    SHARED(float, sums); /* [SUM_WARPS][WARP * W] */
    int j = ((int)blockIdx.x * WARP + lane_id()) * W;
    size_t first = blockIdx.y * each, last = first + each < n ? first + each : n;
    float sum[W] = {};
    if (j < out)
#pragma unroll 4
        for (size_t i = first + warp_id(); i < last; i += SUM_WARPS) {
            float v[W];
            load(v, dy + i * row + j);
#pragma unroll
            for (int e = 0; e < W; e++) sum[e] += v[e];
        }
    store(sums + (warp_id() * WARP + lane_id()) * W, sum);
    block_sync();
    int column = (int)blockIdx.x * WARP * W + (int)threadIdx.x;
    if ((int)threadIdx.x >= WARP * W || column >= out) return;
    float total = 0;
#pragma unroll
    for (int v = 0; v < SUM_WARPS; v++) total += sums[v * WARP * W + threadIdx.x];
    parts[(size_t)blockIdx.y * out + column] = total;
}

/* The grid has about SUM_BLOCKS blocks of rows on every GPU, so that the bits depend only on n and out. */
template <int W>
static void column_sums(float *db, const real *dy, int row, size_t n, int out) {
    size_t tiles = ceil_div(out, WARP * W), wanted = tiles < SUM_BLOCKS ? SUM_BLOCKS / tiles : 1;
    size_t each = ceil_div(n, wanted), count = ceil_div(n, each);
    float *parts = static_cast<float *>(workspace);
    if (count * out * sizeof(float) > WORKSPACE_BYTES) die("linear layer of width %d: too wide to train", out);
    LAUNCH((column_sums_kernel<W>), dim3((unsigned)tiles, (unsigned)count), SUM_WARPS * WARP,
           SUM_WARPS * WARP * W * sizeof(float), parts, dy, row, n, out, each);
    add_parts(db, NULL, parts, (int)count, out);
}

void linear_backward_bias(float *db, const real *dy, const LinearShape *s) {
    int row = row_of(s);
    if (!s->n) return;
    if (is_wide(s->out, dy) && row % WIDE == 0) column_sums<WIDE>(db, dy, row, s->n, s->out);
    else column_sums<1>(db, dy, row, s->n, s->out);
}

void linear_backward_weight(float *dw, float *db, const real *dy, const real *x, const LinearShape *s) {
    multiply(BACKWARD_WEIGHT, dw, x, dy, NULL, s->n, s->in, s->out, row_of(s));
    if (db) linear_backward_bias(db, dy, s);
}

/* Calls between the two run on side_stream, and kernels_stream continues when both are done. */
static cudaStream_t side_begin() {
    cudaStream_t first = kernels_stream;
    CUDA_TRY(cudaEventRecord(forked, first));
    CUDA_TRY(cudaStreamWaitEvent(side_stream, forked, 0));
    kernels_stream = side_stream;
    workspace = side_workspace;
    return first;
}

static void side_end(cudaStream_t first) {
    CUDA_TRY(cudaEventRecord(joined, side_stream));
    kernels_stream = first;
    workspace = main_workspace;
}

/* The second stream keeps its order, so the next linear_backward also waits for this one. */
void linear_backward_weight_beside(float *dw, float *db, const real *dy, const real *x, const LinearShape *s) {
    cudaStream_t first = side_begin();
    linear_backward_weight(dw, db, dy, x, s);
    side_end(first);
}

void linear_backward(real *dx, float *dw, float *db, const real *dy, const real *x, const float *w,
                     const LinearShape *s) {
    real_copy(w); /* rounded before the second stream starts */
    cudaStream_t first = side_begin();
    linear_backward_weight(dw, db, dy, x, s);
    side_end(first);
    linear_backward_input(dx, dy, w, s);
    CUDA_TRY(cudaStreamWaitEvent(kernels_stream, joined, 0));
}

/* == The peak ===================================================================================================== */

/* Numbers in (-1, 1): products of zeros run faster than products of data. */
__global__ void peak_numbers_kernel(real *x, size_t n, uint32_t seed) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint32_t h = ((uint32_t)i ^ seed) * 2654435761u;
    h = (h ^ h >> 15) * 2246822519u;
    x[i] = to_real((float)(h >> 8) / 8388608.0f - 1);
}

static real *peak_numbers(size_t n, uint32_t seed) {
    real *x;
    CUDA_TRY(cudaMalloc(&x, n * sizeof *x));
    LAUNCH(peak_numbers_kernel, (unsigned)ceil_div(n, 256), 256, 0, x, n, seed);
    return x;
}

/* The best of some square products, after a few for warming up.  Their memory is not counted in device_peak_bytes. */
double gemm_peak_gflops(void) {
    enum { SIDE = sizeof(real) == 2 ? 8192 : 4096, WARM = 3, RUNS = 12 };
    device_open();
    size_t n = (size_t)SIDE * SIDE;
    real *x = peak_numbers(n, 1), *w = peak_numbers(n, 2), *y = peak_numbers(n, 3);
    cudaEvent_t start, end;
    double best = 0;
    CUDA_TRY(cudaEventCreate(&start));
    CUDA_TRY(cudaEventCreate(&end));
    for (int run = 0; run < WARM + RUNS; run++) {
        float milliseconds;
        CUDA_TRY(cudaEventRecord(start, kernels_stream));
        multiply(FORWARD, y, w, x, NULL, SIDE, SIDE, SIDE, SIDE);
        CUDA_TRY(cudaEventRecord(end, kernels_stream));
        CUDA_TRY(cudaEventSynchronize(end));
        CUDA_TRY(cudaEventElapsedTime(&milliseconds, start, end));
        double rate = 2.0 * SIDE * SIDE * SIDE / milliseconds / 1e6;
        if (run >= WARM && rate > best) best = rate;
    }
    CUDA_TRY(cudaEventDestroy(start));
    CUDA_TRY(cudaEventDestroy(end));
    CUDA_TRY(cudaFree(x));
    CUDA_TRY(cudaFree(w));
    CUDA_TRY(cudaFree(y));
    return best;
}

/* == Start and end ================================================================================================ */

void linear_open(void) {
    CUBLAS_TRY(cublasLtCreate(&handle));
    main_workspace = workspace = device_malloc(WORKSPACE_BYTES, "matrix products");
    side_workspace = device_malloc(WORKSPACE_BYTES, "matrix products");
    CUDA_TRY(cudaStreamCreateWithFlags(&side_stream, cudaStreamNonBlocking));
    CUDA_TRY(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
    CUDA_TRY(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
}

void linear_close(void) {
    for (Product(&set)[WAYS] : products)
        for (Product &p : set) product_destroy(&p);
    memset(product_next, 0, sizeof product_next);
    device_free(main_workspace);
    device_free(side_workspace);
    CUDA_TRY(cudaEventDestroy(forked));
    CUDA_TRY(cudaEventDestroy(joined));
    CUDA_TRY(cudaStreamDestroy(side_stream));
    CUBLAS_TRY(cublasLtDestroy(handle));
    handle = NULL;
}
