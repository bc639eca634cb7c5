"""Turns the commands of a Markdown page into a shell script that fails where one of them fails.

    python3 tests/project/run_page.py PAGE >script.sh

A page's commands are its blocks of code (four spaces), in their order.  A comment above a block says what it is:

    <!-- not run: REASON -->   the commands need what a test has not, such as a GPU or a download
    <!-- output -->            the block shows output, a file or code, and no command

Every other block is run.  The script says `run N` or `not run: REASON` for each, for the test to count, and runs all
blocks in one shell, so that a variable of an earlier block is known.  tests/project/test_guide.sh has the data.
"""

import re
import sys


def blocks(text):
    """(line, mark, code) of each block; mark: the text of the comment above it, or None."""
    lines, at, mark = text.split("\n"), 0, None
    while at < len(lines):
        line = lines[at]
        comment = re.fullmatch(r"<!-- (output|not run: .*) -->", line)
        if comment:
            mark = comment[1]
        elif line.startswith("    ") and line.strip() and (at == 0 or not lines[at - 1].strip()):
            first = at
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at].strip()):
                at += 1
            yield first + 1, mark, [code[4:] for code in lines[first:at]]
            mark = None
            continue
        elif line.strip():
            mark = None
        at += 1


def main():
    with open(sys.argv[1]) as file:
        text = file.read()
    print("set -e")
    for line, mark, code in blocks(text):
        if mark == "output":
            continue
        if mark:
            print(f"echo '{mark.replace(chr(39), '')}' >&3")
            continue
        print(f"echo 'run {line}' >&3")
        print("\n".join(code))
    print("echo end >&3")


if __name__ == "__main__":
    main()
