#!/bin/sh
# From a fresh checkout to a trained model and its page, in three minutes on two CPU cores after the installation of
# missing packages: builds, trains a ripple transformer to classify ten shapes (configs/cpu/shapes.ini), and plots its
# attention. All results are in runs/demo.
#
#   sh scripts/demo.sh [--epochs 2 ...]      arguments are passed on to train_vit
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -eu
CDPATH='' cd "$(dirname "$0")/.."
. scripts/demo_steps.sh
run=runs/demo

echo "== building for float32 only (make without options also builds for bfloat16)"
make VARIANTS= -j"$jobs"

echo "== training: one to two minutes on two cores"
train train_vit configs/cpu/shapes.ini "$run" "attention.safetensors attention.png" "$@"

echo "== eight test images: a star, a ring, a square, a triangle, a cross, a heart, a crescent, an arrow"
./build/cpu/train_vit --init "$run/best.safetensors" --attention "$run/attention.safetensors" \
    --predict test:15 test:11 test:12 test:13 test:14 test:16 test:17 test:18

echo "== drawing"
"$python" scripts/plots/plot_attention.py "$run/attention.safetensors" --queries 0,3 --out "$run/attention.png"

accuracy=$(awk -F, 'NR > 1 && $7 > best { best = $7 } END { printf "%.2f %%", best }' "$run/log.csv")
cat <<END

top-1 accuracy on the test images: $accuracy

  file://$PWD/$run/report.html    how it learned, what it mixes up, and its settings
  $run/attention.png    where each head of each layer looks

Next, the same with another attention, or a look at a picture of yours:
  ./build/cpu/train_vit --config configs/cpu/shapes.ini --attn linear
  ./build/cpu/train_vit --init $run/best.safetensors --predict FILE.png
END
