#!/bin/sh
# Trains the models of the page on the generated shapes: the demo's with ripple attention, and the same with softmax
# attention and with LiSA.  Some ten minutes on two cores.
#
#   sh examples/browser/train.sh FOLDER [--epochs 1 ...]     FOLDER/ripple, FOLDER/softmax and FOLDER/lisa, each unless
#                                                            it is there; arguments are passed on to train_vit
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -eu
[ $# -gt 0 ] || { echo "examples/browser/train.sh: expected a folder for the models" >&2; exit 2; }
root=$(CDPATH='' cd "$(dirname "$0")/../.." && pwd)
folder=$1
shift
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"

train() { # name, arguments of train_vit
    name=$1
    shift
    [ ! -e "$folder/$name/complete" ] || return 0
    rm -rf "${folder:?}/$name"
    echo "== training $name"
    "${TRAIN_VIT:-$root/build/cpu/train_vit}" --config "$root/configs/cpu/shapes.ini" --run-dir "$folder/$name" \
        --attn "$name" "$@"
    : >"$folder/$name/complete"
}

mkdir -p "$folder"
train ripple "$@"
# Without positions of its own, it needs an embedding of them, and longer.
train softmax --pos-embed learned --epochs 10 "$@"
train lisa "$@"
