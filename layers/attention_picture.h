/* The numbers that pictures of attention are drawn from (scripts/plot_attention.py): where every head looks. */
#ifndef VIT_LAYERS_ATTENTION_PICTURE_H
#define VIT_LAYERS_ATTENTION_PICTURE_H

#include <stdint.h>

#include "layers/vit.h"

/* Writes a safetensors file about the first image of the last forward pass; pixels [Hi,Wi,3] are that image.  The model
 * has one stage, and its training plan is in force, which keeps what is read here.
 *   weights         [depth,heads,4,N]  what each head weighs from four query tokens, the centres of the quadrants
 *   spatial         [depth,heads,4,N]  what the distance alone decides of it
 *   matrix, spatial_matrix [depth,heads,N,N]  the same from all tokens, where they stay below 64 MB
 *   norms           [depth+1,N]        the length of every token before the first block and after each
 *   queries         [4]                as token numbers
 *   image           [Hi,Wi,3]          0 to 1
 * and, as metadata, grid ("8x8") and attn.  NaN: the operator has no such weights, or the class token has yet to join.
 * Dies with the file and the reason. */
void attention_picture_write(const Vit *vit, const uint8_t *pixels, const char *path);

#endif
