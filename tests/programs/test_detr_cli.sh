#!/bin/sh
# Tests of train_detr's command line: messages for wrong input, repairs of annotations, the files of a run, resuming a
# stopped run with the same bits, evaluation, prediction and parity.
#
#   BUILD=build/cpu sh tests/programs/test_detr_cli.sh

# shellcheck disable=SC2015,SC2046,SC2086 # settings are lists of words; no name here holds a space
. "$(dirname "$0")/../tap.sh"
vit=$build/train_detr
columns=1-5,7-12
curve() { cut -d , -f $columns "$1/log.csv"; } # the function of tap.sh for this log
# alike A B TOLERANCE: as curves_agree, which reads eight columns.
alike() {
    columns=1-5,7-9
    curves_agree "$@"
    agree=$?
    columns=1-5,7-12
    return $agree
}

net='--backbone-blocks 1,1,1,1 --backbone-width 4 --dim 16 --ffn 24 --heads 2 --encoder-layers 1 --decoder-layers 2
     --queries 9'
small='--scale-min 64 --scale-max 64 --max-size 96 --crop false --eval-scale 64'
tiny="$net $small --scene-size 64 --train-limit 30 --val-limit 7 --batch-size 6 --lr 1e-3 --lr-backbone 1e-4"

# == Help, and settings that make no sense ===========================================================================

succeeds "--help" --help
missing=
for word in configs/coco/smca.ini --predict --draw --describe --eval --results --parity softmax; do
    grep -q -e "$word" out || missing="$missing $word"
done
[ -z "$missing" ] && [ "$(awk 'length($0) > 100' out | wc -l)" -eq 0 ]
check "--help teaches" $? "missing:$missing"
for config in "$root"/configs/coco/*.ini; do
    case $config in */mask-rcnn-*) continue ;; esac
    run --config "$config" --describe
    [ $status -eq 0 ] && [ "$(tail -n 3 out | cut -d : -f 1 | tr '\n' ' ')" = 'params trainable_params macs ' ]
    check "$(basename "$config") describes a model" $? "$(tail -n 3 out | tr '\n' ' ')$(head -n 1 err)"
done
run --config "$root/configs/coco/smca.ini" --describe
[ "$(grep -c '^params: 41760482$\|^trainable_params: 41538082$\|^macs: 8737[0-9]*$' out)" -eq 3 ]
check "smca has the published size: 41.5 million trainable parameters, 87.4e9 multiply-adds" $? \
    "$(tail -n 3 out | tr '\n' ' ')"
refuses "unknown setting, with the nearest" 2 '--querys|--queries' --querys 5
refuses "operator that knows no padding" 2 "--attn|'castling'|softmax|ripple" --attn castling
refuses "heads that do not divide dim" 2 '--heads|7|256' --heads 7
refuses "dim without sine positions" 2 '--dim|multiple of 4' --dim 18 --heads 2
refuses "blocks that are no four numbers" 2 '--backbone-blocks|3,4,6,3|3,4' --backbone-blocks 3,4
refuses "scales the wrong way round" 2 '--scale-min|900|800' --scale-min 900
refuses "too many scales" 2 '--scale-step|16' --scale-step 1
refuses "scale above max_size" 2 '--eval-scale|2000|1333' --eval-scale 2000
refuses "crops the wrong way round" 2 '--crop-min|700|600' --crop-min 700
refuses "fewer classes than the data has" 2 '--num-classes|5|10' $tiny --num-classes 5
refuses "batch larger than the data" 2 '--batch-size|31|30' $tiny --batch-size 31
refuses "--eval without weights" 2 '--eval|--init|--resume' --eval
refuses "--predict without weights" 2 '--predict|--init' --predict x.jpg
refuses "--parity without --out" 2 '--parity|--out' --parity x
refuses "--results without --eval" 2 '--results|--eval' --results x.json
refuses "two modes at once" 2 '--bench|--describe' --describe --bench
refuses "unknown number of classes" 2 'num_classes|91' --data coco --describe

# == COCO's files ====================================================================================================

# Pictures of 61 x 43 pixels.
mkdir -p coco/annotations coco/train2017
cp "$root"/tests/corpus/jpeg/colour444.jpg "$root"/tests/corpus/jpeg/colour420.jpg "$root"/tests/corpus/jpeg/grey.jpg \
    "$root"/tests/corpus/jpeg/progressive.jpg coco/train2017
ln -s train2017 coco/val2017
image() { printf '{"id": %d, "file_name": "%s", "width": %d, "height": %d}' "$1" "$2" "${3:-61}" "${4:-43}"; }
box() {
    printf '{"id": %d, "image_id": %d, "category_id": %d, "bbox": [%s], "area": 90, "iscrowd": 0}' "$@"
}
# coco_json IMAGES ANNOTATIONS
coco_json() {
    printf '{"images": [%s], "annotations": [%s], "categories": [%s]}\n' "$1" "$2" \
        '{"id": 3, "name": "cat"}, {"id": 7, "name": "dog\t2"}' >coco/annotations/instances_train2017.json
    cp coco/annotations/instances_train2017.json coco/annotations/instances_val2017.json
}
images="$(image 1 colour444.jpg), $(image 5 colour420.jpg), $(image 9 grey.jpg), $(image 12 progressive.jpg)"
boxes="$(box 1 1 3 '5, 5, 20, 30'), $(box 2 5 7 '30, 2, 25, 25'), $(box 3 12 3 '1, 20, 40, 20')"
from="$net $small --data coco --batch-size 2 --epochs 1"

coco_json "$images" "$boxes"
succeeds "images without annotations are trained on" $from --run-dir plain
grep -q '^coco: 4 training and 4 validation images, 3 training boxes of 2 categories, 1 images without any$' out
check "and counted" $? "$(grep '^coco:' out)"
succeeds "--eval finds the same categories, of which one has a tab in its name" --init plain/last.safetensors --eval
crowds="$(box 7 12 3 '1, 2, 3, 4'), $(box 8 12 3 '1, 2, 3, 4')"
coco_json "$images" "$boxes, $(echo "$crowds" | sed 's/"iscrowd": 0/"iscrowd": 1/g')"
run $from --train-limit 1 --batch-size 1 --run-dir limited
grep -q '^coco: 1 training and 4 validation images, 1 training boxes of 2 categories, 0 images without any$' out
check "and those of the first image are counted alone" $? "$(grep '^coco:' out)"

coco_json "$images" "$boxes, $(box 4 1 7 '10, 10, 0, 12'), $(box 5 5 7 '70, 60, 10, 10'), $(box 6 9 3 '50, 30, 40, 40')"
run $from --run-dir repaired
[ $status -eq 0 ] && [ "$(wc -l <err)" -eq 2 ] && grep -q 'instances_train2017.json: annotations 2 without area' err &&
    grep -q '2 reaching beyond their image, clipped to it' err
check "boxes without area are left out, those that leave their image are cut, one line for each file" $? \
    "$(head -n 1 err)"

coco_json "$images" "$(box 1 1 8 '5, 5, 20, 30')"
refuses "unknown category" 1 'instances_train2017.json|id 1|category_id 8|not among' $from --run-dir none
coco_json "$images" "$(box 1 77 3 '5, 5, 20, 30')"
refuses "annotation of an unknown image" 1 'instances_train2017.json|id 1|image_id 77|not among' $from --run-dir none
coco_json "$images, $(image 20 lost.jpg), $(image 21 gone.jpg)" "$boxes"
refuses "missing pictures" 1 'coco/train2017|lost.jpg|1 more' $from --run-dir none
coco_json "$images" "$boxes"
for size in 0 1 150 $(($(wc -c <coco/annotations/instances_train2017.json) - 3)); do
    head -c "$size" coco/annotations/instances_val2017.json >coco/annotations/instances_train2017.json
    refuses "JSON of $size bytes" 1 'coco/annotations/instances_train2017.json' $from --run-dir none
done
printf '{"images": [{"id": "x"}]}' >coco/annotations/instances_train2017.json
refuses "JSON with a wrong type" 1 'instances_train2017.json|id' $from --run-dir none
echo 'no JSON' >coco/annotations/instances_train2017.json
refuses "no JSON at all" 1 'instances_train2017.json' $from --run-dir none
rm coco/annotations/instances_train2017.json
refuses "no annotations" 1 'coco/annotations/instances_train2017.json|No such file' $from --run-dir none
refuses "no such data" 1 'nowhere/annotations|No such file' $net --data nowhere --run-dir none
refuses "absolute path that is too long" 1 '/000|path too long' $from --train-annotations "/$(printf %04096d 0)" --run-dir none

coco_json "$(image 1 colour444.jpg 60), $(image 5 colour420.jpg), $(image 9 grey.jpg), $(image 12 progressive.jpg)" \
    "$boxes"
run $from --run-dir sizes --max-damaged 0
[ $status -eq 1 ] && [ "$(wc -l <err)" -eq 2 ] &&
    tail -n 1 err | grep -q 'damaged images: 1 in one epoch of 4, more than max_damaged'
check "a picture of another size than its annotations say ends the run" $? "$(tail -n 1 err)"
run $from --run-dir sizes2 --max-damaged 1
[ $status -eq 0 ] && grep -q 'colour444.jpg: 61 x 43 pixels, but the annotations say 60 x 43' err
check "is named, and replaced where that is allowed" $? "$(head -n 1 err)"
cp "$root"/tests/corpus/jpeg/cut.jpg coco/train2017/grey.jpg
coco_json "$images" "$boxes"
run $from --run-dir cut --max-damaged 1
[ $status -eq 0 ] && [ "$(grep -c 'train2017/grey.jpg: a JPEG cut short' err)" -ge 1 ]
check "a damaged picture is named and replaced" $? "$(head -n 1 err)"
cp "$root"/tests/corpus/jpeg/grey.jpg coco/train2017/grey.jpg

# == A run ===========================================================================================================

succeeds "train_detr trains" $tiny --epochs 3 --run-dir run --log-every 2
[ "$(head -n 1 run/log.csv)" = \
    step,epoch,loss,lr,grad_norm,images_per_s,ap,ap50,focal,l1,giou,class_error,stall,val_loss,wall_s,peak_bytes,$(
    )ap_small,ap_medium,ap_large,infer_s ]
check "the log's columns" $? "$(head -n 1 run/log.csv)"
awk -F , 'NR > 1 && (NF != 20 || ($7 == "") != ($17 == "") || ($7 == "") != ($20 == "")) { wrong = 1 }
          $7 != "" && NR > 1 { rows++; if (!($20 > 0 && $20 < 10)) wrong = 1 } END { exit !(rows == 3 && !wrong) }' \
    run/log.csv
check "AP by size and seconds an image in the rows of evaluations" $? "$(last_row run)"
run --init run/last.safetensors --eval
sizes=$(sed -n 's/^ Average Precision.*area= *\(small\|medium\| large\|large\) .*= *//p' out | tr '\n' ' ')
[ "$status" -eq 0 ] && [ "$sizes" = "$(last_row run | awk -F , '{ printf "%.3f %.3f %.3f ", $17, $18, $19 }')" ]
check "which are those that --eval prints" $? "$sizes: $(last_row run)"
awk -F , 'NR == 2 { first = $3 } END { exit !(NR == 10 && $1 == 15 && $3 < first && $7 >= 0 && $8 >= $7) }' run/log.csv
check "has a row for every second step and each epoch, and the loss falls" $? "$(last_row run)"
cp -R coco blind && rm -r blind/val2017 blind/annotations/instances_val2017.json
refuses "no validation annotations" 1 'blind/annotations/instances_val2017.json' $net $small --data blind --batch-size 2 \
    --epochs 1 --run-dir blinded
succeeds "eval_every 0 trains without them" $net $small --data blind --batch-size 2 --epochs 1 --eval-every 0 \
    --run-dir blinded
[ -f blinded/last.safetensors ] && [ ! -e blinded/best.safetensors ]
check "and has last weights and no best ones" $? "$(ls blinded)"
[ "$(head -n 1 blinded/log.csv)" = \
    step,epoch,loss,lr,grad_norm,images_per_s,focal,l1,giou,class_error,stall,val_loss,wall_s,peak_bytes ]
check "and no columns of evaluations" $? "$(head -n 1 blinded/log.csv)"
run $tiny --epochs 3 --run-dir again --log-every 2 --workers 3
same_run run again
check "the same bits again, with another number of workers" $? "differs: $differs"
run $tiny --epochs 3 --run-dir seed --log-every 2 --seed 1
! same_run run seed
check "and other ones with another seed" $?
run $tiny --epochs 3 --run-dir micro --log-every 2 --micro-batch 2
worst=$(alike run micro 1e-3)
check "micro-batches have the curve of whole batches" $? "$worst"
[ "$(cut -d , -f 4 run/log.csv | sort -u | tr '\n' ' ')" = '0.001 lr ' ]
check "the rate stays where no drop comes" $?
run $tiny --epochs 3 --run-dir drop --lr-drop 1
[ "$(cut -d , -f 2,4 drop/log.csv | tail -n 3 | tr '\n' ' ')" = '1,0.001 2,0.0001 3,1.0000001e-05 ' ]
check "lr_drop: a tenth after every epoch" $? "$(cut -d , -f 2,4 drop/log.csv | tail -n 3 | tr '\n' ' ')"

run $tiny --epochs 3 --run-dir average --log-every 2 --ema-decay 0.5
cut -d , -f 1-5,9-12 run/log.csv >run.txt
[ $status -eq 0 ] && cut -d , -f 1-5,9-12 average/log.csv | cmp -s - run.txt && ! same_run run average
check "ema_decay: training is the same, the weights that are kept are others" $? "$(last_row average)"
run --init average/last.safetensors --eval
loss=$(sed -n 's/^loss: //p' out)
[ "$loss" = "$(last_row average | cut -d , -f 14)" ] && [ "$loss" != "$(last_row run | cut -d , -f 14)" ]
check "and those are evaluated" $? "loss $loss, $(last_row average)"

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
stopped "SIGTERM in an evaluation" TERM 143 '^10,2' part/log.csv
succeeds "--resume of that" --resume part
same_run whole part
check "the same bits again" $? "differs: $differs"
stopped "killed" KILL 137 '^epoch 3/6  AP' out
succeeds "--resume of a killed run" --resume part
same_run whole part
check "and again" $? "differs: $differs"
succeeds "--resume of a run that is done" --resume part
grep -q 'all 6 epochs are done' out
check "says so" $? "$(tail -n 1 out)"
refuses "a backbone is not frozen within a run" 2 '--freeze-backbone|part|false' --resume part --freeze-backbone
run $(echo "$tiny" | sed 's/--lr-backbone 1e-4/--lr-backbone 0/') --epochs 1 --eval-every 0 --run-dir frozen
refuses "and a frozen one has no rate" 2 '--lr-backbone|freeze_backbone true' --resume frozen --epochs 2 --lr-backbone 1e-5
run --resume frozen --epochs 2 --eval-every 1
[ $status -eq 0 ] && grep -q '^train_detr: frozen/log.csv: it keeps its columns, so these are not logged: ap, ap50, ap_small' err
check "a log that lacks an evaluation's columns is reported" $? "status $status $(head -n 1 err)"
refuses "a loss that is lost stops the run" 1 'step|not a number|lower lr' $tiny --epochs 50 --lr 100 \
    --lr-backbone 100 --clip-grad 0 --run-dir nan

# == Weights =========================================================================================================

succeeds "--init" $tiny --epochs 1 --init run/best.safetensors --run-dir init
refuses "--init of a file that is not there" 1 'lost.safetensors|No such file' $tiny --init lost.safetensors \
    --run-dir none
refuses "--init of a state" 1 'state.safetensors|--resume' $tiny --init run/state.safetensors --run-dir none
refuses "--init of another width" 1 'best.safetensors|shape|input_proj.weight' $tiny --dim 20 \
    --init run/best.safetensors --run-dir none
refuses "--init of fewer layers" 1 'best.safetensors|no tensor|others' $tiny --decoder-layers 3 \
    --init run/best.safetensors --run-dir none
safetensors empty.safetensors '{}' 0
refuses "a backbone without tensors" 1 "empty.safetensors|no tensor 'conv1.weight'|others" $tiny \
    --backbone-weights empty.safetensors --run-dir none
safetensors shape.safetensors '{"conv1.weight":{"dtype":"F32","shape":[2,3,7,7],"data_offsets":[0,1176]}}' 1176
refuses "a backbone of another shape" 1 'shape.safetensors|conv1.weight|[2,3,7,7]|[4,3,7,7]' $tiny \
    --backbone-weights shape.safetensors --run-dir none
refuses "a backbone that is not there" 1 'lost.safetensors|scripts/convert_weights.py' $tiny --backbone-weights lost.safetensors --run-dir none
echo 'backbone_weights = lost.safetensors' >lost.ini
succeeds "and is not asked for where its name is empty" --config lost.ini $tiny --epochs 1 --backbone-weights '' --run-dir bare
cp run/best.safetensors backbone.safetensors
succeeds "a detector's backbone is a backbone" $tiny --epochs 1 --backbone-weights backbone.safetensors --run-dir body
rm backbone.safetensors
succeeds "which --init needs no more" --init body/best.safetensors --eval
succeeds "nor --resume" --resume body --epochs 2

# == Evaluation and prediction =======================================================================================

succeeds "--eval" --init run/last.safetensors --eval --results found.json
[ "$(grep -c '^ Average \(Precision\|Recall\)' out)" -eq 12 ]
check "prints COCO's twelve lines" $? "$(grep -m 1 Average out)"
grep -q 'Average Precision  (AP) @\[ IoU=0.50:0.95 | area=   all | maxDets=100 \] = [0-9.-]*$' out
check "as COCO does" $?
[ "$(sed -n 's/^loss: //p' out)" = "$(last_row run | cut -d , -f 14)" ]
check "and the loss of training's last evaluation" $? "$(grep '^loss: ' out), $(last_row run)"
[ "$(tr , '\n' <found.json | grep -c image_id)" -eq $((7 * 9)) ]
check "--results has every detection" $? "$(head -c 120 found.json)"
refuses "--init with other heads" 2 '--heads: 1|run/best.safetensors was trained with 2' --init run/best.safetensors \
    --eval --heads 1
restate run/best.safetensors renamed.safetensors 'nring' 'nrung'
refuses "--eval with other categories" 1 "'ring'|'rung'|renamed.safetensors" --init renamed.safetensors --eval
run --resume run --eval --workers 2 --results again.json
cmp -s found.json again.json
check "--resume RUN --eval finds the same" $? "$(grep -c image_id again.json) detections: $(head -n 1 err)"
succeeds "--predict" --init run/last.safetensors --predict "$root/tests/corpus/jpeg/colour444.jpg" --draw boxes.png \
    --draw-score 0
[ "$(wc -l <out)" -eq 10 ] && grep -q ' %  [a-z]* *x [-0-9.]*  y [-0-9.]*  width [0-9.]*  height [0-9.]*$' out
check "names and places" $? "$(sed -n 2p out)"
[ "$(head -c 4 boxes.png | tail -c 3)" = PNG ]
check "--draw writes a picture" $?
succeeds "--predict of a validation image" --init run/last.safetensors --predict val:3 val:0
[ "$(grep -c '^val:[03]: ' out)" -eq 2 ]
check "names them" $? "$(head -n 1 out)"
refuses "--predict beyond the validation split" 2 'val:7|below 7' --init run/last.safetensors --predict val:7
refuses "--draw of two pictures" 2 '--draw|one picture' --init run/last.safetensors --predict a b --draw c.png
refuses "--predict of a file that is not there" 1 'lost.jpg|No such file' --init run/last.safetensors --predict lost.jpg
refuses "--predict of no picture" 1 'text.jpg|not a JPEG' --init run/last.safetensors \
    --predict "$root/tests/corpus/jpeg/text.jpg"
run $net --num-classes 10 --image-size 64x96 --batch-size 4096 --micro-batch 2 --bench --bench-seconds 0.1
[ "$status" -eq 0 ] && [ "$(grep -c '^bench: ' err)" -eq "$(wc -l <err)" ] &&
    grep -q '^bench: batches of [0-9]* images in place of 4096' err && ! grep -q '"batch_size": 4096' out
check "--bench takes a batch that fits its time" $? "$(grep place err)"
grep -q '"train_images_per_s": [0-9.]*, "infer_images_per_s": [0-9.]*' out
check "reports images a second" $? "$(head -c 200 out)"

# == Parity ==========================================================================================================

for attn in softmax linear ripple; do
    fixture=$root/tests/fixtures/detr/parity-$attn.safetensors
    if [ -z "$python" ]; then
        skip "--parity, $attn" "no python3 with numpy"
        continue
    fi
    flags=$("$python" "$root/tests/reference/flags.py" "$vit" "$fixture")
    run $flags --parity "$fixture" --out out.safetensors
    [ $status -eq 0 ] && "$python" "$root/tests/reference/compare_parity.py" "$fixture" out.safetensors \
        --tolerance 1e-4 >compared
    check "--parity, $attn: logits, boxes, loss and gradients within 1e-4 of float64" $? \
        "$(grep worst compared) $(head -n 1 err)"
done
refuses "--parity of a file without images" 1 "empty.safetensors|'images'" $net --num-classes 3 \
    --parity empty.safetensors --out x
refuses "--parity of a file that is not there" 1 'lost.safetensors' $net --num-classes 3 --parity lost.safetensors \
    --out x

# == Several ranks ===================================================================================================

MPIRUN=${MPIRUN:-mpirun}
if command -v "$MPIRUN" >/dev/null 2>&1 && ldd "$vit" 2>/dev/null | grep -q libmpi; then
    for ranks in 2 3; do
        timeout -k 5 100 "$MPIRUN" -np $ranks "$vit" $tiny --epochs 3 --run-dir ranks$ranks --log-every 2 >out 2>err \
            </dev/null
        worst=$(alike run ranks$ranks 1e-3)
        check "$ranks ranks have the curve of one" $? "$worst $(head -n 1 err)"
    done
    timeout -k 5 100 "$MPIRUN" -np 2 "$vit" $net --num-classes 10 --image-size 64x96 --batch-size 5 --bench \
        --bench-seconds 0.1 >out 2>err </dev/null
    [ $? -ne 124 ] && grep -q -e '--batch-size' err
    check "--bench refuses a batch that the ranks cannot share equally" $? "$(head -n 1 err)"
    timeout -k 5 100 "$MPIRUN" -np 3 "$vit" --init run/last.safetensors --eval --results ranks.json >out 2>err \
        </dev/null
    cmp -s found.json ranks.json
    check "--eval on three ranks finds the same" $? "$(grep -c image_id ranks.json) detections: $(head -n 1 err)"
else
    skip "several ranks" "no $MPIRUN, or a build without MPI"
fi

echo "1..$count"
[ $failures -eq 0 ]
