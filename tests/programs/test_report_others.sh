#!/bin/sh
# Tests of the facts that train_detr, train_mask_rcnn, train_semantic_fpn and train_ar write to a run's report.json: the
# model, the pictures of an evaluation, results of classes, samples of a density model; and that they do not affect
# training.
#
#   BUILD=build/cpu sh tests/programs/test_report_others.sh

# shellcheck disable=SC2015,SC2086 # settings are lists of words; no name here holds a space
. "$(dirname "$0")/../tap.sh"

blocks='--backbone-blocks 1,1,1,1 --backbone-width 4'
sizes='--scale-min 64 --scale-max 64 --max-size 96 --crop false --eval-scale 64'
scenes='--scene-size 64 --train-limit 12 --batch-size 6 --epochs 2 --log-every 1'
detr="$blocks $sizes $scenes --val-limit 9 --dim 16 --ffn 24 --heads 2 --encoder-layers 1 --decoder-layers 2 --queries 9
      --lr 1e-3 --lr-backbone 1e-4 --draw-score 0"
mask="$blocks $sizes $scenes --val-limit 9 --fpn-width 8 --box-width 16 --mask-width 8 --anchor-size 4
      --train-candidates 100 --eval-candidates 100 --proposals 40 --detections 20 --anchor-sample 32 --region-sample 32
      --lr 1e-3 --warmup-steps 2 --lr-drops 90 --draw-score 0"
semantic="$blocks $scenes --val-limit 5 --fpn-dim 8 --head-dim 32 --scale-long 64 --scale-short 64
          --crop-size 64 --lr 1e-3"
density='--dim 16 --depth 2 --heads 2 --attn sparse-strided --sets window,column --batch-size 8 --warmup-steps 2
         --lr 1e-2 --epochs 2'
pictures="$density --image-side 8 --train-limit 40 --test-limit 9 --validation-images 9"
text="$density --data ./text --kind text --tokens 32"

# facts RUN PROGRAM: a Python program over the facts `f`, their plain values `v`, the sections by id `s` and the last row
# of the log `row`; the pictures of a section come from pictures(id).
facts() {
    "$python" - "$1" "$2" <<'END'
import base64, csv, json, sys
f = json.load(open(sys.argv[1] + "/report.json"))
v, s = f["values"], {section["id"]: section for section in f["sections"]}
row = [r for r in csv.DictReader(open(sys.argv[1] + "/log.csv"))][-1]
def pictures(id):
    for p in s[id]["pictures"]:
        start = base64.b64decode(p["data"])[:3]
        assert start in (b"\x89PN", b"\xff\xd8\xff") and p["width"] > 0 and p["height"] > 0
    return s[id]["pictures"]
def mean(bars, of):
    return sum(s[bars]["values"]) / of
exec(sys.argv[2])
END
}

# has NAME RUN PROGRAM
has() {
    facts "$2" "$3" >facts.txt 2>&1
    check "$1" $? "$(tail -n 1 facts.txt)"
}

# unnoticed RUN ARGUMENTS: evaluations, and the samples after them, do not change weights and moments.
unnoticed() {
    seen=$1
    shift
    run "$@" --eval-every 0 --run-dir "$seen-blind"
    differs=
    for file in last state; do
        tensors "$seen/$file.safetensors" >tensors.1 && tensors "$seen-blind/$file.safetensors" >tensors.2
        [ -s tensors.1 ] && cmp -s tensors.1 tensors.2 || differs="$differs $file"
    done
    [ -z "$differs" ]
    check "$seen: training is the same bit for bit without evaluations" $? "differs:$differs $(head -n 1 err)"
}

[ -n "$python" ] || { skip "reports of the other programs" "no Python with numpy"; echo "1..$count"; exit 0; }

# == Detectors =======================================================================================================

model='
rows = s["model"]["rows"]
assert sum(int(r[2]) for r in rows) == v["parameters"] > 0, (rows, v)
assert abs(sum(float(r[3]) for r in rows) * 1e6 / v["macs"] - 1) < 1e-2, (rows, v)
assert len(v["sentence"]) > 60 and v["sentence"].endswith(".")'

vit=$build/train_detr
succeeds "train_detr" $detr --run-dir detr
has "shows its model" detr "$model
assert 'SMCA-DETR' in v['sentence'] and '9 queries' in v['sentence']"
has "shows eight validation images" detr '
shown = pictures("found")
assert len(shown) == 8 and [p["caption"].split(":")[0] for p in shown][:2] == ["image 0", "image 1"]
assert all(len(p["caption"].split(": ")) == 2 for p in shown)
assert "epoch 2" in s["found"]["text"]'
has "and the AP of each class, whose mean is in the log" detr '
there = s["classes"]
assert len(there["values"]) >= 8 and there["values"] == sorted(there["values"], reverse=True), there
assert abs(sum(there["values"]) / len(there["values"]) - 100 * float(row["ap"])) < 0.01, (there, row["ap"])'
unnoticed detr $detr

vit=$build/train_mask_rcnn
succeeds "train_mask_rcnn" $mask --run-dir mask
has "shows its model" mask "$model
assert 'Mask R-CNN' in v['sentence'] and '40 proposals' in v['sentence']"
has "shows eight validation images, and the mask AP of each class" mask '
assert len(pictures("found")) == 8
assert s["classes"]["title"] == "Mask AP of each class"
there = s["classes"]["values"]
assert abs(sum(there) / len(there) - 100 * float(row["mask_ap"])) < 0.01, (there, row["mask_ap"])'
unnoticed mask $mask

# == Segmentation ====================================================================================================

vit=$build/train_semantic_fpn
succeeds "train_semantic_fpn" $semantic --run-dir semantic
has "shows its model" semantic "$model
assert 'Semantic FPN on a ResNet of 1, 1, 1 and 1 blocks' in v['sentence']"
has "shows all of five pictures, three side by side" semantic '
shown = pictures("segmented")
assert [p["caption"] for p in shown] == ["image %d of shapes" % i for i in range(5)]
assert all(p["width"] >= 3 * 64 and p["height"] >= 64 for p in shown)'
has "and the IoU of each class, whose mean is in the log" semantic '
there = s["classes"]["values"]
assert 2 <= len(there) <= 11 and abs(sum(there) / len(there) - 100 * float(row["miou"])) < 0.01, (there, row["miou"])'
unnoticed semantic $semantic

# == Density =========================================================================================================

vit=$build/train_ar
succeeds "train_ar of pictures" $pictures --run-dir pictures
has "shows its model" pictures "$model
assert '2 blocks with sparse-strided attention' in v['sentence']"
has "what its bits are compared with" pictures '
levels = {l["name"]: l["value"] for l in f["levels"] if l["column"] == "bits"}
assert levels["uniform noise"] == 8 and 4 < levels["byte histogram"] < 8.2, levels'
has "and what it draws" pictures '
shown = pictures("drawn")
assert 1 <= len(shown) <= 8 and all(p["width"] == p["height"] == 128 for p in shown)
assert len({p["data"] for p in shown}) == len(shown)'
same_sample='
import zlib
def pixels(png, every, of):
    at, data = 8, b""
    while at < len(png):
        size, kind = int.from_bytes(png[at:at + 4], "big"), png[at + 4:at + 8]
        if kind == b"IHDR": width, height = (int.from_bytes(png[at + k:at + k + 4], "big") for k in (8, 12))
        if kind == b"IDAT": data += png[at + 8:at + 8 + size]
        at += 12 + size
    data, row, rows = zlib.decompress(data), bytes(3 * width), []
    def paeth(a, b, c):
        return min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
    for y in range(height):
        line, out = data[y * (3 * width + 1):(y + 1) * (3 * width + 1)], bytearray()
        kind, line = line[0], line[1:]
        for i, x in enumerate(line):
            a, b, c = (out[i - 3] if i > 2 else 0), row[i], (row[i - 3] if i > 2 else 0)
            out.append((x + (0, a, b, (a + b) // 2, paeth(a, b, c))[kind]) & 255)
        row = bytes(out)
        rows.append(row)
    centres = [of + every // 2 + every * i for i in range(8)]
    return [rows[y][3 * x:3 * x + 3] for y in centres for x in centres]
drawn = pixels(base64.b64decode(pictures("drawn")[0]["data"]), 16, 0)
assert drawn == pixels(open("sample.png", "rb").read(), 12, 4), drawn'
run --init pictures/last.safetensors --sample 1 --out sample.png
has "which is what --sample draws" pictures "$same_sample"
unnoticed pictures $pictures
succeeds "a run with averaged weights" $pictures --ema-decay 0.5 --run-dir average
run --init average/last.safetensors --sample 1 --out sample.png
has "draws with these" average "$same_sample"
unnoticed average $pictures --ema-decay 0.5

seq 1 3000 >text
succeeds "train_ar of a text" $text --run-dir text-run
has "shows texts that it drew" text-run '
rows = s["drawn"]["rows"]
assert 1 <= len(rows) <= 8 and all(len(r) == 1 and 20 <= len(r[0]) <= 33 for r in rows), rows'
unnoticed text-run $text
mkdir -p damaged/train/a
cp "$root"/tests/corpus/jpeg/colour444.jpg "$root"/tests/corpus/jpeg/colour420.jpg "$root"/tests/corpus/jpeg/grey.jpg \
    "$root"/tests/corpus/jpeg/progressive.jpg "$root"/tests/corpus/jpeg/cut.jpg damaged/train/a
cp -R damaged/train damaged/val
run $density --data ./damaged --image-side 8 --batch-size 2 --max-damaged 0.5 --validation-images 0 --run-dir tolerant
[ "$status" -eq 0 ]
check "a damaged picture that a run tolerates ends it neither for the report" $? "status $status $(head -n 1 err)"
has "and is left out of the histogram" tolerant '
assert 0 < {l["name"]: l["value"] for l in f["levels"]}["byte histogram"] < 9, f["levels"]'

echo "1..$count"
[ "$failures" -eq 0 ]
