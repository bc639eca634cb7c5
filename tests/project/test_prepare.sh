#!/bin/sh
# scripts/prepare_data.py on small archives in the published forms, and on damaged ones; the programs read the prepared
# data.
#
#   BUILD=build/cpu sh tests/project/test_prepare.sh

# shellcheck disable=SC2015,SC2086,SC2154 # settings are lists of words
. "$(dirname "$0")/../tap.sh"

python=$(command -v python3 || echo /usr/bin/python3) # its standard library only
if ! [ -x "$python" ]; then
    skip "laying out data sets" "no python3"
    echo "1..$count"
    exit 0
fi
jpeg=$root/tests/corpus/jpeg/grey.jpg mat=$root/tests/fixtures/mat

prepares() { # ARGUMENTS: as run
    "$python" "$root/scripts/prepare_data.py" "$@" >out 2>err
    status=$?
}

# lays NAME WANTED ARGUMENTS...: status 0, and these numbers of files in datasets/NAME: "3 val/a 2 val/b".
lays() {
    name=$1 wanted=$2
    shift 2
    rm -rf datasets
    prepares "$name" "$@"
    found=$(cd datasets/$name 2>/dev/null && find . -type f | sed 's|^\./||; s|/[^/]*$||' | sort | uniq -c | tr -s ' \n' ' ')
    [ "$status" -eq 0 ] && [ ! -s err ] && [ "$found" = " $wanted " ] && [ -z "$(ls -d datasets/$name.*)" ]
    check "$name is laid out" $? "$found $(head -n 1 err)"
}

# stops NAME WORDS ARGUMENTS...: status 1, one line with the words, and no data set.
stops() {
    name=$1 words=$2
    shift 2
    rm -rf datasets
    prepares "$@"
    complains 1 "$words" && [ ! -e datasets/$1 ]
    check "$name" $? "status $status, $(wc -l <err) line: $(head -n 1 err)"
}

zips() { # FILE NAMES...: in the current folder
    "$python" -c 'import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as file:
    for name in sys.argv[2:]: file.write(name)' "$@"
}

# == ImageNet: ground truth 2 1 3 2 1 in the development kit's numbers, whose classes are n...1, n...3, n...2 =========

mkdir -p kit/ILSVRC2012_devkit_t12/data imagenet/tars
cp "$mat/meta.mat" kit/ILSVRC2012_devkit_t12/data/
printf '2\n1\n3\n2\n1\n' >kit/ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt
tar -czf imagenet/ILSVRC2012_devkit_t12.tar.gz -C kit ILSVRC2012_devkit_t12
for i in 1 2 3 4 5; do cp "$jpeg" ILSVRC2012_val_0000000$i.JPEG; done
tar -cf imagenet/ILSVRC2012_img_val.tar ILSVRC2012_val_*.JPEG
for class in n00000001 n00000002 n00000003; do
    cp "$jpeg" ${class}_1.JPEG && cp "$jpeg" ${class}_2.JPEG
    tar -cf $class.tar ${class}_1.JPEG ${class}_2.JPEG
done
tar -cf imagenet/ILSVRC2012_img_train.tar n00000001.tar n00000002.tar n00000003.tar
small="--expect classes=3,val=5,train=6"
lays imagenet "2 train/n00000001 2 train/n00000002 2 train/n00000003 2 val/n00000001 1 val/n00000002 2 val/n00000003" \
    imagenet $small
(cd datasets/imagenet/val && find . -type f | sort) >found
cat >wanted <<'END'
./n00000001/ILSVRC2012_val_00000001.JPEG
./n00000001/ILSVRC2012_val_00000004.JPEG
./n00000002/ILSVRC2012_val_00000003.JPEG
./n00000003/ILSVRC2012_val_00000002.JPEG
./n00000003/ILSVRC2012_val_00000005.JPEG
END
cmp -s found wanted
check "and every image is in the folder of its class" $? "$(tr '\n' ' ' <found)"
model="--img-size 16 --patch-size 8 --dim 16 --depth 1 --heads 2 --batch-size 6 --epochs 1 --warmup-epochs 0"
succeeds "train_vit reads it" --data datasets/imagenet $model --run-dir trained
cp -R datasets kept
rm -rf datasets
mkdir datasets && cp -R kept/imagenet datasets/
prepares imagenet imagenet $small
complains 1 'datasets/imagenet|is there already'
check "a data set that is there stays" $? "$(head -n 1 err)"
stops "one image is no ImageNet" 'ILSVRC2012_devkit_t12.tar.gz|3 classes|expected 1000' imagenet imagenet
stops "an image too few" 'ILSVRC2012_img_train.tar|6 train|expected 7' imagenet imagenet --expect classes=3,val=5,train=7
stops "a count that the set has not" 'imagenet|tests' imagenet imagenet --expect classes=3,val=5,train=6,tests=9
head -c 3000 imagenet/ILSVRC2012_img_val.tar >cut && cp -R imagenet damaged && mv cut damaged/ILSVRC2012_img_val.tar
stops "a cut archive" 'damaged/ILSVRC2012_img_val.tar|damaged' imagenet damaged $small
echo text >damaged/ILSVRC2012_img_val.tar
stops "text for an archive" 'damaged/ILSVRC2012_img_val.tar|damaged' imagenet damaged $small
tar -cf damaged/ILSVRC2012_img_val.tar ILSVRC2012_val_0000000[1-4].JPEG
stops "a validation image too few" 'damaged/ILSVRC2012_img_val.tar|4 images|ground truth has 5' imagenet damaged $small
tar -cf damaged/ILSVRC2012_img_val.tar n00000001_1.JPEG
stops "another image" 'damaged/ILSVRC2012_img_val.tar|n00000001_1.JPEG|ILSVRC2012_val_00000001.JPEG' imagenet damaged $small
head -c 300 "$mat/meta.mat" >kit/ILSVRC2012_devkit_t12/data/meta.mat
tar -czf damaged/ILSVRC2012_devkit_t12.tar.gz -C kit ILSVRC2012_devkit_t12
stops "a cut list of classes" 'damaged/ILSVRC2012_devkit_t12.tar.gz|cut short' imagenet damaged $small
rm damaged/ILSVRC2012_devkit_t12.tar.gz
stops "no development kit" 'damaged|ILSVRC2012_devkit_t12.tar.gz' imagenet damaged $small
rm imagenet/ILSVRC2012_img_train.tar
lays imagenet "2 val/n00000001 1 val/n00000002 2 val/n00000003" imagenet --expect classes=3,val=5

# == COCO ============================================================================================================

mkdir -p coco/annotations coco/train2017 coco/val2017
cp "$jpeg" coco/train2017/000000000001.jpg && cp "$jpeg" coco/train2017/000000000002.jpg
cp "$jpeg" coco/val2017/000000000003.jpg
sides=$("$python" -c 'import sys; d = open(sys.argv[1], "rb").read(); i = d.index(b"\xff\xc0") + 5
print(d[i] << 8 | d[i + 1], d[i + 2] << 8 | d[i + 3])' "$jpeg")
image="\"height\": ${sides% *}, \"width\": ${sides#* }"
list() { # IDS...: COCO's annotations of these images, a box on each
    images='' boxes=''
    for id; do
        images="$images${images:+, }{\"id\": $id, \"file_name\": \"00000000000$id.jpg\", $image}"
        boxes="$boxes${boxes:+, }{\"id\": $id, \"image_id\": $id, \"category_id\": 1, \"bbox\": [1, 1, 4, 4], \"area\": 16, \"iscrowd\": 0}"
    done
    echo "{\"images\": [$images], \"annotations\": [$boxes], \"categories\": [{\"id\": 1, \"name\": \"box\"}]}"
}
list 1 2 >coco/annotations/instances_train2017.json
list 3 >coco/annotations/instances_val2017.json
(cd coco && zips train2017.zip train2017/*.jpg && zips val2017.zip val2017/*.jpg && zips annotations_trainval2017.zip annotations/*)
lays coco "2 annotations 2 train2017 1 val2017" coco --expect train=2,val=1
"$build/train_detr" --data datasets/coco --epochs 1 --batch-size 2 --backbone-blocks 1,1,1,1 --backbone-width 8 --dim 16 --heads 2 --ffn 16 --encoder-layers 1 --decoder-layers 1 \
    --queries 4 --num-classes 2 --run-dir boxes >out 2>err
check "train_detr reads it" $? "$(tail -n 1 out) $(head -n 1 err)"
list 1 2 3 >coco/annotations/instances_train2017.json
(cd coco && zips annotations_trainval2017.zip annotations/*)
stops "an image that is not in its archive" 'train2017.zip|000000000003.jpg|instances_train2017.json' coco coco --expect train=2,val=1

# == Kinetics ========================================================================================================

mkdir -p kinetics/train kinetics/val
head='label,youtube_id,time_start,time_end,split'
{ echo $head; echo 'a,aaaaaaaaaaa,1,11,train'; echo '"b, not c",bbbbbbbbbbb,0,10,train'; echo 'a,-ccccccccc_,7,17,train'; } >kinetics/train.csv
{ echo $head; echo 'a,ddddddddddd,1,11,val'; } >kinetics/val.csv
for clip in aaaaaaaaaaa_000001_000011 bbbbbbbbbbb_000000_000010 ddddddddddd_000001_000011 eeeeeeeeeee_000001_000011; do echo clip >$clip.mp4; done
tar -czf kinetics/train/part_0.tar.gz aaaaaaaaaaa_000001_000011.mp4 eeeeeeeeeee_000001_000011.mp4
tar -cf kinetics/train/part_1.tar ./bbbbbbbbbbb_000000_000010.mp4
tar -cf kinetics/val/part_0.tar ddddddddddd_000001_000011.mp4
lays kinetics400 "2 train 1 train.csv 1 val 1 val.csv" kinetics --expect train=2,val=1
grep -q '^train: 2 of 3 clips are there$' out && [ "$(sed -n 3p datasets/kinetics400/train.csv)" = '"b, not c",bbbbbbbbbbb,0,10,train' ] &&
    ! grep -q ccccccccc_ datasets/kinetics400/train.csv
check "and its lists have the clips that are there" $? "$(grep clips out | tr '\n' ' ')"
stops "a clip too few" 'kinetics|2 train|expected 3' kinetics400 kinetics --expect train=3
rm kinetics/val/part_0.tar
stops "no clip of a split" 'kinetics|none of the 1 clips of val.csv' kinetics400 kinetics
echo 'aaaaaaaaaaa 17' >kinetics/val.csv
stops "another list" 'kinetics/val.csv|label,youtube_id' kinetics400 kinetics

# == Something-Something V2: its archive in two parts, one of them zipped ============================================

mkdir -p ssv2 20bn-something-something-v2
for id in 1 2 3; do echo video $id >20bn-something-something-v2/$id.webm; done
tar -czf whole.tgz 20bn-something-something-v2
head -c 100 whole.tgz >ssv2/20bn-something-something-v2-00
tail -c +101 whole.tgz >20bn-something-something-v2-01
zips ssv2/20bn-something-something-v2-01.zip 20bn-something-something-v2-01
mkdir labels
echo '[{"id": "1", "template": "Moving [something]"}, {"id": "3", "template": "Moving [something]"}]' >labels/train.json
echo '[{"id": "2", "template": "Moving [something]"}]' >labels/validation.json
echo '{"Moving something": "0"}' >labels/labels.json
zips ssv2/labels.zip labels/*.json
counts="--expect labels=1,train=2,val=1"
lays ssv2 "3 20bn-something-something-v2 1 labels.json 1 train.json 1 validation.json" ssv2 $counts
stops "labels too few" 'ssv2|1 labels|expected 174' ssv2 ssv2
mv ssv2/20bn-something-something-v2-00 first
stops "a part that is missing" 'ssv2|not complete: [1]' ssv2 ssv2 $counts
mv first ssv2/20bn-something-something-v2-00
echo '[{"id": "2"}, {"id": "4"}]' >ssv2/something-something-v2-validation.json
rm ssv2/labels.zip
cp labels/train.json labels/labels.json ssv2/
stops "a video that is missing" 'ssv2|1 videos of validation.json|the first is 4' ssv2 ssv2 $counts
rm ssv2/labels.json
stops "no labels" 'ssv2|has no labels.json' ssv2 ssv2 $counts

# == enwik8 ==========================================================================================================

mkdir text
seq 1 2000 | head -c 8000 >enwik8
zips text/enwik8.zip enwik8
rm -rf datasets
prepares enwik8 text --expect bytes=8000
[ "$status" -eq 0 ] && cmp -s enwik8 datasets/enwik8 && [ ! -e datasets/enwik8.part ]
check "enwik8 is one file" $? "$(head -n 1 err)"
"$build/train_ar" --data datasets/enwik8 --kind text --tokens 32 --dim 16 --heads 2 --depth 1 --batch-size 4 --epochs 1 --run-dir read >out 2>err
grep -q '224 training sequences of 32 tokens, 399 tokens to validate, 399 to test' out # 7,200, 400 and 400 bytes
check "train_ar divides it into 90, 5 and 5 %" $? "$(grep -m 1 tokens out) $(head -n 1 err)"
stops "another text" 'text/enwik8.zip|8000 bytes|expected 100000000' enwik8 text

# == Oxford-IIIT Pets and Flowers-102 ================================================================================

mkdir -p pets/images pets/annotations flowers/jpg
for pet in Abyssinian_1 Abyssinian_2 great_dane_1 great_dane_2; do cp "$jpeg" pets/images/$pet.jpg; done
printf 'Abyssinian_1 1 1 1\ngreat_dane_2 2 2 1\n' >pets/annotations/trainval.txt
printf 'Abyssinian_2 1 1 1\ngreat_dane_1 2 2 1\n' >pets/annotations/test.txt
tar -czf pets/images.tar.gz -C pets images && tar -czf pets/annotations.tar.gz -C pets annotations
lays pets "1 train/Abyssinian 1 train/great_dane 1 val/Abyssinian 1 val/great_dane" pets --expect classes=2,train=2,val=2
stops "breeds too few" 'pets/images.tar.gz|2 classes|expected 37' pets pets
for i in 1 2 3 4 5 6; do cp "$jpeg" flowers/jpg/image_0000$i.jpg; done
cp "$mat/imagelabels.mat" "$mat/setid.mat" flowers/
tar -czf flowers/102flowers.tgz -C flowers jpg
lays flowers "1 train/001 1 train/002 1 train/003 1 val/001 1 val/003" flowers --expect classes=3,train=3,val=2
echo 'MATLAB 7.3' >flowers/setid.mat
stops "lists of another form" 'flowers/setid.mat|MATLAB 5' flowers flowers

# == What can be wrong with any ======================================================================================

stops "no downloads" 'nowhere|no such folder' pets nowhere
mkdir -p read.only && chmod 500 read.only
if ! touch read.only/x 2>/dev/null; then
    stops "a folder that cannot be written" 'read.only|Permission denied' pets pets --data-dir read.only
fi
rm -rf datasets && mkdir datasets
flock datasets/pets.part.lock "$python" "$root/scripts/prepare_data.py" pets pets >out 2>err
status=$?
complains 1 'datasets/pets.part|another call'
check "two calls at once" $? "status $status: $(head -n 1 err)"
prepares pets pets --expect many
[ "$status" -eq 2 ] && tail -n 1 err | grep -q "'many': expected counts like train=100,val=10"
check "counts that are none" $? "$(tail -n 1 err)"

echo "1..$count"
[ "$failures" -eq 0 ]
