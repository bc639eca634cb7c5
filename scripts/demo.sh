#!/bin/sh
# From a fresh checkout to a trained model and its page, in three minutes on two CPU cores after the installation of
# missing packages: builds, trains a ripple transformer to classify ten shapes (configs/cpu/shapes.ini), and plots its
# attention. All results are in runs/demo.
#
#   sh scripts/demo.sh [--epochs 2 ...]      arguments are passed on to train_vit
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -eu
cd "$(dirname "$0")/.."
run=runs/demo
# Threads that spin while they wait slow a shared machine down many times.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"

sh scripts/deps.sh demo
python=${PYTHON:-python3}
command -v "$python" >/dev/null 2>&1 || python=/usr/bin/python3

echo "== building for float32 only (make without options also builds for bfloat16)"
make VARIANTS= -j"$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)"

# Removes only files of an earlier demo; other files remain.
if [ -e "$run/log.csv" ]; then
    echo "== removing the previous demo from $run"
    (cd "$run" && rm -f config.ini log.csv best.safetensors last.safetensors state.safetensors attention.safetensors \
        report.html report.json attention.png)
fi

echo "== training: one to two minutes on two cores"
status=0
./build/cpu/train_vit --config configs/cpu/shapes.ini --run-dir "$run" "$@" || status=$?
if [ "$status" -ne 0 ]; then
    [ "$status" -le 128 ] || echo "interrupted; continue with ./build/cpu/train_vit --resume $run"
    exit "$status"
fi

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
