#!/bin/sh
# Conditions at the start of a program: impossible numbers of threads, settings without effect, a state that another
# device saved, a run that is still training in the same folder.  TAP on standard output, evidence behind '# '.

# shellcheck disable=SC2012,SC2015,SC2046,SC2086 # settings are lists of words; no name here holds a space
. "$(dirname "$0")/../tap.sh"

# == Threads =========================================================================================================

# The OpenMP library prints its own lines for values that it does not accept.
for value in 4294967296 99999999999 99999999999999999999 0 -1 abc '' '2,' 1,0; do
    OMP_NUM_THREADS=$value "$vit" $tiny --epochs 1 --run-dir none >out 2>err.all
    status=$?
    grep '^train_vit: ' err.all >err
    complains 2 "OMP_NUM_THREADS: expected a number of threads|got '$value'" && [ ! -e none ]
    check "OMP_NUM_THREADS=$value is refused" $? "status $status: $(head -n 1 err)"
done
for value in ' 2' 4,2; do
    OMP_NUM_THREADS=$value run $tiny --epochs 1 --run-dir "threads$value"
    [ "$status" -eq 0 ] && [ ! -s err ] && grep -qE '^CPU, [24] threads' out
    check "OMP_NUM_THREADS=$value is taken" $? "status $status: $(head -n 1 out)"
done
OMP_NUM_THREADS=4 OMP_THREAD_LIMIT=0 "$vit" --version >out 2>err.all
status=$?
grep '^train_vit: ' err.all >err
complains 2 "OMP_THREAD_LIMIT: expected a number of threads|got '0'"
check "OMP_THREAD_LIMIT=0 is refused" $? "status $status: $(head -n 1 err)"
OMP_NUM_THREADS=4 OMP_THREAD_LIMIT=1 run $tiny --epochs 1 --run-dir limited
[ "$status" -eq 0 ] && grep -q '^CPU, 1 threads' out
check "OMP_THREAD_LIMIT=1 leaves one thread" $? "status $status: $(head -n 1 out)"
# With another number of threads sums have another order, which the run reports.
run $tiny --epochs 1 --run-dir alone
cp -R alone pair
run --resume alone --epochs 2
[ "$status" -eq 0 ] && ! grep -q 'sums have another order' out
check "a run that is resumed with as many threads has nothing to say" $? "$(sed -n 2p out)"
OMP_NUM_THREADS=2 run --resume pair --epochs 2
[ "$status" -eq 0 ] && grep -q '^the saved state was computed by CPU, 1 threads, .* agree to rounding, not to the bit$' out
check "with another number of threads it says so" $? "$(sed -n 2p out)"
worst=$(curves_agree alone pair 1e-4)
check "and agrees to rounding" $? "$worst"
for program in train_ar train_detr pack_dataset; do
    OMP_NUM_THREADS=4294967296 "$build/$program" --version >out 2>err
    status=$?
    complains 2 "$program: OMP_NUM_THREADS|4294967296"
    check "$program refuses it, too" $? "status $status: $(head -n 1 err)"
done

# == Settings that do not count ======================================================================================

vit=$build/pack_dataset
for pair in data:shapes out:x resize:8 limit:3 split:val; do
    refuses "pack_dataset --check with --${pair%:*}" 2 "--${pair%:*}: not together with --check" --check none \
        "--${pair%:*}" "${pair#*:}"
done
refuses "pack_dataset --quality without a JPEG" 2 '--quality: counts only where JPEGs are made' --data shapes --out none \
    --quality 50
vit=$build/train_vit

# == The folder of a live run ========================================================================================

"$vit" $tiny --epochs 1000000 --run-dir live >out.live 2>&1 &
live=$!
until [ -s live/log.csv ] || ! kill -0 $live 2>/dev/null; do moment; done
holder="process $live of this machine"
[ -e /proc/locks ] || holder='another process'
refuses "a second start in the folder of a live run" 1 "live/log.csv: $holder is training in this folder" $tiny --run-dir live
until [ -e live/state.safetensors ] || ! kill -0 $live 2>/dev/null; do moment; done
refuses "the same when it has saved its state" 1 "live/log.csv: $holder is training in this folder" $tiny --run-dir live
kill $live
wait $live
live=$?
tail -n 1 out.live | grep -q '^stopped by SIGTERM' && [ "$live" -eq 143 ]
check "the live run goes on until it is stopped" $? "status $live: $(tail -n 1 out.live)"

echo "1..$count"
[ "$failures" -eq 0 ]
