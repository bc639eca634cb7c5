#!/bin/sh
# Absurd sizes: every operator of train_vit, train_detr and train_ar either describes the model, with counts that are
# possible, or refuses it with one line; within seconds.  In a build with UBSan (make SANITIZE=1) no count overflows on
# the way.  TAP on standard output, evidence behind '# '.

# shellcheck disable=SC2012,SC2015,SC2046,SC2086 # settings are lists of words; no name here holds a space
. "$(dirname "$0")/tap.sh"

# sized LIMIT PROGRAM ARGUMENTS...: says what is wrong, or nothing.  More than 2^63 is no count, and a model has
# multiply-adds, parameters and activations.
sized() {
    limit=$1
    shift
    timeout "$limit" "$@" --describe >out 2>err
    status=$?
    case $status in
    0)  ! grep -qE 'nan|inf|: -' out || echo "odd numbers: $(grep -E 'nan|inf|: -' out | head -n 1)"
        awk -F ': ' '$1 ~ /^(params|macs|activation_bytes)$/ { n++; if ($2 < 1 || $2 > 9223372036854775808) bad = $0 }
                     END { if (bad || n < 2) print "no possible counts: " bad }' out
        ;;
    2)  [ "$(wc -l <err)" -eq 1 ] || echo "$(wc -l <err) lines"
        ;;
    *)  echo "status $status $(grep -m 1 -E 'runtime error|ERROR' err || head -n 1 err)" ;;
    esac
}

operators=$("$vit" --help | sed -n '/^Attention operators/,/^$/s/^  \([a-z0-9-]*\) .*/\1/p')
[ "$(echo "$operators" | wc -l)" -gt 30 ]
check "the operators" $? "$(echo $operators)"
seconds=10
ldd "$vit" 2>/dev/null | grep -qE 'lib(asan|ubsan)' && seconds=60

while read -r name settings; do
    for attn in $operators "lisa --lisa-fft 2d --lisa-patterns 256" "sa10 --lisa-patterns 256"; do
        said=$(sized $seconds "$vit" --attn $attn $settings)
        [ -z "$said" ] || echo "$attn: $said"
    done >wrong
    [ ! -s wrong ]
    check "train_vit, $name: $settings" $? "$(wc -l <wrong) wrong, $(head -n 3 wrong | tr '\n' ' ')"
done <<'LINES'
largest-grid --img-size 4096 --patch-size 1 --pool gap --dim 8 --heads 2 --depth 1
wide --img-size 2048 --patch-size 1 --pool gap --dim 192 --heads 6
clip --frames 1024 --img-size 2048 --patch-size 1 --pool gap --dim 16 --heads 2
long-clip --frames 1024 --img-size 4096 --patch-size 4 --pool gap --dim 1 --heads 1
long-thin-clip --frames 1024 --img-size 512 --patch-size 1 --pool gap --dim 8 --heads 1 --depth 256
flat --img-size 1x4096 --patch-size 1 --pool gap --dim 16384 --heads 1 --depth 256
deep --img-size 4096 --patch-size 1 --pool gap --dim 64 --heads 64 --depth 256
class-token --img-size 4096 --patch-size 1 --pool cls --dim 8 --heads 1 --depth 2
stages --img-size 4096 --patch-size 1 --pool gap --dim 8,16384 --heads 1 --depth 256 --mlp-ratio 64
batch --img-size 2048 --patch-size 2 --pool gap --dim 8 --heads 1 --depth 1 --batch-size 1000000 --micro-batch 1000000
many-pairs --img-size 1024 --patch-size 1 --pool gap --dim 192 --heads 6 --depth 40
patterns --img-size 1024 --patch-size 1 --pool gap --dim 64 --heads 1 --depth 1
large-patches --frames 1024 --img-size 4096 --patch-size 256 --pool gap --dim 16384 --heads 1
LINES

head -c 100000 /dev/zero >text
# program NAME SETTINGS: the same for the others
while read -r program name settings; do
    said=$(sized $seconds "$build/$program" $settings)
    check "$program, $name: $settings" $((${#said} > 0)) "$said$(tail -n 1 out | cut -c 1-80)$(head -n 1 err | cut -c 1-120)"
done <<'LINES'
train_ar long --tokens 16777216 --data text --kind text --attn softmax --dim 8 --heads 1 --depth 1
train_ar long-strided --tokens 16777216 --data text --kind text --attn sparse-strided --dim 8 --heads 1 --depth 1
train_ar long-fixed --tokens 16777216 --data text --kind text --attn sparse-fixed --dim 8 --heads 1 --depth 1
train_ar wide --tokens 16777216 --data text --kind text --attn softmax --dim 16384 --heads 1 --depth 1
train_ar deep --tokens 65536 --data text --kind text --attn softmax --dim 16384 --heads 1 --depth 1024
train_ar picture --image-side 1024 --attn sparse-strided --dim 16 --heads 1 --depth 2
train_ar batch --tokens 65536 --data text --kind text --attn softmax --batch-size 1000000 --micro-batch 1000000
train_ar keys --tokens 1024 --data text --kind text --attn softmax --dim 16384 --heads 1 --qk-ratio 16 --mlp-ratio 64
train_detr largest --image-size 8192
train_detr wide --image-size 8192 --backbone-width 1024 --dim 16384
train_detr deep --image-size 8192 --backbone-blocks 99,99,99,99 --encoder-layers 64 --decoder-layers 64
train_detr queries --image-size 8192 --queries 65536 --num-classes 65536 --ffn 65536
train_detr ripple --image-size 8192 --attn ripple
train_detr linear --image-size 8192x32 --attn linear --heads 1 --dim 16384
LINES

echo "1..$count"
[ "$failures" -eq 0 ]
