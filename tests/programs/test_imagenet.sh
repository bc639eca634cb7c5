#!/bin/sh
# Pictures in folders and packed files, from a user's point of view: pack_dataset, and train_vit on its files.
#
#   BUILD=build/cpu sh tests/programs/test_imagenet.sh

# shellcheck disable=SC2015,SC2046,SC2086,SC2154 # settings are lists of words; no name here holds a space
. "$(dirname "$0")/../tap.sh"

pack=$build/pack_dataset
[ -x "$pack" ] || { echo "Bail out! $pack is not there: run make first"; exit 1; }

# images/{train,val}/{ape,bee,cat} with the undamaged pictures of the corpus
sound="colour444.jpg colour422.jpg colour420.jpg progressive.jpg grey.jpg cmyk.jpg ycck.jpg arithmetic.jpg exif.jpg
       trailing.jpg png.JPEG"
for class in ape bee cat; do
    mkdir -p images/train/$class images/val/$class
    for picture in $sound; do cp "$root/tests/corpus/jpeg/$picture" images/train/$class/; done
    cp "$root/tests/corpus/jpeg/colour420.jpg" "$root/tests/corpus/jpeg/grey.jpg" images/val/$class/
done

packs() { # ARGUMENTS: as run
    "$pack" "$@" >out 2>err
    status=$?
}

refuses_to_pack() { # NAME STATUS WORDS ARGUMENTS...
    name=$1 wanted=$2 words=$3
    shift 3
    packs "$@"
    complains "$wanted" "$words"
    check "$name" $? "status $status, $(wc -l <err) line: $(head -n 1 err)"
}

# == Packing =========================================================================================================

for split in train val; do
    packs --data images --split $split --out $split.pack
    [ "$status" -eq 0 ] && [ ! -s err ]
    check "pack the $split split" $? "$(tail -n 1 out) $(head -n 1 err)"
done
packs --check train.pack
[ "$status" -eq 0 ] && grep -q 'all 33 images of 3 classes are sound' out
check "--check of a sound file" $? "$(tail -n 1 out)"
packs --data images --out one-train.pack --threads 1
packs --data images --out seven-train.pack --threads 7
cmp -s train.pack one-train.pack && cmp -s train.pack seven-train.pack
check "the same file with 1 and 7 threads" $?

packs --data images --out small-train.pack --resize 20
[ "$status" -eq 0 ] && [ "$(wc -c <small-train.pack)" -lt "$(wc -c <train.pack)" ] &&
    "$pack" --check small-train.pack >out
check "--resize" $? "$(wc -c <small-train.pack) bytes of $(wc -c <train.pack)"
packs --data images --out raw-train.pack --resize 20 --raw
[ "$status" -eq 0 ] && [ "$(wc -c <raw-train.pack)" -gt $((33 * 20 * 28 * 3)) ]
check "--resize --raw" $? "$(wc -c <raw-train.pack) bytes"
packs --data shapes --limit 30 --split val --out shapes-val.pack && packs --check shapes-val.pack
check "drawn images can be packed" $? "$(tail -n 1 out)"
packs --data small-train.pack --out again-train.pack && packs --check again-train.pack
check "and packed ones" $? "$(tail -n 1 out)"

head -c 3000 train.pack >cut-train.pack
refuses_to_pack "a file cut short" 1 'cut-train.pack|3000 bytes|cut short' --check cut-train.pack
cp train.pack flipped-train.pack
printf '\125' | dd of=flipped-train.pack bs=1 seek=400 conv=notrunc 2>/dev/null
packs --check flipped-train.pack
[ "$status" -eq 1 ] && [ "$(wc -l <err)" -eq 2 ] && grep -q 'image 0 (ape/arithmetic.jpg): its checksum differs' err &&
    grep -q '1 of 33 images are damaged' err
check "a changed byte is found, and the message says where" $? "$(head -n 1 err)"
refuses_to_pack "a file that is there" 1 'train.pack|remove it first' --data images --out train.pack
refuses_to_pack "no data set" 2 '--data' --out x.pack
refuses_to_pack "no file to write" 2 '--out' --data images
refuses_to_pack "something else than a packed file" 1 'out|not a packed data set' --check out
refuses_to_pack "a folder that is not there" 1 'nowhere/x.pack.partial|No such file' --data images --out nowhere/x.pack
refuses_to_pack "an unknown setting" 2 '--qualty|quality' --data images --out x.pack --qualty 90

cp -R images holes
cp "$root/tests/corpus/jpeg/cut.jpg" holes/train/bee/z.jpg
packs --data holes --out holes-train.pack
[ "$status" -eq 0 ] && [ "$(wc -l <err)" -eq 1 ] &&
    grep -q 'holes/train/bee/z.jpg: a JPEG cut short: packed as damaged' err
check "damaged pictures are named" $? "$(head -n 1 err)"
packs --check holes-train.pack
grep -q 'image 22 (bee/z.jpg): it was damaged when the file was packed' err && [ "$status" -eq 1 ]
check "and stay damaged" $? "$(head -n 1 err)"

# A link without its file is a file that cannot be opened, which may come back.
cp -R holes links
ln -s ../../../back.jpg links/train/cat/zz.jpg
packs --data links --out links-train.pack
[ "$status" -eq 1 ] && [ ! -e links-train.pack ] &&
    tail -n 1 err | grep -q 'links/train/cat/zz.jpg: cannot open: .*; the same command continues from here'
check "a picture that cannot be opened ends the packing" $? "status $status: $(tail -n 1 err)"
cp -R links copied
refuses_to_pack "going on with other copies of the pictures" 1 'links-train.pack.partial|other images' --data copied \
    --out links-train.pack
for file in partial partial.index; do cp links-train.pack.$file links.$file; done
rm links-train.pack.partial
packs --data copied --out links-train.pack
tail -n 1 err | grep -q 'copied/train/cat/zz.jpg: cannot open'
check "which begins afresh once the file is removed" $? "$(tail -n 1 err)"
for file in partial partial.index; do cp links.$file links-train.pack.$file; done
cp "$root/tests/corpus/jpeg/grey.jpg" back.jpg
packs --data links --out links-train.pack
[ "$status" -eq 0 ] && grep -q 'continues after 34 of 35' out && grep -q 'links-train.pack: 35 .*, 1 of them damaged' out
check "which continues, and its last line counts what was damaged before" $? "$(cat out) $(head -n 1 err)"

# == Interrupted =====================================================================================================

many="--data shapes --limit 12000 --split train"
packs $many --out whole-train.pack
check "pack many" $status "$(tail -n 1 out)"
for _ in 1 2 3 4 5; do # repeated if the run ended before the signal
    rm -f many-train.pack*
    "$pack" $many --out many-train.pack >out 2>err &
    process=$!
    for _ in $(seq 200); do
        [ -s many-train.pack.partial ] && [ "$(wc -c <many-train.pack.partial)" -gt 3000000 ] && break
        sleep 0.02
    done
    kill -INT $process
    wait $process
    status=$?
    [ "$status" -eq 130 ] && break
done
[ "$status" -eq 130 ] && [ ! -e many-train.pack ] && grep -q 'continues from here' out
check "SIGINT while packing" $? "status $status: $(tail -n 1 out)"
refuses_to_pack "going on with other options" 1 'many-train.pack.partial|other options' $many --out many-train.pack \
    --resize 16
packs $many --out many-train.pack
[ "$status" -eq 0 ] && grep -qE 'continues after [0-9]{3,} of 12000' out && cmp -s whole-train.pack many-train.pack
check "and going on with the same: the same file" $? "$(head -n 1 out)"

# == Classes are matched by name ========================================================================================

named="--img-size 16 --patch-size 8 --dim 16 --depth 1 --heads 2 --batch-size 11 --epochs 1 --warmup-epochs 0"
run --data images $named --run-dir named
# One data set for each class, with the same picture: the weights classify it as one of the three.
found=
for class in ape bee cat; do
    mkdir -p only.$class/val/$class && cp "$root/tests/corpus/jpeg/grey.jpg" only.$class/val/$class/
    run --init named/last.safetensors --eval --data only.$class
    found="$found $(sed -n 's/^top1: \([0-9]*\).*/\1/p' out)"
    [ $class = ape ] || grep -q "only.$class: its 1 classes have other numbers than the 3 of .*: matched by name" out
    check "classes of another set are matched by name: $class" $? "$(head -n 1 out)"
done
[ "$(echo $found | tr ' ' '\n' | sort -n | tr '\n' ' ')" = "0 0 100 " ]
check "so that one of three classes is the right one" $? "$found"
mkdir -p only.dog/val/dog && cp "$root/tests/corpus/jpeg/grey.jpg" only.dog/val/dog/
refuses "classes that weights do not have" 1 "only.dog|'dog'|named/last.safetensors" \
    --init named/last.safetensors --eval --data only.dog
if ldd "$vit" 2>/dev/null | grep -q libwebp; then
    cp -R images webp && cp "$root/tests/corpus/image/lossy.webp" webp/train/ape/
    succeeds "WebP in class folders" --data webp $named --run-dir webp.run
    grep -q '34 training' out
    check "counts as an image" $? "$(grep training out)"
fi
cp -R images hole && cp "$root/tests/corpus/jpeg/cut.jpg" hole/train/bee/z.jpg
run --data hole $named --run-dir hole.run
[ "$status" -eq 0 ] && [ "$(wc -l <err)" -le 1 ]
check "one damaged image of a small set does not end a run" $? "$(head -n 1 err)"
mv images/val images/valid
succeeds "valid in place of val" --data images $named --run-dir valid.run
mv images/valid images/val
mkdir trained && cp -R images/train trained
refuses "a set without validation images, none held out" 1 'trained/val|eval_every 0' --data trained $named \
    --val-fraction 0 --run-dir blind
run --data trained $named --run-dir held
[ "$status" -eq 0 ] && grep -q '30 training and 3 validation images' out && [ -f held/best.safetensors ]
check "by default a tenth of each class is held out" $? "$(sed -n 2p out) $(head -n 1 err)"
succeeds "eval_every 0 trains without them" --data trained $named --eval-every 0 --run-dir blind
[ -f blind/last.safetensors ] && [ ! -e blind/best.safetensors ] && [ "$(cells blind top1,top5,val_loss)" = ,, ] &&
    grep -q '33 training and 0 test images' out && grep -q 'not evaluated; checkpoints' out
check "and has last weights, no best ones, and no accuracy" $? "$(last_row blind) $(tail -n 1 out)"
run --init blind/last.safetensors --eval --data images
[ "$status" -eq 0 ] && grep -q '^top1:' out
check "and --eval measures it on another set" $? "$(tail -n 1 out) $(head -n 1 err)"

# == Training ========================================================================================================

model="--img-size 16 --patch-size 8 --dim 16 --depth 1 --heads 2"
model="$model --batch-size 11 --epochs 2 --warmup-epochs 0 --log-every 1"
run --data images $model --run-dir folder
[ "$status" -eq 0 ] && [ ! -s err ]
check "train on a folder" $? "$(last_row folder) $(head -n 1 err)"
run --data train.pack $model --run-dir packed
same_run folder packed
check "on the packed file: the same run bit for bit" $? "differs: $differs"
run --data . $model --run-dir found
same_run folder found
check "on the folder with train.pack and val.pack too" $? "differs: $differs"
for workers in 1 3; do
    run --data images $model --workers $workers --run-dir workers$workers
    same_run folder workers$workers
    check "with $workers workers too" $? "differs: $differs"
done
run --data images $model --exact-decode --interpolation bilinear --run-dir other
[ "$status" -eq 0 ] && ! { curve folder >curve.1 && curve other >curve.2 && cmp -s curve.1 curve.2; }
check "another filter is another run" $? "$(last_row other)"
mkdir halves
cp raw-train.pack halves/train.pack
cp val.pack halves/val.pack
run --data halves $model --run-dir pixels
[ "$status" -eq 0 ] && [ ! -s err ]
check "train on pixels" $? "$(last_row pixels) $(head -n 1 err)"
run --eval --init folder/last.safetensors
[ "$status" -eq 0 ] && grep -q '6 validation images of images' out
check "evaluate" $? "$(tail -n 1 out) $(head -n 1 err)"

# ImageNet ReaL: several labels for an image, or none, in the order of the numbers in the images' names.
for image in ape/2:grey ape/5:colour420 bee/1:grey bee/6:colour420 cat/3:grey cat/4:colour420; do
    place=${image%:*}
    mkdir -p real/val/${place%/*}
    cp "$root/tests/corpus/jpeg/${image#*:}.jpg" real/val/${place%/*}/ILSVRC2012_val_0000000${place#*/}.JPEG
done
weights="--init folder/last.safetensors --data real"
run $weights --predict test:0 test:1 test:2 test:3 test:4 test:5
named=$(sed -n 's/^test:.: ape .*/0/p; s/^test:.: bee .*/1/p; s/^test:.: cat .*/2/p' out | tr '\n' ' ')
set -- $named
# Predictions for numbers 1 to 6: right, wrong, without labels, right among others, wrong, wrong.
echo "[[], [$1], [$((($5 + 1) % 3))], [$((($6 + 2) % 3)), $((($6 + 1) % 3))], [$((($2 + 1) % 3))], [0, 1, 2]]" >real.json
run $weights --eval --real-labels real.json
[ "$status" -eq 0 ] && [ $# -eq 6 ] && [ "$(tail -n 1 out)" = "real: 40.0000 of 5 images with labels" ]
check "ImageNet ReaL: two of five images with labels are named right" $? "$named $(tail -n 1 out) $(head -n 1 err)"
tail -n 3 out | head -n 2 >plain
mkdir real.packed
packs --data real --split val --out real.packed/val.pack
run --init folder/last.safetensors --data real.packed --eval --real-labels real.json
[ "$(tail -n 1 out)" = "real: 40.0000 of 5 images with labels" ] && tail -n 3 out | head -n 2 | cmp -s - plain
check "and packed" $? "$(tail -n 1 out) $(head -n 1 err)"
run $weights --eval --test-limit 2 --real-labels real.json # numbers 2 and 6
[ "$(tail -n 1 out)" = "real: 100.0000 of 2 images with labels" ]
check "and the first ones by their own numbers" $? "$(tail -n 1 out) $(head -n 1 err)"
echo '[[], [], [], [], [], []]' >real.json
run $weights --eval --real-labels real.json
[ "$status" -eq 0 ] && [ "$(tail -n 1 out)" = "real: 0.0000 of 0 images with labels" ]
check "and without labels" $? "$(tail -n 1 out)"
while read -r words; do
    read -r text
    echo "$text" >real.json
    refuses "ReaL labels: $text" 1 "real.json|$words" $weights --eval --real-labels real.json
done <<'END'
labels for 5 images|6 test images
[[0], [1], [2], [0], [1]]
labels for 7 images|6 test images
[[0], [1], [2], [0], [1], [1], [1]]
[1]: expected a list of integers
[[0], 1, [2], [0], [1], [1]]
[1]: expected a list of integers
[[0], [1.5], [2], [0], [1], [1]]
[2]: label 3|3 classes
[[0], [1], [0, 3], [0], [1], [1]]
[2]: label -1|3 classes
[[0], [1], [-1], [0], [1], [1]]
cut short
[[0], [1], [2], [0], [1], [1]
expected an array
{"labels": [[0]]}
the end of the file expected
[[0], [1], [2], [0], [1], [1]] [0]
END
refuses "ReaL labels that are not there" 1 'nowhere.json|No such file' $weights --eval --real-labels nowhere.json
refuses "ReaL labels without --eval" 2 '--real-labels|counts only with --eval' $weights --real-labels real.json
echo '[[0], [1], [2], [0], [1], [1]]' >real.json
refuses "ReaL labels of images without numbers" 1 'real.json|ILSVRC2012_val_00000001.JPEG|images/val/ape/colour420.jpg' \
    --init folder/last.safetensors --data images --eval --real-labels real.json
mv real/val/cat/ILSVRC2012_val_00000003.JPEG real/val/cat/ILSVRC2012_val_00000001.JPEG
refuses "ReaL labels of two images of one number" 1 'real.json|val/cat/ILSVRC2012_val_00000001.JPEG|same number' $weights --eval \
    --real-labels real.json
mv real/val/cat/ILSVRC2012_val_00000001.JPEG real/val/cat/ILSVRC2012_val_00000007.JPEG
refuses "ReaL labels without an image's" 1 'real.json|labels for 6 images|val/cat/ILSVRC2012_val_00000007.JPEG' $weights \
    --eval --real-labels real.json
cp "$root/tests/corpus/jpeg/cut.jpg" real/val/cat/ILSVRC2012_val_00000003.JPEG
rm real/val/cat/ILSVRC2012_val_00000007.JPEG
run $weights --eval --real-labels real.json --per-class classes.csv
[ "$status" -eq 0 ] && grep -q 'ILSVRC2012_val_00000003.JPEG: .*: counts as wrong' err && grep -qx 'failed: 1 images' out &&
    grep -q '^real: .* of 6 images' out && awk -F, 'NR > 1 { n += $3 } END { exit n != 5 }' classes.csv
check "no other image takes the place of a damaged one" $? "$(tail -n 3 out) $(tail -n 1 err)"

run --init folder/last.safetensors --predict images/val/ape/grey.jpg test:0
[ "$status" -eq 0 ] && [ "$(wc -l <out)" -eq 2 ] && grep -q ape out
check "predict" $? "$(head -n 1 out) $(head -n 1 err)"
run --data images $model --show-batch sheet.png
[ "$status" -eq 0 ] && [ "$(head -c 4 sheet.png | tail -c 3)" = PNG ]
check "--show-batch" $? "$(tail -n 1 out)"
refuses "--show-batch into no folder" 1 'nowhere/sheet.png|No such file' --data images $model \
    --show-batch nowhere/sheet.png
run --data imagenet --img-size 224 --patch-size 16 --describe
[ "$status" -eq 0 ] && grep -q params out
check "--describe needs no files" $? "$(grep params out)"

run --data holes $model --max-damaged 0.1 --run-dir holes.run
[ "$status" -eq 0 ] && [ "$(wc -l <err)" -eq 1 ] && grep -q 'holes/train/bee/z.jpg: a JPEG cut short' err
check "a damaged picture is named and replaced" $? "$(head -n 1 err)"
run --data holes $model --batch-size 34 --max-damaged 0 --run-dir holes.run2
[ "$status" -eq 1 ] && tail -n 1 err | grep -q 'damaged images: 1 in one epoch of 34, more than max_damaged 0 .*/z.jpg' &&
    grep -q '"state": *"failed"' holes.run2/report.json && grep -q 'failed: .* damaged images: 1 in' holes.run2/report.html
check "more than max_damaged end the run, and its page says so" $? "$(tail -n 1 err)"
mkdir -p holes/train/dog
cp images/val/ape/grey.jpg holes/train/dog/
refuses "a class that val lacks" 1 'holes|class dog is in train but not in val' --data holes $model
refuses "too few classes in the model" 2 '--num-classes|2|3' --data images $model --num-classes 2
refuses "short sides below img_size" 2 '--short-side-max|15|--img-size 16' --data images $model --short-side-max 15
refuses "short sides in the wrong order" 2 '--short-side-min|20|18' --data images $model --short-side-min 20 \
    --short-side-max 18
refuses "eval_resize that makes pictures too large" 2 '--eval-resize|16384|more than 65535 pixels' --data images $model \
    --img-size 8x80 --eval-resize 16384
refuses "eval_resize below img_size" 2 '--eval-resize|8|--img-size 16' --data images $model --eval-resize 8
refuses "a crop with no area" 2 '--crop-area-min|0.9|0.5' --data images $model --crop-area-min 0.9 --crop-area-max 0.5
refuses "a packed file cut short in training" 1 'cut-train.pack|cut short' --data cut-train.pack $model

# == Fine-tuning at another resolution ===============================================================================

finer="--data images $model --epochs 1"
run $finer --img-size 24x40 --init folder/last.safetensors --run-dir finer
[ "$status" -eq 0 ] && [ ! -s err ] &&
    grep -q '^folder/last.safetensors: resampled bicubically: pos_embed from 2x2 to 3x5$' out
check "--init at another img_size" $? "$(grep resampled out) $(head -n 1 err)"
run $finer --img-size 40x24 --init finer/last.safetensors --run-dir turned
[ "$status" -eq 0 ] && grep -q ': pos_embed from 3x5 to 5x3$' out
check "a checkpoint knows its grid" $? "$(grep resampled out) $(head -n 1 err)"
run --eval --init finer/last.safetensors --img-size 16
[ "$status" -eq 0 ] && grep -q 'from 3x5 to 2x2$' out && grep -q '^top1: ' out
check "--eval at another img_size" $? "$(grep resampled out) $(tail -n 1 out) $(head -n 1 err)"
run $finer --attn lisa --lisa-patterns 2 --run-dir patterns
run $finer --attn lisa --lisa-patterns 2 --img-size 24 --init patterns/best.safetensors --run-dir patterns.finer
[ "$status" -eq 0 ] && grep -q ': pos_embed from 2x2 to 3x3 and 2 more$' out
check "lisa's circles are resampled too" $? "$(grep resampled out) $(head -n 1 err)"
run $finer --pool cls --run-dir token
run $finer --pool cls --img-size 24 --init token/last.safetensors --run-dir token.finer
[ "$status" -eq 0 ] && grep -q ': pos_embed from 2x2 to 3x3$' out
check "a class token stays in front" $? "$(grep resampled out) $(head -n 1 err)"
run $finer --num-classes 5 --init folder/last.safetensors --run-dir classes
[ "$status" -eq 0 ] &&
    grep -q '^folder/last.safetensors: its head has 3 classes, this model 5: the head starts with new random weights$' out
check "a head of other classes starts with new random weights" $? "$(grep 'random weights' out) $(head -n 1 err)"
refuses "but not to be evaluated" 1 'folder/last.safetensors|head.|[3' --eval --init folder/last.safetensors \
    --num-classes 5
refuses "a width that differs" 1 'last.safetensors|[16]|[32]|another dim (here 32)' $finer --img-size 24 --dim 32 \
    --init folder/last.safetensors
refuses "a class token that is missing" 1 'last.safetensors|cls_token' $finer --pool cls --init folder/last.safetensors
refuses "a class token too many" 1 'last.safetensors|cls_token|pool cls' $finer --img-size 24 \
    --init token/last.safetensors
refuses "patches of another size" 1 'last.safetensors|patch_embed.proj.weight|[16,3,8,8]|[16,3,4,4]' $finer \
    --patch-size 4 --init folder/last.safetensors

echo "1..$count"
[ $failures -eq 0 ]
