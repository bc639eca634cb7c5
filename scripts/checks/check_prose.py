"""Finds phrases in the project's prose that a stranger has to read twice (CONTRIBUTING.md, "Style of prose").

    python3 scripts/checks/check_prose.py            every tracked file
    python3 scripts/checks/check_prose.py FILE...    these files alone
    python3 scripts/checks/check_prose.py --rules    the rules, each with the number of places that break it

Prose is the text of Markdown outside code, comments and string literals of C and CUDA, and comments and docstrings of
Python, shell scripts, Makefiles and INI files.  A word in backticks is a name and no prose.  The exit status is 1 where a
rule is broken.
"""

import argparse
import io
import os
import re
import subprocess
import sys
import tokenize

# (name, pattern, what to write instead).  A pattern is applied to one sentence-like line of prose, without case.
RULES = [
    ("so many", r"\bso many\b(?! that)", "the number, or the name of the variable that holds it"),
    ("of before", r"\bof before\b", "'previous' or 'earlier'"),
    ("by turns", r"\bby turns\b", "'alternately', 'in rotation', or what each one takes"),
    ("whence", r"\bwhence\b", "'from which'"),
    ("beside", r"\bbeside\b", "'next to', 'with', 'in addition to' or 'compared with'"),
    ("stands", r"\b(?:stands?|stood)\b(?!-| alone\b| for\b| in for\b)", "'is', 'lies' or 'comes'"),
    ("told", r"\b(?:is|are|was|be|not) told\b|\btold (?:once|apart|so|where|by|of)\b", "'reported', or who gets which message"),
    ("tells", r"\btells? (?:of|nothing)\b|\btells?(?: \w+)? apart\b", "'shows', 'reports' or 'distinguishes'"),
    ("lent", r"\blent\b", "'borrowed' or 'available'"),
    ("ours, theirs", r"\bours\b|\btheirs\b", "whose: 'vit.c's', 'the authors''"),
    ("rooms", r"\brooms\b", "'folders'"),
    ("ladder", r"\bladders?\b", "'steps' or 'versions'"),
    ("densities", r"\bdensities of (?:images|bytes|text)\b", "'density models'"),
    ("draws", r"\bdraws? (?:new|bytes|tokens|samples)\b", "'samples'"),
    ("weights know", r"\bweights (?:do not )?(?:know|tell)\b", "'the file does not contain'"),
    ("printed", r"\bprinted (?:[0-9]|numbers?|parameters|figures?|rows?|accurac)", "'the paper's', with the table's number"),
    ("of of of", r"\bof (?:(?!of\b)[\w'-]+ ){1,3}of (?:(?!of\b)[\w'-]+ ){1,3}of\b", "two sentences, or the thing first and its parts after a colon"),
]
PATTERNS = [(name, re.compile(pattern, re.IGNORECASE), instead) for name, pattern, instead in RULES]

# Files whose text is data, other people's, or this list itself.
EXCLUDED = re.compile(r"^(?:LICENSE|CHANGELOG\.md|tests/fixtures/|tests/fuzz/corpus/|scripts/checks/check_prose\.py$)"
                      r"|/stb_image|\.(?:csv|json|txt|png|safetensors)$")

C_PROSE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def c_prose(text):
    """Of string literals those with several words: one word alone is a name."""
    for found in C_PROSE.finditer(text):
        if found[0].startswith('"') and " " not in found[0]:
            continue
        first = text.count("\n", 0, found.start()) + 1
        for number, line in enumerate(found[0].split("\n")):
            yield first + number, line


def python_prose(text):
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or token.type == tokenize.STRING and token.string.startswith('"""'):
            for number, line in enumerate(token.string.split("\n")):
                yield token.start[0] + number, line


def hash_prose(text):
    for number, line in enumerate(text.split("\n"), 1):
        found = re.search(r"(?:^|\s)[#;] (.*)", line)
        if found:
            yield number, found[1]


def markdown_prose(text):
    """Without code: fenced blocks, and indented lines that follow an empty line or another such line.  In a table with the
    head | before | after |, what is before is an example of how not to write."""
    fenced = examples = False
    code, empty = False, True
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("```"):
            fenced = not fenced
        code = line.startswith("    ") and (empty or code)
        empty = not line.strip()
        examples = line.startswith("|") and (examples or line == "| before | after |")
        if examples:
            line = line.split("|")[-2]
        if not (fenced or code):
            yield number, re.sub(r"\]\([^)]*\)", "]", line)


READERS = {"md": markdown_prose, "py": python_prose,
           **dict.fromkeys(("c", "h", "cu", "cuh", "cpp"), c_prose), **dict.fromkeys(("sh", "ini", "mk"), hash_prose)}


def reader_of(path):
    return hash_prose if path.split("/")[-1] in ("Makefile", "Dockerfile") else READERS.get(path.rsplit(".", 1)[-1])


def broken(path, text):
    """(line, rule, instead, the words) for each place in a file's text that breaks a rule."""
    reader = reader_of(path)
    compared = re.match(r"tests/reference/check_", path)  # these programs define both words at their top
    for number, line in reader(text) if reader else ():
        line = re.sub(r"`[^`]*`", "``", line)
        for name, pattern, instead in PATTERNS:
            for found in () if compared and name == "ours, theirs" else pattern.finditer(line):
                yield number, name, instead, found[0]


def tracked():
    """The files that git tracks, or in a copy without history all but those that are built."""
    try:
        listed = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout
        return listed.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return sorted(os.path.relpath(os.path.join(folder, name)) for folder, _, names in os.walk(".") for name in names
                      if not re.match(r"\./(?:build|runs|datasets|\.git)\b", folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", action="store_true", help="print each rule with the number of places that break it")
    parser.add_argument("files", nargs="*", metavar="FILE")
    arguments = parser.parse_args()
    files = arguments.files
    if not files:
        files = [path for path in tracked() if not EXCLUDED.search(path)]
    counts = dict.fromkeys((name for name, *_ in RULES), 0)
    for path in files:
        if not reader_of(path):
            continue
        with open(path, errors="replace") as file:
            for number, name, instead, words in broken(path, file.read()):
                counts[name] += 1
                if not arguments.rules:
                    print(f"{path}:{number}: '{words}': write {instead}")
    if arguments.rules:
        for name, _, instead in RULES:
            print(f"{counts[name]:5d}  {name}: write {instead}")
    sys.exit(any(counts.values()))


if __name__ == "__main__":
    main()
