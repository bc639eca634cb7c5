#!/bin/sh
# Tests of train_ar's command line: the published sizes, messages for wrong input, the files of a run, resuming a
# stopped run with the same bits, evaluation, sampling and parity.
#
#   BUILD=build/cpu sh tests/programs/test_ar_cli.sh

# shellcheck disable=SC2015,SC2046,SC2086 # settings are lists of words; no name here holds a space
. "$(dirname "$0")/../tap.sh"
vit=$build/train_ar
# the function of tap.sh for this log, without timings; eight columns.
curve() { awk -F , -v OFS=, '{ print $1, $2, $3, $4, $5, $7, $9, $9 }' "$1/log.csv"; }
value() { sed -n "s/^$1: //p" out; }

net='--dim 16 --depth 2 --heads 2'
sparse='--attn sparse-strided --sets window,column'
tiny="$net $sparse --grey --image-side 8 --train-limit 40 --test-limit 9 --validation-images 9 --batch-size 8
      --warmup-steps 2 --micro-batch 4 --lr 1e-2"

# == Help, sizes =====================================================================================================

succeeds "--help" --help
missing=
for word in configs/ar/shapes-demo.ini --sample --complete --prompt --describe --eval --parity sparse-fixed; do
    grep -q -e "$word" out || missing="$missing $word"
done
[ -z "$missing" ] && [ "$(awk 'length($0) > 100' out | wc -l)" -eq 0 ]
check "--help teaches" $? "missing:$missing"
for config in "$root"/configs/ar/*.ini; do
    run --config "$config" --describe
    [ $status -eq 0 ] && [ "$(tail -n 4 out | cut -d : -f 1 | tr '\n' ' ')" = 'params macs training_macs activation_bytes ' ]
    check "$(basename "$config") describes a model" $? "$(tail -n 4 out | tr '\n' ' ')$(head -n 1 err)"
done
for pair in cifar10:59196928 cifar10-dense:59196928 enwik8:94949376 imagenet64:151645184 music:151905792; do
    run --config "$root/configs/ar/${pair%:*}.ini" --describe
    [ "$(value params)" = "${pair#*:}" ]
    check "${pair%:*} has the ${pair#*:} parameters of the specification" $? "$(value params)"
done

# == Settings that make no sense =====================================================================================

refuses "unknown setting, with the nearest" 2 '--head|--heads' --head 5
refuses "heads that do not divide dim" 2 '--heads|7|16' $net --heads 7 --describe
refuses "keys that heads do not divide" 2 '--qk-ratio|0.3' $net --qk-ratio 0.3 --describe
refuses "first weights of no known kind" 2 '--start-values|gpt3|gpt2' --start-values gpt3 --describe
refuses "stride longer than a sequence" 2 '--stride|65|64 tokens' $tiny --stride 65
refuses "c above l" 2 '--summary|9|8 tokens of a block' $net --attn sparse-fixed --image-side 8 --grey --summary 9 --describe
refuses "sub-blocks that do not fit" 2 '--sub-blocks|3|use 2' $net --attn sparse-fixed --image-side 8 --grey --summary 4 \
    --sub-blocks 3 --describe
refuses "a set of the other pattern" 2 "--sets|'block'|window, column and dense" $tiny --sets window,block
refuses "an empty name among the sets" 2 '--sets|window, column and dense' $tiny --sets window,,column
refuses "sets that merged does not have" 2 '--sets|merged' $tiny --scheme merged
refuses "split heads that are one" 2 '--scheme|two heads' $net --attn sparse-strided --scheme split --heads 1 --describe
refuses "a setting of another attention" 2 '--summary|sparse-fixed' $tiny --summary 4
refuses "data's positions of a text" 2 '--embedding|attention' $net --data enwik8 --kind text --embedding data --describe
refuses "a warm-up longer than the run" 2 '--warmup-steps|99|5 steps' $tiny --warmup-steps 99 --epochs 1 --run-dir none
for pair in temperature:5 top-k:3 top-p:0.5 length:3; do
    refuses "--${pair%:*} in training" 2 "--${pair%:*}: counts only with --sample, --complete, --prompt" $tiny \
        "--${pair%:*}" "${pair#*:}" --run-dir none
    refuses "--${pair%:*} with --bench" 2 "--${pair%:*}: counts only with --sample" $tiny --bench "--${pair%:*}" "${pair#*:}"
done
refuses "--eval-split in training" 2 '--eval-split: counts only with --eval' $tiny --eval-split train --run-dir none
printf 'warmup_steps = 99\n' >warm.ini
run --config warm.ini $net $sparse --grey --image-side 8 --train-limit 40 --test-limit 9 --validation-images 9 --batch-size 8 \
    --epochs 4 --run-dir shortened
[ "$status" -eq 0 ] && [ ! -s err ] && grep -q '^warmup_steps = 2$' shortened/config.ini &&
    grep -q '^warmup_steps: 99 (warm.ini:1) is more than the 20 steps of the run: shortened to 2 ' out
check "a warm-up of a file that is longer than the run is shortened" $? "$(head -n 1 out) $(head -n 1 err)"
for setting in tokens=256 rate=8000 shares=1,1,1; do
    refuses "--${setting%=*} of images" 2 "--${setting%=*}|data shapes|images" $tiny --$setting --run-dir none
done
for setting in image-side=16 grey=true validation-images=9 split-seed=1 rate=8000; do
    refuses "--${setting%=*} of a text" 2 "--${setting%=*}|data enwik8|text" $net --data enwik8 --$setting --describe
done
refuses "a stride of dense attention" 2 '--stride|attn softmax' $net --stride 8 --describe
refuses "windows further apart than long" 2 '--eval-step|65|64' $tiny --eval-step 65
refuses "batch larger than the data" 2 '--batch-size|41|40 training sequences' $tiny --batch-size 41 --run-dir none
refuses "tokens above the vocabulary" 1 'shapes|not below --vocabulary 16' $tiny --vocabulary 16 --run-dir none
refuses "--eval without weights" 2 '--eval|--init|--resume' --eval
refuses "--sample without weights" 2 '--sample|--init' --sample 4 --out x.png
refuses "--parity without --out" 2 '--parity|--out' --parity x
refuses "--predict, which this program has not" 2 '--predict|--sample' --predict x --init y
refuses "two modes at once" 2 '--bench|--describe' --describe --bench

# == Data ============================================================================================================

: >empty.txt
printf 'short' >short.txt
printf 'not a sound' >noise.wav
refuses "an empty file" 1 'empty.txt' $net --data ./empty.txt --run-dir none
refuses "a text shorter than a sequence" 1 'short.txt' $net --data ./short.txt --tokens 64 --run-dir none
refuses "a sound that is none" 1 'noise.wav' $net --data ./noise.wav --kind audio --tokens 64 --run-dir none
refuses "data that are not there" 1 'lost' $net --data ./lost --run-dir none

# == A run ===========================================================================================================

succeeds "two epochs" $tiny --epochs 2 --run-dir run --log-every 2
head -n 1 run/log.csv | grep -qx 'step,epoch,loss,lr,grad_norm,images_per_s,bits,stall,val_loss,wall_s,peak_bytes'
check "log.csv has its columns" $? "$(head -n 1 run/log.csv)"
awk -F , 'NR == 2 { first = $3 } NR > 1 && $7 != "" { n++; bits = $7; nats = $9 }
    END { exit !(n == 2 && first > 5 && bits < 8 && (bits * log(2) - nats) ^ 2 < 1e-10) }' run/log.csv
check "it learns, and bits are nats in base two" $? "$(tail -n 1 run/log.csv)"
[ "$(tail -n 1 run/log.csv | cut -d , -f 4)" = 0 ] && [ "$(sed -n 2p run/log.csv | cut -d , -f 4)" = 0.0099999998 ]
check "the rate rises over the warm-up and ends at 0" $? "$(cut -d , -f 4 run/log.csv | tr '\n' ' ')"
wide="$sparse --dim 64 --depth 4 --image-side 16 --train-limit 8 --test-limit 8 --validation-images 8 --batch-size 8
      --micro-batch 8 --epochs 1"
described=$("$vit" $wide --describe | awk '/^and param/ { state = $(NF - 1) * 1048576 } /^activation_bytes/ { print state + $2 }')
run $wide --run-dir wide
peak=$(tail -n 1 wide/log.csv | cut -d , -f 11)
awk -v a="$described" -v b="$peak" 'BEGIN { exit !(a > 1e8 && b > a && b < 1.1 * a + 4e7) }'
check "--describe states the memory of the run, without the program's own" $? "described $described, used $peak"
head -c 400000 /dev/zero >zeros.bin
for attn in softmax sparse-strided sparse-fixed; do
    for n in 4096 8192 16384; do
        run --data ./zeros.bin --kind text --tokens $n --attn $attn --stride 128 --recompute --batch-size 1 --describe
        sed -n 's/^activation_bytes: //p' out
    done | tr '\n' ' ' >bytes
    awk 'NF == 3 { growth = ($3 - $2) / ($2 - $1) } END { exit !(growth > 1.99 && growth < 2.01) }' bytes
    check "memory grows with the tokens, not with their square: $attn" $? "$(cat bytes)"
done
run $tiny --epochs 2 --run-dir again --log-every 2 --micro-batch 8 --recompute
worst=$(curves_agree run again 1e-3)
check "larger micro-batches and recomputed blocks: the same curve" $? "$worst $(head -n 1 err)"

long="$tiny --epochs 6 --log-every 1 --dropout 0.2 --embedding-dropout 0.1 --ema-decay 0.9"
# stopped NAME SIGNAL STATUS PATTERN FILE: $long, stopped there; repeated if the run ended first.
stopped() {
    stops_run "$3" part "$2" "$4" "$5" $long --run-dir part
    check "$1" $? "status $status: $(tail -n 1 out)"
}
run $long --run-dir whole
stopped "SIGINT stops and saves" INT 130 '^7,' part/log.csv
succeeds "--resume" --resume part
same_run whole part
check "stopped and resumed: the same run bit for bit" $? "differs: $differs"
stopped "killed" KILL 137 '^epoch 3/6  [0-9.]* bits' out
succeeds "--resume of a killed run" --resume part
same_run whole part
check "and again" $? "differs: $differs"
succeeds "--resume of a run that is done" --resume part
grep -q 'all 6 epochs are done, best [0-9.]* bits per byte' out
check "says so" $? "$(tail -n 1 out)"
refuses "another width cannot resume" 2 '--dim|24|16|--init' --resume part --dim 24
refuses "nor other images" 2 '--image-side|4|8' --resume part --image-side 4

# == Evaluation ======================================================================================================

succeeds "--eval" --init run/last.safetensors --eval
cp out test.txt
[ "$(value uniform_bits)" = 8.000000 ] && [ -n "$(value histogram_bits)" ] && [ "$(value eval_step)" = 64 ]
check "prints what it compares with" $? "$(tr '\n' ' ' <out)"
run --init run/last.safetensors --eval --eval-split validation
awk -v a="$(value bits)" -v b="$(tail -n 1 run/log.csv | cut -d , -f 7)" 'BEGIN { exit !(a > 0 && (a - b) ^ 2 < 1e-10) }'
check "--eval-split validation is what training says" $? "$(value bits), $(tail -n 1 run/log.csv)"
for setting in split-seed=1 validation-images=8 train-limit=30; do
    refuses "--${setting%=*} of another split than the weights'" 2 "--${setting%=*}|the weights were trained with" \
        --init run/last.safetensors --eval --eval-split validation --$setting
done
run --init run/last.safetensors --eval --micro-batch 4
[ "$(value bits)" = "$(sed -n 's/^bits: //p' test.txt)" ] && grep -q '576 test tokens' out
check "nine images by four: every byte once" $? "$(tr '\n' ' ' <out)"

# == Weights =========================================================================================================

succeeds "--init begins another run" $tiny --epochs 1 --init run/best.safetensors --run-dir init
refuses "--init of a file that is not there" 1 'lost.safetensors' $tiny --init lost.safetensors --run-dir none
refuses "--init of another vocabulary" 1 'run/best.safetensors|256|--vocabulary 200' $tiny --vocabulary 200 \
    --init run/best.safetensors --run-dir none
refuses "--init of another length" 1 'run/best.safetensors|8 x 8 x 1|4 x 4 x 1' $tiny --image-side 4 \
    --init run/best.safetensors --run-dir none
refuses "--init of other heads" 1 'run/best.safetensors|2 heads|--heads 4' $tiny --heads 4 --init run/best.safetensors --run-dir none
refuses "--init of another depth" 1 'run/best.safetensors|blocks|--depth 3' $tiny --depth 3 --init run/best.safetensors \
    --run-dir none
refuses "--init of pictures for a text" 1 'run/best.safetensors|images|text' $net --data ./zeros.bin --kind text --tokens 64 \
    --init run/best.safetensors --run-dir none
refuses "--init of another width" 1 'run/best.safetensors|width is 16|--dim 32' $tiny --dim 32 --init run/best.safetensors \
    --run-dir none
safetensors empty.safetensors '{}' 0
refuses "--init of no weights of this program" 1 'empty.safetensors|train_ar' $tiny --init empty.safetensors --run-dir none

# == Drawing =========================================================================================================

succeeds "--sample" --init run/best.safetensors --sample 5 --out drawn.png
[ "$(head -c 4 drawn.png | tail -c 3)" = PNG ]
check "writes a sheet" $? "$(head -n 1 out)"
succeeds "again" --init run/best.safetensors --sample 5 --out again.png --micro-batch 2
cmp -s drawn.png again.png
check "the same pictures, however many are drawn at a time" $?
succeeds "another seed" --init run/best.safetensors --sample 5 --out other.png --seed 2
! cmp -s drawn.png other.png
check "draws others" $?
succeeds "--complete" --init run/best.safetensors --complete drawn.png --sample 2 --out completed.png --temperature 0.5
mkdir -p photos/one
for i in 0 1 2 3 4 5 6 7 8 9; do cp drawn.png photos/one/$i.png; done
photos="$net --data photos --image-side 8 --grey --batch-size 4 --warmup-steps 1 --epochs 1"
succeeds "class folders without val/" $photos --run-dir photographed
refuses "which have no test images" 1 'photos|val/<class>/|--eval-split validation' \
    --init photographed/last.safetensors --eval
mkdir -p unhurt/train unhurt/val
cp -R photos/one unhurt/train/one
cp -R photos/one unhurt/val/one
cp other.png unhurt/val/one/6.png # the next one
cp -R unhurt hurt
head -c 100 drawn.png >hurt/val/one/5.png
rm unhurt/val/one/5.png
run --init photographed/last.safetensors --data unhurt --eval
whole=$(value bits)
run --init photographed/last.safetensors --data hurt --eval --max-damaged 1
[ "$status" -eq 0 ] && grep -q 'hurt/val/one/5.png: .*: left out' err &&
    awk -v a="$whole" -v b="$(value bits)" 'BEGIN { exit !(a > 0 && (a - b) ^ 2 < 1e-9) }'
check "a damaged test image is left out" $? "$whole, $(value bits) $(head -n 1 err)"
mkdir -p lost/train lost/val/one
cp -R photos/one lost/train/one
for i in 0 1 2; do cp hurt/val/one/5.png lost/val/one/$i.png; done
run --init photographed/last.safetensors --data lost --eval --max-damaged 1
[ "$status" -eq 1 ] && tail -n 1 err | grep -q 'lost: none of the sequences to evaluate can be read'
check "and if none can be read there is no result" $? "status $status: $(tail -n 1 err)"
refuses "nor any to validate with if none are held out" 1 'photos|validation_images|eval_every 0' $photos \
    --validation-images 0 --run-dir none
refuses "--complete of no picture" 1 'noise.wav' --init run/best.safetensors --complete noise.wav --out x.png
refuses "more pictures than a sheet holds, before weights are read" 1 'x.png|65536 images|too many' \
    --init run/best.safetensors --vocabulary 200 --sample 65536 --out x.png
refuses "--sample without --out" 2 '--sample|--out' --init run/best.safetensors --sample 2
refuses "--complete without --out" 2 '--complete: needs --out' --init run/best.safetensors --complete drawn.png
refuses "--prompt for pictures" 2 '--prompt|not of a model of text' --init run/best.safetensors --prompt x --out x.png
refuses "--length of pictures" 2 '--length|64' --init run/best.safetensors --sample 1 --length 9 --out x.png

awk 'BEGIN { for (i = 0; i < 200; i++) print "line " i * i " of a text that repeats itself, line by line" }' >book.txt
text="$net --attn sparse-fixed --scheme merged --stride 8 --summary 2 --data ./book.txt --tokens 32 --batch-size 8
      --warmup-steps 5"
succeeds "a text" $text --epochs 3 --run-dir text
grep -q 'evaluation windows move by 16 tokens' out
check "and how it is evaluated" $? "$(sed -n 3p out)"
succeeds "a text without a validation split" $text --shares 95,0,5 --eval-every 0 --epochs 1 --run-dir unvalidated
succeeds "whose page can be made again" --report unvalidated
grew=$(wc -c <book.txt) && head -c 3000 book.txt >short.txt && mv book.txt kept.txt && mv short.txt book.txt
run --resume text --epochs 4
[ "$status" -eq 0 ] && grep -q "text/state.safetensors: the run had $((grew * 9 / 10)) training bytes, and now there are 2700" err
check "a resumed run says if the text is another" $? "$(head -n 1 err)"
mv kept.txt book.txt
refuses "other shares of the same text by another name" 2 '--shares|the weights were trained with' \
    --init unvalidated/last.safetensors --eval --data book.txt --shares 90,5,5
run --init unvalidated/last.safetensors --eval --shares 190,0,10
[ "$status" -eq 0 ]
check "but not the same shares in other numbers" $? "$(tail -n 1 err)"
rm book.txt
succeeds "--prompt, without the text" --init text/best.safetensors --prompt 'line' --sample 2 --seed 5
[ "$(grep -c '^line\|^== [12] ==' out)" -ge 3 ]
check "goes on from there" $? "$(tr '\n' ' ' <out | head -c 120)"
succeeds "more than the model sees" --init text/best.safetensors --prompt 'line\n' --length 100 --out long.txt
[ "$(wc -c <long.txt)" -eq 100 ] && [ "$(head -n 1 long.txt)" = line ]
check "has that length" $? "$(wc -c <long.txt)"
refuses "a length that the prompt has already" 2 '--length|4 of the 3 bytes' --init text/best.safetensors --prompt line --length 3
"$vit" --init text/best.safetensors --sample 1 --out /dev/stdout 2>err | cat >out
grep -q '/dev/stdout is where standard output goes' err && [ ! -s out ]
check "samples and messages are not mixed in a pipe" $? "$(head -n 1 err)"
mkdir flac && : >flac/a.flac
refuses "a folder of other sound" 1 'flac|WAV' $net --data flac --run-dir none
refuses "an empty prompt" 2 '--prompt|empty' --init text/best.safetensors --prompt ''
refuses "a prompt that is longer than that" 2 '--prompt|40 bytes|32' --init text/best.safetensors \
    --prompt 0123456789012345678901234567890123456789
refuses "--complete for a text" 2 '--complete|not of a model of images' --init text/best.safetensors --complete drawn.png --out x.png
awk 'BEGIN { for (i = 0; i < 3000; i++) printf "%c", i * i % 90 + 32 }' >letters.txt
refuses "a data set with a mistake in its name" 2 "--data|'shaps'|did you mean 'shapes'?" $text --data shaps
refuses "a data set of clips" 2 'moving-shapes|has clips' $text --kind auto --data moving-shapes
refuses "data of another kind than the weights" 2 '--data: shapes is a set of images|kind text (text/best.safetensors:' \
    --init text/best.safetensors --data shapes --eval
awk 'BEGIN { for (i = 0; i < 3000; i++) printf "%c", i * i % 7 + 1 }' >few.txt
succeeds "a vocabulary of 8" $text --data ./few.txt --vocabulary 8 --epochs 1 --run-dir eight
succeeds "samples of it begin with byte 0, as it has no new line" --init eight/best.safetensors --sample 2 --length 9 --out eight.txt
[ "$(sed -n '/^==/!p' eight.txt | head -c 1 | od -An -tu1 | tr -d ' ')" = 0 ]
check "which they do" $? "$(od -An -tu1 eight.txt | head -n 1)"
succeeds "a vocabulary of 128" $text --data ./letters.txt --vocabulary 128 --epochs 1 --run-dir ascii
refuses "a prompt with bytes outside of it" 1 '--prompt|byte 195|128' --init ascii/best.safetensors \
    --prompt "$(printf '\303\244')"
refuses "other shares of the weights' text" 2 '--shares|the weights were trained with 90,5,5' \
    --init ascii/best.safetensors --eval --shares 50,25,25
run --init ascii/best.safetensors --prompt ab --top-k 1 --out one.txt
run --init ascii/best.safetensors --prompt ab --temperature 0 --seed 9 --out two.txt
[ -s one.txt ] && cmp -s one.txt two.txt
check "the likeliest of one is that at temperature 0" $? "$(head -n 1 err)"

# == Speed and parity ================================================================================================

run $tiny --bench --bench-seconds 0.1
[ "$status" -eq 0 ] && grep -q '"train_tokens_per_s": [0-9.]*, "infer_tokens_per_s": [0-9.]*' out
check "--bench reports tokens a second" $? "$(head -c 200 out)$(tail -n 1 err)"
grep -q 'batches of [0-9]* sequences' err && ! grep -q images err
check "and calls what it measures sequences" $? "$(cat err)"
for name in image-dense image-strided image-strided-merged text-dense text-fixed text-fixed-merged text-fixed-split; do
    fixture=$root/tests/fixtures/sequence/$name.safetensors
    if [ -z "$python" ]; then
        skip "--parity, $name" "no python3 with numpy"
        continue
    fi
    flags=$("$python" "$root/tests/reference/flags.py" "$vit" "$fixture")
    run $flags --parity "$fixture" --out out.safetensors
    [ $status -eq 0 ] && "$python" "$root/tests/reference/compare_parity.py" "$fixture" out.safetensors \
        --tolerance 1e-5 >compared
    check "--parity, $name: logits, loss and gradients within 1e-5 of float64" $? \
        "$(grep worst compared) $(head -n 1 err)"
done
refuses "--parity of a file without tokens" 1 "empty.safetensors|'tokens'" $net --parity empty.safetensors --out x
refuses "--parity with tokens above the vocabulary" 1 'image-dense|outside 0..9' $net --vocabulary 10 \
    --parity "$root/tests/fixtures/sequence/image-dense.safetensors" --out x

# == Several ranks ===================================================================================================

MPIRUN=${MPIRUN:-mpirun}
if command -v "$MPIRUN" >/dev/null 2>&1 && ldd "$vit" 2>/dev/null | grep -q libmpi; then
    timeout -k 5 100 "$MPIRUN" -np 2 "$vit" $tiny --epochs 2 --run-dir ranks --log-every 2 >out 2>err </dev/null
    worst=$(curves_agree run ranks 1e-3)
    check "2 ranks have the curve of one" $? "$worst $(head -n 1 err)"
    timeout -k 5 100 "$MPIRUN" -np 2 "$vit" --init run/last.safetensors --eval >out 2>err </dev/null
    awk -v a="$(value bits)" -v b="$(sed -n 's/^bits: //p' test.txt)" 'BEGIN { exit !(a > 0 && (a - b) ^ 2 < 1e-9) }'
    check "--eval on two ranks counts every byte once" $? "$(value bits)"
else
    skip "several ranks" "no $MPIRUN, or a build without MPI"
fi

echo "1..$count"
[ $failures -eq 0 ]
