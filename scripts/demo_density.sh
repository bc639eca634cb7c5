#!/bin/sh
# From a fresh checkout to a density model of small pictures in half an hour on two CPU cores: installs missing packages,
# builds, trains a Sparse Transformer on generated shapes (configs/ar/shapes-demo.ini), measures bits per byte and those of three
# baselines, and samples pictures.  All results are in runs/demo-density.
#
#   sh scripts/demo_density.sh [--epochs 2 ...]      arguments are passed on to train_ar
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -eu
CDPATH='' cd "$(dirname "$0")/.."
. scripts/demo_steps.sh
run=runs/demo-density

echo "== building"
make -j"$jobs"

echo "== training: about half an hour on two cores; the line below shows the remaining time"
train train_ar configs/ar/shapes-demo.ini "$run" "drawn.png completed.png half.png test.txt shapes.pack" "$@"

echo "== bits per byte of test pictures, by the model and by three methods without a model"
./build/cpu/train_ar --init "$run/best.safetensors" --eval >"$run/test.txt"
result() { sed -n "s/^$1: //p" "$run/test.txt"; }
./build/cpu/pack_dataset --data shapes --split val --raw --out "$run/shapes.pack" >/dev/null 2>&1
png=$("$python" scripts/plots/png_bits.py "$run/shapes.pack" --side 16 | sed 's/.*: //')
printf '  %-44s %s\n' "uniform noise" 8 "histogram of each position's bytes" "$(result histogram_bits)" \
    "PNG, each picture a file" "$png" "this model" "$(result bits)"

echo "== drawing"
./build/cpu/train_ar --init "$run/best.safetensors" --sample 36 --out "$run/drawn.png"
cat <<END

  $run/drawn.png    36 pictures of its own
  file://$PWD/$run/report.html    bits per byte while it learned

Next, the same with dense attention, or text:
  ./build/cpu/train_ar --config configs/ar/shapes-demo.ini --attn softmax
  ./build/cpu/train_ar --config configs/ar/text.ini --data FILE
END
