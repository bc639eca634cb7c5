"""Turns the commands of a Markdown page into a shell script that fails where one of them fails, and compares their output.

    python3 tests/project/run_page.py PAGE >script.sh      then PRINTED=FOLDER sh script.sh 3>blocks
    python3 tests/project/run_page.py PAGE FOLDER          exit status 1, and a line for each one that differs

A page's commands are its blocks of code (four spaces), in their order.  A comment above a block says what it is:

    <!-- not run: REASON -->            the commands need what a test has not, such as a GPU or a download
    <!-- output -->                     what the block that was run last prints: words and whole numbers are equal,
                                        decimals nearly, times and speeds are left out (agree() of scripts/tour.py)
    <!-- output of a longer run -->     the same, but the test's run is shorter, and numbers are left out
    <!-- text -->, <!-- text of FILE -->    a file, code or a formula; with a name that file, as it is

The lines of an output follow one another, and "..." is for lines that are left out.  Every other block is run.  The
script says `run N` or `not run: REASON` for each, for the test to count, and runs all blocks in one shell, so that a
variable of an earlier block is known; what the block in line N prints is in $PRINTED/N.  tests/project/test_guide.sh has
the data.
"""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts"))
from tour import NUMBER, PROGRESS, agree  # noqa: E402

MARK = re.compile(r"<!-- (output(?: of a longer run)?|text(?: of \S+)?|not run: .*) -->")


def blocks(text):
    """(line, mark, code) of each block; mark: the text of the comment above it, or None."""
    lines, at, mark = text.split("\n"), 0, None
    while at < len(lines):
        line = lines[at]
        comment = MARK.fullmatch(line)
        if comment:
            mark = comment[1]
        elif line.startswith("    ") and line.strip() and (at == 0 or not lines[at - 1].strip() or mark):
            first = at
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at].strip()):
                at += 1
            yield first + 1, mark, [code[4:] for code in "\n".join(lines[first:at]).rstrip().split("\n")]
            mark = None
            continue
        elif line.strip():
            mark = None
        at += 1


def script(page):
    print("set -e")
    for line, mark, code in page:
        if mark and mark.startswith("not run"):
            print(f"echo '{mark.replace(chr(39), '')}' >&3")
        elif not mark:
            print(f"echo 'run {line}' >&3", "{", *code, f'}} >"$PRINTED/{line}" 2>&1', sep="\n")
    print("echo end >&3")


def printed_as(shown, printed, same):
    """Is `shown` in `printed`: its first line anywhere, each other one below the last, or after "..." anywhere below?"""
    if not shown:
        return True
    if shown[0] == "...":
        return any(printed_as(shown[1:], printed[at:], same) for at in range(len(printed) + 1))
    return bool(printed) and same(shown[0], printed[0]) and printed_as(shown[1:], printed[1:], same)


def differences(page, folder):
    last = None
    for line, mark, code in page:
        if not mark:
            last = line
        elif mark.startswith("text of "):
            with open(os.path.join(ROOT, mark[8:])) as file:
                if file.read().rstrip().split("\n") != code:
                    yield f"line {line}: not the text of {mark[8:]}"
        elif mark.startswith("output"):
            with open(os.path.join(folder, str(last))) as file:
                printed = [text.rstrip() for text in file.read().split("\n") if not PROGRESS.match(text)]
            same = agree if mark == "output" else lambda a, b: NUMBER.sub("#", a) == NUMBER.sub("#", b)
            if not printed_as(["...", *code], printed, same):
                missing = [text for text in code if text != "..." and not any(same(text, other) for other in printed)]
                missing = "; ".join(missing) or "these lines in this order"
                yield f"line {line}: the block in line {last} does not print: {missing}"


def main():
    with open(sys.argv[1]) as file:
        page = list(blocks(file.read()))
    if len(sys.argv) == 2:
        return script(page)
    found = list(differences(page, sys.argv[2]))
    print("\n".join(found))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
