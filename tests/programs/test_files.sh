#!/bin/sh
# Files that a run writes, and damage to its files: outputs that are devices, pipes or links; names that no checkpoint
# can store, or that would control the terminal; closed and broken output; logs, checkpoints and packed files that are
# removed, truncated or incomplete.  TAP on standard output, evidence behind '# '.

# shellcheck disable=SC2012,SC2015,SC2046,SC2086 # settings are lists of words; no name that is not quoted holds a space
. "$(dirname "$0")/../tap.sh"

pack=$build/pack_dataset
detr=$build/train_detr
tiny="$tiny --epochs 2"
escape=$(printf '\033')
latin=$(printf 'r\351')

is_png() { [ "$(head -c 8 "$1" | tail -c 7 | head -c 3)" = PNG ]; }

# A BMP of 20 x 10 pixels: both headers, then rows of 60 bytes of some text.
bmp() {
    printf 'BM\216\002\0\0\0\0\0\0\066\0\0\0\050\0\0\0\024\0\0\0\012\0\0\0\001\0\030\0\0\0\0\0\130\002\0\0'
    head -c 16 /dev/zero
    yes "$1" | head -c 600
}

# == Outputs that are no regular files ===============================================================================

safetensors in.safetensors '{"images":{"dtype":"F32","shape":[1,3,8,8],"data_offsets":[0,768]},'\
'"labels":{"dtype":"I64","shape":[1],"data_offsets":[768,776]}}' 776
parity="$model --patch-size 4 --parity in.safetensors --out"
run $parity plain.out
check "--parity" "$status" "$(head -n 1 err)"

if mknod null c 1 3 2>/dev/null && (: >null) 2>/dev/null; then
    run $tiny --show-batch null
    first=$status
    run $parity null
    [ "$first" -eq 0 ] && [ "$status" -eq 0 ] && [ -c null ] && [ "$(ls | grep -c '^null')" -eq 1 ]
    check "a device is written to and stays one" $? "$(ls -l null) $(head -n 1 err)"
else
    skip "a device is written to and stays one" "no devices can be made here"
fi

mkfifo pipe
refuses "settings from a pipe" 2 "'pipe' is a pipe, and settings are read more than once" --config pipe --describe
cat pipe >through &
reader=$!
run $parity pipe
[ -p pipe ] || kill $reader # which would wait forever
wait $reader
[ "$status" -eq 0 ] && [ -p pipe ] && cmp -s through plain.out
check "a pipe carries what is written and stays one" $? "status $status, $(wc -c <through) bytes $(head -n 1 err)"

mkdir -p far
echo before >far/real
ln -s far/real link
ln -s ../fresh far/dangling
run $parity link
first=$status
run $parity far/dangling
[ "$first" -eq 0 ] && [ "$status" -eq 0 ] && [ -L link ] && [ -L far/dangling ] && cmp -s far/real plain.out &&
    cmp -s fresh plain.out && [ "$(ls far | wc -l)" -eq 2 ]
check "a link stays and leads to what is written" $? "$(ls -l link far | tr '\n' ' ') $(head -n 1 err)"
ln -s loop.a loop.b && ln -s loop.b loop.a
refuses "a link that leads to itself" 1 'loop.a|Too many levels' $parity loop.a
refuses "a folder in place of an output" 1 'far|a folder' $parity far

# == Names ===========================================================================================================

started=$(date +%s)
refuses "a run folder that is not UTF-8" 2 '--run-dir|not UTF-8' $model --epochs 1000 --run-dir "$latin"
[ ! -e "$latin" ] && [ $(($(date +%s) - started)) -lt 60 ]
check "it is refused before there is anything to lose" $?

pictures() { # folder, names of two classes
    for split in train val; do
        for class in "$2" "$3"; do
            mkdir -p "$1/$split/$class"
            for i in 1 2 3 4; do bmp "$split$class$i" >"$1/$split/$class/$i.bmp"; done
        done
    done
}
small="$model --img-size 16 --batch-size 4 --epochs 1 --warmup-epochs 0"

pictures other "caf$(printf '\351')" tea
refuses "a class name that is not UTF-8" 1 'caf|class 0 is not UTF-8' $small --data other --run-dir other.run
[ ! -e other.run ]
check "and leaves no folder" $?
pictures "$latin" a b
refuses "a data path that is not UTF-8" 2 'data|not UTF-8' $small --data "$latin" --run-dir other.run

odd=$(printf 'two\nlines')
pictures odd "$odd" "${escape}[31mred"
run $small --data odd --run-dir odd.run
cp odd/val/"$odd"/1.bmp "$(printf 'x\033[2J.bmp')"
run --init odd.run/last.safetensors --predict "$(printf 'x\033[2J.bmp')"
[ "$status" -eq 0 ] && [ "$(wc -l <out)" -eq 1 ] && grep -qF 'two?lines' out && grep -qF '?[31mred' out &&
    ! grep -q "$escape" out
check "class and file names are kept and printed without control characters" $? "$(cat -v out) $(head -n 1 err)"
run --predict "$(printf 'no\nsuch\033[2J')" --init odd.run/last.safetensors
complains 1 'no?such?[2J' && ! grep -q "$escape" err
check "so are names in messages" $? "$(cat -v err)"
run --predict "$(printf 'no\302\233such')" --init odd.run/last.safetensors
complains 1 'no?such'
check "and control characters of the second set" $? "$(cat -v err)"
: >odd/train/"$odd/1.bmp"
"$pack" --data odd --out odd.pack >out 2>err
status=$?
complains 0 'train/two?lines/1.bmp'
check "pack_dataset prints names so too" $? "$(cat -v err)"

# == Standard output =================================================================================================

"$vit" $tiny --run-dir whole >out 2>err
check "the undisturbed run" $? "$(last_row whole)"
"$vit" $tiny --run-dir closed.1 2>err >&-
first=$?
"$vit" $tiny --run-dir closed.2 >out 2>&-
second=$?
"$vit" $tiny --run-dir closed.3 <&- >&- 2>&-
third=$?
same_run whole closed.1 && same_run whole closed.2 && same_run whole closed.3 && [ $first$second$third = 000 ] &&
    [ ! -s err ] && [ "$(wc -l <closed.1/log.csv)" -eq "$(wc -l <whole/log.csv)" ] &&
    [ "$(wc -l <closed.3/log.csv)" -eq "$(wc -l <whole/log.csv)" ]
check "closed standard files leave the log as it is" $? "status $first $second $third; differs: $differs"

("$vit" $tiny --run-dir broken; echo $? >status) 2>err | head -n 1 >out
status=$(cat status)
complains 1 'standard output|reader' && same_run whole broken
check "a run whose output nobody reads is trained and saved" $? "status $status $(head -n 1 err)"
("$vit" --eval --init whole/last.safetensors; echo $? >status) 2>err | sleep 0
status=$(cat status)
complains 1 'standard output|reader' || [ "$status" -eq 141 ]
check "a mode whose output is lost has a status of its own" $? "status $status $(head -n 1 err)"

if command -v script >/dev/null 2>&1 && script -qec true /dev/null >/dev/null 2>&1; then
    TERM=dumb script -qec "'$vit' $tiny --run-dir dumb" /dev/null >out 2>err </dev/null
    dumb=$(tr -d '\n' <out | sed "s/$(printf '\r')\$//" | grep -c "$escape")
    TERM=xterm script -qec "'$vit' $tiny --run-dir able" /dev/null >out 2>err </dev/null
    able=$(tr -d '\n' <out | grep -c "$escape")
    [ "$dumb" -eq 0 ] && [ "$able" -eq 1 ] && [ -e dumb/last.safetensors ]
    check "only a terminal that can is written to with codes" $? "codes: dumb $dumb, xterm $able"
else
    skip "only a terminal that can is written to with codes" "no script here"
fi

# == The run's folder ================================================================================================

host=$(uname -n | head -c 32)
sleep 0 &
dead=$!
wait $dead
cp -R whole littered
for name in state.safetensors last.safetensors best.safetensors config.ini; do
    echo x >"littered/$name.tmp.$dead.$host"
done
echo x >littered/state.safetensors.tmp.$dead.elsewhere
echo x >littered/state.safetensors.tmp.1.$host
echo x >littered/state.safetensors.tmp.backup
echo x >littered/last.safetensors.tmp.$dead
echo x >littered/last.safetensors.tmp.77.elsewhere
touch -t 200001010000 littered/last.safetensors.tmp.$dead littered/last.safetensors.tmp.77.elsewhere
run --resume littered
left=$(ls littered | grep tmp | tr '\n' ' ')
[ "$status" -eq 0 ] &&
    [ "$left" = "state.safetensors.tmp.1.$host state.safetensors.tmp.$dead.elsewhere state.safetensors.tmp.backup " ]
check "what killed saves left goes, and nothing else" $? "left: $left $(head -n 1 err)"

# The log is removed or replaced while the run is stopped.
longer="$model --train-limit 1024 --test-limit 32 --batch-size 16 --epochs 4 --warmup-epochs 0 --log-every 1"
"$vit" $longer --run-dir steady >out 2>err
disturbed() { # folder, action
    "$vit" $longer --run-dir "$1" >out 2>err &
    pid=$!
    wait_for $pid '^3,' "$1/log.csv"
    kill -s STOP $pid
    eval "$2"
    kill -s CONT $pid
    wait $pid
    status=$?
}
disturbed lost 'rm lost/log.csv'
complains 0 'lost/log.csv|removed' && same_run steady lost
check "a log that is removed is made again, whole" $? "status $status: $(head -n 1 err); differs: $differs"
disturbed swapped 'cp swapped/log.csv kept && cp kept kept.2 && mv kept.2 swapped/log.csv'
complains 0 'swapped/log.csv|was replaced' && [ "$(tail -n 1 swapped/log.csv | cut -d , -f 1)" = 256 ] &&
    [ "$(wc -l <swapped/log.csv)" -ge 256 ]
check "rows go on in a file that took its place" $? "$(wc -l <swapped/log.csv) rows, $(head -n 1 err)"

cp -R whole missing
rm missing/log.csv
run --resume missing --epochs 3
complains 0 'missing/log.csv|missing' && [ "$(head -n 1 missing/log.csv)" = "$(head -n 1 whole/log.csv)" ] &&
    [ "$(wc -l <missing/log.csv)" -ge 2 ] && run --resume missing && [ "$status" -eq 0 ] && [ ! -s err ]
check "--resume without the log begins a new one" $? "status $status $(head -n 1 err) $(wc -l <missing/log.csv) rows"
cp -R whole chopped
head -c "$(($(head -n 2 whole/log.csv | wc -c) - 9))" whole/log.csv >chopped/log.csv
run --resume chopped --epochs 3
complains 0 'chopped/log.csv|rows are missing' && [ "$(awk -F , '{ print NF }' chopped/log.csv | uniq | wc -l)" -eq 1 ] &&
    [ "$(head -n 1 chopped/log.csv)" = "$(head -n 1 whole/log.csv)" ] && [ "$(wc -l <chopped/log.csv)" -ge 2 ]
check "a row that was cut off is not continued by the next one" $? "status $status $(head -n 3 chopped/log.csv | tail -n 2)"
for bytes in 0 20; do
    cp -R whole emptied-$bytes
    head -c $bytes whole/log.csv >emptied-$bytes/log.csv
    run --resume emptied-$bytes --epochs 3
    complains 0 "emptied-$bytes/log.csv|rows are missing" &&
        [ "$(head -n 1 emptied-$bytes/log.csv)" = "$(head -n 1 whole/log.csv)" ]
    check "and a log of $bytes bytes gets its header again" $? "status $status $(head -n 1 emptied-$bytes/log.csv)"
done

# States without the length of the log, from runs whose disk did not report it.
cp -R whole unknown
bytes=$(head -c $((8 + $(header_size whole/state.safetensors))) whole/state.safetensors |
    sed 's/.*"vit\.c\.run":"\([^"]*\)".*/\1/' | cut -d ' ' -f 7)
zeros=$(echo "$bytes" | sed 's/./0/g')
sed "s/ $bytes / $zeros /" whole/state.safetensors >unknown/state.safetensors
run --resume unknown
[ "$status" -eq 0 ] && [ -n "$zeros" ] && cmp -s unknown/log.csv whole/log.csv
check "a log of unknown length is not wiped" $? "$(wc -c <unknown/log.csv) bytes, status $status $(head -n 1 err)"

cp -R whole piped
rm piped/log.csv && mkfifo piped/log.csv
timeout 10 "$vit" --resume piped --epochs 3 >out 2>err
status=$?
complains 1 'piped/log.csv|not a regular file'
check "a log that is a pipe is not waited for" $? "status $status $(head -n 1 err)"

# The last value of the second moments becomes -1; a std is too small to divide by.
cp -R whole negative
at=$(head -c $((8 + $(header_size whole/state.safetensors))) whole/state.safetensors |
    sed 's/.*"exp_avg_sq\.head\.bias":{[^}]*"data_offsets":\[\([0-9]*\),.*/\1/')
printf '\000\000\200\277' | dd of=negative/state.safetensors bs=1 conv=notrunc 2>/dev/null \
    seek=$((8 + $(header_size whole/state.safetensors) + at))
refuses "a negative second moment" 1 'negative/state.safetensors|exp_avg_sq.head.bias|negative' --resume negative --epochs 3
restate whole/last.safetensors tiny.safetensors '"vit.c.normalisation":"[^"]*"' \
    '"vit.c.normalisation":"0 0 0 1e-45 1e-45 1e-45"'
refuses "logits that are no numbers have no accuracy" 1 'tiny.safetensors|shapes|not a number' --eval --init tiny.safetensors
refuses "and name no class" 1 'tiny.safetensors|test:0|not a number' --predict test:0 --init tiny.safetensors

# == Packed files ====================================================================================================

pictures few a b
"$pack" --data few --split train --raw --out few.train.pack >out 2>err &&
    "$pack" --data few --split val --raw --out few.val.pack >out 2>err
check "pack_dataset" $? "$(head -n 1 err)"
"$vit" $small --data few.train.pack --epochs 100000 --run-dir cutting >out 2>err &
pid=$!
wait_for $pid '^2,' cutting/log.csv
: >few.train.pack
wait $pid
status=$?
complains 1 'few.train.pack|cut short'
check "a packed file that is cut while it is read ends the run with its name" $? "status $status: $(head -n 1 err)"

for clip in a/one a/two b/one; do # six frames, every second one of another colour
    mkdir -p clips/train/$clip clips/val/$clip
    for frame in 1 2 3 4 5 6; do bmp $((frame % 2)) | tee clips/train/$clip/$frame.bmp >clips/val/$clip/$frame.bmp; done
done
"$pack" --data clips --split train --out train-clips.pack >out 2>err && grep -q '3 videos of 2 classes' out &&
    "$pack" --check train-clips.pack >out 2>err && grep -q 'all 3 videos' out
check "pack_dataset packs videos" $? "$(cat out err)"
"$pack" --data train-clips.pack --resize 8 --out small-train.pack >out 2>err && "$pack" --check small-train.pack >out 2>err &&
    [ "$(grep -ac VIT.CLIP small-train.pack)" -gt 0 ] && [ "$(grep -ac JFIF small-train.pack)" -gt 0 ]
check "and their frames as small JPEGs" $? "$(cat out err)"
"$vit" --data train-clips.pack --frames 4 --img-size 8 --show-batch packed.png >out 2>err && grep -q '3 training clips' out
check "and they are read again" $? "$(cat out err)"
"$pack" --data clips --raw --out raw.pack >out 2>err
status=$?
complains 2 'raw|images only'
check "raw videos are refused" $? "status $status: $(head -n 1 err)"
"$pack" --data clips --fps 3 --out fps.pack >out 2>err
grep -q 'packed as damaged' err && grep -q 'without --fps' err
check "so are rates of frames without times" $? "$(cat out err)"
"$pack" --data moving-shapes --out moving.pack >out 2>err
status=$?
complains 2 'moving-shapes|generated'
check "and clips that are drawn" $? "status $status: $(head -n 1 err)"

mkdir lists
printf '\357\273\277../clips/train/a/one 6 0\n../clips/train/b/one 6 1\n' | tee lists/train.txt >lists/val.txt
"$vit" --data lists --frames 4 --img-size 8 --show-batch listed.png >out 2>err
[ ! -s err ] && grep -q '2 training clips' out
check "a list with the mark of UTF-8 is read" $? "$(cat out err)"
rm lists/val.txt && mkfifo lists/val.txt
timeout 10 "$vit" $small --data lists --frames 4 --run-dir lists.run >out 2>err
status=$?
complains 1 'lists/val.txt|not a regular file'
check "and a pipe in its place is not waited for" $? "status $status $(head -n 1 err)"

# == A detector without boxes ========================================================================================

mkdir -p coco/annotations coco/train2017 coco/val2017
bmp one >coco/train2017/1.bmp && bmp one >coco/val2017/1.bmp
head='{"images":[{"id":1,"file_name":"1.bmp","width":20,"height":10}],"categories":[{"id":1,"name":"cat"}],'
box='{"id":1,"image_id":1,"category_id":1,"bbox":[1,1,5,5],"area":25,"iscrowd":0}'
few='--data coco --epochs 1 --batch-size 1 --dim 32 --heads 2 --queries 4 --encoder-layers 1 --decoder-layers 1'
boxes() { echo "$head\"annotations\":[$2]}" >coco/annotations/instances_${1}2017.json; }
run_detr() { "$detr" "$@" >out 2>err; status=$?; }
boxes train '' && boxes val "$box"
run_detr $few --run-dir detr
complains 1 'train2017.json|no boxes' && [ ! -e detr ]
check "training without boxes is refused" $? "status $status $(head -n 1 err)"
boxes train "$box" && boxes val ''
run_detr $few --run-dir detr
complains 1 'val2017.json|no boxes' && [ ! -e detr ]
check "so is evaluation without boxes" $? "status $status $(head -n 1 err)"
rm coco/annotations/instances_val2017.json && mkfifo coco/annotations/instances_val2017.json
timeout 10 "$detr" $few --run-dir detr >out 2>err
status=$?
complains 1 'val2017.json|not a regular file' && [ ! -e detr ]
check "annotations that are a pipe are not waited for" $? "status $status $(head -n 1 err)"

# == A model without its data =========================================================================================

# the checkpoint has the data that a prediction needs: names, mean and std, and whether all pictures have one size
pictures lost cat dog
mkdir -p fixed
"$pack" --data shapes --limit 64 --out fixed/train.pack >out 2>err
"$pack" --data shapes --split val --limit 64 --out fixed/val.pack >out 2>err
for data in lost fixed; do
    run $small --data $data --num-classes 0 --img-size 32 --run-dir of.$data
    bmp seen >seen.bmp
    run --init of.$data/last.safetensors --predict seen.bmp
    cp out before
    mv $data away
    run --init of.$data/last.safetensors --predict seen.bmp
    [ "$status" -eq 0 ] && [ -s before ] && cmp -s out before
    check "--predict without the data: $data" $? "$(head -n 1 out) $(head -n 1 err)"
    mkdir -p elsewhere
    (cd elsewhere && "$vit" --init "../of.$data/last.safetensors" --predict ../seen.bmp >../out 2>../err)
    [ $? -eq 0 ] && sed 's|^\.\./||' out | cmp -s - before
    check "and from another folder" $? "$(head -n 1 out) $(head -n 1 err)"
    refuses "but --eval wants it" 1 "$data: no such folder" --init of.$data/last.safetensors --eval
    refuses "and --data that is typed has to be there" 2 "data|nowhere" --init of.$data/last.safetensors \
        --predict seen.bmp --data nowhere
    mv away $data
done

echo "1..$count"
[ "$failures" -eq 0 ]
