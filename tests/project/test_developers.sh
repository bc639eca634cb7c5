#!/bin/sh
# Do the pages for developers describe the code as it is?  The tour has the output of its commands, and the files and
# names that a page quotes exist.
#
#   BUILD=build/cpu sh tests/project/test_developers.sh

# shellcheck disable=SC2016,SC2154 # backticks of Markdown; variables of tap.sh
. "$(dirname "$0")/../tap.sh"
cd "$root" || exit 1

# names PAGE...: text in backticks with the form of a path, or of a name in C or Python, is in the repository.
names() {
    "${python:-python3}" - "$@" <<'END'
import glob, os, re, subprocess, sys
listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True).stdout.split()
listed = listed or [os.path.relpath(name) for name in glob.glob("**", recursive=True) if os.path.isfile(name)]
sources = [name for name in listed if re.search(r"(\.(c|h|cu|cuh|cpp|py|sh|mk|ini)|^Makefile)$", name) and os.path.exists(name)]
words = set(re.findall(r"\w+", "\n".join(open(name, errors="replace").read() for name in sources)))
tops, files = {name.split("/")[0] for name in listed}, {os.path.basename(name) for name in sources}
placeholders = {"train_x", "train_x.c", "difference.py", "x.h", "x.c", "x.cu", "docs/reference/settings-x.md"}
wrong = []
for page in sys.argv[1:]:
    for quoted in re.findall(r"`([^`\n]+)`", re.sub(r"(?m)^(> )?    .*$", "", open(page).read())):
        if quoted in placeholders or quoted.startswith("build/"):
            continue
        if re.fullmatch(r"[\w.]+(/[\w.*<>-]+)+/?", quoted) and quoted.split("/")[0] in tops:
            if not glob.glob(re.sub(r"<\w+>", "*", quoted)) and not os.path.exists(quoted + ".h"):
                wrong.append(f"{page}: no file {quoted}")
        elif re.fullmatch(r"[\w-]+\.(c|cu|h|py|sh)", quoted):
            if quoted not in files:
                wrong.append(f"{page}: no file {quoted}")
        elif re.fullmatch(r"[A-Za-z]\w*_\w+(\(\))?|[A-Z]\w+", quoted) and quoted.rstrip("()") not in words:
            wrong.append(f"{page}: no name {quoted} in the sources")
print("; ".join(wrong) or "all there")
sys.exit(bool(wrong))
END
}

names docs/developers/*.md >"$work/out" 2>&1
check "files and names on the pages for developers exist" $? "$(tail -n 1 "$work/out")"
printf '`layers/mlp.c` has `mlp_forward`, but `layers/mlpp.c` and `mlp_''forwards` are not there.\n' >"$work/page.md"
names "$work/page.md" >"$work/out" 2>&1
grep -qx "$work/page.md: no file layers/mlpp.c; $work/page.md: no name mlp_""forwards in the sources" "$work/out"
check "and those that do not are named" $? "$(tail -n 1 "$work/out")"

# The exercises that change sources would have to compile: scripts/tour.py --check runs them, too.
tour="the tour's output is what its commands give"
if [ "$slow" != 0 ] || [ -z "$python" ]; then
    skip "$tour" "needs numpy and a minute"
elif [ "$build" != "$root/build/cpu" ]; then
    skip "$tour" "the tour runs build/cpu"
else
    "$python" scripts/tour.py --check --quick >"$work/out" 2>&1
    check "$tour" $? "$(grep '^[-+]' "$work/out" | tr '\n' ' ' | cut -c 1-400)"
fi

echo "1..$count"
[ "$failures" -eq 0 ]
