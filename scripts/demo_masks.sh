#!/bin/sh
# From a fresh checkout to masks of ten shapes in minutes on two CPU cores: installs missing packages, builds, trains
# Mask R-CNN (configs/coco/mask-rcnn-demo.ini) and Semantic FPN (configs/ade20k/shapes-demo.ini) on generated scenes,
# evaluates boxes and masks with COCO's metrics and the classes of pixels with mIoU, and draws the detections in a
# scene.  All results are in runs/demo-mask-rcnn and runs/demo-semantic-fpn.
#
#   sh scripts/demo_masks.sh [--epochs 2 ...]      arguments are passed on to both training programs
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -eu
CDPATH='' cd "$(dirname "$0")/.."
. scripts/demo_steps.sh

echo "== building"
make -j"$jobs"

echo "== instances: about five minutes on two cores; the line below shows the remaining time"
run=runs/demo-mask-rcnn
train train_mask_rcnn configs/coco/mask-rcnn-demo.ini $run masks.png "$@"
echo "== evaluating the best weights"
./build/cpu/train_mask_rcnn --init $run/best.safetensors --eval
echo "== prediction for a new scene"
./build/cpu/train_mask_rcnn --init $run/best.safetensors --predict val:7 --draw $run/masks.png

echo "== classes of pixels: another five minutes"
semantic=runs/demo-semantic-fpn
train train_semantic_fpn configs/ade20k/shapes-demo.ini $semantic classes.png "$@"
echo "== evaluating the best weights"
./build/cpu/train_semantic_fpn --init $semantic/best.safetensors --eval
echo "== the same scene"
./build/cpu/train_semantic_fpn --init $semantic/best.safetensors --predict val:7 --draw $semantic/classes.png
cat <<END

  file://$PWD/$run/report.html         how it learned, and what it finds
  $run/masks.png          the boxes and masks that it found in that scene
  file://$PWD/$semantic/report.html    the same of the classes of pixels
  $semantic/classes.png   the scene, and next to it the class of every pixel

Next, COCO and ADE20K:
  ./build/cpu/train_mask_rcnn --config configs/coco/mask-rcnn-resnet-50.ini --data FOLDER
  ./build/cpu/train_semantic_fpn --config configs/ade20k/semantic-fpn-resnet-50.ini --data FOLDER
END
