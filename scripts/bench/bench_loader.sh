#!/bin/sh
# Compares the speed of loading images (RandomResizedCrop(224) and flip) with torchvision and Pillow on the same files.
#
#   sh scripts/bench/bench_loader.sh FOLDER      FOLDER/train/<class>/*.JPEG, a few hundred pictures
#
#   PYTHON=python3     a Python with torch, torchvision and Pillow; without one only train_vit's loader is measured
#   FFCV_PYTHON=       a Python with ffcv, to compare with FFCV as well
#   ROUNDS=3           number of rounds, in which the loaders alternate; the best of all rounds is reported
#   SECONDS_EACH=3     seconds for one measurement
#   PRIORITY=          a command prefix, for instance "chrt -r 1" on a machine that is shared with others
#   WORKERS="1 2"      numbers of threads for which the scaling is measured
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -u
CDPATH='' cd "$(dirname "$0")/../.." || exit 1
export LC_ALL=C # awk reads and writes numbers with points
data=${1:?"usage: sh scripts/bench/bench_loader.sh FOLDER (with train/<class>/*.JPEG in it)"}
PYTHON=${PYTHON:-python3}
ROUNDS=${ROUNDS:-3}
SECONDS_EACH=${SECONDS_EACH:-3}
FFCV_PYTHON=${FFCV_PYTHON:-}
PRIORITY=${PRIORITY:-}
WORKERS=${WORKERS:-1 2}
build=build/cpu
make -s "$build/pack_dataset" "$build/tests/bench_loader" >/dev/null || exit 1
bench=$build/tests/bench_loader

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
"$build/pack_dataset" --data "$data" --out "$scratch/files-train.pack" >/dev/null || exit 1
"$build/pack_dataset" --data "$data" --out "$scratch/jpeg-train.pack" --resize 256 >/dev/null || exit 1
"$build/pack_dataset" --data "$data" --out "$scratch/raw-train.pack" --resize 256 --raw >/dev/null || exit 1
export OMP_NUM_THREADS=1

note() { # KEY VALUE: kept if it is the smallest so far
    [ -n "$2" ] && echo "$1 $2" >>"$scratch/figures"
}
ms() { sed -n 's/.*"ms": \([0-9.]*\).*/\1/p'; }
inverse() { sed -n 's/.*"images_per_s": \([0-9.]*\).*/\1/p' | awk '{ print 1000 / $1 }'; }

for _ in $(seq "$ROUNDS"); do
    note torchvision \
        "$($PRIORITY "$PYTHON" scripts/bench/bench_loader.py torchvision "$data" "$SECONDS_EACH" 2>/dev/null | ms)"
    [ -z "$FFCV_PYTHON" ] ||
        note ffcv "$($PRIORITY "$FFCV_PYTHON" scripts/bench/bench_loader.py ffcv "$data" "$SECONDS_EACH" 2>/dev/null | ms)"
    note decode "$($PRIORITY "$bench" --decode "$scratch/files-train.pack" "$SECONDS_EACH" | ms)"
    note folder "$($PRIORITY "$bench" "$data" 0 "$SECONDS_EACH" | ms)"
    for kind in files jpeg raw; do
        note $kind "$($PRIORITY "$bench" "$scratch/$kind-train.pack" 0 "$SECONDS_EACH" | ms)"
    done
    for workers in $WORKERS; do
        note "pool-$workers" "$($PRIORITY "$bench" "$scratch/files-train.pack" "$workers" "$SECONDS_EACH" | inverse)"
    done
done

sort -k1,1 -k2,2n "$scratch/figures" | awk '
    !($1 in best) { best[$1] = $2 }
    function row(key, what) {
        if (!(key in best)) return
        printf "%-58s %7.3f ms", what, best[key]
        if ("torchvision" in best) printf "  %5.2f x torchvision", best["torchvision"] / best[key]
        printf "\n"
    }
    END {
        row("torchvision", "torchvision, Pillow")
        row("ffcv", "FFCV, its own JPEGs of quality 95")
        row("decode", "libjpeg-turbo, all of each picture, nothing else")
        row("folder", "folder")
        row("files", "packed files")
        row("jpeg", "packed, shorter side 256, JPEG 95")
        row("raw", "packed, shorter side 256, pixels")
        for (n = 1; n <= 1024; n++) {
            if (!(("pool-" n) in best)) continue
            if (!first) first = best["pool-" n] * n
            printf "%-58s %7.3f ms  %.0f images/s, %.0f %% of %d times one\n", "packed files, pool of " n,
                best["pool-" n], 1000 / best["pool-" n], 100 * first / (best["pool-" n] * n), n
        }
    }'
