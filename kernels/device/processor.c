#include "kernels/device/processor.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdbool.h>
#endif

enum { EAX, EBX, ECX, EDX };
/* Bits of XCR0: registers that the system saves when it changes between programs. */
enum { YMM = 0x6, ZMM = 0xE6, EGPR = 0x80000 };

typedef struct {
    const char *name;
    uint32_t leaf, subleaf;
    int out, bit;
    uint64_t state;
} Feature;

#define FEATURE(name, leaf, subleaf, out, bit, state) {#name, leaf, subleaf, out, bit, state},
static const Feature features[] = {PROCESSOR_FEATURES(FEATURE){NULL, 0, 0, 0, 0, 0}};

#if defined(__x86_64__)
static uint64_t saved_registers(void) {
    uint32_t a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool has(const Feature *f) {
    uint32_t outs[4], most, b, c, d;
    if (f->leaf == 7 && f->subleaf && (!__get_cpuid_count(7, 0, &most, &b, &c, &d) || most < f->subleaf)) return false;
    if (!__get_cpuid_count(f->leaf, f->subleaf, &outs[EAX], &outs[EBX], &outs[ECX], &outs[EDX])) return false;
    return outs[f->out] >> f->bit & 1 && (saved_registers() & f->state) == f->state;
}
#else
static bool has(const Feature *f) { return (void)f, false; }
#endif

bool processor_has(const char *name) {
    const Feature *f = features;
    while (f->name && strcmp(f->name, name)) f++;
    return f->name && has(f);
}

bool processor_runs(const ProcessorNeed *needs, char *lacks, size_t size) {
    size_t at = 0;
    bool all = true;
    *lacks = 0;
    for (int i = 0; features[i].name; i++) {
        if (strcmp(needs[i], "1") || has(&features[i])) continue;
        size_t length = strlen(features[i].name) + !all;
        if (at + length + sizeof " ..." > size) return snprintf(lacks + at, size - at, " ..."), false;
        at += (size_t)snprintf(lacks + at, size - at, "%s%s", all ? "" : " ", features[i].name);
        all = false;
    }
    return all;
}
