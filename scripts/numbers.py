#!/usr/bin/env python3
"""Fills the tables that several pages share, each from one file of measurements.

    python3 scripts/numbers.py            rewrites the pages
    python3 scripts/numbers.py --check    writes nothing; exit status 1 if a page would change

A page marks the place with the lines <!-- numbers: NAME --> and <!-- end of NAME -->; what is between them is replaced.
Needs only Python.
"""

import argparse
import csv
import glob
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def rows(name):
    with open(os.path.join(ROOT, "docs", name), newline="") as file:
        return list(csv.DictReader(file))


def speed(commands=False):
    """Images per second of DeiT-tiny against PyTorch: for each model the measurement with the smallest lead."""
    lines = ["| attention | precision | vit.c | PyTorch | ratio | machine |" + " command |" * commands,
             "|---|---|--:|--:|--:|---|" + "---|" * commands]
    for row in rows("speed.csv"):
        line = "| {model} | {precision} | {vitc} | {pytorch} | {ratio} | {machine} |".format(**row)
        lines.append(line + f" `{row['command']}` |" * commands)
    return lines


TABLES = {"speed": speed, "speed with commands": lambda: speed(commands=True)}


def filled(text, path):
    def table(found):
        if found[2] not in TABLES:
            sys.exit(f"numbers.py: {path}: no numbers are called '{found[2]}': expected {', '.join(TABLES)}")
        return found[1] + "\n".join(TABLES[found[2]]()) + found[3]

    return re.sub(r"(<!-- numbers: (.*?) -->\n\n).*?(\n\n<!-- end of \2 -->)", table, text, flags=re.DOTALL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a page would change")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    for path in ["README.md", *sorted(glob.glob("docs/**/*.md", recursive=True))]:
        with open(path) as file:
            text = file.read()
        new = filled(text, path)
        if new == text:
            continue
        if arguments.check:
            sys.exit(f"numbers.py: {path}: not what docs/*.csv say: run python3 scripts/numbers.py")
        with open(path + ".part", "w") as file:
            file.write(new)
        os.replace(path + ".part", path)


if __name__ == "__main__":
    main()
