#!/bin/sh
# One of the programs as a page of the guide calls it, except that a training gets few samples and epochs, and models whose
# size no page depends on are small.  tests/project/test_guide.sh copies this file to the programs' names; $PROGRAMS is
# the folder of the real ones.

# shellcheck shell=sh disable=SC2086 # settings are words
name=${0##*/}
case $name in
train_vit) short="--epochs 1 --train-limit 48 --test-limit 24 --batch-size 16" ;;
train_ar) short="--epochs 1 --train-limit 4 --test-limit 4 --batch-size 4 --depth 1" ;;
train_detr | train_mask_rcnn | train_semantic_fpn) short="--epochs 1 --train-limit 2 --val-limit 8 --batch-size 2" ;;
*) short= ;;
esac
# shellcheck disable=SC2221,SC2222 # the first that fits
case "$name $*" in
*configs/imagenet*) short="--epochs 1 --train-limit 8 --test-limit 2 --val-fraction 0.5 --batch-size 2" ;;
train_vit*--config*) ;;
train_vit*) short="$short --depth 2" ;;
*configs/ar/text* | *configs/ar/enwik8* | *recordings*) short="$short --tokens 256" ;;
esac
for argument; do
    case $argument in
    --warmup-epochs) short="$short --epochs 2" ;; # one more
    # Pages show what such a run prints.
    --train-limit) [ $name = train_vit ] || short= ;;
    --resume | --eval | --predict | --describe | --show-batch | --report | --compare | -h | --help | --parity | --write-logits | \
        --sample | --complete | --prompt) short= ;;
    --bench) short="--bench-seconds 0.1 --batch-size 1 --depth 1 --pool gap" ;;
    esac
done
exec "$PROGRAMS/$name" "$@" $short
