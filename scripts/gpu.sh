#!/bin/sh
# Builds, tests and measures everything that needs a GPU, and prints a table of the results.
#
#   sh scripts/gpu.sh                      all stages except those of the data, on a machine with a GPU and the CUDA toolkit
#   sh scripts/gpu.sh build test parity    only these stages, in this order
#
# A GPU may be available for 15, 30 or 45 minutes only, in a bare machine without compiler, libraries and network, whose
# Python has PyTorch.  Every command gets a copy of the tree, of at most 64 MiB, and returns the files in $OUT, a folder
# that is emptied before each command.
#
#   sh scripts/gpu.sh plan       prints the commands for such a machine, with the files to send and to return
#   sh scripts/gpu.sh bundle     before the first one: builds everything into build/gpu.tar.xz, and what the stage train
#                                needs into build/gpu-train.tar.xz; the stage build unpacks them there
#   sh scripts/gpu.sh parts      before the second session: splits CIFAR-100 into build/gpu-send/
#
#   build      unpacks the bundle if there is one, otherwise builds both precisions, their tests and benchmarks
#   test       the kernel tests in both precisions, eight at a time, with random inputs; float32's test_model reduced
#   alone      float32's test_model in full: more than 100,000 forward passes, which need the GPU for themselves
#   parity     whole models, CUDA against CPU
#   sanitize   compute-sanitizer: memcheck and racecheck, on reduced cases
#   bench      images per second of vit.c and PyTorch: DeiT-tiny 224, and 16 x 16 tokens with softmax, linear, ripple;
#              what gpu.csv has already is not measured again
#   attention  flash softmax against F.scaled_dot_product_attention, head dims 32 and 64
#   block      one LiSA block against one softmax block, and LiSA in PyTorch (scripts/bench/bench_block.sh); the blocks of lisa
#              and gf with transforms in shared memory and by cuFFT
#   detector   train_detr's three encoders at 800 x 1066
#   receive    keeps the parts in build/gpu-send, joins and unpacks complete files
#   train      trains the ROWS of Table 2 one after another, in the background: waits until BUDGET is nearly spent or
#              they are done, and goes on training after that; a run that was sent is continued
#   state      what the runs need to be continued elsewhere, or their best weights if they are done, split into files
#   table      prints the results, vit.c's compared with the faster of PyTorch's modes
#
#   OUT=build/gpu-out     folder for the files to return: gpu.csv, one result a line (stage,case,who,metric,value),
#                         gpu.log, the output of all commands, block.csv, a log for each run, runs.tar.1-of-4 ...
#   KEEP=/tmp/vit.c-gpu   folder outside the tree that outlasts a command: the same files, data and runs
#   BUDGET=0              seconds after which this call does not start or continue work (0: no limit)
#   LIMIT=540             time limit for one program in seconds
#   AT_ONCE=8             number of tests at a time
#   ROWS="ripple-no-ape deit-la-no-ape"   files in configs/cifar100
#   STEPS=20              number of steps in measurements of PyTorch
#   PYTHON=python3        a Python with torch and timm
#   MODES="compile eager"
#   CSV=$KEEP/gpu.csv     input of the stage table
#   GPU_BUILDS="build/cuda-fp32 build/cuda"   the builds in float32 and bfloat16
#   GPU_REHEARSAL=1       tiny sizes and no GPU: tests/project/test_gpu_plan.sh runs the plan with it and other builds
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -u
CDPATH='' cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C # awk reads and writes numbers with points
started=$(date +%s)
OUT=${OUT:-build/gpu-out}
KEEP=${KEEP:-${TMPDIR:-/tmp}/vit.c-gpu}
BUDGET=${BUDGET:-0}
LIMIT=${LIMIT:-540}
AT_ONCE=${AT_ONCE:-8}
ROWS=${ROWS:-ripple-no-ape deit-la-no-ape}
STEPS=${STEPS:-20}
PYTHON=${PYTHON:-python3}
MODES=${MODES:-compile eager}
CSV=${CSV:-$KEEP/gpu.csv}
GPU_BUILDS=${GPU_BUILDS:-build/cuda-fp32 build/cuda}
FP32=${GPU_BUILDS% *} BF16=${GPU_BUILDS#* }
REHEARSAL=${GPU_REHEARSAL:-}

BUNDLE=build/gpu.tar.xz
TRAIN_BUNDLE=build/gpu-train.tar.xz
SEND=build/gpu-send
SENT_MAX=46  # MiB of one part: below 64 with the tree
BACK_MAX=16  # MiB of one returned file
BACK_ALL=64  # MiB of all returned files
BACK_FILES=8
JOBS=$(getconf _NPROCESSORS_ONLN)
LONG_TESTS="test_model test_detr test_resnet" # started first, and in bfloat16 first
ALONE=test_model
DETECTOR="--image-size 800x1066 --batch-size 2"
HEADER=stage,case,who,metric,value

DICTIONARIES="dict=256MiB dict=128MiB dict=64MiB dict=16MiB" # of xz
SECONDS_EACH=5
LARGE="--img-size 224 --patch-size 16 --dim 192 --depth 12 --heads 6 --num-classes 1000 --batch-size 512"
SMALL="--img-size 32 --patch-size 2 --dim 192 --depth 12 --heads 6 --num-classes 100 --batch-size 512"
GRIDS=${GRIDS:-7 14 28 56 84}
SHARES="1 1" # divisors of bench_attention's numbers of images and tokens
if [ "$REHEARSAL" ]; then
    DICTIONARIES=preset=0 SECONDS_EACH=0.1 STEPS=1 GRIDS=2 SHARES="512 256"
    LARGE="--img-size 16 --patch-size 8 --dim 32 --depth 1 --heads 2 --num-classes 10 --batch-size 2"
    SMALL="--img-size 8 --patch-size 2 --dim 32 --depth 1 --heads 2 --num-classes 10 --batch-size 2"
    ROUNDS=1 BATCH=1 OPERATORS="linear ripple" TESTS=${TESTS:-test_masked} LONG_TESTS= ALONE=test_masked
    DETECTOR="--image-size 32x48 --batch-size 1 --backbone-blocks 1,1,1,1 --backbone-width 4 --dim 16 --ffn 24 --heads 2
        --encoder-layers 1 --decoder-layers 1 --queries 9"
    VIT_TEST_REDUCED=1 ASAN_OPTIONS=detect_leaks=0 # of the emulator
    export ROUNDS BATCH OPERATORS VIT_TEST_REDUCED ASAN_OPTIONS
fi
TESTS=${TESTS:-$(sh tests/run.sh --device-tests)}

# The toolkit's libraries and those that PyTorch brings, only for vit.c's programs: with them PyTorch might load another
# cuBLAS than its own.
nvidia=$("$PYTHON" -c 'import glob, nvidia; print(":".join(glob.glob(list(nvidia.__path__)[0] + "/*/lib")))' \
    2>/dev/null)
OUR_LIBRARIES=${CUDA_HOME:-/usr/local/cuda}/lib64${nvidia:+:$nvidia}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
export PATH

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
failures=0

fail() {
    echo "scripts/gpu.sh $*" >&2
    exit 1
}

# == Results ==========================================================================================================

# The results of earlier commands are returned with those of this one.
open_results() {
    [ ! -e "$OUT" ] || [ -d "$OUT" ] || fail "$1: OUT=$OUT is a file: name a folder"
    mkdir -p "$OUT" "$KEEP" || fail "$1: cannot make the folders OUT=$OUT and KEEP=$KEEP"
    [ -s "$KEEP/gpu.csv" ] || echo "$HEADER" >"$KEEP/gpu.csv"
    touch "$KEEP/gpu.log"
    cp "$KEEP/gpu.csv" "$KEEP/gpu.log" "$OUT" || fail "$1: cannot write to OUT=$OUT"
    [ ! -s "$KEEP/block.csv" ] || cp "$KEEP/block.csv" "$OUT"
}

add() { # stage, case, who, metric, value
    echo "$1,$2,$3,$4,$5" | tee -a "$KEEP/gpu.csv" "$OUT/gpu.csv"
}

has() { # stage, case, who: is it measured?
    grep -qF "$1,$2,$3," "$KEEP/gpu.csv"
}

log() { tee -a "$KEEP/gpu.log" >>"$OUT/gpu.log"; }

# Seconds until BUDGET is spent.
left() { [ "$BUDGET" -eq 0 ] && echo 1000000 || echo $((started + BUDGET - $(date +%s))); }

# Seconds that a program may take: LIMIT, or what is left of BUDGET.
limit() { time=$(left) && echo $((time < LIMIT ? time : LIMIT)); }

# Runs a command with a time limit; prints its last lines if it fails, and more of them to gpu.log.  If `fails_with` is
# set, another status that is no time-out or crash, without a failed test, means that the command could not run.
run() { # stage, what, command...
    its_stage=$1 its_name=$2
    shift 2
    time=$(limit)
    if [ "$time" -lt 5 ]; then
        add "$its_stage" "$its_name" check left_out 1
        return 1
    fi
    start=$(date +%s)
    timeout -k 10 "$time" "$@" >"$scratch/out" 2>"$scratch/err"
    status=$?
    took=$(($(date +%s) - start))
    { echo "== $its_stage: $its_name: status $status, $took s" && tail -n 400 "$scratch/out" "$scratch/err"; } | log
    add "$its_stage" "$its_name" check seconds $took >/dev/null
    if [ $status -eq 0 ]; then
        add "$its_stage" "$its_name" check passed 1
        return 0
    fi
    if [ "${fails_with:-$status}" -eq $status ] || { [ $status -ge 124 ] && [ $status -lt 160 ]; } || grep -q '\[  FAILED  \]' "$scratch/out" "$scratch/err"; then
        add "$its_stage" "$its_name" check passed 0
        failures=$((failures + 1))
    else
        add "$its_stage" "$its_name" check could_not_run 1
    fi
    echo "  ended with status $status$([ $status -ne 124 ] || echo " after $time s"):"
    tail -n 25 "$scratch/out" "$scratch/err" | sed 's/^/  | /'
    return 1
}

# A program of the bundle, with its libraries.
run_ours() { # stage, what, command...
    ours_stage=$1 ours_name=$2
    shift 2
    run "$ours_stage" "$ours_name" env LD_LIBRARY_PATH="$PWD/build/gpu-lib:$OUR_LIBRARIES" "$@"
}

number() { # key: the number of "key": in the last line of JSON
    sed -n "s/.*\"$1\": \([0-9.e+-]*\).*/\1/p" "$scratch/out" | tail -n 1
}

need_gpu() {
    [ "$REHEARSAL" ] || [ -e /dev/nvidiactl ] || nvidia-smi -L >/dev/null 2>&1 ||
        fail "$1: needs an NVIDIA GPU, and this machine has none"
}

# == Packing and unpacking ============================================================================================

# A tar archive, compressed or not; Python has xz and gzip if the machine does not.
unpack() { # stage, archive, folder
    case $2 in
    *.xz) packer=xz ;;
    *.gz) packer=gzip ;;
    *) packer=tar ;;
    esac
    mkdir -p "$3" || return
    if command -v $packer >/dev/null; then
        run "$1" "unpack $(basename "$2")" tar -xf "$2" -C "$3"
    else
        run "$1" "unpack $(basename "$2")" "$PYTHON" -c "$unpacker" "$2" "$3"
    fi
}
unpacker='
import sys, tarfile
tarfile.TarFile.extraction_filter = staticmethod(lambda member, path: member)  # this script wrote the archive
with tarfile.open(sys.argv[1]) as archive:
    archive.extractall(sys.argv[2])
'

mebibytes() { awk -v bytes="$1" 'BEGIN { printf "%.1f", bytes / 2^20 }'; }
size_of() { cat "$@" | wc -c; }

# With a dictionary large enough to find the common parts of all programs, or a smaller one if memory is short.
compress() { # file.xz, tar's arguments...
    to=$1
    shift
    for dictionary in $DICTIONARIES; do
        tar -cf - "$@" | xz -c "--lzma2=$dictionary" >"$to" 2>"$scratch/err" && return
    done
    rm -f "$to"
    fail "bundle: $to: $(tail -n 1 "$scratch/err")"
}

# split_file FILE FOLDER MIB: FILE's parts as FOLDER/NAME.1-of-3 ..., and a list of the folder.
split_file() {
    parts=$(($(size_of "$1") / ($3 * 1048576) + 1))
    split -n $parts -a 1 --numeric-suffixes=1 --additional-suffix=-of-$parts "$1" "$2/$(basename "$1")." &&
        ls -l "$2"
}

# == Here, before the first loan =======================================================================================

# Lists what is missing for a bundle, one item a line.  The Makefile knows its libraries.
missing() {
    for program in make tar xz strip ldd; do command -v $program >/dev/null || echo "$program"; done
    [ "$REHEARSAL" ] && return
    compiler=${CC:-gcc}
    command -v "${compiler%% *}" >/dev/null || echo "$compiler"
    command -v make >/dev/null || return
    make need-nvcc >/dev/null 2>&1 || echo "nvcc (CUDA_HOME says where the toolkit is)"
    { make BACKEND=cuda report && make report; } 2>/dev/null | sed -n 's/^  MISSING *\([^:]*\):.*/\1/p' | sort -u
}

# The shared libraries of programs, except the C library, the driver's and those of PyTorch.
libraries_of() { # programs
    ldd "$@" | sed -n 's/.*=> \(\/[^ ]*\) (.*/\1/p' | sort -u |
        sed -E '/\/lib(c|m|dl|pthread|rt|resolv|cuda|cublas|cublasLt|cudart|cudnn[a-z_]*|cufft|nccl)\.so/d'
}

bundled_programs() {
    for build in $GPU_BUILDS; do
        for test in $TESTS; do echo "$build/tests/$test"; done
        echo "$build/train_vit"
    done
    printf '%s\n' "$FP32/tests/parity" "$BF16/tests/bench_attention" "$BF16/train_detr"
}

# The lines of the source are left out: with them the bundle had 53 MiB, and 74 together with the tree.  A program that
# cannot be built must be missing, so that the bundle contains no older one.
build_for_bundle() {
    # shellcheck disable=SC2046 # a list
    rm -f $(bundled_programs) build/cpu/train_vit build/cpu/tests/parity
    for precision in FP32 BF16; do
        build=$FP32
        [ $precision = FP32 ] || build=$BF16
        # shellcheck disable=SC2046 # several words
        make -k -j"$JOBS" BACKEND=cuda PRECISION=$precision "CUDA_ARCH=${CUDA_ARCH:-sm_90}" NVCC_LINES= ARCH=x86-64-v3 \
            MPI=0 NCCL=0 VIDEO=0 SOUND=0 $(bundled_programs | grep "^$build/") || failures=$((failures + 1))
    done
    make -k -j"$JOBS" build/cpu/train_vit build/cpu/tests/parity || failures=$((failures + 1))
}

# Packs everything that could be built, even if other builds failed.
stage_bundle() {
    lacking=$(missing | paste -sd , - | sed 's/,/, /g')
    [ ! "$lacking" ] || fail "bundle: needs $lacking: see scripts/deps.sh and make BACKEND=cuda report"
    [ "$REHEARSAL" ] || build_for_bundle
    staging=$PWD/build/gpu-staging
    rm -rf "$staging" "$BUNDLE" "$TRAIN_BUNDLE"
    mkdir -p "$staging/build/gpu-lib"
    bundled_programs | sort -u >"$scratch/programs"
    : >"$scratch/libraries"
    while read -r program; do
        if [ -x "$program" ]; then
            mkdir -p "$staging/$(dirname "$program")" && strip -o "$staging/$program" "$program" &&
                libraries_of "$program" >>"$scratch/libraries" && continue
        fi
        echo "scripts/gpu.sh bundle: $program does not exist, so the bundle is without it" >&2
        failures=$((failures + 1))
    done <"$scratch/programs"
    sort -u "$scratch/libraries" | xargs -I{} cp -L {} "$staging/build/gpu-lib/"
    sh tests/emulate/cuda_vs_cpu.sh make "$staging/build/gpu-parity" || failures=$((failures + 1))

    compress "$TRAIN_BUNDLE" -C "$staging" "$BF16/train_vit" build/gpu-lib
    compress "$BUNDLE" -C "$staging" build
    rm -rf "$staging"
    tree=$(find . \( -path ./.git -o -path ./build -o -path ./runs -o -path ./datasets \) -prune -o -type f -print0 |
        xargs -0 cat | wc -c)
    for bundle in "$BUNDLE" "$TRAIN_BUNDLE"; do
        echo "$bundle: $(mebibytes "$(size_of "$bundle")") MiB; with the tree $(
            mebibytes $(($(size_of "$bundle") + tree))) of the $BACK_ALL MiB that can be sent"
        [ $(($(size_of "$bundle") + tree)) -le $((BACK_ALL * 1048576)) ] || failures=$((failures + 1))
    done
}

# The archive, or the folder of scripts/fetch_cifar.sh.
stage_parts() {
    command -v xz >/dev/null || fail "parts: needs xz"
    data=${DATA:-datasets}
    archive=$data/cifar-100-binary.tar.xz
    mkdir -p $SEND
    if [ ! -e "$archive" ]; then
        [ -e "$data/cifar-100-binary/train.bin" ] ||
            fail "parts: no $archive and no $data/cifar-100-binary: sh scripts/fetch_cifar.sh cifar100"
        archive=$scratch/cifar-100-binary.tar.xz
        tar -cf - -C "$data" cifar-100-binary | xz -T0 >"$archive" || fail "parts: no space for $archive"
    fi
    rm -f $SEND/cifar-100-binary.tar.xz.*
    size=$(($(size_of "$archive") / 3 / 1048576 + 1)) # three, as the plan says
    [ $size -le $SENT_MAX ] || fail "parts: $archive is larger than three parts of $SENT_MAX MiB"
    split -n 3 -a 1 --numeric-suffixes=1 --additional-suffix=-of-3 "$archive" $SEND/cifar-100-binary.tar.xz. &&
        ls -l $SEND
}

# Lines of the files to send, the command and the files to return, for readers and for tests/project/test_gpu_plan.sh.
stage_plan() {
    cifar=$SEND/cifar-100-binary.tar.xz
    cat <<PLAN
Each command takes less than ten minutes and 64 MiB of files each way; \$OUT, emptied before each command, is what comes
back.  A loan begins with a bare machine, and commands follow each other at once: between them the machine may go.  What
must come back first runs first, so a loan that ends early loses the least: 15 minutes are enough for the commands above
the line "30 minutes", and 30 for those above "45 minutes", with three minutes for the machine's start and one for each
command's files.

before: here, with make, nvcc and xz
  run   sh scripts/gpu.sh bundle parts

loan 1: is it right, and how fast is it?  Mend the worst thing that is found before going on.
  send  $BUNDLE
  run   BUDGET=300 sh scripts/gpu.sh build parity bench table
  back  gpu.csv gpu.log
  send  $BUNDLE
  run   BUDGET=240 sh scripts/gpu.sh build test table
  back  gpu.csv gpu.log
30 minutes:
  send  $BUNDLE
  run   BUDGET=420 GRIDS="14 28 56" sh scripts/gpu.sh build bench attention block table
  back  gpu.csv gpu.log block.csv
  send  $BUNDLE
  run   BUDGET=420 sh scripts/gpu.sh build test table
  back  gpu.csv gpu.log
45 minutes:
  send  $BUNDLE
  run   BUDGET=420 sh scripts/gpu.sh build detector block table
  back  gpu.csv gpu.log block.csv
  send  $BUNDLE
  run   BUDGET=360 sh scripts/gpu.sh build alone sanitize table
  back  gpu.csv gpu.log

loan 2: the rows of Table 2 that are the paper's claim
  send  $TRAIN_BUNDLE $cifar.1-of-3
  run   BUDGET=120 sh scripts/gpu.sh build receive
  back  gpu.csv gpu.log
  send  $cifar.2-of-3
  run   BUDGET=60 sh scripts/gpu.sh receive
  back  gpu.csv gpu.log
  send  $cifar.3-of-3
  run   BUDGET=360 sh scripts/gpu.sh receive train state
  back  gpu.csv gpu.log ripple-no-ape.csv *.tar.1-of-*
30 minutes:
  run   BUDGET=420 sh scripts/gpu.sh train state
  back  gpu.csv gpu.log ripple-no-ape.csv *.tar.1-of-*
  run   BUDGET=360 sh scripts/gpu.sh train state
  back  gpu.csv gpu.log ripple-no-ape.csv *.tar.1-of-*
45 minutes:
  run   BUDGET=420 sh scripts/gpu.sh train state
  back  gpu.csv gpu.log ripple-no-ape.csv *.tar.1-of-*
  run   BUDGET=360 sh scripts/gpu.sh train state
  back  gpu.csv gpu.log ripple-no-ape.csv *.tar.1-of-*

loan 3, and more like it: the parts of the run to be continued, which came back, lie in $SEND
  send  $TRAIN_BUNDLE $cifar.1-of-3
  run   BUDGET=120 sh scripts/gpu.sh build receive
  back  gpu.csv gpu.log
  send  $cifar.2-of-3
  run   BUDGET=30 sh scripts/gpu.sh receive
  back  gpu.csv gpu.log
  send  $cifar.3-of-3
  run   BUDGET=60 sh scripts/gpu.sh receive
  back  gpu.csv gpu.log
  send  $SEND/deit-la-no-ape.tar.[1-3]-of-*
  run   BUDGET=30 sh scripts/gpu.sh receive
  back  gpu.csv gpu.log
  send  $SEND/deit-la-no-ape.tar.[4-9]-of-*
  run   ROWS=deit-la-no-ape BUDGET=180 sh scripts/gpu.sh receive train state
  back  gpu.csv gpu.log deit-la-no-ape.csv deit-la-no-ape.tar.1-of-*
30 minutes:
  run   ROWS=deit-la-no-ape BUDGET=420 sh scripts/gpu.sh train state
  back  gpu.csv gpu.log deit-la-no-ape.csv deit-la-no-ape.tar.1-of-*
  run   ROWS=deit-la-no-ape BUDGET=360 sh scripts/gpu.sh train state
  back  gpu.csv gpu.log deit-la-no-ape.csv deit-la-no-ape.tar.1-of-*
45 minutes:
  run   ROWS=deit-la-no-ape BUDGET=480 sh scripts/gpu.sh train state
  back  gpu.csv gpu.log deit-la-no-ape.csv deit-la-no-ape.tar.1-of-*
PLAN
}

# == Building =========================================================================================================

describe_machine() {
    {
        date -u
        uname -a
        nvidia-smi
        "$PYTHON" -c 'import sys, torch; print(sys.version, torch.__version__, torch.version.cuda)'
        grep -m 1 'model name' /proc/cpuinfo
        grep MemTotal /proc/meminfo
    } 2>&1 | log
}

stage_build() {
    describe_machine
    unpacked=
    for bundle in "$BUNDLE" "$TRAIN_BUNDLE"; do
        [ -e "$bundle" ] || continue
        unpack build "$bundle" . && unpacked=1
    done
    if [ ! "$unpacked" ]; then
        [ ! -e "$BUNDLE" ] && [ ! -e "$TRAIN_BUNDLE" ] || return
        run build "float32" make -j"$JOBS" BACKEND=cuda PRECISION=FP32 all tests &&
            run build "bfloat16" make -j"$JOBS" BACKEND=cuda PRECISION=BF16 all tests benches &&
            run build "CPU" make -j"$JOBS" all build/cpu/tests/parity || return
    fi
    run_ours build "train_vit starts" "$BF16/train_vit" --version
}

# == Checking =========================================================================================================

# One of several workers: takes the tests that no other has taken.
test_worker() { # number
    queue=$scratch/queue taken=$scratch/taken failed=$scratch/failed
    scratch=$scratch/$1
    mkdir "$scratch"
    while read -r build test; do
        mkdir "$taken/$(echo "$build $test" | tr '/ ' '__')" 2>/dev/null || continue
        less=
        [ "$build $test" != "$FP32 $ALONE" ] || less=VIT_TEST_REDUCED=1
        run_ours test "$build $test" env $less BUILD="$build" OMP_NUM_THREADS=2 VIT_TEST_TIMEOUT="$(limit)" \
            sh tests/run.sh "$test" ||
            echo "$build $test" >>"$failed"
    done <"$queue"
}

stage_test() {
    mkdir "$scratch/taken"
    for build in $BF16 $FP32; do for test in $LONG_TESTS; do echo "$build $test"; done; done >"$scratch/queue"
    for build in $BF16 $FP32; do for test in $TESTS; do echo "$build $test"; done; done >>"$scratch/queue"
    worker=0
    while [ $worker -lt "$AT_ONCE" ]; do
        test_worker $worker &
        worker=$((worker + 1))
    done
    wait
    [ ! -e "$scratch/failed" ] || failures=$((failures + $(wc -l <"$scratch/failed")))
}

stage_alone() {
    run_ours alone "$FP32 $ALONE" env BUILD="$FP32" VIT_TEST_TIMEOUT="$(limit)" sh tests/run.sh $ALONE
}

stage_parity() {
    if [ -d build/gpu-parity ]; then
        run_ours parity "CUDA against CPU" env CUDA_FP32="$FP32/train_vit" CUDA_BF16="$BF16/train_vit" \
            PARITY="$FP32/tests/parity" sh tests/emulate/cuda_vs_cpu.sh compare build/gpu-parity
    else
        run_ours parity "CUDA against CPU" sh tests/emulate/cuda_vs_cpu.sh
    fi
    sed -n '/worst:/p' "$scratch/out"
}

stage_sanitize() {
    command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer here" && return; }
    fails_with=9 # another status: the tool refuses the device, for instance
    for tool in memcheck racecheck; do
        for test in ${SANITIZE_TESTS:-test_layers test_attention test_ripple}; do
            run_ours sanitize "$tool $test" env VIT_TEST_REDUCED=1 compute-sanitizer --tool $tool \
                --error-exitcode $fails_with "$BF16/tests/$test"
        done
    done
    fails_with=
}

# == Timing ===========================================================================================================

ours() { # case, arguments...
    what=$1
    shift
    has bench "$what" vit.c && return
    run_ours bench "$what" "$BF16/train_vit" --bench --bench-seconds $SECONDS_EACH "$@" >/dev/null || return
    for metric in train_images_per_s infer_images_per_s mfu peak_bytes; do
        add bench "$what" vit.c $metric "$(number $metric)"
    done
}

# PyTorch's arguments are those of vit.c except the batch; measures with images on the device and with uploaded images.
theirs() { # case, mode, arguments...
    what=$1 mode=$2
    shift 2
    has bench "$what" "PyTorch $mode" && return
    # shellcheck disable=SC2046 # several words
    run bench "$what PyTorch $mode" "$PYTHON" scripts/bench/bench_torch.py --device cuda --modes "$mode" --steps "$STEPS" \
        --warmup 5 --uploads $(echo "$*" | sed 's/--batch-size/--batch/') >/dev/null || return
    for metric in train_images_per_s infer_images_per_s peak_bytes; do
        add bench "$what" "PyTorch $mode" $metric "$(number $metric)"
    done
    add bench "$what" "PyTorch $mode with uploads" train_images_per_s "$(number train_images_per_s_with_uploads)"
}

# The most important measurements come first, because BUDGET may end them.
stage_bench() {
    for who in vit.c $MODES; do
        bench_case "DeiT-tiny 224 batch 512" "$who" softmax cls timm "$LARGE"
        for attn in ${ATTN:-softmax linear ripple}; do
            pool=gap model=$attn
            case $attn in
            softmax) pool=cls model=timm ;;
            ripple) model=ripple-weights ;;
            esac
            bench_case "16 x 16 tokens batch 512 $attn" "$who" "$attn" $pool "$model" "$SMALL"
        done
    done
}

bench_case() { # case, vit.c or PyTorch's mode, operator, pool, PyTorch's model, sizes
    # shellcheck disable=SC2086 # several words
    if [ "$2" = vit.c ]; then ours "$1" $6 --attn "$3" --pool "$4"; else theirs "$1" "$2" $6 --models "$5"; fi
}

stage_attention() {
    for who in vit.c PyTorch; do
        if [ $who = vit.c ]; then
            # shellcheck disable=SC2086 # two words
            run_ours attention "softmax alone $who" "$BF16/tests/bench_attention" $SHARES || continue
        else
            run attention "softmax alone $who" "$PYTHON" scripts/bench/bench_torch.py --device cuda --attention || continue
        fi
        sed -n 's/.*"tokens": \([0-9]*\).*"head_dim": \([0-9]*\), "forward_ms": \([0-9.]*\), "backward_ms": \([0-9.]*\).*/\1 \2 \3 \4/p' \
            "$scratch/out" >"$scratch/rows"
        while read -r tokens width forward backward; do
            add attention "$tokens tokens head dim $width" $who forward_ms "$forward"
            add attention "$tokens tokens head dim $width" $who backward_ms "$backward"
        done <"$scratch/rows"
    done
}

# Grids in block.csv are not measured again.
stage_block() {
    printf '#!/bin/sh\nLD_LIBRARY_PATH="%s" exec "%s" "$@"\n' "$PWD/build/gpu-lib:$OUR_LIBRARIES" \
        "$PWD/$BF16/train_vit" >"$scratch/train_vit"
    chmod +x "$scratch/train_vit"
    run block "LiSA's block" env TRAIN_VIT="$scratch/train_vit" TORCH_PYTHON="$PYTHON" TORCH_DEVICE=cuda PYTHON="$PYTHON" \
        MODELS="softmax lisa" NETS= GRIDS="$GRIDS" SECONDS_EACH=${REHEARSAL:+0.}1 OUT="$KEEP/block" \
        sh scripts/bench/bench_block.sh
    [ ! -s "$KEEP/block.csv" ] || { cat "$KEEP/block.csv" && cp "$KEEP/block.csv" "$OUT"; }
    for grid in $GRIDS; do
        for attn in lisa gf; do
            for way in blocks cufft; do transforms_case "$attn" "$grid" "$way"; done
        done
    done
}

# The same block, transformed in shared memory and by cuFFT.
transforms_case() { # operator, grid, VIT_TRANSFORMS
    what="$1 $2 x $2 by $3"
    has block "$what" vit.c && return
    run_ours block "$what" env VIT_TRANSFORMS="$3" "$BF16/train_vit" --config configs/imagenet/block.ini --attn "$1" --img-size "$2" \
        --batch-size "${BATCH:-32}" --bench --bench-seconds $SECONDS_EACH >/dev/null || return
    for metric in train_images_per_s infer_images_per_s; do add block "$what" vit.c $metric "$(number $metric)"; done
}

stage_detector() {
    for config in smca smca-la smca-ripple; do
        # shellcheck disable=SC2086 # several words
        run_ours detector "$config" "$BF16/train_detr" --config configs/coco/$config.ini $DETECTOR --bench \
            --bench-seconds $SECONDS_EACH || continue
        for metric in train_images_per_s infer_images_per_s peak_bytes; do
            add detector "$config 800 x 1066" vit.c $metric "$(number $metric)"
        done
    done
}

# == Training =========================================================================================================

# Outside of the tree, which the next command replaces.
stage_receive() {
    mkdir -p "$KEEP/parts"
    for part in "$SEND"/*-of-*; do [ ! -e "$part" ] || cp "$part" "$KEEP/parts/"; done
    for first in "$KEEP"/parts/*.1-of-*; do
        [ -e "$first" ] || continue
        count=${first##*-of-} name=$(basename "${first%.1-of-*}")
        set --
        while [ $# -lt "$count" ]; do set -- "$@" "$KEEP/parts/$name.$(($# + 1))-of-$count"; done
        if ! ls "$@" >/dev/null 2>&1; then
            echo "$name: not all of its $count parts are here yet"
            continue
        fi
        cat "$@" >"$KEEP/$name" && rm "$@" && unpack receive "$KEEP/$name" "$KEEP" && rm "$KEEP/$name"
    done
}

# Trains the rows that are not done, one after the other, in a separate shell, because the tree and this file may be
# replaced.
# shellcheck disable=SC2016 # that shell expands them
trainer='
    cd "$KEEP" || exit 1
    export LD_LIBRARY_PATH=$KEEP/program/gpu-lib:$OUR_LIBRARIES
    for row in $ROWS; do
        run=runs/$row
        [ ! -e "$run/done" ] || continue
        settings=
        [ ! "$REHEARSAL" ] || settings="--img-size 8 --dim 16 --depth 1 --heads 2 --train-limit 32 --test-limit 16
            --batch-size 16 --workers 1 --warmup-epochs 0 --epochs $([ "$row" = ripple-no-ape ] && echo 2 || echo 1000000)"
        how="--config program/configs/cifar100/$row.ini --run-dir $run"
        [ ! -e "$run/state.safetensors" ] || how="--resume $run"
        echo "== train: $row, $how"
        program/train_vit $how --data-dir . --eval-every 10 $settings && rm -f "$run/brought" && : >"$run/done" || echo "$row: ended with status $?"
    done
    rm -f trainer'

training() { [ -e "$KEEP/trainer" ] && kill -0 "$(cat "$KEEP/trainer")" 2>/dev/null; }

# The files of running runs that are returned.
publish() {
    for row in $ROWS; do
        [ ! -e "$KEEP/runs/$row/log.csv" ] || cp "$KEEP/runs/$row/log.csv" "$OUT/$row.csv"
    done
    { cat "$KEEP/gpu.log" && tail -c 1000000 "$KEEP/train.log"; } >"$OUT/gpu.log"
}

# In a rehearsal, wait until the last row has a later state.
worth_waiting() {
    training && [ "$(left)" -gt 25 ] || return
    [ ! "$REHEARSAL" ] || [ "$(rows_of_log "${ROWS##* }")" -lt $((rows_before + 2)) ]
}

rows_of_log() { [ -e "$KEEP/runs/$1/log.csv" ] && wc -l <"$KEEP/runs/$1/log.csv" || echo 0; }

stage_train() {
    [ -e "$KEEP/cifar-100-binary/train.bin" ] || fail "train: $KEEP has no cifar-100-binary: receive its parts first"
    if ! training; then
        [ -x "$BF16/train_vit" ] || fail "train: no $BF16/train_vit: build first"
        rm -rf "$KEEP/program"
        mkdir -p "$KEEP/program" "$KEEP/runs"
        cp -R configs "$BF16/train_vit" "$KEEP/program"
        [ ! -d build/gpu-lib ] || cp -R build/gpu-lib "$KEEP/program"
        export KEEP ROWS REHEARSAL OUR_LIBRARIES
        setsid sh -c "$trainer" </dev/null >>"$KEEP/train.log" 2>&1 &
        echo $! >"$KEEP/trainer"
    fi
    rows_before=$(rows_of_log "${ROWS##* }")
    while worth_waiting; do
        publish
        sleep ${REHEARSAL:+0.}2
    done
    publish
    for row in $ROWS; do report_row "$row"; done
    tail -n 3 "$KEEP/train.log"
}

report_row() { # row
    [ -e "$KEEP/runs/$1/log.csv" ] || return
    what="$1 $(tail -n 1 "$KEEP/runs/$1/log.csv" | cut -d , -f 2) epochs"
    awk -F , 'NR == 1 { for (i = 1; i <= NF; i++) name[i] = $i; next }
              { for (i = 1; i <= NF; i++) if ($i != "") value[name[i]] = $i }
              END { for (i in name) if (name[i] ~ /^(top1|images_per_s|loss)$/) print name[i], value[name[i]] }' \
        "$KEEP/runs/$1/log.csv" >"$scratch/row"
    while read -r metric value; do add train "$what" vit.c "$metric" "$value"; done <"$scratch/row"
    if [ -e "$KEEP/runs/$1/done" ]; then
        add train "$1" check passed 1
    elif grep -q "^$1: ended with status" "$KEEP/train.log"; then
        add train "$1" check passed 0
        failures=$((failures + 1))
    fi
}

# The files needed to continue a run in progress; for a finished run its best weights, once.
stage_state() {
    [ -d "$KEEP/runs" ] || fail "state: $KEEP has no runs: train first"
    tail -c 200000 "$OUT/gpu.log" >"$scratch/log" && cp "$scratch/log" "$OUT/gpu.log" # space for later files
    for row in $(rows_by_need); do
        run=runs/$row files=state.safetensors
        [ ! -e "$KEEP/$run/done" ] || files="best.safetensors done"
        mkdir -p "$scratch/$run" # copies, since a run in progress replaces its files
        for file in $files config.ini log.csv; do cp "$KEEP/$run/$file" "$scratch/$run/" || continue 2; done
        run state "$row" tar -cf "$scratch/$row.tar" -C "$scratch" "$run" || continue
        room=$((BACK_ALL * 1048576 - $(size_of "$OUT"/*)))
        files=$(($(size_of "$scratch/$row.tar") / (BACK_MAX * 1048576) + 1 + $(find "$OUT" -type f | wc -l)))
        if [ "$(size_of "$scratch/$row.tar")" -gt $room ] || [ $files -gt $BACK_FILES ]; then
            echo "$row: no space for its $(mebibytes "$(size_of "$scratch/$row.tar")") MiB now: call the stage state again"
            continue
        fi
        split_file "$scratch/$row.tar" "$OUT" $BACK_MAX
        touch "$KEEP/$run/brought"
    done
}

# Files that were never returned come first, so that another call returns the others.
rows_by_need() {
    for run in "$KEEP"/runs/*; do [ -e "$run/brought" ] || [ -e "$run/done" ] || basename "$run"; done
    for run in "$KEEP"/runs/*; do [ -e "$run/brought" ] || [ ! -e "$run/done" ] || basename "$run"; done
    for run in "$KEEP"/runs/*; do [ ! -e "$run/brought" ] || [ -e "$run/done" ] || basename "$run"; done
}

# == The table ========================================================================================================

# The last three fields are who, metric and value.
stage_table() {
    [ -s "$CSV" ] || { echo "scripts/gpu.sh table: $CSV has nothing yet" && return; }
    awk -F, '
        NR == 1 { next }
        { value = $NF; metric = $(NF - 1); who = $(NF - 2); name = $2; for (i = 3; i < NF - 2; i++) name = name "," $i }
        metric == "passed" { last[$1 ": " name] = value; next }
        metric == "left_out" { last[$1 ": " name] = -1; next }
        metric == "could_not_run" { last[$1 ": " name] = -2; next }
        metric == "seconds" { next }
        { key = name "|" metric; if (!(key in seen)) { seen[key] = 1; order[++n] = key } }
        who == "vit.c" { ours[key] = value; next }
        who ~ /with uploads$/ { if (!(key in fed) || value > fed[key]) fed[key] = value; next }
        key in theirs && (metric ~ /per_s/ ? value <= theirs[key] : value >= theirs[key]) { next }
        { theirs[key] = value; from[key] = who }
        END {
            printf "%-40s %-20s %14s %14s %8s  %-16s %s\n", "case", "metric", "vit.c", "PyTorch", "ratio", "", "with uploads"
            for (i = 1; i <= n; i++) {
                key = order[i]; split(key, part, "|")
                ratio = ""; uploads = ""
                if (ours[key] > 0 && theirs[key] > 0)
                    ratio = sprintf("%.2f", part[2] ~ /per_s/ ? ours[key] / theirs[key] : theirs[key] / ours[key])
                if (ours[key] > 0 && fed[key] > 0) uploads = sprintf("%.2f of %s", ours[key] / fed[key], fed[key])
                printf "%-40s %-20s %14s %14s %8s  %-16s %s\n", part[1], part[2], ours[key], theirs[key], ratio, from[key],
                       uploads
            }
            for (name in last) {
                checks++
                if (last[name] == 0) failed = failed "  FAILED  " name "\n"
                if (last[name] == -1) failed = failed "  left out: no time for it  " name "\n"
                if (last[name] == -2) failed = failed "  could not run  " name "\n"
            }
            printf "%d checks\n%s", checks, failed
        }' "$CSV"
}

# == What was asked for ===============================================================================================

[ $# -gt 0 ] || set -- build test alone parity sanitize bench attention block detector table
for stage; do
    case $stage in
    bundle | parts | plan | table) ;;
    build | test | alone | parity | sanitize | bench | attention | block | detector | receive | train | state)
        case $stage in build | receive | state) ;; *) need_gpu "$stage" ;; esac # before anything is built
        opens=${opens:-$stage}
        ;;
    *)
        echo "scripts/gpu.sh: '$stage': expected plan, bundle, parts, build, test, alone, parity, sanitize, bench," \
            "attention, block, detector, receive, train, state or table" >&2
        exit 2
        ;;
    esac
done
[ ! "${opens:-}" ] || open_results "$opens"
for stage; do
    [ "$stage" = plan ] || echo "== $stage"
    "stage_$stage"
done
[ "$failures" -eq 0 ]
