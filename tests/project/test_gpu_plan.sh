#!/bin/sh
# scripts/gpu.sh: its plan for a GPU that is available for 15, 30 or 45 minutes, followed command by command with tiny
# sizes in an environment with only the tools of such a machine; and refused input.
#
#   BUILD=build/emulate-FP32 sh tests/project/test_gpu_plan.sh    with the emulated kernels in both precisions
#   BUILD=build/cpu sh tests/project/test_gpu_plan.sh             with the CPU's instead, which is faster
#
# VIT_TORCH=...   a Python with torch and timm, which measures on the CPU; without it PyTorch's results are invented
#
# The tools of a machine are those in the folder `bin`, which is all of PATH: no compiler, no make, no xz, no numpy.

# shellcheck disable=SC1091,SC2012,SC2015,SC2046,SC2086,SC2154
. "$(dirname "$0")/../tap.sh"

here=$work/here
there=$work/there
builds="build/$(basename "$build") build/$(basename "$build")"
case $build in
*/emulate-*) [ ! -x "$root/build/emulate-BF16/train_vit" ] || builds="build/emulate-FP32 build/emulate-BF16" ;;
esac
zip_python= # one with lzma
for candidate in ${PYTHON:-python3 /usr/bin/python3}; do
    [ -n "$zip_python" ] || ! "$candidate" -c 'import lzma' 2>/dev/null ||
        zip_python=$("$candidate" -c 'import sys; print(sys.executable)')
done

# The files of the tree, without builds.
copy_tree() { # to
    mkdir -p "$1"
    (cd "$root" && tar -cf - --exclude=./.git --exclude=./build --exclude=./runs --exclude=./datasets \
        --exclude=__pycache__ .) | tar -xf - -C "$1"
}

# == The comparison that needs no Python =============================================================================

parity=$build/tests/parity
one="--patch-size 2 --dim 16 --depth 1 --heads 2 --num-classes 10 --pool gap --attn ripple --parity batch --out"
"$parity" batch batch >seed && "$vit" $one want >/dev/null 2>&1 && cp want got && cp want nan
"$parity" compare want got 1e-7 >out && "$parity" compare want got 1e-7 whole >>out
check "parity: equal files agree" $? "$(cat seed)"
not_a_number nan
! "$parity" compare want nan 1e9 >out && ! "$parity" compare want nan 1e9 whole >>out &&
    [ "$(grep -c '^  logits .*nan.*FAILED$' out)" -eq 2 ]
check "parity: a number that is none fails, by whatever tolerance" $?
VIT_TEST_SEED=1 "$parity" batch other >/dev/null && "$vit" ${one% batch*} other --out got >/dev/null 2>&1
! "$parity" compare want got 1e-4 >out && ! "$parity" compare want got 2e-2 whole >>out
check "parity: other images do not agree" $? "$(grep worst out | head -n 1)"
restate want got grad.head.bias grad.head.bios
! "$parity" compare want got 1e-4 >out && grep -q 'grad.head.bias *missing' out && grep -q 'grad.head.bios *unexpected' out
check "parity: a missing tensor and an unexpected one are named" $?
"$parity" compare want nowhere 1e-4 >out 2>err
status=$?
complains 1 nowhere
check "parity: a missing file" $? "$(cat err)"

# == What is refused =================================================================================================

gpu() { # ARGUMENTS
    (cd "$here" && sh scripts/gpu.sh "$@") >out 2>err
    status=$?
}

copy_tree "$here"
mkdir -p "$here/build" machines
for name in $builds build/cpu; do
    [ -e "$here/$name" ] || ln -s "$root/$name" "$here/$name"
done

gpu plans
complains 2 "'plans'|expected plan"
check "gpu.sh: an unknown stage" $? "status $status: $(cat err)"
: >file
OUT=$work/file gpu state
complains 1 "state: OUT=$work/file is a file: name a folder"
check "gpu.sh: OUT that is a file" $? "status $status: $(cat err)"
if [ ! -e /dev/nvidiactl ] && ! nvidia-smi -L >/dev/null 2>&1; then
    OUT=$work/results KEEP=$work/keep gpu parity
    complains 1 'parity: needs an NVIDIA GPU'
    check "gpu.sh: without a GPU" $? "status $status: $(tail -n 1 err)"
fi

# machine FOLDER: a new machine.
machine() {
    rm -rf "$1"
    mkdir -p "$1/bin" "$1/tmp" "$1/tree"
    for program in sh awk basename cat chmod cp cut date dirname env find getconf grep gzip head id ls mkdir mktemp mv nproc \
        paste rm sed seq setsid sleep sort split tail tar tee timeout touch tr uname wc xargs; do
        ln -s "$(command -v "$program")" "$1/bin/$program"
    done
    cat >"$1/bin/python3" <<PYTHON
#!/bin/sh
if [ "\$1" = scripts/bench/bench_torch.py ]; then . "$work/torch"; fi
exec "$zip_python" -E -s -S "\$@"
PYTHON
    chmod +x "$1/bin/python3"
}

# PyTorch's part: real measurements on the CPU, or invented numbers, for existing options.
cat >torch <<'TORCH'
for word; do
    case $word in --*) grep -q "\"$word\"" scripts/bench/bench_torch.py || { echo "no option $word" >&2; exit 2; } ;; esac
done
[ -z "${LD_LIBRARY_PATH:-}" ] || { echo "PyTorch gets our libraries: $LD_LIBRARY_PATH" >&2 && exit 2; }
case "$*" in
*'--device cuda'*) ;;
*) echo "PyTorch is not to compute on the GPU: $*" >&2 && exit 2 ;;
esac
case "$*" in
*--attention*)
    echo '{"tokens": 256, "images": 512, "heads": 6, "head_dim": 32, "forward_ms": 0.5, "backward_ms": 1.5}'
    exit ;;
esac
if [ "$VIT_TORCH" ]; then
    shift
    # shellcheck disable=SC2046
    exec "$VIT_TORCH" scripts/bench/bench_torch.py $(echo "$*" | sed 's/--device cuda/--device cpu/')
fi
echo '{"train_images_per_s": 200.5, "train_images_per_s_with_uploads": 150.5, "infer_images_per_s": 600, "torch": "2",' \
    '"device": "none", "peak_bytes": 1000}'
exit
TORCH

machine machines/bare
ln -s "$(command -v make)" machines/bare/bin
(cd "$here" && env -i PATH="$work/machines/bare/bin" CUDA_HOME=/nowhere TMPDIR="$work" sh scripts/gpu.sh bundle) >out 2>err
status=$?
complains 1 'bundle: needs |xz|strip|nvcc|gcc|cuBLASLt|jansson' && [ ! -e "$here/build/gpu-staging" ]
check "gpu.sh bundle names all that it lacks before it builds anything" $? "status $status: $(cat err)"

# tests/parity is a program of this kind in a build for a GPU.
libraries=$(sed -n '/^libraries_of() /,/^}/p' "$root/scripts/gpu.sh")
(eval "$libraries" && libraries_of "$(command -v cat)") >out
status=$?
[ $status -eq 0 ] && [ -n "$libraries" ] && [ ! -s out ]
check "gpu.sh bundle: a program that needs the C library alone" $? "status $status: $(cat out)"

# A make that fails, and an older program.
mkdir -p older/build/half/tests
: >older/build/half/tests/test_rng
functions=$(sed -n '/^bundled_programs() /,/^}/p; /^build_for_bundle() /,/^}/p' "$root/scripts/gpu.sh")
(cd older && eval "$functions" && make() { return 2; } && FP32=build/single BF16=build/half &&
    JOBS=1 failures=0 TESTS=test_rng GPU_BUILDS="$FP32 $BF16" && build_for_bundle && echo "$failures failed" && find . -type f) >out 2>err
[ "$(cat out err)" = "3 failed" ]
check "gpu.sh bundle: no older program where a build fails" $? "$(cat out err)"

# A sanitizer that refuses the device, one that finds an error, and a test that fails under it.
mkdir -p sanitizers
printf '%s\n' '#!/bin/sh' 'case $* in *test_refused*) exit 1 ;; *test_wrong*) exit 9 ;; esac' \
    'echo "[  FAILED  ] 1 test(s)" && exit 1' >sanitizers/compute-sanitizer
chmod +x sanitizers/compute-sanitizer
GPU_REHEARSAL=1 OUT=$work/results KEEP=$work/keep PATH=$work/sanitizers:$PATH \
    SANITIZE_TESTS="test_refused test_wrong test_failed" gpu sanitize table
[ "$(grep -c '^sanitize,.*test_\(wrong\|failed\),check,passed,0$' results/gpu.csv)" -eq 4 ] && [ "$status" -eq 1 ] &&
    [ "$(grep -c '^  could not run  sanitize: .*test_refused$' out)" -eq 2 ] && [ "$(grep -c '^  FAILED' out)" -eq 4 ]
check "gpu.sh sanitize: a tool that cannot run is no error of memory" $? "$(grep -c passed,0 results/gpu.csv) failures"
rm -rf results keep

# == The Makefile's toolkit ==========================================================================================

# A toolkit installed by pip, and a driver that does not respond.
mkdir -p toolkit/bin toolkit/lib toolkit/include broken
for name in lib/libcublasLt.so.13 lib/libcudnn.so.9 include/cublasLt.h include/cudnn.h; do : >toolkit/$name; done
printf '#!/bin/sh\necho "release 13.0, V13.0.88"\n' >toolkit/bin/nvcc
printf '#!/bin/sh\necho "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver."\nexit 9\n' \
    >broken/nvidia-smi
chmod +x toolkit/bin/nvcc broken/nvidia-smi
cuda() { (cd "$here" && env PATH="$work/broken:$PATH" make -n BACKEND=cuda MPI=0 "$@" build/cuda/train_detr) 2>&1; }
if command -v make >/dev/null; then
    cuda CUDA_HOME="$work/toolkit" >out
    grep -q 'arch=compute_80,code=sm_80' out && ! grep -qi 'sm_nvidia' out
    check "make: nvidia-smi's complaint is no architecture" $?
    grep -e '-o build/cuda/train_detr ' out >line && grep -q -e '-l:libcublasLt\.so\.13 ' line &&
        grep -q -e '-l:libcudnn\.so\.9' line && grep -q -e "-L$work/toolkit/lib " line
    check "make: libraries that have only their numbered names" $?
    mkdir -p nothing/bin && cp toolkit/bin/nvcc nothing/bin
    cuda CUDA_HOME="$work/nothing" | grep -e '-o build/cuda/train_detr ' >line && ! grep -qE -e "-L( |$)|ORIGIN:'?( |$)" line
    check "make: no folder of libraries, no -L without one" $?
    version=$("$vit" --version | cut -d ' ' -f 2)
    cuda CUDA_HOME="$work/toolkit" install-built | grep -q "manpage.awk -v version='$version'"
    check "make install: manual pages of the programs for CUDA have the version" $?
fi

# == The rehearsal ===================================================================================================

lacks=
if [ ! "$zip_python" ] || ! command -v xz >/dev/null || ! command -v strip >/dev/null; then
    lacks="no xz, no strip, or no Python with lzma here"
fi
if [ "$lacks" ]; then
    skip "gpu.sh plan, rehearsed" "$lacks"
    echo "1..$count"
    [ "$failures" -eq 0 ]
    exit
fi

GPU_REHEARSAL=1 GPU_BUILDS=$builds DATA=$work/data
export GPU_REHEARSAL GPU_BUILDS DATA

# CIFAR-100 with the right size, all black and of the first class.
mkdir -p data/cifar-100-binary
truncate -s $((50000 * 3074)) data/cifar-100-binary/train.bin
truncate -s $((10000 * 3074)) data/cifar-100-binary/test.bin
for i in $(seq 100); do echo "class $i"; done >data/cifar-100-binary/fine_label_names.txt

# Runs of the size of Table 2: the state of one is nearly as large as the files that can be returned at once.
mkdir -p keep/runs/going keep/runs/over
head -c 64970544 /dev/urandom >keep/runs/going/state.safetensors
head -c 21658000 /dev/urandom >keep/runs/over/best.safetensors
for run in going over; do : >keep/runs/$run/config.ini && echo 1 >keep/runs/$run/log.csv; done
: >keep/runs/over/done
head -c 3000000 /dev/zero >keep/gpu.log
OUT=$work/back1 KEEP=$work/keep gpu state
[ "$(echo back1/*.tar.*)" = "$(echo back1/going.tar.[1-4]-of-4)" ] && [ "$(find back1 -size +16M)" = '' ] &&
    [ "$(cat back1/* | wc -c)" -le $((64 * 1048576)) ] && cat back1/going.tar.* | tar -xOf - runs/going/state.safetensors |
    cmp -s - keep/runs/going/state.safetensors
check "gpu.sh state: a run of 5.4 million parameters in four files" $? "$(ls back1 | paste -sd ' ' -)"
OUT=$work/back2 KEEP=$work/keep gpu state
[ "$(echo back2/*.tar.*)" = "$(echo back2/over.tar.[1-2]-of-2)" ] && cat back2/over.tar.* | tar -xOf - \
    runs/over/best.safetensors | cmp -s - keep/runs/over/best.safetensors
check "gpu.sh state: the next time the best weights of a run that is done" $? "$(ls back2 | paste -sd ' ' -)"
OUT=$work/back3 KEEP=$work/keep gpu state
[ "$status" -eq 0 ] && [ "$(echo back3/*.tar.*)" = "$(echo back3/going.tar.[1-4]-of-4)" ]
check "gpu.sh state: and those only once" $? "$(ls back3 | paste -sd ' ' -)"
rm -rf keep back?

gpu plan
cp out plan
[ "$status" -eq 0 ] && [ "$(grep -c '^loan' plan)" -ge 3 ] && [ "$(grep -c '^  run ' plan)" -ge 10 ]
check "gpu.sh plan: three loans" $? "$(grep -c '^  run ' plan) commands"
# Three minutes for the start, and for each command its budget and a minute for its files.
awk '/^loan/ { used = 180; most = 900; name = $1 " " $2 }
     /^(30|45) minutes:/ { most = 60 * $1; extended++ }
     /^  run / && used {
         if (!match($0, /BUDGET=[0-9]+/)) { print name " has a command without BUDGET"; bad = 1; next }
         budget = substr($0, RSTART + 7, RLENGTH - 7) + 0
         used += 60 + budget
         if (budget > 540 || used > most) { print name " takes " used " s of " most; bad = 1 }
     }
     END { exit bad || extended < 6 }' plan >late
check "gpu.sh plan: each loan within 15 minutes, and within 30 and 45 with what follows" $? "$(cat late)"

# Stops the training on a machine that is returned.
machine_goes() {
    [ ! -e "$there/tmp/vit.c-gpu/trainer" ] || kill -s KILL -- "-$(cat "$there/tmp/vit.c-gpu/trainer")" 2>/dev/null
    rm -rf "$there"
}
trap 'machine_goes; cleanup' EXIT

# The bytes sent: the tree and these files.
travels() {
    (cd "$here" && find . -path ./build -prune -o -type f -print0 | xargs -0 cat && [ $# -eq 0 ] || cat "$@") | wc -c
}

# Did a command return the promised files, and are they permitted?
promised() { # patterns of names in $there/out
    trouble=
    for pattern; do
        found=
        for file in "$there"/out/$pattern; do [ ! -s "$file" ] || found=1; done
        [ "$found" ] || trouble="$trouble no $pattern,"
    done
    [ "$(find "$there/out" -type f | wc -l)" -le 8 ] || trouble="$trouble more than 8 files,"
    [ -z "$(find "$there/out" -mindepth 1 ! -type f)" ] || trouble="$trouble other things than files,"
    [ -z "$(find "$there/out" -type f -size +16M)" ] || trouble="$trouble a file above 16 MiB,"
    [ -z "$(find "$there/out" -name '*[!A-Za-z0-9._-]*')" ] || trouble="$trouble odd names,"
    [ -z "$trouble" ]
}

# One command of the plan, on the current machine.
follow() { # files to send; command; files to return
    sent=
    [ -z "$1" ] || sent=$(cd "$here" && ls -d $1 2>/dev/null)
    [ "$(travels $sent)" -le $((64 * 1048576)) ] || echo "# more than 64 MiB are sent"
    copy_tree "$there/tree"
    rm -rf "$there/tree/build/gpu-send" "$there/out"
    for file in $sent; do
        mkdir -p "$there/tree/$(dirname "$file")"
        cp "$here/$file" "$there/tree/$file"
    done
    mkdir "$there/out"
    (cd "$there/tree" && env -i PATH="$there/bin" HOME="$there" TMPDIR="$there/tmp" OUT="$there/out" \
        VIT_TORCH="${VIT_TORCH:-}" GPU_REHEARSAL=1 GPU_BUILDS="$builds" ${OMP_NUM_THREADS:+OMP_NUM_THREADS=1} \
        timeout 600 sh -c "$2") >out 2>err
    status=$?
    promised $3 && [ "$status" -eq 0 ]
    check "$2" $? "status $status,${trouble:- came back: $(ls "$there/out" | paste -sd ' ' -)}"
    [ "$status" -eq 0 ] || { cat out err; cat "$there/out/gpu.log"; } | tail -n 60 | sed 's/^/# /'
    mkdir -p "$here/build/gpu-send"
    for file in "$there"/out/*.tar.*; do [ ! -e "$file" ] || cp "$file" "$here/build/gpu-send/"; done
}

# Results that must exist at the end of a session.
loan_over() {
    csv=$there/out/gpu.csv
    case $loan in
    1)
        ! grep -q 'passed,0$\|left_out' "$csv" && [ "$(grep -c '^test,.*passed,1$' "$csv")" -ge 1 ]
        check "loan 1: nothing failed, nothing was left out" $? "$(grep -c 'passed,1$' "$csv") checks"
        for case in 'DeiT-tiny 224 batch 512' '16 x 16 tokens batch 512 ripple'; do
            for who in vit.c 'PyTorch compile' 'PyTorch eager' 'PyTorch compile with uploads'; do
                grep -q "^bench,$case,$who,train_images_per_s,[0-9.]*[1-9]" "$csv" || echo "$case, $who: nothing"
            done
        done >wrong
        [ ! -s wrong ]
        check "loan 1: speeds of vit.c and of PyTorch in each mode, with and without uploads" $? "$(cat wrong)"
        grep -q '^attention,.*,vit.c,backward_ms,[0-9.]*[1-9]' "$csv" && grep -q '^attention,.*,PyTorch,' "$csv" &&
            grep -q '^vit.c,lisa,' "$there/out/block.csv" && grep -q '^PyTorch eager,lisa,' "$there/out/block.csv"
        check "loan 1: attention, and LiSA's block" $?
        for case in 'lisa 2 x 2 by blocks' 'lisa 2 x 2 by cufft' 'gf 2 x 2 by blocks' 'gf 2 x 2 by cufft'; do
            grep -q "^block,$case,vit.c,train_images_per_s,[0-9.]*[1-9]" "$csv" || echo "$case: nothing"
        done >wrong
        [ ! -s wrong ]
        check "loan 1: both kinds of Fourier transforms" $? "$(cat wrong)"
        [ "$(grep -c '^parity,CUDA against CPU,check,passed,1$' "$csv")" -eq 1 ]
        check "loan 1: whole models agree with the CPU's" $?
        # The C library's own libraries are on every machine.
        for file in "$there"/tree/build/*/train_vit "$there"/tree/build/*/tests/test_*; do
            case $file in *.log) ;; *) LD_LIBRARY_PATH=$there/tree/build/gpu-lib ldd "$file" ;; esac
        done | grep '=>' | grep -vE 'gpu-lib/|/lib(c|m|dl|pthread|rt|resolv)\.so' >wrong
        [ ! -s wrong ]
        check "loan 1: the bundle has the libraries that its programs need" $? "$(head -n 1 wrong)"
        grep -q 'with uploads' "$there/last-table" && grep -q '^DeiT-tiny 224 .*train_images_per_s' "$there/last-table"
        check "loan 1: the table" $?
        ;;
    2)
        grep -q '^train,ripple-no-ape,check,passed,1$' "$csv" && grep -q '^train,ripple-no-ape 2 epochs,vit.c,top1,' "$csv"
        check "loan 2: the first row is trained and has an accuracy" $?
        reached=$(tail -n 1 "$work/deit.csv" | cut -d , -f 1)
        ;;
    3)
        head -n "${kept:-1}" "$there/out/deit-la-no-ape.csv" | cmp -s - "$work/kept.csv" &&
            [ "$(tail -n 1 "$there/out/deit-la-no-ape.csv" | cut -d , -f 1)" -gt "$reached" ]
        check "loan 3: the second row went on where it was" $? "from step $reached"
        ;;
    esac
}

loan=0
while IFS= read -r line <&3; do
    case $line in
    'before: '*) send= ;;
    'loan '*)
        [ "$loan" -eq 0 ] || loan_over
        loan=$((loan + 1))
        machine_goes
        machine "$there"
        ;;
    '  send  '*) send=${line#  send  } ;;
    '  run   '*)
        command=${line#  run   }
        if [ "$loan" -eq 0 ]; then
            (cd "$here" && sh -c "$command") >out 2>err
            status=$?
            check "$command" $status "$(grep -h 'MiB' out | paste -sd ' ' -)"
            [ "$status" -eq 0 ] || sed 's/^/# /' err
        fi
        ;;
    '  back  '*)
        follow "$send" "$command" "${line#  back  }"
        send=
        case $command in *table*) cp out "$there/last-table" ;; esac
        # The log up to the returned state, with which a continued log begins.
        if [ "$loan" -eq 2 ] && [ -e "$there/out/deit-la-no-ape.tar.1-of-1" ]; then
            tar -xOf "$there/out/deit-la-no-ape.tar.1-of-1" runs/deit-la-no-ape/log.csv >"$work/deit.csv"
            kept=$(($(wc -l <"$work/deit.csv") * 3 / 4)) # the last rows may be newer than the state
            head -n $kept "$work/deit.csv" >"$work/kept.csv"
        fi
        ;;
    esac
done 3<plan
loan_over

# A later command of the same session has the results of earlier ones, and having no time left is not a failure.
copy_tree "$there/tree"
(cd "$there/tree" && env -i PATH="$there/bin" TMPDIR="$there/tmp" OUT="$there/again" GPU_REHEARSAL=1 GPU_BUILDS="$builds" \
    BUDGET=1 sh scripts/gpu.sh test) >out 2>err
grep -q '^test,.*,check,left_out,1$' "$there/again/gpu.csv" && grep -q '^train,' "$there/again/gpu.csv" &&
    ! grep -q '^test,.*passed,0' "$there/again/gpu.csv"
check "gpu.sh: what there is no time for is left out, and said" $? "$(tail -n 1 out)"

echo "1..$count"
[ "$failures" -eq 0 ]
