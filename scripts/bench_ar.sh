#!/bin/sh
# train_ar against PyTorch on this machine, and sparse patterns against dense attention: tokens a second, as Markdown tables.
#
#   PYTHON=/path/to/python sh scripts/bench_ar.sh      a Python with torch (default: python3)
#
#   WHAT="torch sparse sample"    which tables
#   SHAPES="4x64 4x1024"          torch: sequences and tokens of a batch
#   DIM=768 DEPTH=12 HEADS=12     torch: the model, GPT-2's blocks with 256 tokens
#   MODES="eager compile"
#   LENGTHS="3072 12288"          sparse: tokens; a sequence at a time, stride 128, 32 summaries
#   SPARSE="--dim 512 --depth 4 --heads 8"    sparse: the model
#   SAMPLE="16x256"               sample: sequences and tokens, drawn from the second byte on
#   PRECISIONS="float32 bfloat16"
#   THREADS=N        threads, on both sides (default: the number of cores)
#   SECONDS_EACH=10  approximate seconds for one measurement
#   ROUNDS=2         how often everything is measured; the tables have the medians
#   RUN="chrt -r 1"  what stands before every command
#   OUT=FILE         also write one line of JSON for each measurement to this file
#
# Measurements of the rows of a table alternate, so that a change in the machine's speed affects all of them.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -eu
cd "$(dirname "$0")/.."

WHAT=${WHAT:-torch sparse sample}
SHAPES=${SHAPES:-4x64 4x1024}
DIM=${DIM:-768} DEPTH=${DEPTH:-12} HEADS=${HEADS:-12}
MODES=${MODES:-eager compile}
LENGTHS=${LENGTHS:-3072 12288}
SPARSE=${SPARSE:---dim 512 --depth 4 --heads 8}
SAMPLE=${SAMPLE:-16x256}
PRECISIONS=${PRECISIONS:-float32 bfloat16}
THREADS=${THREADS:-$(getconf _NPROCESSORS_ONLN)}
SECONDS_EACH=${SECONDS_EACH:-10}
ROUNDS=${ROUNDS:-2}
RUN=${RUN:-}
PYTHON=${PYTHON:-python3}
BUILD=${BUILD:-build/cpu}

"$PYTHON" -c 'import torch' 2>/dev/null || {
    echo "scripts/bench_ar.sh: $PYTHON has no torch: set PYTHON to a Python that has" >&2
    exit 1
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
raw=$scratch/raw
: >"$raw"
make -j"$THREADS" "$BUILD/train_ar" >&2
# Any text has the speed of every other.
awk 'BEGIN { srand(1); for (i = 0; i < 50000; i++) print "line", i, rand() }' >"$scratch/text"
export OMP_NUM_THREADS="$THREADS"

# The JSON of a measurement, with what it is of in front, to the raw file and to OUT.
record() { # "key": "value", ...
    sed -n "s/^{/{$1, /p" "$scratch/out" >"$scratch/line"
    [ -s "$scratch/line" ] || { echo "scripts/bench_ar.sh: no result for {$1}" >&2 && exit 1; }
    cat "$scratch/line" >>"$raw"
    [ -z "${OUT:-}" ] || cat "$scratch/line" >>"$OUT"
    cat "$scratch/line" >&2
}

# Seconds enough for four batches of one measurement, or the batch would be made smaller.
ours() { # "key": "value", ..., then train_ar's arguments
    what=$1
    shift
    # shellcheck disable=SC2086 # a command and its arguments
    $RUN "$BUILD/train_ar" --bench --data "$scratch/text" --bench-seconds "$SECONDS_EACH" "$@" >"$scratch/out"
    record "$what"
}

# == Against PyTorch ==================================================================================================

against() { # BxT, precision
    batch=${1%x*} tokens=${1#*x}
    ours "\"table\": \"torch\", \"by\": \"vit.c\", \"shape\": \"$1\", \"precision\": \"$2\"" --tokens "$tokens" --batch-size "$batch" \
        --dim "$DIM" --depth "$DEPTH" --heads "$HEADS" --attn softmax --precision "$2"
    for mode in $MODES; do
        # shellcheck disable=SC2086
        $RUN "$PYTHON" scripts/bench_ar_torch.py --modes "$mode" --tokens "$tokens" --batch "$batch" --dim "$DIM" --depth "$DEPTH" \
            --heads "$HEADS" --precision "$2" --threads "$THREADS" --steps 3 --warmup 1 >"$scratch/out" 2>"$scratch/log" ||
            { cat "$scratch/log" >&2 && exit 1; }
        record "\"table\": \"torch\", \"by\": \"PyTorch\", \"shape\": \"$1\""
    done
}

# == Sparse patterns ==================================================================================================

sparse() { # tokens, precision
    for attn in softmax sparse-strided sparse-fixed; do
        options="--stride 128"
        [ "$attn" != sparse-fixed ] || options="$options --summary 32"
        # shellcheck disable=SC2086
        "$BUILD/train_ar" --describe --data "$scratch/text" --tokens "$1" --attn "$attn" $options $SPARSE |
            awk '/% of pairs/ { for (i = 1; i <= NF; i++) if ($i == "%") { sum += $(i - 1); n++ } } END { print sum / n }' >"$scratch/share"
        # shellcheck disable=SC2086
        ours "\"table\": \"sparse\", \"share\": $(cat "$scratch/share"), \"precision\": \"$2\"" --tokens "$1" --batch-size 1 \
            --attn "$attn" $options $SPARSE --precision "$2"
    done
}

# == Drawing ==========================================================================================================

# Weights of no training: a step at rate 0.  The time of reading them is taken off by drawing one token.
weights() { # tokens
    [ -f "$scratch/drawn/last.safetensors" ] && return
    head -c 60000 "$scratch/text" >"$scratch/short"
    "$BUILD/train_ar" --data "$scratch/short" --tokens "$1" --dim "$DIM" --depth "$DEPTH" --heads "$HEADS" --train-limit 1 \
        --batch-size 1 --epochs 1 --lr 0 --warmup-steps 0 --run-dir "$scratch/drawn" >"$scratch/log" 2>&1 ||
        { cat "$scratch/log" >&2 && exit 1; }
}

seconds_of() { # sequences, length, precision
    start=$(date +%s.%N)
    # shellcheck disable=SC2086
    $RUN "$BUILD/train_ar" --init "$scratch/drawn/last.safetensors" --sample "$1" --length "$2" --precision "$3" \
        --out "$scratch/text.out" >/dev/null 2>&1
    echo "$start $(date +%s.%N)" | awk '{ print $2 - $1 }'
}

drawn() { # BxT, precision
    batch=${1%x*} tokens=${1#*x}
    weights "$tokens"
    short=$(seconds_of "$batch" 2 "$2")
    long=$(seconds_of "$batch" "$tokens" "$2")
    echo "$short $long" | awk -v n="$batch" -v t="$tokens" '{ printf "{\"sample_tokens_per_s\": %.1f}\n", n * (t - 2) / ($2 - $1) }' >"$scratch/out"
    record "\"table\": \"sample\", \"by\": \"vit.c\", \"shape\": \"$1\", \"precision\": \"$2\""
    # shellcheck disable=SC2086
    $RUN "$PYTHON" scripts/bench_ar_torch.py --sample --tokens "$tokens" --batch "$batch" --dim "$DIM" --depth "$DEPTH" \
        --heads "$HEADS" --precision "$2" --threads "$THREADS" --steps 2 >"$scratch/out"
    record "\"table\": \"sample\", \"by\": \"PyTorch\", \"shape\": \"$1\""
}

uptime >&2
round=0
while [ "$round" -lt "$ROUNDS" ]; do
    for precision in $PRECISIONS; do
        case $WHAT in *torch*) for shape in $SHAPES; do against "$shape" "$precision"; done ;; esac
        case $WHAT in *sparse*) for length in $LENGTHS; do sparse "$length" "$precision"; done ;; esac
        case $WHAT in *sample*) for shape in $SAMPLE; do drawn "$shape" "$precision"; done ;; esac
    done
    round=$((round + 1))
done
uptime >&2

"$PYTHON" - "$raw" <<'END'
import datetime, json, statistics, sys

rows = [json.loads(line) for line in open(sys.argv[1])]
torch = {row["torch"] for row in rows if "torch" in row}
device = next((row["device"] for row in rows if "device" in row), "")
print(f"vit.c: {device}; PyTorch {', '.join(sorted(torch)) or 'not measured'}; {datetime.date.today().isoformat()}")


def median(key, **wanted):
    found = [row[key] for row in rows if all(row.get(name) == value for name, value in wanted.items())]
    return statistics.median(found)


def distinct(table, *keys):
    return list(dict.fromkeys(tuple(row[key] for key in keys) for row in rows if row["table"] == table))


def against(table, key, name):
    modes = list(dict.fromkeys(row["mode"] for row in rows if row["table"] == table and "mode" in row))
    print(f"\n| {name}, tokens/s | vit.c |" + "".join(f" PyTorch {mode} | ratio |" for mode in modes))
    print("|---|--:|" + "--:|--:|" * len(modes))
    for shape, precision in distinct(table, "shape", "precision"):
        batch, tokens = shape.split("x")
        own = median(key, table=table, by="vit.c", shape=shape, precision=precision)
        cells = [f"{batch} sequences of {tokens}, {precision}", f"{own:.0f}"]
        for mode in modes:
            other = median(key, table=table, by="PyTorch", shape=shape, precision=precision, mode=mode)
            cells += [f"{other:.0f}", f"{own / other:.2f}"]
        print("| " + " | ".join(cells) + " |")


if distinct("torch", "shape"):
    against("torch", "train_tokens_per_s", "training")
if distinct("sparse", "tokens"):
    print("\n| tokens, precision | attn | pairs | training, tokens/s | of dense | inference, tokens/s | of dense |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for tokens, precision in distinct("sparse", "tokens", "precision"):
        for (attn,) in distinct("sparse", "attn"):
            wanted = {"table": "sparse", "tokens": tokens, "precision": precision}
            cells = [f"{tokens}, {precision}", attn, f"{median('share', attn=attn, **wanted):.1f} %"]
            for key in ("train_tokens_per_s", "infer_tokens_per_s"):
                own = median(key, attn=attn, **wanted)
                cells += [f"{own:.0f}", f"{own / median(key, attn='softmax', **wanted):.2f}"]
            print("| " + " | ".join(cells) + " |")
if distinct("sample", "shape"):
    against("sample", "sample_tokens_per_s", "drawing")
END
