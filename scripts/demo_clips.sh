#!/bin/sh
# A model of clips learns in which direction a figure moves, on generated clips, in minutes on two CPU cores.  For
# comparison, the same model is trained on single frames, which do not show the direction, and remains at chance.  All
# results are in runs/demo-clips.
#
#   sh scripts/demo_clips.sh [--epochs 2 ...]      arguments are passed on to the training of the clips
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -eu
cd "$(dirname "$0")/.."
run=runs/demo-clips
config=configs/cpu/moving-shapes.ini
# Threads that spin while they wait slow a shared machine down many times.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"

sh scripts/deps.sh demo

echo "== building for float32 only (make without options also builds for bfloat16)"
make VARIANTS= -j"$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)"

# Removes only files of an earlier demo; other files remain.
for part in clips frames; do
    [ ! -e "$run/$part/log.csv" ] || (cd "$run/$part" &&
        rm -f config.ini log.csv best.safetensors last.safetensors state.safetensors report.html report.json)
done
mkdir -p "$run"

echo "== drawing sixteen clips"
./build/cpu/train_vit --config $config --show-batch "$run/clips.png"

echo "== training on clips: some minutes on two cores; the line below shows the remaining time"
status=0
./build/cpu/train_vit --config $config --run-dir "$run/clips" "$@" || status=$?
if [ "$status" -ne 0 ]; then
    [ "$status" -le 128 ] || echo "interrupted; continue with ./build/cpu/train_vit --resume $run/clips"
    exit "$status"
fi

echo "== training on single frames"
./build/cpu/train_vit --config $config --frames 1 --tubelet 1 --epochs 2 --run-dir "$run/frames"

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
