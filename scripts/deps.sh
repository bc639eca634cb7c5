#!/bin/sh
# Installs the packages that vit.c needs and this machine lacks.  Prints nothing if none is missing.
#
#   sh scripts/deps.sh          compiler and libraries of train_vit and train_detr
#   sh scripts/deps.sh demo     these, and matplotlib for the plots
#   sh scripts/deps.sh mpi      these, and Open MPI for several processes
#   sh scripts/deps.sh test     these, and Open MPI, cmocka and clang's fuzzer for scripts/test.sh
#
# Libraries are looked for by compiling and linking a program with them, so a copy in /usr/local, or in CPPFLAGS and
# LDFLAGS, counts.  apt-get runs only when something is missing; on systems without it the missing names are printed.
set -u

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

fail() {
    printf 'scripts/deps.sh: %s\n' "$*" >&2
    exit 1
}

# == What is there ====================================================================================================

has_program() { command -v "$1" >/dev/null 2>&1; }

# Does a program that includes the header and is linked with the flags build?  cmocka.h wants its four friends first.
has_library() { # header [flag...]
    header=$1
    shift
    printf '%s\n' '#include <stdarg.h>' '#include <stddef.h>' '#include <setjmp.h>' '#include <stdint.h>' \
        '#include <stdio.h>' "#include <$header>" 'int main(void) { return 0; }' >"$scratch/probe.c"
    # shellcheck disable=SC2086 # these are lists of flags
    ${CC:-gcc} ${CPPFLAGS:-} ${CFLAGS:-} "$scratch/probe.c" -o "$scratch/probe" ${LDFLAGS:-} "$@" >/dev/null 2>&1
}

# libFuzzer and the sanitizers are a package of their own beside clang.
has_fuzzer() {
    printf '%s\n' '#include <stddef.h>' '#include <stdint.h>' \
        'int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);' \
        'int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return data && size > 9 ? -1 : 0; }' \
        >"$scratch/fuzz.c"
    clang -fsanitize=fuzzer,address,undefined "$scratch/fuzz.c" -o "$scratch/fuzz" >/dev/null 2>&1
}

has_matplotlib() {
    for python in "${PYTHON:-python3}" /usr/bin/python3; do
        "$python" -c 'import matplotlib' >/dev/null 2>&1 && return
    done
    return 1
}

packages=
names=
wanted=
# One line for a thing that is missing, and its package for later.
missing() { # name, what for, package
    wanted="$wanted
  $1 ($2): $3"
    names="$names${names:+, }$1"
    packages="$packages $3"
}

look() {
    packages=
    names=
    wanted=
    compiler=${CC:-gcc}
    has_program "${compiler%% *}" || missing "$compiler" "the C compiler" gcc
    has_program make || missing make "builds the program" make
    has_library stdlib.h || missing "the C library's headers" "every C program" libc6-dev
    [ -z "$packages" ] || return # without a compiler nothing can be probed: look again when it is there
    has_library dnnl.h -ldnnl || missing oneDNN "matrix products and convolutions" libdnnl-dev
    has_library ini.h -linih || missing inih "config files" libinih-dev
    has_library jansson.h -ljansson || missing jansson "headers of checkpoints and COCO's annotations" libjansson-dev
    has_library stb/stb_image.h || missing stb_image "reading and writing pictures" libstb-dev
    has_library jpeglib.h -ljpeg || missing libjpeg-turbo "reading JPEG" libjpeg62-turbo-dev
    has_library xxhash.h -lxxhash || missing xxHash "checksums of packed data sets" libxxhash-dev
    if [ "$demo" ]; then
        has_matplotlib || missing matplotlib "the plots" python3-matplotlib
    fi
    if [ "$mpi" ]; then
        has_program mpicc || missing "MPI's compiler" "several processes" libopenmpi-dev
        has_program mpirun || missing mpirun "several processes" openmpi-bin
    fi
    if [ "$test" ]; then
        has_library cmocka.h -lcmocka || missing cmocka "the tests" libcmocka-dev
        has_program clang || missing clang "the fuzzers" clang
        has_fuzzer || missing "clang's libFuzzer" "the fuzzers" libclang-rt-dev
    fi
    [ -z "$packages" ]
}

# == Installing =======================================================================================================

# The fuzzer's package bears clang's version: libclang-rt-14-dev on Debian 12, and libclang-common-14-dev where the two
# are not separate.
fuzzer_package() {
    version=$(clang -dumpversion 2>/dev/null | cut -d. -f1)
    [ "$version" ] || version=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p')
    for package in "libclang-rt-$version-dev" "libclang-common-$version-dev"; do
        apt-cache show "$package" >/dev/null 2>&1 && break
        package=libclang-rt-dev
    done
    printf '%s\n' "$package"
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        env DEBIAN_FRONTEND=noninteractive "$@"
    else
        sudo env DEBIAN_FRONTEND=noninteractive "$@"
    fi
}

install_packages() {
    has_program apt-get || fail "no apt-get here: install $names (Debian's names:$packages), then try again"
    [ "$(id -u)" -eq 0 ] || has_program sudo || fail "neither root nor sudo: as root, apt-get install$packages"
    as_root apt-get -q update >"$scratch/log" 2>&1 # if this fails, older lists may still do
    case $packages in
    *libclang-rt-dev*) packages=${packages%libclang-rt-dev*}$(fuzzer_package)${packages##*libclang-rt-dev} ;;
    esac
    printf 'installing:%s\n' "$packages"
    # shellcheck disable=SC2086 # a list
    as_root apt-get -q -y -o DPkg::Lock::Timeout=120 install --no-install-recommends $packages >>"$scratch/log" 2>&1 ||
        fail "apt-get could not install$packages: $(grep -m1 '^E:' "$scratch/log" || tail -n 1 "$scratch/log")" \
            "(is there a network?)"
}

demo=
mpi=
test=
for argument; do
    case $argument in
    demo) demo=yes ;;
    mpi) mpi=yes ;;
    test) test=yes mpi=yes ;;
    *) fail "$argument: expected nothing, demo, mpi or test" ;;
    esac
done

before=
until look; do
    [ "$names" != "$before" ] || fail "installed, but still not found: $names"
    printf 'missing:%s\n' "$wanted"
    install_packages
    before=$names
done
