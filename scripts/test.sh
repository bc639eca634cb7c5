#!/bin/sh
# Tests the program on this machine, after installing what is missing.  The last line is "N passed, N failed"; the exit
# status is 0 when nothing failed.
#
#   sh scripts/test.sh        minutes: the build in float32 without warnings, the tests of units and programs without what
#                             takes long, and the rules of style that grep can check
#   sh scripts/test.sh ci     an hour on two cores: what CI checks, also where CI=true.  All tests, with AVX2 alone and with
#                             bfloat16, too; those of clang's build under AddressSanitizer and UBSan, the loaders under
#                             ThreadSanitizer, part of the tests for arm64 under an emulator, the fuzzers for a while, the
#                             emulated CUDA kernels, and the CUDA build if there is a compiler for it
#   sh scripts/test.sh all    hours, before a release or after work on kernels: the same tests with every case, more
#                             failing system calls, and all tests of clang's optimised build and under gcc's sanitizers
#
#   FUZZ_SECONDS=5     seconds for each fuzzer
#   JOBS=2             compilations and fuzzers that run at once (default: the number of cores)
level=
case ${1:-} in
-h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;;
ci | all) level=$1 ;;
'') [ "${CI:-}" != true ] || level=ci ;;
*) echo "scripts/test.sh: '$1': expected ci, all, or nothing for the tests that take minutes" >&2 && exit 2 ;;
esac
set -u
CDPATH='' cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C # awk reads and writes numbers with points

JOBS=${JOBS:-$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)}
FUZZ_SECONDS=${FUZZ_SECONDS:-5}

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
TOTALS=$scratch/totals
export TOTALS
: >"$TOTALS"
: >"$scratch/suites"

# Prints a short log completely; of a long one first the lines with errors, which may be anywhere when several compilers
# run at once, and then its end.
show() { # log
    if [ "$(wc -l <"$1")" -le 80 ]; then
        cat "$1"
    else
        grep -nE '(error:|warning:|undefined reference|\*\*\*)' "$1" | head -n 40
        echo ...
        tail -n 40 "$1"
    fi
}

# One check that is not a test program; its output is printed only if it fails.
check() { # name, command...
    name=$1
    shift
    log=$scratch/log.$(echo "$name" | tr -c '[:alnum:]\n' _)
    start=$(date +%s)
    if "$@" >"$log" 2>&1; then
        printf 'ok     %-24s %3d s\n' "$name" $(($(date +%s) - start))
        echo 1 0 >>"$TOTALS"
    else
        printf 'FAILED %-24s %3d s\n' "$name" $(($(date +%s) - start))
        show "$log" | sed 's/^/       | /'
        echo 0 1 >>"$TOTALS"
        return 1
    fi
}

# A suite that ends without adding its totals is itself a failure.
suite() { # build folder, names of tests (all)
    before=$(wc -l <"$TOTALS")
    build=$1
    shift
    BUILD=$build sh tests/run.sh "$@" | tee -a "$scratch/suites"
    [ "$(wc -l <"$TOTALS")" -gt "$before" ] || check "tests/run.sh on $build" false
}

# The tests that are single C programs.
programs() { for source in tests/*/test_*.c; do basename "$source" .c; done; }
scripts() { for source in tests/*/test_*.sh; do basename "$source" .sh; done; }

spaced="test_files test_install test_scripts"

# == Style ============================================================================================================

sources() { find . \( -name compile_commands.json -o -name .git -o -name build -o -name runs -o -name datasets \) -prune -o -type f "$@" -print; }

# `pattern` in no line of the files named on stdin, other than the lines that match `allowed`.
no_line() { # pattern, allowed
    xargs grep -nHIE -e "$1" /dev/null | { if [ "${2:-}" ]; then grep -vE -e "$2"; else cat; fi; } >"$scratch/found"
    cat "$scratch/found"
    [ ! -s "$scratch/found" ]
}

# Conditional compilation is only for kernels/, tests of kernels that not every build has, and core/distributed.c.
# Exceptions: include guards, which end in _H; the header of random bits, which is compiled for every device; vit.h,
# which C++ programs include; and the rotation of a stream, which FFmpeg has moved.
style_ifdef() {
    sources -name '*.[ch]' | grep -vE '^\./(kernels/|core/distributed\.c$|tests/kernels/test_pairs\.c$)' |
        no_line '^[[:space:]]*#[[:space:]]*(if|elif)' \
            ':#ifndef [A-Z0-9_]+_H$|^\./(core/rng|library/vit)\.h:[0-9]*:#ifdef __(CUDACC__|cplusplus)$|:#if LIBAV(FORMAT|UTIL)_VERSION_INT '
}

# Only kernels.h gives access to a device: outside of kernels/ a file includes it or one of the contracts that it names,
# and no device library.
style_door() {
    contracts=$(sed -n 's/^#include "\(.*\)"$/\1/p' kernels/kernels.h | tr '\n' '|')
    sources -name '*.[ch]' | grep -vE '^\./(kernels|tests)/' |
        no_line '^[[:space:]]*#[[:space:]]*include.*(dnnl|cublas|cudnn|cufft|cuda_|kernels/)' \
            "\"(${contracts}kernels/kernels\.h)\"$"
}

style_paths() {
    sources ! -name '*.safetensors' ! -path './tests/corpus/*' |
        no_line '(^|[^A-Za-z0-9_.~])/(home|root|work|Users)/' ''
}

style_unfinished() {
    sources \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.py' -o -name '*.sh' \) |
        no_line '(TO''DO|FIX''ME)' ''
}

# core/version.h and CHANGELOG.md: a released version has a heading, and an unreleased one is later than the last
# heading.
style_version() {
    version=$(sed -n 's/.*VIT_VERSION "\(.*\)"/\1/p' core/version.h)
    released=$(sed -n 's/^## \[\([0-9.]*\)\].*/\1/p' CHANGELOG.md | head -n 1)
    case $version in
    *-dev) [ "$released" ] && [ "${version%-dev}" != "$released" ] && grep -qx '## \[Unreleased\]' CHANGELOG.md ;;
    *) [ "$version" = "$released" ] ;;
    esac || { echo "core/version.h says '$version', the latest release of CHANGELOG.md is '$released'" && return 1; }
}

# Subjects of the commits since the rule was made (CONTRIBUTING.md); a branch name must not be a path of a machine.
RULES_FROM=2b367bc22e6e1a57a3cdcc0231149752946c383c
style_commits() {
    git log --format='%h %s' "$RULES_FROM..HEAD" | awk '
        { subject = substr($0, index($0, " ") + 1) }
        length(subject) > 72 { print $0 ": a subject of " length(subject) " characters, 72 are the most"; wrong = 1 }
        subject ~ /^Merge .* of \// { print $0 ": say what is merged, not from which folder"; wrong = 1 }
        END { exit wrong }'
}

# The lines that a branch has changed, or on main the last commit, must be spaced as in .clang-format.
changed_since() {
    base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main 2>/dev/null)
    [ "$base" ] && [ "$base" != "$(git rev-parse HEAD)" ] || base=$(git rev-parse -q --verify HEAD^)
    echo "$base"
}

# == Fuzzing ==========================================================================================================

# New inputs are written to a separate folder, so that tests/corpus changes only by hand; a crash is kept in build/fuzz.
fuzz() { # fuzzer
    corpus=tests/corpus/$(basename "$1" | sed 's/^fuzz_//')
    mkdir -p "$scratch/$1"
    [ -d "$corpus" ] || corpus=
    # shellcheck disable=SC2086 # none or one
    "$1" -max_total_time="$FUZZ_SECONDS" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
        -artifact_prefix="$1-" "$scratch/$1" $corpus
}

# == Another machine ==================================================================================================

# The tests that a processor with bfloat16 runs in both precisions; `make PRECISION=BF16 test` compares whole models,
# whose rounding depends on the instructions, with PyTorch's.
bf16_tests="test_attention test_convit test_convolution test_depthwise test_features test_images test_layers test_masked
    test_softmax test_unfold test_window"

# The tests that an emulator runs in a minute.
arm64_tests="test_config test_convit test_depthwise test_masked test_matching test_mixers test_rng test_safetensors
    test_softmax test_unfold"

# A model trained under the emulator has the same losses and norms as one trained without it, up to rounding.
arm64_model() {
    settings="--attn ripple --dim 16 --depth 2 --heads 2 --patch-size 8 --mlp-ratio 2 --train-limit 64 --test-limit 32
        --batch-size 16 --epochs 2 --warmup-epochs 0 --log-every 1"
    # shellcheck disable=SC2086 # a list
    build/cpu/train_vit $settings --run-dir "$scratch/here" &&
        QEMU_LD_PREFIX=$PWD/build/arm64-root qemu-aarch64 build/arm64/train_vit $settings --run-dir "$scratch/there" &&
        paste -d , "$scratch/here/log.csv" "$scratch/there/log.csv" | awk -F , '
            BEGIN { worst = 0 }
            NR == 1 { columns = NF / 2; next }
            {
                rows++
                for (i = 3; i <= 5; i++) { # loss, learning rate, gradient norm
                    error = $(i + columns) / $i - 1
                    if (error < 0) error = -error
                    if (!(error <= worst)) worst = error
                }
            }
            END { print rows + 0 " rows, worst off by " worst; exit !(rows >= 8 && worst <= 2e-5) }'
}

# == Without oneDNN ===================================================================================================

own_tests="test_products test_layers test_convolution test_model"

# A program that reports this and is linked with neither oneDNN nor the C++ library.
own_alone() {
    ! ldd build/cpu-own/train_vit | grep -E 'dnnl|stdc\+\+' &&
        build/cpu-own/train_vit --dim 16 --depth 1 --heads 2 --bench --bench-seconds 0.1 | grep -q 'own products'
}

# == Minutes, or everything ===========================================================================================

# CI runs only some of the flags and failing system calls of these tests.
swept="test_cli test_faults"

# CI runs the tests of the emulated kernels in bfloat16, and in float32 those whose kernels differ there.
float_tests="test_attention test_causal test_convolution test_depthwise test_features test_layers test_lisa test_masked
    test_model test_ripple test_softmax test_window"

# The tests that still take long, or need other builds.
long_scripts="test_gpu_plan test_faults test_variants test_mpi test_league test_python test_guide test_developers test_browser"

test_some() {
    echo "-- build/cpu"
    check "make WERROR=1" make -k -j"$JOBS" WERROR=1 VARIANTS= all tests
    # shellcheck disable=SC2046 # names of tests
    VIT_TEST_QUICK=1 VIT_TEST_REDUCED=1 suite build/cpu $(programs) \
        $(scripts | grep -vxE "$(echo "$long_scripts" | tr ' ' '|')")
}

# Whether this is the longest list of tests.
all() { [ "$level" = all ]; }

test_all() {
    # Several builds compile most files in the same way.
    if command -v ccache >/dev/null 2>&1; then
        PATH=/usr/lib/ccache:/usr/lib64/ccache:$PATH
        export PATH CCACHE_DIR="$PWD/build/ccache"
    fi

    echo "-- build/cpu"
    # test_python and test_browser are skipped without these packages, which are fetched during the build.
    # shellcheck disable=SC2046 # one or two words
    sh scripts/deps.sh python $(all && echo browser) >"$scratch/more" 2>&1 &
    more=$!
    check "make WERROR=1" make -k -j"$JOBS" WERROR=1 all tests benches
    wait $more || echo "-- test_python, test_browser: $(tail -n 1 "$scratch/more")"
    # Runs the plan for the first hour on a GPU with the emulated kernels.
    # shellcheck disable=SC2046 # names of tests
    VIT_TEST_SHORT=$(all || echo "$swept") suite build/cpu $(programs) \
        $(scripts | grep -vxE "test_gpu_plan|$(echo "$spaced" | tr ' ' '|')")
    # Runs, in a folder whose name has a space, the tests that pass paths to a shell, to make and to other programs.
    ln -s "$PWD" "$scratch/with space"
    # shellcheck disable=SC2086 # a list
    (cd "$scratch/with space" && suite build/cpu $spaced)

    echo "-- build/cpu-single: without MPI"
    check "make MPI=0" make -k -j"$JOBS" WERROR=1 MPI=0 VARIANTS= BUILD=build/cpu-single all
    suite build/cpu-single test_mpi

    # Whole models are compared with PyTorch's on the fixtures of compact transformers, whose tokens come from
    # convolutions.
    echo "-- build/cpu-own: matrix products and convolutions in plain C"
    check "make ONEDNN=0" make -k -j"$JOBS" WERROR=1 ONEDNN=0 VARIANTS= BUILD=build/cpu-own build/cpu-own/train_vit \
        $(echo "$own_tests" | sed 's|test_|build/cpu-own/tests/&|g')
    check "no oneDNN in it" own_alone
    # shellcheck disable=SC2086 # a list
    VIT_TEST_FIXTURES='compact*' suite build/cpu-own $own_tests

    # Two sets of instructions; the precisions are those of build/cpu.  The tests run the code for a processor without
    # AVX-512, including oneDNN's.
    echo "-- build/cpu-portable: one program for several processors, and every test program with AVX2 alone"
    newer=
    [ "$(uname -m)" != x86_64 ] || newer=v4
    # On a processor without AVX-512, the tests of build/cpu have run the optimised code already.
    flags=CFLAGS=-O1
    if all || grep -qsw avx512f /proc/cpuinfo; then flags=CFLAGS=; fi
    portable() { make -k -j"$JOBS" WERROR=1 ARCH=portable "$flags" "$@"; }
    check "make ARCH=portable" portable VARIANTS="$newer" build/cpu-portable/train_vit
    suite build/cpu-portable test_variants
    if [ "$flags" = CFLAGS= ]; then
        check "make ARCH=portable tests" portable VARIANTS= tests
        # shellcheck disable=SC2046 # names of tests
        ONEDNN_MAX_CPU_ISA=AVX2 VIT_TEST_QUICK=1 suite build/cpu-portable $(programs)
    fi
    check "loops in registers" python3 scripts/checks/check_spills.py

    if [ -e build/cpu-bf16/train_vit.variant ]; then
        echo "-- build/cpu-bf16: kernels with bfloat16 activations"
        check "make PRECISION=BF16" make -k -j"$JOBS" WERROR=1 PRECISION=BF16 $(echo "$bf16_tests" | sed 's|test_|build/cpu-bf16/tests/&|g')
        # shellcheck disable=SC2086 # a list
        VIT_TEST_QUICK=1 suite build/cpu-bf16 $bf16_tests
    fi

    if all; then
        echo "-- build/cpu-clang: every program by clang"
        check "make CC=clang" make -k -j"$JOBS" WERROR=1 CC=clang VARIANTS= BUILD=build/cpu-clang all tests
        # shellcheck disable=SC2046 # names of tests
        VIT_TEST_QUICK=1 VIT_TEST_REDUCED=1 suite build/cpu-clang $(programs)
    fi
    # Checks only that it compiles, and its warnings: not optimised.
    # shellcheck disable=SC2046 # names of objects
    check "make CC=clang, bfloat16" make -k -j"$JOBS" WERROR=1 CC=clang PRECISION=BF16 VARIANTS= BUILD=build/cpu-clang-bf16 \
        CFLAGS=-O0 $(printf '%s\n' kernels/*/*.c | sed 's|\(.*\)c$|build/cpu-clang-bf16/\1o|')

    echo "-- build/arm64: the kernels, one model and the readers of files under qemu"
    if ! command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 || ! command -v qemu-aarch64 >/dev/null 2>&1; then
        echo "-- build/arm64: not built, no aarch64-linux-gnu-gcc or no qemu-aarch64 here"
    elif ! sh scripts/deps.sh arm64 2>"$scratch/arm64"; then
        echo "-- build/arm64: not built: $(tail -n 1 "$scratch/arm64")"
    else
        check "make for arm64" make -k -j"$JOBS" WERROR=1 BUILD=build/arm64 MPI=0 VIDEO=0 ARCH=armv8-a \
            CC="aarch64-linux-gnu-gcc --sysroot=$PWD/build/arm64-root" build/arm64/train_vit \
            $(echo "$arm64_tests" | sed 's|test_|build/arm64/tests/&|g')
        # shellcheck disable=SC2086 # a list
        QEMU_LD_PREFIX=$PWD/build/arm64-root VIT_TEST_LAUNCHER=qemu-aarch64 VIT_TEST_REDUCED=1 \
            suite build/arm64 $arm64_tests
        check "a model on arm64" arm64_model
    fi

    echo "-- build/cpu-asan: AddressSanitizer and UBSan, without what takes long"
    # WERROR=1 with clang alone: instrumented code makes gcc guess wrong about the lengths of strings.
    if all; then
        check "make SANITIZE=1" make -k -j"$JOBS" SANITIZE=1 all tests
    else
        check "make SANITIZE=1, clang" make -k -j"$JOBS" WERROR=1 CC=clang SANITIZE=1 VARIANTS= all tests
    fi
    # Only the shell tests with hostile input: the others start a program some thousand times, which takes minutes here.
    # shellcheck disable=SC2046 # names of tests
    VIT_TEST_QUICK=1 VIT_TEST_REDUCED=1 suite build/cpu-asan $(programs) test_files test_imagenet test_extras test_sizes

    # Only tests with threads of their own: ThreadSanitizer does not recognise OpenMP's barriers, so OpenMP has one
    # thread here.
    echo "-- build/cpu-tsan: the loaders under ThreadSanitizer"
    check "make SANITIZE=thread" make -k -j"$JOBS" SANITIZE=thread thread-tests
    OMP_NUM_THREADS=1 VIT_TEST_QUICK=1 suite build/cpu-tsan test_loader test_mixup test_detection_loader
    if all; then
        check "make SANITIZE=thread library" make -k -j"$JOBS" SANITIZE=thread library build/cpu-tsan/train_vit
        OMP_NUM_THREADS=1 VIT_TEST_QUICK=1 suite build/cpu-tsan test_library
    fi

    echo "-- build/fuzz"
    check "make fuzz" make -k -j"$JOBS" fuzz
    # Each has one thread, so there are as many at the same time as jobs.
    i=0
    for source in tests/fuzz/*.c; do
        name=$(basename "$source" .c)
        [ "$name" != fuzz_video ] || pkg-config --exists libavformat || continue # not built
        check "$name" fuzz "build/fuzz/$name" &
        i=$((i + 1))
        [ $((i % JOBS)) -ne 0 ] || wait
    done
    wait

    echo "-- build/emulate-*: the CUDA kernels on the CPU, every thread a fiber"
    for precision in FP32 BF16; do
        # Bytes are counted in the precision of training.  UBSan finds the same in both.
        set --
        if [ $precision = BF16 ]; then
            set -- counted
        elif ! all; then
            set -- SANITIZERS='-g1 -fsanitize=address'
        fi
        check "make emulate, $precision" make -k -j"$JOBS" BACKEND=emulate PRECISION=$precision all tests "$@"
        [ $precision != BF16 ] || check "bytes that are known" env ASAN_OPTIONS=detect_leaks=0 build/emulate-BF16/counted/test_traffic
        check "test_emulator, $precision" build/emulate-$precision/tests/emulate/test_emulator
        check "stand-ins, $precision" env ASAN_OPTIONS=detect_leaks=0 build/emulate-$precision/tests/emulate/test_standins
        # Transforms with cuFFT; launches and bytes of a step; two ranks; the plan for a GPU, which needs both precisions.
        tests="$(sh tests/run.sh --device-tests) emulated_counts emulated_ranks"
        [ $precision != BF16 ] || tests="$tests emulated_bytes test_gpu_plan"
        [ $precision = BF16 ] || all || tests=$float_tests
        # shellcheck disable=SC2086 # a list
        suite build/emulate-$precision emulated_transforms $tests
        # Products that the library does not support; LiSA with shared memory for one channel and no sums.
        VIT_STANDIN_DENIES=1 suite build/emulate-$precision test_layers
        [ $precision != BF16 ] || VIT_STANDIN_SHARED=2 VIT_STANDIN_PROCESSORS=1 suite build/emulate-BF16 test_lisa
    done
    # Float heads of at least 33 channels on a GPU with less shared memory per block.
    VIT_STANDIN_SM=86 suite build/emulate-FP32 test_softmax test_masked
    check "cuda_vs_cpu, emulated" env ASAN_OPTIONS=detect_leaks=0 \
        CUDA_FP32=build/emulate-FP32/train_vit CUDA_BF16=build/emulate-BF16/train_vit sh tests/emulate/cuda_vs_cpu.sh

    PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
    # Without a GPU, checks only that it compiles: for one architecture, not optimised, in a third of the time.
    if ! command -v nvcc >/dev/null 2>&1; then
        echo "-- build/cuda: not built, no nvcc here"
    elif make need-gpu >/dev/null 2>&1; then
        check "make cuda" make -k -j"$JOBS" WERROR=1 cuda && check "make test-cuda" make -j"$JOBS" test-cuda
    elif check "make cuda" make -k -j"$JOBS" WERROR=1 CUDA_ARCH="${CUDA_ARCH:-sm_90}" \
        NVCCFLAGS="-Xcicc -O1 -Xptxas -O1" CFLAGS=-O0 cuda; then
        echo "-- build/cuda: not run, no NVIDIA GPU here"
        check "--help without a GPU" build/cuda/train_vit --help
    fi
}

if ! check "scripts/deps.sh" sh scripts/deps.sh test; then
    :
elif [ "$level" ]; then
    test_all
else
    test_some
fi

echo "-- style"
check "#if only in kernels/" style_ifdef
check "kernels.h the only door" style_door
check "no absolute paths" style_paths
check "nothing left unfinished" style_unfinished
if command -v python3 >/dev/null 2>&1; then
    check "prose" python3 scripts/checks/check_prose.py
else
    echo "-- prose: not checked, no python3 here"
fi
check "CHANGELOG.md" style_version
if git merge-base --is-ancestor "$RULES_FROM" HEAD 2>/dev/null; then
    check "subjects of commits" style_commits
else
    echo "-- subjects of commits: not checked, their history is not here"
fi
base=$(changed_since 2>/dev/null)
if [ "$base" ] && clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
    check "clang-format" python3 scripts/checks/check_format.py "$base"
else
    echo "-- clang-format: not checked, it takes version 14 and the history"
fi

if [ ! "$level" ]; then
    echo "-- left out: what takes long in these tests, $long_scripts, bfloat16, AVX2, clang, arm64, sanitizers, fuzzers, CUDA:"
    echo "-- sh scripts/test.sh ci"
fi
awk '/^(ok|FAILED) / && match($0, /[0-9]+ skipped/) { skipped += substr($0, RSTART) }
     END { print "-- " skipped + 0 " tests skipped" (skipped ? ": build/*/tests/*.log say why" : "") }' "$scratch/suites"
awk '{ passed += $1; failed += $2 }
     END { print passed + 0 " passed, " failed + 0 " failed"; exit failed > 0 || passed == 0 }' "$TOTALS"
