#!/bin/sh
# Training in the emulated build, with the real host side of the CUDA backend: graphs captured and replayed, two ranks
# over the stand-in for NCCL, and the message if there are too few GPUs.
#
#   BUILD=build/emulate-FP32 sh tests/emulate/emulated_ranks.sh

# shellcheck disable=SC2046,SC2086 # settings are lists of words
ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0}
export ASAN_OPTIONS
BUILD=${BUILD:-build/emulate-FP32}
. "$(dirname "$0")/../tap.sh"

# More steps than the two before a graph is captured.
model="--dim 16 --heads 2 --depth 2 --patch-size 8 --attn ripple --train-limit 20 --test-limit 8 --batch-size 4
       --warmup-epochs 0 --log-every 1 --drop-path 0.1 --clip-grad 1 --epochs 1"

tolerance=2e-5
case $build in *BF16*) tolerance=2e-2 ;; esac

run $model --run-dir one
check "one rank" $status "$(head -n 1 err)"
VIT_STANDIN_SEED=7 run $model --run-dir again
same_run one again
check "work in another order gives the same bits" $? "differs: $differs"

# Ten micro-batches, of which all except the first two replay a graph; on two ranks, those at whose end the sum begins
# do not.
VIT_STANDIN_COUNTS=counts run $model --micro-batch 2 --run-dir micro
worst=$(curves_agree one micro $tolerance) && grep -q '^replayed 8 graphs$' counts
check "micro-batches replay a graph and have the curve of a whole batch" $? "$worst; $(grep replayed counts)"

VIT_STANDIN_GPUS=0 run $model --run-dir none
[ "$status" -ne 0 ] && grep -q 'no GPU to run on' err
check "no GPU" $? "$(head -n 1 err)"
VIT_STANDIN_GPUS=-1 run $model --run-dir none
[ "$status" -ne 0 ] && grep -q 'no NVIDIA driver' err
check "no driver" $? "$(head -n 1 err)"
VIT_STANDIN_SM=75 run $model --run-dir none
[ "$status" -ne 0 ] && grep -q 'compute capability 7.5, and 8.0 or newer is needed' err
check "a GPU that is too old" $? "$(head -n 1 err)"
VIT_STANDIN_MEMORY=1000000 run $model --run-dir none
[ "$status" -ne 0 ] && grep -q 'out of memory on the emulated GPU: .* MiB for .* MiB are free' err
check "too little memory" $? "$(head -n 1 err)"

if ! command -v mpirun >/dev/null 2>&1 || ! ldd "$vit" | grep -q libmpi; then
    skip "two ranks" "no MPI here"
else
    ranks() {
        timeout -k 5 300 mpirun -np 2 "$vit" "$@" >out 2>err </dev/null
        status=$?
    }
    ranks $model --run-dir two
    check "two ranks" $status "$(grep -a '^train_vit:\|^stand-in' err | head -n 1)"
    worst=$(curves_agree one two $tolerance)
    check "two ranks have the curve of one" $? "$worst"
    VIT_STANDIN_SEED=7 ranks $model --run-dir two-again
    same_run two two-again
    check "two ranks give the same bits in another order" $? "differs: $differs"
    VIT_STANDIN_COUNTS=counts ranks $model --micro-batch 1 --run-dir two-micro
    worst=$(curves_agree one two-micro $tolerance) && grep -q '^replayed 3 graphs$' counts
    check "two ranks, micro-batches" $? "$worst; $(grep replayed counts)"
    VIT_STANDIN_NETWORK=3 ranks $model --run-dir lost
    [ "$status" -ne 0 ] && [ "$status" -lt 124 ] && grep -a '^train_vit:' err | grep -q 'a sum over ranks failed: .*network error'
    check "two ranks and a network that fails" $? "status $status: $(grep -a '^train_vit:\|^stand-in' err | head -n 1)"
    VIT_STANDIN_GPUS=1 ranks $model --run-dir none
    [ "$status" -ne 0 ] && grep -a '^train_vit:' err | grep -q 'GPU\|invalid usage'
    check "two ranks and one GPU" $? "status $status: $(grep -a '^train_vit:' err | head -n 1)"
fi
echo "1..$count"
[ $failures -eq 0 ]
