/* The variant of this code, and its access to the others. */
#include "kernels/device/variant.h"
#include "kernels/device/variants.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "kernels/device/library.h"
#include "real.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512CD__) && defined(__AVX512DQ__) && \
    defined(__AVX512VL__)
#define ISA ISA_AVX512
#define INSTRUCTIONS "AVX-512"
#elif defined(__AVX2__) && defined(__FMA__)
#define ISA ISA_AVX2
#define INSTRUCTIONS "AVX2"
#elif defined(__x86_64__)
#define ISA ""
#define INSTRUCTIONS "SSE"
#elif defined(__aarch64__)
#define ISA ""
#define INSTRUCTIONS "NEON"
#else
#define ISA ""
#define INSTRUCTIONS "vectors of the compiler's choice"
#endif

extern int main(int argc, char **argv);

static const ProcessorNeed needs[] = PROCESSOR_NEEDS;
static const Variant own = {.main = main,
                            .isa = ISA,
                            .precision = sizeof(real) == 2 ? PRECISION_BFLOAT16 : PRECISION_FLOAT32,
                            .instructions = INSTRUCTIONS,
                            .needs = needs};
static const Variant *const listed __attribute__((section("vit_variants"), used)) = &own;

const char *kernels_instructions(void) { return own.instructions; }
const char *kernels_default_precision(void) { return variant_default_precision(); }

/* "AVX-512 and AVX2": the vectors of this program's variants. */
static void name_instructions(char *text, size_t size) {
    const char *last = "";
    const Variant *v;
    size_t at = 0;
    *text = 0;
    for (int i = 0; (v = variant_at(i)); i++) {
        if (!strcmp(v->instructions, last)) continue;
        last = v->instructions;
        int length = snprintf(text + at, size - at, "%s%s", at ? " and " : "", last);
        if (length < (int)(size - at)) at += (size_t)length;
    }
}

__attribute__((format(printf, 2, 3))) static KernelsChoice refused(const char *argument, const char *format, ...) {
    KernelsChoice choice = {.refused = argument};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(choice.why, sizeof choice.why, format, arguments);
    va_end(arguments);
    return choice;
}

static KernelsChoice refuse_isa(const char *isa) {
    const Variant *v = variant_find(isa, variant_default_precision(), false);
    char text[160];
    if (!v) v = variant_find(isa, NULL, false);
    if (v) processor_runs(v->needs, text, sizeof text);
    else name_instructions(text, sizeof text);
    if (v) return refused("isa", "this machine lacks %s", text);
    return refused("isa", "this program was built for %s; on x86-64, make ARCH=portable builds one for AVX2 and AVX-512",
                   text);
}

static KernelsChoice refuse_precision(const char *isa, const char *precision) {
    const Variant *any = variant_find(ISA_AUTO, precision, false), *v = variant_find(isa, precision, false);
    char lacks[80];
    if (v && !processor_runs(v->needs, lacks, sizeof lacks)) return refused("precision", "this machine lacks %s", lacks);
    if (any) return refused("precision", "this program has it for %s, and not for --isa %s", any->instructions, isa);
    if (strcmp(precision, PRECISION_BFLOAT16))
        return refused("precision", "this program was built only for bfloat16: make without PRECISION=BF16 builds one "
                                    "for float32");
    if (!processor_has("AVX512BF16"))
        return refused("precision", "this processor has no instructions for it (on x86-64, AVX512-BF16)");
    return refused("precision", "this program was built only for float32: on this machine, make builds one for both");
}

KernelsChoice kernels_choose(const char *isa, const char *precision) {
    bool named = strcmp(isa, ISA_AUTO) != 0, here = !strcmp(precision, own.precision) && (!named || !strcmp(isa, own.isa));
    if (here && !strcmp(isa, ISA_AVX2) && !library_limit_to_avx2())
        return refused("isa", "oneDNN cannot be limited to it here");
    if (here) return (KernelsChoice){0};
    if (!variant_find(isa, NULL, true)) return refuse_isa(isa);
    const Variant *other = variant_find(isa, precision, true);
    return other ? (KernelsChoice){.main = other->main} : refuse_precision(isa, precision);
}
