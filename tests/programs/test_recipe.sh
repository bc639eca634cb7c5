#!/bin/sh
# Settings of a recipe: a smaller last batch of an epoch, a reciprocal warm-up, weight decay of all parameters. TAP on
# standard output, evidence behind '# '.

# shellcheck disable=SC2012,SC2015,SC2046,SC2086 # settings are lists of words; no name here holds a space
. "$(dirname "$0")/../tap.sh"

# 101 images make three batches of 32 and one of 5, of which the middle one is its own partner in mixup.
uneven="$tiny --train-limit 101 --batch-size 32 --drop-last false --epochs 2 --log-every 1 --mixup 0.8"

# == A smaller last batch ============================================================================================

succeeds "an epoch ends with a smaller batch" $uneven --run-dir whole
grep -q '2 epochs of 4 batches of 32 images (the last of 5)' out && [ "$(wc -l <whole/log.csv)" -eq 9 ]
check "it is one more" $? "$(sed -n 4p out)"
run $uneven --run-dir parts --micro-batch 5
worst=$(curves_agree whole parts 1e-4)
check "parts of batches give the same losses" $? "worst $worst"
run $uneven --run-dir twice
[ "$(tensors whole/last.safetensors | cksum)" = "$(tensors twice/last.safetensors | cksum)" ]
check "two runs have the same bits" $?
if command -v "${MPIRUN:-mpirun}" >/dev/null 2>&1 && ldd "$vit" 2>/dev/null | grep -q libmpi; then
    timeout -k 5 100 "${MPIRUN:-mpirun}" -np 3 "$vit" $uneven --batch-size 48 --run-dir ranks >out 2>err </dev/null
    check "three ranks share 48 images and the last 5" $? "$(tail -n 1 out)"
    run $uneven --batch-size 48 --run-dir alone
    worst=$(curves_agree alone ranks 1e-4)
    check "with the losses of one" $? "worst $worst"
    timeout -k 5 100 "${MPIRUN:-mpirun}" -np 3 "$vit" $uneven --batch-size 33 --run-dir few >out 2>err </dev/null
    [ $? -ne 0 ] && grep -q 'drop-last: false makes a last batch of 2 images for 3 ranks' err
    check "fewer images than ranks are refused" $? "$(head -n 1 err)"
fi

run $uneven --train-limit 300 --repeated-aug --epochs 1 --batch-size 100 --run-dir repeated
[ "$status" -eq 0 ] && grep -q '1 epochs of 3 batches of 100 images (the last of 56)' out
check "with repeated augmentation, too" $? "$(grep epochs out | head -n 1) $(head -n 1 err)"
# At a learning rate of nearly 0, the last 4 of 36 images are the same batch whether the first 32 are processed at once
# or four at a time.
for size in 32 4; do
    run $tiny --train-limit 36 --batch-size $size --lr 1e-30 --lr-min 0 --epochs 1 --log-every 1 --drop-last false \
        --run-dir rest-$size
    curve rest-$size | tail -n 1 | cut -d , -f 3,5
done >lasts
awk -F , 'NR == 1 { loss = $1; norm = $2 }
    END { exit !(NR == 2 && norm > 0 && (loss - $1) ^ 2 < 1e-10 * loss ^ 2 &&
                (norm - $2) ^ 2 < 1e-8 * norm ^ 2) }' lasts
check "loss and gradient are the mean over the smaller batch" $? "$(tr '\n' ' ' <lasts)"

# == Stopped and resumed =============================================================================================

# The whole recipe.  A row is written for each of 40 batches, and the stop is within an epoch.
recipe="$tiny --train-limit 633 --batch-size 64 --drop-last false --epochs 4 --log-every 1 --warmup-epochs 2
        --warmup-curve reciprocal --cosine-from warmup --weight-decay-of all --weight-decay 0.3 --aa autoaugment-compact
        --crop-padding 4 --label-smoothing 0.1"
run $recipe --run-dir through
check "the whole recipe" "$status" "$(tail -n 1 out)"
stops_run 130 stopped INT '^14,' stopped/log.csv $recipe --run-dir stopped
batch=$(place stopped/state.safetensors | cut -d ' ' -f 3)
[ "$status" -eq 130 ] && [ "$batch" -gt 0 ]
check "stopped inside an epoch" $? "after $batch of its batches"
run --resume stopped
[ "$(tensors through/last.safetensors | cksum)" = "$(tensors stopped/last.safetensors | cksum)" ]
check "and resumed: the same weights bit for bit" $?
[ "$(curve through)" = "$(curve stopped)" ]
check "and the same log" $? "$(curve stopped | tail -n 1)"

# == The learning rate ===============================================================================================

run $tiny --train-limit 64 --batch-size 16 --lr 1e-3 --lr-base-batch 32 --warmup-epochs 0 --epochs 1 --log-every 1 \
    --run-dir half
awk -F , 'NR == 2 { right = ($4 - 5e-4) ^ 2 < 1e-20 } END { exit !right }' half/log.csv
check "lr_base_batch 32 halves the rate of batches of 16" $? "$(sed -n 2p half/log.csv)"

run $tiny --epochs 8 --lr 6e-3 --lr-min 0 --warmup-epochs 3 --warmup-curve reciprocal --cosine-from warmup \
    --run-dir rates
[ "$status" -eq 0 ] && tail -n +2 rates/log.csv | awk -F , '
    { e = $2 - 1; want = e < 3 ? 6e-3 / (3 - e) : 3e-3 * (1 + cos(3.14159265358979 * (e - 3) / 5))
      off = $4 / want - 1; if (off < 0) off = -off; if (!(off < 1e-5)) bad = 1; rows++ }
    END { exit !(rows >= 8 && !bad) }'
check "a reciprocal warm-up and the cosine behind it" $? "$(tail -n 1 rates/log.csv)"

# == Weight decay ====================================================================================================

# Four steps at a rate of 0.01 with a decay of 1 take 4 % of a weight that decays, and so of the scales of a norm, which
# begin at 1.
for kind in matrices all; do
    run $tiny --epochs 1 --lr 1e-2 --lr-min 1e-2 --weight-decay 1 --weight-decay-of $kind --run-dir decay-$kind
done
if [ -n "$python" ]; then
    "$python" - decay-matrices/last.safetensors decay-all/last.safetensors >norms <<'PYTHON'
import json, sys
import numpy as np
means = []
for path in sys.argv[1:]:
    data = open(path, "rb").read()
    size = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8:8 + size])["norm.weight"]
    begin, end = entry["data_offsets"]
    means.append(float(np.frombuffer(data[8 + size + begin:8 + size + end], np.float32).mean()))
print(*means)
sys.exit(not (means[0] > 0.98 and means[1] < means[0] - 0.02))
PYTHON
    check "norms decay only where all parameters do" $? "$(cat norms)"
else
    skip "norms decay only where all parameters do" "no Python with numpy here"
fi
refuses "another word is refused" 2 "weight-decay-of|matrices or all" $tiny --weight-decay-of none --run-dir none

# == AutoAugment =====================================================================================================

for policy in cifar10 imagenet compact; do
    run $tiny --epochs 1 --aa autoaugment-$policy --run-dir auto-$policy
    check "autoaugment-$policy trains" $status "$(tail -n 1 out)"
done
first=$(sed -n 2p auto-cifar10/log.csv | cut -d , -f 3) other=$(sed -n 2p auto-compact/log.csv | cut -d , -f 3)
[ "$first" ] && [ "$first" != "$other" ]
check "the policies differ" $? "$first $other"
refuses "another policy is refused" 2 "--aa|autoaugment-cifar10, autoaugment-imagenet or autoaugment-compact" \
    $tiny --aa autoaugment-svhn --run-dir none

echo "1..$count"
[ $failures -eq 0 ]
