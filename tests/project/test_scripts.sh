#!/bin/sh
# The description of every script, scripts/deps.sh and scripts/test.sh on machines with missing packages, tests/run.sh
# with tests that signals end, and the plot scripts with a Python without matplotlib.
#
#   BUILD=build/cpu sh tests/project/test_scripts.sh
#
# The tools of a machine are those in the folder `bin`, which is all of PATH: links to this machine's programs, and
# stand-ins for programs that would change it.

# shellcheck disable=SC2015,SC2154
. "$(dirname "$0")/../tap.sh"

# == --help ===========================================================================================================

unhelpful=
for script in "$root"/scripts/*.sh "$root"/scripts/*/*.sh; do
    run_script() { timeout 10 sh "$script" "$1" >out 2>err; }
    for flag in -h --help; do
        run_script $flag && [ ! -s err ] && [ "$(sed -n 2p "$script")" = "# $(head -n 1 out)" ] && ! grep -qE '^(set|case) ' out ||
            unhelpful="$unhelpful ${script##*/}"
    done
done
[ -z "$unhelpful" ]
check "every script says what it does, and does nothing else" $? "${unhelpful:-all}"

# The Python scripts without any third-party module.
if command -v python3 >/dev/null 2>&1; then
    mkdir absent
    for module in PIL av decord ffcv matplotlib mmaction numpy onnx onnxruntime pycocotools scipy timm torch torchvision; do
        echo "raise ImportError('$module is kept from this script')" >"absent/$module.py"
    done
    unhelpful=
    number=0
    for script in "$root"/scripts/*.py "$root"/scripts/*/*.py "$root"/tests/reference/*.py; do
        grep -q '^if __name__ == "__main__"' "$script" || continue # a third-party module
        number=$((number + 1))
        PYTHONPATH=$PWD/absent PYTHONDONTWRITEBYTECODE=1 timeout 20 python3 "$script" --help >out 2>err &&
            [ ! -s err ] && [ "$(wc -w <out)" -ge 8 ] || unhelpful="$unhelpful ${script##*/}"
    done
    [ -z "$unhelpful" ] && [ "$number" -ge 40 ]
    check "every Python script has --help without numpy, PyTorch or matplotlib" $? "$number scripts,${unhelpful:- all}"
else
    skip "every Python script has --help without numpy, PyTorch or matplotlib" "no python3"
fi

# == scripts/deps.sh =================================================================================================

# machine PROGRAM...: a new machine with these programs.
machine() {
    rm -rf bin
    mkdir bin
    for program in sh cat cut dirname env head mkdir mktemp rm sed tail uname "$@"; do
        ln -s "$(command -v "$program")" "bin/$program"
    done
}

# stands_in PROGRAM SCRIPT
stands_in() {
    rm -f "bin/$1"
    printf '#!/bin/sh\n%s\n' "$2" >"bin/$1"
    chmod +x "bin/$1"
}

deps() { # ARGUMENTS
    env -i PATH="$PWD/bin" HOME="$PWD" TMPDIR="$PWD" sh "$root/scripts/deps.sh" "$@" >out 2>err
    status=$?
}

# A compiler that compiles only a program without libraries: headers exist, libraries do not.
poor_gcc='for word; do case $word in -l*) exit 1 ;; *.c) grep -q "include <stb" "$word" && exit 1 ;; esac; done; exit 0'

# Without a compiler, the headers of this machine count, so the message is checked on a machine with a compiler but no
# library; on a machine without a compiler, the message must name the compiler.
machine make grep
stands_in gcc "$poor_gcc"
stands_in id 'echo 1000'
stands_in apt-get 'echo "apt-get $*" >>called; exit 1'
rm -f called
deps mpi
complains 1 "neither root nor sudo|apt-get install| libdnnl-dev| libinih-dev| libjansson-dev| libstb-dev| libjpeg-dev|\
 libxxhash-dev| libopenmpi-dev| openmpi-bin"
check "without root or sudo, one line names everything" $? "status $status: $(cat err)"
[ ! -e called ]
check "and apt-get is not called" $?
! grep -q 'network\|libjpeg62' out err
check "and no network is blamed, nor a package that Debian alone has asked for" $?

machine make grep
stands_in id 'echo 1000'
stands_in apt-get 'exit 1'
deps mpi
complains 1 'neither root nor sudo| gcc|libopenmpi-dev|openmpi-bin'
check "without a compiler too, all in one line" $? "status $status: $(cat err)"

machine make grep
stands_in gcc "$poor_gcc"
stands_in id 'echo 1000'
stands_in apt-get 'exit 1'
stands_in apt-cache 'exit 0'
deps browser
complains 1 'neither root nor sudo| emscripten| chromium'
check "for the page in a browser, the compiler and a browser" $? "status $status: $(cat err)"
stands_in apt-cache 'exit 1'
deps browser
complains 1 'neither root nor sudo| emscripten' && ! grep -q chromium out err
check "but no browser where it is no package" $? "status $status: $(cat err)"

machine make grep
stands_in gcc "$poor_gcc"
stands_in id 'echo 1000'
stands_in apt-get 'exit 1'
stands_in sudo 'exit 1'
deps
complains 1 'sudo refuses|as root, apt-get update && apt-get install|libjpeg-dev'
check "where sudo refuses, the line for root" $? "status $status: $(cat err)"

machine make grep
stands_in gcc "$poor_gcc"
stands_in id 'echo 0'
stands_in apt-get 'case $* in *install*) echo "E: Unable to locate package libstb-dev"; exit 100 ;; esac'
deps
complains 1 'Unable to locate package libstb-dev|universe' && ! grep -q network err
check "a package that the distribution has not is no trouble of the network" $? "status $status: $(cat err)"

stands_in apt-get 'case $* in *install*) echo "E: Failed to fetch x  Temporary failure resolving y"; exit 100 ;; esac'
deps
complains 1 'Failed to fetch|network'
check "a package that cannot be fetched is" $? "status $status: $(cat err)"

machine make grep
stands_in gcc "$poor_gcc"
deps
complains 1 'no apt-get here|jansson|libjpeg-dev'
check "without apt-get, what to install" $? "status $status: $(cat err)"

machine make grep
stands_in clang "$poor_gcc"
stands_in id 'echo 1000'
stands_in apt-get 'exit 1'
env -i PATH="$PWD/bin" HOME="$PWD" TMPDIR="$PWD" CC=clang sh "$root/scripts/deps.sh" >out 2>err
status=$?
complains 1 'libdnnl-dev' && ! grep -q 'gcc' err
check "CC=clang asks for no gcc" $? "status $status: $(cat err)"

machine make grep
stands_in id 'echo 1000'
stands_in apt-get 'exit 1'
stands_in apt-cache 'case $* in "show chromium") exit ;; *) exit 1 ;; esac'
deps test
complains 1 'neither root nor sudo| chromium'
check "the tests want Chromium where it is a package" $? "status $status: $(cat err)"
stands_in apt-cache 'exit 1'
deps test
complains 1 'neither root nor sudo' && ! grep -qi chromium out err
check "and do without it where it is none" $? "status $status: $(cat err)"

# Headers below /usr/include/ffmpeg, as in Fedora.
machine make grep
stands_in gcc 'case $* in *-Ielsewhere*) ;; *libav* | *-lav* | *-lswscale*) exit 1 ;; esac'
stands_in python3 'exit 0'
stands_in pkg-config 'echo -Ielsewhere'
deps demo
[ "$status" -eq 0 ] && [ ! -s out ] && [ ! -s err ]
check "headers of FFmpeg where pkg-config says that they are" $? "status $status: $(cat out err)"

# The package needs PyTorch 1.13; Ubuntu 22.04 has 1.8.
if [ "$python" ]; then
    machine make grep
    ln -s "$(command -v "$python")" bin/python3
    stands_in gcc 'exit 0'
    mkdir modules
    : >modules/numpy.py
    for version in 1.8.1 1.13.0a0+gitd922c29 2.5.1+cpu; do
        echo "__version__ = '$version'" >modules/torch.py
        env -i PATH="$PWD/bin" TMPDIR="$PWD" PYTHONPATH="$PWD/modules" PYTHONDONTWRITEBYTECODE=1 \
            sh "$root/scripts/deps.sh" python >out 2>err
        echo "$version $? $(cat err)"
    done >told
    [ "$(cut -d ' ' -f 2 told | tr -d '\n')" = 100 ] && grep -q '^1.8.1 .*PyTorch 1.13 or newer' told
    check "deps.sh python asks for PyTorch 1.13" $? "$(paste -sd ' ' told)"
else
    skip "deps.sh python asks for PyTorch 1.13" "no python3 with numpy"
fi

# == tests/run.sh ====================================================================================================

if env --default-signal=INT,QUIT,HUP true 2>/dev/null; then
    mkdir -p runs/tests
    printf '#!/bin/sh\necho 1..1\nkill -s INT $$\nsleep 5\necho ok 1\n' >runs/tests/test_rng
    chmod +x runs/tests/test_rng
    (cd "$root" && BUILD=$work/runs sh tests/run.sh test_rng) >out 2>&1
    grep -q 'test_rng .*: killed by signal 2' out
    check "SIGINT reaches a test" $? "$(head -n 1 out)"

    # timeout sends the signal to the processes that the terminal would send SIGINT.
    printf '#!/bin/sh\necho $$ >%s/runs/pid\nexec sleep 300\n' "$work" >runs/tests/test_rng
    (cd "$root" && BUILD=$work/runs exec timeout 100 sh tests/run.sh test_rng) >out 2>&1 &
    pid=$!
    wait_for $pid . runs/pid
    kill $pid
    wait $pid
    for _ in 1 2 3 4 5; do kill -0 "$(cat runs/pid)" 2>/dev/null && sleep 1; done
    ! kill "$(cat runs/pid)" 2>/dev/null
    check "a test ends with a tests/run.sh that is stopped" $? "$(cat out)"
else
    skip "signals to tests/run.sh" "an env without --default-signal"
fi

# == What is missing is said before anything is built ================================================================

machine getconf make
stands_in python3 'case $* in *onnx*) exit 1 ;; esac'
env -i PATH="$PWD/bin" BATCHES=1 sh "$root/scripts/bench/bench.sh" >out 2>err
status=$?
complains 1 'python3|onnx|MODES'
check "bench.sh asks for ONNX Runtime in one line" $? "status $status: $(tail -n 1 err)"

machine make
env -i PATH="$PWD/bin" make -s -C "$root" fuzz >out 2>err
[ $? -ne 0 ] && grep -q 'make fuzz needs clang.*deps.sh test' out && ! grep -q 'CC\|FUZZ' out
check "make fuzz asks for clang" $? "$(tail -n 1 out)"

if [ -e /dev/nvidiactl ] || nvidia-smi -L >/dev/null 2>&1; then
    skip "gpu.sh looks for a GPU before it builds" "there is a GPU here"
else
    OUT=$PWD/back KEEP=$PWD/kept sh "$root/scripts/gpu.sh" build test >out 2>err
    status=$?
    complains 1 'gpu.sh test|NVIDIA GPU' && [ ! -s out ] && [ ! -e back ] && [ ! -e kept ]
    check "gpu.sh looks for a GPU before it builds" $? "status $status: $(tail -n 1 err)"
fi

mkdir cut
for i in $(seq 200); do echo "CC file$i.c"; [ "$i" -ne 50 ] || echo "file50.c:3:1: error: a mistake"; done >cut/log
sed -n '/^show()/,/^}/p' "$root/scripts/test.sh" >cut/show.sh
(. ./cut/show.sh && show cut/log) >out
grep -q 'file50.c:3:1: error' out && head -n 1 out | grep -q error && tail -n 1 out | grep -q file200 && [ "$(wc -l <out)" -lt 60 ]
check "test.sh shows an error in the middle of a long log first" $? "$(head -n 1 out)"

# == scripts/test.sh without what it needs ===========================================================================

mkdir checkout
cp -r "$root/scripts" "$root/docs" checkout
machine make awk date find getconf grep wc xargs
stands_in id 'echo 1000'
env -i PATH="$PWD/bin" HOME="$PWD" TMPDIR="$PWD" sh checkout/scripts/test.sh >out 2>err
status=$?
[ "$status" -ne 0 ] && grep -q 'FAILED scripts/deps.sh' out && ! grep -q 'not found' out &&
    tail -n 1 out | grep -q ' failed$' && [ "$(wc -l <out)" -lt 40 ]
check "test.sh says what is missing, and not what a program that is not there would have said" $? \
    "status $status, $(wc -l <out) lines, $(tail -n 1 out)"

# == scripts/checks/check_prose.py ====================================================================================

# A sentence for each rule, in the order of the rules, and others that the rules must accept.
cat >bad.md <<'END'
It takes so many rows.
The log of before stays.
Rows are measured by turns.
Whence it comes is known.
The map lies beside it.
The name stands twice.
The user is told once.
A frame tells nothing.
A GPU is lent for an hour.
The weights are ours.
The rooms of the tree are listed.
This is the ladder of a kernel.
Densities of images are modelled.
It draws new images.
Weights do not tell their heads.
It has the printed number.
It is one of the rows of the table of the paper.
END
cat >good.md <<'END'
There are so many that it overflows. A symbol stands for a number, and a stand-in replaces it. `beside` is a name.

    code of before by turns

| before | after |
|---|---|
| so many rows | the number of rows |
END
printf '/* It takes so many rows. */\nconst char *x = "so many", *y = "beside";\n' >bad.c
plain=$(command -v python3 || echo /usr/bin/python3)
"$plain" "$root/scripts/checks/check_prose.py" bad.md >out 2>err
status=$?
rules=$("$plain" "$root/scripts/checks/check_prose.py" --rules good.md | wc -l)
[ $status -eq 1 ] && [ "$rules" -ge 17 ] && [ "$(wc -l <out)" -eq "$rules" ] && [ "$(wc -l <bad.md)" -eq "$rules" ]
check "each rule of check_prose.py finds its sentence" $? "$rules rules, $(wc -l <out) found: $(tail -n 1 err)"
"$plain" "$root/scripts/checks/check_prose.py" good.md >out 2>err
check "and leaves names, code and examples alone" $? "$(head -n 1 out)"
"$plain" "$root/scripts/checks/check_prose.py" bad.c >out 2>err
[ "$(cut -d : -f 2 out | tr '\n' ' ')" = "1 2 " ]
check "in C it reads comments and texts of several words" $? "$(tr '\n' ' ' <out)"

# == scripts/plots/plot_*.py ===============================================================================================

# -S leaves out the folders of Debian's matplotlib, like another Python.
if /usr/bin/python3 -c 'import matplotlib' 2>/dev/null; then
    /usr/bin/python3 -S "$root/scripts/plots/plot_attention.py" --patterns --out patterns.png >out 2>err && [ -s patterns.png ]
    check "plot_attention.py under a Python without matplotlib takes the system's" $? "$(tail -n 1 err)"
    for script in "$root"/scripts/plots/plot_*.py; do
        /usr/bin/python3 -S "$script" --help >out 2>err
        check "and $(basename "$script")" $? "$(tail -n 1 err)"
    done
else
    skip "the system's matplotlib" "none here"
fi
if command -v python3 >/dev/null 2>&1; then
    VIT_SYSTEM_PYTHON=tried python3 -S "$root/scripts/plots/plot_attention.py" --patterns --out patterns.png >out 2>err
    status=$?
    complains 1 'plot_attention.py|scripts/deps.sh demo'
    check "where no Python has it, one line says what to do" $? "status $status: $(cat err)"
fi

echo "1..$count"
[ $failures -eq 0 ]
