#!/bin/sh
# What was chosen by measured time stays with the run: the emulated build's stand-ins say which algorithm is the fastest,
# and say something else when the run is resumed.
#
#   BUILD=build/emulate-FP32 sh tests/emulate/emulated_choices.sh

# shellcheck disable=SC2046,SC2086 # settings are lists of words
ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0}
export ASAN_OPTIONS
BUILD=${BUILD:-build/emulate-FP32}
. "$(dirname "$0")/../tap.sh"

model="--dim 16 --heads 2 --depth 1 --patch-size 8 --train-limit 22 --test-limit 7 --batch-size 4 --warmup-epochs 0
       --log-every 1 --attn gf"

# choices RUN: the lines of its state.
choices() { head -c $((8 + $(header_size "$1/state.safetensors"))) "$1/state.safetensors" | sed -n 's/.*"vit\.c\.choices":"\([^"]*\)".*/\1/p'; }
# Epochs of five steps: with the third a graph is captured.  The choices of one run and the times of another.
backwards="VIT_STANDIN_FASTEST=1 VIT_STANDIN_CUFFT_SLOW=0" pairs="VIT_STANDIN_FASTEST=2 VIT_STANDIN_CUFFT_SLOW=1"
measured="VIT_PRODUCTS=measured VIT_TRANSFORMS=measured"
# with VARIABLES ARGUMENTS...: run under these variables.
with() {
    variables=$1
    shift
    env $variables "$vit" "$@" >out 2>err
    status=$?
}

with "$measured $backwards" $model --epochs 2 --run-dir whole
check "a run that measures" $status "$(head -n 1 err)"
with "$measured $pairs" $model --epochs 2 --run-dir other
! same_run whole other
check "other times give other bits" $? "differs: $differs"

# The schedule of learning rates needs the same number of epochs: a signal ends the first.
half() {
    rm -rf half
    stop_run TERM ',1,' half/log.csv $model --epochs 2 --run-dir half
}
export VIT_PRODUCTS=measured VIT_TRANSFORMS=measured VIT_STANDIN_FASTEST=1 VIT_STANDIN_CUFFT_SLOW=0
half
unset VIT_PRODUCTS VIT_TRANSFORMS VIT_STANDIN_FASTEST VIT_STANDIN_CUFFT_SLOW
[ $status -eq 143 ]
check "a run that is stopped" $? "status $status, $(grep -c . half/log.csv) lines"
kept=$(choices half)
case $kept in *'transforms of gf, 1 x 4 x 4 tokens of 16 channels = cufft'*'product forward'*' of '[1-9]* | \
    *'product forward'*' of '[1-9]*'transforms of gf, 1 x 4 x 4 tokens of 16 channels = cufft'*) true ;; *) false ;; esac
check "its state has the choices" $? "$(printf %s "$kept" | head -c 150)"

# continued NAME VARIABLES: from a copy of the run that was stopped.
continued() {
    rm -rf "$1"
    cp -r half "$1"
    with "$2" --resume "$1"
}
continued same "$measured $pairs"
check "resumed where other algorithms are faster" $status "$(head -n 1 err)"
same_run whole same
check "it has the bits of the whole run" $? "differs: $differs"
! grep -q 'choices' out
check "and says nothing" $? "$(grep choices out)"
continued unasked "$pairs"
same_run whole unasked
check "without VIT_PRODUCTS and VIT_TRANSFORMS too" $? "differs: $differs"

continued first "VIT_PRODUCTS=first VIT_TRANSFORMS=blocks $pairs"
check "resumed with VIT_PRODUCTS=first" $status "$(head -n 1 err)"
! same_run whole first
check "it has other bits" $? "differs: $differs"

for difference in VIT_STANDIN_CUBLASLT=130100 VIT_STANDIN_PROCESSORS=80; do
    continued elsewhere "$measured $pairs $difference"
    grep -q 'kernels do not take the choices of the saved run: they were made on .*cuBLASLt 130000.*, and this is' out &&
        ! same_run whole elsewhere
    check "resumed with $difference: chosen anew, and said" $? "$(grep choices out)"
done

# Lines that are none are chosen anew.
restate half/state.safetensors changed ' of 4' ' of 9'
cp changed half/state.safetensors
continued changed "$measured $backwards"
[ "$status" -eq 0 ] && same_run whole changed
check "a choice that is none is made anew" $? "status $status, differs: $differs"

with VIT_PRODUCTS=fastest $model --epochs 1 --run-dir none
complains 1 'VIT_PRODUCTS=fastest|first or measured'
check "a way that is none" $? "$(head -n 1 err)"
echo "1..$count"
[ $failures -eq 0 ]
