#!/bin/sh
# Files of an earlier version still load and resume.  tests/fixtures/old was written by commit 2b367bc on shapes, with
# $model below:
#   softmax.safetensors  --attn softmax --pool cls, six epochs of 2000 images; --eval on 400 gave 18.00 and 73.75 %
#   run/                 --attn ripple --r-max 2 --ripple-layers 1 --mixup 0.8 --ema-decay 0.9, one epoch of 64 images
#   resumed.csv          the log after that version had resumed a copy of run/ with --epochs 3, without its timings
#
#   BUILD=build/cpu sh tests/programs/test_old_runs.sh
# shellcheck disable=SC1091,SC2015,SC2154 # tests/tap.sh
. "$(dirname "$0")/../tap.sh"

old=$root/tests/fixtures/old
model='--dim 16 --depth 2 --heads 2 --patch-size 8 --mlp-ratio 2'

# The grouping of float sums depends on the machine's vectors: one image of 400 may be classified differently.
run --init "$old/softmax.safetensors" --eval --test-limit 400
awk '/^top1:/ { found = ($2 >= 17.75 && $2 <= 18.25 && $4 >= 73.5 && $4 <= 74) } END { exit !found }' out
check "a checkpoint is evaluated as it was then" $? "$(tail -n 1 out)$(head -n 1 err)"

# States of other versions may contain choices of kernels by measured time, and an algorithm that no longer exists.
cp -r "$old/run" . && chmod -R u+w run
restate "$old/run/state.safetensors" run/state.safetensors '"vit.c.run"' '"vit.c.choices":"product forward = 1 of 3","vit.c.run"'
restate run/state.safetensors state 'ripple_algo = auto' 'ripple_algo = naive' && mv state run/state.safetensors
grep -aq 'vit.c.choices.*ripple_algo = naive\|ripple_algo = naive.*vit.c.choices' run/state.safetensors
check "a state of another version" $?
run --resume run --epochs 3
check "a run resumes" "$status" "$(head -n 1 err)"

# Step, epoch, loss, lr, norm and accuracies, row by row: the same up to rounding.
cut -d , -f 1-5,7-9 run/log.csv | paste -d , "$old/resumed.csv" - | awk -F , '
    NR > 1 { for (i = 1; i <= 8; i++) { d = $i - $(i + 8); if (d < 0) d = -d
             if (d > ($i < 0 ? -$i : $i) * 1e-3 + (i == 6 || i == 7)) { print NR, i, $i, $(i + 8); bad = 1 } } }
    END { exit bad || NR != 7 }' >compared
check "and goes on as it did then" $? "$(head -n 1 compared)"

grep -q '^r_max = 2$' run/config.ini && ! grep -q '^landmarks' run/config.ini
check "config.ini then has what counts, and nothing else" $?

run --config "$old/run/config.ini" --describe
check "its config.ini, in which every operator's settings stood, is accepted" "$status" "$(head -n 1 err)"

refuses "but not an algorithm that is gone" 2 "--ripple-algo|unknown algorithm 'naive'|auto, dense, window or sat" \
    --attn ripple --ripple-algo naive --describe

# shellcheck disable=SC2086 # words
refuses "nor another operator's setting that means something" 2 \
    '--landmarks|ripple|nystrom' $model --config "$old/run/config.ini" --landmarks 3 --describe

echo "1..$count"
[ $failures -eq 0 ]
