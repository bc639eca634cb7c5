#!/bin/sh
# From a fresh checkout to a detector of ten shapes in about 40 minutes on two CPU cores: installs missing packages, builds,
# trains (configs/coco/shapes-demo.ini), evaluates with COCO's metrics, and draws the detections in a scene.  All results are in runs/demo-detector.
#
#   sh scripts/demo_detector.sh [--epochs 4 ...]      arguments are passed on to train_detr
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -eu
CDPATH='' cd "$(dirname "$0")/.."
. scripts/demo_steps.sh
run=runs/demo-detector

echo "== building"
make -j"$jobs"

echo "== training: about 40 minutes on two cores; the line below shows the remaining time"
train train_detr configs/coco/shapes-demo.ini "$run" boxes.png "$@"

echo "== evaluating the best weights"
./build/cpu/train_detr --init "$run/best.safetensors" --eval

echo "== prediction for a new scene"
./build/cpu/train_detr --init "$run/best.safetensors" --predict val:7 --draw "$run/boxes.png"
cat <<END

  file://$PWD/$run/report.html    how it learned, and what it finds
  $run/boxes.png    what it found in that scene

Next, the same with another attention in its encoder, or COCO:
  ./build/cpu/train_detr --config configs/coco/shapes-demo.ini --attn ripple
  ./build/cpu/train_detr --config configs/coco/smca-ripple.ini --data FOLDER
END
