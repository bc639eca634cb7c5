#!/bin/sh
# The facts that train_vit writes to report.json for the page of a run: the model, the first batch, and results of
# evaluations. TAP on standard output, evidence behind '# '.

# shellcheck disable=SC2012,SC2015,SC2046,SC2086 # settings are lists of words; no name here holds a space
. "$(dirname "$0")/../tap.sh"

[ -n "$python" ] || { skip "the page of a run" "no Python with numpy here"; echo "1..$count"; exit 0; }

cat >facts.py <<'PYTHON'
import base64, csv, json, os, sys
run = sys.argv[1]
facts = json.load(open(f"{run}/report.json"))
values = facts["values"]
sections = {s["id"]: s for s in facts["sections"]}
rows = [r for r in csv.DictReader(open(f"{run}/log.csv")) if r["val_loss"]] or [{}]
top1 = float(rows[-1].get("top1") or "nan")
def counts(): # the confusion matrix
    s = sections["confusion"]
    n = s["columns"]
    return [s["values"][i * n:(i + 1) * n] for i in range(s["rows"])]
def captions(name): return [p["caption"] for p in sections[name]["pictures"]]
PYTHON

# holds NAME RUN [ARGUMENTS]: does the Python on standard input, after the code above, end well?
holds() {
    name=$1
    shift
    { cat facts.py; cat; } >check.py
    "$python" check.py "$@" >said 2>&1
    check "$name" $? "$(tail -n 1 said)"
}

# == One run =========================================================================================================

learns="$tiny --epochs 2 --lr 3e-3 --attn ripple --drop-path 0.1 --ema-decay 0.9 --mixup 0.8 --cutmix 1 --reprob 0.25"
succeeds "a run" $learns --run-dir run
holds "its sections in this order" run <<'PYTHON'
print(" ".join(sections))
assert list(sections) == ["model", "batch", "confusion", "classes", "wrong", "attention"]
PYTHON
run $learns --describe
holds "the sentence and the counts of --describe, which the table's rows sum to" run out <<'PYTHON'
print(values["sentence"])
assert values["sentence"] == ("2 ripple blocks with 2 heads on 4 x 4 tokens of 16 channels, after patches of 8 x 8 "
                              "pixels; global average pooling")
told = dict(line.strip().split(": ") for line in open(sys.argv[2]) if line.startswith(("params: ", "macs: ")))
assert int(told["params"]) == values["parameters"] and int(told["macs"]) == values["macs"]
table = sections["model"]
last = [table["names"].index(name) for name in ("parameters", "million multiply-adds")]
sums = [sum(float(row[i]) for row in table["rows"]) for i in last]
assert sums[0] == values["parameters"] and abs(sums[1] - values["macs"] / 1e6) < 0.02
PYTHON
holds "the diagonal of the confusion matrix sums to the log's top-1" run <<'PYTHON'
matrix = counts()
total, right = sum(map(sum, matrix)), sum(matrix[c][c] for c in range(10))
print(f"{right} of {total}, top-1 {top1}")
assert total == 32 and abs(100 * right / total - top1) < 1e-3 and "epoch 2" in sections["confusion"]["title"]
shares = [float(row[2]) for row in sections["classes"]["rows"]]
names = sections["confusion"]["row_names"]
assert shares == sorted(shares) and abs(sum(shares) / 10 - top1) < 5
for name, images, share, rival in sections["classes"]["rows"]:
    row = matrix[names.index(name)]
    others = [n for c, n in enumerate(row) if c != names.index(name)]
    assert sum(row) == int(images) and abs(100 * row[names.index(name)] / sum(row) - float(share)) < 0.01
    assert (not rival and not any(others)) or row[names.index(rival)] == max(others)
PYTHON
run --init run/last.safetensors --eval --confusion matrix.csv
holds "the matrix is that of --eval" run matrix.csv <<'PYTHON'
told = [list(map(int, row[1:])) for row in list(csv.reader(open(sys.argv[2])))[1:]]
print(told[0])
assert told == counts()
PYTHON
holds "pictures: the mixed batch, the wrong images, heads and rollout" run <<'PYTHON'
print(captions("batch")[0], "|", captions("wrong")[0], "|", captions("attention"))
mixed = [c for c in captions("batch") if "%" in c]
assert 4 <= len(captions("batch")) <= 16 and mixed
for c in mixed:
    assert abs(sum(float(word) for word in c.replace("%,", "").replace("%", "").split() if word.isdigit()) - 100) <= 1
wrong = sum(map(sum, counts())) - sum(counts()[c][c] for c in range(10))
assert len(captions("wrong")) == min(20, wrong)
assert captions("attention") == ["the image", "head 1", "head 2", "rollout over all blocks"]
for s in sections.values():
    for p in s.get("pictures", []):
        assert base64.b64decode(p["data"])[:4] in (b"\x89PNG", b"\xff\xd8\xff\xe0")
PYTHON

# The state also contains results of an evaluation: the best result and the position in the log.
run $learns --eval-every 0 --run-dir unseen
tensors run/state.safetensors >seen.1 && tensors unseen/state.safetensors >seen.2
[ -s seen.1 ] && cmp -s seen.1 seen.2
check "weights, moments and average are those of a run that never evaluates" $?

run $learns --epochs 1 --lr-min 3e-3 --run-dir parts
cp parts/report.json first.json
run --resume parts --epochs 2
holds "a resumed run goes on with its page" parts first.json <<'PYTHON'
before = {s["id"]: s for s in json.load(open(sys.argv[2]))["sections"]}
print(sections["confusion"]["title"])
assert list(sections) == list(before) and sections["batch"] == before["batch"]
assert "epoch 1" in before["wrong"]["title"] and "epoch 2" in sections["wrong"]["title"]
PYTHON

# == Attention =======================================================================================================

# The same from the weights that --predict writes, for a class token that is added in the eleventh of twelve blocks.
succeeds "a class token" $tiny --depth 12 --attn convit --pool cls --lr 3e-3 --epochs 1 --run-dir token
run --init token/last.safetensors --predict test:0 --attention rows.safetensors
if "$python" -c 'import PIL' 2>/dev/null; then
    holds "heads and rollout are those of the weights that --predict writes" token rows.safetensors <<'PYTHON'
import io
import numpy as np
from PIL import Image
data = open(sys.argv[2], "rb").read()
size = int.from_bytes(data[:8], "little")
header = json.loads(data[8:8 + size])
def tensor(name):
    first, end = header[name]["data_offsets"]
    return np.frombuffer(data[8 + size + first:8 + size + end], np.float32).reshape(header[name]["shape"])
rows = np.maximum(np.nan_to_num(tensor("matrix").astype(float)), 0)
rows = np.where(rows.sum(-1, keepdims=True) > 0, rows / np.maximum(rows.sum(-1, keepdims=True), 1e-30), np.eye(17))
token = np.eye(17)[0]
wanted = [token @ rows[-1, head] for head in range(2)] + [token]
for block in rows[::-1]: wanted[2] = wanted[2] @ (block.mean(0) + np.eye(17)) / 2
at = np.clip((np.arange(96) + 0.5) / 24 - 0.5, 0, 3)
weights = np.maximum(1 - abs(at[:, None] - np.arange(4)), 0) # [96,4] of neighbouring tokens
grey = np.kron(255 * tensor("image") @ [0.3, 0.6, 0.1], np.ones((3, 3)))
worst = 0
for picture, w in zip(sections["attention"]["pictures"][1:], wanted):
    heat = 3 * weights @ (w[1:] / w[1:].max()).reshape(4, 4) @ weights.T
    drawn = 0.4 * grey[..., None] + 153 * np.clip(heat[..., None] - np.arange(3), 0, 1)
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture["data"]))).convert("RGB"), float)
    worst = max(worst, np.sqrt(np.mean((shown - drawn) ** 2)))
print(f"{worst:.2f} of 255 rms, with JPEG")
assert worst < 4
PYTHON
else
    skip "heads and rollout" "no Python with PIL here"
fi

# == Other models and data ===========================================================================================

succeeds "more classes than a matrix shows" $tiny --epochs 1 --num-classes 50 --run-dir pairs
holds "have a list of pairs, and the hardest and easiest" pairs <<'PYTHON'
pairs = sections["confusion"]["rows"]
print(pairs[0])
assert sections["confusion"]["names"] == ["true", "predicted", "images", "% of the class"]
numbers = [int(row[2]) for row in pairs]
assert 0 < len(pairs) <= 20 and numbers == sorted(numbers, reverse=True) and all(row[0] != row[1] for row in pairs)
assert sum(numbers) <= 32 * (1 - top1 / 100) + 1e-6
hard, easy = sections["hardest"]["rows"], sections["easiest"]["rows"]
assert len(hard) == len(easy) == 10 and float(hard[0][2]) <= float(easy[0][2])
assert float(easy[0][2]) == max(float(row[2]) for row in hard + easy)
PYTHON
succeeds "thousands of classes" $tiny --epochs 1 --num-classes 2000 --run-dir thousands
holds "have no matrix" thousands <<'PYTHON'
assert "confusion" not in sections and sections["hardest"]["names"] == ["class", "images", "top-1 %"]
PYTHON
succeeds "clips" --dim 16 --heads 2 --depth 1 --patch-size 16 --img-size 64 --data moving-shapes --frames 4 \
    --train-limit 16 --test-limit 8 --batch-size 8 --warmup-epochs 0 --epochs 1 --run-dir clips
holds "have a first batch, classes, and no pictures of evaluations" clips <<'PYTHON'
print(" ".join(sections))
assert list(sections) == ["model", "batch", "confusion", "classes"] and "clips after" in sections["confusion"]["title"]
assert abs(100 * sum(counts()[c][c] for c in range(8)) / 8 - top1) < 1e-3
PYTHON
succeeds "blocks whose activations are computed again" $tiny --epochs 1 --attn softmax --recompute true --run-dir again
succeeds "and kept" $tiny --epochs 1 --attn softmax --run-dir kept
holds "show the same heads" kept again <<'PYTHON'
again = {s["id"]: s for s in json.load(open(f"{sys.argv[2]}/report.json"))["sections"]}["attention"]["pictures"]
kept = sections["attention"]["pictures"]
print(len(kept), len(again))
assert len(kept) == 4 and again == kept[:3]
PYTHON
succeeds "an operator without weights" $tiny --epochs 1 --attn gf --run-dir gf
holds "shows no attention" gf <<'PYTHON'
assert "attention" not in sections and "wrong" in sections
PYTHON

# == Names that are no text ==========================================================================================

"$python" - <<'PYTHON'
import os, struct
import numpy as np
random = np.random.RandomState(7)
for split, many in (("train", 24), ("val", 20)):
    for c, name in enumerate(("<script>alert('x')<!--", 'a "b" & c', "two\nlines")):
        os.makedirs(f"odd/{split}/{name}")
        for i in range(many):
            pixels = random.randint(0, 156, (16, 16, 3))
            pixels[..., c] += 60
            data = pixels.astype(np.uint8).tobytes()
            header = struct.pack("<2sIHHI", b"BM", 54 + len(data), 0, 0, 54)
            header += struct.pack("<IiiHHIIiiII", 40, 16, 16, 1, 24, 0, len(data), 0, 0, 0, 0)
            open(f"odd/{split}/{name}/{i:02}.bmp", "wb").write(header + data)
PYTHON
small="$model --img-size 16 --patch-size 4 --batch-size 16 --warmup-epochs 0 --epochs 1"
succeeds "classes with odd names" --data odd $small --lr 1e-5 --seed 3 --run-dir odd.run
find odd/val -name '*.bmp' -print0 |
    xargs -0 "$vit" --init odd.run/last.safetensors --json odd.json --predict >out 2>err
holds "are named so, and the greatest losses are those of --predict" odd.run odd.json <<'PYTHON'
assert set(sections["confusion"]["row_names"]) == {"<script>alert('x')<!--", 'a "b" & c', "two\nlines"}
assert "validation images" in sections["wrong"]["title"]
names = {name.replace("\n", "?"): name for name in sections["confusion"]["row_names"]} # as checkpoints have them
losses = []
for picture in json.load(open(sys.argv[2])):
    true = picture["file"].split("/")[2]
    shares = {names[p["name"]]: p["probability"] for p in picture["predictions"]}
    said = max(shares, key=shares.get)
    if said != true: losses.append((shares[true], f"{true}, taken for {said} ({100 * shares[said]:.0f}\xa0%)"))
losses.sort()
print(len(losses), captions("wrong")[0])
assert len(losses) > 20 and len(captions("wrong")) == 20
for (share, _), caption in zip(losses, captions("wrong")): # other micro-batches round differently
    assert caption in [text for other, text in losses if abs(other - share) < 3e-4]
PYTHON
succeeds "a tenth of the training images" --data odd/train $small --val-fraction 0.2 --run-dir held.run
holds "is what is counted" held.run <<'PYTHON'
total = sum(map(sum, counts()))
print(total, top1)
assert 10 <= total <= 18 and abs(100 * sum(counts()[c][c] for c in range(3)) / total - top1) < 1e-3
PYTHON

# == Ranks ===========================================================================================================

if command -v "${MPIRUN:-mpirun}" >/dev/null 2>&1 && ldd "$vit" 2>/dev/null | grep -q libmpi; then
    timeout -k 5 100 "${MPIRUN:-mpirun}" -np 2 "$vit" $learns --run-dir ranks >out 2>err </dev/null
    holds "two ranks count all images and show those of one" ranks <<'PYTHON'
print(sections["wrong"]["text"])
total = sum(map(sum, counts()))
assert total == 32 and abs(100 * sum(counts()[c][c] for c in range(10)) / total - top1) < 1e-3
assert "16 images that rank 0 evaluated" in sections["wrong"]["text"] and len(captions("wrong")) <= 16
PYTHON
else
    skip "two ranks" "no mpirun, or a build without MPI"
fi

echo "1..$count"
[ $failures -eq 0 ]
