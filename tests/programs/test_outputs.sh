#!/bin/sh
# Outputs of every program: each is tested before the work begins, never replaces an input or another output of the same
# call, and is written completely or not at all.  The limits of a shell (ulimit).  TAP on standard output, evidence
# behind '# '.

# shellcheck disable=SC2012,SC2015,SC2046,SC2086,SC3045 # settings are lists of words; no name that is not quoted holds a space
. "$(dirname "$0")/../tap.sh"

ar=$build/train_ar
detr=$build/train_detr
pack=$build/pack_dataset

# with PROGRAM ARGUMENTS: `run` with another program.
with() {
    program=$1
    shift
    timeout -k 5 120 "$program" "$@" >out 2>err
    status=$?
}

# refused PROGRAM NAME STATUS WORDS ARGUMENTS...
refused() {
    program=$1 name=$2 wanted=$3 words=$4
    shift 4
    with "$program" "$@"
    complains "$wanted" "$words"
    check "$name" $? "status $status, $(wc -l <err) line: $(head -n 1 err)"
}

# == Models of all three programs ====================================================================================

with "$vit" $tiny --epochs 1 --run-dir vit
vit_made=$status
yes 'All work and no play makes Jack a dull boy.' | head -c 4000 >book.txt
with "$ar" --data book.txt --tokens 32 --dim 16 --depth 1 --heads 2 --epochs 1 --batch-size 16 --warmup-steps 1 --run-dir ar
ar_made=$status
[ "$vit_made" -eq 0 ] && [ "$ar_made" -eq 0 ] && [ -s vit/last.safetensors ] && [ -s ar/last.safetensors ]
check "two models" $? "$vit_made $ar_made $(head -n 1 err)"
weights=vit/last.safetensors
text=ar/last.safetensors
"$vit" --init $weights --show-batch sheet.png >out 2>err
cp sheet.png picture.png

# the outputs of each program, one a line: program, output setting, the rest of the call
writers() {
    cat <<'LINES'
vit --json --init vit/last.safetensors --predict picture.png
vit --attention --init vit/last.safetensors --predict picture.png
vit --confusion --init vit/last.safetensors --eval
vit --per-class --init vit/last.safetensors --eval
vit --show-batch --init vit/last.safetensors
vit --out --parity in.safetensors --dim 16 --depth 2 --heads 2 --patch-size 4
ar --out --init ar/last.safetensors --sample 2
LINES
}
program_of() { case $1 in vit) echo "$vit" ;; ar) echo "$ar" ;; esac; }
safetensors in.safetensors '{"images":{"dtype":"F32","shape":[1,3,8,8],"data_offsets":[0,768]},'\
'"labels":{"dtype":"I64","shape":[1],"data_offsets":[768,776]}}' 776

# == Tried before the work ===========================================================================================

# A file in place of a folder fails for root, too.
writers | while read -r who setting rest; do
    program=$(program_of "$who")
    for path in missing/file picture.png/file . /dev/full; do
        [ -c "${path}" ] || [ "$path" != /dev/full ] || continue
        with "$program" $rest $setting "$path"
        [ "$status" -eq 1 ] && [ "$(wc -l <err)" -eq 1 ] && grep -qF -e "$path: cannot" err && [ ! -s out ] ||
            echo "$who $setting $path: status $status, $(wc -c <out) bytes printed: $(head -n 1 err)"
    done
done >wrong
[ ! -s wrong ]
check "an output that cannot be written is refused first, with its name and the reason" $? "$(head -n 1 wrong)"
writers | while read -r who setting rest; do
    with "$(program_of "$who")" $rest $setting written
    [ "$status" -eq 0 ] && [ -s written ] || echo "$who $setting: status $status $(head -n 1 err)"
    rm -f written
    [ "$(find . -name '*.tmp.*' | wc -l)" -eq 0 ] || echo "$who $setting: leaves $(find . -name '*.tmp.*')"
done >wrong
[ ! -s wrong ]
check "each is written otherwise, and the trial leaves nothing" $? "$(head -n 1 wrong)"
mkdir -p blocked/best.safetensors
refuses "so are the checkpoints of a run" 1 'blocked/best.safetensors|a folder' $tiny --epochs 1 --run-dir blocked
refused "$detr" "--draw without --predict" 2 '--draw|--predict' --epochs 1 --draw x.png --run-dir never

# == Inputs and other outputs ========================================================================================

cp $weights kept
cp $text kept.text
ln -s vit/last.safetensors link
ln vit/last.safetensors hard
predict="--init $weights --predict picture.png"
for path in $weights ./vit/../$weights "$PWD/$weights" link hard; do
    refuses "--json is --init: $path" 2 "--json|input of this call|$path" $predict --json "$path"
    cmp -s kept $weights || check "the weights stay" 1
done
rm hard
cp $weights weights.copy
refuses "--confusion is --init" 2 "--confusion|input of this call" --init weights.copy --eval --confusion weights.copy
refuses "--json is the log of --resume's run" 2 "--json|input of this call" --resume vit --predict picture.png \
    --json vit/log.csv
refuses "a page over a checkpoint of its run" 2 "--out|input of this call" --report vit --out vit/state.safetensors
refuses "--json is a file of --resume's run" 2 "--json|input of this call" --resume vit --predict picture.png \
    --json vit/state.safetensors
refuses "--json is the predicted picture" 2 'picture.png|--json' $predict --json picture.png
refuses "--attention is a later picture" 2 'sheet.png|--attention' $predict sheet.png --attention sheet.png
mkdir -p album
cp picture.png album/a.png
cp picture.png album/b.png
refuses "--attention is a picture of the folder" 2 'album/b.png|--attention' --init $weights --predict album \
    --attention album/b.png
cmp -s album/b.png picture.png
check "the picture stays" $?
printf 'dim = 16\ninclude = base.ini\n' >call.ini
printf 'depth = 2\nheads = 2\npatch_size = 4\n' >base.ini
refuses "--show-batch is --config" 2 '--show-batch|input of this call' --config call.ini --show-batch call.ini
refuses "and a file that it includes" 2 '--show-batch|input of this call' --config call.ini --show-batch base.ini
refuses "--out is --parity" 2 '--out|input of this call' --config call.ini --parity in.safetensors --out in.safetensors
refuses "two outputs are one file" 2 '--per-class|--confusion' --init $weights --eval --confusion a.csv --per-class ./a.csv
mkdir -p new
cp base.ini new/config.ini
refuses "a new run over its own --config" 2 'new/config.ini|input of this call' --config new/config.ini $tiny --epochs 1 \
    --patch-size 4 --run-dir new
mkdir -p tune
cp $weights tune/best.safetensors
refuses "a new run over its own --init" 2 'tune/best.safetensors|input of this call' $tiny --epochs 1 --run-dir tune \
    --init tune/best.safetensors
cmp -s tune/best.safetensors kept && cmp -s new/config.ini base.ini
check "both stay" $?
"$vit" $predict --json printed >printed 2>err
status=$?
complains 2 'printed|standard output'
check "an output where standard output goes" $? "status $status $(head -n 1 err)"
refused "$ar" "train_ar --out is --init" 2 '--out|input of this call' --init $text --sample 1 --out $text
refused "$ar" "train_ar --attention is --out" 2 '--attention|--out' --init $text --sample 1 --out x.png --attention ./x.png
refused "$ar" "train_ar --out is --data" 2 '--out|input of this call' --init $text --data book.txt --sample 1 --out book.txt
"$pack" --data shapes --limit 32 --raw --out shapes.pack >out 2>err
cp shapes.pack kept.pack
refuses "--confusion is --data" 2 '--confusion|input of this call' --init $weights --eval --data shapes.pack \
    --confusion shapes.pack
mkdir -p pets/train/cat pets/val/cat
cp picture.png pets/train/cat
cp picture.png pets/val/cat
refuses "--confusion is a picture of the evaluated data" 2 'pets/val/cat/picture.png|--confusion' --eval \
    --init $weights --data pets --img-size 32 --confusion pets/val/cat/picture.png
cmp -s kept $weights && cmp -s kept.text $text && cmp -s kept.pack shapes.pack && cmp -s picture.png pets/val/cat/picture.png
check "no input was harmed" $?
refused "$pack" "pack_dataset --out is there" 1 'book.txt|is there already' --data shapes --limit 4 --out book.txt
[ "$(head -c 8 book.txt)" = 'All work' ]
check "and stays" $?

# == A disk that fills up later ======================================================================================

succeeds "--json over an old file" $predict --json found.json
cp found.json before.json
with "$ar" --init $text --sample 2 --out drawn.txt
[ "$status" -eq 0 ] && [ "$(wc -c <drawn.txt)" -gt 64 ]
check "train_ar draws text into a file" $? "$(wc -c <drawn.txt) bytes $(head -n 1 err)"
cp drawn.txt before.txt
limited() { # BLOCKS PROGRAM ARGUMENTS: with a limit of BLOCKS blocks of 512 bytes for each file
    blocks=$1
    shift
    said=$( (ulimit -f "$blocks"; exec timeout -k 5 120 "$@") 2>&1 >/dev/null)
    status=$?
    printf '%s\n' "$said" >err
}
limited 0 "$vit" $predict --json found.json
complains 1 'found.json|File too large' && cmp -s found.json before.json
check "a file size limit of nothing is an error before --predict begins" $? "status $status: $(head -n 1 err)"
limited 1 "$vit" --init $weights --predict picture.png sheet.png album --json found.json
complains 1 'found.json|File too large' && cmp -s found.json before.json
check "a file size limit is an error of --json, and the old file stays" $? "status $status: $(head -n 1 err)"
limited 1 "$ar" --init $text --sample 2 --length 600 --out drawn.txt
complains 1 'drawn.txt|File too large' && cmp -s drawn.txt before.txt
check "and of train_ar --out" $? "status $status: $(head -n 1 err)"
limited 1 "$vit" $tiny --epochs 1 --run-dir small
complains 1 'small/|File too large'
check "and of a run's checkpoint" $? "status $status: $(head -n 1 err)"
limited 16 "$pack" --data shapes --limit 64 --raw --out small.pack
complains 1 'small.pack|File too large' && [ ! -e small.pack ]
check "and of a packed file" $? "status $status: $(head -n 1 err)"
with "$pack" --data shapes --limit 64 --raw --out small.pack
[ "$status" -eq 0 ] && "$pack" --check small.pack >/dev/null 2>&1
check "which goes on without the limit" $? "status $status $(head -n 1 err)"

shim=$build/tests/faults.so
if [ -e "$shim" ] && ! ldd "$vit" 2>/dev/null | grep -qE 'lib(asan|tsan)'; then
    for fault in write rename sync; do
        VIT_FAULT=$fault VIT_FAULT_AT=0 VIT_FAULT_COUNT=$work/calls LD_PRELOAD=$shim "$ar" --init $text --sample 2 \
            --out drawn.txt >out 2>err
        calls=$(cat calls)
        at=1
        echo old >old
        while [ "$at" -le "$calls" ]; do
            cp old drawn.txt
            VIT_FAULT=$fault VIT_FAULT_AT=$at LD_PRELOAD=$shim "$ar" --init $text --sample 2 --out drawn.txt >out 2>err
            status=$?
            kept=old # only when the folder is flushed does the new file already exist
            grep -q 'flush its folder' err && kept=before.txt
            complains 1 'drawn.txt' && cmp -s drawn.txt $kept || echo "$fault $at: status $status $(head -n 1 err)"
            at=$((at + 1))
        done
        [ "$calls" -gt 0 ] || echo "$fault: no calls"
    done >wrong
    [ ! -s wrong ]
    check "every write, flush and renaming of train_ar's text that fails" $? "$(head -n 1 wrong)"
    VIT_FAULT=write VIT_FAULT_AT=0 VIT_FAULT_COUNT=$work/calls LD_PRELOAD=$shim "$vit" --init $weights --eval \
        --confusion matrix.csv >out 2>err
    VIT_FAULT=write VIT_FAULT_AT=$(cat calls) LD_PRELOAD=$shim "$vit" --init $weights --eval --confusion matrix2.csv \
        >out 2>err
    status=$?
    complains 1 'matrix2.csv|No space' && tail -n 1 out | grep -q '^top1: '
    check "an evaluation whose table cannot be written prints its accuracy" $? "$(tail -n 1 out) $(head -n 1 err)"
else
    skip "every write, flush and renaming of train_ar's text that fails" "no preloading into this build"
    skip "an evaluation whose table cannot be written prints its accuracy" "no preloading into this build"
fi

# == The stack =======================================================================================================

# The system's loader needs a stack before a program's first instruction: up to 20 KiB for this number of libraries, and
# more for the environment, at a random address.  This is a little more than it needed in each of twenty trials.
loads() {
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        (ulimit -S -s "$1"; LD_TRACE_LOADED_OBJECTS=1 exec "$vit") >/dev/null 2>&1 || return 1
    done
}
least=16
while [ $least -lt 64 ] && ! loads $least; do least=$((least + 8)); done
least=$((least + 8))
for program in "$vit" "$ar" "$detr" "$pack"; do
    (ulimit -S -s $least; exec "$program" --version) >out 2>err
    status=$?
    [ "$status" -eq 0 ] && grep -q "^$(basename "$program") " out
    check "ulimit -S -s $least: $(basename "$program")" $? "status $status $(head -n 1 err)"
done
# A hard limit that this user may not raise.
(ulimit -s $least; exec "$vit" $tiny --epochs 1 --run-dir stacked) >out 2>err
status=$?
[ "$status" -eq 0 ] || complains 1 'the stack|ulimit -s 8192'
check "a stack of $least KiB: raised, or one line" $? "status $status $(head -n 1 err)"
(ulimit -s 256; exec "$vit" $tiny --epochs 1 --run-dir quarter) >out 2>err
check "a stack of 256 KiB is enough" $? "$(tail -n 1 out) $(head -n 1 err)"

# == Pictures that are none ==========================================================================================

mkfifo album/c.png 2>/dev/null
with "$vit" --init $weights --predict album
complains 0 'album/c.png|not a regular file|left out' && [ "$(grep -c '^album/[ab].png:' out)" -eq 2 ]
check "a named pipe in a folder of pictures is left out with a line" $? "status $status $(head -n 1 err)"
refuses "a named pipe as a picture" 1 'album/c.png|not a regular file' --init $weights --predict album/c.png
rm -f album/c.png
mkdir -p album/closed
chmod 0 album/closed
as_nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
chmod 755 "$work"
if [ "$(id -u)" -ne 0 ]; then
    with "$vit" --init $weights --predict album
elif as_nobody "$vit" --version >/dev/null 2>&1; then
    as_nobody "$vit" --init $weights --predict album >out 2>err
    status=$?
else
    status=none
fi
if [ "$status" = none ]; then
    skip "a folder that cannot be read" "root reads all, and nobody cannot start the program"
else
    complains 0 'album/closed|Permission denied|left out' && [ "$(grep -c '^album/[ab].png:' out)" -eq 2 ]
    check "a folder that cannot be read is left out with a line" $? "status $status $(head -n 1 err)"
fi

echo "1..$count"
[ "$failures" -eq 0 ]
