/* Parity: how any other framework is compared with this one, by files that carry parameters in and gradients out. */
#ifndef VIT_CORE_PARITY_H
#define VIT_CORE_PARITY_H

#include "core/params.h"
#include "core/safetensors.h"

/* Opens the file, which must have float32 `images` [B,3,H,W] and as many `labels`, and tells H and W. */
void parity_images(SafeTensors *st, const char *path, int size[2]);
/* Its labels [B], each below `classes`. */
void parity_labels(const SafeTensors *st, const char *path, int *labels, int B, int classes);

/* Parameters and buffers that travel in the file replace the model's; all of them or none. */
void parity_parameters(Params *params, const SafeTensors *st);

/* The outputs, and grad.<parameter> of every parameter. */
void parity_write(const char *path, const SafeTensorEntry *outputs, int count, const Params *params);

#endif
