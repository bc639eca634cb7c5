/* --parity: comparison with other frameworks, through files with parameters as input and gradients as output. */
#ifndef VIT_TRAINING_PARITY_H
#define VIT_TRAINING_PARITY_H

#include "training/params.h"
#include "core/safetensors.h"

/* Opens the file, which must have float32 `images` [B,3,H,W], or clips: `images` [B,frames,3,H,W], or `clips`
 * [B,3,frames,H,W] as PyTorch's Conv3d takes them; and `labels` [B].  Writes H and W to size, and to frames their
 * number, 1 for images. */
void parity_images(SafeTensors *st, const char *path, int size[2], int *frames);
/* Its pixels, [B,3,H,W] or [B,frames,3,H,W], which the caller frees, and B. */
float *parity_pixels(const SafeTensors *st, int *B);
/* Reads the labels [B]; dies unless each is a class index below `classes`. */
void parity_labels(const SafeTensors *st, const char *path, int *labels, int classes);

/* Opens the file, which must have int64 `tokens` [B,H,W,C] of images or [B,n+1] of text; writes its sizes to dims and
 * returns their number. */
enum { PARITY_TOKEN_DIMS = 4 };
int parity_tokens(SafeTensors *st, const char *path, int dims[PARITY_TOKEN_DIMS]);
/* Reads all of the tokens; dies unless each is below `vocabulary`. */
void parity_token_values(const SafeTensors *st, const char *path, int *tokens, int vocabulary);

/* Replaces the model's parameters and buffers by those in the file, which must have all of them or none.  A file with
 * only parameters of another model is refused; if it has additional ones, a line names them. */
void parity_parameters(Params *params, const SafeTensors *st);

/* Writes the outputs, and the gradient of every parameter as grad.<parameter>. */
void parity_write(const char *path, const SafeTensorEntry *outputs, int count, const Params *params);

#endif
