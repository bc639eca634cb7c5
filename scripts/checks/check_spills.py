#!/usr/bin/env python3
"""Checks in the compiler's output that the innermost loops of kernels/cpu/tile.h, pairs.h and vecmath.h stay in registers.

    python3 scripts/checks/check_spills.py [COMPILER ...]     gcc, and aarch64-linux-gnu-gcc after scripts/deps.sh arm64

For each instruction set the loops of a few probes are compiled as the Makefile would; in none of them may an instruction
touch the stack, and the matrix product must have one multiply-add for each vector of its block.  The exit status is 0
if that holds.
"""
import collections
import os
import re
import subprocess
import sys
import tempfile

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", "-I" + ROOT, "-I" + ROOT + "/kernels/cpu"]
X86 = "-mprefer-vector-width=512"

PROBES = """
#include "kernels/softmax/pairs.h"

void product(float *c, size_t ldc, const float *a, size_t lda, const float *b, size_t ldb, int k) {
    tile_micro(TILE_ROWS, TILE_VECS, c, ldc, a, lda, 1, b, ldb, k, 1);
}
void product_turned(float *c, size_t ldc, const float *a, size_t lda, const float *b, size_t ldb, int k) {
    tile_micro(TILE_ROWS, TILE_VECS, c, ldc, a, 1, lda, b, ldb, k, 1);
}
#ifdef __AVX512BF16__
void product_of_pairs(float *c, size_t ldc, const real *a, size_t lda, const real *b, size_t ldb, int k) {
    pairs_micro(TILE_ROWS, 2, c, ldc, (PairRows){a, lda / 2, 1}, b, ldb, k, 1);
}
#endif
void exponential(float *y, const float *x, int n) {
    for (int i = 0; i < n; i++) vec_store(y + i * TILE, vec_exp_floored(vec_load(x + i * TILE)));
}
void normal(float *y, const float *x, int n) {
    vec density;
    for (int i = 0; i < n; i++) vec_store(y + i * TILE, vec_normal(vec_load(x + i * TILE), &density) + density);
}
void waves(float *y, const float *x, int n) {
    vec sine, cosine;
    for (int i = 0; i < n; i++) {
        vec_sincos(&sine, &cosine, vec_load(x + i * TILE));
        vec_store(y + i * TILE, sine + cosine);
    }
}
"""

# Name, compiler's prefix, flags, block of the product in vectors.
Set = collections.namedtuple("Set", "name arm flags block")
ARM_ROOT = os.path.join(ROOT, "build", "arm64-root")  # scripts/deps.sh arm64
SETS = [Set("AVX-512", False, ["-march=x86-64-v4", X86], 8 * 2),
        Set("AVX-512 BF16", False, ["-march=x86-64-v4", "-mavx512bf16", X86], 8 * 2),
        Set("AVX2", False, ["-march=x86-64-v3", X86], 6 * 2),
        Set("NEON", True, ["-march=armv8-a", "--sysroot=" + ARM_ROOT], 4 * 4)]

MULTIPLY_ADD = re.compile(r"^\s*(vfn?m(add|sub)\d*ps|vdpbf16ps|fml[as])\b")
STACK = re.compile(r"\(%rsp|\[sp\b")
LABEL = re.compile(r"^(\.?L\w+|\w+):")
JUMP = re.compile(r"^\s*(j[a-z]+|b\.?[a-z]*|cbn?z)\s+(?:\w+,\s*)?(\.?L\w+)")


def functions(assembly):
    """Name -> lines."""
    found, name = {}, None
    for line in assembly.splitlines():
        start = re.match(r"^([a-z_]+):", line)
        if start:
            name = start.group(1)
            found[name] = []
        if name:
            found[name].append(line)
        if re.match(r"^\s*\.size\s", line):
            name = None
    return found


def loops(lines):
    """Runs of lines from a label to a jump back to it."""
    begin = {}
    for at, line in enumerate(lines):
        label = LABEL.match(line)
        if label:
            begin[label.group(1)] = at
        jump = JUMP.match(line)
        if jump and jump.group(2) in begin:
            yield lines[begin[jump.group(2)]:at + 1]


def objection(lines, products):
    """What is wrong with a probe's innermost loop, or None; products: multiply-adds that it must have, or None."""
    def multiply_adds(loop):
        return sum(bool(MULTIPLY_ADD.match(line)) for line in loop)

    best = max(loops(lines), key=lambda loop: (multiply_adds(loop), -len(loop)), default=None)
    if best is None:
        return "no loop found"
    count = multiply_adds(best)
    if count == 0 or products and count % products:
        return f"{count} multiply-adds, expected {products or 'some'}"
    spilled = [line.strip() for line in best if STACK.search(line)]
    return f"{len(spilled)} of {len(best)} instructions touch the stack: {spilled[0]}" if spilled else None


def main():
    compilers = sys.argv[1:] or ["gcc"] + ["aarch64-linux-gnu-gcc"] * os.path.isdir(ARM_ROOT)
    wrong = checked = 0
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "probes.c")
        with open(source, "w", encoding="utf-8") as file:
            file.write(PROBES)
        for compiler in compilers:
            machine = subprocess.run([compiler, "-dumpmachine"], capture_output=True, text=True, check=True).stdout
            for isa in SETS:
                if isa.arm != machine.startswith("aarch64"):
                    continue
                command = [compiler, *FLAGS, *isa.flags, "-S", "-o", "-", source]
                if "clang" in compiler:
                    command = [flag for flag in command if flag != X86]
                found = functions(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                for probe in found:
                    reason = objection(found[probe], isa.block if probe.startswith("product") else None)
                    checked += 1
                    wrong += reason is not None
                    print(f"{compiler:24s} {isa.name:12s} {probe:16s} {reason or 'in registers'}")
    print(f"{checked} loops, {wrong} not in registers")
    sys.exit(wrong > 0 or checked == 0)


if __name__ == "__main__":
    main()
