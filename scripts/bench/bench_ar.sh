#!/bin/sh
# train_ar against PyTorch on this machine, and sparse patterns against dense attention: tokens a second, as Markdown tables.
#
#   PYTHON=/path/to/python sh scripts/bench/bench_ar.sh      a Python with torch (default: python3)
#
#   TABLES="torch sparse sample"  which tables
#   SHAPES="4x64 4x1024"          torch: sequences and tokens of a batch
#   DIM=768 DEPTH=12 HEADS=12     torch: the model, GPT-2's blocks with 256 tokens
#   MODES="eager compile"
#   LENGTHS="3072 12288"          sparse: tokens; a sequence at a time, stride 128, 32 summaries
#   ATTN="softmax sparse-strided sparse-fixed"    sparse: the rows; "of dense" needs softmax
#   SPARSE="--dim 512 --depth 4 --heads 8"    sparse: the model
#   SAMPLE="16x256"               sample: sequences and tokens, sampled from the second byte on
#   PRECISIONS="float32 bfloat16"
#   THREADS=N        threads, on both sides (default: the number of cores)
#   SECONDS_EACH=5   approximate seconds for one measurement; if four batches take longer, vit.c reduces them
#   LIMIT=60         seconds after which a measurement, PyTorch's compilation included, is stopped and not tried again
#   TORCH_STEPS=3    largest number of training steps, or sampled batches, in PyTorch's median
#   ROUNDS=2         how often everything is measured; the tables have the medians
#   RUN="chrt -r 1"  a prefix of every command
#   OUT=FILE         also write one line of JSON for each measurement to this file
#
# Measurements of the rows of a table alternate, so that a change in the machine's speed affects all of them.  First the
# script prints their number and the longest time that they can take.  Each measurement is written as a line of JSON at
# once, each row is shown when it is complete, and the tables so far are also printed if the script is interrupted.
case ${1:-} in
-h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;;
'') ;;
*) echo "scripts/bench/bench_ar.sh: unknown argument '$1'; see --help" >&2 && exit 2 ;;
esac
set -eu
CDPATH='' cd "$(dirname "$0")/../.."
export LC_ALL=C # awk reads and writes numbers with points

TABLES=${TABLES:-torch sparse sample}
SHAPES=${SHAPES:-4x64 4x1024}
DIM=${DIM:-768} DEPTH=${DEPTH:-12} HEADS=${HEADS:-12}
MODES=${MODES-eager compile}
LENGTHS=${LENGTHS:-3072 12288}
ATTN=${ATTN:-softmax sparse-strided sparse-fixed}
SPARSE=${SPARSE:---dim 512 --depth 4 --heads 8}
SAMPLE=${SAMPLE:-16x256}
PRECISIONS=${PRECISIONS:-float32 bfloat16}
THREADS=${THREADS:-$(getconf _NPROCESSORS_ONLN)}
SECONDS_EACH=${SECONDS_EACH:-5}
LIMIT=${LIMIT:-60}
TORCH_STEPS=${TORCH_STEPS:-3}
ROUNDS=${ROUNDS:-2}
RUN=${RUN:-}
PYTHON=${PYTHON:-python3}
BUILD=${BUILD:-build/cpu}

refuse() { # SETTING, words that are allowed, its words
    for word in $3; do
        case " $2 " in *" $word "*) ;; *) echo "scripts/bench/bench_ar.sh: $1: '$word' is none of: $2" >&2 && exit 2 ;; esac
    done
}
refuse TABLES "torch sparse sample" "$TABLES"
refuse MODES "eager compile" "$MODES"
refuse ATTN "softmax sparse-strided sparse-fixed" "$ATTN"
refuse PRECISIONS "float32 bfloat16" "$PRECISIONS"

has() { case " $TABLES " in *" $1 "*) ;; *) return 1 ;; esac }
words() { # shellcheck disable=SC2086 # words
    set -- $1 && echo $#
}

! has torch && ! has sample || "$PYTHON" -c 'import torch' 2>/dev/null || {
    echo "scripts/bench/bench_ar.sh: $PYTHON has no torch: set PYTHON to a Python that has, or TABLES=sparse" >&2
    exit 1
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'tables all; exit 130' INT TERM
raw=$scratch/raw
: >"$raw"
env -u PRECISION make -j"$THREADS" "$BUILD/train_ar" >&2
# The speed does not depend on the text.
awk 'BEGIN { srand(1); for (i = 0; i < 50000; i++) print "line", i, rand() }' >"$scratch/text"
export OMP_NUM_THREADS="$THREADS"

# Writes the JSON of a measurement, preceded by its subject, to the raw file and to OUT.
record() { # "key": "value", ...
    sed -n "s/^{/{$1, /p" "$scratch/out" >"$scratch/line"
    [ -s "$scratch/line" ] || { echo "scripts/bench/bench_ar.sh: no result for {$1}" >&2 && exit 1; }
    cat "$scratch/line" >>"$raw"
    [ -z "${OUT:-}" ] || cat "$scratch/line" >>"$OUT"
    cat "$scratch/line" >&2
}

# Records a command's standard output as a measurement, or that it took longer than LIMIT, after which it is not tried
# again.
measure() { # "key": "value", ..., then the command
    what=$1 status=0
    shift
    ! grep -qF "{$what, \"over\"" "$raw" || return 0
    # shellcheck disable=SC2086 # a command and its arguments
    timeout --foreground -k 5 "$LIMIT" $RUN "$@" >"$scratch/out" 2>"$scratch/log" || status=$?
    case $status in
    0) ;;
    124 | 137) echo "{\"over\": $LIMIT}" >"$scratch/out" ;;
    *) cat "$scratch/log" >&2 && echo "scripts/bench/bench_ar.sh: status $status: $*" >&2 && exit 1 ;;
    esac
    record "$what"
}

ours() { # "key": "value", ..., then train_ar's arguments
    what=$1
    shift
    measure "$what" "$BUILD/train_ar" --bench --data "$scratch/text" --bench-seconds "$SECONDS_EACH" "$@"
}

theirs() { # "key": "value", ..., then bench_ar_torch.py's arguments
    what=$1
    shift
    measure "$what" "$PYTHON" scripts/bench/bench_ar_torch.py --dim "$DIM" --depth "$DEPTH" --heads "$HEADS" --threads "$THREADS" \
        --steps "$TORCH_STEPS" --seconds "$SECONDS_EACH" "$@"
}

# == Against PyTorch ==================================================================================================

against() { # BxT, precision
    batch=${1%x*} tokens=${1#*x}
    row="\"table\": \"torch\", \"shape\": \"$1\", \"precision\": \"$2\""
    ours "$row, \"by\": \"vit.c\"" --tokens "$tokens" --batch-size "$batch" --dim "$DIM" --depth "$DEPTH" --heads "$HEADS" \
        --attn softmax --precision "$2"
    for mode in $MODES; do
        theirs "$row, \"by\": \"PyTorch\", \"mode\": \"$mode\"" --modes "$mode" --tokens "$tokens" --batch "$batch" \
            --precision "$2" --warmup 1
    done
    tables torch "$1" "$2" >&2
}

# == Sparse patterns ==================================================================================================

sparse() { # tokens, precision
    for attn in $ATTN; do
        options="--stride 128"
        [ "$attn" != sparse-fixed ] || options="$options --summary 32"
        # shellcheck disable=SC2086
        share=$("$BUILD/train_ar" --describe --data "$scratch/text" --tokens "$1" --attn "$attn" $options $SPARSE |
            awk '/% of pairs/ { for (i = 1; i <= NF; i++) if ($i == "%") { sum += $(i - 1); n++ } } END { print sum / n }')
        row="\"table\": \"sparse\", \"of\": \"$1\", \"attn\": \"$attn\", \"share\": $share, \"precision\": \"$2\""
        # shellcheck disable=SC2086
        ours "$row, \"by\": \"vit.c\"" --tokens "$1" --batch-size 1 --attn "$attn" $options $SPARSE --precision "$2"
    done
    tables sparse "$1" "$2" >&2
}

# == Drawing ==========================================================================================================

# Untrained weights: one step with learning rate 0.  The time of reading them is subtracted by sampling a single token.
weights() { # tokens
    [ "$drawn_for" != "$1" ] || return 0
    drawn_for=$1
    rm -rf "$scratch/drawn"
    head -c 60000 "$scratch/text" >"$scratch/short"
    "$BUILD/train_ar" --data "$scratch/short" --tokens "$1" --dim "$DIM" --depth "$DEPTH" --heads "$HEADS" --train-limit 1 --test-limit 1 \
        --batch-size 1 --epochs 1 --lr 0 --warmup-steps 0 --run-dir "$scratch/drawn" >"$scratch/log" 2>&1 ||
        { cat "$scratch/log" >&2 && exit 1; }
}
drawn_for=

# One line of JSON: the speed, from the difference between two commands, one of which samples only a second byte.
cat >"$scratch/draw.sh" <<'END'
set -eu
trap 'kill $!; exit 143' TERM INT
program=$1 weights=$2 batch=$3 length=$4 precision=$5 out=$6
seconds_of() {
    start=$(date +%s.%N)
    "$program" --init "$weights" --sample "$batch" --length "$1" --precision "$precision" --out "$out" >/dev/null &
    wait $!
    echo "$start $(date +%s.%N)" | awk '{ print $2 - $1 }'
}
short=$(seconds_of 2)
long=$(seconds_of "$length")
echo "$short $long" | awk -v n="$batch" -v t="$length" '{ printf "{\"sample_tokens_per_s\": %.1f}\n", n * (t - 2) / ($2 - $1) }'
END

drawn() { # BxT, precision
    batch=${1%x*} tokens=${1#*x}
    weights "$tokens"
    row="\"table\": \"sample\", \"shape\": \"$1\", \"precision\": \"$2\""
    measure "$row, \"by\": \"vit.c\"" sh "$scratch/draw.sh" "$BUILD/train_ar" "$scratch/drawn/last.safetensors" "$batch" \
        "$tokens" "$2" "$scratch/text.out"
    theirs "$row, \"by\": \"PyTorch\", \"mode\": \"eager\"" --sample --tokens "$tokens" --batch "$batch" --precision "$2"
    tables sample "$1" "$2" >&2
}

# == The tables =======================================================================================================

cat >"$scratch/tables.py" <<'END'
import datetime, json, statistics, sys

path, wanted = sys.argv[1], sys.argv[2:]
rows = [json.loads(line) for line in open(path)]
if wanted[0] != "all":  # one row
    table, of, precision = wanted
    rows = [row for row in rows if (row["table"], row.get("shape", row.get("of")), row["precision"]) == (table, of, precision)]
torch = {row["torch"] for row in rows if "torch" in row}
device = next((row["device"] for row in rows if "device" in row), "not measured")
if wanted[0] == "all":
    print(f"vit.c: {device}; PyTorch {', '.join(sorted(torch)) or 'not measured'}; {datetime.date.today().isoformat()}")


def median(key, **of):
    found = [row for row in rows if all(row.get(name) == value for name, value in of.items())]
    speeds = [row[key] for row in found if key in row]
    over = next((row["over"] for row in found if "over" in row), None)
    return statistics.median(speeds) if speeds else None, f"none in {over} s" if over else "-"


def cell(speed):
    return f"{speed[0]:.0f}" if speed[0] else speed[1]


def ratio(speed, other):
    return f"{speed[0] / other[0]:.2f}" if speed[0] and other[0] else "-"


def distinct(table, *keys):
    return list(dict.fromkeys(tuple(row[key] for key in keys) for row in rows if row["table"] == table))


def table(head, lines):
    print("\n| " + " | ".join(head) + " |\n|---" + "|--:" * (len(head) - 1) + "|")
    for line in lines:
        print("| " + " | ".join(line) + " |")


def against(name, key, title):
    modes = list(dict.fromkeys(row["mode"] for row in rows if row["table"] == name and "mode" in row and row["by"] == "PyTorch"))
    lines = []
    for shape, precision in distinct(name, "shape", "precision"):
        batch, tokens = shape.split("x")
        own = median(key, table=name, by="vit.c", shape=shape, precision=precision)
        taken = {row.get("batch_size", int(batch)) for row in rows
                 if (row["table"], row["by"], row.get("shape"), row["precision"]) == (name, "vit.c", shape, precision)}
        less = f" ({min(taken)} at a time)" if min(taken) < int(batch) else ""
        lines.append([f"{batch} sequences of {tokens}, {precision}", cell(own) + less])
        for mode in modes:
            other = median(key, table=name, by="PyTorch", shape=shape, precision=precision, mode=mode)
            lines[-1] += [cell(other), ratio(own, other)]
    table([f"{title}, tokens/s", "vit.c"] + [c for mode in modes for c in (f"PyTorch {mode}", "ratio")], lines)


if distinct("torch", "shape"):
    against("torch", "train_tokens_per_s", "training")
if distinct("sparse", "of"):
    lines = []
    for tokens, precision in distinct("sparse", "of", "precision"):
        for attn, share in distinct("sparse", "attn", "share"):
            of = {"table": "sparse", "of": tokens, "precision": precision}
            if not any(all(row.get(k) == v for k, v in {**of, "attn": attn, "share": share}.items()) for row in rows):
                continue
            lines.append([f"{int(tokens):,}, {precision}", attn, f"{share:.1f} %"])
            for key in ("train_tokens_per_s", "infer_tokens_per_s"):
                own, dense = median(key, attn=attn, **of), median(key, attn="softmax", **of)
                lines[-1] += [cell(own), ratio(own, dense)]
    table(["tokens, precision", "attn", "pairs", "training, tokens/s", "of dense", "inference, tokens/s", "of dense"], lines)
if distinct("sample", "shape"):
    against("sample", "sample_tokens_per_s", "drawing")
END

tables() { "$PYTHON" "$scratch/tables.py" "$raw" "$@"; } # all, or a table, its shape or tokens, and the precision

modes=$(words "$MODES")
plan=0
! has torch || plan=$((plan + $(words "$SHAPES") * (1 + modes)))
! has sparse || plan=$((plan + $(words "$LENGTHS") * $(words "$ATTN")))
! has sample || plan=$((plan + $(words "$SAMPLE") * 2))
plan=$((plan * $(words "$PRECISIONS") * ROUNDS))
echo "$plan measurements of about $SECONDS_EACH s, each with its start, together below $((plan * LIMIT / 60 + 1)) minutes" >&2
uptime >&2
round=0
while [ "$round" -lt "$ROUNDS" ]; do
    for precision in $PRECISIONS; do
        ! has torch || for shape in $SHAPES; do against "$shape" "$precision"; done
        ! has sparse || for length in $LENGTHS; do sparse "$length" "$precision"; done
        ! has sample || for shape in $SAMPLE; do drawn "$shape" "$precision"; done
    done
    round=$((round + 1))
done
uptime >&2
tables all
