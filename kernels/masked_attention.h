/* The detector's attention, with padding, dropout and spatial modulation (SMCA), and what its queries know of
 * places. */
#ifndef VIT_KERNELS_MASKED_ATTENTION_H
#define VIT_KERNELS_MASKED_ATTENTION_H

#include <stddef.h>

#include "kernels/dropout.h"
#include "kernels/grid.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Q queries of each image look at the N keys of a grid, of which its first cells[b][0] rows and first cells[b][1]
 * columns count, at least one of each; the other keys are padding, which no query sees. */
typedef struct {
    int B, H, D, Q;
    Grid grid;         /* of the keys */
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

typedef struct {
    const real *q, *k, *v; /* [B,Q,H,D], rows q_row apart;  [B,N,H,D] both, rows kv_row apart */
} MaskedInputs;
typedef struct {
    real *q, *k, *v; /* laid out alike (=), those of k and v zero where padding */
} MaskedGradients;

/* y_n = sum_m drop(softmax_m(q_n.k_m / sqrt D + G_nm)) v_m.  No Q x N in memory.
 * y [B,Q,H,D] real;  lse [B,H,Q] float (saved);  m NULL without modulation. */
void masked_attention_forward(real *y, float *lse, const MaskedInputs *in, const Modulation *m,
                              const MaskedAttention *shape);
/* dm NULL without modulation. */
void masked_attention_backward(const MaskedGradients *d, const ModulationGradients *dm, const real *dy, const real *y,
                               const float *lse, const MaskedInputs *in, const Modulation *m,
                               const MaskedAttention *shape);
/* Of all shapes up to this one. */
size_t masked_attention_workspace(const MaskedAttention *shape);

/* Features of padding become zero: the k half of phi, or of its gradient.  phi [B,N,2,H,F];  cells [B,2]. */
void mask_features(real *phi, const int *cells, int B, Grid grid, int H, int F);

/* == What the detector's queries know of places =================================================================== */

/* Sine positions of DETR: with (Y, X) a cell's number, from 1, over the rows and columns of its image,
 *   e = 2 pi Y / (rows + 1e-6),  channel i < M/2: sin(e / f_i) for even i, cos for odd,
 *   f_i = 10000^(2 floor(i/2) / (M/2)),
 * then X likewise.  Y is 0 in a column of padding, X in a row.  pos [B,N,M] real, M a multiple of 4;  cells [B,2]. */
void sine_positions(real *pos, const int *cells, int B, Grid grid, int M);

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

#ifdef __cplusplus
}
#endif

#endif
