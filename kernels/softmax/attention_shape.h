/* The sizes that most attention kernels share. */
#ifndef VIT_KERNELS_SOFTMAX_ATTENTION_SHAPE_H
#define VIT_KERNELS_SOFTMAX_ATTENTION_SHAPE_H

/* The sizes of qkv [B,N,3,H,D] and y [B,N,H,D].  Kernels for which heads do not matter use M = H*D. */
typedef struct {
    int B, N, H, D;
} AttentionShape;

/* The same, with the size of the features phi [B,N,2,H,F] of q and of k.  A kernel reads only the sizes that appear in
 * the shapes of its contract. */
typedef struct {
    int B, N, H, D, F;
} FeatureShape;

#endif
