#!/bin/sh
# One forward and backward pass of whole models, on CUDA and on the CPU, with the same weights and images: logits, loss
# and every gradient.  float: each within 1e-4 of its root mean square; bfloat16: logits, loss and the gradient as a
# whole within 2e-2 of the CPU's (one tensor may be a small difference of large ones; its error is printed).
#
#   sh tests/emulate/cuda_vs_cpu.sh                   everything, on a machine with a GPU
#   sh tests/emulate/cuda_vs_cpu.sh make FOLDER       only the CPU's results, into FOLDER, to be copied to a machine with a GPU
#   sh tests/emulate/cuda_vs_cpu.sh compare FOLDER    only CUDA, compared with the CPU's results in FOLDER
#
# CPU=build/cpu/train_vit, CUDA_FP32=build/cuda-fp32/train_vit, CUDA_BF16=build/cuda/train_vit (empty: leave this one
# out), PARITY=build/cpu/tests/parity (make tests), VIT_TEST_SEED=... replays the images
set -eu
CDPATH='' cd "$(dirname "$0")/../.."
CPU=${CPU:-build/cpu/train_vit}
CUDA_FP32=${CUDA_FP32-build/cuda-fp32/train_vit}
CUDA_BF16=${CUDA_BF16-build/cuda/train_vit}
PARITY=${PARITY:-build/cpu/tests/parity}
OPERATORS=${OPERATORS:-softmax linear ripple ripple-softmax-weights ripple-log}
MODEL="--patch-size 2 --dim 64 --depth 3 --heads 2 --num-classes 10 --pool gap --seed 3"

folder=${2:-}
case ${1:-all} in
all) folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT ;;
make | compare) [ "$folder" ] || { echo "tests/emulate/cuda_vs_cpu.sh $1: which folder?" >&2 && exit 2; } ;;
*) echo "tests/emulate/cuda_vs_cpu.sh: '$1': expected make or compare" >&2 && exit 2 ;;
esac

parity() { # program, operator, output
    # shellcheck disable=SC2086 # several words
    "$1" $MODEL --attn "$2" --parity "$folder/batch.safetensors" --out "$3" >/dev/null
}

if [ "${1:-all}" != compare ]; then
    mkdir -p "$folder"
    "$PARITY" batch "$folder/batch.safetensors"
    for operator in $OPERATORS; do parity "$CPU" "$operator" "$folder/cpu-$operator.safetensors"; done
fi
[ "${1:-all}" != make ] || exit 0

failed=0
for operator in $OPERATORS; do
    for program in "$CUDA_FP32" "$CUDA_BF16"; do
        [ "$program" ] || continue
        how=1e-4
        [ "$program" = "$CUDA_FP32" ] || how="2e-2 whole"
        out=$folder/cuda.safetensors
        rm -f "$out" "$folder/log"
        # shellcheck disable=SC2086 # several words
        if parity "$program" "$operator" "$out" &&
            "$PARITY" compare "$folder/cpu-$operator.safetensors" "$out" $how >"$folder/log"; then
            printf '%-24s %-32s%s\n' "$operator" "$program" "$(sed -n 's/^  worst:/worst:/p' "$folder/log")"
        else
            echo "$operator: $program against the CPU FAILED"
            [ ! -e "$folder/log" ] || cat "$folder/log"
            failed=$((failed + 1))
        fi
    done
done
echo "cuda_vs_cpu: $failed failed"
[ "$failed" -eq 0 ]
