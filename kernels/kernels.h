/* The only door between the layers and a device.  The backend is chosen by linking build/cpu or build/cuda objects:
 * no function table, no #ifdef above this folder, and a test cannot tell which backend it has.
 *
 * Letters.  B images, N tokens, M model width (M = H*D), H heads, D head width, F features of a feature map,
 * E inner width of that map or patterns of LiSA, T entries of a table of relative positions, R sticks of ripple
 * attention, G its vicinal groups, C classes, P patch size; Hg x Wg the token grid (row-major, N = Hg*Wg), Hi x Wi the
 * image; n, rows: any number of rows.
 *
 * Rules, stated once.
 *   Activations are `real` (kernels/<backend>/real.h); parameters, their gradients, statistics and sums are float.
 *   Gradients of parameters accumulate (+=); gradients of activations overwrite (=).  Each gradient argument says
 *   which.
 *   Arguments: outputs, inputs, parameters, what forward saved, sizes.  Sizes are int; products are formed as size_t.
 *   Nothing overlaps unless the contract says so.  Any size >= 1 works, and no alignment is asked.
 *   Every kernel gives the same bits again for the same arguments and the same number of threads.
 *   Pointers are device memory except where an argument says `host`.
 *   Kernels allocate nothing: the ones that need workspace have a *_workspace function, whose largest answer is given
 *   to kernels_reserve before the first call. */
#ifndef VIT_KERNELS_H
#define VIT_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/offsets.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* == Device and memory ============================================================================================ */

/* First of all calls, before anything is opened or printed: the CPU backend may start the program again (device.c).
 * Works where there is no device: what needs one says so. */
void kernels_init(void);
void kernels_exit(void);

/* "2 threads, AVX-512, oneDNN 2.6.3": what the kernels run on, for the first line of a run. */
const char *kernels_device(void);

/* One workspace for all kernels; replaces an earlier, smaller one. */
void kernels_reserve(size_t bytes);

/* Zeroed, 64-byte aligned; dies with `what` and the size when there is not enough. */
void *device_malloc(size_t bytes, const char *what);
void device_free(void *p);
void device_zero(void *p, size_t bytes);
void device_upload(void *device, const void *host, size_t bytes);
void device_download(void *host, const void *device, size_t bytes);
void device_copy(void *to, const void *from, size_t bytes);
/* Waits until everything asked for is done: before a clock is read. */
void device_synchronize(void);
/* The most memory this process has held on the device for the model, in bytes: not the two measurements' below. */
size_t device_peak_bytes(void);

/* Host memory that a device reads at full speed; zeroed, 64-byte aligned, dies as device_malloc does. */
void *host_malloc(size_t bytes, const char *what);
void host_free(void *p);
/* device_upload that leaves the bytes where they are: nobody writes to `host`, which is host_malloc's, before
 * device_synchronize or the next download has returned. */
void device_upload_async(void *device, const void *host, size_t bytes);

/* The same kernels with the same arguments, again and again, asked for at once where the device can:
 *   if (device_graph_begin(&graph)) {
 *       kernels, and copies within the device; nothing up or down, no reserve, and an all_reduce_start with its finish
 *       device_graph_end(&graph);
 *   }
 * The work is done by the return of begin when it says false, and by that of end when it says true.  *graph is NULL at
 * first.  What the pointers point to may change between calls, the pointers and sizes may not. */
typedef struct DeviceGraph DeviceGraph;
bool device_graph_begin(DeviceGraph **graph);
void device_graph_end(DeviceGraph **graph);
void device_graph_free(DeviceGraph **graph);

void real_upload(real *device, const float *host, size_t n);
void real_download(float *host, const real *device, size_t n);

/* Numbers of one activation [B,N,M] that are enough to keep this device busy: what a micro-batch is chosen by. */
size_t activations_at_once(void);

/* Does it compute on the host's own cores, so that threads beside it take some away? */
bool device_shares_cores(void);

/* Multiply-adds a second, in 1e9 floating point operations (two each), of a large product:
 * the peak a step is held against. */
double gemm_peak_gflops(void);
/* Bytes a second, in 1e9, of a large copy within the device, counting those read and those written.  Takes 256 MiB or
 * more for a moment. */
double memory_peak_gbytes(void);

/* == Images and tokens ============================================================================================ */

/* y = (x / 255 - mean) / std.  y [B,3,Hi,Wi] real;  x [B,Hi,Wi,3] uint8;  mean, std host [3]. */
void images_normalize(real *y, const uint8_t *x, const float *mean, const float *std, int B, int Hi, int Wi);

/* What fills a box of images_mix: 0, one normal number for each channel, or one for each number of the box. */
typedef enum { NOISE_CONST, NOISE_RAND, NOISE_PIXEL } ImageNoise;

typedef struct {
    float lam;  /* mixup's share of an image itself; where box is not empty, nothing but that counts */
    int box[4]; /* cutmix: top, left, bottom, right, the last two exclusive */
    ImageNoise noise;
    uint64_t seed;
    uint32_t epoch;
} ImageMix;

/* Random erasing, then mixup or cutmix, on the way of images_normalize.  e(r) is x[r] normalised, but noise inside
 * boxes[r]: number i of the image is rng_normal_exact(seed, RNG_ERASING_NOISE, epoch, draws[r], i), with NOISE_RAND its
 * channel for i.  With (j, k) = pairs[b]
 *   y[b] = lam e(j) + (1 - lam) e(k), or, where mix's box is not empty, e(k) inside and e(j) outside.
 * y [B,3,Hi,Wi] real;  x [rows,Hi,Wi,3] uint8;  pairs [B,2] int: rows of x;  boxes [rows,4] int as in ImageMix and
 * draws [rows], or both NULL: nothing is erased;  mean, std host [3];  mix host.
 * In float32 the same bits on every device. */
void images_mix(real *y, const uint8_t *x, const int *pairs, const int *boxes, const uint32_t *draws, const float *mean,
                const float *std, const ImageMix *mix, int B, int Hi, int Wi);

/* Images of different sizes in one batch: y = (x / 255 - mean) / std inside, 0 beyond an image's own size.
 * y [B,Hi,Wi,3] real, channels last;  x [B,Hi,Wi,3] uint8, anything beyond the own size;  sizes [B,2] int: own height
 * and width;  mean, std host [3]. */
void images_normalize_padded(real *y, const uint8_t *x, const int *sizes, const float *mean, const float *std, int B,
                             int Hi, int Wi);

/* The patches of an image as rows, so that the patch convolution is a linear layer.
 * cols [B*(Hi/P)*(Wi/P), 3*P*P] real, columns ordered (channel, row, column) as a [M,3,P,P] weight;
 * x [B,3,Hi,Wi] real. */
void patchify(real *cols, const real *x, int B, int Hi, int Wi, int P);

/* The windows of a convolution, k x k of them `stride` apart with zeros `pad` deep around the input, Hg x Wg of them:
 * Hg = (Hi + 2 pad - k) / stride + 1.  1 <= k <= Hi + 2 pad, Wi + 2 pad;  stride >= 1;  0 <= pad < k. */
typedef struct {
    int Hi, Wi, C;
    int k, stride, pad;
    bool planes; /* the input is [B,C,Hi,Wi], as an image; otherwise [B,Hi*Wi,C], as tokens */
} Unfold;
static inline int unfold_down(const Unfold *s) { return (s->Hi + 2 * s->pad - s->k) / s->stride + 1; }
static inline int unfold_across(const Unfold *s) { return (s->Wi + 2 * s->pad - s->k) / s->stride + 1; }

/* The windows as rows, so that the convolution is a linear layer.
 * cols [B*Hg*Wg, C*k*k] real, columns ordered (channel, row, column) as a [M,C,k,k] weight;  x as shape says. */
void unfold_forward(real *cols, const real *x, const Unfold *shape, int B);
/* dx (=) the sum of what its copies in dcols got. */
void unfold_backward(real *dx, const real *dcols, const Unfold *shape, int B);

/* x[b,0] = cls, x[b,t + prefix] = patches[b,t], then x[b] += pos.  prefix is 1 with a class token, else 0.
 * x [B,N,M] real, N = prefix + tokens;  patches [B,N-prefix,M] real;  cls [M] float if prefix;
 * pos [N,M] float or NULL. */
void embed_forward(real *x, const real *patches, const float *cls, const float *pos, int B, int N, int M, int prefix);
/* dpatches [B,N-prefix,M] (=);  dcls [M] (+=) or NULL;  dpos [N,M] (+=) or NULL;  dx [B,N,M]. */
void embed_backward(real *dpatches, float *dcls, float *dpos, const real *dx, int B, int N, int M, int prefix);

/* y[b] = mean of x[b, first .. first+count-1].  y [B,M] real;  x [B,N,M] real. */
void pool_forward(real *y, const real *x, int B, int N, int M, int first, int count);
/* dx [B,N,M] (=), zero outside the pooled tokens;  dy [B,M]. */
void pool_backward(real *dx, const real *dy, int B, int N, int M, int first, int count);

/* y = a + b, or a where b is NULL: M numbers of each of n rows, which lie y_row, a_row and b_row apart.  y may be a or
 * b where their rows lie alike. */
void rows_add(real *y, const real *a, const real *b, size_t n, int M, int y_row, int a_row, int b_row);

/* == Linear layer ================================================================================================= */

/* y = x w^T + b.  y [n,out] real;  x [n,in] real;  w [out,in] float;  b [out] float or NULL. */
void linear_forward(real *y, const real *x, const float *w, const float *b, size_t n, int in, int out);
/* dx = dy w.  dx [n,in] (=);  dy [n,out]. */
void linear_backward_input(real *dx, const real *dy, const float *w, size_t n, int in, int out);
/* dw += dy^T x, db += column sums of dy.  dw [out,in] (+=);  db [out] (+=) or NULL. */
void linear_backward_weight(float *dw, float *db, const real *dy, const real *x, size_t n, int in, int out);

/* The same with rows of y and dy `row` numbers apart, row >= out: a layer that fills part of a wider tensor. */
void linear_forward_rows(real *y, int row, const real *x, const float *w, const float *b, size_t n, int in, int out);
void linear_backward_input_rows(real *dx, const real *dy, int row, const float *w, size_t n, int in, int out);
void linear_backward_weight_rows(float *dw, float *db, const real *dy, int row, const real *x, size_t n, int in,
                                 int out);

/* == Normalisation, activation ==================================================================================== */

/* h = w (x - mean) rstd + b over the last dimension.  h, x [n,M] real;  mean, rstd [n] float (saved);  w, b [M].
 * h may be x. */
void layernorm_forward(real *h, float *mean, float *rstd, const real *x, const float *w, const float *b, size_t n,
                       int M, float eps);
/* y = x + s f, then h = norm(y), in one pass.  s is scale[row / rows_per_scale], or 1 when scale is NULL (drop path).
 * x, f, y, h [n,M] real;  scale [n / rows_per_scale] float;  mean, rstd [n] float (saved).
 * y may be x; h may be f; nothing else overlaps. */
void add_layernorm_forward(real *y, real *h, float *mean, float *rstd, const real *x, const real *f, const float *scale,
                           int rows_per_scale, const float *w, const float *b, size_t n, int M, float eps);
/* The norm's gradient joined with the residual stream's: dy = dres + norm'(dh), df = s dy.
 * dy [n,M] (=), may be dres;  df [n,M] (=), not written when scale is NULL (df is dy then);  dres [n,M], or NULL for
 * zero;  dw, db [M] (+=);  dh [n,M];  y [n,M] what was normalised. */
void add_layernorm_backward(real *dy, real *df, float *dw, float *db, const real *dres, const real *dh, const real *y,
                            const float *scale, int rows_per_scale, const float *w, const float *mean,
                            const float *rstd, size_t n, int M);
size_t layernorm_workspace(int M);

/* The residual sum where no norm follows it: y = x + s f, s as in add_layernorm_forward.  y may be x or f. */
void residual_forward(real *y, const real *x, const real *f, const float *scale, int rows_per_scale, size_t n, int M);
/* df (=) s dy.  df may be dy.  (dx is dy.) */
void residual_backward(real *df, const real *dy, const float *scale, int rows_per_scale, size_t n, int M);

/* Layer norm of every head by itself, with weights that the heads share.  y, x: H*D numbers of each of n tokens, which
 * lie `row` apart;  w [D];  b [D] or NULL.  y may be x. */
void heads_norm_forward(real *y, const real *x, const float *w, const float *b, size_t n, int row, int H, int D,
                        float eps);
/* dx (=), may be dy, rows as x's;  dw (+=);  db (+=) or NULL. */
void heads_norm_backward(real *dx, float *dw, float *db, const real *dy, const real *x, const float *w, size_t n,
                         int row, int H, int D, float eps);
size_t heads_norm_workspace(int D);

/* y = x/2 (1 + erf(x / sqrt 2)).  y, x [n] real.  y may be x. */
void gelu_forward(real *y, const real *x, size_t n);
/* dx = dy gelu'(x), and y = gelu(x) once more, so that it need not be kept.  dx (=), may be dy;  y (=). */
void gelu_backward(real *dx, real *y, const real *dy, const real *x, size_t n);

/* y = a + b.  y, a, b [n] real;  y may be a or b. */
void add_forward(real *y, const real *a, const real *b, size_t n);

/* == Dropout ====================================================================================================== */

/* Each number of a tensor becomes 0 with probability `rate`, and x / (1 - rate) otherwise.  Element i of an image is
 * kept where half (i / 16) % 8 of block 16 (i / 128) + i % 16 is at least round(65536 rate): of the four words of
 * rng_bits(seed, RNG_DROPOUT, step, site << 20 | first + image, 4 block ...) the low halves are even, the high ones
 * odd.  Nothing is stored: backward draws the same again.  Sixteen elements side by side take sixteen blocks, and one
 * block serves eight elements. */
typedef struct {
    float rate; /* 0: nothing is dropped */
    uint64_t seed;
    uint32_t step, site; /* site: which dropout of the model, below 4096 */
    uint32_t first;      /* the first image's number in the global batch, below 2^20 less images */
} Dropout;

/* y = drop(x), and so also dx = drop(dy).  y, x [B,n] real;  y may be x. */
void dropout_forward(real *y, const real *x, const Dropout *dropout, int B, size_t n);
/* y = drop(relu(x)).  y may be x. */
void relu_dropout_forward(real *y, const real *x, const Dropout *dropout, int B, size_t n);
/* dx = dy / (1 - rate) where y > 0, else 0.  dx (=), may be dy;  y [n] what forward gave. */
void relu_dropout_backward(real *dx, const real *dy, const real *y, float rate, size_t n);

/* == Depthwise convolution on the token grid ====================================================================== */

typedef struct {
    int Hg, Wg, C, k; /* k odd, at most 7; zeros k/2 deep around the grid */
    int period;       /* channels c, c + period, ... share their weights: C, or D where all heads have the same */
    int x_row, y_row; /* numbers from one token of x or y to the next, at least C; 3*M within qkv */
} Depthwise;

/* y_t = add_t + b + sum_o w_o x_t+o over the k x k offsets o.  y, x channels last, [B,Hg*Wg,C], rows y_row, x_row
 * apart; add like y, may be y, or NULL;  w [period,k,k];  b [period] or NULL. */
void depthwise_forward(real *y, const real *add, const real *x, const float *w, const float *b, const Depthwise *shape,
                       int B);
/* dx (=) add + sum_o w_o dy_t-o, rows x_row apart;  add like dx, may be dx, or NULL;  dw (+=);  db (+=) or NULL. */
void depthwise_backward(real *dx, const real *add, float *dw, float *db, const real *dy, const real *x, const float *w,
                        const Depthwise *shape, int B);
size_t depthwise_workspace(const Depthwise *shape);

/* y_t = the largest of the 3 x 3 tokens around t, as far as they are on the grid, channel by channel; NaN is larger
 * than all.  y [B,Hg*Wg,C] real;  at [B,Hg*Wg,C]: which of the nine, row by row, the first of equals (saved);
 * x rows `row` apart. */
void neighbour_max_forward(real *y, uint8_t *at, const real *x, int row, int B, int Hg, int Wg, int C);
/* dx (=), rows `row` apart;  dy [B,Hg*Wg,C]. */
void neighbour_max_backward(real *dx, const real *dy, const uint8_t *at, int row, int B, int Hg, int Wg, int C);
/* == Convolution with a frozen batch norm ========================================================================= */

/* Images are channels last, [B,H,W,C]; zeros k/2 deep lie around them, so the output is [B,Ho,Wo,out],
 * Ho = ceil(H/stride).  Shapes may change from call to call: the first call of a shape prepares it and may allocate,
 * the next ones do not. */
typedef struct {
    int in, out;   /* channels */
    int k, stride; /* k odd */
} Convolution;

static inline int convolution_side(int side, int stride) { return (side - 1) / stride + 1; }

/* scale = w / sqrt(var + eps), shift = b - mean scale.  All [n] float. */
void batchnorm_fold(float *scale, float *shift, const float *w, const float *b, const float *mean, const float *var,
                    int n, float eps);

/* W' = scale_o w, ready for the calls below, in a layout that is the backend's secret.  folded:
 * convolution_folded_bytes of memory from device_malloc, at a multiple of 256 bytes;  w [out,in,k,k];  scale [out].
 * backward: also for convolution_backward_input, of all the calls for this convolution the same. */
size_t convolution_folded_bytes(const Convolution *c, bool backward);
void convolution_fold(void *folded, const float *w, const float *scale, const Convolution *c, bool backward);

/* y = conv(x, W') + shift + add, and no less than 0 with relu.  y, add [B,Ho,Wo,out], add may be y or NULL;
 * x [B,H,W,in];  shift [out]. */
void convolution_forward(real *y, const real *x, const real *add, const void *folded, const float *shift,
                         const Convolution *c, bool relu, int B, int H, int W);
/* dx (=) add + conv^T(dy, W') where below > 0, else 0: the gradient of what `below` was before its ReLU.
 * dx, add, below [B,H,W,in], below NULL where there was none;  add may be dx, and is NULL for 0 and for strides beyond
 * 1;  dy [B,Ho,Wo,out]. */
void convolution_backward_input(real *dx, const real *add, const real *dy, const void *folded, const real *below,
                                const Convolution *c, int B, int H, int W);
/* dw [out,in,k,k] (+=) scale_o times the gradient of W'. */
void convolution_backward_weight(float *dw, const real *dy, const real *x, const float *scale, const Convolution *c,
                                 int B, int H, int W);
/* For all calls with images up to this size.  What a library wants beside it is reserved at a shape's first call. */
size_t convolution_workspace(const Convolution *c, int B, int H, int W);

/* dx = dy where y > 0, else 0.  dx (=), may be dy;  y [n] what ReLU gave. */
void relu_gradient(real *dx, const real *dy, const real *y, size_t n);

/* Maximum over 3 x 3 windows, stride 2, whatever lies beyond the border left out.
 * y [B,ceil(H/2),ceil(W/2),C];  x [B,H,W,C]. */
void max_pool_forward(real *y, const real *x, int B, int H, int W, int C);

/* == Softmax attention ============================================================================================ */

/* qkv is the output of the fused projection everywhere: [B,N,3,H,D], so its rows are 3*M long: q, k, v, head by head.
 * y [B,N,H,D] is the input of the output projection as it stands. */

/* y_n = sum_m softmax_m(q_n.k_m / sqrt D) v_m.  No N x N in memory.  lse [B,H,N] float:
 * log-sum-exp of the scaled scores (saved). */
void softmax_attention_forward(real *y, float *lse, const real *qkv, int B, int N, int H, int D);
/* dqkv [B,N,3,H,D] (=). */
void softmax_attention_backward(real *dqkv, const real *dy, const real *y, const float *lse, const real *qkv, int B,
                                int N, int H, int D);
size_t softmax_attention_workspace(int N, int D);

/* A number for each offset of a key from its query on the grid is added to the score q.k / sqrt D: table
 * [tables,2Hg-1,2Wg-1], by (row of the key - row of the query + Hg-1, the same of the columns + Wg-1).  The first
 * `prefix` tokens (a class token) have no place on the grid and no bias.  N = prefix + Hg*Wg. */
typedef struct {
    int Hg, Wg, prefix;
    int tables; /* H, or 1 that the heads share */
} RelativeBias;
/* As softmax_attention_forward. */
void biased_attention_forward(real *y, float *lse, const real *qkv, const float *table, const RelativeBias *bias, int B,
                              int H, int D);
/* dqkv (=);  dtable (+=). */
void biased_attention_backward(real *dqkv, float *dtable, const real *dy, const real *y, const float *lse,
                               const real *qkv, const float *table, const RelativeBias *bias, int B, int H, int D);
size_t biased_attention_workspace(const RelativeBias *bias, int D);

/* Sparse attention (Child et al. 2019), in both directions: token n sees only the tokens m of a set,
 *   strided   first |n - m| <= stride,              second n = m modulo stride
 *   fixed     first n / stride = m / stride,        second m modulo stride >= stride - summary
 * 1 <= summary <= stride <= N.  Pairs outside the sets cost nothing but what it takes to fill up tiles. */
typedef struct {
    bool fixed;
    int stride, summary;
    int first, second; /* the first so many heads see the first set, the last so many the second, or the union */
} SparsePattern;
/* As softmax_attention_forward.  Every head sees one set at least. */
void sparse_attention_forward(real *y, float *lse, const real *qkv, const SparsePattern *pattern, int B, int N, int H,
                              int D);
/* dqkv (=). */
void sparse_attention_backward(real *dqkv, const real *dy, const real *y, const float *lse, const real *qkv,
                               const SparsePattern *pattern, int B, int N, int H, int D);
size_t sparse_attention_workspace(const SparsePattern *pattern, int N, int D);

/* y += sum of P_nm v_m over the keys with P_nm > threshold, P = softmax(q k^T / sqrt D): the weights that are left are
 * not scaled up (Castling-ViT's auxiliary branch).  y [B,N,H,D] (updated);  lse [B,H,N] float: log-sum-exp of the
 * scaled scores (saved). */
void thresholded_attention_forward(real *y, float *lse, const real *qkv, float threshold, int B, int N, int H, int D);
/* dqkv (+=): other gradients of q, k and v are there.  delta [B,H,N] float (=): sum_m of what is left of P_nm times
 * dy_n.v_m.  Which weights are left counts as a constant. */
void thresholded_attention_backward(real *dqkv, float *delta, const real *dy, const float *lse, const real *qkv,
                                    float threshold, int B, int N, int H, int D);
size_t thresholded_attention_workspace(int N, int D);

/* == Attention with padding, dropout and spatial modulation (SMCA) ================================================= */

/* Q queries of each image look at N = h*w keys on a grid, of which its first cells[b][0] rows and first cells[b][1]
 * columns count, at least one of each; the other keys are padding, which no query sees. */
typedef struct {
    int B, H, D, Q, h, w;
    int q_row, kv_row; /* numbers from one token's q, or k and v, to the next's: 3*M within qkv */
    const int *cells;  /* device [B,2], or NULL: no padding */
    Dropout dropout;   /* of the weights; element (head*Q + query) * N' + j, N' = N rounded up to 128, j the key's
                          number among those that are no padding */
    int scale_type;    /* 0: no modulation */
} MaskedAttention;

/* Modulation: a number G is added to the score of a key in cell (gx, gy).  With (dx, dy) = centre - (gx, gy)
 *   type 1  G = -(dx^2 + dy^2) / 8
 *   type 2  G = -z^2 (dx^2 + dy^2) / 8
 *   type 3  G = -(zx^2 dx^2 + zy^2 dy^2) / 8
 *   type 4  G = -(zx^2 dx^2 + zy^2 dy^2 + zw^2 dx^2 dy^2) / 8
 * for each query and head; scales: 0, 1, 2, 3 numbers z. */
static inline int modulation_scales(int scale_type) { return scale_type > 0 ? scale_type - 1 : 0; }
typedef struct {
    const float *centre; /* [B,Q,H,2]: x, y in cells */
    const real *z;       /* [B,Q,H,scales], NULL without */
} Modulation;
typedef struct {
    float *centre; /* [B,Q,H,2] (=) */
    real *z;       /* [B,Q,H,scales] (=) */
} ModulationGradients;

/* y_n = sum_m drop(softmax_m(q_n.k_m / sqrt D + G_nm)) v_m.  No Q x N in memory.
 * y [B,Q,H,D] real;  lse [B,H,Q] float (saved);  q [B,Q,H,D], rows q_row apart;  k, v [B,N,H,D], rows kv_row apart;
 * m NULL without modulation. */
void masked_attention_forward(real *y, float *lse, const real *q, const real *k, const real *v, const Modulation *m,
                              const MaskedAttention *shape);
/* dq rows q_row apart (=);  dk, dv rows kv_row apart (=), zero where padding;  dm NULL without modulation. */
void masked_attention_backward(real *dq, real *dk, real *dv, const ModulationGradients *dm, const real *dy,
                               const real *y, const float *lse, const real *q, const real *k, const real *v,
                               const Modulation *m, const MaskedAttention *shape);
/* Of all shapes up to this one. */
size_t masked_attention_workspace(const MaskedAttention *shape);

/* Features of padding become zero: the k half of phi, or of its gradient.  phi [B,h*w,2,H,F];  cells [B,2]. */
void mask_features(real *phi, const int *cells, int B, int h, int w, int H, int F);

/* == What the detector's queries know of places =================================================================== */

/* Sine positions of DETR: with (Y, X) a cell's number, from 1, over the rows and columns of its image,
 *   e = 2 pi Y / (rows + 1e-6),  channel i < M/2: sin(e / f_i) for even i, cos for odd,
 *   f_i = 10000^(2 floor(i/2) / (M/2)),
 * then X likewise.  Y is 0 in a column of padding, X in a row.  pos [B,h*w,M] real, M a multiple of 4;  cells [B,2]. */
void sine_positions(real *pos, const int *cells, int B, int h, int w, int M);

/* reference = sigmoid(raw) (width, height) / 32.  reference [B,Q,2] float: x, y in cells;  raw [B,Q,2];  sizes [B,2]
 * int: own height and width. */
void reference_points_forward(float *reference, const real *raw, const int *sizes, int B, int Q);
/* draw = draw_boxes + dreference times that.  draw (=) [B,Q,2] real;  draw_boxes [B,Q,2] float: the boxes' part. */
void reference_points_backward(real *draw, const float *draw_boxes, const float *dreference, const real *raw,
                               const int *sizes, int B, int Q);
/* centre = reference + offset.  centre [n,H,2] float;  reference [n,2];  offset [n,H,2] real. */
void centres_forward(float *centre, const float *reference, const real *offset, size_t n, int H);
/* doffset [n,H,2] real (=);  dreference [n,2] (+=). */
void centres_backward(real *doffset, float *dreference, const float *dcentre, size_t n, int H);
/* boxes = sigmoid(u + (raw, 0, 0)) for all L layers.  boxes [L,n,4] float;  u [L,n,4];  raw [n,2]. */
void boxes_forward(float *boxes, const real *u, const real *raw, int L, size_t n);
/* du [L,n,4] real (=);  draw [n,2] float (=), the sum over layers. */
void boxes_backward(real *du, float *draw, const float *dboxes, const float *boxes, int L, size_t n);

/* == Gated positional attention (ConViT) ========================================================================== */

/* Token n looks at token m, (dx, dy) away on the grid, with weight P_nm = softmax_m(w.(dx, dy, dx^2 + dy^2)),
 * w = pos_proj[h], in every image.  The exponent is a sum over the two axes, so P_nm = rows[yn,ym] columns[xn,xm], each
 * a softmax of its own, and there is no N x N.  axes [H, Hg*Hg + Wg*Wg] float: rows, then columns (saved);
 * pos_proj [H,3]. */
void position_axes_forward(float *axes, const float *pos_proj, int H, int Hg, int Wg);
/* y_n = (1-g) content_n + g sum_m P_nm v_m, g = sigmoid(gating[h]).
 * y, content [B,N,H,D] real, N = Hg*Wg;  qkv [B,N,3,H,D], only v read;  gating [H].  y may be content. */
void position_attention_forward(real *y, const real *content, const real *qkv, const float *axes, const float *gating,
                                int B, int Hg, int Wg, int H, int D);
/* dqkv [B,N,3,H,D]: what content's backward made of dy on entry; (1-g) times that, plus g P^T dy in its v third, on
 * return.  daxes [B, H, Hg*Hg + Wg*Wg + 1] float (=): the gradient of sum_n dy_n.(P v)_n in the order of axes, then
 * sum_n dy_n.content_n, which is what position_axes_backward makes the parameters' gradients from. */
void position_attention_backward(real *dqkv, float *daxes, const real *dy, const real *content, const real *qkv,
                                 const float *axes, const float *gating, int B, int Hg, int Wg, int H, int D);
/* dpos_proj [H,3], dgating [H] (+=). */
void position_axes_backward(float *dpos_proj, float *dgating, const float *daxes, const float *axes,
                            const float *gating, int B, int H, int Hg, int Wg);
size_t position_attention_workspace(int Hg, int Wg, int H, int D);

/* == Feature maps ================================================================================================= */

/* phi(z) = relu(w2 [sin(w1 z'); cos(w1 z')] + b2), z' = D^-1/4 z, for q and k of every head: the paper's equation 13.
 * phi [B,N,2,H,F] real, q's features then k's;  qkv [B,N,3,H,D], v not read;  w1 [E,D];  w2 [F,2E];
 * b2 [F];  n = B*N. */
void feature_mlp_forward(real *phi, const real *qkv, const float *w1, const float *w2, const float *b2, size_t n, int H,
                         int D, int E, int F);
/* dqkv [B,N,3,H,D] (=) in its q and k thirds, v untouched;  dw1, dw2, db2 (+=), dw1 may be NULL;
 * dphi, phi [B,N,2,H,F]. */
void feature_mlp_backward(real *dqkv, float *dw1, float *dw2, float *db2, const real *dphi, const real *phi,
                          const real *qkv, const float *w1, const float *w2, const float *b2, size_t n, int H, int D,
                          int E, int F);
size_t feature_mlp_workspace(int D, int E, int F);
/* The same with a map for each head: w1 [H,E,D];  w2 [H,F,2E];  b2 [H,F], and their gradients. */
void feature_mlp_heads_forward(real *phi, const real *qkv, const float *w1, const float *w2, const float *b2, size_t n,
                               int H, int D, int E, int F);
void feature_mlp_heads_backward(real *dqkv, float *dw1, float *dw2, float *db2, const real *dphi, const real *phi,
                                const real *qkv, const float *w1, const float *w2, const float *b2, size_t n, int H,
                                int D, int E, int F);

/* The maps below read and write the same tensors, and scale alike: z' = D^-1/4 z. */

/* phi(z) = relu(w z' + b).  w [F,D];  b [F]. */
void feature_relu_forward(real *phi, const real *qkv, const float *w, const float *b, size_t n, int H, int D, int F);
/* dw, db (+=). */
void feature_relu_backward(real *dqkv, float *dw, float *db, const real *dphi, const real *phi, const real *qkv,
                           const float *w, size_t n, int H, int D, int F);
size_t feature_relu_workspace(int D, int F);

/* phi(z)_i = u_i u_(i-1), u = relu([z'; -z']), indices modulo F = 2D (Schlag et al. 2021, with nu = 1). */
void feature_dpfp_forward(real *phi, const real *qkv, size_t n, int H, int D);
void feature_dpfp_backward(real *dqkv, const real *dphi, const real *qkv, size_t n, int H, int D);

/* Random features with a matrix for each head, w [H,E,D].
 *   rfa        phi(z) = exp(|z'|^2/2 - c) / sqrt E [sin(w z'); cos(w z')], c = max |z'|^2/2 over the tokens of q or k
 *              of an image and head; F = 2E (Peng et al. 2021)
 *   performer  phi(z) = (exp(w z' - |z'|^2/2 - c) + 1e-4) / sqrt E, c = max of w z' over a query's features, or over
 *              all keys' of an image and head; F = E (Choromanski et al. 2020)
 * c is a constant of the backward pass. */
void feature_rfa_forward(real *phi, const real *qkv, const float *w, int B, int N, int H, int D, int E);
void feature_rfa_backward(real *dqkv, const real *dphi, const real *phi, const real *qkv, const float *w, int B, int N,
                          int H, int D, int E);
void feature_performer_forward(real *phi, const real *qkv, const float *w, int B, int N, int H, int D, int E);
void feature_performer_backward(real *dqkv, const real *dphi, const real *phi, const real *qkv, const float *w, int B,
                                int N, int H, int D, int E);
size_t feature_random_workspace(int D, int E);

/* == Linear attention ============================================================================================= */

/* What the sum over keys becomes before it divides. */
typedef enum {
    DENOMINATOR_EPSILON, /* 1e-6 is added: features that are nowhere negative */
    DENOMINATOR_CLAMP,   /* kept 1e-2 away from zero, a constant where that happens: features of either sign */
    DENOMINATOR_GIVEN    /* den is an input, made from other features (denominator_forward) */
} Denominator;

/* y_n = phi(q_n)^T S / den_n, den_n = rule(phi(q_n).z), S = sum_m phi(k_m) v_m^T, z = sum_m phi(k_m).
 * y [B,N,H,D] real;  den [B,N,H] float, kv [B,H,F,D+1] float: S with z as last column (both saved).
 * DENOMINATOR_GIVEN reads den, and kv's last column is zero. */
void linear_attention_forward(real *y, float *den, float *kv, const real *phi, const real *qkv, int B, int N, int H,
                              int D, int F, Denominator rule);
/* dqkv [B,N,3,H,D] (=) in its v third, q and k untouched;  dphi [B,N,2,H,F] (=), of DENOMINATOR_GIVEN the numerator's
 * part alone: denominator_backward has the rest. */
void linear_attention_backward(real *dqkv, real *dphi, const real *dy, const real *y, const float *den, const float *kv,
                               const real *phi, const real *qkv, int B, int N, int H, int D, int F, Denominator rule);
size_t linear_attention_workspace(int D, int F);

/* den_n = rule(phi(q_n).z), z = sum_m phi(k_m).  den [B,N,H] float, z [B,H,F] float (both saved);  phi [B,N,2,H,F]. */
void denominator_forward(float *den, float *z, const real *phi, int B, int N, int H, int F, Denominator rule);
/* dphi [B,N,2,H,F] (+=): numerator and denominator read the same features;  dy, y [B,N,H,D]. */
void denominator_backward(real *dphi, const real *dy, const real *y, const float *den, const float *z, const real *phi,
                          int B, int N, int H, int D, int F, Denominator rule);
size_t denominator_workspace(int F);

/* == Relative positions =========================================================================================== */

/* Rotary embedding: feature pairs (2p, 2p+1) of token n turn by an angle.  turns [N,F/2,2] float: cosine and sine.
 *   Wg = 0   one axis: angle n theta_p, theta_p = 10000^(-2p/F)
 *   else     two axes: of F/4 pairs each, by row and then by column of the grid, theta_p = 10000^(-4p/F); pairs and
 *            tokens beyond (the first N - Hg Wg: a class token) stay. */
void rope_table(float *turns, int N, int F, int Hg, int Wg);
/* y = phi turned, backward turned back: the transpose.  y, phi [B,N,2,H,F] real;  an odd last feature is copied. */
void rope_forward(real *y, const real *phi, const float *turns, int B, int N, int H, int F);
void rope_backward(real *dphi, const real *dy, const float *turns, int B, int N, int H, int F);

/* order [H,N,F]: where token n's feature f comes from, the n-fold composition of the head's permutation with itself,
 * order_0 = f, order_(n+1)(f) = permutation(order_n(f)).  permutation [H,F] float: 0 .. F-1, each once. */
void permute_table(int *order, const float *permutation, int N, int H, int F);
/* y_f = phi_order(f) for q and k alike.  y, phi [B,N,2,H,F] real. */
void permute_forward(real *y, const real *phi, const int *order, int B, int N, int H, int F);
void permute_backward(real *dphi, const real *dy, const int *order, int B, int N, int H, int F);

/* Stochastic positional encoding (Liutkus et al. 2021): coded q'_r = sum_d q_d C_(n,h,d,r) and k' likewise, with codes
 * that all images share, as many realisations r as there are columns d, and a gate g = sigmoid(gate) [H,D]:
 *   C = D^-1/2 (sqrt(1 - g) c + sqrt(g) e),  e [H,D,D], the same for q and k and every token.
 *   sine   c_(n,d,r) = (2K)^-1/2 sum_k softplus(gains)_k (cos(a_k) z_(d,k,r) + sin(a_k) z_(d,K+k,r)),
 *          a_k = 2 pi n sigmoid(freqs)_k / 2, for q plus offsets_k;  freqs, offsets, gains [H,D,K];  z [H,D,2K,D]
 *   conv   c_(n,d,r) = sum_j w_(d,j) x_(d,n+j,r), w = wq or wk [H,D,K];  x [H,D,N+K-1,D]
 * z, x and e are standard normal numbers.  No tensor is as large as a code for every image. */
typedef struct {
    int K;
    const float *freqs, *offsets, *gains, *gate, *z, *e;
} SpeSine;
typedef struct {
    float *freqs, *offsets, *gains, *gate;
} SpeSineGradients;
typedef struct {
    int K;
    const float *wq, *wk, *gate, *x, *e;
} SpeConv;
typedef struct {
    float *wq, *wk, *gate;
} SpeConvGradients;
/* coded, qkv [B,N,3,H,D] real: q and k thirds, v neither read nor written. */
void spe_sine_forward(real *coded, const real *qkv, const SpeSine *spe, int B, int N, int H, int D);
void spe_conv_forward(real *coded, const real *qkv, const SpeConv *spe, int B, int N, int H, int D);
/* dqkv (=) in its q and k thirds;  the gradients of parameters (+=). */
void spe_sine_backward(real *dqkv, const SpeSineGradients *d, const real *dcoded, const real *qkv, const SpeSine *spe,
                       int B, int N, int H, int D);
void spe_conv_backward(real *dqkv, const SpeConvGradients *d, const real *dcoded, const real *qkv, const SpeConv *spe,
                       int B, int N, int H, int D);
size_t spe_sine_workspace(int N, int H, int D, int K);
size_t spe_conv_workspace(int N, int H, int D, int K);
/* == Features of other operators ================================================================================== */

/* What linear attention takes in place of a feature map; phi as there, [B,N,2,M] where heads do not matter. */

/* Focused linear attention's: r = relu(z) + 1e-6, u = r / softplus(scale), phi = |u| u^p / |u^p|, norms over a token,
 * for z = q, and for z = k + pos; k's are then divided by N, so that sums over keys are means.
 * phi [B,N,2,M] real;  qkv [B,N,3,M], v not read;  pos [N,M];  scale [M];  p >= 1. */
void focused_features_forward(real *phi, const real *qkv, const float *pos, const float *scale, int B, int N, int M,
                              int p);
/* dqkv (=) in its q and k thirds, v untouched;  dpos, dscale (+=). */
void focused_features_backward(real *dqkv, float *dpos, float *dscale, const real *dphi, const real *qkv,
                               const float *pos, const float *scale, int B, int N, int M, int p);
size_t focused_features_workspace(int M);

/* Efficient attention's: softmax of q over the D channels of a head, of k over the N tokens of an image.
 * phi [B,N,2,H,D] real;  qkv [B,N,3,H,D], v not read. */
void efficient_features_forward(real *phi, const real *qkv, int B, int N, int H, int D);
/* dqkv (=) in its q and k thirds, v untouched. */
void efficient_features_backward(real *dqkv, const real *dphi, const real *phi, int B, int N, int H, int D);

/* Castling-ViT's: phi(z) = [z / (|z| sqrt pi); 1 / sqrt 2] for q and k of every head; |z| is taken as 1e-6 at least.
 * phi [B,N,2,H,D+1] real;  qkv [B,N,3,H,D], v not read;  n = B*N. */
void angular_features_forward(real *phi, const real *qkv, size_t n, int H, int D);
/* dqkv (=) in its q and k thirds, v untouched. */
void angular_features_backward(real *dqkv, const real *dphi, const real *qkv, size_t n, int H, int D);

/* relu of q and k.  phi [n,2,M] real;  qkv [n,3,M], v not read. */
void relu_features_forward(real *phi, const real *qkv, size_t n, int M);
/* dqkv (=) in its q and k thirds, v untouched. */
void relu_features_backward(real *dqkv, const real *dphi, const real *phi, size_t n, int M);

/* EfficientViT's two scales beside each other, the second after a matrix for each head of q, k and v:
 * all[n,part,h] = qkv[n,part,h], all[n,part,H+h] = w[part,h] wide[n,part,h].
 * all [n,3,2*H,D] real;  qkv, wide [n,3,H,D];  w [3,H,D,D]. */
void multiscale_forward(real *all, const real *qkv, const real *wide, const float *w, size_t n, int H, int D);
/* dqkv, dwide [n,3,H,D] (=);  dw (+=). */
void multiscale_backward(real *dqkv, real *dwide, float *dw, const real *dall, const real *wide, const float *w,
                         size_t n, int H, int D);
size_t multiscale_workspace(int H, int D);

/* == Hydra attention ============================================================================================== */

/* y_n = q^_n * sum_m k^_m * v_m channel by channel, q^ = q / |q| and k^ = k / |k| over the whole token, lengths taken
 * as 1e-6 at least.  y [B,N,M] real;  inverse [B,N,2] float: 1/|q|, 1/|k|, kv [B,M] float: the sum (both saved);
 * qkv [B,N,3,M]. */
void hydra_attention_forward(real *y, float *inverse, float *kv, const real *qkv, int B, int N, int M);
/* dqkv (=);  dkv [B,M] float (=), the sum's gradient. */
void hydra_attention_backward(real *dqkv, float *dkv, const real *dy, const float *inverse, const float *kv,
                              const real *qkv, int B, int N, int M);

/* == Attention through landmarks ================================================================================== */

/* A grid of Lh x Lw cells, L = Lh*Lw: cell (i,j) has rows i Hg/Lh up to (i+1) Hg/Lh of the tokens' grid, rounded down,
 * and columns likewise, so that every token is in one.  1 <= Lh <= Hg, 1 <= Lw <= Wg. */
typedef struct {
    int Hg, Wg, Lh, Lw;
} Cells;
/* means [B,L,C] = the mean of each cell.  x [B,Hg*Wg,C], rows x_row apart. */
void cell_means_forward(real *means, const real *x, const Cells *cells, int B, int C, int x_row);
/* dx (+=): an activation's second gradient, so this runs after what wrote the first. */
void cell_means_backward(real *dx, const real *dmeans, const Cells *cells, int B, int C, int x_row);

/* Squares of r x r tokens as rows, so that a convolution of stride r that the heads share is a linear layer; rows and
 * columns beyond the last whole square are left out.  cols [B,(Hg/r)*(Wg/r),H,D*r*r], columns ordered (channel, row,
 * column) as a [.,D,r,r] weight;  x [B,Hg*Wg,H,D], rows x_row apart. */
void head_patches_forward(real *cols, const real *x, int Hg, int Wg, int r, int B, int H, int D, int x_row);
/* dx (+=). */
void head_patches_backward(real *dx, const real *dcols, int Hg, int Wg, int r, int B, int H, int D, int x_row);

/* y = A(q, b) Z A(a, k) v with landmarks a of the queries and b of the keys; Z is A(a, b)'s pseudo-inverse after six
 * steps of a cubic scheme, Z <- Z/4 (13 - W (15 - W (7 - W))), W = A(a, b) Z, from A(a, b)^T / m,
 * m its largest column sum.
 *   softmax   A(x, z) = softmax of x z^T / sqrt D over its rows (Nystromformer)
 *   gaussian  A(x, z) = exp(-|x - z|^2 / 2), tokens scaled by D^-1/4, k = q, b = a; m squared (SOFT)
 * Gradients are those of the steps as they are taken, m's included.
 * y [B,N,H,D] real;  tokens [B,N,3,H,D]: q, k, v, or [B,N,2,H,D]: q, v;  landmarks [B,L,2,H,D]: a, b,
 * or [B,L,H,D]: a. */
typedef struct {
    int N, L, H, D;
    bool gaussian;
} LowRank;
void low_rank_forward(real *y, const real *tokens, const real *landmarks, const LowRank *shape, int B);
/* dtokens, dlandmarks (=). */
void low_rank_backward(real *dtokens, real *dlandmarks, const real *dy, const real *tokens, const real *landmarks,
                       const LowRank *shape, int B);
size_t low_rank_workspace(const LowRank *shape, int B);

/* == Ripple attention ============================================================================================= */

enum { RIPPLE_MAX_GROUPS = 256 };

/* Vicinal groups: token m belongs to group r of query n when bound[r] <= max(|xn - xm|, |yn - ym|) < bound[r+1].
 * bound[0] = 0; the last group has no upper bound.  `ripple` with r_max 4 is G = 5, bound = 0 1 2 3 4. */
typedef struct {
    int Hg, Wg, G;
    int bound[RIPPLE_MAX_GROUPS];
} RippleRings;

/* Spatial weights by stick breaking (the paper's equation 5 with zero-based sticks).  For every token and head
 *   o_r = <sticks[h,r], wp v + bp>, s_r = 1/(1 + (R - r) exp(-o_r)),
 *   alpha_r = s_r prod_{r'<r} (1 - s_r') for r < R, alpha_R = prod (1 - s_r).
 * tau > 0: from the first r^ with 1 - sum_{r<=r^} alpha_r < tau on, the groups r^..R share what is left equally.
 * truncate: alpha_R = 0 after that.  alpha [B,N,H,R+1] float;  o [B,N,H,R] float (saved);  wp [D,D], bp [D],
 * sticks [H,R,D]. */
void stick_breaking_forward(float *alpha, float *o, const real *qkv, const float *wp, const float *bp,
                            const float *sticks, size_t n, int H, int D, int R, float tau, bool truncate);
/* dqkv [B,N,3,H,D] (+=) in its v third: v's second gradient, so this runs after the attention's backward;
 * dwp, dbp, dsticks (+=);  dalpha [B,N,H,R+1].  r^ counts as a constant. */
void stick_breaking_backward(real *dqkv, float *dwp, float *dbp, float *dsticks, const float *dalpha,
                             const float *alpha, const float *o, const real *qkv, const float *wp, const float *bp,
                             const float *sticks, size_t n, int H, int D, int R, float tau, bool truncate);
/* The same with a projection for each head: wp [H,D,D], bp [H,D], and their gradients. */
void stick_breaking_heads_forward(float *alpha, float *o, const real *qkv, const float *wp, const float *bp,
                                  const float *sticks, size_t n, int H, int D, int R, float tau, bool truncate);
void stick_breaking_heads_backward(real *dqkv, float *dwp, float *dbp, float *dsticks, const float *dalpha,
                                   const float *alpha, const float *o, const real *qkv, const float *wp,
                                   const float *bp, const float *sticks, size_t n, int H, int D, int R, float tau,
                                   bool truncate);
/* Weights as a plain softmax over G logits o_r = <sticks[h,r], wp v + bp>.  alpha [B,N,H,G] float (saved);
 * sticks [H,G,D]. */
void softmax_weights_forward(float *alpha, const real *qkv, const float *wp, const float *bp, const float *sticks,
                             size_t n, int H, int D, int G);
/* As stick_breaking_backward. */
void softmax_weights_backward(real *dqkv, float *dwp, float *dbp, float *dsticks, const float *dalpha,
                              const float *alpha, const real *qkv, const float *wp, const float *bp,
                              const float *sticks, size_t n, int H, int D, int G);
/* alpha[row] = weights for every row.  alpha [rows,G] float;  weights host [G]. */
void fixed_weights(float *alpha, const float *weights, size_t rows, int G);
size_t ripple_weights_workspace(int H, int D, int G);

/* y_n = sum_m alpha_g(n,m)(n) (phi(q_n).phi(k_m)) v_m / den_n, den_n = sum_m alpha_g(n,m)(n) phi(q_n).phi(k_m) + 1e-6.
 * y [B,N,H,D] real;  den [B,N,H] float (saved);  alpha [B,N,H,G] float;  phi [B,N,2,H,F];  qkv [B,N,3,H,D],
 * only v read.
 * Backward: dqkv (=) in its v third only;  dphi [B,N,2,H,F] (=);  dalpha [B,N,H,G] (=).
 * Four algorithms, the same numbers:
 *   naive   group by group, query by query: the reference;
 *   dense   every pair once, tile by tile, the weight looked up by distance;
 *   window  the last group's weight on everything (linear attention) plus a correction inside the window;
 *   sat     the paper's Algorithm 1: summed-area tables of phi(k) v^T and phi(k). */
#define RIPPLE_FORWARD(algorithm)                                                                                    \
    void ripple_##algorithm##_forward(real *y, float *den, const float *alpha, const real *phi, const real *qkv,     \
                                      const RippleRings *rings, int B, int H, int D, int F)
#define RIPPLE_BACKWARD(algorithm)                                                                                   \
    void ripple_##algorithm##_backward(real *dqkv, real *dphi, float *dalpha, const real *dy, const real *y,         \
                                       const float *den, const float *alpha, const real *phi, const real *qkv,       \
                                       const RippleRings *rings, int B, int H, int D, int F)
RIPPLE_FORWARD(naive);
RIPPLE_BACKWARD(naive);
size_t ripple_naive_workspace(const RippleRings *rings, int D, int F);
RIPPLE_FORWARD(dense);
RIPPLE_BACKWARD(dense);
size_t ripple_dense_workspace(const RippleRings *rings, int D, int F);
RIPPLE_FORWARD(window);
RIPPLE_BACKWARD(window);
size_t ripple_window_workspace(const RippleRings *rings, int D, int F);
RIPPLE_FORWARD(sat);
RIPPLE_BACKWARD(sat);
size_t ripple_sat_workspace(const RippleRings *rings, int D, int F);

/* The paper's Appendix A: softmax inside each vicinal group, the groups mixed.  A reference for small N: N^2 work.
 * y_n = sum_r alpha_r(n) sum_{m: g(n,m)=r} exp(q_n.k_m / sqrt D - lse_r(n)) v_m; a group without tokens adds nothing.
 * y [B,N,H,D] real;  lse [B,N,H,G] float: log-sum-exp of a group's scaled scores (saved);  alpha [B,N,H,G]. */
void ripple_explicit_forward(real *y, float *lse, const float *alpha, const real *qkv, const RippleRings *rings, int B,
                             int H, int D);
/* dqkv [B,N,3,H,D] (=);  dalpha [B,N,H,G] (=). */
void ripple_explicit_backward(real *dqkv, float *dalpha, const real *dy, const float *lse, const float *alpha,
                              const real *qkv, const RippleRings *rings, int B, int H, int D);
size_t ripple_explicit_workspace(const RippleRings *rings, int D);

/* Estimated seconds of forward and backward for one image and one head on this device: what `auto` compares.
 * The constants come from tests/bench_ripple.c; docs/performance.md has the table. */
double ripple_naive_cost(const RippleRings *rings, int D, int F);
double ripple_dense_cost(const RippleRings *rings, int D, int F);
double ripple_window_cost(const RippleRings *rings, int D, int F);
double ripple_sat_cost(const RippleRings *rings, int D, int F);

/* For tables of them: RIPPLE_ALGORITHM(dense). */
typedef struct {
    const char *name;
    __typeof__(ripple_dense_forward) *forward;
    __typeof__(ripple_dense_backward) *backward;
    __typeof__(ripple_dense_workspace) *workspace;
    __typeof__(ripple_dense_cost) *cost;
} RippleAlgorithm;
#define RIPPLE_ALGORITHM(name)                                                                                       \
    { #name, ripple_##name##_forward, ripple_##name##_backward, ripple_##name##_workspace, ripple_##name##_cost }

/* == Structure-aware attention: LiSA and what it comes from ======================================================= */

/* x^ = x / max(|x|, 1e-6) for x = q and k, or q, k and v: parts 2 or 3, head by head.
 * unit [n,parts,H,D] real;  inverse [n,parts,H] float: what x was multiplied by (saved);  qkv [n,3,H,D]. */
void l2_normalize_forward(real *unit, float *inverse, const real *qkv, size_t n, int parts, int H, int D);
/* dqkv [n,3,H,D] (=) in its first parts, the others untouched;  dunit, unit [n,parts,H,D].  dqkv may be dunit where
 * there are three parts. */
void l2_normalize_backward(real *dqkv, const real *dunit, const real *unit, const float *inverse, size_t n, int parts,
                           int H, int D);

/* E patterns for each of the T = offsets_count relative positions t(i,j); per_channel: wa has one for every channel. */
typedef struct {
    Offsets offsets;
    int E;
    bool per_channel;
} Patterns;

/* S[i,e] = sum_j sum_c wa[t(i,j),c,e] q^[i,c] k^[j,c],  y[i,c] = sum_e S[i,e] (b[c,e] + sum_j wb[t(i,j),e] v[j,c]).
 * y [B,N,H,D] real;  s [B,H,E,N] real (saved);  qk [B,N,2,H,D];  qkv [B,N,3,H,D], only v read;
 * wa [T,D,E], or [T,E] unless per_channel;  wb [T,E];  b [D,E].
 * Backward: dqkv (=) in its v third only;  dqk [B,N,2,H,D] (=);  dwa, dwb, db (+=).
 * Two algorithms, the same numbers:
 *   dense   every pair of tokens: S by table, then the matrix P[i,j] = sum_e S[i,e] wb[t(i,j),e] a few rows at a time;
 *   fft     circles and tori only, and per_channel: the sums over j are products of discrete Fourier transforms. */
#define LISA_FORWARD(name)                                                                                           \
    void name(real *y, real *s, const real *qk, const real *qkv, const float *wa, const float *wb, const float *b,   \
              const Patterns *patterns, int B, int H, int D)
#define LISA_BACKWARD(name)                                                                                          \
    void name(real *dqkv, real *dqk, float *dwa, float *dwb, float *db, const real *dy, const real *s,               \
              const real *qk, const real *qkv, const float *wa, const float *wb, const float *b,                     \
              const Patterns *patterns, int B, int H, int D)
LISA_FORWARD(lisa_dense_forward);
LISA_BACKWARD(lisa_dense_backward);
size_t lisa_dense_workspace(const Patterns *patterns, int B, int H, int D);
LISA_FORWARD(lisa_fft_forward);
LISA_BACKWARD(lisa_fft_backward);
size_t lisa_fft_workspace(const Patterns *patterns, int B, int H, int D);

/* Estimated seconds of forward and backward for one image and one head on this device (tests/bench_lisa.c). Infinite
 * where the algorithm has no answer: fft for other offsets than circles and tori,
 * or for more tokens than it has room for. */
double lisa_dense_cost(const Patterns *patterns, int D);
double lisa_fft_cost(const Patterns *patterns, int D);

/* For tables of them: LISA_ALGORITHM(fft). */
typedef struct {
    const char *name;
    LISA_FORWARD((*forward));
    LISA_BACKWARD((*backward));
    __typeof__(lisa_fft_workspace) *workspace;
    __typeof__(lisa_fft_cost) *cost;
} LisaAlgorithm;
#define LISA_ALGORITHM(name)                                                                                         \
    { #name, lisa_##name##_forward, lisa_##name##_backward, lisa_##name##_workspace, lisa_##name##_cost }

/* y_i = sum_j (q^_i.k^_j) r[t(i,j),h] v_j: multiplicative position weights in place of the softmax.
 * y [B,N,H,D] real;  r [T,tables], tables = 1 (shared by the heads) or H. */
void weighted_attention_forward(real *y, const real *qk, const real *qkv, const float *r, const Offsets *offsets,
                                int tables, int B, int H, int D);
/* dqkv (=) in its v third only;  dqk [B,N,2,H,D] (=);  dr [T,tables] (+=). */
void weighted_attention_backward(real *dqkv, real *dqk, float *dr, const real *dy, const real *qk, const real *qkv,
                                 const float *r, const Offsets *offsets, int tables, int B, int H, int D);
size_t weighted_attention_workspace(const Offsets *offsets, int tables, int B, int H, int D);

/* Sums over keys by relative position t(i,j), collected into E patterns and spread from them, head by head; D channels:
 *   collect   s[i,e] = sum_c q[i,c] (base[c,e] + sum_j w[t(i,j),c,e] k[j,c])
 *   spread    y[i,c] = sum_e s[i,e] (base[c,e] + sum_j w[t(i,j),c,e] v[j,c])
 * N^2 work, but no N x N in memory.  w [T,D,E], or [T,E] for all channels unless per_channel;  base [D,E], or NULL:
 * zero;  any offsets but local ones. */
typedef struct {
    int x, z, k; /* from one token to the next: of q, y and their gradients; of s; of k and v */
} PatternRows;
/* Token n of head h begins at n rows.x + h D in q and y, at n rows.z + h E in s, at n rows.k + h D in k and v. */
void patterns_collect_forward(real *s, const real *q, const real *k, const float *w, const float *base,
                              const Patterns *patterns, const PatternRows *rows, int B, int H, int D);
/* dq (=);  dk (=) add + the gradient, add like dk, may be dk, or NULL;  dw (+=);  dbase (+=) or NULL. */
void patterns_collect_backward(real *dq, real *dk, const real *add, float *dw, float *dbase, const real *ds,
                               const real *q, const real *k, const float *w, const float *base,
                               const Patterns *patterns, const PatternRows *rows, int B, int H, int D);
void patterns_spread_forward(real *y, const real *s, const real *v, const float *w, const float *base,
                             const Patterns *patterns, const PatternRows *rows, int B, int H, int D);
/* ds (=);  dv (=) add + the gradient, as above;  dw (+=);  dbase (+=) or NULL. */
void patterns_spread_backward(real *ds, real *dv, const real *add, float *dw, float *dbase, const real *dy,
                              const real *s, const real *v, const float *w, const float *base,
                              const Patterns *patterns, const PatternRows *rows, int B, int H, int D);
size_t patterns_workspace(const Patterns *patterns, int B, int H, int D);

/* == Global filter ================================================================================================ */

/* y = F' (w F x) over the grid, channel by channel, F the real two-dimensional Fourier transform (GFNet; orthonormal in
 * both directions, which is 1/N in one).  Where a frequency and its conjugate both have an entry, in the columns 0 and
 * Wg/2, the mean of w and its partner's conjugate counts, as in an inverse real transform.
 * y, x [B,Hg*Wg,M] real;  w [Hg,Wg/2+1,M,2] float: real and imaginary parts.  y may not be x. */
void global_filter_forward(real *y, const real *x, const float *w, int B, int Hg, int Wg, int M);
/* dx (=);  dw (+=). */
void global_filter_backward(real *dx, float *dw, const real *dy, const real *x, const float *w, int B, int Hg, int Wg,
                            int M);
size_t global_filter_workspace(int B, int Hg, int Wg, int M);

/* == Loss ========================================================================================================= */

/* loss[b] = -sum_c target_c log softmax(logits)_c and its gradient times `scale`.
 * loss [B] float;  dlogits [B,C] (=), or NULL;  logits [B,C] real;  targets [B,C] float, each row summing to one. */
void cross_entropy(float *loss, real *dlogits, const real *logits, const float *targets, float scale, int B, int C);

/* == Optimizer: loops over flat float32 memory ==================================================================== */

/* sum_i x_i^2 in double, in a fixed order; host result. */
double sum_of_squares(const float *x, size_t n);

/* One AdamW step (Loshchilov and Hutter 2019, decoupled decay as in PyTorch) over a whole arena, in one pass:
 *   g' = scale g, m = b1 m + (1-b1) g', v = b2 v + (1-b2) g'^2,
 *   w = w - lr wd w - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps), ema = d ema + (1-d) w,
 * with lr slow in place of lr where a piece is slow.
 * w, m, v, ema [n] updated, ema may be NULL;  g [n] is left as it is;
 * kinds [ceil(n / ARENA_PIECE)]: what happens to each piece of the arena. */
enum { ARENA_PIECE = 16 };
enum {
    PIECE_PLAIN,   /* no weight decay */
    PIECE_DECAYED,
    PIECE_FROZEN,  /* w, m and v stay, and ema = w */
    PIECE_SLOW = 4 /* added to one of these: the second learning rate */
};
typedef struct {
    float lr, slow, beta1, beta2, eps, weight_decay, scale, ema_decay;
    int t; /* the step's number, from 1 */
} AdamWStep;
void adamw_update(float *w, float *m, float *v, float *ema, const float *g, const uint8_t *kinds, size_t n,
                  const AdamWStep *step);

/* == Between ranks: sums of gradients ============================================================================= */

/* Joins the devices of all ranks (core/distributed.h), and shares a machine's cores among its ranks. */
void collective_open(void);
void collective_close(void);

/* x = sum of x over all ranks: begins once everything asked for so far is done, and runs beside what is asked for next.
 * Nobody touches x before all_reduce_finish.  All ranks ask for the same sums in the same order.
 * x [n] float (updated). */
void all_reduce_start(float *x, size_t n);
/* What is asked for from here on sees the sums. */
void all_reduce_finish(void);

#ifdef __cplusplus
}
#endif

#endif
