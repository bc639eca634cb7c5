#!/bin/sh
# lisa and gf with cuFFT in the emulated build: whole models against their fixtures, and training, whose graphs are
# captured.
#
#   BUILD=build/emulate-FP32 sh tests/emulate/emulated_transforms.sh

# shellcheck disable=SC2046,SC2086 # settings are lists of words
ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0}
export ASAN_OPTIONS
BUILD=${BUILD:-build/emulate-FP32}
. "$(dirname "$0")/../tap.sh"

ln -s "$root/tests" tests
# In bfloat16, where the tolerance is wide, one of each.
fixtures="lisa lisa-2d gf gf-even clip-gf"
case $build in *BF16*) fixtures="lisa gf-even" ;; esac
for fixture in $fixtures; do
    VIT_STANDIN_COUNTS=$work/counts VIT_TRANSFORMS=cufft VIT_TEST_FIXTURES=$fixture \
        "$build/tests/test_model" test_reference >out 2>&1 &&
        grep -q 'cufftExecC2R' counts
    check "$fixture against its fixture, by cuFFT" $? "$(grep -a 'not ok\|stand-in' out | grep -v SKIP | head -n 1)"
done

# Training in float32, whose tolerance is narrower: the transforms have the same source in both precisions.  More steps
# than the two before a graph is captured; 20 images are not a multiple of the batch.
trained="lisa gf"
case $build in *BF16*) trained= ;; esac
model="--dim 16 --heads 2 --depth 1 --patch-size 8 --train-limit 22 --test-limit 7 --batch-size 4 --warmup-epochs 0
       --log-every 1 --epochs 1"
for attn in $trained; do
    [ $attn != lisa ] || attn="lisa --lisa-algo fft"
    for way in blocks cufft; do
        VIT_STANDIN_COUNTS=$work/counts.$way VIT_TRANSFORMS=$way run $model --attn $attn --run-dir $way
        check "$attn: a run by $way" $status "$(head -n 1 err)"
    done
    worst=$(curves_agree blocks cufft 2e-5)
    check "$attn: both have one curve" $? "$worst"
    grep -q cufftExec counts.cufft && ! grep -q cufftExec counts.blocks
    check "$attn: each as it was asked" $? "$(grep cufftExec counts.cufft | paste -sd , -)"
    VIT_TRANSFORMS=cufft VIT_STANDIN_SEED=7 run $model --attn $attn --run-dir again
    same_run cufft again
    check "$attn: work in another order gives the same bits" $? "differs: $differs"
    rm -rf blocks cufft again
done

for way in fftw measured; do
    VIT_TRANSFORMS=$way run $model --attn gf --run-dir none
    complains 1 "VIT_TRANSFORMS=$way|expected blocks or cufft"
    check "VIT_TRANSFORMS=$way is refused" $? "$(head -n 1 err)"
done

# A gf of 96 x 96 tokens needs 147,456 bytes of shared memory for a channel, forward and backward.
large="--dim 2 --heads 1 --depth 1 --patch-size 1 --img-size 96 --attn gf --batch-size 1"
bytes() { VIT_STANDIN_SM=$1 VIT_TRANSFORMS=$2 run $large --describe && sed -n 's/.*kernel workspace \([0-9.]*\).*/\1/p' out | head -n 1; }
[ -n "$(bytes 90 blocks)" ] && [ "$(bytes 86 blocks)" = "$(bytes 86 cufft)" ] && [ "$(bytes 90 blocks)" != "$(bytes 90 cufft)" ]
check "a GPU with too little shared memory takes cuFFT" $? "$(bytes 90 blocks), $(bytes 86 blocks), $(bytes 90 cufft)"
echo "1..$count"
[ $failures -eq 0 ]
