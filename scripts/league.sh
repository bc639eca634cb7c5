#!/bin/sh
# Trains the league of docs/reference/league.md in the background: every attention operator in one small model, a row at a time.
#
#   sh scripts/league.sh start     builds train_vit once, from the commit that is checked out, and trains until no row is left
#   sh scripts/league.sh stop      ends the runs, which the next start continues
#   sh scripts/league.sh status    running and failed rows, and the number of finished ones
#   sh scripts/league.sh rows      the rows that are left, the most informative first: name, config, epochs, seed, flags
#   sh scripts/league.sh all       all rows
#
# A finished run is appended to docs/league.csv, docs/reference/league.md is written again (scripts/league.py), and its
# folder is removed; scripts/shared_tables.py takes the row into docs/guide/operators.md.  After a signal, a crash or a
# loss of power, the next start continues a run from its last saved state.  Accuracy is that of the last epoch on the
# test images, which influence no choice.  Runs of more than ten epochs warm up for a tenth of them, as those in
# docs/study.csv do, runs of ten epochs for half an epoch.
#
# DATA      folder with cifar-100-binary (default datasets, where scripts/fetch_cifar.sh cifar100 puts it)
# WORKERS   runs at the same time (default 1); a start with more of them adds the missing ones
# CSV       the file of the rows (default docs/league.csv)
# WORK      folder of the build and of unfinished runs (default build/league)
# TABLE     a file of other rows, one a line: NAME CONFIG EPOCHS SEED [FLAG...]; it needs another CSV and WORK.
#           NAME is the operator; a second row of an operator adds its difference after a plus sign: softmax+short
# TRAIN_VIT a program to use in place of a build
# THREADS   threads of a run (default 1); NICE is its niceness (default 19)
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -u
CDPATH='' cd "$(dirname "$0")/.." || exit 1

CSV=${CSV:-docs/league.csv}
WORK=${WORK:-build/league}
case $WORK in /*) ;; *) WORK=$PWD/$WORK ;; esac
WORK=${WORK%/}
DATA=${DATA:-datasets}
WORKERS=${WORKERS:-1}
TABLE=${TABLE:-}
TRAIN_VIT=${TRAIN_VIT:-}
export CSV WORK DATA TABLE TRAIN_VIT
HEADER=operator,flags,epochs,seed,top1,top5,val_loss,parameters,million_macs,seconds,processor,commit,date

fail() { echo "scripts/league.sh: $*" >&2; exit 1; }

# == Rows ============================================================================================================

# The flags of a row's name in addition to --attn.
flags_of() {
    case $1 in
    cswin*) echo "--heads 4 --stripe 2" ;; # half of the heads attend along each axis
    swin) echo "--window 4" ;;
    nystrom | soft) echo "--landmarks 4" ;;
    reduced | focused-reduced) echo "--reduction 2" ;;
    *+positions) echo "--pos-embed learned" ;;
    *+rpe) echo "--rpe heads" ;;
    *+r2) echo "--r-max 2" ;;
    *+r8) echo "--r-max 8" ;;
    esac
}

# Name, epochs and seed of every row.  First two seeds of all operators for ten epochs, which give most claims an answer,
# then thirty epochs and three seeds for the papers' claims, then two hundred epochs for the pair with the ripple paper's
# lead of 19 points, then a third seed of all, and the variants in the papers' tables.
league() {
    all="softmax lisa focused gf dwconv7 convattn lambda inception relu-linear castling efficient hydra reduced focused-reduced
        rsa cswin cswin-focused convit ripple linear ripple-softmax-weights ripple-fixed ripple-truncated ripple-log
        swin soft sa9 sa9-heads ripple-dense sparse-strided sparse-fixed conv sepconv ripple-explicit-softmax nystrom sa10
        sa11"
    deciding="lisa softmax gf focused dwconv7 convit ripple-softmax-weights ripple-fixed swin convattn lambda"
    variants="softmax+rpe ripple+positions linear+positions softmax+positions convit+positions ripple+r2 ripple+r8"
    for seed in 1 2; do for name in $all; do echo "$name 10 $seed"; done; done
    for seed in 1 2 3; do for name in $deciding; do echo "$name 30 $seed"; done; done
    echo "ripple 200 1"
    echo "linear 200 1"
    for name in $all; do echo "$name 10 3"; done
    for seed in 1 2 3; do for name in $variants; do echo "$name 10 $seed"; done; done
}

rows() { # name, config, epochs, seed, flags
    if [ -n "$TABLE" ]; then
        grep -v '^ *\(#\|$\)' "$TABLE"
    else
        league | while read -r name epochs seed; do
            warm_up=
            [ "$epochs" -le 10 ] || warm_up="--warmup-epochs $((epochs / 10)) "
            echo "$name configs/cpu/study.ini $epochs $seed $warm_up$(flags_of "$name")"
        done
    fi
}

# The rows that are not in the file; a line of a full disk may be incomplete.
left() {
    rows | awk -v csv="$CSV" -v columns="$(echo "$HEADER" | awk -F , '{ print NF }')" '
        BEGIN { while ((getline line <csv) > 0) if (split(line, f, ",") == columns) done[f[1] " " f[3] " " f[4]] }
        !(($1 " " $3 " " $4) in done)'
}

# == A run ===========================================================================================================

processor() {
    { sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo 2>/dev/null | head -n 1 | tr , ' '; uname -m; } | head -n 1 | tr -d '\n'
    case $(grep -m 1 -w '^flags' /proc/cpuinfo 2>/dev/null) in *avx512f*) echo ' AVX-512' ;; *avx2*) echo ' AVX2' ;; *) echo ;; esac
}

# The last epoch of a run's log as a row.  Its commits: that of the program, preceded by that of the program that began
# the run if it is another.
append_row() { # run, name, epochs, seed, flags
    number() { sed -n "s/.*[: ]\([0-9.]*\) $1.*/\1/p" "$run.out" | head -n 1; }
    row=$(awk -F , -v OFS=, -v epochs="$3" -v start="$2,$5,$3,$4" -v parameters="$(number parameters)" \
        -v macs="$(number 'million multiply-adds')" -v cpu="$(processor)" -v commit="$(paste -s -d + "$1.commit")" \
        -v date="$(date +%Y-%m-%d)" '
        NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
        $at["top1"] != "" && $at["epoch"] == epochs {
            row = start OFS $at["top1"] OFS $at["top5"] OFS $at["val_loss"] OFS parameters OFS macs OFS $at["wall_s"]
            row = row OFS cpu OFS commit OFS date
        }
        END { print row }' "$1/log.csv")
    [ -n "$row" ] && echo "$row" >>"$CSV" && { sync "$CSV" 2>/dev/null || sync; } # before the run's folder is removed
}

forget() { rm -rf "$WORK/runs/$1" "$WORK/runs/$1.out" "$WORK/runs/$1.commit"; }

one() { # name, config, epochs, seed, flags
    name=$1 config=$2 epochs=$3 seed=$4
    shift 4
    flags=$(echo "$*" | tr , ";")
    run=$WORK/runs/$name-$epochs-$seed
    [ ! -f "$WORK/source/$config" ] || config=$WORK/source/$config
    if [ -f "$run/state.safetensors" ]; then
        set -- --resume "$run"
    else
        forget "$name-$epochs-$seed"
        set -- --config "$config" --attn "${name%%+*}" --epochs "$epochs" --seed "$seed" "$@" --run-dir "$run"
    fi
    [ ! -d "$DATA" ] || set -- "$@" --data-dir "$DATA"
    grep -qxF "$(cat "$WORK/commit")" "$run.commit" 2>/dev/null || cat "$WORK/commit" >>"$run.commit"
    OMP_NUM_THREADS="${THREADS:-1}" nice -n "${NICE:-19}" "${TRAIN_VIT:-$WORK/train_vit}" "$@" >>"$run.out" 2>&1 &
    child=$!
    echo $child >"$run.lock/child"
    wait $child
    status=$?
    child=
    if [ $status = 0 ] && append_row "$run" "$name" "$epochs" "$seed" "$flags"; then
        forget "$name-$epochs-$seed"
        [ "$CSV" != docs/league.csv ] || python3 scripts/league.py || :
    else
        echo "$name $epochs $seed: $(tail -n 1 "$run.out")" >>"$WORK/failed"
    fi
}

# Prints the first row that no worker has and that has not failed.
take() {
    left | while read -r row; do
        # shellcheck disable=SC2086 # words
        set -- $row
        lock=$WORK/runs/$1-$3-$4.lock
        if grep -q "^$1 $3 $4:" "$WORK/failed" 2>/dev/null || ! mkdir "$lock" 2>/dev/null; then continue; fi
        echo $$ >"$lock/worker"
        echo "$row"
        break
    done
}

# Linux shares processors between sessions first (autogroups), and niceness counts only within one.
give_way() {
    if [ "$(ps -o sid= -p $$ | tr -d ' ')" = $$ ] && [ -w "/proc/$$/autogroup" ]; then
        echo "${NICE:-19}" >"/proc/$$/autogroup"
    fi
} 2>/dev/null

work() {
    give_way
    child=
    trap '[ -z "$child" ] || { kill "$child"; wait "$child"; } 2>/dev/null; exit 143' TERM INT HUP
    while row=$(take) && [ -n "$row" ]; do
        # shellcheck disable=SC2086
        set -- $row
        one "$@"
        rm -rf "$WORK/runs/$1-$3-$4.lock"
    done
}

# == Workers =========================================================================================================

# is_running FILE WORDS: does the process whose number is in FILE run, with these words among its arguments?  After a
# restart of the machine another process may have that number.
is_running() {
    [ -s "$1" ] || return 1
    case " $({ tr '\0' ' ' <"/proc/$(cat "$1")/cmdline"; } 2>/dev/null)" in *" $2 "*) ;; *) return 1 ;; esac
}

is_worker() { is_running "$1" "scripts/league.sh work $WORK"; } # FILE

running() { # files of the workers that run
    for file in "$WORK"/worker.*; do is_worker "$file" && echo "$file"; done
}

# Ends processes that a killed worker left running, and frees its row.
free_rows() {
    for lock in "$WORK"/runs/*.lock; do
        if [ ! -d "$lock" ] || is_worker "$lock/worker"; then continue; fi
        if is_running "$lock/child" "${lock%.lock}"; then kill "$(cat "$lock/child")"; fi
        while is_running "$lock/child" "${lock%.lock}"; do sleep 1; done
        rm -rf "$lock"
    done
}

# Also removes the folders of rows that were appended just before a kill.
recover() {
    free_rows
    rm -f "$WORK/failed"
    awk -F , 'NR == 1 { columns = NF } NF == columns { print $1 "-" $3 "-" $4 }' "$CSV" | while read -r row; do forget "$row"; done
}

prepare() {
    mkdir -p "$WORK/runs" || exit 1
    if [ -n "$TRAIN_VIT" ]; then
        git describe --always --dirty --abbrev=7 >"$WORK/commit" 2>/dev/null || echo unknown >"$WORK/commit"
    elif [ ! -x "$WORK/train_vit" ] || [ ! -s "$WORK/commit" ]; then
        commit=$(git rev-parse --short=7 HEAD) || fail "not a checkout: name a program by TRAIN_VIT"
        echo "building $commit, some minutes"
        rm -rf "$WORK/source" "$WORK/train_vit"
        mkdir -p "$WORK/source" || exit 1
        git archive HEAD | tar -xf - -C "$WORK/source" || exit 1
        nice -n 19 make -C "$WORK/source" -s MPI=0 VARIANTS= build/cpu/train_vit >"$WORK/build.out" 2>&1 ||
            fail "the build failed: see $WORK/build.out"
        cp "$WORK/source/build/cpu/train_vit" "$WORK/train_vit" || exit 1
        echo "$commit" >"$WORK/commit"
    fi
    [ -n "$TABLE" ] || [ -f "$DATA/cifar-100-binary/train.bin" ] || [ -f "$DATA/train.bin" ] ||
        fail "$DATA: no cifar-100-binary: run scripts/fetch_cifar.sh cifar100, or name its folder by DATA"
    [ -s "$CSV" ] || echo "$HEADER" >"$CSV"
    [ -z "$(tail -c 1 "$CSV")" ] || echo >>"$CSV"
    [ "$(head -n 1 "$CSV")" = "$HEADER" ] || fail "$CSV: its columns are not $HEADER"
}

start() {
    prepare
    recover
    n=0 started=0
    while [ "$n" -lt "$WORKERS" ]; do
        n=$((n + 1))
        is_worker "$WORK/worker.$n" && continue
        setsid nohup sh scripts/league.sh work "$WORK" >>"$WORK/log.$n" 2>&1 </dev/null &
        echo $! >"$WORK/worker.$n"
        started=$((started + 1))
    done
    echo "$started started of $WORKERS; $CSV grows by a row when one is done, $(left | wc -l | tr -d ' ') are left"
}

stop() {
    running | while read -r file; do kill "$(cat "$file")"; done
    for file in "$WORK"/worker.*; do
        while is_worker "$file"; do sleep 1; done
        rm -f "$file"
    done
    free_rows
    echo stopped
}

status() {
    echo "$(running | wc -l | tr -d ' ') workers, $(left | wc -l | tr -d ' ') of $(rows | wc -l | tr -d ' ') rows left"
    for lock in "$WORK"/runs/*.lock; do
        [ -d "$lock" ] && echo "$(basename "$lock" .lock): $(tr '\r' '\n' <"${lock%.lock}.out" | tail -n 1)"
    done
    [ ! -s "$WORK/failed" ] || sed 's/^/failed: /' "$WORK/failed"
}

case ${1:-} in
start | stop | status | work) "$1" ;;
rows) left ;;
all) rows ;;
*) echo "scripts/league.sh: usage: sh scripts/league.sh start|stop|status|rows|all" >&2 && exit 2 ;;
esac
