/* Writes the attention weights of a density model for scripts/plots/plot_attention.py, which plots them over a picture
 * whose lower half is still to be sampled. */
#ifndef VIT_LAYERS_DENSITY_SEQUENCE_PICTURE_H
#define VIT_LAYERS_DENSITY_SEQUENCE_PICTURE_H

#include "layers/density/sequence_model.h"

/* Writes a safetensors file about the first picture of the last forward pass, whose bytes are `tokens` [n].  The
 * training plan must be the current one, without recompute, since only that keeps what is read here.
 *   weights   [depth,heads,4,n]  attention to each byte in the prediction of four bytes; 0 where
 *                                the set of keys does not contain it; without the weight of the start vector
 *   queries   [4]                these bytes: the first channel in the middle of rows H/4, H/2, 3H/4 and H-1
 *   image     [H,W,3]            values from 0 to 1
 * and, as metadata, grid ("16x16"), channels and attn.  Dies with a message that names the file and the reason. */
void sequence_picture_write(const SequenceModel *m, const uint8_t *tokens, const char *attn, const char *path);

#endif
