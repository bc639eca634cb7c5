/* The only door between the layers and a device.  The backend is chosen by linking build/cpu or build/cuda objects:
 * no function table, no #ifdef above this folder, and a test cannot tell which backend it has.
 *
 * Letters.  B images, N tokens, M model width (M = H*D), H heads, D head width, F features of a feature map,
 * E inner width of that map or patterns of LiSA, T entries of a table of relative positions, R sticks of ripple
 * attention, G its vicinal groups, C classes, P patch size; Hg x Wg the rows and columns of the token grid
 * (kernels/grid.h, N = Hg*Wg), Hi x Wi the image; n, rows: any number of rows.
 *
 * Rules, stated once.
 *   Activations are `real` (kernels/<backend>/real.h); parameters, their gradients, statistics and sums are float.
 *   Gradients of parameters accumulate (+=); gradients of activations overwrite (=).  Each gradient argument says
 *   which.
 *   Arguments: outputs, inputs, parameters, what forward saved, sizes.  Sizes are int; products are formed as size_t.
 *   Sizes that the calls of a family share are a struct, and a token grid is always a Grid.  A pointer in a struct is
 *   like one among the arguments.
 *   Nothing overlaps unless the contract says so.  Any size >= 1 works, and no alignment is asked.
 *   Every kernel gives the same bits again for the same arguments and the same number of threads.
 *   Pointers are device memory except where an argument says `host`.
 *   Kernels allocate nothing: the ones that need workspace have a *_workspace function, whose largest answer is given
 *   to kernels_reserve before the first call.
 *
 * The rows of attention.  qkv is the output of the fused projection everywhere: [B,N,3,H,D], so its rows are 3*M long:
 * q, k, v, head by head.  y [B,N,H,D] is the input of the output projection as it stands.
 *
 * Each family of kernels has its own header, which can be included by itself; this one includes them all. */
#ifndef VIT_KERNELS_H
#define VIT_KERNELS_H

#include "kernels/attention_shape.h"
#include "kernels/collective.h"
#include "kernels/convolution.h"
#include "kernels/device.h"
#include "kernels/dropout.h"
#include "kernels/feature_maps.h"
#include "kernels/global_filter.h"
#include "kernels/grid.h"
#include "kernels/images.h"
#include "kernels/landmarks.h"
#include "kernels/linear.h"
#include "kernels/linear_attention.h"
#include "kernels/lisa.h"
#include "kernels/masked_attention.h"
#include "kernels/norms.h"
#include "kernels/offsets.h"
#include "kernels/operator_features.h"
#include "kernels/optimizer.h"
#include "kernels/position_attention.h"
#include "kernels/relative_positions.h"
#include "kernels/ripple.h"
#include "kernels/softmax_attention.h"
#include "kernels/tokens.h"
#include "real.h"

#endif
