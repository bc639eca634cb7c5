#!/bin/sh
# Tests of train_semantic_fpn's command line: messages for wrong input, sizes of the models, the files of a run, resuming
# a stopped run with the same bits, threads, micro-batches and ranks, evaluation, prediction and parity.
#
#   BUILD=build/cpu sh tests/programs/test_semantic_cli.sh

# shellcheck disable=SC2015,SC2046,SC2086 # settings are lists of words; no name here holds a space
. "$(dirname "$0")/../tap.sh"
vit=$build/train_semantic_fpn
columns=1-5,7-9,11
curve() { cut -d , -f $columns "$1/log.csv"; } # without what depends on time and memory

small='--scale-long 64 --scale-short 64 --scale-min 1 --scale-max 1.5 --crop-size 64'
heads='--fpn-dim 8 --head-dim 32'
net="--backbone-blocks 1,1,1,1 --backbone-width 4 $heads"
stages="--backbone hierarchy --attn softmax,lisa,lisa,softmax --img-size 64 --dim 8,8,12,12 --depth 1,1,1,1 --heads 2,2,3,3
     --mlp-ratio 2 --patch-overlap true --pos-embed conv --lisa-patterns 2 --drop-path 0.2 $heads"
data='--scene-size 64 --train-limit 24 --val-limit 5 --batch-size 4 --lr 1e-3 --log-every 1'
tiny="$net $small $data --epochs 2"

# == Help, and settings that make no sense ===========================================================================

succeeds "--help" --help
missing=
for word in configs/ade20k --predict --draw --describe --eval --per-class --parity seg-norm; do
    grep -q -e "$word" out || missing="$missing $word"
done
[ -z "$missing" ] && [ "$(awk 'length($0) > 100' out | wc -l)" -eq 0 ]
check "--help teaches" $? "missing:$missing"
# size CONFIG PARAMETERS MACS [SETTINGS]: for an image of 512 x 2048, in 1e9.
size() {
    config=$1 params=$2 macs=$3
    shift 3
    run --config "$root/configs/ade20k/semantic-fpn-$config.ini" --describe --image-size 512x2048 "$@"
    [ "$(awk '/^params/ { print $2 } /^macs/ { printf "%.1f\n", $2 / 1e9 }' out | tr '\n' ' ')" = "$params $macs " ]
    check "semantic-fpn-$config $*: $params parameters, $macs G" $? "$(tail -n 3 out | tr '\n' ' ')$(head -n 1 err)"
}
size lisanet-s 26827766 177.1
size hylisanet-s 26098998 184.3
size hylisanet-s 25810614 177.6 --conv-block conv
size resnet-50 28495574 177.2
size swin-t 31893840 180.9
size cswin-t 26058710 203.9
size pvt-small 28237462 224.6 # without the class token, its position and the last norm, 2,048 parameters of no map
refuses "unknown setting, with the nearest" 2 '--seg-norn|--seg-norm' --seg-norn gn
refuses "groups that do not divide the head" 2 '--head-dim|48|32|gn' --head-dim 48 --seg-norm gn
refuses "windows without --eval" 2 '--eval-windows|--eval' --eval-windows slide
refuses "an image that is no multiple of 32" 2 '--image-size|100|32' --describe --image-size 100x64
refuses "fewer classes than the data has" 2 '--num-classes|5|11' $tiny --num-classes 5
refuses "a batch larger than the data" 2 '--batch-size|25|24' $tiny --batch-size 25
refuses "an unknown number of classes" 2 'num_classes|150' --data ade20k --describe
refuses "--eval without weights" 2 '--eval|--init|--resume' --eval
refuses "--draw without --predict" 2 '--draw|--predict' --draw x.png
refuses "a folder without pictures" 1 'nowhere' --data nowhere --num-classes 3

# == A run, stopped and resumed ======================================================================================

run $tiny --run-dir whole
[ $status -eq 0 ] && [ "$(ls whole | tr '\n' ' ')" = 'best.safetensors config.ini last.safetensors log.csv report.html report.json state.safetensors ' ]
check "a run writes its files" $? "$(ls whole | tr '\n' ' ')$(tail -n 1 err)"
[ "$(tail -n 1 whole/log.csv | awk -F , '{ print ($3 > 0 && $7 > 0 && $7 <= 1 && $9 > 0 && $11 > 0) }')" = 1 ]
check "the log has loss, mIoU, aAcc and the loss of evaluation" $? "$(tail -n 1 whole/log.csv)"
run $tiny --steps 7 --run-dir seven
[ $status -eq 0 ] && [ "$(tail -n 1 seven/log.csv | cut -d , -f 1)" = 7 ] && grep -q 'mIoU' out err
check "--steps 7 ends in the second epoch, after an evaluation" $? "$(tail -n 1 seven/log.csv)"
# A run that ended within an epoch is extended and stopped, and continues with no step left.
run $tiny --steps 3 --run-dir three
for _ in 1 2 3 4 5; do
    rm -rf extended && cp -R three extended
    stop_run TERM '^4,' extended/log.csv --resume extended --steps 4000
    [ "$status" -ne 143 ] || break
done
at=$(place extended/state.safetensors | cut -d ' ' -f 1)
run --resume extended --steps "$at"
tail -n 1 extended/log.csv | grep -qE "^$at,([^,]*,){4},[0-9]"
check "the last evaluation of an extended run is made up for, and its row has no speed" $? "step $at: $(tail -n 1 extended/log.csv)"
refuses "epochs that do not count, as steps are those of the run" 2 '--epochs|9|--steps 0' --resume seven --epochs 9
refuses "steps of more epochs than there may be" 2 '--steps|1000000 epochs' $tiny --steps 900000000 --run-dir none
# stopped_and_resumed NAME SETTINGS: a run that TERM stops continues to the same weights.
stopped_and_resumed() {
    name=$1
    shift
    stops_run 143 "$name-b" TERM '^7,' "$name-b/log.csv" "$@" --epochs 400 --run-dir "$name-b"
    stopped=$status
    at=$(place "$name-b/state.safetensors" | cut -d ' ' -f 1)
    steps=$((at + 5))
    run --resume "$name-b" --epochs 400 --steps $steps
    run "$@" --run-dir "$name-c" --epochs 400 --steps $steps
    [ $stopped -eq 143 ] && [ $status -eq 0 ] && same_weights "$name-b" "$name-c"
    check "$name: stopped at step $at and resumed, it has the bits of a run without a break" $? "$(tail -n 1 err)"
}
same_weights() {
    tensors "$1/last.safetensors" >a.bytes
    tensors "$2/last.safetensors" | cmp -s - a.bytes
}
stopped_and_resumed resnet $net $small $data --lr-power 0 --eval-every 0
stopped_and_resumed hierarchy $stages $small $data --lr-power 0 --eval-every 0 --seg-norm gn --ema-decay 0.9

# == The same numbers ================================================================================================

# losses_agree A B: the losses of the steps, to rounding.
losses_agree() {
    paste -d , "$1/log.csv" "$2/log.csv" | awk -F , -v n="$(head -n 1 "$1/log.csv" | tr , '\n' | wc -l)" '
        NR > 1 { d = $3 - $(n + 3); if (d < 0) d = -d; if (!(d <= 2e-5 * $3)) bad++; rows++ }
        END { exit !(rows >= 3 && !bad) }'
}
for threads in 2 7; do
    OMP_NUM_THREADS=$threads run $tiny --run-dir "threads-$threads"
    [ $status -eq 0 ] && losses_agree whole "threads-$threads"
    check "$threads threads give the losses of one" $? "$(tail -n 1 err)"
done
gn="$net $small $data --seg-norm gn --epochs 1 --steps 5 --head-dropout 0.3"
for micro in 1 2 4; do run $gn --micro-batch $micro --run-dir "micro-$micro"; done
for micro in 2 4; do
    losses_agree micro-1 "micro-$micro"
    check "gn: micro-batches of 1 and $micro give the same losses" $? "$(cut -d , -f 3 micro-1/log.csv "micro-$micro/log.csv" | tr '\n' ' ')"
done
gn_stages="$stages $small $data --seg-norm gn --steps 5 --head-dropout 0.3"
for micro in 1 4; do run $gn_stages --micro-batch $micro --run-dir "stages-$micro"; done
losses_agree stages-1 stages-4
check "hierarchy: micro-batches of 1 and 4 give the same losses" $? "$(cut -d , -f 3 stages-1/log.csv stages-4/log.csv | tr '\n' ' ')"
deep="$(echo "$stages" | sed 's/--depth 1,1,1,1/--depth 2,1,2,2/') $small $data --steps 5"
for again in false true; do run $deep --recompute $again --run-dir "recompute-$again"; done
[ "$(tensors recompute-false/last.safetensors | cksum)" = "$(tensors recompute-true/last.safetensors | cksum)" ]
check "hierarchy: recompute gives the same weights" $? "$(cut -d , -f 3 recompute-false/log.csv recompute-true/log.csv | tr '\n' ' ')"
if command -v "${MPIRUN:-mpirun}" >/dev/null 2>&1 && "$vit" --version >/dev/null && ldd "$vit" | grep -q libmpi; then
    for norm in gn bn; do
        settings="$net $small $data --seg-norm $norm --steps 5 --head-dropout 0.3"
        run $settings --micro-batch 4 --run-dir "one-$norm"
        timeout 100 "${MPIRUN:-mpirun}" -np 2 "$vit" $settings --micro-batch 2 --run-dir "two-$norm" >out 2>err </dev/null
        losses_agree "one-$norm" "two-$norm"
        check "$norm: two ranks give the losses of one" $? "$(tail -n 1 err)"
    done
else
    skip "two ranks" "no mpirun"
fi

# == Evaluation and predictions ======================================================================================

eval_data="--scene-size 64 --val-limit 5"
run --init whole/best.safetensors $eval_data --eval --per-class classes.csv
[ $status -eq 0 ] && [ "$(grep -c '^mIoU: \|^mAcc: \|^aAcc: \|^loss: ' out)" -eq 4 ] && [ "$(wc -l <classes.csv)" -eq 12 ]
check "--eval prints mIoU, accuracies, loss and writes a table" $? "$(tail -n 4 out | tr '\n' ' ')$(tail -n 1 err)"
grep -q "^mIoU: $(sort -t , -k 7 -g whole/log.csv | tail -n 1 | awk -F , '{ printf "%.2f", 100 * $7 }')" out
check "which is the best of the run" $? "$(grep mIoU out)"
# Random weights predict several classes; those of a short run predict the ground everywhere.
run $tiny --steps 1 --lr 0 --eval-every 0 --run-dir random
metrics() { grep '^mIoU\|^mAcc\|^aAcc' out | tr '\n' ' '; }
run --init random/last.safetensors $eval_data --eval --per-class random.csv
whole=$(metrics)
[ $status -eq 0 ] && awk -F , 'NR > 1 && $5 > 0 { right++ } END { exit !(right > 1) }' random.csv
check "random weights are right for pixels of several classes" $? "$whole"
run --init random/last.safetensors $eval_data --eval --eval-batch 3
[ $status -eq 0 ] && [ "$(metrics)" = "$whole" ]
check "the metrics do not depend on eval_batch" $? "$(metrics)"
run --init random/last.safetensors $eval_data --eval --eval-windows slide --window-size 64 --window-stride 64
[ $status -eq 0 ] && [ "$(metrics)" = "$whole" ]
check "one window that is the picture gives the same" $? "$(metrics)$(tail -n 1 err)"
run --init random/last.safetensors $eval_data --eval --eval-windows slide --window-size 32 --window-stride 21
[ $status -eq 0 ] && [ "$(metrics | wc -w)" -eq 6 ] && [ "$(metrics)" != "$whole" ]
check "windows that overlap are evaluated, with other metrics" $? "$(metrics)$(tail -n 1 err)"
if [ -n "$python" ]; then
    enlarge random/last.safetensors huge.safetensors neck.
    refuses "--eval of weights that are too large, in windows" 1 'huge.safetensors|shapes|not a number' --init huge.safetensors \
        $eval_data --eval --eval-windows slide --window-size 32 --window-stride 21
    refuses "and --predict" 1 'huge.safetensors|val:1|not a number' --init huge.safetensors $eval_data --predict val:1
else
    skip "weights that are too large" "no python3 with numpy"
fi
refuses "windows with gaps" 2 '--window-stride|600|512' --eval --init whole/best.safetensors $eval_data --eval-windows slide --window-stride 600
refuses "windows that are no multiple of 32" 2 '--window-size|100|32' --eval --init whole/best.safetensors $eval_data --window-size 100
run --init whole/best.safetensors $eval_data --predict val:1 --draw classes.png --json classes.json
[ $status -eq 0 ] && [ "$(head -c 4 classes.png | tail -c 3)" = PNG ]
check "--predict draws a picture" $? "$(tail -n 1 err)"
if [ -n "$python" ]; then
    "$python" - classes.json <<'END'
import json, sys
picture, = json.load(open(sys.argv[1]))
assert picture["width"] == picture["height"] == 64 and abs(sum(p["share"] for p in picture["predictions"]) - 1) < 1e-6
assert all(p["segmentation"]["size"] == [64, 64] and p["segmentation"]["counts"] for p in picture["predictions"])
END
    check "and lists regions as run lengths whose shares add up to 1" $? "$(head -c 300 classes.json)"
else
    skip "regions as run lengths" "no Python with numpy here"
fi
run --init whole/best.safetensors --predict "$root/tests/corpus/jpeg/colour444.jpg"
[ $status -eq 0 ] && grep -q 'classes$' out
check "--predict takes files" $? "$(head -n 1 out)$(tail -n 1 err)"
refuses "--predict of a picture that is not there" 1 'no.jpg' --init whole/best.safetensors --predict no.jpg
refuses "an index beyond the split" 2 'val:INDEX|500' --init whole/best.safetensors --predict val:500 --val-limit 0
succeeds "--show-batch" $tiny --show-batch batch.png
[ "$(head -c 4 batch.png | tail -c 3)" = PNG ]
check "which is a picture" $?
run $net --num-classes 11 --bench --image-size 64x64 --batch-size 2 --bench-seconds 0.1
[ $status -eq 0 ] && grep -q '"train_images_per_s": [0-9.]*[1-9]' out
check "--bench prints JSON" $? "$(tail -n 1 err)"

# == First weights ===================================================================================================

classifier=$(echo $stages | sed 's/--backbone hierarchy//; s/--fpn-dim.*//')
"$build/train_vit" $classifier --patch-size 4 --data shapes --epochs 1 --train-limit 20 --batch-size 10 --eval-every 0 \
    --run-dir classifier >out 2>err
run $stages $small $data --steps 1 --eval-every 0 --lr 0 --init classifier/last.safetensors --run-dir started
if [ -n "$python" ]; then
    "$python" - classifier/last.safetensors started/last.safetensors "$root/tests/reference" <<'END'
import sys; sys.path.insert(0, sys.argv[3])
import numpy as np, safetensors_io
before, after = safetensors_io.read(sys.argv[1])[0], safetensors_io.read(sys.argv[2])[0]
own = [name for name in before if not name.startswith("head")]
assert len(own) > 50 and all(np.array_equal(before[name], after["backbone." + name]) for name in own)
END
    check "--init of a classifier gives the backbone its weights" $? "$(tail -n 1 err)"
else
    skip "--init of a classifier gives the backbone its weights" "no Python with numpy here"
fi
refuses "weights of another backbone" 1 'whole/best.safetensors' $stages $small $data --init whole/best.safetensors \
    --run-dir no
refuses "a classifier of other heads" 2 '--heads|4|3' $stages $small $data --dim 8,8,16,12 --heads 2,2,4,3 \
    --init classifier/last.safetensors --run-dir no

# == Parity ==========================================================================================================

if [ -z "$python" ]; then
    skip "--parity" "no Python with numpy here"
    echo "1..$count"
    [ $failures -eq 0 ]
    exit
fi
for fixture in "$root"/tests/fixtures/semantic/parity-*.safetensors; do
    name=$(basename "$fixture" .safetensors)
    flags=$("$python" -c 'import sys; sys.path.insert(0, sys.argv[2]); import safetensors_io
print(safetensors_io.read(sys.argv[1])[1]["flags"])' "$fixture" "$root/tests/reference")
    run $flags --parity "$fixture" --out out.safetensors
    "$python" - "$fixture" out.safetensors "$root/tests/reference" >parity 2>&1 <<'END'
import sys; sys.path.insert(0, sys.argv[3])
import safetensors_io
from compare_parity import norm_error, relative_error
want, metadata = safetensors_io.read(sys.argv[1])
got, _ = safetensors_io.read(sys.argv[2])
names = [name for name in want if name in ("logits", "loss") or name.startswith("grad.")]
assert len(names) > 40 and {name for name in got if name.startswith("grad.")} <= set(names)
whole = max((float(norm_error(got[name].reshape(want[name].shape), want[name])), name) for name in names)
entry = max((float(relative_error(got[name].reshape(want[name].shape), want[name])), name) for name in names)
print("%.1e %s, worst entry %.1e %s" % (*whole, *entry))
sys.exit(not (whole[0] <= 1e-5 and entry[0] <= max(1e-5, 3 * float(metadata["float32"]))))
END
    check "$name: loss and every gradient within 1e-5 of the reference" $? "$(tail -n 1 parity)$(tail -n 1 err)"
done
"$python" - bad.safetensors "$root/tests/reference" <<'END'
import sys; sys.path.insert(0, sys.argv[2])
import numpy as np, safetensors_io
safetensors_io.write(sys.argv[1], {"images": np.zeros((1, 3, 64, 64), np.float32), "labels": np.full((1, 64, 64), 9)})
END
refuses "labels beyond the classes" 1 'bad.safetensors|label 9|0..4' $net --num-classes 5 --parity bad.safetensors --out o

echo "1..$count"
[ $failures -eq 0 ]
