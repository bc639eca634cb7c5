/* What the kernels of this program were compiled for.  A program for a CPU may hold several variants, each all of its
 * code for one set of instructions and one precision; the launcher starts one of them (kernels/cpu/launcher). */
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

/* The precision of activations where none is asked for. */
const char *kernels_default_precision(void);

/* The variant that was asked for, if this program holds it and this machine can run it. */
typedef struct {
    ProgramMain *main;   /* its main; NULL: it is the one that asks */
    const char *refused; /* NULL, or the argument that cannot be met, "isa" or "precision"; main is NULL then */
    char why[256];       /* the reason, for a message that begins with the argument's name and value */
} KernelsChoice;

/* Looks for the variant with these instructions and this precision.  If it is this one and the instructions were named,
 * libraries are held to them as well, so this must come before their first use. */
KernelsChoice kernels_choose(const char *isa, const char *precision);

#ifdef __cplusplus
}
#endif

#endif
