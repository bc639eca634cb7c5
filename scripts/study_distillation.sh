#!/bin/sh
# Does a convolutional teacher help a small vision transformer (docs/guide/distillation.md)?  Trains a teacher on CIFAR-100, and
# for every seed the students of configs/cpu/study.ini with softmax attention, with and without it.
#
#   sh scripts/study_distillation.sh          trains the runs that are not in the CSV, one after the other
#   sh scripts/study_distillation.sh table    means and standard errors of the existing rows
#
# A run has one thread and the lowest priority.  If it is interrupted, the next call continues from its last saved
# state. Accuracy is that of the last epoch on the test images, which influence no choice.
#
# DATA      folder with cifar-100-binary (default datasets, where scripts/fetch_cifar.sh cifar100 puts it)
# EPOCHS    of the teacher and of every student (default 30)
# SEEDS     of the students (default "1 2 3")
# CSV       the file of the rows (default docs/distillation.csv)
# WORK      folder of the runs, in which the teacher is kept (default build/distillation)
# TRAIN_VIT the program (default build/cpu/train_vit)
# TEACHER   the teacher's settings; others need another CSV and WORK (default "--attn dwconv7 --dim 96": depthwise 7x7
#           convolutions, twice as wide as the students)
# LIMIT     number of training and test images, for a trial, whose CSV and WORK are in build/distillation-LIMIT unless
#           they are given (default 0, all)
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -u
CDPATH='' cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C # awk reads and writes numbers with points
DATA=${DATA:-datasets} EPOCHS=${EPOCHS:-30} SEEDS=${SEEDS:-1 2 3} LIMIT=${LIMIT:-0}
TEACHER=${TEACHER:---attn dwconv7 --dim 96}
[ "$LIMIT" = 0 ] || WORK=${WORK:-build/distillation-$LIMIT}
[ "$LIMIT" = 0 ] || CSV=${CSV:-$WORK/rows.csv}
CSV=${CSV:-docs/distillation.csv} WORK=${WORK:-build/distillation} TRAIN_VIT=${TRAIN_VIT:-build/cpu/train_vit}
HEADER=model,epochs,seed,top1,top5,val_loss,seconds,date

fail() { echo "scripts/study_distillation.sh: $*" >&2; exit 1; }

table() {
    awk -F , 'NR > 1 { n[$1 "," $2]++; sum[$1 "," $2] += $4; squares[$1 "," $2] += $4 * $4 }
        END { for (m in n) {
            mean = sum[m] / n[m]
            printf "%-32s %6.2f %%", m, mean
            spread = squares[m] - n[m] * mean * mean
            if (n[m] > 1) printf "  standard error %.2f of %d", sqrt(spread > 0 ? spread / (n[m] - 1) / n[m] : 0), n[m]
            print ""
        } }' "$CSV" | sort
}

# train NAME SEED FLAGS: until the row is in the CSV.
train() {
    name=$1 seed=$2
    shift 2
    grep -q "^$name,$EPOCHS,$seed," "$CSV" && return
    run=$WORK/$name-$EPOCHS-$seed
    if [ -f "$run/state.safetensors" ]; then
        set -- --resume "$run"
    else
        rm -rf "$run"
        set -- --config configs/cpu/study.ini --epochs "$EPOCHS" --seed "$seed" --train-limit "$LIMIT" \
            --test-limit "$LIMIT" "$@" --run-dir "$run"
    fi
    echo "$name, $EPOCHS epochs, seed $seed"
    OMP_NUM_THREADS=1 nice -n 19 "$TRAIN_VIT" "$@" --data-dir "$DATA" >>"$run.out" 2>&1 ||
        fail "$name, seed $seed: $(tail -n 1 "$run.out")"
    row=$(awk -F , -v OFS=, -v epochs="$EPOCHS" -v start="$name,$EPOCHS,$seed" -v date="$(date +%Y-%m-%d)" '
        NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
        $at["top1"] != "" && $at["epoch"] == epochs {
            row = start OFS $at["top1"] OFS $at["top5"] OFS $at["val_loss"] OFS $at["wall_s"] OFS date
        }
        END { print row }' "$run/log.csv")
    [ -n "$row" ] || fail "$name, seed $seed: no accuracy of epoch $EPOCHS in $run/log.csv"
    echo "$row" >>"$CSV"
}

case ${1:-} in
table) table && exit ;;
'') ;;
*) fail "$1: expected table, or nothing" ;;
esac
[ -x "$TRAIN_VIT" ] || fail "$TRAIN_VIT is not there: run make first, or set TRAIN_VIT"
mkdir -p "$WORK"
[ -f "$CSV" ] || echo "$HEADER" >"$CSV"

teacher=$WORK/teacher-$EPOCHS-1/last.safetensors
# shellcheck disable=SC2086 # settings are a list of words
train teacher 1 $TEACHER
[ -f "$teacher" ] || fail "$teacher is not there: remove the teacher's row from $CSV, and it is trained again"
for seed in $SEEDS; do
    train alone "$seed" --attn softmax
    train alone-token "$seed" --attn softmax --pool cls --distilled true
    train hard "$seed" --attn softmax --teacher "$teacher" --distillation hard
    train soft "$seed" --attn softmax --teacher "$teacher" --distillation soft
    train hard-token "$seed" --attn softmax --pool cls --distilled true --teacher "$teacher" --distillation hard
    train soft-token "$seed" --attn softmax --pool cls --distilled true --teacher "$teacher" --distillation soft
done
table
