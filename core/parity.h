/* Parity: how any other framework is compared with this one, by files that carry parameters in and gradients out. */
#ifndef VIT_CORE_PARITY_H
#define VIT_CORE_PARITY_H

#include "core/params.h"
#include "core/safetensors.h"

/* Parameters and buffers that travel in the file replace the model's; all of them or none. */
void parity_parameters(Params *params, const SafeTensors *st);

/* The outputs, and grad.<parameter> of every parameter. */
void parity_write(const char *path, const SafeTensorEntry *outputs, int count, const Params *params);

#endif
