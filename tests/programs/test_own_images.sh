#!/bin/sh
# A user's own images: only class folders, with val/, with test/; the split, the choice of the best weights, patience,
# and data sets with many images of some classes and few of others.  TAP on standard output, evidence behind '# '.

# shellcheck disable=SC2012,SC2015,SC2046,SC2086 # settings are lists of words; no name here holds a space
. "$(dirname "$0")/../tap.sh"

[ -n "$python" ] || { skip "own images" "no Python with numpy here"; echo "1..$count"; exit 0; }

# images FOLDER COUNT...: BMP files of 16 x 16 noise, in a folder for each class.
images() {
    "$python" - "$@" <<'PYTHON'
import os, struct, sys
import numpy as np
random = np.random.RandomState(5)
for c, count in enumerate(map(int, sys.argv[2:])):
    folder = f"{sys.argv[1]}/class{c}"
    os.makedirs(folder)
    for i in range(count):
        pixels = random.randint(0, 90, (16, 16, 3))
        pixels[..., c] += 100
        data = pixels.astype(np.uint8).tobytes()
        header = struct.pack("<2sIHHI", b"BM", 54 + len(data), 0, 0, 54)
        header += struct.pack("<IiiHHIIiiII", 40, 16, 16, 1, 24, 0, len(data), 0, 0, 0, 0)
        open(f"{folder}/image{i:03}.bmp", "wb").write(header + data)
PYTHON
}

images bare 40 12 25
images pair/train 40 12 25
images pair/test 8 8 8
images three/train 40 12 25
images three/val 8 8 8
images three/test 6 6 6
settings="$model --img-size 16 --patch-size 4 --batch-size 16 --warmup-epochs 0 --epochs 3"

# == Splits ==========================================================================================================

succeeds "class folders alone train" --data bare $settings --run-dir bare.run
grep -q '^bare: 69 training and 8 validation images' out && grep -q '^val_fraction = 0.1$' bare.run/config.ini
check "a tenth of them validates" $? "$(sed -n 2p out)"
[ ! -e bare.run/test.json ]
check "and nothing is tested" $?
run --init bare.run/best.safetensors --eval
[ "$status" -eq 0 ] && grep -q '^8 validation images of bare$' out && grep -q '^top1: ' out
check "--eval measures the validation images" $? "$(tail -n 1 out)"
refuses "validation images of another seed" 2 "--seed: 7 holds out other images of data bare" \
    --init bare.run/best.safetensors --eval --seed 7
refuses "validation images of another fraction" 2 "--val-fraction: 0.2 holds out other images of data bare" \
    --init bare.run/best.safetensors --eval --val-fraction 0.2

succeeds "train/ and test/ train" --data pair $settings --run-dir pair.run
grep -q '^pair: 69 training and 8 validation images' out && grep -q 'test top-1 [0-9.]* % with these weights' out
check "best is chosen on validation images and tested at the end" $? "$(tail -n 1 out)"
run --init pair.run/best.safetensors --eval
shown=$(sed -n 's/^top1: \([0-9.]*\) .*/\1/p' out)
[ "$shown" ] && grep -q "\"images\": 24, \"top1\": $shown," pair.run/test.json
check "test.json has what --eval says of these weights" $? "$(cat pair.run/test.json)"
cp pair.run/test.json before.json
run --resume pair.run
cmp -s before.json pair.run/test.json && [ "$status" -eq 0 ]
check "a resumed run that is done does not test again" $? "$(tail -n 1 out)"

succeeds "train/, val/ and test/ train" --data three $settings --run-dir three.run
grep -q '^three: 77 training and 24 validation images' out && grep -q '"images": 18,' three.run/test.json
check "val/ chooses and test/ is read at the end" $? "$(cat three.run/test.json)"
run --data pair $settings --val-fraction 0 --run-dir papers.run
[ "$status" -eq 0 ] && grep -q '^pair: 77 training and 24 test images' out && [ ! -e papers.run/test.json ]
check "with val_fraction 0 the test images are evaluated after every epoch" $? "$(sed -n 2p out)"
run $tiny --val-fraction 0.25 --epochs 2 --run-dir shapes.run
[ "$status" -eq 0 ] && grep -q 'training and [0-9]* validation images' out && grep -q '"images": 32,' shapes.run/test.json
check "the built-in shapes have such a split, too" $? "$(cat shapes.run/test.json)"

# A signal that comes while the test images are read leaves the last epoch's weights in the run's folder.
images slow/train 40 40 40
images slow/val 8 8 8
images slow/test 1 1 1
i=0
while [ $i -lt 4000 ]; do i=$((i + 1)); ln slow/test/class0/image000.bmp slow/test/class0/again$i.bmp; done
slow="--data slow $settings --dim 64 --depth 4 --lr 2e-3"
succeeds "a run with many test images" $slow --run-dir whole.run
# Reading them takes a second, in which the signal must arrive: on a busy machine that may take several attempts.
for attempt in 1 2 3 4 5 6 7 8; do
    rm -rf stopped.run
    "$vit" $slow --run-dir stopped.run >out 2>err </dev/null &
    pid=$!
    while kill -0 $pid 2>/dev/null && ! grep -q 'epoch 3/3  top-1' out; do sleep 0.02; done
    kill -s TERM $pid 2>/dev/null
    wait $pid
    status=$?
    [ $status -ne 143 ] || break
done
[ $status -eq 143 ] && grep -q '^stopped by SIGTERM before the test images were read: ' out && [ ! -e stopped.run/test.json ]
check "SIGTERM while test images are read" $? "status $status: $(tail -n 1 out)"
[ "$(tensors stopped.run/last.safetensors | cksum)" = "$(tensors whole.run/last.safetensors | cksum)" ] &&
    [ "$(tensors whole.run/best.safetensors | cksum)" != "$(tensors whole.run/last.safetensors | cksum)" ]
check "and the weights stay those of the last epoch" $?
run --resume stopped.run
[ "$status" -eq 0 ] && cmp -s stopped.run/test.json whole.run/test.json
check "a resumed run reads them" $? "$(tail -n 1 out)"

# The location of the folder and the order of other files have no influence; another seed has.
mkdir elsewhere && cp -R bare elsewhere/bare
run --data elsewhere/bare $settings --run-dir moved.run
[ "$(tensors moved.run/last.safetensors | cksum)" = "$(tensors bare.run/last.safetensors | cksum)" ]
check "the split does not depend on where the folder lies" $?
if command -v "${MPIRUN:-mpirun}" >/dev/null 2>&1 && ldd "$vit" 2>/dev/null | grep -q libmpi; then
    timeout -k 5 100 "${MPIRUN:-mpirun}" -np 2 "$vit" --data pair $settings --run-dir ranks.run >out 2>err </dev/null
    worst=$(curves_agree pair.run ranks.run 1e-4)
    check "two ranks have the split and the losses of one" $? "$worst"
    [ "$(sed 's/"loss.*//' ranks.run/test.json)" = "$(sed 's/"loss.*//' pair.run/test.json)" ]
    check "and test alike" $? "$(cat ranks.run/test.json)"
fi

# == Folders, packs and lists ========================================================================================

cp -R three other && mv other/test/class2 other/test/lion
refuses "a test split of other classes, at the start" 1 "class class2 is in train but not in test" --data other $settings \
    --run-dir none
[ ! -e none ]
check "before anything is trained" $?
printf 'id,breed\n0001,class0\n' >pair/train.csv
printf 'image000.bmp 0\n' >pair/val.txt
run --data pair $settings --run-dir lists.run
[ "$status" -eq 0 ] && grep -q '^pair: 69 training and 8 validation images' out
check "lists of something else do not make images a set of videos" $? "$(tail -n 1 err)"
rm pair/train.csv pair/val.txt
mkdir kaggle && cp -R bare kaggle/train && mkdir kaggle/test && cp bare/class0/image000.bmp kaggle/test
printf 'file,label\nimage000.bmp,3\n' >kaggle/test.csv
run --data kaggle $settings --run-dir kaggle.run
[ "$status" -eq 0 ]
check "nor does one beside a test folder without classes" $? "$(tail -n 1 err)"
cp -R bare noted && printf '"image000.bmp",1\n' >noted/train.csv && echo '[{"id": 1}]' >noted/test.json
run --data noted $settings --run-dir noted.run
[ "$status" -eq 0 ]
check "nor do some beside class folders" $? "$(tail -n 1 err)"

cp -R bare tabbed && mv tabbed/class1 "tabbed/$(printf 'clas\ts1')"
run --data tabbed $settings --run-dir tabbed.run && run --resume tabbed.run --epochs 4
[ "$status" -eq 0 ] && run --init tabbed.run/best.safetensors --eval && [ "$status" -eq 0 ]
check "a class whose name has a control character is found again" $? "$(tail -n 1 err)"

pack=$build/pack_dataset
"$pack" --data pair --split train --out "$work/pair-train.pack" >out 2>err
run --data pair-train.pack $settings --val-fraction 0.1 --run-dir packed.run
[ "$status" -eq 0 ] && [ "$(tensors packed.run/last.safetensors | cksum)" = "$(tensors pair.run/last.safetensors | cksum)" ]
check "a packed folder has the same validation images" $? "$(tail -n 1 err)"
"$pack" --data shapes --split train --limit 40 --resize 16 --out small.pack >out 2>err && "$pack" --check small.pack >out 2>err
check "pack_dataset --resize of images of one size" $? "$(tail -n 1 err)"

# A damaged image is a large share of a small class, which balanced epochs take often.
images hurt 60 4 && echo "no picture" >hurt/class1/image003.bmp
run --data hurt $settings --balanced --eval-every 0 --run-dir hurt.run
[ "$status" -eq 0 ]
check "one damaged image does not end a balanced run" $? "$(tail -n 1 err)"

run --resume bare.run --epochs 4 --ema-decay 0.9
[ "$status" -eq 0 ] && head -c $(header_size bare.run/state.safetensors) bare.run/state.safetensors | grep -qa '"ema\.'
check "a resumed run may begin to average its weights" $? "$(tail -n 1 err)"

refuses "a class without validation images" 2 "val-fraction|0.02 of the 12 images of class class1|at least 0.05" \
    --data bare $settings --val-fraction 0.02 --run-dir none
refuses "held-out images that nobody sees" 2 "val-fraction|eval-every" --data bare $settings --val-fraction 0.2 \
    --eval-every 0 --run-dir none
run --data bare $settings --eval-every 0 --run-dir never.run
[ "$status" -eq 0 ] && grep -q '^bare: 77 training and 0 ' out && [ ! -e never.run/best.safetensors ]
check "without evaluations all images train" $? "$(tail -n 1 out)"

# == Labels from a table =============================================================================================

mkdir flat
for folder in bare/class0 bare/class1 bare/class2; do
    for file in "$folder"/*; do cp "$file" "flat/$(basename "$folder")-$(basename "$file")"; done
done
(cd flat && printf 'File,label\r\n' && for f in *; do printf '"%s",%s\r\n' "$f" "${f%%-*}"; done) >labels.csv
succeeds "labels come from a CSV file" --data flat --labels labels.csv $settings --run-dir csv.run
grep -q '^flat: 69 training and 8 validation images, 3 classes' out
check "with a validation split as that of class folders" $? "$(sed -n 2p out)"
run --init csv.run/best.safetensors --write-logits here.safetensors &&
    run --init csv.run/best.safetensors --data ./flat/ --write-logits there.safetensors &&
    cmp here.safetensors there.safetensors >>err
check "which does not depend on how the folder's path is written" $? "status $status: $(tail -n 1 err)"
awk -F , 'NR == 1 { next } { sub(/\r/, ""); print $0 "," (NR % 5 == 0 ? "test" : NR % 5 == 1 ? "val" : "train") }' labels.csv >split.csv
succeeds "and splits, too" --data flat --labels split.csv $settings --run-dir split.run
grep -q '^flat: [0-9]* training and 15 validation images' out && grep -q '"images": 15,' split.run/test.json
check "val validates and test is read at the end" $? "$(sed -n 2p out) $(cat split.run/test.json)"
run --init split.run/best.safetensors --eval
[ "$status" -eq 0 ] && grep -q '^15 validation images' out
check "--eval finds the table in the checkpoint" $? "$(tail -n 1 out)"
(cd flat && ln class0-image000.bmp a..b.bmp && printf 'Split,Class,Path\n' &&
    for f in *; do case $f in a..*) c=class0 ;; *) c=${f%%-*} ;; esac; printf 'train,%s,%s\n' $c "$f"; done) >order.csv
run --data flat --labels order.csv $settings --epochs 1 --run-dir order.run
[ "$status" -eq 0 ] && grep -q '^flat: 70 training and 8 validation images' out
check "a header gives the order of the columns, and names may contain dots" $? "$(head -n 2 out | tail -n 1)"
rm flat/a..b.bmp
labels() { # NAME WORDS CONTENT
    printf '%b' "$3" >bad.csv
    refuses "labels: $1" 1 "bad.csv: $2" --data flat --labels bad.csv $settings --run-dir none
}
labels "a missing image" 'line 2: flat/nothing.bmp: no such file' 'class0-image000.bmp,a\nnothing.bmp,b\n'
labels "no label" 'line 1: class0-image000.bmp has no label' 'class0-image000.bmp,\n'
labels "one field" 'line 2: expected a file and a label' 'file,label\nclass0-image000.bmp\n'
labels "four fields" 'line 1: more than 3 fields' 'a,b,train,c\n'
labels "another split" "line 1: the split 'dev' is none of train, val and test" 'class0-image000.bmp,a,dev\n'
labels "an image twice" 'lines 1 and 3: class0-image000.bmp has two' \
    'class0-image000.bmp,a\nclass0-image001.bmp,a\nclass0-image000.bmp,b\n'
mkdir flat/ant && cp flat/class0-image000.bmp flat/ant/1.bmp
for name in ./ant/1.bmp ant//1.bmp .//ant/././1.bmp; do
    labels "an image twice, as $name" 'lines 1 and 2: ant/1.bmp has two' "ant/1.bmp,a\n$name,b\n"
done
labels "a folder" 'line 2: flat/ant: not a file' 'class0-image000.bmp,a\nant,b\n'
labels "a slash behind a file" 'line 1: flat/ant/1.bmp/: no such file' 'ant/1.bmp/,a\n'
labels "the folder itself" 'line 1: the file has no name' './/,a\n'
labels "an open quote" 'line 2: a double quote is not closed' 'class0-image000.bmp,a\n"class0-image001.bmp,a\n'
labels "a path out of the folder" 'line 1: ../bare/class0/image000.bmp: expected a path below the folder' \
    '../bare/class0/image000.bmp,a\n'
labels "an unknown column" "line 1: the column 'breed' is unknown" 'file,breed\nclass0-image000.bmp,a\n'
labels "a column twice" "line 1: the column 'path' is there twice" 'file,path\nclass0-image000.bmp,a\n'
labels "a header without labels" 'line 1: the header has no column label' 'file,split\nclass0-image000.bmp,val\n'
labels "a line behind a field of two" 'line 3: expected a file and a label' '"two\nlines.bmp",a\nclass0-image000.bmp\n'
labels "nothing" 'no image in it' 'file,label\n'
refuses "labels: no such file" 1 "none.csv: " --data flat --labels none.csv $settings --run-dir none

# == Patience ========================================================================================================

run --data bare $settings --epochs 30 --patience 2 --lr 0 --lr-min 0 --run-dir patient.run
[ "$status" -eq 0 ] && grep -q '^stopped after epoch 3 of 30: no evaluation was better in 2 (patience 2)$' out
check "patience ends a run that does not get better" $? "$(tail -n 2 out | head -n 1)"
run --resume patient.run
[ "$status" -eq 0 ] && grep -q '^nothing is left to train' out
check "and a resumed run knows" $? "$(tail -n 1 out)"
run --resume patient.run --patience 4
[ "$status" -eq 0 ] && grep -q '^stopped after epoch 5 of 30' out
check "more patience goes on" $? "$(tail -n 2 out | head -n 1)"
refuses "patience without evaluations" 2 "patience|eval-every" --data bare $settings --patience 2 --eval-every 0 \
    --run-dir none

# == Many images of some classes, few of others ======================================================================

for way in "--class-weights inverse" "--class-weights sqrt" "--balanced true"; do
    succeeds "$way trains" --data bare $settings $way --run-dir "way.$count"
done
run --data bare $settings --epochs 1 --class-weights inverse --run-dir weights.run # 36, 11 and 22 of 69 images train
[ "$status" -eq 0 ] && grep -q '^bare: losses have weights from 0.639 (class 0, class0) to 2.09 (class 1, class1)$' out
check "the weights are printed" $? "$(grep 'losses have weights' out)"
refuses "weights of classes with mixup" 2 "class-weights|mixup" --data bare $settings --class-weights inverse --mixup 0.2 \
    --run-dir none
refuses "balance with repeated augmentation" 2 "balanced|repeated" --data bare $settings --balanced true \
    --repeated-aug true --run-dir none

echo "1..$count"
[ $failures -eq 0 ]
