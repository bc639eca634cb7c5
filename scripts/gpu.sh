#!/bin/sh
# Builds, tests and measures everything that needs a GPU, and prints a table of the results.
#
#   sh scripts/gpu.sh                      all stages
#   sh scripts/gpu.sh build test parity    only these stages, in this order
#   sh scripts/gpu.sh bundle               on a machine without a GPU: builds everything into build/gpu.tar.xz, for a
#                                          machine with a GPU but without the libraries for building; there the stage
#                                          `build` unpacks it
#
#   build      both precisions, their tests and benchmarks
#   test       the kernel tests in both precisions
#   parity     whole models, CUDA against CPU
#   sanitize   compute-sanitizer: memcheck and racecheck, on reduced cases
#   bench      images per second of vit.c and PyTorch: DeiT-tiny 224, and 16 x 16 tokens with softmax, linear, ripple
#   attention  flash softmax against F.scaled_dot_product_attention, head dims 32 and 64
#   block      one LiSA block against one softmax block, 7 x 7 to 84 x 84 tokens, and LiSA in PyTorch
#              (scripts/bench_block.sh)
#   detector   train_detr's three encoders at 800 x 1066
#   table      prints the results in OUT, vit.c's compared with the faster of PyTorch's modes
#
#   OUT=gpu.csv      file to which each result is appended as a line: stage,case,who,metric,value
#   LIMIT=540        time limit for one command in seconds
#   STEPS=20         number of steps in measurements of PyTorch
#   PYTHON=python3   a Python with torch and timm; no network is used
#   MODES="eager compile"
set -u
cd "$(dirname "$0")/.." || exit 1
OUT=${OUT:-gpu.csv}
LIMIT=${LIMIT:-540}
STEPS=${STEPS:-20}
PYTHON=${PYTHON:-python3}
MODES=${MODES:-eager compile}
BUNDLE=build/gpu.tar.xz
JOBS=$(getconf _NPROCESSORS_ONLN)
TESTS=$(sh tests/run.sh --device-tests)

# The libraries of a bundle, the toolkit's, and those that PyTorch brings.
nvidia=$("$PYTHON" -c 'import glob, nvidia; print(":".join(glob.glob(list(nvidia.__path__)[0] + "/*/lib")))' \
    2>/dev/null)
LD_LIBRARY_PATH=${nvidia:+:$nvidia}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
LD_LIBRARY_PATH=$PWD/build/gpu-lib:${CUDA_HOME:-/usr/local/cuda}/lib64$LD_LIBRARY_PATH
PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
export LD_LIBRARY_PATH PATH

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
failures=0

add() { # stage, case, who, metric, value
    [ -s "$OUT" ] || echo "stage,case,who,metric,value" >"$OUT"
    echo "$1,$2,$3,$4,$5" | tee -a "$OUT"
}

# A command within its time; its last lines when it fails.
run() { # stage, what, command...
    stage=$1 what=$2
    shift 2
    start=$(date +%s)
    timeout -k 10 "$LIMIT" "$@" >"$scratch/out" 2>"$scratch/err"
    status=$?
    add "$stage" "$what" check seconds $(($(date +%s) - start)) >/dev/null
    if [ $status -eq 0 ]; then
        add "$stage" "$what" check passed 1
        return 0
    fi
    add "$stage" "$what" check passed 0
    echo "  ended with status $status$([ $status -ne 124 ] || echo " after $LIMIT s"):"
    tail -n 25 "$scratch/out" "$scratch/err" | sed 's/^/  | /'
    failures=$((failures + 1))
    return 1
}

number() { # key: the number of "key": in the last line of JSON
    sed -n "s/.*\"$1\": \([0-9.e+-]*\).*/\1/p" "$scratch/out" | tail -n 1
}

need_gpu() {
    [ -e /dev/nvidiactl ] || nvidia-smi -L >/dev/null 2>&1 ||
        { echo "scripts/gpu.sh $1: needs an NVIDIA GPU, and there is none here" >&2 && exit 1; }
}

# == Building =========================================================================================================

stage_build() {
    if [ -e "$BUNDLE" ] && [ ! -e build/cuda/train_vit ]; then
        run build "unpack $BUNDLE" tar -xJf "$BUNDLE"
        return
    fi
    run build "float32" make -j"$JOBS" BACKEND=cuda PRECISION=FP32 all tests &&
        run build "bfloat16" make -j"$JOBS" BACKEND=cuda PRECISION=BF16 all tests benches &&
        run build "CPU" make -j"$JOBS" all
}

stage_bundle() {
    programs=
    for test in $TESTS; do programs="$programs build/cuda/tests/$test build/cuda-fp32/tests/$test"; done
    programs="$programs build/cuda/train_vit build/cuda/train_detr build/cuda-fp32/train_vit"
    programs="$programs build/cuda/tests/bench_attention"
    # shellcheck disable=SC2086 # several words
    make -j"$JOBS" BACKEND=cuda PRECISION=FP32 "CUDA_ARCH=${CUDA_ARCH:-sm_90}" ARCH=x86-64-v3 MPI=0 NCCL=0 all tests &&
        make -j"$JOBS" BACKEND=cuda PRECISION=BF16 "CUDA_ARCH=${CUDA_ARCH:-sm_90}" ARCH=x86-64-v3 MPI=0 NCCL=0 all \
            tests benches &&
        make -j"$JOBS" all && rm -rf build/gpu-parity build/gpu-lib && mkdir -p build/gpu-lib &&
        sh tests/cuda_vs_cpu.sh make build/gpu-parity &&
        ldd build/cuda/tests/test_model | sed -n 's/.*=> \([^ ]*lib\(jansson\|cmocka\)[^ ]*\).*/\1/p' |
        xargs -I{} cp -L {} build/gpu-lib/ &&
        tar -cf - $programs build/gpu-lib build/gpu-parity | xz -T0 -9 >"$BUNDLE" &&
        ls -l "$BUNDLE" || failures=$((failures + 1))
}

# == Checking =========================================================================================================

stage_test() {
    need_gpu test
    for build in build/cuda-fp32 build/cuda; do
        for test in $TESTS; do
            run test "$build $test" env BUILD=$build VIT_TEST_TIMEOUT="$LIMIT" sh tests/run.sh "$test"
        done
    done
}

stage_parity() {
    need_gpu parity
    if [ -d build/gpu-parity ]; then
        run parity "CUDA against CPU" sh tests/cuda_vs_cpu.sh compare build/gpu-parity
    else
        run parity "CUDA against CPU" sh tests/cuda_vs_cpu.sh
    fi
    sed -n '/worst:/p' "$scratch/out"
}

stage_sanitize() {
    need_gpu sanitize
    command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer here" && return; }
    for tool in memcheck racecheck; do
        for test in ${SANITIZE_TESTS:-test_layers test_attention test_ripple}; do
            run sanitize "$tool $test" env VIT_TEST_REDUCED=1 compute-sanitizer --tool $tool --error-exitcode 9 \
                "build/cuda/tests/$test"
        done
    done
}

# == Timing ===========================================================================================================

ours() { # case, arguments...
    what=$1
    shift
    run bench "$what" build/cuda/train_vit --bench --bench-seconds 5 "$@" >/dev/null || return
    for metric in train_images_per_s infer_images_per_s mfu peak_bytes; do
        add bench "$what" vit.c $metric "$(number $metric)"
    done
}

theirs() { # case, mode, arguments...
    what=$1 mode=$2
    shift 2
    run bench "$what, PyTorch $mode" "$PYTHON" scripts/bench_torch.py --device cuda --modes "$mode" --steps "$STEPS" \
        --warmup 5 "$@" >/dev/null || return
    for metric in train_images_per_s infer_images_per_s peak_bytes; do
        add bench "$what" "PyTorch $mode" $metric "$(number $metric)"
    done
}

stage_bench() {
    need_gpu bench
    large="--img-size 224 --patch-size 16 --dim 192 --depth 12 --heads 6 --num-classes 1000"
    small="--img-size 32 --patch-size 2 --dim 192 --depth 12 --heads 6 --num-classes 100"
    # shellcheck disable=SC2086 # several words each
    for mode in $MODES; do
        [ "$mode" != "${MODES%% *}" ] ||
            ours "DeiT-tiny 224, batch 256" $large --attn softmax --pool cls --batch-size 256
        theirs "DeiT-tiny 224, batch 256" "$mode" $large --models timm --batch 256
    done
    for attn in ${ATTN:-softmax linear ripple}; do
        pool=gap model=$attn
        case $attn in
        softmax) pool=cls model=timm ;;
        ripple) model=ripple-weights ;;
        esac
        # shellcheck disable=SC2086
        ours "16 x 16 tokens, batch 512, $attn" $small --attn "$attn" --pool $pool --batch-size 512
        for mode in $MODES; do
            # shellcheck disable=SC2086
            theirs "16 x 16 tokens, batch 512, $attn" "$mode" $small --models $model --batch 512
        done
    done
}

stage_attention() {
    need_gpu attention
    for who in vit.c PyTorch; do
        if [ $who = vit.c ]; then
            run attention "softmax alone, $who" build/cuda/tests/bench_attention || continue
        else
            run attention "softmax alone, $who" "$PYTHON" scripts/bench_torch.py --device cuda --attention || continue
        fi
        sed -n 's/.*"tokens": \([0-9]*\).*"head_dim": \([0-9]*\), "forward_ms": \([0-9.]*\), "backward_ms": \([0-9.]*\).*/\1 \2 \3 \4/p' \
            "$scratch/out" >"$scratch/rows"
        while read -r tokens width forward backward; do
            add attention "$tokens tokens, head dim $width" $who forward_ms "$forward"
            add attention "$tokens tokens, head dim $width" $who backward_ms "$backward"
        done <"$scratch/rows"
    done
}

stage_block() {
    need_gpu block
    run block "LiSA's block" env TRAIN_VIT=build/cuda/train_vit TORCH_PYTHON="$PYTHON" OUT="${OUT%.csv}-block" NETS= \
        sh scripts/bench_block.sh
    [ ! -s "${OUT%.csv}-block.csv" ] || cat "${OUT%.csv}-block.csv"
}

stage_detector() {
    need_gpu detector
    for config in smca smca-la smca-ripple; do
        run detector "$config" build/cuda/train_detr --config configs/coco/$config.ini --image-size 800x1066 --bench \
            --bench-seconds 5 --batch-size 2 || continue
        for metric in train_images_per_s infer_images_per_s peak_bytes; do
            add detector "$config, 800 x 1066" vit.c $metric "$(number $metric)"
        done
    done
}

# Cases hold commas: the last three fields are who, metric and value.
stage_table() {
    [ -s "$OUT" ] || { echo "scripts/gpu.sh table: $OUT has nothing yet" && return; }
    awk -F, '
        NR == 1 { next }
        { value = $NF; metric = $(NF - 1); who = $(NF - 2); name = $2; for (i = 3; i < NF - 2; i++) name = name "," $i }
        metric == "passed" { checks++; if (!value) failed = failed "  FAILED  " $1 ": " name "\n"; next }
        metric == "seconds" { next }
        { key = name "|" metric; if (!(key in seen)) { seen[key] = 1; order[++n] = key } }
        who == "vit.c" { ours[key] = value; next }
        key in theirs && (metric ~ /per_s/ ? value <= theirs[key] : value >= theirs[key]) { next }
        { theirs[key] = value; from[key] = who }
        END {
            printf "%-40s %-20s %14s %14s %8s\n", "case", "metric", "vit.c", "PyTorch", "ratio"
            for (i = 1; i <= n; i++) {
                key = order[i]; split(key, part, "|")
                ratio = ""
                if (ours[key] > 0 && theirs[key] > 0)
                    ratio = sprintf("%.2f", part[2] ~ /per_s/ ? ours[key] / theirs[key] : theirs[key] / ours[key])
                printf "%-40s %-20s %14s %14s %8s  %s\n", part[1], part[2], ours[key], theirs[key], ratio, from[key]
            }
            printf "%d checks\n%s", checks, failed
        }' "$OUT"
}

[ $# -gt 0 ] || set -- build test parity sanitize bench attention block detector table
for stage; do
    case $stage in
    build | bundle | test | parity | sanitize | bench | attention | block | detector | table)
        echo "== $stage"
        "stage_$stage"
        ;;
    *)
        echo "scripts/gpu.sh: '$stage': expected bundle, build, test, parity, sanitize, bench, attention, block," \
            "detector or table" >&2
        exit 2
        ;;
    esac
done
[ "$failures" -eq 0 ]
