#!/bin/sh
# Bytes of device memory that a step of training moves, kernel by kernel, counted in the emulated build: the sectors of
# 32 bytes that blocks read and write, and the lower bound, each byte once for each launch (tests/emulate/traffic.h).
# Library calls count their operands once.  tests/emulate/emulated_bytes.txt has the expected values: operator, kernel,
# bytes moved, lower bound, bytes requested by threads.  The test fails if a kernel moves a larger multiple of its lower
# bound, or a step more bytes.
#
#   make BACKEND=emulate PRECISION=BF16 counted
#   BUILD=build/emulate-BF16 sh tests/emulate/emulated_bytes.sh
#   WRITE=1 ...       writes tests/emulate/emulated_bytes.txt
#   BUILD=... sh tests/emulate/emulated_bytes.sh --attn reduced --reduction 2     a table for other settings

# shellcheck disable=SC2046,SC2086 # settings are lists of words
BUILD=${BUILD:-build/emulate-BF16}/counted
ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0}
VIT_STANDIN_PROCESSORS=2 # one image for each, like 128 images on a GPU of 132
export ASAN_OPTIONS VIT_STANDIN_PROCESSORS
. "$(dirname "$0")/../tap.sh"
expected=$root/tests/emulate/emulated_bytes.txt

# Two blocks on 16 x 16 tokens, heads of 32 channels.
model="--dim 96 --heads 3 --depth 2 --patch-size 2 --test-limit 1 --batch-size 2 --warmup-epochs 0 --epochs 1
       --log-every 100 --mixup 0 --cutmix 0"

# bytes_of SETTINGS: "OPERATOR KERNEL MOVED FLOOR ASKED" of one step, the difference between two steps and one.  A
# kernel that ran and was not counted has 0.
bytes_of() {
    for steps in 1 2; do
        VIT_STANDIN_COUNTS=bytes.$steps run $model "$@" --train-limit $((2 * steps)) --run-dir counted
        [ "$status" -eq 0 ] || { echo "# $*: status $status: $(head -n 1 err)" >&2; return 1; }
        rm -rf counted
    done
    awk -v operator="$2" '
        { name = $1 == "moved" ? $5 : $3; sub(/^\(/, "", name); sub(/[<)].*/, "", name) }
        NR == FNR && $1 == "ran" { before[name] += $2 }
        NR == FNR && $1 == "moved" { moved[name] -= $2; least[name] -= $3; asked[name] -= $4 }
        NR == FNR { next }
        $1 == "ran" { more[name] += $2 }
        $1 == "moved" { moved[name] += $2; least[name] += $3; asked[name] += $4 }
        END {
            for (name in more) if (more[name] > before[name])
                print operator, name, moved[name] + 0, least[name] + 0, asked[name] + 0
        }' bytes.1 bytes.2 | sort -k3,3nr
}

if [ $# -gt 0 ]; then
    bytes_of "$@" | awk '$4 { printf "%-36s %9d moved, %6.2f of its floor; %6.2f asked\n", $2, $3, $3 / $4, $5 / $4 }
                         !$4 { print $2, "is not counted" }'
    exit
fi
operators="softmax linear ripple lisa gf"
for operator in $operators; do # two at a time
    [ $operator != lisa ] || set -- --lisa-algo fft
    mkdir $operator
    (cd $operator && bytes_of --attn $operator "$@" >bytes) &
    [ $operator = softmax ] || [ $operator = ripple ] || wait
    set --
done
wait
cat $(printf '%s/bytes ' $operators) >now
[ -z "${WRITE:-}" ] || cp now "$expected"

[ "$(cut -d ' ' -f 1 now | sort -u)" = "$(printf '%s\n' $operators | sort)" ]
check "every operator has run" $? "$(cut -d ' ' -f 1 now | sort -u | tr '\n' ' ')"
awk '$3 == 0 { print $1 ": " $2; found = 1 } END { exit found }' now >uncounted
check "every kernel is counted" $? "$(tr '\n' ' ' <uncounted)"
awk 'function ratio() { return $4 ? $3 / $4 : 0 }
     NR == FNR { known[$1 " " $2] = ratio(); next }
     ratio() > 1.01 * (known[$1 " " $2] ? known[$1 " " $2] : 1.3) {
         printf "%s: %s moves %.2f of its floor, %.2f before ", $1, $2, ratio(), known[$1 " " $2]; found = 1
     }
     END { exit found }' "$expected" now >grown
check "no kernel moves more of its floor than before" $? "$(cat grown)"
awk 'NR == FNR { known[$1] += $3; next }
     { moved[$1] += $3; least[$1] += $4 }
     END {
         for (a in moved) {
             printf "%s %.0f kB, floor %.0f kB, ratio %.2f; ", a, moved[a] / 1e3, least[a] / 1e3, moved[a] / least[a]
             if (moved[a] > 1.01 * known[a]) found = 1
         }
         exit found
     }' "$expected" now >steps
check "no step moves more bytes than before" $? "$(cat steps)"
echo "1..$count"
[ $failures -eq 0 ]
