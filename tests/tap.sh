# Common code of the tests of whole programs: a scratch folder, results in TAP (evidence after '# '), runs and their
# files. This file is sourced, not run.

# shellcheck shell=sh disable=SC2012,SC2013,SC2015,SC2034,SC2046,SC2086
set -u
umask 022 # some tests read their files as another user
root=$(CDPATH='' cd "$(dirname "$0")/../.." && pwd)
build=${BUILD:-build/cpu}
case $build in /*) ;; *) build=$root/$build ;; esac
vit=$build/train_vit
slow=${SLOW:-${VIT_TEST_QUICK:-0}}
LC_ALL=C
OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
OMP_WAIT_POLICY=passive
export LC_ALL OMP_NUM_THREADS OMP_WAIT_POLICY
# More ranks than cores, and as root: Open MPI 4 reads the names with OMPI, 5 those with PRTE.
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
OMPI_MCA_btl_vader_single_copy_mechanism=none
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe \
    PRTE_MCA_rmaps_default_mapping_policy OMPI_MCA_btl_vader_single_copy_mechanism
[ -x "$vit" ] || { echo "Bail out! $vit is not there: run make first"; exit 1; }
python= # one that has numpy, which the system's Python often has when the first in PATH does not
for candidate in ${PYTHON:-python3 /usr/bin/python3}; do
    [ -n "$python" ] || ! "$candidate" -c 'import numpy' 2>/dev/null || python=$candidate
done

work=$(mktemp -d) || exit 1
cleanup() {
    umount "$work/disk" 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT
# A signal to the script alone also ends the programs that it has in the background.
stop_all() {
    jobs -p >"$work/jobs"
    kill $(cat "$work/jobs") 2>/dev/null
    kill -s CONT $(cat "$work/jobs") 2>/dev/null
    wait # they may be saving into the folder
    exit "$1"
}
trap 'stop_all 130' INT
trap 'stop_all 143' TERM
cd "$work" || exit 1

# == Telling =========================================================================================================

count=0
failures=0

# check NAME STATUS [EVIDENCE]: passes when STATUS is 0.
check() {
    count=$((count + 1))
    verdict=ok
    [ "$2" -eq 0 ] || { verdict='not ok'; failures=$((failures + 1)); }
    echo "$verdict $count - $1${3:+ # $3}"
}

skip() {
    count=$((count + 1))
    echo "ok $count - $1 # SKIP $2"
}

# mixed_ranks NUMBER FIRST OTHERS: mpirun with the command FIRST for rank 0 and OTHERS for the rest, output and status
# as run's.  A shell distinguishes them, since the mpirun of Open MPI 5.0.7 dies of "mpirun -np 1 true : -np 1 true".
mixed_ranks() {
    timeout -k 5 100 "${MPIRUN:-mpirun}" -np "$1" sh -c \
        'if [ "$OMPI_COMM_WORLD_RANK" -eq 0 ]; then exec $0; else exec $1; fi' "$2" "$3" >out 2>err </dev/null
    status=$?
}

# run ARGUMENTS: the program's output in the files out and err, its exit status in $status.
run() {
    "$vit" "$@" >out 2>err
    status=$?
}

# complains STATUS WORDS: was that the exit status, and was the output on stderr one line with all of the words, which
# are separated by '|'?
complains() {
    [ "$status" -eq "$1" ] && [ "$(wc -l <err)" -eq 1 ] || return 1
    rest=$2
    while [ -n "$rest" ]; do
        grep -qF -e "${rest%%|*}" err || return 1
        case $rest in *'|'*) rest=${rest#*|} ;; *) rest= ;; esac
    done
}

# refuses NAME STATUS WORDS ARGUMENTS...
refuses() {
    name=$1 wanted=$2 words=$3
    shift 3
    run "$@"
    complains "$wanted" "$words"
    check "$name" $? "status $status, $(wc -l <err) line: $(head -n 1 err)"
}

# succeeds NAME ARGUMENTS...: exit status 0 and nothing on stderr.
succeeds() {
    name=$1
    shift
    run "$@"
    [ "$status" -eq 0 ] && [ ! -s err ]
    check "$name" $? "status $status $(head -n 1 err)"
}

# == Files ===========================================================================================================

# Eight bytes, little-endian.
number() {
    n=$1
    for _ in 1 2 3 4 5 6 7 8; do
        printf '%b' "\\0$(printf %o $((n % 256)))"
        n=$((n / 256))
    done
}

# safetensors FILE HEADER ZEROS [BYTES]: a file with that JSON, ZEROS zero bytes of data, and BYTES (for printf %b).
safetensors() {
    { number ${#2}; printf %s "$2"; head -c "$3" /dev/zero; printf '%b' "${4-}"; } >"$1"
}

header_size() { echo $((0 + $(head -c 8 "$1" | od -An -tu8))); }

# restate FROM TO OLD NEW: a copy in which the header has NEW in place of OLD (a basic regular expression).
restate() {
    header=$(head -c $((8 + $(header_size "$1"))) "$1" | tail -c +9 | sed "s/$3/$4/")
    { number ${#header}; printf %s "$header"; tensors "$1"; } >"$2"
}

# enlarge FROM TO WORD: a copy in which weights with WORD in their names are 3e38, nearly the largest number.  It needs
# $python, which has numpy.
enlarge() {
    "$python" - "$@" "$root/tests/reference" <<'END'
import sys
sys.path.insert(0, sys.argv[4])
import numpy, safetensors_io
tensors, metadata = safetensors_io.read(sys.argv[1])
for name in tensors:
    if sys.argv[3] in name and name.endswith("weight"):
        tensors[name] = numpy.full_like(tensors[name], 3e38)
safetensors_io.write(sys.argv[2], tensors, metadata)
END
}

# not_a_number FILE: its first number becomes NaN.
not_a_number() {
    printf '\000\000\300\177' | dd of="$1" bs=1 seek=$((8 + $(header_size "$1"))) conv=notrunc 2>/dev/null
}

# The bytes after the header, which contains names of folders and the length of a log with timings.
tensors() { tail -c +$((9 + $(header_size "$1"))) "$1"; }

# The run's position in state.safetensors, without the length of the log.
place() {
    head -c $((8 + $(header_size "$1"))) "$1" | sed 's/.*"vit\.c\.run":"\([^"]*\)".*/\1/' | cut -d ' ' -f 1-6,8-
}

# The log without images_per_s and stall, which are timings: eight columns, empty where the run does not have them.
curve() {
    awk -F , -v OFS=, '
        function cell(name) { return name in at ? $at[name] : "" }
        NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i }
        { print $1, $2, $3, $4, $5, cell("top1"), cell("top5"), cell("jsd") }' "$1/log.csv"
}

last_row() { tail -n 1 "$1/log.csv"; }

# cells RUN NAME,...: these columns of the last row, empty where the run does not have them.
cells() {
    awk -F , -v names="$2" '
        NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i }
        { row = "" }
        { n = split(names, name, ","); for (i = 1; i <= n; i++) row = row (i > 1 ? "," : "") (name[i] in at ? $at[name[i]] : "") }
        END { print row }' "$1/log.csv"
}

# same_run A B: weights, moments, average, position and log are the same bit for bit.
same_run() {
    for file in last best state; do
        tensors "$1/$file.safetensors" >tensors.1 && tensors "$2/$file.safetensors" >tensors.2 || return 1
        [ -s tensors.1 ] && cmp -s tensors.1 tensors.2 || { differs="$file.safetensors"; return 1; }
    done
    differs=log.csv
    curve "$1" >curve.1 && curve "$2" >curve.2 && cmp -s curve.1 curve.2 || return 1
    differs='place in the run'
    [ -n "$(place "$1/state.safetensors")" ] || return 1
    [ "$(place "$1/state.safetensors")" = "$(place "$2/state.safetensors")" ] || return 1
    differs=nothing
}

# curves_agree A B TOLERANCE: same rows, losses and gradient norms near each other; prints the worst.
curves_agree() {
    curve "$1" >curve.1
    curve "$2" >curve.2
    paste -d , curve.1 curve.2 | awk -F , -v tolerance="$3" '
        NR > 1 {
            rows++
            if ($1 != $9 || $2 != $10 || $4 != $12) wrong = 1
            for (i = 3; i <= 5; i += 2) { # loss, gradient norm
                error = ($i - $(i + 8)) / $(i + 8); if (error < 0) error = -error
                if (error > worst) worst = error
            }
        }
        END { printf "%d rows, worst loss or norm off by %.1e of itself, allowed %g", rows, worst, tolerance
              exit !(rows > 0 && !wrong && worst <= tolerance) }'
}

moment() { sleep 0.01 2>/dev/null || sleep 1; }

# wait_for PID PATTERN FILE: until the file has the line; false when the process ends first.
wait_for() {
    until grep -q "$2" "$3" 2>/dev/null; do
        kill -0 "$1" 2>/dev/null || return 1
        moment
    done
}

# stop_run SIGNAL PATTERN FILE ARGUMENTS: starts the program and sends the signal when FILE has the line; its exit
# status in $status.
stop_run() {
    stop_with=$1 stop_pattern=$2 stop_file=$3
    shift 3
    : >out
    "$vit" "$@" >out 2>err &
    pid=$!
    wait_for $pid "$stop_pattern" "$stop_file"
    kill -s "$stop_with" $pid 2>/dev/null
    wait $pid 2>/dev/null
    status=$?
}

# stops_run STATUS RUN SIGNAL PATTERN FILE ARGUMENTS...: stop_run without the folder RUN, repeated if the program ends
# before the signal; false if its exit status is not STATUS.
stops_run() {
    stop_status=$1 stopped_run=$2
    shift 2
    for _ in 1 2 3 4 5; do
        rm -rf "$stopped_run"
        stop_run "$@"
        [ "$status" -ne "$stop_status" ] || return 0
    done
    return 1
}

model='--dim 16 --depth 2 --heads 2 --patch-size 8'
tiny="$model --train-limit 64 --test-limit 32 --batch-size 16 --warmup-epochs 0"
