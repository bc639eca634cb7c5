#!/bin/sh
# Several ranks: the same curve as with one rank, no loss when one of them dies, and one clear line for impossible
# settings.
#
#   BUILD=build/cpu sh tests/programs/test_mpi.sh
#
# MPIRUN is the launcher (Open MPI's, or one that takes -np).

# shellcheck disable=SC2015,SC2046,SC2086 # settings are lists of words; no name here holds a space
. "$(dirname "$0")/../tap.sh"

MPIRUN=${MPIRUN:-mpirun}

if ! command -v "$MPIRUN" >/dev/null 2>&1; then
    skip "several ranks" "no $MPIRUN here"
    echo "1..$count"
    exit 0
fi

# ranks NUMBER ARGUMENTS: mpirun's output and status, without terminal codes.
ranks() {
    number=$1
    shift
    timeout -k 5 100 "$MPIRUN" -np "$number" "$vit" "$@" >out 2>err </dev/null
    status=$?
}

# Other lines are mpirun's own; Open MPI 5 puts a zero byte between some of them and the program's.
ours() { tr -d '\000' <err | grep -a '^train_vit:'; }

model="--dim 24 --heads 2 --depth 2 --patch-size 8 --attn ripple --train-limit 96 --test-limit 37 --batch-size 24
       --warmup-epochs 0 --log-every 1 --drop-path 0.1 --clip-grad 1 --ema-decay 0.9"

if "$vit" --help >/dev/null 2>&1 && ! ldd "$vit" 2>/dev/null | grep -q libmpi; then
    ranks 2 $model --epochs 1 --run-dir none
    [ "$status" -ne 0 ] && [ "$(ours | wc -l)" -eq 1 ] && ours | grep -q 'no MPI'
    check "a build without MPI says so" $? "$(ours | head -n 1)"
    echo "1..$count"
    [ $failures -eq 0 ]
    exit
fi

# == The same numbers ================================================================================================

run $model --epochs 3 --run-dir one
check "one rank" $status "$(head -n 1 err)"
for number in 2 3 4; do
    ranks $number $model --epochs 3 --run-dir several$number
    check "$number ranks" $status "$(ours | head -n 1)"
    worst=$(curves_agree one several$number 2e-5)
    check "$number ranks have the curve of one" $? "$worst"
    [ "$(cut -d , -f 7,8 one/log.csv)" = "$(cut -d , -f 7,8 several$number/log.csv)" ]
    check "and its accuracies" $? "$(last_row several$number)"
done
# At this rate ripple's weights differ from image to image by more than the allowed difference of the means.
run $model --lr 0.02 --epochs 3 --run-dir measured
ranks 2 $model --lr 0.02 --epochs 3 --run-dir measured2
means="$(cells measured jsd) $(cells measured2 jsd)"
echo "$means" | awk '{ exit !($1 > 0 && ($1 - $2) ^ 2 < 1e-10) }'
check "2 ranks have one's mean divergence over an epoch" $? "$means"
# follow RUN WHAT SETTING...: batches of 18, which two ranks and micro-batches of 5 divide unevenly, have the same curve
# as on one rank.
follow() {
    followed=$1 what=$2
    shift 2
    run $model --batch-size 18 --epochs 2 "$@" --run-dir "$followed"
    for number in 2 3; do
        ranks $number $model --batch-size 18 --epochs 2 "$@" --micro-batch 5 --run-dir "$followed$number"
        worst=$(curves_agree "$followed" "$followed$number" 2e-5)
        check "$number ranks $what" $? "$worst"
    done
}
follow mixed "mix the batches of one" --aa rand-m9-mstd0.5-inc1 --reprob 0.5 --mixup 0.8 --cutmix 1 --repeated-aug
follow clips "take the samples of clips of one" --data moving-shapes --img-size 64 --frames 3 --samples-per-clip 2 --mixup 0.8 \
    --crop-padding 4 --reprob 0.5

ranks 2 $model --epochs 3 --run-dir again
same_run several2 again
check "two ranks give the same bits again" $? "differs: $differs"
[ $(grep -c 'ranks,' out) -eq 1 ] && [ $(grep -c '^done in' out) -eq 1 ]
check "only rank 0 talks" $? "$(grep -c '^done in' out) lines 'done'"
! grep -q "$(printf '\033')" out # mpirun's own terminal ends lines with a carriage return
check "mpirun's output in a file has no terminal codes" $? "$(wc -l <out) lines"

run --init one/best.safetensors --eval --test-limit 37
cp out alone
ranks 3 --init one/best.safetensors --eval --test-limit 37
[ "$(grep top1 alone)" = "$(grep top1 out)" ]
check "--eval on three ranks counts every image once" $? "$(grep top1 alone | tr '\n' ' ')/ $(grep top1 out)"

# == Stop and go on ==================================================================================================

# start NUMBER FOLDER ARGUMENTS: in the background, with its first state saved; the processes in $pids, rank 0's first.
start() {
    number=$1 folder=$2
    shift 2
    timeout -k 5 100 "$MPIRUN" -np "$number" "$vit" $model --epochs 100000 --run-dir "$folder" "$@" >out 2>err \
        </dev/null &
    launcher=$!
    wait_for $launcher . "$folder/state.safetensors"
    pids=$(for process in /proc/[0-9]*; do
        { [ "$(readlink "$process/cwd")" = "$(pwd -P)" ] || continue # a rank of this test
          tr '\0' '\n' <"$process/cmdline" | grep -qx "$folder" || continue
          of=$(tr '\0' '\n' <"$process/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p'); } 2>/dev/null
        [ -z "$of" ] || echo "$of ${process#/proc/}"
    done | sort -n | cut -d ' ' -f 2)
}

start 2 killed
before=$(date +%s)
kill -9 $(echo $pids | cut -d ' ' -f 2)
wait $launcher
status=$?
took=$(($(date +%s) - before))
[ $status -ne 0 ] && [ $took -lt 60 ]
check "a killed rank ends the run within a minute" $? "status $status after $took s"
ours | grep -q 'rank 0: rank 1 of 2 .* has died: .* train_vit --resume killed'
check "and the others say who died and how to go on" $? "$(ours | head -n 1)"

start 3 headless
kill -9 $(echo $pids | cut -d ' ' -f 1)
wait $launcher
status=$?
[ $status -ne 0 ] && ours | grep -q 'rank [12]: rank 0 of 3 .* has died'
check "rank 0 is missed too" $? "status $status: $(ours | head -n 1)"

for number in 1 2 3; do
    cp -r killed on$number
    epoch=$(last_row on$number | cut -d , -f 2)
    ranks $number --resume on$number --epochs $((epoch + 3))
    check "what two ranks began $number go on with" $status "$(ours | head -n 1)"
done
worst=$(curves_agree on1 on2 2e-5)
check "resumed on one rank and on two: one curve" $? "$worst"
worst=$(curves_agree on1 on3 2e-5)
check "and on three" $? "$worst"

start 2 stopped
kill -USR1 $(echo $pids | cut -d ' ' -f 2)
wait $launcher
status=$?
[ $status -ne 0 ] && grep -q '^stopped by .* and saved' out
check "SIGUSR1 to one rank stops all, saved" $? "status $status: $(grep '^stopped by' out)"

# == What cannot be ==================================================================================================

# fails_in_ranks NAME NUMBER WORDS ARGUMENTS: status, and one line of train_vit with the words.
fails_in_ranks() {
    name=$1 number=$2 words=$3
    shift 3
    ranks $number "$@"
    [ "$status" -ne 0 ] && [ "$(ours | wc -l)" -eq 1 ] && ours | grep -qF "$words"
    check "$name" $? "status $status, $(ours | wc -l) lines: $(ours | head -n 1)"
}

fails_in_ranks "a batch that ranks cannot share" 5 '24 is not a multiple of the 5 ranks' $model --run-dir no
fails_in_ranks "an unknown setting" 3 "rank 0: --no-such" $model --no-such 1
fails_in_ranks "a folder that has a run" 2 'there is a run in this folder already' $model --epochs 1 --run-dir one
ranks 4 --dim 24 --heads 2 --depth 2 --patch-size 8 --train-limit 98 --test-limit 8 --epochs 1 --run-dir shrunk
[ "$status" -eq 0 ] && grep -q 'batch_size is 96$' out
check "the default batch shrinks to what the ranks can share" $? "$(grep default out) $(ours | head -n 1)"
fails_in_ranks "data that are not there" 3 'nowhere/x: no such folder' $model --data nowhere/x --run-dir no
fails_in_ranks "data that only training looks for" 2 'datasets/data_batch_1.bin: no such file' \
    --data cifar10 --run-dir no

# differ NAME STATUS WORDS FLAGS FLAGS: rank 0 with the first flags, ranks 1 and 2 with the second; one line, within
# seconds.
differ() {
    name=$1 wanted=$2 words=$3
    mixed_ranks 3 "$vit $model $4" "$vit $model $5"
    [ "$status" -eq "$wanted" ] && [ "$(ours | wc -l)" -eq 1 ] && ours | grep -qF "$words"
    check "$name" $? "status $status, $(ours | wc -l) lines: $(ours | head -n 1)"
}

begin="--epochs 1 --run-dir no"
differ "a config file that one rank lacks" 2 "rank 1: --config: cannot open 'missing.ini'" "$begin" \
    "$begin --config missing.ini"
differ "another batch_size" 2 'rank 1: batch_size 12, but rank 0 has batch_size 24' "$begin" "$begin --batch-size 12"
differ "another dim" 2 'rank 1: dim 32, but rank 0 has dim 24' "$begin" "$begin --dim 32"
differ "another operator" 2 'rank 1: attn linear, but rank 0 has attn ripple' "$begin" "$begin --attn linear"
differ "another mode" 2 'rank 1: eval true, but rank 0 has eval false' "--init one/best.safetensors $begin" \
    "--init one/best.safetensors $begin --eval"
differ "a mode of rank 0 alone" 2 'rank 1: describe false, but rank 0 has describe true' "--describe" ""
differ "--help of rank 0 alone" 2 'rank 1: help none, but rank 0 has help all' "--help" "$begin"
cp "$vit" ./train_vit && echo >>./train_vit
mixed_ranks 2 "$vit $model $begin" "./train_vit $model $begin"
[ "$status" -eq 2 ] && ours | grep -q "rank 1: this build of the program is not rank 0's"
check "another build of the program" $? "status $status: $(ours | head -n 1)"
# Each rank has its own folder and files, as on machines without a shared file system.
for rank in 0 1; do
    mkdir -p disk$rank && cp -r one disk$rank/
    cp several2/last.safetensors disk$rank/weights.safetensors
done
cp one/best.safetensors disk1/weights.safetensors
cat >own_disk.sh <<'END'
cd "disk$OMPI_COMM_WORLD_RANK" && exec "$@"
END
own_disks() { # ARGUMENTS
    timeout -k 5 60 "$MPIRUN" -np 2 sh own_disk.sh "$vit" "$@" >out 2>err </dev/null
    status=$?
}
own_disks $model --epochs 1 --init weights.safetensors --run-dir no
[ "$status" -ne 0 ] && [ "$(ours | wc -l)" -eq 1 ] && ours | grep -q 'first parameters differ'
check "other weights in a file of the same name" $? "status $status: $(ours | head -n 1)"
run $model --epochs 1 --run-dir early
cp disk0/one/state.safetensors kept && cp early/state.safetensors disk1/one/
own_disks --resume one --epochs 9
[ "$status" -ne 0 ] && [ "$(ours | wc -l)" -eq 1 ] && ours | grep -q 'states differ'
check "another state in a folder of the same name" $? "status $status: $(ours | head -n 1)"
[ ! -e no ] && [ ! -e disk0/no ]
check "ranks that differ leave no folder" $?

ranks 2 --help
[ "$status" -eq 0 ] && [ $(grep -c '^train_vit trains' out) -eq 1 ]
check "--help once" $? "$(grep -c '^train_vit trains' out) times"

echo "1..$count"
[ $failures -eq 0 ]
