/* main of every program for a CPU: examines the processor and starts the suitable variant of the program.  It is
 * compiled for the oldest processor, because it must report a processor that can run none of the variants. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "kernels/device/variant.h"
#include "kernels/device/variants.h"

extern char *program_invocation_short_name;

/* The value of the last --isa, ISA_AUTO without one.  The program itself reports errors in it. */
static const char *isa_of(int argc, char **argv) {
    const char *isa = ISA_AUTO;
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "--isa=", 6)) isa = argv[i] + 6;
        if (!strcmp(argv[i], "--isa") && i + 1 < argc) isa = argv[i + 1];
    }
    return isa;
}

static const Variant *choose(const char *isa) {
    const Variant *v = variant_find(isa, variant_default_precision(), true);
    if (!v) v = variant_find(ISA_AUTO, variant_default_precision(), true);
    return v ? v : variant_find(ISA_AUTO, NULL, true);
}

int main(int argc, char **argv) {
    char lacks[80] = "";
    const Variant *v = choose(isa_of(argc, argv));
    if (v) return v->main(argc, argv);
    for (int i = 0; (v = variant_at(i)); i++) processor_runs(v->needs, lacks, sizeof lacks); /* the oldest is the last */
    fprintf(stderr, "%.64s: this processor is older than any that the program was built for, and lacks %s: build it on "
                    "this machine\n", program_invocation_short_name, lacks);
    return 2;
}
