#!/bin/sh
# Calls that fail: every write, flush to the disk, renaming and cutting of a short run, and allocations all over it
# (tests/faults.c fails them, one in each run).  The program must end with one line and status 1, or continue; resumed
# without faults, the run equals the undisturbed run bit for bit.  The same holds after a signal at any change of a file
# or folder.  TAP on standard output, evidence behind '# '.
#
#   VIT_TEST_SEED=17 sh tests/programs/test_faults.sh      fails other allocations
#
# VIT_TEST_QUICK=1 tries fewer of them.

# shellcheck disable=SC2012,SC2015,SC2046,SC2086 # settings are lists of words; no name here holds a space
. "$(dirname "$0")/../tap.sh"

shim=$build/tests/faults.so
pack=$build/pack_dataset
if [ ! -e "$shim" ] || ldd "$vit" 2>/dev/null | grep -qE 'lib(asan|tsan)'; then
    skip "faults" "no preloading into this build"
    echo "1..$count"
    exit 0
fi
seed=${VIT_TEST_SEED:-$(date +%s)}
echo "# SEED=$seed"

# fault KIND N COMMAND...: runs it with the N-th call of that kind failing (0: none); `calls` has the number of calls.
fault() {
    VIT_FAULT=$1 VIT_FAULT_AT=$2
    shift 2
    VIT_FAULT=$VIT_FAULT VIT_FAULT_AT=$VIT_FAULT_AT VIT_FAULT_COUNT=$work/calls LD_PRELOAD=$shim "$@" >out 2>err.all
    status=$?
    sed '/^$/d; /; the run continues without its page$/d' err.all >err
    # clang's OpenMP leaves an empty file if it dies early, on which the next process with the same number would die.
    find /dev/shm -maxdepth 1 -name '__KMP_REGISTERED_LIB_*' -size 0 -user "$(id -u)" -delete 2>/dev/null
    return 0
}

# tells: one line that ends the run with status 1; libgomp has its own line for memory, after an empty one; clang's
# OpenMP aborts with its own lines.
tells() {
    ! grep -q '^OMP: Error #' err || return 0
    [ "$status" -eq 1 ] && [ "$(wc -l <err)" -eq 1 ] && grep -qE '^(train_vit|train_detr|train_ar|pack_dataset|libgomp): .' err
}

# goes_on: it ended well, and its messages are complete lines.
goes_on() { [ "$status" -eq 0 ] && ! grep -qvE '^(train_vit|train_detr|train_ar|pack_dataset): .' err; }

# numbers COUNT MOST: all from 1 to COUNT or, if COUNT is larger, MOST of them, one drawn from each equal share.
numbers() {
    awk -v count="$1" -v most="$2" -v seed="$seed" 'BEGIN {
        srand(seed)
        if (count <= most) for (i = 1; i <= count; i++) print i
        else for (i = 0; i < most; i++) print 1 + int((i + rand()) * count / most)
    }'
}

few() { if [ "$slow" != 0 ]; then echo "$1"; else echo "$2"; fi; }

# == Training ========================================================================================================

settings="$tiny --epochs 2 --ema-decay 0.9 --log-every 2"
"$vit" $settings --run-dir whole >out 2>err
check "the undisturbed run" $? "$(last_row whole)"
# A run that has saved its first epoch: the disk is full when it saves the second.  The last files are those of the
# page, without which a run continues.
fault rename 0 "$vit" $settings --run-dir half
renames=$(cat calls)
until rm -rf half; fault rename "$renames" "$vit" $settings --run-dir half; tells || [ "$renames" -le 1 ]; do
    renames=$((renames - 1))
done
tells && [ "$(place half/state.safetensors | cut -d ' ' -f 2)" = 1 ]
check "a run that was ended between two saves" $? "$(head -n 1 err)"
mkdir -p kept && cp -R half kept/half

# afterwards: the run in the folder `run` is resumed, or begun again if nothing was saved.
afterwards() {
    if [ -e run/state.safetensors ]; then
        "$vit" --resume run >out.2 2>err.2 || { wrong="does not resume: $(head -n 1 err.2)"; return 1; }
    else
        rm -rf run
        "$vit" $settings --run-dir run >out.2 2>err.2 || { wrong="does not begin again: $(head -n 1 err.2)"; return 1; }
    fi
    if ls run | grep -q '\.tmp\.'; then wrong="left $(ls run | grep '\.tmp\.')"; return 1; fi
    same_run whole run || { wrong="differs in $differs"; return 1; }
}

# sweep NAME KIND MOST COMMAND...: calls begin_run before and `afterwards` after each.
sweep() {
    name=$1 kind=$2 most=$3
    shift 3
    begin_run
    fault $kind 0 "$@"
    all=$(cat calls) ended=0 went_on=0 wrong=
    for n in $(numbers "$all" "$most"); do
        begin_run
        fault $kind $n "$@"
        if tells; then ended=$((ended + 1))
        elif goes_on; then went_on=$((went_on + 1))
        else wrong="status $status: $(head -n 3 err | tr '\n' '|')"
        fi
        [ -n "$wrong" ] || afterwards
        [ -z "$wrong" ] || { wrong="; call $n: $wrong"; break; }
    done
    [ -z "$wrong" ] && [ $((ended + went_on)) -gt 0 ] && { [ "$kind" = seek ] || [ "$ended" -gt 0 ]; }
    check "$name" $? "of $all calls $ended ended the run, $went_on did not$wrong"
}

begin_run() { rm -rf run; }
sweep "a write fails" write $(few 6 16) "$vit" $settings --run-dir run
sweep "a flush to the disk fails" sync $(few 10 40) "$vit" $settings --run-dir run
sweep "a renaming fails" rename $(few 20 40) "$vit" $settings --run-dir run
sweep "an allocation fails" memory $(few 12 60) "$vit" $settings --run-dir run

begin_run() { rm -rf run && cp -R kept/half run; }
sweep "a write fails in a resumed run" write $(few 4 12) "$vit" --resume run
sweep "a seek fails in a resumed run" seek $(few 8 40) "$vit" --resume run
sweep "an allocation fails in a resumed run" memory $(few 6 24) "$vit" --resume run

# A disk that stays full ends the run at the first write that fails.
VIT_FAULT_ON=1
export VIT_FAULT_ON
begin_run() { rm -rf run; }
sweep "no write succeeds from some moment on" write $(few 4 12) "$vit" $settings --run-dir run
unset VIT_FAULT_ON

# == Signals at every change of a file or a folder ====================================================================

# again: the same command if nothing was trained, otherwise --resume: both give the undisturbed run.  A run that logged
# rows but lost everything before it was saved must be removed by the user.
again() {
    lines=0
    [ ! -e run/log.csv ] || lines=$(wc -l <run/log.csv)
    if [ -e run/state.safetensors ] || [ "$lines" -lt 2 ]; then
        set -- --run-dir run
        [ ! -e run/state.safetensors ] || set -- --resume run
        [ "$1" = --resume ] || set -- $settings "$@"
        "$vit" "$@" >out.2 2>err.2 || { wrong="the same command: $(head -n 1 err.2)"; return 1; }
        same_run whole run || { wrong="differs in $differs"; return 1; }
        went_on=$((went_on + 1))
    else
        run $settings --run-dir run
        complains 1 'run/log.csv|ended before it saved its state' || { wrong="with rows: $(head -n 1 err)"; return 1; }
        with_rows=$((with_rows + 1))
    fi
}

# signals NAME SIGNALS STATUS MOST: runs that get these signals at a change.  They report it, unless the first signal
# came after the last step or is SIGKILL; the page is complete, and afterwards `again` holds.
signals() {
    rm -rf run
    fault signal 0 "$vit" $settings --run-dir run
    all=$(cat calls) went_on=0 with_rows=0 told=0 wrong=
    for n in $(numbers "$all" "$4"); do
        rm -rf run
        VIT_FAULT_SIGNALS=$2
        export VIT_FAULT_SIGNALS
        fault signal $n "$vit" $settings --run-dir run
        unset VIT_FAULT_SIGNALS
        wanted=$3
        case $2 in
        15 | '1 1') if grep -q '^done in ' out; then wanted=0; else grep -q '^stopped by SIG.* and saved: ' out; fi ;;
        *' '*) [ "$(wc -l <err)" -eq 1 ] && grep -q '^train_vit: ended at once by a second signal, SIGINT: ' err ;;
        *) true ;;
        esac && told=$((told + 1)) || wrong="says $(head -n 1 err)"
        [ "$status" -eq $wanted ] || wrong="status $status"
        [ ! -e run/report.html ] || [ "$(tail -n 1 run/report.html)" = '</html>' ] || wrong='a part of a page'
        [ -n "$wrong" ] || again
        [ -z "$wrong" ] || { wrong="; change $n: $wrong"; break; }
    done
    [ -z "$wrong" ] && [ "$told" -gt 0 ] && [ "$went_on" -gt 0 ]
    check "$1" $? "of $all changes $told ended as they should, $went_on went on, $with_rows left rows alone$wrong"
}

rm -rf run
signals "SIGTERM at a change" 15 143 $(few 8 60)
signals "a second signal at a change" "15 2" 130 $(few 6 60)
signals "SIGHUP twice, as from a terminal that closes" "1 1" 129 $(few 6 40)
signals "SIGKILL at a change" 9 137 $(few 6 60)
(trap '' HUP; exec "$vit" $settings --epochs 300 --run-dir hung >out 2>err) &
pid=$!
until grep -q '^4,' hung/log.csv 2>/dev/null || ! kill -0 $pid 2>/dev/null; do sleep 0.01; done
kill -s HUP $pid
sent=$?
wait $pid
status=$?
[ $sent -eq 0 ] && [ $status -eq 0 ] && grep -q '^done in ' out
check "under nohup a run goes on after SIGHUP" $? "sent $sent, status $status: $(tail -n 1 out)"

# == Pictures through the loader's threads ===========================================================================

mkdir -p pictures
for split in train val; do
    for class in a b; do
        mkdir -p pictures/$split/$class
        for i in 1 2 3 4 5 6 7 8; do
            # A BMP of 20 x 10 pixels: both headers, then rows of 60 bytes.
            { printf 'BM\216\002\0\0\0\0\0\0\066\0\0\0\050\0\0\0\024\0\0\0\012\0\0\0\001\0\030\0\0\0\0\0\130\002\0\0'
              head -c 16 /dev/zero
              yes "$split$class$i" | head -c 600; } >pictures/$split/$class/$i.bmp
        done
    done
done
settings="$model --img-size 16 --batch-size 8 --epochs 2 --warmup-epochs 0 --data pictures --workers 2 --max-damaged 0.5"
rm -rf whole
"$vit" $settings --run-dir whole >out 2>err
check "the undisturbed run on pictures" $? "$(last_row whole) $(head -n 1 err)"
begin_run() { rm -rf run; }
sweep "an allocation fails in a run on pictures" memory $(few 4 20) "$vit" $settings --run-dir run
VIT_FAULT_OTHERS=1
export VIT_FAULT_OTHERS
sweep "an allocation fails in a loader's thread" memory $(few 6 26) "$vit" $settings --run-dir run
unset VIT_FAULT_OTHERS

# == Packing =========================================================================================================

"$pack" --data pictures --resize 8 --out whole.pack >out 2>err
check "the undisturbed pack" $? "$(tail -n 1 out)"
begin_run() { rm -f run.pack run.pack.partial run.pack.partial.index; }
afterwards() {
    if [ ! -e run.pack ]; then
        "$pack" --data pictures --resize 8 --out run.pack >out.2 2>err.2 ||
            { wrong="does not go on: $(head -n 1 err.2)"; return 1; }
    fi
    cmp -s run.pack whole.pack || { wrong="another file"; return 1; }
    "$pack" --check run.pack >out.2 2>err.2 || { wrong="not sound: $(head -n 1 err.2)"; return 1; }
}
for kind in write sync rename seek; do
    sweep "packing: a $kind fails" $kind $(few 4 20) "$pack" --data pictures --resize 8 --out run.pack
done
sweep "packing: an allocation fails" memory $(few 6 24) "$pack" --data pictures --resize 8 --out run.pack

begin_run
fault signal 0 "$pack" --data pictures --resize 8 --out run.pack
all=$(cat calls) stopped=0 wrong=
VIT_FAULT_SIGNALS=15
export VIT_FAULT_SIGNALS
for n in $(numbers "$all" $(few 4 40)); do
    begin_run
    fault signal $n "$pack" --data pictures --resize 8 --out run.pack
    if [ "$status" -eq 143 ] && grep -q '^stopped by SIGTERM: the same command ' out; then stopped=$((stopped + 1))
    elif [ "$status" -ne 0 ]; then wrong="status $status: $(tail -n 1 out) $(head -n 1 err)"
    fi
    [ -n "$wrong" ] || afterwards
    [ -z "$wrong" ] || { wrong="; change $n: $wrong"; break; }
done
unset VIT_FAULT_SIGNALS
[ -z "$wrong" ] && [ "$stopped" -gt 0 ]
check "packing: SIGTERM at a change" $? "of $all changes $stopped stopped it$wrong"

echo "1..$count"
[ "$failures" -eq 0 ]
