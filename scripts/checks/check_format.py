"""Lists lines that differ from clang-format's version (.clang-format) only in their spacing.

    python3 scripts/checks/check_format.py BASE      lines that were changed since this commit, in the working tree
    python3 scripts/checks/check_format.py --all     the whole tree
    python3 scripts/checks/check_format.py --advice BASE    also where the tool would break lines elsewhere, which is never an error

Spaces around an operator, a pointer's star and indentation count.  Other line breaks and other alignments of columns,
comments or macros do not: the author's columns of a table have a meaning that the tool cannot recognise. The exit
status is 1 if a difference counts.
"""

import argparse
import concurrent.futures
import difflib
import os
import re
import subprocess
import sys

ENDINGS = (".c", ".h", ".cu", ".cuh", ".cpp")


def git(*arguments):
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True, errors="replace").stdout


def changed_lines(base):
    """{file: [(first, last), ...]} of the lines that are new or changed since `base`."""
    ranges, file = {}, None
    for line in git("diff", "--unified=0", "--no-color", "--no-ext-diff", "--diff-filter=AMR", base, "--").splitlines():
        if line.startswith("+++ "):
            file = line[6:] if line.endswith(ENDINGS) else None
        found = re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)
        if found and file:
            first, count = int(found[1]), int(found[2] or 1)
            if count:
                ranges.setdefault(file, []).append((first, first + count - 1))
    return ranges


# Constructs that clang-format 14, which reads C as C++, misinterprets: a product behind a brace, the operator `or`,
# brackets of a template, a call of a type's name.
MISREAD = ((r"} \* ?(?=\w)", "} *"), (r"\b(and|or|not|xor) \[", r"\1["), (r" ?([<>]) ?", r"\1"),
           (r"(?<=\w) (?=\(\*)", ""))


def spacing(line):
    """The part of a line that counts: no comment at its end, no columns, nothing that the tool misreads."""
    line = re.sub(r"\s*(/\*.*|//.*)$", "", line)
    line = re.sub(r"(?<=\S) +", " ", line)
    for pattern, text in MISREAD:
        line = re.sub(pattern, text, line)
    return line


def joined(lines):
    """The same of several lines, wherever they are broken."""
    text = spacing(" ".join(re.sub(r"\s*(/\*.*|//.*)$", "", line).strip() for line in lines))
    return re.sub(r"(?<=[({\[]) | (?=[)}\]])", "", text)


def indented(line):
    """Is the indentation a block's, not that of a line which goes on under an operand?"""
    return (len(line) - len(line.lstrip())) % 4 == 0


def in_macro(lines, at):
    while at > 0 and lines[at - 1].endswith("\\"):
        at -= 1
    return lines[at].lstrip().startswith("#")


def differences(file, ranges):
    """[(line number, the line, the tool's version, does it count)]"""
    command = ["clang-format", "--style=file", *(f"--lines={a}:{b}" for a, b in ranges), file]
    formatted = subprocess.run(command, check=True, capture_output=True, text=True, errors="replace").stdout.splitlines()
    with open(file, encoding="utf-8") as source:
        lines = source.read().splitlines()
    found = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, lines, formatted, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        ours, theirs = lines[a:b], formatted[c:d]
        same_breaks = len(ours) == len(theirs) and all(
            "".join(x.split()) == "".join(y.split()) for x, y in zip(ours, theirs))
        for i, line in enumerate(ours):
            other = theirs[i] if same_breaks else "\n".join(theirs) if i == 0 else ""
            if same_breaks:
                counts = spacing(line) != spacing(other) and indented(other)
            else:
                counts = i == 0 and joined(ours) != joined(theirs)
            counts = counts and not in_macro(lines, a + i)
            found.append((a + i + 1, line, other, counts))
        if not ours:
            found.append((a + 1, "", "\n".join(theirs), False))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", help="a commit")
    parser.add_argument("--all", action="store_true", help="the whole tree")
    parser.add_argument("--advice", action="store_true", help="print what does not count, too")
    arguments = parser.parse_args()
    if bool(arguments.base) == arguments.all:
        parser.error("either a commit or --all")
    os.chdir(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    if arguments.all:
        ranges = {file: [] for file in git("ls-files").splitlines() if file.endswith(ENDINGS)}
    else:
        ranges = changed_lines(arguments.base)
    ranges = {file: lines for file, lines in sorted(ranges.items()) if os.path.isfile(file)}
    counted = others = 0
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for file, found in zip(ranges, pool.map(differences, ranges, ranges.values())):
            for number, line, other, counts in found:
                counted += counts
                others += not counts
                if counts or arguments.advice:
                    print(f"{file}:{number}: {'spacing' if counts else 'otherwise'}\n  {line}\n  {other}")
    print(f"{len(ranges)} files, {counted} lines spaced otherwise than clang-format does, {others} broken otherwise")
    return 1 if counted else 0


if __name__ == "__main__":
    sys.exit(main())
