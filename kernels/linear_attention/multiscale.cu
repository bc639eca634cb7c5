/* EfficientViT's second scale of q, k and v, and its ReLU features; the formulas are in
 * kernels/linear_attention/multiscale.c.  One thread for each element, since the matrices are small and neighbouring
 * threads read the same rows. */
#include "kernels/cuda/rows.cuh"
#include "kernels/linear_attention/operator_features.h"
#include "kernels/softmax/attention_shape.h"

enum { THREADS = 256, CHUNKS = 64 };

/* Position of number i of [n,3,H,D]: its token, its head of q, k or v (group), its channel. */
struct MultiscalePlace {
    size_t token;
    int group, d;
};
DEVICE MultiscalePlace place_of(size_t i, int H, int D) {
    size_t row = quotient(i, D), token = quotient(row, 3 * H);
    return {token, (int)(row - token * 3 * H), (int)(i - row * D)};
}

/* Its offset in `all` [n,3,2,H,D]. */
DEVICE size_t all_at(MultiscalePlace p, int scale, int H, int D) {
    return ((p.token * 3 + p.group / H) * 2 + scale) * H * D + p.group % H * D + p.d;
}

__global__ void __launch_bounds__(THREADS)
    multiscale_forward_kernel(real *all, const real *__restrict__ qkv, const real *__restrict__ wide,
                              const float *__restrict__ w, size_t size, int H, int D) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= size) return;
    MultiscalePlace p = place_of(i, H, D);
    const float *row = w + ((size_t)p.group * D + p.d) * D;
    float sum = 0;
    for (int j = 0; j < D; j++) sum += row[j] * to_float(wide[i - p.d + j]);
    all[all_at(p, 0, H, D)] = qkv[i];
    all[all_at(p, 1, H, D)] = to_real(sum);
}

__global__ void __launch_bounds__(THREADS)
    multiscale_input_kernel(real *dqkv, real *dwide, const real *__restrict__ dall, const float *__restrict__ w,
                            size_t size, int H, int D) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= size) return;
    MultiscalePlace p = place_of(i, H, D);
    const real *dy = dall + all_at(p, 1, H, D) - p.d;
    const float *column = w + (size_t)p.group * D * D + p.d;
    float sum = 0;
    for (int j = 0; j < D; j++) sum += column[(size_t)j * D] * to_float(dy[j]);
    dqkv[i] = dall[all_at(p, 0, H, D)];
    dwide[i] = to_real(sum);
}

/* parts [gridDim.y][3H,D,D]: one for each chunk of tokens. */
__global__ void __launch_bounds__(THREADS)
    multiscale_weight_kernel(float *parts, const real *__restrict__ dall, const real *__restrict__ wide, size_t n,
                             int H, int D) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, size = (size_t)3 * H * D * D;
    if (i >= size) return;
    int j = (int)(i % D), d = (int)(i / D % D), group = (int)(i / D / D);
    size_t each = (n + gridDim.y - 1) / gridDim.y, first = blockIdx.y * each, end = first + each < n ? first + each : n;
    float sum = 0;
    for (size_t t = first; t < end; t++)
        sum += to_float(dall[all_at({t, group, d}, 1, H, D)]) * to_float(wide[(t * 3 * H + group) * D + j]);
    parts[blockIdx.y * size + i] = sum;
}

/* Number i of [n,2*M]; q and k in rows of 3*M. */
__global__ void __launch_bounds__(THREADS)
    relu_forward_kernel(real *phi, const real *__restrict__ qkv, size_t size, int M) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, token = quotient(i, 2 * M);
    if (i >= size) return;
    float x = to_float(qkv[i + token * M]);
    phi[i] = to_real(x < 0 ? 0 : x);
}

__global__ void __launch_bounds__(THREADS)
    relu_backward_kernel(real *dqkv, const real *__restrict__ dphi, const real *__restrict__ phi, size_t size, int M) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, token = quotient(i, 2 * M);
    if (i < size) dqkv[i + token * M] = to_float(phi[i]) > 0 ? dphi[i] : to_real(0);
}

size_t multiscale_workspace(int H, int D) { return (size_t)CHUNKS * 3 * H * D * D * sizeof(float); }

void multiscale_forward(real *all, const real *qkv, const real *wide, const float *w, const AttentionShape *shape) {
    size_t n = (size_t)shape->B * shape->N;
    int H = shape->H, D = shape->D;
    size_t size = n * 3 * H * D;
    LAUNCH(multiscale_forward_kernel, (unsigned)ceil_div(size, THREADS), THREADS, 0, all, qkv, wide, w, size, H, D);
}

void multiscale_backward(real *dqkv, real *dwide, float *dw, const real *dall, const real *wide, const float *w,
                         const AttentionShape *shape) {
    size_t n = (size_t)shape->B * shape->N;
    int H = shape->H, D = shape->D;
    size_t size = n * 3 * H * D, weights = (size_t)3 * H * D * D;
    unsigned chunks = blocks_for(n, 1, CHUNKS);
    float *parts = static_cast<float *>(kernels_workspace(multiscale_workspace(H, D)));
    LAUNCH(multiscale_input_kernel, (unsigned)ceil_div(size, THREADS), THREADS, 0, dqkv, dwide, dall, w, size, H, D);
    LAUNCH(multiscale_weight_kernel, dim3((unsigned)ceil_div(weights, THREADS), chunks), THREADS, 0, parts, dall, wide,
           n, H, D);
    add_parts(dw, NULL, parts, (int)chunks, (int)weights);
}

void relu_features_forward(real *phi, const real *qkv, const AttentionShape *shape) {
    size_t n = (size_t)shape->B * shape->N;
    int M = shape->H * shape->D;
    size_t size = n * 2 * M;
    LAUNCH(relu_forward_kernel, (unsigned)ceil_div(size, THREADS), THREADS, 0, phi, qkv, size, M);
}

void relu_features_backward(real *dqkv, const real *dphi, const real *phi, const AttentionShape *shape) {
    size_t n = (size_t)shape->B * shape->N;
    int M = shape->H * shape->D;
    size_t size = n * 2 * M;
    LAUNCH(relu_backward_kernel, (unsigned)ceil_div(size, THREADS), THREADS, 0, dqkv, dphi, phi, size, M);
}
