#!/bin/sh
# make install-built into a separate folder: the installed programs run from another folder with the installed configs,
# each has a manual page with all of its settings, the links of the installed docs are valid, and make uninstall removes
# exactly the installed files.
#
#   BUILD=build/cpu-asan sh tests/project/test_install.sh

# shellcheck disable=SC1091,SC2012,SC2013,SC2015,SC2034,SC2046,SC2086,SC2154 # what tap.sh sets; settings are lists of words
. "$(dirname "$0")/../tap.sh"

prefix=/opt/vit
there=$work/root$prefix
install_or_not() { # install-built, uninstall: nothing is built again
    make -s -C "$root" BUILD="${build#"$root"/}" DESTDIR="$work/root" PREFIX=$prefix "$1" >out 2>err
}

before=$(ls -l "$build/train_vit" "$build/train_detr" "$build/pack_dataset")
install_or_not install-built
check "make install-built" $? "$(tail -n 1 err)"
[ "$before" = "$(ls -l "$build/train_vit" "$build/train_detr" "$build/pack_dataset")" ] && ! grep -q '^CC' out
check "which compiles nothing" $? "$(grep -c '^CC' out) files"

# A package is for more machines than the one that made it, unless ARCH says otherwise.
folder=$(env -u ARCH make -n -C "$root" DESTDIR="$work/root" PREFIX=$prefix install-built | sed -n 's/^install -m 755 \(build[^ ]*\)\/train_vit .*/\1/p')
[ "$folder" = build/cpu-portable ]
check "what is installed by default is portable" $? "$folder"

version=$(sed -n 's/.*VIT_VERSION "\(.*\)"/\1/p' "$root/core/version.h")
for program in train_vit train_detr train_ar pack_dataset; do
    said=$("$there/bin/$program" --version 2>&1)
    [ -n "$version" ] && [ "$said" = "$program $version" ]
    check "$program --version" $? "$said"

    "$there/bin/$program" --help >long 2>&1 && "$there/bin/$program" -h >short 2>&1 && [ "$(wc -l <short)" -le 40 ] &&
        [ "$(head -n 1 short)" = "$(head -n 1 long)" ]
    check "$program -h is the short form of --help" $? "$(wc -l <short) lines: $(head -n 1 short)"

    page=$there/share/man/man1/$program.1
    sed -n 's/^  \(--[a-z0-9-]*\) .*/\1/p; s/^  \([a-z][a-z0-9-]*\)   *[a-z].*/\1/p' long |
        grep -vx "$program" | sort -u >named
    sed -n '/^\.TP/{ n; s/\\-/-/g; s/\\f[BIR]//g; s/ .*//; p; }' "$page" | sort -u >explained
    missing=$(comm -23 named explained | tr '\n' ' ')
    [ -z "$missing" ] && [ "$(wc -l <named)" -ge 10 ]
    check "$program.1 has every setting of --help" $? "missing:${missing:- none}"

    # No text of the program may be interpreted as a command by the formatter.
    strange=$(grep "^[.']" "$page" | grep -vE '^\.(TH|SH|TP|B|nf|fi)( |$)')
    [ -z "$strange" ] && grep -q "^\.TH .*$version" "$page"
    check "$program.1 holds only its own requests, and the version" $? "$strange"
    if command -v groff >/dev/null 2>&1; then
        groff -man -Tutf8 -ww "$page" >formatted 2>warnings
        [ ! -s warnings ] && [ "$(wc -l <formatted)" -gt 30 ]
        check "$program.1 is formatted without a warning" $? "$(head -n 1 warnings)"
    else
        skip "$program.1 is formatted without a warning" "no groff"
    fi
done

# One config of each folder, and one that includes another.
vit=$there/bin/train_vit
for config in cpu/ripple cifar100/deit imagenet/deit-la-rope; do
    succeeds "train_vit with the installed $config.ini" --config "$there/share/vit.c/configs/$config.ini" --describe
done
vit=$there/bin/train_detr
succeeds "train_detr with the installed coco/smca-ripple.ini" --describe \
    --config "$there/share/vit.c/configs/coco/smca-ripple.ini"
vit=$there/bin/train_vit
succeeds "a run with the installed shapes.ini" --config "$there/share/vit.c/configs/cpu/shapes.ini" $tiny --epochs 1 \
    --run-dir run
[ -s run/last.safetensors ]
check "which leaves its weights where it was started" $?

installed=$(find "$there/share/vit.c/configs" -name '*.ini' | wc -l)
[ "$installed" -gt 0 ] && [ "$installed" -eq "$(find "$root/configs" -name '*.ini' | wc -l)" ]
check "every config is installed" $? "$installed"

# Each script starts: it describes itself, and finds its own modules where it is installed.
MPLCONFIGDIR=$work
export MPLCONFIGDIR
scripts=0
for script in $(find "$there/share/vit.c/scripts" -type f | sort); do
    name=$(basename "$script")
    [ "$name" != plots.py ] || continue # a module
    scripts=$((scripts + 1))
    case $name in *.py) with=${python:-$(command -v python3)} ;; *) with=sh ;; esac
    if [ ! "$with" ]; then
        skip "$name starts where it is installed" "no python3"
        continue
    fi
    "$with" "$script" --help >out 2>err && [ -s out ] && [ ! -s err ]
    check "$name --help where it is installed" $? "$(tail -n 1 err)"
    [ "$with" != sh ] || continue
    if "$with" -c 'import matplotlib, numpy' 2>/dev/null; then
        PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$(dirname "$script")" "$with" -c "import ${name%.py}" 2>err
        check "and what $name imports is there" $? "$(tail -n 1 err)"
    else
        skip "and what $name imports is there" "no python3 with matplotlib"
    fi
done
[ "$scripts" -ge 5 ]
check "all of the scripts" $? "$scripts"

(cd "$work" && sh "$there/share/vit.c/scripts/fetch_cifar.sh" >out 2>err)
[ $? -eq 2 ] && grep -q usage err
check "fetch_cifar.sh runs where it is installed" $? "$(head -n 1 err)"

if [ "$python" ]; then
    PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$root/python "$python" -c 'import wheel_of_vitc, zipfile
archive = zipfile.ZipFile(wheel_of_vitc.build_wheel("."))
print(archive.read(next(name for name in archive.namelist() if name.endswith(".dist-info/LICENSE"))).decode(), end="")' \
        >out 2>err
    cmp -s out "$root/LICENSE"
    check "the wheel of the Python package has the licence" $? "$(tail -n 1 err)"
else
    skip "the wheel of the Python package has the licence" "no python3 with numpy"
fi

# == The library =====================================================================================================

# A program with the installed library, as docs/guide/c.md says: a picture of 20 x 10 pixels, a BMP.
{ printf 'BM\216\002\0\0\0\0\0\0\066\0\0\0\050\0\0\0\024\0\0\0\012\0\0\0\001\0\030\0\0\0\0\0\130\002\0\0'
  head -c 16 /dev/zero
  yes shapes | head -c 600; } >new.bmp
flags() { PKG_CONFIG_SYSROOT_DIR=$work/root PKG_CONFIG_PATH=${1:-$there}/lib/pkgconfig pkg-config --cflags --libs vit; }
example=$there/share/doc/vit.c/examples/classify.c
library=
if [ ! -e "$there/lib/libvit.so" ] || ldd "$there/lib/libvit.so" | grep -qE 'lib(asan|tsan)'; then
    skip "the installed example is compiled with the installed library" "no library in this build, or a sanitized one"
elif ! pkg-config --version >/dev/null 2>&1; then
    skip "the installed example is compiled with the installed library" "no pkg-config"
else
    library=$(basename "$(readlink "$there/lib/libvit.so")")
    "${CC:-cc}" "$example" $(flags) -o classify 2>err
    check "the installed example is compiled with the installed library" $? "$(tail -n 1 err)"
    LD_LIBRARY_PATH=$there/lib ./classify run/best.safetensors new.bmp >out 2>err
    [ $? -eq 0 ] && grep -qE '^new\.bmp: [a-z ]+ [0-9.]+ %$' out && [ ! -s err ]
    check "and classifies a picture" $? "$(cat out err)"
fi

# A changed header recompiles the library as it recompiles the programs.
if [ "$library" ]; then
    make -pn -C "$root" BUILD="${build#"$root"/}" FORCE >out 2>err
    missed=
    for object in vit:library/vit.h scope:library/scope.h; do
        grep -E "^[^#]*/library/${object%:*}\.o: " out | grep -q " ${object#*:}" || missed="$missed $object"
    done
    [ -z "$missed" ]
    check "the library's objects depend on their headers" $? "missed:${missed:- none}"
fi

# Whoever packages the programs hardens them by LDFLAGS, or names the folder of a library there.
if [ "$library" ]; then
    here=${build#"$root"/}
    make -n -C "$root" BUILD="$here" VARIANTS= LDFLAGS="-Lelsewhere -Wl,-z,now" "$here/train_vit" "$here/$library" \
        "$here/tests/test_rng" >out 2>err
    linked=$(grep -- '-Lelsewhere -Wl,-z,now ' out | grep -vc '^echo') # the stamp of the flags
    [ "$linked" -eq 3 ]
    check "programs, the library and tests are linked with LDFLAGS" $? "$linked $(tail -n 1 err)"
fi

# A portable build has a second library, which glibc's loader takes on processors with AVX-512.
if [ "$library" ] && [ "$(uname -m)" = x86_64 ]; then
    mkdir two two-v4
    cp "$build"/train_* "$build/pack_dataset" "$build/$library" "$build/libvit.a" "$build/vit.pc" two
    cp "$build/$library" two-v4
    there2="$work/root/opt/two libraries"
    two() { make -s -C "$root" BUILD="$work/two" DESTDIR="$work/root" PREFIX="/opt/two libraries" "$1" >out 2>err; }
    newer=$there2/lib/glibc-hwcaps/x86-64-v4/$library
    echo v4-bf16 v4 >two/variants
    two install-built && [ -e "$newer" ]
    check "a second library for processors with AVX-512" $? "$(tail -n 1 err)"
    loader=$(ldd classify | sed -n 's|^[[:space:]]*\(/[^ ]*/ld-linux[^ ]*\).*|\1|p')
    folder=$there2/lib
    ! "$loader" --help 2>/dev/null | grep -q 'x86-64-v4 (supported' || folder=$(dirname "$newer")
    taken=$(LD_LIBRARY_PATH=$there2/lib ldd classify | sed -n 's/.*libvit.* => \(.*\) (.*/\1/p')
    [ "$taken" = "$folder/$library" ]
    check "which the loader takes there, and nowhere else" $? "$taken"
    eval "${CC:-cc} '$example' $(flags "$there2") -o classify" 2>err
    check "pkg-config quotes a folder whose name has a space" $? "$(tail -n 1 err)"
    echo v4-bf16 >two/variants
    two install-built && [ ! -e "$newer" ]
    check "an installation of a build without the second library removes it" $? "$(tail -n 1 err)"
    echo v4 >two/variants
    two install-built
    two uninstall && [ -z "$(find "$there2" ! -type d)" ]
    check "make uninstall removes everything from a folder whose name has a space" $? "$(find "$there2" ! -type d | head -n 1)"
fi

# == The pages =======================================================================================================

# Links of the pages, without those to the web and within a page.
missing=
links=0
for page in "$there"/share/doc/vit.c/*.md "$there"/share/doc/vit.c/docs/*.md "$there"/share/doc/vit.c/docs/*/*.md; do
    for link in $(grep -o '](\([^)#]*\)' "$page" | sed 's/^](//' | grep -v '^http'); do
        links=$((links + 1))
        [ -e "$(dirname "$page")/$link" ] || missing="$missing $(basename "$page"):$link"
    done
done
[ -z "$missing" ] && [ "$links" -ge 8 ]
check "links of the installed docs lead somewhere" $? "$links links, missing:${missing:- none}"

echo mine >"$there/share/vit.c/configs/cpu/mine.ini"
install_or_not uninstall
left=$(cd "$there" && find . ! -type d)
[ "$left" = ./share/vit.c/configs/cpu/mine.ini ]
check "make uninstall takes back what it installed and no other file" $? "left: $(echo $left | head -c 200)"
[ ! -e "$there/share/doc/vit.c" ]
check "and the folders that are empty then" $?

echo "1..$count"
[ $failures -eq 0 ]
