/* The interface between the layers and a device.  Both backends, the .c and the .cu files in the folders of kernels/,
 * implement every function of these headers, and a program chooses one by the objects it links.
 *
 * Letters.  B images, N tokens, M model width (M = H*D), H heads, D head width, F features of a feature map, E inner
 * width of that map or patterns of LiSA, T entries of a table of relative positions, R sticks of ripple attention, G
 * its vicinal groups, C channels or classes, P patch size; Hg x Wg the rows and columns of the token grid
 * (kernels/tokens/grid.h, N = Hg*Wg), Hi x Wi the image; n, rows: any number of rows.  Causal attention: B sequences,
 * heads of Dk for queries and keys and Dv for values, V different bytes.
 *
 * Rules for all functions.
 *   Activations are `real` (kernels/<backend>/real.h); parameters, their gradients, statistics and sums are float.
 *   Gradients of parameters accumulate, marked (+=); gradients of activations overwrite, marked (=).  The few
 *   exceptions are marked as well.  "(saved)" marks outputs of forward that backward reads.
 *   The order of arguments is outputs, inputs, parameters, what forward saved, sizes.  Sizes are int; their products
 *   are computed as size_t.  Sizes that a family of functions shares are a struct, and a token grid is always a Grid.
 *   These rules hold for pointers in a struct as for arguments.
 *   A row stride (x_row, ...) is the number of elements from the start of one token's row to the start of the next:
 *   more than the row's length if the row is part of a wider tensor, such as the k of each token within qkv.
 *   No two tensors of a call may overlap unless the contract says so.  Any size >= 1 works, with any alignment.
 *   Every kernel is deterministic: the same arguments and number of threads give the same bits.
 *   Pointers are to device memory except where an argument says `host`.
 *   Kernels do not allocate memory.  A kernel that needs workspace has a function *_workspace that returns the bytes;
 *   the caller gives the largest of them to kernels_reserve before the first call.
 *
 * Layout of attention.  qkv [B,N,3,H,D] is the output of the fused projection: each token's row is its q, k and v (the
 * "thirds"), each H heads of D.  y [B,N,H,D] is the input of the output projection.
 *
 * Each family of kernels has its own header, which can be included by itself; this one includes them all. */
#ifndef VIT_KERNELS_H
#define VIT_KERNELS_H

#include "kernels/convolution/convolution.h"
#include "kernels/device/collective.h"
#include "kernels/device/device.h"
#include "kernels/device/variants.h"
#include "kernels/landmarks/landmarks.h"
#include "kernels/linear/dropout.h"
#include "kernels/linear/elementwise.h"
#include "kernels/linear/linear.h"
#include "kernels/linear_attention/feature_maps.h"
#include "kernels/linear_attention/linear_attention.h"
#include "kernels/linear_attention/operator_features.h"
#include "kernels/linear_attention/relative_positions.h"
#include "kernels/lisa/global_filter.h"
#include "kernels/lisa/lisa.h"
#include "kernels/norm/batch_norm.h"
#include "kernels/norm/group_norm.h"
#include "kernels/norm/l2_normalize.h"
#include "kernels/norm/norm_gelu.h"
#include "kernels/norm/norms.h"
#include "kernels/offsets/offsets.h"
#include "kernels/offsets/patterns.h"
#include "kernels/offsets/weighted_attention.h"
#include "kernels/regions/resize.h"
#include "kernels/regions/roi_align.h"
#include "kernels/ripple/ripple.h"
#include "kernels/softmax/attention_shape.h"
#include "kernels/softmax/causal_attention.h"
#include "kernels/softmax/masked_attention.h"
#include "kernels/softmax/position_attention.h"
#include "kernels/softmax/softmax_attention.h"
#include "kernels/tokens/byte_tokens.h"
#include "kernels/tokens/grid.h"
#include "kernels/tokens/images.h"
#include "kernels/tokens/sequence_pool.h"
#include "kernels/tokens/table_resampling.h"
#include "kernels/tokens/tokens.h"
#include "kernels/tokens/windows.h"
#include "kernels/training/distillation.h"
#include "kernels/training/optimizer.h"
#include "kernels/training/pixel_cross_entropy.h"
#include "real.h"

#endif
