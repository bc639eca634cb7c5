/* The processors and precisions that this program was compiled for.  A program for a CPU may contain several variants:
 * all of its code, compiled for one instruction set and one precision.  The launcher starts one of them
 * (kernels/cpu/launcher). */
#ifndef VIT_KERNELS_DEVICE_VARIANTS_H
#define VIT_KERNELS_DEVICE_VARIANTS_H

#ifdef __cplusplus
extern "C" {
#endif

/* The values of the settings `isa` and `precision`.  ISA_AUTO leaves the choice of instructions to the program. */
#define ISA_AUTO "auto"
#define ISA_AVX2 "avx2"
#define ISA_AVX512 "avx512"
#define PRECISION_FLOAT32 "float32"
#define PRECISION_BFLOAT16 "bfloat16"

typedef int ProgramMain(int argc, char **argv);

/* The vectors that this code uses, as in "AVX2", for the report of a run; no longer than 31 characters. */
const char *kernels_instructions(void);

/* The default precision of activations. */
const char *kernels_default_precision(void);

/* A variant that was requested, if this program contains it and this machine can run it. */
typedef struct {
    ProgramMain *main;   /* its main; NULL: it is the calling variant */
    const char *refused; /* NULL, or the argument that cannot be met, "isa" or "precision"; main is NULL then */
    char why[256];       /* the reason, for a message that begins with the argument's name and value */
} KernelsChoice;

/* Looks for the variant with these instructions and this precision.  If it is this variant and the instructions were
 * given explicitly, libraries are limited to them as well, so call this before their first use. */
KernelsChoice kernels_choose(const char *isa, const char *precision);

#ifdef __cplusplus
}
#endif

#endif
