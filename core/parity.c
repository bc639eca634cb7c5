#include "core/parity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint.h"
#include "core/die.h"
#include "kernels/kernels.h"

enum { ERROR_SIZE = 512 };

void parity_parameters(Params *params, const SafeTensors *st) {
    char error[ERROR_SIZE];
    int present = 0;
    for (int i = 0; i < params->count; i++) present += safetensors_find(st, params->items[i].name) != NULL;
    if (present && !checkpoint_read_weights(params, params->values, st, "", NULL, error, sizeof error))
        die("%s", error);
}

void parity_write(const char *path, const SafeTensorEntry *outputs, int count, const Params *params) {
    size_t most = (size_t)(params->count + count);
    SafeTensorEntry *out = xcalloc(most, sizeof *out, "parity");
    char(*names)[PARAM_NAME_SIZE + 8] = xcalloc(most, sizeof *names, "parity"), error[ERROR_SIZE];
    float *grads = xcalloc(params->total, sizeof *grads, "parity");
    device_download(grads, params->grads, params->total * sizeof *grads);
    memcpy(out, outputs, (size_t)count * sizeof *outputs);
    for (int i = 0; i < params->count; i++) {
        const Param *p = &params->items[i];
        SafeTensorEntry *to = &out[count];
        if (p->frozen) continue;
        snprintf(names[count], sizeof names[count], "grad.%s", p->name);
        *to = (SafeTensorEntry){.name = names[count++], .dtype = SAFE_F32, .ndim = p->ndim, .data = grads + p->offset};
        for (int d = 0; d < p->ndim; d++) to->shape[d] = (size_t)p->shape[d];
    }
    if (!safetensors_write(path, out, count, NULL, 0, error, sizeof error)) die("%s", error);
    free(grads);
    free(names);
    free(out);
}
