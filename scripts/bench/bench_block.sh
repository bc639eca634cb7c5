#!/bin/sh
# Measures time and memory of one block of width 192 with 12 heads for several numbers of tokens, and the speed of whole
# models, as in the LiSA paper's Tables 4, 12 and 7.  Writes CSV and PNG.
#
#   sh scripts/bench/bench_block.sh                            runs/block.csv, runs/block.png, runs/block-models.csv
#   BATCH=4 OMP_NUM_THREADS=1 sh scripts/bench/bench_block.sh  the measurement in docs/notebook/lisa-speed.md
#   TORCH_PYTHON=/path/to/python GRIDS=14 MODELS=lisa sh scripts/bench/bench_block.sh    also LiSA in PyTorch
#
# GRIDS         sides of the token grids (default 7 14 28 56 84); 4x14 is a clip of 4 frames of 14 x 14 tokens
# MODELS        operators of the block (default softmax convattn lisa); lisa-3d is lisa over frames, rows and columns
# NETS          whole models, by the names of their configs (default lisanet-b hylisanet-b; empty: none)
# BATCH         batch size (default 32, as in the paper: about 5 GB of activations at 84 x 84)
# ROUNDS        how often everything is measured, operators alternating; the fastest batch is reported (default 2)
# SECONDS_EACH  seconds for each measurement of training and of inference, at least three batches (default 1)
# LIMIT         skip larger grids of an operator once its training batch takes more than this many seconds (default 60)
# TORCH_PYTHON  a Python with torch, to measure softmax and lisa there as well (TORCH_MODES, default "eager compile")
# TORCH_DEVICE  where: cpu or cuda (default: where TRAIN_VIT computes)
# OUT           output files without suffix (default runs/block); operators and grids that are already in OUT.csv are
#               not measured again
#
# A block is measured as a model of depth 1 with patches of one pixel, so that the times include a 3 x 192 projection of
# each token, the mean over the tokens, a classifier of ten classes, and in training AdamW.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -eu
CDPATH='' cd "$(dirname "$0")/../.."
export LC_ALL=C # awk reads and writes numbers with points

TRAIN_VIT=${TRAIN_VIT:-build/cpu/train_vit}
GRIDS=${GRIDS:-7 14 28 56 84}
MODELS=${MODELS:-softmax convattn lisa}
NETS=${NETS-lisanet-b hylisanet-b}
BATCH=${BATCH:-32}
ROUNDS=${ROUNDS:-2}
SECONDS_EACH=${SECONDS_EACH:-1}
LIMIT=${LIMIT:-60}
TORCH_PYTHON=${TORCH_PYTHON:-}
TORCH_MODES=${TORCH_MODES:-eager compile}
TORCH_DEVICE=${TORCH_DEVICE:-}
PYTHON=${PYTHON:-python3}
OUT=${OUT:-runs/block}
csv=$OUT.csv
header=by,operator,algorithm,grid,tokens,batch,mmacs,infer_ms,train_ms,infer_bytes,train_bytes,device

fail() { echo "scripts/bench/bench_block.sh: $*" >&2; exit 1; }

[ -x "$TRAIN_VIT" ] || fail "no $TRAIN_VIT: make first"
for model in $MODELS; do
    "$TRAIN_VIT" --help | grep -q "^  ${model%-3d} " ||
        fail "MODELS: '$model' is no operator of $TRAIN_VIT (--help lists them)"
done
if [ ! "$TORCH_DEVICE" ]; then
    TORCH_DEVICE=cpu
    case $TRAIN_VIT in *build/cuda*) TORCH_DEVICE=cuda ;; esac
fi
mkdir -p "$(dirname "$OUT")"
[ -s "$csv" ] || echo "$header" >"$csv"
[ "$(head -n 1 "$csv")" = "$header" ] || fail "$csv: unexpected columns: name another file"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

value() { sed -n "s/.*\"$1\": \"*\([^,\"}]*\).*/\1/p"; }

frames_of() { case $1 in *x*) echo "${1%x*}" ;; *) echo 1 ;; esac; }
tokens_of() { echo $(($(frames_of "$1") * ${1#*x} * ${1#*x})); }

# block_of MODEL GRID: the arguments.  Convattn's keys are at most 14 x 14, as in the paper.
block_of() {
    side=${2#*x} more=
    [ "$1" != convattn ] || [ "$side" -le 14 ] || more="--kv-stride $((side / 14))"
    [ "$1" = "${1%-3d}" ] || more="--lisa-fft 3d"
    echo "--config configs/imagenet/block.ini --attn ${1%-3d} --img-size $side --frames $(frames_of "$2")" \
        "--batch-size $BATCH --micro-batch $BATCH $more"
}

# Multiply-adds of one image, 10^6.
block_mmacs() {
    # shellcheck disable=SC2046 # a list
    "$TRAIN_VIT" $(block_of "$1" "$2") --describe |
        awk '/^ *blocks\.0\./ { sum += $(NF - 1) } END { printf "%.3f", sum }'
}

# The fastest batches of the rounds, milliseconds: infer_batch_seconds and train_batch_seconds of the JSON lines in $1.
fastest() {
    awk -v key="\"$2\": " '{ split($0, part, key); t = part[2] + 0; if (NR == 1 || t < best) best = t }
                            END { printf "%.3f", 1000 * best }' "$1"
}

ours() { # model, grid: a line of JSON, which is added to those of earlier rounds
    # shellcheck disable=SC2046
    "$TRAIN_VIT" $(block_of "$1" "$2") --bench --bench-seconds "$SECONDS_EACH" >"$scratch/last-$1" || return
    cat "$scratch/last-$1" >>"$scratch/ours-$1"
}

theirs() { # model, grid, mode
    "$TORCH_PYTHON" scripts/bench/bench_torch.py --device "$TORCH_DEVICE" --models "$1" --modes "$3" --batch "$BATCH" \
        --threads "${OMP_NUM_THREADS:-$(nproc)}" \
        --steps 5 --img-size "${2#*x}" --frames "$(frames_of "$2")" --patch-size 1 --depth 1 --heads 12 --num-classes 10 --pool gap 2>/dev/null
}

has() { grep -q "^$1,$2,[^,]*,$3," "$csv"; }
too_slow() {
    awk -F , -v by="$1" -v of="$2" -v limit="$LIMIT" \
        '$1 == by && $2 == of && $9 > 1000 * limit { slow = 1 } END { exit !slow }' "$csv"
}

for grid in $GRIDS; do
    wanted=
    for model in $MODELS; do
        has vit.c "$model" "$grid" || too_slow vit.c "$model" || wanted="$wanted $model"
    done
    rm -f "$scratch"/ours-*
    round=0
    while [ "$round" -lt "$ROUNDS" ]; do
        for model in $wanted; do ours "$model" "$grid" || fail "$TRAIN_VIT: no result for $model at $grid"; done
        round=$((round + 1))
    done
    for model in $wanted; do
        json=$scratch/last-$model
        echo "vit.c,$model,$(value algorithm <"$json"),$grid,$(tokens_of "$grid"),$BATCH,$(block_mmacs "$model" "$grid"),$(
            fastest "$scratch/ours-$model" infer_batch_seconds),$(fastest "$scratch/ours-$model" train_batch_seconds),$(
            value infer_bytes <"$json"),$(value train_bytes <"$json"),\"$(
            sed -n 's/.*"device": "\([^"]*\)".*/\1/p' "$json")\"" | tee -a "$csv"
    done
    [ -n "$TORCH_PYTHON" ] || continue
    for model in $MODELS; do
        case $model in softmax | lisa | lisa-3d) ;; *) continue ;; esac
        for mode in $TORCH_MODES; do
            by="PyTorch $mode"
            has "$by" "$model" "$grid" || too_slow "$by" "$model" && continue
            theirs "$model" "$grid" "$mode" >"$scratch/torch" || fail "$TORCH_PYTHON: no result for $model, $mode"
            awk -v by="$by" -v of="$model" -v grid="$grid" -v tokens="$(tokens_of "$grid")" -v batch="$BATCH" \
                -v infer="$(value infer_images_per_s <"$scratch/torch")" \
                -v train="$(value train_images_per_s <"$scratch/torch")" \
                -v version="$(value torch <"$scratch/torch")" -v device="$(value device <"$scratch/torch")" 'BEGIN {
                    printf "%s,%s,,%s,%d,%d,,%.3f,%.3f,,,\"PyTorch %s on %s\"\n", by, of, grid, tokens, batch,
                           1000 * batch / infer, 1000 * batch / train, version, device }' | tee -a "$csv"
        done
    done
done

models=$OUT-models.csv
for net in $NETS; do
    config=configs/imagenet/$net.ini
    [ -f "$config" ] || { echo "no $config here: left out" >&2; continue; }
    [ -s "$models" ] || echo "model,params,gmacs,batch,infer_images_per_s,train_images_per_s,infer_bytes" >"$models"
    if grep -q "^$net," "$models"; then continue; fi
    "$TRAIN_VIT" --config "$config" --num-classes 1000 --batch-size "$BATCH" --micro-batch "$BATCH" --bench \
        --bench-seconds "$SECONDS_EACH" >"$scratch/net"
    echo "$net,$(value params <"$scratch/net"),$(
        value macs <"$scratch/net" | awk '{ printf "%.3f", $1 / 1e9 }'),$BATCH,$(
        value infer_images_per_s <"$scratch/net"),$(value train_images_per_s <"$scratch/net"),$(
        value infer_bytes <"$scratch/net")" | tee -a "$models"
done

if "$PYTHON" scripts/plots/plot_block.py "$csv" --out "$OUT.png" 2>"$scratch/plot"; then exit 0; fi
cat "$scratch/plot" >&2
grep -q 'python3-matplotlib' "$scratch/plot" || exit 1
echo "scripts/bench/bench_block.sh: $csv is complete, and not drawn" >&2
