/* The detector's attention, with padding, dropout and spatial modulation (SMCA, Gao et al. 2021), and the positions,
 * reference points and boxes of its queries. */
#ifndef VIT_KERNELS_SOFTMAX_MASKED_ATTENTION_H
#define VIT_KERNELS_SOFTMAX_MASKED_ATTENTION_H

#include <stddef.h>

#include "kernels/linear/dropout.h"
#include "kernels/tokens/grid.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Q queries of each image attend to the N keys of a grid.  Only the keys in the first cells[b][0] rows and the first
 * cells[b][1] columns, at least one of each, belong to image b; the others are padding and get no weight. */
typedef struct {
    int B, H, D, Q;
    Grid grid;         /* of the keys */
    int q_row, kv_row; /* row strides of q, and of k and v: 3*M within qkv */
    const int *cells;  /* [B,2], or NULL: no padding */
    Dropout dropout;   /* of the attention weights.  The weight's element is (head*Q + query) * N' + j, with N' = N
                          rounded up to a multiple of 128 and j the key's index among the keys without padding */
    int scale_type;    /* 0: no modulation */
} MaskedAttention;

/* Spatial modulation adds G to the score of the key in cell (gx, gy).  With (dx, dy) = centre - (gx, gy),
 *   type 1  G = -(dx^2 + dy^2) / 8
 *   type 2  G = -z^2 (dx^2 + dy^2) / 8
 *   type 3  G = -(zx^2 dx^2 + zy^2 dy^2) / 8
 *   type 4  G = -(zx^2 dx^2 + zy^2 dy^2 + zw^2 dx^2 dy^2) / 8
 * where each query and head has a centre and modulation_scales numbers z. */
static inline int modulation_scales(int scale_type) { return scale_type > 0 ? scale_type - 1 : 0; }
typedef struct {
    const float *centre; /* [B,Q,H,2]: x, y in cells */
    const real *z;       /* [B,Q,H,scales], or NULL for type 1 */
} Modulation;
typedef struct {
    float *centre; /* [B,Q,H,2] (=) */
    real *z;       /* [B,Q,H,scales] (=) */
} ModulationGradients;

typedef struct {
    const real *q, *k, *v; /* q [B,Q,H,D] with row stride q_row;  k, v [B,N,H,D] with row stride kv_row */
} MaskedInputs;
typedef struct {
    real *q, *k, *v; /* (=), laid out like the inputs;  zero for padding in k and v */
} MaskedGradients;

/* y_n = sum_m drop(softmax_m(q_n.k_m / sqrt D + G_nm)) v_m, without storing a Q x N matrix.
 * y [B,Q,H,D] real;  lse [B,H,Q] float: log-sum-exp of each query's scores (saved);  m NULL if scale_type is 0. */
void masked_attention_forward(real *y, float *lse, const MaskedInputs *in, const Modulation *m,
                              const MaskedAttention *shape);
/* m and dm are NULL if scale_type is 0. */
void masked_attention_backward(const MaskedGradients *d, const ModulationGradients *dm, const real *dy, const real *y,
                               const float *lse, const MaskedInputs *in, const Modulation *m,
                               const MaskedAttention *shape);
/* Enough for all shapes up to this one. */
size_t masked_attention_workspace(const MaskedAttention *shape);

/* Sets the features of keys that are padding to zero: the k half of phi, or of its gradient.
 * phi [B,N,2,H,F] (updated);  cells [B,2] as in MaskedAttention. */
void mask_features(real *phi, const int *cells, int B, Grid grid, int H, int F);

/* == Positions, reference points and boxes of the detector ======================================================== */

/* The sine position embedding of DETR.  For a cell in row Y and column X, counted from 1, of an image with `rows` rows
 * and `columns` columns of cells,
 *   channel i < M/2: sin(e / f_i) for even i, cos(e / f_i) for odd i,
 *   e = 2 pi Y / (rows + 1e-6),  f_i = 10000^(2 floor(i/2) / (M/2)),
 * and channels M/2 .. M-1 likewise with X and columns.  As in DETR, Y is 0 in columns of padding and X is 0 in rows of
 * padding.  pos [B,N,M] real, M a multiple of 4;  cells [B,2] as in MaskedAttention. */
void sine_positions(real *pos, const int *cells, int B, Grid grid, int M);

/* reference = sigmoid(raw) * (width, height) / 32: reference points in cells of 32 x 32 pixels.
 * reference [B,Q,2] float: x, y;  raw [B,Q,2] real;  sizes [B,2] int: height and width of each image in pixels. */
void reference_points_forward(float *reference, const real *raw, const int *sizes, int B, int Q);
/* The gradient of raw: through the reference points, plus draw_boxes, the gradient through the boxes.
 * draw [B,Q,2] real (=);  draw_boxes [B,Q,2] float from boxes_backward;  dreference [B,Q,2] float. */
void reference_points_backward(real *draw, const float *draw_boxes, const float *dreference, const real *raw,
                               const int *sizes, int B, int Q);
/* centre = reference + offset.  centre [n,H,2] float;  reference [n,2] float;  offset [n,H,2] real. */
void centres_forward(float *centre, const float *reference, const real *offset, size_t n, int H);
/* doffset [n,H,2] real (=);  dreference [n,2] (+=). */
void centres_backward(real *doffset, float *dreference, const float *dcentre, size_t n, int H);
/* boxes = sigmoid(u + (raw, 0, 0)) for the predictions u of all L decoder layers: centre x, centre y, width and height,
 * as fractions of the image.  boxes [L,n,4] float;  u [L,n,4] real;  raw [n,2] real. */
void boxes_forward(float *boxes, const real *u, const real *raw, int L, size_t n);
/* du [L,n,4] real (=);  draw [n,2] float (=), summed over the layers. */
void boxes_backward(real *du, float *draw, const float *dboxes, const float *boxes, int L, size_t n);

#ifdef __cplusplus
}
#endif

#endif
