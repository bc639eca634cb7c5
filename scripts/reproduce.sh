#!/bin/sh
# Trains the models of a paper's table, row by row.  Finished runs are skipped, and interrupted ones are resumed.
#
#   sh scripts/reproduce.sh ripple-2                     all rows of CIFAR-100's Table 2, into runs/paper
#   sh scripts/reproduce.sh ripple-4 ripple-log          one row of Table 4
#   SEEDS="0 1 2" sh scripts/reproduce.sh study          three seeds of every row
#   sh scripts/reproduce.sh --bench ripple-4             only measure the speed of every row, into bench.json
#   python3 scripts/tables.py --help                     lists the tables; tables.py runs/paper prints the results
#
# TRAIN_VIT  the program, optionally with a launcher, as in TRAIN_VIT="mpirun -np 8 build/cuda/train_vit" (default
#            build/cuda/train_vit if it exists, otherwise build/cpu/train_vit); rows of other programs use the
#            program of that name in the same folder
# EVAL       settings of the evaluation on the test split at the end of a run of train_ar, written to test.txt, as in
#            EVAL="--eval-step 192"
# RUNS       folder for the runs (default runs/paper)
# EXTRA      additional settings for every row, as in EXTRA="--data-dir somewhere --epochs 2"; with --epochs N and
#            without --warmup-epochs, rows of train_vit warm up for a tenth of N epochs, rounded down
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -u
CDPATH='' cd "$(dirname "$0")/.." || exit 1

fail() {
    printf 'scripts/reproduce.sh: %s\n' "$*" >&2
    exit 1
}

bench=
[ "${1:-}" != --bench ] || { bench=yes; shift; }
[ $# -ge 1 ] || fail "which table? python3 scripts/tables.py --help names them"
table=$1
shift
PYTHON=${PYTHON:-python3}
RUNS=${RUNS:-runs/paper}
SEEDS=${SEEDS:-0}
EXTRA=${EXTRA:-}
EVAL=${EVAL:-}
short=$(printf '%s\n' "$EXTRA" | sed -n 's/.*--epochs[= ]*\([0-9][0-9]*\).*/\1/p')
warm_up=
case $EXTRA in
*--warmup-epochs*) ;;
*) [ -z "$short" ] || warm_up="--warmup-epochs $((short / 10))" ;;
esac
if [ -z "${TRAIN_VIT:-}" ]; then
    for TRAIN_VIT in build/cuda/train_vit build/cpu/train_vit; do [ ! -x "$TRAIN_VIT" ] || break; done
fi
rows=$("$PYTHON" scripts/tables.py --rows "$table") || exit 1
for wanted; do
    echo "$rows" | cut -d ' ' -f 1 | grep -qE "^([a-z0-9-]*-)?$wanted\$" || fail "$table has no row $wanted"
done
mkdir -p "$RUNS" || exit 1

# The runs of seed 0 are in the row's folder, or in the one with -seed0 if it is there.
folder_of() { # name, seed
    if [ "$2" = 0 ] && [ ! -d "$RUNS/$1-seed0" ]; then echo "$RUNS/$1"; else echo "$RUNS/$1-seed$2"; fi
}

setting() { sed -n "s/^$2 *= *//p" "$1/config.ini"; } # folder, name

finished() { # folder
    { [ -f "$1/last.safetensors" ] || [ -f "$1/best.safetensors" ]; } && [ -f "$1/config.ini" ] || return 1
    last=$(tail -n 1 "$1/log.csv" | cut -d , -f 2,7)
    [ "${last%,*}" = "$(setting "$1" epochs)" ] && { [ -n "${last#*,}" ] || [ "$(setting "$1" eval_every)" = 0 ]; }
}

result() { # folder, program
    last=$(tail -n 1 "$1/log.csv" | cut -d , -f 7)
    case $last,$2 in
    ,*) echo "not evaluated" ;;
    *,train_ar) echo "$last bits" ;;
    *,train_vit) echo "$last %" ;;
    *,train_semantic_fpn) echo "mIoU $last" ;;
    *) echo "box AP $last" ;;
    esac
}

# The weights that a row starts from: the best ones, or the last ones of a run that was never evaluated.
weights_of() { # folder
    if [ ! -f "$1/best.safetensors" ] && finished "$1"; then echo "$1/last.safetensors"; else echo "$1/best.safetensors"; fi
}

# The best weights of a density model, once, on the test split.
# shellcheck disable=SC2086
evaluate() { # program, folder
    [ "$1" = train_ar ] && [ ! -f "$2/test.txt" ] && [ -f "$2/best.safetensors" ] || return 0
    ${TRAIN_VIT%train_vit}$1 --init "$2/best.safetensors" --eval $EVAL </dev/null >"$2/test.txt.part" || exit
    mv "$2/test.txt.part" "$2/test.txt"
    echo "  on the test split: $(sed -n 's/^bits: //p' "$2/test.txt") bits"
}

# Names and settings hold no spaces.
# shellcheck disable=SC2086
echo "$rows" | while read -r name after program arguments; do
    for wanted; do
        case $name in "$wanted" | *-"$wanted") break ;; esac
        wanted=
    done
    [ $# -eq 0 ] || [ -n "$wanted" ] || continue
    extra="$EXTRA $warm_up"
    [ "$program" = train_vit ] || extra=$EXTRA
    size=64 # of a batch in a measurement
    case $table,$program in
    *,train_ar) size=16 ;;
    *,train_mask_rcnn | *,train_semantic_fpn) size=2 ;; # an eighth of the recipes' batch
    lisa-7,*) size=32 ;;                                # as in the paper
    esac
    config=${arguments#--config }
    config=${config%% *}
    [ -f "$config" ] || { echo "$name: $config is not there"; continue; }
    if [ "$bench" ]; then
        mkdir -p "$RUNS/$name"
        ${TRAIN_VIT%train_vit}$program $arguments $extra --bench --batch-size $size </dev/null \
            >"$RUNS/$name/bench.json.part" || exit 1
        mv "$RUNS/$name/bench.json.part" "$RUNS/$name/bench.json"
        echo "$name: $(sed 's/.*"train_\([a-z]*\)_per_s": \([0-9.]*\), "infer_[a-z]*_per_s": \([0-9.]*\).*/\2 and \3 \1/' \
            "$RUNS/$name/bench.json")/s in training and inference"
        continue
    fi
    for seed in $SEEDS; do
        folder=$(folder_of "$name" "$seed") weights=$(weights_of "$(folder_of "$after" "$seed")") init=
        [ "$after" = - ] || init="--init $weights"
        if finished "$folder"; then
            echo "$name, seed $seed: done before, $(result "$folder" "$program")"
        elif [ -f "$folder/state.safetensors" ]; then
            echo "$name, seed $seed: goes on"
            ${TRAIN_VIT%train_vit}$program --resume "$folder" </dev/null || exit
        elif [ -f "$folder/last.safetensors" ] || [ -f "$folder/best.safetensors" ]; then
            echo "$name, seed $seed: $folder has no state.safetensors to go on from: remove the folder to train anew"
            continue
        elif [ "$init" ] && [ ! -f "$weights" ]; then
            echo "$name, seed $seed: starts from $weights, which is not there: run $after first"
        else
            echo "$name, seed $seed"
            rm -f "$folder/log.csv" # of a run that ended within its first epoch
            ${TRAIN_VIT%train_vit}$program $arguments $init $extra --seed "$seed" --run-dir "$folder" </dev/null || exit
        fi
        evaluate "$program" "$folder"
    done
done
