#!/bin/sh
# Tests of train_mask_rcnn's command line: messages for wrong input, the files of a run, resuming a stopped run with the
# same bits, evaluation, prediction and parity.
#
#   BUILD=build/cpu sh tests/programs/test_mask_rcnn_cli.sh

# shellcheck disable=SC2015,SC2046,SC2086 # settings are lists of words; no name here holds a space
. "$(dirname "$0")/../tap.sh"
vit=$build/train_mask_rcnn
columns=1-5,7-18
curve() { cut -d , -f $columns "$1/log.csv"; } # the function of tap.sh for this log

net='--backbone-blocks 1,1,1,1 --backbone-width 4 --fpn-width 8 --box-width 16 --mask-width 8'
small='--scale-min 64 --scale-max 64 --max-size 96 --crop false --eval-scale 64 --anchor-size 4 --train-candidates 100
     --eval-candidates 100 --proposals 40 --detections 20 --anchor-sample 32 --region-sample 32'
tiny="$net $small --scene-size 64 --train-limit 30 --val-limit 7 --batch-size 6 --lr 1e-3 --warmup-steps 2 --lr-drops 90"

# == Help, and settings that make no sense ===========================================================================

succeeds "--help" --help
missing=
for word in configs/coco/mask-rcnn-demo.ini --predict --draw --describe --eval --results --parity resnet; do
    grep -q -e "$word" out || missing="$missing $word"
done
[ -z "$missing" ] && [ "$(awk 'length($0) > 100' out | wc -l)" -eq 0 ]
check "--help teaches" $? "missing:$missing"
for config in "$root"/configs/coco/mask-rcnn-*.ini; do
    run --config "$config" --describe
    [ $status -eq 0 ] && [ "$(tail -n 3 out | cut -d : -f 1 | tr '\n' ' ')" = 'params trainable_params macs ' ]
    check "$(basename "$config") describes a model" $? "$(tail -n 3 out | tr '\n' ' ')$(head -n 1 err)"
done
# of CONFIG PARAMETERS MACS [SETTINGS]: for an image of 800 x 1280, in 1e9.  The box predictor has a row for the
# background, 4,357 parameters more than a count with 80 classes.
of() {
    config=$1 params=$2 macs=$3
    shift 3
    run --config "$root/configs/coco/mask-rcnn-$config.ini" --describe --image-size 800x1280 "$@"
    [ "$(awk '/^params/ { print $2 } /^macs/ { printf "%.1f\n", $2 / 1e9 }' out | tr '\n' ' ')" = "$params $macs " ]
    check "mask-rcnn-$config $*: $params parameters, $macs G" $? "$(tail -n 3 out | tr '\n' ' ')$(head -n 1 err)"
}
of lisanet-s 42732885 259.3
of hylisanet-s 42004117 266.3                   # its convolution blocks are sepconv,
of hylisanet-s 41715733 259.8 --conv-block conv # which has 288,384 parameters more than conv
of resnet-50 44400693 259.3
of swin-t 47798959 262.9  # 1,344 of them in norms of the first three maps; padding is not projected
of cswin-t 41963829 279.8 # 896 of them in norms of the first three maps
of pvt-small 44142581 304.2 # without the class token, its position and the last norm, 2,048 parameters of no map
refuses "unknown setting, with the nearest" 2 '--fpn-widht|--fpn-width' --fpn-widht 5
refuses "a setting of another backbone" 2 '--depth|backbone' --depth 1,1,1,1
refuses "blocks that are no four numbers" 2 '--backbone-blocks|3,4,6,3|3,4' --backbone-blocks 3,4
refuses "fewer categories than the data has" 2 '--num-classes|5|10' $tiny --num-classes 5
refuses "batch larger than the data" 2 '--batch-size|31|30' $tiny --batch-size 31
refuses "--eval without weights" 2 '--eval|--init|--resume' --eval
refuses "--predict without weights" 2 '--predict|--init' --predict x.jpg
refuses "--parity without --out" 2 '--parity|--out' --parity x
refuses "--results without --eval" 2 '--results|--eval' --results x.json
refuses "two modes at once" 2 '--bench|--describe' --describe --bench
refuses "unknown number of categories" 2 'num_classes|80' --data coco --describe

run $(echo "$tiny" | sed 's/--warmup-steps 2//') --epochs 2 --run-dir warm
grep -q '^warmup_steps = 1$' warm/config.ini
check "a short run saves its default warm-up, a tenth of its steps" $? "$(grep warmup_steps warm/config.ini)"

# == A run ===========================================================================================================

succeeds "train_mask_rcnn trains" $tiny --epochs 3 --run-dir run --log-every 2
[ "$(head -n 1 run/log.csv)" = \
    step,epoch,loss,lr,grad_norm,images_per_s,ap,ap50,ap75,mask_ap,mask_ap50,mask_ap75,objectness,rpn_box,class,box,mask,class_error,$(
    )stall,val_loss,wall_s,peak_bytes,infer_s ]
check "the log's columns" $? "$(head -n 1 run/log.csv)"
awk -F , 'NR > 1 { if (NF != 23 || $20 != "" || ($7 == "") != ($9 == "")) wrong = 1 }
          NR == 2 { first = $3 } END { exit !(NR == 10 && $1 == 15 && $3 < first && !wrong) }' run/log.csv
check "a row for every second step and each epoch, and the loss falls" $? "$(last_row run)"
run $tiny --epochs 3 --run-dir seed --log-every 2 --seed 1
! same_run run seed
check "and other ones with another seed" $?
run $tiny --epochs 1 --run-dir whole1 --log-every 1 --eval-every 0
# agrees RUN: the run has succeeded, and its losses are those of whole1, to rounding.
agrees() {
    worst=$(paste -d , whole1/log.csv "$1/log.csv" | awk -F , '
        NR > 1 { rows++; d = $3 / $(NF / 2 + 3) - 1; if (d < 0) d = -d; if (!(d <= worst)) worst = d }
        END { print rows + 0 " rows, worst off by " worst + 0; exit !(rows == 5 && worst < 1e-4) }') &&
        [ $status -eq 0 ]
}
for micro in 1 2 4; do
    run $tiny --epochs 1 --run-dir micro$micro --log-every 1 --eval-every 0 --micro-batch $micro
    agrees micro$micro
    check "micro-batches of $micro have the losses of whole batches" $? "$worst"
done
for threads in 1 7; do
    OMP_NUM_THREADS=$threads run $tiny --epochs 1 --run-dir threads$threads --log-every 1 --eval-every 0 --workers 3
    agrees threads$threads
    check "and so have $threads threads" $? "$worst"
done
run $tiny --epochs 3 --run-dir drop --lr-drops 1,2 --warmup-steps 0
[ "$(cut -d , -f 2,4 drop/log.csv | tail -n 3 | tr '\n' ' ')" = '1,0.001 2,0.0001 3,1.0000001e-05 ' ]
check "lr_drops: a tenth after each of these epochs" $? "$(cut -d , -f 2,4 drop/log.csv | tail -n 3 | tr '\n' ' ')"
# Long enough that some detections are right.
run $tiny --lr 5e-3 --epochs 20 --eval-every 20 --run-dir average --ema-decay 0.9
[ $status -eq 0 ] && last_row average | awk -F , '{ right = $7 > 0.01 && $10 > 0.01 } END { exit !right }'
check "a run with ema_decay learns to detect" $? "$(last_row average)"
run --init average/last.safetensors --eval
ap=$(sed -n '/^ Average Precision.*0.50:0.95 | area=   all/s/.*= //p' out | tr '\n' ' ')
[ $status -eq 0 ] && [ "$ap" = "$(last_row average | awk -F , '{ printf "%.3f %.3f ", $7, $10 }')" ]
check "and its evaluations are those of the weights that are kept" $? "$ap, $(last_row average)"

# stopped NAME SIGNAL STATUS PATTERN FILE: $long, stopped there; repeated if the run ended first.
long="$tiny --epochs 6 --log-every 1"
stopped() {
    stops_run "$3" part "$2" "$4" "$5" $long --run-dir part
    check "$1" $? "status $status: $(tail -n 1 out)"
}
run $long --run-dir whole
stopped "SIGINT stops and saves" INT 130 '^7,' part/log.csv
succeeds "--resume" --resume part
same_run whole part
check "stopped and resumed: the same run bit for bit" $? "differs: $differs"
stopped "killed" KILL 137 '^epoch 3/6  box AP' out
succeeds "--resume of a killed run" --resume part
same_run whole part
check "the same bits again" $? "differs: $differs"
refuses "a loss that is lost stops the run" 1 'step|not a number|lower lr' $tiny --epochs 50 --lr 100 --run-dir nan

# == Weights =========================================================================================================

succeeds "--init" $tiny --epochs 1 --init run/best.safetensors --run-dir init
refuses "--init of a file that is not there" 1 'lost.safetensors|No such file' $tiny --init lost.safetensors \
    --run-dir none
refuses "--init of another width" 1 'best.safetensors|shape' $tiny --fpn-width 16 --init run/best.safetensors \
    --run-dir none
safetensors empty.safetensors '{}' 0
refuses "--init without tensors" 1 'empty.safetensors' $tiny --init empty.safetensors --run-dir none
refuses "--eval of a backbone alone" 1 'empty.safetensors|weights of a backbone|--eval' $tiny --init empty.safetensors --eval

# == Evaluation and prediction =======================================================================================

succeeds "--eval" --init run/last.safetensors --eval --results found.json
[ "$(grep -c '^ Average \(Precision\|Recall\)' out)" -eq 24 ]
check "prints COCO's twelve lines of boxes and of masks" $? "$(grep -m 1 Average out)"
grep -q '"segmentation"' found.json && ! grep -q '"size": \[[^6]' found.json
check "--results has masks of the pictures' size" $? "$(head -c 200 found.json)"
restate run/best.safetensors renamed.safetensors 'nring' 'nrung'
if command -v "${MPIRUN:-mpirun}" >/dev/null 2>&1 && ldd "$vit" | grep -q libmpi; then
    timeout 100 "${MPIRUN:-mpirun}" -np 2 "$vit" --init run/last.safetensors --eval --results two.json \
        >out 2>err </dev/null
    cmp -s found.json two.json && [ "$(grep -c image_id found.json)" -gt 7 ]
    check "two ranks find what one finds" $? "$(grep -c image_id two.json) detections: $(tail -n 1 err)"
    timeout 100 "${MPIRUN:-mpirun}" -np 2 "$vit" $tiny --epochs 3 --run-dir two --log-every 1 >out 2>err </dev/null
    run $tiny --epochs 3 --run-dir one --log-every 1
    paste -d , one/log.csv two/log.csv | awk -F , '
        NR == 2 { d = $3 - $(NF / 2 + 3); agree = $3 > 0 && d * d <= 1e-10 * $3 * $3 } END { exit !agree }'
    check "the first step of two ranks has the loss of one" $? "$(head -n 2 two/log.csv | tail -n 1)"
    [ "$(tail -n 1 two/log.csv | cut -d , -f 1)" = 15 ]
    check "and they train to the end" $? "$(tail -n 1 err)"
else
    skip "two ranks" "no mpirun"
fi
if [ -n "$python" ]; then
    for part in cls_score mask_fcn_logits; do
        enlarge run/last.safetensors huge.safetensors $part
        refuses "--eval of infinite results of $part" 1 'huge.safetensors|shapes|not a number' --init huge.safetensors --eval
        refuses "and --predict" 1 'huge.safetensors|val:3|not a number' --init huge.safetensors --predict val:3
    done
else
    skip "weights that are too large" "no python3 with numpy"
fi
refuses "--eval with other categories" 1 "'ring'|'rung'|renamed.safetensors" --init renamed.safetensors --eval
succeeds "--predict" --init run/last.safetensors --predict "$root/tests/corpus/jpeg/colour444.jpg" --draw masks.png \
    --json found.json --draw-score 0
[ "$(head -c 4 masks.png | tail -c 3)" = PNG ]
check "--draw writes a picture" $?
succeeds "--predict with a score that nothing has" --init run/last.safetensors --predict val:3 --draw-score 1
run $tiny --num-classes 10 --bench --bench-seconds 0.1 --batch-size 2 --image-size 64x96
[ $status -eq 0 ] && grep -q '"train_images_per_s"' out
check "--bench prints its line" $? "$(tail -n 1 out)"

# == Parity ==========================================================================================================

fixture=$root/tests/fixtures/mask_rcnn/parity.safetensors
like="--num-classes 4 $net --anchor-sample 65536 --region-sample 512"
if "$python" -c 'import numpy' 2>/dev/null; then
    run $like --parity "$fixture" --out out.safetensors
    [ $status -eq 0 ] && "$python" "$root/tests/reference/compare_parity.py" "$fixture" out.safetensors --tolerance 1e-4 \
        >compared
    check "--parity: loss and gradients within 1e-4 of torchvision in float64" $? "$(tail -n 2 compared | tr '\n' ' ')"
else
    skip "--parity" "no python3 with numpy"
fi
refuses "--parity of a file without images" 1 "empty.safetensors|'images'" $like --parity empty.safetensors --out x
refuses "--parity with labels above the categories" 1 'parity.safetensors|label|0..3' $like --num-classes 3 \
    --parity "$fixture" --out x

echo "1..$count"
[ $failures -eq 0 ]
