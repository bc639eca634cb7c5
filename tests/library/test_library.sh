#!/bin/sh
# libvit in a C program: tests/library/calls.c is compiled with the library alone and classifies as
# train_vit --predict does; damaged checkpoints and images are errors after which it goes on, and nothing grows.
#
#   BUILD=build/cpu sh tests/library/test_library.sh      needs make library
#   OMP_NUM_THREADS=1 BUILD=build/cpu-tsan ...            make SANITIZE=thread library build/cpu-tsan/train_vit
#
# VIT_TEST_QUICK=1 calls fewer times.

# shellcheck disable=SC1091,SC2015,SC2034,SC2086,SC2154 # what tap.sh sets; settings are lists of words
. "$(dirname "$0")/../tap.sh"

library=$build/libvit.so
if [ ! -e "$library" ]; then
    skip "libvit" "no $library: make library"
    echo "1..$count"
    exit 0
fi
# A sanitizer of the library must be one of the program, too.
sanitizer=$(ldd "$library" | sed -n 's/.*lib\([at]\)san.*/\1/p' | sed 's/a/-fsanitize=address/; s/^t/-fsanitize=thread/')
few() { if [ "$slow" != 0 ]; then echo "$1"; else echo "$2"; fi; }
ask() { LD_LIBRARY_PATH=$build timeout -k 5 500 ./calls "$@" >out 2>err </dev/null; }
last_line() { tail -n 1 "$1"; }

# == The library as a file ===========================================================================================

nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort >names
grep -q '^vit_open$' names && ! grep -qv '^vit_' names
check "the library defines vit_* and nothing else" $? "$(grep -v '^vit_' names | head -n 1)"

! ldd "$library" | grep -E 'lib(mpi|av|sw|sndfile|samplerate)'
check "it needs neither MPI nor FFmpeg nor sound" $?

cp "$root/library/vit.h" vit.h
printf '#include "vit.h"\nint main() { return vit_version() == nullptr; }\n' >header.cc
"${CXX:-c++}" $sanitizer -std=c++11 -Wall -Wextra -Werror -I. header.cc -L"$build" -lvit -o header 2>err &&
    LD_LIBRARY_PATH=$build ./header
check "a C++ program can include vit.h" $? "$(last_line err)"

"${CC:-cc}" -std=gnu11 -O1 -fopenmp $sanitizer -I. "$root/tests/library/calls.c" -L"$build" -lvit -lm -lpthread -o calls 2>err
check "a C program is linked with the library alone" $? "$(last_line err)"

# == Models ==========================================================================================================

if [ -z "$python" ]; then
    skip "models" "no Python with numpy here"
    echo "1..$count"
    [ "$failures" -eq 0 ]
    exit
fi

"$vit" $tiny --epochs 1 --run-dir whole >out 2>err &&
    "$vit" $tiny --attn ripple --seed 5 --img-size 40 --epochs 1 --run-dir other >out 2>err &&
    "$vit" $tiny --stem conv --patch-size 1 --epochs 1 --run-dir convolutions >out 2>err
check "three models are trained" $? "$(last_line err)"
one=whole/best.safetensors
two=other/best.safetensors
"$python" - <<'END'
import struct, zlib
pixels = b"".join(b"\0" + bytes((x * 37 + y * 11 * c) % 256 for x in range(50) for c in (1, 2, 3)) for y in range(40))
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 50, 40, 8, 2, 0, 0, 0)) + \
    chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")
open("a.png", "wb").write(png)
open("broken.png", "wb").write(png[:len(png) // 2])

# A header that is JSON, with a tensor taken out: its data belong to none.
import json
whole = open("whole/best.safetensors", "rb").read()
size = struct.unpack("<Q", whole[:8])[0]
header = json.loads(whole[8:8 + size])
del header["pos_embed"]
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open("hole.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + whole[8 + size:])

# eval_resize below img_size, which train_vit never writes.
text = whole[8:8 + size].replace(b"eval_resize = 0", b"eval_resize = 1")
assert text != whole[8:8 + size]
open("resize.safetensors", "wb").write(whole[:8] + text + whole[8 + size:])
END
# The output is infinite.  The model has convolutions, which fold their weights in the first call.
enlarge convolutions/best.safetensors endless.safetensors head.

"$vit" --init $one --predict a.png --json p.json >out 2>err
ask logits $one a.png
status=$?
cp out logits
[ "$status" -eq 0 ] && "$python" - >out 2>err <<'END'
import json, numpy
logits = numpy.loadtxt("logits")
p = numpy.exp(logits - logits.max())
p /= p.sum()
for said in json.load(open("p.json"))[0]["predictions"]:
    assert abs(p[said["id"]] - said["probability"]) < 1e-6, (said, p[said["id"]])
END
check "its probabilities are those of train_vit --predict" $? "$(last_line err)"

printf 'LC_NUMERIC\ndecimal_point ","\nthousands_sep ""\ngrouping -1\nEND LC_NUMERIC\n' >comma
if localedef -c -i comma "$PWD/commas" >out 2>err || [ -e commas/LC_NUMERIC ]; then
    ask logits $one a.png
    mv out points
    (export LC_ALL='' LOCPATH="$PWD" LC_NUMERIC=commas && ask logits $one a.png) && grep -q , out &&
        sed 's/,/./' out | cmp - points >>err
    check "and the same where numbers have a decimal comma" $? "$(last_line err)"
else
    skip "numbers with a decimal comma" "localedef makes no locale here"
fi

static=$(sed -n 's/^Libs.private: //p' "$build/vit.pc")
if [ "$sanitizer" ]; then
    skip "libvit.a" "sanitized code keeps what nothing uses, and needs the libraries of that"
else
    "${CC:-cc}" -std=gnu11 -O1 -fopenmp -I. "$root/tests/library/calls.c" "$build/libvit.a" $static -o static 2>err &&
        ./static logits $one a.png >out 2>err && cmp out logits >>err 2>&1 &&
        nm -g "$build/libvit.a" | awk '$2 ~ /^[TDBRVW]$/ { print $3 }' | sort | diff - names >>err 2>&1
    check "libvit.a is linked with the flags of vit.pc alone, has the same names, and gives the same logits" $? "$(last_line err)"
fi

ask attention $one a.png
check "attention weights of every token; bad indices are errors" $? "$(last_line err)"

# == Errors ==========================================================================================================

: >empty
for path in empty none.safetensors a.png hole.safetensors resize.safetensors .; do
    ask refused $path && [ -s out ] && [ ! -s err ]
    check "$path is no checkpoint, and the library says so without growth" $? "$(last_line out)$(last_line err)"
done

# The first has the size of its data set's images, so whole pictures are resized; the second crops, as for folders.
for pair in $one=broken.png $two=broken.png $two="$root/tests/corpus/jpeg/cut.jpg"; do
    model=${pair%%=*}
    ask recovery $model a.png "${pair#*=}" endless.safetensors
    status=$?
    [ "$status" -eq 0 ] && [ ! -s out ] && [ ! -s err ]
    check "$model: a broken image and an infinite output are errors, and the model goes on" $? "status $status: $(last_line err)"
done

ask damage $one a.png checkpoint "$(few 40 400)" # the name that errors have of a checkpoint in memory
status=$?
[ "$status" -eq 0 ] && [ ! -s out ] && [ ! -s err ]
check "damaged checkpoints, in files and in memory, are errors, without a print and without growth" $? "status $status: $(last_line err)"

# Every allocation of the process counts, including those of oneDNN and jansson.
starve() { # which
    LD_LIBRARY_PATH=$build timeout -k 5 500 env LD_PRELOAD=$build/tests/faults.so VIT_FAULT=memory VIT_FAULT_AT=$1 \
        VIT_FAULT_COUNT=allocations ./calls again $one a.png >out 2>err </dev/null
}
if [ "$sanitizer" ] || [ ! -e "$build/tests/faults.so" ]; then
    skip "failing allocations" "a sanitizer has its own, or no $build/tests/faults.so"
else
    starve 0
    cmp -s out logits && [ ! -s err ]
    all=$?
    allocations=$(cat allocations) points=$(few 24 240) wrong=
    for i in $(seq 0 $((points - 1))); do
        n=$((1 + i * allocations / points + $$ % (allocations / points)))
        starve "$n" && cmp -s out logits && [ ! -s err ] || grep -q '^libgomp: Out of memory' err || wrong="$wrong $n: $(last_line err)"
    done
    [ $all -eq 0 ] && [ "$allocations" -gt 1000 ] && [ ! "$wrong" ]
    check "a failed allocation is an error, and the next call succeeds" $? "$points of $allocations$wrong"
fi

# == Threads =========================================================================================================

ask threads $one $two a.png "$(few 400 10000)"
status=$?
[ "$status" -eq 0 ] && [ ! -s out ] && [ ! -s err ]
check "two threads with a model each: equal logits, without growth" $? "status $status: $(last_line err)"

echo "1..$count"
[ "$failures" -eq 0 ]
