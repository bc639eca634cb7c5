#!/bin/sh
# scripts/convert_weights.py on files with the names and shapes of the published ones, and on damaged ones.
#
#   BUILD=build/cpu sh tests/project/test_convert.sh

# shellcheck disable=SC2015,SC2086,SC2154 # settings are lists of words
. "$(dirname "$0")/../tap.sh"

torch=
for candidate in ${PYTHON:-python3 /usr/bin/python3}; do
    [ -n "$torch" ] || ! "$candidate" -c 'import torch' 2>/dev/null || torch=$candidate
done
if [ -z "$torch" ]; then
    skip "weights of PyTorch" "no python3 with torch"
    echo "1..$count"
    exit 0
fi
"$torch" "$root/tests/reference/make_checkpoints.py" . || { echo "Bail out! make_checkpoints.py failed"; exit 1; }

converts() { # ARGUMENTS: as run
    "$torch" "$root/scripts/convert_weights.py" "$@" >out 2>err
    status=$?
}

# says NAME WORDS ARGUMENTS...
says() {
    name=$1 words=$2
    shift 2
    converts "$@"
    [ "$status" -eq 0 ] && [ ! -s err ] && grep -qF -e "$words" out
    check "$name" $? "$(cat out) $(tail -n 1 err)"
}

refuses_file() { # NAME WORDS ARGUMENTS...
    name=$1 words=$2
    shift 2
    converts "$@"
    complains 1 "$words" && [ ! -e refused.safetensors ]
    check "$name" $? "$(head -n 1 err)"
}

# The numbers are the spec's: 23,454,912 weights and 106,240 numbers of batch norms;
# 41,760,482 parameters of the detector.
says "torchvision's ResNet-50" "265 tensors, 23,561,152 numbers" resnet50.pth backbone.safetensors
says "SMCA-DETR" "500 tensors, 41,866,722 numbers" smca.pth smca.safetensors
says "the backbone of SMCA-DETR" "265 tensors, 23,561,152 numbers" --backbone smca.pth alone.safetensors
says "the backbone of DETR" "265 tensors, 23,561,152 numbers" --backbone detr.pth of-detr.safetensors
says "bfloat16" "265 tensors, 23,561,152 numbers" bfloat16.pth bfloat16.safetensors
says "half precision" "265 tensors, 23,561,152 numbers" half.pth half.safetensors

says "PVT's own names" "47 tensors" pvt.pth pvt.safetensors
pvt='--img-size 32 --patch-size 4 --patch-norm --dim 8,12 --depth 1 --heads 1,2 --mlp-ratio 2 --attn reduced
    --reduction 2,1 --stage-norm false --pool cls --pos-embed stages --data shapes'
# shellcheck disable=SC2086
if [ -x "$build/train_vit" ]; then
    run $pvt --predict test:0 --init pvt.safetensors
    check "are those of train_vit" $((status != 0)) "$(head -n 1 err)"
    "$torch" -c '
import os, sys
sys.path.insert(0, os.path.join(sys.argv[1], "tests", "reference"))
import numpy as np, safetensors_io
tensors = safetensors_io.read("pvt.safetensors")[0]
tensors = {n.replace("patch_embed.", "patch_embed1."): x for n, x in tensors.items()}
safetensors_io.write("official.safetensors", tensors, {})' "$root"
    refuses "but not before they are renamed" 1 'official.safetensors|patch_embed1|scripts/convert_weights.py' $pvt \
        --predict test:0 --init official.safetensors
    converts flatten.pth flatten.safetensors
    run $(echo "$pvt" | sed 's/--reduction 2,1//; s/reduced/focused/; s/pool cls/pool gap-raw/') --predict test:0 \
        --init flatten.safetensors
    [ "$status" -eq 0 ] && "$torch" -c '
import os, sys
sys.path.insert(0, os.path.join(sys.argv[1], "tests", "reference"))
import safetensors_io
bias = safetensors_io.read("flatten.safetensors")[0]["stages.1.blocks.0.attn.qkv.bias"]
assert bias.shape == (36,) and (bias[:12] != 7).all() and (bias[12:] == 7).all()' "$root" 2>>err
    check "FLatten's q, k and v are one product" $? "$(tail -n 1 err)"
    refuses "and not without the class token" 1 'pvt.safetensors|cls_token|pool cls' $pvt --pool gap --predict test:0 \
        --init pvt.safetensors
    succeeds "positions are resampled" $pvt --img-size 64x32 --predict test:0 --init pvt.safetensors
    grep -q 'resampled bilinearly: pos_embed1 from 8x8 to 16x8 and 1 more' out
    check "bilinearly" $? "$(grep resampled out)"
else
    skip "PVT in train_vit" "no $build/train_vit"
fi

cat >values.py <<'END'
import os, sys
sys.path.insert(0, os.path.join(sys.argv[1], "tests", "reference"))
import numpy as np, safetensors_io
files = {name: safetensors_io.read(name + ".safetensors")[0]
         for name in ("backbone", "smca", "alone", "half", "bfloat16")}
first, last = "backbone.0.body.conv1.weight", "backbone.0.body.layer4.2.bn3.running_var"
for tensors in files.values():
    assert all(x.dtype == np.float32 for x in tensors.values())
    exact = 256 if tensors is files["bfloat16"] else 2000
    assert (tensors[first].ravel()[:exact] == np.arange(exact)).all()
    assert tensors[last].shape == (2048,) and len(np.unique(tensors[last])) == 1
of_detr = safetensors_io.read("of-detr.safetensors")[0]
assert set(of_detr) == set(files["alone"]) and (of_detr[first] == files["alone"][first]).all()
assert set(files["alone"]) == set(files["backbone"]) == {n for n in files["smca"] if n.startswith("backbone.")}
# places in torchvision's file: 53 norms count their batches, running_var comes before the last of these
assert np.float32(0.001 * 316) == files["backbone"][last][0], files["backbone"][last][0]
assert np.float32(0.001 * 499) == files["smca"][last][0] == files["alone"][last][0]
END
"$torch" values.py "$root" >out 2>err
check "the numbers are the file's" $? "$(tail -n 1 err)"

# train_vit accepts hosts with their authors' names; --init needs every tensor and accepts no other.
hosts="--img-size 32 --patch-size 4 --dim 8,16 --heads 2 --pos-embed none --num-classes 2"
swin="$hosts --depth 2 --patch-norm --patch-merging --stage-norm false"
pvt="$hosts --depth 1 --patch-overlap --mlp-conv"
cswin="$hosts --depth 1 --patch-overlap --patch-pad 2 --stage-norm false"
takes() { # NAME ARGUMENTS...
    name=$1
    shift
    converts "$name.pth" "$name.safetensors"
    run "$@" --init "$name.safetensors" --parity batch.safetensors --out "$name.out"
    [ "$status" -eq 0 ] && [ ! -s err ] && [ -s "$name.out" ]
    check "train_vit takes the official $name" $? "$(tail -n 1 err)"
}
"$torch" - "$root" <<'END'
import os, sys
sys.path.insert(0, os.path.join(sys.argv[1], "tests", "reference"))
import numpy as np, safetensors_io
random = np.random.RandomState(1)
safetensors_io.write("batch.safetensors", {"images": random.standard_normal((2, 3, 32, 32)).astype(np.float32),
                                           "labels": np.array([0, 1])})
END
takes swin $swin --attn swin --window 3
takes flatten-swin $swin --attn focused,swin --window 3
takes pvt-v2 $pvt --attn reduced --reduction 2,1
takes flatten-pvt-v2 $pvt --attn focused
takes flatten-pvt-v2-reduced $pvt --attn focused-reduced --reduction 2,1
takes cswin $cswin --attn cswin --stripe 2
takes flatten-cswin $cswin --attn cswin-focused,cswin --stripe 0
compact="--img-size 32 --attn softmax --dim 8 --depth 2 --heads 2 --mlp-ratio 1 --mlp-stream normed --qkv-bias false
         --norm-eps 1e-5 --num-classes 2"
tokenizer="$compact --stem conv --patch-size 1 --tokenizer-width 6 --pool seq"
takes compact $tokenizer
takes vit-lite $compact --patch-size 4 --pool cls
cat >joined.py <<'END'
import os, sys
sys.path.insert(0, os.path.join(sys.argv[1], "tests", "reference"))
import numpy as np, safetensors_io, torch
ours = safetensors_io.read("flatten-pvt-v2.safetensors")[0]
theirs = {name: x.numpy() for name, x in torch.load("flatten-pvt-v2.pth").items()}
qkv = ours["stages.1.blocks.0.attn.qkv.weight"]
assert (qkv[:16] == theirs["block2.0.attn.q.weight"]).all() and (qkv[16:] == theirs["block2.0.attn.kv.weight"]).all()
assert (ours["stages.1.downsample.proj.weight"] == theirs["patch_embed2.proj.weight"]).all()
assert (ours["stages.1.blocks.0.mlp.dwconv.bias"] == theirs["block2.0.mlp.dwconv.dwconv.bias"]).all()
ours = safetensors_io.read("swin.safetensors")[0]
theirs = {name: x.numpy() for name, x in torch.load("swin.pth")["model"].items()}
assert (ours["layers.1.downsample.reduction.weight"] == theirs["layers.0.downsample.reduction.weight"]).all()
assert (ours["head.fc.weight"] == theirs["head.weight"]).all()
ours = safetensors_io.read("cswin.safetensors")[0]
theirs = {name: x.numpy() for name, x in torch.load("cswin.pth")["state_dict_ema"].items()}
assert (ours["stages.1.downsample.proj.weight"] == theirs["merge1.conv.weight"]).all()
assert (ours["stages.0.blocks.0.attn.attns.1.get_v.weight"] == theirs["stage1.0.attns.1.get_v.weight"]).all()
assert (ours["patch_embed.norm.weight"] == theirs["stage1_conv_embed.2.weight"]).all()
safetensors_io.write("own-names.safetensors", theirs, {})
ours = safetensors_io.read("compact.safetensors")[0]
theirs = {name: x.numpy() for name, x in torch.load("compact.pth").items()}
assert (ours["tokenizer.conv_layers.1.0.weight"] == theirs["tokenizer.conv_layers.1.0.weight"]).all()
assert (ours["blocks.1.norm2.bias"] == theirs["classifier.blocks.1.norm1.bias"]).all()
assert (ours["blocks.1.norm1.weight"] == theirs["classifier.blocks.1.pre_norm.weight"]).all()
assert (ours["attention_pool.weight"] == theirs["classifier.attention_pool.weight"]).all()
safetensors_io.write("compact-names.safetensors", theirs, {})
END
"$torch" joined.py "$root" >out 2>err
check "under timm's names, q before kv" $? "$(tail -n 1 err)"
refuses "CSwin's own names" 1 'own-names.safetensors|CSwin|stage1_conv_embed|scripts/convert_weights.py' $cswin --attn cswin \
    --stripe 2 --init own-names.safetensors --parity batch.safetensors --out own.out

refuses "and those of compact transformers" 1 'compact-names.safetensors|Compact Transformers|scripts/convert_weights.py' \
    $tokenizer --init compact-names.safetensors --parity batch.safetensors --out own.out

refuses_file "a missing tensor" "missing.pth|layer3.5.bn2.running_mean|ResNet-50" missing.pth refused.safetensors
refuses_file "a tensor of another shape" "shape.pth|layer2.0.downsample.0.weight|[512, 128, 1, 1]|[512, 256, 1, 1]" \
    shape.pth refused.safetensors
refuses_file "a tensor too many" "more.pth|layer4.3.conv1.weight|no place" more.pth refused.safetensors
refuses_file "another ResNet" "resnet18.pth|layer1.0.conv3.weight|and 13 more" resnet18.pth refused.safetensors
refuses_file "DETR as SMCA-DETR" "detr.pth|without spatial modulation|--backbone" detr.pth refused.safetensors
refuses_file "a file that runs a program" "harmful.pth|system" harmful.pth refused.safetensors
[ ! -e harmed ]
check "and nothing ran" $?
echo 'conv1.weight: 1 2 3' >resnet18.txt
refuses_file "a list of tensors" "list.pth|no tensors by name" list.pth refused.safetensors
refuses_file "a file that was cut short" "cut-resnet50.pth|not a file of weights|without its end" cut-resnet50.pth \
    refused.safetensors
refuses_file "an old file that was cut short" "cut-detr.pth|not a file of weights|ends within its numbers" \
    cut-detr.pth refused.safetensors
refuses_file "something else" "resnet18.txt|not a file of weights" resnet18.txt refused.safetensors
refuses_file "no file" "none.pth: no such file" none.pth refused.safetensors
refuses_file "no folder to write to" "none/refused.safetensors" resnet50.pth none/refused.safetensors

echo "1..$count"
[ "$failures" -eq 0 ]
