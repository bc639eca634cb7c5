#!/bin/sh
# Absurd sizes: every operator of train_vit, train_detr and train_ar either describes the model, with possible counts,
# or refuses it with one line, within seconds.  In a build with UBSan (make SANITIZE=1) no count overflows on the way.
# TAP on standard output, evidence behind '# '.

# shellcheck disable=SC2012,SC2015,SC2046,SC2086 # settings are lists of words; no name here holds a space
. "$(dirname "$0")/../tap.sh"

# sized LIMIT PROGRAM ARGUMENTS...: prints the error, or nothing.  A count must not exceed 2^63, and a model has
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

# == Counts by formula, against counting one by one ==================================================================

# macs SETTINGS: the multiply-adds of one block of width 12 on a grid with these rows and columns
macs() { "$vit" --dim 12 --depth 1 --patch-size 1 --pool gap "$@" --describe 2>&1 | sed -n 's/^macs: //p'; }

seed=${VIT_TEST_SEED:-$(date +%s)}
echo "# SEED=$seed"
awk -v seed="$seed" 'BEGIN {
    srand(seed)
    for (i = 0; i < 12; i++) {
        rows = 1 + int(7 * rand()); columns = 1 + int(7 * rand()); n = rows * columns
        l = 1 + int(n * rand()); c = 1 + int(l * rand()); split("union split alternate", how, " ")
        print rows, columns, l, c, how[1 + int(3 * rand())], rand() < 0.5 ? "sparse-fixed" : "sparse-strided"
    }
}' >cases
while read -r rows columns l c how attn; do
    fixed=
    [ "$attn" = sparse-strided ] || fixed="--sparse-c $c"
    got=$(macs --img-size ${rows}x$columns --heads 3 --attn $attn --sparse-stride $l --sparse-heads $how $fixed)
    dense=$(macs --img-size ${rows}x$columns --heads 3 --attn softmax)
    # softmax has 2 N^2 M of them, a sparse set of keys has 2 D for each head and pair
    awk -v n=$((rows * columns)) -v l="$l" -v c="$c" -v how="$how" -v fixed="$fixed" -v got="$got" -v dense="$dense" '
        BEGIN {
            first = how == "split" ? 2 : 3; second = how == "union" ? 3 : how == "split" ? 1 : 0
            for (h = 0; h < 3; h++) for (i = 0; i < n; i++) for (j = 0; j < n; j++) {
                near = fixed != "" ? int(i / l) == int(j / l) : (i - j) ^ 2 <= l ^ 2
                far = fixed != "" ? j % l >= l - c : i % l == j % l
                pairs += (h < first && near) || (h >= 3 - second && far)
            }
            exit !(got != "" && got - dense == 8 * pairs - 24 * n * n)
        }' || echo "$rows x $columns, stride $l, $attn $how $fixed: $got against $dense"
done <cases >wrong
[ ! -s wrong ] && [ "$(wc -l <cases)" -eq 12 ]
check "pairs of sparse attention" $? "$(head -n 1 wrong)"
for size in 1x9 4x6 7x7; do
    for r in 1 2 3 9; do macs --img-size $size --heads 2 --attn ripple-fixed --r-max $r; done | tr '\n' ' ' | awk -v size=$size '
        # only the pairs nearer than r_max grow with it
        { split(size, side, "x"); split("1 2 3 9", reach, " ")
          for (k = 1; k <= 4; k++) for (a = 0; a < side[1]; a++) for (b = 0; b < side[1]; b++)
              for (x = 0; x < side[2]; x++) for (y = 0; y < side[2]; y++)
                  p[k] += (a - b) ^ 2 < reach[k] ^ 2 && (x - y) ^ 2 < reach[k] ^ 2
          right = NF == 4 && ($3 - $1) * (p[2] - p[1]) == ($2 - $1) * (p[3] - p[1]) && $2 > $1 &&
                  ($4 - $1) * (p[2] - p[1]) == ($2 - $1) * (p[4] - p[1]) }
        END { exit !right }' || echo "$size"
done >wrong
[ ! -s wrong ]
check "pairs of ripple attention" $? "$(head -n 1 wrong)"

echo "1..$count"
[ "$failures" -eq 0 ]
