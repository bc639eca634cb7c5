#!/bin/sh
# Runs the tests of one build: every program $BUILD/tests/test_*, every script tests/*/test_*.sh, and the named scripts
# among tests/emulate/emulated_*.sh; all report in TAP.  Prints one line for each, the output of failing ones, and the
# totals; complete logs are in $BUILD/tests/*.log.
#
#   BUILD=build/cpu sh tests/run.sh [NAME...]      NAME: only these, as in test_rng
#   sh tests/run.sh --device-tests                 the names of those that ask a device for something: the programs that
#                                                  include tests/on_device.h, by themselves or by tests/differences.h
#
# VIT_TEST_QUICK=1    tests skip long parts (a sanitized build is many times slower)
# VIT_TEST_SHORT      names of tests that skip long parts
# VIT_TEST_TIMEOUT    seconds that one program may take
# VIT_TEST_JOBS       programs that run at once (default: the number of cores, at most 8)
# VIT_TEST_LAUNCHER   a command that runs programs of another machine: qemu-aarch64
# TOTALS=FILE         "passed failed" is added to this file instead of printed
#
# A test also counts as failed if it crashes, hangs, is missing, prints no report or only a part of its plan, or if its
# exit status contradicts its report.
set -u
CDPATH='' cd "$(dirname "$0")/.." || exit 1

if [ "${1:-}" = --device-tests ]; then
    grep -lE '^#include "tests/(on_device|differences)\.h"' tests/*/test_*.c | sed 's|.*/||; s|\.c$||'
    exit
fi

BUILD=${BUILD:-build/cpu}
limit=${VIT_TEST_TIMEOUT:-600}
cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
jobs=${VIT_TEST_JOBS:-$((cores < 8 ? cores : 8))}
: "${OMP_WAIT_POLICY:=passive}" # threads that spin while they wait block each other if there are too few cores
: "${ASAN_OPTIONS:=detect_leaks=0}" # a program that ends with a message leaves its memory to the system
export BUILD OMP_WAIT_POLICY ASAN_OPTIONS CMOCKA_MESSAGE_OUTPUT=TAP

# "passed failed skipped planned" of a TAP report.  cmocka 1.1.5 writes a skipped test as "not ok 3 # SKIP name", and a
# plan before each of its groups.
count_results() {
    awk '/^(not )?ok( |$)/ && /# *[Ss][Kk][Ii][Pp]/ { skipped++; next }
         /^ok( |$)/      { passed++ }
         /^not ok( |$)/  { failed++ }
         /^1\.\.[0-9]+/  { planned += substr($0, 4) }
         END { print passed + 0, failed + 0, skipped + 0, planned + 0 }' "$1"
}

# Prints a short log completely; of a long one the lines with errors, and its end.
show_log() {
    if [ "$(wc -l <"$1")" -le 60 ]; then
        cat "$1"
    else
        grep -nE '^not ok|^# |FAILED|ERROR|[Ee]rror:|SEED=' "$1" | head -n 60
        echo "..."
        tail -n 5 "$1"
        echo "(all of it: $1)"
    fi | sed 's/^/       | /'
}

run_limited() {
    if env --default-signal=INT,QUIT,HUP timeout 1 true 2>/dev/null; then
        # timeout makes a group of processes, which gets no signal of the terminal: this shell forwards them.  The
        # signals that env restores are ignored in a shell's background jobs and under nohup, and tests send them.
        env --default-signal=INT,QUIT,HUP timeout -k 10 "$limit" "$@" &
        trap "kill $! 2>/dev/null; wait; exit 143" INT TERM HUP
        wait $!
    elif command -v timeout >/dev/null 2>&1; then
        timeout -k 10 "$limit" "$@"
    else
        "$@"
    fi
}

# Prints the result in one piece, because other tests run at the same time, and adds "passed failed" to the file of
# results.
run_test() { # file of results, name, command...
    results=$1
    name=$2
    shift 2
    log=$BUILD/tests/$name.log
    case " ${VIT_TEST_SHORT:-} " in *" $name "*) export VIT_TEST_QUICK=1 ;; esac
    start=$(date +%s)
    run_limited "$@" >"$log" 2>&1 </dev/null
    status=$?
    seconds=$(($(date +%s) - start))
    # shellcheck disable=SC2046 # four numbers
    set -- $(count_results "$log")
    passed=$1 failed=$2 skipped=$3 planned=$4

    trouble=
    if [ "$status" -eq 124 ]; then
        trouble="did not end within $limit s"
    elif [ "$status" -gt 128 ]; then
        trouble="killed by signal $((status - 128))"
    elif [ $((passed + failed + skipped)) -lt "$planned" ]; then
        trouble="only $((passed + failed + skipped)) of $planned tests reported"
    elif [ $((passed + failed + skipped)) -eq 0 ]; then
        trouble="no result"
    elif [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then
        trouble="exit status $status, though no test failed"
    elif [ "$status" -eq 0 ] && [ "$failed" -ne 0 ]; then
        trouble="exit status 0, though tests failed"
    fi
    [ -z "$trouble" ] || failed=$((failed + 1))

    verdict=ok
    [ "$failed" -eq 0 ] || verdict=FAILED
    details="$passed passed"
    [ "$failed" -eq 0 ] || details="$details, $failed failed"
    [ "$skipped" -eq 0 ] || details="$details, $skipped skipped"
    report=$(
        printf '%-6s %-24s %3d s  %s%s\n' "$verdict" "$name" "$seconds" "$details" "${trouble:+: $trouble}"
        [ "$failed" -eq 0 ] || show_log "$log"
    )
    printf '%s\n' "$report"
    echo "$passed $failed" >>"$results"
}

if [ "${1:-}" = --one ]; then # file of results, source
    unset TOTALS # a test of this script does not count there
    name=$(basename "${3%.*}")
    # shellcheck disable=SC2086 # the launcher: a command and its options, or nothing
    case $3 in
    *.c) run_test "$2" "$name" ${VIT_TEST_LAUNCHER:-} "$BUILD/tests/$name" ;;
    *) run_test "$2" "$name" sh "$3" ;;
    esac
    exit 0
fi

wanted() { # name, names...
    name=$1
    shift
    [ $# -ne 0 ] || return 0
    for one; do [ "$one" != "$name" ] || return 0; done
    return 1
}

mkdir -p "$BUILD/tests" || exit 1
results=$(mktemp) || exit 1
trap 'rm -f "$results"' EXIT
trap 'exit 130' INT TERM

# The longest tests first, which are the scripts and the whole models, so that no long test remains for one core at the
# end.
sources=$(for source in tests/*/test_*.sh tests/layers/test_model.c tests/emulate/emulated_*.sh tests/*/test_*.c; do
    case $source in */emulated_*) [ $# -ne 0 ] || continue ;; esac
    [ -e "$source" ] && wanted "$(basename "${source%.*}")" "$@" && echo "$source"
done | awk '!seen[$0]++')
same=$(echo "$sources" | sed 's|.*/||; s|\..*||' | sort | uniq -d)
if [ "$same" ]; then
    echo "two tests of one name would write one log: $same"
    echo 0 1 >>"$results"
elif [ "$sources" ]; then
    echo "$sources" | xargs -n 1 -P "$jobs" sh tests/run.sh --one "$results"
    [ "$(echo "$sources" | wc -l)" -eq "$(wc -l <"$results")" ] || echo 0 1 >>"$results" # one was stopped from outside
elif [ $# -eq 0 ]; then
    echo "no tests found: tests/*/test_*"
    echo 0 1 >>"$results"
fi
for name; do
    echo "$sources" | sed 's|.*/||; s|\..*||' | grep -qxF -e "$name" && continue
    echo "no test found: $name"
    echo 0 1 >>"$results"
done

all_passed=$(awk '{ sum += $1 } END { print sum + 0 }' "$results")
all_failed=$(awk '{ sum += $2 } END { print sum + 0 }' "$results")
if [ "${TOTALS:-}" ]; then
    echo "$all_passed $all_failed" >>"$TOTALS"
else
    echo "$all_passed passed, $all_failed failed"
fi
[ "$all_failed" -eq 0 ]
