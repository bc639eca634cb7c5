#!/bin/sh
# Pictures of a density model: the attention of its blocks in the middle of sampling a picture, the sparse patterns, and
# the size of PNG files for comparison.
#
#   BUILD=build/cpu sh tests/programs/test_ar_pictures.sh

# shellcheck disable=SC2015,SC2154
. "$(dirname "$0")/../tap.sh"
ar=$build/train_ar
[ -x "$ar" ] || { echo "Bail out! $ar is not there: run make first"; exit 1; }

drawing= # a Python with matplotlib
for candidate in ${PYTHON:-python3 /usr/bin/python3}; do
    [ -n "$drawing" ] || ! "$candidate" -c 'import matplotlib' 2>/dev/null || drawing=$candidate
done

model="--data shapes --image-side 8 --train-limit 64 --validation-images 16 --test-limit 8 --dim 16 --depth 3 --heads 2 \
    --attn sparse-strided --stride 24 --sets window,column,dense --recompute --epochs 2 --batch-size 16 --warmup-steps 1"
# shellcheck disable=SC2086
"$ar" $model --run-dir run >out 2>err
check "a run of small pictures" $? "$(tail -n 1 out)"
"$ar" --init run/best.safetensors --sample 5 --out drawn.png --attention half.safetensors >out 2>err &&
    [ -s drawn.png ] && [ -s half.safetensors ]
check "drawing, and what the blocks looked at" $? "$(tail -n 1 out) $(cat err)"
head -c 4000 "$root/README.md" >book.txt
"$ar" --data book.txt --tokens 32 --dim 16 --depth 1 --heads 1 --epochs 1 --batch-size 8 --warmup-steps 1 \
    --run-dir text >out 2>err
"$ar" --init text/best.safetensors --sample 1 --attention looks.safetensors >out 2>err
status=$?
complains 2 'attention'
check "attention over a text is refused" $? "$(cat err)"

if [ -z "$drawing" ]; then
    skip "the scripts that draw" "no python3 with matplotlib"
    echo "1..$count"
    [ "$failures" -eq 0 ]
    exit
fi

says() { # name, words, command...
    name=$1 words=$2
    shift 2
    "$@" >out 2>err
    status=$?
    [ $status -eq 0 ] && grep -qE "$words" out
    check "$name" $? "$(tail -n 1 out) $(tail -n 1 err)"
}

# Every row of weights sums to one if the start vector is not in the set, otherwise to less; sets have the numbers of
# keys in the specification; the patterns are those of the program.
cat >looked.py <<'END'
import sys
sys.path.insert(0, sys.argv[1] + "/scripts/plots")
import numpy as np
import plot_attention

tensors, metadata = plot_attention.read_safetensors("half.safetensors")
weights, queries = tensors["weights"], tensors["queries"]
assert weights.shape == (3, 2, 4, 192) and metadata == {"grid": "8x8", "channels": "3", "attn": "sparse-strided"}
assert list(queries) == [(2 * 8 + 4) * 3, (4 * 8 + 4) * 3, (6 * 8 + 4) * 3, (7 * 8 + 4) * 3]
sums = weights.sum(axis=-1)
assert np.allclose(sums[:2], 1, atol=1e-5) and (sums[2] < 1).all() and (sums[2] > 0.5).all()
for q, p in enumerate(queries):
    seen = weights[:, 0, q] > 0
    assert not seen[:, p:].any()
    assert (seen.sum(axis=1) == [24, p // 24 + 1, p]).all(), (p, seen.sum(axis=1))
    assert (np.flatnonzero(seen[1]) + 1 == np.arange(p % 24, p + 1, 24)).all()
pixels = plot_attention.to_pixels(tensors, metadata)
assert pixels["weights"].shape == (3, 2, 4, 64) and np.allclose(pixels["weights"].sum(axis=-1), sums)
assert (pixels["queries"] == queries // 3).all()
drawn = plot_attention.half_drawn(np.zeros((8, 8, 3)), 20)
assert (drawn.reshape(64, 3)[:20] == 0).all() and (drawn.reshape(64, 3)[20:] > 0).all()

pairs = {title: (seen > 0).sum() for title, seen in plot_attention.patterns(12, 4, 1)}
assert pairs == {"dense": 78, "window": 42, "column": 24, "strided, merged": 54, "block": 30, "summary": 15 + 12 - 3,
                 "fixed, merged": 42}, pairs
print("all of it")
END
says "weights, queries and patterns" "all of it" "$drawing" looked.py "$root"
says "plot_attention.py over a half-drawn picture" "half.png" "$drawing" "$root/scripts/plots/plot_attention.py" \
    half.safetensors --out half.png --queries 1,2
says "plot_attention.py --patterns" "patterns.png" "$drawing" "$root/scripts/plots/plot_attention.py" --patterns \
    --out patterns.png
"$drawing" "$root/scripts/plots/plot_attention.py" --patterns half.safetensors --out x.png >out 2>err
[ $? -eq 2 ] && grep -q "takes no file" err
check "which takes no file" $? "$(tail -n 1 err)"

"$build/pack_dataset" --data shapes --split val --raw --out shapes.pack >out 2>err
says "png_bits.py" 'png_bits: [5-6]\.[0-9]{4}$' "$drawing" "$root/scripts/plots/png_bits.py" shapes.pack
"$drawing" "$root/scripts/plots/png_bits.py" half.safetensors >out 2>err
[ $? -eq 1 ] && grep -q "not a file of pack_dataset" err
check "of another file" $? "$(tail -n 1 err)"

# The program's baseline equals that of Pillow's resizing and numpy on the same pictures.
cat >histogram.py <<'END'
import re, struct, sys
sys.path.insert(0, sys.argv[1] + "/scripts/plots")
import plots  # noqa: F401
import numpy as np
from PIL import Image
import png_bits
counts = np.ones((192, 256))
pictures = [np.asarray(p.resize((8, 8), Image.BOX)).reshape(-1) for p in list(png_bits.pictures("train.pack"))]
held_out = [np.asarray(p.resize((8, 8), Image.BOX)).reshape(-1) for p in list(png_bits.pictures("shapes.pack"))[:8]]
for picture in pictures:
    counts[np.arange(192), picture] += 1
bits = -np.log2(np.array([counts[np.arange(192), p] for p in held_out]) / counts.sum(axis=1)).mean()
got = float(re.search(r"^histogram_bits: ([0-9.]+)$", open("eval.txt").read(), re.M).group(1))
print(f"{'they agree' if abs(bits - got) < 2e-6 else 'they differ'}: {got} {bits:.6f}")
END
"$build/pack_dataset" --data shapes --split train --raw --out train.pack --limit 64 >out 2>err
# shellcheck disable=SC2086
"$ar" $model --validation-images 0 --epochs 1 --run-dir whole >out 2>err
"$ar" --init whole/best.safetensors --eval >eval.txt 2>err
says "histograms of each position" "they agree" "$drawing" histogram.py "$root"

echo "1..$count"
[ "$failures" -eq 0 ]
