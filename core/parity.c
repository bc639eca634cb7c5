#include "core/parity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint.h"
#include "core/die.h"
#include "kernels/kernels.h"

void parity_parameters(Params *params, const SafeTensors *st) {
    Error error;
    int present = 0;
    for (int i = 0; i < params_count(params); i++) present += safetensors_find(st, params_at(params, i)->name) != NULL;
    if (present && !checkpoint_read_weights(params, params->values, st, "", NULL, &error))
        die("%s", error.text);
}

void parity_write(const char *path, const SafeTensorEntry *outputs, int count, const Params *params) {
    size_t most = (size_t)params_count(params) + (size_t)count;
    SafeTensorEntry *out = xcalloc(most, sizeof *out, "parity");
    char(*names)[PARAM_NAME_SIZE + 8] = xcalloc(most, sizeof *names, "parity");
    Error error;
    float *grads = xcalloc(params->total, sizeof *grads, "parity");
    device_download(grads, params->grads, params->total * sizeof *grads);
    memcpy(out, outputs, (size_t)count * sizeof *outputs);
    for (int i = 0; i < params_count(params); i++) {
        const Param *p = params_at(params, i);
        SafeTensorEntry *to = &out[count];
        if (p->frozen) continue;
        snprintf(names[count], sizeof names[count], "grad.%s", p->name);
        *to = (SafeTensorEntry){.name = names[count++], .dtype = SAFE_F32, .ndim = p->ndim, .data = grads + p->offset};
        for (int d = 0; d < p->ndim; d++) to->shape[d] = (size_t)p->shape[d];
    }
    if (!safetensors_write(path, out, count, NULL, 0, &error)) die("%s", error.text);
    free(grads);
    free(names);
    free(out);
}
