#!/bin/sh
# Measures training, inference and peak memory of every operator of the league at 64, 196 and 784 tokens.  Writes CSV.
#
#   sh scripts/bench/league_speed.sh                      adds the missing rows to docs/league-speed.csv: all in seven minutes
#   OPERATORS="softmax lisa" sh scripts/bench/league_speed.sh
#
# The model is that of configs/cpu/study.ini with images of 32 x 32, 56 x 56 and 112 x 112 pixels, in float32, on one
# thread; nothing else should run.  Images per second are those of the median batch, memory is that of the whole process.
#
# OPERATORS     names (default: all of sh scripts/league.sh all)
# TOKENS        numbers of tokens (default 64 196 784)
# BATCH         images in a batch (default 8)
# SECONDS_EACH  seconds for training and for inference, at least three batches (default 0.3)
# CSV           file (default docs/league-speed.csv); its rows are not measured again
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -u
CDPATH='' cd "$(dirname "$0")/../.." || exit 1
export LC_ALL=C # awk reads and writes numbers with points

TRAIN_VIT=${TRAIN_VIT:-build/cpu/train_vit}
TOKENS=${TOKENS:-64 196 784}
BATCH=${BATCH:-8}
SECONDS_EACH=${SECONDS_EACH:-0.3}
CSV=${CSV:-docs/league-speed.csv}
header=operator,tokens,batch,train_images_per_s,infer_images_per_s,peak_bytes,device,date
all=$(sh scripts/league.sh all | awk '$3 == 10 && $4 == 1 && $1 !~ /[+]/') # one row for each operator
OPERATORS=${OPERATORS:-$(echo "$all" | cut -d ' ' -f 1)}

fail() { echo "scripts/bench/league_speed.sh: $*" >&2; exit 1; }

[ -x "$TRAIN_VIT" ] || fail "no $TRAIN_VIT: make first"
[ -s "$CSV" ] || echo "$header" >"$CSV"
[ "$(head -n 1 "$CSV")" = "$header" ] || fail "$CSV: unexpected columns: name another file"

for name in $OPERATORS; do
    flags=$(echo "$all" | sed -n "s/^$name [^ ]* [^ ]* [^ ]* *//p")
    echo "$all" | grep -q "^$name " || fail "OPERATORS: '$name' is not an operator of the league"
    for tokens in $TOKENS; do
        ! grep -q "^$name,$tokens,$BATCH," "$CSV" || continue
        side=$(awk -v n="$tokens" 'BEGIN { print 4 * int(sqrt(n) + .5) }')
        # shellcheck disable=SC2086 # a list
        json=$(OMP_NUM_THREADS=1 "$TRAIN_VIT" --config configs/cpu/study.ini --attn "$name" $flags --img-size "$side" \
            --batch-size "$BATCH" --micro-batch "$BATCH" --bench --bench-seconds "$SECONDS_EACH" 2>/dev/null) ||
            fail "$name at $tokens tokens: $TRAIN_VIT failed"
        value() { echo "$json" | sed -n "s/.*\"$1\": \([^,}]*\).*/\1/p"; }
        echo "$name,$tokens,$BATCH,$(value train_images_per_s),$(value infer_images_per_s),$(value peak_bytes),\"$(
            sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo 2>/dev/null | head -n 1), $(
            echo "$json" | sed -n 's/.*"device": "\([^"]*\)".*/\1/p')\",$(date +%Y-%m-%d)" | tee -a "$CSV"
    done
done
