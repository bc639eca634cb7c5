#!/bin/sh
# vit.c against PyTorch on this machine: images a second of the CIFAR-100 DeiT-tiny models, as a Markdown table.
#
#   PYTHON=/path/to/python sh scripts/bench/bench.sh        a Python with torch (default: python3)
#
#   BATCH=64         images in a batch, on both sides
#   BATCHES="1 32"   only inference, with batches of these sizes, also against ONNX Runtime (in float32)
#   SHAPE=cifar      or imagenet, DeiT-tiny at 224 x 224, for BATCHES
#   THREADS=N        threads, on both sides (default: the number of cores)
#   SECONDS_EACH=5   approximate seconds for one measurement
#   ROUNDS=2         how often everything is measured; the table has the medians
#   MODELS="softmax linear ripple"
#   MODES="eager compile"
#   PRECISION=float32        or bfloat16, PyTorch's by autocast
#   ISA=auto         or avx2 or avx512, on both sides; for vit.c as built by make ARCH=portable (BUILD=build/cpu-portable)
#   TORCH_RIPPLE=ripple-groups,ripple-weights    ripple attention in PyTorch; the table has the faster of the two
#   OUT=FILE         also write one line of JSON for each measurement to this file
#
# Measurements of vit.c and PyTorch alternate, so that a change in the machine's speed affects both.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -eu
CDPATH='' cd "$(dirname "$0")/../.."

BATCH=${BATCH:-64}
THREADS=${THREADS:-$(getconf _NPROCESSORS_ONLN)}
SECONDS_EACH=${SECONDS_EACH:-5}
ROUNDS=${ROUNDS:-2}
MODELS=${MODELS:-softmax linear ripple}
PRECISION=${PRECISION:-float32}
SHAPE=${SHAPE:-cifar}
if [ "${BATCHES:-}" ] && [ "$PRECISION" = float32 ]; then MODES=${MODES:-eager compile onnx}; else MODES=${MODES:-eager compile}; fi
ISA=${ISA:-auto}
TORCH_RIPPLE=${TORCH_RIPPLE:-ripple-groups,ripple-weights}
PYTHON=${PYTHON:-python3}
BUILD=${BUILD:-build/cpu}

"$PYTHON" -c 'import torch' 2>/dev/null || {
    echo "scripts/bench/bench.sh: $PYTHON has no torch: set PYTHON to a Python that has" >&2
    exit 1
}
case " $MODES " in
*" onnx "*)
    "$PYTHON" -c 'import onnx, onnxruntime' 2>/dev/null || {
        echo "scripts/bench/bench.sh: $PYTHON has no onnx or no onnxruntime: pip install onnx onnxruntime, or set MODES=\"eager compile\"" >&2
        exit 1
    }
    ;;
esac
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
raw=$scratch/raw
: >"$raw"
case $BUILD in
*-portable) env -u PRECISION make -j"$THREADS" ARCH=portable "$BUILD/train_vit" >&2 ;; # make has its own PRECISION
*) env -u PRECISION make -j"$THREADS" "$BUILD/train_vit" >&2 ;;
esac
# Settings that limit PyTorch and its libraries to the same instructions.
case $ISA in
auto) limits= ;;
avx2) limits="ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2" ;;
avx512) limits="ATEN_CPU_CAPABILITY=avx512 MKL_ENABLE_INSTRUCTIONS=AVX512" ;;
*) echo "scripts/bench/bench.sh: ISA: '$ISA': expected auto, avx2 or avx512" >&2 && exit 1 ;;
esac

case $SHAPE in
cifar) torch_shape= ;;
imagenet) torch_shape="--img-size 224 --patch-size 16 --heads 3 --num-classes 1000" ;;
*) echo "scripts/bench/bench.sh: SHAPE: '$SHAPE': expected cifar or imagenet" >&2 && exit 1 ;;
esac

config_of() {
    case $SHAPE-$1 in
    imagenet-softmax) echo configs/imagenet/deit.ini && return ;;
    imagenet-linear) echo configs/imagenet/deit-la.ini && return ;;
    imagenet-ripple) echo configs/imagenet/ripple.ini && return ;;
    esac
    case $1 in
    softmax) echo configs/cifar100/deit.ini ;;
    linear) echo configs/cifar100/deit-la.ini ;;
    ripple) echo configs/cifar100/ripple.ini ;;
    *) echo "scripts/bench/bench.sh: MODELS: '$1': expected softmax, linear or ripple" >&2 && return 1 ;;
    esac
}

# Writes a measurement's JSON, preceded by its program and model, to the raw file and to OUT.
record() { # "key": "value", ...
    sed -n "s/^{/{$1, /p" >"$scratch/line"
    [ -s "$scratch/line" ] || { echo "scripts/bench/bench.sh: no result for {$1}" >&2 && exit 1; }
    cat "$scratch/line" >>"$raw"
    [ -z "${OUT:-}" ] || cat "$scratch/line" >>"$OUT"
    cat "$scratch/line" >&2
}

ours() { # model
    OMP_NUM_THREADS=$THREADS "$BUILD/train_vit" --config "$(config_of "$1")" --bench --batch-size "$BATCH" \
        --precision "$PRECISION" --isa "$ISA" --bench-seconds "$SECONDS_EACH" >"$scratch/out"
    record "\"by\": \"vit.c\", \"model\": \"$1\"" <"$scratch/out"
}

# A member of vit.c's latest line for a model.
of_ours() { # model, member
    sed -n "/\"by\": \"vit.c\", .*\"model\": \"$1\"/s/.*\"$2\": \([0-9]*\).*/\1/p" "$raw" | tail -n 1
}

# The batch size that vit.c used, which is less than BATCH if SECONDS_EACH is too short for four batches, and the number
# of steps that vit.c made in that time, but at least five.
theirs() { # model, mode
    batch=$(of_ours "$1" batch_size)
    steps=$(($(of_ours "$1" train_images_per_s) * SECONDS_EACH / batch))
    [ "$steps" -ge 5 ] || steps=5
    kinds=$1
    [ "$1" != ripple ] || kinds=$TORCH_RIPPLE
    # shellcheck disable=SC2086 # assignments
    env $limits OMP_NUM_THREADS="$THREADS" "$PYTHON" scripts/bench/bench_torch.py --models "$kinds" --modes "$2" --batch "$batch" \
        --precision "$PRECISION" --threads "$THREADS" --steps "$steps" >"$scratch/out"
    record "\"by\": \"PyTorch\", \"of\": \"$1\"" <"$scratch/out"
}

# == Inference alone ==================================================================================================

# Milliseconds of a batch, from both sides' images a second.
latency_table() {
    "$PYTHON" - "$raw" <<'END'
import json, statistics, sys

rows = [json.loads(line) for line in open(sys.argv[1])]
versions = {row["torch"] for row in rows if "torch" in row}
print(f"vit.c: {next(row['device'] for row in rows if 'device' in row and row['by'] == 'vit.c')}; PyTorch {', '.join(sorted(versions))}\n")
keys = list(dict.fromkeys((row["model"] if row["by"] == "vit.c" else row["of"], row["size"]) for row in rows))
modes = list(dict.fromkeys(row["mode"] for row in rows if row["by"] == "PyTorch"))
head = ["ms a batch", "vit.c"] + [cell for mode in modes for cell in (mode, "ratio")]
print("| " + " | ".join(head) + " |\n|---" + "|--:" * (len(head) - 1) + "|")
for model, size in keys:
    def took(by, mode=None):
        times = [1e3 * size / row["infer_images_per_s"] for row in rows if row["by"] == by and row["size"] == size and
                 model == (row["model"] if by == "vit.c" else row["of"]) and (mode is None or row["mode"] == mode)]
        return statistics.median(times) if times else None
    own = took("vit.c")
    cells = [f"{model}, batch {size}", f"{own:.2f}"]
    for mode in modes:
        other = took("PyTorch", mode)
        cells += [f"{other:.2f}", f"{other / own:.2f}"] if other else ["-", "-"]
    print("| " + " | ".join(cells) + " |")
END
}

# --bench trains, too, and reduces batches if four do not fit into its seconds: this is enough time at 8 images a
# second.
infer_ours() { # model, batch
    time=$(($2 / 2))
    [ "$time" -ge "$SECONDS_EACH" ] || time=$SECONDS_EACH
    OMP_NUM_THREADS=$THREADS "$BUILD/train_vit" --config "$(config_of "$1")" --bench --batch-size "$2" \
        --precision "$PRECISION" --isa "$ISA" --bench-seconds "$time" >"$scratch/out"
    record "\"by\": \"vit.c\", \"size\": $2, \"model\": \"$1\"" <"$scratch/out"
    took=$(of_ours "$1" batch_size)
    [ "$took" -eq "$2" ] || echo "scripts/bench/bench.sh: vit.c took batches of $took images in place of $2" >&2
}

infer_theirs() { # model, mode, batch
    kinds=$1 steps=$((60 / $3 + 6))
    [ "$1" != ripple ] || kinds=ripple-weights
    # shellcheck disable=SC2086 # assignments and arguments
    env $limits OMP_NUM_THREADS="$THREADS" "$PYTHON" scripts/bench/bench_torch.py --inference --models "$kinds" --modes "$2" \
        --batch "$3" $torch_shape --precision "$PRECISION" --threads "$THREADS" --steps "$steps" --warmup 4 >"$scratch/out"
    record "\"by\": \"PyTorch\", \"size\": $3, \"of\": \"$1\"" <"$scratch/out"
}

if [ "${BATCHES:-}" ]; then
    round=0
    while [ "$round" -lt "$ROUNDS" ]; do
        for model in $MODELS; do
            for batch in $BATCHES; do
                for mode in $MODES; do
                    [ "$model-$mode" != ripple-onnx ] || continue # ONNX has no cumulative product
                    infer_ours "$model" "$batch"
                    infer_theirs "$model" "$mode" "$batch"
                done
            done
        done
        round=$((round + 1))
    done
    latency_table
    exit
fi

# == Training and inference ===========================================================================================

round=0
while [ "$round" -lt "$ROUNDS" ]; do
    for model in $MODELS; do
        ours "$model"
        for mode in $MODES; do
            theirs "$model" "$mode"
            ours "$model"
        done
    done
    round=$((round + 1))
done

"$PYTHON" - "$raw" <<'END'
import datetime, json, statistics, sys

rows = [json.loads(line) for line in open(sys.argv[1])]
ours = [row for row in rows if row["by"] == "vit.c"]
theirs = [row for row in rows if row["by"] == "PyTorch"]
models = list(dict.fromkeys(row["model"] for row in ours))
modes = list(dict.fromkeys(row["mode"] for row in theirs))


def median(rows, key):
    return statistics.median(row[key] for row in rows)


def rate(model, key):
    return median([row for row in ours if row["model"] == model], key)


def rival(model, mode, key):
    """The fastest of PyTorch's forms of the model."""
    rows = [row for row in theirs if row["of"] == model and row["mode"] == mode]
    return max(median([row for row in rows if row["model"] == form], key) for form in {row["model"] for row in rows})


def cpu():
    with open("/proc/cpuinfo") as file:
        return next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "CPU")


print(f"{cpu()}; vit.c: {ours[0]['device']}; PyTorch {theirs[0]['torch'] if theirs else 'not measured'}, "
      f"{theirs[0]['threads'] if theirs else 0} threads; batch {ours[0]['batch_size']}, {theirs[0]['precision'] if theirs else ''}; "
      f"{datetime.date.today().isoformat()}\n")
head = ["images/s", "vit.c", "mfu"]
for mode in modes:
    head += [f"PyTorch {mode}", f"vit.c / {mode}"]
print("| " + " | ".join(head) + " |")
print("|---" + "|--:" * (len(head) - 1) + "|")
for model in models:
    for name, key in (("train", "train_images_per_s"), ("infer", "infer_images_per_s")):
        share = f"{100 * rate(model, 'mfu'):.0f} %" if name == "train" else ""
        cells = [f"{model}, {name}", f"{rate(model, key):.1f}", share]
        for mode in modes:
            other = rival(model, mode, key)
            cells += [f"{other:.1f}", f"{rate(model, key) / other:.2f}"]
        print("| " + " | ".join(cells) + " |")
if {"linear", "ripple"} <= set(models):
    both = [rate("ripple", key) / rate("linear", key) for key in ("train_images_per_s", "infer_images_per_s")]
    print(f"\nvit.c, ripple / linear: training {both[0]:.2f}, inference {both[1]:.2f}")
END
