/* The variants of this program.  Each leaves a pointer to its Variant in a section of the program that the linker makes
 * an array of; nothing else of it is visible from outside, as its other symbols are local (Makefile, "Variants"). Like
 * processor.h, what is defined here is also compiled for the oldest processor. */
#ifndef VIT_KERNELS_DEVICE_VARIANT_H
#define VIT_KERNELS_DEVICE_VARIANT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/device/processor.h"
#include "kernels/device/variants.h"

typedef struct {
    ProgramMain *main;
    const char *isa, *precision; /* the names of --isa and --precision; isa is "" if --isa has no name for it */
    const char *instructions;    /* kernels_instructions */
    const ProcessorNeed *needs;
} Variant;

/* The linker's names for the ends of the section vit_variants. */
extern const Variant *const variants_begin[] __asm__("__start_vit_variants");
extern const Variant *const variants_end[] __asm__("__stop_vit_variants");

/* Variant i in the order of linking, which is that of preference; NULL behind the last. */
static inline const Variant *variant_at(int i) {
    return (uintptr_t)(variants_begin + i) < (uintptr_t)variants_end ? variants_begin[i] : NULL;
}

/* The first variant with that isa (ISA_AUTO: any) and that precision (NULL: any); if `runs`, that this machine can run.
 * NULL: there is none. */
static inline const Variant *variant_find(const char *isa, const char *precision, bool runs) {
    const Variant *v;
    char lacks[8];
    for (int i = 0; (v = variant_at(i)); i++) {
        if (strcmp(isa, ISA_AUTO) && strcmp(isa, v->isa)) continue;
        if (precision && strcmp(precision, v->precision)) continue;
        if (!runs || processor_runs(v->needs, lacks, sizeof lacks)) return v;
    }
    return NULL;
}

/* float32, if there is a variant of it. */
static inline const char *variant_default_precision(void) {
    return variant_find(ISA_AUTO, PRECISION_FLOAT32, false) ? PRECISION_FLOAT32 : PRECISION_BFLOAT16;
}

#endif
