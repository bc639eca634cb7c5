#!/bin/sh
# The operations of a training step on a GPU, counted in the emulated build: kernels, library calls and copies, and
# calls in which the host may wait.  The counts are those of docs/notebook/cuda-predictions.md; if a change alters one,
# both must be corrected.
#
#   BUILD=build/emulate-FP32 sh tests/emulate/emulated_counts.sh
#   NAMES=1 ...   also prints their names

# shellcheck disable=SC2046,SC2086 # settings are lists of words
ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0}
export ASAN_OPTIONS
BUILD=${BUILD:-build/emulate-FP32}
. "$(dirname "$0")/../tap.sh"

# Two blocks of DeiT on 16 tokens.  Runs of 8 and of 12 steps differ by four that replay a graph.
model="--dim 24 --heads 2 --depth 2 --patch-size 8 --test-limit 1 --batch-size 2 --warmup-epochs 0 --epochs 1 --log-every 100
       --mixup 0 --cutmix 0"
# A detector with two decoder layers, whose scenes have one size.
detector="--backbone-blocks 1,1,1,1 --backbone-width 4 --dim 16 --ffn 24 --heads 2 --encoder-layers 1 --decoder-layers 2
          --queries 9 --scale-min 32 --scale-max 32 --max-size 48 --crop false --eval-scale 32 --scene-size 32
          --val-limit 1 --batch-size 2 --micro-batch 2 --epochs 1 --log-every 100"

# counts OPERATOR: the number of each kind, "ran waited", summed over four steps.
counts() {
    for steps in 8 12; do
        VIT_STANDIN_COUNTS=$work/counts.$steps run $model --attn $1 --train-limit $((2 * steps)) --run-dir counted
        [ "$status" -eq 0 ] || { echo "status $status: $(head -n 1 err)"; return; }
        rm -rf counted
    done
    awk 'FNR == NR { more[$1 " " $3] -= $2; sum[$1] -= $2; next } # instances of a template add up
         { more[$1 " " $3] += $2; sum[$1] += $2 }
         END {
             for (k in more) { split(k, word); if (more[k]) print word[1], more[k] / 4, word[2] > "counts.names" }
             printf "%g %g", sum["ran"] / 4, sum["waited"] / 4
         }' counts.8 counts.12
    sort -k1,1 -k2,2nr counts.names >"$work/names-${1%% *}"
}

# no_more OPERATOR KERNELS WAITS
no_more() {
    got=$(counts "$1")
    [ "$got" = "$2 $3" ]
    check "$1: $2 launches and $3 waits a step" $? "$got"
    [ -z "${NAMES:-}" ] || sed "s/^/# /" "$work/names-${1%% *}"
}

fused=0 heads=0 # launches saved by the GELU within products, and by softmax's backward pass in one kernel
case $build in *BF16*) fused=5 heads=2 ;; esac
no_more softmax $((83 - fused - heads)) 3
no_more linear $((91 - fused)) 3
no_more ripple $((103 - fused)) 3 # two of them measure the weights, once per block
no_more "lisa --lisa-algo fft" $((111 - fused)) 3
no_more gf $((73 - fused)) 3
# The predictions, which are matched on the host; sizes, cells and two gradients through the ring; the pixels; the
# results of the previous step; the loss for the log is set to zero.  In bfloat16 also parameters that are rounded, and
# logits that are copied back through the ring.
vit=$build/train_detr model=$detector
case $build in *BF16*) no_more softmax 429 8 ;; *) no_more softmax 427 7 ;; esac
echo "1..$count"
[ $failures -eq 0 ]
