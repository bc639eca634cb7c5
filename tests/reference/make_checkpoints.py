"""Files as torchvision and the official detector publish them, with the right names and shapes and nothing learned, for
tests/project/test_convert.sh; and damaged ones.

    python3 tests/reference/make_checkpoints.py FOLDER

Every tensor is one number repeated, 0.001 times its place in the file, but conv1.weight, which counts up, and those of
compact transformers, which are random; a file holds each number once, so all are small.  Needs PyTorch; but for compact
transformers the names are written down here a second time, not taken from the converter."""

import argparse
import os
import sys

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import torch

from compact_reference import CompactTransformer


def resnet(prefix, batches_tracked):
    names = {}

    def conv(name, norm, *shape):
        names[prefix + name + ".weight"] = shape
        for part in "weight bias running_mean running_var".split():
            names[prefix + norm + "." + part] = shape[:1]
        if batches_tracked:
            names[prefix + norm + ".num_batches_tracked"] = ()

    conv("conv1", "bn1", 64, 3, 7, 7)
    inputs = 64
    for stage, (count, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], 1):
        for b in range(count):
            conv(f"layer{stage}.{b}.conv1", f"layer{stage}.{b}.bn1", width, inputs, 1, 1)
            conv(f"layer{stage}.{b}.conv2", f"layer{stage}.{b}.bn2", width, width, 3, 3)
            conv(f"layer{stage}.{b}.conv3", f"layer{stage}.{b}.bn3", 4 * width, width, 1, 1)
            if b == 0:
                conv(f"layer{stage}.0.downsample.0", f"layer{stage}.0.downsample.1", 4 * width, inputs, 1, 1)
            inputs = 4 * width
    return names


def detector(modulated):
    names = {}

    def linear(name, out, inputs=256):
        names[name + ".weight"], names[name + ".bias"] = (out, inputs), (out,)

    def attention(name):
        names[name + ".in_proj_weight"], names[name + ".in_proj_bias"] = (768, 256), (768,)
        linear(name + ".out_proj", 256)

    for half in "encoder", "decoder":
        for i in range(6):
            at = f"transformer.{half}.layers.{i}."
            attention(at + "self_attn")
            if half == "decoder":
                attention(at + "multihead_attn")
            linear(at + "linear1", 2048)
            linear(at + "linear2", 256, 2048)
            for n in range(1, 3 if half == "encoder" else 5 if modulated else 4):
                names[f"{at}norm{n}.weight"] = names[f"{at}norm{n}.bias"] = (256,)
            if half == "decoder" and modulated:
                if i == 0:
                    for j, out in enumerate((256, 256, 2)):
                        linear(f"{at}point1.layers.{j}", out)
                linear(at + "point2", 16)
                linear(at + "point3", 16)
    names["transformer.decoder.norm.weight"] = names["transformer.decoder.norm.bias"] = (256,)
    linear("class_embed", 92)
    for j, out in enumerate((256, 256, 4)):
        linear(f"bbox_embed.layers.{j}", out)
    names["query_embed.weight"] = (300, 256)
    names["input_proj.weight"], names["input_proj.bias"] = (256, 2048, 1, 1), (256,)
    return {**names, **resnet("backbone.0.body.", False)}


def block(names, at, M, attention):
    """A block of a vision transformer, with the MLP four times as wide."""
    for norm in "norm1", "norm2":
        names[f"{at}{norm}.weight"] = names[f"{at}{norm}.bias"] = (M,)
    for name, out, inputs in (*attention, ("attn.proj", M, M), ("mlp.fc1", 4 * M, M), ("mlp.fc2", M, 4 * M)):
        names[f"{at}{name}.weight"], names[f"{at}{name}.bias"] = (out, inputs), (out,)


def focused(names, at, M, N):
    names.update({at + "attn.scale": (1, 1, M), at + "attn.positional_encoding": (1, N, M),
                  at + "attn.dwc.weight": (M // 2, 1, 5, 5), at + "attn.dwc.bias": (M // 2,)})


def swin(focuses):
    """Two stages of 8 x 8 and 4 x 4 tokens of width 8 and 16, windows of 3 x 3; two classes."""
    names = {"patch_embed.proj.weight": (8, 3, 4, 4), "patch_embed.proj.bias": (8,), "patch_embed.norm.weight": (8,),
             "patch_embed.norm.bias": (8,)}
    for i, (M, side) in enumerate(((8, 8), (16, 4))):
        for j in range(2):
            at = f"layers.{i}.blocks.{j}."
            block(names, at, M, [("attn.qkv", 3 * M, M)])
            if focuses and i == 0:
                focused(names, at, M, side * side)
                continue
            names.update({at + "attn.relative_position_bias_table": (25, 2), at + "attn.relative_position_index": (9, 9)})
            if j == 1:
                names[at + "attn_mask"] = (9, 9, 9)
        if i == 0:
            names.update({"layers.0.downsample.reduction.weight": (16, 32), "layers.0.downsample.norm.weight": (32,),
                          "layers.0.downsample.norm.bias": (32,)})
    return {**names, "norm.weight": (16,), "norm.bias": (16,), "head.weight": (2, 16), "head.bias": (2,)}


def pvt_v2(focuses, reduces):
    """The same sizes, keys reduced twice in the first stage."""
    names = {}
    for i, (M, inputs, side, r) in enumerate(((8, 3, 8, 2), (16, 8, 4, 1)), 1):
        k = 7 if i == 1 else 3
        names.update({f"patch_embed{i}.proj.weight": (M, inputs, k, k), f"patch_embed{i}.proj.bias": (M,),
                      f"patch_embed{i}.norm.weight": (M,), f"patch_embed{i}.norm.bias": (M,)})
        at = f"block{i}.0."
        block(names, at, M, [("attn.q", M, M), ("attn.kv", 2 * M, M)])
        names.update({at + "mlp.dwconv.dwconv.weight": (4 * M, 1, 3, 3), at + "mlp.dwconv.dwconv.bias": (4 * M,)})
        if focuses:
            focused(names, at, M, side * side // (r * r if reduces else 1))
        if reduces and r > 1:
            names.update({at + "attn.sr.weight": (M, M, r, r), at + "attn.sr.bias": (M,), at + "attn.norm.weight": (M,),
                          at + "attn.norm.bias": (M,)})
        names.update({f"norm{i}.weight": (M,), f"norm{i}.bias": (M,)})
    return {**names, "head.weight": (2, 16), "head.bias": (2,)}


def cswin(focuses):
    """The same sizes; stripes of two tokens in the first stage, or focused attention of all of them."""
    names = {"stage1_conv_embed.0.weight": (8, 3, 7, 7)}
    names.update({f"stage1_conv_embed.{name}": (8,) for name in ("0.bias", "2.weight", "2.bias")})
    for i, (M, branches) in enumerate(((8, 1 if focuses else 2), (16, 1)), 1):
        at, whole, branch = f"stage{i}.0.", {}, {}
        block(whole, at, M, [("attn.qkv", 3 * M, M)])
        if focuses and i == 1:
            focused(branch, at, M, 64)
        names.update({name.replace("attn.", ""): shape for name, shape in whole.items()})
        names.update({name.replace("attn.", "attns.0."): shape for name, shape in branch.items()})
        for j in range(branches):
            names[f"{at}attns.{j}.get_v.weight"] = (M // branches, 1, 3, 3)
            names[f"{at}attns.{j}.get_v.bias"] = (M // branches,)
    names.update({"merge1.conv.weight": (16, 8, 3, 3), "merge1.conv.bias": (16,), "merge1.norm.weight": (16,),
                  "merge1.norm.bias": (16,)})
    return {**names, "norm.weight": (16,), "norm.bias": (16,), "head.weight": (2, 16), "head.bias": (2,)}


def tensors(names):
    made = {}
    for i, (name, shape) in enumerate(names.items()):
        if name.endswith("num_batches_tracked"):
            made[name] = torch.tensor(7)
        elif name.endswith("conv1.weight") and len(shape) == 4 and shape[1] == 3:
            made[name] = torch.arange(64. * 3 * 7 * 7).reshape(shape)
        else:
            made[name] = torch.tensor([0.001 * i]).reshape([1] * len(shape)).expand(shape)
    return made


def pvt():
    """A PVT of two stages under the names of its own program, each tensor filled with its place in the file."""
    names = {"cls_token": (1, 1, 12)}
    for i, (inside, width, side, grid, reduction) in enumerate(((3, 8, 4, 8, 2), (8, 12, 2, 4, 1)), 1):
        names[f"pos_embed{i}"] = (1, grid * grid + (i == 2), width)
        names[f"patch_embed{i}.proj.weight"] = (width, inside, side, side)
        names.update({f"patch_embed{i}.{name}": (width,) for name in ("proj.bias", "norm.weight", "norm.bias")})
        at = f"block{i}.0."
        names.update({f"{at}{norm}.{part}": (width,) for norm in ("norm1", "norm2") for part in ("weight", "bias")})
        for layer, outputs, inputs in (("attn.q", 1, 1), ("attn.kv", 2, 1), ("attn.proj", 1, 1), ("mlp.fc1", 2, 1),
                                       ("mlp.fc2", 1, 2)):
            names[f"{at}{layer}.weight"] = (outputs * width, inputs * width)
            names[f"{at}{layer}.bias"] = (outputs * width,)
        if reduction > 1:
            names[f"{at}attn.sr.weight"] = (width, width, reduction, reduction)
            names.update({f"{at}attn.{name}": (width,) for name in ("sr.bias", "norm.weight", "norm.bias")})
    names.update({"norm.weight": (12,), "norm.bias": (12,), "head.weight": (10, 12), "head.bias": (10,)})
    return {name: torch.full(shape, 0.001 * i) for i, (name, shape) in enumerate(names.items())}


def focused_pvt(tensors):
    """That PVT with focused linear attention in both stages, as FLatten's program names it: no class token."""
    tensors = {name: x for name, x in tensors.items() if ".attn.sr." not in name and ".attn.norm." not in name}
    del tensors["cls_token"]
    tensors["pos_embed2"] = tensors["pos_embed2"][:, 1:]
    for i, (width, heads, grid) in enumerate(((8, 1, 8), (12, 2, 4)), 1):
        at = f"block{i}.0.attn."
        tensors.update({at + "scale": torch.zeros(1, 1, width),
                        at + "positional_encoding": torch.zeros(1, grid * grid, width),
                        at + "dwc.weight": torch.full((width // heads, 1, 5, 5), 0.01),
                        at + "dwc.bias": torch.zeros(width // heads)})
        tensors[at + "kv.bias"] = torch.full((2 * width,), 7.0)
    return tensors


def compact(**options):
    """A compact transformer with random weights."""
    torch.manual_seed(3)
    return CompactTransformer(dim=8, depth=2, classes=2, width=6, **options).state_dict()


class Harmful:

    def __reduce__(self):
        return os.system, ("touch harmed",)


def main():
    folder = sys.argv[1]

    def save(name, content):
        torch.save(content, os.path.join(folder, name))

    vision = {**resnet("", True), "fc.weight": (1000, 2048), "fc.bias": (1000,)}
    smca = tensors(detector(True))
    assert len(vision) == 320 and len(smca) == 500
    save("resnet50.pth", tensors(vision))
    save("smca.pth", {"model": smca, "epoch": 49, "args": argparse.Namespace(lr=1e-4), "optimizer": {"state": {}}})
    torch.save({"model": tensors(detector(False)), "args": argparse.Namespace(lr=1e-4)},
               os.path.join(folder, "detr.pth"),
               _use_new_zipfile_serialization=False) # as before 1.6, when DETR was published
    save("bfloat16.pth", {name: x.bfloat16() if x.is_floating_point() else x for name, x in tensors(vision).items()})
    save("half.pth", {name: x.half() if x.is_floating_point() else x for name, x in tensors(vision).items()})
    for name, change in {
            "missing": {"layer3.5.bn2.running_mean": None},
            "shape": {"layer2.0.downsample.0.weight": (512, 128, 1, 1)},
            "more": {"layer4.3.conv1.weight": (512, 2048, 1, 1)},
            "resnet18": {name: None for name in vision if ".conv3." in name}
    }.items():
        save(name + ".pth", tensors({n: s for n, s in {**vision, **change}.items() if s is not None}))
    save("pvt.pth", pvt())
    save("flatten.pth", focused_pvt(pvt()))
    save("compact.pth", compact())
    save("vit-lite.pth", compact(patch=4, pool="cls"))
    save("harmful.pth", {"model": {"conv1.weight": Harmful()}})
    save("list.pth", [torch.zeros(3)])
    save("flatten-pvt-v2-reduced.pth", tensors(pvt_v2(True, True)))
    for focuses in False, True:
        prefix = "flatten-" if focuses else ""
        save(prefix + "swin.pth", {"model": tensors(swin(focuses))})
        save(prefix + "pvt-v2.pth", tensors(pvt_v2(focuses, not focuses)))
        save(prefix + "cswin.pth", {"state_dict_ema": tensors(cswin(focuses)), "epoch": 299})
    for name in "resnet50", "detr":
        with open(os.path.join(folder, name + ".pth"), "rb") as whole:
            data = whole.read()
        with open(os.path.join(folder, f"cut-{name}.pth"), "wb") as cut:
            cut.write(data[:len(data) - 30000])


if __name__ == "__main__":
    main()
