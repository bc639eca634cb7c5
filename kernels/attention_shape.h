/* The sizes that most kernels of attention share. */
#ifndef VIT_KERNELS_ATTENTION_SHAPE_H
#define VIT_KERNELS_ATTENTION_SHAPE_H

/* Of qkv [B,N,3,H,D] and y [B,N,H,D].  Kernels that do not tell heads apart read M = H*D. */
typedef struct {
    int B, N, H, D;
} AttentionShape;

/* The same with features phi [B,N,2,H,F], q's then k's.  A size that the shapes in a contract do not name is not
 * read. */
typedef struct {
    int B, N, H, D, F;
} FeatureShape;

#endif
