/* Writes the attention weights of a vision transformer for scripts/plots/plot_attention.py, which plots them. */
#ifndef VIT_LAYERS_VIT_ATTENTION_PICTURE_H
#define VIT_LAYERS_VIT_ATTENTION_PICTURE_H

#include <stdint.h>

#include "layers/vit/vit.h"

/* Writes a safetensors file about the first image or clip of the last forward pass.  pixels [T0,Hi,Wi,3] are its
 * pixels.  The model must have one stage, and its training plan must be the current one, since only that keeps what is
 * read here.
 *   weights         [depth,heads,4,N]  attention weights of four query tokens, the centres of the quadrants of the image,
 *                                      or of a clip's middle frame of tokens
 *   spatial         [depth,heads,4,N]  the part of them that depends on position alone (AttentionOp.spatial)
 *   matrix, spatial_matrix [depth,heads,N,N]  the same for all query tokens, omitted from 64 MB on
 *   norms           [depth+1,N]        Euclidean norms of the tokens, before the first block and after each block
 *   queries         [4]                indices of the four query tokens
 *   image           [Hi,Wi,3]          values from 0 to 1; of a clip [T,Hi,Wi,3], the frame in the middle of the patches
 *                                      of each frame of tokens
 * and, as metadata, grid ("8x8", of a clip "4x8x8") and attn.  A weight is NaN if the operator has no such weights, or
 * for a class token that is added in a later block.  Dies with a message that names the file and the reason. */
void attention_picture_write(const Vit *vit, const uint8_t *pixels, const char *path);

#endif
