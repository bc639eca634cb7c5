"""Fills the output blocks of docs/developers/tour.md by running the commands in them.

    python3 scripts/tour.py                  runs all commands and writes the page again (minutes)
    python3 scripts/tour.py --check          runs them and compares: words and whole numbers must be equal and decimals
                                             nearly; times, speeds and the machine are left out
    python3 scripts/tour.py --check --quick  the same without the exercises that change sources, which have to compile

A comment before a block describes it:

    <!-- tour -->                    a line after "$ " is a command, the lines below it are its output
    <!-- tour: first 3, last 2 -->   the same with only these lines of the output, and "..." between them
    <!-- tour: lines A|B -->         the same with the lines that have A or B, and "..." between them
    <!-- tour: save NAME -->         a file, which later commands find under this name
    <!-- tour: insert in FILE after TEXT -->     lines that are added to a copy of the sources after TEXT (\\n: a new line)
    <!-- tour: change FILE: OLD -> NEW -->       not a block: such a change

Later commands run in that copy up to the end of the exercise, which is a quotation in Markdown.  Needs numpy, and
build/cpu."""

import argparse
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "docs/developers/tour.md")
MARK = re.compile(r"((?:> )?)<!-- tour(?:: (.*))? -->$")

# Text that depends on the machine and its load.
VOLATILE = ((r"CPU, \d+ threads?, [\w-]+, oneDNN [\d.]+", "CPU"), (r"[\d.]+ (\w+)/s", r"\1/s"), (r"\b\d+:\d\d\b", "time"),
            (r"activation_bytes: \d+", "activation_bytes"), (r"[\d.]+ of allowed", "of allowed"), (r" +", " "))
PROGRESS = re.compile(r"evaluating \d|epoch \d+/\d+  batch (\d+)/(?!\1 )")  # a busy machine prints more of these lines
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?")


class Scratch:
    """The folder in which commands run, and the copy of the sources that an exercise changes."""

    def __init__(self, folder):
        self.plain, self.copy = os.path.join(folder, "plain"), os.path.join(folder, "copy")
        self.changed, self.assignments = False, []
        for name in ("plain", "plain/runs", "bin"):
            os.mkdir(os.path.join(folder, name))
        for name in ("build", "configs", "tests", "scripts"):
            os.symlink(os.path.join(ROOT, name), os.path.join(self.plain, name))
        with open(os.path.join(folder, "bin/python3"), "w") as file:
            file.write(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        os.chmod(file.name, 0o755)
        self.environment = dict(os.environ, PATH=os.path.join(folder, "bin") + ":" + os.environ["PATH"], MAKEFLAGS="-s",
                                OMP_WAIT_POLICY="passive")

    def change(self, file, old, new):
        """Replaces OLD, which FILE has once, in a fresh copy of the sources and of their build."""
        shutil.rmtree(self.copy, ignore_errors=True)
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in listed.splitlines():
            if os.path.exists(os.path.join(ROOT, name)) and not name.startswith(("docs/", "tests/fixtures/")):
                os.makedirs(os.path.dirname(os.path.join(self.copy, name)), exist_ok=True)
                shutil.copy2(os.path.join(ROOT, name), os.path.join(self.copy, name))
        shutil.copytree(os.path.join(ROOT, "build/cpu"), os.path.join(self.copy, "build/cpu"))
        os.symlink(os.path.join(self.plain, "runs"), os.path.join(self.copy, "runs"))
        with open(os.path.join(self.copy, file)) as source:
            text = source.read()
        if text.count(old) != 1:
            sys.exit(f"scripts/tour.py: {file}: the text '{old}', which the page changes, is there {text.count(old)} times")
        with open(os.path.join(self.copy, file), "w") as source:
            source.write(text.replace(old, new))
        self.changed = True

    def run(self, command):
        """The lines that a command prints; an assignment of a variable holds for all later commands."""
        if re.fullmatch(r'\w+="[^"]*"', command):
            self.assignments.append(command)
            return []
        done = subprocess.run(["bash", "-c", "\n".join([*self.assignments, command])], env=self.environment,
                              cwd=self.copy if self.changed else self.plain, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return [line.rstrip() for line in done.stdout.splitlines() if not PROGRESS.match(line)]


def commands(block):
    """The commands of a block, each a list of lines; a command continues after a line that ends in a backslash or
    within quotes."""
    found = []
    for line in block:
        if line.startswith("$ "):
            found.append([line])
        elif found and (found[-1][-1].endswith("\\") or
                        subprocess.run(["bash", "-nc", "\n".join(found[-1])[2:]], capture_output=True).returncode):
            found[-1].append(line)
    return found


def shown(lines, how):
    """The lines of an output that the page shows."""
    numbers = re.match(r"first (\d+), last (\d+)", how)
    if numbers:
        first, last = map(int, numbers.groups())
        return lines if first + last >= len(lines) else lines[:first] + ["..."] + lines[len(lines) - last:]
    if not how.startswith("lines "):
        return lines
    kept = []
    for line in lines:
        line = line if any(words in line for words in how[6:].split("|")) else "..."
        if line != "..." or kept[-1:] != ["..."]:
            kept.append(line)
    return kept


def generate(block, how, scratch, quick):
    """The block with the output of its commands; files are saved and sources changed in the process."""
    if how.startswith("save "):
        with open(os.path.join(scratch.plain, how[5:]), "w") as file:
            file.write("\n".join(block) + "\n")
        return block
    insert = re.match(r"insert in (\S+) after (.*)", how)
    change = re.match(r"change (\S+): (.*) -> (.*)", how)
    if insert or change:
        scratch.changed = True
        if quick:
            return block
        if change:
            scratch.change(*change.groups())
        else:
            after = insert[2].replace("\\n", "\n")
            scratch.change(insert[1], after, after + "\n" + "\n".join(block))
        return block
    if scratch.changed and quick:
        return block
    return [line for command in commands(block) for line in command + shown(scratch.run("\n".join(command)[2:]), how)]


def filled(page, scratch, quick):
    """The page with the output of all commands."""
    lines, out, i = page.splitlines(), [], 0
    while i < len(lines):
        mark = MARK.match(lines[i])
        scratch.changed = scratch.changed and lines[i].startswith(">")
        out.append(lines[i])
        i += 1
        if not mark:
            continue
        indent, block = mark[1] + "    ", []
        while not (mark[2] or "").startswith("change ") and lines[i].strip() in ("", ">"):
            out.append(lines[i])
            i += 1
        while i < len(lines) and (lines[i].startswith(indent) or
                                  block and lines[i].strip() in ("", ">") and lines[i + 1].startswith(indent)):
            block.append(lines[i][len(indent):])
            i += 1
        out += [(indent + line).rstrip() if line else mark[1].rstrip()
                for line in generate(block, mark[2] or "", scratch, quick)]
    return "\n".join(out) + "\n"


def agree(a, b):
    """Are two lines equal, except for text that depends on the machine and for the last digits of decimals?"""
    for pattern, words in VOLATILE:
        a, b = re.sub(pattern, words, a), re.sub(pattern, words, b)
    if NUMBER.sub("#", a) != NUMBER.sub("#", b):
        return False
    for x, y in zip(NUMBER.findall(a), NUMBER.findall(b)):
        digits = len(x.partition(".")[2].partition("e")[0])
        if x != y and (not digits or abs(float(x) - float(y)) > 0.01 * max(abs(float(x)), abs(float(y))) + 2 * 10.0 ** -digits):
            return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--quick", action="store_true", help="leave out the exercises that change sources")
    arguments = parser.parse_args()
    with open(PAGE) as file:
        page = file.read()
    with tempfile.TemporaryDirectory() as folder:
        fresh = filled(page, Scratch(folder), arguments.quick)
    if not arguments.check:
        with open(PAGE, "w") as file:
            file.write(fresh)
        return
    old, new = page.splitlines(), fresh.splitlines()
    if len(old) == len(new):
        new = [a if agree(a, b) else b for a, b in zip(old, new)]
    difference = list(difflib.unified_diff(old, new, "tour.md", "as the commands give it", lineterm="", n=1))
    print("\n".join(difference) or "tour.md is what its commands give")
    sys.exit(bool(difference))


if __name__ == "__main__":
    main()
