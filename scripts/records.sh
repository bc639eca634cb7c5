#!/bin/sh
# Searches for the best top-1 accuracy on CIFAR that this machine reaches in a given time.
#
#   sh scripts/records.sh search cifar100 30         trains every candidate for 30 minutes and evaluates it on held-out images
#   sh scripts/records.sh final cifar100 30 NAME     trains the chosen one on all images with three seeds and evaluates it
#                                                    on the test images
#   sh scripts/records.sh status cifar100 30         running and remaining rows; also stop
#
# A run of the search, too, ends with an evaluation on the test images, which is in no row: choose by the rows alone.
#
# Rows are appended to docs/records.csv, and the next call continues interrupted runs (scripts/league.sh).  The number
# of epochs that fit is measured at the first call, on a machine that should do nothing else, neither then nor later;
# final takes that of the search.
#
# DATA       folder with the images (default datasets, where scripts/fetch_cifar.sh puts them)
# THREADS    of a run (default: all cores)
# PRECISION  default bfloat16 if the processor has AVX512-BF16, otherwise float32
# HELD_OUT   share of the training images held out for the search (default 0.1)
# SHARE      share of training steps in the time, the rest being loading and evaluation (default 0.9)
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -u
CDPATH='' cd "$(dirname "$0")/.." || exit 1

fail() { echo "scripts/records.sh: $*" >&2; exit 1; }
[ $# -ge 3 ] || fail "usage: sh scripts/records.sh search|final|status|stop cifar10|cifar100 MINUTES [NAME]"
stage=$1 data=$2 minutes=$3
config=configs/cpu/$data-fast.ini
[ -f "$config" ] || fail "$data: expected cifar10 or cifar100"
case $minutes in '' | *[!0-9]*) fail "$minutes: expected a number of minutes" ;; esac

program=${TRAIN_VIT:-build/cpu/train_vit}
THREADS=${THREADS:-$(getconf _NPROCESSORS_ONLN)}
grep -qw avx512_bf16 /proc/cpuinfo 2>/dev/null && precision=bfloat16 || precision=float32
PRECISION=${PRECISION:-$precision}
HELD_OUT=${HELD_OUT:-0.1}
WORK=${WORK:-build/records}/$data-$minutes
CSV=${CSV:-docs/records.csv}
TRAIN_VIT=$program NICE=0
export THREADS WORK CSV TRAIN_VIT NICE

# Name, operator and flags on top of the config.
candidates() {
    cat <<'END'
plain softmax
slow softmax --lr 5e-4
quick softmax --lr 2e-3
augmented softmax --aa rand-m5-mstd0.5-inc1
policy softmax --aa autoaugment-compact
mixed softmax --mixup 0.2 --cutmix 1 --mixup-prob 0.5
deep softmax --depth 4
wide softmax --dim 192 --heads 3
focused focused
convattn convattn
lisa lisa
END
}

# The number of epochs of all images that fit into the minutes, from the speed of training steps.  The search trains on
# fewer images for as many epochs, since it is to find what is best in the final runs.
fitting() { # operator, flags
    speed=$(OMP_NUM_THREADS="$THREADS" "$program" --config "$config" --attn "$@" --precision "$PRECISION" --bench \
        --bench-seconds "${BENCH_SECONDS:-5}" 2>"$WORK/bench" | sed -n 's/.*"train_images_per_s": \([0-9.]*\).*/\1/p')
    [ -n "$speed" ] || fail "$*: $(tail -n 1 "$WORK/bench")"
    awk -v speed="$speed" -v minutes="$minutes" -v share="${SHARE:-0.9}" \
        'BEGIN { n = int(60 * minutes * share * speed / 50000); print (n > 1 ? n : 1) }'
}

# The file of rows, written once, so that an interrupted search continues with the same number of epochs.
table() { # names
    for name; do
        line=$(candidates | grep "^$name ") || fail "$name: no candidate; they are $(candidates | cut -d ' ' -f 1 | tr '\n' ' ')"
        # shellcheck disable=SC2086 # a list
        set -- ${line#* }
        operator=$1
        row=$operator+$data-$minutes-$stage-$name
        ! grep -q "^$row " "$TABLE" 2>/dev/null || continue
        epochs=$(awk -v row="$operator+$data-$minutes-search-$name" '$1 == row { print $3 }' "$TABLE" 2>/dev/null)
        [ -n "$epochs" ] || epochs=$(fitting "$@") || exit 1
        shift
        set -- "$@" --precision "$PRECISION" --eval-every "$epochs"
        if [ "$stage" = search ]; then
            [ "$HELD_OUT" = 0 ] || set -- "$@" --val-fraction "$HELD_OUT"
            seeds=1
        else
            seeds="1 2 3"
        fi
        for seed in $seeds; do echo "$row $config $epochs $seed $*" >>"$TABLE"; done
    done
}

mkdir -p "$WORK" || exit 1
TABLE=$WORK/rows
export TABLE
case $stage in
search)
    [ -x "$program" ] || fail "no $program: make first"
    # shellcheck disable=SC2046,SC2086 # a list
    table ${CANDIDATES:-$(candidates | cut -d ' ' -f 1)}
    exec sh scripts/league.sh start
    ;;
final)
    [ $# -eq 4 ] || fail "which candidate? They are $(candidates | cut -d ' ' -f 1 | tr '\n' ' ')"
    [ -x "$program" ] || fail "no $program: make first"
    table "$4"
    exec sh scripts/league.sh start
    ;;
status | stop) exec sh scripts/league.sh "$stage" ;;
*) fail "$stage: expected search, final, status or stop" ;;
esac
