#!/bin/sh
# Measures time and memory for several numbers of tokens, as in Figures 2 and 4 of the ripple attention paper (appendix
# E: width 96, batch 4, otherwise DeiT-tiny with six heads; nine of the twelve blocks use ripple attention, the others
# linear attention, the default of appendix C.5).  Writes CSV and PNG.
#
#   sh scripts/bench/scaling.sh                                runs/scaling.csv and runs/scaling.png
#   LAYERS=12 OUT=docs/scaling sh scripts/bench/scaling.sh     docs/scaling.csv and docs/images/scaling.png
#   SIDES="8 16 32 64 128" TRAIN_VIT=build/cuda/train_vit OUT=runs/scaling sh scripts/bench/scaling.sh
#
# LAYERS   number of ripple blocks (default 9; all rows of a file should have the same)
# SIDES    sides of the token grids (default 8 16 24 32 48 64)
# OUT      writes OUT.csv and OUT.png (default runs/scaling; the image of docs/scaling is in docs/images); rows that are already in
#          OUT.csv are not measured again
# LIMIT    skip larger grids of an operator once its training batch takes more than this many seconds (default 20)
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -u
CDPATH='' cd "$(dirname "$0")/../.." || exit 1
export LC_ALL=C # awk reads and writes numbers with points

TRAIN_VIT=${TRAIN_VIT:-build/cpu/train_vit}
LAYERS=${LAYERS:-9}
SIDES=${SIDES:-8 16 24 32 48 64}
OUT=${OUT:-runs/scaling}
LIMIT=${LIMIT:-20}
PYTHON=${PYTHON:-python3}
csv=$OUT.csv
header=model,tokens,train_seconds,infer_seconds,activation_bytes,device

mkdir -p "$(dirname "$csv")" || exit 1
[ -s "$csv" ] || echo "$header" >"$csv"
[ "$(head -n 1 "$csv")" = "$header" ] || { echo "scripts/bench/scaling.sh: $csv: is something else" >&2; exit 1; }

value() { sed -n "s/.*\"$1\": \"*\([^,\"}]*\).*/\1/p"; }

# measure NAME ARGUMENTS...
measure() {
    name=$1
    shift
    for side in $SIDES; do
        tokens=$((side * side))
        row=$(grep "^$name,$tokens," "$csv")
        if [ -z "$row" ]; then
            model="--img-size $((side * 4)) --patch-size 4 --dim 96 --heads 6 --num-classes 1000 --batch-size 4
                   --micro-batch 4"
            # shellcheck disable=SC2086 # a list
            bench=$("$TRAIN_VIT" $model "$@" --bench --bench-seconds 0.5) || exit 1
            # shellcheck disable=SC2086
            bytes=$("$TRAIN_VIT" $model "$@" --describe | sed -n 's/^activation_bytes: //p')
            row=$(echo "$bench" | awk -v train="$(echo "$bench" | value train_images_per_s)" \
                -v infer="$(echo "$bench" | value infer_images_per_s)" -v name="$name" -v tokens="$tokens" \
                -v bytes="$bytes" '{ printf "%s,%d,%.6f,%.6f,%s", name, tokens, 4 / train, 4 / infer, bytes }')
            row="$row,\"$(echo "$bench" | sed -n 's/.*"device": "\([^"]*\)".*/\1/p')\""
            echo "$row" >>"$csv"
        fi
        echo "$row"
        [ "$(echo "$row" | awk -F , -v limit="$LIMIT" '{ print ($3 > limit) }')" = 0 ] || break
    done
}

measure softmax --attn softmax
measure linear --attn linear
for algorithm in window sat dense; do
    measure "ripple $algorithm" --attn ripple --ripple-layers "$LAYERS" --ripple-algo $algorithm
done
measure "ripple-log" --attn ripple-log --ripple-layers "$LAYERS"
measure "ripple-dense" --attn ripple-dense --ripple-layers "$LAYERS"
picture=$OUT.png
[ "$OUT" != docs/scaling ] || picture=docs/images/scaling.png
"$PYTHON" scripts/plots/plot_scaling.py "$csv" --out "$picture"
