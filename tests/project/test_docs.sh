#!/bin/sh
# Are the README and the pages still correct?  Figures in two places agree, operators are those of the program, and the
# named links, configs, scripts and flags exist.
#
#   BUILD=build/cpu sh tests/project/test_docs.sh

# shellcheck disable=SC2016,SC2154 # backticks of Markdown; variables of tap.sh
. "$(dirname "$0")/../tap.sh"
plain=$(command -v python3 || echo /usr/bin/python3) # only its standard library is needed
cd "$root" || exit 1

# states NAME WORDS: the README has these words, across the ends of lines.
readme=$(tr '\n' ' ' <README.md | tr -s ' ')
states() {
    case $readme in *"$2"*) verdict=0 ;; *) verdict=1 ;; esac
    check "$1" $verdict "expected '$2'"
}

[ "$(wc -l <README.md)" -le 150 ]
check "the README has 150 lines or fewer" $? "$(wc -l <README.md)"

# == Figures =========================================================================================================

"$plain" - >"$work/out" 2>&1 <<'END'
import csv
rows = list(csv.DictReader(open("docs/speed.csv")))
assert len(rows) == 6
for row in rows:
    assert abs(float(row["vitc"]) / float(row["pytorch"]) - float(row["ratio"])) < 0.01, row
    assert all(row[name] in open("docs/notebook/against-pytorch.md").read() for name in ("vitc", "pytorch", "ratio")), row
END
check "docs/speed.csv has ratios of its columns, and figures of the notebook" $? "$(tail -n 1 "$work/out")"
TRAIN_VIT=$vit "$plain" scripts/shared_tables.py --check >"$work/out" 2>&1
check "tables of the pages are what docs/*.csv and the programs say" $? "$(tail -n 1 "$work/out")"
grep -q "<!-- table: speed -->" README.md
check "the README has the table of speeds" $?

states "tensors beyond PyTorch's autocast" "$(awk -F , '$1 == "cuda" { tensors++; if (!($2 in seen)) fixtures++; seen[$2]
    if ($4 > most) most = $4 } END { print tensors " tensors of " fixtures " fixtures with at most " most }' \
    tests/fixtures/bf16_beyond.csv)"
states "operators compared with their authors' modules" \
    "$(sed -n '/^OFFICIAL = {/,/^}/p' tests/reference/check_rivals.py | grep -c '": ("') operators and encodings"
states "ripple's lead over linear attention" "$("$plain" - <<'END'
import csv, statistics
last = {}
for row in csv.DictReader(open("docs/study.csv")):
    if row["top1"]:
        last[row["row"], row["seed"]] = float(row["top1"])
lead = [last["study-ripple", seed] - last["study-linear", seed] for seed in "123"]
print(f"{statistics.mean(lead):.2f} points with a standard error of {statistics.stdev(lead) / 3 ** 0.5:.2f} over three seeds")
END
)"

"$plain" scripts/league.py --check >"$work/out" 2>&1
check "league.md and its picture are what league.csv and league-speed.csv give" $? "$(tail -n 1 "$work/out")"

# == Names ===========================================================================================================

# design.md quotes two functions of the smallest program.
sed -n '/^static int train(Toy/,/^\/\* == Running/p' tests/core/test_program.c | sed '$d' >"$work/there"
sed -n '/^    static int train(Toy/,/^Between/p' docs/developers/design.md | sed '$d; s/^    //' >"$work/quoted"
diff "$work/there" "$work/quoted" >"$work/out"
check "design.md quotes the smallest program" $? "$(grep '^[<>]' "$work/out" | tr '\n' ' ')"

# The operators are the first table of --help.
"$vit" --help | awk '/^Attention operators/ { on = 1; next } on && !/^  / { exit } on { print $1 }' | sort >"$work/there"
sed -n '/^## Attention operators/,/^Each works/p' README.md | grep -o '`[a-z0-9-]*`' | tr -d '`' | grep -v '^--' | sort >"$work/named"
diff "$work/there" "$work/named" >"$work/out"
check "the README lists the program's operators" $? "$(grep '^[<>]' "$work/out" | tr '\n' ' ')"

# A page of settings shows their defaults and what a resumed run may change, so that a change of either is in its diff.
for program in vit detr mask_rcnn semantic_fpn ar; do
    page=docs/reference/settings-$(echo $program | tr _ -).md
    [ $program = vit ] && page=docs/reference/settings.md
    "$build/train_$program" --help-markdown | diff "$page" - >"$work/out"
    check "$page is what train_$program --help-markdown prints" $? "$(grep '^[<>]' "$work/out" | head -n 1)"
done

# Of a message that troubleshooting.md quotes, each piece between "..." is in a string of the sources.
quoted() { # page
    "$plain" - "$1" <<'END'
import glob, re, sys
names = [name for name in glob.glob("**/*.c", recursive=True) if not name.startswith(("tests/", "build/"))]
sources = "\n".join(open(name).read() for name in names)
strings = re.findall(r'"((?:[^"\\\n]|\\.)*)"', re.sub(r'"[ \n]+"', "", sources))
cells = re.findall(r"(?m)^\| (?!what happens)(.*?) \|", open(sys.argv[1]).read())
messages = [quote for cell in cells for quote in re.findall(r"`([^`]* [^`]*)`", cell) if not quote.startswith("--")]
pieces = [piece.strip() for message in messages for piece in message.split("...") if piece.strip()]
missing = [piece for piece in pieces if not any(piece in text for text in strings)]
print("; ".join(f"no string has '{piece}'" for piece in missing) or f"{len(pieces)} pieces of {len(messages)} messages")
sys.exit(bool(missing) or len(messages) < 3)
END
}
quoted docs/guide/troubleshooting.md >"$work/out" 2>&1
check "messages that troubleshooting.md quotes are in the sources" $? "$(tail -n 1 "$work/out")"
sed 's/is not a number/is no number/' docs/guide/troubleshooting.md >"$work/page.md"
! quoted "$work/page.md" >"$work/out" 2>&1 && grep -qx "no string has 'is no number'" "$work/out"
check "and one that is not is named" $? "$(tail -n 1 "$work/out")"

missing=
for name in $(sed -n 's/^    has_library .* || missing \([a-zA-Z_-]*\) .*/\1/p' scripts/deps.sh); do
    for page in README.md docs/guide/install.md; do grep -qw -e "$name" $page || missing="$missing $page: $name"; done
done
[ -z "$missing" ]
check "README and install.md name the libraries that scripts/deps.sh installs" $? "${missing:-all}"

# Flags may be those of any program; placeholders such as configs/imagenet/NAME.ini are not names.
for program in vit detr mask_rcnn semantic_fpn ar; do "$build/train_$program" --help; done >"$work/help"
"$plain" - "$work/help" >"$work/out" 2>&1 <<'END'
import glob, os, re, sys
wrong = []
for page in ["README.md", "CONTRIBUTING.md", *sorted(glob.glob("docs/**/*.md", recursive=True))]:
    text = open(page).read()
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in link and not os.path.exists(os.path.join(os.path.dirname(page), link)):
            wrong.append(f"{page}: no {link}")
    for name in re.findall(r"\b(?:configs|scripts|tests|docs)/[\w/.-]+\.(?:ini|sh|py|csv|c|h|md)\b", text):
        if not os.path.exists(name) and not re.search(r"/[A-Z]+[.-]|\bx\.", name):
            wrong.append(f"{page}: no {name}")
known = set(re.findall(r"--[a-z][a-z0-9-]*", open(sys.argv[1]).read()))
commands = "\n".join(line for line in open("README.md").read().splitlines() if "train_" in line)
wrong += [f"README.md: no flag {flag}" for flag in re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", commands) if flag not in known]
print("; ".join(wrong) or "all there")
sys.exit(bool(wrong))
END
check "links, files and flags that are named exist" $? "$(tail -n 1 "$work/out")"

echo "1..$count"
[ "$failures" -eq 0 ]
