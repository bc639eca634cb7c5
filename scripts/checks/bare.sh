#!/bin/sh
# Do the two commands of the README work on a bare machine?  Runs them as root in minimal installations of other
# distributions (debootstrap) below build/bare, and prints a table.  The tests, the demo, and then `make install` with a
# program that uses the library and the package for PyTorch, each run in a fresh copy of the installation, so none finds
# packages that another has installed.  Needs root, debootstrap and a network; a distribution takes as long as
# scripts/test.sh, the demo and `make install`, or minutes with names in TESTS.
#
#   sh scripts/checks/bare.sh [SUITE...]      debian:bookworm debian:trixie ubuntu:noble
#   TESTS=all ...                      sh scripts/test.sh all, in place of sh scripts/test.sh; names, as
#                                      "test_mpi test_model": these tests after `make WERROR=1`; empty: none
#   DEMO=0 ...                         no demo
#   DEMO="--epochs 1" ...              options of train_vit for it
#   INSTALL=0 ...                      no installation
#   KEEP=1 ...                         the installations are kept for inspection and are not bare in the next call
#
# Debian's packages come from the mirror that this machine's apt uses, Ubuntu's from debootstrap's default if apt has
# none; UBUNTU_MIRROR and DEBIAN_MIRROR set other ones.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -u
CDPATH='' cd "$(dirname "$0")/../.." || exit 1

fail() {
    printf 'scripts/checks/bare.sh: %s\n' "$*" >&2
    exit 1
}

[ "$(id -u)" -eq 0 ] || fail "needs root, for chroot"
command -v debootstrap >/dev/null 2>&1 || fail "no debootstrap here: apt-get install debootstrap"
TESTS=${TESTS-test.sh}
DEMO=${DEMO-}
INSTALL=${INSTALL-}
bare=$PWD/build/bare
mkdir -p "$bare" || exit 1
root=

# Nothing of this machine may be below a folder that is about to be removed.
leave() {
    [ "$root" ] || return 0
    for mounted in dev/shm dev sys proc; do
        ! mountpoint -q "$root/$mounted" || umount "$root/$mounted" || umount -l "$root/$mounted"
    done
    ! grep -q " $root/" /proc/mounts || fail "$root: something is still mounted there"
    [ "${KEEP:-}" ] || rm -rf "$root"
    root=
}

# The checkout in a copy of the distribution's bare installation.
enter() { # its purpose
    leave
    root=$bare/$name-$1
    if [ ! -e "$root" ]; then
        rm -rf "$root.part"
        cp -a "$bare/$name.bare" "$root.part" && mv "$root.part" "$root" || fail "$root: cannot be written"
    fi
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    # Nothing mounted or unmounted there may reach this machine's own /dev.
    mount -t proc proc "$root/proc" && mount -t sysfs -o ro sysfs "$root/sys" &&
        mount --bind /dev "$root/dev" && mount --make-private "$root/dev" &&
        mount -t tmpfs tmpfs "$root/dev/shm" || fail "$root: cannot mount"
    rm -rf "$root/vit.c"
    mkdir -p "$root/vit.c"
    git ls-files -z --cached --others --exclude-standard | xargs -0 tar cf - | tar xf - -C "$root/vit.c"
}
trap leave EXIT
trap 'exit 130' INT TERM

# == Where packages come from =========================================================================================

# The first address from which apt fetches a distribution of that name.
mirror_of() { # Debian or Ubuntu
    apt-cache policy 2>/dev/null | awk -v origin="o=$1" '
        $2 ~ /^(https?|file|copy):/ { address = $2 }
        /^ *release / && index("," $2 ",", "," origin ",") && address !~ /security/ && !found {
            print address
            found = 1
        }'
}

bootstrap() { # distribution, suite, folder
    case $1 in
    debian) mirror=${DEBIAN_MIRROR:-$(mirror_of Debian)} components=main script= ;;
    ubuntu) mirror=${UBUNTU_MIRROR:-$(mirror_of Ubuntu)} components=main,universe script=gutsy ;;
    *) echo "$1: expected debian or ubuntu"; return 1 ;;
    esac
    scripts=/usr/share/debootstrap/scripts
    [ ! -e "$scripts/$2" ] || script=$2
    [ "$script" ] || script=sid
    if [ ! "$mirror" ]; then # debootstrap's own for that distribution
        mirror=$(sed -n 's/^[[:space:]]*default_mirror //p' "$scripts/$script" | grep -v old | head -n 1)
    fi
    [ "$mirror" ] || { echo "no mirror known: set DEBIAN_MIRROR or UBUNTU_MIRROR"; return 1; }
    set -- "$1" "$2" "$3" --variant=minbase --components="$components"
    # A suite without installed keys is not verified, because the installation is deleted afterwards.
    [ -e "/usr/share/keyrings/$1-archive-keyring.gpg" ] || set -- "$@" --no-check-gpg
    suite=$2 folder=$3
    shift 3
    debootstrap "$@" "$suite" "$folder" "$mirror" "$scripts/$script"
}

# == One distribution =================================================================================================

inside() { # script: run by sh in the checkout, as root, without anything of this machine
    chroot "$root" env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
        VIT_TEST_QUICK="${VIT_TEST_QUICK:-}" VIT_TEST_TIMEOUT="${VIT_TEST_TIMEOUT:-}" JOBS="${JOBS:-}" \
        FUZZ_SECONDS="${FUZZ_SECONDS:-}" sh -c "cd /vit.c && $1"
}

# step NAME COMMAND: its time, or how it ended; the output in build/bare/DISTRIBUTION-NAME.log.
step() {
    start=$(date +%s)
    status=0
    inside "$2" >"$bare/$name-$1.log" 2>&1 || status=$?
    seconds=$(($(date +%s) - start))
    if [ "$status" -eq 0 ]; then result="$((seconds / 60)):$(printf %02d $((seconds % 60)))"; else result=FAILED; fi
    [ "$status" -eq 0 ] || { failures=$((failures + 1)); tail -n 20 "$bare/$name-$1.log" | sed 's/^/   | /' >&2; }
}

# docs/guide/c.md and docs/guide/python.md, with what is installed: a program with the library, found by pkg-config and by
# the loader, and the package in PyTorch take the model that the installed train_vit has trained.
# shellcheck disable=SC2016 # for the shell inside
with_library='sh scripts/deps.sh && apt-get -q -y install --no-install-recommends pkg-config &&
    make -j$(nproc) install && ldconfig && mkdir /tmp/user && cd /tmp/user &&
    train_vit --config /usr/local/share/vit.c/configs/cpu/shapes.ini --train-limit 640 --test-limit 100 --epochs 1 \
        --warmup-epochs 0 --run-dir run &&
    share=/usr/local/share/doc/vit.c &&
    cc $share/examples/classify.c $(pkg-config --cflags --libs vit) -o classify &&
    ldd classify | grep libvit && ./classify run/best.safetensors $share/docs/images/browser.png'
with_pytorch='sh scripts/deps.sh python && apt-get -q -y install --no-install-recommends python3-pip &&
    pip install --no-index --no-deps --break-system-packages ./python && cd /tmp/user &&
    python3 -c "import torch, vitc; model = vitc.load(\"run/best.safetensors\"); \
        print(vitc.__file__, model(torch.rand(2, 3, *model.img_size)).shape)"'

versions_inside() {
    versions=$(inside 'echo "gcc $(gcc -dumpfullversion) |" \
        "$(dpkg-query -W -f "\${Version}" libdnnl-dev 2>/dev/null) |" \
        "$(mpirun --version 2>/dev/null | sed -n "1s/.* //p")"' 2>/dev/null)
}

failures=0
rows=
[ $# -ne 0 ] || set -- debian:bookworm debian:trixie ubuntu:noble
for which; do
    distribution=${which%%:*}
    name=$distribution-${which#*:}
    row="| $which |"
    echo "== $which" >&2
    if [ ! -e "$bare/$name.bare" ]; then
        root=$bare/$name.bare.part # of an interrupted call, perhaps with what debootstrap mounts
        leave
        rm -rf "$bare/$name.bare.part"
        if ! bootstrap "$distribution" "${which#*:}" "$bare/$name.bare.part" >"$bare/$name-bootstrap.log" 2>&1 ||
            ! mv "$bare/$name.bare.part" "$bare/$name.bare"; then
            tail -n 5 "$bare/$name-bootstrap.log" | sed 's/^/   | /' >&2
            failures=$((failures + 1))
            rows="$rows$row not installed | | | | | |
"
            root=$bare/$name.bare.part
            leave
            rm -rf "$bare/$name.bare.part"
            continue
        fi
    fi
    versions=
    tests=
    [ ! "$TESTS" ] || enter tests
    if [ "$TESTS" = test.sh ] || [ "$TESTS" = all ]; then
        step tests "sh scripts/test.sh ${TESTS#test.sh}"
        tests="$result, $(tail -n 1 "$bare/$name-tests.log")"
    elif [ "$TESTS" ]; then
        programs=
        for one in $TESTS; do
            ! ls tests/*/"$one.c" >/dev/null 2>&1 || programs="$programs build/cpu/tests/$one"
        done
        step build "sh scripts/deps.sh mpi &&
            apt-get -q -y install --no-install-recommends libcmocka-dev python3-numpy &&
            make -j\$(nproc) WERROR=1 all $programs"
        tests="built $result"
        step tests "sh tests/run.sh $TESTS"
        tests="$tests; $(tail -n 1 "$bare/$name-tests.log")"
        # The README's command for root.
        step mpirun "mpirun --allow-run-as-root --oversubscribe -np 2 ./build/cpu/train_vit --dim 16 --depth 1 \
            --heads 2 --patch-size 8 --train-limit 64 --test-limit 32 --batch-size 16 --epochs 1 --warmup-epochs 0"
        tests="$tests; mpirun $result"
    fi
    [ ! "$TESTS" ] || versions_inside
    demo=
    if [ "$DEMO" != 0 ]; then
        enter demo
        step demo "sh scripts/demo.sh $DEMO && [ -s runs/demo/report.html ] && [ -s runs/demo/attention.png ]"
        demo=$result
        accuracy=$(sed -n 's/.*best \([0-9.]* %\).*/\1/p' "$bare/$name-demo.log" | tail -n 1)
        [ ! "$accuracy" ] || demo="$demo, $accuracy"
        [ "$versions" ] || versions_inside
    fi
    installed=
    if [ "$INSTALL" != 0 ]; then
        enter install
        step install "$with_library"
        installed="with libvit $result"
        step pytorch "$with_pytorch"
        installed="$installed, with PyTorch $result"
        [ "$versions" ] || versions_inside
    fi
    rows="$rows$row ${versions:-| |} | $tests | $demo | $installed |
"
    leave
    [ "${KEEP:-}" ] || rm -rf "$bare/$name.bare"
done

printf '| %s | %s | %s | %s | %s | %s | %s |\n' system compiler oneDNN "Open MPI" tests demo installed
echo '|---|---|---|---|---|---|---|'
printf %s "$rows"
[ "$failures" -eq 0 ]
