#!/bin/sh
# Installs the packages that vit.c needs and this machine lacks.  Prints nothing if none is missing.
#
#   sh scripts/deps.sh          compiler and libraries of train_vit
#   sh scripts/deps.sh demo     and matplotlib, for the plots, libwebp, for WebP pictures, libsndfile and
#                               libsamplerate, for sound, and FFmpeg's libraries, for videos
#   sh scripts/deps.sh python   and PyTorch, for python/vitc: 100 MB of packages, 450 MB on the disk
#   sh scripts/deps.sh mpi      and Open MPI, for several processes
#   sh scripts/deps.sh test     everything that scripts/test.sh uses: what demo and mpi install, cmocka, ccache, g++ for
#                               the emulated CUDA kernels, clang with its OpenMP and its fuzzer, Python, a compiler and an
#                               emulator for arm64, and Chromium if it is a package (Ubuntu has it only as a snap)
#   sh scripts/deps.sh browser  and emscripten, which compiles the library for browsers (make browser), and Chromium
#   sh scripts/deps.sh arm64    the libraries for arm64, unpacked below build/arm64-root: nothing is installed
#
# Libraries are detected by compiling and linking a program with them, so a copy in /usr/local, or in CPPFLAGS and
# LDFLAGS, counts.  apt-get runs only when something is missing; on systems without it the missing names are printed.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -u
CDPATH='' cd "$(dirname "$0")/.." || exit 1

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

fail() {
    printf 'scripts/deps.sh: %s\n' "$*" >&2
    exit 1
}

# == What is there ====================================================================================================

has_program() { command -v "$1" >/dev/null 2>&1; }

has_compiler() { # without flags; the command may be "ccache gcc"
    echo 'int main(void) { return 0; }' >"$scratch/empty.c"
    ${CC:-gcc} -fsyntax-only "$scratch/empty.c" >/dev/null 2>&1
}

has_cxx() {
    printf '%s\n' '#include <vector>' 'int main() { return (int)std::vector<int>().size(); }' >"$scratch/empty.cpp"
    g++ "$scratch/empty.cpp" -o "$scratch/empty" >/dev/null 2>&1
}

# Does a program that includes the header and is linked with the flags build?  cmocka.h needs four other headers before
# it. Without a compiler: is the header in the packages' place?
has_library() { # header [flag...]
    header=$1
    shift
    if [ ! "$compiler" ]; then
        for folder in /usr/include /usr/local/include "/usr/include/$(uname -m)-linux-gnu"; do
            [ ! -e "$folder/$header" ] || return 0
        done
        return 1
    fi
    printf '%s\n' '#include <stdarg.h>' '#include <stddef.h>' '#include <setjmp.h>' '#include <stdint.h>' \
        '#include <stdio.h>' "#include <$header>" 'int main(void) { return 0; }' >"$scratch/probe.c"
    # shellcheck disable=SC2086 # these are lists of flags
    ${CC:-gcc} ${CPPFLAGS:-} ${CFLAGS:-} "$scratch/probe.c" -o "$scratch/probe" ${LDFLAGS:-} "$@" >/dev/null 2>&1
}

# clang comes without OpenMP, and without libFuzzer and the sanitizers: each is a package of its own.
has_clang_openmp() { (CC=${1:-clang} && has_library omp.h -fopenmp); }

has_fuzzer() {
    printf '%s\n' '#include <stddef.h>' '#include <stdint.h>' \
        'int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);' \
        'int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return data && size > 9 ? -1 : 0; }' \
        >"$scratch/fuzz.c"
    clang -fsanitize=fuzzer,address,undefined "$scratch/fuzz.c" -o "$scratch/fuzz" >/dev/null 2>&1
}

# With optimisation, as only then it starts its helpers in Node.js, which finds those of Debian by NODE_PATH.
has_emcc() {
    echo 'int main(void) { return 0; }' >"$scratch/empty.c"
    NODE_PATH=/usr/share/nodejs emcc -O2 "$scratch/empty.c" -o "$scratch/empty.js" >/dev/null 2>&1
}

has_module() { # modules
    for python in "${PYTHON:-python3}" /usr/bin/python3; do
        "$python" -c "import $1" >/dev/null 2>&1 && return
    done
    return 1
}

packages=
names=
wanted=
# Prints one line for a missing item, and remembers its package.
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
    compiler=yes
    has_compiler || { compiler=; missing "${CC:-gcc}" "the C compiler" "$(compiler_package)"; }
    has_program make || missing make "builds the program" make
    has_library stdlib.h || { compiler=; missing "the C library's headers" "every C program" libc6-dev; }
    case ${CC:-gcc} in # gcc has its own
    *clang*) has_clang_openmp "$CC" || missing OpenMP "several threads" "$(openmp_package "$CC")" ;;
    esac
    has_library dnnl.h -ldnnl || missing oneDNN "matrix products and convolutions" libdnnl-dev
    has_library ini.h -linih || missing inih "config files" libinih-dev
    has_library jansson.h -ljansson || missing jansson "headers of checkpoints and COCO's annotations" libjansson-dev
    has_library stb/stb_image.h || missing stb_image "reading and writing pictures" libstb-dev
    has_library jpeglib.h -ljpeg || missing libjpeg-turbo "reading JPEG" libjpeg-dev
    has_library xxhash.h -lxxhash || missing xxHash "checksums of packed data sets" libxxhash-dev
    if [ "$demo$test" ]; then
        has_program python3 || missing Python "scripts" python3
        has_module matplotlib || missing matplotlib "the plots" python3-matplotlib
        has_library webp/decode.h -lwebp || missing libwebp "reading WebP" libwebp-dev
        has_library sndfile.h -lsndfile || missing libsndfile "reading WAV" libsndfile1-dev
        has_library samplerate.h -lsamplerate || missing libsamplerate "converting the rate of sound" libsamplerate0-dev
        has_program pkg-config || missing pkg-config "finding FFmpeg" pkg-config
        # Fedora has these headers in a folder of their own.
        ffmpeg=$(pkg-config --cflags libavformat libavcodec libswscale 2>/dev/null)
        # shellcheck disable=SC2086 # a list of flags
        has_library libavformat/avformat.h $ffmpeg -lavformat || missing libavformat "reading videos" libavformat-dev
        # shellcheck disable=SC2086
        has_library libavcodec/avcodec.h $ffmpeg -lavcodec || missing libavcodec "decoding videos" libavcodec-dev
        # shellcheck disable=SC2086
        has_library libswscale/swscale.h $ffmpeg -lswscale || missing libswscale "the colours of videos" libswscale-dev
    fi
    if [ "$torch" ]; then
        has_program python3 || missing Python "the package vitc" python3
        has_module "torch, numpy; assert [int(n) for n in torch.__version__.split('.')[:2]] >= [1, 13]" ||
            missing "PyTorch 1.13 or newer" "the package vitc" python3-torch
    fi
    if [ "$mpi" ]; then
        has_program mpicc || missing "MPI's compiler" "several processes" libopenmpi-dev
        has_program mpirun || missing mpirun "several processes" openmpi-bin
    fi
    if [ "$test" ]; then
        has_library cmocka.h -lcmocka || missing cmocka "the tests" libcmocka-dev
        has_cxx || missing g++ "the emulated CUDA kernels" g++
        has_program xz || missing xz "the archive for a borrowed GPU" xz-utils
        has_program ccache || missing ccache "compiling once what several builds share" ccache
        has_program clang || missing clang "its build and the fuzzers" clang
        has_clang_openmp || missing "clang's OpenMP" "its build" "$(openmp_package clang)"
        has_fuzzer || missing "clang's libFuzzer" "the fuzzers" "$(fuzzer_package)"
        if [ "$(uname -m)" = x86_64 ] && has_program apt-get; then
            has_program aarch64-linux-gnu-gcc || missing "a compiler for arm64" "its build" gcc-aarch64-linux-gnu
            has_program qemu-aarch64 || missing "an emulator of arm64" "its tests" qemu-user
        fi
    fi
    if [ "$browser" ]; then
        has_program python3 || missing Python "putting the page together" python3
        has_emcc || missing emscripten "the library in a browser" emscripten
    fi
    if [ "$test$browser" ] && has_program apt-get && apt-cache show chromium >/dev/null 2>&1; then
        has_program chromium || has_program google-chrome || missing Chromium "looking at pages" chromium
    fi
    [ -z "$packages" ]
}

# == Installing =======================================================================================================

compiler_package() {
    for word in ${CC:-gcc}; do
        case $word in
        *gcc-[0-9]* | *clang-[0-9]*) echo "${word##*/}" && return ;;
        *clang*) echo clang && return ;;
        esac
    done
    echo gcc
}

# The first of these packages that exists, with the compiler's version in place of VERSION, or with that of Debian's
# clang if the compiler is not installed yet.
package_of() { # compiler, packages...
    version=$($1 -dumpversion 2>/dev/null | cut -d. -f1) # "ccache clang" is two words
    [ "$version" ] || version=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p')
    shift
    for package; do
        package=$(echo "$package" | sed "s/VERSION/$version/")
        ! apt-cache show "$package" >/dev/null 2>&1 || break
    done
    printf '%s\n' "$package"
}

openmp_package() { package_of "$1" libomp-VERSION-dev libomp-dev; }

# Debian 12 has libclang-rt-14-dev; elsewhere it is a part of libclang-common.
fuzzer_package() { package_of clang libclang-rt-VERSION-dev libclang-common-VERSION-dev libclang-rt-dev; }

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        env DEBIAN_FRONTEND=noninteractive "$@"
    else
        sudo env DEBIAN_FRONTEND=noninteractive "$@"
    fi
}

# The error in apt-get's log, and what to do about it.
trouble() {
    if grep -qE 'Unable to locate package|has no installation candidate' "$scratch/log"; then
        if grep -qE '^(Err|W: Failed to fetch|E: Failed to fetch)' "$scratch/log"; then
            echo "the lists of packages could not be fetched, $(grep -m1 -E '^[WE]: Failed' "$scratch/log");" \
                "is there a network?"
        else
            echo "$(grep -m1 '^E:' "$scratch/log"); on Ubuntu it may be in the component universe, elsewhere" \
                "find the package that has it"
        fi
    elif grep -qE 'Failed to fetch|Could not resolve|Could not connect' "$scratch/log"; then
        echo "$(grep -m1 '^E:' "$scratch/log"); is there a network?"
    else
        grep -m1 '^E:' "$scratch/log" || tail -n 1 "$scratch/log"
    fi
}

install_packages() {
    has_program apt-get || fail "no apt-get here: install $names (Debian's names:$packages), then try again"
    by_hand="as root, apt-get update && apt-get install --no-install-recommends$packages"
    if [ "$(id -u)" -ne 0 ]; then
        has_program sudo || fail "neither root nor sudo: $by_hand"
        sudo true || fail "sudo refuses: $by_hand"
    fi
    as_root apt-get -q update >"$scratch/log" 2>&1 # if this fails, older lists may be enough
    look # clang's version may be known only now
    printf 'installing, which takes one to three minutes:%s\n' "$packages"
    # shellcheck disable=SC2086 # a list
    as_root apt-get -q -y -o DPkg::Lock::Timeout=120 install --no-install-recommends $packages >>"$scratch/log" 2>&1 ||
        fail "apt-get could not install$packages: $(trouble)"
}

# == Libraries for another machine ====================================================================================

# apt-get downloads the arm64 libraries with their dependencies to separate folders, without root; dpkg-deb unpacks
# them.
unpack_arm64() {
    to=build/arm64-root
    [ ! -e "$to/complete" ] || return 0
    has_program apt-get && has_program dpkg-deb || fail "no apt-get here: $to cannot be filled"
    rm -rf "$to"
    mkdir -p "$to" "$scratch/state/lists/partial" "$scratch/cache/archives/partial" || exit 1
    : >"$scratch/status"
    apt_arm64() {
        apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User= -o Debug::NoLocking=1 \
            -o Dir::State="$scratch/state" -o Dir::State::status="$scratch/status" -o Dir::Cache="$scratch/cache" "$@" \
            >>"$scratch/log" 2>&1
    }
    : >"$scratch/log"
    apt_arm64 update
    apt_arm64 -y --no-install-recommends --download-only install libc6-dev libgomp1 libdnnl-dev libinih-dev \
        libjansson-dev libstb-dev libjpeg-dev libxxhash-dev libcmocka-dev || fail "libraries for arm64: $(trouble)"
    for archive in "$scratch"/cache/archives/*.deb; do
        dpkg-deb -x "$archive" "$to" || fail "$archive: damaged"
    done
    : >"$to/complete"
    echo "unpacked the libraries for arm64 into $to"
}

demo=
torch=
mpi=
test=
browser=
arm64=
for argument; do
    case $argument in
    demo) demo=yes ;;
    python) torch=yes ;;
    mpi) mpi=yes ;;
    test) test=yes mpi=yes ;;
    browser) browser=yes ;;
    arm64) arm64=yes ;;
    *) fail "$argument: expected nothing, demo, python, mpi, test, browser or arm64" ;;
    esac
done

if [ "$arm64" ]; then
    unpack_arm64
    exit
fi
before=
until look; do
    [ "$names" != "$before" ] || fail "installed, but still not found: $names"
    printf 'missing:%s\n' "$wanted"
    install_packages
    before=$names
done
