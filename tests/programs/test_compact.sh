#!/bin/sh
# Compact transformers: the authors' counts, refused settings, and runs that are resumed, use several ranks, have
# another operator, and are fine-tuned on other images.  TAP on standard output, evidence behind '# '.

# shellcheck disable=SC2012,SC2015,SC2046,SC2086 # settings are lists of words; no name here holds a space
. "$(dirname "$0")/../tap.sh"

configs=$root/configs/compact
compact="--stem conv --patch-size 1 --tokenizer-width 8 --pool seq --mlp-stream normed --qkv-bias false --dim 16 --depth 2
         --heads 2 --mlp-ratio 2 --norm-eps 1e-5 --attn softmax --pos-init-std 0.2"
short="$compact --train-limit 64 --test-limit 32 --batch-size 16 --warmup-epochs 0 --log-every 1 --drop-path 0.3
       --attn-dropout 0.2 --dropout 0.1"

# == Counts ==========================================================================================================

# The numbers of parameters are those of the authors' models with 10 and 100 classes.
while read -r name ten hundred; do
    found=
    for classes in 10 100; do
        run --config "$configs/$name-cifar$classes.ini" --describe
        found="$found $(sed -n 's/^params: //p' out)"
    done
    [ "$found" = " $ten $hundred" ]
    check "$name has the authors' parameters" $? "$found, not $ten $hundred $(head -n 1 err)"
done <<'LINES'
cct-2-3x2 283723 295333
cct-4-3x2 482123 493733
cct-6-3x1 3233803 3256933
cct-6-3x2 3326923 3350053
cct-7-3x1 3760139 3783269
cct-7-3x2 3853259 3876389
cvt-7-4 3716619 3739749
vit-lite-7-4 3716874 3740004
LINES
# One by one: the convolutions on 32x32 and 16x16 pixels, in each block qkv, proj, MLP and twice the scores of 64x64 pairs,
# the pool's scores and weighted sum, the classifier.
run --config "$configs/cct-2-3x2-cifar10.ini" --describe
convolutions=$((32 * 32 * 27 * 64 + 16 * 16 * 64 * 9 * 128)) blocks=$((2 * 64 * 6 * 128 * 128)) scores=$((2 * 2 * 64 * 64 * 128))
got=$(sed -n 's/^macs: //p' out)
echo "$got $((convolutions + blocks + scores + 128 * 10))" | awk '{ rest = $1 - $2; exit !($1 > 0 && rest >= 0 && rest <= 2 * 64 * 128) }'
check "multiply-adds of cct-2" $? "$got, by hand $((convolutions + blocks + scores + 1280)), of these 34.3 million without scores"
for found in '3 32 64' '5 32 64' '7 32 4' '7 61 16' '3 33 81' '5 13 16'; do
    set -- $found
    run $compact --tokenizer-kernel $1 --img-size $2 --pos-embed learned --describe
    params=$(sed -n 's/^params: //p' out)
    # all except the positions: 24 k^2 + 128 k^2, two blocks, the norm, the pool and the classifier
    [ "$params" = $((24 * $1 * $1 + 128 * $1 * $1 + 16 * $3 + 2 * (4 * 256 + 16 + 64 + 2 * 512 + 48) + 32 + 17 + 170)) ]
    check "a kernel of $1 makes $3 tokens of $2x$2 pixels" $? "$params parameters $(head -n 1 err)"
done

# == What cannot be ==================================================================================================

describe="$compact --describe"
refuses "a tokenizer and patches" 2 'patch-size|patch_size 1' $describe --patch-size 4
refuses "an even kernel" 2 'tokenizer-kernel|4' $describe --tokenizer-kernel 4
refuses "a kernel that is too large" 2 'tokenizer-kernel|9' $describe --tokenizer-kernel 9
refuses "no convolutions" 2 'tokenizer-convs|0' $describe --tokenizer-convs 0
refuses "a tokenizer's kernel without a tokenizer" 2 'tokenizer-kernel|stem none|conv' $model --tokenizer-kernel 5 --describe
refuses "a tokenizer of clips" 2 'stem|frames' $describe --frames 4 --data ssv2
refuses "sequence pooling of no name" 2 'pool|seq' $describe --pool sequence
refuses "an MLP's stream of no name" 2 'mlp-stream|residual or normed' $describe --mlp-stream norm
refuses "biases of projections that are not there" 2 'qkv-bias|attn gf' $describe --attn gf
refuses "a second token that sequence pooling has not" 2 'distilled|pool cls' $describe --distilled true
refuses "a tokenizer's 7x7 tokens in two stages" 2 'img-size|7x7' $describe --img-size 28 --dim 16,24

# == Runs ============================================================================================================

succeeds "a run" $short --epochs 3 --run-dir whole
run $short --epochs 3 --run-dir again
same_run whole again
check "once more it has the same bits" $? "differs: $differs"
run $short --epochs 3 --run-dir parts --micro-batch 5
worst=$(curves_agree whole parts 1e-4)
check "parts of batches give the same losses" $? "$worst"
run $short --epochs 3 --run-dir recomputed --recompute true
same_run whole recomputed
check "blocks that are computed again have the same bits" $? "differs: $differs"
for threads in 2 3; do
    OMP_NUM_THREADS=$threads "$vit" $short --epochs 3 --run-dir threads$threads >out 2>err
    worst=$(curves_agree whole threads$threads 1e-4)
    check "$threads threads have the losses of one" $? "$worst"
done
run $short --epochs 20 --run-dir long
stops_run 130 stopped INT '^5,' stopped/log.csv $short --epochs 20 --run-dir stopped
check "SIGINT stops a run" $? "status $status"
run --resume stopped
[ "$status" -eq 0 ] && same_run long stopped
check "a run that was stopped goes on bit for bit" $? "status $status, differs: $differs $(head -n 1 err)"
if command -v "${MPIRUN:-mpirun}" >/dev/null 2>&1 && ldd "$vit" 2>/dev/null | grep -q libmpi; then
    timeout -k 5 100 "${MPIRUN:-mpirun}" -np 2 "$vit" $short --epochs 3 --run-dir ranks >out 2>err </dev/null
    worst=$(curves_agree whole ranks 1e-4)
    check "two ranks have the losses of one" $? "$worst"
fi

# Sines are not trained, and are those of the definition; the pool's scores are learned.
run $short --epochs 2 --pos-embed sine --run-dir sines
if [ -n "$python" ]; then
    "$python" - sines/last.safetensors <<'PYTHON' >told 2>&1
import json, sys
import numpy as np
data = open(sys.argv[1], "rb").read()
size = int.from_bytes(data[:8], "little")
header = json.loads(data[8:8 + size])
def tensor(name):
    begin, end = header[name]["data_offsets"]
    return np.frombuffer(data[8 + size + begin:8 + size + end], np.float32).reshape(header[name]["shape"])
n, i = np.arange(64)[:, None], np.arange(16)[None]
angles = n / 10000.0 ** (2 * (i // 2) / 16)
worst = np.abs(tensor("pos_embed")[0] - np.where(i % 2, np.cos(angles), np.sin(angles))).max()
print(worst, np.abs(tensor("attention_pool.weight")).max(), tensor("attention_pool.bias"))
sys.exit(not worst < 1e-6)
PYTHON
    check "sines after two epochs" $? "$(tail -n 1 told)"
else
    skip "sines after two epochs" "no Python with numpy here"
fi

# Every operator that supports a tokenizer trains with it; the others give the reason in one line.
operators=$("$vit" --help | sed -n '/^Attention operators/,/^$/s/^  \([a-z0-9-]*\) .*/\1/p')
trained=0
for attn in $operators; do
    run $compact --attn $attn --train-limit 32 --test-limit 16 --batch-size 16 --warmup-epochs 0 --epochs 1 --run-dir other-$attn
    case $status in
    0) trained=$((trained + 1)); last_row other-$attn | grep -q nan && echo "$attn: not a number" ;;
    *) complains 2 qkv-bias || complains 2 attn || complains 2 img-size || echo "$attn: $(head -n 1 err)" ;;
    esac
done >wrong
[ ! -s wrong ] && [ $trained -ge 20 ]
check "other operators" $? "$trained trained, $(head -n 1 wrong)"
succeeds "stages behind a tokenizer" $short --dim 8,16 --depth 1,1 --pool seq --epochs 1 --run-dir stages
succeeds "its inference" --init stages/last.safetensors --eval --test-limit 32
# Other images: the positions are resampled.
succeeds "larger images" $short --init whole/last.safetensors --img-size 40 --epochs 1 --run-dir larger
refuses "a tokenizer's weights for patches" 1 'last.safetensors|stem conv' $tiny --init whole/last.safetensors --run-dir none
run $tiny --epochs 1 --run-dir patches
refuses "and patches' for a tokenizer" 1 'last.safetensors|stem none' $short --init patches/last.safetensors --run-dir none

echo "1..$count"
[ $failures -eq 0 ]
