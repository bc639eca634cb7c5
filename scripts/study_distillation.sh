#!/bin/sh
# Does a convolutional teacher help a small vision transformer (docs/guide/distillation.md)?  Trains a teacher on CIFAR-100, and
# for every seed the students of configs/cpu/study.ini with softmax attention, with and without it.
#
#   sh scripts/study_distillation.sh          trains the runs that are not in the CSV, one after the other; once the
#                                             teacher is trained, several calls with other MODELS or SEEDS may run at once
#   sh scripts/study_distillation.sh table    means and standard errors of the existing rows
#
# A run has one thread and the lowest priority.  If it is interrupted, the next call continues from its last saved
# state. Accuracy is that of the last epoch on the test images, which influence no choice.
#
# DATA      folder with cifar-100-binary (default datasets, where scripts/fetch_cifar.sh cifar100 puts it)
# EPOCHS    of every student (default 10); TEACHER_EPOCHS: of the teacher (default twice as many)
# SEEDS     of the students (default "1 2 3")
# MODELS    students: alone learns from the labels; hard and soft also from the teacher; a student whose name ends in
#           -token has a distillation token (default "alone alone-token hard soft hard-token soft-token")
# PRECISION default float32
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
DATA=${DATA:-datasets} EPOCHS=${EPOCHS:-10} SEEDS=${SEEDS:-1 2 3} LIMIT=${LIMIT:-0} PRECISION=${PRECISION:-float32}
TEACHER_EPOCHS=${TEACHER_EPOCHS:-$((2 * EPOCHS))} MODELS=${MODELS-alone alone-token hard soft hard-token soft-token}
TEACHER=${TEACHER:---attn dwconv7 --dim 96}
[ "$LIMIT" = 0 ] || WORK=${WORK:-build/distillation-$LIMIT}
[ "$LIMIT" = 0 ] || CSV=${CSV:-$WORK/rows.csv}
CSV=${CSV:-docs/distillation.csv} WORK=${WORK:-build/distillation} TRAIN_VIT=${TRAIN_VIT:-build/cpu/train_vit}
HEADER=model,precision,epochs,teacher_epochs,seed,top1,top5,val_loss,seconds,date

fail() { echo "scripts/study_distillation.sh: $*" >&2; exit 1; }

table() {
    [ -f "$CSV" ] || fail "$CSV: there are no rows yet"
    awk -F , 'NR > 1 {
            row = $1 ", " $2 ", " $3 " epochs" ($4 ? ", teacher " $4 : "")
            n[row]++; sum[row] += $6; squares[row] += $6 * $6
        }
        END { for (m in n) {
            mean = sum[m] / n[m]
            printf "%-48s %6.2f %%", m, mean
            spread = squares[m] - n[m] * mean * mean
            if (n[m] > 1) printf "  standard error %.2f of %d", sqrt(spread > 0 ? spread / (n[m] - 1) / n[m] : 0), n[m]
            print ""
        } }' "$CSV" | sort
}

# train NAME EPOCHS TEACHER_EPOCHS SEED FLAGS: until the row is in the CSV.
train() {
    name=$1 epochs=$2 seed=$4 row=$1,$PRECISION,$2,$3,$4
    shift 4
    grep -q "^$row," "$CSV" && return
    run=$WORK/$(echo "$row" | tr , -)
    if [ -f "$run/state.safetensors" ]; then
        set -- --resume "$run"
    else
        rm -rf "$run"
        set -- --config configs/cpu/study.ini --epochs "$epochs" --seed "$seed" --train-limit "$LIMIT" \
            --test-limit "$LIMIT" --precision "$PRECISION" "$@" --run-dir "$run"
    fi
    echo "$name, $epochs epochs, seed $seed"
    OMP_NUM_THREADS=1 nice -n 19 "$TRAIN_VIT" "$@" --data-dir "$DATA" >>"$run.out" 2>&1 ||
        fail "$name, seed $seed: $(tail -n 1 "$run.out")"
    row=$(awk -F , -v OFS=, -v epochs="$epochs" -v start="$row" -v date="$(date +%Y-%m-%d)" '
        NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
        $at["top1"] != "" && $at["epoch"] == epochs {
            row = start OFS $at["top1"] OFS $at["top5"] OFS $at["val_loss"] OFS $at["wall_s"] OFS date
        }
        END { print row }' "$run/log.csv")
    [ -n "$row" ] || fail "$name, seed $seed: no accuracy of epoch $epochs in $run/log.csv"
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

teacher=$WORK/teacher-$PRECISION-$TEACHER_EPOCHS--1/last.safetensors
for student in $SEEDS; do
    for model in $MODELS; do
        set -- --attn softmax
        learned= # the epochs of its teacher
        case $model in *-token) set -- "$@" --pool cls --distilled true ;; esac
        case $model in
        alone | alone-token) ;;
        hard | hard-token | soft | soft-token)
            # shellcheck disable=SC2086 # settings are a list of words
            train teacher "$TEACHER_EPOCHS" "" 1 $TEACHER
            [ -f "$teacher" ] || fail "$teacher is not there: remove the teacher's row from $CSV, and it is trained again"
            set -- "$@" --teacher "$teacher" --distillation "${model%-token}"
            learned=$TEACHER_EPOCHS
            ;;
        *) fail "MODELS: $model: expected alone, hard or soft, each also with -token" ;;
        esac
        train "$model" "$EPOCHS" "$learned" "$student" "$@"
    done
done
table
