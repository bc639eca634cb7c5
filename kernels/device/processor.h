/* The features that compiled code needs from a processor, and whether this processor has them.  These functions are
 * also compiled for the oldest processor, for the launcher, which calls them before anything else. */
#ifndef VIT_KERNELS_DEVICE_PROCESSOR_H
#define VIT_KERNELS_DEVICE_PROCESSOR_H

#include <stdbool.h>
#include <stddef.h>

/* X(macro, leaf, subleaf, register, bit, state): the x86 features whose instructions a compiler uses by itself, named
 * by their predefined macros: __AVX2__.  A feature can be used if cpuid reports it and the system saves its registers,
 * which are those bits of XCR0. */
#if defined(__x86_64__)
#define PROCESSOR_FEATURES(X)                      \
    X(SSE3, 1, 0, ECX, 0, 0)                       \
    X(SSSE3, 1, 0, ECX, 9, 0)                      \
    X(SSE4_1, 1, 0, ECX, 19, 0)                    \
    X(SSE4_2, 1, 0, ECX, 20, 0)                    \
    X(POPCNT, 1, 0, ECX, 23, 0)                    \
    X(AVX, 1, 0, ECX, 28, YMM)                     \
    X(AVX2, 7, 0, EBX, 5, YMM)                     \
    X(FMA, 1, 0, ECX, 12, YMM)                     \
    X(F16C, 1, 0, ECX, 29, YMM)                    \
    X(BMI, 7, 0, EBX, 3, 0)                        \
    X(BMI2, 7, 0, EBX, 8, 0)                       \
    X(LZCNT, 0x80000001, 0, ECX, 5, 0)             \
    X(MOVBE, 1, 0, ECX, 22, 0)                     \
    X(ADX, 7, 0, EBX, 19, 0)                       \
    X(SSE4A, 0x80000001, 0, ECX, 6, 0)             \
    X(FMA4, 0x80000001, 0, ECX, 16, YMM)           \
    X(XOP, 0x80000001, 0, ECX, 11, YMM)            \
    X(TBM, 0x80000001, 0, ECX, 21, 0)              \
    X(GFNI, 7, 0, ECX, 8, 0)                       \
    X(VAES, 7, 0, ECX, 9, YMM)                     \
    X(VPCLMULQDQ, 7, 0, ECX, 10, YMM)              \
    X(AVXVNNI, 7, 1, EAX, 4, YMM)                  \
    X(AVXIFMA, 7, 1, EAX, 23, YMM)                 \
    X(AVXVNNIINT8, 7, 1, EDX, 4, YMM)              \
    X(AVXNECONVERT, 7, 1, EDX, 5, YMM)             \
    X(AVXVNNIINT16, 7, 1, EDX, 10, YMM)            \
    X(AVX512F, 7, 0, EBX, 16, ZMM)                 \
    X(AVX512CD, 7, 0, EBX, 28, ZMM)                \
    X(AVX512BW, 7, 0, EBX, 30, ZMM)                \
    X(AVX512DQ, 7, 0, EBX, 17, ZMM)                \
    X(AVX512VL, 7, 0, EBX, 31, ZMM)                \
    X(AVX512IFMA, 7, 0, EBX, 21, ZMM)              \
    X(AVX512VBMI, 7, 0, ECX, 1, ZMM)               \
    X(AVX512VBMI2, 7, 0, ECX, 6, ZMM)              \
    X(AVX512VNNI, 7, 0, ECX, 11, ZMM)              \
    X(AVX512BITALG, 7, 0, ECX, 12, ZMM)            \
    X(AVX512VPOPCNTDQ, 7, 0, ECX, 14, ZMM)         \
    X(AVX512BF16, 7, 1, EAX, 5, ZMM)               \
    X(AVX512FP16, 7, 0, EDX, 23, ZMM)              \
    X(APX_F, 7, 1, EDX, 21, EGPR)
#else
#define PROCESSOR_FEATURES(X)
#endif

/* The features that a file was compiled for, by PROCESSOR_NEEDS in it: for each feature "1", or the macro's own name if
 * it is not defined.  These are plain data, which can be read on any processor. */
typedef char ProcessorNeed[24];
#define PROCESSOR_TEXT(macro) #macro
#define PROCESSOR_NEED_OF(macro) PROCESSOR_TEXT(macro),
#define PROCESSOR_NEED(name, leaf, subleaf, out, bit, state) PROCESSOR_NEED_OF(__##name##__)
#define PROCESSOR_NEEDS {PROCESSOR_FEATURES(PROCESSOR_NEED) ""}

/* Can this machine run code with those needs?  If not, `lacks` names the missing features, "AVX2 FMA", or the first
 * ones that fit in `size`, at least 5: "AVX2 FMA ...". */
bool processor_runs(const ProcessorNeed *needs, char *lacks, size_t size);

/* Is there a feature of that name in the list above, and does this machine have it? */
bool processor_has(const char *name);

#endif
