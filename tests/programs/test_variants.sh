#!/bin/sh
# One program for several processors: it starts the requested variant or one that this machine can run, reports an
# impossible one in one line, and all variants train the same curve up to rounding.
#
#   BUILD=build/cpu-portable sh tests/programs/test_variants.sh
#
# MPIRUN is the launcher of ranks; qemu-x86_64 emulates other processors.

# shellcheck disable=SC1091,SC2015,SC2046,SC2086,SC2154 # what tap.sh sets; settings are lists of words; no name here holds a space
. "$(dirname "$0")/../tap.sh"

MPIRUN=${MPIRUN:-mpirun}
model="--dim 24 --heads 2 --depth 2 --patch-size 8 --attn ripple --train-limit 96 --test-limit 37 --batch-size 24
       --warmup-epochs 0 --log-every 1 --drop-path 0.1 --clip-grad 1 --ema-decay 0.9"

# takes ARGUMENTS: does the program start with them?
takes() { "$vit" "$@" --describe >out 2>err; }

# == One set of instructions =========================================================================================

succeeds "--isa auto" --isa auto --describe
refuses "an --isa that is none" 2 "--isa: unknown set of instructions 'avx1024'|auto, avx2 or avx512" --isa avx1024
refuses "--isa without a value" 2 "--isa" --describe --isa
echo 'isa = avx2' >isa.ini
refuses "isa in a file" 2 "isa.ini:1|isa" --config isa.ini --describe
sets=
for set in avx2 avx512; do
    if takes --isa $set; then
        sets="$sets $set"
        name=AVX2
        [ $set = avx2 ] || name=AVX-512
        run $model --isa $set --epochs 2 --run-dir $set
        [ "$status" -eq 0 ] && head -n 1 out | grep -q "^CPU, .*, $name,"
        check "--isa $set" $? "status $status: $(head -n 1 out) $(head -n 1 err)"
        ! grep -q '^isa' $set/config.ini
        check "which belongs to no run" $? "$(grep '^isa' $set/config.ini)"
    else
        refuses "--isa $set" 2 "--isa: $set: this " --isa $set --describe
    fi
done
run $model --epochs 2 --run-dir auto
newest=${sets##* }
if [ "$newest" ]; then
    same_run auto "$newest"
    check "auto is the newest set, $newest" $? "differs: $differs"
fi

# == Two sets ========================================================================================================

both=
[ "$sets" = ' avx2 avx512' ] && both=yes
if [ "$both" ]; then
    worst=$(curves_agree avx2 avx512 2e-5)
    check "both sets train one curve" $? "$worst"
    cp -r avx2 on
    run --resume on --isa avx512 --epochs 3
    [ "$status" -eq 0 ] && ! grep -q 'isa' out
    check "what one set began the other goes on with" $? "status $status $(head -n 1 err)"
    run --resume avx2 --isa avx2 --epochs 3
    worst=$(curves_agree avx2 on 2e-5)
    check "on the same curve" $? "$worst"
else
    skip "two sets of instructions" "the program or this machine has:${sets:- neither}"
fi

if [ "$both" ] && command -v "$MPIRUN" >/dev/null 2>&1 && ldd "$vit" | grep -q libmpi; then
    mixed_ranks 2 "$vit --isa avx2 $model --epochs 2 --run-dir mixed" \
        "$vit --isa avx512 $model --epochs 2 --run-dir mixed"
    check "two ranks, each with its own set" $status "$(grep -a '^train_vit:' err | head -n 1)"
    [ $(grep -c 'ranks use different instructions (AVX2 on 1, AVX-512 on 1): they agree to rounding' out) -eq 1 ]
    check "which they say" $? "$(grep 'different' out)"
    worst=$(curves_agree avx512 mixed 2e-5)
    check "have the curve of one" $? "$worst"
    mixed_ranks 2 "$vit --isa avx2 $model --epochs 1 --run-dir equal" \
        "$vit --isa avx2 $model --epochs 1 --run-dir equal"
    [ "$status" -eq 0 ] && ! grep -q 'different' out
    check "two ranks with one set say nothing of it" $? "status $status $(grep 'different' out)"
else
    skip "ranks with two sets" "one set, or no $MPIRUN"
fi

# == Precision =======================================================================================================

run $model --epochs 1 --run-dir single
own=$(sed -n 's/^precision = //p' single/config.ini)
other=float32
[ "$own" != float32 ] || other=bfloat16
refuses "a precision that is none" 2 "--precision: unknown value 'half'|float32 or bfloat16" --precision half
run $model --epochs 1 --run-dir again --precision "$own"
same_run single again
check "$own is the default" $? "differs: $differs"
if takes --precision $other; then
    run $model --epochs 2 --run-dir other --precision $other
    [ "$status" -eq 0 ] && grep -qx "precision = $other" other/config.ini
    check "$other" $? "status $status: $(head -n 1 out) $(head -n 1 err)"
    ! curves_agree auto other 1e-6 >worst && curves_agree auto other 0.05 >worst
    check "is another arithmetic on the same data" $? "$(cat worst)"
    echo "precision = $other" >other.ini
    run $model --epochs 2 --run-dir filed --config other.ini
    same_run other filed
    check "a file may ask for it" $? "differs: $differs"
    run --resume other --epochs 3
    [ "$status" -eq 0 ] && ! grep -q precision out
    check "a run goes on in its own" $? "status $status $(grep precision out)"
    run --resume other --epochs 4 --precision "$own"
    [ "$status" -eq 0 ] && grep -q "^settings changed: .*precision $other -> $own" out
    check "and says when it changes" $? "status $status: $(grep precision out)"
    run --init other/best.safetensors --eval --test-limit 37
    [ "$status" -eq 0 ]
    check "--eval takes weights from either" $? "status $status $(head -n 1 err)"
else
    refuses "$other" 2 "--precision: $other: this " --precision $other --describe
    echo "precision = $other" >other.ini
    refuses "$other in a file" 2 "other.ini:1: precision: $other: this |--precision $own" --config other.ini --describe
fi
# == Other processors ================================================================================================

# on PROCESSOR ARGUMENTS: the program there, without the emulator's warnings.
on() {
    processor=$1
    shift
    qemu-x86_64 -cpu "$processor" "$vit" "$@" >out 2>all
    status=$?
    grep -av '^qemu-x86_64: warning' all >err
}

machine=$(uname -m)
if [ "$machine" != x86_64 ] || ! command -v qemu-x86_64 >/dev/null 2>&1 || ldd "$vit" | grep -q 'lib[at]san'; then
    skip "older processors" "no x86-64, no qemu-x86_64, or a build with a sanitizer"
elif [ "$sets" ]; then
    on Nehalem --version
    complains 2 'this processor is older|AVX2|FMA|BMI2'
    check "a processor without AVX2 gets a message that says so" $? "status $status, $(wc -l <err) lines: $(head -n 1 err)"
    on max,-fma --describe
    complains 2 'this processor is older|lacks FMA'
    check "and one without FMA alone" $? "status $status, $(wc -l <err) lines: $(head -n 1 err)"
    on max --version
    if case $sets in *avx2*) [ "$status" -eq 0 ] ;; *) false ;; esac; then
        on max $model --train-limit 24 --epochs 1 --run-dir emulated
        [ "$status" -eq 0 ] && head -n 1 out | grep -q '^CPU, .*, AVX2,'
        check "one without AVX-512 takes AVX2" $? "status $status: $(head -n 1 out) $(head -n 1 err)"
        on max --isa avx512 --describe
        complains 2 '--isa: avx512: this '
        check "and cannot take AVX-512" $? "status $status: $(head -n 1 err)"
        on max --precision bfloat16 --describe
        complains 2 '--precision: bfloat16: this '
        check "nor bfloat16" $? "status $status: $(head -n 1 err)"
    else
        skip "a processor without AVX-512" "not in this program, or not in this emulator"
    fi
else
    skip "older processors" "this program needs nothing of them"
fi

echo "1..$count"
[ $failures -eq 0 ]
