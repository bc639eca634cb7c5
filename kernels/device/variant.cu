// A program for a GPU holds one variant, of one precision.
#include <cstdio>
#include <cstring>

#include "kernels/device/variants.h"
#include "real.h"

const char *kernels_instructions(void) { return "CUDA"; }
const char *kernels_default_precision(void) { return sizeof(real) == 2 ? PRECISION_BFLOAT16 : PRECISION_FLOAT32; }

KernelsChoice kernels_choose(const char *isa, const char *precision) {
    KernelsChoice choice = {NULL, NULL, ""};
    const char *own = kernels_default_precision();
    if (strcmp(isa, ISA_AUTO)) {
        choice.refused = "isa";
        snprintf(choice.why, sizeof choice.why, "chooses among a CPU's instructions, and this program computes on a GPU");
    } else if (strcmp(precision, own)) {
        choice.refused = "precision";
        snprintf(choice.why, sizeof choice.why, "this program was built for %s: make cuda PRECISION=%s builds one for it",
                 own, sizeof(real) == 2 ? "FP32" : "BF16");
    }
    return choice;
}
