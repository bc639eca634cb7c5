# Runs one of the programs as a page of the guide calls it; a training gets few samples and one epoch.
#
#   sh tests/project/short_run.sh PROGRAM ARGUMENTS...

# shellcheck shell=sh disable=SC2086 # settings are words
program=$1
shift
short="--epochs 1 --train-limit 160 --test-limit 24"
case "$*" in *configs/imagenet*) short="--epochs 1 --train-limit 40 --test-limit 4" ;; esac
case $program in
*train_ar) short="--epochs 1 --train-limit 16 --test-limit 8 --batch-size 4" ;;
*train_semantic_fpn) short="--epochs 1 --train-limit 8 --val-limit 8" ;;
*train_detr | *train_mask_rcnn) short="--epochs 1 --train-limit 16 --val-limit 8" ;;
*pack_dataset) short= ;;
esac
for argument; do
    case $argument in
    --epochs) short=${short#--epochs 1} ;;
    --train-limit) case $program in *train_ar) short= ;; *) short="--epochs 1 --train-limit 128 --test-limit 24" ;; esac ;;
    --resume | --eval | --predict | --describe | --show-batch | --report | --compare | -h | --help | --parity | --write-logits | \
        --sample | --complete | --prompt) short= ;;
    --bench) short="--bench-seconds 0.1" ;;
    esac
done
exec "$program" "$@" $short
