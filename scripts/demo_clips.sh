#!/bin/sh
# A model of clips learns in which direction a figure moves, on generated clips, in minutes on two CPU cores.  For
# comparison, the same model is trained on single frames, which do not show the direction, and remains at chance.  All
# results are in runs/demo-clips.
#
#   sh scripts/demo_clips.sh [--epochs 2 ...]      arguments are passed on to the training of the clips
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -eu
CDPATH='' cd "$(dirname "$0")/.."
. scripts/demo_steps.sh
run=runs/demo-clips
config=configs/cpu/moving-shapes.ini

echo "== building for float32 only (make without options also builds for bfloat16)"
make VARIANTS= -j"$jobs"
mkdir -p "$run"

echo "== drawing sixteen clips"
./build/cpu/train_vit --config $config --show-batch "$run/clips.png"

echo "== training on clips: some minutes on two cores; the line below shows the remaining time"
train train_vit "$config" "$run/clips" "" "$@"

echo "== training on single frames"
train train_vit "$config" "$run/frames" "" --frames 1 --tubelet 1 --epochs 2

best() { awk -F, 'NR > 1 && $7 > best { best = $7 } END { printf "%.2f %%", best }' "$run/$1/log.csv"; }
cat <<END

top-1 accuracy among eight directions, on test clips: $(best clips)
the same of single frames, where chance is 12.50 %:   $(best frames)

  $run/clips.png    sixteen training clips and their directions
  file://$PWD/$run/clips/report.html    how it learned

Next, a turn instead of a direction, or another operator:
  ./build/cpu/train_vit --config $config --data moving-shapes-turn
  ./build/cpu/train_vit --config $config --attn lisa
END
