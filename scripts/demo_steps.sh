#!/bin/sh
# Steps of every demo, for scripts/demo*.sh, which read this file: missing packages, and a training.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac

# Threads that spin while they wait slow a shared machine down many times.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"

export LC_ALL=C # awk reads and writes numbers with points

sh scripts/deps.sh demo
python=${PYTHON:-python3}
command -v "$python" >/dev/null 2>&1 || python=/usr/bin/python3
# shellcheck disable=SC2034 # for the scripts that read this file
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

# Removes only files of an earlier demo from the run's folder: those of a training, and FILES; other files remain.
train() { # program, config, run, FILES, settings...
    program=$1 config=$2 folder=$3 files=$4
    shift 4
    if [ -e "$folder/log.csv" ]; then
        echo "== removing the previous demo from $folder"
        # shellcheck disable=SC2086 # a list
        (cd "$folder" && rm -f config.ini log.csv best.safetensors last.safetensors state.safetensors report.html \
            report.json $files)
    fi
    status=0
    "./build/cpu/$program" --config "$config" --run-dir "$folder" "$@" || status=$?
    if [ "$status" -ne 0 ]; then
        [ "$status" -le 128 ] || echo "interrupted; continue with ./build/cpu/$program --resume $folder"
        exit "$status"
    fi
}
